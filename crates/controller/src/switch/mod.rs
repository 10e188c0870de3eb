//! A Penstock daemon as a switch of a fabric. It is the peer of the driver
//! [`penstock`](crate::southbound::penstock).
//!
//! # Problem
//!
//! A switch must keep its state when controllers are gone. It must refuse a deposed controller,
//! even if two controllers send changes at the same moment.
//!
//! # Approach
//!
//! The switch serializes changes. It compares a change's stamp with the last stamp and computes the
//! change on the previous state. The data path applies the whole change between two batches. The
//! switch stores the change in a file before it acknowledges the change. After a restart, it
//! applies the state again before it serves the first controller. Reads return the real state of
//! the data path.
//!
//! If the switch cannot store a state, it stores the stamp alone and retries. It keeps the stamp in
//! memory while the daemon runs.
//!
//! # Departures
//!
//! QShare §V-D does not specify switches. `docs/reference/southbound.md` does.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{Mutex, watch};

use crate::Stamp;
use crate::agent::SideError;
use crate::saved::{Keeper, Saved, SavedPlan, Stamped};
use crate::southbound::{
    Capabilities, Change, ONE_STEP, PortState, QueueCounters, SwitchState, step,
};

mod service;
mod side;
pub mod wire;

pub use service::{SwitchServer, Who, serve};
pub use side::{PortReading, SwitchSide};

/// Smallest and largest weight of the data path's queues.
pub const WEIGHTS: (u32, u32) = (1, 10_000);

impl Stamped for SwitchState {
    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// Why a change was refused. The switch has not changed its state.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The switch has a later decision, with this stamp.
    #[error("the switch has a later decision, {0}")]
    Late(Stamp),
    /// The switch does not support the change.
    #[error("{0}")]
    Beyond(String),
    /// The data path failed.
    #[error("{0}")]
    Failed(String),
}

/// State of a switch, for operators and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchStatus {
    /// Stamp of the last complete decision.
    pub stamp: Stamp,
    /// Whether the decision in force is not stored for a restart.
    pub unkept: bool,
    /// Decisions that the switch applied.
    pub applied: u64,
    /// Changes that the switch refused, because their stamp was older.
    pub late: u64,
    /// Changes that failed.
    pub failed: u64,
    /// The last error and its remedy.
    pub last_error: Option<String>,
}

/// The switch that this daemon is.
#[derive(Debug)]
pub struct FabricSwitch {
    name: String,
    side: Arc<dyn SwitchSide>,
    keeper: Keeper<SwitchState>,
    /// The intended state. Its lock is held during a whole change.
    told: Mutex<SwitchState>,
    status: watch::Sender<SwitchStatus>,
}

impl FabricSwitch {
    /// Creates the switch with this name in the topology. `plan` is the file of its last state.
    /// Call [`Self::take_up`] to apply that state.
    #[must_use]
    pub fn new(name: &str, plan: &std::path::Path, side: Arc<dyn SwitchSide>) -> Self {
        let keeper = Keeper::new(Saved::new(name, plan));
        let (told, status) = (Mutex::default(), watch::Sender::default());
        Self { name: name.to_owned(), side, keeper, told, status }
    }

    /// Returns the switch's name in the topology.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a receiver of the switch's state. The receiver is notified of every change.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<SwitchStatus> {
        self.status.subscribe()
    }

    /// Applies the stored state after a restart. Await this call before you serve the switch.
    ///
    /// # Errors
    /// The data path failed, for example because a port is gone. The switch then knows the stamp
    /// nevertheless, and a controller detects the missing changes.
    pub async fn take_up(&self) -> Result<Option<Stamp>, SideError> {
        let found = match self.keeper.load().await {
            Ok(found) => found,
            Err(problem) => {
                self.problem(problem);
                SavedPlan::Nothing
            }
        };
        let mut told = self.told.lock().await;
        match found {
            SavedPlan::Nothing => Ok(None),
            SavedPlan::Stamp(stamp) => {
                told.stamp = stamp;
                self.status.send_modify(|status| status.stamp = stamp);
                let what = "could not be stored before the restart";
                self.problem(format!("decision {stamp} {what}; all share queue 0 until the next"));
                Ok(None)
            }
            SavedPlan::Whole(mut plan) => {
                let stamp = plan.stamp;
                told.stamp = stamp;
                self.status.send_modify(|status| status.stamp = stamp);
                // A port may have been removed from the configuration. Such a port has no state.
                let here = self.side.read().await?;
                plan.ports.retain(|name, _| here.contains_key(name));
                self.side.apply(&plan.ports).await?;
                *told = plan;
                Ok(Some(stamp))
            }
        }
    }

    /// Retries to store a state that was not stored. This future never ends.
    pub async fn make_up(&self) {
        let kept = |stamp| {
            tracing::info!(switch = self.name, %stamp, "the decision is now stored");
            self.status.send_modify(|status| status.unkept = false);
        };
        self.keeper.clone().make_up(kept).await;
    }

    fn problem(&self, problem: String) {
        tracing::warn!(switch = self.name, "{problem}");
        self.status.send_modify(|status| status.last_error = Some(problem));
    }

    /// Returns the capabilities that all ports have in common.
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

    /// Reads the capabilities and the present state from the data path.
    ///
    /// # Errors
    /// The data path does not answer.
    pub async fn state(&self) -> Result<(Capabilities, SwitchState), SideError> {
        let told = self.told.lock().await;
        let ports = self.side.read().await?;
        Ok((self.can(&ports), truth(&told, &ports)))
    }

    /// Reads the counters of all queues.
    ///
    /// # Errors
    /// The data path does not answer.
    pub async fn counters(&self) -> Result<Vec<QueueCounters>, SideError> {
        let ports = self.side.read().await?;
        Ok(ports.into_values().flat_map(|port| port.counters).collect())
    }

    /// Applies changes. With `dry_run`, only returns the changes, in the syntax of the
    /// configuration.
    ///
    /// # Errors
    /// The state has not changed. If the data path has ended, [`Refusal::Failed`] means that the
    /// state is unknown.
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
        // Ports that are gone cannot be set. All other ports can.
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

    /// Stores the state in force. If this fails, the state stays in force.
    async fn keep(&self, target: SwitchState) {
        if let Ok(Some(problem)) | Err(problem) = self.keeper.keep(target).await {
            self.problem(problem);
        }
        let unkept = self.keeper.owed().is_some();
        self.status.send_modify(|status| status.unkept = unkept);
    }
}

/// Returns the present state of the data path. If a queue's intended weight is 0 and its weight in
/// the data path is 1, the result has weight 0.
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

/// Returns a port's state in the syntax of the daemon's configuration.
fn words(port: &str, state: &PortState) -> String {
    let weights: Vec<String> =
        state.weights.iter().map(|w| (*w).max(WEIGHTS.0).to_string()).collect();
    let map: Vec<String> =
        state.map.iter().map(|(dscp, queue)| format!("{dscp} = {queue}")).collect();
    let (weights, map) = (weights.join(", "), map.join(", "));
    format!("port {port}: wfq = {{ weights = [{weights}], map = {{ {map} }} }}")
}
