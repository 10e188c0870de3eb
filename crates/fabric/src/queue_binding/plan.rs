//! From one binding to the next, in steps that never leave a packet with an unmapped code point.
//!
//! **Problem.** Hosts mark packets, switches sort marked packets; the two do not change at the same
//! instant, and packets are on their way meanwhile. **Source.** QShare §V-D leaves the order open;
//! `docs/fabric.md` has ours.
//!
//! **Rule.** (1) Where anything changes each queue gets the weight of the larger of its old and new
//! guarantee. (2) Hosts stop marking the tenants that lose their queue, (3) wait until what they
//! marked has left the network, (4) only then the switches forget these values and (5) learn the
//! new ones, which (6) is read back before (7) hosts mark by them. (8) Final weights. A tenant
//! whose value changes loses its queue and gets one in the same plan. Every plan has an epoch;
//! whoever carries it out refuses one that is older than what it has.

use penstock_units::Nanos;

use super::weights::Weights;
use crate::tenant_placement::TenantSlot;
use crate::topology::LinkId;

/// A switch port, or a host's: one end of a link, as a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The link.
    pub link: LinkId,
    /// Whether it is the lower end, which sends up.
    pub up: bool,
}

/// One thing to be done, by all whom it concerns, before the next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// A port's queues have these weights.
    Weigh {
        /// The port.
        port: Port,
        /// The weights.
        weights: Weights,
    },
    /// Hosts mark the tenant's packets with this value, 0 for the shared queue.
    Mark {
        /// The tenant.
        tenant: TenantSlot,
        /// The value.
        dscp: u8,
    },
    /// Nothing for so long: what was marked before has left the network.
    Wait(Nanos),
    /// A port does not know the value any more.
    Unmap {
        /// The port.
        port: Port,
        /// The value.
        dscp: u8,
    },
    /// A port puts packets of this value into this queue, from 1.
    Map {
        /// The port.
        port: Port,
        /// The value.
        dscp: u8,
        /// The queue.
        queue: u8,
    },
    /// What the ports say they do is compared with what they were told.
    ReadBack(Vec<Port>),
}

/// The steps from one binding to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Counts up; older ones are refused.
    pub epoch: u64,
    /// In this order.
    pub steps: Vec<Step>,
}

/// A tenant's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The value of its packets.
    pub dscp: u8,
    /// Its queue on each port of its tree, from 1; by port.
    pub queues: Vec<(Port, u8)>,
    /// The interval in which it got them.
    pub since: u64,
}

/// Weights of one port: while the change goes on, and after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reweigh {
    pub(super) port: Port,
    pub(super) during: Weights,
    pub(super) after: Weights,
}

/// The plan that takes `lost` queues away and gives `won` ones.
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
