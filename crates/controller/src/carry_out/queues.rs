//! Remembers how many queues of each switch plans may use, and limits tenants whose queues a switch
//! lacks.
//!
//! # Problem
//!
//! A switch may have fewer queues than the fabric's file says. It would refuse a plan that uses a
//! queue that it lacks, in each interval again.
//!
//! # Approach
//!
//! Each read of a switch also reads its capabilities, at the start and after each reconnection. The
//! switch gets weights and maps only for the queues that it has. From the next pass on, queue
//! binding gives tenants no other queues on the switch's ports.
//!
//! Until that pass, the frames of a tenant with another queue are in queue 0 of the switch,
//! although hosts still mark them. The same is true at a port that a driver begins to leave out
//! ([`super::left_out`]). Hosts therefore limit the tenant to its guarantee at once.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Port;
use penstock_fabric::tenant_placement::TenantSlot;
use penstock_fabric::topology::NodeId;

use super::Crew;
use crate::fabric_state::Fabric;

impl Crew {
    /// Returns the number of queues that plans may use, for each switch with fewer queues than the
    /// fabric's settings say. A switch that has never answered is missing.
    #[must_use]
    pub fn few_queues(&self, fabric: &Fabric) -> BTreeMap<NodeId, u8> {
        let all = fabric.binding().settings().queues;
        let few = self.queues.iter().filter(|(_, queues)| **queues < all);
        few.map(|(node, queues)| (*node, *queues)).collect()
    }

    /// Returns the number of queues of each port of the switches in [`Self::few_queues`].
    #[must_use]
    pub fn queue_limits(&self, fabric: &Fabric) -> BTreeMap<Port, u8> {
        let mut limits = BTreeMap::new();
        for (node, queues) in self.few_queues(fabric) {
            let ports = self.switches.get(&node).into_iter().flat_map(|of| of.ports.keys());
            limits.extend(ports.map(|port| (*port, queues)));
        }
        limits
    }

    /// Limits the tenants to their guarantees that have a queue on a port without this queue.
    /// Releases the tenants that no longer have such a queue. Returns true if a host must learn of
    /// it.
    pub fn limit_misplaced(&mut self, fabric: &Fabric) -> bool {
        let now = self.find_misplaced(fabric);
        let before = std::mem::replace(&mut self.misplaced, now.clone());
        let mut changed = Vec::new();
        for slot in &now {
            if self.told.limited.insert(*slot, ()).is_none() {
                changed.push(*slot);
            }
        }
        for slot in before.difference(&now) {
            if !self.is_moving(*slot) && self.told.limited.remove(*slot).is_some() {
                changed.push(*slot);
            }
        }
        let matters = changed.into_iter().filter(|slot| self.limit_matters(*slot));
        let hosts: BTreeSet<NodeId> = matters.flat_map(|slot| fabric.servers_of(slot)).collect();
        self.out_of_date.extend(&hosts);
        !hosts.is_empty()
    }

    /// Returns the tenants that have a queue on a port without this queue.
    fn find_misplaced(&self, fabric: &Fabric) -> BTreeSet<TenantSlot> {
        let (limits, left_out) = (self.queue_limits(fabric), self.left_out_links());
        if limits.is_empty() && left_out.is_empty() {
            return BTreeSet::new();
        }
        let lacks = |(port, queue): &(Port, u8)| {
            left_out.contains(&port.link) || limits.get(port).is_some_and(|queues| queue >= queues)
        };
        let marked = fabric.binding().bound().filter(|(slot, _)| fabric.dscp(*slot) != 0);
        let misplaced = marked.filter(|(_, bound)| bound.queues.iter().any(lacks));
        misplaced.map(|(slot, _)| slot).collect()
    }
}
