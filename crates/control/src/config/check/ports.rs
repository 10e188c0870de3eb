//! Checks `[[port]]`: the keys of its type, its VLANs and bindings, and conflicts between ports.

use std::collections::HashMap;

use penstock_qos::policer::RATE_MAX;
use penstock_toml::{Object, Report};
use penstock_units::BitsPerSecond;

use super::super::attachment::{Attachment, SocketMode, Tap, VhostUser};
use super::super::draft::Draft;
use super::super::limits::{BINDINGS_MAX, PORTS_MAX};
use super::super::mirror;
use super::super::model::{Port, Tenant};
use super::super::network::port_vlans;
use super::super::release::Egress;
use super::super::rtp;
use super::super::values::{check_count, check_names, check_range, check_socket};
use super::world::World;

/// Longest name of an interface in bytes, which is one byte less than `IFNAMSIZ` (16).
const INTERFACE_BYTES_MAX: usize = 15;

/// Allowed depths of a cycle bucket, in cycles.
const DEPTHS: core::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000;

/// Lowest value of `link`, the rate of a link that the daemon watches.
const LINK_MIN: BitsPerSecond = BitsPerSecond(1_000_000);

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    check_names(&draft.ports, report);
    check_count(&draft.ports, "port", PORTS_MAX, report);
    for object in &draft.ports {
        let Some(port) = &object.value else { continue };
        check_attachment(object, port, report);
        check_values(object, port, report);
        check_vlans(object, port, world, report);
        check_worker(object, port, draft, report);
        check_rates(object, port, report);
        check_queues(object, port, report);
        if let Some(wfq) = &port.wfq {
            wfq.check_ceilings(object, |name| world.tenants.contains_key(name), report);
        }
        rtp::check(object, &port.rtp, port.tenant.is_some(), report);
        let target = port.mirror.as_ref().and_then(|mirror| world.ports.get(mirror.to.as_str()));
        mirror::check(object, port, target.copied().flatten(), report);
        check_receive(object, port, report);
        if let Some(inbound) = port.inbound {
            inbound.check(object, port.tenant.is_none(), port.link, report);
        }
        check_contract(object, port, report);
    }
    check_targets(draft, report);
    check_bindings(draft, world, report);
}

/// Checks that the port's worker exists.
fn check_worker(
    object: &Object<'_, Port>,
    port: &Port,
    draft: &Draft<'_>,
    report: &mut Report<'_>,
) {
    let Some(section) = &draft.worker.value else { return };
    let workers = section.cores.len().max(1);
    if let Some(worker) = port.worker.filter(|worker| usize::from(*worker) >= workers) {
        let problem = format!("there is no worker {worker}, `cores` in [worker] has {workers}");
        let remedy = format!("write a number from 0 to {}, or add a core", workers - 1);
        report.at(object, "worker", problem, remedy);
    }
}

/// Checks the port's ingress policer, and that only a shared port has a link.
fn check_rates(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    if let Err(error) = port.checked_ingress_policers() {
        report.at(object, error.key, error.problem, error.remedy);
    }
    let Some(link) = port.link.map(|link| link.0) else { return };
    if port.tenant.is_some() && port.queued(false).is_none() {
        let remedy =
            "remove `link`, or add `queue`; a VM's rate is `contract`, `police` or `shape`";
        report.at(
            object,
            "link",
            "`link` is only for a shared port or a port with `queue`",
            remedy,
        );
    }
    if !(LINK_MIN..=RATE_MAX).contains(&link) {
        let problem = format!("link {link} is out of range");
        report.at(object, "link", problem, format!("write {LINK_MIN} to {RATE_MAX}"));
    }
}

/// Checks the keys `egress`, `queue`, `shape` and `wfq` of a port.
fn check_queues(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    let shaped = port.shape.as_ref().is_some_and(|shape| shape.receive.is_some());
    if port.egress == Egress::FqCodel && port.tenant.is_none() && port.link.is_none() && !shaped {
        let problem = "without a rate, no frame of a VM waits in the flow queues of a shared port";
        report.at(object, "egress", problem, "add `link`, the rate of the port's link");
    }
    if let Some(queue) = &port.queue {
        queue.check(object, port.egress, report);
    }
    if let Some(shape) = &port.shape {
        shape.check(object, port.egress, report);
    }
    if let Some(wfq) = &port.wfq {
        wfq.check(object, port.egress, report);
    }
}

