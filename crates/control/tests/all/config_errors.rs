//! Tests of mistakes in single configuration objects. Each mistake in a configuration causes a
//! single clear error with its place and a remedy.

use crate::wrong::{BASE, appended, errors};

#[test]
fn the_base_is_right() {
    assert_eq!(errors(BASE), Vec::<String>::new());
}

#[test]
fn an_empty_file_lacks_its_host() {
    let error = "host.toml: file: the section [host] is missing; add [host] with `name = \"...\"`";
    assert_eq!(errors(""), [error]);
}

#[test]
fn a_list_must_be_tables() {
    let text = "port = 5\n[host]\nname = \"h\"\n";
    let error = "host.toml:1:8: [[port]]: `port` is not a list of tables but integer; write \
                 [[port]] above the keys of each port";
    assert_eq!(errors(text), [error]);
}

/// Tests the error about a value that must be a table, such as a `police` that is only a rate.
#[test]
fn a_value_that_must_be_a_table_is_told_its_form() {
    for (pair, example) in [
        ("police = \"2G\"", "police table such as { cir = \"2G\" } or { pps = \"600k\" }"),
        ("contract = \"2G\"", "contract table such as { rate = \"2G\", size = 1024 }"),
        ("slow_path = 5", "slow_path table such as { per_second = 2000 }"),
    ] {
        let text = format!(
            "{BASE}[[port]]\nname = \"t\"\ntap.interface = \"t\"\n\
             tenant = \"blue\"\n{pair}\n"
        );
        let got = errors(&text);
        let remedy = format!("; write a {example}");
        assert!(got.len() == 1 && got[0].ends_with(&remedy), "{got:?}");
    }
    let got = errors(&format!("{BASE}[[rule]]\nname = \"r\"\nactions = [\"drop\"]\nmatch = 80\n"));
    assert!(
        got[0].ends_with("; write a table of header fields such as { dst_port = 80 }"),
        "{got:?}"
    );
}

#[test]
fn the_api_on_a_public_address_must_be_wanted() {
    let metrics = "metrics = \"0.0.0.0:9753\"\nlog = \"loud\"\nstate_dir = \"var\"\n";
    let text = BASE.replacen("name = \"h1\"\n", &format!("name = \"h1\"\n{metrics}"), 1);
    assert_eq!(
        errors(&text),
        [
            "host.toml:3:11: [host]: metrics address 0.0.0.0:9753 can be reached from other \
             machines; use 127.0.0.1 or [::1], or set metrics_any = true",
            "host.toml:4:7: [host]: log directive \"loud\" is not valid; write levels (error, \
             warn, info, debug, trace) or module=level, joined by commas",
            "host.toml:5:13: [host]: directory \"var\" is relative; write an absolute path",
        ]
    );
    let wanted = text.replace("log = \"loud\"", "metrics_any = true").replace("\"var\"", "\"/v\"");
    assert_eq!(errors(&wanted), Vec::<String>::new());
}

#[test]
fn limits_hold() {
    let tenants =
        |n: usize| (0..n).map(|i| format!("[[tenant]]\nname = \"t{i}\"\n")).collect::<String>();
    let got = errors(&format!("{BASE}{}", tenants(1_023)));
    let limit = "tenant \"t1022\": 1025 tenants are too many, the limit is 1024; remove 1";
    assert!(got.len() == 1 && got[0].ends_with(limit), "{got:?}");
    let got = errors(&format!("{BASE}[[tenant]]\nname = \"t\"\nvlans = [\"1-4094\"]\n"));
    let limit = "all tenants' VLANs together are 4106, the limit is 4096; list only the VLANs that \
                 are used";
    assert!(got.len() == 1 && got[0].ends_with(limit), "{got:?}");
    let rules: String = (0..300)
        .map(|i| {
            let prefix = format!("{}.{}.0.0/16", i / 250 + 1, i % 250);
            let port = i * 7 + 1;
            format!(
                "[[rule]]\nname = \"r{i}\"\nactions = [\"drop\"]\nmatch = {{ src = \"{prefix}\",
                 proto = \"tcp\", src_mac = \"00:00:00:00:00:00/00:00:00:00:{:02x}:{:02x}\",
                 dst_port = {port} }}\n",
                i / 256,
                i % 256
            )
        })
        .collect();
    let got = errors(&format!("{BASE}{rules}"));
    assert!(got.len() == 1 && got[0].contains("rules are outside the 32 subtables"), "{got:?}");
    let long = format!("{BASE}# {}\n", "x".repeat(16 << 20));
    assert!(errors(&long)[0].contains("bytes are too many, the limit is 16777216"));
}

