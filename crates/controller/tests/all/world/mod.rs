//! Simulates racks of switches and hosts, and audits their state. Hosts mark a tenant's packets
//! with a code point. Each port of the tenant's tree must map the tenant's code point to a queue
//! that no other tenant uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use penstock_controller::Stamp;
use penstock_controller::carry_out::{Crew, Interface, Switch};
use penstock_controller::fabric_state::{Fabric, Usage, Used};
use penstock_controller::hosts::{HostError, HostPlan, Hosts};
use penstock_controller::intent::{ClassRecord, LEADER, SpreadRecord, TenantSpec};
use penstock_controller::leader::{Leader, Settings as LeaderSettings};
use penstock_controller::southbound::{
    Capabilities, Change, DriverError, PortInfo, QueueCounters, SwitchDriver, SwitchState,
};
use penstock_controller::southbound::{Faults, ONE_STEP, SimSwitch};
use penstock_controller::store::{Embedded, LeaseId, Store};
use penstock_fabric::queue_binding::{Mode, Settings};
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::{NodeId, Regular, Tier, Topology};
use penstock_units::{BitsPerSecond, Nanos};

/// Number of servers in each rack.
pub const RACK: u32 = 5;
/// Number of queues of a port. Tenants share queue 0, and each other queue is for a single tenant.
pub const QUEUES: u8 = 4;

/// Returns a topology of `racks` racks below one core switch.
pub fn topology(racks: u32) -> Topology {
    let tier = |fan_out, rate| Tier { fan_out, uplinks: 1, rate: BitsPerSecond(rate) };
    let tiers = vec![tier(RACK, 1_000_000_000), tier(racks, 1_000_000_000)];
    Regular { slots: 10, tiers }.build().unwrap()
}

/// Returns a fabric without tenants over [`topology`].
pub fn fabric(mode: Mode, racks: u32) -> Fabric {
    let settings =
        Settings { queues: QUEUES, hold: 0, drain: Nanos::from_millis(8), ..Settings::new(mode) };
    let policy = Policy { queues: QUEUES.into(), ..Policy::default() };
    Fabric::new(topology(racks), 0, policy, settings).unwrap()
}

/// Message of the controller that a host or switch has executed.
#[derive(Clone, Debug)]
pub enum Message {
    Host(String, HostPlan),
    /// The controller read the switch.
    Read(String),
    Apply(String, Vec<Change>),
}

/// All messages of the controller, in the order in which hosts and switches executed them.
#[derive(Debug, Default)]
pub struct Messages {
    all: Mutex<Vec<Message>>,
    /// Number of changes of hosts and switches before the first one that gets no answer.
    left: Mutex<Option<usize>>,
    pub stalled: tokio::sync::Notify,
}

