//! Compares the placement of one tenant with exhaustive search on small trees.

use penstock_fabric::tenant_placement::{Datacenter, Policy, QueueWeight, Request};
use penstock_fabric::topology::NodeId;
use proptest::prelude::*;

use crate::common;

/// Returns the least bandwidth that any allocation in the tree of `root` needs, or `None` if no
/// allocation is possible.
fn optimum(datacenter: &Datacenter, request: &Request, root: NodeId) -> Option<u128> {
    let topology = datacenter.topology();
    let cone = topology.cone(root);
    let servers: Vec<NodeId> = cone.iter().copied().filter(|n| topology.is_server(*n)).collect();
    let mut best = None;
    let mut counts = vec![0; servers.len()];
    every(datacenter, &servers, 0, request.hose.vms(), &mut counts, &mut |counts| {
        let shares: Vec<_> = servers.iter().zip(counts).map(|(s, n)| (*s, 0, *n)).collect();
        let bounded = request.spread.iter().all(|spread| {
            let nodes = topology.layer(spread.layer);
            spread.most_vms.is_none_or(|most| {
                nodes.into_iter().all(|node| {
                    let below = topology.cone(node);
                    let in_it = shares.iter().filter(|s| below.contains(&s.0));
                    in_it.map(|s| s.2).sum::<u32>() <= most
                })
            })
        });
        let entry = common::entry_of(topology, request, &shares, root);
        let fits = entry.links.iter().all(|(link, need)| {
            let free = datacenter.ledger().available(*link);
            need.up <= free.up && need.down <= free.down
        });
        if bounded && fits {
            let sum = entry.links.iter().map(|(_, need)| u128::from(need.up.0)).sum();
            best = Some(best.map_or(sum, |best: u128| best.min(sum)));
        }
    });
    best
}

/// Calls a function for every way to place `left` VMs on the servers with an index of at least
/// `at`.
fn every(
    datacenter: &Datacenter,
    servers: &[NodeId],
    at: usize,
    left: u32,
    counts: &mut Vec<u32>,
    then: &mut dyn FnMut(&[u32]),
) {
    if at == servers.len() {
        if left == 0 {
            then(counts);
        }
        return;
    }
    for vms in 0..=left.min(datacenter.ledger().usable_slots(servers[at])) {
        counts[at] = vms;
        every(datacenter, servers, at + 1, left - vms, counts, then);
    }
    counts[at] = 0;
}

proptest! {
    #[test]
    fn one_tenant_is_placed_where_the_oracle_places_it_and_at_its_cost(
        tree in common::regular(),
        others in prop::collection::vec(common::uniform(5), 0..8),
        request in common::uniform(10),
    ) {
        let queue_weight = QueueWeight::Fixed(0.0);
        // There are more queues than tenants, so only bandwidth determines the cost.
        let policy = Policy { queues: 64, queue_weight, ..Policy::default() };
        let mut datacenter = common::datacenter(&tree, 0, policy);
        for other in &others {
            let _ = datacenter.try_place(other);
        }
        let found = datacenter.find(&request);
        let topology = datacenter.topology().clone();
        let by_layer = (0..topology.layers()).map(|layer| {
            let roots = topology.layer(layer);
            roots.into_iter().filter_map(|root| optimum(&datacenter, &request, root)).min()
        });
        let oracle = by_layer.enumerate().find_map(|(layer, least)| Some((layer, least?)));
        let ours = found.map(|found| (topology.layer_of(found.root), found.cost.bandwidth));
        prop_assert_eq!(ours, oracle);
    }

    #[test]
    fn a_tenant_of_several_kinds_is_placed_only_where_it_fits_and_never_above_its_largest_rate(
        tree in common::regular(),
        others in prop::collection::vec(common::uniform(5), 0..5),
        request in common::mixed(),
    ) {
        let mut datacenter = common::datacenter(&tree, 0, Policy::default());
        for other in &others {
            let _ = datacenter.try_place(other);
        }
        // If all VMs fit at the largest rate, they fit at their own rates too.
        let rate = request.hose.classes().iter().map(|c| c.send.max(c.recv)).max().unwrap();
        let vms = request.hose.vms();
        let largest = penstock_fabric::hose::Hose::homogeneous(vms, rate).unwrap();
        let at_largest = datacenter.find(&Request::new(largest));
        let own = datacenter.find(&request);
        if let Some(at_largest) = &at_largest {
            let own = own.as_ref().unwrap();
            let layer = |root| datacenter.topology().layer_of(root);
            prop_assert!(layer(own.root) <= layer(at_largest.root));
        }
        if let Some(own) = own {
            datacenter.place_at(request, own).unwrap();
            common::audit(&datacenter);
        }
    }
}
