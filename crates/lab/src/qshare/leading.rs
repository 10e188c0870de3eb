//! The fabric's real controller in the simulated testbed.
//!
//! # Problem
//!
//! A simulation that only asks the binding algorithm for its decision shows an ideal fabric. In a
//! real fabric, weights are whole numbers, plans have steps, and switches and hosts have delays and
//! failures.
//!
//! # Approach
//!
//! [`Leading`] runs the controller's own [`Leader`], with the same code for scores, binding, plans,
//! their execution, roll-backs and repairs as in production. Only the store ([`Memory`]), the
//! switches and the hosts ([`super::elements`]) are simulated. The leader runs in a tokio runtime
//! with a paused clock, and the clock follows the simulated time. At the end of an interval, the
//! leader gets the usage that the hosts measured, and runs until it has executed its plan. The
//! recorded states of ports and hosts are the timeline of the interval for the flow simulator.
//!
//! Before the simulation starts, the leader takes over the stored tenants, and runs one interval in
//! which nobody sends. Elements do not fail before the simulation starts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use penstock_controller::carry_out::{Crew, Interface, Switch};
use penstock_controller::fabric_state::{Fabric, Usage, Used};
use penstock_controller::hosts::Hosts;
use penstock_controller::intent::{LEADER, TENANTS, to_bytes};
use penstock_controller::leader::{IntervalReport, Leader, Settings as LeaderSettings};
use penstock_controller::southbound::{Capabilities, ONE_STEP, PortInfo, SimSwitch};
use penstock_controller::store::{Store, Transaction, Write};
use penstock_fabric::queue_binding::{Mode, Port, Settings};
use penstock_fabric::rate_alloc::RateSettings;
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::{NodeId, Topology};
use penstock_sim::Rng;
use penstock_sim::fabric::{
    Change, Controller, HostUsage, PairLimits, QueueControl, System, TenantSpec, Timeline,
};
use penstock_units::Nanos;
use tokio::runtime::{Builder, Runtime};

use super::elements::{Recorder, TimedHost, TimedHosts, TimedSwitch, Troubles, place};
use super::store::Memory;
use super::testbed::{GBIT, QUEUES};
use super::tree;

/// Time limit for the answer of a switch or host, which is the controller's default.
const LIMIT: Duration = Duration::from_secs(2);
/// Number of the random number generator of the elements, besides those of tenants and flows.
const ELEMENTS: u64 = u64::MAX - 1;

/// Properties of the simulated switches and hosts.
#[derive(Debug, Clone, Copy)]
pub struct Plant {
    /// Rule by which the switches map code points to queues.
    pub mode: Mode,
    pub troubles: Troubles,
    /// Seed of the delays and failures.
    pub seed: u64,
}

/// What the controller did in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    pub intervals: usize,
    /// Number of tenants that got their own queues.
    pub promoted: usize,
    /// Number of intervals in which a plan was rolled back.
    pub taken_back: usize,
    /// Number of switches and hosts that did not apply their changes.
    pub failed: usize,
    /// Longest time that an interval's work took.
    pub longest: Duration,
}

impl Done {
    fn add(&mut self, report: &IntervalReport) {
        self.intervals += 1;
        self.promoted += report.promoted;
        self.taken_back += usize::from(report.taken_back);
        self.failed += report.failed;
        self.longest = self.longest.max(report.took);
    }
}

/// Controller of the simulated testbed.
#[derive(Debug)]
pub struct Leading {
    runtime: Runtime,
    leader: Leader,
    recorder: Arc<Recorder>,
    /// Names of the tenants, in the order of their numbers in the simulation.
    tenants: Vec<String>,
    start: Vec<Change>,
    done: Arc<Mutex<Done>>,
}

