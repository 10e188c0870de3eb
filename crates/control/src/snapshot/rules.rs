//! Translates the configuration's rules to rules of the data path, and builds their tables.
//!
//! A configured rule expands to as many rules of the data path as its port ranges and address
//! families need, at most [`EXPANSIONS_MAX`]. The data path's rules have the priority of the
//! configured rule from which they come. The data path's rules are numbered in the order of the
//! configured rules in the file. If several matching rules have the same priority, the first of
//! these rules in the file applies.

use std::collections::BTreeMap;
use std::sync::Arc;

use core::net::IpAddr;

use penstock_dataplane::snapshot::{
    Actions, IpMatch, Match, Rule, RuleTable, RuleTableError, Then,
};

use crate::config::limits::RULE_MASKS_MAX;
use crate::config::matching::{Dscp, EtherType, IpPrefix, PortMatch};
use crate::config::model::HostConfig;
use crate::config::rule::{self, Action};
use crate::config::vlan::Vlan;

/// Limit on the number of rules of the data path for a configured rule. The factor 2 is for a rule
/// that matches IPv4 and IPv6 frames, and needs each mask twice.
const EXPANSIONS_MAX: usize = 2 * RULE_MASKS_MAX;

/// Scope of a rule table: one port, one tenant, or all ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scope {
    Port(String),
    Tenant(String),
    All,
}

impl Scope {
    fn of(rule: &rule::Rule) -> Self {
        match (&rule.port, &rule.tenant) {
            (Some(port), _) => Self::Port(port.clone()),
            (None, Some(tenant)) => Self::Tenant(tenant.clone()),
            (None, None) => Self::All,
        }
    }
}

/// A rule table of the data path, and the configured rules from which it was built.
#[derive(Clone, Debug)]
pub(super) struct Built {
    pub(super) table: Arc<RuleTable>,
    rules: Vec<Rule>,
    cap: usize,
    /// Names of the configured rules, by number.
    pub(super) names: Vec<String>,
}

/// Functions and tables that convert port names to port numbers and output sets.
pub(super) struct Targets<'a> {
    /// Returns a port's number; `None` if the port does not exist.
    pub(super) port: &'a dyn Fn(&str) -> Option<u16>,
    /// All sets of output ports, by the number of the set. The translation of a rule appends a set
    /// of output ports that `sets` does not contain.
    pub(super) sets: &'a mut Vec<Box<[u16]>>,
}

impl Targets<'_> {
    fn then(&mut self, actions: &[Action]) -> Then {
        let mut ports: Vec<u16> = Vec::new();
        for action in actions {
            match action {
                Action::Normal => return Then::Normal,
                Action::Output(name) => ports.extend((self.port)(name)),
                Action::Drop | Action::SetVlan(_) | Action::SetDscp(_) | Action::Mirror(_) => {}
            }
        }
        ports.sort_unstable();
        match ports.as_slice() {
            [] => Then::Drop,
            [port] => Then::Output(*port),
            ports => self.set(ports),
        }
    }

    fn set(&mut self, ports: &[u16]) -> Then {
        let at = self.sets.iter().position(|set| **set == *ports).unwrap_or_else(|| {
            self.sets.push(ports.into());
            self.sets.len() - 1
        });
        u16::try_from(at).map_or(Then::Drop, Then::OutputSet)
    }
}

/// Builds the rule tables of a configuration. A rule table of `old` is kept if its rules did not
/// change.
///
/// # Errors
/// Returns the index of a rule in the configuration, and the mistake in the rule's table.
pub(super) fn tables(
    config: &HostConfig,
    targets: &mut Targets<'_>,
    old: &BTreeMap<Scope, Built>,
    workers: usize,
) -> Result<BTreeMap<Scope, Built>, (usize, RuleTableError)> {
    let cap = usize::try_from(config.forwarding.subtables_per_port).unwrap_or(usize::MAX);
    let mut built = BTreeMap::new();
    for (scope, members) in by_scope(config) {
        let mut rules = Vec::new();
        let mut names = Vec::new();
        for (place, rule) in members.iter().filter_map(|at| config.rules.get(*at)).enumerate() {
            rules.extend(translate(rule, place, targets));
            names.push(rule.name.clone());
        }
        let kept = old.get(&scope).filter(|o| o.rules == rules && o.cap == cap && o.names == names);
        let entry = match kept {
            Some(kept) => kept.clone(),
            None => {
                let table = RuleTable::build_for(&rules, cap, workers)
                    .map_err(|error| (culprit(&error, &members), error))?;
                Built { table: Arc::new(table), rules, cap, names }
            }
        };
        built.insert(scope, entry);
    }
    Ok(built)
}

