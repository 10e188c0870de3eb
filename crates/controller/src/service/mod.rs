//! Runs a controller, which campaigns for leadership, leads until it loses leadership, and
//! campaigns again.
//!
//! A controller renews its lease several times within the duration of the lease. If a leader
//! cannot renew its lease, it stops before another controller can lead. A former leader ends all
//! sessions with agents, and the store refuses its writes. When the controller leads again, it
//! reads all state from the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::Stamp;
use crate::agents::{Leading, Registry};
use crate::carry_out::Crew;
use crate::fabric_state::{Fabric, Usage};
use crate::intent::LEADER;
use crate::leader::{Leader, LeaderError, Settings};
use crate::southbound::SwitchDriver;
use crate::store::{LeaseId, Store, StoreError, leader};
use crate::view;

mod operator;

pub use operator::{Operator, ReadTenants};

/// Duration of a controller's lease. If a leader fails, no other controller leads before the failed
/// leader's lease ends. When etcd elects a leader among its members, it renews all leases, so an
/// election makes no lease shorter.
pub const LEASE: Duration = Duration::from_secs(8);
/// Time between two renewals of the lease.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Time without a successful renewal of the lease after which a leader stops. The time counts from
/// the sending of the last successful renewal, and the lease from the arrival. A leader therefore
/// stops two seconds before its lease ends, and tolerates a store without answers for four seconds.
const GIVE_UP: Duration = Duration::from_secs(6);
/// Time between two looks of a candidate at the name of the present leader.
const LOOK: Duration = Duration::from_secs(1);
/// Pause between the end of leadership or of a campaign and the controller's next campaign.
const RETRY: Duration = Duration::from_secs(1);

/// Settings and components of a [`Controller`].
pub struct Setup {
    /// Name of this controller, unique among all controllers of the fabric.
    pub name: String,
    /// Address to which other controllers redirect agents while this controller leads.
    pub advertise: String,
    /// Time between two decisions of the leader.
    pub interval: Duration,
    pub leader: Settings,
    pub store: Arc<dyn Store>,
    pub hosts: Arc<Registry>,
    /// Function that makes an empty fabric and the drivers of its switches. A controller calls
    /// `make` when the controller becomes the leader.
    pub make: Box<dyn Fn() -> Result<(Fabric, Crew), String> + Send + Sync>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Controller {
    setup: Setup,
    leader: Mutex<Option<Leader>>,
    leading: watch::Sender<Leading>,
}

impl Controller {
    /// Creates a controller that does not lead yet.
    #[must_use]
    pub fn new(setup: Setup) -> Arc<Self> {
        let leading = watch::channel(Leading::Elsewhere(String::new())).0;
        Arc::new(Self { setup, leader: Mutex::new(None), leading })
    }

    /// Returns a watch channel that says whether this controller leads, or which other controller
    /// leads.
    #[must_use]
    pub fn leading(&self) -> watch::Receiver<Leading> {
        self.leading.subscribe()
    }

    #[must_use]
    pub fn hosts(&self) -> &Arc<Registry> {
        &self.setup.hosts
    }

    /// Returns the leader's state, or `None` if this controller does not lead.
    pub(crate) async fn leader(&self) -> MutexGuard<'_, Option<Leader>> {
        self.leader.lock().await
    }

