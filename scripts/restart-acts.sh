#!/usr/bin/env bash
# Restarts the switch under its unit again and again, with 16 ports and under load, and measures how
# long the guests are without network. under-unit.sh runs this script in a container. Half of the
# ports have packed rings. Two pairs of ports carry TCP, two carry UDP, and two ping each other every
# 5 ms. Prints PASS, FAIL and SKIP lines, and the longest silence of each ping.
#
#   RESTARTS=20     number of restarts
#   SILENCE_MS=N    longest silence that passes; default: no limit, the number is only printed
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
[ -e /etc/penstock-container ] || die "runs only in under-unit.sh's container"

BIN=/opt/penstock
SOCKET=/run/penstock/host.sock
CONFIG=/etc/penstock/host.toml
PORTS=16
RESTARTS=${RESTARTS:-20}
# Longer than all restarts together, even on a slow machine.
LOAD_SECONDS=$((RESTARTS * 6 + 30))

write_config() {
    local n
    printf '[host]\nname = "restart"\n[worker]\ncores = [%s]\nidle_backoff_us = 200\n' "$(worker_core)"
    printf '[[tenant]]\nname = "blue"\n'
    for n in $(seq $PORTS); do
        printf '[[port]]\nname = "vm%s"\ntenant = "blue"\n' "$n"
        printf 'vhost-user.socket = "/run/penstock/vm%s.sock"\n' "$n"
    done
}
# Ports 1 to 8 have split rings, and ports 9 to 16 packed rings.
start_endpoint() {
    local n nics=() packed
    for n in $(seq $PORTS); do
        packed=
        [ "$n" -le 8 ] || packed=,packed=on
        nics+=(--nic "socket=/run/penstock/vm$n.sock,netns=vm$n,ip=10.0.0.$n/24,if=eth0$packed")
    done
    spawn /out/endpoint.log taskset -c "$(others_cores)" "$BIN" endpoint --create-netns "${nics[@]}"
}
all_up() { [ "$("$BIN" --socket $SOCKET port list | grep -cw up)" = $PORTS ]; }
listens_in() { in_netns "vm$1" ss -ltn | grep -q :5201; }

# restart_all: restarts the switch when each ping has had 50 answers since the last restart.
restart_all() {
    local n
    for n in $(seq "$RESTARTS"); do
        wait_until 10 has_answers $((n * 50)) /out/ping-5.log || return
        wait_until 10 has_answers $((n * 50)) /out/ping-13.log || return
        systemctl restart penstock || return
        wait_until 5 sessions_went_on $PORTS || return
    done
    wait_until 10 has_answers $((n * 50 + 50)) /out/ping-5.log &&
        wait_until 10 has_answers $((n * 50 + 50)) /out/ping-13.log
}
is_silent_for_at_most() {
    local ms
    ms=$(silence "$2")
    say "longest silence: $ms ms"
    [ "$ms" -le "$1" ]
}
# tcp_went_on CLIENT_LOG: data was sent in the last whole second.
tcp_went_on() {
    python3 - "$1" <<'END'
import json, sys
parts = [part["sum"] for part in json.load(open(sys.argv[1]))["intervals"]]
last = [part for part in parts if part["seconds"] > 0.9][-1]
mean = sum(part["bytes"] for part in parts) * 8 / sum(part["seconds"] for part in parts)
print("%.0f Mbit/s," % (mean / 1e6), sum(part["retransmits"] for part in parts), "segments sent again")
sys.exit(last["bytes"] == 0)
END
}

step "16 ports under load"
install -d -o penstock -g penstock -m 750 /etc/penstock
write_config >$CONFIG && chown penstock:penstock $CONFIG
check "it starts" systemctl start penstock
start_endpoint
check "all ports come up" wait_until 20 all_up
LOADS=()
SERVERS=()
for pair in "1 2" "9 10" "3 4" "11 12"; do
    read -r from to <<<"$pair"
    spawn_in "vm$to" "/out/iperf-$to.json" iperf3 -s -1 -J
    SERVERS+=("$SPAWNED")
    check "a server in vm$to" wait_until 10 listens_in "$to"
    udp=()
    case $from in 3 | 11) udp=(-u -b 5M -l 1000) ;; esac
    spawn_in "vm$from" "/out/iperf-$from.json" iperf3 -c "10.0.0.$to" -J -t $LOAD_SECONDS "${udp[@]}"
    LOADS+=("$SPAWNED")
done
PINGS=()
for pair in "5 6" "13 14"; do
    read -r from to <<<"$pair"
    spawn_in "vm$from" "/out/ping-$from.log" ping -n -D -i 0.005 -w $LOAD_SECONDS "10.0.0.$to"
    PINGS+=("$SPAWNED")
done

step "$RESTARTS restarts"
began=$SECONDS
check "all sessions go on at each of $RESTARTS restarts" restart_all
say "the restarts took $((SECONDS - began)) s"
kill -INT "${PINGS[@]}" "${LOADS[@]}"
wait "${PINGS[@]}" "${LOADS[@]}" "${SERVERS[@]}"
for from in 5 13; do
    kind="split rings"
    [ $from = 5 ] || kind="packed rings"
    check "$kind: every ping is answered once" all_answered /out/ping-$from.log
    check "$kind: the longest silence is at most ${SILENCE_MS:-any} ms" \
        is_silent_for_at_most "${SILENCE_MS:-1000000}" /out/ping-$from.log
done
for to in 4 12; do
    check "UDP to vm$to: nothing is lost, repeated or out of order" udp_is_whole /out/iperf-$to.json
done
for from in 1 9; do
    check "TCP from vm$from goes on" tcp_went_on /out/iperf-$from.json
done
check "the counters add up" "$BIN" --socket $SOCKET stats --check
tidy_up
verdict "restarts under load"
