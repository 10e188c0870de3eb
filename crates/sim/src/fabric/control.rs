//! The interface between a simulated network and the controller that sets its queues and limits.
//!
//! # Problem
//!
//! A controller's decision is a plan of many steps. Switches and hosts carry out the steps one
//! after the other, each with its own delay. During a plan, some hosts and ports have their new
//! state, and others have their old state. A simulation that applies a decision at once cannot show
//! what happens during a plan.
//!
//! # Approach
//!
//! A [`Controller`] returns a [`Timeline`]: all changes of ports and hosts, each with the time at
//! which the port or host has its new state. The simulation applies each change at its time. A
//! change has what a real message has: whole weights, the map from code point to queue, and the
//! code points and limits of the tenants on a host. The simulation does not correct the changes: a
//! frame with a code point that a port does not map is in queue 0.
//!
//! # Departures
//!
//! The simulation has no frames in transit, so a new code point is in force on all links of a path
//! at once. A limit applies to each VM of a tenant, and a real host limits the VMs of a tenant
//! together.

use std::collections::BTreeMap;

use penstock_units::{BitsPerSecond, Nanos};

use super::link_share::Queue;
use super::pair_limits::PairLimits;
use super::rates::LinkId;
use super::spec::{HostNo, Spec, TenantNo};

/// Parameters of QShare's control loop.
#[derive(Debug)]
pub struct QueueControl {
    /// Interval over which the usage of tenants is measured. The controller assigns queues to
    /// tenants at the end of each interval. If a plan takes longer, the next interval ends when the
    /// plan ends.
    pub interval: Nanos,
    pub controller: Box<dyn Controller>,
    /// Limits on pairs of VMs of tenants in the shared queue. If `shared` is `None`, the limits of
    /// the controller ([`Terms::limit_permille`]) apply to these tenants.
    pub shared: Option<PairLimits>,
}

/// Usage of a tenant on one host in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostUsage {
    pub host: HostNo,
    /// Rate at which the tenant's VMs on the host sent to other hosts.
    pub sent: BitsPerSecond,
    /// Rate at which the tenant's VMs on the host received from other hosts.
    pub received: BitsPerSecond,
}

/// What a host does with the frames of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Code point of the frames that the tenant's VMs on the host send.
    pub dscp: u8,
    /// Limit of each of the tenant's VMs on the host, in thousandths of the VM's guarantee in each
    /// direction. `None` if the VMs have no limit.
    pub limit_permille: Option<u32>,
}

/// New state of one port or one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The port that sends on a link has new weights and a new map.
    Port {
        link: LinkId,
        /// Weight of each queue of the port. A queue of weight 0 only gets the bandwidth that the
        /// other queues do not use.
        weights: Vec<u32>,
        /// Queue of each mapped code point. Frames with other code points are in queue 0.
        map: BTreeMap<u8, u8>,
    },
    /// A host has new terms for the tenants in the list.
    Host { host: HostNo, terms: Vec<(TenantNo, Terms)> },
}

/// Changes that carry out the decision of one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Changes in order of time, each with the time from which it is in force.
    pub changes: Vec<(Nanos, Change)>,
    /// Time at which the controller has completed the plan.
    pub end: Nanos,
}

/// Controller of a simulated network.
pub trait Controller: std::fmt::Debug + Send {
    /// Returns the state of ports and hosts at the start of the simulation.
    fn start(&mut self) -> Vec<Change>;

    /// Decides which tenants have queues, at the end of an interval at the time `now`.
    /// `usage[tenant]` has the measurements of the tenant on each host.
    fn interval(&mut self, now: Nanos, usage: &[Vec<HostUsage>]) -> Timeline;
}

/// Controller that gives queues always to the same tenants, with weights by reservation.
#[derive(Clone, Debug)]
pub struct Always(Vec<Change>);

impl Always {
    /// Gives a queue on every port to each tenant in `dedicated`. All other tenants share queue 0
    /// and are limited to their guarantees.
    #[must_use]
    pub fn new(spec: &Spec, dedicated: &[TenantNo]) -> Self {
        let place = |tenant: TenantNo| dedicated.iter().position(|t| *t == tenant);
        let own = |tenant: TenantNo| place(tenant).map_or(0, |at| at + 1);
        let small = |queue: usize| u8::try_from(queue).unwrap_or(u8::MAX);
        let map: BTreeMap<u8, u8> = (1..=dedicated.len()).map(|q| (small(q), small(q))).collect();
        let reserved: Vec<_> = spec.tenants.iter().map(|t| t.reserved(&spec.network)).collect();
        let mut changes = Vec::new();
        for (number, link) in (0_u32..).zip(0..spec.network.links.len()) {
            let mut weights = vec![0_u32; dedicated.len() + 1];
            for (tenant, reserved) in reserved.iter().enumerate() {
                let kbit = u32::try_from(reserved[link].0 / 1_000).unwrap_or(u32::MAX);
                let weight = &mut weights[own(tenant)];
                *weight = weight.saturating_add(kbit);
            }
            changes.push(Change::Port { link: LinkId(number), weights, map: map.clone() });
        }
        for host in 0..spec.network.paths.len() {
            let terms = |tenant: TenantNo| {
                let dscp = small(own(tenant));
                (tenant, Terms { dscp, limit_permille: (dscp == 0).then_some(1_000) })
            };
            let terms = (0..spec.tenants.len()).map(terms).collect();
            changes.push(Change::Host { host, terms });
        }
        Self(changes)
    }
}

impl Controller for Always {
    fn start(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.0)
    }

    fn interval(&mut self, now: Nanos, _: &[Vec<HostUsage>]) -> Timeline {
        Timeline { changes: Vec::new(), end: now }
    }
}

/// Returns the queues of a port, and the queue of each code point.
pub(super) fn queues(weights: &[u32], map: &BTreeMap<u8, u8>) -> (Vec<Queue>, Vec<usize>) {
    let mapped = map.values().map(|queue| usize::from(*queue) + 1).max().unwrap_or(1);
    let queue = |number: usize| match weights.get(number) {
        Some(weight) if *weight > 0 => Queue { priority: 0, weight: f64::from(*weight) },
        // The link serves a queue of weight 0 after all other queues.
        _ => Queue { priority: 1, weight: 1.0 },
    };
    let queues = (0..weights.len().max(mapped)).map(queue).collect();
    let code_points = map.keys().map(|dscp| usize::from(*dscp) + 1).max().unwrap_or(0);
    let mut queue_of = vec![0; code_points];
    for (dscp, queue) in map {
        queue_of[usize::from(*dscp)] = usize::from(*queue);
    }
    (queues, queue_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_point_without_a_map_is_in_queue_0_and_weight_0_is_served_last() {
        let (queues, queue_of) = queues(&[3, 0], &[(8, 2), (1, 1)].into());
        let priorities: Vec<u8> = queues.iter().map(|queue| queue.priority).collect();
        assert_eq!(priorities, [0, 1, 1]);
        assert_eq!(queue_of, [0, 1, 0, 0, 0, 0, 0, 0, 2]);
        let (queues, queue_of) = super::queues(&[], &BTreeMap::new());
        assert_eq!((queues.len(), queue_of.len()), (1, 0));
    }
}
