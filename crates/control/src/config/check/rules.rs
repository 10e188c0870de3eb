//! Checks `[[rule]]`: its scope, its actions, and whether any frame can match.

use penstock_toml::{Object, Report};

use super::super::draft::Draft;
use super::super::limits::{RULE_MASKS_MAX, RULES_MAX};
use super::super::matching::{EtherType, IpPrefix};
use super::super::mirror::check_target;
use super::super::model::Port;
use super::super::network::port_vlans;
use super::super::rule::{Action, Match, Rule};
use super::super::values::{check_count, check_names};
use super::world::World;

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    check_names(&draft.rules, report);
    check_count(&draft.rules, "rule", RULES_MAX, report);
    for object in &draft.rules {
        let Some(rule) = &object.value else { continue };
        check_scope(object, rule, world, report);
        check_match(object, &rule.matching, report);
        check_actions(object, rule, world, report);
    }
}

/// Ports to which a rule of `[[rule]]` applies: the rule compares the frames that these ports send.
enum Reach<'a> {
    All,
    Port(&'a Port),
    Tenant(usize, &'a str),
    Unknown,
}

fn reach<'a>(rule: &'a Rule, world: &'a World<'_>) -> Reach<'a> {
    match (rule.port.as_deref(), rule.tenant.as_deref()) {
        (Some(port), _) => {
            world.ports.get(port).copied().flatten().map_or(Reach::Unknown, Reach::Port)
        }
        (None, Some(name)) => match world.networks.tenant(name) {
            Some(tenant) => Reach::Tenant(tenant, name),
            None => Reach::Unknown,
        },
        (None, None) => Reach::All,
    }
}

fn check_scope(object: &Object<'_, Rule>, rule: &Rule, world: &World<'_>, report: &mut Report<'_>) {
    if rule.port.is_some() && rule.tenant.is_some() {
        let problem = "`port` and `tenant` exclude each other";
        report.at(
            object,
            "tenant",
            problem,
            "remove one of the two keys, or remove both keys to match all ports",
        );
        return;
    }
    if let Some(port) = rule.port.as_deref().filter(|name| !world.ports.contains_key(name)) {
        let remedy = "add a [[port]] of this name, or correct the name";
        report.at(object, "port", format!("there is no port {port:?}"), remedy);
    }
    if let Some(name) = rule.tenant.as_deref().filter(|name| !world.tenants.contains_key(name)) {
        let remedy = "add a [[tenant]] of this name, or correct the name";
        report.at(object, "tenant", format!("there is no tenant {name:?}"), remedy);
    }
    let Some(vlan) = rule.matching.vlan.map(|v| v.get()) else { return };
    match reach(rule, world) {
        Reach::Port(port) if !port_vlans(port).contains(&vlan) => {
            let problem =
                format!("port {:?} does not carry VLAN {vlan}: no frame can match", port.name);
            report.at(object, "match.vlan", problem, "correct the VLAN or remove it");
        }
        Reach::Tenant(tenant, name) if !world.networks.has(tenant, vlan) => {
            let problem = format!("tenant {name:?} does not have VLAN {vlan}: no frame can match");
            report.at(object, "match.vlan", problem, "correct the VLAN or remove it");
        }
        _ => {}
    }
}

fn check_match(object: &Object<'_, Rule>, matching: &Match, report: &mut Report<'_>) {
    check_family(object, matching, report);
    for (key, ports) in [("src_port", matching.src_port), ("dst_port", matching.dst_port)] {
        let has_ports = matching.proto.is_some_and(super::super::matching::IpProto::has_ports);
        if ports.is_some() && !has_ports {
            let problem = match matching.proto {
                None => format!("`{key}` without `proto`"),
                Some(proto) => format!("`{key}` with `proto` {proto}, which has no ports"),
            };
            let remedy = "add proto = \"tcp\", \"udp\" or \"sctp\"";
            report.at(object, &format!("match.{key}"), problem, remedy);
        }
    }
    let masks = matching.expansions();
    if masks > RULE_MASKS_MAX {
        let problem = format!(
            "port ranges become {masks} pairs of value and mask, the limit is {RULE_MASKS_MAX}"
        );
        let remedy = "begin and end ranges at multiples of a power of two, or match fewer ports";
        report.at(object, "match.src_port", problem, remedy);
    }
}

