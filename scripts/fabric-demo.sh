#!/usr/bin/env bash
# Two racks of five hosts under a controller, in namespaces of this machine: ten tenants share one
# core link, then one of them bursts and one attacks. Real switches (Linux bridges with queues by
# tc), real TCP. Needs root. Ends with a table and a picture. Everything is taken down again,
# whatever ends it.
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
    (cd "$REPO" && cargo build --locked --profile "${PROFILE:-dev}" -p penstock)
fi
BIN=$(penstock_bin)
OUT=${OUT:-${TMPDIR:-/tmp}/penstock-fabric-demo}

say
say "Ten hosts in two racks; between the racks one link of 50 Mbit/s, of which each of ten tenants"
say "was sold 4.7. Eight of them use all they can get. Then the ninth, idle so far, opens eight times"
say "as many connections as they have. Then the tenth sends datagrams to nobody who wants them."
say
say "A controller hears from the hosts what tenants use, and gives those that use most of what they"
say "bought a queue of their own on every switch of their way; the others share one."
step "penstock lab run fabric-demo --mode live --out $OUT"
status=0
"$BIN" lab run fabric-demo --mode live --out "$OUT" || status=$?
[ -s "$OUT/fabric-demo-live.json" ] || die "the demo did not run"
say
say "picture: $OUT/fabric-demo-live.svg"
say "numbers: $OUT/fabric-demo-live.json, $OUT/fabric-demo-live.csv"
say "more:    penstock lab run qshare-fig4 --mode live; docs/controller.md"
exit "$status"