impl Messages {
    /// Returns the messages since the last call.
    pub fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *self.all.lock().unwrap())
    }

    /// Answers `count` further changes of hosts and switches. The next change after them notifies
    /// [`Self::stalled`] and is never executed. With `None`, all changes are answered.
    pub fn answer(&self, count: Option<usize>) {
        *self.left.lock().unwrap() = count;
    }

    fn add(&self, message: Message) {
        self.all.lock().unwrap().push(message);
    }

    async fn pass(&self) {
        let stalls = match &mut *self.left.lock().unwrap() {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        if stalls {
            self.stalled.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

/// Simulated hosts that apply the controller's plans.
#[derive(Debug, Default)]
pub struct FakeHosts {
    pub away: Mutex<BTreeSet<String>>,
    pub fails: Mutex<BTreeSet<String>>,
    /// Hosts that refuse the next plan with a new code point of a tenant, and then no other plan.
    pub refuse_once: Mutex<BTreeSet<String>>,
    pub plans: Mutex<BTreeMap<String, HostPlan>>,
    pub auditor: Mutex<Option<Arc<Auditor>>>,
    messages: Arc<Messages>,
}

impl FakeHosts {
    /// Returns true if a plan has a code point of a tenant that the host does not use yet.
    fn marks_anew(&self, host: &str, plan: &HostPlan) -> bool {
        let plans = self.plans.lock().unwrap();
        let marks = |plan: &HostPlan| -> BTreeSet<(String, u8)> {
            plan.tenants.iter().map(|t| (t.name.clone(), t.dscp)).filter(|t| t.1 != 0).collect()
        };
        let has = plans.get(host).map(marks).unwrap_or_default();
        !marks(plan).is_subset(&has)
    }
}

#[async_trait]
impl Hosts for FakeHosts {
    async fn tell(&self, host: &str, plan: HostPlan) -> Result<(), HostError> {
        if self.away.lock().unwrap().contains(host) {
            return Err(HostError::Away(host.to_owned()));
        }
        if self.fails.lock().unwrap().contains(host) {
            return Err(HostError::Failed { host: host.to_owned(), problem: "cannot".into() });
        }
        if self.marks_anew(host, &plan) && self.refuse_once.lock().unwrap().remove(host) {
            return Err(HostError::Failed { host: host.to_owned(), problem: "not now".into() });
        }
        self.messages.pass().await;
        {
            let mut plans = self.plans.lock().unwrap();
            let has = plans.get(host).map(|plan| plan.stamp).unwrap_or_default();
            if plan.stamp < has {
                let (host, told) = (host.to_owned(), plan.stamp);
                return Err(HostError::Fenced { host, has, told });
            }
            plans.insert(host.to_owned(), plan.clone());
        }
        self.messages.add(Message::Host(host.to_owned(), plan));
        let auditor = self.auditor.lock().unwrap().clone();
        if let Some(auditor) = auditor {
            auditor.audit(self);
        }
        Ok(())
    }

    fn connected(&self, host: &str) -> bool {
        !self.away.lock().unwrap().contains(host)
    }
}

/// Auditor that checks the queues on the paths of marked packets.
#[derive(Debug)]
pub struct Auditor {
    topology: Topology,
    switches: BTreeMap<NodeId, Arc<SimSwitch>>,
    pub audits: Mutex<u64>,
    /// Violations so far. The auditor collects violations, because a panic would end only a task of
    /// the controller and not the test.
    wrong: Mutex<Vec<String>>,
}

impl Auditor {
    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    /// Checks that every marked tenant has a queue on each switch port between its marking hosts,
    /// and that no other tenant has that queue.
    pub fn audit(&self, hosts: &FakeHosts) {
        *self.audits.lock().unwrap() += 1;
        let mut marked: BTreeMap<(String, u8), BTreeSet<NodeId>> = BTreeMap::new();
        for (host, plan) in &*hosts.plans.lock().unwrap() {
            let node = self.topology.find(host).unwrap();
            for tenant in plan.tenants.iter().filter(|tenant| tenant.dscp != 0) {
                marked.entry((tenant.name.clone(), tenant.dscp)).or_default().insert(node);
            }
        }
        let mut taken: BTreeMap<(NodeId, String, u8), String> = BTreeMap::new();
        for ((tenant, dscp), servers) in &marked {
            for (node, switch) in &self.switches {
                for (port, state) in &switch.truth().ports {
                    // The port leads down to some of the marking hosts. Packets from the other
                    // hosts pass through the port.
                    let to = self.topology.find(port).unwrap();
                    let beyond = |s: &&NodeId| self.topology.path_up(**s, to).is_some();
                    let beyond = servers.iter().filter(beyond).count();
                    let down = self.topology.layer_of(to) < self.topology.layer_of(*node);
                    if !down || beyond == 0 || beyond == servers.len() {
                        continue;
                    }
                    let queue = state.map.get(dscp).copied().unwrap_or(0);
                    if queue == 0 {
                        self.wrong(format!("{tenant}: {dscp} unmapped on {node:?} to {port}"));
                        continue;
                    }
                    let before = taken.insert((*node, port.to_string(), queue), tenant.clone());
                    if let Some(other) = before.filter(|other| other != tenant) {
                        self.wrong(format!("{tenant} and {other} share queue {queue} to {port}"));
                    }
                }
            }
        }
    }
}

type Auditing = Arc<Mutex<Option<(Arc<Auditor>, Arc<FakeHosts>)>>>;

/// Simulated switch that the auditor checks after every change.
#[derive(Debug)]
struct Audited {
    inner: Arc<SimSwitch>,
    auditor: Auditing,
    messages: Arc<Messages>,
}

#[async_trait]
impl SwitchDriver for Audited {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
    async fn capabilities(&self) -> Result<Capabilities, DriverError> {
        self.inner.capabilities().await
    }
    async fn run_id(&self) -> Result<Option<String>, DriverError> {
        self.inner.run_id().await
    }
    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        self.messages.add(Message::Read(self.name().to_owned()));
        self.inner.read_back().await
    }
    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        self.messages.pass().await;
        let done = self.inner.apply(stamp, changes).await;
        if done.is_ok() {
            self.messages.add(Message::Apply(self.name().to_owned(), changes.to_vec()));
        }
        if let Some((auditor, hosts)) = self.auditor.lock().unwrap().clone() {
            auditor.audit(&hosts);
        }
        done
    }
    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        self.inner.words(changes).await
    }
    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        self.inner.counters().await
    }
}

