#!/usr/bin/env bash
# Installs what Penstock needs on a Debian machine, and prints each package and its purpose. Does
# nothing if everything is installed. Asks no questions. Without root it prints the one command to
# run and continues with the installed programs.
#
#   setup.sh build     compiler and linker
#   setup.sh demo      also what `make demo-guests` uses
#   setup.sh deb       compiler and linker, and what `make deb` and `make image` use
#   setup.sh test      also what `make test` uses         (the default)
#   setup.sh bench     what `make demo` uses, the switch that `make bench` compares with, and the
#                      programs of live figures
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

level=${1:-test}
missing=()
# Services of installed packages that Penstock does not use.
quiet=()

# want LEVEL PACKAGE PROGRAM WHY: requires a program from this level on.
want() {
    case $level:$1 in
    build:demo | build:test | demo:test) return ;;
    build:bench | demo:bench | test:bench | bench:test) return ;;
    build:deb | demo:deb | bench:deb | deb:demo | deb:test | deb:bench) return ;;
    esac
    have "$3" || [ -e "$3" ] && return
    case $2 in
    etcd-server) quiet+=(etcd) ;;
    redis-server) quiet+=(redis-server) ;;
    podman) quiet+=(podman.socket podman-auto-update.timer podman-restart.service) ;;
    esac
    missing+=("$2")
    say "missing: $2 ($4)"
}

# rust-toolchain.toml pins the Rust toolchain, and rustup fetches it by itself.
find_rust() {
    have cargo && return
    if apt-cache policy rustup 2>/dev/null | grep -q 'Candidate: [0-9]'; then
        missing+=(rustup)
        say "missing: rustup (gets the Rust compiler that rust-toolchain.toml names)"
    fi
}

