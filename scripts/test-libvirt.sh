#!/usr/bin/env bash
# Tests Linux guests that libvirt starts on a running switch. The guest `vm1` has a socket on which
# the switch listens (libvirt's mode='client'), and `vm2` has a socket to which the switch connects
# (mode='server'). Meanwhile two endpoints, the third party, ping each other through the same switch
# five times a second. Each step checks its own result, and that the third party lost nothing.
#
# A round is a ring format and a number of queue pairs: split and packed, 1 and 2. In each round both
# guests boot, exchange pings and iperf3, get and lose a NIC, are suspended, reset, rebooted, saved
# and restored, get more memory, boot with an MTU, rings of 1024 and no offloads, and survive
# `kill -9` of the switch and of QEMU. They lose nothing at restarts of the switch under a service
# manager. After the rounds a guest moves between two libvirt daemons, and a guest asks for more
# queues than its port has.
#
# The script starts libvirtd and virtlogd of its own, in mount namespaces with directories of their
# own, and never touches another libvirt. Prints PASS, FAIL and SKIP lines. Needs root.
#
#   test-libvirt.sh                  everything: 15 to 25 minutes without KVM
#   test-libvirt.sh --smoke          two guests in client mode, two queue pairs, restarts and
#                                    `kill -9`: two minutes
#   test-libvirt.sh ROUND...         only these rounds, such as `split-1` or `packed-2`, or `end`
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/libvirt.sh
. "$REPO/scripts/libvirt.sh"

GUEST=$REPO/scripts/guest.sh
TAG=psv$$
EACH=${SECONDS_EACH:-2}

cleanup() {
    trap '' INT TERM HUP
    stop_libvirt "$WORK/a"
    stop_libvirt "$WORK/b"
    tidy_up
    remove_mount_points
    if [ "$FAILED" != 0 ] && [ -z "${KEEP:-}" ]; then
        tail -n 15 "$WORK"/*.log "$WORK"/?/var/log/libvirt/*.log "$WORK"/?/var/log/libvirt/qemu/*.log
    fi
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

# --- the switch and the third party ---

# vhost_port NAME MODE [OWNER]: MODE is the switch's.
vhost_port() {
    printf '\n[[port]]\nname = "%s"\ntenant = "blue"\nvhost-user.mode = "%s"\n' "$1" "$2"
    printf 'vhost-user.socket = "%s"\nvhost-user.queues = 2\n' "$(socket_of "$1")"
    [ -z "${3:-}" ] || printf 'vhost-user.socket_owner = "%s"\n' "$3"
}
# QEMU runs as its own user, and makes the sockets of mode='server' itself.
socket_of() { echo "$WORK/sockets/$1.sock"; }

write_config() {
    local owner port
    owner=$(qemu_user)
    switch_config test-libvirt
    printf '\n[[tenant]]\nname = "blue"\n'
    for port in vm1 moved hot1; do vhost_port "$port" server "$owner"; done
    if [ -n "$SMOKE" ]; then vhost_port vm2 server "$owner"; else vhost_port vm2 client; fi
    vhost_port hot2 client
    vhost_port ep1 server
    vhost_port ep2 server
}

start_third_party() {
    own_netns "$TAG-ep1"
    own_netns "$TAG-ep2"
    spawn "$WORK/endpoint.log" taskset -c "$(others_cores)" "$BIN" endpoint --create-netns \
        --nic "netns=$TAG-ep1,socket=$(socket_of ep1),mac=52:54:00:00:01:01,ip=10.0.0.11/24" \
        --nic "netns=$TAG-ep2,socket=$(socket_of ep2),mac=52:54:00:00:01:02,ip=10.0.0.12/24"
    local n
    for n in ep1 ep2; do
        wait_until 10 test -e "/run/netns/$TAG-$n" || return
        quiet_ipv6 "$TAG-$n"
    done
    wait_until 10 ping_from "$TAG-ep1" 10.0.0.12 1 || return
    spawn_in "$TAG-ep1" "$WORK/third.log" busybox ping -i 0.2 -W 3 10.0.0.12
    wait_until 5 third_past 1
}
third_last() { sed -n 's/.* seq=\([0-9]*\) .*/\1/p' "$WORK/third.log" | tail -n 1; }
third_past() { [ "$(third_last)" -gt "$1" ]; }
# third_lost FROM: the pings after number FROM that were not answered, of those before the last one.
third_lost() {
    awk -v from="$1" '/ seq=/ { sub(".* seq=", ""); seen[n = $1 + 0] }
        END { for (i = from + 1; i < n; i++) lost += !(i in seen); print lost + 0 }' "$WORK/third.log"
}

# act WHAT command...: a step of which the third party must not notice anything.
act() {
    local what=$1 from start=$SECONDS lost
    shift
    from=$(third_last)
    if "$@" >"$WORK/act.out" 2>&1; then
        pass "$ROUND, $what ($((SECONDS - start)) s)"
    else
        fail "$ROUND, $what ($((SECONDS - start)) s)"
        tail -n 5 "$WORK/act.out" | sed 's/^/     /'
        show_ports
    fi
    { say "== $ROUND, $what" && cat "$WORK/act.out"; } >>"$WORK/acts.log"
    lost=all
    ! wait_until 10 third_past "$(third_last)" || lost=$(third_lost "$from")
    [ "$lost" = 0 ] || {
        fail "$ROUND, $what: the third party lost $lost pings"
        ctl stats ep1 ep2 vm1 vm2 --json |
            tr -d ' \n' | grep -o '"\(tx_\)\?drops":{[^}]*}' | sed 's/^/     /'
    }
}
show_ports() { ctl port list | sed "s#$WORK/sockets/##g; s/^/     /"; }
not() { ! "$@"; }

# --- guests ---

on_a() { virsh_of "$WORK/a" "$@"; }
on_b() { virsh_of "$WORK/b" "$@"; }
# Facts of a guest: its address, its MAC address and libvirt's mode of its socket.
address_of() { case $1 in vm1 | moved) echo 10.0.0.21 ;; vm2) echo 10.0.0.22 ;; esac; }
mac_of() { case $1 in vm1 | moved) echo 52:54:00:00:02:01 ;; vm2) echo 52:54:00:00:02:02 ;; esac; }
mode_of() { if [ -z "$SMOKE" ] && [[ $1 == *2 ]]; then echo server; else echo client; fi; }
peer_of() { if [ "$1" = vm2 ]; then echo 10.0.0.21; else echo 10.0.0.22; fi; }
# inside GUEST COMMAND [SECONDS]
inside() { "$GUEST" exec "$1" "${2//$'\n'/ }" "${3:-20}"; }

