#!/usr/bin/env bash
# Installs, uses, updates and purges the package in a fresh Debian system. test-packages.sh runs this
# script in a container. Prints PASS, FAIL and SKIP lines. Elsewhere the script would change the
# machine, so it requires a marker file.
#
# /packages has the package (now.deb), the same package with a higher version (next.deb), and the lab
# of the higher version (lab.deb).
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
[ -e /etc/penstock-container ] || die "runs only in the container of test-packages.sh"

export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
BIN=/usr/bin/penstock
SOCKET=/run/penstock/host.sock
CONFIG=/etc/penstock/host.toml
SOS=/out/sos/none
SECRET=correct-horse-battery-staple
UNITS="penstock.service penstock-helper.service penstock-helper.socket penstock-vcpu.service
    penstock-controller.service"

quiet() { "$@" >>/out/acts.log 2>&1 || { tail -n 20 /out/acts.log && return 1; }; }
refused() { ! "$@" >/dev/null 2>&1; }
main_pid() { systemctl show -p MainPID --value penstock; }
installs() { quiet apt-get -q install -y --no-install-recommends --allow-downgrades "$1"; }
version_is() { [ "$(dpkg-query -W -f '${Version}' penstock)" = "$(dpkg-deb -f "$1" Version)" ]; }
owned() { [ "$(stat -c '%U:%G %a' "$1")" = "$2" ] || { stat -c '%U:%G %a' "$1"; false; }; }

# Lists files and links outside of logs, caches and what apt and systemd write by themselves.
list_files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /out -o -path /repo \
        -o -path /packages -o -path /tmp -o -path /var/tmp -o -path /var/log -o -path /var/cache \
        -o -path /var/lib/apt -o -path '/var/lib/dpkg/*-old' \
        -o -path '/etc/*-' -o -path '/var/lib/systemd/timers/*' \) -prune -o -print | sort
    find /run -maxdepth 1 -name '*penstock*'
}
users() { cat /etc/passwd /etc/group /etc/shadow /etc/gshadow; }
nothing_new() {
    list_files >/out/files.after
    ! comm -13 /out/files.before /out/files.after | grep .
}
same_users() { diff /out/users.before <(users); }

# Three tables: a tenant and two ports.
add_configuration() {
    printf '\n[[tenant]]\nname = "blue"\n' >>$CONFIG
    for port in vm1 vm2; do
        printf '\n[[port]]\nname = "%s"\ntenant = "blue"\nvhost-user.socket = "/run/penstock/%s.sock"\n' \
            $port $port >>$CONFIG
    done
}
start_guests() {
    spawn /out/endpoint.log $BIN endpoint --create-netns \
        --nic socket=/run/penstock/vm1.sock,netns=ns1,ip=10.0.0.1/24 \
        --nic socket=/run/penstock/vm2.sock,netns=ns2,ip=10.0.0.2/24
    wait_until 15 ping_once
}
ping_once() { in_netns ns1 ping -c 1 -W 1 10.0.0.2; }
pings() { quiet wait_until 15 ping_once; }

links_lead_somewhere() {
    local file missing=0
    for file in $(dpkg -L penstock | grep -E '\.(service|socket)$' |
        xargs sed -n 's/^Documentation=file://p'); do
        [ -e "$file" ] || { say "$file" && missing=1; }
    done
    [ "$missing" = 0 ]
}
units_verify() {
    local said
    # shellcheck disable=SC2086 # a list
    said=$(systemd-analyze verify --man=no $UNITS 2>&1) && [ -z "$said" ] && return
    say "$said"
    return 1
}
# groff has no warning about a page on wide lines; on narrow lines it warns of words that are longer.
# mandoc has no error; it also warns of requests that groff accepts and that the pages' generator
# writes.
pages_render() {
    local page said n=0
    for page in /usr/share/man/man1/penstock*.1.gz; do
        n=$((n + 1))
        said=$({ MANWIDTH=200 man --warnings -E UTF-8 -l "$page" >/dev/null &&
            mandoc -Tlint -W error "$page"; } 2>&1)
        [ -z "$said" ] || { say "$page: $said" | head -5 && return 1; }
    done
    say "     $n pages"
    [ "$n" -gt 1 ]
}
completes() {
    # shellcheck disable=SC2016 # the inner shell expands
    bash -c '. /usr/share/bash-completion/completions/penstock
        COMP_WORDS=(penstock ho) COMP_CWORD=1 COMP_LINE="penstock ho" COMP_POINT=11
        _penstock penstock ho penstock && [[ " ${COMPREPLY[*]} " = *" host "* ]]'
}
# Searches an archive for the secrets of this test.
no_secret_in() {
    local dir
    dir=$(mktemp -d)
    tar -xaf "$1" -C "$dir" || return
    ! grep -r -l -F "$SECRET" "$dir"
}
make_secrets() {
    local file
    for file in /etc/penstock/leaf1.password /etc/penstock/key.pem /etc/penstock-controller/leaf1.password \
        /etc/penstock-controller/key.pem; do
        echo "$SECRET" >$file
    done
    printf '[controller]\n# password = "%s"\npassword_file = "leaf1.password"\n' "$SECRET" \
        >/etc/penstock-controller/controller.toml
}
sos_reports() {
    mkdir -p /out/sos
    quiet sos report --batch -o penstock --tmp-dir /out/sos --threads 1 --plugin-timeout 120 &&
        SOS=$(find /out/sos -name 'sosreport-*.tar*' ! -name '*.sha256' ! -name '*.md5' | head -1) && [ -n "$SOS" ]
}
# sos_bundle_has FILE...: whether the support bundle in the report has the files.
sos_bundle_has() {
    local name list
    # sos names the file with the command's output after its words, and so after the bundle.
    name=$(tar -taf "$SOS" | grep '/penstock-support.tar.gz$')
    list=$(tar -xaf "$SOS" -O "$name" | tar -tz) || return
    for name; do grep -q "$name" <<<"$list" || return; done
}
sos_has() { tar -taf "$SOS" | grep "$1" >/dev/null; }