/// Simulated environment of a controller: topology, switches, hosts and auditor.
#[derive(Debug)]
pub struct World {
    pub hosts: Arc<FakeHosts>,
    pub switches: BTreeMap<String, Arc<SimSwitch>>,
    pub auditor: Arc<Auditor>,
    pub messages: Arc<Messages>,
    audited: Auditing,
    pub mode: Mode,
    racks: u32,
}

impl World {
    /// Creates two racks of switches and hosts.
    pub fn new(mode: Mode) -> Self {
        Self::with_racks(mode, 2)
    }

    pub fn with_racks(mode: Mode, racks: u32) -> Self {
        let topology = topology(racks);
        // If each tenant has one queue on the whole switch, as many classes as queues suffice.
        let classes = if mode == Mode::PerEgressMap { ONE_STEP } else { QUEUES };
        let can = Capabilities::new(QUEUES, classes);
        let mut switches = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        for node in (1..topology.layers()).flat_map(|layer| topology.layer(layer)) {
            let name = topology.name(node).to_string();
            let far = (topology.down(node).map(|link| topology.child(link)))
                .chain(topology.up(node).map(|link| topology.parent(link)));
            let ports: Vec<PortInfo> = far
                .map(|far| PortInfo {
                    name: topology.name(far).to_string(),
                    rate: BitsPerSecond(1_000_000_000),
                })
                .collect();
            let switch = Arc::new(SimSwitch::new(&name, can.clone(), &ports));
            switches.insert(name, Arc::clone(&switch));
            nodes.insert(node, switch);
        }
        let auditor = Arc::new(Auditor {
            topology,
            switches: nodes,
            audits: Mutex::new(0),
            wrong: Mutex::default(),
        });
        let messages = Arc::new(Messages::default());
        let hosts = FakeHosts { messages: Arc::clone(&messages), ..FakeHosts::default() };
        let hosts = Arc::new(hosts);
        *hosts.auditor.lock().unwrap() = Some(Arc::clone(&auditor));
        let audited = Some((Arc::clone(&auditor), Arc::clone(&hosts)));
        let audited = Arc::new(Mutex::new(audited));
        Self { hosts, switches, auditor, messages, audited, mode, racks }
    }

    /// Returns the drivers of the simulated switches and the connection to the simulated hosts, for
    /// a controller.
    pub fn crew(&self) -> Crew {
        let topology = topology(self.racks);
        let mut switches = BTreeMap::new();
        let empty = fabric(self.mode, self.racks);
        for (name, switch) in &self.switches {
            let node = topology.find(name).unwrap();
            let inner = Arc::clone(switch);
            let (auditor, messages) = (Arc::clone(&self.audited), Arc::clone(&self.messages));
            let driver = Arc::new(Audited { inner, auditor, messages });
            let ports = empty.ports_of(node).into_iter().map(|port| {
                let far =
                    if port.up { topology.parent(port.link) } else { topology.child(port.link) };
                (port, Interface { names: vec![topology.name(far).to_string()] })
            });
            switches.insert(node, Switch { driver, ports: ports.collect(), canary: false });
        }
        let hosts: Arc<dyn Hosts> = self.hosts.clone();
        Crew::new(switches, hosts, Duration::from_secs(1))
    }

    /// Returns a controller that leads in the simulated fabric, and compares all switches in every
    /// interval.
    pub async fn leader(&self, store: Arc<dyn Store>, who: &str) -> (Leader, LeaseId) {
        let settings = LeaderSettings { verify_every: 1, ..LeaderSettings::default() };
        self.leader_with(store, who, settings).await
    }

