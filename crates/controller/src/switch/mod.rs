//! A daemon of ours as a switch of a fabric: the switch's end of the driver
//! [`penstock`](crate::southbound::penstock).
//!
//! **Problem.** A switch keeps what it was told when controllers are gone, and refuses whoever was
//! deposed, also when two of them ask in the same moment. **Rule.** One change at a time: its stamp
//! is compared with the last one, it is worked out on what the switch was told before, the data
//! path does all of it between two batches, and it is kept in a file before it is answered. After a
//! restart it is in force again before the first controller is heard. What is read back is asked of
//! the data path.
//!
//! **When it cannot be kept** the file says so with the stamp alone, and keeping is tried again
//! (its stamp is never forgotten while the daemon runs).
//!
//! Source: QShare §V-D leaves switches open; `docs/southbound.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{Mutex, watch};

use crate::Stamp;
use crate::agent::SideError;
use crate::saved::{Found, Keeper, Saved, Stamped};
use crate::southbound::{
    Capabilities, Change, ONE_STEP, PortState, QueueCounters, SwitchState, step,
};

mod service;
mod side;
pub mod wire;

pub use service::{SwitchServer, Who, serve};
pub use side::{PortReading, SwitchSide};

/// Weights of the data path's queues.
pub const WEIGHTS: (u32, u32) = (1, 10_000);

impl Stamped for SwitchState {
    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// Why a change was not done. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It follows from an older decision than this, which the switch has.
    #[error("the switch has a later decision, {0}")]
    Late(Stamp),
    /// It is beyond the switch.
    #[error("{0}")]
    Beyond(String),
    /// The data path could not do it.
    #[error("{0}")]
    Failed(String),
}

/// What a switch is doing, for people and for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchStatus {
    /// The last decision that was carried out whole.
    pub stamp: Stamp,
    /// It is in force and could not be kept for a restart.
    pub unkept: bool,
    /// Decisions that were done.
    pub applied: u64,
    /// Changes that were refused for an older stamp.
    pub late: u64,
    /// Changes that could not be done.
    pub failed: u64,
    /// What went wrong last, with the remedy.
    pub last_error: Option<String>,
}

/// See the module's text.
#[derive(Debug)]
pub struct FabricSwitch {
    name: String,
    side: Arc<dyn SwitchSide>,
    keeper: Keeper<SwitchState>,
    /// What it was told last: held through a whole change.
    told: Mutex<SwitchState>,
    status: watch::Sender<SwitchStatus>,
}

impl FabricSwitch {
    /// The switch of this name in the topology; `plan` is the file of what it was told last. It
    /// does nothing yet: see [`Self::take_up`].
    #[must_use]
    pub fn new(name: &str, plan: &std::path::Path, side: Arc<dyn SwitchSide>) -> Self {
        let keeper = Keeper::new(Saved::new(name, plan));
        let (told, status) = (Mutex::default(), watch::Sender::default());
        Self { name: name.to_owned(), side, keeper, told, status }
    }

