//! A switch that is not there.
//!
//! **Problem.** Most of what can go wrong between a controller and a switch cannot be had from a
//! real one on demand, and nobody has thousands of them. **Rule.** [`SimSwitch`] keeps a
//! [`SwitchState`] in memory, obeys the rules of [`step()`] and fails as [`Faults`] say.
//! **Cost.** A change: O(queues) for weights, O(log code points) for a map; the state, and no
//! thread or task.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::driver::{
    Capabilities, Change, DriverError, PortInfo, PortState, QueueCounters, SwitchDriver,
    SwitchState,
};
use super::step::{agree, step};
use crate::Stamp;

/// What goes wrong with a [`SimSwitch`], from when it is set until it is set otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// It does not answer.
    pub unreachable: bool,
    /// It refuses every change after this many, of each [`apply`](SwitchDriver::apply); those
    /// before are done.
    pub refuses_after: Option<usize>,
    /// It says yes and does nothing; what it reads back shows that.
    pub ignores: bool,
    /// It says yes, does nothing, and reads back what it was told. [`SimSwitch::truth`] shows that.
    pub lies: bool,
    /// It takes this long for each answer (of tokio's clock).
    pub slow: Duration,
}

/// A switch in memory, for tests of what tells switches, small or large.
#[derive(Debug)]
pub struct SimSwitch {
    name: String,
    can: Capabilities,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// What it does.
    truth: SwitchState,
    /// What it was told: differs from `truth` only under [`Faults::lies`].
    told: SwitchState,
    faults: Faults,
    counters: Vec<QueueCounters>,
    applied: u64,
}

impl SimSwitch {
    /// A switch that has just started and works.
    #[must_use]
    pub fn new(name: &str, can: Capabilities, ports: &[PortInfo]) -> Self {
        let fresh = PortState { weights: vec![], map: can.fixed_map.clone() };
        let ports = ports.iter().map(|port| (port.name.clone(), fresh.clone())).collect();
        let truth = SwitchState { ports, ..SwitchState::default() };
        let told = truth.clone();
        let faults = Faults::default();
        let inner = Mutex::new(Inner { truth, told, faults, counters: vec![], applied: 0 });
        Self { name: name.to_owned(), can, inner }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this goes wrong.
    pub fn set_faults(&self, faults: Faults) {
        self.inner().faults = faults;
    }

    /// It starts anew: no weights, no map, no stamp, counters at 0. Its faults stay.
    pub fn restart(&self) {
        let mut inner = self.inner();
        for port in inner.truth.ports.values_mut() {
            *port = PortState { weights: vec![], map: self.can.fixed_map.clone() };
        }
        inner.truth.stamp = Stamp::default();
        inner.told = inner.truth.clone();
        inner.counters.clear();
    }

    /// What it does, whatever it says.
    #[must_use]
    pub fn truth(&self) -> SwitchState {
        self.inner().truth.clone()
    }

    /// How many changes it was told and has not refused.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.inner().applied
    }

    /// A queue has sent and dropped this much more.
    pub fn count(&self, more: &QueueCounters) {
        let mut inner = self.inner();
        let same = |c: &&mut QueueCounters| c.port == more.port && c.queue == more.queue;
        match inner.counters.iter_mut().find(same) {
            Some(counters) => {
                counters.packets += more.packets;
                counters.bytes += more.bytes;
                counters.dropped += more.dropped;
            }
            None => inner.counters.push(more.clone()),
        }
    }

    /// Waits as long as it is slow, fails if it does not answer.
    async fn answer(&self) -> Result<(), DriverError> {
        let Faults { slow, .. } = self.inner().faults.clone();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        // Asked afterwards: it may have gone while it was slow.
        if self.inner().faults.unreachable {
            let problem = "simulated".to_owned();
            return Err(DriverError::Unreachable { switch: self.name.clone(), problem });
        }
        Ok(())
    }
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
        Ok(self.can.clone())
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        self.answer().await?;
        Ok(self.inner().told.clone())
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        self.answer().await?;
        let mut inner = self.inner();
        DriverError::fence(&self.name, inner.truth.stamp, stamp)?;
        inner.apply(&self.name, &self.can, changes)?;
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
