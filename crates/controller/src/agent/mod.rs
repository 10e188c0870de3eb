//! The agent of a host reports the usage of tenants to a controller and applies plans on the host's
//! switch.
//!
//! # Problem
//!
//! A host can lose its controller at any time. Without a controller, the host must still keep the
//! guarantees that tenants bought. The host must not follow a controller that no longer leads.
//!
//! # Approach
//!
//! - The agent calls its configured controllers one after the other. The agent follows redirections
//!   to the leader. After each round of calls without success, the agent waits longer (`calls`).
//! - The agent stores the last plan in a file. After a restart, the agent applies the stored plan
//!   before it has found a controller.
//! - Every plan has a stamp with a term and a number ([`crate::stamp`]). If the agent has seen a
//!   later stamp, the agent refuses the plan.
//! - If no controller accepts reports, the agent sets [`AgentState::stale_since`] and does not
//!   change the switch.
//!
//! # Order
//!
//! The agent applies a plan, then stores it, and then acknowledges it. If the host fails before the
//! plan is stored, the agent applies the previous plan after the restart. The controller sends a
//! plan again if it has no acknowledgement of the plan.
//!
//! If the agent cannot store a plan, it overwrites the stored plan with only the new stamp. The
//! switch continues with the new plan, and the agent tries again to store the plan. Until a retry
//! succeeds, [`AgentState::unkept`] has the plan's stamp. If the host restarts before a retry
//! succeeds, the host has no plan. Without a plan, all tenants of the host share queue 0, which
//! always exists. The host must not use the old plan, because the code points in an old plan may
//! now belong to other tenants.
//!
//! # Departures
//!
//! QShare §V-D does not specify the handling of failed hosts and switches.
//! `docs/reference/controller.md` specifies how Penstock handles failures.

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

mod calls;
mod endpoint;
mod meter;
mod retry;
mod session;
mod settings;
mod state;

pub use meter::Carried;
pub use settings::{AgentSettings, AgentTls, SettingsError};
pub use state::{AgentState, Counts, STALE_AFTER};

use calls::{Answer, Calls};
use retry::Retry;
use session::{End, Ended};

/// Interface of an agent to the switch of its host.
///
/// If a call to the switch takes longer than [`AgentSettings::side_limit`], the agent cancels the
/// call and counts it as failed.
#[async_trait]
pub trait HostSide: Send + Sync + fmt::Debug {
    /// Returns the bytes that each tenant's VMs on this host sent and received over the network so
    /// far. The counters only grow, unless the switch restarts. The counters exclude traffic
    /// between VMs of the host.
    async fn usage(&self) -> Result<BTreeMap<String, Carried>, SideError>;

    /// Applies the whole plan on the switch. The resulting state of the switch does not depend on
    /// earlier plans.
    async fn apply(&self, plan: &HostPlan) -> Result<(), SideError>;
}

/// Error of a call to the virtual switch of the agent's host. The error's text names the problem
/// and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SideError(pub String);

#[derive(Debug)]
pub struct Agent {
    settings: AgentSettings,
    side: Arc<dyn HostSide>,
    saved: Keeper<HostPlan>,
    state: watch::Sender<AgentState>,
    /// Highest stamp (term and number of a controller's decision) that the agent has seen.
    has: Stamp,
    /// Plan that was stored before a restart. The value is `None` after the agent has applied the
    /// stored plan or received another plan.
    pending: Option<HostPlan>,
    calls: Calls,
}

impl Agent {
    /// Creates an agent that has not started.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid.
    pub fn new(settings: AgentSettings, side: Arc<dyn HostSide>) -> Result<Self, SettingsError> {
        settings.check()?;
        let saved = Keeper::new(Saved::new(&settings.host, &settings.plan_file));
        let (state, _) = watch::channel(AgentState::new(settings.interval));
        let retry = Retry::new(settings.pause, retry::seed());
        let calls = Calls::new(settings.endpoints.clone(), retry);
        let (has, pending) = (Stamp::default(), None);
        Ok(Self { settings, side, saved, state, has, pending, calls })
    }

    /// Returns a watch channel that is notified of every change of the agent's state.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<AgentState> {
        self.state.subscribe()
    }

    /// Runs the agent until the future `stop` resolves. If the agent is applying a plan when `stop`
    /// resolves, it first completes, stores and acknowledges the plan.
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

    /// Loads the plan that was stored before a restart. The agent applies the stored plan before
    /// its next session.
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
                let what = "the daemon did not store the plan before the restart";
                self.problem(format!(
                    "plan {stamp}: {what}; all tenants share queue 0 until a plan arrives"
                ));
            }
            Ok(SavedPlan::Nothing) => {}
            Err(problem) => self.problem(problem),
        }
    }

    /// Applies the plan that was stored before a restart, if the agent has not applied it yet.
    async fn do_pending(&mut self) {
        let Some(plan) = &self.pending else { return };
        match apply(&*self.side, plan, self.settings.side_limit).await {
            Ok(()) => {
                let stamp = plan.stamp;
                self.pending = None;
                tracing::info!(%stamp, "the plan from before the restart is applied");
                self.state.send_modify(|state| {
                    state.applied = Some(stamp);
                    state.counts.resumed += 1;
                });
            }
            Err(problem) => self.problem(format!("the plan from before the restart: {problem}")),
        }
    }

    async fn sessions(&mut self, stop: &mut watch::Receiver<bool>) {
        while !*stop.borrow() {
            self.do_pending().await;
            let (call, began) = (self.calls.next(), Instant::now());
            let Ended { how, served } = self.session(&call, stop).await;
            self.state.send_modify(|state| state.connected = None);
            let answer = match &how {
                End::Stopped => return,
                End::Elsewhere(leader) if self.may_follow(leader) => Answer::Leader(leader.clone()),
                End::Elsewhere(_) => Answer::NoLeader,
                End::Problem(_) => Answer::Failed,
            };
            let address = call.address.clone();
            let pause = self.calls.end(call, answer, served, began.elapsed());
            match how {
                End::Elsewhere(leader) if !self.calls.follows() => {
                    let known = match leader.as_str() {
                        "" => "and knows no leader".to_owned(),
                        leader => format!("and reports {leader} as leader"),
                    };
                    self.problem(format!("controller {address} does not lead {known}"));
                }
                End::Problem(problem) => self.problem(format!("controller {address}: {problem}")),
                End::Elsewhere(_) | End::Stopped => {}
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = stopped(stop) => {}
            }
        }
    }

    /// Returns true if the agent may follow a redirection to the address `leader`. The leader's
    /// address must be valid and as secure as the configured addresses.
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

/// Waits until the value of `stop` is true.
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
