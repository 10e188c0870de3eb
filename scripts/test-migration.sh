#!/usr/bin/env bash
# Moves a Linux guest from one QEMU to another, and from one socket of the switch to another.
# Meanwhile iperf3 runs, and a checked stream of numbers flows each way. Every byte must arrive, the
# switch must follow the guest's address to its new port, and the guest must come back the same way.
# Prints the downtime as QEMU measures it, and the longest silence of a ping every 20 ms. Prints
# PASS, FAIL and SKIP lines. Needs root. Takes about a minute.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

GUEST=$REPO/scripts/guest.sh
TAG=psm$$
LAST=9999999999
MAC=52:54:00:00:02:01
ADDRESS=10.0.0.21

cleanup() {
    trap '' INT TERM HUP
    "$GUEST" stop-all
    tidy_up
    if [ "$FAILED" != 0 ] && [ -z "${KEEP:-}" ]; then
        tail -n 15 "$WORK"/*.log "$WORK"/guests/*/qemu.log
    fi
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

# Neither port of the guest is bound to its address, so the switch learns the address where the
# guest is.
write_config() {
    switch_config test-migration
    printf '\n[[tenant]]\nname = "blue"\n'
    local port
    for port in vm-a vm-b ep; do
        printf '\n[[port]]\nname = "%s"\ntenant = "blue"\n' "$port"
        printf 'vhost-user.socket = "%s"\n' "$WORK/$port.sock"
    done
}

start_endpoint() {
    own_netns "$TAG-ep"
    spawn "$WORK/endpoint.log" taskset -c "$(others_cores)" "$BIN" endpoint --create-netns \
        --nic "netns=$TAG-ep,socket=$WORK/ep.sock,mode=client,mac=52:54:00:00:01:01,ip=10.0.0.11/24"
    wait_until 10 test -e "/run/netns/$TAG-ep" || return
    quiet_ipv6 "$TAG-ep"
    spawn_in "$TAG-ep" "$WORK/iperf3.log" iperf3 -s
}

inside() { "$GUEST" exec "$HERE" "$@"; }
outside() { in_netns "$TAG-ep" "$@"; }
pings() { outside busybox ping -c 1 -W 2 "$ADDRESS"; }
knows() { ctl fdb list | awk -v mac="$MAC" '$0 ~ mac' | grep -qw "$1"; }

# Starts streams of numbers, one number per line. If any byte is lost, doubled or changed, the sum
# differs. A stream continues until its source is ended. The far end has the count and the sum of
# the received bytes. The input of a sink stays open, because nc would hang up at its end.
start_streams() {
    SINK=$WORK/sink-$RANDOM
    # This stream goes to the guest.
    quietly inside 'cd /tmp; rm -f in.*; mkfifo in.pipe' || return
    quietly inside '(sha256sum </tmp/in.pipe >/tmp/in.sum; : >/tmp/in.done) 2>/dev/null &' || return
    quietly inside \
        '(sleep 9999 | nc -l -p 7000 | tee /tmp/in.pipe | wc -c >/tmp/in.count) 2>/dev/null &' || return
    wait_until 10 inside 'netstat -ltn | grep -q :7000' || return
    spawn_in "$TAG-ep" "$WORK/streams.log" sh -c "seq 1 $LAST | busybox nc $ADDRESS 7000"
    TO_GUEST=$SPAWNED
    # This stream comes from the guest.
    mkfifo "$SINK.pipe" "$SINK.open"
    spawn "$SINK.sum" sha256sum "$SINK.pipe"
    FROM_SUM=$SPAWNED
    spawn_in "$TAG-ep" "$SINK.count" \
        sh -c "busybox nc -l -p 7001 <>$SINK.open | tee $SINK.pipe | wc -c"
    FROM_GUEST=$SPAWNED
    wait_until 5 listens 7001 || return
    quietly inside "(seq 1 $LAST | nc 10.0.0.11 7001) >/dev/null 2>&1 &"
}
quietly() { "$@" >/dev/null; }
listens() { outside ss -ltn "sport = :$1" | grep -q LISTEN; }
# Returns the sum of the first so many bytes of the numbers.
sum_of() { seq 1 $LAST 2>/dev/null | head -c "$1" | sha256sum | cut -d' ' -f1; }

check_streams() {
    local count sum
    check "both streams still flow" streams_flow
    # Waits until there are enough bytes for a sum, however long that takes.
    wait_until 30 enough_flowed
    # The sources end, so the sinks see the end of the stream.
    pkill -P "$TO_GUEST" -x seq
    quietly inside 'killall seq'
    wait_until 30 gone "$FROM_GUEST"
    wait_until 5 gone "$FROM_SUM"
    wait_until 30 inside 'test -e /tmp/in.done'
    count=$(tr -dc 0-9 <"$SINK.count") sum=$(cut -d' ' -f1 "$SINK.sum")
    say "     from the guest: ${count:-0} bytes"
    check "no wrong byte from the guest" [ "${count:-0}" -gt 200000 -a "$sum" = "$(sum_of "${count:-0}")" ]
    count=$(inside 'cat /tmp/in.count' | tr -dc 0-9) sum=$(inside 'cut -d" " -f1 /tmp/in.sum' | grep .)
    say "     to the guest: ${count:-0} bytes"
    check "no wrong byte to the guest" [ "${count:-0}" -gt 200000 -a "$sum" = "$(sum_of "${count:-0}")" ]
}
# Whether both sinks have read enough. The guest's sink is asked only when ours has enough.
enough_flowed() {
    [ "$(sed -n 's/^rchar: //p' "/proc/$FROM_SUM/io")" -gt 300000 ] &&
        inside '[ "$(sed -n "s/^rchar: //p" /proc/$(pidof sha256sum)/io)" -gt 300000 ]'
}
streams_flow() { ! gone "$TO_GUEST" && ! gone "$FROM_GUEST" && quietly inside 'pidof seq'; }

# move FROM TO PORT: moves the guest from one QEMU to the other while everything runs.
move() {
    local from=$1 to=$2 port=$3 frames silence seconds
    HERE=$from
    check "$to: a QEMU waits for the guest" \
        "$GUEST" start "$to" "$WORK/$to.sock" "$MAC" "$ADDRESS/24" --incoming
    check "$to: checked streams start both ways" start_streams
    spawn_in "$TAG-ep" "$WORK/iperf-$to.log" iperf3 -c "$ADDRESS" -t 600 -i 1 --forceflush
    local load=$SPAWNED
    spawn_in "$TAG-ep" "$WORK/ping-$to.log" busybox ping -i 0.02 -W 5 "$ADDRESS"
    local ping=$SPAWNED
    wait_until 10 grep -q 'seq=50' "$WORK/ping-$to.log"
    frames=$(port_counter "$port" rx_frames)
    check "$to: the guest moves while iperf3 runs" "$GUEST" migrate "$from" "$to" 60
    HERE=$to
    check "$to: iperf3 ran all the while" not gone "$load"
    check "$to: the switch finds the guest at its new port" wait_until 10 knows "$port"
    check "$to: the guest answers there" wait_until 10 pings
    check "$to: its frames come from there" \
        [ "$(port_counter "$port" rx_frames)" -gt "$frames" ]
    seconds=$(grep -c 'bits/sec' "$WORK/iperf-$to.log")
    check "$to: iperf3 sends on after the move" wait_until 10 sends_after "$seconds" "$WORK/iperf-$to.log"
    kill -INT "$load" 2>/dev/null
    wait "$load"
    say "     iperf3 over the move: $(sent_rate "$WORK/iperf-$to.log")"
    kill -INT "$ping" 2>/dev/null
    wait_until 5 gone "$ping"
    silence=$(longest_silence "$WORK/ping-$to.log")
    say "     longest silence of a ping every 20 ms: $silence ms"
    check_streams
    "$GUEST" stop "$from"
    check "$to: counters add up" counters_settle
}
not() { ! "$@"; }
# sends_after LINES LOG: whether iperf3 has sent bytes in a second after this many lines of rates.
sends_after() {
    awk -v after="$(($1 + 1))" '/bits\/sec/ { n += 1; if (n > after && $5 > 0) sent = 1 } END { exit !sent }' "$2"
}
# Returns the sender's rate in iperf3's text output. iperf3 is interrupted, so the receiver's rate
# is missing.
sent_rate() { sed -n 's/.* \([0-9.]* [KMG]*bits\/sec\).*sender.*/\1/p' "$1"; }

main() {
    write_config >"$WORK/host.toml"
    check "the switch starts" start_switch "$WORK/host.toml"
    check "an endpoint starts" start_endpoint
    say "     guests run under $("$GUEST" accel)"
    HERE=vm-a
    check "the guest boots on socket A" boot_guest
    check "endpoint reaches the guest" wait_until 30 pings
    move vm-a vm-b vm-b
    move vm-b vm-a vm-a
}
boot_guest() {
    "$GUEST" start vm-a "$WORK/vm-a.sock" "$MAC" "$ADDRESS/24" && "$GUEST" wait-ready vm-a 90
}

run_with_guests test-migration migration
