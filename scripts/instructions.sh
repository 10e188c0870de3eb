#!/usr/bin/env bash
# Counts the data path's instructions per frame with valgrind. Unlike times, these counts hardly
# differ between runs and machines, so a regression shows on a noisy machine.
#
#   instructions.sh           compares with docs/internals/instructions.tsv: 5 % more is a failure
#   instructions.sh --write   writes that file again; commit it with the change that caused it
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO"

KEPT=docs/internals/instructions.tsv
CASES="take-60 give-60 give-1514 turn-60-1 turn-60-1000 turn-60-100000-ports turn-1514-1 turn-60-1-hbs turn-1514-1-hbs"
MORE=${MORE:-5}

if ! command -v valgrind >/dev/null; then
    say "SKIP instruction counts: valgrind is not installed (scripts/setup.sh test does it)"
    exit 0
fi
program=$(cargo bench --locked -p penstock-dataplane --bench count --no-run --message-format=json |
    grep -o '"executable":"[^"]*/count-[^"]*"' | tail -1 | cut -d'"' -f4)
[ -x "$program" ] || die "cargo did not say where it put the bench"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run CASE ROUNDS: counts all instructions of that many rounds, including those of the start.
run() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

for case in $CASES; do
    {
        few=$(run "$case" 200) many=$(run "$case" 1200)
        awk -v c="$case" -v few="$few" -v many="$many" \
            'BEGIN { printf "%s\t%.1f\n", c, (many - few) / (1000 * 32) }' >"$work/$case"
    } &
    [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n
done
wait
for case in $CASES; do cat "$work/$case"; done >"$work/all"
if [ "${1:-}" = --write ]; then
    { printf 'case\tinstructions per frame\n' && cat "$work/all"; } >"$KEPT"
    cat "$KEPT"
    exit 0
fi
# The compiler is pinned, but the C library is not. Its memcpy may differ by a few instructions.
awk -F'\t' -v more="$MORE" 'NR == FNR { if (FNR > 1) kept[$1] = $2; next } {
    change = kept[$1] > 0 ? 100 * ($2 / kept[$1] - 1) : 0
    ok = ($1 in kept) && change <= more
    printf "%s instructions per frame, %s: %.1f, kept %.1f (%+.1f %%)\n",
        ok ? "PASS" : "FAIL", $1, $2, kept[$1], change
    bad += !ok
} END { exit bad > 0 }' "$KEPT" "$work/all"