fn check_contract(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    let Some(contract) = &port.contract else { return };
    if let Some((problem, remedy)) = contract.mistake() {
        report.at(object, "contract", problem, remedy);
    }
    // A tag, the Ethernet header and the FCS come on top of the MTU.
    let longest = port.tap.as_ref().and_then(|tap| tap.mtu).map(|mtu| mtu + 22);
    let sizes = contract.size.iter().flat_map(|sizes| sizes.0.entries());
    let above = sizes.map(|(size, _)| u32::from(*size)).max().zip(longest);
    if let Some((size, longest)) = above.filter(|(size, longest)| size > longest) {
        let problem = format!(
            "the contract's size {size} is above the port's longest frame of {longest} bytes"
        );
        report.at(object, "contract", problem, "sell shorter frames, or raise `tap.mtu`");
    }
}

fn check_receive(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    let Some(receive) = &port.receive else { return };
    if port.tenant.is_none() {
        let remedy =
            "remove `receive`; give the port a `tenant`, or limit what the tenants' ports receive";
        report.at(object, "receive", "`receive` is only for a port with a `tenant`", remedy);
    }
    if receive.sharing.is_some() {
        let remedy = "move `sharing` to `receive` of the [[tenant]]";
        report.at(
            object,
            "receive.sharing",
            "`sharing` is a key of a tenant, not of a port",
            remedy,
        );
    }
    receive.check(object, "receive", report);
}

/// Checks that the port has exactly one attachment, and checks the keys of this attachment.
fn check_attachment(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    let given: Vec<_> = port.attachments().into_iter().flatten().collect();
    let attachment = match given.as_slice() {
        [one] => one,
        [] => {
            let problem = "the port has no attachment";
            let remedy = "add one of `vhost-user`, `tap`, `packet` and `xdp`, as in \
                          vhost-user.socket = \"/run/penstock/vm1.sock\"";
            report.at(object, "name", problem, remedy);
            return;
        }
        [first, second, ..] => {
            let problem = format!("`{first}` and `{second}` exclude each other");
            report.at(object, second.kind(), problem, "keep one of them");
            return;
        }
    };
    match attachment {
        Attachment::VhostUser(vhost) => check_vhost(object, vhost, report),
        Attachment::Tap(Tap { mtu: Some(mtu), .. }) => {
            check_range(object, "tap.mtu", *mtu, 68..=65_521, report);
        }
        _ => {}
    }
    let at = |key: &str| format!("{attachment}.{key}");
    if let Some((name, netns)) = attachment.interface() {
        check_interface(object, &at("interface"), name, report);
        let wrong = |n: &str| n.is_empty() || (n.contains('/') && !n.starts_with('/'));
        if netns.is_some_and(wrong) {
            let remedy = "write a name under /run/netns or a path that begins with /";
            report.at(object, &at("netns"), "the value is not a network namespace", remedy);
        }
    }
    check_range(object, &at("queues"), attachment.queues().into(), 1..=8, report);
    let offloads = attachment.offloads();
    if offloads.tso && !offloads.csum {
        let problem = "`tso` without `csum` is impossible: segments are checksummed when cut";
        report.at(object, &at("offloads"), problem, "set csum = true or tso = false");
    }
}

fn check_vhost(object: &Object<'_, Port>, vhost: &VhostUser, report: &mut Report<'_>) {
    check_socket(object, "vhost-user.socket", &vhost.socket, report);
    if vhost.mode == SocketMode::Server {
        return;
    }
    let server_only = [
        ("socket_mode", vhost.socket_mode.is_some()),
        ("socket_owner", vhost.socket_owner.is_some()),
        ("socket_group", vhost.socket_group.is_some()),
    ];
    for (key, _) in server_only.iter().filter(|(_, set)| *set) {
        let problem = format!("`{key}` has no effect, because the VM's side creates the socket");
        let remedy = "remove the key, or set mode = \"server\"";
        report.at(object, &format!("vhost-user.{key}"), problem, remedy);
    }
}

