//! Networks: which (tenant, VLAN) pairs there are, and which of them a port carries.
//!
//! **Rule.** A tenant has one network a VLAN of its list, or a single untagged one (VLAN 0) if the
//! list is empty. A tenant's port carries networks of that tenant only. A shared port carries, of
//! each of its VLANs, the network of the one tenant that has it; VLANs that no tenant has are not
//! carried.

use std::collections::BTreeMap;

use super::model::{Port, Tenant};

/// A forwarding domain: a tenant, by its place in the configuration, and a VLAN, 0 untagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Network {
    pub(crate) tenant: usize,
    pub(crate) vlan: u16,
}

/// All networks, to be looked up by tenant and by VLAN.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    by_tenant: Vec<Vec<u16>>,
    by_vlan: BTreeMap<u16, Vec<usize>>,
    names: BTreeMap<String, usize>,
}

impl Networks {
    /// `None` stands for a tenant whose table has mistakes of its own.
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

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_tenant.iter().map(Vec::len).sum()
    }

    /// All, by tenant and VLAN.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Network> + '_ {
        let tenants = self.by_tenant.iter().enumerate();
        tenants.flat_map(|(tenant, vlans)| {
            vlans.iter().map(move |vlan| Network { tenant, vlan: *vlan })
        })
    }

    /// A tenant's place by its name.
    pub(crate) fn tenant(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// The tenants that have a VLAN.
    pub(crate) fn owners(&self, vlan: u16) -> &[usize] {
        self.by_vlan.get(&vlan).map_or(&[], Vec::as_slice)
    }

    /// Whether a tenant has a VLAN.
    pub(crate) fn has(&self, tenant: usize, vlan: u16) -> bool {
        self.owners(vlan).contains(&tenant)
    }

    /// The networks a port carries, by VLAN. Of a VLAN that several tenants have, a shared port
    /// carries none: the check refuses that configuration.
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

/// The VLANs a port is configured for, 0 untagged.
pub(crate) fn port_vlans(port: &Port) -> Vec<u16> {
    match (&port.vlan, &port.trunk) {
        (Some(vlan), _) => vec![vlan.get()],
        (None, Some(trunk)) => trunk.to_vec().iter().map(|vlan| vlan.get()).collect(),
        (None, None) => vec![0],
    }
}
