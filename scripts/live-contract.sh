#!/usr/bin/env bash
# A Linux guest with default offloads bought a rate, and sends one TCP stream (iperf3). The script
# judges how much of its purchase the guest gets after 10 s of learning. Strict cycles give the
# guest no spare cycles.
#
#   MODEL=FILE  cost model of this machine; default: a quick calibration
#   MBPS=N      rate of the contract in Mbit/s; default: 200
#   SECS=N      length of the measurement in seconds; default: 5
# Needs root. A minute, and two more for the calibration.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

GUEST=$REPO/scripts/guest.sh
NS=plg$$-net
MBPS=${MBPS:-200}
SECS=${SECS:-5}
LEARN=10
SERVER=10.0.0.11

cleanup() {
    trap '' INT TERM HUP
    "$GUEST" stop-all
    tidy_up
    [ "$FAILED" = 0 ] || tail -n 15 "$WORK"/*.log
    rm -rf "$WORK"
}

# vhost_port NAME MODE MAC IP
vhost_port() {
    printf '\n[[port]]\nname = "%s"\ntenant = "blue"\nvhost-user.mode = "%s"\n' "$1" "$2"
    printf 'vhost-user.socket = "%s"\nmac = ["%s"]\nip = ["%s"]\n' "$WORK/$1.sock" "$3" "$4"
}

write_config() {
    switch_config live-contract
    printf 'schedule = "hbs"\nidle_backoff_us = 0\n\n[model]\nfile = "%s"\n' "$MODEL"
    printf '\n[[tenant]]\nname = "blue"\n'
    vhost_port vm server 52:54:00:00:02:01 10.0.0.21
    printf 'ingress_policy = "cycles-strict"\ncontract = { min_rate = "%sM", max_rate = "%sM", ' \
        "$MBPS" "$MBPS"
    printf 'size = 1518, uplink = 0 }\n'
    vhost_port net client 52:54:00:00:01:01 "$SERVER"
}

start_all() {
    write_config >"$WORK/host.toml"
    start_switch "$WORK/host.toml" || return
    own_netns "$NS"
    spawn "$WORK/endpoint.log" taskset -c "$(others_cores)" "$BIN" endpoint --create-netns --nic \
        "netns=$NS,socket=$WORK/net.sock,mode=server,mac=52:54:00:00:01:01,ip=$SERVER/24,offloads=on"
    wait_until 10 test -e "/run/netns/$NS" || return
    quiet_ipv6 "$NS"
    spawn_in "$NS" "$WORK/iperf3.log" iperf3 -s
    "$GUEST" start vm "$WORK/vm.sock" 52:54:00:00:02:01 10.0.0.21/24 || return
    "$GUEST" wait-ready vm 120 && wait_until 60 reaches
}
reaches() { "$GUEST" exec vm "ping -c 1 -W 1 $SERVER" 10; }

# wire: the daemon's time in ns, and the bits that the guest sent since the start. A large segment
# counts as the frames that it becomes, with FCS.
wire() {
    ctl stats vm --json | grep -oE '"(time_ns|rx_(frames|bytes|tso|segments|segment_headers))": *"?[0-9]+' |
        awk -F '[":]+ *"?' '!($2 in n) { n[$2] = $3 } END {
            frames = n["rx_frames"] - n["rx_tso"] + n["rx_segments"]
            bytes = n["rx_bytes"] + n["rx_segment_headers"] + 4 * frames
            printf "%.0f %.0f %.0f\n", n["time_ns"], 8 * bytes, n["rx_tso"] }'
}

calibrated() {
    "$BIN" calibrate --quick --accept-disturbed --out "$MODEL" >"$WORK/calibrate.log" 2>&1
}

# measure: $DEVIATION has the guest's rate against its purchase in per cent, and $SEGMENTS the
# number of large segments.
measure() {
    "$GUEST" exec vm "iperf3 -c $SERVER -C cubic -t $((LEARN + SECS + 5)) >/tmp/iperf3.log 2>&1 &" >/dev/null
    local before after
    sleep "$LEARN"
    before=$(wire)
    sleep "$SECS"
    after=$(wire)
    ctl explain vm | head -n 1
    read -r DEVIATION SEGMENTS <<<"$(awk -v b="$before" -v a="$after" -v bought="$MBPS" 'BEGIN {
        split(b, B, " "); split(a, A, " ")
        mbps = 1e3 * (A[2] - B[2]) / (A[1] - B[1])
        printf "%.2f %d\n", 100 * (mbps / bought - 1), A[3] - B[3] }')"
}

within_band() { awk -v d="$DEVIATION" 'BEGIN { exit !(d >= -3 && d <= 3) }'; }
sends_segments() { [ "$SEGMENTS" -gt 0 ]; }

main() {
    if [ -z "${MODEL:-}" ]; then
        MODEL=$WORK/model.toml
        check "this machine's cost model is measured" calibrated
    fi
    check "the switch, an endpoint and a guest start" start_all
    [ "$FAILED" = 0 ] || return
    say "     the guest runs under $("$GUEST" accel)"
    measure
    check "the guest sends large segments: $SEGMENTS" sends_segments
    check "the guest gets $MBPS Mbit/s within 3 %: $DEVIATION %" within_band
}

run_with_guests live-contract guests
