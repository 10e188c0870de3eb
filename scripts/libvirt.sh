# Functions of test-libvirt.sh: libvirt daemons with directories of their own, domains, and their
# guests. Scripts source this file after lib.sh. Needs root, libvirtd, virtlogd, virsh and unshare.
# shellcheck shell=bash

# An operator's own libvirt is never touched: each pair of daemons runs in a mount namespace, in
# which these directories are its own.
LIBVIRT_DIRS="etc/libvirt run/libvirt var/lib/libvirt var/log/libvirt var/cache/libvirt"
# Directories that this script made, because libvirt has never run here.
OWN_MOUNT_POINTS=()
# Cgroups of all domains, which libvirt makes and leaves behind without systemd.
OWN_CGROUPS=()
note_cgroups() {
    local mount
    while read -r mount; do
        [ -d "$mount/machine" ] || OWN_CGROUPS+=("$mount/machine")
    done < <(awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts)
}

# The user of libvirt's QEMU processes. Debian makes this user in the package libvirt-daemon-system,
# which the lane does not need. Without the package, only the namespaces know the user, by this
# number, which is the one that Debian reserves.
qemu_user() { id -u libvirt-qemu 2>/dev/null || echo 64055; }

# own_users DIR: writes copies of /etc/passwd and /etc/group with libvirt's user, if it is missing.
own_users() {
    ! id -u libvirt-qemu >/dev/null 2>&1 || return 0
    cp /etc/passwd "$1/passwd"
    cp /etc/group "$1/group"
    echo "libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin" >>"$1/passwd"
    echo "libvirt-qemu:x:64055:" >>"$1/group"
    grep -q '^kvm:' "$1/group" || echo "kvm:x:64056:" >>"$1/group"
}

# in_own_dirs DIR program...: runs a program with libvirt's directories in DIR. In a session of its
# own, the program does not receive the terminal's signals, so that it can end its domains.
in_own_dirs() {
    # shellcheck disable=SC2016 # the shell in the namespace expands these
    exec setsid unshare --mount --propagation private -- sh -c 'dir=$1 names=$2; shift 2
        for name in $names; do mount --bind "$dir/$name" "/$name" || exit; done
        for name in passwd group; do
            [ ! -e "$dir/$name" ] || mount --bind "$dir/$name" "/etc/$name" || exit
        done
        [ ! -e "$dir/kvm" ] || mount --bind "$dir/kvm" /dev/kvm || exit
        exec "$@"' sh "$1" "$LIBVIRT_DIRS" "${@:2}"
}

