#!/bin/busybox sh
# shellcheck shell=dash
# Init of the guest of `test-scx.sh`. Six threads that never stop compete for one processor, under
# the fair class and under our scheduler. With two processors, a thread only moves from one to the
# other. The test reads the lines that begin with "=". The script ends by itself and powers the
# guest off.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t bpf bpf /sys/fs/bpf
exec >/dev/console 2>&1

state() { cat /sys/kernel/sched_ext/state; }
# wait_for SECONDS command...
wait_for() {
    n=$(($1 * 10))
    shift
    until "$@"; do
        n=$((n - 1))
        [ "$n" -gt 0 ] || return 1
        sleep 0.1
    done
}
rounds() { grep -c ^round /tmp/contend; }
reached() { [ "$(rounds)" -ge "$1" ]; }
# measure NAME: prints the first round that lies wholly after this call, so not the running round.
measure() {
    wait_for 60 reached $(($(rounds) + 2))
    echo "= $1 $(tail -n 1 /tmp/contend)"
}
# hold NAME: like measure, but repeats up to three times until the thread with the deadline was never
# away for longer than 3.6 ms and, by the scheduler's own report, missed no deadline meanwhile. The
# thread also sees interrupts of the guest's kernel, which QEMU delivers by this machine's time. In
# one of some dozens of rounds, such an interrupt takes a tenth of a millisecond at the wrong moment.
hold() {
    for _ in 1 2 3; do
        missed=$(own_report | awk '{ print $6 }')
        wait_for 60 reached $(($(rounds) + 2))
        held=$(tail -n 1 /tmp/contend)
        missed=$(($(own_report | awk '{ print $6 }') - missed))
        [ "$missed" = 0 ] && echo "$held" | awk '{ exit !($10 <= 3.6) }' && break
        echo "$1: once more after $held, $missed missed"
    done
    echo "= $1 $held missed $missed"
}
# The scheduler's own report on the thread with the deadline, and the same after "= NAME-own".
own_report() {
    penstock-vcpu-scx show >/tmp/show
    grep "^ *$(awk 'NR == 2 { print $1 }' /tmp/show) " /tmp/show
}
own() {
    echo "= $1-own $(own_report)"
    cat /tmp/show
}
is_state() { [ "$(state)" = "$1" ]; }
# entry NAME [LINE...]
entry() {
    printf '[[thread]]\npid = %s\nname = "%s"\ncpu = %s\n' "$threads" "$1" "$cpu"
    shift
    [ $# = 0 ] || printf '%s\n' "$@"
}
# config DEADLINE RT_WEIGHT HOG0_WEIGHT
config() {
    entry rt 'vcpu_mode = "periodic"' "deadline = \"$1\"" "vcpu_weight = $2"
    entry hog0 "vcpu_weight = $3"
    for n in 1 2 3 4; do entry hog$n; done
}
# start_ours NAME [option...]: with /tmp/config
start_ours() {
    name=$1
    shift
    # The file is emptied here, because a redirection empties it only when the child runs. Until
    # then, the line of the previous scheduler would count as the new one's.
    : >/tmp/ours
    penstock-vcpu-scx run --config /tmp/config "$@" >/tmp/ours 2>&1 &
    ours=$!
    wait_for 20 grep -qE '^(running|error)' /tmp/ours
    grep -E '^error' /tmp/ours
    echo "= $name state $(state)"
}
end_ours() {
    kill "$1" "$ours"
    wait "$ours"
    echo "= $2 status $? state $(state)"
}

has_moved() { [ "$(cut -d ' ' -f 39 "/proc/$moved/stat")" = 0 ]; }
spent() { cut -d ' ' -f 1 "/proc/$1/schedstat"; }
# A thread that may run anywhere waits among six others on the last processor. When the first
# processor has nothing to do, it takes the thread. The thread's account moves too, so beside a
# thread that begins there it has half.
move() {
    config 3ms 1 1 >/tmp/config
    start_ours loaded
    taskset $((1 << cpu)) sh -c 'while :; do :; done' &
    moved=$!
    measure before
    taskset -p 3 $moved >/dev/null
    wait_for 60 has_moved && echo "= moved from $cpu"
    taskset 1 sh -c 'while :; do :; done' &
    native=$!
    # After this pause, the process executes its own program and not the one from which it was
    # forked.
    sleep 1
    before="$(spent $moved) $(spent $native)"
    measure beside
    echo "= spent $before $(spent $moved) $(spent $native)"
    kill $moved $native
    end_ours -TERM unloaded
    echo "= done"
    poweroff -f
}

echo "= ready $(uname -r) state $(state)"
# In a guest with several processors, all other threads use the others.
cpu=$(($(nproc) - 1))
contend $cpu 5 199 "$(cat /round)" >/tmp/contend &
threads=$!
wait_for 10 grep -q ready /tmp/contend
config 1ms 1 1 >/tmp/config
echo "= refused $(penstock-vcpu-scx check --config /tmp/config 2>&1 | tail -n 1)"
[ "$cpu" = 0 ] || move
measure fair

config 3ms 1 1 >/tmp/config
start_ours loaded
hold deadline
own deadline
end_ours -TERM unloaded
measure fair-again
if [ -e /smoke ]; then
    echo "= done"
    poweroff -f
fi

config 3ms 2 3 >/tmp/config
start_ours loaded-again
hold weights
own weights
end_ours -KILL killed
measure after-kill

# A thread of nice 19 has weight 3 where these have 10,000 each. By its share alone it would have 30
# ms in ten minutes. The kernel removes a scheduler that lets a thread wait for 5 s.
{
    entry rt 'vcpu_mode = "periodic"' 'deadline = "3ms"' 'vcpu_weight = 100'
    for n in 0 1 2 3 4; do entry hog$n 'vcpu_weight = 100'; done
} >/tmp/config
start_ours loaded-heavy
sh -c 'renice -n 19 -p $$; while :; do :; done' &
light=$!
measure light
ran=$(cut -d ' ' -f 1 /proc/$light/schedstat)
hold light-later
echo "= light-ran $(($(cut -d ' ' -f 1 /proc/$light/schedstat) - ran)) ns state $(state)"
kill $light
end_ours -TERM unloaded-heavy

start_ours loaded-to-stall --stall-after 1
# Uses the scheduler's own line, because the kernel may have removed it before this shell runs
# again.
echo "= stalling $(grep -o '^running' /tmp/ours)"
wait_for 30 is_state disabled
wait "$ours"
echo "= stalled status $? state $(state)"
echo "= reason $(grep '^error' /tmp/ours)"
measure after-stall
echo "= done"
poweroff -f