impl Leading {
    /// Creates a controller with tenants whose VMs are on given hosts.
    ///
    /// # Errors
    /// Returns an error if the tenants do not fit into the testbed.
    pub fn new(tenants: &[TenantSpec], plant: Plant) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let names: Vec<String> = (0..tenants.len()).map(|at| format!("tenant-{at}")).collect();
        let (leader, recorder) = runtime.block_on(lead(tenants, &names, plant))?;
        // The last state of each port and host is the state at the start.
        let latest: BTreeMap<_, _> =
            recorder.take().into_iter().map(|(_, change)| (place(&change), change)).collect();
        let start = latest.into_values().collect();
        Ok(Self { runtime, leader, recorder, tenants: names, start, done: Arc::default() })
    }

    /// Returns a view of what the controller has done so far, which each interval updates.
    #[must_use]
    pub fn done(&self) -> Arc<Mutex<Done>> {
        Arc::clone(&self.done)
    }

    /// Returns the measurements of all hosts in the controller's form. The number of a host is the
    /// number of its server.
    fn by_server(&self, usage: &[Vec<HostUsage>]) -> Usage {
        let topology = self.leader.fabric().topology();
        let mut all: Usage = topology.layer(0).map(|server| (server, Vec::new())).collect();
        for (name, hosts) in self.tenants.iter().zip(usage) {
            for host in hosts.iter().filter(|host| host.sent.0 + host.received.0 > 0) {
                let node = NodeId(u32::try_from(host.host).unwrap_or(u32::MAX));
                let (sent, received) = (host.sent, host.received);
                let used = Used { tenant: name.clone(), sent, received };
                all.entry(node).or_default().push(used);
            }
        }
        all
    }
}

impl Controller for Leading {
    fn start(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.start)
    }

    fn interval(&mut self, now: Nanos, usage: &[Vec<HostUsage>]) -> Timeline {
        let usage = self.by_server(usage);
        let Self { runtime, leader, recorder, done, .. } = self;
        let (report, end) = runtime.block_on(async {
            tokio::time::sleep_until(recorder.at(now)).await;
            let report = leader.interval(&usage).await;
            (report, recorder.now())
        });
        let report = report.expect("a store in memory accepts the writes of its only leader");
        done.lock().unwrap_or_else(PoisonError::into_inner).add(&report);
        Timeline { changes: recorder.take(), end }
    }
}

/// Creates QShare with a control interval, and with the fabric's real controller in front of the
/// switches and hosts of `plant`. If `shared` is true, tenants in the shared queue have rate
/// allocation. If `shared` is false, the limits of the controller apply to these tenants. Also
/// returns a view of what the controller does during the run.
///
/// # Errors
/// Returns an error if the tenants do not fit into the testbed.
pub fn qshare(
    tenants: &[TenantSpec],
    interval: Nanos,
    shared: bool,
    plant: Plant,
) -> anyhow::Result<(System, Arc<Mutex<Done>>)> {
    let limits = PairLimits {
        rates: RateSettings::shared_queue(GBIT),
        partition: RateSettings::shared_queue(GBIT).period,
        slack: 100_000,
        forget: Nanos(0),
    };
    let controller = Box::new(Leading::new(tenants, plant)?);
    let done = controller.done();
    let shared = shared.then_some(limits);
    Ok((System::QShare(QueueControl { interval, controller, shared }), done))
}

/// Starts a leader with the given tenants, and runs an interval in which nobody sends.
async fn lead(
    tenants: &[TenantSpec],
    names: &[String],
    plant: Plant,
) -> anyhow::Result<(Leader, Arc<Recorder>)> {
    let topology = tree::topology()?;
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    for (name, tenant) in names.iter().zip(tenants) {
        let record = tree::record(&topology, name, tenant)?;
        let (key, value) = (format!("{TENANTS}{name}"), to_bytes(&record));
        let put = Write::Put { key, value, lease: None };
        store.commit(Transaction { compare: Vec::new(), writes: vec![put] }).await?;
    }
    let recorder = Arc::new(Recorder::starting_now());
    let settings = Settings { queues: QUEUES, ..Settings::new(plant.mode) };
    let policy = Policy { queues: QUEUES.into(), ..Policy::default() };
    let fabric = Fabric::new(topology, 0, policy, settings)?;
    let crew = crew(&fabric, names, plant, &recorder);
    let lease = store.lease(Duration::from_secs(3_600)).await?;
    let leadership = store.campaign(LEADER, "lab", lease).await?;
    let mut leader =
        Leader::take_over(fabric, crew, store, leadership, LeaderSettings::default()).await?;
    let placed = leader.fabric().tenants().count();
    ensure!(placed == names.len(), "only {placed} of {} tenants fit", names.len());
    let servers: Vec<NodeId> = leader.fabric().topology().layer(0).collect();
    for server in servers {
        let name = leader.fabric().topology().name(server).to_string();
        leader.host_came(&name);
    }
    leader.interval(&Usage::new()).await.context("the first interval")?;
    recorder.begin(plant.troubles);
    Ok((leader, recorder))
}

