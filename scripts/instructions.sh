#!/usr/bin/env bash
# Counts the data path's instructions per frame with valgrind. Unlike times, these counts hardly
# differ between runs and machines, so a regression shows on a noisy machine.
#
#   instructions.sh             compares with docs/internals/instructions.tsv: 5 % more is a failure
#   instructions.sh --release   counts the release build, which takes minutes to compile
#   instructions.sh [--release] --write
#                               writes the counts to that file; commit it with their cause
#
# The tests' build has checks of overflows and assertions, so it executes more instructions. Both
# builds have a column.
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
build=dev write=
for option; do
    case $option in
    --release) build=release ;;
    --write) write=1 ;;
    *) die "no option $option: --release and --write are known" ;;
    esac
done
bench() { cargo build "${WORKSPACE[@]}" --profile "$build" --bench count --message-format=json; }
program=$(bench | grep -o '"executable":"[^"]*/count-[^"]*"' | tail -1 | cut -d'"' -f4)
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
if [ -n "$write" ]; then
    awk -F'\t' -v build="$build" 'BEGIN { OFS = FS; print "case", "dev", "release" }
        NR == FNR { kept[$1, "dev"] = $2; kept[$1, "release"] = $3; next }
        { kept[$1, build] = $2; print $1, kept[$1, "dev"], kept[$1, "release"] }' \
        "$KEPT" "$work/all" >"$work/kept"
    cp "$work/kept" "$KEPT"
    cat "$KEPT"
    exit 0
fi
# The compiler is pinned, but the C library is not. Its memcpy may differ by a few instructions.
awk -F'\t' -v more="$MORE" -v build="$build" '
    NR == FNR { kept[$1] = build == "dev" ? $2 : $3; next }
    {
        change = kept[$1] > 0 ? 100 * ($2 / kept[$1] - 1) : 0
        ok = kept[$1] > 0 && change <= more
        printf "%s instructions per frame (%s build), %s: %.1f, kept %.1f (%+.1f %%)\n",
            ok ? "PASS" : "FAIL", build, $1, $2, kept[$1], change
        bad += !ok
    }
    END { exit bad > 0 }' "$KEPT" "$work/all"
