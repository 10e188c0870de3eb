#!/usr/bin/env bash
# Sends real traffic through a switch. The peers are network namespaces on TAP and on vhost-user
# ports, and two small Linux guests. The demo runs ping and iperf3 between them and checks the
# counters. It then removes everything again, also on Ctrl-C and on failure. It ends only processes
# and namespaces that it made. The last three lines summarise the results. Status 0: the switch
# worked, however disturbed the machine was; 1: it did not; 2: the demo could not be run.
#
#   PROFILE=release   builds and runs the fast program (longer to build)
#   SECONDS_EACH=3    length of one iperf3 run
#   KEEP=1            keeps the working directory with its logs
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

TAG=psd$$
EACH=${SECONDS_EACH:-3}
ROWS=() MISSING=() WORKED=() FAILURES=()
# Time limit in seconds for something to appear. A busy machine takes its time.
PATIENCE=60

# Without root, runs the same demo in a user namespace, where we are root over our own network.
enter_user_namespace() {
    if [ -n "${PENSTOCK_IN_USERNS:-}" ] || ! unshare -Urnm true 2>/dev/null; then
        return 1
    fi
    say "not root: going on inside a user namespace of its own"
    exec env PENSTOCK_IN_USERNS=1 unshare -Urnm --kill-child --fork "$0" "$@"
}

build() {
    [ -z "${PENSTOCK_BIN:-}" ] || return 0
    step "building (profile ${PROFILE:-dev}; the first time takes minutes)"
    (cd "$REPO" && cargo build --locked --profile "${PROFILE:-dev}" -p penstock)
}

take_down() {
    step "taking everything down"
    "$REPO/scripts/guest.sh" stop-all || true
    tidy_up
    DOWN=1
}

