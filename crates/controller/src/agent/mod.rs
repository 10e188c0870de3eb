//! A host's agent: it tells a controller what tenants used, and its switch what to do.
//!
//! **Problem.** Controllers come and go, and a host must neither lose what tenants were sold
//! meanwhile nor do what a deposed controller says. **Rule.** The agent asks the controllers that
//! it knows in turn, follows the word of one that another leads, and pauses longer with every round
//! that brought nothing. What it was told last it keeps in a file, and does again after a restart,
//! before it has found a controller. A plan with a lower stamp than one it was told of is refused.
//! Nobody to report to is a flag ([`AgentState::stale_since`]) and changes nothing on the switch.
//!
//! **Order.** A plan is applied, then kept, then answered: a host that ends in between does what
//! the controller believes it does, the plan of before. If a plan cannot be kept, that of before is
//! written over with the new one's stamp: without any plan all tenants share queue 0, which is
//! always there, while an old code point may be somebody else's by then. It is in force meanwhile,
//! [`AgentState::unkept`] says so, and keeping it is tried again.
//!
//! Source: QShare §V-D leaves failures open; `docs/controller.md` has ours.

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
use crate::saved::{Found, Keeper, Saved};

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

/// How often the agent goes where a controller sends it before it asks all it knows again.
const HOPS_MAX: u32 = 3;

/// What the switch of this host can do.
///
/// Neither call may take longer than [`AgentSettings::side_limit`]: it is dropped then, and what it
/// did counts as not done.
#[async_trait]
pub trait HostSide: Send + Sync + fmt::Debug {
    /// What each tenant's VMs here sent and received over the network so far. Counters only grow,
    /// save when the switch starts anew; traffic between two VMs of this host does not count.
    async fn usage(&self) -> Result<BTreeMap<String, Carried>, SideError>;

    /// Does what the plan says; all of it, whatever it did before.
    async fn apply(&self, plan: &HostPlan) -> Result<(), SideError>;
}

/// The switch did not do it; the text names what, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SideError(pub String);

/// See the module's text.
#[derive(Debug)]
pub struct Agent {
    settings: AgentSettings,
    side: Arc<dyn HostSide>,
    saved: Keeper<HostPlan>,
    state: watch::Sender<AgentState>,
    /// The highest decision that it was told of.
    has: Stamp,
    /// The plan of before a restart, until it is done.
    pending: Option<HostPlan>,
    retry: Retry,
}

impl Agent {
    /// An agent that has not begun.
    ///
    /// # Errors
    /// Settings that cannot work, with the remedy.
    pub fn new(settings: AgentSettings, side: Arc<dyn HostSide>) -> Result<Self, SettingsError> {
        settings.check()?;
        let saved = Keeper::new(Saved::new(&settings.host, &settings.plan_file));
        let (state, _) = watch::channel(AgentState::new(settings.interval));
        let retry = Retry::new(settings.pause, retry::seed());
        let (has, pending) = (Stamp::default(), None);
        Ok(Self { settings, side, saved, state, has, pending, retry })
    }

    /// What it is doing, as it changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<AgentState> {
        self.state.subscribe()
    }

    /// Works until `stop`. A plan that is being applied then is finished, kept and answered first.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        let (tell, mut told) = watch::channel(false);
        let watcher = state::watch_staleness(self.state.clone());
        let (state, host) = (self.state.clone(), self.settings.host.clone());
        let making_up = self.saved.clone().make_up(move |stamp| {
            tracing::info!(host, %stamp, "the plan is saved now");
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

    /// Takes up what it was told before a restart.
    #[doc(hidden)]
    pub async fn take_up(&mut self) {
        match self.saved.load().await {
            Ok(Found::Whole(plan)) => {
                self.has = plan.stamp;
                self.state.send_modify(|state| state.told = plan.stamp);
                self.pending = Some(plan);
            }
            Ok(Found::Stamp(stamp)) => {
                self.has = stamp;
                self.state.send_modify(|state| state.told = stamp);
                let what = "could not be kept before the restart";
                self.problem(format!(
                    "plan {stamp} {what}; all tenants share queue 0 until one comes"
                ));
            }
            Ok(Found::Nothing) => {}
            Err(problem) => self.problem(problem),
        }
    }

    /// Does what it was told before a restart, if it could not be done yet.
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
            Err(problem) => self.problem(format!("the plan of before the restart: {problem}")),
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
                    // A round is over: nobody is there.
                    if next == 0 && !served { self.retry.next() } else { self.retry.spread() }
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = stopped(stop) => {}
            }
        }
    }

    /// Whether an address that a controller named is one: of the same security as all others.
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

/// Waits until the agent is to end.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Has the switch do it, within the time.
async fn apply(side: &dyn HostSide, plan: &HostPlan, limit: Duration) -> Result<(), String> {
    let begin = Instant::now();
    match timeout(limit, side.apply(plan)).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the switch did not answer within {:?}", begin.elapsed())),
    }
}
