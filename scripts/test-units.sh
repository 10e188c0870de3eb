#!/usr/bin/env bash
# The units of packaging/: nothing in them is misspelt (systemd-analyze verify), and what they leave
# open stays within a limit (systemd-analyze security, offline: no service manager is asked). Also
# with the drop-ins. Needs neither root nor systemd as PID 1, only its program systemd-analyze.
# As root and with systemd-nspawn it then boots systemd in a container, and has the switch run there
# under its unit: unit-acts.sh. The container has the machine's /usr, read-only, and nothing else.
#
#   test-units.sh
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Tenths of what `systemd-analyze security` calls exposure, 0 to 100: of each unit, and of the
# switch with all its drop-ins.
EXPOSURE_MAX=25
WIDENED_MAX=32

WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-units.XXXXXX")
trap 'if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi' EXIT
units=$WORK/etc/systemd/system

# `verify` wants what a unit starts to be there, and the units that they name.
make_root() {
    local unit
    mkdir -p "$units" "$WORK/usr/bin" "$WORK/usr/lib/systemd/system"
    printf '#!/bin/sh\n' >"$WORK/usr/bin/penstock"
    chmod 755 "$WORK/usr/bin/penstock"
    cp "$REPO"/packaging/*.{service,socket} "$units/"
    for unit in "$REPO"/packaging/*.service; do
        # The manual's pages are in the package, not in this root.
        sed -i '/^Documentation=/d' "$units/$(basename "$unit")"
    done
    cp -L /usr/lib/systemd/system/*.target /usr/lib/systemd/system/*.slice \
        /usr/lib/systemd/system/*.mount "$WORK/usr/lib/systemd/system/" 2>/dev/null
}

# What it prints counts as much as its status: a key that it does not know is only told.
verified() {
    local said
    said=$(systemd-analyze verify --root="$WORK" --man=no "$@" 2>&1) && [ -z "$said" ] && return
    say "$said"
    return 1
}

# exposed LIMIT FILE: no more than LIMIT tenths.
exposed() {
    local said
    said=$(systemd-analyze security --offline=true --no-pager --threshold="$1" "$2" 2>&1)
    case $? in
    0) say "$said" | tail -1 ;;
    *)
        say "$said" | grep -v '✓'
        return 1
        ;;
    esac
}

# A limit that is never exceeded would check nothing, nor would an eye for keys that sees all as known.
limit_is_kept() { ! exposed 1 "$1" >/dev/null; }
misspelling_is_seen() {
    sed 's/^ProtectHome=/ProtectHomes=/' "$units/penstock.service" >"$units/misspelt.service"
    ! verified "$units/misspelt.service" >/dev/null
}

# A root for the container: an /etc with the machine's users, and the units with another program.
make_container() {
    local file
    mkdir -p "$BOOT"/{etc/systemd/system,etc/sysusers.d,var/lib,run,tmp,dev,proc,sys,usr,root,repo,out} \
        "$BOOT/etc/systemd/system/multi-user.target.wants" "$BOOT/opt" "$OUT"
    for file in bin sbin lib lib32 lib64; do [ ! -L /$file ] || ln -s usr/$file "$BOOT/$file"; done
    cp -a /etc/{nsswitch.conf,ld.so.cache,alternatives} "$BOOT/etc/" 2>/dev/null
    cp -L /etc/os-release "$BOOT/etc/"
    grep -E '^(root|daemon|nobody|messagebus|systemd-[a-z]+):' /etc/passwd >"$BOOT/etc/passwd"
    cp -a /etc/group "$BOOT/etc/"
    grep -q ^kvm: "$BOOT/etc/group" || echo kvm:x:64055: >>"$BOOT/etc/group"
    : >"$BOOT/etc/machine-id"
    : >"$BOOT/etc/penstock-acts"
    systemd-sysusers --root="$BOOT" "$REPO/packaging/penstock.sysusers" >/dev/null 2>&1
    for file in "$REPO"/packaging/*.service; do
        sed "s|/usr/bin/penstock|/opt/penstock|; /^Documentation=/d" "$file" \
            >"$BOOT/etc/systemd/system/$(basename "$file")"
    done
    cp "$REPO"/packaging/*.socket "$BOOT/etc/systemd/system/"
    ln -s /usr/lib/systemd/system/multi-user.target "$BOOT/etc/systemd/system/default.target"
    # Nothing of this machine's own services.
    for file in getty@tty1 console-getty systemd-logind systemd-networkd systemd-resolved; do
        ln -s /dev/null "$BOOT/etc/systemd/system/$file.service"
    done
    cat >"$BOOT/etc/systemd/system/acts.service" <<'UNIT'
[Unit]
Description=What test-units.sh has run here
SuccessAction=poweroff
FailureAction=poweroff

[Service]
Type=oneshot
ExecStart=/repo/scripts/unit-acts.sh
StandardOutput=append:/out/acts.log
StandardError=inherit
UNIT
    ln -s ../acts.service "$BOOT/etc/systemd/system/multi-user.target.wants/acts.service"
}

# nspawn SECONDS ARGUMENT...: until what runs in the container has ended by itself.
nspawn() {
    local seconds=$1
    shift
    timeout -k 20 "$seconds" systemd-nspawn --quiet --register=no --keep-unit --directory="$BOOT" \
        --machine="penstock-$$" --private-network --capability=CAP_BPF,CAP_NET_RAW,CAP_IPC_LOCK \
        --system-call-filter=bpf --bind-ro=/usr --bind-ro="$REPO:/repo" --bind="$OUT:/out" \
        --bind-ro="$BIN:/opt/penstock" "$@" </dev/null >"$OUT/boot.log" 2>&1
}
boot() { nspawn "$1" --boot; }

# Its lines are counted as this script's own.
run_container() {
    BOOT=$WORK/boot OUT=$WORK/out BIN=$(penstock_bin)
    if [ "$(id -u)" != 0 ] || ! have systemd-nspawn; then
        skip "the switch under its unit: wants root and systemd-nspawn (package systemd-container)"
        return
    elif ! [ -x "$BIN" ]; then
        fail "the switch under its unit: no program $BIN (\`make build\`)"
        return
    fi
    make_container
    # Where this machine lets nobody make a container at all, nothing is shown of the switch.
    if ! nspawn 60 --as-pid2 /usr/bin/true; then
        tail -n 5 "$OUT/boot.log"
        skip "the switch under its unit: systemd-nspawn makes no container here"
        return
    fi
    boot 180
    if ! grep -q '^the switch under its unit: ' "$OUT/acts.log" 2>/dev/null; then
        tail -n 20 "$OUT"/*.log
        fail "the container came to its end"
        return
    fi
    cat "$OUT/acts.log"
    PASSED=$((PASSED + $(grep -c '^PASS ' "$OUT/acts.log")))
    SKIPPED=$((SKIPPED + $(grep -c '^SKIP ' "$OUT/acts.log")))
    local failed
    failed=$(grep -c '^FAIL ' "$OUT/acts.log")
    FAILED=$((FAILED + failed))
    [ "$failed" = 0 ] || tail -n 40 "$OUT/penstock.log" "$OUT/endpoint.log"
}

if ! have systemd-analyze; then
    skip "units: systemd-analyze is not installed"
    verdict units
    exit
fi
make_root
for unit in "$REPO"/packaging/*.service; do
    name=$(basename "$unit")
    check "$name: every key is known and what it names is there" verified "$units/$name"
    check "$name: exposure at most $EXPOSURE_MAX tenths" exposed "$EXPOSURE_MAX" "$unit"
    check "$name: leaves no core file, which would hold memory of guests or keys" \
        grep -qx LimitCORE=0 "$unit"
    user=$(sed -n 's/^User=//p' "$unit")
    check "$name: its user \"$user\" is one that penstock.sysusers makes" \
        grep -q "^u $user " "$REPO/packaging/penstock.sysusers"
done
check "the limit is one that can be exceeded" limit_is_kept "$REPO/packaging/penstock.service"
check "a key that is misspelt would be seen" misspelling_is_seen
mkdir -p "$units/penstock.service.d"
cp "$REPO"/packaging/penstock-*.conf "$units/penstock.service.d/"
check "the drop-ins: every key is known" verified "$units/penstock.service"
# `security` reads no drop-in of a file: later lines of the same section are the same to it.
cat "$REPO/packaging/penstock.service" <(printf '[Service]\n') "$REPO"/packaging/penstock-*.conf \
    >"$WORK/penstock-widened.service"
check "the switch with all drop-ins: exposure at most $WIDENED_MAX tenths" \
    exposed "$WIDENED_MAX" "$WORK/penstock-widened.service"
if have systemd-sysusers; then
    mkdir -p "$WORK/etc"
    check "penstock.sysusers makes its users" systemd-sysusers --root="$WORK" \
        "$REPO/packaging/penstock.sysusers"
    check "and each has no shell" \
        bash -c "! grep -v 'nologin\$' '$WORK/etc/passwd' | grep -q penstock"
fi
run_container
verdict units