step installation
list_files >/out/files.before
users >/out/users.before
check "apt installs the package" installs /packages/now.deb
check "nothing runs or starts at boot" refused systemctl -q is-active penstock
check "  the switch is not enabled" refused systemctl -q is-enabled penstock
check "the switch's user owns its configuration" owned $CONFIG "penstock:penstock 640"
check "  and the directory" owned /etc/penstock "penstock:penstock 750"
check "the configuration is valid" quiet $BIN host check --config $CONFIG
check "the units have no mistake" units_verify
check "the pages that the units name are there" links_lead_somewhere
check "each manual page renders without a warning" pages_render
check "bash completes a command" completes

step "the switch"
check "it starts with the configuration of the package" systemctl start penstock
check "  and stops" systemctl stop penstock
add_configuration
check "it starts with a tenant and two ports" systemctl start penstock
check "two guests ping each other" start_guests
check "counters add up" counters_settle
check "a restart" systemctl restart penstock
check "  the guests ping each other again" pings
check "port add writes the file" quiet ctl port add tap1 tap.interface=ptap1 tenant=blue
ip netns add acts1
check "a port in a namespace, through the helper" \
    quiet ctl port add tap2 tap.interface=ptap2 tap.netns=acts1 tenant=blue
check "it can be enabled" quiet systemctl enable penstock penstock-helper.socket
sum=$(sha256sum $CONFIG)

step update
pid=$(main_pid)
check "apt installs a higher version" installs /packages/next.deb
check "  of the version" version_is /packages/next.deb
check "  the switch was restarted" [ "$(main_pid)" != "$pid" -a "$(main_pid)" != 0 ]
check "  the configuration is unchanged" [ "$sum" = "$(sha256sum $CONFIG)" ]
check "  the guests ping each other again" pings
check "  the switch is still enabled" systemctl -q is-enabled penstock
check "  the helper's socket is there" systemctl -q is-active penstock-helper.socket
check "  the port in the namespace is there" wait_until 5 in_netns acts1 ip link show ptap2
pid=$(main_pid)
# shellcheck disable=SC2016 # the file's own argument
printf '#!/bin/sh\n[ "$1" != penstock.service ] || exit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
check "policy-rc.d defers the restart" installs /packages/now.deb
check "  the same process runs" [ "$(main_pid)" = "$pid" ]
rm /usr/sbin/policy-rc.d
systemctl stop penstock
check "a switch that is stopped" installs /packages/next.deb
check "  stays stopped" refused systemctl -q is-active penstock
systemctl start penstock

step "the lab"
check "apt installs the lab" installs /packages/lab.deb
check "  with a program that runs" quiet penstock-lab list
check "  and removes it" quiet apt-get -q purge -y penstock-lab

step support
make_secrets
check "sos report has a report" sos_reports
check "  with the support bundle" sos_has '/penstock-support.tar.gz$'
check "  which has configuration and ports" sos_bundle_has 'config/etc/penstock/host.toml$' state/ports.json
check "  and no secret" no_secret_in "$SOS"
check "support-bundle" quiet $BIN support-bundle --out /out/bundle.tar.gz
check "  has no secret" no_secret_in /out/bundle.tar.gz

step removal
for pid in "${OWN_PIDS[@]}"; do end_pid "$pid"; done
ip netns del acts1
check "apt removes the package while the switch runs" quiet apt-get -q remove -y penstock
check "  the switch has ended" refused pgrep -x penstock
check "  its configuration stays" test -e $CONFIG
check "apt purges it" quiet apt-get -q purge -y penstock
check "no file is left" nothing_new
check "the users are those of before" same_users
check "systemd has no failed unit of it" bash -c "! systemctl --failed --plain | grep penstock"
verdict "the package"