cleanup() {
    local status=$?
    trap '' INT TERM HUP
    [ -n "${DOWN:-}" ] || take_down
    if [ -n "${KEEP:-}" ]; then
        say "logs: $WORK"
    else
        [ "$status" = 0 ] || tail -n 5 "$WORK"/*.log 2>/dev/null || true
        rm -rf "$WORK"
    fi
    exit "$status"
}

# Can we make namespaces and TAP interfaces? Can we run guests?
look_around() {
    NAMESPACES=1 GUESTS=1 RATES=1
    have busybox || cannot "ping is busybox's, which is not installed: run \`make setup\`"
    if [ -n "${PENSTOCK_IN_USERNS:-}" ]; then
        mount -t tmpfs tmpfs /run && mkdir /run/netns || NAMESPACES=0
        ip link set lo up || true
    fi
    if [ $NAMESPACES = 0 ] || ! ip netns add "$TAG-probe" 2>/dev/null; then
        NAMESPACES=0
        MISSING+=("namespaces and TAP: they need root or a kernel that allows user namespaces")
    else
        ip netns del "$TAG-probe"
    fi
    if [ ! -c /dev/net/tun ]; then
        NAMESPACES=0
        MISSING+=("TAP: this kernel has no /dev/net/tun")
    fi
    if ! have iperf3; then
        RATES=0
        MISSING+=("rates: iperf3 is not installed (make setup)")
    fi
    if ! have qemu-system-x86_64; then
        GUESTS=0
        MISSING+=("guests: qemu-system-x86_64 is not installed (make setup)")
    elif ! "$REPO/scripts/guest-image.sh" >/dev/null; then
        GUESTS=0
        MISSING+=("guests: no image (see the message above)")
    fi
    [ "$NAMESPACES$GUESTS" != 00 ] || cannot "nothing to connect: ${MISSING[*]}"
}

# port NAME TENANT MAC IP further lines...
port() {
    printf '\n[[port]]\nname = "%s"\ntenant = "%s"\nmac = ["%s"]\nip = ["%s"]\n' "$1" "$2" "$3" "$4"
    shift 4
    printf '%s\n' "$@"
}
tap_port() { port "$1" "$2" "$3" "$4" 'tap.interface = "eth0"' "tap.netns = \"$TAG-$1\""; }
vhost_port() { port "$1" "$2" "$3" "$4" "vhost-user.socket = \"$WORK/$1.sock\""; }

write_config() {
    switch_config demo
    printf '\n[[tenant]]\nname = "%s"\n' blue red
    if [ $NAMESPACES = 1 ]; then
        tap_port tap1 blue 52:54:00:00:00:01 10.0.0.1
        tap_port tap2 blue 52:54:00:00:00:02 10.0.0.2
        tap_port tap3 red 52:54:00:00:00:03 10.0.0.3
        vhost_port ep1 blue 52:54:00:00:01:01 10.0.0.11
        vhost_port ep2 blue 52:54:00:00:01:02 10.0.0.12
        vhost_port ep3 red 52:54:00:00:01:03 10.0.0.13
    fi
    if [ $GUESTS = 1 ]; then
        vhost_port vm1 blue 52:54:00:00:02:01 10.0.0.21
        vhost_port vm2 blue 52:54:00:00:02:02 10.0.0.22
    fi
}

start_endpoints() {
    local n nics=()
    for n in 1 2 3; do
        own_netns "$TAG-ep$n"
        nics+=(--nic "netns=$TAG-ep$n,socket=$WORK/ep$n.sock,mode=client,mac=52:54:00:00:01:0$n,ip=10.0.0.1$n/24")
    done
    spawn "$WORK/endpoint.log" taskset -c "$(others_cores)" \
        "$BIN" endpoint "${nics[@]}" --create-netns
    for n in 1 2 3; do
        in_netns "$TAG-tap$n" ip addr add "10.0.0.$n/24" dev eth0
        in_netns "$TAG-tap$n" ip link set eth0 address "52:54:00:00:00:0$n" up
    done
    for n in tap2 ep1 ep2 tap1; do
        wait_until $PATIENCE test -e "/run/netns/$TAG-$n" || die "no namespace $TAG-$n"
        [ $RATES = 0 ] || spawn_in "$TAG-$n" "$WORK/iperf3-$n.log" iperf3 -s
    done
}

start_guests() {
    "$REPO/scripts/guest.sh" start vm1 "$WORK/vm1.sock" 52:54:00:00:02:01 10.0.0.21/24
    "$REPO/scripts/guest.sh" start vm2 "$WORK/vm2.sock" 52:54:00:00:02:02 10.0.0.22/24
    "$REPO/scripts/guest.sh" wait-ready vm1
    "$REPO/scripts/guest.sh" wait-ready vm2
}

# in_party NAME command...: runs the command in a guest or in a namespace.
in_party() {
    local name=$1
    shift
    case $name in
    vm*) "$REPO/scripts/guest.sh" exec "$name" "$*" $((EACH + 20)) ;;
    *) in_netns "$TAG-$name" timeout --foreground "$(patience $((EACH + 20)))" "$@" ;;
    esac
}

row() { ROWS+=("$(printf '%-26s %-12s %-18s %s' "$@")"); }

# Waits for a first answer and then sends five pings. Repeats the pings once if none was answered.
pings() {
    wait_until $PATIENCE in_party "$1" busybox ping -c 1 -W 2 "$2" || true
    in_party "$1" busybox ping -c 5 -W 2 "$2" 2>&1 || in_party "$1" busybox ping -c 5 -W 5 "$2" 2>&1
}
rates() {
    in_party "$1" iperf3 -c "$2" -t "$EACH" 2>&1 || in_party "$1" iperf3 -c "$2" -t "$EACH" 2>&1
}

# between FROM TO ADDRESS: ping, then iperf3. Each is repeated once if it fails, because a program
# may be late on a busy machine.
between() {
    local out rate="" mean result=ok
    step "$1 -> $2 ($3)"
    out=$(pings "$1" "$3") || result=FAILED
    tail -n 2 <<<"$out"
    mean=$(ping_mean "$out")
    if [ $result$RATES = ok1 ]; then
        out=$(rates "$1" "$3") || result=FAILED
        tail -n 4 <<<"$out"
        rate=$(iperf_rate "$out")
    fi
    if [ $result = ok ]; then
        WORKED+=("$1 -> $2${rate:+ $rate}")
    else
        FAILURES+=("nothing got from $1 to $2")
    fi
    row "$1 -> $2" "${mean:--}" "${rate:--}" "$result"
}

isolation() {
    step "ep1 (tenant blue) -> ep3 (tenant red): must not get through"
    if in_party ep1 busybox ping -c 2 -W 1 10.0.0.13 >/dev/null 2>&1; then
        say "a frame crossed from one tenant to another"
        row "ep1 -> ep3, other tenant" - - FAILED
        FAILURES+=("a frame crossed from tenant blue to tenant red")
    else
        say "no answer, as it should be"
        row "ep1 -> ep3, other tenant" - - "isolated"
    fi
    step "tap3 -> ep3 (both tenant red): gets through"
    pings tap3 10.0.0.13 | tail -n 2 || FAILURES+=("nothing got from tap3 to ep3")
}

# Returns the load of other programs on this machine, from the first line of /proc/stat before and
# now.
machine() {
    local before now i all=0 stolen words
    read -ra before <<<"$1"
    read -ra now <<<"$2"
    for i in 1 2 3 4 5 6 7 8; do all=$((all + now[i] - before[i])); done
    stolen=$((100 * (now[8] - before[8]) / (all > 0 ? all : 1)))
    words="a load of $(cut -d' ' -f1 /proc/loadavg) on $(cpus_all) processors"
    [ $stolen -lt 2 ] || words+=", and the hypervisor took $stolen % of them"
    say "$words"
}

# joined SEPARATOR words...
joined() {
    local separator=$1 text=${2:-}
    shift $(($# > 1 ? 2 : 1))
    [ $# = 0 ] || text+=$(printf "$separator%s" "$@")
    printf '%s' "$text"
}

# Prints three lines: the pairs that reached each other, the failures, and the state of the machine.
story() {
    say
    if [ ${#FAILURES[@]} = 0 ]; then
        say "All ${#WORKED[@]} pairs reached each other: $(joined ', ' "${WORKED[@]}")."
        say "$([ $NAMESPACES = 0 ] || printf 'Tenants stayed apart. ')The counters balance: no frame is unaccounted for."
    else
        say "The switch failed: $(joined '; ' "${FAILURES[@]}")."
        say "It worked for ${#WORKED[@]} pairs: $(joined ', ' "${WORKED[@]}")."
    fi
    if [ ${#MISSING[@]} = 0 ]; then
        say "Nothing was left out; the machine had $(machine "$BEFORE" "$(head -n 1 /proc/stat)")."
    else
        say "Left out: $(joined '; ' "${MISSING[@]}"). The machine had $(machine "$BEFORE" "$(head -n 1 /proc/stat)")."
    fi
    say
    say "next:    make fabric-demo (ten hosts in two racks under a controller; root)"
}

# Builds outside of the namespace. Inside it, files of this tree may have no known owner.
[ -n "${PENSTOCK_IN_USERNS:-}" ] || build
[ "$(id -u)" = 0 ] || enter_user_namespace "$@" || true
find_room
BEFORE=$(head -n 1 /proc/stat)
own_switch_dir demo
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
look_around

step "starting the switch on core $(worker_core), all else on $(others_cores)"
write_config >"$WORK/host.toml"
ctl host check --config "$WORK/host.toml"
if [ $NAMESPACES = 1 ]; then
    for n in 1 2 3; do make_netns "$TAG-tap$n"; done
fi
start_switch "$WORK/host.toml" || die "the switch did not start"
[ $NAMESPACES = 0 ] || start_endpoints
if [ $GUESTS = 1 ]; then
    step "starting two guests ($("$REPO/scripts/guest.sh" accel))"
    if ! start_guests; then
        # Booting a guest does not involve the switch.
        GUESTS=0
        MISSING+=("guests: they did not boot, $(tail -qn 1 "$WORK"/guests/*/console.log 2>/dev/null | tr -cd '[:print:]' | cut -c-120)")
        row "vm1, vm2" - - "did not boot"
        [ $NAMESPACES = 1 ] || cannot "nothing to connect: ${MISSING[*]}"
    fi
fi
ctl port list

if [ $NAMESPACES = 1 ]; then
    between tap1 tap2 10.0.0.2
    between ep1 ep2 10.0.0.12
    between ep1 tap1 10.0.0.1
fi
[ $GUESTS = 0 ] || between vm1 vm2 10.0.0.22
[ "$NAMESPACES$GUESTS" != 11 ] || between vm1 ep1 10.0.0.11
[ $NAMESPACES = 0 ] || isolation

step "penstock stats"
ctl stats
step "penstock stats --check"
if counters_settle $PATIENCE; then ctl stats --check; else
    ctl stats --check || true
    FAILURES+=("the counters do not balance")
fi
step "penstock fdb list"
ctl fdb list

step summary
printf '%-26s %-12s %-18s %s\n' "from -> to" "ping" "iperf3" "result"
printf '%s\n' "${ROWS[@]}"
take_down
story
[ ${#FAILURES[@]} = 0 ]