    /// Returns a controller that leads in the simulated fabric with the given settings.
    pub async fn leader_with(
        &self,
        store: Arc<dyn Store>,
        who: &str,
        settings: LeaderSettings,
    ) -> (Leader, LeaseId) {
        let lease = store.lease(Duration::from_secs(10)).await.unwrap();
        let leadership = store.campaign(LEADER, who, lease).await.unwrap();
        let crew = self.crew();
        let fabric = fabric(self.mode, self.racks);
        let leader = Leader::take_over(fabric, crew, store, leadership, settings);
        (leader.await.unwrap(), lease)
    }

    /// Ends the audits, for a test with a switch that loses queues of marked packets.
    pub fn end_audits(&self) {
        *self.hosts.auditor.lock().unwrap() = None;
        *self.audited.lock().unwrap() = None;
    }

    pub fn fault(&self, switch: &str, faults: Faults) {
        self.switches[switch].set_faults(faults);
    }

    /// Returns the code point with which a host marks a tenant's packets, or `None` if the host has
    /// no VM of the tenant.
    pub fn mark(&self, host: &str, tenant: &str) -> Option<u8> {
        let plans = self.hosts.plans.lock().unwrap();
        plans.get(host)?.tenants.iter().find(|t| t.name == tenant).map(|t| t.dscp)
    }

    /// Returns the code points with which hosts mark each tenant.
    pub fn marks(&self) -> BTreeMap<String, BTreeSet<u8>> {
        let mut all: BTreeMap<String, BTreeSet<u8>> = BTreeMap::new();
        for plan in self.hosts.plans.lock().unwrap().values() {
            for tenant in &plan.tenants {
                all.entry(tenant.name.clone()).or_default().insert(tenant.dscp);
            }
        }
        all
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let wrong = self.auditor.wrong.lock().unwrap();
        assert!(wrong.is_empty() || std::thread::panicking(), "{wrong:#?}");
    }
}

/// Opens an embedded store in a file below `directory`.
pub async fn store(directory: &Path) -> Arc<dyn Store> {
    Arc::new(Embedded::open(&directory.join("controller.redb")).await.unwrap())
}

/// Returns a tenant of `vms` VMs, one per server. A tenant of ten VMs gets five VMs in each of the
/// two racks.
pub fn tenant(name: &str, vms: u32, mbit: u64) -> TenantSpec {
    let rate = mbit * 1_000_000;
    TenantSpec {
        name: name.to_owned(),
        classes: vec![ClassRecord { vms, send: rate, recv: rate }],
        spread: vec![SpreadRecord { layer: 0, most_vms: Some(1), least_domains: None }],
        ..TenantSpec::default()
    }
}

/// Returns a tenant like [`tenant`], with all VMs in one rack.
pub fn within(name: &str, rack: &str, vms: u32, mbit: u64) -> TenantSpec {
    TenantSpec { within: vec![rack.to_owned()], ..tenant(name, vms, mbit) }
}

/// Adds the tenants a, b, c, d and e.
pub async fn add_five(leader: &mut Leader) {
    for name in ["a", "b", "c", "d", "e"] {
        leader.add(tenant(name, 10, 10)).await.unwrap();
    }
}

/// Returns the leader `one` with five tenants.
pub async fn five(world: &World, store: &Arc<dyn Store>) -> (Leader, LeaseId) {
    let (mut leader, lease) = world.leader(Arc::clone(store), "one").await;
    add_five(&mut leader).await;
    (leader, lease)
}

/// Runs an interval in which the tenants have the [`usage`] `rates`.
pub async fn interval(leader: &mut Leader, rates: &[(&str, u64)]) {
    let used = usage(leader.fabric(), rates);
    leader.interval(&used).await.unwrap();
}

/// Returns measurements in which each tenant of `rates` sends and receives its rate in Mbit/s on
/// each of its servers.
pub fn usage(fabric: &Fabric, rates: &[(&str, u64)]) -> Usage {
    let mut usage = Usage::new();
    for server in fabric.topology().layer(0) {
        let used = |(name, mbit): &(&str, u64)| {
            let here = fabric.servers_of(fabric.slot(name)?).any(|s| s == server);
            let rate = BitsPerSecond(mbit * 1_000_000);
            here.then(|| Used { tenant: (*name).to_owned(), sent: rate, received: rate })
        };
        usage.insert(server, rates.iter().filter_map(used).collect());
    }
    usage
}
