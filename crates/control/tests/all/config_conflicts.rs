//! Tests of configuration objects that contradict each other. Each mistake in a configuration
//! causes a single clear error with its place and a remedy.

use crate::wrong::appended;

const SOCKETS_AND_INTERFACES: &str = r#"
[[port]]
name = "vm3"
vhost-user.socket = "run/vm3.sock"
tenant = "blue"
#! 3:21: port "vm3": socket path "run/vm3.sock" is relative; write an absolute path
[[port]]
name = "vm3"
vhost-user.socket = "/run/vm1.sock"
tenant = "blue"
#! 3:21: port "vm3": socket /run/vm1.sock is already used by port "vm1"; choose another socket
[[port]]
name = "vm3"
vhost-user.socket = "/run/penstock/host.sock"
tenant = "blue"
#! 3:21: port "vm3": socket /run/penstock/host.sock is already used by [host]; choose another
#!   socket
[[port]]
name = "t"
tap.interface = "tap1"
tenant = "blue"
#! 3:17: port "t": interface tap1 is already used by port "tap1"; choose another interface
[[port]]
name = "t"
tap.interface = "sixteen-bytes-xx"
tenant = "blue"
#! 3:17: port "t": interface name "sixteen-bytes-xx" has 16 bytes, 1 to 15 are possible; choose
#!   another name
[[port]]
name = "t"
tap.interface = "a b"
tenant = "blue"
#! 3:17: port "t": "a b" cannot be an interface's name; leave out slashes, colons and spaces
[[port]]
name = "t"
tap.interface = "t"
tenant = "blue"
tap.netns = "a/b"
#! 5:13: port "t": the value is not a network namespace; write a name under /run/netns or a path
#!   that begins with /
"#;

#[test]
fn sockets_and_interfaces() {
    appended(SOCKETS_AND_INTERFACES);
}

const VLANS: &str = r#"
@red 300
#! 5:8: port "vm3": VLAN 300 is not a VLAN of tenant "red" (100-110); add the VLAN to `vlans` of
#!   [[tenant]] red, or change the port
@red
#! 4:10: port "vm3": the port is in none of tenant "red"'s VLANs (100-110); add `vlan` or `trunk`
@red 100
trunk = [101]
#! 6:9: port "vm3": `vlan` and `trunk` exclude each other; keep `vlan` for an access port or
#!   `trunk` for tagged frames
@red
trunk = []
#! 5:9: port "vm3": the trunk carries no VLAN; list VLANs, as in [100, "200-210"]
@red
trunk = [100]
native = 101
#! 6:10: port "vm3": native VLAN 101 is not a VLAN of the trunk (100); add 101 to `trunk`
@red 100
native = 100
#! 6:10: port "vm3": `native` is only for a port with a `trunk`; use `vlan` for an access port, or
#!   add `trunk`
@red
trunk = [100, "105-111"]
#! 5:9: port "vm3": VLAN 111 is not a VLAN of tenant "red" (100-110); add the VLAN to `vlans` of
#!   [[tenant]] red, or change the port
[[port]]
name = "vm3"
vhost-user.socket = "/run/vm3.sock"
tenant = "green"
#! 4:10: port "vm3": there is no tenant "green"; add a [[tenant]] of this name, or correct the
#!   name
@blue 5
#! 5:8: port "vm3": tenant "blue" has one untagged network and no VLANs; remove the key, or give
#!   [[tenant]] blue `vlans`
[[port]]
name = "vm3"
vhost-user.socket = "/run/vm3.sock"
trunk = [300]
#! 4:9: port "vm3": no tenant has VLAN 300; set the port's `tenant`, or give a [[tenant]] the
#!   port's VLANs
[[port]]
name = "vm3"
vhost-user.socket = "/run/vm3.sock"
vlan = 300
#! 4:8: port "vm3": no tenant has VLAN 300; set the port's `tenant`, or give a [[tenant]] the
#!   port's VLANs
[[tenant]]
name = "green"
[[port]]
name = "vm3"
vhost-user.socket = "/run/vm3.sock"
#! 3:1: port "vm3": the untagged network belongs to tenants "blue" and "green", which a shared
#!   port cannot distinguish; give the port a `tenant`, or give each tenant its own VLANs
[[tenant]]
name = "green"
vlans = [105]
[[port]]
name = "vm3"
vhost-user.socket = "/run/vm3.sock"
trunk = ["104-106"]
#! 7:9: port "vm3": VLAN 105 belongs to tenants "red" and "green", which a shared port cannot
#!   distinguish; give the port a `tenant`, or give each tenant its own VLANs
"#;

