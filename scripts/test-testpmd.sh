#!/usr/bin/env bash
# Tests DPDK's own virtio driver with the switch: dpdk-testpmd with two virtio-user devices.
# Combinations differ in split and packed rings, mergeable buffers, in-order, 1 and 2 queue pairs,
# and rings of 256 and 1024. The script runs six combinations that have every pair of settings, or
# all 32. In each, testpmd passes frames in a circle in io mode for SECONDS (default 10). It then
# stops and starts its ports, and sends flows in flowgen mode for as long. In each second, frames
# must have moved in both directions. testpmd and the switch must have the same counts, and the
# switch's counters must add up. One socket is the switch's, the other testpmd's. Needs no root.
#
#   test-testpmd.sh [SECONDS [CELL]]     CELL: runs the combinations that have it in their names;
#                                        "pairs" runs the six; without CELL, all run
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

SECS=${1:-10}
ONLY=${2:-}
MACS=(52:54:00:00:03:00 52:54:00:00:03:01)
# Address to which testpmd's flowgen sends from either port. No device has this address.
FLOWS_TO=00:01:02:03:04:01

cleanup() {
    trap '' INT TERM HUP
    exec 7>&-
    tidy_up
    [ "$FAILED" = 0 ] || tail -n 15 "$WORK"/host.log "$WORK"/failed-*.log
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

write_config() {
    local port mode
    switch_config test-testpmd
    printf '\n[[tenant]]\nname = "blue"\n'
    for port in 0 1; do
        if [ $port = 0 ]; then mode=server; else mode=client; fi
        printf '\n[[port]]\nname = "p%s"\ntenant = "blue"\nvhost-user.queues = 2\n' $port
        printf 'vhost-user.mode = "%s"\nvhost-user.socket = "%s"\n' $mode "$WORK/p$port.sock"
        # io mode uses learned addresses, and flowgen uses these.
        printf '\n[[rule]]\nname = "flows-of-p%s"\nport = "p%s"\n' $port $port
        printf 'match = { dst_mac = "%s" }\nactions = ["output:p%s"]\n' $FLOWS_TO $((1 - port))
    done
}

# Without hugepages DPDK uses memory from a memfd, which a switch can map as well.
start_testpmd() {
    local core args
    core=$(others_cores)
    core=${core%%-*}
    args=queues=$QUEUES,queue_size=$SIZE,packed_vq=$PACKED,mrg_rxbuf=$MRG,in_order=$ORDER
    # This socket may be left over from a killed testpmd. The next one would not listen on it.
    rm -f "$WORK/p1.sock"
    rm -f "$WORK/in" && mkfifo "$WORK/in" && exec 7<>"$WORK/in"
    PMD_LOG=$WORK/$CELL.log
    # The output is flushed after each line, so that the script can wait for it.
    stdbuf -oL dpdk-testpmd --lcores "0@$core,1@$core" --no-huge -m 256 --no-pci \
        --no-telemetry --no-shconf \
        --vdev "net_virtio_user0,path=$WORK/p0.sock,$args,mac=${MACS[0]}" \
        --vdev "net_virtio_user1,path=$WORK/p1.sock,server=1,$args,mac=${MACS[1]}" \
        -- --interactive --nb-cores=1 --forward-mode=io --rxq="$QUEUES" --txq="$QUEUES" \
        --no-lsc-interrupt --disable-link-check --total-num-mbufs=16384 --txd="$SIZE" \
        --rxd="$SIZE" --eth-peer="0,${MACS[1]}" --eth-peer="1,${MACS[0]}" \
        <&7 >"$PMD_LOG" 2>&1 &
    TESTPMD=$!
    OWN_PIDS+=("$TESTPMD")
}
# pmd COMMAND...: types a command.
pmd() { echo "$*" >&7; }
# done_with N: testpmd has finished its N-th command that ends in a line "Done".
done_with() { gone "$TESTPMD" || [ "$(grep -c '^Done' "$PMD_LOG")" -ge "$1" ]; }
stopped() { gone "$TESTPMD" || [ "$(grep -c 'Accumulated forward statistics' "$PMD_LOG")" -ge "$1" ]; }

# Whether both ports are up with the rings and features of this cell, and no others.
attached() {
    local port shown
    for port in p0 p1; do
        shown=$(ctl port show "$port") || return 1
        grep -q "^queues *$QUEUES of 2 queue pairs can pass" <<<"$shown" || return 1
        grep -qE "^ring sizes +$SIZE( $SIZE){$((2 * QUEUES - 1))}\$" <<<"$shown" || return 1
        shown=$(sed -n 's/^features *//p' <<<"$shown")
        [ "$(has packed)$(has mrg-rxbuf)$(has in-order)" = "$PACKED$MRG$ORDER" ] || return 1
    done
}
has() { case " $shown " in *" $1 "*) echo 1 ;; *) echo 0 ;; esac; }

moved_on() {
    local last_a=$A last_b=$B
    counters rx_frames
    [ "$A" -gt "$last_a" ] && [ "$B" -gt "$last_b" ]
}
counters() { A=$(port_counter p0 "$1") B=$(port_counter p1 "$1"); }
# Checks that frames moved in both directions in every second. $RATE has the rate of both.
no_stall() {
    local second first last_a last_b
    counters rx_frames
    wait_until 10 moved_on || true
    first=$((A + B)) last_a=$A last_b=$B
    for ((second = 1; second <= $1; second++)); do
        sleep 1
        counters rx_frames
        if [ "$A" -le "$last_a" ] || [ "$B" -le "$last_b" ] || gone "$TESTPMD"; then
            say "     $CELL: stalled in second $second: p0 $last_a -> $A, p1 $last_b -> $B frames"
            return 1
        fi
        last_a=$A last_b=$B
    done
    RATE=$(((A + B - first) / $1))
}

