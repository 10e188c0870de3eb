//! Plans the steps from one binding to the next. At each step of a plan, every switch on a packet's
//! path maps the packet's code point to a queue.
//!
//! # Problem
//!
//! Hosts mark packets with code points, and switches map code points to queues. Hosts and switches
//! do not change their marks and maps at the same time, and packets are in transit during the
//! change.
//!
//! # Source
//!
//! QShare §V-D does not define the order of the steps. Penstock defines its own order of steps
//! (`docs/reference/fabric.md`).
//!
//! # Approach
//!
//! An executor applies a plan to hosts and switches in the following steps. A plan omits steps that
//! change nothing.
//!
//! 1. Hosts limit the tenants that lose or get queues, and the tenants that share queue 0 with
//!    them, to their guarantees. A tenant with queues keeps its code point.
//! 2. On each changed port, the queues get weights for the time of the change.
//! 3. Hosts mark packets of tenants that lose their queues with code point 0, which selects the
//!    shared queue.
//! 4. The executor waits until packets with the old code points have left the network, also those
//!    that wait in the queues that the tenants lose.
//! 5. Switches remove the old code points from their maps, and add the new code points.
//! 6. The executor reads the maps and compares them with the maps that it wrote.
//! 7. Hosts mark packets with the new code points.
//! 8. The executor waits until packets of the tenants with new queues have left queue 0.
//! 9. The executor sets the final weights.
//! 10. Hosts release the tenants from the limits.
//!
//! Until step 10, every tenant that moves is limited, so its traffic in two queues is at most its
//! guarantee ([`super::dilution()`]). A host may apply the changes of its own uplink together with
//! its next change of marks or limits, because a host changes its marks, weights and map at once.
//!
//! If the code point of a tenant changes, the plan first removes the tenant's queues. Later steps
//! of the same plan give the tenant queues with the new code point. The epoch of a plan is its
//! number. Executors refuse a plan with a lower number than the last accepted plan.

use penstock_units::Nanos;

use super::transition::{Reweigh, Transition};
use super::weights::Weights;
use crate::tenant_placement::TenantSlot;
use crate::topology::LinkId;

/// Sending end of a link, at a switch or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Link to which the sending end belongs.
    pub link: LinkId,
    /// True if the lower end of the link sends, and false if the upper end of the link sends.
    pub up: bool,
}

/// Step of a plan, which all hosts and switches complete before the next step starts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Hosts limit the tenant to its guarantee until [`Step::Release`], also if the tenant has
    /// queues.
    Limit {
        /// Tenant whose VMs the hosts limit.
        tenant: TenantSlot,
    },
    /// Hosts no longer limit the tenant to its guarantee. A tenant without queues keeps the limit
    /// of the shared queue ([`Binding::headroom_permille`](super::Binding::headroom_permille)).
    Release {
        /// Tenant whose VMs the hosts release.
        tenant: TenantSlot,
    },
    /// A port sets the weights of its queues.
    Weigh {
        /// Port that gets new weights.
        port: Port,
        /// New weights of all queues of the port, the shared queue first.
        weights: Weights,
    },
    /// Hosts mark the tenant's packets with the code point `dscp`.
    Mark {
        /// Tenant whose VMs send or receive the marked packets.
        tenant: TenantSlot,
        /// Code point of the packets. Code point 0 selects the shared queue.
        dscp: u8,
    },
    /// The executor waits for the given time, in which packets with the old code points leave the
    /// network.
    Wait(Nanos),
    /// The executor waits for the given time, and then until no packet waits in the given queues or
    /// arrives there. Executors limit this time.
    Drain {
        /// Queues for which hosts no longer mark packets.
        queues: Vec<(Port, u8)>,
        /// Shortest time that the executor waits.
        time: Nanos,
    },
    /// A port removes a code point from its map of code points to queues.
    Unmap {
        /// Port that removes the code point.
        port: Port,
        /// Code point that the port removes from its map.
        dscp: u8,
    },
    /// A port maps packets with a code point to a dedicated queue.
    Map {
        /// Port that adds the code point.
        port: Port,
        /// Code point that the port adds to its map.
        dscp: u8,
        /// Number of the dedicated queue for packets with the code point, from 1.
        queue: u8,
    },
    /// The executor reads the maps of the listed ports and compares them with the maps that it
    /// wrote.
    ReadBack(Vec<Port>),
}

/// Plan of the steps from one binding to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Epoch: the number of the plan for the change from one binding to the next. Later plans have
    /// higher numbers, and executors refuse older plans.
    pub epoch: u64,
    /// Steps of the plan, in order.
    pub steps: Vec<Step>,
}

/// Queues and code point of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Code point of the tenant's packets.
    pub dscp: u8,
    /// Number of the tenant's queue on each port of the tenant's tree, 1 or more, in the order of
    /// [`Port`].
    pub queues: Vec<(Port, u8)>,
    /// Number of the binding pass in which the tenant got the queues.
    pub since: u64,
}

/// Returns the plan that removes the queues of the tenants in `lost` and adds the queues of the
/// tenants in `won`, with the weights and limits in `transition`.
pub(super) fn plan(
    epoch: u64,
    drain: Nanos,
    lost: &[(TenantSlot, Bound)],
    won: &[(TenantSlot, &Bound)],
    transition: &Transition,
) -> Plan {
    let Transition { ports, limited } = transition;
    let weigh = |port: Port, weights: &Weights| Step::Weigh { port, weights: weights.clone() };
    let during = |of: &Reweigh| of.during.as_ref().map(|weights| weigh(of.port, weights));
    let after = |of: &Reweigh| of.after.as_ref().map(|weights| weigh(of.port, weights));
    let limit = |tenant: &TenantSlot| Step::Limit { tenant: *tenant };
    let mut steps: Vec<Step> = limited.iter().map(limit).collect();
    steps.extend(ports.iter().filter_map(during));
    steps.extend(lost.iter().map(|(tenant, _)| Step::Mark { tenant: *tenant, dscp: 0 }));
    if !lost.is_empty() {
        let queues = lost.iter().flat_map(|(_, bound)| bound.queues.iter().copied()).collect();
        steps.push(Step::Drain { queues, time: drain });
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
    let last: Vec<Step> = ports.iter().filter_map(after).collect();
    if !won.is_empty() && !last.is_empty() {
        steps.push(Step::Wait(drain));
    }
    steps.extend(last);
    steps.extend(limited.iter().map(|tenant| Step::Release { tenant: *tenant }));
    Plan { epoch, steps }
}
