#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer, with coverage guidance and the address sanitizer. Needs a
# nightly toolchain, cargo-fuzz and a C++ compiler. `cargo test -p penstock-fuzz` needs none of
# them.
#
#   fuzz.sh                   runs every target for FUZZ_SECONDS (60)
#   fuzz.sh TARGET...         runs only these
#   fuzz.sh --keep TARGET...  also puts what it found into fuzz/corpus, minimised
#   fuzz.sh --add [TARGET...] also adds the runs to fuzz/totals.tsv and docs/internals/fuzz.md; begins with
#                             the target that has the fewest CPU seconds, leaves out those with
#                             FUZZ_GOAL (3600)
#   fuzz.sh --totals          only writes docs/internals/fuzz.md from fuzz/totals.tsv
#
# Inputs that a run finds stay in target/fuzz/corpus/TARGET, where the next run begins. An input
# that fails stays in target/fuzz/artifacts/TARGET and becomes a test.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO/fuzz"

# Each line is a run: date, target, seconds, CPU seconds, executions, edges, exit status.
totals=$REPO/fuzz/totals.tsv
all=(split_ring packed_ring headers rules config api vhost_session inflight dirty_log xdp_rings
    agents gnmi sonic saved)

cpu_seconds_of() { awk -v target="$1" '$2 == target { n += $4 } END { print int(n) }' "$totals"; }
# Writes the table of docs/internals/fuzz.md.
write_totals() {
    local doc=$REPO/docs/internals/fuzz.md new
    new=$(mktemp)
    {
        sed '/<!-- totals -->/q' "$doc"
        printf '\n| Fuzz target | Runs | Last run | Seconds | CPU seconds | Executions | Edges | Failed |\n'
        printf '|---|---|---|---|---|---|---|---|\n'
        awk -v order="${all[*]}" '
            function commas(n) {
                n = sprintf("%d", n)
                while (n ~ /[0-9][0-9][0-9][0-9]/) sub(/[0-9][0-9][0-9](,|$)/, ",&", n)
                return n
            }
            function row(name, r, l, s, c, x, e, f) {
                print "| " name " | " r (r == 1 ? " run" : " runs") " | " l " | " commas(s) " s | " \
                    commas(c) " CPU s | " commas(x) " executions | " \
                    (e == "" ? "" : commas(e) " edges") " | " f + 0 " failed |"
            }
            { runs[$2]++; last[$2] = $1; wall[$2] += $3; cpu[$2] += $4; did[$2] += $5
              edges[$2] = $6; if ($7 != 0) failed[$2]++ }
            END {
                n = split(order, targets, " ")
                for (i = 1; i <= n; i++) {
                    t = targets[i]
                    if (!runs[t]) continue
                    row("fuzz target `" t "`", runs[t], last[t], wall[t], cpu[t], did[t], edges[t], failed[t])
                    R += runs[t]; W += wall[t]; C += cpu[t]; D += did[t]; F += failed[t]
                }
                row("all targets", R, "", W, C, D, "", F)
            }' "$totals"
        printf '\n'
        sed -n '/<!-- end of totals -->/,$p' "$doc"
    } >"$new"
    cat "$new" >"$doc"
    rm "$new"
}

keep='' add=''
case ${1:-} in
--keep) keep=1 && shift ;;
--add) add=1 && shift ;;
--totals) write_totals && exit ;;
esac
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
seconds=${FUZZ_SECONDS:-60}
for need in "cargo +nightly fuzz --version" "c++ --version"; do
    $need >/dev/null 2>&1 || { say "SKIP libFuzzer: \`$need\` does not run here"; exit 0; }
done
# Sanitized code has its own directory, so that neither build discards the other's files.
target_dir=${CARGO_TARGET_DIR:-$REPO/target}/fuzz
mkdir -p "$target_dir"
if [ -n "$add" ]; then
    mapfile -t targets < <(for target in "${targets[@]}"; do
        n=$(cpu_seconds_of "$target")
        [ "$n" -ge "${FUZZ_GOAL:-3600}" ] || echo "$n $target"
    done | sort -ns | awk '{print $2}')
    [ ${#targets[@]} -gt 0 ] || { say "every target has its CPU seconds"; exit 0; }
fi

# One build serves all targets. It uses the release profile without its slow link, but with
# assertions.
one=()
[ ${#targets[@]} -ne 1 ] || one=("${targets[0]}")
CARGO_PROFILE_RELEASE_LTO=off CARGO_TARGET_DIR=$target_dir \
    cargo +nightly fuzz build --features libfuzzer "${one[@]}"
# The leak checker cannot run in every container. The targets keep nothing, so there is no leak to
# find. The switch has its own handler for SIGBUS.
export ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0
failures=0
for target in "${targets[@]}"; do
    step "fuzz $target for $seconds s"
    work=$target_dir/corpus/$target artifacts=$target_dir/artifacts/$target
    mkdir -p "$work" "$artifacts"
    program=$target_dir/x86_64-unknown-linux-gnu/release/$target
    log=$target_dir/$target.log
    status=0 start=$SECONDS
    { TIMEFORMAT='%U %S'; time "$program" "$work" "corpus/$target" \
        -artifact_prefix="$artifacts/" -max_total_time="$seconds" -timeout=120 -rss_limit_mb=2048 \
        -max_len=4096 -print_final_stats=1 >"$log" 2>&1 || status=$?; } 2>"$log.time"
    wall=$((SECONDS - start)) cpu=$(awk '{print int($1 + $2)}' "$log.time")
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    say "$target: $wall s, $cpu s of a CPU, ${runs:=0} executions, ${edges:=0} edges," \
        "$(find "$work" -type f | wc -l) inputs, exit status $status"
    if [ -n "$add" ]; then
        printf '%s\t' "$(date -u +%F)" "$target" "$wall" "$cpu" "$runs" "$edges" >>"$totals"
        printf '%s\n' "$status" >>"$totals"
        write_totals
    fi
    if [ "$status" != 0 ]; then
        tail -40 "$log"
        warn "$target: fails; the input is in $artifacts"
        failures=$((failures + 1))
    elif [ -n "$keep" ]; then
        # Keeps the inputs that add coverage to the kept ones, the smallest first, in a number that
        # people can review.
        small=$(mktemp -d)
        "$program" -merge=1 "$small" "corpus/$target" "$work" >/dev/null 2>&1
        find "$small" -type f -size -2k -printf '%s %p\n' | sort -n | awk '{print $2}' |
            head -"${FUZZ_KEEP:-120}" | xargs -r cp -t "corpus/$target"
        rm -rf "$small"
        say "$target: $(find "corpus/$target" -type f | wc -l) inputs kept"
    fi
done
[ "$failures" = 0 ]
