#!/bin/busybox sh
# shellcheck shell=dash
# What the guest of `test-scx.sh` does: six threads that never stop compete for one processor, under
# the fair class and under ours. With two processors it only has a thread move from one to the
# other. Lines that begin with "=" are what the test reads; all of it ends
# by itself, and powers the guest off.
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
# measure NAME: the first round that was wholly so, which is not the one that runs.
measure() {
    wait_for 60 reached $(($(rounds) + 2))
    echo "= $1 $(tail -n 1 /tmp/contend)"
}
# hold NAME: as measure, of the first round of three in which the one with the deadline was never away
# for longer than 3.6 ms. What the thread sees includes interrupts of the guest's kernel, which QEMU
# brings by this machine's time: one in some dozens of rounds has one of a millisecond's tenth at the
# wrong moment. What the scheduler did meanwhile is in its own report, of all rounds.
hold() {
    for _ in 1 2 3; do
        wait_for 60 reached $(($(rounds) + 2))
        held=$(tail -n 1 /tmp/contend)
        echo "$held" | awk '{ exit !($10 <= 3.6) }' && break
        echo "$1: once more after $held"
    done
    echo "= $1 $held"
}
# own NAME: the scheduler's report of it.
own() {
    penstock-vcpu-scx show >/tmp/show
    rt=$(awk 'NR == 2 { print $1 }' /tmp/show)
    echo "= $1-own $(grep "^ *$rt " /tmp/show)"
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
    # Not left to the redirection: the child does it when it gets to run, and until then the word
    # of the one before would be taken for its own.
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
# A thread that may run anywhere waits among six others on the last processor, until the first one
# has nothing to do and takes it. Its account comes along: beside one that begins there it has half.
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
    # Its own program is there, and not the one that it was forked from.
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
# In a guest with more, the others are for everybody else.
cpu=$(($(nproc) - 1))
contend $cpu 5 99 5 >/tmp/contend &
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

config 3ms 2 3 >/tmp/config
start_ours loaded-again
hold weights
own weights
end_ours -KILL killed
measure after-kill

# A thread of nice 19 is 3 where these are 10,000 each: by its share alone it would have 30 ms in ten
# minutes, and the kernel takes out who lets a thread wait for 5 s.
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
# By its own word: when this shell gets to run again the kernel may have taken it out.
echo "= stalling $(grep -o '^running' /tmp/ours)"
wait_for 30 is_state disabled
wait "$ours"
echo "= stalled status $? state $(state)"
echo "= reason $(grep '^error' /tmp/ours)"
measure after-stall
echo "= done"
poweroff -f