#[test]
fn vlans() {
    appended(VLANS);
}

const BINDINGS: &str = r#"
@red 100
mac = ["52:54:00:00:00:01"]
#! 6:8: port "vm3": MAC 52:54:00:00:00:01 is already bound to port "vm1" in the same network; bind
#!   the address only once
@red 101
mac = ["52:54:00:00:00:09", "52:54:00:00:00:09"]
#! 6:29: port "vm3": MAC 52:54:00:00:00:09 is already bound to port "vm3" in the same network;
#!   bind the address only once
"#;

#[test]
fn bindings() {
    appended(BINDINGS);
}

const RULES: &str = r#"
[[rule]]
name = "r"
actions = []
#! 3:11: rule "r": the actions have no destination; end with drop, normal or output:PORT
[[rule]]
name = "r"
#! 1:1: rule "r": `actions` is missing; add `actions = ...`
[[rule]]
name = "r"
port = "vm9"
actions = ["output:vm8"]
#! 3:8: rule "r": there is no port "vm9"; add a [[port]] of this name, or correct the name
#! 4:12: rule "r": there is no port "vm8"; add a [[port]] of this name, or correct the name
[[rule]]
name = "r"
tenant = "green"
actions = ["drop"]
#! 3:10: rule "r": there is no tenant "green"; add a [[tenant]] of this name, or correct the name
[[rule]]
name = "r"
port = "vm1"
tenant = "red"
actions = ["drop"]
#! 4:10: rule "r": `port` and `tenant` exclude each other; remove one of the two keys, or remove
#!   both keys to match all ports
[[rule]]
name = "r"
actions = ["fly", "set-vlan:9999"]
#! 3:12: rule "r": `actions`: action "fly" is unknown; write drop, normal, output:PORT,
#!   mirror:PORT, set-vlan:VLAN or set-dscp:NUMBER
#! 3:19: rule "r": `actions`: VLAN 9999 is out of range; a VLAN is a number from 1 to 4094
[[rule]]
name = "r"
actions = ["drop", "normal"]
#! 3:11: rule "r": the actions drop, normal contradict each other; write the rewriting actions and
#!   mirror:PORT first, then either drop, normal or outputs
[[rule]]
name = "r"
actions = ["set-dscp:46"]
#! 3:11: rule "r": the actions have no destination; end with drop, normal or output:PORT
[[rule]]
name = "r"
actions = ["set-dscp:46", "drop"]
#! 3:11: rule "r": the rule rewrites and then drops each frame; write actions = ["drop"]
[[rule]]
name = "r"
actions = ["output:vm1", "output:vm1"]
#! 3:26: rule "r": output:vm1 comes twice; remove one
[[rule]]
name = "r"
actions = ["normal", "set-dscp:1"]
#! 3:11: rule "r": the actions normal, set-dscp:1 contradict each other; write the rewriting
#!   actions and mirror:PORT first, then either drop, normal or outputs
[[rule]]
name = "r"
port = "vm1"
actions = ["set-vlan:300", "normal"]
#! 4:12: rule "r": VLAN 300 is not a VLAN of tenant "red"; a rule can move frames only between
#!   VLANs of the same tenant
[[rule]]
name = "r"
actions = ["drop"]
match = { dst_port = 80 }
#! 4:22: rule "r": `dst_port` without `proto`; add proto = "tcp", "udp" or "sctp"
[[rule]]
name = "r"
actions = ["drop"]
match = { proto = "icmp", src_port = 1 }
#! 4:38: rule "r": `src_port` with `proto` icmp, which has no ports; add proto = "tcp", "udp" or
#!   "sctp"
[[rule]]
name = "r"
actions = ["drop"]
match = { src = "10.0.0.0/8", ethertype = "ipv6" }
#! 4:17: rule "r": `src` 10.0.0.0/8 with `ethertype` ipv6: no frame can match; remove `ethertype`,
#!   an address implies it
[[rule]]
name = "r"
actions = ["drop"]
match = { src = "10.0.0.0/8", dst = "fe80::/10" }
#! 4:37: rule "r": `src` 10.0.0.0/8 is ipv4 and `dst` fe80::/10 is ipv6; use one address family in
#!   a rule
[[rule]]
name = "r"
actions = ["drop"]
match = { dst = "fe80::/10", proto = "icmp" }
#! 4:38: rule "r": `proto` icmp does not occur in ipv6 packets; write "icmpv6"
[[rule]]
name = "r"
actions = ["drop"]
match = { ethertype = "arp", proto = "tcp" }
#! 4:38: rule "r": `proto` with `ethertype` arp: only IP packets have a `proto`; remove one of the
#!   two keys
[[rule]]
name = "r"
actions = ["drop"]
[rule.match]
src = "10.0.0.1/8"
dst_port = "9-3"
dscp = 64
#! 5:7: rule "r": `match.src`: 10.0.0.1/8 has bits set after the first 8; write 10.0.0.0/8
#! 6:12: rule "r": `match.dst_port`: port range 9-3 ends before it begins; write 3-9
#! 7:8: rule "r": `match.dscp`: DSCP 64 is out of range; write a number from 0 to 63
[[rule]]
name = "r"
actions = ["drop"]
match = { proto = "tcp", src_port = "1-65534", dst_port = "1-65534" }
#! 4:37: rule "r": port ranges become 900 pairs of value and mask, the limit is 64; begin and end
#!   ranges at multiples of a power of two, or match fewer ports
[[rule]]
name = "r"
port = "vm1"
actions = ["drop"]
match = { vlan = 101 }
#! 5:18: rule "r": port "vm1" does not carry VLAN 101: no frame can match; correct the VLAN or
#!   remove it
[[rule]]
name = "r"
tenant = "blue"
actions = ["drop"]
match = { vlan = 101 }
#! 5:18: rule "r": tenant "blue" does not have VLAN 101: no frame can match; correct the VLAN or
#!   remove it
[[rule]]
name = "r"
priority = 70000
actions = ["drop"]
#! 3:12: rule "r": `priority`: 70000 is out of range; write a whole number from 0 to 65535
[[rule]]
name = "r"
actions = ["drop"]
match = { ethertype = 0x8100, src_mac = "52:54:00:00:00:01/ff:ff:ff:00:00:00" }
#! 4:23: rule "r": `match.ethertype`: ethertype 0x8100 is the VLAN tag; match on `vlan`
#! 4:41: rule "r": `match.src_mac`: 52:54:00:00:00:01/ff:ff:ff:00:00:00 sets bits outside its
#!   mask; set bits to 0 where the mask is 0
"#;