const SYNTAX_AND_STRUCTURE: &str = r#"
x = 
#! 1:5: syntax: string values must be quoted, expected literal string; correct the TOML syntax;
#!   nothing else was checked
[host]
name = "h2"
#! 1:2: syntax: duplicate key; correct the TOML syntax; nothing else was checked
[hosts]
#! 1:2: file: unknown key `hosts`; did you mean `host`?
port = 5
#! 1:1: port "tap1": unknown key `port`; known here: name, labels, tenant, vhost-user, tap,
#!   packet, xdp, worker, vlan, trunk, native, qinq, mac, ip, slow_path, ingress_policy, cycles,
#!   depth, cycle_weight, priority, contract, police, receive, link, inbound, egress, wfq, queue,
#!   shape, uplink_share, rtp, mirror, vm
[[port]]
name = "x"
name = "y"
#! 3:1: syntax: duplicate key; correct the TOML syntax; nothing else was checked
"#;

#[test]
fn syntax_and_structure() {
    appended(SYNTAX_AND_STRUCTURE);
}

#[test]
fn an_unknown_key_does_not_hide_what_is_wrong_with_the_others() {
    let port = "[[port]]\nname = \"vm3\"\nvhost-user.socket = \"/run/vm3.sock\"\n\
                tenant = \"nobody\"\nvlan = 100\ncolour_of_cable = \"blue\"\n";
    let got = errors(&format!("{BASE}{port}"));
    assert_eq!(got.len(), 2, "{got:?}");
    assert!(got[0].contains("there is no tenant \"nobody\""), "{got:?}");
    assert!(got[1].contains("unknown key `colour_of_cable`"), "{got:?}");
    // The check reports an error about a misspelt key alone, because a key that seems to be missing
    // may be the misspelt key.
    let port = "[[port]]\nname = \"vm3\"\nvhost-use.socket = \"/run/vm3.sock\"\n";
    let got = errors(&format!("{BASE}{port}"));
    assert!(got.len() == 1 && got[0].ends_with("did you mean `vhost-user`?"), "{got:?}");
}

const VALUES_OF_ONE_OBJECT: &str = r#"
@red 5000
mac = ["52:54:00:00:00:02", "x"]
queuez = 3
vhost-user.queues = "a"
#! 5:8: port "vm3": `vlan`: VLAN 5000 is out of range; a VLAN is a number from 1 to 4094
#! 6:29: port "vm3": `mac`: "x" is not a MAC address; write six hexadecimal bytes, as in
#!   52:54:00:00:00:01
#! 7:1: port "vm3": unknown key `queuez`; did you mean `queue`?
#! 8:21: port "vm3": `vhost-user.queues`: "a" is not a whole number; write a whole number from 1
#!   to 8
@red 100
slow_path = { per_second = 0, bust = 3 }
#! 6:31: port "vm3": unknown key `bust`; did you mean `burst`?
@red 100
[port.slow_path]
per_second = 0
#! 7:14: port "vm3": `per_second` 0 is out of range; write a number from 1 to 10000000
[[port]]
name = "vm3"
tap = { interface = "t3", mtu = 1500 }
tenant = "red"
vlan = 100
contract = { rate = "0", size = 1523 }
#! 6:12: port "vm3": a contract of rate 0 sells nothing; write a rate such as "4G" or "600kpps",
#!   or remove `contract`
#! 6:12: port "vm3": the contract's size 1523 is above the port's longest frame of 1522 bytes;
#!   sell shorter frames, or raise `tap.mtu`
@red 100
ip = ["10.0.0.1"]
qinq = true
#! 7:8: port "vm3": `ip` excludes `qinq`: the switch does not read IP headers behind a second tag;
#!   remove `qinq` or `ip`; `mac` works with `qinq`
@red 100
vhost-user.offloads = 3
#! 6:23: port "vm3": `vhost-user.offloads`: invalid; write true, false or { csum = true, tso =
#!   false }
@red 100
vhost-user.offloads = { csum = false, tso = true }
#! 6:23: port "vm3": `tso` without `csum` is impossible: segments are checksummed when cut; set
#!   csum = true or tso = false
@red 100
egress = "drr"
#! 6:10: port "vm3": `egress`: "drr" is unknown in release 0.1.0; write one of fifo, fair-share,
#!   wfq, fq-codel
@red 100
egress = "fair-share"
queue = { bytes = 100, frames = 90000, wait_us = 1 }
shape = { period_ms = 5 }
#! 7:19: port "vm3": `queue.bytes` 100 is out of range; write 2048 to 8388608
#! 7:33: port "vm3": `queue.frames` 90000 is out of range; write 32 to 65536
#! 7:50: port "vm3": `queue.wait_us` 1 is out of range; write 100 to 10000000
#! 8:9: port "vm3": `shape` has no rate; add `send` or `receive`, as in shape = { send = "4M" }
#! 8:23: port "vm3": `period_ms` belongs to the shaper `token-bucket`; remove it
@red 100
receive = { rate = "1k", burst = 100, frames = 5, sharing = "strict" }
rtp = [{ port = 5004 }, { port = 5004, clock_hz = 0 }]

