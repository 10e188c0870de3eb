#!/usr/bin/env bash
# Runs the container image that `make image` makes (target/deb/penstock-image.tar) with podman. The
# switch in the container answers on its socket, and two endpoints outside exchange frames through
# it. Images are kept in a temporary directory, so this machine's images are not touched. Needs root.
# Prints PASS, FAIL and SKIP lines.
#
#   test-image.sh    PENSTOCK_DEB_OUT=DIR, or target/deb
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

TAG=psi$$
# The limits are named because a container may not raise them to podman's defaults.
LIMITS=(--network=none --ulimit nofile=1024:1024 --ulimit nproc=4096:4096)

pod() { "${PODMAN[@]}" "$@"; }
cleanup() {
    trap '' INT TERM HUP
    pod stop --time 5 "$TAG" >/dev/null 2>&1
    tidy_up
    [ "$FAILED" = 0 ] || tail -n 15 "$WORK"/*.log
    pod rm --all --force >/dev/null 2>&1
    if [ -n "${KEEP:-}" ]; then say "logs: $WORK"; else rm -rf "$WORK"; fi
}

loads() { pod load --input "$IMAGE" >"$WORK/load.log" 2>&1 && NAME=$(pod images -q | head -1) && [ -n "$NAME" ]; }
not_root() { [ "$(pod run "${LIMITS[@]}" --rm --entrypoint id "$NAME" -u)" != 0 ]; }
has_directories() {
    pod run "${LIMITS[@]}" --rm --entrypoint test "$NAME" -w /run/penstock -a -w /var/lib/penstock -a \
        -w /etc/penstock/host.toml
}
starts() {
    spawn "$WORK/host.log" "${PODMAN[@]}" run "${LIMITS[@]}" --rm --name "$TAG" \
        -v "$WORK/sockets:/run/penstock" "$NAME"
    wait_until 20 answers
}
answers() { pod exec "$TAG" penstock host show; }
adds_ports() {
    local port
    pod exec "$TAG" penstock tenant add blue || return
    for port in vm1 vm2; do
        pod exec "$TAG" penstock port add $port tenant=blue \
            "vhost-user.socket=/run/penstock/$port.sock" || return
    done
}
pings() { ping_from "$TAG-1" 10.0.0.2 1 >/dev/null; }
exchange_frames() {
    local n
    for n in 1 2; do own_netns "$TAG-$n"; done
    spawn "$WORK/endpoint.log" "$BIN" endpoint --create-netns \
        --nic "netns=$TAG-1,socket=$WORK/sockets/vm1.sock,ip=10.0.0.1/24" \
        --nic "netns=$TAG-2,socket=$WORK/sockets/vm2.sock,ip=10.0.0.2/24"
    wait_until 20 pings
}
stops() { pod stop --time 10 "$TAG" >/dev/null && [ ! -e "$WORK/sockets/host.sock" ]; }

IMAGE=${PENSTOCK_DEB_OUT:-${CARGO_TARGET_DIR:-$REPO/target}/deb}/penstock-image.tar
BIN=$(penstock_bin)
if [ ! -e "$IMAGE" ]; then
    skip "image: $IMAGE is not there (\`make image\`)"
elif [ "$(id -u)" != 0 ] || ! have podman || ! have runc; then
    skip "image: wants root, podman and runc"
else
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/penstock-image.XXXXXX")
    PODMAN=(podman --storage-driver vfs --root "$WORK/images" --runroot "$WORK/run" --tmpdir "$WORK/tmp"
        --cgroup-manager cgroupfs --runtime runc)
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    # The user of the image has another number on each build.
    mkdir -p "$WORK/sockets" && chmod 1777 "$WORK/sockets"
    check "podman loads the image" loads
    check "its configuration is right" pod run "${LIMITS[@]}" --rm "$NAME" host check \
        --config /etc/penstock/host.toml
    check "its user is not root" not_root
    check "it has the directories of sockets and state" has_directories
    check "the switch starts and answers on its socket" starts
    check "it accepts a tenant and two ports" adds_ports
    check "two endpoints outside ping each other" exchange_frames
    check "its counters add up" wait_until 5 pod exec "$TAG" penstock stats --check
    check "it stops and leaves no socket" stops
fi
verdict image