    /// Its name in the topology.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is doing, as it changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<SwitchStatus> {
        self.status.subscribe()
    }

    /// Does what it was told before a restart. To be awaited before it is served.
    ///
    /// # Errors
    /// The data path does not do it, as when a port of before is gone; its stamp is known all the
    /// same, and a controller finds out what is missing.
    pub async fn take_up(&self) -> Result<Option<Stamp>, SideError> {
        let found = match self.keeper.load().await {
            Ok(found) => found,
            Err(problem) => {
                self.problem(problem);
                Found::Nothing
            }
        };
        let mut told = self.told.lock().await;
        match found {
            Found::Nothing => Ok(None),
            Found::Stamp(stamp) => {
                told.stamp = stamp;
                self.status.send_modify(|status| status.stamp = stamp);
                let what = "could not be kept before the restart";
                self.problem(format!("decision {stamp} {what}; all share queue 0 until one comes"));
                Ok(None)
            }
            Found::Whole(mut plan) => {
                let stamp = plan.stamp;
                told.stamp = stamp;
                self.status.send_modify(|status| status.stamp = stamp);
                // A port that was taken out of the file meanwhile is nobody's any more.
                let here = self.side.read().await?;
                plan.ports.retain(|name, _| here.contains_key(name));
                self.side.apply(&plan.ports).await?;
                *told = plan;
                Ok(Some(stamp))
            }
        }
    }

    /// Tries again what could not be kept. Never ends.
    pub async fn make_up(&self) {
        let kept = |stamp| {
            tracing::info!(switch = self.name, %stamp, "the decision is saved now");
            self.status.send_modify(|status| status.unkept = false);
        };
        self.keeper.clone().make_up(kept).await;
    }

    fn problem(&self, problem: String) {
        tracing::warn!(switch = self.name, "{problem}");
        self.status.send_modify(|status| status.last_error = Some(problem));
    }

    /// What it can do, of all its ports alike.
    fn can(&self, ports: &BTreeMap<String, PortReading>) -> Capabilities {
        let queues = ports.values().map(|port| port.queues).min().unwrap_or(0);
        Capabilities {
            queues,
            classes: ONE_STEP,
            weights: WEIGHTS,
            remap: true,
            fixed_map: [].into(),
            map_per_port: true,
        }
    }

    /// What it can do and does, asked of the data path.
    ///
    /// # Errors
    /// The data path does not answer.
    pub async fn state(&self) -> Result<(Capabilities, SwitchState), SideError> {
        let told = self.told.lock().await;
        let ports = self.side.read().await?;
        Ok((self.can(&ports), truth(&told, &ports)))
    }

    /// What its queues have sent.
    ///
    /// # Errors
    /// The data path does not answer.
    pub async fn counters(&self) -> Result<Vec<QueueCounters>, SideError> {
        let ports = self.side.read().await?;
        Ok(ports.into_values().flat_map(|port| port.counters).collect())
    }

    /// Does changes, or with `dry_run` only says what would be done; in the words of the
    /// configuration.
    ///
    /// # Errors
    /// Nothing was changed, then; [`Refusal::Failed`] may leave the switch as neither before nor
    /// after if the data path has ended.
    pub async fn apply(
        &self,
        stamp: Stamp,
        changes: &[Change],
        dry_run: bool,
    ) -> Result<Vec<String>, Refusal> {
        let mut told = self.told.lock().await;
        if stamp < told.stamp && !dry_run {
            self.status.send_modify(|status| status.late += 1);
            return Err(Refusal::Late(told.stamp));
        }
        let failed = |error: SideError| {
            self.status.send_modify(|status| status.failed += 1);
            self.problem(format!("decision {stamp}: {error}"));
            Refusal::Failed(error.to_string())
        };
        let ports = self.side.read().await.map_err(failed)?;
        let mut target = told.clone();
        // All its ports are there to be set; what was one is not any more.
        target.ports.retain(|name, _| ports.contains_key(name));
        for name in ports.keys() {
            target.ports.entry(name.clone()).or_default();
        }
        let can = self.can(&ports);
        for change in changes {
            let done = step(&self.name, &can, &mut target, change);
            done.map_err(|error| Refusal::Beyond(error.to_string()))?;
        }
        let is = truth(&target, &ports);
        let differ = |(name, state): &(&String, &PortState)| is.ports.get(*name) != Some(*state);
        let words: Vec<String> =
            target.ports.iter().filter(differ).map(|(name, state)| words(name, state)).collect();
        if dry_run {
            return Ok(words);
        }
        if !words.is_empty() {
            self.side.apply(&target.ports).await.map_err(failed)?;
        }
        target.stamp = stamp;
        if target != *told {
            self.keep(target.clone()).await;
            *told = target;
        }
        self.status
            .send_modify(|status| (status.stamp, status.applied) = (stamp, status.applied + 1));
        Ok(words)
    }

    /// Keeps what is in force. It stays in force if that is not possible.
    async fn keep(&self, target: SwitchState) {
        if let Ok(Some(problem)) | Err(problem) = self.keeper.keep(target).await {
            self.problem(problem);
        }
        let unkept = self.keeper.owed().is_some();
        self.status.send_modify(|status| status.unkept = unkept);
    }
}

/// What the data path does, with weights of none of their own where those were told.
fn truth(told: &SwitchState, ports: &BTreeMap<String, PortReading>) -> SwitchState {
    let one = |(name, reading): (&String, &PortReading)| {
        let mut state = reading.state.clone();
        let wanted = told.ports.get(name).map_or(&[][..], |port| &port.weights);
        for (queue, weight) in state.weights.iter_mut().enumerate() {
            if *weight == WEIGHTS.0 && wanted.get(queue).is_none_or(|told| *told == 0) {
                *weight = 0;
            }
        }
        (name.clone(), state.canonical())
    };
    SwitchState { stamp: told.stamp, ports: ports.iter().map(one).collect(), ..<_>::default() }
}

/// A port's state in the words of the daemon's configuration.
fn words(port: &str, state: &PortState) -> String {
    let weights: Vec<String> =
        state.weights.iter().map(|w| (*w).max(WEIGHTS.0).to_string()).collect();
    let map: Vec<String> =
        state.map.iter().map(|(dscp, queue)| format!("{dscp} = {queue}")).collect();
    let (weights, map) = (weights.join(", "), map.join(", "));
    format!("port {port}: wfq = {{ weights = [{weights}], map = {{ {map} }} }}")
}
