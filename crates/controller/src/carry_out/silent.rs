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
//! the switch. A repair includes only switches whose probe was answered. A probe may hang until its
//! time limit although the switch answers again. The next probe therefore begins with the next
//! interval, or after half of the limit.
//!
//! As often as it begins probes, the controller waits for them, for a [`GRACE`]th of the limit and
//! at the same time as for the repairs of the others. A probe that is answered later counts at the
//! next repair.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_fabric::topology::NodeId;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::southbound::{DriverError, SwitchDriver};

/// Part of the time limit for an answer for which the controller waits for probes.
const GRACE: u32 = 8;

/// Probes of a switch that did not answer.
#[derive(Debug, Default)]
struct Probe {
    /// The running probes, each of which returns true if the switch answers. Dropping the set ends
    /// them.
    tasks: JoinSet<bool>,
    /// Start of the last probe.
    begun: Option<Instant>,
    answered: bool,
}

impl Probe {
    /// Notes the results of the probes that have ended.
    fn look(&mut self) {
        while let Some(answer) = self.tasks.try_join_next() {
            self.answered |= answer.unwrap_or(false);
        }
    }

    /// Waits until a probe is answered, or until all have ended.
    async fn wait(&mut self) {
        while !self.answered
            && let Some(answer) = self.tasks.join_next().await
        {
            self.answered |= answer.unwrap_or(false);
        }
    }
}

/// Switches that did not answer, each with its probe.
#[derive(Debug, Default)]
pub(super) struct Silent {
    probes: BTreeMap<NodeId, Probe>,
    /// Time at which the controller last began to wait for probes.
    waited: Option<Instant>,
}

impl Silent {
    /// Lets the next repair begin new probes of all silent switches, and wait for them.
    pub(super) fn begin_interval(&mut self) {
        self.waited = None;
        self.probes.values_mut().for_each(|probe| probe.begun = None);
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

    /// Begins to probe the switches whose last probe began long ago. `limit` is the time limit of a
    /// probe.
    pub(super) fn probe(
        &mut self,
        switches: Vec<(NodeId, Arc<dyn SwitchDriver>)>,
        limit: Duration,
    ) {
        for (node, driver) in switches {
            let Some(probe) = self.probes.get_mut(&node) else { continue };
            probe.look();
            if probe.answered || !is_old(probe.begun, limit) {
                continue;
            }
            probe.begun = Some(Instant::now());
            probe.tasks.spawn(async move {
                let read = tokio::time::timeout(limit, driver.read_back()).await;
                // Any other error is an answer, which the repair reports.
                read.is_ok_and(|read| !matches!(read, Err(DriverError::Unreachable { .. })))
            });
        }
    }

    /// Returns the switches whose probes were answered, which are no longer silent. Waits for
    /// probes if the last wait was long ago. `limit` is the time limit of a probe.
    pub(super) async fn answering(&mut self, limit: Duration) -> BTreeSet<NodeId> {
        if is_old(self.waited, limit) {
            self.waited = Some(Instant::now());
            let probes = async {
                for probe in self.probes.values_mut() {
                    probe.wait().await;
                }
            };
            // After the time, the probes that are left still run.
            let _ = tokio::time::timeout(limit / GRACE, probes).await;
        }
        self.probes.values_mut().for_each(Probe::look);
        let answered = self.probes.iter().filter(|(_, probe)| probe.answered);
        let answered: BTreeSet<NodeId> = answered.map(|(node, _)| *node).collect();
        self.probes.retain(|node, _| !answered.contains(node));
        answered
    }
}

/// Returns true if half of the time limit has passed since `time`.
fn is_old(time: Option<Instant>, limit: Duration) -> bool {
    time.is_none_or(|time| time.elapsed() >= limit / 2)
}

#[cfg(test)]
mod tests {
    use penstock_units::BitsPerSecond;

    use super::*;
    use crate::southbound::{Capabilities, Faults, ONE_STEP, PortInfo, SimSwitch};

    fn switch() -> Arc<SimSwitch> {
        let port = PortInfo { name: "p".to_owned(), rate: BitsPerSecond(1) };
        Arc::new(SimSwitch::new("core-0", Capabilities::new(4, ONE_STEP), &[port]))
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_switch_costs_a_short_wait_and_is_found_when_it_answers() {
        let (limit, node) = (Duration::from_secs(2), NodeId(7));
        let grace = limit / GRACE;
        let (switch, mut silent) = (switch(), Silent::default());
        switch.set_faults(Faults { slow: Duration::from_secs(60), ..Faults::default() });
        let drivers = || vec![(node, Arc::clone(&switch) as Arc<dyn SwitchDriver>)];
        silent.add(node);
        for _ in 0..3 {
            let began = Instant::now();
            for _ in 0..5 {
                silent.probe(drivers(), limit);
                assert_eq!(silent.answering(limit).await, BTreeSet::new());
            }
            let waited = began.elapsed();
            assert!(waited >= grace && waited < 2 * grace, "only the first call waits: {waited:?}");
            tokio::time::sleep(limit).await;
        }
        // A probe that begins just before the switch answers again hangs, and hides nothing.
        silent.probe(drivers(), limit);
        switch.set_faults(Faults { slow: grace / 2, ..Faults::default() });
        tokio::time::sleep(limit / 2).await;
        silent.probe(drivers(), limit);
        assert_eq!(silent.answering(limit).await, BTreeSet::from([node]));
        assert!(!silent.contains(node));
    }
}
