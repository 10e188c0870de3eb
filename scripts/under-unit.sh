#!/usr/bin/env bash
# Runs a script of this folder as root in a container with systemd as PID 1. The switch of that
# script can then run under packaging/penstock.service as its own user: see `start_switch` in
# lib.sh. The container has the machine's /usr, this tree and the cache, all read-only, its own
# network, and nothing else. The container ends with this script, for any reason, and leaves nothing
# behind. Needs root and systemd-nspawn. The machine itself may run without systemd.
#
#   under-unit.sh SCRIPT     has the script's output and status; 77 if no container can be made
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/container.sh
. "$(dirname "$0")/container.sh"

# Variables that a caller may set for a lane.
SETTINGS="RESTARTS SILENCE_MS SECONDS_EACH KEEP PENSTOCK_QEMU PENSTOCK_ACCEL PENSTOCK_PATIENCE"

# Makes a root for the container: an /etc with the machine's users, and the units with another
# program.
make_container() {
    local file
    umask 022
    mkdir -p "$BOOT"/{etc/systemd/system,etc/sysusers.d,var/lib,run,tmp,dev,proc,sys,usr,root,repo,out} \
        "$BOOT"/{opt,cache,boot} "$BOOT/etc/systemd/system/multi-user.target.wants" "$OUT"
    for file in bin sbin lib lib32 lib64; do [ ! -L /$file ] || ln -s usr/$file "$BOOT/$file"; done
    cp -a /etc/{nsswitch.conf,ld.so.cache,alternatives} "$BOOT/etc/" 2>/dev/null
    cp -L /etc/os-release "$BOOT/etc/"
    grep -E '^(root|daemon|nobody|messagebus|systemd-[a-z]+):' /etc/passwd >"$BOOT/etc/passwd"
    cp -a /etc/group "$BOOT/etc/"
    grep -q ^kvm: "$BOOT/etc/group" || echo kvm:x:64055: >>"$BOOT/etc/group"
    : >"$BOOT/etc/machine-id"
    : >"$BOOT/etc/penstock-container"
    systemd-sysusers --root="$BOOT" "$REPO/packaging/penstock.sysusers" >/dev/null 2>&1
    for file in "$REPO"/packaging/*.service; do
        sed "s|/usr/bin/penstock|/opt/penstock|; /^Documentation=/d" "$file" \
            >"$BOOT/etc/systemd/system/$(basename "$file")"
    done
    cp "$REPO"/packaging/*.socket "$BOOT/etc/systemd/system/"
    ln -s /usr/lib/systemd/system/multi-user.target "$BOOT/etc/systemd/system/default.target"
    # The machine's own services do not run.
    for file in getty@tty1 console-getty systemd-logind systemd-networkd systemd-resolved; do
        ln -s /dev/null "$BOOT/etc/systemd/system/$file.service"
    done
    add_script "$1" "/repo/scripts/$1" "Environment=PENSTOCK_CACHE=/cache
Environment=PENSTOCK_BIN=/opt/penstock PENSTOCK_UNDER_UNIT=1 PENSTOCK_RUN_AS=penstock
$(for file in $SETTINGS; do [ -z "${!file:-}" ] || echo "Environment=$file=${!file}"; done)"
}

cannot() {
    skip "$1 under the unit: $2"
    exit 77
}

BIN=$(penstock_bin)
[ -x "$REPO/scripts/${1:-?}" ] || die "usage: under-unit.sh SCRIPT, one of scripts/"
[ -x "$BIN" ] || { fail "$1: no program $BIN (\`make build\`)" && exit 1; }
[ "$(id -u)" = 0 ] || cannot "$1" "wants root"
have systemd-nspawn || cannot "$1" "wants systemd-nspawn (package systemd-container)"
mkdir -p "$CACHE"
WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-unit.XXXXXX")
BOOT=$WORK/boot OUT=$WORK/out
make_cgroups
watch_container

[ "${#CGROUPS[@]}" != 0 ] || cannot "$1" "no cgroup of its own here"
# Files for guests are made and found outside, because the cache is read-only inside.
if [[ $1 == test-* ]] && have qemu-system-x86_64 && "$REPO/scripts/guest-image.sh" >/dev/null; then
    # shellcheck disable=SC2034 # one of SETTINGS
    PENSTOCK_ACCEL=$(PENSTOCK_GUESTS=$WORK/guests "$REPO/scripts/guest.sh" accel)
fi
make_container "$1"
BINDS=(--bind-ro=/usr --bind-ro="$BIN:/opt/penstock" --bind-ro="$CACHE:/cache")
[ ! -e /dev/kvm ] || BINDS+=(--bind=/dev/kvm)
[ ! -d /boot ] || BINDS+=(--bind-ro=/boot)
container_works || cannot "$1" "systemd-nspawn makes no container here"
run_script "$1"
