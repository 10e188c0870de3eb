#!/usr/bin/env bash
# DPDK's own virtio driver against the switch: dpdk-testpmd with two virtio-user devices passes
# frames round in io mode for SECONDS (default 10); each second both directions must have moved, and
# the counters must add up. One socket is the switch's, the other testpmd's. Needs no root.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

SECS=${1:-10}
MAC0=52:54:00:00:03:00
MAC1=52:54:00:00:03:01

cleanup() {
    trap '' INT TERM HUP
    tidy_up
    [ "$FAILED" = 0 ] || tail -n 15 "$WORK"/*.log
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

write_config() {
    switch_config test-testpmd
    printf '\n[[tenant]]\nname = "blue"\n'
    printf '\n[[port]]\nname = "p0"\ntype = "vhost-user"\ntenant = "blue"\nmode = "server"\n'
    printf 'socket = "%s"\nmac = ["%s"]\n' "$WORK/p0.sock" $MAC0
    printf '\n[[port]]\nname = "p1"\ntype = "vhost-user"\ntenant = "blue"\nmode = "client"\n'
    printf 'socket = "%s"\nmac = ["%s"]\n' "$WORK/p1.sock" $MAC1
}

# Without hugepages DPDK takes its memory from a memfd, which a switch can map just as well.
start_testpmd() {
    local core
    core=$(others_cores)
    core=${core%%-*}
    spawn "$WORK/testpmd.log" dpdk-testpmd --lcores "0@$core,1@$core" --no-huge -m 256 --no-pci \
        --no-telemetry --no-shconf \
        --vdev "net_virtio_user0,path=$WORK/p0.sock,queues=1,queue_size=1024,mac=$MAC0" \
        --vdev "net_virtio_user1,path=$WORK/p1.sock,server=1,queues=1,queue_size=1024,mac=$MAC1" \
        -- --nb-cores=1 --forward-mode=io --tx-first --stats-period=5 --no-lsc-interrupt \
        --total-num-mbufs=16384 --txd=1024 --rxd=1024 \
        --eth-peer=0,$MAC1 --eth-peer=1,$MAC0
    TESTPMD=$SPAWNED
}
moving() { [ "$(port_counter p0 rx_frames)" -gt 1000 ] && [ "$(port_counter p1 rx_frames)" -gt 1000 ]; }

# Every second both directions have moved on.
no_stall() {
    local second a b last_a=0 last_b=0
    for ((second = 0; second < SECS; second++)); do
        a=$(port_counter p0 rx_frames) b=$(port_counter p1 rx_frames)
        if [ "$a" -le "$last_a" ] || [ "$b" -le "$last_b" ]; then
            say "     stalled in second $second: p0 $last_a -> $a frames, p1 $last_b -> $b"
            return 1
        fi
        if gone "$TESTPMD"; then
            say "     testpmd ended in second $second"
            return 1
        fi
        last_a=$a last_b=$b
        sleep 1
    done
    say "     p0 $last_a frames, p1 $last_b frames in about $SECS s"
}

BIN=$(penstock_bin)
if ! have dpdk-testpmd; then
    skip "testpmd: dpdk-testpmd is not installed (Debian package dpdk-dev)"
elif [ ! -x "$BIN" ]; then
    fail "$BIN is not built: run \`make build\`"
else
    own_switch_dir test-testpmd
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    write_config >"$WORK/host.toml"
    check "the switch starts" start_switch "$WORK/host.toml"
    start_testpmd
    check "testpmd attaches and frames go round" wait_until 30 moving
    check "no stall in $SECS s of io forwarding" no_stall
    end_pid "$TESTPMD"
    check "counters add up" counters_settle
    check "the switch still answers" ctl host show
fi
verdict test-testpmd
