//! Computes the time for which plans exclude a host or switch that refused a plan.
//!
//! # Problem
//!
//! If a switch or host refuses a change, it will probably refuse the change again in the next
//! interval. The controller rolls back each plan that contains a refusing switch or host. Without a
//! pause, one refusing switch or host would therefore stop new queues on all others.
//!
//! # Approach
//!
//! After a refusal, plans exclude the switch or host for the rest of the interval. After repeated
//! refusals, plans exclude the switch or host for 1, 3, 7, ... intervals. Plans exclude a switch or
//! host for at most [`PAUSE_MAX`] - 1 intervals. When a switch or host applies a plan, its earlier
//! refusals no longer count.

use std::collections::BTreeMap;

use penstock_fabric::topology::NodeId;

/// Longest time between two plans that use a refusing switch or host, in intervals.
const PAUSE_MAX: u64 = 32;

/// Switches and hosts that refused a plan. [`Refusals`] counts intervals itself, because the
/// controller's count omits an interval whose plan was rolled back.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    interval: u64,
    nodes: BTreeMap<NodeId, Refusal>,
}

#[derive(Debug)]
struct Refusal {
    /// Number of intervals between the refused plan and the next plan that may use the switch or
    /// host.
    pause: u64,
    /// Number of the interval in which plans may use the switch or host again.
    next: u64,
}

impl Refusals {
    pub(super) fn begin_interval(&mut self) {
        self.interval += 1;
    }

    pub(super) fn refused(&mut self, node: NodeId) {
        let before = self.nodes.get(&node).map(|refusal| 2 * refusal.pause);
        let pause = before.unwrap_or(1).min(PAUSE_MAX);
        self.nodes.insert(node, Refusal { pause, next: self.interval + pause });
    }

    pub(super) fn followed(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// Returns true if plans exclude the switch or host `node` in this interval.
    pub(super) fn pause(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|refusal| self.interval < refusal.next)
    }

    pub(super) fn remembers(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_is_tried_again_at_growing_pauses_until_it_follows() {
        let (mut refusals, node) = (Refusals::default(), NodeId(3));
        let mut tries = Vec::new();
        for interval in 1..=100 {
            refusals.begin_interval();
            if !refusals.pause(node) {
                tries.push(interval);
                refusals.refused(node);
            }
            assert!(refusals.pause(node) && !refusals.pause(NodeId(4)), "{interval}");
        }
        assert_eq!(tries, [1, 2, 4, 8, 16, 32, 64, 96]);
        refusals.followed(node);
        assert!(!refusals.pause(node) && !refusals.remembers(node));
    }
}
