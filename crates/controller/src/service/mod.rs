//! A controller from its start to its end: it campaigns, leads, and campaigns again.
//!
//! **Rule.** The lease is kept alive three times in its time. A leader that could not do so in time
//! stops by itself before another can lead: it ends all sessions, and what it would still write the
//! store refuses. Everything it knew is read again when it leads again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, MissedTickBehavior};

use crate::Stamp;
use crate::agents::{Leading, Registry};
use crate::carry_out::Crew;
use crate::fabric_state::{Fabric, Usage};
use crate::intent::LEADER;
use crate::leader::{Leader, LeaderError, Settings};
use crate::store::{LeaseId, Store, StoreError, leader};
use crate::view;

mod operator;

pub use operator::{Operator, ReadTenants};

/// How long a leader that is gone holds its place.
pub const LEASE: Duration = Duration::from_secs(10);
/// Between two signs of life.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// After this without a sign of life that the store took, a leader stops: well before the lease
/// ends.
const GIVE_UP: Duration = Duration::from_secs(7);
/// Before the store is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What a controller is made of.
pub struct Setup {
    /// Its name among controllers.
    pub name: String,
    /// Where agents are sent by those that do not lead.
    pub advertise: String,
    /// Between two decisions.
    pub interval: Duration,
    /// How it leads.
    pub leader: Settings,
    /// Where intent is kept.
    pub store: Arc<dyn Store>,
    /// Hosts' agents.
    pub hosts: Arc<Registry>,
    /// An empty fabric and its switches, anew for each term.
    pub make: Box<dyn Fn() -> Result<(Fabric, Crew), String> + Send + Sync>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    setup: Setup,
    leader: Mutex<Option<Leader>>,
    leading: watch::Sender<Leading>,
}

impl Controller {
    /// One that does not lead yet.
    #[must_use]
    pub fn new(setup: Setup) -> Arc<Self> {
        let leading = watch::channel(Leading::Elsewhere(String::new())).0;
        Arc::new(Self { setup, leader: Mutex::new(None), leading })
    }

    /// Whether it leads, and if not who does.
    #[must_use]
    pub fn leading(&self) -> watch::Receiver<Leading> {
        self.leading.subscribe()
    }

    /// Hosts' agents.
    #[must_use]
    pub fn hosts(&self) -> &Arc<Registry> {
        &self.setup.hosts
    }

