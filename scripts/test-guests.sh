#!/usr/bin/env bash
# Tests two Linux guests and two endpoints on one running switch. One guest and one endpoint use a
# socket on which the switch listens (server mode). The others use a socket to which it connects
# (client mode). Each guest has two queue pairs, one guest with split rings and one with packed
# rings. The script tests ping, iperf3 both ways, and TSO frames that must stay whole. It also kills
# a guest, restarts the switch, and deletes and adds a port, which must not disturb the others.
# Prints PASS, FAIL and SKIP lines. Needs root. Takes 3 to 5 minutes.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

GUEST=$REPO/scripts/guest.sh
TAG=psg$$
EACH=${SECONDS_EACH:-3}

cleanup() {
    trap '' INT TERM HUP
    "$GUEST" stop-all
    tidy_up
    if [ "$FAILED" != 0 ] && [ -z "${KEEP:-}" ]; then
        tail -n 15 "$WORK"/*.log
    fi
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

# vhost_port NAME MODE MAC IP QUEUES [TENANT]: without a tenant, the port is shared.
vhost_port() {
    printf '\n[[port]]\nname = "%s"\nvhost-user.mode = "%s"\n' "$1" "$2"
    [ -z "${6-}" ] || printf 'tenant = "%s"\n' "$6"
    printf 'vhost-user.socket = "%s"\nmac = ["%s"]\nip = ["%s"]\n' "$WORK/$1.sock" "$3" "$4"
    printf 'vhost-user.queues = %s\n' "$5"
}

write_config() {
    switch_config test-guests
    printf '\n[[tenant]]\nname = "blue"\n'
    vhost_port vm1 server 52:54:00:00:02:01 10.0.0.21 2 blue
    vhost_port vm2 client 52:54:00:00:02:02 10.0.0.22 2 blue
    vhost_port ep1 server 52:54:00:00:01:01 10.0.0.11 1 blue
    vhost_port ep2 client 52:54:00:00:01:02 10.0.0.12 1
}

start_endpoints() {
    own_netns "$TAG-ep1"
    own_netns "$TAG-ep2"
    spawn "$WORK/endpoint.log" taskset -c "$(others_cores)" "$BIN" endpoint --create-netns \
        --nic "netns=$TAG-ep1,socket=$WORK/ep1.sock,mode=client,mac=52:54:00:00:01:01,ip=10.0.0.11/24" \
        --nic "netns=$TAG-ep2,socket=$WORK/ep2.sock,mode=server,mac=52:54:00:00:01:02,ip=10.0.0.12/24"
    local n
    for n in ep1 ep2; do
        wait_until 10 test -e "/run/netns/$TAG-$n" || return
        quiet_ipv6 "$TAG-$n"
        spawn_in "$TAG-$n" "$WORK/iperf3-$n.log" iperf3 -s
    done
}

# Returns the option that guest.sh uses with a QEMU of some version.
asks_for() {
    printf '#!/bin/sh\necho "QEMU emulator version %s"\n' "$2" >"$WORK/qemu"
    chmod +x "$WORK/qemu"
    [ "$(PENSTOCK_QEMU=$WORK/qemu "$GUEST" reconnect)" = "$1" ]
}
reconnect_by_version() {
    asks_for reconnect=1 "7.2.22 (Debian 1:7.2+dfsg-7)" && asks_for reconnect=1 9.1.2 &&
        asks_for reconnect-ms=1000 9.2.0 && asks_for reconnect-ms=1000 10.2.0
}

start_guest() {
    case $1 in
    vm1) "$GUEST" start vm1 "$WORK/vm1.sock" 52:54:00:00:02:01 10.0.0.21/24 --queues 2 ;;
    vm2) "$GUEST" start vm2 "$WORK/vm2.sock" 52:54:00:00:02:02 10.0.0.22/24 --sock-server \
        --queues 2 --packed ;;
    esac && "$GUEST" wait-ready "$1" 90
}

# run NAME command...: runs the command in a guest or in an endpoint's namespace.
run() {
    local name=$1
    shift
    case $name in
    vm*) "$GUEST" exec "$name" "$*" $((EACH + 25)) ;;
    ep*) in_netns "$TAG-$name" timeout --foreground "$(patience $((EACH + 25)))" "$@" ;;
    esac
}
pings() { run "$1" busybox ping -c "${3:-3}" -W 2 "$2" >>"$WORK/ping.log" 2>&1; }
# pings_within SECONDS FROM ADDRESS: true if a ping gets through within that time.
pings_within() { wait_until "$1" pings "$2" "$3" 1; }
# iperf FROM ADDRESS [options]: sets $RATE to the receiver's rate.
iperf() {
    local from=$1 address=$2 out
    shift 2
    out=$(run "$from" iperf3 -c "$address" -t "$EACH" "$@" 2>&1)
    RATE=$(iperf_rate "$out")
    [ -n "$RATE" ] && say "     $from -> $address $*: $RATE"
}
both_pairs_pass() { ctl port show "$1" | grep -q '2 of 2 queue pairs can pass frames'; }
has_packed_rings() { ctl port show "$1" | grep -q '^features.* packed'; }
all_ping() {
    check "$1: guest 1 has two queue pairs" wait_until 15 both_pairs_pass vm1
    check "$1: guest 2 has two queue pairs" wait_until 15 both_pairs_pass vm2
    check "$1: endpoint 1 reaches guest 1" pings_within 30 ep1 10.0.0.21
    check "$1: endpoint 1 reaches guest 2" pings_within 30 ep1 10.0.0.22
    check "$1: endpoint 1 reaches endpoint 2" pings_within 30 ep1 10.0.0.12
    check "$1: guest 1 reaches guest 2" pings_within 30 vm1 10.0.0.22
}

# Whether guest 1 runs each of 40 commands while processes without a parent end in it.
hears_beside_orphans() {
    local i
    run vm1 '(for i in $(seq 250); do (usleep 20000; : &) & usleep 700; done) >/dev/null 2>&1 &' ||
        return
    for i in $(seq 40); do
        [ "$("$GUEST" exec vm1 "echo a line of many words, which arrives in parts: $i" 1 |
            sed -n 's/.* //p')" = "$i" ] || return
    done
}

# undisturbed WHAT command...: runs the command while endpoint 1 pings guest 1 five times a second.
# No ping may be lost.
undisturbed() {
    local what=$1 pid lost
    shift
    in_netns "$TAG-ep1" busybox ping -i 0.2 -W 3 10.0.0.21 >"$WORK/undisturbed.log" 2>&1 &
    pid=$!
    "$@"
    sleep 1
    # ping prints its count on SIGINT. $pid is the function's shell, and ping is its child.
    pkill -INT -P "$pid" 2>/dev/null
    wait_until 5 gone "$pid"
    # The answer to the last ping may still be on its way when ping ends.
    lost=$(awk '/ seq=/ { sub(".* seq=", ""); seen[$1 + 0] }
        /packets transmitted/ { sent = $1 }
        END { for (i = 0; i < sent - 1; i++) lost += !(i in seen); print (sent > 5 ? lost + 0 : "all") }
        ' "$WORK/undisturbed.log")
    tail -n 2 "$WORK/undisturbed.log" | head -1
    check "$what: no ping lost between endpoint 1 and guest 1" [ "$lost" = 0 ]
}

# Checks whether segments stay whole, by the mean frame between two readings of a port's counters.
tso_passes() {
    local from=$1 to=$2 address=$3 frames bytes tso out_tso
    frames=$(port_counter "$from" rx_frames) bytes=$(port_counter "$from" rx_bytes)
    tso=$(port_counter "$from" rx_tso) out_tso=$(port_counter "$to" tx_tso)
    iperf "$from" "$address"
    frames=$(($(port_counter "$from" rx_frames) - frames))
    bytes=$(($(port_counter "$from" rx_bytes) - bytes))
    tso=$(($(port_counter "$from" rx_tso) - tso))
    out_tso=$(($(port_counter "$to" tx_tso) - out_tso))
    say "     $from -> $to: $frames frames, $bytes bytes, TSO taken $tso, delivered $out_tso"
    check "$from -> $to: TSO frames taken and delivered whole" \
        [ "$tso" -gt 0 -a "$out_tso" -gt 0 ]
    check "$from -> $to: nothing segmented in software" [ "$(port_counter "$from" sw_tso)" = 0 ]
    check "$from -> $to: the mean frame is over 4 KiB" \
        [ $((bytes / (frames > 0 ? frames : 1))) -gt 4096 ]
}

# limited WHAT FROM ADDRESS MBITS PORT COUNTER OBJECT ON OFF: sets a limit on an object (such as
# `port vm1`) with the words ON. One TCP stream of large segments then gets the limit's rate, in the
# bytes that the limit counts, the counter of the port grows, and the limit drops no frame of the
# sender. The words OFF take the limit away.
limited() {
    local what=$1 from=$2 address=$3 limit=$4 port=$5 counter=$6 object=$7 on=$8 off=$9 red before
    red=$(port_counter "$from" police_red) before=$(port_counter "$port" "$counter")
    # Several words each.
    # shellcheck disable=SC2086
    check "$what: limited to $limit Mbit/s" ctl $object $on --no-save
    # shellcheck disable=SC2086
    check "$what: the stream gets 85 to 102 % of $limit Mbit/s" \
        stream_fits "$limit" "$from" "$address" ${LATER-}
    check "$what: $counter of $port grew" [ "$(port_counter "$port" "$counter")" -gt "$before" ]
    check "$what: the limit dropped no frame" [ "$(port_counter "$from" police_red)" = "$red" ]
    # shellcheck disable=SC2086
    check "$what: without a limit again" ctl $object $off --no-save
}

# Every kind of limit between the guest vm1, with its default offloads and two queue pairs, and an
# endpoint. The endpoint ep2 has a shared port.
guest_limited() {
    limited "police of an endpoint" ep1 10.0.0.12 1000 ep1 police_waits "port set ep1" \
        'ingress_policy=bps police={cir="1G"}' 'ingress_policy= police='
    limited "police of a guest" vm1 10.0.0.12 100 vm1 police_waits "port set vm1" \
        'ingress_policy=bps police={cir="100M"}' 'ingress_policy= police='
    limited "police of a guest, slow" vm1 10.0.0.12 20 vm1 rx_cut "port set vm1" \
        'ingress_policy=bps police={cir="20M"}' 'ingress_policy= police='
    limited "receive of a guest" ep1 10.0.0.21 100 vm1 receive_waits "port set vm1" \
        'receive={rate="100M"}' receive=
    limited "receive of a guest's tenant" ep1 10.0.0.21 100 vm1 receive_waits "tenant set blue" \
        'receive={rate="100M"}' receive=
    limited "send of a guest's tenant" vm1 10.0.0.12 100 vm1 send_waits "tenant set blue" \
        'send={rate="100M"}' send=
    limited "fair-share link" vm1 10.0.0.12 100 ep2 tx_trimmed "port set ep2" \
        'egress=fair-share link=100M' 'egress= link='
    # Each of the three tenants' ports has a third of 99 % of the full link, which begins when the link
    # has been full for 200 ms.
    LATER="-O 1" limited "full link" vm1 10.0.0.12 49 vm1 link_waits "port set ep2" \
        'egress=fifo link=150M' 'egress= link='
    limited "ceiling of a guest's tenant" vm1 10.0.0.12 100 ep2 receive_waits "port set ep2" \
        'egress=wfq link=10G wfq={ceilings={blue="100M"}}' 'egress= link= wfq='
    limited "shape.send of a guest" vm1 10.0.0.12 20 vm1 rx_cut "port set vm1" \
        'shape={send="20M"}' shape=
    limited "shape.receive of a guest" ep1 10.0.0.21 20 vm1 sw_tso "port set vm1" \
        'shape={receive="20M"}' shape=
}

# stream_fits MBITS FROM ADDRESS [OPTION]...: measures a stream until its rate fits the limit. A rate
# below the limit is measured up to three times, because other programs may slow down a guest.
stream_fits() {
    local limit=$1 n
    shift
    for n in 1 2 3; do
        iperf "$@"
        is_part "$limit" 0.85 1.02 && return
        is_part "$limit" 0 0.85 || return
    done
    return 1
}
# is_part MBITS LEAST MOST: whether $RATE with headers is between two parts of so many Mbit/s.
is_part() {
    awk -v limit="$1" -v least="$2" -v most="$3" '
        { got = $1 * ($2 ~ /^G/ ? 1000 : $2 ~ /^K/ ? 0.001 : 1) * 1518 / 1448 }
        END { exit !(got >= least * limit && got <= most * limit) }' <<<"$RATE"
}

kill_guest() {
    "$GUEST" kill vm2
    sleep 2
    start_guest vm2
    check "guest 2 is back after kill -9" pings_within 30 ep1 10.0.0.22
}

delete_and_add() {
    check "port vm2 deleted" ctl port del vm2
    check "guest 2 is out of reach" not pings ep1 10.0.0.22 1
    check "port vm2 added" ctl port add vm2 tenant=blue vhost-user.mode=client \
        "vhost-user.socket=$WORK/vm2.sock" mac=52:54:00:00:02:02 ip=10.0.0.22 vhost-user.queues=2
    check "guest 2 is back after port del and add" pings_within 30 ep1 10.0.0.22
}
not() { ! "$@"; }

restart() {
    stop_switch "$1"
    sleep 1
    check "the switch is back after SIG$1" start_switch "$WORK/host.toml"
    all_ping "after SIG$1"
}

main() {
    write_config >"$WORK/host.toml"
    check "QEMU's option to connect again goes by its version" reconnect_by_version
    check "the switch starts" start_switch "$WORK/host.toml"
    check "two endpoints start" start_endpoints
    say "     guests run under $("$GUEST" accel)"
    check "guest 1 boots (switch in server mode)" start_guest vm1
    check "guest 2 boots (switch in client mode)" start_guest vm2
    all_ping "first"
    check "guest 1 hears every command while other processes end" hears_beside_orphans
    check "guest 1 has split rings" not has_packed_rings vm1
    check "guest 2 has packed rings" has_packed_rings vm2
    check "iperf3 guest 1 to guest 2" iperf vm1 10.0.0.22
    check "iperf3 guest 2 to guest 1" iperf vm1 10.0.0.22 -R
    check "iperf3 guest 1 to endpoint 1" iperf vm1 10.0.0.11
    check "iperf3 endpoint 1 to guest 1" iperf vm1 10.0.0.11 -R
    check "iperf3 endpoint 2 to endpoint 1" iperf ep1 10.0.0.12 -R
    tso_passes ep1 ep2 10.0.0.12
    tso_passes vm1 vm2 10.0.0.22
    guest_limited
    check "counters add up" counters_settle
    undisturbed "kill -9 of guest 2" kill_guest
    undisturbed "port del and add" delete_and_add
    check "counters add up after both" counters_settle
    restart TERM
    restart KILL
    check "iperf3 guest 1 to guest 2 after the restarts" iperf vm1 10.0.0.22
    check "counters add up at the end" counters_settle
}

run_with_guests test-guests "guests and endpoints"
