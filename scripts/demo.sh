#!/usr/bin/env bash
# A victim and a noisy neighbour share one switch core. First each VM is limited to the bits that it
# bought, then to the cycles. The switch and its vhost-user rings are real, and the load generator
# makes the traffic. Needs no root. Ends with three lines that summarise the results, and a picture.
# Status 0: the switch worked, however disturbed the machine was; 1: it did not keep its promise; 2:
# the demo could not be run. Everything is removed again, even after an error.
#
#   PROFILE=release   builds and runs the fast program (longer to build)
#   OUT=DIR           where the picture and the numbers go; default: penstock-demo in the temporary
#                     directory
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

if [ -z "${PENSTOCK_BIN:-}" ]; then
    step "building (profile ${PROFILE:-dev}; the first time takes minutes)"
    (cd "$REPO" && cargo build --locked --profile "${PROFILE:-dev}" -p penstock -p penstock-lab)
fi
LAB=$(lab_bin)
trap 'exit 130' INT
results_in penstock-demo

say
say "Two VMs share one switch core. Together they bought 90 % of what it can carry; four fifths of"
say "that belong to the victim, and both send what they bought. Then the neighbour floods 64-byte"
say "frames of 100,000 flows. It may: nobody sold it fewer frames. What does the victim notice?"
say
say "First every VM is held to its bits per second (bps policing, ports in turn), then to its cycles"
say "per second (C2QoS: cycle buckets and batch scheduling). Switch on core $(worker_core), load on core $(cores_allowed | head -n 1)."
[ "$(cpus_all)" -ge 2 ] || warn "one processor for switch and load: the numbers will be rough"

step "measuring: about a minute, up to four on a disturbed machine"
run_demo demo

step "what each VM got through, before -> during the flood"
"$LAB" plot "demo=$OUT/demo-live.json"
end_demo demo "make demo-guests (real guests, ping, iperf3)"