#[test]
fn rules() {
    appended(RULES);
}

const MIRRORS: &str = r#"
@blue
mirror = { to = "vm3" }
#! 5:17: port "vm3": the port mirrors itself; name another port
@blue
mirror.to = "probe"
#! 5:13: port "vm3": there is no port "probe"; add a [[port]] of this name, or correct the name
@blue
mirror.to = "vm1"
#! 5:13: port "vm3": port "vm1" does not carry untagged frames; give the port that gets the copies
#!   the `vlan`, or a `trunk` with all VLANs, of the mirrored port
[[port]]
name = "up"
packet.interface = "eth1"
@blue
mirror = { to = "up", direction = "in" }
#! 8:17: port "vm3": port "up" has no `tenant`; give the port that gets the copies a tenant of its
#!   own, such as `monitor`
@blue
mirror.to = "vm4"
[[port]]
name = "vm4"
vhost-user.socket = "/run/vm4.sock"
tenant = "blue"
mirror.to = "tap1"
#! 5:13: port "vm3": port "vm4" has a mirror itself; remove one of the two mirrors
[[rule]]
name = "r"
port = "vm1"
actions = ["mirror:tap1", "normal"]
#! 4:12: rule "r": port "tap1" does not carry VLAN 100; give the port that gets the copies the
#!   `vlan`, or a `trunk` with all VLANs, of the mirrored port
[[rule]]
name = "r"
actions = ["mirror:vm9", "drop"]
#! 3:12: rule "r": there is no port "vm9"; add a [[port]] of this name, or correct the name
[[rule]]
name = "r"
actions = ["mirror:tap1"]
#! 3:11: rule "r": the actions have no destination; end with drop, normal or output:PORT
"#;

#[test]
fn mirrors() {
    appended(MIRRORS);
}

