#!/usr/bin/env bash
# Tests the double run queue as a kernel's scheduler (crates/vcpu-scx), in a guest with sched_ext in
# its kernel. The test covers deadlines beside the fair class, shares by weight, and a thread that
# moves to another processor. The kernel must continue with the fair class when the scheduler is
# unloaded, is killed or stalls. Prints PASS, FAIL and SKIP lines.
# Needs no root, but clang and libelf for the build, and a kernel that `scx-kernel.sh` finds or
# fetches.
#
# The guest counts instructions as time (QEMU's -icount: one instruction is 4 ns), so its
# measurements do not depend on the load of this machine. Its processors run in turn, so a guest
# with one processor judges times. A second guest with two processors only shows the shares of
# threads that move. Both run at the same time, and each takes one processor of this machine.
#
#   test-scx.sh            all of it, in some two minutes
#   test-scx.sh --smoke    only a deadline beside the fair class, with one processor
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Seconds of processor time that a guest may use. In `make test` the guests only get time that no
# other program wants, so time on the wall says nothing about them.
LIMIT=${SCX_SECONDS:-400}
SMOKE=
[ "${1:-}" != --smoke ] || SMOKE=1
# Seconds of the guest's time in a round.
ROUND=${SCX_ROUND:-3}

cleanup() {
    trap '' INT TERM HUP
    tidy_up
    [ "$FAILED" = 0 ] || tail -n 60 "$WORK"/console-*.log 2>/dev/null
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

built() { echo "${CARGO_TARGET_DIR:-$REPO/target}/debug/$1"; }
build() { cargo build "${WORKSPACE[@]}" --lib --bins --tests --example contend; }

# Packs the guest's file system: busybox, our two programs and their libraries.
pack() {
    local root=$WORK/root program lib applet busybox
    busybox=$(command -v busybox)
    mkdir -p "$root"/{bin,dev,proc,sys,tmp}
    cp "$busybox" "$(built penstock-vcpu-scx)" "$(built examples/contend)" "$root/bin/"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
    done
    for program in "$root"/bin/{busybox,penstock-vcpu-scx,contend}; do
        ldd "$program" 2>/dev/null | grep -o '/[^ ]*\.so[^ ]*' | sort -u | while read -r lib; do
            mkdir -p "$root$(dirname "$lib")"
            cp -L "$lib" "$root$lib"
        done
    done
    cp "$REPO/scripts/scx-guest-init.sh" "$root/init"
    echo "$ROUND" >"$root/round"
    [ -z "$SMOKE" ] || : >"$root/smoke"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$WORK/guest.cpio.gz"
}

# boot KERNEL PROCESSORS: starts a guest. GUESTS has its id.
declare -A GUESTS
boot() {
    local console=$WORK/console-$2.log
    : >"$console"
    spawn "$WORK/qemu-$2.log" qemu-system-x86_64 -accel tcg,thread=single \
        -icount shift=2,sleep=off \
        -cpu max -smp "$2" -m 256 -nodefaults -no-user-config -display none -monitor none \
        -no-reboot -chardev "file,id=console,path=$console" -serial chardev:console \
        -kernel "$1" -initrd "$WORK/guest.cpio.gz" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable \
            nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
    GUESTS[$2]=$SPAWNED
}
# ended PROCESSORS: waits until this guest ended. The checks that follow read its console.
ended() {
    CONSOLE=$WORK/console-$1.log
    wait_until 1000 over "${GUESTS[$1]}"
    gone "${GUESTS[$1]}"
}
# over PID: true if the guest ended or used the processor time it has.
over() { gone "$1" || [ "$(used "$1")" -ge "$LIMIT" ]; }
# used PID: the seconds of processor time of a process.
used() { awk -v ticks="$(getconf CLK_TCK)" '{ print int(($14 + $15) / ticks) }' "/proc/$1/stat"; }

# said NAME: what the guest printed under this name.
said() { tr -d '\r' <"$CONSOLE" | sed -n "s/^[^A-Za-z]*= $1 //p" | tail -1; }
# value NAME KEY [N]: a number in that text, N words after KEY.
value() {
    said "$1" | awk -v key="$2" -v n="${3:-1}" \
        '{ for (i = 1; i <= NF; i++) if ($i == key) { print $(i + n); exit } }'
}
# holds EXPRESSION: evaluates an awk expression. A missing number makes it false.
holds() { awk "BEGIN { exit !($1) }" 2>/dev/null; }
ends_with() { [[ $(said "$1") == *"$2" ]]; }
says() { [[ $(said "$1") == *"$2"* ]]; }
# share NAME N BETWEEN AND: checks the share of the Nth thread in percent. The first thread has the
# deadline.
share() { holds "$(value "$1" shares_pct "$2") >= $3 && $(value "$1" shares_pct "$2") <= $4"; }
# No deadline is missed in the round that `hold` measured. From the first moment on, 999 waits of
# 1,000 are at most 3.6 ms.
none_missed() {
    holds "$(said "$1-own" | awk '{ print $5 }') > 500 && $(value "$1" missed) == 0 &&
        $(said "$1-own" | awk '{ print $10 }') <= 3.6"
}
# Returns the share, in percent, of a thread that moved, in the time of that thread and one that
# began there.
moved_share() {
    said spent | awk '{ m = $3 - $1; n = $4 - $2; if (m + n > 0) print 100 * m / (m + n) }'
}
# Whether the threads are as in the fair class: away for long, and all alike.
is_fair() { holds "$(value "$1" away_p99_ms) > 6" && share "$1" 1 15.7 17.7; }

# held NAME: checks that no thread with a deadline missed it while NAME was measured.
held() {
    check "$1: by the scheduler's own time stamps none is missed in a round, and at most 0.1 % in all" \
        none_missed "$1"
}
show() {
    local name
    for name; do say "     $name: $(said "$name")"; done
}

judge_deadline() {
    local n
    show fair deadline deadline-own fair-again
    check "the guest did all of it" grep -q '^= done' "$CONSOLE"
    check "a deadline that does not fit is refused, with one that would" says refused "deadline of"
    check "the fair class keeps a busy thread waiting" is_fair fair
    check "loaded: the kernel's scheduler is ours" ends_with loaded "state enabled"
    # The limit is D + one slice, and 0.1 ms for the switches of the guest's kernel.
    check "D = 3 ms is held: never away for longer than 3.6 ms" \
        holds "$(value deadline away_max_ms) > 0 && $(value deadline away_max_ms) <= 3.6"
    check "the fair class is away three times as long at the 99th percentile" \
        holds "$(value fair away_p99_ms) >= 3 * $(value deadline away_p99_ms)"
    held deadline
    for n in 1 2 3 4 5 6; do
        check "equal weights: thread $n has a sixth, within 1 point" share deadline "$n" 15.67 17.67
    done
    check "unloaded: the fair class is back" ends_with unloaded "status 0 state disabled"
    check "and schedules as before" is_fair fair-again
}

judge_weights_and_ends() {
    show weights weights-own after-kill light-later after-stall
    say "     nice 19 beside weights of 100: $(said light-ran)"
    held weights
    check "loaded again" ends_with loaded-again "state enabled"
    check "weight 3 of 9 gives 33.3 %, within 1 point" share weights 2 32.33 34.33
    check "weight 2 of 9, with a deadline, gives 22.2 %, within 1 point" share weights 1 21.22 23.22
    check "weight 1 of 9 gives 11.1 %, within 1 point" share weights 3 10.11 12.11
    check "and D = 3 ms is held" holds "$(value weights away_max_ms) <= 3.6"
    check "killed (-9): the fair class is back" ends_with killed "state disabled"
    check "and schedules as before" is_fair after-kill
    check "beside heavy threads one of nice 19 runs, and does not wait until the kernel objects" \
        holds "$(said light-ran | cut -d ' ' -f 1) > 0"
    check "and it is still ours" ends_with light-ran "state enabled"
    check "and D = 3 ms is held beside it" holds "$(value light-later away_max_ms) <= 3.6"
    check "loaded a third time" ends_with stalling "running"
    check "stalled: the kernel takes it out" ends_with stalled "status 1 state disabled"
    check "and says why" says reason "stall"
    check "and all run on" is_fair after-stall
}

judge_move() {
    say "     ns of the one that moved and of the other, before and after: $(said spent)"
    check "it did all of it" grep -q '^= done' "$CONSOLE"
    check "loaded: the kernel's scheduler is ours" ends_with loaded "state enabled"
    check "a processor with nothing to do takes a thread from another one" says moved from
    check "beside one that begins there it has half, within 5 points" \
        holds "$(moved_share) >= 45 && $(moved_share) <= 55"
    check "unloaded: the fair class is back" ends_with unloaded "status 0 state disabled"
}

if [ "$(uname -m)" != x86_64 ]; then
    skip "sched_ext: the guest's kernel is for x86_64"
elif ! have qemu-system-x86_64 || ! have cpio || ! have busybox; then
    skip "sched_ext: qemu-system-x86_64, busybox or cpio is not installed (\`make setup\`)"
elif ! have clang || [ ! -e /usr/include/libelf.h ] || [ ! -e /usr/include/zlib.h ]; then
    skip "sched_ext: clang, libelf-dev or zlib1g-dev is not installed (\`make setup\`)"
elif ! kernel=$("$REPO/scripts/scx-kernel.sh"); then
    skip "sched_ext: no kernel that has it, and none could be fetched"
else
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-test-scx.XXXXXX")
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    if ! (cd "$REPO" && build); then
        fail "crates/vcpu-scx does not build with the feature bpf"
    else
        pack
        say "     $(basename "$kernel") under TCG, time by instructions"
        boot "$kernel" 1
        [ -n "$SMOKE" ] || boot "$kernel" 2
        check "the guest ends within $LIMIT s of processor time" ended 1
        judge_deadline
        if [ -z "$SMOKE" ]; then
            judge_weights_and_ends
            check "one with two processors ends within $LIMIT s of processor time" ended 2
            judge_move
        fi
    fi
fi
verdict test-scx
