#!/usr/bin/env bash
# Measures how much traffic other VMs keep while one VM is flooded from the uplink. Windows without
# and with the flood alternate. One load generator plays all VMs and the uplink. Prints frames per
# second of each flow, and what the flooded VM received.
#
#     scripts/live-flood.sh [PROGRAM]         2 CPUs; the worker has CPU 1, the generator CPU 0; 40 s
#
# red1 -> red2: 1,518 bytes, class 1. outside2 -> red4: 600 bytes, class 2, with a queue.
# outside -> red3: 64 bytes, as fast as the generator can, into a port with a queue. red3's cycles pay
# for the deliveries.
set -euo pipefail
program=${1:-${CARGO_TARGET_DIR:-target}/release/penstock-lab}
# The measured programs get the highest priority if we may set it.
first=(nice -n -20)
"${first[@]}" true 2>/dev/null || first=()
dir=$(mktemp -d)
daemon=
stop() {
    [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null; } || true
    rm -rf "$dir"
}
trap stop EXIT

port() { # name more...
    printf '[[port]]\nname = "%s"\nvhost-user.socket = "%s/%s.sock"\n' "$1" "$dir" "$1"
    shift
    printf '%s\n' "$@"
}
bought() { # cycles class
    printf 'tenant = "red"\ningress_policy = "cycles-minmax"\ncycles = "%s"\npriority = %s\n' "$1" "$2"
}
{
    printf '[host]\nname = "flood"\nsocket = "%s/host.sock"\nstate_dir = "%s/state"\n' "$dir" "$dir"
    printf '[worker]\ncores = [1]\nidle_backoff_us = 0\nschedule = "hbs"\n[[tenant]]\nname = "red"\n'
    port outside 'priority = 2'
    port outside2 'priority = 1'
    port red1 "$(bought 600M 1)"
    port red2 "$(bought 50M 2)"
    port red3 "$(bought 100M 3)" 'queue = { bytes = 65536 }'
    port red4 "$(bought 200M 2)" 'queue = {}'
    # Sinks never send, so the switch could not learn their addresses.
    number=0
    for name in outside outside2 red1 red2 red3 red4; do
        number=$((number + 1))
        case $name in outside*) owner='tenant = "red"' ;; *) owner= ;; esac
        printf '[[fdb]]\nport = "%s"\nmac = "52:54:00:00:09:%02x"\n%s\n' "$name" $number "$owner"
    done
} >"$dir/host.toml"
"$program" host check --config "$dir/host.toml" >"$dir/check.txt"
"${first[@]}" "$program" host run --config "$dir/host.toml" >"$dir/log" 2>&1 &
daemon=$!
tries=0
until "$program" --socket "$dir/host.sock" host show >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ $tries -gt 200 ]; then
        cat "$dir/log" >&2
        exit 1
    fi
    sleep 0.05
done

vm() { # name number more
    printf 'name=%s,socket=%s/%s.sock,mac=52:54:00:00:09:%02x,ip=10.0.9.%d%s' "$1" "$dir" "$1" "$2" "$2" "$3"
}
run() { # rate of the flood
    "${first[@]}" "$program" load --core 0 --secs 4 --warmup 1 --interval 0 --json \
        --vm "$(vm outside 1 ",to=red3,size=64,rate=$1")" \
        --vm "$(vm outside2 2 ',to=red4,size=600,rate=200k')" \
        --vm "$(vm red1 3 ',to=red2,size=1518,rate=300k')" \
        --vm "$(vm red2 4 ',rate=stop,sink')" --vm "$(vm red3 5 ',rate=stop,sink')" \
        --vm "$(vm red4 6 ',rate=stop,sink')" | tail -1
}
for turn in 1 2 3 4; do
    for rate in stop 0; do
        "$program" --socket "$dir/host.sock" stats --json >"$dir/before"
        run "$rate" >"$dir/load"
        "$program" --socket "$dir/host.sock" stats --json >"$dir/after"
        python3 - "$dir" "$turn" "$rate" <<'P'
import json, sys
d, turn, rate = sys.argv[1:]
load = json.load(open(f"{d}/load"))
vms = {v["name"]: v for v in load["vms"]}
def stats(f):
    return {p["port"]: p for p in json.load(open(f"{d}/{f}"))["ports"]}
a, b = stats("before"), stats("after")
def grew(port, name):
    return b[port]["counters"][name] - a[port]["counters"][name]
what = "without" if rate == "stop" else "with   "
dropped = {k: v - a["outside"]["drops"].get(k, 0) for k, v in b["outside"]["drops"].items()}
print(f"turn {turn} {what} flood:", f"red2 gets {vms['red2']['rx_frames_per_sec']:.0f}/s, red4 gets {vms['red4']['rx_frames_per_sec']:.0f}/s,",
      f"red3 gets {vms['red3']['rx_frames_per_sec']:.0f}/s of {vms['outside']['tx_frames_per_sec']:.0f}/s;",
      f"red1 waited at most {b['red1']['counters']['delay_max']/1e3:.0f} us; {dropped}", flush=True)
P
    done
done
"$program" --socket "$dir/host.sock" stats --check >/dev/null && echo "the counters add up"