/// Returns what the switches of a fabric can do that has the given kind of map.
fn capabilities(mode: Mode) -> Capabilities {
    // If a tenant has one queue on a switch, as many classes as queues suffice.
    let classes = if mode == Mode::PerEgressMap { ONE_STEP } else { QUEUES };
    let map_per_port = mode != Mode::StaticMap;
    Capabilities { map_per_port, ..Capabilities::new(QUEUES, classes) }
}

/// Creates all switches and hosts. Each element has its own random number generator.
fn crew(fabric: &Fabric, tenants: &[String], plant: Plant, recorder: &Arc<Recorder>) -> Crew {
    let topology = fabric.topology();
    let rng = Rng::new(plant.seed).fork(ELEMENTS);
    let luck = |node: NodeId| rng.fork(u64::from(node.0) + 1);
    let mut switches = BTreeMap::new();
    for node in (1..topology.layers()).flat_map(|layer| topology.layer(layer)) {
        let (driver, ports) = switch(fabric, node, plant.mode, luck(node), recorder);
        switches.insert(node, Switch { driver: Arc::new(driver), ports, canary: false });
    }
    let mut hosts = BTreeMap::new();
    for (number, server) in topology.layer(0).enumerate() {
        let mut ports = fabric.ports_of(server).into_iter();
        if let Some(uplink) = ports.find_map(|port| tree::link(topology, port)) {
            let name = topology.name(server).to_string();
            hosts.insert(name, TimedHost::new(number, uplink, luck(server)));
        }
    }
    let hosts = TimedHosts::new(hosts, tenants.to_vec(), Arc::clone(recorder));
    let hosts: Arc<dyn Hosts> = Arc::new(hosts);
    Crew::new(switches, hosts, LIMIT)
}

/// Ports of a switch in the tree, each with its interfaces on the switch.
type Ports = BTreeMap<Port, Interface>;

/// Creates a switch. A port has the name of the node at the other end of its link.
fn switch(
    fabric: &Fabric,
    node: NodeId,
    mode: Mode,
    rng: Rng,
    recorder: &Arc<Recorder>,
) -> (TimedSwitch, Ports) {
    let topology: &Topology = fabric.topology();
    let (mut ports, mut infos, mut links) = (Ports::new(), Vec::new(), BTreeMap::new());
    for port in fabric.ports_of(node) {
        let far = if port.up { topology.parent(port.link) } else { topology.child(port.link) };
        let name = topology.name(far).to_string();
        infos.push(PortInfo { name: name.clone(), rate: topology.rate(port.link) });
        links.extend(tree::link(topology, port).map(|link| (name.clone(), link)));
        ports.insert(port, Interface { names: vec![name] });
    }
    let name = topology.name(node).to_string();
    let inner = SimSwitch::new(&name, capabilities(mode), &infos);
    (TimedSwitch::new(inner, links, rng, Arc::clone(recorder)), ports)
}

#[cfg(test)]
mod tests {
    use penstock_sim::fabric::Terms;
    use penstock_units::BitsPerSecond;

    use super::super::testbed::tenants;
    use super::*;

    const MODES: [Mode; 3] = [Mode::StaticMap, Mode::PerPortMap, Mode::PerEgressMap];

    fn plant(mode: Mode, troubles: Troubles) -> Plant {
        Plant { mode, troubles, seed: 7 }
    }

    /// Records the code points of a tenant on its hosts, as `changes` set them.
    fn marks(into: &mut BTreeMap<usize, u8>, tenant: usize, changes: &[Change]) {
        for change in changes {
            let Change::Host { host, terms } = change else { continue };
            for (_, Terms { dscp, .. }) in terms.iter().filter(|(t, _)| *t == tenant) {
                into.insert(*host, *dscp);
            }
        }
    }