[[port]]
name = "up2"
tap.interface = "up2"
receive = { pps = "0" }
rtp = [{ port = 5004 }]
#! 6:20: port "vm3": `receive.rate` 1k is out of range; write 8k to 400G
#! 6:34: port "vm3": `receive.burst` 100 is out of range; write 1514 to 536870912
#! 6:48: port "vm3": `receive.frames` needs `pps`; add `pps`, or remove `receive.frames`
#! 6:61: port "vm3": `sharing` is a key of a tenant, not of a port; move `sharing` to `receive` of
#!   the [[tenant]]
#! 7:25: port "vm3": UDP port 5004 is 0 or listed twice; list each port (1 to 65535) once
#! 7:25: port "vm3": `clock_hz` 0 is out of range; write a clock rate of 1 to 1000000000 Hz, such
#!   as 90000 for video
#! 12:11: port "up2": `receive` is only for a port with a `tenant`; remove `receive`; give the
#!   port a `tenant`, or limit what the tenants' ports receive
#! 12:19: port "up2": `receive.pps` 0 is out of range; write 1 to 1G
#! 13:7: port "up2": `rtp` is only for a port with a `tenant`; list the stream at the VM's port
#!   that receives it
@red 100
vhost-user.queues = 2
queue = { excess = "hold" }
shape = { send = "100k", receive = "20G", window_us = 0, interval_ms = 5 }

[[port]]
name = "vm4"
vhost-user.socket = "/run/vm4.sock"
tenant = "red"
vlan = 100
shape = { send = "4M", shaper = "token-bucket", period_ms = 0, window_us = 5 }
#! 7:20: port "vm3": only a `fair-share` output can leave frames in the senders' rings; set excess
#!   = "drop", or egress = "fair-share" on a shared port
#! 8:18: port "vm3": `shape.send` 100k is out of range; write 256k to 10G
#! 8:36: port "vm3": `shape.receive` 20G is out of range; write 256k to 10G
#! 8:55: port "vm3": `shape.window_us` 0 is out of range; write 1 to 100000
#! 8:72: port "vm3": `shape.interval_ms` 5 is out of range; write 10 to 60000
#! 15:61: port "vm4": `shape.period_ms` 0 is out of range; write 1 to 1000
#! 15:76: port "vm4": `window_us` belongs to the shaper `smooth`; remove it
@red 100
ingress_policy = "bps"
police = { pps = "600k" }
link = "10G"
#! 7:10: port "vm3": policy `bps` needs `cir`; write cir = "...", or set ingress_policy = "pps"
#! 8:8: port "vm3": `link` is only for a shared port or a port with `queue`; remove `link`, or add
#!   `queue`; a VM's rate is `contract`, `police` or `shape`
@red 100
ingress_policy = "pps"
#! 6:18: port "vm3": policy `pps` has no rate; add police = { pps = "600k" }, or a contract in
#!   frames per second
@red 100
ingress_policy = "fast"
#! 6:18: port "vm3": `ingress_policy`: "fast" is unknown in release 0.1.0; write one of none,
#!   cycles-strict, cycles-minmax, bps, pps
@red 100
vhost-user.socket_mode = "0888"
ip = ["10.0.0.256"]
#! 6:26: port "vm3": `vhost-user.socket_mode`: "0888" is not a file mode; write octal digits in
#!   quotes, as in "0660"
#! 7:7: port "vm3": `ip`: invalid IP address syntax; write an address, as in "10.0.0.1"
@red 100
ip = ["224.0.0.1"]
#! 6:7: port "vm3": 224.0.0.1 is not a unicast address; write a unicast address
@red 100
ip = ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
#! 6:31: port "vm3": `ip` names `10.0.0.1` twice; remove one of the two
@red 100
mac = ["01:00:5e:00:00:01"]
#! 6:8: port "vm3": `mac`: 01:00:5e:00:00:01 is not a unicast address; the first byte must be even
#!   and the address not all zero
@red 100
vhost-user.mode = "serve"
vhost-user.queues = 9
#! 6:19: port "vm3": `vhost-user.mode`: "serve" is unknown; write server, client
@red 100
vhost-user.queues = 9
#! 6:21: port "vm3": `queues` 9 is out of range; write a number from 1 to 8
@red
trunk = ["110-100"]
#! 5:10: port "vm3": `trunk`: VLAN range 110-100 ends before it begins; write 100-110
@red
trunk = [4095]
#! 5:10: port "vm3": `trunk`: VLAN 4095 is out of range; a VLAN is a number from 1 to 4094
[[port]]
name = "vm3"
vhost-user.socket = "/run/vm3.sock"
tenant = 5
#! 4:10: port "vm3": `tenant`: 5 is not valid; write a string
[[port]]
name = "t"
tap.interface = "t"
tenant = "blue"
tap.mtu = 20
#! 5:11: port "t": `mtu` 20 is out of range; write a number from 68 to 65521
[[port]]
name = "x"
#! 2:8: port "x": the port has no attachment; add one of `vhost-user`, `tap`, `packet` and `xdp`,
#!   as in vhost-user.socket = "/run/penstock/vm1.sock"
[[port]]
type = "dpdk"
name = "x y"
#! 2:1: port "x y": unknown key `type`; replace `type` by a table vhost-user, tap, packet or xdp,
#!   as in tap.interface = "tap1"
#! 3:8: port "x y": the name contains ' '; write 1 to 64 characters of a-z A-Z 0-9 . _ -
[[tenant]]
vlans = [1]
#! 1:1: [[tenant]] number 3: `name` is missing; add `name = ...`
[[tenant]]
name = "t"
fdb_limit = 0
#! 3:13: tenant "t": `fdb_limit` 0 is out of range; write a number from 1 to 131072
"#;

