//! Assigns numbers to the names of a configuration. A name keeps its number while the name is in
//! the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

use crate::config::{HostConfig, Networks};

/// The numbers that the data path uses for ports, tenants, networks and output sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdTable {
    ports: BTreeMap<String, u16>,
    tenants: BTreeMap<String, u16>,
    networks: BTreeMap<(String, u16), u16>,
}

impl IdTable {
    /// Assigns a number to each port, tenant and network of `config`, and returns the new table.
    /// Ports, tenants and networks that were in the previous table keep their numbers. The number
    /// of a removed object is assigned again only if all other numbers below `limit` are in use.
    /// Ports, tenants and networks that exist before and after a change have the same numbers in
    /// both snapshots.
    #[must_use]
    pub fn next(&self, config: &HostConfig) -> Self {
        let networks = Networks::new(config.tenants.iter().map(Some));
        let names = networks.iter().filter_map(|network| {
            let tenant = config.tenants.get(network.tenant)?;
            Some((tenant.name.clone(), network.vlan))
        });
        let ports = config.ports.iter().map(|port| port.name.clone());
        let tenants = config.tenants.iter().map(|tenant| tenant.name.clone());
        Self {
            ports: assign(&self.ports, ports, crate::config::PORTS_MAX),
            tenants: assign(&self.tenants, tenants, usize::from(u16::MAX)),
            networks: assign(&self.networks, names, usize::from(u16::MAX)),
        }
    }

    #[must_use]
    pub fn port(&self, name: &str) -> Option<u16> {
        self.ports.get(name).copied()
    }

    #[must_use]
    pub fn tenant(&self, name: &str) -> Option<u16> {
        self.tenants.get(name).copied()
    }

    /// Number of a network, which is also the number of its forwarding domain.
    #[must_use]
    pub fn network(&self, tenant: &str, vlan: u16) -> Option<u16> {
        self.networks.get(&(tenant.to_owned(), vlan)).copied()
    }

    /// Returns the name of the port that has the number `id`.
    #[must_use]
    pub fn port_name(&self, id: u16) -> Option<&str> {
        self.ports.iter().find(|(_, number)| **number == id).map(|(name, _)| name.as_str())
    }

    /// Returns tenant, VLAN and number of each network.
    pub fn networks(&self) -> impl Iterator<Item = (&str, u16, u16)> {
        self.networks.iter().map(|((tenant, vlan), id)| (tenant.as_str(), *vlan, *id))
    }

    /// Returns the name and the number of each port, in ascending order of the names.
    pub fn ports(&self) -> impl Iterator<Item = (&str, u16)> {
        self.ports.iter().map(|(name, id)| (name.as_str(), *id))
    }
}

/// Assigns numbers to `names`. A name that already has a number in the map `old` keeps this number.
/// A new name gets the lowest number that `old` does not use. If `old` uses all numbers, the new
/// name gets the lowest number of a removed name.
fn assign<K: Ord + Clone + Hash>(
    old: &BTreeMap<K, u16>,
    names: impl Iterator<Item = K>,
    limit: usize,
) -> BTreeMap<K, u16> {
    let names: Vec<K> = names.collect();
    let mut new: BTreeMap<K, u16> =
        names.iter().filter_map(|name| Some((name.clone(), *old.get(name)?))).collect();
    let kept: BTreeSet<u16> = new.values().copied().collect();
    let given_up: BTreeSet<u16> = old.values().copied().filter(|id| !kept.contains(id)).collect();
    let limit = u16::try_from(limit).unwrap_or(u16::MAX);
    let fresh = (0..limit).filter(|id| !kept.contains(id) && !given_up.contains(id));
    let mut free = fresh.chain(given_up.iter().copied());
    for name in names {
        if let std::collections::btree_map::Entry::Vacant(entry) = new.entry(name)
            && let Some(id) = free.next()
        {
            entry.insert(id);
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, u16)]) -> BTreeMap<&'static str, u16> {
        pairs.iter().copied().collect()
    }

    #[test]
    fn numbers_stay_and_are_reused_late() {
        let old = map(&[("a", 0), ("b", 1), ("c", 2)]);
        let new = assign(&old, ["c", "d", "a"].into_iter(), 8);
        assert_eq!(new, map(&[("a", 0), ("c", 2), ("d", 3)]));
        let new = assign(&new, ["c", "e", "a", "d"].into_iter(), 8);
        assert_eq!(new.get("e"), Some(&1));
        let full = assign(&old, ["x", "y", "z"].into_iter(), 4);
        assert_eq!(full, map(&[("x", 3), ("y", 0), ("z", 1)]));
    }
}
