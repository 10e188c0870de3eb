#!/usr/bin/env bash
# Compares `penstock capture` with tcpdump in a guest, byte for byte, and measures what a capture
# costs the other ports. Needs root, tcpdump, iperf3 and jq.
#
#   test-capture.sh            bytes, drops and cost
#   test-capture.sh --smoke    bytes and drops
#
#   PAIRS=150      pairs of runs without and with a capture
#   RUN_MS=200     length of a run in milliseconds
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

TAG=psc$$
PAIRS=${PAIRS:-150} RUN_MS=${RUN_MS:-200}
# Cycles per second of the worker. The generator and the program that writes the capture share the
# other core. With all cycles of its core, the worker would be faster than the generator, and the
# result would show what the program takes from the generator.
CAPACITY=750M
# Least part of its rate that another port keeps, in thousandths.
KEEPS=990

cleanup() {
    trap '' INT TERM HUP
    tidy_up
    [ "$FAILED" = 0 ] || tail -n 15 "$WORK"/*.log
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

write_config() {
    local port
    switch_config capture
    printf 'capacity = "%s"\n' "$CAPACITY"
    printf '\n[[tenant]]\nname = "blue"\n'
    for port in ep1 ep2 a b c d; do
        printf '\n[[port]]\nname = "%s"\ntenant = "blue"\n' "$port"
        printf 'vhost-user.socket = "%s"\n' "$WORK/$port.sock"
    done
    printf '\n[[rule]]\nname = "no-discard"\nport = "ep1"\n'
    printf 'match = { proto = "udp", dst_port = 9 }\nactions = ["drop"]\n'
}

start_endpoints() {
    local n
    for n in 1 2; do own_netns "$TAG-ep$n"; done
    spawn "$WORK/endpoint.log" taskset -c "$(others_cores)" "$BIN" endpoint --create-netns \
        --nic "netns=$TAG-ep1,if=eth0,socket=$WORK/ep1.sock,ip=10.0.0.11/24" \
        --nic "netns=$TAG-ep2,if=eth0,socket=$WORK/ep2.sock,ip=10.0.0.12/24"
    for n in 1 2; do
        wait_until 10 test -e "/run/netns/$TAG-ep$n" || return
        quiet_ipv6 "$TAG-ep$n"
    done
    spawn_in "$TAG-ep2" "$WORK/iperf3.log" iperf3 -s
    wait_until 30 pings
}
pings() { ping_from "$TAG-ep1" 10.0.0.12 1 >/dev/null; }

begin_capture() {
    spawn "$WORK/$1.log" "$BIN" --socket "$SOCKET" capture ep1 -w "$WORK/$1.pcapng" "${@:2}"
    CAPTURE=$SPAWNED
    wait_until 5 grep -q '^capturing' "$WORK/$1.log"
}
end_capture() {
    kill -INT "$CAPTURE"
    wait_until 10 gone "$CAPTURE"
    tail -n 1 "$WORK/$1.log"
}
guest_looks() {
    spawn_in "$TAG-ep1" "$WORK/tcpdump.log" \
        tcpdump -i eth0 -n -U --immediate-mode -s 0 -B 65536 -w "$WORK/guest.pcap" ip or arp
    TCPDUMP=$SPAWNED
    wait_until 5 grep -q 'listening on' "$WORK/tcpdump.log"
}
guest_stops_looking() {
    kill -INT "$TCPDUMP"
    wait_until 5 gone "$TCPDUMP"
}

# bytes_of FILE: a line with the bytes of each frame of IPv4 and ARP, in order of the bytes.
bytes_of() {
    tcpdump -r "$1" -n -t -xx 'ip or arp' 2>/dev/null |
        awk '/^\t0x/ { sub(/^\t0x[0-9a-f]*: */, ""); gsub(/ /, ""); bytes = bytes $0; next }
            bytes { print bytes; bytes = "" }
            END { if (bytes) print bytes }' | sort
}
talk() {
    local size
    for size in 0 1 18 500 1400; do
        in_netns "$TAG-ep1" busybox ping -q -c 3 -s "$size" -W 1 10.0.0.12 >/dev/null || return
    done
    # Segments of up to 64 KB, at a rate within the budget of a capture.
    in_netns "$TAG-ep1" iperf3 -c 10.0.0.12 -t 2 -b 5M >/dev/null &&
        in_netns "$TAG-ep1" iperf3 -c 10.0.0.12 -t 2 -b 5M -R >/dev/null &&
        in_netns "$TAG-ep1" iperf3 -c 10.0.0.12 -t 1 -u -b 2M >/dev/null
}
guest_has_read() { [ "$(bytes_of "$WORK/guest.pcap" | wc -l)" -ge "$1" ]; }
same_bytes() {
    local longest
    begin_capture both && guest_looks && talk || return
    # The last answers arrive, and tcpdump reads them.
    counters_settle 5
    end_capture both
    bytes_of "$WORK/both.pcapng" >"$WORK/both.hex"
    wait_until 5 guest_has_read "$(wc -l <"$WORK/both.hex")"
    guest_stops_looking
    bytes_of "$WORK/guest.pcap" >"$WORK/guest.hex"
    longest=$(awk '{ if (length > n) n = length } END { print n / 2 }' "$WORK/both.hex")
    say "     $(wc -l <"$WORK/guest.hex") frames in the guest, the longest of $longest bytes," \
        "$(wc -l <"$WORK/both.hex") captured"
    [ -s "$WORK/guest.hex" ] && cmp "$WORK/guest.hex" "$WORK/both.hex"
}