#[test]
fn values_of_one_object() {
    appended(VALUES_OF_ONE_OBJECT);
}

const SEVERAL_IN_ONE_OBJECT: &str = r#"
@red 100
rtp = [{ port = "a" }, { port = 5, clok_hz = 1 }]
#! 6:17: port "vm3": `rtp.port`: "a" is not a whole number; write a whole number from 1 to 65535
#! 6:36: port "vm3": unknown key `clok_hz`; did you mean `clock_hz`?
@red 100
mac = ["x", "52:54:00:00:00:02", "y"]
slow_path = { per_second = "a", bust = 3 }
#! 6:8: port "vm3": `mac`: "x" is not a MAC address; write six hexadecimal bytes, as in
#!   52:54:00:00:00:01
#! 6:34: port "vm3": `mac`: "y" is not a MAC address; write six hexadecimal bytes, as in
#!   52:54:00:00:00:01
#! 7:28: port "vm3": `slow_path.per_second`: "a" is not a whole number; write a whole number from 1
#!   to 10000000
#! 7:33: port "vm3": unknown key `bust`; did you mean `burst`?
@red 300
[[rule]]
name = "r"
port = "vm3"
actions = ["output:vm3", "output:nobody"]
[[tenant]]
name = "?"
#! 5:8: port "vm3": VLAN 300 is not a VLAN of tenant "red" (100-110); add the VLAN to `vlans` of
#!   [[tenant]] red, or change the port
#! 9:26: rule "r": there is no port "nobody"; add a [[port]] of this name, or correct the name
#! 11:8: tenant "?": the name contains '?'; write 1 to 64 characters of a-z A-Z 0-9 . _ -
[[tenant]]
name = "green"
vlans = [9999]
[[port]]
name = "g"
tap.interface = "g"
tenant = "green"
vlan = 5
#! 3:10: tenant "green": `vlans`: VLAN 9999 is out of range; a VLAN is a number from 1 to 4094
"#;

#[test]
fn several_in_one_object() {
    appended(SEVERAL_IN_ONE_OBJECT);
}