fn check_interface(object: &Object<'_, Port>, path: &str, name: &str, report: &mut Report<'_>) {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > INTERFACE_BYTES_MAX {
        let problem = format!(
            "interface name {name:?} has {} bytes, 1 to {INTERFACE_BYTES_MAX} are possible",
            name.len()
        );
        report.at(object, path, problem, "choose another name");
    } else if name.contains(bad) || name == "." || name == ".." {
        let problem = format!("{name:?} cannot be an interface's name");
        report.at(object, path, problem, "leave out slashes, colons and spaces");
    }
}

/// Checks the ranges of numbers and the forms of texts in a port's table.
fn check_values(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    if let Some(depth) = port.depth.filter(|depth| !DEPTHS.contains(depth)) {
        let problem = format!("`depth` {depth} is out of range");
        let remedy = format!("write cycles from {} to {}", DEPTHS.start(), DEPTHS.end());
        report.at(object, "depth", problem, remedy);
    }
    let slow = port.slow_path.unwrap_or_default();
    check_range(object, "slow_path.per_second", slow.per_second, 1..=10_000_000, report);
    check_range(object, "slow_path.burst", slow.burst, 1..=1_000_000, report);
    for (at, ip) in port.ip.iter().enumerate() {
        if ip.is_unspecified() || ip.is_multicast() {
            let problem = format!("{ip} is not a unicast address");
            report.at(object, &format!("ip.{at}"), problem, "write a unicast address");
        }
    }
    report.twice(object, "ip", &port.ip);
    if port.qinq && !port.ip.is_empty() {
        let problem =
            "`ip` excludes `qinq`: the switch does not read IP headers behind a second tag";
        report.at(object, "qinq", problem, "remove `qinq` or `ip`; `mac` works with `qinq`");
    }
    for (key, count) in [("mac", port.mac.len()), ("ip", port.ip.len())] {
        if count > BINDINGS_MAX {
            let problem = format!("{count} addresses are too many, the limit is {BINDINGS_MAX}");
            report.at(object, key, problem, "remove the list of addresses to allow any address");
        }
    }
}

/// Checks the keys `vlan`, `trunk` and `native`, and whether the port may carry their networks.
fn check_vlans(object: &Object<'_, Port>, port: &Port, world: &World<'_>, report: &mut Report<'_>) {
    if port.vlan.is_some() && port.trunk.is_some() {
        let problem = "`vlan` and `trunk` exclude each other";
        let remedy = "keep `vlan` for an access port or `trunk` for tagged frames";
        report.at(object, "trunk", problem, remedy);
        return;
    }
    if port.trunk.as_ref().is_some_and(super::super::vlan::VlanList::is_empty) {
        report.at(
            object,
            "trunk",
            "the trunk carries no VLAN",
            "list VLANs, as in [100, \"200-210\"]",
        );
        return;
    }
    if let Some(native) = port.native {
        match &port.trunk {
            None => {
                let remedy = "use `vlan` for an access port, or add `trunk`";
                report.at(object, "native", "`native` is only for a port with a `trunk`", remedy);
            }
            Some(trunk) if !trunk.contains(native) => {
                let problem = format!("native VLAN {native} is not a VLAN of the trunk ({trunk})");
                report.at(object, "native", problem, format!("add {native} to `trunk`"));
            }
            Some(_) => {}
        }
    }
    match port.tenant.as_deref() {
        None => check_shared(object, port, world, report),
        Some(name) => match world.tenants.get(name) {
            None => {
                let problem = format!("there is no tenant {name:?}");
                report.at(
                    object,
                    "tenant",
                    problem,
                    "add a [[tenant]] of this name, or correct the name",
                );
            }
            Some(None) => {}
            Some(Some(tenant)) => check_owned(object, port, tenant, report),
        },
    }
}

fn vlan_key(port: &Port) -> &'static str {
    if port.trunk.is_some() { "trunk" } else { "vlan" }
}