const STATIC_ADDRESSES: &str = r#"
[[fdb]]
mac = "52:54:00:00:00:05"
port = "vm9"
#! 3:8: fdb 52:54:00:00:00:05: there is no port "vm9"; add a [[port]] of this name, or correct the
#!   name
[[fdb]]
mac = "52:54:00:00:00:05"
port = "vm1"
vlan = 101
#! 4:8: fdb 52:54:00:00:00:05: port "vm1" does not carry VLAN 101 of the address's tenant; choose
#!   a network with `tenant` and `vlan`, or correct these keys
[[fdb]]
mac = "52:54:00:00:00:05"
port = "vm1"
[[fdb]]
mac = "52:54:00:00:00:05"
port = "vm1"
#! 5:7: fdb 52:54:00:00:00:05: 52:54:00:00:00:05 is already in this network; remove the duplicate
#!   [[fdb]] entry
[[fdb]]
mac = "52:54:00:00:00:05"
port = "vm1"
tenant = "green"
#! 4:10: fdb 52:54:00:00:00:05: there is no tenant "green"; add a [[tenant]] of this name, or
#!   correct the name
[[port]]
name = "up"
vhost-user.socket = "/run/up.sock"
trunk = ["100-110"]
[[fdb]]
mac = "52:54:00:00:00:05"
port = "up"
#! 5:1: fdb 52:54:00:00:00:05: port "up" carries 11 networks; choose a network with `tenant` and
#!   `vlan`, or correct these keys
[[fdb]]
mac = "52:54:00:00:00:05"
port = "vm1"
tenant = "blue"
#! 1:1: fdb 52:54:00:00:00:05: port "vm1" carries no network of tenant "blue"; choose a network
#!   with `tenant` and `vlan`, or correct these keys
[[tenant]]
name = "green"
vlans = [200]
uplink_weight = 0
[[port]]
name = "up"
vhost-user.socket = "/run/up.sock"
trunk = [100, 200]
[[fdb]]
mac = "52:54:00:00:00:05"
port = "up"
tenant = "green"
#! 4:17: tenant "green": `uplink_weight`: 0 is out of range; write 1 to 10000
"#;

#[test]
fn static_addresses() {
    appended(STATIC_ADDRESSES);
}

const QUEUES: &str = r#"
@red 100
wfq = { weights = [1, 2, 3], map = { 8 = 1 } }
#! 6:7: port "vm3": `wfq` has no effect with egress = "fifo"; set egress = "wfq", or remove `wfq`
[[tenant]]
name = "blue2"
dscp = 64
@red 100
egress = "wfq"
queue = { excess = "hold" }
wfq = { queues = 65, weights = [1, 2], map = { 8 = 1 } }
#! 3:8: tenant "blue2": `dscp` 64 is out of range; write a number from 0 to 63
#! 10:20: port "vm3": only a `fair-share` output can leave frames in the senders' rings; set
#!   excess = "drop", or egress = "fair-share" on a shared port
#! 11:18: port "vm3": `queues` 65 is out of range; write a number from 2 to 64
@red 100
egress = "wfq"
wfq = { queues = 2, weights = [1, 2, 3], map = { 8 = 2 } }
#! 7:31: port "vm3": 3 weights are too many, there are 2 queues; remove some weights, or raise
#!   `wfq.queues`
#! 7:54: port "vm3": DSCP 8 is mapped to queue 2, which does not exist; write a queue from 0 to 1
@red 100
egress = "wfq"
wfq = { weights = [0], map = { 64 = 1 } }
#! 7:19: port "vm3": `wfq.weights`: 0 is out of range; write 1 to 10000
#! 7:32: port "vm3": `wfq.map`: 64 is not a DSCP; write a number from 0 to 63
@red 100
egress = "wfq"
wfq = { queues = 63, ceilings = { red = "1k", green = "5M" } }
#! 7:33: port "vm3": 63 queues and 2 tenants with a ceiling are more than 64; remove some
#!   ceilings, and limit these tenants with `send` of [[tenant]]
#! 7:41: port "vm3": `wfq.ceilings.red` 1k is out of range; write 8k to 400G
#! 7:55: port "vm3": tenant "green" does not exist; name a [[tenant]] of this file
"#;

#[test]
fn queues_by_code_point() {
    appended(QUEUES);
}

#[test]
fn a_socket_path_has_107_bytes_at_most() {
    let port = |bytes: usize| {
        let socket = "x".repeat(bytes - 1);
        format!(
            "[[port]]\nname = \"vm3\"\ntenant = \"blue\"\n\
             vhost-user.socket = \"/{socket}\"\n"
        )
    };
    let limit = "socket path has 108 bytes, the limit of a unix socket is 107";
    let remedy = "choose a shorter directory or name";
    appended(&format!("{}#! none\n", port(107)));
    appended(&format!("{}#! 4:21: port \"vm3\": {limit}; {remedy}\n", port(108)));
}
