#!/usr/bin/env bash
# Small Linux guests on vhost-user sockets.
#
#   guest.sh accel                              prints the accelerator that boots a stock kernel: kvm or tcg
#   guest.sh start NAME SOCKET MAC IP/LEN [--sock-server] [--mem MIB] [--mtu BYTES] [--incoming]
#                  [--queues PAIRS] [--packed]
#   guest.sh adopt NAME PIDFILE                 makes the directory of a guest that another program starts
#   guest.sh reconnect                          prints the chardev option for a connection that comes back
#   guest.sh wait-ready NAME [SECONDS]
#   guest.sh exec NAME 'command' [SECONDS]      runs it in the guest; has its output and status
#   guest.sh migrate NAME OTHER [SECONDS]       moves a running guest into OTHER, started with
#                                               --incoming and otherwise alike; prints the downtime
#   guest.sh qmp NAME '{"execute": ...}'        sends a command to its QEMU; prints the answer
#   guest.sh kill NAME                          kill -9
#   guest.sh stop NAME | stop-all
#   guest.sh console NAME                       prints the output on the guest's console
#
# The files of a guest are in $PENSTOCK_GUESTS/NAME: pid, console.log and two pairs of pipes. `exec`
# talks to the guest's init over one pair, which leads to the second serial port. The other pair
# leads to QEMU's monitor. --sock-server makes QEMU listen on SOCKET. Without it, QEMU connects, and
# connects again when the switch comes back. SOCKET - means no network card. --queues gives the card
# so many queue pairs and the guest as many processors. --packed gives it packed rings.
# PENSTOCK_QEMU is another QEMU than the installed one.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

GUESTS=${PENSTOCK_GUESTS:-${XDG_RUNTIME_DIR:-/tmp}/penstock-guests-$(id -u)}
QEMU=${PENSTOCK_QEMU:-qemu-system-x86_64}

# Returns the pid of a running guest. The guest is ours if its command line names its directory.
guest_pid() {
    local pid
    pid=$(cat "$GUESTS/$1/pid" 2>/dev/null) || return 1
    is_of_guest "$pid" "$1" || return 1
    echo "$pid"
}

# The process executes two other programs before QEMU, and has no command line in between.
is_of_guest() {
    local look
    for look in 1 2 3; do
        # NUL separates the words of cmdline. With -a, grep reads it like any other character.
        grep -qsaF "$GUESTS/$2/" "/proc/$1/cmdline" && return
        [ -e "/proc/$1" ] || return 1
        [ "$look" = 3 ] || sleep 0.05
    done
    return 1
}

is_gone() { ! guest_pid "$1" >/dev/null; }
is_ready() { grep -q ^READY "$GUESTS/$1/console.log" 2>/dev/null; }
is_ready_or_gone() { is_ready "$1" || is_gone "$1"; }

make_dir() {
    local dir=$GUESTS/$1
    rm -rf "$dir"
    mkdir -p "$dir"
    mkfifo "$dir/agent.in" "$dir/agent.out" "$dir/qmp.in" "$dir/qmp.out"
}
# The other program's QEMU writes the console to console.log, has the pipe `agent` as its second
# serial port, and so names the directory in its command line.
adopt() {
    is_gone "$1" || die "guest $1: runs already"
    make_dir "$1"
    ln -s "$2" "$GUESTS/$1/pid"
}

# boot NAME ACCEL MIB CMDLINE_MORE qemu-arguments...
boot() {
    local name=$1 accel=$2 mem=$3 more=$4 dir=$GUESTS/$1 files kernel initrd
    shift 4
    have $QEMU || die "$QEMU is missing: run \`make setup\`"
    is_gone "$name" || die "guest $name: runs already"
    files=$("$REPO/scripts/guest-image.sh") || exit 1
    { read -r kernel && read -r initrd; } <<<"$files"
    make_dir "$name"
    [ "$accel" = kvm ] || accel=tcg,thread=multi
    # A function must not start QEMU, because $! must be QEMU itself.
    taskset -c "$(others_cores)" setsid $QEMU -name "$name" -accel "$accel" -cpu max -m "$mem" \
        -nodefaults -no-user-config -display none -monitor none -no-reboot \
        -chardev "pipe,id=qmp,path=$dir/qmp" -mon chardev=qmp,mode=control \
        -chardev "file,id=console,path=$dir/console.log" -serial chardev:console \
        -chardev "pipe,id=agent,path=$dir/agent" -serial chardev:agent \
        -kernel "$kernel" -initrd "$initrd" -append "$GUEST_CMDLINE $more" \
        "$@" </dev/null >"$dir/qemu.log" 2>&1 9>&- &
    echo $! >"$dir/pid"
    disown
    wait_until 2 guest_pid "$name" || true
}

