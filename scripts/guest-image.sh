#!/usr/bin/env bash
# Makes the files that a guest boots: a Debian cloud kernel and a small initramfs of busybox, iperf3
# and the virtio modules. Both are kept in the cache, so a second run does nothing. Prints two
# lines: the kernel's path and the initramfs' path.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Modules in load order. A module that is missing is built into the kernel.
MODULES="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci
    failover net_failover virtio_net"

# Finds the newest cloud kernel of this machine, or else of the cache. Prints "version kernel
# modules".
find_kernel() {
    local k v root
    for k in $(ls -1v /boot/vmlinuz-*-cloud-amd64 "$CACHE"/kernel/boot/vmlinuz-*-cloud-amd64 \
        2>/dev/null | tac); do
        v=${k##*/vmlinuz-}
        for root in "${k%/boot/*}/lib/modules" "${k%/boot/*}/usr/lib/modules"; do
            if [ -r "$k" ] && [ -d "$root/$v" ]; then
                echo "$v $k $root/$v"
                return
            fi
        done
    done
    return 1
}

# Only the kernel's file is needed, so its package is not installed.
fetch_kernel() {
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        awk '/Depends: linux-image-/ { print $2; exit }')
    [ -n "$package" ] || die "no cloud kernel: apt knows no linux-image-cloud-amd64 (apt-get update?)"
    fetch_package "$package" "$CACHE/kernel" || die "$package could not be fetched"
}

# The guest has no libraries for busybox, so it needs the static one. Debian's two busybox packages
# exclude each other. If the other one is installed, only the file of the static one is fetched.
static_busybox() {
    local candidate
    for candidate in "$(command -v busybox || true)" "$CACHE/busybox/bin/busybox"; do
        # ldd fails on a static program, so a failure is the desired result.
        if [ -x "$candidate" ] && ! ldd "$candidate" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

unpack_module() {
    case $1 in
    *.xz) xz -dc "$1" ;;
    *.zst) zstd -dcq "$1" ;;
    *.gz) gzip -dc "$1" ;;
    *) cat "$1" ;;
    esac
}

# build VERSION MODULES_DIR OUT
build() {
    local root n=0 m file lib applet
    root=$(mktemp -d)
    mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,run,etc,usr/bin,modules}
    cp "$busybox" "$root/bin/busybox"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
    done
    cp "$(command -v iperf3)" "$root/usr/bin/"
    ldd "$root/usr/bin/iperf3" | grep -o '/[^ ]*' | sort -u | while read -r lib; do
        mkdir -p "$root$(dirname "$lib")"
        cp -L "$lib" "$root$lib"
    done
    for m in $MODULES; do
        file=$(find "$2/kernel" -name "$m.ko*" | head -1)
        [ -n "$file" ] || continue
        n=$((n + 1))
        unpack_module "$file" >"$root/modules/$(printf %02d "$n")-$m.ko"
    done
    cp "$REPO/scripts/guest-init.sh" "$root/init"
    chmod 755 "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$3.new"
    mv "$3.new" "$3"
    rm -rf "$root"
}

for tool in iperf3 cpio; do
    have "$tool" || die "$tool is missing: run \`make setup\`"
done
busybox=$(static_busybox) || { fetch_package busybox-static "$CACHE/busybox" &&
    busybox=$(static_busybox); } || die "no static busybox: install busybox-static"
kernel=$(find_kernel) || { fetch_kernel && kernel=$(find_kernel); } || die "no cloud kernel found"
read -r version image modules <<<"$kernel"
mkdir -p "$CACHE"
# The name changes when any ingredient changes.
key=$(cat "$0" "$REPO/scripts/guest-init.sh" "$busybox" "$(command -v iperf3)" |
    sha256sum | cut -c1-12)
out=$CACHE/guest-$version-$key.cpio.gz
if [ ! -s "$out" ]; then
    rm -f "$CACHE"/guest-*.cpio.gz
    build "$version" "$modules" "$out"
fi
say "$image"
say "$out"
