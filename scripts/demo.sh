#!/usr/bin/env bash
# A victim and a noisy neighbour on one switch core: first each VM is held to the bits that it
# bought, then to the cycles. Real switch, real vhost-user rings, traffic by the load generator; no
# root needed. Ends with a table and a picture. Everything is taken down again, whatever ends it.
#
#   PROFILE=release   builds and runs the fast program (longer to build)
#   OUT=DIR           where the picture and the numbers go; default: penstock-demo in the temporary directory
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

if [ -z "${PENSTOCK_BIN:-}" ]; then
    step "building (profile ${PROFILE:-dev}; the first time takes minutes)"
    (cd "$REPO" && cargo build --locked --profile "${PROFILE:-dev}" -p penstock)
fi
BIN=$(penstock_bin)
OUT=${OUT:-${TMPDIR:-/tmp}/penstock-demo}

say
say "Two VMs share one switch core. Together they bought 90 % of what it can carry; four fifths of"
say "that belong to the victim, and both send what they bought. Then the neighbour floods 64-byte"
say "frames of 100,000 flows. It may: nobody sold it fewer frames. What does the victim notice?"
say
say "First every VM is held to its bits per second (bps policing, ports in turn), then to its cycles"
say "per second (C2QoS: cycle buckets and batch scheduling). Switch on core $(worker_core), load on the others."
[ "$(cpus_all)" -ge 2 ] || warn "one processor for switch and load: the numbers are the kernel's, not the switch's"

step "penstock lab run demo --mode live --out $OUT"
status=0
"$BIN" lab run demo --mode live --out "$OUT" || status=$?
[ -s "$OUT/demo-live.json" ] || die "the demo did not run"

step "what each VM got through, before -> during the flood"
flood=$(sed -n 's/.*"flood_begins_s": \([0-9.]*\).*/\1/p' "$OUT/demo-live.json")
"$BIN" lab plot "demo=$OUT/demo-live.json" --event "$flood=the neighbour floods"
say
say "picture: $OUT/demo-live.svg"
say "numbers: $OUT/demo-live.json, $OUT/demo-live.csv"
say "more:    penstock lab list; penstock lab run all; make demo-guests (real guests, ping, iperf3)"
exit "$status"
