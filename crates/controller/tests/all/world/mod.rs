//! Two racks of simulated switches and hosts with an auditor. For every code point that a host
//! marks with, each port of the tenant's tree must have a queue that no other tenant uses.

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

/// Servers of a rack.
pub const RACK: u32 = 5;
/// Queues of a port, three of them dedicated.
pub const QUEUES: u8 = 4;

/// Two racks below one core.
pub fn topology() -> Topology {
    let tier = |fan_out, rate| Tier { fan_out, uplinks: 1, rate: BitsPerSecond(rate) };
    let tiers = vec![tier(RACK, 1_000_000_000), tier(2, 1_000_000_000)];
    Regular { slots: 10, tiers }.build().unwrap()
}

/// An empty fabric over [`topology`].
pub fn fabric(mode: Mode) -> Fabric {
    let settings =
        Settings { queues: QUEUES, hold: 0, drain: Nanos(1_000_000), ..Settings::new(mode) };
    let policy = Policy { queues: QUEUES.into(), ..Policy::default() };
    Fabric::new(topology(), 0, policy, settings).unwrap()
}

/// Hosts that apply plans.
#[derive(Debug, Default)]
pub struct FakeHosts {
    pub away: Mutex<BTreeSet<String>>,
    pub fails: Mutex<BTreeSet<String>>,
    pub plans: Mutex<BTreeMap<String, HostPlan>>,
    pub auditor: Mutex<Option<Arc<Auditor>>>,
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
        {
            let mut plans = self.plans.lock().unwrap();
            let has = plans.get(host).map(|plan| plan.stamp).unwrap_or_default();
            if plan.stamp < has {
                let (host, told) = (host.to_owned(), plan.stamp);
                return Err(HostError::Fenced { host, has, told });
            }
            plans.insert(host.to_owned(), plan);
        }
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

/// Checks the queues that packets meet.
#[derive(Debug)]
pub struct Auditor {
    topology: Topology,
    switches: BTreeMap<NodeId, Arc<SimSwitch>>,
    pub audits: Mutex<u64>,
    /// Violations. A panic would end a task of the crew, not the test.
    wrong: Mutex<Vec<String>>,
}

impl Auditor {
    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    /// Checks that every marked tenant has one queue on each switch port between its marking hosts,
    /// and that no other tenant has the same queue.
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
                    // The port leads down to some of the hosts. Packets of the other hosts pass
                    // through it.
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

/// A switch that is audited after every change.
#[derive(Debug)]
struct Audited {
    inner: Arc<SimSwitch>,
    auditor: Auditing,
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
    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        self.inner.read_back().await
    }
    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        let done = self.inner.apply(stamp, changes).await;
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

/// The simulated environment of a controller.
#[derive(Debug)]
pub struct World {
    pub hosts: Arc<FakeHosts>,
    pub switches: BTreeMap<String, Arc<SimSwitch>>,
    pub auditor: Arc<Auditor>,
    audited: Auditing,
    pub mode: Mode,
}

impl World {
    pub fn new(mode: Mode) -> Self {
        let topology = topology();
        let can = Capabilities {
            queues: QUEUES,
            // With one queue per switch and tenant, as many classes as queues suffice.
            classes: if mode == Mode::PerEgressMap { ONE_STEP } else { QUEUES },
            weights: (1, 100),
            remap: true,
            fixed_map: BTreeMap::new(),
            map_per_port: true,
        };
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
        let hosts = Arc::new(FakeHosts::default());
        *hosts.auditor.lock().unwrap() = Some(Arc::clone(&auditor));
        let audited = Some((Arc::clone(&auditor), Arc::clone(&hosts)));
        Self { hosts, switches, auditor, audited: Arc::new(Mutex::new(audited)), mode }
    }

    /// The crew of a controller in this world.
    pub fn crew(&self) -> Crew {
        let topology = topology();
        let mut switches = BTreeMap::new();
        let empty = fabric(self.mode);
        for (name, switch) in &self.switches {
            let node = topology.find(name).unwrap();
            let inner = Arc::clone(switch);
            let driver = Arc::new(Audited { inner, auditor: Arc::clone(&self.audited) });
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

    /// A controller that leads in this world.
    pub async fn leader(&self, store: Arc<dyn Store>, who: &str) -> (Leader, LeaseId) {
        let settings = LeaderSettings { verify_every: 1, ..LeaderSettings::default() };
        self.leader_with(store, who, settings).await
    }

    /// A controller that leads in this world, with these settings.
    pub async fn leader_with(
        &self,
        store: Arc<dyn Store>,
        who: &str,
        settings: LeaderSettings,
    ) -> (Leader, LeaseId) {
        let lease = store.lease(Duration::from_secs(10)).await.unwrap();
        let leadership = store.campaign(LEADER, who, lease).await.unwrap();
        let crew = self.crew();
        let leader = Leader::take_over(fabric(self.mode), crew, store, leadership, settings);
        (leader.await.unwrap(), lease)
    }

    pub fn fault(&self, switch: &str, faults: Faults) {
        self.switches[switch].set_faults(faults);
    }

    /// Returns the code point with which a host marks a tenant. `None` if the host does not have
    /// the tenant.
    pub fn mark(&self, host: &str, tenant: &str) -> Option<u8> {
        let plans = self.hosts.plans.lock().unwrap();
        plans.get(host)?.tenants.iter().find(|t| t.name == tenant).map(|t| t.dscp)
    }

    /// Code points with which hosts mark each tenant.
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

/// A store in a file of its own.
pub async fn store(directory: &Path) -> Arc<dyn Store> {
    Arc::new(Embedded::open(&directory.join("controller.redb")).await.unwrap())
}

/// A directory that is removed after the test.
#[derive(Debug)]
pub struct Folder(pub std::path::PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tenant of `vms` VMs, one per server. Ten VMs are divided equally between the racks.
pub fn tenant(name: &str, vms: u32, mbit: u64) -> TenantSpec {
    let rate = mbit * 1_000_000;
    TenantSpec {
        name: name.to_owned(),
        classes: vec![ClassRecord { vms, send: rate, recv: rate }],
        spread: vec![SpreadRecord { layer: 0, most_vms: Some(1), least_domains: None }],
        ..TenantSpec::default()
    }
}

/// Usage in which each of these tenants sends and receives this many Mbit/s on each server.
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