const NAMES: &str = r#"
[[tenant]]
name = "red"
#! 2:8: tenant "red": the name "red" is used twice; choose another name
[[port]]
name = "vm1"
vhost-user.socket = "/run/vm1.sock"
tenant="blue"
#! 2:8: port "vm1": the name "vm1" is used twice; choose another name
#! 3:21: port "vm1": socket /run/vm1.sock is already used by port "vm1"; choose another socket
[[tenant]]
name = ""
#! 2:8: tenant "": the name is empty; write 1 to 64 characters of a-z A-Z 0-9 . _ -
[[tenant]]
name = "a/b"
#! 2:8: tenant "a/b": the name contains '/'; write 1 to 64 characters of a-z A-Z 0-9 . _ -
[[tenant]]
name = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#! 2:8: tenant "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": the name has
#!   65 characters, the limit is 64; write 1 to 64 characters of a-z A-Z 0-9 . _ -
[[tenant]]
name = "a"
labels = { "a b" = "x" }
#! 3:10: tenant "a": `labels`: the label key "a b" is not allowed; write 1 to 63 characters of a-z
#!   A-Z 0-9 . _ / -
"#;

#[test]
fn names() {
    appended(NAMES);
}

const KEYS_OF_ANOTHER_PORT_TYPE: &str = r#"
[[port]]
name = "t"
tap.interface = "t"
tenant = "blue"
tap.socket = "/x"
tap.mode = "client"
#! 5:5: port "t": unknown key `socket`; known here: interface, netns, queues, offloads, mtu
#! 6:5: port "t": unknown key `mode`; known here: interface, netns, queues, offloads, mtu
[[port]]
name = "p"
packet.interface = "eth1"
tenant = "blue"
packet.queues = 2
packet.mtu = 1500
#! 5:8: port "p": unknown key `queues`; known here: interface, netns, offloads
#! 6:8: port "p": unknown key `mtu`; known here: interface, netns, offloads
[[port]]
name = "p"
tenant = "blue"
xdp.queues = 9
xdp.mtu = 1500
xdp.offloads = false
#! 4:1: port "p": `interface` is missing; add `interface = ...`
#! 5:5: port "p": unknown key `mtu`; known here: interface, netns, queues, zero_copy
#! 6:5: port "p": unknown key `offloads`; known here: interface, netns, queues, zero_copy
[[port]]
name = "p"
tenant = "blue"
xdp.interface = "eth1"
xdp.zero_copy = "always"
#! 5:17: port "p": `xdp.zero_copy`: "always" is unknown; write auto, never
[[port]]
name = "p"
tenant = "blue"
tap.zero_copy = "never"
tap.interface = "t"
#! 4:5: port "p": unknown key `zero_copy`; known here: interface, netns, queues, offloads, mtu
[[port]]
name = "p"
tenant = "blue"
#! 2:8: port "p": the port has no attachment; add one of `vhost-user`, `tap`, `packet` and `xdp`,
#!   as in vhost-user.socket = "/run/penstock/vm1.sock"
@blue
vhost-user.mode = "client"
vhost-user.socket_mode = "0660"
#! 6:26: port "vm3": `socket_mode` has no effect, because the VM's side creates the socket; remove
#!   the key, or set mode = "server"
"#;

#[test]
fn keys_of_another_port_type() {
    appended(KEYS_OF_ANOTHER_PORT_TYPE);
}

const SECTIONS: &str = r#"
[worker]
cores = [0, 1, 0]
#! 2:16: [worker]: core 0 is named twice, so two workers would share it; name each core once
[worker]
cores = [7]
control_cores = [0, 9]
#! 2:10: [worker]: core 7 is offline, or this process may not use it; choose one of 0, 1
#! 3:21: [worker]: core 9 is offline, or this process may not use it; choose one of 0, 1
[worker]
control_cores = [0, 1, 0]
#! 2:24: [worker]: `control_cores` names `0` twice; remove one of the two
[worker]
idle_backoff_us = 5000
schedule = "lottery"
#! 3:12: [worker]: `schedule`: "lottery" is unknown in release 0.1.0; write one of round-robin,
#!   hbs
[worker]
idle_backoff_us = 5000
#! 2:19: [worker]: `idle_backoff_us` 5000 is out of range; write a number from 0 to 1000
[forwarding]
fdb_ageing_s = 1
fdb_entries = 1
subtables_per_port = 0
#! 2:16: [forwarding]: `fdb_ageing_s` 1 is out of range; write a number from 10 to 1000000
#! 3:15: [forwarding]: `fdb_entries` 1 is out of range; write a number from 64 to 131072
#! 4:22: [forwarding]: `subtables_per_port` 0 is out of range; write a number from 1 to 128
[forwarding]
fdb_ageing_s = -1
#! 2:16: [forwarding]: `fdb_ageing_s`: -1 is out of range; write a whole number from 10 to 1000000
"#;

#[test]
fn sections() {
    appended(SECTIONS);
}
