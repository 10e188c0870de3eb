#!/usr/bin/env bash
# Keeps every core of this machine busy for a part of the time, with one program per core. Run it
# beside the demos to try them on a busy machine. It ends by itself, when its parent ends, and on
# any signal.
#
#   busy.sh [SECONDS] [PER_CENT]     default: 600 seconds, 33 per cent of every core
set -euo pipefail
seconds=${1:-600} part=${2:-33}
parent=$PPID

# loop CORE: computes $part of every 100 ms.
loop() {
    taskset -cp "$1" "$BASHPID" >/dev/null
    local end=$((SECONDS + seconds)) until
    while [ "$SECONDS" -lt "$end" ] && kill -0 "$parent" 2>/dev/null; do
        until=$((${EPOCHREALTIME/./} + part * 1000))
        while [ "${EPOCHREALTIME/./}" -lt "$until" ]; do :; done
        read -rt "0.$(printf '%03d' $((100 - part)))" <> <(:) || true
    done
}

loops=()
trap 'kill "${loops[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
for ((core = 0; core < $(nproc); core++)); do
    loop "$core" &
    loops+=($!)
done
wait