    /// Runs the controller until `stop` becomes true.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            let alive = Instant::now();
            let lease = tokio::select! {
                lease = self.setup.store.lease(LEASE) => lease.map_err(LeaderError::Store),
                () = told(&mut stop) => return,
            };
            let (led, stopped) = match lease {
                Ok(lease) => self.tenure(lease, alive, &mut stop).await,
                Err(error) => (Err(error), false),
            };
            if let Err(error) = led {
                tracing::warn!("controller {}: {error}", self.setup.name);
            }
            if stopped {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = told(&mut stop) => return,
            }
        }
    }

    /// Campaigns and leads until an error occurs or `stop` is true. The argument `alive` is the
    /// time at which the controller requested the lease. Returns the result of the controller's
    /// term, and whether `stop` ended the term. At the end of its term, the controller revokes its
    /// lease, so that the next candidate need not wait for the lease's end.
    async fn tenure(
        &self,
        lease: LeaseId,
        alive: Instant,
        stop: &mut watch::Receiver<bool>,
    ) -> (Result<(), LeaderError>, bool) {
        let end = tokio::select! {
            led = self.term(lease, alive) => (led, false),
            () = told(stop) => (Ok(()), true),
        };
        self.step_down(String::new()).await;
        let _ = tokio::time::timeout(RETRY, self.setup.store.revoke(lease)).await;
        end
    }

    /// Ends the sessions of all hosts. New sessions use the stamp `stamp`, and the hosts get their
    /// plans again.
    pub(crate) fn begin_anew(&self, stamp: Stamp) {
        self.leading.send_replace(Leading::Here(stamp));
        self.setup.hosts.end_all();
    }

    async fn step_down(&self, elsewhere: String) {
        self.leading.send_replace(Leading::Elsewhere(elsewhere));
        self.setup.hosts.end_all();
        *self.leader.lock().await = None;
    }

    /// Campaigns for leadership, and leads until leadership ends. The argument `alive` is the time
    /// at which the controller requested the lease.
    async fn term(&self, lease: LeaseId, mut alive: Instant) -> Result<(), LeaderError> {
        let store = &self.setup.store;
        let who = format!("{} {}", self.setup.name, self.setup.advertise);
        let campaign = store.campaign(LEADER, &who, lease);
        let leadership = {
            let campaign = async { campaign.await.map_err(LeaderError::Store) };
            let waiting = self.wait_for_turn(lease, &who, &mut alive);
            let (leadership, ()) = tokio::try_join!(biased_first(campaign), waiting).or_else(
                |outcome| match outcome {
                    Turn::Leads(leadership) => Ok((leadership, ())),
                    Turn::Failed(error) => Err(error),
                },
            )?;
            leadership
        };
        let (fabric, crew) = (self.setup.make)().map_err(|problem| {
            let store = "setup".to_owned();
            LeaderError::Store(StoreError::Unavailable { store, problem })
        })?;
        let (store, settings) = (Arc::clone(store), self.setup.leader);
        // A take-over waits for switches, and some switches need many seconds for a change.
        let lead = async {
            let leader = Leader::take_over(fabric, crew, store, leadership, settings).await?;
            self.leading.send_replace(Leading::Here(leader.stamp()));
            *self.leader.lock().await = Some(leader);
            self.decide().await
        };
        tokio::select! {
            led = lead => led,
            lost = self.stay_alive(lease, alive) => Err(lost),
        }
    }

    /// While the controller campaigns as `who`, renews the lease and follows changes of the present
    /// leader. Sets `alive` to the time at which it sent the last successful renewal. Returns only
    /// if the renewal of the lease fails.
    async fn wait_for_turn(
        &self,
        lease: LeaseId,
        who: &str,
        alive: &mut Instant,
    ) -> Result<(), Turn> {
        let store = &self.setup.store;
        loop {
            if alive.elapsed() >= KEEP_ALIVE {
                let sent = Instant::now();
                store.keep_alive(lease).await.map_err(|e| Turn::Failed(LeaderError::Store(e)))?;
                *alive = sent;
            }
            if let Ok(Some(entry)) = leader(&**store, LEADER).await {
                let now = Leading::Elsewhere(address_of(&entry.value, who));
                self.leading.send_if_modified(|leading| {
                    let changed = *leading != now;
                    leading.clone_from(&now);
                    changed
                });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Makes a decision once per interval. Meanwhile, [`Self::term`] renews the leader's lease,
    /// because a decision may take long if switches do not answer.
    async fn decide(&self) -> Result<(), LeaderError> {
        let mut intervals = tokio::time::interval(self.setup.interval);
        intervals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        intervals.tick().await;
        // Halfway between two decisions, the leader tries again to update what is out of date. A
        // switch that answers again therefore has its state after less than an interval.
        let start = Instant::now() + self.setup.interval / 2;
        let mut between = tokio::time::interval_at(start, self.setup.interval);
        between.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = intervals.tick() => self.interval().await?,
                _ = between.tick() => self.greet().await,
                () = self.setup.hosts.somebody_came() => self.greet().await,
            }
        }
    }

    /// Renews the lease until this controller must stop leading. The argument `alive` is the time
    /// at which the controller sent the last successful renewal. Returns the reason why the
    /// controller must stop leading.
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

    /// Sends plans to hosts whose agents have just connected, and tries to update switches and
    /// hosts that are out of date.
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

    /// Returns the JSON document with the name `what`, such as `status` ([`view`]). For documents
    /// about one tenant, `name` is the tenant's name. `None` if the document or the tenant does not
    /// exist.
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
            "switch-counters" => {
                let switches = leader.crew().switches().values();
                let drivers = switches.map(|switch| Arc::clone(&switch.driver)).collect();
                // A switch that does not answer must not delay the leader.
                drop(guard);
                counters(drivers).await
            }
            _ => return None,
        })
    }
}

/// Reads the counters of all switches at once.
async fn counters(drivers: Vec<Arc<dyn SwitchDriver>>) -> Value {
    let mut reads = JoinSet::new();
    for driver in drivers {
        reads.spawn(async move {
            let shown = match driver.counters().await {
                Ok(counters) => serde_json::json!(counters),
                Err(error) => serde_json::json!({ "error": error.to_string() }),
            };
            (driver.name().to_owned(), shown)
        });
    }
    let all: BTreeMap<String, Value> = reads.join_all().await.into_iter().collect();
    serde_json::json!(all)
}

