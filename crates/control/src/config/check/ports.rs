//! `[[port]]`: the keys of its type, its VLANs, its bindings, and that no two want the same.

use std::collections::HashMap;

use penstock_qos::policer::RATE_MAX;
use penstock_units::BitsPerSecond;

use super::super::decode::{Draft, Object, Report};
use super::super::model::{Port, PortKind, Tenant};
use super::super::network::port_vlans;
use super::super::{BINDINGS_MAX, PORTS_MAX};
use super::{World, check_count, check_names, check_range, check_socket};

/// Longest interface name: `IFNAMSIZ` has 16 bytes, the last one 0.
const INTERFACE_BYTES_MAX: usize = 15;

/// Depths of a cycle bucket.
const DEPTHS: core::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000;

/// The slowest link that is watched.
const LINK_MIN: BitsPerSecond = BitsPerSecond(1_000_000);

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    check_names(&draft.ports, report);
    check_count(&draft.ports, "port", PORTS_MAX, report);
    for object in &draft.ports {
        let Some(port) = &object.value else { continue };
        check_keys(object, port, report);
        check_values(object, port, report);
        check_vlans(object, port, world, report);
        check_worker(object, port, draft, report);
        check_rates(object, port, report);
        super::queueing::check(object, port, report);
        let is_there = |name: &str| world.tenants.contains_key(name);
        super::queueing::check_ceilings(object, port, is_there, report);
        super::receiving::check_port(object, port, report);
    }
    check_targets(draft, report);
    check_bindings(draft, world, report);
}

/// That its worker is there.
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

/// That what it is held to is possible, and that only a shared port has a link.
fn check_rates(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    if let Err(error) = port.checked_police() {
        report.at(object, error.key, error.problem, error.remedy);
    }
    let Some(link) = port.link.map(|link| link.0) else { return };
    if port.tenant.is_some() && port.queued().is_none() {
        let remedy = "remove it, or add `queue`; a VM's rate is `contract`, `police` or `shape`";
        report.at(object, "link", "`link` belongs to a shared port", remedy);
    }
    if !(LINK_MIN..=RATE_MAX).contains(&link) {
        let problem = format!("link {link} is out of range");
        report.at(object, "link", problem, format!("write {LINK_MIN} to {RATE_MAX}"));
    }
}

/// That each key belongs to the port's type, and the type's own is there.
fn check_keys(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    use PortKind::{Packet, Tap, VhostUser, Xdp};
    let keys: [(&str, bool, &[PortKind]); 11] = [
        ("socket", port.socket.is_some(), &[VhostUser]),
        ("mode", port.mode.is_some(), &[VhostUser]),
        ("socket_mode", port.socket_mode.is_some(), &[VhostUser]),
        ("socket_owner", port.socket_owner.is_some(), &[VhostUser]),
        ("socket_group", port.socket_group.is_some(), &[VhostUser]),
        ("interface", port.interface.is_some(), &[Tap, Packet, Xdp]),
        ("netns", port.netns.is_some(), &[Tap, Packet, Xdp]),
        ("queues", port.queues.is_some(), &[VhostUser, Tap, Xdp]),
        ("mtu", port.mtu.is_some(), &[Tap]),
        ("zero_copy", port.zero_copy.is_some(), &[Xdp]),
        ("offloads", port.offloads.is_some(), &[VhostUser, Tap, Packet]),
    ];
    for (key, _, kinds) in keys.iter().filter(|(_, set, kinds)| *set && !kinds.contains(&port.kind))
    {
        let of: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let problem = format!("`{key}` is no key of {} port", with_article(port.kind));
        report.at(object, key, problem, format!("remove it; it belongs to {}", of.join(", ")));
    }
    let (need, there, example) = match port.kind {
        VhostUser => ("socket", port.socket.is_some(), "/run/penstock/vm1.sock"),
        Tap => ("interface", port.interface.is_some(), "tap1"),
        Packet | Xdp => ("interface", port.interface.is_some(), "eth1"),
    };
    if !there {
        let kind = with_article(port.kind);
        let problem = format!("`{need}` is missing, {kind} port needs it");
        report.at(object, "type", problem, format!("add it, as in {need} = \"{example}\""));
    }
    if port.mode == Some(super::super::SocketMode::Client) {
        let server_only = [
            ("socket_mode", port.socket_mode.is_some()),
            ("socket_owner", port.socket_owner.is_some()),
            ("socket_group", port.socket_group.is_some()),
        ];
        for (key, _) in server_only.iter().filter(|(_, set)| *set) {
            let problem = format!("`{key}` has no effect, the other side makes the socket");
            report.at(object, key, problem, "remove it, or say mode = \"server\"");
        }
    }
}

/// `a tap`, `an xdp`.
fn with_article(kind: PortKind) -> String {
    let article = if kind == PortKind::Xdp { "an" } else { "a" };
    format!("{article} {kind}")
}

