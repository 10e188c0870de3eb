# Functions that boot a container with systemd as PID 1 and run one script in it: for under-unit.sh
# and test-packages.sh. A script that sources this file has sourced lib.sh. It sets $BOOT (the root
# of the container), $OUT (a directory that the script in the container sees as /out), $WORK, which
# has both and is removed at the end, and BINDS (more options of systemd-nspawn).
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2317 # the scripts that source this use them

# This is longer than the longest lane on a slow machine without KVM.
SECONDS_MAX=1200
CGROUPS=() BINDS=()

# systemd-nspawn makes its cgroups below its own cgroup, always with the same names. In a separate
# cgroup it does not conflict with other containers, and all its processes can be found.
make_cgroups() {
    local id kind path top
    while IFS=: read -r id kind path; do
        case $id:$kind in
        0:) top=$(findmnt -rnt cgroup2 -o TARGET | head -1) ;;
        *:name=systemd) top=$(findmnt -rnt cgroup -O name=systemd -o TARGET | head -1) ;;
        *) continue ;;
        esac
        [ -n "$top" ] || continue
        mkdir "$top${path%/}/penstock-$$" && CGROUPS+=("$top${path%/}/penstock-$$")
    done </proc/self/cgroup
}
# Fails if no process is left to kill.
kill_all() {
    local all dir
    # 0 stands for processes that are not visible here. `kill` would read it as this process group.
    all=$(for dir in "${CGROUPS[@]}"; do find "$dir" -name cgroup.procs -exec cat {} +; done |
        grep -vx 0)
    # shellcheck disable=SC2086 # one number a word
    kill -KILL $all
}
none_left() { ! kill_all; }
end_container() {
    local dir
    wait_until 30 none_left
    for dir in "${CGROUPS[@]}"; do find "$dir" -depth -type d -exec rmdir {} +; done
    [ "${#CGROUPS[@]}" = 0 ] || rm -rf "/run/systemd/nspawn/propagate/penstock-$$"
    if [ -n "${KEEP:-}" ]; then say "logs: $OUT"; else rm -rf "$WORK"; fi
}

# watch_container: ends the container and removes $WORK at the end of this script, for any reason. The
# end is the end of a subshell's input.
watch_container() {
    exec {ALIVE}> >(trap '' INT TERM HUP; cat; end_container)
    JANITOR=$!
    trap 'exec {ALIVE}>&-; wait "$JANITOR"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# nspawn ARGUMENT...: runs until the programs in the container have ended by themselves.
nspawn() {
    local dir
    for dir in "${CGROUPS[@]}"; do
        mkdir -p "$dir/$BASHPID" && echo "$BASHPID" >"$dir/$BASHPID/cgroup.procs" || return
    done
    exec timeout -k 20 "$SECONDS_MAX" systemd-nspawn --quiet --register=no --keep-unit \
        --directory="$BOOT" --machine="penstock-$$" --private-network \
        --capability=CAP_BPF,CAP_NET_RAW,CAP_IPC_LOCK --system-call-filter=bpf \
        --bind="$OUT:/out" --bind-ro="$REPO:/repo" "${BINDS[@]}" "$@" >"$OUT/boot.log" 2>&1
}

# container_works: false if this machine permits no container at all.
container_works() {
    nspawn --as-pid2 /usr/bin/true </dev/null {ALIVE}>&- &
    wait $! && return
    tail -n 5 "$OUT/boot.log"
    return 1
}

# add_script NAME PATH [ENVIRONMENT]: adds a unit to the container that runs a script after the boot,
# and ends the container with the script.
add_script() {
    local units=$BOOT/etc/systemd/system
    mkdir -p "$units/multi-user.target.wants"
    cat >"$units/script.service" <<UNIT
[Unit]
Description=$1
SuccessAction=exit
FailureAction=exit

[Service]
Type=oneshot
ExecStart=$2
StandardOutput=append:/out/script.log
StandardError=inherit
Environment=TMPDIR=/out
${3:-}
UNIT
    ln -s ../script.service "$units/multi-user.target.wants/script.service"
}

# run_script NAME [ARGUMENT...]: boots the container and shows the output of the script in it. False
# if the script failed or did not end by itself. The arguments are those of the container's init.
run_script() {
    local name=$1 container shown status verdict
    shift
    : >"$OUT/script.log"
    nspawn --boot "$@" </dev/null {ALIVE}>&- &
    container=$!
    tail -n +1 -f --pid="$container" "$OUT/script.log" {ALIVE}>&- &
    shown=$!
    wait "$container"
    status=$?
    wait "$shown"
    verdict=$(grep -E ': [0-9]+ passed, [0-9]+ failed' "$OUT/script.log" | tail -1)
    [ "$status" = 0 ] && [ -n "$verdict" ] && return
    tail -n 40 "$OUT"/{endpoint,penstock}.log 2>/dev/null
    if [[ $verdict != *" passed, "[1-9]* ]]; then
        # The script in the container did not end by itself, whatever the container's status says.
        tail -n 20 "$OUT/boot.log"
        fail "$name in a container: status $status"
    fi
    return 1
}
