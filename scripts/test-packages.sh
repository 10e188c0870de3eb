#!/usr/bin/env bash
# Tests the Debian packages. In a fresh Debian 12 and a fresh Debian 13, each in a container with
# systemd, the script installs the package, runs the switch under its unit, updates, removes and
# purges it (package-acts.sh). Prints PASS, FAIL and SKIP lines. The file systems of Debian are made
# once and kept in the cache for 30 days.
#
#   test-packages.sh            both releases of Debian; needs root and systemd-nspawn
#   test-packages.sh --smoke    only checks of the package itself, in a minute; needs no root
#
#   PENSTOCK_BIN=FILE           the package has this program and those beside it
#   PENSTOCK_SUITES="trixie"    only these releases
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/container.sh
. "$(dirname "$0")/container.sh"

SUITES=${PENSTOCK_SUITES:-bookworm trixie}
MIRROR=${PENSTOCK_MIRROR:-http://deb.debian.org/debian}
# The package needs only systemd. The other programs are those of the checks.
INCLUDE=systemd,systemd-sysv,dbus,iproute2,iputils-ping,procps,busybox-static,man-db,mandoc
INCLUDE+=,bash-completion,sosreport,xz-utils,init-system-helpers

# The programs are built. Nothing is gained here by a small file.
make_package() {
    PENSTOCK_PREBUILT=$(dirname "$BIN") PENSTOCK_DEB_OUT=$WORK/deb PENSTOCK_DEB_COMPRESS="-Zgzip -z1" \
        DEB_BUILD_OPTIONS=noautodbgsym "$REPO/scripts/deb.sh" >"$WORK/deb.log" 2>&1 &&
        DEB=$(find "$WORK/deb" -name 'penstock_*.deb') && [ -n "$DEB" ] && return
    cat "$WORK/deb.log"
    return 1
}
# next_package DEB FILE: writes the same package with a higher version.
next_package() {
    dpkg-deb -R "$1" "$WORK/next" &&
        sed -i -E 's/^Version: .*/&.next/; s/(penstock \(= [^)]*)\)/\1.next)/' "$WORK/next/DEBIAN/control" &&
        dpkg-deb --root-owner-group -Zgzip -z1 -b "$WORK/next" "$2" >/dev/null &&
        rm -rf "$WORK/next"
}

# --- checks of the package itself ---

lintian_is_quiet() {
    # dpkg's and lintian's names of a release differ on other distributions than Debian.
    lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$WORK"/deb/*.changes
}
has_files() {
    local file missing=0
    for file in usr/bin/penstock usr/lib/systemd/system/penstock{,-helper,-vcpu,-controller}.service \
        usr/lib/systemd/system/penstock-helper.socket usr/lib/{sysusers,tmpfiles}.d/penstock.conf \
        usr/share/bash-completion/completions/penstock usr/share/zsh/vendor-completions/_penstock \
        usr/share/fish/vendor_completions.d/penstock.fish usr/share/man/man1/penstock.1.gz \
        usr/share/penstock/{host,controller,fabric,tenants,vcpu}.schema.json \
        usr/share/penstock/host.toml usr/share/penstock/dashboards/{alerts.yml,host.json,fabric.json} \
        usr/share/penstock/drop-ins/penstock-{netns,sockets}.conf \
        usr/lib/python3/dist-packages/sos/report/plugins/penstock.py \
        usr/share/doc/penstock/licences.txt.gz \
        $(sed -n 's|^Documentation=file:/||p' "$REPO"/packaging/*.service); do
        [ -e "$WORK/root/$file" ] || { say "no file $file" && missing=1; }
    done
    [ "$missing" = 0 ]
}
# Each crate of the program and the standard library have a licence and at least one text.
has_licences() {
    local text crate
    text=$(zcat "$WORK/root/usr/share/doc/penstock/licences.txt.gz") || return
    for crate in 'ring-[0-9.]*: Apache-2.0 AND ISC' 'tokio-[0-9.]*: MIT' 'rustc .*, standard library: '; do
        grep -A 1 "^=== $crate" <<<"$text" | grep -q '^--- ' || { say "no licence of $crate" && return 1; }
    done
}
stripped() { ! readelf -S -W "$WORK/root/usr/bin/penstock" | grep -q '\.debug_info'; }
# The output counts as much as the status, because an unknown key only causes a message.
units_verify() {
    local said
    cp -L /usr/lib/systemd/system/*.{target,slice,mount} "$WORK/root/usr/lib/systemd/system/" 2>/dev/null
    said=$(systemd-analyze verify --root="$WORK/root" --man=no \
        "$WORK"/root/usr/lib/systemd/system/penstock*.{service,socket} 2>&1) && [ -z "$said" ] && return
    say "$said"
    return 1
}
# Every shell reads its script, if the shell is installed.
completion_loads() {
    local shell=$1 file=$WORK/root/$2
    have "$shell" || { skip "completion of $shell: it is not installed" && return; }
    check "$shell reads its completion script" "$shell" -n "$file"
}
alert_rules() {
    local promtool
    promtool=$(find_promtool)
    if [ -n "$promtool" ] && [ -x "$promtool" ]; then
        check "promtool accepts the alert rules" \
            "$promtool" check rules "$WORK/root/usr/share/penstock/dashboards/alerts.yml"
    else
        skip "promtool: not installed, and Debian's package prometheus cannot be fetched"
    fi
}
check_package() {
    step "the package itself"
    dpkg-deb -x "$DEB" "$WORK/root"
    check "it has all files" has_files
    check "it has the licences of all crates" has_licences
    check "its program has no debugging information" stripped
    check "lintian has no error and no warning" lintian_is_quiet
    check "its units have no mistake" units_verify
    check "its configuration is valid" "$BIN" host check --config "$WORK/root/usr/share/penstock/host.toml"
    check "the plugin of sosreport compiles" python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' \
        "$WORK/root/usr/lib/python3/dist-packages/sos/report/plugins/penstock.py"
    completion_loads bash usr/share/bash-completion/completions/penstock
    [ -n "$SMOKE" ] || alert_rules
}

# --- the package in Debian ---

# base_root SUITE: prints the path of the archive with a file system of Debian.
base_root() {
    local file
    file=$CACHE/packages-$1-$(sha256sum <<<"$INCLUDE" | head -c 8).tar
    if [ -z "$(find "$file" -mtime -30 2>/dev/null)" ]; then
        say "making a file system of $1, which takes a minute" >&2
        TMPDIR=$WORK mmdebstrap --quiet --variant=minbase --include="$INCLUDE" "$1" "$WORK/$1.tar" \
            "$MIRROR" >"$WORK/$1.log" 2>&1 || { tail -n 5 "$WORK/$1.log" >&2 && return 1; }
        mkdir -p "$CACHE" && rm -f "$CACHE/packages-$1"-* && mv "$WORK/$1.tar" "$file" || return
    fi
    echo "$file"
}
# prepare SUITE: unpacks a file system and adds the script and the packages.
prepare() {
    local archive file
    archive=$(base_root "$1") || return
    BOOT=$WORK/$1 OUT=$WORK/out-$1
    mkdir -p "$BOOT" "$OUT" && tar -xpf "$archive" -C "$BOOT" --numeric-owner || return
    mkdir -p "$BOOT/repo" "$BOOT/out" "$BOOT/packages"
    : >"$BOOT/etc/penstock-container"
    : >"$BOOT/etc/machine-id"
    echo "penstock-$1" >"$BOOT/etc/hostname"
    for file in getty@tty1 console-getty systemd-logind systemd-networkd systemd-resolved; do
        ln -sf /dev/null "$BOOT/etc/systemd/system/$file.service"
    done
    add_script "the package in $1" /repo/scripts/package-acts.sh \
        "Environment=HOME=/root ${PENSTOCK_PATIENCE:+PENSTOCK_PATIENCE=$PENSTOCK_PATIENCE}"
    BINDS=(--bind-ro="$WORK/packages:/packages")
}
# Counts the lines of the script in the container as this script's own.
test_suite() {
    local log=$WORK/$1-acts.log
    step "the package in $1"
    if ! prepare "$1"; then
        skip "packages in $1: Debian's mirror has no file system for us"
        return
    fi
    container_works || { skip "packages in $1: systemd-nspawn makes no container here" && return; }
    # Newer releases of systemd refuse control groups of version 1 without this word.
    run_script "package-acts.sh in $1" SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 2>&1 | tee "$log"
    PASSED=$((PASSED + $(grep -c '^PASS ' "$log")))
    SKIPPED=$((SKIPPED + $(grep -c '^SKIP ' "$log")))
    FAILED=$((FAILED + $(grep -c '^FAIL ' "$log")))
    rm -rf "$BOOT"
}

SMOKE=""
[ "${1:-}" != --smoke ] || SMOKE=1
BIN=$(penstock_bin)
WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-packages.XXXXXX")
chmod 755 "$WORK"
BOOT=$WORK OUT=$WORK
[ -n "$SMOKE" ] || [ "$(id -u)" != 0 ] || make_cgroups
watch_container
for tool in dh dpkg-buildpackage lintian; do
    have $tool && continue
    skip "packages: $tool is not installed"
    verdict packages
    exit
done
check "the package is made of $BIN" make_package
if [ -n "${DEB:-}" ]; then
    check_package
    if [ -z "$SMOKE" ] && { [ "$(id -u)" != 0 ] || ! have systemd-nspawn || ! have mmdebstrap; }; then
        skip "packages in Debian: wants root, systemd-nspawn and mmdebstrap"
    elif [ -z "$SMOKE" ]; then
        mkdir -p "$WORK/packages" && cp "$DEB" "$WORK/packages/now.deb"
        check "a package of a higher version" next_package "$DEB" "$WORK/packages/next.deb"
        check "  and its lab" next_package "$WORK"/deb/penstock-lab_*.deb "$WORK/packages/lab.deb"
        for suite in $SUITES; do test_suite "$suite"; done
    fi
fi
verdict packages
