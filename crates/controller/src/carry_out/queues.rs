//! Remembers how many queues of each switch plans may use.
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

use std::collections::BTreeMap;

use penstock_fabric::queue_binding::Port;
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
}
