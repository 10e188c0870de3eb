#!/usr/bin/env bash
# Makes the container image of the switch, target/deb/penstock-image.tar (an OCI archive). The image
# has Debian's smallest file system and the package penstock. Needs root for the file system, and
# Debian's mirror, but no registry of images. Makes the package first if target/deb has none.
#
#   image.sh
#
#   PENSTOCK_DEB_OUT=DIR         where the package is and the image goes
#   PENSTOCK_IMAGE_SUITE=NAME    Debian release of the image; default: that of this machine
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO"

OUT=$(realpath -m "${PENSTOCK_DEB_OUT:-${CARGO_TARGET_DIR:-target}/deb}")
# A package that was built on an older release than the image's also runs there.
SUITE=${PENSTOCK_IMAGE_SUITE:-$(. /etc/os-release && say "${VERSION_CODENAME:-stable}")}
MIRROR=${PENSTOCK_MIRROR:-http://deb.debian.org/debian}
IMAGE=$OUT/penstock-image.tar

package() { find "$OUT" -maxdepth 1 -name 'penstock_*.deb' 2>/dev/null | sort -V | tail -1; }
# The storage of images is in a directory of its own, so this machine's images are not touched. The
# driver vfs needs no module of the kernel.
build() {
    buildah --storage-driver vfs --root "$WORK/images" --runroot "$WORK/run" "$@"
}

# The switch runs without systemd here, so directories that systemd makes for a service are made now.
# mmdebstrap runs the hooks with the path of the file system as first argument.
# shellcheck disable=SC2016
make_root() {
    mmdebstrap --quiet --variant=minbase \
        --include=systemd-standalone-sysusers,systemd-standalone-tmpfiles,iproute2 \
        --aptopt='APT::Install-Recommends "false"' \
        --customize-hook="copy-in $WORK/penstock.deb /tmp" \
        --customize-hook='chroot "$1" apt-get -qq install -y /tmp/penstock.deb >/dev/null' \
        --customize-hook='rm "$1/tmp/penstock.deb"' \
        --customize-hook='chroot "$1" install -d -o penstock -g penstock -m 755 /run/penstock' \
        --customize-hook='chroot "$1" install -d -o penstock -g penstock -m 700 /var/lib/penstock' \
        --customize-hook='sed -i "s/^name = \"[^\"]*\"/name = \"penstock\"/" "$1/etc/penstock/host.toml"' \
        "$SUITE" "$WORK/root.tar" "$MIRROR"
}

for tool in mmdebstrap buildah; do
    have $tool || die "$tool is missing: run scripts/setup.sh deb"
done
[ "$(id -u)" = 0 ] || die "the image's file system needs root: sudo make image"
[ -n "$(package)" ] || scripts/deb.sh
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -c safe.directory="$REPO" log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-image.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
chmod 755 "$WORK"
version=$(dpkg-deb -f "$(package)" Version)
cp "$(package)" "$WORK/penstock.deb"
cp packaging/Containerfile "$WORK/"
say "file system of $SUITE with $(basename "$(package)")"
make_root
build bud --quiet --isolation chroot --timestamp "$SOURCE_DATE_EPOCH" --tag "penstock:${version//[+~]/-}" \
    --label "org.opencontainers.image.version=$version" \
    --label "org.opencontainers.image.title=Penstock virtual switch" \
    --label "org.opencontainers.image.licenses=Apache-2.0 OR MIT" "$WORK" >/dev/null
rm -f "$IMAGE"
build push --quiet "penstock:${version//[+~]/-}" "oci-archive:$IMAGE:penstock:${version//[+~]/-}" 2>/dev/null
say "image: $IMAGE, $(stat -c %s "$IMAGE") bytes, penstock:${version//[+~]/-}"
