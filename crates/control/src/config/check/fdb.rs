//! Checks `[[fdb]]`: each entry's network exists, the entry's port carries this network, and no
//! address occurs twice in a network.

use std::collections::HashSet;

use penstock_toml::{Object, Report};

use super::super::draft::Draft;
use super::super::limits::FDB_MAX;
use super::super::model::FdbStatic;
use super::super::network::Network;
use super::super::values::check_count;
use super::world::World;

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    check_count(&draft.fdb, "fdb entrie", FDB_MAX, report);
    let mut seen = HashSet::new();
    for object in &draft.fdb {
        let Some(entry) = &object.value else { continue };
        let Some(network) = check_entry(object, entry, world, report) else { continue };
        if !seen.insert((network, entry.mac)) {
            let problem = format!("{} is already in this network", entry.mac);
            report.at(object, "mac", problem, "remove the duplicate [[fdb]] entry");
        }
    }
}

fn check_entry(
    object: &Object<'_, FdbStatic>,
    entry: &FdbStatic,
    world: &World<'_>,
    report: &mut Report<'_>,
) -> Option<Network> {
    let Some(port) = world.ports.get(entry.port.as_str()) else {
        let problem = format!("there is no port {:?}", entry.port);
        report.at(object, "port", problem, "add a [[port]] of this name, or correct the name");
        return None;
    };
    let port = (*port)?;
    if let Some(name) = entry.tenant.as_deref().filter(|n| !world.tenants.contains_key(n)) {
        let remedy = "add a [[tenant]] of this name, or correct the name";
        report.at(object, "tenant", format!("there is no tenant {name:?}"), remedy);
        return None;
    }
    let carried = world.networks.of_port(port);
    let tenant = entry.tenant.as_deref().map(|name| world.networks.tenant(name));
    let network = entry.network(&carried, tenant);
    // A tenant that could not be read may own a network of the port.
    let all_read = world.tenants.values().all(Option::is_some);
    if network.is_none() && !carried.is_empty() && all_read {
        let of = |tenant| carried.iter().any(|network| network.tenant == tenant);
        let problem = match (entry.vlan, &entry.tenant) {
            (Some(vlan), _) => {
                format!("port {:?} does not carry VLAN {vlan} of the address's tenant", port.name)
            }
            (None, Some(name)) if !world.networks.tenant(name).is_some_and(of) => {
                format!("port {:?} carries no network of tenant {name:?}", port.name)
            }
            (None, _) => format!("port {:?} carries {} networks", port.name, carried.len()),
        };
        let remedy = "choose a network with `tenant` and `vlan`, or correct these keys";
        report.at(object, "vlan", problem, remedy);
    }
    network
}

impl FdbStatic {
    /// Returns the network of an `[[fdb]]` entry: the only network in `carried` that matches
    /// `tenant` and `vlan`. The argument `tenant` is `None` if the entry names no tenant, and
    /// `Some(None)` if the named tenant's table has mistakes. For a named tenant without mistakes,
    /// `tenant` contains the tenant's index.
    pub(crate) fn network(
        &self,
        carried: &[Network],
        tenant: Option<Option<usize>>,
    ) -> Option<Network> {
        let mut meant = carried.iter().filter(|network| {
            tenant.is_none_or(|tenant| tenant == Some(network.tenant))
                && self.vlan.is_none_or(|vlan| vlan.get() == network.vlan)
        });
        let network = meant.next().copied();
        if meant.next().is_some() { None } else { network }
    }
}