fn check_owned(object: &Object<'_, Port>, port: &Port, tenant: &Tenant, report: &mut Report<'_>) {
    let name = &tenant.name;
    let has = World::vlans_text(tenant);
    if tenant.vlans.is_empty() {
        if port.vlan.is_some() || port.trunk.is_some() {
            let problem = format!("tenant {name:?} has one untagged network and no VLANs");
            let remedy = format!("remove the key, or give [[tenant]] {name} `vlans`");
            report.at(object, vlan_key(port), problem, remedy);
        }
        return;
    }
    if port.vlan.is_none() && port.trunk.is_none() {
        let problem = format!("the port is in none of tenant {name:?}'s VLANs ({has})");
        report.at(object, "tenant", problem, "add `vlan` or `trunk`");
        return;
    }
    let missing = |vlan: &u16| format!("{vlan}").parse().is_ok_and(|v| !tenant.vlans.contains(v));
    if let Some(vlan) = port_vlans(port).into_iter().find(missing) {
        let problem = format!("VLAN {vlan} is not a VLAN of tenant {name:?} ({has})");
        let remedy = format!("add the VLAN to `vlans` of [[tenant]] {name}, or change the port");
        report.at(object, vlan_key(port), problem, remedy);
    }
}

fn check_shared(
    object: &Object<'_, Port>,
    port: &Port,
    world: &World<'_>,
    report: &mut Report<'_>,
) {
    let vlans = port_vlans(port);
    let name_of = |at: usize| {
        let mut names = world.tenants.keys().filter(|n| world.networks.tenant(n) == Some(at));
        names.next().copied().unwrap_or("?")
    };
    for vlan in &vlans {
        if let [first, second, ..] = world.networks.owners(*vlan) {
            let (first, second) = (name_of(*first), name_of(*second));
            let what =
                if *vlan == 0 { "the untagged network".to_owned() } else { format!("VLAN {vlan}") };
            let problem = format!(
                "{what} belongs to tenants {first:?} and {second:?}, which a shared port cannot \
                 distinguish"
            );
            let remedy = "give the port a `tenant`, or give each tenant its own VLANs";
            report.at(object, vlan_key(port), problem, remedy);
        }
    }
    // A tenant that could not be read may own the VLANs.
    let all_read = world.tenants.values().all(Option::is_some);
    if all_read && vlans.iter().all(|vlan| world.networks.owners(*vlan).is_empty()) {
        let problem = match vlans.as_slice() {
            [0] => "no tenant has an untagged network".to_owned(),
            [vlan] => format!("no tenant has VLAN {vlan}"),
            _ => "no tenant has any of the trunk's VLANs".to_owned(),
        };
        let remedy = "set the port's `tenant`, or give a [[tenant]] the port's VLANs";
        report.at(object, vlan_key(port), problem, remedy);
    }
}

/// Checks that no two ports use the same socket or interface.
fn check_targets(draft: &Draft<'_>, report: &mut Report<'_>) {
    let mut taken: HashMap<String, &str> = HashMap::new();
    if let Some(host) = &draft.host.value {
        taken.insert(format!("socket {}", host.socket.display()), "[host]");
    }
    for object in &draft.ports {
        let Some(attachment) = object.value.as_ref().and_then(Port::attachment) else { continue };
        let key = match attachment {
            Attachment::VhostUser(_) => "socket",
            _ => "interface",
        };
        let target = format!("{key} {}", attachment.target());
        if let Some(other) = taken.get(target.as_str()) {
            let problem = format!("{target} is already used by {other}");
            let path = format!("{attachment}.{key}");
            report.at(object, &path, problem, format!("choose another {key}"));
        } else {
            taken.insert(target, &object.label);
        }
    }
}

/// Checks that no MAC address is bound twice in a network.
fn check_bindings(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    let mut bound: HashMap<_, &str> = HashMap::new();
    for object in &draft.ports {
        let Some(port) = &object.value else { continue };
        let networks = world.networks.of_port(port);
        for (at, mac) in port.mac.iter().enumerate() {
            let mut other = None;
            for network in &networks {
                other = other.or(bound.insert((*network, *mac), &object.label));
            }
            if let Some(other) = other {
                let problem = format!("MAC {mac} is already bound to {other} in the same network");
                report.at(object, &format!("mac.{at}"), problem, "bind the address only once");
            }
        }
    }
}
