//! Waits for switches that do not answer, without delaying the others.
//!
//! # Problem
//!
//! The controller notices that a switch is dead when a time limit has passed. If each repair waited
//! for this limit, a dead switch would delay each decision and each host that connects.
//!
//! # Approach
//!
//! After a switch did not answer once, the controller first *probes* it: a task of its own reads
//! the switch. A switch has at most one probe at a time. A repair includes only switches whose
//! probe was answered. Once an interval, the controller waits for new probes for a [`GRACE`]th of
//! the time limit, at the same time as for the repairs of the others. A probe that is answered
//! later counts at the next repair, which is less than an interval later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_fabric::topology::NodeId;
use tokio::task::JoinSet;

use crate::southbound::{DriverError, SwitchDriver};

/// Part of the time limit for an answer for which the controller waits for probes.
pub(super) const GRACE: u32 = 8;

/// Probe of a switch that did not answer.
#[derive(Debug, Default)]
struct Probe {
    /// The running probe, if any, which returns true if the switch answers. Dropping the set ends
    /// the probe.
    task: JoinSet<bool>,
    answered: bool,
}

impl Probe {
    /// Notes the result of the probe, if it has ended.
    fn look(&mut self) {
        if let Some(answer) = self.task.try_join_next() {
            self.answered |= answer.unwrap_or(false);
        }
    }
}

/// Switches that did not answer, each with its probe.
#[derive(Debug, Default)]
pub(super) struct Silent {
    probes: BTreeMap<NodeId, Probe>,
    /// True if the controller has waited for probes in this interval.
    waited: bool,
}

impl Silent {
    pub(super) fn begin_interval(&mut self) {
        self.waited = false;
    }

    pub(super) fn add(&mut self, node: NodeId) {
        self.probes.entry(node).or_default();
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.probes.contains_key(&node)
    }

    pub(super) fn remove(&mut self, node: NodeId) {
        self.probes.remove(&node);
    }

    /// Begins to probe the switches that have no probe yet. `limit` is the time limit of a probe.
    pub(super) fn probe(
        &mut self,
        switches: Vec<(NodeId, Arc<dyn SwitchDriver>)>,
        limit: Duration,
    ) {
        for (node, driver) in switches {
            let Some(probe) = self.probes.get_mut(&node) else { continue };
            probe.look();
            if probe.answered || !probe.task.is_empty() {
                continue;
            }
            probe.task.spawn(async move {
                let read = tokio::time::timeout(limit, driver.read_back()).await;
                // Any other error is an answer, which the repair reports.
                read.is_ok_and(|read| !matches!(read, Err(DriverError::Unreachable { .. })))
            });
        }
    }

    /// Returns the switches whose probes were answered, which are no longer silent. Waits for
    /// probes for `grace` if the controller has not waited for them in this interval.
    pub(super) async fn answering(&mut self, grace: Duration) -> BTreeSet<NodeId> {
        if !std::mem::replace(&mut self.waited, true) {
            let probes = async {
                for probe in self.probes.values_mut() {
                    while let Some(answer) = probe.task.join_next().await {
                        probe.answered |= answer.unwrap_or(false);
                    }
                }
            };
            // After the time, the probes that are left still run.
            let _ = tokio::time::timeout(grace, probes).await;
        }
        self.probes.values_mut().for_each(Probe::look);
        let answered = self.probes.iter().filter(|(_, probe)| probe.answered);
        let answered: BTreeSet<NodeId> = answered.map(|(node, _)| *node).collect();
        self.probes.retain(|node, _| !answered.contains(node));
        answered
    }
}

#[cfg(test)]
mod tests {
    use penstock_units::BitsPerSecond;

    use super::*;
    use crate::southbound::{Capabilities, Faults, ONE_STEP, PortInfo, SimSwitch};

    fn switch() -> Arc<SimSwitch> {
        let can = Capabilities {
            queues: 4,
            classes: ONE_STEP,
            weights: (1, 100),
            remap: true,
            fixed_map: BTreeMap::new(),
            map_per_port: true,
        };
        let port = PortInfo { name: "p".to_owned(), rate: BitsPerSecond(1) };
        Arc::new(SimSwitch::new("core-0", can, &[port]))
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_switch_costs_a_short_wait_once_an_interval_and_is_found_when_it_answers() {
        let (limit, node) = (Duration::from_secs(2), NodeId(7));
        let grace = limit / GRACE;
        let (switch, mut silent) = (switch(), Silent::default());
        switch.set_faults(Faults { slow: Duration::from_secs(60), ..Faults::default() });
        let drivers = || vec![(node, Arc::clone(&switch) as Arc<dyn SwitchDriver>)];
        silent.add(node);
        for _ in 0..3 {
            silent.begin_interval();
            let began = tokio::time::Instant::now();
            for _ in 0..5 {
                silent.probe(drivers(), limit);
                assert_eq!(silent.answering(grace).await, BTreeSet::new());
            }
            let waited = began.elapsed();
            assert!(waited >= grace && waited < 2 * grace, "only the first call waits: {waited:?}");
            tokio::time::sleep(2 * limit).await;
        }
        switch.set_faults(Faults { slow: limit / 2, ..Faults::default() });
        silent.begin_interval();
        // The last probe has ended without an answer.
        assert_eq!(silent.answering(grace).await, BTreeSet::new());
        silent.probe(drivers(), limit);
        assert_eq!(silent.answering(grace).await, BTreeSet::new(), "not yet");
        tokio::time::sleep(limit).await;
        assert_eq!(silent.answering(grace).await, BTreeSet::from([node]));
        assert!(!silent.contains(node));
    }
}
