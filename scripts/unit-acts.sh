#!/usr/bin/env bash
# Tests the switch under its unit, as its own user. test-units.sh makes under-unit.sh run this
# script in a container. Prints PASS, FAIL and SKIP lines. Elsewhere the script would install units,
# so it requires a marker file.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
[ -e /etc/penstock-container ] || die "runs only in under-unit.sh's container"

BIN=/opt/penstock
SOCKET=/run/penstock/host.sock
CONFIG=/etc/penstock/host.toml
# NET_ADMIN, NET_RAW and BPF in the notation of /proc.
CAPABILITIES=0000008000003000

main_pid() { systemctl show -p MainPID --value penstock; }
# status_of TASK KEY: returns a line of /proc/TASK/status.
status_of() { awk -v key="$2:" '$1 == key { print $2 }' "/proc/$1/status"; }
status_is() { [ "$(status_of "$1" "$2")" = "$3" ] || { say "$2: $(status_of "$1" "$2")"; false; }; }
# threads_named NAME: returns the threads with this name, one per line.
threads_named() {
    local task
    for task in "/proc/$(main_pid)/task"/*; do
        case $(cat "$task/comm") in $1) basename "$task" ;; esac
    done
}
# confined NAME: whether there are such threads, each without a capability and with its own filter
# beyond the unit's.
confined() {
    local task filters all=0
    filters=$(status_of "$(main_pid)" Seccomp_filters)
    for task in $(threads_named "$1"); do
        all=$((all + 1))
        status_is "$task" CapEff 0000000000000000 && status_is "$task" CapPrm 0000000000000000 &&
            [ "$(status_of "$task" Seccomp_filters)" -gt "$filters" ] || return
    done
    [ "$all" -gt 0 ]
}
refused() { ! "$@" >/dev/null 2>&1; }
owned() { [ "$(stat -c '%U:%G %a' "$1")" = "$2" ] || { stat -c '%U:%G %a' "$1"; false; }; }
no_core() { grep -Eq '^Max core file size +0 +0' "/proc/$(main_pid)/limits"; }
page_answers() {
    exec 3<>/dev/tcp/127.0.0.1/9753 || return
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    grep -q '^penstock_' <&3
}
pings() { ping_from "$1" "$2" 3 >/dev/null; }
# unanswered LOG: prints the sequence numbers without an answer in the output of ping. It omits the
# numbers after the last answered one: ping may end while their answers are on the way.
unanswered() {
    awk '/bytes from/ && match($0, /icmp_seq=[0-9]+/) {
            n = substr($0, RSTART + 9, RLENGTH - 9) + 0
            seen[n] = 1
            if (n > last) last = n
        }
        END { for (n = 1; n <= last; n++) if (!(n in seen)) print n }' "$1"
}
# restart_under_ping TIMES: restarts the switch so often, while one peer pings another every 5 ms.
# The longest silence is in the last line of its output (`max`).
restart_under_ping() {
    local log=/out/restart-ping.log n pinger restarts=0 missing
    ip netns exec acts1 ping -n -i 0.005 -w 60 10.7.0.2 >$log 2>&1 &
    pinger=$!
    for n in $(seq "$1"); do
        wait_until 10 has_answers $((n * 50)) $log && systemctl restart penstock || break
        restarts=$n
    done
    # Answers after the last restart show that the last numbers are not missing for good.
    wait_until 10 has_answers $((restarts * 50 + 50)) $log || restarts=0
    kill -INT $pinger && wait $pinger
    tail -2 $log
    missing=$(unanswered $log)
    [ -z "$missing" ] || say "no answer to icmp_seq $(paste -sd ' ' <<<"$missing")"
    [ -z "$missing" ] && [ "$restarts" = "$1" ]
}
tap_pings() { busybox ping -c 3 -W 1 "$1" >/dev/null; }

write_config() {
    printf '[host]\nname = "unit"\nmetrics = "127.0.0.1:9753"\n\n[worker]\ncores = [%s]\n' \
        "$(worker_core)"
    printf 'idle_backoff_us = 200\n\n[[tenant]]\nname = "blue"\nvlans = [7]\n'
    for port in vm1 vm2; do
        printf '\n[[port]]\nname = "%s"\ntenant = "blue"\nvlan = 7\n' $port
        printf 'vhost-user.socket = "/run/penstock/%s.sock"\nvhost-user.socket_mode = "0660"\n' $port
        printf 'vhost-user.socket_group = "kvm"\n'
    done
    printf '\n[[port]]\nname = "tap1"\ntenant = "blue"\nvlan = 7\n'
    printf 'tap.interface = "ptap1"\n'
}

step "the switch under its unit"
install -d -o penstock -g penstock -m 750 /etc/penstock
write_config >$CONFIG && chown penstock:penstock $CONFIG
mkdir -p /etc/systemd/system/penstock.service.d
check "it starts, and says so to the service manager" systemctl start penstock
check "penstock host show" ctl host show
pid=$(main_pid)
check "its process is its user's" status_is "$pid" Uid "$(id -u penstock)"
for set in CapEff CapPrm CapBnd CapAmb; do
    check "its process has exactly the unit's capabilities ($set)" status_is "$pid" $set $CAPABILITIES
done
check "it cannot get more (NoNewPrivs)" status_is "$pid" NoNewPrivs 1
check "it leaves no core file" no_core
check "its worker has no capability and a filter" confined 'penstock-w*'
check "its sessions have no capability and a filter" confined 'vhost-*'
check "its state is where the unit says" test -d /var/lib/penstock

step ports
check "a socket goes to the group that VMs have" owned /run/penstock/vm1.sock penstock:kvm\ 660
check "the API's socket is its own" owned $SOCKET penstock:penstock\ 600
spawn /out/endpoint.log "$BIN" endpoint --create-netns \
    --nic "netns=acts1,socket=/run/penstock/vm1.sock,mac=52:54:00:00:01:01,ip=10.7.0.1/24" \
    --nic "netns=acts2,socket=/run/penstock/vm2.sock,mac=52:54:00:00:01:02,ip=10.7.0.2/24"
for port in vm1 vm2 tap1; do
    check "port $port is up" wait_until 15 port_is_up $port
done
check "two endpoints ping each other" pings acts1 10.7.0.2
ip address add 10.7.0.3/24 dev ptap1
check "and through the TAP" tap_pings 10.7.0.1
check "a session with a peer has no capability and a filter" confined vhost-vm1

step "the file, the page, the end"
check "port add writes the file" ctl port add tap2 tap.interface=ptap2 tenant=blue vlan=7
check "  and it is there" grep -q ptap2 $CONFIG
check "metrics answer" page_answers
sed -i 's/^name = "blue"/name = "green"/; s/tenant = "blue"/tenant = "green"/' $CONFIG
check "reload" systemctl reload penstock
check "  did what the file says" bash -c "'$BIN' tenant list | grep -q green"
cp $CONFIG /out/right.toml
printf '[nonsense]\n' >>$CONFIG
check "a wrong file is refused" refused systemctl reload penstock
check "  and the former goes on" pings acts1 10.7.0.2
cp /out/right.toml $CONFIG
check "restart" systemctl restart penstock
check "  its peers' sessions go on" wait_until 5 sessions_went_on 2
check "  and ping" pings acts1 10.7.0.2
check "20 restarts under ping lose no packet" restart_under_ping 20

step "the helper"
# The namespace is made after the switch's start, because namespaces come and go.
ip netns add acts3
tap3() { ctl port add tap3 tap.interface=ptap3 tap.netns="$1" tenant=green vlan=7; }
vm3() {
    ctl port add vm3 vhost-user.socket=/run/penstock/vm3.sock vhost-user.socket_owner=nobody tenant=green vlan=7
}
systemctl stop penstock-helper.socket penstock-helper.service
refusal=$(tap3 acts3 2>&1)
check "without it a port in another namespace is refused, and the answer says what is missing" \
    grep -q 'CAP_SYS_ADMIN, or start penstock-helper.socket' <<<"$refusal"
refusal=$(vm3 2>&1)
check "and so is another owner of a socket" grep -q 'start penstock-helper.socket' <<<"$refusal"
check "nothing of it is left" test ! -e /run/penstock/vm3.sock
check "its socket starts" systemctl start penstock-helper.socket
check "its socket is the switch's user's" owned /run/penstock-helper/socket "penstock:penstock 600"
check "a port in another namespace" tap3 acts3
check "  its interface is there" in_netns acts3 ip link show ptap3
ip link add pveth0 type veth peer name pveth1 && ip link set pveth1 netns acts3
check "a packet port there" \
    ctl port add veth packet.interface=pveth1 packet.netns=acts3 tenant=green vlan=7
check "  it is up" wait_until 5 port_is_up tap3
ip link add pveth2 type veth peer name pveth3 && ip link set pveth3 netns acts3
check "an AF_XDP port there is attached as packet" \
    ctl port add xdp xdp.interface=pveth3 xdp.netns=acts3 tenant=green vlan=7
check "  and says why" grep -q 'attached as packet' <<<"$(ctl port show xdp)"
helper=$(systemctl show -p MainPID --value penstock-helper)
check "the helper has exactly its unit's capabilities" status_is "$helper" CapEff 0000000000202001
check "a socket of another user" vm3
check "  its owner" owned /run/penstock/vm3.sock "nobody:penstock 600"
check "the switch has no more capabilities than before" \
    status_is "$(main_pid)" CapEff $CAPABILITIES
check "a namespace named by a path is refused" refused tap3 /run/netns/acts3
check "restart attaches all again" systemctl restart penstock
check "  also in the namespace" in_netns acts3 ip link show ptap3

step "drop-ins"
cp "$REPO"/packaging/penstock-netns.conf "$REPO"/packaging/penstock-sockets.conf \
    /etc/systemd/system/penstock.service.d/
systemctl daemon-reload
systemctl stop penstock-helper.socket penstock-helper.service
check "restart with the drop-ins, without the helper" systemctl restart penstock
check "  the namespace's interface is there" in_netns acts3 ip link show ptap3
check "  and the socket is another user's" owned /run/penstock/vm3.sock "nobody:penstock 600"
check "its worker has no capability then either" confined 'penstock-w*'
check "nor its sessions" confined 'vhost-*'

step "the scheduler of virtual processors beside it"
printf '\n[vcpu]\ncpus = [0]\n\n[[vm]]\nname = "web"\nprocess = "no-such-vm*"\nvcpu_weight = 2\n' >>$CONFIG
check "it starts" systemctl start penstock-vcpu
check "  and lives" wait_until 10 "$BIN" vcpu show
vcpu=$(systemctl show -p MainPID --value penstock-vcpu)
check "  as the switch's user" status_is "$vcpu" Uid "$(id -u penstock)"
check "  with exactly its unit's capabilities" status_is "$vcpu" CapEff 0000000000804002
check "the switch's socket stays its own" owned $SOCKET "penstock:penstock 600"
check "the switch starts again beside it" systemctl restart penstock
check "reload" systemctl reload penstock-vcpu
check "it stops" systemctl stop penstock-vcpu

step "a controller"
FABRIC=/etc/penstock-controller
install -d -o penstock-controller -g penstock-controller -m 750 $FABRIC
cp "$REPO"/examples/two-racks*.toml $FABRIC/
sed 's|/run/penstock/|/run/penstock-controller/|; s|/var/lib/penstock/|/var/lib/penstock-controller/|' \
    "$REPO/examples/controller.toml" >$FABRIC/controller.toml
chown -R penstock-controller: $FABRIC
check "it starts" systemctl start penstock-controller
check "  and answers" "$BIN" --socket /run/penstock-controller/controller.sock controller status
controller=$(systemctl show -p MainPID --value penstock-controller)
check "  as its own user" status_is "$controller" Uid "$(id -u penstock-controller)"
check "  without a capability" status_is "$controller" CapEff 0000000000000000
check "  with a tenant" "$BIN" --socket /run/penstock-controller/controller.sock controller tenant \
    add $FABRIC/two-racks-tenants.toml
check "it stops" systemctl stop penstock-controller

step "the end"
check "it stops" systemctl stop penstock
check "  and ended well" bash -c '[ "$(systemctl show -p Result --value penstock)" = success ]'
check "  its sockets are gone" bash -c '! ls /run/penstock/*.sock 2>/dev/null'
systemctl show penstock -p NRestarts
tidy_up
verdict "the switch under its unit"