/// Checks that addresses, Ethernet type and protocol belong to one address family.
fn check_family(object: &Object<'_, Rule>, matching: &Match, report: &mut Report<'_>) {
    let family =
        |prefix: IpPrefix| if prefix.is_ipv6() { EtherType::IPV6 } else { EtherType::IPV4 };
    if let (Some(src), Some(dst)) = (matching.src, matching.dst)
        && family(src) != family(dst)
    {
        let problem = format!("`src` {src} is {} and `dst` {dst} is {}", family(src), family(dst));
        report.at(object, "match.dst", problem, "use one address family in a rule");
        return;
    }
    for (key, prefix) in [("src", matching.src), ("dst", matching.dst)] {
        let (Some(prefix), Some(named)) = (prefix, matching.ethertype) else { continue };
        let arp = named == EtherType::ARP && !prefix.is_ipv6();
        if named != family(prefix) && !arp {
            let problem = format!("`{key}` {prefix} with `ethertype` {named}: no frame can match");
            let remedy = "remove `ethertype`, an address implies it";
            report.at(object, &format!("match.{key}"), problem, remedy);
        }
    }
    let ip = [EtherType::IPV4, EtherType::IPV6];
    let named = matching.ethertype.filter(|named| !ip.contains(named));
    for (key, set) in [("proto", matching.proto.is_some()), ("dscp", matching.dscp.is_some())] {
        if let (true, Some(named)) = (set, named) {
            let problem =
                format!("`{key}` with `ethertype` {named}: only IP packets have a `{key}`");
            let path = format!("match.{key}");
            report.at(object, &path, problem, "remove one of the two keys");
        }
    }
    let implied = matching.src.or(matching.dst).map(family).or(matching.ethertype);
    let (wrong, proto) = match (matching.proto, implied) {
        (Some(proto), Some(EtherType::IPV6)) if proto.0 == 1 => ("icmpv6", proto),
        (Some(proto), Some(EtherType::IPV4)) if proto.0 == 58 => ("icmp", proto),
        _ => return,
    };
    let implied = implied.map(|family| family.to_string()).unwrap_or_default();
    let problem = format!("`proto` {proto} does not occur in {implied} packets");
    report.at(object, "match.proto", problem, format!("write \"{wrong}\""));
}

fn check_actions(
    object: &Object<'_, Rule>,
    rule: &Rule,
    world: &World<'_>,
    report: &mut Report<'_>,
) {
    let is_rewrite =
        |a: &Action| matches!(a, Action::SetVlan(_) | Action::SetDscp(_) | Action::Mirror(_));
    let rewrites = rule.actions.iter().take_while(|a| is_rewrite(a)).count();
    let (before, last) = rule.actions.split_at(rewrites);
    let outputs = last.iter().all(|a| matches!(a, Action::Output(_)));
    match last {
        [] => {
            let problem = "the actions have no destination";
            report.at(object, "actions", problem, "end with drop, normal or output:PORT");
        }
        [Action::Drop] if before.iter().any(|a| !matches!(a, Action::Mirror(_))) => {
            let problem = "the rule rewrites and then drops each frame";
            report.at(object, "actions", problem, "write actions = [\"drop\"]");
        }
        [Action::Drop | Action::Normal] => {}
        _ if outputs => {}
        _ => {
            let problem = format!("the actions {} contradict each other", rule.actions_text());
            let remedy = "write the rewriting actions and mirror:PORT first, then either drop, \
                          normal or outputs";
            report.at(object, "actions", problem, remedy);
        }
    }
    for (at, action) in rule.actions.iter().enumerate() {
        let path = format!("actions.{at}");
        let earlier = rule.actions.get(..at).unwrap_or_default();
        let same = |a: &Action| {
            a == action
                || is_rewrite(a) && core::mem::discriminant(a) == core::mem::discriminant(action)
        };
        if earlier.iter().any(same) {
            report.at(object, &path, format!("{action} comes twice"), "remove one");
        }
        match action {
            Action::Output(port) if !world.ports.contains_key(port.as_str()) => {
                let remedy = "add a [[port]] of this name, or correct the name";
                report.at(object, &path, format!("there is no port {port:?}"), remedy);
            }
            Action::Mirror(port) => check_mirror(object, &path, port, rule, world, report),
            Action::SetVlan(vlan) => check_set_vlan(object, &path, rule, vlan.get(), world, report),
            _ => {}
        }
    }
}

fn check_mirror(
    object: &Object<'_, Rule>,
    path: &str,
    port: &str,
    rule: &Rule,
    world: &World<'_>,
    report: &mut Report<'_>,
) {
    let Some(target) = world.ports.get(port) else {
        let remedy = "add a [[port]] of this name, or correct the name";
        report.at(object, path, format!("there is no port {port:?}"), remedy);
        return;
    };
    let source = match reach(rule, world) {
        Reach::Port(source) => Some(source),
        _ => None,
    };
    if let Some(target) = target {
        check_target(object, path, target, source, report);
    }
}

fn check_set_vlan(
    object: &Object<'_, Rule>,
    path: &str,
    rule: &Rule,
    vlan: u16,
    world: &World<'_>,
    report: &mut Report<'_>,
) {
    let (owner, exists) = match reach(rule, world) {
        Reach::Unknown => return,
        Reach::All => ("any tenant".to_owned(), !world.networks.owners(vlan).is_empty()),
        Reach::Tenant(tenant, name) => {
            (format!("tenant {name:?}"), world.networks.has(tenant, vlan))
        }
        Reach::Port(port) => match port.tenant.as_deref() {
            None => ("any tenant".to_owned(), !world.networks.owners(vlan).is_empty()),
            Some(name) => match world.networks.tenant(name) {
                None => return,
                Some(tenant) => (format!("tenant {name:?}"), world.networks.has(tenant, vlan)),
            },
        },
    };
    if !exists {
        let problem = format!("VLAN {vlan} is not a VLAN of {owner}");
        report.at(
            object,
            path,
            problem,
            "a rule can move frames only between VLANs of the same tenant",
        );
    }
}