drops_of() { ctl stats ep1 --json | jq "[.ports[] | select(.port == \"ep1\").drops[]] | add // 0"; }
same_drops() {
    local before after
    before=$(drops_of)
    begin_capture drops --drops || return
    # shellcheck disable=SC2016 # the inner shell expands it
    in_netns "$TAG-ep1" bash -c \
        'for n in $(seq 50); do echo "$n" >/dev/udp/10.0.0.12/9; done' 2>/dev/null
    wait_until 5 test "$(drops_of)" -ge $((before + 50))
    after=$(drops_of)
    end_capture drops
    tshark -r "$WORK/drops.pcapng" -T fields -e frame.comment >"$WORK/reasons" 2>/dev/null
    say "     $(wc -l <"$WORK/reasons") drops captured, $((after - before)) counted"
    [ "$(wc -l <"$WORK/reasons")" = $((after - before)) ] &&
        ! grep -qv 'reason=rule rule=no-discard' "$WORK/reasons"
}

# start_load SIZE: `a` sends to `b` and `c` to `d`, as fast as they can.
start_load() {
    local secs=$((PAIRS * (6 * RUN_MS + 1000) / 1000 + 10))
    spawn "$WORK/load.json" taskset -c "$(others_cores)" \
        "$LAB" load --json --interval 0 --warmup 0 --secs "$secs" \
        --core "$(others_cores | cut -d, -f1 | cut -d- -f1)" \
        --vm "name=a,socket=$WORK/a.sock,mac=52:54:00:00:09:01,ip=10.9.0.1,to=b,size=$1" \
        --vm "name=b,socket=$WORK/b.sock,mac=52:54:00:00:09:02,ip=10.9.0.2,sink" \
        --vm "name=c,socket=$WORK/c.sock,mac=52:54:00:00:09:03,ip=10.9.0.3,to=d,size=64" \
        --vm "name=d,socket=$WORK/d.sock,mac=52:54:00:00:09:04,ip=10.9.0.4,sink"
    LOAD=$SPAWNED
    wait_until 10 d_receives
}
frames_of_d() {
    ctl stats d --json | jq '.ports[] | select(.port == "d").counters.tx_frames'
}
d_receives() { [ "$(frames_of_d)" -gt 1000000 ]; }
# rate_of_d: frames per second that `d` receives from `c`.
rate_of_d() {
    local from to began
    began=$(date +%s%N) from=$(frames_of_d)
    wait_until $((RUN_MS / 1000 + 5)) passed $((began + RUN_MS * 1000000))
    to=$(frames_of_d)
    echo $(((to - from) * 1000000 / (($(date +%s%N) - began) / 1000)))
}
passed() { [ "$(date +%s%N)" -ge "$1" ]; }
# costs_little SIZE [OPTION]...: many short runs with and without a capture alternate while the load
# goes on, because the machine's speed changes from second to second. Fails if the median of all pairs
# is below the limit. Also prints the interval that has the true median with 95 %, by the ranks of the
# pairs.
costs_little() {
    local n size=$1
    shift
    rm -f "$WORK/pairs"
    start_load "$size" || return
    for n in $(seq "$PAIRS"); do
        [ $((n % 2)) = 1 ] && without=$(rate_of_d)
        spawn "$WORK/cost.log" "$BIN" --socket "$SOCKET" capture a -w /dev/null "$@"
        CAPTURE=$SPAWNED
        wait_until 10 grep -q '^capturing' "$WORK/cost.log" || return
        with=$(rate_of_d)
        end_capture cost >"$WORK/cost"
        [ $((n % 2)) = 0 ] && without=$(rate_of_d)
        echo "$without $with" >>"$WORK/pairs"
    done
    kill -TERM "$LOAD"
    wait_until 5 gone "$LOAD"
    say "     last run: $(cat "$WORK/cost")"
    awk '$1 > 0 { print $2 / $1 }' "$WORK/pairs" | sort -n |
        awk -v keeps=$KEEPS -v what="$size B, capture a $*" '
            { r[NR] = $1 }
            END {
                if (NR < 10) exit 1
                median = (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2
                low = int(NR / 2 - 0.98 * sqrt(NR)) + 1
                high = NR + 1 - low
                printf "     %s: the other port keeps %.1f %%, by ranks %.1f to %.1f %%, %d pairs\n",
                    what, 100 * median, 100 * r[low], 100 * r[high], NR
                exit !(1000 * median >= keeps)
            }'
}

BIN=$(penstock_bin)
LAB=$(lab_bin)
if [ "$(id -u)" != 0 ]; then
    skip "captures: needs root for network namespaces"
elif ! have tcpdump || ! have tshark; then
    skip "captures: tcpdump or tshark is not installed (scripts/setup.sh bench does it)"
else
    own_switch_dir capture
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    write_config >"$WORK/host.toml"
    check "the switch starts" start_switch "$WORK/host.toml"
    check "two endpoints attach" start_endpoints
    check "a capture has the bytes that tcpdump in the guest has" same_bytes
    check "captured drops are those that the switch counts" same_drops
    if [ "${1:-}" != --smoke ]; then
        check "another port keeps 99 % beside a capture" costs_little 64
        check "another port keeps 99 % beside a capture of large frames" costs_little 1518
        check "another port keeps 99 % beside a capture of drops" costs_little 64 --drops
    fi
    check "counters add up" counters_settle
    check "the switch stops" stop_switch TERM
fi
verdict capture
