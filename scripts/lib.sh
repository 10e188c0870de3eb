# Functions that the scripts share: messages, the cache, placement on processors, and our own
# processes and namespaces. Scripts source this file. Needs bash, util-linux, iproute2.
# shellcheck shell=bash

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # the scripts that source this use it
CACHE=${PENSTOCK_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/penstock}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Prints a PASS, FAIL or SKIP line and counts it.
PASSED=0 FAILED=0 SKIPPED=0
pass() { PASSED=$((PASSED + 1)) && say "PASS $*"; }
fail() { FAILED=$((FAILED + 1)) && say "FAIL $*"; }
skip() { SKIPPED=$((SKIPPED + 1)) && say "SKIP $*"; }
# check "what must hold" command...: prints PASS if the command succeeds, and FAIL otherwise.
check() {
    local what=$1
    shift
    if "$@"; then pass "$what"; else fail "$what"; fi
}
# Prints the last line of a test script. Its status says whether any check failed.
verdict() {
    say "$1: $PASSED passed, $FAILED failed, $SKIPPED skipped"
    [ "$FAILED" = 0 ]
}

# The switch polls on the last processor that we may use. Everything else runs on the others, so
# that neither waits for the other during a measurement. With a single processor everything shares
# it.
cores_allowed() {
    local part
    for part in $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | tr , ' '); do
        seq "${part%-*}" "${part#*-}"
    done
}
cpus_all() { cores_allowed | wc -l; }
worker_core() { cores_allowed | tail -n 1; }
others_cores() {
    local others
    others=$(cores_allowed | head -n -1 | paste -sd, -)
    echo "${others:-$(worker_core)}"
}
on_others() { taskset -c "$(others_cores)" "$@"; }

# Options with which every lane builds. With others, cargo would compile the workspace a second time.
# The scheduler for the kernel is part of it if its tools are installed.
# shellcheck disable=SC2034 # the scripts that source this use it
WORKSPACE=(--locked --workspace)
if have clang && [ -e /usr/include/libelf.h ] && [ -e /usr/include/zlib.h ]; then
    WORKSPACE+=(--features=penstock-vcpu-scx/bpf)
fi

# Returns the program under test: PENSTOCK_BIN, or the program that cargo builds with the given
# profile.
penstock_bin() {
    local profile=${PROFILE:-dev} dir=debug
    [ "$profile" = dev ] || dir=$profile
    echo "${PENSTOCK_BIN:-${CARGO_TARGET_DIR:-$REPO/target}/$dir/penstock}"
}

# Returns the program of the experiments, which is beside the program under test.
lab_bin() { echo "$(penstock_bin)-lab"; }

