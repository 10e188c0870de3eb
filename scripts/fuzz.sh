#!/usr/bin/env bash
# Fuzz targets under libFuzzer: coverage-guided, with the address sanitizer. Needs a nightly
# toolchain, cargo-fuzz and a C++ compiler; `cargo test -p penstock-fuzz` needs none of them.
#
#   fuzz.sh                   every target, FUZZ_SECONDS (60) each
#   fuzz.sh TARGET...         only these
#   fuzz.sh --keep TARGET...  as well puts what it found into fuzz/corpus, minimised
#
# Each target ends with a line for docs/fuzz.md: seconds, CPU seconds, executions, inputs kept,
# edges seen. An input that fails is left in target/fuzz/artifacts/TARGET; it becomes a test.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO/fuzz"

keep=
if [ "${1:-}" = --keep ]; then keep=1 && shift; fi
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(split_ring packed_ring headers rules config api \
    vhost_session inflight dirty_log xdp_rings agents gnmi sonic saved)
seconds=${FUZZ_SECONDS:-60}
for need in "cargo +nightly fuzz --version" "c++ --version"; do
    $need >/dev/null 2>&1 || { say "SKIP libFuzzer: \`$need\` does not run here"; exit 0; }
done
# Sanitized code apart from the rest, so that neither build throws the other's away.
target_dir=${CARGO_TARGET_DIR:-$REPO/target}/fuzz
mkdir -p "$target_dir"

for target in "${targets[@]}"; do
    step "fuzz $target for $seconds s"
    work=$target_dir/corpus/$target artifacts=$target_dir/artifacts/$target
    mkdir -p "$work" "$artifacts"
    # The release profile without its slow link: its optimisation, with assertions.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_TARGET_DIR=$target_dir cargo +nightly fuzz build --features libfuzzer "$target"
    program=$target_dir/x86_64-unknown-linux-gnu/release/$target
    log=$target_dir/$target.log
    # The machine's own leak checker cannot run in every container; there is no leak to find in
    # targets that keep nothing.
    status=0
    start=$SECONDS
    ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 "$program" "$work" "corpus/$target" \
        -artifact_prefix="$artifacts/" -max_total_time="$seconds" -timeout=120 -rss_limit_mb=2048 \
        -max_len=4096 -print_final_stats=1 >"$log" 2>&1 || status=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    say "$target: $((SECONDS - start)) s, ${runs:-?} executions, ${edges:-?} edges," \
        "$(find "$work" -type f | wc -l) inputs, exit status $status"
    if [ "$status" != 0 ]; then
        tail -40 "$log"
        warn "$target: fails; the input is in $artifacts"
        exit 1
    fi
    if [ -n "$keep" ]; then
        # What adds coverage to the kept ones, the smallest first, no more than fits the eye.
        small=$(mktemp -d)
        ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 "$program" -merge=1 "$small" "corpus/$target" \
            "$work" >/dev/null 2>&1
        find "$small" -type f -size -2k -printf '%s %p\n' | sort -n | awk '{print $2}' |
            head -"${FUZZ_KEEP:-120}" | xargs -r cp -t "corpus/$target"
        rm -rf "$small"
        say "$target: $(find "corpus/$target" -type f | wc -l) inputs kept"
    fi
done