# define GUEST [DRIVER [MORE [OVERRIDE]]]: defines the domain of a guest with the round's rings.
define() {
    local name=$1 driver="queues='$QUEUES'"
    [ "$RING" = split ] || driver+=" packed='on'"
    domain_xml "$name" "$MEMORY" "penstock.ip=$(address_of "$name")/24" \
        "$(nic_xml "$(socket_of "$name")" "$(mode_of "$name")" "$(mac_of "$name")" nic \
            "$driver ${2-}" "${3-}")" "${4-}" >"$WORK/$name.xml"
    on_a define "$WORK/$name.xml" || return
    "$GUEST" adopt "$name" "$WORK/a/run/libvirt/qemu/$name.pid"
}
boots() { grep -c ^READY "$PENSTOCK_GUESTS/$1/console.log"; }
booted_more() { [ "$(boots "$1")" -gt "$2" ]; }
# Whether as many queue pairs as the round has pass frames.
passes_pairs() { ctl port show "$1" | grep -q "$QUEUES of 2 queue pairs can pass frames"; }
is_packed() { ctl port show "$1" | grep -q '^features.* packed'; }
pings() { inside "$1" "ping -c ${3:-3} -W 2 $2"; }
reaches() { wait_until 20 pings "$1" "$(peer_of "$1")" 1 && pings "$1" "$(peer_of "$1")"; }

boot() {
    on_a start "$1" && "$GUEST" wait-ready "$1" 90 && wait_until 15 passes_pairs "$1"
}
has_round_rings() { if [ "$RING" = packed ]; then is_packed "$1"; else not is_packed "$1"; fi; }
iperf() {
    local out
    out=$(inside "$1" "iperf3 -c $(peer_of "$1") -t $EACH ${2-}" 60)
    RATE=$(iperf_rate "$out")
    [ -n "$RATE" ]
}

# --- steps ---