# start_libvirt DIR [LINE...]: starts virtlogd and libvirtd with their files in DIR. The lines are
# added to qemu.conf.
start_libvirt() {
    local dir=$1 name
    shift
    lock_mount_points --shared
    for name in $LIBVIRT_DIRS; do
        [ -d "/$name" ] || { mkdir -p "/$name" && OWN_MOUNT_POINTS+=("/$name"); }
        mkdir -p "$dir/$name"
    done
    mkdir -p "$dir/sock"
    [ ${#OWN_CGROUPS[@]} -gt 0 ] || note_cgroups
    own_users "$dir"
    # libvirt asks QEMU what each accelerator can do. Where KVM boots no stock kernel, it also takes a
    # minute to answer. QEMU's user cannot open this file, so libvirt does not ask. With the file,
    # libvirt can make no /dev for each domain.
    if [ "$ACCEL" != kvm ] && [ -e /dev/kvm ]; then
        install -m 000 /dev/null "$dir/kvm"
        set -- "$@" 'namespaces = []'
    fi
    # Two daemons on one machine need two identities, or they refuse to migrate a domain.
    cat >"$dir/etc/libvirt/libvirtd.conf" <<END
unix_sock_dir = "$dir/sock"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "2:file:$dir/var/log/libvirt/libvirtd.log"
host_uuid = "$(cat /proc/sys/kernel/random/uuid)"
END
    printf '%s\n' 'security_driver = "none"' "$@" >"$dir/etc/libvirt/qemu.conf"
    spawn_daemon "$dir" virtlogd -p "$dir/virtlogd.lock"
    wait_until 10 test -S "$dir/run/libvirt/virtlogd-sock" || return
    restart_libvirtd "$dir"
}
# The daemons end after their domains, so they are not in OWN_PIDS. $dir/NAME.pid has the id. The
# daemons lock another file, because the default is the same file for all daemons of the machine.
spawn_daemon() {
    (in_own_dirs "$@") </dev/null >>"$1/$2.out" 2>&1 &
    echo $! >"$1/$2.pid"
}
restart_libvirtd() {
    [ ! -e "$1/libvirtd.pid" ] || end_pid "$(cat "$1/libvirtd.pid")"
    spawn_daemon "$1" libvirtd -p "$1/libvirtd.lock"
    wait_until 20 virsh_of "$1" version
}
# stop_libvirt DIR: ends the domains, then the daemons.
stop_libvirt() {
    local name
    [ -e "$1/libvirtd.pid" ] || return 0
    for name in $(timeout 10 virsh -q -c "$(uri_of "$1")" list --name 2>/dev/null); do
        timeout 20 virsh -q -c "$(uri_of "$1")" destroy "$name" >/dev/null 2>&1
    done
    # A domain that libvirt could not end.
    for name in "$1"/run/libvirt/qemu/*.pid; do
        [ ! -e "$name" ] || end_pid "$(cat "$name")"
    done
    end_pid "$(cat "$1/libvirtd.pid")"
    end_pid "$(cat "$1/virtlogd.pid")"
}
# Only one run at a time may remove directories, and only if no other run uses them: if a directory is
# removed, the kernel also removes what other namespaces have mounted on it.
lock_mount_points() {
    exec 8>"${TMPDIR:-/tmp}/penstock-libvirt.lock"
    flock "$@" 8
}
# Removes the directories that the daemons and this script have made outside their own.
remove_mount_points() {
    local i
    lock_mount_points --nonblock || return 0
    for ((i = ${#OWN_MOUNT_POINTS[@]} - 1; i >= 0; i--)); do rmdir "${OWN_MOUNT_POINTS[i]}"; done
    for i in "${OWN_CGROUPS[@]}"; do
        [ ! -d "$i" ] || find "$i" -depth -type d -exec rmdir {} +
    done
}
# cpu_cgroup: prints the mount point of the cgroup v1 controller `cpu`, if it has real-time budgets.
cpu_cgroup() {
    local mount
    mount=$(awk '$3 == "cgroup" && "," $4 "," ~ /,cpu,/ { print $2; exit }' /proc/mounts)
    [ -w "$mount/cpu.rt_runtime_us" ] && echo "$mount"
}
uri_of() { echo "qemu+unix:///system?socket=$1/sock/libvirt-sock"; }
# virsh_of DIR command...: no command may take longer than a minute on a calm machine.
virsh_of() { timeout "$(patience 60)" virsh -q -c "$(uri_of "$1")" "${@:2}"; }

# nic_xml PATH MODE MAC ALIAS [DRIVER [MORE]]: an interface. MODE is libvirt's: that of QEMU. DRIVER
# has attributes of <driver>, and MORE has elements inside <driver>.
nic_xml() {
    local reconnect=""
    [ "$2" = server ] || reconnect="<reconnect enabled='yes' timeout='1'/>"
    cat <<END
<interface type='vhostuser'>
  <mac address='$3'/>
  <source type='unix' path='$1' mode='$2'>$reconnect</source>
  <model type='virtio'/>
  <driver ${5-}>${6-}</driver>
  <alias name='ua-$4'/>
  <rom enabled='no'/>
</interface>
END
}
# override_xml ALIAS NAME VALUE: sets a number of a device of QEMU that libvirt has no key for.
override_xml() {
    cat <<END
<qemu:override><qemu:device alias='ua-$1'><qemu:frontend>
  <qemu:property name='$2' type='unsigned' value='$3'/>
</qemu:frontend></qemu:device></qemu:override>
END
}

# domain_xml NAME MEMORY_MIB CMDLINE NIC [OVERRIDE]: a domain with two processors, the guest's image,
# four free ports for hot-plug, and room for two more pieces of memory. $KERNEL and $INITRD have the
# image. The guest's directory is that of guest.sh.
domain_xml() {
    local dir=$PENSTOCK_GUESTS/$1 free="<controller type='pci' model='pcie-root-port'/>"
    local type=qemu
    [ "$ACCEL" != kvm ] || type=kvm
    cat <<END
<domain type='$type' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>$1</name>
  <uuid>00000000-0000-4000-8000-$(printf %012d "$(cksum <<<"$1" | cut -d' ' -f1)")</uuid>
  <maxMemory slots='2' unit='MiB'>1024</maxMemory>
  <memory unit='MiB'>$2</memory>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <vcpu placement='static' cpuset='$(others_cores)'>2</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>$KERNEL</kernel><initrd>$INITRD</initrd>
    <cmdline>$GUEST_CMDLINE pci=nomsi memhp_default_state=online_kernel $3</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'>
    <numa><cell id='0' cpus='0-1' memory='$2' unit='MiB' memAccess='shared'/></numa>
  </cpu>
  <on_reboot>restart</on_reboot>
  <devices>
    <controller type='usb' model='none'/><controller type='pci' model='pcie-root'/>$free$free$free$free$free$free
    <serial type='file'><source path='$dir/console.log'/><target port='0'/></serial>
    <serial type='pipe'><source path='$dir/agent'/><target port='1'/></serial>
    <memballoon model='none'/>
    $4
  </devices>
  ${5-}
</domain>
END
}