    /// The leader, if it is this one.
    pub(crate) async fn leader(&self) -> MutexGuard<'_, Option<Leader>> {
        self.leader.lock().await
    }

    /// Runs until `stop` turns true.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            let led = tokio::select! {
                led = self.term() => led,
                () = told(&mut stop) => {
                    self.step_down(String::new()).await;
                    return;
                }
            };
            if let Err(error) = led {
                tracing::warn!("controller {}: {error}", self.setup.name);
            }
            self.step_down(String::new()).await;
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = told(&mut stop) => return,
            }
        }
    }

    /// This controller leads at this decision: hosts begin new sessions and are told again.
    pub(crate) fn begin_anew(&self, stamp: Stamp) {
        self.leading.send_replace(Leading::Here(stamp));
        self.setup.hosts.end_all();
    }

    async fn step_down(&self, elsewhere: String) {
        self.leading.send_replace(Leading::Elsewhere(elsewhere));
        self.setup.hosts.end_all();
        *self.leader.lock().await = None;
    }

    /// Campaigns, and leads until it does not any more.
    async fn term(&self) -> Result<(), LeaderError> {
        let store = &self.setup.store;
        let lease = store.lease(LEASE).await.map_err(LeaderError::Store)?;
        let who = format!("{} {}", self.setup.name, self.setup.advertise);
        let campaign = store.campaign(LEADER, &who, lease);
        let leadership = {
            let campaign = async { campaign.await.map_err(LeaderError::Store) };
            let (leadership, ()) =
                tokio::try_join!(biased_first(campaign), self.wait_for_turn(lease)).or_else(
                    |outcome| match outcome {
                        Turn::Leads(leadership) => Ok((leadership, ())),
                        Turn::Failed(error) => Err(error),
                    },
                )?;
            leadership
        };
        let alive = Instant::now();
        let (fabric, crew) = (self.setup.make)().map_err(|problem| {
            let store = "setup".to_owned();
            LeaderError::Store(StoreError::Unavailable { store, problem })
        })?;
        let (store, settings) = (Arc::clone(store), self.setup.leader);
        let leader = Leader::take_over(fabric, crew, store, leadership, settings).await?;
        self.leading.send_replace(Leading::Here(leader.stamp()));
        *self.leader.lock().await = Some(leader);
        let led = self.lead(lease, alive).await;
        let _ = tokio::time::timeout(RETRY, self.setup.store.revoke(lease)).await;
        led
    }

    /// While it waits: keeps the lease alive, and tells agents who leads.
    async fn wait_for_turn(&self, lease: LeaseId) -> Result<(), Turn> {
        loop {
            let store = &self.setup.store;
            store.keep_alive(lease).await.map_err(|e| Turn::Failed(LeaderError::Store(e)))?;
            if let Ok(Some(entry)) = leader(&**store, LEADER).await {
                let who = String::from_utf8_lossy(&entry.value).into_owned();
                let address = who.split_once(' ').map_or("", |(_, address)| address).to_owned();
                let now = Leading::Elsewhere(address);
                self.leading.send_if_modified(|leading| {
                    let changed = *leading != now;
                    leading.clone_from(&now);
                    changed
                });
            }
            tokio::time::sleep(KEEP_ALIVE).await;
        }
    }

    /// Decides for as long as the lease is kept alive. A decision may take long, where switches do
    /// not answer; the lease must not wait for it.
    async fn lead(&self, lease: LeaseId, alive: Instant) -> Result<(), LeaderError> {
        tokio::select! {
            led = self.decide() => led,
            lost = self.stay_alive(lease, alive) => Err(lost),
        }
    }

    async fn decide(&self) -> Result<(), LeaderError> {
        let mut intervals = tokio::time::interval(self.setup.interval);
        intervals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        intervals.tick().await;
        loop {
            tokio::select! {
                _ = intervals.tick() => self.interval().await?,
                () = self.setup.hosts.somebody_came() => self.greet().await,
            }
        }
    }

    /// Returns why this controller must not lead any more.
    async fn stay_alive(&self, lease: LeaseId, mut alive: Instant) -> LeaderError {
        let mut beats = tokio::time::interval(KEEP_ALIVE);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = beats.tick() => {}
                () = tokio::time::sleep_until(alive + GIVE_UP) => return LeaderError::Deposed,
            }
            let sent = Instant::now();
            let beat = self.setup.store.keep_alive(lease);
            match tokio::time::timeout_at(alive + GIVE_UP, beat).await {
                Ok(Ok(())) => alive = sent,
                Ok(Err(StoreError::LeaseEnded(_))) => return LeaderError::Deposed,
                Ok(Err(error)) => tracing::warn!("the lease cannot be renewed: {error}"),
                Err(_) => return LeaderError::Deposed,
            }
        }
    }

    /// Tells those who came.
    async fn greet(&self) {
        let mut guard = self.leader.lock().await;
        let Some(leader) = guard.as_mut() else { return };
        for host in self.setup.hosts.take_arrivals() {
            leader.host_came(&host);
        }
        leader.catch_up().await;
    }

    async fn interval(&self) -> Result<(), LeaderError> {
        let usage = self.setup.hosts.take_usage();
        let mut guard = self.leader.lock().await;
        let Some(leader) = guard.as_mut() else { return Ok(()) };
        let mut by_node = Usage::new();
        for (host, used) in usage {
            if let Some(node) = leader.fabric().topology().find(&host) {
                by_node.insert(node, used);
            }
        }
        match leader.interval(&by_node).await {
            Ok(_) => {
                self.leading.send_replace(Leading::Here(leader.stamp()));
                Ok(())
            }
            Err(LeaderError::Deposed) => Err(LeaderError::Deposed),
            Err(error) => {
                tracing::warn!("control interval failed: {error}");
                Ok(())
            }
        }
    }

    /// A view by its name, as JSON; `None`: there is none of that name, or no such tenant.
    pub async fn view(&self, what: &str, name: &str) -> Option<Value> {
        let guard = self.leader.lock().await;
        let hosts = &self.setup.hosts;
        let Some(leader) = guard.as_ref() else {
            let elsewhere = match &*self.leading.borrow() {
                Leading::Elsewhere(address) => address.clone(),
                Leading::Here(_) => String::new(),
            };
            let own = &self.setup.name;
            let status = serde_json::json!({ "name": own, "leads": false, "leader": elsewhere });
            return (what == "status").then_some(status);
        };
        let millis = u64::try_from(self.setup.interval.as_millis()).unwrap_or(u64::MAX);
        Some(match what {
            "status" => view::status(leader, hosts, &self.setup.name, millis),
            "topology" => view::topology(leader, hosts),
            "tenants" => view::tenants(leader),
            "bindings" => view::bindings(leader),
            "events" => view::events(leader),
            "explain" => view::explain(leader, name)?,
            "history" => view::history(leader, name, millis)?,
            "switch-counters" => counters(leader).await,
            _ => return None,
        })
    }
}

async fn counters(leader: &Leader) -> Value {
    let mut all = BTreeMap::new();
    for switch in leader.crew().switches().values() {
        let read = switch.driver.counters().await;
        let shown = match read {
            Ok(counters) => serde_json::json!(counters),
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        };
        all.insert(switch.driver.name().to_owned(), shown);
    }
    serde_json::json!(all)
}

/// Waits until it turns true, or nobody can turn it any more.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// How waiting ended.
enum Turn {
    Leads(crate::store::Leadership),
    Failed(LeaderError),
}

/// As an error, so that joining with what never ends by itself ends.
async fn biased_first(
    campaign: impl Future<Output = Result<crate::store::Leadership, LeaderError>>,
) -> Result<crate::store::Leadership, Turn> {
    match campaign.await {
        Ok(leadership) => Err(Turn::Leads(leadership)),
        Err(error) => Err(Turn::Failed(error)),
    }
}
