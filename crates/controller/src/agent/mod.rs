//! A host's agent. It reports the usage of tenants to a controller and applies plans on its switch.
//!
//! # Problem
//!
//! Controllers come and go. Meanwhile a host must keep the guarantees that tenants bought, and must
//! not follow a deposed controller.
//!
//! # Approach
//!
//! The agent calls its known controllers in turn and follows redirections to the leader. Pauses
//! grow with every round without success. The agent stores the last plan in a file. After a
//! restart, it applies this plan before it has found a controller. The agent refuses a plan if it
//! has seen a higher stamp. If no controller accepts reports, the agent sets
//! [`AgentState::stale_since`] and does not change the switch.
//!
//! # Order
//!
//! The agent applies a plan, then stores it, and then acknowledges it. If the host fails between
//! these steps, it follows the previous plan after the restart, and the controller expects this. If
//! the agent cannot store a plan, it overwrites the stored plan with the new stamp alone. The new
//! plan stays in force, [`AgentState::unkept`] shows that it is not stored, and the agent retries.
//! If the host restarts before the plan is stored, it has no plan, and all tenants share queue 0,
//! which always exists. The old plan would be wrong, because its code points may belong to other
//! tenants by then.
//!
//! # Departures
//!
//! QShare §V-D does not specify failures. `docs/reference/controller.md` does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::Stamp;
use crate::hosts::HostPlan;
use crate::saved::{Keeper, Saved, SavedPlan};

mod endpoint;
mod meter;
mod retry;
mod session;
mod settings;
mod state;

pub use meter::Carried;
pub use settings::{AgentSettings, AgentTls, SettingsError};
pub use state::{AgentState, Counts, STALE_AFTER};

use retry::Retry;
use session::{End, Ended};

/// Number of redirections that the agent follows before it calls its known controllers again.
const HOPS_MAX: u32 = 3;

/// The switch of this host.
///
/// A call that takes longer than [`AgentSettings::side_limit`] is dropped and counts as failed.
#[async_trait]
pub trait HostSide: Send + Sync + fmt::Debug {
    /// Bytes that each tenant's VMs on this host sent and received over the network so far.
    /// Counters only grow, unless the switch restarts. Traffic between VMs of this host does not
    /// count.
    async fn usage(&self) -> Result<BTreeMap<String, Carried>, SideError>;

    /// Applies the whole plan. The result does not depend on earlier plans.
    async fn apply(&self, plan: &HostPlan) -> Result<(), SideError>;
}

/// Error of the switch. The text is the problem and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SideError(pub String);

/// The agent of one host.
#[derive(Debug)]
pub struct Agent {
    settings: AgentSettings,
    side: Arc<dyn HostSide>,
    saved: Keeper<HostPlan>,
    state: watch::Sender<AgentState>,
    /// Highest stamp that the agent has seen.
    has: Stamp,
    /// The plan from before a restart. This field is set until the agent has applied the plan.
    pending: Option<HostPlan>,
    retry: Retry,
}

