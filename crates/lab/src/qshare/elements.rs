//! Switches and hosts of the simulated testbed, as the drivers of a controller see them.
//!
//! # Problem
//!
//! A controller's plan takes time, because each switch and host answers after a delay of its own.
//! Some refuse a message, and some apply a message whose answer is lost. Between the first and the
//! last answer, the network is in a state that no decision describes.
//!
//! # Approach
//!
//! The elements run in tokio's virtual time, which the simulation controls. An element draws the
//! delay of each message from a range ([`DELAYS`]), and from a random number generator of its own.
//! The order in which tasks run therefore does not affect the delays. When an element has a new
//! state, the element records the state with the present time ([`Recorder`]).
//!
//! A switch checks messages as the controller's own simulated switch ([`SimSwitch`]) does. A switch
//! changes one port after the other, and a port's weights and map change together. On a host, the
//! code points, the limits and the queues of the uplink change together.
//!
//! # Delays
//!
//! The ranges of delays do not come from a result of this simulation. They are set so that a plan
//! with its two waits of 100 ms takes about the half second that the live fabric must reach.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use penstock_controller::Stamp;
use penstock_controller::hosts::{HostError, HostPlan, HostTenant, Hosts};
use penstock_controller::southbound::{
    Capabilities, Change as SwitchChange, DriverError, PortState, QueueCounters, SimSwitch,
    SwitchDriver, SwitchState,
};
use penstock_sim::Rng;
use penstock_sim::fabric::rates::LinkId;
use penstock_sim::fabric::{Change, Terms};
use penstock_units::Nanos;
use tokio::time::{Instant, sleep};

/// Ranges of the delays of messages in whole milliseconds, because tokio's timers have this
/// resolution.
#[derive(Debug, Clone, Copy)]
struct Delays {
    /// Shortest and longest time from a message to the first effect on a switch, or to the answer
    /// of a switch that only reads its state.
    switch_ms: (u64, u64),
    /// Shortest and longest time from a message to its effect on a host.
    host_ms: (u64, u64),
    /// Time that a switch needs for each changed port.
    port_ms: u64,
}

const DELAYS: Delays = Delays { switch_ms: (5, 40), host_ms: (1, 20), port_ms: 1 };

/// Failures of switches and hosts, which are drawn at random for each message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Probability that an element refuses a message, in parts per million.
    pub refused_ppm: u32,
    /// Probability that an element applies a message but its answer is lost, in parts per million.
    pub lost_ppm: u32,
    /// Name of the only element that fails. `None` if all elements may fail.
    pub only: Option<&'static str>,
}

/// Result of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    Refused,
    Lost,
}

/// Records the states of ports and hosts over time.
#[derive(Debug)]
pub struct Recorder {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Virtual time that is the start of the simulation.
    start: Instant,
    changes: Vec<(Nanos, Change)>,
    troubles: Troubles,
}

