//! A Penstock daemon as a switch of a fabric: the peer of the driver
//! [`penstock`](crate::southbound::penstock).
//!
//! # Problem
//!
//! A switch must keep its state when controllers are gone. It must refuse a deposed controller,
//! even if two controllers send changes at the same moment.
//!
//! # Approach
//!
//! Changes are serialized. A change's stamp is compared with the last one, and the change is
//! computed on the previous state. The data path applies the whole change between two batches. The
//! change is stored in a file before it is acknowledged. After a restart, the state is in force
//! again before the first controller is served. Reads return what the data path really does.
//!
//! If a state cannot be stored, the file keeps its stamp alone, and storing is retried. The stamp
//! is never forgotten while the daemon runs.
//!
//! Source: QShare §V-D does not specify switches; `docs/reference/southbound.md` does.

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

/// Why a change was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The switch has this later decision.
    #[error("the switch has a later decision, {0}")]
    Late(Stamp),
    /// The switch cannot do it.
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
    /// Decisions applied.
    pub applied: u64,
    /// Changes refused for an older stamp.
    pub late: u64,
    /// Changes that failed.
    pub failed: u64,
    /// Last error, with its remedy.
    pub last_error: Option<String>,
}

/// The switch. See the module documentation.
#[derive(Debug)]
pub struct FabricSwitch {
    name: String,
    side: Arc<dyn SwitchSide>,
    keeper: Keeper<SwitchState>,
    /// The intended state. The lock is held during a whole change.
    told: Mutex<SwitchState>,
    status: watch::Sender<SwitchStatus>,
}

impl FabricSwitch {
    /// The switch with this name in the topology. `plan` is the file of its last state. Call
    /// [`Self::take_up`] to apply it.
    #[must_use]
    pub fn new(name: &str, plan: &std::path::Path, side: Arc<dyn SwitchSide>) -> Self {
        let keeper = Keeper::new(Saved::new(name, plan));
        let (told, status) = (Mutex::default(), watch::Sender::default());
        Self { name: name.to_owned(), side, keeper, told, status }
    }

    /// Name in the topology.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its state, as it changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<SwitchStatus> {
        self.status.subscribe()
    }

    /// Applies the stored state after a restart. Await this before the switch is served.
    ///
    /// # Errors
    /// The data path failed, for example because a port is gone. The stamp is known nevertheless,
    /// and a controller detects what is missing.
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
                let what = "could not be kept before the restart";
                self.problem(format!("decision {stamp} {what}; all share queue 0 until one comes"));
                Ok(None)
            }
            SavedPlan::Whole(mut plan) => {
                let stamp = plan.stamp;
                told.stamp = stamp;
                self.status.send_modify(|status| status.stamp = stamp);
                // A port removed from the configuration meanwhile has no state.
                let here = self.side.read().await?;
                plan.ports.retain(|name, _| here.contains_key(name));
                self.side.apply(&plan.ports).await?;
                *told = plan;
                Ok(Some(stamp))
            }
        }
    }

    /// Retries storing. Never returns.
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

    /// Capabilities common to all ports.
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

    /// Capabilities and present state, read from the data path.
    ///
    /// # Errors
    /// The data path does not answer.
    pub async fn state(&self) -> Result<(Capabilities, SwitchState), SideError> {
        let told = self.told.lock().await;
        let ports = self.side.read().await?;
        Ok((self.can(&ports), truth(&told, &ports)))
    }

    /// Counters of its queues.
    ///
    /// # Errors
    /// The data path does not answer.
    pub async fn counters(&self) -> Result<Vec<QueueCounters>, SideError> {
        let ports = self.side.read().await?;
        Ok(ports.into_values().flat_map(|port| port.counters).collect())
    }

    /// Applies changes, or with `dry_run` only returns what would change, in the syntax of the
    /// configuration.
    ///
    /// # Errors
    /// Nothing was changed. After [`Refusal::Failed`], the state is unknown if the data path has
    /// ended.
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
        // All present ports can be set. Ports that are gone cannot.
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

    /// Stores the state in force. It stays in force if storing fails.
    async fn keep(&self, target: SwitchState) {
        if let Ok(Some(problem)) | Err(problem) = self.keeper.keep(target).await {
            self.problem(problem);
        }
        let unkept = self.keeper.owed().is_some();
        self.status.send_modify(|status| status.unkept = unkept);
    }
}

/// Present state of the data path. Weight 1 is reported as 0 where the intended weight is 0.
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

/// A port's state in the syntax of the daemon's configuration.
fn words(port: &str, state: &PortState) -> String {
    let weights: Vec<String> =
        state.weights.iter().map(|w| (*w).max(WEIGHTS.0).to_string()).collect();
    let map: Vec<String> =
        state.map.iter().map(|(dscp, queue)| format!("{dscp} = {queue}")).collect();
    let (weights, map) = (weights.join(", "), map.join(", "));
    format!("port {port}: wfq = {{ weights = [{weights}], map = {{ {map} }} }}")
}