/// Returns the address of the leader whose value in the election is `value`. The result is empty if
/// the value is that of this controller, `own`. Its campaign may be about to succeed, or it may be
/// a candidacy from before a restart, so this controller does not lead yet.
fn address_of(value: &[u8], own: &str) -> String {
    let who = String::from_utf8_lossy(value);
    if who == own {
        return String::new();
    }
    who.split_once(' ').map_or("", |(_, address)| address).to_owned()
}

/// Waits until `stop` is true or the sender of `stop` is gone.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Result of a campaign: the controller leads, or an error ended the campaign.
enum Turn {
    Leads(crate::store::Leadership),
    Failed(LeaderError),
}

/// Waits for the end of the campaign, and returns [`Turn::Leads`] as an `Err` if the campaign
/// succeeds. Because of the `Err`, `try_join!` ends and drops the other future, which renews the
/// lease in an endless loop.
async fn biased_first(
    campaign: impl Future<Output = Result<crate::store::Leadership, LeaderError>>,
) -> Result<crate::store::Leadership, Turn> {
    match campaign.await {
        Ok(leadership) => Err(Turn::Leads(leadership)),
        Err(error) => Err(Turn::Failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use async_trait::async_trait;
    use penstock_fabric::queue_binding::{Mode, Settings as BindingSettings};
    use penstock_fabric::tenant_placement::Policy;
    use penstock_fabric::topology::{Regular, Tier};
    use penstock_units::BitsPerSecond;
    use tokio::sync::mpsc;

    use super::*;
    use crate::store::{Change, Entry, Leadership, Listing, Revision, Transaction};

    #[test]
    fn a_candidate_names_another_leader_and_never_itself() {
        let own = "b https://10.0.0.2:7443";
        assert_eq!(address_of(b"a https://10.0.0.1:7443", own), "https://10.0.0.1:7443");
        assert_eq!(address_of(b"a ", own), "");
        assert_eq!(address_of(own.as_bytes(), own), "");
    }

    #[test]
    fn a_leader_without_a_store_stops_before_its_lease_ends() {
        // A leader that missed two renewals still leads, and stops two seconds before another one.
        assert!(GIVE_UP >= 3 * KEEP_ALIVE && GIVE_UP + Duration::from_secs(2) <= LEASE);
        assert!(LOOK <= KEEP_ALIVE && 4 * KEEP_ALIVE <= LEASE);
    }

    /// Store that elects a candidate after five seconds, and answers no other request.
    #[derive(Debug)]
    struct Mute;

    #[async_trait]
    impl Store for Mute {
        fn name(&self) -> &'static str {
            "mute"
        }
        async fn get(&self, _key: &str) -> Result<Option<Entry>, StoreError> {
            pending().await
        }
        async fn list(&self, _prefix: &str) -> Result<Listing, StoreError> {
            pending().await
        }
        async fn commit(&self, _transaction: Transaction) -> Result<Revision, StoreError> {
            pending().await
        }
        async fn watch(
            &self,
            _prefix: &str,
            _from: Revision,
        ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError> {
            pending().await
        }
        async fn lease(&self, _ttl: Duration) -> Result<LeaseId, StoreError> {
            pending().await
        }
        async fn keep_alive(&self, _lease: LeaseId) -> Result<(), StoreError> {
            pending().await
        }
        async fn revoke(&self, _lease: LeaseId) -> Result<(), StoreError> {
            pending().await
        }
        async fn campaign(
            &self,
            key: &str,
            _who: &str,
            lease: LeaseId,
        ) -> Result<Leadership, StoreError> {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(Leadership { key: key.to_owned(), created: Revision(1), lease })
        }
    }

    fn setup(store: Arc<dyn Store>) -> Setup {
        let tiers = vec![Tier { fan_out: 2, uplinks: 1, rate: BitsPerSecond(1_000_000_000) }];
        let topology = Regular { slots: 1, tiers }.build().unwrap();
        let hosts = Arc::new(Registry::new(Box::new(topology.clone())));
        let its_hosts = Arc::clone(&hosts);
        let make = move || -> Result<(Fabric, Crew), String> {
            let settings = BindingSettings::new(Mode::StaticMap);
            let fabric = Fabric::new(topology.clone(), 0, Policy::default(), settings).unwrap();
            let crew = Crew::new(BTreeMap::new(), its_hosts.clone(), Duration::from_secs(1));
            Ok((fabric, crew))
        };
        Setup {
            name: "one".to_owned(),
            advertise: String::new(),
            interval: Duration::from_secs(1),
            leader: Settings::default(),
            store,
            hosts,
            make: Box::new(make),
        }
    }

    /// The store has renewed the lease for the last time long before the election.
    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_elected_late_stops_before_its_lease_ends() {
        let controller = Controller::new(setup(Arc::new(Mute)));
        let requested = Instant::now();
        let led = controller.term(LeaseId(1), requested).await;
        assert!(matches!(led, Err(LeaderError::Deposed)), "{led:?}");
        assert!(requested.elapsed() < LEASE, "{:?}", requested.elapsed());
    }
}
