#!/usr/bin/env bash
# Runs the lanes of `make check` and `make test` one after the other. A lane that fails does not
# stop the next lane. A summary at the end has the results of all lanes, and what failed.
#
#   checks.sh check      format, lints, documentation, licences, house rules: no root
#   checks.sh test       the lanes of check, tests, and the switch with real guests and drivers
#   checks.sh LANE...    only these
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO" || exit 1

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
summary=() failed=() tests=0 skipped=0 ignored=0
ALLOWED=${SKIPS_ALLOWED:-scripts/skips-allowed.txt}

# plain COMMAND: runs it with the compiler as it is.
plain() { env -u RUSTC_WORKSPACE_WRAPPER "$@"; }
lane_fmt() { cargo fmt --all --check; }
lane_clippy() { cargo clippy "${WORKSPACE[@]}" --all-targets -- -D warnings; }
# Lints and documentation of `test`: the warnings of lane `build`, whose compiler is compiler.sh.
# Cargo also prints the warnings of what it did not compile again.
lane_lints() {
    [ -s "$work/build.log" ] || { say "error: lane lints reads what lane build said before"; return 1; }
    ! grep -A12 '^warning' "$work/build.log"
}
# `--examples` lets the crates of others have the features that lane `clippy` checked them with, those
# of the tests among them. Otherwise, a tenth of them is checked again. Programs that have the name of
# their library are left out, as they are without these options.
lane_doc() {
    RUSTDOCFLAGS="-D warnings" plain cargo doc "${WORKSPACE[@]}" --lib --bin penstock --bin penstock-tidy \
        --examples --no-deps --document-private-items
}
# Runs the program that lane `build` built. `cargo run` would build it again, with other features of
# the crates of others.
lane_tidy() {
    local program=${CARGO_TARGET_DIR:-target}/debug/penstock-tidy
    if [ "$goal" = test ] && [ -x "$program" ]; then
        "$program"
    else
        cargo run --locked -q -p penstock-tidy
    fi
}
lane_build() { cargo build "${WORKSPACE[@]}" --lib --bins --tests; }
# Every run has the same cases. PROPTEST_RNG_SEED=N tries others. Documentation tests are left out,
# because there are none and the search for them takes a pass over each crate. Many tests wait for
# other processes most of the time, so there are more tests at once than processors.
lane_unit() {
    PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20261121} \
        RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))} \
        cargo test "${WORKSPACE[@]}" --lib --bins --tests --no-fail-fast
}
# Only the simulated figures of lane `unit`. They run with a tenth of their length, and twice with a
# part of that.
lane_figures() { cargo test "${WORKSPACE[@]}" --test all short_figures; }
# Runs the modules without files and rings in an interpreter that detects undefined behaviour.
lane_miri() {
    if ! cargo +nightly miri --version >/dev/null 2>&1; then
        say "SKIP Miri: no nightly toolchain with miri (rustup component add --toolchain nightly miri rust-src)"
        return
    fi
    # shellcheck disable=SC2086 # the variable is a list
    MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri" \
        plain cargo +nightly miri test --locked -p penstock-dataplane --lib -- ${MIRI_TESTS:-$miri_tests}
}
# \`mem::\` is also the end of \`umem::\`, whose tests map a file.
miri_tests="a_tag_comes_off mem:: offload:: headers::key headers::parse snapshot::binding --skip umem::"
# Runs the fuzz targets with coverage guidance, which \`unit\` does not.
lane_fuzz() { plain "$REPO/scripts/fuzz.sh"; }
lane_units() { "$REPO/scripts/test-units.sh"; }
lane_smoke() { as_own_user "$REPO/scripts/smoke.sh"; }
# As root, these lanes run the switch in a container under its unit. If no container can be made, or
# with PENSTOCK_RUN_AS, the switch runs only as that user with the capabilities of its unit. With
# PENSTOCK_RUN_AS= (empty) it runs as root.
under_unit() {
    local status=77
    if [ "$(id -u)" = 0 ] && [ -z "${PENSTOCK_RUN_AS+set}" ]; then
        "$REPO/scripts/under-unit.sh" "$1"
        status=$?
    fi
    if [ "$status" = 77 ]; then as_own_user "$REPO/scripts/$1"; else return "$status"; fi
}
as_own_user() {
    if [ "$(id -u)" = 0 ]; then
        PENSTOCK_RUN_AS=${PENSTOCK_RUN_AS-nobody} "$@"
    else
        "$@"
    fi
}
lane_guests() { under_unit test-guests.sh; }
lane_migration() { under_unit test-migration.sh; }
# The short form; `make nightly` runs all of it.
lane_libvirt() { as_own_user "$REPO/scripts/test-libvirt.sh" --smoke; }
# Each combination runs twice this long: a second in every test run, ten by hand. Six of the 32
# combinations have every pair of settings. TESTPMD_CELLS= (empty) runs all, as `make nightly` does.
lane_testpmd() {
    as_own_user "$REPO/scripts/test-testpmd.sh" "${TESTPMD_SECONDS:-1}" "${TESTPMD_CELLS-pairs}"
}
lane_calibration() { "$REPO/scripts/test-calibration.sh"; }
# Two and a half minutes, so only by hand; `make nightly` runs it with the other ignored tests.
lane_contracts() {
    cargo test "${WORKSPACE[@]}" --test all -- --ignored tutorial_contracts
}
# The short form; `make nightly` runs all of it.
lane_scx() { "$REPO/scripts/test-scx.sh" --smoke; }
lane_instructions() { "$REPO/scripts/instructions.sh"; }
# Also in Debian 12 and 13: scripts/test-packages.sh, which `make nightly` runs.
lane_packages() { "$REPO/scripts/test-packages.sh" --smoke; }
lane_formats() { "$REPO/scripts/formats.sh"; }
lane_deny() {
    if ! cargo deny --version >/dev/null 2>&1; then
        if [ "$goal" = test ]; then
            say "SKIP licences and sources: cargo-deny is not installed (\`make check\` does it)"
            return
        fi
        say "installing cargo-deny for the licence check; takes some minutes, once"
        cargo install --locked cargo-deny || return
    fi
    cargo deny --locked check --hide-inclusion-graph bans licenses sources || return
    # The list of known vulnerabilities is on the network, so it is only fetched on request.
    if [ -n "${ADVISORIES:-}" ]; then
        if ! cargo deny --locked fetch db; then
            say "SKIP advisories: their database cannot be fetched (github.com/RustSec/advisory-db)"
            return
        fi
        cargo deny --locked check --disable-fetch advisories
    else
        say "SKIP advisories: they are fetched from the network (ADVISORIES=1 does)"
    fi
}

