//! The testbed as a tree of a fabric's controller, and the simulated links of the tree's ports.
//!
//! # Approach
//!
//! The testbed of QShare §VII-A has one core link between two racks. A controller's tree needs a
//! switch above the racks. The core link is the link of the first rack to this switch. The link of
//! the second rack to the switch has [`WIDE`] times the rate, so it is never full. The simulation
//! therefore omits the link of the second rack, and the controller sets its ports all the same.

use anyhow::{Context as _, anyhow};
use penstock_controller::intent::{
    ClassRecord, LinkRecord, Names, PlacementRecord, ShareRecord, TenantRecord, TenantSpec, VERSION,
};
use penstock_fabric::queue_binding::Port;
use penstock_fabric::topology::{LinkId, LinkSpec, NodeId, NodeSpec, Topology, TopologySpec};
use penstock_sim::fabric;
use penstock_sim::fabric::rates::LinkId as SimLink;
use penstock_units::BitsPerSecond;

use super::testbed::{GBIT, RACK, SLOTS};

/// Ratio of the rate of the second rack's link to the rate of the core link.
const WIDE: u64 = 10;
/// Name of the rack whose link is the core link.
const FIRST_RACK: &str = "rack-0";
/// Name of the switch above the racks.
const CORE: &str = "core-0";

/// Returns the name of a server.
pub fn server(number: usize) -> String {
    format!("server-{number}")
}

/// Builds the tree of the testbed. The number of a server's node is the number of its host.
///
/// # Errors
/// Returns an error if the tree is not valid.
pub fn topology() -> anyhow::Result<Topology> {
    let rack = |number: usize| format!("rack-{number}");
    let switch = |name: String| NodeSpec { name, slots: None };
    let slots = u32::try_from(SLOTS)?;
    let servers = (0..2 * RACK).map(|at| NodeSpec { name: server(at), slots: Some(slots) });
    let mut nodes: Vec<NodeSpec> = servers.collect();
    nodes.extend([switch(rack(0)), switch(rack(1)), switch(CORE.to_owned())]);
    let link = |child: String, parent: String, rate: u64| LinkSpec {
        child,
        parent,
        rate: BitsPerSecond(rate),
    };
    let mut links: Vec<LinkSpec> =
        (0..2 * RACK).map(|at| link(server(at), rack(at / RACK), GBIT.0)).collect();
    links.push(link(rack(0), CORE.to_owned(), GBIT.0));
    links.push(link(rack(1), CORE.to_owned(), WIDE * GBIT.0));
    let tree = TopologySpec { nodes, links }.build();
    tree.map_err(|errors| anyhow!("the testbed's tree is not valid: {errors:?}"))
}

/// Returns the simulated link on which a port sends ([`fabric::Network::two_racks`]). `None` for
/// the ports of the second rack's link to the core switch.
#[must_use]
pub fn link(topology: &Topology, port: Port) -> Option<SimLink> {
    let child = topology.child(port.link);
    let down = u32::from(!port.up);
    if topology.is_server(child) {
        return Some(SimLink(2 + 2 * child.0 + down));
    }
    (topology.find(FIRST_RACK) == Some(child)).then_some(SimLink(down))
}

/// Returns the stored record of a tenant that has its VMs on given hosts.
///
/// # Errors
/// Returns an error if the tenant has no VMs, or a VM is on a host that does not exist.
pub fn record(
    topology: &Topology,
    name: &str,
    tenant: &fabric::TenantSpec,
) -> anyhow::Result<TenantRecord> {
    let (vms, rate) = (u32::try_from(tenant.vms.len())?, tenant.hose.0);
    let spec = TenantSpec {
        name: name.to_owned(),
        classes: vec![ClassRecord { vms, send: rate, recv: rate }],
        ..TenantSpec::default()
    };
    let hose = spec.hose()?;
    let mut on = vec![0_u32; topology.servers()];
    for host in &tenant.vms {
        *on.get_mut(*host).with_context(|| format!("{name}: there is no host {host}"))? += 1;
    }
    let share = |(at, vms): (usize, &u32)| {
        (*vms > 0).then(|| ShareRecord { server: server(at), class: 0, vms: *vms })
    };
    let shares = on.iter().enumerate().filter_map(share).collect();
    let mut links = Vec::new();
    for link in (0..u32::try_from(topology.links())?).map(LinkId) {
        let need = hose.need(&[vms_below(topology, topology.child(link), &on)]);
        if !need.is_zero() {
            let (below, above) = Names(topology).ends(link);
            links.push(LinkRecord { below, above, up: need.up.0, down: need.down.0 });
        }
    }
    let placement = PlacementRecord { root: CORE.to_owned(), shares, links, cost: 0.0 };
    Ok(TenantRecord { version: VERSION, spec, placement })
}

/// Returns the number of VMs on all servers below a node. `on` has the number of VMs on each
/// server.
fn vms_below(topology: &Topology, node: NodeId, on: &[u32]) -> u32 {
    if topology.is_server(node) {
        return on[node.index()];
    }
    topology.down(node).map(|link| vms_below(topology, topology.child(link), on)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::testbed::{spec, tenants};
    use super::*;

    #[test]
    fn each_simulated_link_has_one_port_of_its_rate() {
        let topology = topology().unwrap();
        let network = spec(Vec::new(), 1).network;
        let mut found = BTreeSet::new();
        for at in 0..u32::try_from(topology.links()).unwrap() {
            for up in [false, true] {
                let port = Port { link: LinkId(at), up };
                let Some(link) = link(&topology, port) else {
                    assert_eq!(topology.rate(port.link).0, WIDE * GBIT.0);
                    continue;
                };
                assert_eq!(network.links[link.index()], topology.rate(port.link));
                assert!(found.insert(link.index()), "link {} has two ports", link.index());
                // The link leads from the server up, or down to the server.
                let child = topology.child(port.link);
                if topology.is_server(child) {
                    let (host, other) = (child.index(), (child.index() + 1) % (2 * RACK));
                    let (from, to) = if up { (host, other) } else { (other, host) };
                    assert!(network.paths[from][to].contains(&link));
                }
            }
        }
        assert_eq!(found.len(), network.links.len());
    }

    #[test]
    fn the_controller_and_the_simulation_reserve_the_same_on_each_link() {
        let topology = topology().unwrap();
        let network = spec(Vec::new(), 1).network;
        for tenant in tenants(3) {
            let reserved = tenant.reserved(&network);
            let record = record(&topology, "t", &tenant).unwrap();
            let mut sum = 0;
            for needed in &record.placement.links {
                let child = topology.find(&needed.below).unwrap();
                let id = topology.up(child).next().unwrap();
                for (up, rate) in [(true, needed.up), (false, needed.down)] {
                    if let Some(link) = link(&topology, Port { link: id, up }) {
                        assert_eq!(reserved[link.index()].0, rate, "{needed:?}");
                        sum += rate;
                    }
                }
            }
            assert_eq!(sum, reserved.iter().map(|rate| rate.0).sum::<u64>());
        }
    }
}
