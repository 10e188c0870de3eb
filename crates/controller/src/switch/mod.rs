//! Lets a Penstock daemon act as a switch of a fabric. The driver
//! [`penstock`](crate::southbound::penstock) is the controller's side of the protocol.
//!
//! # Problem
//!
//! A switch must keep its state while no controller is reachable. The switch must refuse a
//! controller that no longer leads, even if two controllers send changes at the same moment.
//!
//! # Approach
//!
//! The switch serializes changes. For each change, the switch compares the stamp with the last
//! stamp, and applies the change to a copy of the previous state. The data path applies the whole
//! change between two batches of frames. The switch stores the new state in a file before it
//! acknowledges the change. After a restart, the switch applies the stored state before it serves
//! the first controller. Reads return the real state of the data path.
//!
//! If the switch cannot store a state, it stores only the stamp, and tries again to store the
//! state. While the daemon runs, the switch keeps the stamp in memory.
//!
//! # Departures
//!
//! QShare §V-D does not specify the behaviour of switches. `docs/reference/southbound.md` specifies
//! the behaviour of Penstock's switch.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
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

/// Smallest and largest weight that a queue of the data path may have.
pub const WEIGHTS: (u32, u32) = (1, 10_000);

impl Stamped for SwitchState {
    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// Reason why the switch refused a change. A refused change has no effect on the switch's state.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The switch has already applied a decision with a later stamp, which the error contains.
    #[error("the switch has a later decision, {0}")]
    Late(Stamp),
    /// The switch does not support the change.
    #[error("{0}")]
    Beyond(String),
    /// The data path of the switch failed.
    #[error("{0}")]
    Failed(String),
}

/// State of a switch, for operators and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchStatus {
    /// Stamp of the last decision that the switch applied completely.
    pub stamp: Stamp,
    /// True if the state on the switch is not stored, so that a restart would lose it.
    pub unkept: bool,
    /// Number of decisions that the switch applied.
    pub applied: u64,
    /// Number of changes that the switch refused because their stamp was older than the switch's
    /// stamp.
    pub late: u64,
    /// Number of changes that the switch could not apply.
    pub failed: u64,
    /// Text of the switch's last error, with its remedy.
    pub last_error: Option<String>,
}

/// Reads the ports of the last state of the switch `name` from its plan file `plan`. The daemon
/// applies these ports before its first frame. The result is empty if the file has no state.
/// [`FabricSwitch::take_up`] applies the whole state later, and reports problems of the file.
#[must_use]
pub fn saved_ports(name: &str, plan: &std::path::Path) -> BTreeMap<String, PortState> {
    match Saved::<SwitchState>::new(name, plan).read() {
        Ok(SavedPlan::Whole(state)) => state.ports,
        Ok(SavedPlan::Nothing | SavedPlan::Stamp(_)) | Err(_) => BTreeMap::new(),
    }
}

/// Penstock daemon in its role as a switch of the fabric.
#[derive(Debug)]
pub struct FabricSwitch {
    name: String,
    side: Arc<dyn SwitchSide>,
    keeper: Keeper<SwitchState>,
    /// Intended state of the switch, which stays locked while the switch applies a change.
    told: Mutex<SwitchState>,
    status: watch::Sender<SwitchStatus>,
    /// Text that identifies this run of the daemon.
    run: String,
}

impl FabricSwitch {
    /// Creates a switch with the name `name` in the topology. `plan` is the path of the file with
    /// the switch's last state. The function does not apply the state in the file, which
    /// [`Self::take_up`] applies.
    #[must_use]
    pub fn new(name: &str, plan: &std::path::Path, side: Arc<dyn SwitchSide>) -> Self {
        let keeper = Keeper::new(Saved::new(name, plan));
        let (told, status) = (Mutex::default(), watch::Sender::default());
        // The keys of a `RandomState` are random, so each run has another text.
        let run = format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(name));
        Self { name: name.to_owned(), side, keeper, told, status, run }
    }

    /// Returns a text that identifies this run of the daemon. A controller reads the switch's state
    /// again when the text changes.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a watch channel that is notified of every change of the switch's state.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<SwitchStatus> {
        self.status.subscribe()
    }

    /// Applies the state in the plan file to the data path after a restart of the daemon. The
    /// daemon must await `take_up` before it accepts controllers.
    ///
    /// # Errors
    /// Returns an error if the data path failed, for example because a port is gone. After an
    /// error, the switch still knows the stamp of its last plan, and a controller detects and sends
    /// the missing changes.
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
                let what = "the daemon did not store the decision before the restart";
                self.problem(format!(
                    "decision {stamp}: {what}; all tenants share queue 0 until the next decision"
                ));
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

    /// Waits for states that could not be stored, and tries again to store these states. The
    /// returned future runs until the caller drops it.
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

    /// Returns the capabilities that all ports of the switch have in common.
    fn can(&self, ports: &BTreeMap<String, PortReading>) -> Capabilities {
        let queues = ports.values().map(|port| port.queues).min().unwrap_or(0);
        Capabilities { weights: WEIGHTS, ..Capabilities::new(queues, ONE_STEP) }
    }

    /// Reads the capabilities and the present state from the data path.
    ///
    /// # Errors
    /// Returns an error if the data path does not answer.
    pub async fn state(&self) -> Result<(Capabilities, SwitchState), SideError> {
        let told = self.told.lock().await;
        let ports = self.side.read().await?;
        Ok((self.can(&ports), truth(&told, &ports)))
    }

    /// Reads the counters of all queues from the data path.
    ///
    /// # Errors
    /// Returns an error if the data path does not answer.
    pub async fn counters(&self) -> Result<Vec<QueueCounters>, SideError> {
        let ports = self.side.read().await?;
        Ok(ports.into_values().flat_map(|port| port.counters).collect())
    }

    /// Applies changes to the switch. If `dry_run` is true, only returns the changes, in the syntax
    /// of the daemon's configuration.
    ///
    /// # Errors
    /// Returns an error if the switch refuses the changes. Refused changes have no effect. After
    /// [`Refusal::Failed`], the switch's state is unknown if the data path has ended.
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
        // The switch ignores ports that no longer exist.
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
        target.stamp = stamp;
        let work = async {
            match words.is_empty() {
                true => Ok(()),
                false => self.side.apply(&target.ports).await,
            }
        };
        if target == *told {
            work.await.map_err(failed)?;
        } else {
            let kept = self.keeper.keep_if(target.clone(), work).await.map_err(failed)?;
            self.note_kept(kept);
            *told = target;
        }
        self.status
            .send_modify(|status| (status.stamp, status.applied) = (stamp, status.applied + 1));
        Ok(words)
    }

    /// Notes whether a new state is stored. If it is not stored, the switch still uses the state,
    /// and [`Self::make_up`] tries again.
    fn note_kept(&self, kept: Result<Option<String>, String>) {
        if let Ok(Some(problem)) | Err(problem) = kept {
            self.problem(problem);
        }
        let unkept = self.keeper.owed().is_some();
        self.status.send_modify(|status| status.unkept = unkept);
    }
}

/// Returns the present state of the data path. The data path has no weight 0, and gives weight 1 to
/// a queue whose intended weight is 0. The returned state has weight 0 for each queue whose
/// intended weight is 0.
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
