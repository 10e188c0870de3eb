//! Elements that did not follow a plan, and how long plans leave them out.
//!
//! **Problem.** What one element refuses, it will most likely refuse again with the next interval;
//! a plan that has it is taken back each time, and nobody else gets its queues. **Rule.** It is
//! left out for the rest of this interval, and then for 1, 3, 7, ... intervals, [`PAUSE_MAX`] less
//! one at most, until it has followed a plan.

use std::collections::BTreeMap;

use penstock_fabric::topology::NodeId;

/// Longest time from one try to the next, intervals.
const PAUSE_MAX: u64 = 32;

/// Who did not follow. Counts intervals itself: a plan that is taken back does not count as one.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    interval: u64,
    nodes: BTreeMap<NodeId, Refusal>,
}

#[derive(Debug)]
struct Refusal {
    /// Intervals from the last try to the next.
    pause: u64,
    /// The interval of the next try.
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

    /// Whether it is left alone now.
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
