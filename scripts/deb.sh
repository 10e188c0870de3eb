#!/usr/bin/env bash
# Builds the programs and makes Debian packages of them in target/deb. packaging/debian has the
# packaging, and debhelper does the work in a copy of the files that the packages need.
#
#   deb.sh              all packages
#   deb.sh --version    prints the version of the packages and makes nothing
#
#   PENSTOCK_PREBUILT=DIR     packages the programs of DIR instead of building them
#   PENSTOCK_NATIVE=DIR       programs that print manual pages and schemas; default: the packaged ones
#   PENSTOCK_DEB_VERSION=V    another version than that of Cargo.toml and git
#   PENSTOCK_DEB_OUT=DIR      where the packages go
#   PENSTOCK_DEB_COMPRESS=O   options of dpkg-deb, such as "-Zgzip -z1" for a fast test
#   SOURCE_DATE_EPOCH=N       time of all files; default: time of the commit
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO"

TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
OUT=$(realpath -m "${PENSTOCK_DEB_OUT:-$TARGET/deb}")
UNITS="penstock penstock-helper penstock-vcpu penstock-controller"

# The tree may belong to another user, for example under sudo.
own_git() { git -c safe.directory="$REPO" "$@"; }
in_git() { [ "$(own_git rev-parse --show-toplevel 2>/dev/null)" = "$REPO" ]; }
# A commit with the tag of the release has the version of Cargo.toml. For dpkg, a version with ~ is
# before the release, and one with + is after it. The count of commits orders the others.
deb_version() {
    local version tag
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
    tag=v$version
    if [ -n "${PENSTOCK_DEB_VERSION:-}" ]; then
        version=$PENSTOCK_DEB_VERSION
    elif in_git && ! own_git describe --tags --exact-match --match "$tag" >/dev/null 2>&1; then
        if [ -n "$(own_git tag --list "$tag")" ]; then version+="+git"; else version+="~git"; fi
        version+="$(own_git rev-list --count HEAD).$(own_git rev-parse --short=8 HEAD)"
        [ -z "$(own_git status --porcelain)" ] || version+=".changed"
    fi
    say "$version"
}
# Without git, the time is that of the changelog.
epoch() {
    if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
        say "$SOURCE_DATE_EPOCH"
    elif in_git; then
        own_git log -1 --format=%ct
    else
        stat -c %Y CHANGELOG.md
    fi
}

# The directory of the source and that of cargo do not appear in the programs, so equal sources make
# equal programs in every directory. Other flags would make cargo build `target/release` again, so
# this build has a directory of its own.
build_programs() {
    local packages=(-p penstock -p penstock-lab)
    if [[ ${WORKSPACE[*]} = *penstock-vcpu-scx/bpf* ]]; then
        packages+=(-p penstock-vcpu-scx --features=penstock-vcpu-scx/bpf)
    else
        say "no package penstock-vcpu-scx: clang, libelf-dev or zlib1g-dev is missing"
    fi
    CARGO_TARGET_DIR=$TARGET/deb-programs CFLAGS="${CFLAGS:-} -ffile-prefix-map=$REPO=/usr/src/penstock" \
        CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f%s' "--remap-path-prefix=$REPO=/usr/src/penstock" \
            "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/usr/src/cargo") \
        cargo build --release --locked "${packages[@]}"
}

# stage DIR: copies all files that the packages need into DIR, with their directory debian/.
stage() {
    local unit kind
    mkdir -p "$1/programs" "$1/packaging"
    cp -r docs examples dashboards ./*.md "$1/"
    rm "$1/docs/SUMMARY.md" "$1/docs/book.toml"
    cp -r packaging/. "$1/packaging/"
    cp -r packaging/debian "$1/debian"
    for unit in $UNITS; do
        for kind in service socket; do
            [ ! -e "packaging/$unit.$kind" ] ||
                cp "packaging/$unit.$kind" "$1/debian/penstock.$unit.$kind"
        done
    done
    cp packaging/penstock.sysusers "$1/debian/penstock.sysusers"
    cp "$PROGRAMS"/penstock{,-lab} "$1/programs/"
    [ ! -x "$PROGRAMS/penstock-vcpu-scx" ] || cp "$PROGRAMS/penstock-vcpu-scx" "$1/programs/"
    scripts/licences.sh >"$1/licences.txt"
    chmod -R u=rwX,go=rX "$1"
    cat >"$1/debian/changelog" <<END
penstock ($VERSION) unstable; urgency=medium

  * Packages of this version. The file changelog.gz has the changes.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END
}

make_packages() {
    local options=(-b -us -uc --no-check-builddeps) log=$WORK/build.log
    [ -x "$PROGRAMS/penstock-vcpu-scx" ] || options+=(-Ppkg.penstock.noscx)
    if ! (cd "$WORK/penstock" && NATIVE=$NATIVE COMPRESS=${PENSTOCK_DEB_COMPRESS:-} DEB_BUILD_OPTIONS="nocheck ${DEB_BUILD_OPTIONS:-}" \
        dpkg-buildpackage "${options[@]}") >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        die "dpkg-buildpackage failed; the lines above say why"
    fi
    grep -E '^dpkg-[a-z]+: warning' "$log" >&2 || true
}

VERSION=$(deb_version)
[ "${1:-}" != --version ] || { say "$VERSION" && exit; }
for tool in dh dpkg-buildpackage objcopy; do
    have $tool || die "$tool is missing: run scripts/setup.sh deb"
done
SOURCE_DATE_EPOCH=$(epoch)
export SOURCE_DATE_EPOCH
if [ -n "${PENSTOCK_PREBUILT:-}" ]; then
    PROGRAMS=$(realpath "$PENSTOCK_PREBUILT")
else
    build_programs
    PROGRAMS=$TARGET/deb-programs/release
fi
NATIVE=$(realpath "${PENSTOCK_NATIVE:-$PROGRAMS}")
for program in "$PROGRAMS"/penstock{,-lab} "$NATIVE"/penstock{,-lab}; do
    [ -x "$program" ] || die "$program: no such program"
done
# A program that lacks this command is older than the packaging.
for program in "$NATIVE"/penstock{,-lab}; do
    "$program" man --help >/dev/null 2>&1 ||
        die "$program has no command \`man\`, which writes manual pages: build it from this source"
done

WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-deb.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
stage "$WORK/penstock"
make_packages
mkdir -p "$OUT"
rm -f "$OUT"/penstock*.{deb,ddeb,buildinfo,changes}
mv "$WORK"/*.{deb,buildinfo,changes} "$OUT/"
say "packages in $OUT:"
find "$OUT" -name '*.deb' -printf '    %f  %s bytes\n' | sort
