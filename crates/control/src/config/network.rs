//! Networks, which are pairs of tenant and VLAN, and the networks that a port carries.
//!
//! A tenant has one network for each VLAN of its list, or one untagged network (VLAN 0) if the list
//! is empty. A tenant's port carries networks of that tenant only. A shared port carries, for each
//! of its VLANs, the network of the one tenant that has the VLAN. It does not carry VLANs without a
//! tenant.

use std::collections::BTreeMap;

use super::model::{Port, Tenant};

/// A forwarding domain: the index of a tenant in the configuration, and a VLAN, or 0 for untagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Network {
    pub(crate) tenant: usize,
    pub(crate) vlan: u16,
}

/// All networks by tenant and by VLAN.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    by_tenant: Vec<Vec<u16>>,
    by_vlan: BTreeMap<u16, Vec<usize>>,
    names: BTreeMap<String, usize>,
}

impl Networks {
    /// The networks of these tenants. `None` is a tenant whose table has mistakes.
    pub(crate) fn new<'a>(tenants: impl Iterator<Item = Option<&'a Tenant>>) -> Self {
        let mut networks = Self::default();
        for (at, tenant) in tenants.enumerate() {
            let vlans = match tenant {
                None => Vec::new(),
                Some(tenant) if tenant.vlans.is_empty() => vec![0],
                Some(tenant) => tenant.vlans.to_vec().iter().map(|vlan| vlan.get()).collect(),
            };
            for vlan in &vlans {
                networks.by_vlan.entry(*vlan).or_default().push(at);
            }
            if let Some(tenant) = tenant {
                networks.names.entry(tenant.name.clone()).or_insert(at);
            }
            networks.by_tenant.push(vlans);
        }
        networks
    }

    pub(crate) fn len(&self) -> usize {
        self.by_tenant.iter().map(Vec::len).sum()
    }

    /// All networks, ordered by tenant and VLAN.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Network> + '_ {
        let tenants = self.by_tenant.iter().enumerate();
        tenants.flat_map(|(tenant, vlans)| {
            vlans.iter().map(move |vlan| Network { tenant, vlan: *vlan })
        })
    }

    /// The index of a tenant.
    pub(crate) fn tenant(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Indices of the tenants that have a VLAN.
    pub(crate) fn owners(&self, vlan: u16) -> &[usize] {
        self.by_vlan.get(&vlan).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has(&self, tenant: usize, vlan: u16) -> bool {
        self.owners(vlan).contains(&tenant)
    }

    /// The networks that a port carries, ordered by VLAN. A shared port carries no network of a
    /// VLAN that several tenants have. The check refuses such a configuration.
    pub(crate) fn of_port(&self, port: &Port) -> Vec<Network> {
        let owner = port.tenant.as_deref().map(|name| self.tenant(name));
        let carried = |vlan: u16| match (owner, self.owners(vlan)) {
            (Some(Some(tenant)), owners) if owners.contains(&tenant) => {
                Some(Network { tenant, vlan })
            }
            (None, [tenant]) => Some(Network { tenant: *tenant, vlan }),
            _ => None,
        };
        port_vlans(port).into_iter().filter_map(carried).collect()
    }
}

/// The configured VLANs of a port; 0 is untagged.
pub(crate) fn port_vlans(port: &Port) -> Vec<u16> {
    match (&port.vlan, &port.trunk) {
        (Some(vlan), _) => vec![vlan.get()],
        (None, Some(trunk)) => trunk.to_vec().iter().map(|vlan| vlan.get()).collect(),
        (None, None) => vec![0],
    }
}
