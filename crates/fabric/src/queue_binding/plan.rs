//! Steps from one binding to the next in which every packet has a mapped code point.
//!
//! # Problem
//!
//! Hosts mark packets and switches sort them. They do not change at the same time, and packets are
//! in transit meanwhile.
//!
//! # Source
//!
//! QShare §V-D does not define the order of the steps. `docs/reference/fabric.md` defines it.
//!
//! # Approach
//!
//! 1. On each changed port, every queue gets the weight of the larger of its old and new guarantee.
//! 2. Hosts stop marking packets of tenants that lose their queue.
//! 3. The executor waits until marked packets have left the network.
//! 4. Switches remove the old values.
//! 5. Switches add the new values.
//! 6. The executor reads the new maps back.
//! 7. Hosts mark packets with the new values.
//! 8. The executor sets the final weights.
//!
//! If a tenant's value changes, it loses its queue and gets a queue in the same plan. Each plan has
//! an epoch. Executors refuse plans that are older than the last plan they accepted.

use penstock_units::Nanos;

use super::weights::Weights;
use crate::tenant_placement::TenantSlot;
use crate::topology::LinkId;

/// The sending end of a link, at a switch or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The link to which the sending end belongs.
    pub link: LinkId,
    /// Whether the sending end is the lower end, which sends up.
    pub up: bool,
}

/// One step. All hosts and switches complete it before the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Set the weights of a port's queues.
    Weigh {
        /// Port that gets new weights.
        port: Port,
        /// New weights of all queues of the port, the shared queue first.
        weights: Weights,
    },
    /// Hosts mark the tenant's packets with this value; 0 selects the shared queue.
    Mark {
        /// Tenant that sends or receives the marked packets.
        tenant: TenantSlot,
        /// Code point of the packets; 0 selects the shared queue.
        dscp: u8,
    },
    /// Wait for this time, so that previously marked packets leave the network.
    Wait(Nanos),
    /// A port removes a value from its map.
    Unmap {
        /// Port that removes the value from its map.
        port: Port,
        /// Code point to remove from the port's map.
        dscp: u8,
    },
    /// A port maps packets with this value to this dedicated queue.
    Map {
        /// Port that adds the value to its map.
        port: Port,
        /// Code point to add to the port's map.
        dscp: u8,
        /// Dedicated queue for these packets, from 1.
        queue: u8,
    },
    /// The maps of these ports are read back and compared.
    ReadBack(Vec<Port>),
}

/// The steps from one binding to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of the plan; later plans have higher numbers. Older plans are refused.
    pub epoch: u64,
    /// Steps of the plan, in order.
    pub steps: Vec<Step>,
}

/// Queues and code point of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Code point of the tenant's packets.
    pub dscp: u8,
    /// The tenant's queue on each port of its tree, from 1, in order of ports.
    pub queues: Vec<(Port, u8)>,
    /// Interval in which the tenant got the queues.
    pub since: u64,
}

/// Weights of one port during and after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reweigh {
    pub(super) port: Port,
    pub(super) during: Weights,
    pub(super) after: Weights,
}

/// The plan that removes the queues of `lost` tenants and adds the queues of `won` tenants.
pub(super) fn plan(
    epoch: u64,
    drain: Nanos,
    lost: &[(TenantSlot, Bound)],
    won: &[(TenantSlot, &Bound)],
    ports: Vec<Reweigh>,
) -> Plan {
    let weigh = |port: &Reweigh, weights: &Weights| {
        let (port, weights) = (port.port, weights.clone());
        Step::Weigh { port, weights }
    };
    let mut steps: Vec<Step> = ports.iter().map(|p| weigh(p, &p.during)).collect();
    steps.extend(lost.iter().map(|(tenant, _)| Step::Mark { tenant: *tenant, dscp: 0 }));
    if !lost.is_empty() {
        steps.push(Step::Wait(drain));
    }
    for (_, bound) in lost {
        let dscp = bound.dscp;
        steps.extend(bound.queues.iter().map(|(port, _)| Step::Unmap { port: *port, dscp }));
    }
    let mut told = Vec::new();
    for (_, bound) in won {
        let dscp = bound.dscp;
        let map = |(port, queue): &(Port, u8)| Step::Map { port: *port, dscp, queue: *queue };
        steps.extend(bound.queues.iter().map(map));
        told.extend(bound.queues.iter().map(|(port, _)| *port));
    }
    if !told.is_empty() {
        told.sort_unstable();
        told.dedup();
        steps.push(Step::ReadBack(told));
    }
    steps.extend(won.iter().map(|(tenant, b)| Step::Mark { tenant: *tenant, dscp: b.dscp }));
    steps.extend(ports.iter().filter(|p| p.during != p.after).map(|p| weigh(p, &p.after)));
    Plan { epoch, steps }
}
