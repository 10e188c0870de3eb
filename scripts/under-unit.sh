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

# This is longer than the longest lane on a slow machine without KVM.
SECONDS_MAX=1200
# Variables that a caller may set for a lane.
SETTINGS="SECONDS_EACH KEEP PENSTOCK_QEMU PENSTOCK_ACCEL PENSTOCK_PATIENCE"

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
    cat >"$BOOT/etc/systemd/system/script.service" <<UNIT
[Unit]
Description=$1
SuccessAction=exit
FailureAction=exit

[Service]
Type=oneshot
ExecStart=/repo/scripts/$1
StandardOutput=append:/out/script.log
StandardError=inherit
Environment=TMPDIR=/out PENSTOCK_CACHE=/cache
Environment=PENSTOCK_BIN=/opt/penstock PENSTOCK_UNDER_UNIT=1 PENSTOCK_RUN_AS=penstock
$(for file in $SETTINGS; do [ -z "${!file:-}" ] || echo "Environment=$file=${!file}"; done)
UNIT
    ln -s ../script.service "$BOOT/etc/systemd/system/multi-user.target.wants/script.service"
}

# systemd-nspawn makes its cgroups below its own cgroup, always with the same names. In a separate
# cgroup it does not conflict with other containers, and all its processes can be found.
make_cgroups() {
    local id kind path top
    while IFS=: read -r id kind path; do
        case $id:$kind in
        0:) top=$(findmnt -rnt cgroup2 -o TARGET | head -1) ;;
        *:name=systemd) top=$(findmnt -rnt cgroup -O name=systemd -o TARGET | head -1) ;;
        *) continue ;;
        esac
        [ -n "$top" ] || continue
        mkdir "$top${path%/}/penstock-$$" && CGROUPS+=("$top${path%/}/penstock-$$")
    done </proc/self/cgroup
}
# shellcheck disable=SC2317 # wait_until calls it
# Fails if no process is left to kill.
kill_all() {
    local all dir
    # 0 stands for processes that are not visible here. `kill` would read it as this process group.
    all=$(for dir in "${CGROUPS[@]}"; do find "$dir" -name cgroup.procs -exec cat {} +; done |
        grep -vx 0)
    # shellcheck disable=SC2086 # one number a word
    kill -KILL $all
}
# shellcheck disable=SC2317
none_left() { ! kill_all; }
end_container() {
    local dir
    wait_until 30 none_left
    for dir in "${CGROUPS[@]}"; do find "$dir" -depth -type d -exec rmdir {} +; done
    rm -rf "/run/systemd/nspawn/propagate/penstock-$$"
    if [ -n "${KEEP:-}" ]; then say "logs: $OUT"; else rm -rf "$WORK"; fi
}

# nspawn ARGUMENT...: runs until the programs in the container have ended by themselves.
nspawn() {
    local dir binds=()
    [ ! -e /dev/kvm ] || binds+=(--bind=/dev/kvm)
    [ ! -d /boot ] || binds+=(--bind-ro=/boot)
    for dir in "${CGROUPS[@]}"; do
        mkdir "$dir/$BASHPID" && echo "$BASHPID" >"$dir/$BASHPID/cgroup.procs" || return
    done
    exec timeout -k 20 "$SECONDS_MAX" systemd-nspawn --quiet --register=no --keep-unit \
        --directory="$BOOT" --machine="penstock-$$" --private-network \
        --capability=CAP_BPF,CAP_NET_RAW,CAP_IPC_LOCK --system-call-filter=bpf --bind-ro=/usr \
        --bind-ro="$REPO:/repo" --bind="$OUT:/out" --bind-ro="$BIN:/opt/penstock" \
        --bind-ro="$CACHE:/cache" "${binds[@]}" "$@" >"$OUT/boot.log" 2>&1
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
BOOT=$WORK/boot OUT=$WORK/out CGROUPS=()
make_cgroups
# The end of this script, for any reason, is the end of this subshell's input.
exec {ALIVE}> >(trap '' INT TERM HUP; cat; end_container)
JANITOR=$!
trap 'exec {ALIVE}>&-; wait "$JANITOR"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

[ "${#CGROUPS[@]}" != 0 ] || cannot "$1" "no cgroup of its own here"
# Files for guests are made and found outside, because the cache is read-only inside.
if [[ $1 == test-* ]] && have qemu-system-x86_64 && "$REPO/scripts/guest-image.sh" >/dev/null; then
    # shellcheck disable=SC2034 # one of SETTINGS
    PENSTOCK_ACCEL=$(PENSTOCK_GUESTS=$WORK/guests "$REPO/scripts/guest.sh" accel)
fi
make_container "$1"

# If this machine permits no container at all, the script cannot test anything.
nspawn --as-pid2 /usr/bin/true </dev/null {ALIVE}>&- &
if ! wait $!; then
    tail -n 5 "$OUT/boot.log"
    cannot "$1" "systemd-nspawn makes no container here"
fi
: >"$OUT/script.log"
nspawn --boot </dev/null {ALIVE}>&- &
CONTAINER=$!
tail -n +1 -f --pid="$CONTAINER" "$OUT/script.log" {ALIVE}>&- &
SHOWN=$!
wait "$CONTAINER"
status=$?
wait "$SHOWN"
verdict=$(grep -E ': [0-9]+ passed, [0-9]+ failed' "$OUT/script.log" | tail -1)
[ "$status" = 0 ] && [ -n "$verdict" ] && exit
tail -n 40 "$OUT"/{endpoint,penstock}.log 2>/dev/null
if [[ $verdict != *" passed, "[1-9]* ]]; then
    # The script in the container did not end by itself, whatever the container's status says.
    tail -n 20 "$OUT/boot.log"
    fail "$1 in a container: status $status"
fi
exit 1
