#!/usr/bin/env bash
# C2QoS Fig. 1 with Linux guests. A victim and a noisy neighbour are guests with iperf3. The switch
# core may spend so little (`worker.capacity`) that it is the bottleneck, and not the guests' core.
# The script measures C2QoS first and then bps policing.
#
# The victim bought four fifths of 90 % of the rate at which both guests pass declared traffic (UDP,
# 512-byte frames). It sends that and 5 % more, while the neighbour floods 64-byte frames. The
# machine's speed changes, so each measurement has a calibration before and after it. It is judged
# only if the two agree within AGREE per cent. Otherwise it is repeated, at most TRIES times. The
# script reports repeats.
#
#   OUT=FILE    a line of JSON for each measurement; default: none
# Needs root. 3 to 6 minutes.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

GUEST=$REPO/scripts/guest.sh
NS=plg$$-net
SECS=${SECS:-3}
AGREE=${AGREE:-8}
TRIES=${TRIES:-5}
# Part of the cycles that both guests make the worker spend without limits.
CAPACITY_PART=0.35
# UDP payload of a 512-byte and of a 64-byte frame.
LARGE=466 SMALL=18
SERVER=10.0.0.11
GUESTS="victim noisy"

cleanup() {
    trap '' INT TERM HUP
    "$GUEST" stop-all
    tidy_up
    [ "$FAILED" = 0 ] || [ -n "${KEEP:-}" ] || tail -n 15 "$WORK"/*.log
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

# vhost_port NAME MODE MAC IP
vhost_port() {
    printf '\n[[port]]\nname = "%s"\ntenant = "blue"\nvhost-user.mode = "%s"\n' "$1" "$2"
    printf 'vhost-user.socket = "%s"\nmac = ["%s"]\nip = ["%s"]\n' "$WORK/$1.sock" "$3" "$4"
    printf 'vhost-user.offloads = { csum = false, tso = false }\n'
}

# write_config [CAPACITY]
write_config() {
    switch_config live-guests
    printf 'schedule = "hbs"\nidle_backoff_us = 0\n'
    [ -z "${1:-}" ] || printf 'capacity = %s\n' "$1"
    printf '\n[[tenant]]\nname = "blue"\n'
    vhost_port victim server 52:54:00:00:02:01 10.0.0.21
    vhost_port noisy server 52:54:00:00:02:02 10.0.0.22
    vhost_port net client 52:54:00:00:01:01 "$SERVER"
}

start_all() {
    start_switch "$WORK/host.toml" || return
    own_netns "$NS"
    spawn "$WORK/endpoint.log" taskset -c "$(others_cores)" "$BIN" endpoint --create-netns \
        --nic "netns=$NS,socket=$WORK/net.sock,mode=server,mac=52:54:00:00:01:01,ip=$SERVER/24"
    wait_until 10 test -e "/run/netns/$NS" || return
    quiet_ipv6 "$NS"
    local port
    for port in 5201 5202; do spawn_in "$NS" "$WORK/iperf3-$port.log" iperf3 -s -p "$port"; done
    "$GUEST" start victim "$WORK/victim.sock" 52:54:00:00:02:01 10.0.0.21/24 || return
    "$GUEST" start noisy "$WORK/noisy.sock" 52:54:00:00:02:02 10.0.0.22/24 || return
    local guest
    for guest in $GUESTS; do "$GUEST" wait-ready "$guest" 120 || return; done
}

reaches() { "$GUEST" exec "$1" "ping -c 1 -W 1 $SERVER" 10; }
all_reach() {
    local guest
    for guest in $GUESTS; do wait_until "${1:-60}" reaches "$guest" || return; done
}

# sends GUEST PAYLOAD BITS: sends from now on until `quiet`. With BITS 0 it sends as fast as it can.
sends() {
    local port=5201
    [ "$1" = victim ] || port=5202
    "$GUEST" exec "$1" "iperf3 -c $SERVER -p $port -u -l $2 -b $3 -t 120 >/tmp/iperf3.log 2>&1 &" \
        >/dev/null
}
quiet() {
    local guest
    for guest in $GUESTS; do "$GUEST" exec "$guest" "killall -q iperf3; true" >/dev/null; done
    sleep 0.5
}

now_ns() { date +%s%N; }
# reading NAME...: prints the time, and rx_frames and cycles of each port, in one line.
reading() {
    local port
    printf '%s' "$(now_ns)"
    for port in "$@"; do
        printf ' %s %s' "$(port_counter "$port" rx_frames)" "$(port_counter "$port" cycles)"
    done
    printf '\n'
}
# window: frames per second of victim and noisy, and cycles per second of all three ports.
window() {
    sleep 1.5
    local before after
    before=$(reading victim noisy net)
    sleep "$SECS"
    after=$(reading victim noisy net)
    awk -v b="$before" -v a="$after" 'BEGIN {
        split(b, B, " "); split(a, A, " "); s = (A[1] - B[1]) / 1e9
        c = A[3] - B[3] + A[5] - B[5] + A[7] - B[7]
        printf "%.1f %.1f %.0f\n", (A[2] - B[2]) / s, (A[4] - B[4]) / s, c / s }'
}
calc() { awk "BEGIN { printf \"%.${2:-0}f\", $1 }"; }
true_that() { awk "BEGIN { exit !($1) }"; }

# Calibrates: both guests flood declared traffic. $SPEED has the frames per second of both together,
# and $SPENT the cycles per second.
calibrate() {
    sends victim $LARGE 0
    sends noisy $LARGE 0
    local victim noisy
    read -r victim noisy SPENT <<<"$(window)"
    quiet
    SPEED=$(calc "$victim + $noisy" 1)
}

# limits POLICY [VICTIM_PPS NOISY_PPS]: sets the limits of both guests.
limits() {
    case $1 in
    c2qos)
        ctl port set victim ingress_policy=cycles-minmax police= cycle_weight=40 --no-save \
            "cycles=$(calc "0.72 * $CAPACITY")" >/dev/null &&
            ctl port set noisy ingress_policy=cycles-minmax police= cycle_weight=10 --no-save \
                "cycles=$(calc "0.18 * $CAPACITY")" >/dev/null
        ;;
    bps)
        local port pps
        for port in $GUESTS; do
            pps=$2
            [ "$port" = victim ] || pps=$3
            ctl port set "$port" ingress_policy=bps cycles= cycle_weight= --no-save \
                "police={cir=$(calc "$pps * 508 * 8"),cbs=65536,ebs=0}" >/dev/null || return
        done
        ;;
    none)
        local port
        for port in $GUESTS; do
            ctl port set "$port" ingress_policy= cycles= cycle_weight= police= --no-save >/dev/null ||
                return
        done
        ;;
    esac
}

# measure POLICY: measures one window between two calibrations. Fails if they do not agree. $KEPT is
# the part, in percent, that the victim kept of the rate due to it.
measure() {
    local policy=$1 before victim solo spare off bought
    if [ "$policy" = c2qos ]; then limits c2qos; else limits none; fi
    calibrate
    before=$SPEED
    bought=$(calc "0.72 * $before" 1)
    limits "$policy" "$bought" "$(calc "0.18 * $before" 1)"
    sends victim $LARGE "$(calc "1.05 * $bought * $LARGE * 8")"
    read -r solo spare spare <<<"$(window)"
    sends noisy $SMALL 0
    read -r victim spare spare <<<"$(window)"
    quiet
    if [ "$policy" = c2qos ]; then limits c2qos; else limits none; fi
    calibrate
    off=$(calc "100 * ($SPEED > $before ? $SPEED / $before : $before / $SPEED) - 100" 1)
    # The value of cycles changes with the machine's speed. Bits were sold by the calibration
    # before.
    [ "$policy" = bps ] || bought=$(calc "0.72 * ($before + $SPEED) / 2" 1)
    KEPT=$(calc "100 * $victim / ($solo < $bought ? $solo : $bought)" 1)
    say "     $policy: calibrated $before and $SPEED frames/s ($off % apart), bought $bought," \
        "alone $solo, beside the flood $victim: keeps $KEPT %"
    [ -z "${OUT:-}" ] || printf '{"policy":"%s","calibrated_pps":[%s,%s],"bought_pps":%s,"solo_pps":%s,"victim_pps":%s,"kept_percent":%s,"apart_percent":%s}\n' \
        "$policy" "$before" "$SPEED" "$bought" "$solo" "$victim" "$KEPT" "$off" >>"$OUT"
    true_that "$off <= $AGREE"
}

# judged POLICY: measures until two calibrations agree.
judged() {
    local i
    for i in $(seq "$TRIES"); do
        if measure "$1"; then
            say "     $1: judged in window $i; $((i - 1)) repeated because the machine changed"
            return
        fi
    done
    KEPT=
    say "     $1: not judged, the machine changed in each of $TRIES windows"
    return 1
}

keeps_what_it_bought() { [ -n "$KEPT" ] && true_that "$KEPT >= 99"; }

main() {
    write_config >"$WORK/host.toml"
    check "switch, endpoint and two guests start" start_all
    say "     guests run under $("$GUEST" accel)"
    check "both guests reach the servers" all_reach
    [ "$FAILED" = 0 ] || return
    calibrate
    say "     without a cap: $SPEED frames/s cost $SPENT cycles a second"
    CAPACITY=$(calc "$CAPACITY_PART * $SPENT")
    stop_switch
    write_config "$CAPACITY" >"$WORK/host.toml"
    check "the switch starts with capacity = $CAPACITY" start_switch "$WORK/host.toml"
    check "both guests are back" all_reach
    [ "$FAILED" = 0 ] || return
    if judged c2qos; then
        check "C2QoS: the victim keeps 99 % of min(alone, what it bought): $KEPT %" \
            keeps_what_it_bought
    else
        fail "C2QoS: a window could be judged"
    fi
    if judged bps; then pass "bps, for comparison: the victim keeps $KEPT %"; else
        fail "bps: a window could be judged"
    fi
    check "counters add up" counters_settle
}

run_with_guests live-guests guests
