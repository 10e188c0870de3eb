#!/usr/bin/env bash
# Two racks of five hosts under a controller, in namespaces of this machine. Ten tenants share one
# core link. Then one of them bursts and one attacks. The switches (Linux bridges with queues by tc)
# and TCP are real. Needs root. Ends with three lines that summarise the results, and a picture.
# Status 0: the fabric worked, however disturbed the machine was; 1: it did not keep its promise; 2:
# the demo could not be run. Everything is removed again, even after an error.
#
#   PROFILE=release   builds and runs the fast program (longer to build)
#   OUT=DIR           where the picture and the numbers go; default: penstock-fabric-demo in the
#                     temporary directory
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ "$(id -u)" = 0 ] || die "namespaces and queues of interfaces need root: sudo make fabric-demo"
if [ -z "${PENSTOCK_BIN:-}" ]; then
    step "building (profile ${PROFILE:-dev}; the first time takes minutes)"
    (cd "$REPO" && cargo build --locked --profile "${PROFILE:-dev}" -p penstock -p penstock-lab)
fi
LAB=$(lab_bin)
trap 'exit 130' INT
results_in penstock-fabric-demo

say
say "Ten hosts in two racks; between the racks one link of 50 Mbit/s, of which each of ten tenants"
say "was sold 4.7. Eight of them use all they can get. Then the ninth, idle so far, opens eight times"
say "as many connections as they have. Then the tenth sends datagrams to nobody who wants them."
say
say "A controller hears from the hosts what tenants use, and gives those that use most of what they"
say "bought a queue of their own on every switch of their way; the others share one."
step "starting hosts, then measuring: about a minute, up to three on a disturbed machine"
run_demo fabric-demo
end_demo fabric-demo "docs/reference/controller.md says how to run a controller of your own"
