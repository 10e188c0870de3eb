//! Waits until the queues that tenants lose are empty.
//!
//! # Problem
//!
//! When hosts no longer mark frames for a queue, earlier frames still wait there, in queues before
//! it, or at the hosts. The next tenant of the queue would wait behind them.
//!
//! # Approach
//!
//! The controller reads the counters of all switches with such queues several times, all switches
//! at once. The queues are empty if no frame waits in any of them, and if none has left any of them
//! since the previous reading. The second condition finds frames between two queues, and frames
//! that still leave hosts.
//!
//! The wait has a limit, because a queue may never become empty. If a switch cannot say how many
//! frames wait, the controller waits until this limit.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use penstock_fabric::topology::NodeId;
use penstock_units::Nanos;
use tokio::time::{sleep, timeout};

use super::answer::Said;
use super::tasks::Tasks;
use crate::southbound::{QueueCounters, SwitchDriver};

/// Number of pauses between readings in the shortest wait.
const SHORTEST: u32 = 4;
/// Number of pauses between readings in the longest wait.
const LONGEST: u32 = 8;

/// Switch with the queues that must become empty, by the name of the interface.
#[derive(Debug)]
struct Watched {
    driver: Arc<dyn SwitchDriver>,
    queues: BTreeMap<String, BTreeSet<u8>>,
}

/// Queues that must become empty, by their switches.
#[derive(Debug, Default)]
pub(super) struct Watch(BTreeMap<NodeId, Watched>);

impl Watch {
    /// Adds a queue of a switch that sends through the given interfaces.
    pub(super) fn add(
        &mut self,
        node: NodeId,
        driver: &Arc<dyn SwitchDriver>,
        interfaces: &[String],
        queue: u8,
    ) {
        let new = || Watched { driver: Arc::clone(driver), queues: BTreeMap::new() };
        let watched = self.0.entry(node).or_insert_with(new);
        for name in interfaces {
            watched.queues.entry(name.clone()).or_default().insert(queue);
        }
    }

    /// Waits for the time `shortest`, and then until the queues are empty. Waits for at most twice
    /// as long.
    pub(super) async fn drained(self, shortest: Nanos) {
        let shortest = Duration::from_nanos(shortest.0);
        let pause = shortest / SHORTEST;
        if self.0.is_empty() {
            return sleep(shortest).await;
        }
        let empty = async {
            sleep(shortest - pause).await;
            let mut before = self.read_if_empty().await;
            loop {
                sleep(pause).await;
                let now = self.read_if_empty().await;
                if now.is_some() && now == before {
                    return;
                }
                before = now;
            }
        };
        // If the time is over, the next tenant waits behind the frames.
        let _ = timeout(pause * LONGEST, empty).await;
    }

    /// Reads the counters of the queues. Returns `None` if frames wait in a queue, or if a switch
    /// fails. Never returns if a switch cannot say how many frames wait.
    async fn read_if_empty(&self) -> Option<Vec<(NodeId, Vec<QueueCounters>)>> {
        let mut tasks = Tasks::default();
        for (node, Watched { driver, .. }) in &self.0 {
            let driver = Arc::clone(driver);
            tasks.spawn(*node, async move { driver.counters().await.map_err(Said::from) });
        }
        let (mut done, trouble) = tasks.all().await;
        for (node, counters) in &mut done {
            let queues = self.0.get(&*node).map(|watched| &watched.queues);
            let is_watched = |of: &QueueCounters| {
                let here = queues.and_then(|queues| queues.get(&of.port));
                here.is_some_and(|here| here.contains(&of.queue))
            };
            counters.retain(is_watched);
        }
        let mut all = done.iter().flat_map(|(_, counters)| counters);
        match all.try_fold(true, |empty, of| Some(of.waiting? == 0 && empty)) {
            None => pending().await,
            Some(empty) => (empty && trouble.is_empty()).then_some(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_units::BitsPerSecond;
    use tokio::time::{Instant, sleep_until};

    use super::*;
    use crate::southbound::{Capabilities, Faults, ONE_STEP, PortInfo, SimSwitch};

    /// Change of a queue's counters: the time in ms, the number of the switch, the queue, the
    /// frames that left since the last change, and the frames that wait.
    type Counted = (u64, usize, u8, u64, Option<u64>);

    fn switches() -> [Arc<SimSwitch>; 2] {
        let can = Capabilities::new(8, ONE_STEP);
        let ports = [PortInfo { name: "e0".into(), rate: BitsPerSecond(1) }];
        ["s0", "s1"].map(|name| Arc::new(SimSwitch::new(name, can.clone(), &ports)))
    }

    /// Returns the time in ms for which the controller waits for queue 1 of two switches, if the
    /// shortest wait is 100 ms.
    async fn waits(switches: &[Arc<SimSwitch>; 2], script: &[Counted]) -> u128 {
        let (mut watch, began) = (Watch::default(), Instant::now());
        for (node, switch) in (0..).map(NodeId).zip(switches) {
            let driver: Arc<dyn SwitchDriver> = switch.clone();
            watch.add(node, &driver, &["e0".to_owned()], 1);
        }
        let count = async {
            for (at, switch, queue, packets, waiting) in script.iter().copied() {
                sleep_until(began + Duration::from_millis(at)).await;
                let port = "e0".to_owned();
                let more = QueueCounters { port, queue, packets, waiting, ..Default::default() };
                switches[switch].count(&more);
            }
        };
        let wait = async {
            watch.drained(Nanos::from_millis(100)).await;
            began.elapsed().as_millis()
        };
        tokio::join!(count, wait).1
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_no_frame_waits_and_none_leaves_between_two_readings() {
        let cases: [(&str, &[Counted], u128); 7] = [
            ("no frames", &[], 100),
            ("empty queues", &[(0, 0, 1, 5, Some(0)), (0, 1, 1, 5, Some(0))], 100),
            ("frames in another queue", &[(0, 0, 2, 0, Some(9))], 100),
            ("frames until 140 ms", &[(0, 0, 1, 0, Some(3)), (140, 0, 1, 3, Some(0))], 175),
            (
                "two switches at the same time",
                &[
                    (0, 0, 1, 0, Some(1)),
                    (0, 1, 1, 0, Some(1)),
                    (110, 0, 1, 1, Some(0)),
                    (140, 1, 1, 1, Some(0)),
                ],
                175,
            ),
            (
                "frames that pass and never wait at a reading",
                &[(0, 0, 1, 5, Some(0)), (90, 0, 1, 1, Some(0)), (110, 0, 1, 1, Some(0))],
                150,
            ),
            ("frames forever", &[(0, 0, 1, 0, Some(1))], 200),
        ];
        for (what, script, wait) in cases {
            assert_eq!(waits(&switches(), script).await, wait, "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_numbers_of_frames_a_wait_takes_the_longest_time() {
        assert_eq!(waits(&switches(), &[(0, 1, 1, 5, None)]).await, 200);
        let switches = switches();
        switches[1].set_faults(Faults { unreachable: true, ..Faults::default() });
        assert_eq!(waits(&switches, &[]).await, 200);
    }
}
