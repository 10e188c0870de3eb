#!/usr/bin/env bash
# Runs what `make test` leaves out: the release program, full lengths, other seeds, and parts that
# take long or need the network. Takes hours. The result of each part that ended is stored by
# commit, so a second call continues after the last result. Prints one page and writes it to
# docs/internals/nightly.md.
#
#   nightly.sh             all parts that have not ended for this commit
#   nightly.sh PART...     only these, again
#   nightly.sh --list      the parts
#   nightly.sh --page      the page of the parts that have ended, without a run
#
#   NIGHTLY_SEEDS=1-20     seeds of the figures
#   FUZZ_SECONDS=600       for each fuzz target
#   PENSTOCK_NIGHTLY=DIR   where results and logs are kept (target/nightly)
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO" || exit 1

SEEDS=${NIGHTLY_SEEDS:-1-20}
PAGE=${NIGHTLY_PAGE:-docs/internals/nightly.md}
export PENSTOCK_BIN=${PENSTOCK_BIN:-${CARGO_TARGET_DIR:-$REPO/target}/release/penstock}
export CARGO_TERM_COLOR=never
# Tests repeat attacks and faults as often as they can (crates/testing).
export PENSTOCK_THOROUGH=1
commit=$(git rev-parse --short=12 HEAD)
# A change of the page is no change of the program.
[ -z "$(git status --porcelain -- . ":!docs/internals/nightly.md")" ] || commit+=-changed
KEPT=${PENSTOCK_NIGHTLY:-${CARGO_TARGET_DIR:-$REPO/target}/nightly}/$commit

# Name and description of each part. Each has a function part_NAME. Every figure is a part of its
# own.
PARTS="build|builds the release program
smoke|starts the release program, connects two endpoints, runs iperf3, reloads and stops
process|runs the tests that start the release program as a process
guests|runs Linux guests and endpoints with the release program
migration|moves a guest between two ports of the release program
restart|restarts the release program 20 times with 16 ports under load
capture|compares captures with tcpdump in a guest, and measures what they cost other ports
libvirt|runs guests of libvirt through the life of a domain with the release program
testpmd|runs all 32 combinations of settings of DPDK's virtio driver, 10 s each
calibration|measures a cost model with the release program, and prices contracts by it
packages|installs, updates and purges the package in Debian 12 and 13
image|makes the container image and runs the switch in it
scx|runs the sched_ext scheduler in a guest's kernel, in rounds of 5 s
properties|runs all tests, with a random seed for property tests
ignored|runs tests that are marked as too long or as measurements
instructions|counts instructions of the data path per frame, in the release build
miri|searches for undefined behaviour in code that needs no files, with Miri
fuzz|runs all fuzz targets with libFuzzer
faults|kills a leader, silences hosts and reboots a switch in a live fabric under traffic
chaos|causes faults at random in a live fabric for ten minutes under traffic
spare|measures spare bandwidth of tenants without queues in a live fabric
lints|lints and documents also benches and examples
advisories|checks licences, sources and known vulnerabilities of dependencies"

lab() { "$PENSTOCK_BIN-lab" "$@"; }
simulated() { lab list 2>/dev/null | awk '$2 ~ /^sim/ && $1 != "c2qos-overhead" { print $1 }'; }
all_parts() {
    say "$PARTS"
    simulated | sed "s/.*/figure-&|simulates the figure \`&\` at full length/"
}

