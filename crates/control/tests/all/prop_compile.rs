//! Property tests of snapshots: after any change of any configuration, objects keep their numbers
//! and tenants stay separate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use penstock_control::config::{HostConfig, parse};
use penstock_control::snapshot::{Compiler, IdTable};
use penstock_dataplane::snapshot::Snapshot;
use proptest::prelude::*;

/// Random numbers from which a random host configuration is built. The function [`text`] converts a
/// `Plan` of random numbers to a valid configuration.
#[derive(Clone, Debug)]
struct Plan {
    /// VLANs of each tenant, with numbers from 1 to 12. A tenant without VLANs has an untagged
    /// network.
    tenants: Vec<BTreeSet<u16>>,
    /// For each port: a number for its name, its tenant (`None` for a shared port), true for a
    /// trunk port, and bits that choose VLANs.
    ports: Vec<(u8, Option<u8>, bool, u64)>,
    /// For each rule: a number that selects its scope (a port, a tenant, or all ports), and a
    /// number that selects its output port.
    rules: Vec<(u8, u8)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let tenants = prop::collection::vec(prop::collection::btree_set(1_u16..=12, 0..5), 1..5);
    let port = (0_u8..20, prop::option::weighted(0.8, any::<u8>()), any::<bool>(), any::<u64>());
    let rules = prop::collection::vec((any::<u8>(), any::<u8>()), 0..6);
    (tenants, prop::collection::vec(port, 0..10), rules).prop_map(|(tenants, ports, rules)| Plan {
        tenants,
        ports,
        rules,
    })
}

/// Returns the numbers in `set` that the bits of `pick` select. If no bit selects a number, returns
/// the first number.
fn some(set: &BTreeSet<u16>, pick: u64) -> Vec<u16> {
    let picked: Vec<u16> = set.iter().copied().filter(|v| pick >> v & 1 == 1).collect();
    if picked.is_empty() { set.iter().copied().take(1).collect() } else { picked }
}

fn text(plan: &Plan) -> String {
    let mut text = "[host]\nname = \"h\"\n".to_owned();
    for (at, vlans) in plan.tenants.iter().enumerate() {
        text += &format!("[[tenant]]\nname = \"t{at}\"\nvlans = {vlans:?}\n");
    }
    text = text.replace('{', "[").replace('}', "]");
    let owners = |vlan: &u16| plan.tenants.iter().filter(|t| t.contains(vlan)).count();
    let shared: BTreeSet<u16> = (1..=12).filter(|vlan| owners(vlan) == 1).collect();
    let mut names = BTreeSet::new();
    for (name, tenant, trunk, pick) in &plan.ports {
        let tenant = tenant.map(|t| usize::from(t) % plan.tenants.len());
        let vlans = tenant.map_or(&shared, |t| &plan.tenants[t]);
        if (vlans.is_empty() && tenant.is_none()) || !names.insert(*name) {
            continue;
        }
        text += &format!("[[port]]\nname = \"p{name}\"\ntap.interface = \"p{name}\"\n");
        if let Some(tenant) = tenant {
            text += &format!("tenant = \"t{tenant}\"\n");
        }
        let vlans = some(vlans, *pick);
        match vlans.as_slice() {
            [] => {}
            [first, ..] if *trunk => text += &format!("trunk = {vlans:?}\nnative = {first}\n"),
            [first, ..] => text += &format!("vlan = {first}\n"),
        }
    }
    let names: Vec<u8> = names.into_iter().collect();
    for (at, (scope, output)) in plan.rules.iter().enumerate().filter(|_| !names.is_empty()) {
        let port = |pick: u8| names[usize::from(pick) % names.len()];
        text += &format!("[[rule]]\nname = \"r{at}\"\nactions = [\"output:p{}\"]\n", port(*output));
        match scope % 3 {
            0 => text += &format!("port = \"p{}\"\n", port(*scope)),
            1 => text += &format!("tenant = \"t{}\"\n", usize::from(*scope) % plan.tenants.len()),
            _ => text += "match = { proto = \"tcp\", dst_port = \"1-9\" }\n",
        }
    }
    text
}

fn ids(table: &IdTable) -> BTreeMap<String, u16> {
    let ports = table.ports().map(|(name, id)| (format!("port {name}"), id));
    let networks = table.networks().map(|(t, vlan, id)| (format!("network {t} {vlan}"), id));
    ports.chain(networks).collect()
}

/// Checks all guarantees of a snapshot about the ports that may exchange frames.
fn check(config: &HostConfig, table: &IdTable, snapshot: &Snapshot) {
    for port in &config.ports {
        let id = table.port(&port.name).expect("every port has a number");
        let policy = snapshot.port(id).expect("every port has a policy");
        assert_eq!(policy.id, id);
        let owner = port.tenant.as_deref().map(|name| table.tenant(name).expect("a number"));
        assert_eq!(policy.tenant, owner);
        for vid in 0..4095 {
            let Some(number) = policy.domain(vid) else { continue };
            let domain = snapshot.domain(number).expect("a domain of its own");
            assert_eq!(domain.vid, vid);
            assert!(owner.is_none() || domain.tenant == owner, "{} is in another's", port.name);
            assert!(snapshot.is_member(number, id), "{} is no member of its domain", port.name);
        }
    }
    for (number, domain) in (0_u16..).zip(&snapshot.domains) {
        for id in &domain.members {
            let policy = snapshot.port(*id).expect("a member is a port");
            let admitted = policy.admit(domain.vid);
            assert_eq!(admitted, Some((domain.vid, number)), "member {id} of {number}");
            assert!(policy.egress_form(domain.vid).is_some());
        }
    }
    let mut numbers: Vec<u16> = table.ports().map(|(_, id)| id).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), config.ports.len(), "no number is given twice");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn numbers_stay_and_tenants_stay_apart(plans in prop::collection::vec(plan(), 1..4)) {
        let mut compiler = Compiler::default();
        let mut before = BTreeMap::new();
        for (generation, plan) in (1..).zip(&plans) {
            let text = text(plan);
            let config = parse(&text, "").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
            let snapshot = compiler.compile(&config, generation).expect("few rules");
            check(&config, compiler.ids(), &snapshot);
            let now = ids(compiler.ids());
            for (name, id) in &now {
                prop_assert!(before.get(name).is_none_or(|old| old == id), "{} moved", name);
            }
            before = now;
        }
    }

    #[test]
    fn the_same_configuration_again_changes_nothing(plan in plan()) {
        let config = parse(&text(&plan), "").expect("a right text");
        let mut compiler = Compiler::default();
        let first = compiler.compile(&config, 1).expect("few rules");
        let table = compiler.ids().clone();
        let second = compiler.compile(&config, 2).expect("few rules");
        prop_assert_eq!(&table, compiler.ids());
        prop_assert_eq!(&first.domains, &second.domains);
        for (old, new) in first.ports.iter().flatten().zip(second.ports.iter().flatten()) {
            let tables = |p: &penstock_dataplane::snapshot::PortPolicy| {
                [p.rules.own.clone(), p.rules.tenant.clone(), p.rules.global.clone()]
            };
            for (old, new) in tables(old).iter().flatten().zip(tables(new).iter().flatten()) {
                prop_assert!(Arc::ptr_eq(old, new), "a table whose rules are the same is kept");
            }
        }
    }
}