# fetch_package NAME DIR: unpacks the files of a Debian package without installing it. Needs no
# root.
fetch_package() {
    local work
    have apt-get && have dpkg-deb || return 1
    say "fetching the files of $1 into $2" >&2
    work=$(mktemp -d)
    # apt's own user must be able to write here.
    chmod 777 "$work"
    if (cd "$work" && apt-get -q download "$1") >&2; then
        mkdir -p "$2"
        dpkg-deb -x "$work"/*.deb "$2"
    fi
    rm -rf "$work"
    [ -d "$2" ]
}

# Returns the path of promtool. Debian's package prometheus would also start a service, so only its
# files are fetched.
find_promtool() {
    local dir=$CACHE/prometheus
    if [ -n "${PROMTOOL:-}" ]; then
        echo "$PROMTOOL"
    elif have promtool; then
        command -v promtool
    elif [ -x "$dir/usr/bin/promtool" ] || fetch_package prometheus "$dir" >&2; then
        echo "$dir/usr/bin/promtool"
    fi
}

# patience SECONDS: a deadline for a calm machine, multiplied for this machine. The tests in Rust
# have the same factor (crates/testing).
patience() { echo $(($1 * ${PENSTOCK_PATIENCE:-3})); }
# wait_until SECONDS command...: true as soon as the command succeeds, false at the deadline.
# `patience` multiplies the deadline.
wait_until() {
    local end=$((SECONDS + $(patience "$1")))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}

# Children and namespaces that this shell made. `tidy_up` ends only these.
OWN_PIDS=() OWN_NETNS=()
# spawn LOG program...: runs a program in the background. $SPAWNED has its id. A function does not
# work here, because the id must be that of the program.
spawn() {
    local log=$1
    shift
    "$@" </dev/null >>"$log" 2>&1 &
    SPAWNED=$!
    OWN_PIDS+=("$SPAWNED")
}
# Like spawn, but in a namespace and off the switch's core.
spawn_in() {
    local ns=$1 log=$2
    shift 2
    spawn "$log" taskset -c "$(others_cores)" nsenter --net="/run/netns/$ns" "$@"
}
gone() { ! kill -0 "$1" 2>/dev/null; }
# Ends one child with TERM, and with KILL if it still runs after five seconds.
end_pid() {
    gone "$1" && return 0
    kill -TERM "$1" 2>/dev/null || true
    wait_until 5 gone "$1" || kill -KILL "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}
own_netns() { OWN_NETNS+=("$1"); }
in_netns() {
    local ns=$1
    shift
    taskset -c "$(others_cores)" nsenter --net="/run/netns/$ns" "$@"
}
# Makes a namespace with its loopback up and without IPv6, so that only a test's own frames are on
# the wire.
make_netns() {
    ip netns add "$1" || return
    own_netns "$1"
    in_netns "$1" ip link set lo up
    quiet_ipv6 "$1"
}
quiet_ipv6() {
    in_netns "$1" sh -c 'for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >"$f"; done' \
        2>/dev/null || true
}
tidy_up() {
    local i
    for ((i = ${#OWN_PIDS[@]} - 1; i >= 0; i--)); do end_pid "${OWN_PIDS[i]}"; done
    for i in "${OWN_NETNS[@]}"; do
        [ ! -e "/run/netns/$i" ] || ip netns del "$i" 2>/dev/null || warn "namespace $i stays behind"
    done
    OWN_PIDS=() OWN_NETNS=()
    if [ -n "${PENSTOCK_UNDER_UNIT:-}" ]; then
        systemctl stop penstock
        unit_log >"${WORK:-/out}/penstock.log"
    fi
}

# Prepares our own switch. Sets $BIN, $WORK (its directory) and $SOCKET.
own_switch_dir() {
    BIN=$(penstock_bin)
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-$1.XXXXXX")
    SOCKET=$WORK/host.sock
    [ -z "${PENSTOCK_RUN_AS:-}" ] || chown "$PENSTOCK_RUN_AS" "$WORK"
    export PENSTOCK_GUESTS=$WORK/guests
}
# run_with_guests LANE WHAT: runs `main` and later `cleanup` of a lane with guests under QEMU.
# Skips WHAT if this machine cannot run guests.
run_with_guests() {
    BIN=$(penstock_bin)
    if [ "$(id -u)" != 0 ] && [ -z "${PENSTOCK_IN_USERNS:-}" ]; then
        skip "$2: needs root for network namespaces"
    elif [ ! -c /dev/net/tun ]; then
        skip "$2: no /dev/net/tun"
    elif ! have qemu-system-x86_64; then
        skip "$2: qemu-system-x86_64 is not installed"
    elif ! "$REPO/scripts/guest-image.sh" >/dev/null; then
        skip "$2: no guest image"
    elif [ ! -x "$BIN" ]; then
        fail "$BIN is not built: run \`make build\`"
    else
        own_switch_dir "$1"
        trap cleanup EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        main
    fi
    verdict "$1"
}
ctl() { "$BIN" --socket "$SOCKET" "$@"; }
# The capabilities of packaging/penstock.service with penstock-sockets.conf. Root owns the sockets
# to which the tests connect.
UNIT_CAPABILITIES=+net_admin,+net_raw,+bpf,+chown,+fowner,+dac_override
# start_switch CONFIG: starts the switch. $SWITCH has its process. With PENSTOCK_RUN_AS it runs as
# that user. With PENSTOCK_UNDER_UNIT, which under-unit.sh sets, systemd starts it under its unit.
# $MANAGER is a program that starts the switch, such as service-manager.py. $SWITCH is then the
# manager's process.
MANAGER=()
start_switch() {
    local as=() bin=$BIN
    if [ -n "${PENSTOCK_UNDER_UNIT:-}" ]; then
        start_unit "$1" && ctl host show && return
        unit_log 20 >&2
        return 1
    fi
    if [ -n "${PENSTOCK_RUN_AS:-}" ]; then
        as=(setpriv --reuid="$PENSTOCK_RUN_AS" --regid="$(id -g "$PENSTOCK_RUN_AS")" --clear-groups
            --inh-caps="-all,$UNIT_CAPABILITIES" --ambient-caps="-all,$UNIT_CAPABILITIES"
            --bounding-set="-all,$UNIT_CAPABILITIES" --no-new-privs --)
        chown "$PENSTOCK_RUN_AS" "$1"
        # The tree may be in a home directory that this user cannot read.
        if ! setpriv --reuid="$PENSTOCK_RUN_AS" --clear-groups test -x "$BIN"; then
            bin=$WORK/penstock
            [ -x "$bin" ] || install -m 755 "$BIN" "$bin"
        fi
    fi
    spawn "$WORK/host.log" "${MANAGER[@]}" "${as[@]}" "$bin" host run --config "$1"
    SWITCH=$SPAWNED
    wait_until 15 switch_settled && ctl host show >/dev/null 2>&1 && return
    tail -20 "$WORK/host.log" >&2
    return 1
}
# The unit is as shipped. Its drop-ins are those that packaging/README.md requires, because sockets
# are outside /run/penstock, and root owns those to which the switch connects.
start_unit() {
    local conf=/etc/systemd/system/penstock.service.d
    # This is done once, because a restarted switch must find the file that it has written.
    if [ ! -e $conf ]; then
        mkdir $conf
        printf '[Service]\nReadWritePaths=%s\nEnvironment=PENSTOCK_SOCKET=%s\n' "$WORK" "$SOCKET" \
            >$conf/lane.conf
        ! grep -q '^vhost-user.mode = "client"' "$1" || cp "$REPO/packaging/penstock-sockets.conf" $conf/
        install -D -o penstock -g penstock -m 600 "$1" /etc/penstock/host.toml
        chown penstock:penstock /etc/penstock
        systemctl daemon-reload
    fi
    # This also waits for a start after a crash, which systemd does by itself.
    systemctl start penstock || return
    SWITCH=$(systemctl show -p MainPID --value penstock)
    say "     under its unit as user $(ps -o user= -p "$SWITCH"), $(grep CapEff "/proc/$SWITCH/status")"
    [ "$(ps -o user= -p "$SWITCH")" = penstock ]
}
unit_log() { journalctl -u 'penstock*' --no-pager -o cat | tail -n "${1:-200}"; }
# Ends the switch, by default as a service manager would.
stop_switch() {
    if [ "${PENSTOCK_UNDER_UNIT:-} ${1:-TERM}" = "1 TERM" ]; then
        systemctl stop penstock
        return
    fi
    kill "-${1:-TERM}" "$SWITCH"
    wait_until 10 gone "$SWITCH"
    wait "$SWITCH" 2>/dev/null
}
switch_settled() { gone "$SWITCH" || ctl host show; }
# Prints the head of a configuration file for the switch.
switch_config() {
    printf '[host]\nname = "%s"\nsocket = "%s"\nstate_dir = "%s"\n' "$1" "$SOCKET" "$WORK/state"
    printf '\n[worker]\ncores = [%s]\n' "$(worker_core)"
}
# port_counter PORT NAME: one number from `stats --json`, or 0 if it is missing.
port_counter() {
    local n
    n=$(ctl stats "$1" --json | tr -d ' \n' | grep -oE "\"$2\"[,:]\"?[0-9]+" | grep -oE '[0-9]+$' |
        head -1) || true
    echo "${n:-0}"
}
port_state() { ctl port list | awk -v port="$1" '$1 == port'; }
port_is_up() { port_state "$1" | grep -qw up; }
# counters_settle: waits until the counters add up, because frames in flight need a moment to
# arrive.
counters_settle() { wait_until "${1:-5}" ctl stats --check; }

# ping_from NETNS ADDRESS [COUNT]: uses the ping of busybox, because iputils may be missing.
ping_from() { in_netns "$1" busybox ping -c "${3:-3}" -W 1 "$2" 2>&1; }
# Returns the mean round trip in ping's output, as "0.123 ms".
ping_mean() { sed -n 's|.*= [0-9.]*/\([0-9.]*\)/.*|\1 ms|p' <<<"$1"; }
# longest_silence LOG: the longest run of missing answers to a ping every 20 ms, in milliseconds.
longest_silence() {
    sed -n 's/.*seq=\([0-9]*\) .*/\1/p' "$1" | sort -n |
        awk 'NR > 1 && $1 - last > most { most = $1 - last } { last = $1 } END { print 20 * most }'
}

# silence FILE: returns the longest time in ms between two answers in the output of iputils'
# `ping -D`.
silence() {
    sed -n 's/^\[\([0-9.]*\)\].*icmp_seq.*/\1/p' "$1" |
        awk 'NR > 1 && $1 - last > most { most = $1 - last } { last = $1 }
            END { printf "%.0f\n", most * 1000 }'
}
# Every request of a ping has its answer, once and in order, up to the last answer.
all_answered() {
    sed -n 's/.*icmp_seq=\([0-9]*\).*/\1/p' "$1" |
        awk '$1 != NR { print "request " NR ": answer " $1; bad = 1; exit }
            END { exit bad || NR == 0 }'
}
# udp_is_whole JSON_OF_SERVER: no datagram of the client's intervals was lost or out of order.
udp_is_whole() {
    python3 - "$1" <<'END'
import json, sys
run = json.load(open(sys.argv[1]))
parts = [part["sum"] for part in run["intervals"]]
packets, lost = (sum(part[key] for part in parts) for key in ("packets", "lost_packets"))
late = sum(stream.get("out_of_order", 0) for part in run["intervals"] for stream in part["streams"])
print(packets, "datagrams,", lost, "lost,", late, "out of order")
sys.exit(lost != 0 or late != 0 or packets == 0)
END
}

# Returns the receiver's rate in iperf3's text output, as "1.23 Gbits/sec".
iperf_rate() { awk '/receiver/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /bits\/sec/) r = $i " " $(i + 1) } END { print r }' <<<"$1"; }

# The command line of a guest's kernel. no_timer_check: a loaded host fails the timer self-test. The
# other options keep slow guests from panicking.
# shellcheck disable=SC2034 # the scripts that source this use it
GUEST_CMDLINE="console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable nowatchdog"
GUEST_CMDLINE+=" rcupdate.rcu_cpu_stall_suppress=1 net.ifnames=0"

# --- demos ---

# Ends a demo that cannot be run with status 2. Status 1 means that the switch failed.
cannot() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# Checks that there is room for a demo's results, and that names of sockets have at most 107
# characters.
find_room() {
    local tmp=${TMPDIR:-/tmp}
    if [ ${#tmp} -gt 60 ]; then
        warn "TMPDIR: $tmp is too long for the names of sockets (60 characters at most): using /tmp"
        tmp=/tmp
    fi
    export TMPDIR=$tmp
    has_room "$tmp" || cannot "$tmp: no room for 1 MB of files; free some or set TMPDIR to another place"
}
has_room() {
    local probe
    probe=$(mktemp "$1/penstock-room.XXXXXX" 2>/dev/null) || return 1
    local status=0
    head -c 1000000 /dev/zero 2>/dev/null >"$probe" || status=1
    rm -f "$probe"
    return $status
}

# results_in NAME: makes $OUT the directory of a demo's results. If the usual directory belongs to
# another user, or another demo writes there now, it uses another one.
results_in() {
    find_room
    if [ -n "${OUT:-}" ]; then
        mkdir -p "$OUT" || cannot "$OUT: cannot be made; name another directory: OUT=DIR"
    else
        OUT=$TMPDIR/$1
        mkdir -p "$OUT" 2>/dev/null || true
        { [ -d "$OUT" ] && [ -O "$OUT" ] && [ ! -L "$OUT" ]; } || OUT=$(mktemp -d "$TMPDIR/$1.XXXXXX")
    fi
    has_room "$OUT" || cannot "$OUT: no room for 1 MB of results; name another directory: OUT=DIR"
    have flock || return 0
    exec 7>"$OUT/.lock"
    flock -n 7 && return
    warn "another demo runs now: each of the two disturbs the other"
    OUT=$(mktemp -d "$TMPDIR/$1.XXXXXX")
}

# run_demo NAME: runs a demo. Its claims are in a file, and its status is in $STATUS: 0 or 1 if
# there are results to report. First removes the files of an earlier run.
run_demo() {
    rm -f "$OUT/$1"-live.* "$OUT/$1-claims.txt"
    STATUS=0
    "$LAB" run "$1" --mode live --out "$OUT" >"$OUT/$1-claims.txt" 7>&- || STATUS=$?
    # After a signal, the guard of the run has removed everything.
    [ "$STATUS" -lt 128 ] || exit "$STATUS"
    [ -s "$OUT/$1-live.txt" ] || cannot "the demo could not be run; the lines above say why"
}
# end_demo NAME NEXT: prints the results, the place of the picture, and the next step. Exits.
end_demo() {
    say
    cat "$OUT/$1-live.txt"
    say
    say "picture: $OUT/$1-live.svg"
    say "numbers: $OUT/$1-live.json, $OUT/$1-live.csv, $OUT/$1-claims.txt"
    say "next:    $2"
    exit "$STATUS"
}

# For scripts in under-unit.sh's container.
# sessions_went_on NUMBER: whether so many sessions of the former process continue since the last
# start of the switch.
sessions_went_on() {
    local since
    since=$(systemctl show -p InvocationID --value penstock)
    [ "$(journalctl -q "_SYSTEMD_INVOCATION_ID=$since" |
        grep -c 'session of the former process continues')" = "$1" ]
}
# has_answers NUMBER LOG: whether a ping has had so many answers.
has_answers() { [ "$(grep -c 'icmp_seq' "$2")" -ge "$1" ]; }