part_build() {
    [ "$PENSTOCK_BIN" != "${CARGO_TARGET_DIR:-$REPO/target}/release/penstock" ] ||
        cargo build --locked --release -p penstock -p penstock-lab
}
part_smoke() { scripts/smoke.sh; }
part_process() { cargo test --locked --release -p penstock --tests --no-fail-fast; }
part_guests() { scripts/test-guests.sh; }
part_migration() { scripts/test-migration.sh; }
part_capture() { scripts/test-capture.sh; }
part_restart() { scripts/under-unit.sh restart-acts.sh; }
part_libvirt() { scripts/test-libvirt.sh; }
part_testpmd() { scripts/test-testpmd.sh 10; }
part_calibration() { scripts/test-calibration.sh; }
part_packages() { scripts/test-packages.sh; }
part_image() {
    PENSTOCK_PREBUILT=$(dirname "$PENSTOCK_BIN") scripts/deb.sh && scripts/image.sh && scripts/test-image.sh
}
part_scx() { SCX_SECONDS=600 SCX_ROUND=5 scripts/test-scx.sh; }
part_properties() {
    local seed=${PROPTEST_RNG_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
    say "PROPTEST_RNG_SEED=$seed"
    PROPTEST_RNG_SEED=$seed cargo test --locked --workspace --lib --bins --tests --no-fail-fast
}
# Some of these tests are measurements, so only one test runs at a time. Leaves out functions that
# other tests call in a process of their own, because they are no tests.
part_ignored() {
    cargo test --locked --workspace --lib --bins --tests --no-fail-fast -- --ignored \
        --test-threads=1 --skip role_of_ --skip a_fault_outside_of_guests_memory
}
part_instructions() { scripts/instructions.sh --release; }
part_miri() { scripts/checks.sh miri; }
part_fuzz() { FUZZ_SECONDS=${FUZZ_SECONDS:-600} scripts/fuzz.sh; }
live() { lab run "$1" --mode live --seed 1 --missed docs/internals/figures.md; }
part_faults() { live qshare-faults; }
part_chaos() { live qshare-chaos; }
part_spare() { live qshare-spare; }
part_lints() { scripts/checks.sh clippy doc; }
part_advisories() { ADVISORIES=1 scripts/checks.sh deny; }
part_figure() {
    say "seeds $SEEDS"
    lab run "$1" --seeds "$SEEDS" --missed docs/internals/figures.md
}

# run_part NAME: runs a part with a log, and writes one line about its end.
run_part() {
    local name=$1 start=$SECONDS status=0 result=ok numbers
    step "$name"
    rm -f "$KEPT/$name.result" "$KEPT/$name.skips"
    case $name in
    figure-*) set -- part_figure "${name#figure-}" ;;
    *) set -- "part_$name" ;;
    esac
    PENSTOCK_SKIPS=$KEPT/$name.skips "$@" </dev/null 2>&1 | tee "$KEPT/$name.log"
    status=${PIPESTATUS[0]}
    numbers=$(numbers "$name")
    [[ $numbers != *skipped* || $numbers == *tests,* ]] || result=skipped
    [ "$status" = 0 ] || result=FAILED
    # The result is complete or absent. A call that is interrupted leaves no result.
    printf '%s|%s|%s|%s\n' "$result" "$((SECONDS - start))" "$(date -u +%F)" "$numbers" >"$KEPT/$name.part"
    mv "$KEPT/$name.part" "$KEPT/$name.result"
    say "$name: $result, $((SECONDS - start)) s"
}
# Returns the counts in a part's log: tests, skips, executions, and the seeds.
numbers() {
    local log=$KEPT/$1.log skips
    skips=$(cat "$log" "$KEPT/$1.skips" 2>/dev/null | grep '^SKIP ' | sort -u)
    {
        awk '/^test result:/ { n += $4 + $6; f += $6 } /^PASS / { n++ } /^FAIL / { n++; f++ }
            END { if (n) print n " tests, " f + 0 " failed" }' "$log"
        [ -z "$skips" ] || say "$(wc -l <<<"$skips") skipped"
        grep -hoE '^(PROPTEST_RNG_SEED=|seeds )[0-9-]+$' "$log"
        grep -hE '^[a-z_]+: [0-9]+ s, [0-9]+ executions' "$log" |
            awk '{ n += $4 } END { if (n) print n " executions of " NR " targets" }'
    } | paste -sd, | sed 's/,/, /g; s/,  /, /g'
}

print_page() {
    local name what result took date numbers
    cat <<END
# The last nightly run

\`make nightly\` wrote this page on $(date -u +%F) for commit \`$commit\`, on a machine with
$(nproc) processors and Linux $(uname -r). \`make test\` runs all checks that \`make nightly\`
omits. The log of a skipped test gives the reason of the skip.

| Part | What the part does | Result | Duration | Numbers | Date |
|---|---|---|---|---|---|
END
    while IFS='|' read -r name what; do
        result="not run" took="" date="" numbers=""
        [ ! -e "$KEPT/$name.result" ] ||
            IFS='|' read -r result took date numbers <"$KEPT/$name.result"
        printf '| `%s` | %s | %s | %s | %s | %s |\n' "$name" "$what" "$result" "${took:+$took s}" \
            "$numbers" "$date"
    done <<<"$(all_parts)"
    if grep -qh '^FAILED' "$KEPT"/*.result 2>/dev/null; then
        printf '\nThe following parts failed:\n\n'
        grep -l '^FAILED' "$KEPT"/*.result | while read -r name; do
            name=$(basename "$name" .result)
            printf -- '- `%s`: `%s`\n' "$name" "$(grep -hE '^(FAIL |test .* FAILED|error)|\[ERROR\]' \
                "$KEPT/$name.log" | head -1 | tr -d '`')"
        done
    fi
}

mkdir -p "$KEPT"
case ${1:-} in
--list) all_parts | tr '|' '\t' | expand -t 24 && exit ;;
--page) print_page && exit ;;
"")
    # The build comes first, because the built program names the figures.
    [ -e "$KEPT/build.result" ] || run_part build
    for name in $(all_parts | cut -d'|' -f1); do
        [ -e "$KEPT/$name.result" ] || run_part "$name"
    done
    ;;
*)
    for name in "$@"; do
        grep -qx "$name" <<<"$(all_parts | cut -d'|' -f1)" || die "no part $name: nightly.sh --list names them"
    done
    for name in "$@"; do run_part "$name"; done
    ;;
esac
print_page | tee "$PAGE"
! grep -qh '^FAILED' "$KEPT"/*.result