/// The ranges and forms of single values.
fn check_values(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    if let Some(socket) = &port.socket {
        check_socket(object, "socket", socket, report);
    }
    if let Some(name) = &port.interface {
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        if name.is_empty() || name.len() > INTERFACE_BYTES_MAX {
            let problem = format!(
                "interface name {name:?} has {} bytes, 1 to {INTERFACE_BYTES_MAX} are possible",
                name.len()
            );
            report.at(object, "interface", problem, "choose another name");
        } else if name.contains(bad) || name == "." || name == ".." {
            let problem = format!("{name:?} cannot be an interface's name");
            report.at(object, "interface", problem, "leave out / : and spaces");
        }
    }
    if port
        .netns
        .as_deref()
        .is_some_and(|n| n.is_empty() || (n.contains('/') && !n.starts_with('/')))
    {
        let remedy = "write a name under /run/netns or a path that begins with /";
        report.at(object, "netns", "this is no network namespace", remedy);
    }
    if let Some(queues) = port.queues {
        check_range(object, "queues", queues.into(), 1..=8, report);
    }
    if let Some(mtu) = port.mtu {
        check_range(object, "mtu", mtu, 68..=65_521, report);
    }
    if port.offloads.is_some_and(|o| o.tso && !o.csum) {
        let problem = "`tso` without `csum` is impossible: segments are checksummed when cut";
        report.at(object, "offloads", problem, "say csum = true or tso = false");
    }
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
            let problem = format!("{ip} is not the address of one station");
            report.at(object, &format!("ip.{at}"), problem, "write a unicast address");
        }
    }
    if port.qinq && !port.ip.is_empty() {
        let problem = "`qinq` lets frames pass whose addresses nobody reads, so `ip` holds none";
        report.at(object, "qinq", problem, "remove `qinq`, or `ip`; `mac` holds with it");
    }
    for (key, count) in [("mac", port.mac.len()), ("ip", port.ip.len())] {
        if count > BINDINGS_MAX {
            let problem = format!("{count} addresses are too many, the limit is {BINDINGS_MAX}");
            report.at(object, key, problem, "leave the key out to allow any address");
        }
    }
}

/// Access or trunk, native, and that the networks exist and are the port's to carry.
fn check_vlans(object: &Object<'_, Port>, port: &Port, world: &World<'_>, report: &mut Report<'_>) {
    if port.vlan.is_some() && port.trunk.is_some() {
        let problem = "`vlan` and `trunk` exclude each other";
        let remedy = "keep `vlan` for an access port or `trunk` for tagged frames";
        report.at(object, "trunk", problem, remedy);
        return;
    }
    if port.trunk.as_ref().is_some_and(super::super::VlanList::is_empty) {
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
                report.at(object, "native", "`native` belongs to a trunk port", remedy);
            }
            Some(trunk) if !trunk.contains(native) => {
                let problem = format!("native VLAN {native} is not one of the trunk's ({trunk})");
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
                report.at(object, "tenant", problem, "add a [[tenant]] of that name or correct it");
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
            let problem = format!("tenant {name:?} has no VLANs but one untagged network");
            let remedy = format!("remove the key, or give [[tenant]] {name} `vlans`");
            report.at(object, vlan_key(port), problem, remedy);
        }
        return;
    }
    if port.vlan.is_none() && port.trunk.is_none() {
        let problem = format!("it is not said which of tenant {name:?}'s VLANs ({has}) it is in");
        report.at(object, "tenant", problem, "add `vlan` or `trunk`");
        return;
    }
    let missing = |vlan: &u16| format!("{vlan}").parse().is_ok_and(|v| !tenant.vlans.contains(v));
    if let Some(vlan) = port_vlans(port).into_iter().find(missing) {
        let problem = format!("VLAN {vlan} is not one of tenant {name:?}'s ({has})");
        let remedy = format!("add it to [[tenant]] {name} `vlans` or change the port");
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
                "{what} belongs to tenants {first:?} and {second:?}, a shared port cannot tell \
                 them apart"
            );
            let remedy = "give the port a `tenant`, or the tenants VLANs of their own";
            report.at(object, vlan_key(port), problem, remedy);
        }
    }
    // A tenant that could not be read may own them.
    let all_read = world.tenants.values().all(Option::is_some);
    if all_read && vlans.iter().all(|vlan| world.networks.owners(*vlan).is_empty()) {
        let problem = match vlans.as_slice() {
            [0] => "no tenant has an untagged network".to_owned(),
            [vlan] => format!("no tenant has VLAN {vlan}"),
            _ => "no tenant has any of the trunk's VLANs".to_owned(),
        };
        let remedy = "name the port's `tenant`, or give a [[tenant]] what the port carries";
        report.at(object, vlan_key(port), problem, remedy);
    }
}

/// That no two ports want the same socket or interface.
fn check_targets(draft: &Draft<'_>, report: &mut Report<'_>) {
    let mut taken: HashMap<String, &str> = HashMap::new();
    if let Some(host) = &draft.host.value {
        taken.insert(format!("socket {}", host.socket.display()), "[host]");
    }
    for object in &draft.ports {
        let Some(attachment) = object.value.as_ref().and_then(Port::attachment) else { continue };
        let key = match object.value.as_ref().map(|port| port.kind) {
            Some(PortKind::VhostUser) => "socket",
            _ => "interface",
        };
        let target = format!("{key} {}", attachment.target());
        if let Some(other) = taken.get(target.as_str()) {
            let problem = format!("{target} is already that of {other}");
            report.at(object, key, problem, format!("give each its own {key}"));
        } else {
            taken.insert(target, &object.label);
        }
    }
}

/// That a MAC address is bound once in a network.
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
                report.at(object, &format!("mac.{at}"), problem, "bind it to one of them");
            }
        }
    }
}