    /// Runs five intervals in which only the last three tenants send, each more than its guarantee
    /// on each of its hosts. Returns the timelines, and the last code points of each of the three
    /// tenants on its hosts.
    fn busy_at_the_end(plant: Plant) -> (Vec<Timeline>, Vec<BTreeMap<usize, u8>>) {
        let tenants = tenants(1);
        let mut leading = Leading::new(&tenants, plant).unwrap();
        let mut marked = vec![BTreeMap::new(); 3];
        let start = leading.start();
        let mut timelines = Vec::new();
        for second in 1..=5 {
            let usage = |(number, tenant): (usize, &TenantSpec)| {
                let rate = BitsPerSecond(if number < 7 { 0 } else { 2 * tenant.hose.0 });
                let host = |host: usize| HostUsage { host, sent: rate, received: rate };
                let hosts = (0..10).filter(|at| tenant.vms.contains(at));
                hosts.map(host).collect::<Vec<HostUsage>>()
            };
            let usage: Vec<_> = tenants.iter().enumerate().map(usage).collect();
            timelines.push(leading.interval(Nanos::from_secs(4 * second), &usage));
        }
        for (at, marked) in marked.iter_mut().enumerate() {
            marks(marked, 7 + at, &start);
            for timeline in &timelines {
                let changes: Vec<_> = timeline.changes.iter().map(|(_, c)| c.clone()).collect();
                marks(marked, 7 + at, &changes);
            }
        }
        (timelines, marked)
    }

    #[test]
    fn tenants_with_demand_get_queues_by_a_plan_that_takes_time() {
        for mode in MODES {
            let (timelines, marked) = busy_at_the_end(plant(mode, Troubles::default()));
            for (at, marked) in marked.iter().enumerate() {
                assert!(marked.values().all(|dscp| *dscp != 0), "{mode:?}, {}: {marked:?}", 7 + at);
            }
            let longest = timelines.iter().enumerate().map(|(at, timeline)| {
                let began = Nanos::from_secs(4 * (u64::try_from(at).unwrap() + 1));
                for (time, _) in &timeline.changes {
                    assert!(*time >= began && *time <= timeline.end, "{mode:?}: {time:?}");
                }
                timeline.end.saturating_sub(began)
            });
            // The plan waits once for packets with old code points.
            assert!(longest.max() > Some(Nanos::from_millis(100)), "{mode:?}");
            let ports = timelines.iter().flat_map(|t| &t.changes);
            let weights = ports.filter_map(|(_, change)| match change {
                Change::Port { weights, .. } => Some(weights),
                Change::Host { .. } => None,
            });
            assert!(weights.flatten().all(|weight| *weight <= 100), "{mode:?}");
        }
    }

    #[test]
    fn a_switch_that_refuses_leaves_tenants_in_the_shared_queue() {
        for mode in MODES {
            let refuses = Troubles { refused_ppm: 1_000_000, only: Some("rack-0"), lost_ppm: 0 };
            let (_, marked) = busy_at_the_end(plant(mode, refuses));
            for (at, marked) in marked.iter().enumerate() {
                assert!(marked.values().all(|dscp| *dscp == 0), "{mode:?}, {}: {marked:?}", 7 + at);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_timelines_with_failures() {
        let troubles = Troubles { refused_ppm: 100_000, lost_ppm: 100_000, only: None };
        for mode in MODES {
            let run = |seed| {
                let (timelines, _) = busy_at_the_end(Plant { seed, ..plant(mode, troubles) });
                timelines
            };
            assert!(run(1) == run(1), "{mode:?}");
            assert!(run(1) != run(2), "{mode:?}");
        }
    }

    #[test]
    fn tenants_that_do_not_fit_are_refused() {
        let big = TenantSpec { vms: vec![0, 5], hose: BitsPerSecond(600_000_000) };
        let error = Leading::new(&[big.clone(), big], plant(Mode::StaticMap, Troubles::default()));
        assert!(error.unwrap_err().to_string().contains("only 1 of 2 tenants fit"));
    }
}