impl Recorder {
    /// Creates a recorder without failures of elements. The simulation starts now. The caller must
    /// run in a tokio runtime.
    #[must_use]
    pub fn starting_now() -> Self {
        let (start, troubles) = (Instant::now(), Troubles::default());
        Self { inner: Mutex::new(Inner { start, changes: Vec::new(), troubles }) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the present virtual time the start of the simulation, and elements fail as in
    /// `troubles` from now on.
    pub fn begin(&self, troubles: Troubles) {
        let mut inner = self.inner();
        (inner.start, inner.troubles) = (Instant::now(), troubles);
    }

    /// Returns the virtual time of a simulated time.
    #[must_use]
    pub fn at(&self, time: Nanos) -> Instant {
        self.inner().start + Duration::from_nanos(time.0)
    }

    /// Returns the simulated time now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        let since = Instant::now().saturating_duration_since(self.inner().start);
        Nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn add(&self, change: Change) {
        let now = self.now();
        self.inner().changes.push((now, change));
    }

    /// Removes and returns all recorded changes in the order of time. Changes at the same time are
    /// ordered by their port or host, so that the order does not depend on the order of tasks.
    #[must_use]
    pub fn take(&self) -> Vec<(Nanos, Change)> {
        let mut changes = std::mem::take(&mut self.inner().changes);
        changes.sort_by_key(|(at, change)| (*at, place(change)));
        changes
    }
}

/// Returns a key of the port or host that a change concerns. Hosts come before ports.
#[must_use]
pub fn place(change: &Change) -> (bool, usize) {
    match change {
        Change::Host { host, .. } => (false, *host),
        Change::Port { link, .. } => (true, link.index()),
    }
}

/// Random delays and failures of one element.
#[derive(Debug)]
struct Luck {
    rng: Mutex<Rng>,
    delay_ms: (u64, u64),
}

impl Luck {
    fn new(rng: Rng, delay_ms: (u64, u64)) -> Self {
        Self { rng: Mutex::new(rng), delay_ms }
    }

    /// Waits for the delay of a message to the element `name`, and returns the message's result.
    async fn message(&self, name: &str, recorder: &Recorder) -> Fate {
        let (delay, fate) = self.draw(name, recorder.inner().troubles);
        sleep(delay).await;
        fate
    }

    fn draw(&self, name: &str, troubles: Troubles) -> (Duration, Fate) {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let (least, most) = self.delay_ms;
        let delay = Duration::from_millis(least + rng.below(most - least + 1));
        let (refused, lost) =
            (rng.chance_ppm(troubles.refused_ppm), rng.chance_ppm(troubles.lost_ppm));
        let fate = match (troubles.only.is_none_or(|only| only == name), refused, lost) {
            (true, true, _) => Fate::Refused,
            (true, false, true) => Fate::Lost,
            _ => Fate::Answered,
        };
        (delay, fate)
    }
}

fn port_change(link: LinkId, state: &PortState) -> Change {
    Change::Port { link, weights: state.weights.clone(), map: state.map.clone() }
}

/// Switch that applies messages after a delay, and records the states of its ports.
#[derive(Debug)]
pub struct TimedSwitch {
    inner: SimSwitch,
    luck: Luck,
    /// Simulated link of each port, by the port's name.
    links: BTreeMap<String, LinkId>,
    recorder: Arc<Recorder>,
}

impl TimedSwitch {
    #[must_use]
    pub fn new(
        inner: SimSwitch,
        links: BTreeMap<String, LinkId>,
        rng: Rng,
        recorder: Arc<Recorder>,
    ) -> Self {
        Self { inner, luck: Luck::new(rng, DELAYS.switch_ms), links, recorder }
    }
}

#[async_trait]
impl SwitchDriver for TimedSwitch {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn capabilities(&self) -> Result<Capabilities, DriverError> {
        self.inner.capabilities().await
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        if self.luck.message(self.inner.name(), &self.recorder).await == Fate::Lost {
            return pending().await;
        }
        self.inner.read_back().await
    }

    async fn apply(&self, stamp: Stamp, changes: &[SwitchChange]) -> Result<(), DriverError> {
        let fate = self.luck.message(self.inner.name(), &self.recorder).await;
        if let Some(first) = changes.first().filter(|_| fate == Fate::Refused) {
            let (switch, change) = (self.inner.name().to_owned(), first.to_string());
            return Err(DriverError::Refused { switch, change, problem: "simulated".to_owned() });
        }
        let before = self.inner.truth();
        self.inner.apply(stamp, changes).await?;
        for (name, state) in &self.inner.truth().ports {
            if before.ports.get(name) == Some(state) {
                continue;
            }
            sleep(Duration::from_millis(DELAYS.port_ms)).await;
            if let Some(link) = self.links.get(name) {
                self.recorder.add(port_change(*link, state));
            }
        }
        if fate == Fate::Lost {
            return pending().await;
        }
        Ok(())
    }

    async fn words(&self, changes: &[SwitchChange]) -> Result<Vec<String>, DriverError> {
        self.inner.words(changes).await
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        self.inner.counters().await
    }
}

/// A host with its present plan.
#[derive(Debug)]
pub struct TimedHost {
    number: usize,
    /// Simulated link on which the host sends.
    uplink: LinkId,
    luck: Luck,
    plan: Mutex<HostPlan>,
}

impl TimedHost {
    #[must_use]
    pub fn new(number: usize, uplink: LinkId, rng: Rng) -> Self {
        let plan = Mutex::new(HostPlan::default());
        Self { number, uplink, luck: Luck::new(rng, DELAYS.host_ms), plan }
    }

    fn plan(&self) -> MutexGuard<'_, HostPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hosts that apply plans after a delay, and record their states.
#[derive(Debug)]
pub struct TimedHosts {
    /// Hosts by name.
    hosts: BTreeMap<String, TimedHost>,
    /// Names of the tenants, in the order of their numbers in the simulation.
    tenants: Vec<String>,
    recorder: Arc<Recorder>,
}

impl TimedHosts {
    #[must_use]
    pub fn new(
        hosts: BTreeMap<String, TimedHost>,
        tenants: Vec<String>,
        recorder: Arc<Recorder>,
    ) -> Self {
        Self { hosts, tenants, recorder }
    }

    /// Replaces a host's plan, and records what changed.
    fn follow(&self, name: &str, host: &TimedHost, plan: HostPlan) -> Result<(), HostError> {
        let mut has = host.plan();
        if plan.stamp < has.stamp {
            let (has, told) = (has.stamp, plan.stamp);
            return Err(HostError::Fenced { host: name.to_owned(), has, told });
        }
        if plan.tenants != has.tenants {
            let number = |t: &HostTenant| self.tenants.iter().position(|name| *name == t.name);
            let terms = |t: &HostTenant| {
                Some((number(t)?, Terms { dscp: t.dscp, limit_permille: limited(t) }))
            };
            let terms = plan.tenants.iter().filter_map(terms).collect();
            self.recorder.add(Change::Host { host: host.number, terms });
        }
        if let Some(state) = plan.uplinks.values().next().filter(|_| plan.uplinks != has.uplinks) {
            self.recorder.add(port_change(host.uplink, state));
        }
        *has = plan;
        Ok(())
    }
}

/// Returns the limit of a tenant's VMs on a host, in thousandths of their guarantees. `None` if the
/// VMs have no limit.
fn limited(tenant: &HostTenant) -> Option<u32> {
    (tenant.dscp == 0 || tenant.limited).then(|| tenant.headroom_permille.max(1_000))
}

#[async_trait]
impl Hosts for TimedHosts {
    async fn tell(&self, name: &str, plan: HostPlan) -> Result<(), HostError> {
        let Some(host) = self.hosts.get(name) else {
            return Err(HostError::Away(name.to_owned()));
        };
        let fate = host.luck.message(name, &self.recorder).await;
        if fate == Fate::Refused {
            let problem = "simulated refusal".to_owned();
            return Err(HostError::Failed { host: name.to_owned(), problem });
        }
        self.follow(name, host, plan)?;
        if fate == Fate::Lost {
            return pending().await;
        }
        Ok(())
    }

    fn connected(&self, host: &str) -> bool {
        self.hosts.contains_key(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_with_a_code_point_has_no_limit_and_others_have_their_spare_factor() {
        let tenant = |dscp, headroom_permille| HostTenant {
            dscp,
            headroom_permille,
            ..HostTenant::default()
        };
        assert_eq!(limited(&tenant(8, 1_063)), None);
        assert_eq!(limited(&tenant(0, 1_063)), Some(1_063));
        assert_eq!(limited(&tenant(0, 0)), Some(1_000));
    }

    #[test]
    fn delays_stay_in_their_range_and_only_the_named_element_fails() {
        let luck = Luck::new(Rng::new(1), (5, 40));
        let troubles = Troubles { refused_ppm: 500_000, lost_ppm: 500_000, only: Some("rack-0") };
        let mut fates = Vec::new();
        for _ in 0..100 {
            let (delay, fate) = luck.draw("rack-0", troubles);
            assert!((5..=40).contains(&delay.as_millis()));
            fates.push(fate);
            assert_eq!(luck.draw("rack-1", troubles).1, Fate::Answered);
        }
        for fate in [Fate::Answered, Fate::Refused, Fate::Lost] {
            assert!(fates.contains(&fate), "{fate:?}");
        }
    }
}