# Debian starts a package's service during installation, unless this file exits with 101.
hold_services() {
    [ ${#quiet[@]} -gt 0 ] && [ ! -e /usr/sbin/policy-rc.d ] || return 0
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
}

# disable_services [SUDO...]: keeps the services from starting at the next boot. Ends running ones,
# which only this script's own installation can have started.
disable_services() {
    [ ${#quiet[@]} -gt 0 ] && have systemctl || return 0
    "$@" systemctl disable --now "${quiet[@]}" >/dev/null 2>&1 ||
        "$@" systemctl disable "${quiet[@]}" >/dev/null 2>&1 ||
        warn "could not disable the service ${quiet[*]}: the tests start their own"
}

install() {
    [ ${#missing[@]} -gt 0 ] || return 0
    local command=(apt-get install -y --no-install-recommends "${missing[@]}")
    if ! have apt-get; then
        warn "no apt-get here: install by other means: ${missing[*]}"
    elif [ "$(id -u)" = 0 ]; then
        say "running: ${command[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -q update </dev/null || warn "apt-get update failed, going on with what apt knows"
        hold_services
        "${command[@]}" </dev/null
        disable_services
    elif have sudo && sudo -n true 2>/dev/null; then
        say "running: sudo ${command[*]}"
        sudo -n apt-get -q update </dev/null || true
        sudo -n env DEBIAN_FRONTEND=noninteractive "${command[@]}" </dev/null
        disable_services sudo -n
    else
        warn "not root: run this once, until then the parts that need it are left out:"
        warn "    sudo ${command[*]}"
    fi
}

want build gcc gcc "links Rust programs"
# Without the recommended packages, gcc lacks these files.
if ! compgen -G "/usr/lib/*/crt1.o" >/dev/null; then
    missing+=(libc6-dev)
    say "missing: libc6-dev (start files for the linker)"
fi
want demo iproute2 ip "network namespaces"
want demo util-linux nsenter "runs programs in namespaces"
want demo procps ps "looks at processes"
want demo iperf3 iperf3 "measures throughput"
want demo iputils-ping ping "sends the quick start's pings"
want demo ethtool ethtool "shows offloads"
want demo busybox-static busybox "ping, and all of a guest's programs"
want demo qemu-system-x86 qemu-system-x86_64 "Linux guests"
want demo cpio cpio "packs the guests' file system"
want demo xz-utils xz "unpacks kernel modules"
want test clang clang "compiles the BPF program of crates/vcpu-scx"
want test libelf-dev /usr/include/libelf.h "reads BPF programs, for libbpf"
want test zlib1g-dev /usr/include/zlib.h "likewise"
want test pkg-config pkg-config "finds both"
want deb debhelper dh "makes Debian packages"
want deb dpkg-dev dpkg-buildpackage "likewise"
want deb binutils objcopy "keeps debugging information in packages of its own"
want deb mmdebstrap mmdebstrap "file systems of Debian 12 and 13, for images and for tests of packages"
want deb buildah buildah "makes the container image"

want test lintian lintian "checks the packages"
want test podman podman "runs the container image"
want test runc runc "likewise, also on machines with control groups of version 1"
want test dpdk-dev dpdk-testpmd "an independent virtio driver to test with"
want test libvirt-daemon libvirtd "starts guests as operators do, to test with"
want test libvirt-daemon-driver-qemu \
    "/usr/lib/$(uname -m)-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so" "QEMU for libvirtd"
want test libvirt-clients virsh "tells libvirtd what to do"
want test valgrind valgrind "counts the data path's instructions"
want test etcd-server etcd "three of them, to test the controller's store with"
want test systemd-container systemd-nspawn "a container to run the switch under its unit in"
want test chromium chromium "a browser, to test the controller's page in"
want test redis-server redis-server "the configuration of a SONiC switch, to test with"
want test libyang2-tools yanglint "validates what the drivers of switches write by published models"
# The package's service is not used and need not run, because the benchmark starts its own OVS.
want bench openvswitch-switch-dpdk /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk \
    "the switch to compare with"
# Without this package, OVS finds no memory pool and accepts no port, but OVS does not depend on it.
want bench librte-mempool-ring23 \
    "/usr/lib/$(uname -m)-linux-gnu/dpdk/pmds-23.0/librte_mempool_ring.so.23" "memory of that switch"
# The services of these packages are not used either. Live figures start their own programs in
# namespaces.
want bench qperf qperf "measures latency in live figures"
want bench wrk wrk "puts web servers under pressure in live figures"
want bench nginx-light nginx "a web server of live figures"
want bench vde2 vde_switch "a switch that live figures measure beside ours"
want bench vsftpd vsftpd "an FTP server of live figures"
want bench curl curl "an FTP client of live figures"
want bench apache2-utils ab "asks a web server one thing after the other in live figures"
want bench ffmpeg ffmpeg "makes the video of a live figure"
want bench gstreamer1.0-tools gst-launch-1.0 "sends it by RTP"
plugins=/usr/lib/$(uname -m)-linux-gnu/gstreamer-1.0
want bench gstreamer1.0-plugins-good "$plugins/libgstrtp.so" "RTP and UDP of the same"
want bench gstreamer1.0-plugins-bad "$plugins/libgstmpegtsdemux.so" "the video's clock, likewise"
want bench tcpdump tcpdump "captures what arrives in live figures"
want bench tshark tshark "an independent look at what was captured"
find_rust
install
if ! have cargo; then
    say "error: no Rust compiler. This Debian has no package for it that is new enough; install" >&2
    say "       rustup as https://rustup.rs tells (as the user who builds), then run this again." >&2
    exit 1
fi
if [[ $level != build && $level != deb ]] && have qemu-system-x86_64 && [ "$(uname -m)" = x86_64 ]; then
    # Fetches a kernel if needed and packs the file system. The cache serves later calls.
    "$REPO/scripts/guest-image.sh" >/dev/null || warn "no guest image: guests are left out"
fi
case $level:$(uname -m) in
test:x86_64)
    "$REPO/scripts/scx-kernel.sh" >/dev/null || warn "no kernel with sched_ext: its test is left out"
    ;;
esac
[ ${#missing[@]} -gt 0 ] || say "setup: everything is there"