# The patterns of the list of allowed skips, without their reasons.
allowed_skips() { sed -n 's/^\([^#].*[^ ]\)  *=> .*/\1/p' "$ALLOWED"; }
# skips_of LANE: the skips of a lane, each once. Its Rust tests append to a file, since libtest
# hides the output of a passing test. Its scripts print lines.
skips_of() {
    { cat "$work/$1.skips" 2>/dev/null && grep '^SKIP ' "$work/$1.log"; } | sort | uniq
}
# forbidden_skips LANE: the skips that the list does not allow. True if there are any.
forbidden_skips() { allowed_skips | grep -vEf - <(skips_of "$1"); }

# listed "N WHAT"...: the arguments with an N other than 0, separated by commas.
listed() { printf '%s\n' "$@" | grep -v '^0 ' | paste -sd, | sed 's/,/, /g'; }

# used_between FILE: the processor seconds of ended children between two outputs of `times` in FILE.
used_between() {
    awk '{ split($1, u, /[ms]/); split($2, s, /[ms]/); n = 60 * (u[1] + s[1]) + u[2] + s[2] }
        NR == 2 { before = n } NR == 4 { printf "%d", n - before }' "$1"
}

# run_lane NAME: runs lane_NAME, and keeps its output, its status, its seconds and those of the
# processors. In CI, a skip that is not allowed fails the lane.
run_lane() {
    local start=$SECONDS status
    times >"$work/$1.times"
    : >"$work/$1.skips"
    PENSTOCK_SKIPS=$work/$1.skips "lane_$1" </dev/null 2>&1 | tee "$work/$1.log"
    status=${PIPESTATUS[0]}
    cat "$work/$1.skips"
    if [ "${CI:-}" = true ] && forbidden_skips "$1" >"$work/$1.forbidden"; then
        status=1
        say "error: skips that $ALLOWED does not allow:"
        cat "$work/$1.forbidden"
    fi
    times >>"$work/$1.times"
    echo "$status $((SECONDS - start)) $(used_between "$work/$1.times")" >"$work/$1.result"
}