# Checks that a stock kernel without a network gets as far as READY within 20 seconds.
kvm_boots() {
    [ -w /dev/kvm ] || return 1
    local name=kvm-probe-$$ ok=1
    boot "$name" kvm 128 "" || return 1
    wait_until 20 is_ready_or_gone "$name" && is_ready "$name" && ok=0
    end "$name" KILL
        rm -rf "${GUESTS:?}/$name"
    return $ok
}

# Returns the accelerator. It is determined once per boot of this machine and then stored.
accel() {
    local boot_id note
    if [ -n "${PENSTOCK_ACCEL:-}" ]; then
        echo "$PENSTOCK_ACCEL"
        return
    fi
    boot_id=$(cat /proc/sys/kernel/random/boot_id)
    note=$CACHE/accel-$(id -u)
    mkdir -p "$CACHE" "$GUESTS"
    exec 8>"$GUESTS/accel.lock"
    flock 8
    if [ "$(cut -d' ' -f1 "$note" 2>/dev/null)" != "$boot_id" ]; then
        if kvm_boots 8>&-; then echo "$boot_id kvm"; else echo "$boot_id tcg"; fi >"$note"
    fi
    exec 8>&-
    cut -d' ' -f2 "$note"
}

# Returns the chardev option that connects again each second. QEMU 9.2 introduced reconnect-ms=, and
# 10.2 removed reconnect=.
reconnect() {
    local major minor
    IFS=. read -r major minor _ <<<"$($QEMU --version | sed -n 's/.*version \([0-9.]*\).*/\1/p;q')"
    if [ $((major * 100 + minor)) -ge 902 ]; then echo reconnect-ms=1000; else echo reconnect=1; fi
}

start() {
    [ $# -ge 4 ] || die "usage: guest.sh start NAME SOCKET MAC IP/LEN [--sock-server] [--mem MIB]"
    local name=$1 socket=$2 mac=$3 ip=$4 server="" mem=128 mtu=1500 how device queues=1 packed=""
    local nic=() incoming=()
    shift 4
    while [ $# -gt 0 ]; do
        case $1 in
        --sock-server) server="server=on,wait=off" ;;
        --mem) mem=$2 && shift ;;
        --mtu) mtu=$2 && shift ;;
        --queues) queues=$2 && shift ;;
        --packed) packed=",packed=on" ;;
        --incoming) incoming=(-incoming "unix:$GUESTS/$name/incoming") ;;
        *) die "guest.sh start: unknown option $1" ;;
        esac
        shift
    done
    how=$(accel)
    [ -n "$server" ] || server=$(reconnect)
    device="virtio-net-pci,netdev=net0,mac=$mac,romfile=$packed"
    [ "$queues" = 1 ] || device+=",mq=on"
    # QEMU 7.2 crashes with TCG, vhost-user and MSI-X together.
    [ "$how" = kvm ] || device+=",vectors=0"
    # shellcheck disable=SC2054 # the commas are QEMU's
    [ "$socket" = - ] || nic=(-object "memory-backend-memfd,id=mem0,size=${mem}M,share=on"
        -numa node,memdev=mem0 -chardev "socket,id=vhost0,path=$socket,$server"
        -netdev vhost-user,id=net0,chardev=vhost0,queues=$queues -device "$device")
    boot "$name" "$how" "$mem" "penstock.ip=$ip penstock.mtu=$mtu" -smp "$queues" "${nic[@]}" \
        "${incoming[@]}"
    say "guest $name: $how, $mac, $ip, socket $socket"
}

wait_ready() {
    local name=$1 seconds=${2:-90}
    if wait_until "$seconds" is_ready_or_gone "$name" && is_ready "$name"; then
        grep ^READY "$GUESTS/$name/console.log"
        return
    fi
    tail -n 5 "$GUESTS/$name/qemu.log" "$GUESTS/$name/console.log" >&2 || true
    die "guest $name: not ready after $seconds s"
}

