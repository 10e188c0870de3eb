#!/usr/bin/env bash
# Calibrates this host with the shortest measurements, and sells contracts by the new model: to a VM,
# to uplinks of each type, and one that does not fit. The costs may be wrong beside other load; only
# the way from `calibrate` over `--verify` to `host check` is tested. Needs root for the costs of
# uplinks. Prints PASS, FAIL and SKIP lines. Takes about two minutes.
#
#   test-calibration.sh    PENSTOCK_BIN, or the program that cargo built
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

cleanup() {
    [ "$FAILED" = 0 ] || tail -n 15 "$WORK"/*.log
    rm -rf "$WORK"
}

# write_config ATTACHMENT: a host with a VM, an uplink of this kind, and a contract of the VM.
write_config() {
    cat <<EOF
[host]
name = "calibrated"
[worker]
schedule = "hbs"
[model]
file = "model.toml"
[[tenant]]
name = "blue"
[[port]]
name = "vm1"
tenant = "blue"
vhost-user.socket = "$WORK/vm1.sock"
ingress_policy = "cycles-strict"
contract = { min_rate = "1M", min_pps = "2k", max_rate = "1G", size = 1024 }
[[port]]
name = "up"
$1
EOF
}

checks() { "$BIN" host check --config "$WORK/host.toml" "$@" >"$WORK/check.log" 2>&1; }
calibrates() {
    "$BIN" calibrate --quick --rounds 1 --accept-disturbed --out "$WORK/model.toml" \
        >"$WORK/calibrate.log" 2>&1
}
# Contracts may miss their bands beside other load, so both verdicts are accepted. Contracts are left
# out with a note while a hypervisor has moved the processors.
verifies() {
    "$BIN" calibrate --quick --verify --model "$WORK/model.toml" >"$WORK/verify.log" 2>&1
    [ $? -le 1 ] || return
    local measured left_out
    measured=$(grep -c '^\[\[verified\]\]' "$WORK/model.toml")
    left_out=$(grep -c ': not verified, because .*hypervisor' "$WORK/verify.log")
    [ $((measured + left_out)) -ge 40 ]
}
# sold_to TYPE KEY: a contract is priced with a way to an uplink of this type.
sold_to() {
    write_config "$2" >"$WORK/host.toml"
    checks && grep -q "^vm1 .*+to-$1" "$WORK/check.log"
}
says() { grep -qF -- "$1" "$WORK/check.log"; }
can_buy() { checks --what-if vm7=1M@imix,class=2,uplink=0 && says 'can buy 1M'; }
cannot_buy() {
    ! checks --what-if vm7=300G@64 && says 'cannot buy 300G' &&
        says 'nearest contract that fits: --what-if vm7=' && says 'nothing was changed'
}
refuses_another_host() {
    sed -i 's/^host = .*/host = "another"/' "$WORK/model.toml"
    ! checks && says 'the cost model was measured on host another'
}

BIN=$(penstock_bin)
if [ "$(id -u)" != 0 ]; then
    skip "a calibration: needs root for the costs of uplinks"
elif [ "$(cpus_all)" -lt 2 ]; then
    skip "a calibration: needs a processor for the switch and one for the load"
else
    WORK=$(mktemp -d) || exit
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    check "calibrate writes a model" calibrates
    check "contracts sold by the model are measured" verifies
    check "a contract to an AF_XDP uplink is priced" sold_to xdp 'xdp.interface = "lo"'
    check "a contract to a packet uplink is priced" sold_to packet 'packet.interface = "lo"'
    check "a contract to a TAP uplink is priced" sold_to tap 'tap.interface = "pstap0"'
    check "--what-if says what a new port can buy" can_buy
    check "--what-if names the nearest contract that fits" cannot_buy
    check "a model of another host is refused" refuses_another_host
fi
verdict test-calibration