/// Returns the rules that cannot be put into a rule table, as pairs of the rule's index in the
/// configuration and the reason.
pub(crate) fn check_rules(config: &HostConfig) -> Vec<(usize, String)> {
    let numbers: BTreeMap<&str, u16> =
        config.ports.iter().zip(0..).map(|(port, id)| (port.name.as_str(), id)).collect();
    let mut sets = Vec::new();
    let mut targets = Targets { port: &|name| numbers.get(name).copied(), sets: &mut sets };
    match tables(config, &mut targets, &BTreeMap::new(), 1) {
        Ok(_) => Vec::new(),
        Err((at, error)) => vec![(at, error.to_string().replace("; ", ": "))],
    }
}

fn by_scope(config: &HostConfig) -> BTreeMap<Scope, Vec<usize>> {
    let mut scopes: BTreeMap<Scope, Vec<usize>> = BTreeMap::new();
    for (at, rule) in config.rules.iter().enumerate() {
        scopes.entry(Scope::of(rule)).or_default().push(at);
    }
    scopes
}

/// Returns the index of the configured rule that causes `error`. If the error names no rule,
/// returns the index of the table's last rule.
fn culprit(error: &RuleTableError, members: &[usize]) -> usize {
    let place = match error {
        RuleTableError::Match { id, .. } => place_of(*id),
        _ => members.len().saturating_sub(1),
    };
    members.get(place).copied().unwrap_or(0)
}

/// Returns the number that the data path uses for a rule, which is `place` times [`EXPANSIONS_MAX`]
/// plus `expansion`. `place` is the index of the configured rule, and `expansion` is the index
/// among the data path's rules for the configured rule.
fn number(place: usize, expansion: usize) -> u32 {
    u32::try_from(place * EXPANSIONS_MAX + expansion).unwrap_or(u32::MAX)
}

/// Returns the index of the configured rule from a data path rule's number ([`number`]).
pub(super) fn place_of(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX) / EXPANSIONS_MAX
}

fn translate(rule: &rule::Rule, place: usize, targets: &mut Targets<'_>) -> Vec<Rule> {
    let mut actions = Actions::only(targets.then(&rule.actions));
    for action in &rule.actions {
        match action {
            Action::SetVlan(vlan) => actions.set_vlan = Some(vlan.vid()),
            Action::SetDscp(dscp) => actions.set_dscp = Some(dscp.get()),
            Action::Mirror(name) => actions.mirror = (targets.port)(name),
            Action::Drop | Action::Normal | Action::Output(_) => {}
        }
    }
    let expanded = matches(&rule.matching).into_iter().enumerate();
    expanded
        .map(|(at, matching)| Rule {
            priority: rule.priority,
            matching,
            actions,
            id: number(place, at),
        })
        .collect()
}

pub(super) fn matches(matching: &rule::Match) -> Vec<Match> {
    let base = Match {
        in_port: None,
        vlan: matching.vlan.map(Vlan::vid),
        src_mac: matching.src_mac.map(|m| (m.value, m.mask)),
        dst_mac: matching.dst_mac.map(|m| (m.value, m.mask)),
        ethertype: None,
        src_ip: matching.src.map(address),
        dst_ip: matching.dst.map(address),
        proto: matching.proto.map(|proto| proto.0),
        src_port: None,
        dst_port: None,
        dscp: matching.dscp.map(Dscp::get),
    };
    let masks = |ports: Option<PortMatch>| match ports {
        None => vec![None],
        Some(ports) => ports.to_masks().into_iter().map(Some).collect(),
    };
    let mut all = Vec::new();
    for ethertype in families(matching) {
        for src_port in masks(matching.src_port) {
            for dst_port in masks(matching.dst_port) {
                all.push(Match { ethertype, src_port, dst_port, ..base });
            }
        }
    }
    all
}

/// Returns the Ethernet types of a match. The data path requires an Ethernet type for fields that
/// only IP has.
fn families(matching: &rule::Match) -> Vec<Option<u16>> {
    let (v4, v6) = (Some(EtherType::IPV4.0), Some(EtherType::IPV6.0));
    let addressed = matching.src.is_some() || matching.dst.is_some();
    match (matching.ethertype, matching.proto) {
        (Some(named), _) => vec![Some(named.0)],
        (None, _) if addressed => vec![None],
        (None, Some(proto)) if proto.0 == 1 => vec![v4],
        (None, Some(proto)) if proto.0 == 58 => vec![v6],
        (None, Some(_)) => vec![v4, v6],
        (None, None) if matching.dscp.is_some() => vec![v4, v6],
        (None, None) => vec![None],
    }
}

fn address(prefix: IpPrefix) -> IpMatch {
    match prefix.addr {
        IpAddr::V4(addr) => IpMatch::v4_prefix(addr, prefix.len),
        IpAddr::V6(addr) => IpMatch::v6_prefix(addr, prefix.len),
    }
}
