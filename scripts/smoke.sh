#!/usr/bin/env bash
# Tests the release program as a user meets it, in ten seconds. The program starts, two endpoints
# pass frames (ping, iperf3), it reloads its file meanwhile, and it stops. The program may have at
# most 16 MB without debugging information. Needs root for the namespaces.
#
#   smoke.sh    PENSTOCK_BIN, or target/release/penstock
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

TAG=pss$$
EACH=${SECONDS_EACH:-3}

cleanup() {
    trap '' INT TERM HUP
    tidy_up
    [ "$FAILED" = 0 ] || tail -n 15 "$WORK"/*.log
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

# write_config PORT...: writes a file with one tenant. Each port has a socket that the switch makes.
write_config() {
    local port
    switch_config smoke
    printf '\n[[tenant]]\nname = "blue"\n'
    for port in "$@"; do
        printf '\n[[port]]\nname = "%s"\ntenant = "blue"\n' "$port"
        printf 'vhost-user.socket = "%s"\n' "$WORK/$port.sock"
    done
}

start_endpoints() {
    local n
    for n in 1 2; do own_netns "$TAG-ep$n"; done
    spawn "$WORK/endpoint.log" taskset -c "$(others_cores)" "$BIN" endpoint --create-netns \
        --nic "netns=$TAG-ep1,socket=$WORK/ep1.sock,ip=10.0.0.11/24" \
        --nic "netns=$TAG-ep2,socket=$WORK/ep2.sock,ip=10.0.0.12/24"
    for n in 1 2; do
        wait_until 10 test -e "/run/netns/$TAG-ep$n" || return
        quiet_ipv6 "$TAG-ep$n"
    done
    spawn_in "$TAG-ep2" "$WORK/iperf3.log" iperf3 -s
}
pings() { ping_from "$TAG-ep1" 10.0.0.12 1 >/dev/null; }

# iperf3 runs while the switch reads a file with one more port.
passes_while_it_reloads() {
    local client
    spawn_in "$TAG-ep1" "$WORK/client.log" iperf3 -c 10.0.0.12 -t "$EACH"
    client=$SPAWNED
    wait_until 10 moves || return
    write_config ep1 ep2 ep3 >"$WORK/host.toml"
    ctl host reload && [ -n "$(port_state ep3)" ] || return
    wait "$client" || return
    say "     iperf3 over the reload: $(iperf_rate "$(cat "$WORK/client.log")")"
    [ -n "$(iperf_rate "$(cat "$WORK/client.log")")" ]
}
moves() { [ "$(port_counter ep1 rx_frames)" -gt 1000 ]; }
# Counts what the loader maps, so debugging information makes no difference.
small() {
    local bytes
    bytes=$(size -A "$BIN" | awk '$3 > 0 && $1 !~ /bss/ { n += $2 } END { print n + 0 }')
    say "     $bytes bytes of code and data"
    [ "$bytes" -gt 0 ] && [ "$bytes" -le 16000000 ]
}
stops() { stop_switch TERM && [ ! -e "$SOCKET" ]; }

BIN=${PENSTOCK_BIN:-${CARGO_TARGET_DIR:-$REPO/target}/release/penstock}
if [ ! -x "$BIN" ]; then
    skip "smoke of the release program: $BIN is not built, and PENSTOCK_BIN names none"
elif [ "$(id -u)" != 0 ]; then
    skip "smoke of the release program: needs root for network namespaces"
else
    export PENSTOCK_BIN=$BIN
    own_switch_dir smoke
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    write_config ep1 ep2 >"$WORK/host.toml"
    say "     $("$BIN" --version), $(stat -c %s "$BIN") bytes"
    check "the program has at most 16 MB" small
    check "the switch starts" start_switch "$WORK/host.toml"
    check "two endpoints attach" start_endpoints
    check "one reaches the other" wait_until 30 pings
    check "iperf3 runs while the switch reloads" passes_while_it_reloads
    check "counters add up" counters_settle
    check "the switch stops and leaves no socket" stops
fi
verdict smoke