run_inside() {
    local name=$1 command=$2 seconds dir=$GUESTS/$1 id line part="" status="" inside=0 end
    seconds=$(patience "${3:-30}")
    [[ $command != *$'\n'* ]] || die "guest $name: a command is one line"
    guest_pid "$name" >/dev/null || die "guest $name: does not run"
    exec 9>"$dir/lock"
    flock 9
    id=$$-$RANDOM
    # Both ends are opened for reading and writing, so that opening does not wait for the other
    # side.
    exec 6<>"$dir/agent.out" 7<>"$dir/agent.in"
    printf '%s %s %s\n' "$id" "$seconds" "$command" >&7
    end=$((SECONDS + seconds + 15))
    while [ "$SECONDS" -lt "$end" ]; do
        # After a timeout, `line` has the part of a line that came. The guest ignores an empty
        # line, but its interrupt makes the guest's serial port send on if it lost an interrupt in a
        # migration.
        IFS= read -r -t 2 line <&6 || {
            part+=$line
            is_gone "$name" && break
            printf '\n' >&7
            continue
        }
        line=$part$line part=""
        case $line in
        "=BEGIN= $id") inside=1 ;;
        "=END= $id "*) status=${line##* } && break ;;
        *) [ $inside = 0 ] || printf '%s\n' "$line" ;;
        esac
    done
    [ -n "$status" ] || die "guest $name: no answer to: $command"
    return "$status"
}

# Sends one command at a time to QEMU's monitor. The answer is the line with our id.
qmp() {
    local name=$1 command=$2 dir=$GUESTS/$1 id line end
    guest_pid "$name" >/dev/null || die "guest $name: does not run"
    exec 9>"$dir/qmp.lock"
    flock 9
    exec 6<>"$dir/qmp.out" 7<>"$dir/qmp.in"
    if [ ! -e "$dir/qmp.ready" ]; then
        printf '{"execute": "qmp_capabilities"}\n' >&7
        : >"$dir/qmp.ready"
    fi
    id=$$-$RANDOM
    printf '%s\n' "${command%\}}, \"id\": \"$id\"}" >&7
    end=$((SECONDS + $(patience 10)))
    while [ "$SECONDS" -lt "$end" ]; do
        IFS= read -r -t 2 line <&6 || continue
        [[ $line == *"\"$id\""* ]] || continue
        exec 9>&-
        printf '%s\n' "$line"
        [[ $line != *'"error"'* ]]
        return
    done
    die "guest $name: no answer to: $command"
}

# number NAME <<<JSON: returns a whole number from an answer of one line.
number() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p"; }

migrate() {
    local name=$1 other=$2 seconds=${3:-60} end status answer
    wait_until 10 test -S "$GUESTS/$other/incoming" || die "guest $other: does not wait for a guest"
    # The bandwidth is not limited. The guest may pause for 300 ms.
    qmp "$name" '{"execute": "migrate-set-parameters", "arguments":
        {"max-bandwidth": 10000000000, "downtime-limit": 300}}' >/dev/null
    qmp "$name" "{\"execute\": \"migrate\", \"arguments\": {\"uri\": \"unix:$GUESTS/$other/incoming\"}}" \
        >/dev/null
    end=$((SECONDS + $(patience "$seconds")))
    while [ "$SECONDS" -lt "$end" ]; do
        answer=$(qmp "$name" '{"execute": "query-migrate"}')
        status=$(sed -n 's/.*"return": {.*"status": "\([a-z-]*\)".*/\1/p' <<<"$answer")
        case $status in
        completed)
            say "guest $name -> $other: downtime $(number downtime <<<"$answer") ms," \
                "$(number total-time <<<"$answer") ms in all"
            return
            ;;
        failed | cancelled) die "guest $name: migration $status: $answer" ;;
        esac
        sleep 0.1
    done
    die "guest $name: not migrated after $seconds s: $answer"
}

end() {
    local pid
    pid=$(guest_pid "$1") || return 0
    kill "-$2" "$pid" 2>/dev/null || true
    wait_until 5 is_gone "$1" || kill -KILL "$pid" 2>/dev/null || true
}

stop_all() {
    local dir
    for dir in "$GUESTS"/*/; do [ ! -d "$dir" ] || end "$(basename "$dir")" TERM; done
}

verb=${1:-help}
[ $# = 0 ] || shift
case $verb in
accel) accel ;;
reconnect) reconnect ;;
start) start "$@" ;;
adopt) adopt "$@" ;;
wait-ready) wait_ready "$@" ;;
exec) run_inside "$@" ;;
migrate) migrate "$@" ;;
qmp) qmp "$@" ;;
kill) end "$1" KILL ;;
stop) end "$1" TERM ;;
stop-all) stop_all ;;
console) cat "$GUESTS/$1/console.log" ;;
*) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && [ "$verb" = help ] ;;
esac
