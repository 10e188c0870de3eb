#!/usr/bin/env bash
# Frames from one VM to another through one worker, one way: frames per second and the worker's
# cycles per frame, stage by stage, as rows for docs/measurements.md. Give it an idle machine with
# two cores or more; the generator has the first, the worker the last.
#
#   RUNS=10 SECS=2 SIZES="64 512 1518" FLOWS="1 100000" TOUCH=1   are the defaults
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

RUNS=${RUNS:-10} SECS=${SECS:-2} TOUCH=${TOUCH:-1}
COUNTERS="rx_frames cycles stolen sampled_frames cycles_ingress cycles_classification cycles_egress
    tx_frames"
export PROFILE=${PROFILE:-release}

cleanup() {
    local status=$?
    trap '' INT TERM HUP
    tidy_up
    [ "$status" = 0 ] || tail -n 10 "$WORK"/*.log
    rm -rf "$WORK"
    exit "$status"
}

vhost_port() {
    printf '\n[[port]]\nname = "%s"\ntype = "vhost-user"\ntenant = "blue"\n' "$1"
    printf 'socket = "%s"\n' "$WORK/$1.sock"
}

# All of COUNTERS in one line: those of the sender, tx_frames of the receiver.
reading() {
    local json name
    json=$(ctl stats --json | tr -d ' \n' | sed 's/{"port":/\n&/g')
    for name in $COUNTERS; do
        if [ "$name" = tx_frames ]; then set -- b; else set -- a; fi
        grep "^{\"port\":\"$1\"" <<<"$json" | grep -oE "\"$name\"[,:]\"?[0-9]+" |
            grep -oE '[0-9]+$' | head -1 || echo 0
    done | paste -sd' '
}

# one SIZE FLOWS: "Mframes/s cycles ingress classification egress stolen%" of a run. Counters are
# read while frames flow, so nothing of the start or the end is in them.
one() {
    local before after pid core t0 t1 touch=()
    core=$(others_cores)
    [ "$TOUCH" != 1 ] || touch=(--touch)
    "$BIN" lab load --core "${core%%-*}" --secs "$((SECS + 3))" --interval 0 "${touch[@]}" \
        --vm "name=a,socket=$WORK/a.sock,mac=52:54:00:00:04:01,ip=10.0.0.1,to=b,size=$1,flows=$2" \
        --vm "name=b,socket=$WORK/b.sock,mac=52:54:00:00:04:02,ip=10.0.0.2,sink" \
        >>"$WORK/load.log" 2>&1 &
    pid=$!
    OWN_PIDS+=("$pid")
    sleep 2
    before=$(reading) t0=$(date +%s%N)
    sleep "$SECS"
    after=$(reading) t1=$(date +%s%N)
    wait "$pid" || die "the generator failed"
    echo "$before $after $((t1 - t0))" | awk '{
        for (i = 1; i <= 8; i++) d[i] = $(i + 8) - $i
        n = d[1] > 0 ? d[1] : 1; s = d[4] > 0 ? d[4] : 1
        printf "%.3f %.0f %.0f %.0f %.0f %.2f\n", d[8] / $17 * 1e3, d[2] / n, d[5] / s, d[6] / s,
            d[7] / s, 100 * d[3] / (d[2] + d[3] > 0 ? d[2] + d[3] : 1) }'
}

# median COLUMN of the runs on stdin, with the smallest and the largest.
median() {
    awk -v c="$1" '{ print $c }' | sort -g | awk '{ v[NR] = $1 } END {
        m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
        printf "%g [%g-%g]", m, v[1], v[NR] }'
}

[ -n "${PENSTOCK_BIN:-}" ] || (cd "$REPO" && cargo build --locked --profile "$PROFILE" -p penstock)
own_switch_dir bench
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
{
    switch_config bench
    printf '\n[[tenant]]\nname = "blue"\n'
    vhost_port a
    vhost_port b
} >"$WORK/host.toml"
start_switch "$WORK/host.toml" || die "the switch did not start"

say "machine: $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(nproc) CPUs, $(uname -r)"
say "commit: $(git -C "$REPO" describe --always --dirty 2>/dev/null), $(date +%F), ${PENSTOCK_BIN:-profile $PROFILE}"
say "runs: $RUNS of $SECS s, touched: $TOUCH; median [smallest-largest]"
say ""
say "| Size | Flows | Mframes/s | Cycles per frame | Ingress | Classification | Egress | Stolen % |"
say "|---|---|---|---|---|---|---|---|"
for size in ${SIZES:-64 512 1518}; do
    for flows in ${FLOWS:-1 100000}; do
        for ((run = 0; run < RUNS; run++)); do one "$size" "$flows"; done >"$WORK/runs"
        row="| $size | $flows |"
        for column in 1 2 3 4 5 6; do row+=" $(median $column <"$WORK/runs") |"; done
        say "$row"
    done
done
ctl stats --check >/dev/null || die "the counters do not add up"