impl Agent {
    /// Creates an agent that has not started.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn new(settings: AgentSettings, side: Arc<dyn HostSide>) -> Result<Self, SettingsError> {
        settings.check()?;
        let saved = Keeper::new(Saved::new(&settings.host, &settings.plan_file));
        let (state, _) = watch::channel(AgentState::new(settings.interval));
        let retry = Retry::new(settings.pause, retry::seed());
        let (has, pending) = (Stamp::default(), None);
        Ok(Self { settings, side, saved, state, has, pending, retry })
    }

    /// Returns a receiver of the agent's state. It is notified of every change.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<AgentState> {
        self.state.subscribe()
    }

    /// Runs until `stop` resolves. If the agent is applying a plan at that time, it first
    /// completes, stores and acknowledges this plan.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        let (tell, mut told) = watch::channel(false);
        let watcher = state::watch_staleness(self.state.clone());
        let (state, host) = (self.state.clone(), self.settings.host.clone());
        let making_up = self.saved.clone().make_up(move |stamp| {
            tracing::info!(host, %stamp, "the plan is now stored");
            state.send_modify(|state| state.unkept = None);
        });
        let work = async {
            self.take_up().await;
            self.sessions(&mut told).await;
        };
        tokio::pin!(stop, work, watcher, making_up);
        loop {
            tokio::select! {
                () = &mut work => return,
                () = &mut watcher => {}
                () = &mut making_up => {}
                () = &mut stop, if !*tell.borrow() => {
                    tell.send_replace(true);
                }
            }
        }
    }

    /// Loads and applies the plan from before a restart.
    #[doc(hidden)]
    pub async fn take_up(&mut self) {
        match self.saved.load().await {
            Ok(SavedPlan::Whole(plan)) => {
                self.has = plan.stamp;
                self.state.send_modify(|state| state.told = plan.stamp);
                self.pending = Some(plan);
            }
            Ok(SavedPlan::Stamp(stamp)) => {
                self.has = stamp;
                self.state.send_modify(|state| state.told = stamp);
                let what = "could not be stored before the restart";
                self.problem(format!(
                    "plan {stamp} {what}; all tenants share queue 0 until a plan arrives"
                ));
            }
            Ok(SavedPlan::Nothing) => {}
            Err(problem) => self.problem(problem),
        }
    }

    /// Applies the plan from before a restart, unless this has succeeded before.
    async fn do_pending(&mut self) {
        let Some(plan) = &self.pending else { return };
        match apply(&*self.side, plan, self.settings.side_limit).await {
            Ok(()) => {
                let stamp = plan.stamp;
                self.pending = None;
                tracing::info!(%stamp, "the plan from before the restart is in force");
                self.state.send_modify(|state| {
                    state.applied = Some(stamp);
                    state.counts.resumed += 1;
                });
            }
            Err(problem) => self.problem(format!("the plan from before the restart: {problem}")),
        }
    }

    async fn sessions(&mut self, stop: &mut watch::Receiver<bool>) {
        let (mut at, mut hops) = (0, 0);
        let mut sent_to: Option<String> = None;
        while !*stop.borrow() {
            self.do_pending().await;
            let endpoints = &self.settings.endpoints;
            let address = sent_to.take().unwrap_or_else(|| endpoints[at].clone());
            let Ended { how, served } = self.session(&address, stop).await;
            self.state.send_modify(|state| state.connected = None);
            if served {
                self.retry.reset();
                hops = 0;
            }
            let next = (at + 1) % self.settings.endpoints.len();
            let pause = match how {
                End::Stopped => return,
                End::Elsewhere(leader) if hops < HOPS_MAX && self.may_follow(&leader) => {
                    hops += 1;
                    sent_to = Some(leader);
                    self.retry.spread()
                }
                End::Elsewhere(leader) => {
                    let known = if leader.is_empty() { "nobody" } else { leader.as_str() };
                    self.problem(format!("controller {address} does not lead, and named {known}"));
                    (at, hops) = (next, 0);
                    self.retry.next()
                }
                End::Problem(problem) => {
                    self.problem(format!("controller {address}: {problem}"));
                    (at, hops) = (next, 0);
                    // No controller of this round took the session.
                    if next == 0 && !served { self.retry.next() } else { self.retry.spread() }
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = stopped(stop) => {}
            }
        }
    }

    /// Whether a redirection may be followed. Its address must be valid and as secure as the
    /// configured ones.
    fn may_follow(&self, leader: &str) -> bool {
        !leader.is_empty() && self.settings.uri(leader).is_ok()
    }

    fn problem(&self, problem: String) {
        tracing::warn!(host = self.settings.host, "{problem}");
        self.state.send_modify(|state| {
            state.counts.problems += 1;
            state.last_error = Some(problem);
        });
    }
}

/// Waits until the agent must stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Applies a plan on the switch within the time limit.
async fn apply(side: &dyn HostSide, plan: &HostPlan, limit: Duration) -> Result<(), String> {
    let begin = Instant::now();
    match timeout(limit, side.apply(plan)).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the switch did not answer within {:?}", begin.elapsed())),
    }
}
