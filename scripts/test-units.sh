#!/usr/bin/env bash
# Checks the units of packaging/. They must have no misspelt key (systemd-analyze verify), and their
# exposure must stay within a limit (systemd-analyze security). The checks are offline and also
# cover the drop-ins. They need neither root nor systemd as PID 1, only the program systemd-analyze.
# As root and with systemd-nspawn, the script then boots systemd in a container and runs the switch
# there under its unit (unit-acts.sh). The container has the machine's /usr, read-only, and nothing
# else.
#
#   test-units.sh
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Limits of the exposure that `systemd-analyze security` computes, in tenths (0 to 100): for each
# unit, and for the switch with all its drop-ins.
EXPOSURE_MAX=25
WIDENED_MAX=32

WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-units.XXXXXX")
trap 'if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi' EXIT
units=$WORK/etc/systemd/system

# `verify` requires the programs that a unit starts, and the units that it names.
make_root() {
    local unit
    mkdir -p "$units" "$WORK/usr/bin" "$WORK/usr/lib/systemd/system"
    printf '#!/bin/sh\n' >"$WORK/usr/bin/penstock"
    chmod 755 "$WORK/usr/bin/penstock"
    cp "$REPO"/packaging/*.{service,socket} "$units/"
    for unit in "$REPO"/packaging/*.service; do
        # The manual's pages are in the package and not in this root.
        sed -i '/^Documentation=/d' "$units/$(basename "$unit")"
    done
    cp -L /usr/lib/systemd/system/*.target /usr/lib/systemd/system/*.slice \
        /usr/lib/systemd/system/*.mount "$WORK/usr/lib/systemd/system/" 2>/dev/null
}

# The output counts as much as the status, because an unknown key only causes a message.
verified() {
    local said
    said=$(systemd-analyze verify --root="$WORK" --man=no "$@" 2>&1) && [ -z "$said" ] && return
    say "$said"
    return 1
}

# exposed LIMIT FILE: whether the exposure is at most LIMIT tenths.
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

# These checks show that the limit can be exceeded and that a misspelt key is found.
limit_is_kept() { ! exposed 1 "$1" >/dev/null; }
misspelling_is_seen() {
    sed 's/^ProtectHome=/ProtectHomes=/' "$units/penstock.service" >"$units/misspelt.service"
    ! verified "$units/misspelt.service" >/dev/null
}

# Counts the lines of the script in the container as this script's own.
run_container() {
    local log=$WORK/acts.log
    "$REPO/scripts/under-unit.sh" unit-acts.sh 2>&1 | tee "$log"
    PASSED=$((PASSED + $(grep -c '^PASS ' "$log")))
    SKIPPED=$((SKIPPED + $(grep -c '^SKIP ' "$log")))
    FAILED=$((FAILED + $(grep -c '^FAIL ' "$log")))
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
# `security` does not read the drop-ins of a file. Later lines of the same section have the same
# effect.
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