# pmd_stat PORT NAME: the last value that `show port stats` printed.
pmd_stat() {
    awk -v port="$1" -v name="$2:" '/NIC statistics for port/ { at = $6 }
        at == port { for (i = 1; i < NF; i++) if ($i == name) n = $(i + 1) } END { print n + 0 }' "$PMD_LOG"
}
# Checks that the switch received all frames that testpmd sent, and that testpmd received all
# delivered frames. Frames that were in its rings when it stopped reading, twice, do not count.
same_counts() {
    local port sent got rx tx
    for port in 0 1; do
        sent=$(pmd_stat $port TX-packets) got=$(pmd_stat $port RX-packets)
        rx=$(($(port_counter p$port rx_frames) - RX0[port]))
        tx=$(($(port_counter p$port tx_frames) - TX0[port]))
        if [ "$rx" != "$sent" ] || [ "$got" -gt "$tx" ] ||
            [ $((tx - got)) -gt $((3 * QUEUES * SIZE)) ]; then
            say "     $CELL p$port: testpmd sent $sent, we took $rx; we gave $tx, it got $got"
            return 1
        fi
    done
}
reported() { gone "$TESTPMD" || [ "$(grep -c 'NIC statistics for port 1' "$PMD_LOG")" -ge 1 ]; }

# Runs one combination and prints what went wrong.
run_cell() {
    local io flows
    counters rx_frames && RX0=("$A" "$B")
    counters tx_frames && TX0=("$A" "$B")
    start_testpmd
    wait_until 30 attached || { say "     $CELL: not attached as asked for" && return 1; }
    pmd start tx_first
    no_stall "$SECS" || return 1
    io=$RATE
    pmd stop
    wait_until 10 stopped 1 || { say "     $CELL: io mode does not stop" && return 1; }
    pmd port stop all
    pmd port start all
    wait_until 20 done_with 3 || { say "     $CELL: its ports do not start again" && return 1; }
    wait_until 10 attached || { say "     $CELL: not attached again" && return 1; }
    pmd start tx_first
    no_stall 1 || { say "     $CELL: not after the ports were restarted" && return 1; }
    pmd stop
    wait_until 10 stopped 2 || { say "     $CELL: does not stop after the restart" && return 1; }
    pmd set fwd flowgen
    pmd start
    no_stall "$SECS" || return 1
    flows=$RATE
    pmd stop
    wait_until 10 stopped 3 || { say "     $CELL: flowgen mode does not stop" && return 1; }
    pmd show port stats all
    wait_until 10 reported
    wait_until 5 same_counts >/dev/null || same_counts || return 1
    counters_settle 5 || { say "     $CELL: the switch's counters do not add up" && return 1; }
    pmd quit
    wait_until 10 gone "$TESTPMD" || { say "     $CELL: testpmd does not end" && return 1; }
    say "     io $io, flowgen $flows frames/s, both directions together"
}

# Five settings of two values each, so that in any two columns all four combinations occur.
PAIRS="0 0 0 1 256
1 1 1 2 1024
1 1 1 1 256
1 0 0 2 1024
0 1 0 2 256
0 0 1 1 1024"
# covers_pairs: whether PAIRS has this property.
covers_pairs() {
    awk '{ for (a = 1; a < 5; a++) for (b = a + 1; b <= 5; b++) seen[a, b, $a, $b] = 1 }
        END { for (i in seen) n++; exit n != 40 }' <<<"$PAIRS"
}
in_pairs() { grep -qx "$PACKED $MRG $ORDER $QUEUES $SIZE" <<<"$PAIRS"; }
is_asked_for() { if [ "$ONLY" = pairs ]; then in_pairs; else [[ $CELL == *"$ONLY"* ]]; fi; }

CELLS=0
run_matrix() {
    for PACKED in 0 1; do for MRG in 1 0; do for ORDER in 1 0; do
        for QUEUES in 1 2; do for SIZE in 256 1024; do
            if [ $PACKED = 1 ]; then CELL="packed"; else CELL="split"; fi
            if [ $MRG = 1 ]; then CELL+=-merge; else CELL+=-nomerge; fi
            if [ $ORDER = 1 ]; then CELL+=-inorder; else CELL+=-anyorder; fi
            CELL+=-${QUEUES}q-$SIZE
            is_asked_for || continue
            CELLS=$((CELLS + 1))
            if run_cell; then
                pass "$CELL: io, port restart, flowgen; no stall, counters agree"
            else
                fail "$CELL"
                cp "$PMD_LOG" "$WORK/failed-$CELL.log"
            fi
            end_pid "$TESTPMD"
            exec 7>&-
        done; done
    done; done; done
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
    [ "$ONLY" != pairs ] || check "the cells have every pair of settings" covers_pairs
    check "the switch starts" start_switch "$WORK/host.toml"
    run_matrix
    check "of the cells asked for, $CELLS ran" [ "$CELLS" -gt 0 ]
    check "the switch still answers" ctl host show
fi
verdict test-testpmd
