//! Simulates a switch in memory.
//!
//! # Problem
//!
//! Most failures between a controller and a switch cannot be provoked on a real switch, and few
//! people have thousands of switches.
//!
//! # Approach
//!
//! [`SimSwitch`] keeps a [`SwitchState`] in memory, follows the rules of [`step()`] and fails
//! according to [`Faults`]. A simulated switch needs no thread or task.
//!
//! # Cost
//!
//! A change of weights takes O(queues) time. A change of a map takes O(log code points) time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::driver::{
    Capabilities, Change, DriverError, PortInfo, PortState, QueueCounters, SwitchDriver,
    SwitchState,
};
use super::step::{agree, step};
use crate::Stamp;

/// Faults of a [`SimSwitch`], which last until the caller sets other faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// True if the switch does not answer.
    pub unreachable: bool,
    /// Number of changes that the switch applies in a call of [`apply`](SwitchDriver::apply) before
    /// the switch refuses a change. If `None`, the switch refuses no change.
    pub refuses_after: Option<usize>,
    /// Number of changes that the switch applies in a call of [`apply`](SwitchDriver::apply) before
    /// the switch stops to answer. If `None`, the switch does not stop.
    pub dies_after: Option<usize>,
    /// True if the switch reports success but changes nothing, and a read of the switch shows the
    /// unchanged state.
    pub ignores: bool,
    /// True if the switch reports success but changes nothing, and a read of the switch shows the
    /// intended state. [`SimSwitch::truth`] shows the real state.
    pub lies: bool,
    /// Ports that the driver leaves out, with the reason, because others have configured them.
    pub foreign: BTreeMap<String, String>,
    /// Number of queues of the switch, if it differs from its [`Capabilities`].
    pub queues: Option<u8>,
    /// Delay of each answer of the switch in tokio's time.
    pub slow: Duration,
}

/// Simulated switch in memory, for tests of any size.
#[derive(Debug)]
pub struct SimSwitch {
    name: String,
    can: Capabilities,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Real state of the simulated switch, which a read may hide.
    truth: SwitchState,
    /// Intended state of the switch, which differs from `truth` only with [`Faults::lies`].
    told: SwitchState,
    faults: Faults,
    counters: Vec<QueueCounters>,
    applied: u64,
    /// Number of restarts.
    restarts: u64,
}

impl SimSwitch {
    /// Creates a simulated switch that has just started and has no faults.
    #[must_use]
    pub fn new(name: &str, can: Capabilities, ports: &[PortInfo]) -> Self {
        let fresh = PortState { weights: vec![], map: can.fixed_map.clone() };
        let ports = ports.iter().map(|port| (port.name.clone(), fresh.clone())).collect();
        let truth = SwitchState { ports, ..SwitchState::default() };
        let told = truth.clone();
        let faults = Faults::default();
        let (counters, applied, restarts) = (vec![], 0, 0);
        let inner = Mutex::new(Inner { truth, told, faults, counters, applied, restarts });
        Self { name: name.to_owned(), can, inner }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn can(&self) -> Capabilities {
        let queues = self.inner().faults.queues.unwrap_or(self.can.queues);
        Capabilities { queues, ..self.can.clone() }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.inner().faults = faults;
    }

    /// Restarts the simulated switch. After a restart, the switch has no weights, no map and no
    /// stamp, and all counters are 0. Faults stay.
    pub fn restart(&self) {
        let mut inner = self.inner();
        for port in inner.truth.ports.values_mut() {
            *port = PortState { weights: vec![], map: self.can.fixed_map.clone() };
        }
        inner.truth.stamp = Stamp::default();
        inner.told = inner.truth.clone();
        inner.counters.clear();
        inner.restarts += 1;
    }

    /// Returns the switch's real state, even if the switch reports another state.
    #[must_use]
    pub fn truth(&self) -> SwitchState {
        self.inner().truth.clone()
    }

    /// Returns the number of changes that the switch has not refused.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.inner().applied
    }

    /// Adds packets, bytes and drops to the counters of a queue, and replaces the number of frames
    /// that wait.
    pub fn count(&self, more: &QueueCounters) {
        let mut inner = self.inner();
        let same = |c: &&mut QueueCounters| c.port == more.port && c.queue == more.queue;
        match inner.counters.iter_mut().find(same) {
            Some(counters) => {
                counters.packets += more.packets;
                counters.bytes += more.bytes;
                counters.dropped += more.dropped;
                counters.waiting = more.waiting;
            }
            None => inner.counters.push(more.clone()),
        }
    }

    /// Waits for the delay of the switch's answer. Returns an error if the switch is unreachable.
    async fn answer(&self) -> Result<(), DriverError> {
        let Faults { slow, .. } = self.inner().faults.clone();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        // This check follows the delay, because the switch may fail during the delay.
        if self.inner().faults.unreachable {
            return Err(unreachable(&self.name));
        }
        Ok(())
    }
}

fn unreachable(name: &str) -> DriverError {
    let (switch, problem) = (name.to_owned(), "simulated".to_owned());
    DriverError::Unreachable { switch, problem }
}

impl Inner {
    fn apply(&mut self, name: &str, can: &Capabilities, all: &[Change]) -> Result<(), DriverError> {
        let mut after = self.told.clone();
        all.iter().try_for_each(|change| step(name, can, &mut after, change))?;
        agree(name, can, &after)?;
        for (n, change) in all.iter().enumerate() {
            if self.faults.refuses_after.is_some_and(|after| n >= after) {
                let (switch, change) = (name.to_owned(), change.to_string());
                let problem = "simulated".to_owned();
                return Err(DriverError::Refused { switch, change, problem });
            }
            if self.faults.dies_after.is_some_and(|after| n >= after) {
                self.faults.unreachable = true;
                return Err(unreachable(name));
            }
            if self.faults.ignores {
                step(name, can, &mut self.told.clone(), change)?;
            } else {
                step(name, can, &mut self.told, change)?;
                if !self.faults.lies {
                    step(name, can, &mut self.truth, change)?;
                }
            }
            self.applied += 1;
        }
        Ok(())
    }
}

#[async_trait]
impl SwitchDriver for SimSwitch {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "sim"
    }

    async fn capabilities(&self) -> Result<Capabilities, DriverError> {
        self.answer().await?;
        Ok(self.can())
    }

    async fn run_id(&self) -> Result<Option<String>, DriverError> {
        self.answer().await?;
        Ok(Some(self.inner().restarts.to_string()))
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        self.answer().await?;
        let inner = self.inner();
        Ok(SwitchState { left_out: inner.faults.foreign.clone(), ..inner.told.clone() })
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        self.answer().await?;
        let can = self.can();
        let mut inner = self.inner();
        DriverError::fence(&self.name, inner.truth.stamp, stamp)?;
        inner.apply(&self.name, &can, changes)?;
        inner.truth.stamp = stamp;
        inner.told.stamp = stamp;
        Ok(())
    }

    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        self.answer().await?;
        Ok(changes.iter().map(ToString::to_string).collect())
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        self.answer().await?;
        Ok(self.inner().counters.clone())
    }
}

#[cfg(test)]
mod tests;
