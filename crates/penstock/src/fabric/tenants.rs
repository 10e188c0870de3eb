//! Converts a file of tenants to the controller's intent.

use std::sync::Arc;

use penstock_controller::files::{TenantWish, parse_tenants};
use penstock_controller::intent::{ClassRecord, Names, SpreadRecord, TenantSpec};
use penstock_controller::service::ReadTenants;
use penstock_fabric::topology::Topology;

/// Returns a reader with the grammar of `penstock controller plan`.
pub fn reader() -> ReadTenants {
    Arc::new(|text, topology, known| {
        let wishes = parse_tenants(text, "tenants", topology, known)
            .map_err(|errors| crate::verbs::host::mistakes(&errors))?;
        let mut names = known.to_vec();
        names.extend(wishes.iter().map(|wish| wish.name.clone()));
        Ok(wishes.iter().map(|wish| spec(wish, topology, &names)).collect())
    })
}

fn spec(wish: &TenantWish, topology: &Topology, names: &[String]) -> TenantSpec {
    let others = |list: &[(usize, usize)]| {
        let named = |(at, layer): &(usize, usize)| Some((names.get(*at)?.clone(), *layer));
        list.iter().filter_map(named).collect()
    };
    let request = &wish.request;
    let class = |c: &penstock_fabric::hose::VmClass| ClassRecord {
        vms: c.vms,
        send: c.send.0,
        recv: c.recv.0,
    };
    let spread = |s: &penstock_fabric::tenant_placement::Spread| SpreadRecord {
        layer: s.layer,
        most_vms: s.most_vms,
        least_domains: s.least_domains,
    };
    TenantSpec {
        name: wish.name.clone(),
        classes: request.hose.classes().iter().map(class).collect(),
        spread: request.spread.iter().map(spread).collect(),
        within: request.affinity.within.iter().map(|n| Names(topology).of(*n)).collect(),
        near: others(&wish.near),
        apart: others(&wish.apart),
    }
}
