#!/usr/bin/env bash
# Prints the path of a kernel with sched_ext (CONFIG_SCHED_CLASS_EXT) for `test-scx.sh`. It is a
# kernel of this machine, or else of the cache, or else a file from Debian's backports. Nothing is
# installed, and apt's own lists stay unchanged.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Series in the order in which they are tried. The tests were written with the first one.
SERIES="6.18 6.19 7.0"
KEPT=$CACHE/scx-kernel
dir=""
trap 'rm -rf "$dir"' EXIT

find_kernel() {
    local config kernel
    for config in /boot/config-*-cloud-amd64 "$KEPT"/boot/config-*; do
        kernel=${config/config-/vmlinuz-}
        if grep -qs '^CONFIG_SCHED_CLASS_EXT=y' "$config" && [ -r "$kernel" ]; then
            echo "$kernel"
            return
        fi
    done
    return 1
}

# Fetches a kernel from the backports of the Debian release after this one, through this machine's
# mirror.
fetch_kernel() {
    local mirror series package="" options
    have apt-get && have dpkg-deb || die "no apt-get here: no kernel with sched_ext can be fetched"
    # shellcheck disable=SC2016 # apt's own format
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 2>/dev/null | head -1)
    mirror=${mirror:-http://deb.debian.org/debian/}
    dir=$(mktemp -d)
    # apt's own user must be able to write here.
    chmod 777 "$dir"
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    echo "deb $mirror trixie-backports main" >"$dir/sources.list"
    options=(-o "Dir::Etc::SourceList=$dir/sources.list" -o "Dir::Etc::SourceParts=$dir/none"
        -o "Dir::State::Lists=$dir/lists" -o "Dir::Cache=$dir/cache")
    apt-get -q "${options[@]}" update >&2 || die "apt-get update of trixie-backports failed"
    for series in $SERIES; do
        package=$(apt-cache "${options[@]}" pkgnames "linux-image-$series." |
            grep -E '^linux-image-[0-9.]+\+deb13-cloud-amd64$' | sort -V | tail -1) || true
        [ -z "$package" ] || break
    done
    [ -n "$package" ] || die "trixie-backports has no cloud kernel of $SERIES"
    say "fetching the files of $package into $KEPT" >&2
    (cd "$dir" && apt-get -q "${options[@]}" download "$package") >&2 || die "$package: no download"
    mkdir -p "$KEPT"
    # Extracts only two files of a hundred megabytes.
    dpkg-deb --fsys-tarfile "$dir"/*.deb | tar -x -C "$KEPT" --wildcards './boot/vmlinuz-*' \
        './boot/config-*'
}

find_kernel || { fetch_kernel && find_kernel; } || die "no kernel with sched_ext found"
