//! Networks, which are pairs of tenant and VLAN, and the networks that a port carries.
//!
//! - A tenant has one network for each VLAN in its list `vlans`. If the list `vlans` is empty, the
//!   tenant has one untagged network (VLAN 0).
//! - A port that belongs to a tenant carries only networks of this tenant.
//! - A shared port carries networks of several tenants. Each VLAN of a shared port belongs to one
//!   tenant. A shared port does not carry VLANs that belong to no tenant.

use std::collections::BTreeMap;

use super::model::{Port, Tenant};

/// A forwarding domain: the index of a tenant in the configuration, and a VLAN. The VLAN is 0 for
/// an untagged network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Network {
    pub(crate) tenant: usize,
    pub(crate) vlan: u16,
}

/// The networks of all tenants, by tenant and by VLAN.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    by_tenant: Vec<Vec<u16>>,
    by_vlan: BTreeMap<u16, Vec<usize>>,
    names: BTreeMap<String, usize>,
}

impl Networks {
    /// Collects the networks (pairs of tenant and VLAN) of all tenants. An item of `tenants` is
    /// `None` if the tenant's table has mistakes.
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

    /// Returns all networks, ordered by tenant and VLAN.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Network> + '_ {
        let tenants = self.by_tenant.iter().enumerate();
        tenants.flat_map(|(tenant, vlans)| {
            vlans.iter().map(move |vlan| Network { tenant, vlan: *vlan })
        })
    }

    /// Index of the tenant `name`; `None` if the tenant does not exist.
    pub(crate) fn tenant(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Indices of the tenants that have the VLAN `vlan`.
    pub(crate) fn owners(&self, vlan: u16) -> &[usize] {
        self.by_vlan.get(&vlan).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has(&self, tenant: usize, vlan: u16) -> bool {
        self.owners(vlan).contains(&tenant)
    }

    /// The networks that a port carries, ordered by VLAN. A shared port carries no network on a
    /// VLAN that several tenants have. The configuration check refuses a shared port with a VLAN
    /// that several tenants have.
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

/// Returns the VLANs that a port carries, from the port's keys `vlan`, `trunk` and `native`. The
/// VLAN 0 means untagged frames.
pub(crate) fn port_vlans(port: &Port) -> Vec<u16> {
    match (&port.vlan, &port.trunk) {
        (Some(vlan), _) => vec![vlan.get()],
        (None, Some(trunk)) => trunk.to_vec().iter().map(|vlan| vlan.get()).collect(),
        (None, None) => vec![0],
    }
}