# count_lane NAME: adds the counts of a lane that has ended.
count_lane() {
    local status took used count skips left pass
    # A lane that was killed has no result.
    read -r status took used < <(cat "$work/$1.result" 2>/dev/null || echo 1 0 0)
    count=$(awk '/^test result:/ { n += $4 + $6 } /^(PASS|FAIL) / { n++ } END { print n + 0 }' \
        "$work/$1.log")
    skips=$(skips_of "$1" | wc -l)
    left=$(awk '/^test result:/ { n += $8 } END { print n + 0 }' "$work/$1.log")
    tests=$((tests + count)) skipped=$((skipped + skips)) ignored=$((ignored + left))
    if [ "$status" = 0 ]; then
        pass=ok
    else
        pass=FAILED FAILED=$((FAILED + 1))
        failed+=("$work/$1.log")
    fi
    summary+=("$(printf '%-12s %-6s %4d s, %4d s of processors  %s' "$1" "$pass" "$took" "$used" \
        "$(listed "$count tests" "$skips skipped" "$left ignored")")")
}

# lane NAME WHAT: runs a lane.
lane() {
    step "$1: $2"
    run_lane "$1"
    count_lane "$1"
}

# beside LOG PATTERN NAME...: runs lanes in the background, one after the other, once a line of LOG
# matches PATTERN. They get only time that no other program wants. `join` prints their output.
beside() {
    local log=$1 pattern=$2
    shift 2
    (
        chrt --idle --pid 0 "$BASHPID" 2>/dev/null || renice -n 19 "$BASHPID" >/dev/null
        : >>"$log"
        grep -qm1 "$pattern" < <(tail -n +1 -f --pid=$$ "$log")
        for name; do run_lane "$name" >"$work/$name.out"; done
    ) &
}
# join NAME WHAT: prints what a lane in the background printed.
join() {
    step "$1: $2"
    cat "$work/$1.out"
    count_lane "$1"
}

check_lanes() {
    lane fmt "format of the code"
    lane clippy "lints, warnings are errors"
    lane doc "documentation, warnings are errors"
    lane tidy "house rules"
    lane deny "licences, sources, unwanted crates"
}

# The compiler has both processors until all programs are built. The lanes in the background use what
# the tests leave. None of them measures time: the guest of `scx` has a clock of its instructions.
test_lanes() {
    local log=$work/unit.log built='^ *Running '
    if [ "$(id -u)" != 0 ]; then
        say "SKIP what needs root: namespaces, TAP (run as root for all)" | tee "$work/root.log"
        skipped=1
    fi
    lane fmt "format of the code"
    lane build "all programs and tests"
    lane lints "lints and documentation, warnings of lane build are errors"
    lane tidy "house rules"
    lane deny "licences, sources, unwanted crates"
    beside "$log" "$built" scx formats instructions packages
    local guest=$!
    lane unit "unit, property, simulation and integration tests"
    lane units "service units: known keys, exposure, the switch under its unit as its own user"
    lane smoke "the release program, if it is built: start, traffic, reload, stop"
    lane guests "Linux guests and endpoints on a running switch"
    lane migration "a Linux guest moves between two ports while traffic runs"
    lane libvirt "two domains of libvirt, and kill -9 of the switch and of QEMU"
    lane testpmd "DPDK's virtio driver on a running switch"
    wait "$guest"
    join formats "schemas by ajv, metrics and alert rules by promtool"
    join instructions "instructions of the data path per frame, against those kept"
    join packages "Debian packages by lintian, their files, units and completion scripts"
    join scx "the double run queue as the scheduler of a guest's kernel, beside the fair class"
}

goal=${1:-check}
# All tests have the same compiler. With another, cargo would compile the workspace again.
[ "$goal" = check ] || export RUSTC_WORKSPACE_WRAPPER=$REPO/scripts/compiler.sh
case $goal in
check) check_lanes ;;
test) test_lanes ;;
*) for name in "$@"; do lane "$name" "as asked for"; done ;;
esac

step summary
printf '%s\n' "${summary[@]}"
grep -HE '^(FAIL |test .* FAILED$|error)' "${failed[@]}" /dev/null | sed "s|^$work/||"
sort -u "$work"/*.log "$work"/*.skips | grep '^SKIP '
say "total: $tests tests, $FAILED lanes failed, $skipped skipped, $ignored ignored, $SECONDS s"
[ "$FAILED" = 0 ]
