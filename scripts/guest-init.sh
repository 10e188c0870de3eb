#!/bin/busybox sh
# shellcheck shell=dash
# The guest's first and only program: brings the network up, says READY on the console, then runs
# the commands that arrive on the second serial port. One line is one command:
#     ID SECONDS COMMAND...
# The answer is "=BEGIN= ID", the output, and "=END= ID STATUS", each at a line's start.
export PATH=/bin:/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmp /tmp
# Loads modules in the order of their names, and then those that failed. Dependencies differ between
# kernels.
for module in /modules/*.ko; do
    insmod "$module" 2>/dev/null || late="$late $module"
done
for module in $late; do
    insmod "$module" || echo "insmod $module failed"
done
for word in $(cat /proc/cmdline); do
    case $word in
    penstock.ip=*) address=${word#penstock.ip=} ;;
    penstock.mtu=*) mtu=${word#penstock.mtu=} ;;
    esac
done
# Without IPv6, only requested frames are on the wire.
for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 2>/dev/null >"$f"; done
ip link set lo up
if [ -d /sys/class/net/eth0 ]; then
    ip link set eth0 mtu "${mtu:-1500}" up
    [ -z "$address" ] || ip addr add "$address" dev eth0
    iperf3 -s -D >/dev/null 2>&1
fi
stty -F /dev/ttyS1 raw -echo
exec 3<>/dev/ttyS1
echo "READY $(uname -r) after $(cut -d' ' -f1 /proc/uptime) s"
# The commands are read by a shell that is not the first process: orphans are the first process's
# children, and when a child ends, busybox's `read` forgets the part of a line that it has read.
(
    while read -r id seconds command <&3; do
        [ -n "$command" ] || continue
        echo "=BEGIN= $id" >&3
        timeout "$seconds" sh -c "$command" </dev/null >/tmp/answer 2>&1
        status=$?
        cat /tmp/answer >&3
        printf '\n=END= %s %s\n' "$id" "$status" >&3
    done
)
poweroff -f