# A NIC comes, passes frames, and goes.
plug() {
    local port=hot${1#vm} mac=52:54:00:00:03:0${1#vm} driver="queues='$QUEUES'"
    [ "$RING" = split ] || driver+=" packed='on'"
    nic_xml "$(socket_of "$port")" "$(mode_of "$port")" "$mac" hot "$driver" >"$WORK/$port.xml"
    on_a attach-device "$1" "$WORK/$port.xml" --live &&
        wait_until 15 inside "$1" 'test -d /sys/class/net/eth1' &&
        inside "$1" "ip link set eth1 up && ip addr add 10.0.1.2${1#vm}/24 dev eth1" &&
        wait_until 15 passes_pairs "$port"
}
# Both guests' second NICs are in a subnet of their own.
hot_ping() { wait_until 15 pings vm1 10.0.1.22 1 && pings vm1 10.0.1.22; }
unplug() {
    local port=hot${1#vm}
    on_a detach-device "$1" "$WORK/$port.xml" --live &&
        wait_until 15 inside "$1" 'test ! -d /sys/class/net/eth1' &&
        wait_until 15 not port_is_up "$port" && reaches "$1"
}
suspend() {
    on_a suspend "$1" && [ "$(on_a domstate "$1")" = paused ] && third_on && on_a resume "$1" &&
        reaches "$1"
}
# The third party goes on for a second.
third_on() { wait_until 10 third_past $(($(third_last) + 5)); }
# again GUEST command...: the command makes the guest boot again in the same QEMU.
again() {
    local name=$1 before
    shift
    before=$(boots "$name")
    "$@" && wait_until 90 booted_more "$name" "$before" && wait_until 15 passes_pairs "$name" &&
        reaches "$name"
}
inside_reboot() { inside "$1" '(reboot -f) >/dev/null 2>&1 &'; }
save_restore() {
    inside "$1" 'echo kept >/tmp/kept' && on_a save "$1" "$WORK/$1.save" && third_on &&
        on_a restore "$WORK/$1.save" && rm "$WORK/$1.save" &&
        inside "$1" 'grep kept /tmp/kept' && wait_until 15 passes_pairs "$1" && reaches "$1"
}
# More memory comes. The old memory is then filled, so frames are in the new memory.
more_memory() {
    local before
    cat >"$WORK/dimm.xml" <<END
<memory model='dimm' access='shared'>
  <target><size unit='MiB'>256</size><node>0</node></target>
</memory>
END
    before=$(memory_of "$1")
    on_a attach-device "$1" "$WORK/dimm.xml" --live &&
        wait_until 20 has_memory "$1" $((before + 200000)) &&
        inside "$1" "mount -o remount,size=100% /tmp; dd if=/dev/zero of=/tmp/fill bs=1M count=$((MEMORY - 40))" 60 &&
        reaches "$1" && iperf "$1" && iperf "$1" -R && inside "$1" 'rm /tmp/fill'
}
memory_of() { inside "$1" 'sed -n "s/^MemTotal: *//p" /proc/meminfo' | tr -dc 0-9; }
has_memory() { [ "$(memory_of "$1")" -ge "$2" ]; }

# Boots after the end of QEMU, with rings of 1024, an MTU of 9000 and no offloads.
OFF_HOST="csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off' mrg_rxbuf='on'"
OFF_GUEST="csum='off' tso4='off' tso6='off' ecn='off' ufo='off'"
variant() {
    define "$1" "rx_queue_size='1024' tx_queue_size='1024'" "<host $OFF_HOST/><guest $OFF_GUEST/>" \
        "$(override_xml nic host_mtu 9000)" && boot "$1" && reaches "$1"
}
has_no_offloads() {
    ctl port show "$1" && not grep -qE '^features.*(csum|tso)' <<<"$(ctl port show "$1")"
}
has_long_rings() { ctl port show "$1" | grep -q '^ring sizes *1024 1024'; }
# The guest's driver takes the MTU of the device as its limit.
has_mtu() { inside "$1" 'ip link set eth0 mtu 9000 && ! ip link set eth0 mtu 9001'; }
large_ping() { inside "$1" "ping -c 2 -W 2 -s 8900 $(peer_of "$1")"; }

kill_qemu() {
    local pid
    pid=$(cat "$WORK/a/run/libvirt/qemu/$1.pid") && kill -KILL "$pid" && wait_until 10 gone "$pid" &&
        wait_until 10 is_shut_off "$1" && wait_until 5 not port_is_up "$1"
}
again_after_kill() { define "$1" && boot "$1" && reaches "$1"; }
is_shut_off() { [ "$(on_a domstate "$1")" = "shut off" ]; }

# The third party loses pings while no switch runs, so only its return is checked.
kill_switch() {
    local name from
    stop_switch KILL
    check "$ROUND, kill -9 of the switch: it starts again" start_switch "$WORK/host.toml"
    from=$(third_last)
    check "$ROUND, kill -9 of the switch: the third party is back" wait_until 10 third_past "$from"
    for name in vm1 vm2; do
        act "$name ($(mode_of "$name")): is back after kill -9 of the switch" reaches "$name"
        act "$name ($(mode_of "$name")): has all queue pairs again" wait_until 15 passes_pairs "$name"
    done
}

# --- restarts of the switch ---

RESTARTS=3
# QEMU in client mode connects again after a second (`<reconnect>` in nic_xml), and the session then
# starts within 100 ms on a calm machine. The ping's silence has no limit here, because a guest may
# need another second until it uses its link again.
OUTAGE_MS=$((1000 + $(patience 100)))
# begin_pings: an endpoint pings each guest every 10 ms. The ping is that of iputils, because the
# ping of busybox has a small buffer and loses answers in bursts. The third party pings with busybox
# in the other namespace.
begin_pings() {
    local name
    PINGS=() SERVERS=()
    for name in vm1 vm2; do
        rm -f "$WORK/ping-$name.log"
        spawn_in "$TAG-ep2" "$WORK/ping-$name.log" ping -n -D -i 0.01 "$(address_of "$name")"
        PINGS+=("$SPAWNED")
        SOCKETS[$name]=$(sockets_of "$name")
    done
    more_frames
}
# begin_streams: each guest sends 100 datagrams a second on each queue pair. Linux sends the frames
# of vCPU n on queue pair n.
begin_streams() {
    local name n port
    for name in vm1 vm2; do
        for ((n = 0; n < QUEUES; n++)); do
            port=52${name#vm}$n
            rm -f "$WORK/udp-$name-$n.json"
            spawn_in "$TAG-ep1" "$WORK/udp-$name-$n.json" iperf3 -s -1 -J -p "$port"
            SERVERS+=("$SPAWNED")
            wait_until 10 listens_on "$port" || return
            inside "$name" "taskset -c $n iperf3 -u -b 80K -l 100 -t 600 -c 10.0.0.11 -p $port \
                >/dev/null 2>&1 &" || return
        done
    done
    more_frames
}
listens_on() { in_netns "$TAG-ep1" ss -ltn | grep -q ":$1 "; }
# Waits until each guest has received 100 more frames.
more_frames() {
    local name before
    for name in vm1 vm2; do
        before=$(port_counter "$name" tx_frames)
        wait_until 15 has_frames "$name" $((before + 100)) || return
    done
}
has_frames() { [ "$(port_counter "$1" tx_frames)" -ge "$2" ]; }
end_pings() { kill -INT "${PINGS[@]}" && wait "${PINGS[@]}"; }
# The endpoint's servers print their results when the guests end the streams. The guest's own server
# ends too, and starts again.
end_streams() {
    local name pid
    for name in vm1 vm2; do
        inside "$name" 'killall iperf3 && sleep 1; iperf3 -s -D >/dev/null 2>&1' || return
    done
    for pid in "${SERVERS[@]}"; do wait_until 10 gone "$pid" || return; done
}
# streams_are_whole GUEST: the datagrams of each queue pair arrived, until the end.
streams_are_whole() {
    local n
    for ((n = 0; n < QUEUES; n++)); do
        udp_is_whole "$WORK/udp-$1-$n.json" || return
    done
}
# The connections of a guest's QEMU. A connection that QEMU makes again is another socket.
declare -A SOCKETS
sockets_of() {
    find "/proc/$(cat "$WORK/a/run/libvirt/qemu/$1.pid")/fd" -lname 'socket:*' -printf '%l\n' | sort
}
kept_connection() { [ "$(sockets_of "$1")" = "${SOCKETS[$1]-}" ]; }

# outage PORT: the time in ms from the last end of a session to the last start of a session.
outage() {
    local down up
    down=$(awk -v port="port=$1" '/driver disconnected/ && $NF == port { print $1 }' \
        "$WORK/host.log" | tail -n 1)
    up=$(grep "driver connected port=$1 " "$WORK/host.log" | tail -n 1 | cut -d' ' -f1)
    echo $((($(date -d "$up" +%s%N) - $(date -d "$down" +%s%N)) / 1000000))
}
starts() { grep -c '^service manager: start' "$WORK/host.log"; }
started_more() { [ "$(starts)" -gt "$1" ] && ctl host show; }
# Whether so many sessions continue since the last start of the switch.
continued() {
    awk -v number="$1" '/^service manager: start/ { n = 0 }
        /session of the former process continues/ { n++ } END { exit n != number }' "$WORK/host.log"
}
# Restarts the switch as `systemctl restart` does. The sessions of both guests and of both endpoints
# go on.
restart_kept() {
    local before
    before=$(starts)
    kill -HUP "$SWITCH" && wait_until 15 started_more "$before" && wait_until 5 continued 4 &&
        more_frames
}
is_at_most() { [ "$1" -le "$2" ]; }

restarts() {
    local name mode n ms log
    # Without a service manager, no session is kept. The next switch has one.
    act "an endpoint pings both guests" begin_pings
    stop_switch
    MANAGER=("$REPO/scripts/service-manager.py" "$WORK/notify.sock")
    check "$ROUND, stop and start of the switch" start_switch "$WORK/host.toml"
    check "$ROUND, stop and start: both guests receive frames again" more_frames
    end_pings
    for name in vm1 vm2; do
        mode="$name ($(mode_of "$name"))"
        mode="$ROUND, $mode: stop and start"
        check "$mode: QEMU connects again" not kept_connection "$name"
        ms=$(outage "$name")
        check "$mode: no session for $ms ms, at most $OUTAGE_MS ms" is_at_most "$ms" "$OUTAGE_MS"
        say "     $mode: longest silence $(silence "$WORK/ping-$name.log") ms"
    done
    act "an endpoint pings both guests" begin_pings
    act "both guests send on all queue pairs" begin_streams
    for ((n = 1; n <= RESTARTS; n++)); do
        act "restart $n of $RESTARTS: the sessions of all ports go on" restart_kept
    done
    end_pings
    act "the streams go on until they are ended" end_streams
    for name in vm1 vm2; do
        mode="$name ($(mode_of "$name"))" log=$WORK/ping-$name.log
        act "$mode: QEMU keeps its connection over $RESTARTS restarts" kept_connection "$name"
        act "$mode: all queue pairs pass frames" passes_pairs "$name"
        act "$mode: every ping is answered, in order" all_answered "$log"
        act "$mode: every datagram arrives, in order" streams_are_whole "$name"
        say "     $mode: longest silence $(silence "$log") ms over $RESTARTS restarts"
    done
    stop_switch
    MANAGER=()
    check "$ROUND, the switch starts without a service manager" start_switch "$WORK/host.toml"
    check "$ROUND, the third party is back" wait_until 10 third_past "$(third_last)"
    for name in vm1 vm2; do
        act "$name ($(mode_of "$name")): is back" reaches "$name"
    done
}

# begin RING QUEUES: both guests boot with the rings of the round.
begin() {
    RING=$1 QUEUES=$2 ROUND="$1 rings, $2 queue pairs"
    local name
    for name in vm1 vm2; do
        act "$name ($(mode_of "$name")): define" define "$name"
        act "$name ($(mode_of "$name")): start" boot "$name"
        act "$name ($(mode_of "$name")): has the rings" has_round_rings "$name"
    done
    [ -n "${CPU_CGROUP+set}" ] || hook_works
    act "ping" reaches vm1
    act "iperf3 vm1 to vm2" iperf vm1
    act "iperf3 vm2 to vm1" iperf vm1 -R
}
end_round() {
    local name
    for name in vm1 vm2; do
        act "$name ($(mode_of "$name")): destroy" on_a destroy "$name"
        act "$name: undefine" on_a undefine "$name"
    done
}
full_round() {
    local name mode
    begin "$1" "$2"
    for name in vm1 vm2; do
        act "$name ($(mode_of "$name")): a NIC is plugged" plug "$name"
    done
    act "ping between the plugged NICs" hot_ping
    for name in vm1 vm2; do
        mode="$name ($(mode_of "$name"))"
        act "$mode: the NIC is unplugged" unplug "$name"
        act "$mode: suspend, resume" suspend "$name"
        act "$mode: reset" again "$name" on_a reset "$name"
        act "$mode: reboot by the guest" again "$name" inside_reboot "$name"
        act "$mode: save, restore" save_restore "$name"
        act "$mode: memory is plugged" more_memory "$name"
    done
    restarts
    kill_switch
    for name in vm1 vm2; do
        mode="$name ($(mode_of "$name"))"
        act "$mode: kill -9 of QEMU" kill_qemu "$name"
        act "$mode: boots again, with rings of 1024, MTU 9000, no offloads" variant "$name"
        act "$mode: rings of 1024" has_long_rings "$name"
        act "$mode: no offloads" has_no_offloads "$name"
        act "$mode: the driver's limit is MTU 9000" has_mtu "$name"
    done
    act "ping of 8900 bytes" large_ping vm1
    end_round
}
smoke() {
    begin split 2
    restarts
    kill_switch
    act "vm1 (client): kill -9 of QEMU" kill_qemu vm1
    act "vm1 (client): boots again" again_after_kill vm1
    end_round
}
# --- the steps after the rounds ---

# Migration to another libvirtd on this machine. The guest's port there is `moved`. Neither port is
# bound to the guest's address, so the switch learns where it is.
migrate() {
    local from=$1 to=$2 daemon=$3 other=$4 ping status=0
    "$GUEST" adopt "$to" "$WORK/$other/run/libvirt/qemu/$to.pid" || return
    virsh_of "$WORK/$daemon" dumpxml --migratable "$from" |
        sed "s#/$from\.sock#/$to.sock#; s#/guests/$from/#/guests/$to/#" >"$WORK/$to.xml"
    rm -f "$WORK/ping-$to.log"
    spawn_in "$TAG-ep1" "$WORK/ping-$to.log" busybox ping -i 0.02 -W 5 10.0.0.21
    ping=$SPAWNED
    wait_until 10 grep -q 'seq=20' "$WORK/ping-$to.log"
    virsh_of "$WORK/$daemon" migrate --live --xml "$WORK/$to.xml" --dname "$to" "$from" \
        "$(uri_of "$WORK/$other")" "unix://$WORK/sockets/$to.migration" || status=1
    wait_until 10 knows "$to" || status=1
    wait_until 10 ping_from "$TAG-ep1" 10.0.0.21 1 || status=1
    kill -INT "$ping" && wait_until 5 gone "$ping"
    say "silence: $(longest_silence "$WORK/ping-$to.log") ms"
    return "$status"
}
knows() { ctl fdb list | grep 52:54:00:00:02:01 | grep -qw "$1"; }
still_the_same() { inside "$1" 'grep kept /tmp/kept' && wait_until 15 passes_pairs "$1" && reaches "$1"; }
migrations() {
    act "the second libvirtd starts" start_libvirt "$WORK/b" 'cgroup_controllers = []'
    for RING in split packed; do
        ROUND="migration, $RING rings" QUEUES=2
        act "define" define vm1
        act "start" boot vm1
        inside vm1 'echo kept >/tmp/kept'
        act "to the second libvirtd" migrate vm1 moved a b
        grep -h '^silence' "$WORK/act.out" | sed 's/^/     /'
        act "the guest runs on, and has all queue pairs" still_the_same moved
        act "back" migrate moved vm1 b a
        grep -h '^silence' "$WORK/act.out" | sed 's/^/     /'
        act "the guest runs on, and has all queue pairs again" still_the_same vm1
        act "destroy" on_a destroy vm1
    done
}
# More queues than the port has: QEMU tries again and again, and `virsh start` does not return.
too_many_queues() {
    local start
    ROUND="4 pairs on a port of 2" RING=split QUEUES=4
    act "define" define vm1
    spawn "$WORK/start.out" virsh -q -c "$(uri_of "$WORK/a")" start vm1
    start=$SPAWNED
    # shellcheck disable=SC2016 # the quotes are part of the message
    act "the port names the remedy" wait_until 10 port_says vm1 'more `queues`'
    ctl port list | sed -n "s#$WORK/sockets/##g; /^vm1/s/^/     /p"
    # shellcheck disable=SC2016 # likewise
    act "the log names the remedy" grep 'more `queues` port=vm1' "$WORK/host.log"
    check "$ROUND, virsh start waits" not gone "$start"
    act "virsh destroy ends the start" on_a destroy vm1
    check "$ROUND, virsh start has ended" wait_until 10 gone "$start"
    spawn "$WORK/start.out" virsh -q -c "$(uri_of "$WORK/a")" start vm1
    start=$SPAWNED
    # shellcheck disable=SC2016 # likewise
    act "the port says it again" wait_until 10 port_says vm1 'more `queues`'
    act "the port gets 4 pairs" set_queues 4
    check "$ROUND, virsh start succeeds by itself" ended_well "$start"
    act "the guest boots and reaches its peer" ready_and_reaches vm1
    on_a destroy vm1
    act "the port gets 2 pairs again" set_queues 2
}
domain_runs() { [ "$(on_a domstate "$1")" = running ]; }
# `port set` replaces the whole table.
set_queues() {
    ctl port set vm1 --no-save \
        "vhost-user={ socket = \"$(socket_of vm1)\", queues = $1, socket_owner = \"$(qemu_user)\" }"
}
ended_well() { wait_until 15 gone "$1" && wait "$1"; }
ready_and_reaches() { domain_runs "$1" && "$GUEST" wait-ready "$1" 90 && reaches "$1"; }
# Domains that start before the switch: `virsh start` waits for it in both modes.
late_switch() {
    local name pids=()
    ROUND="start before the switch" RING=split QUEUES=2
    on_a destroy vm2
    define vm1
    define vm2
    stop_switch
    for name in vm1 vm2; do
        spawn "$WORK/start-$name.out" virsh -q -c "$(uri_of "$WORK/a")" start "$name"
        pids+=("$SPAWNED")
    done
    check "$ROUND, both domains have a QEMU" wait_until 10 test -e "$WORK/a/run/libvirt/qemu/vm1.pid" \
        -a -e "$WORK/a/run/libvirt/qemu/vm2.pid"
    check "$ROUND, virsh start waits" not gone "${pids[0]}"
    check "$ROUND, virsh start waits in the other mode" not gone "${pids[1]}"
    check "$ROUND, the switch starts" start_switch "$WORK/host.toml"
    check "$ROUND, virsh start succeeds" ended_well "${pids[0]}"
    check "$ROUND, virsh start succeeds in the other mode" ended_well "${pids[1]}"
    check "$ROUND, the third party is back" wait_until 10 third_past "$(third_last)"
    for name in vm1 vm2; do act "$name boots and reaches its peer" ready_and_reaches "$name"; done
}
port_says() { port_state "$1" | grep -q "$2"; }
# The domains that docs/guides/libvirt.md prints. Their type is kvm, which may be missing here.
guide_domains() {
    local name n=0
    awk -v to="$WORK/guide" '/^<domain/ { n++ } /^```xml/ { xml = 1; next } /^```/ { xml = 0 }
        xml { print >(to n ".xml") }' "$REPO/docs/guides/libvirt.md"
    for name in "$WORK"/guide*.xml; do
        # Parts of a domain have dots where they leave out lines.
        ! grep -qx ' *\.\.\.' "$name" || continue
        n=$((n + 1))
        [ "$ACCEL" = kvm ] || sed -i "s/'kvm'/'qemu'/; s/host-passthrough/maximum/" "$name"
        on_a define "$name" && on_a undefine web || return
    done
    [ "$n" = 2 ]
}
# What libvirt refuses for this type of interface. The lines report it, and fail nothing, because
# another version may do more.
libvirt_refuses() {
    local target
    target=$(on_a domiflist vm1 | awk '/vhostuser/ { print $5 }')
    report "domifstat by MAC address" on_a domifstat vm1 "$target"
    report "domif-setlink" on_a domif-setlink vm1 "$target" down
    report "domiftune" on_a domiftune vm1 "$target" --inbound 1000
    report "domstats" on_a domstats vm1 --interface
    on_a destroy vm1 >/dev/null
    sed "s#<model type='virtio'/>#&<mtu size='9000'/>#" "$WORK/vm1.xml" >"$WORK/mtu.xml"
    on_a define "$WORK/mtu.xml" >/dev/null
    "$GUEST" adopt vm1 "$WORK/a/run/libvirt/qemu/vm1.pid"
    report "<mtu size='9000'/>" on_a start vm1
    on_a destroy vm1 >/dev/null 2>&1
    on_a undefine vm1 >/dev/null
}
report() {
    local what=$1 out how=works
    shift
    out=$("$@" 2>&1) || how=refused
    say "     libvirt, $what: $how: $(paste -sd' ' <<<"$out")"
}
last_steps() {
    RING=split QUEUES=2 ROUND="last steps"
    act "libvirt accepts the domains of the guide" guide_domains
    act "define vm2" define vm2
    act "start vm2" boot vm2
    migrations
    too_many_queues
    late_switch
    libvirt_refuses
    ROUND="last steps"
    act "destroy vm2" on_a destroy vm2
    act "undefine vm2" on_a undefine vm2
}

# --- vCPU budgets ---

# The hook script gives vCPUs with a deadline of 8 ms an eighth of a processor.
install_hook() {
    local hooks=$WORK/a/etc/libvirt/hooks/qemu.d
    mkdir -p "$hooks"
    printf '[[vm]]\nname = "a"\ndomain = "vm1"\nvcpu_mode = "periodic"\ndeadline = "8 ms"\n' >"$WORK/vcpu.toml"
    printf '#!/bin/sh\nPENSTOCK_CONFIG=%s exec %s "$@"\n' "$WORK/vcpu.toml" \
        "$REPO/packaging/libvirt-hook-qemu" >"$hooks/penstock"
    chmod 755 "$hooks/penstock"
}
budgets() { cat "$CPU_CGROUP"/machine/qemu-*-"$1".libvirt-qemu/vcpu*/cpu.rt_runtime_us | paste -sd' '; }
takes_realtime() {
    local tid pid
    pid=$(cat "$WORK/a/run/libvirt/qemu/$1.pid")
    tid=$(grep -l '^CPU 0/' "/proc/$pid"/task/*/comm | sed 's#/comm##; s#.*/##')
    chrt --fifo --pid 1 "$tid" && chrt --other --pid 0 "$tid"
}
budgets_are() { [ "$(budgets "$1")" = "$2" ]; }
hook_works() {
    local hook=$REPO/packaging/libvirt-hook-qemu
    act "hook: no arguments" is_quiet "$hook"
    act "hook: another operation" is_quiet "$hook" vm1 prepare begin -
    act "hook: a domain that does not run" is_quiet "$hook" no-such-domain started begin -
    CPU_CGROUP=$(cpu_cgroup)
    if [ -z "$CPU_CGROUP" ]; then
        skip "libvirt hook: the kernel has no budgets of groups"
        return
    fi
    act "hook: vm1 with a deadline of 8 ms has its budget" budgets_are vm1 "125000 125000"
    act "hook: a vCPU takes a real-time policy" takes_realtime vm1
    act "hook: vm2 without a deadline has none" budgets_are vm2 "0 0"
}
is_quiet() {
    local out
    out=$(PENSTOCK_CONFIG=$WORK/vcpu.toml "$@" 2>&1 </dev/null) && [ -z "$out" ]
}

main() {
    ROUND=start
    check "the switch starts" start_switch "$WORK/host.toml"
    check "the third party starts" start_third_party
    check "libvirtd starts in directories of its own" start_libvirt "$WORK/a"
    say "     $(on_a version | sed -n 's/^Using library: //p;s/^Running hypervisor: //p' | paste -sd,), $ACCEL"
    local round
    for round in $ROUNDS; do
        case $round in
        smoke) smoke ;;
        end) last_steps ;;
        *) full_round "${round%-*}" "${round#*-}" ;;
        esac
    done
    check "counters add up" counters_settle
}

BIN=$(penstock_bin)
SMOKE="" ROUNDS="split-1 split-2 packed-1 packed-2 end" MEMORY=192
case ${1:-} in
--smoke) SMOKE=1 ROUNDS=smoke ;;
?*) ROUNDS=$* ;;
esac
if [ "$(id -u)" != 0 ]; then
    skip "libvirt: needs root for namespaces and libvirtd"
elif [ ! -c /dev/net/tun ]; then
    skip "libvirt: no /dev/net/tun"
elif ! have qemu-system-x86_64; then
    skip "libvirt: qemu-system-x86_64 is not installed"
elif ! have libvirtd || ! have virtlogd || ! have virsh; then
    skip "libvirt: libvirtd, virtlogd or virsh is not installed"
elif ! IMAGE=$("$REPO/scripts/guest-image.sh"); then
    skip "libvirt: no guest image"
elif [ ! -x "$BIN" ]; then
    fail "$BIN is not built: run \`make build\`"
else
    own_switch_dir test-libvirt
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    # QEMU's user must reach the sockets, the pipes and the image.
    mkdir -p "$WORK/sockets" "$WORK/guests"
    chmod 755 "$WORK" && chmod 777 "$WORK/sockets"
    KERNEL=$WORK/kernel INITRD=$WORK/initrd
    { read -r image && cp "$image" "$KERNEL" && read -r image && cp "$image" "$INITRD"; } <<<"$IMAGE"
    ACCEL=$("$GUEST" accel)
    write_config >"$WORK/host.toml"
    install_hook
    main
fi
verdict libvirt
