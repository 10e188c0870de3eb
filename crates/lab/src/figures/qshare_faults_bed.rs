//! Two controllers, ten hosts and three switches in simulated time, which can fail.
//!
//! # Approach
//!
//! The controllers are the real ones: their service with lease, campaign and takeover, the registry
//! of agents, the leader and the embedded store. Both controllers share one store. Simulated are
//! the switches ([`SimSwitch`]) and the hosts' agents, which are tasks. The tokio runtime has a
//! paused clock, so a minute of simulated time takes a fraction of a second.
//!
//! A simulated agent keeps a session with the controller that leads, reports once a second, and
//! applies a plan after a random delay. An agent whose session ended tries again after a second.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use penstock_controller::Stamp;
use penstock_controller::agents::{Leading, Registry};
use penstock_controller::carry_out::Crew;
use penstock_controller::fabric_state::Fabric;
use penstock_controller::hosts::{HostPlan, Hosts};
use penstock_controller::intent::{ClassRecord, SpreadRecord, TENANTS, TenantSpec, to_bytes};
use penstock_controller::leader::Settings as LeaderSettings;
use penstock_controller::service::{Controller, Setup};
use penstock_controller::southbound::{Faults, PortState, SimSwitch};
use penstock_controller::store::{Embedded, Store, Transaction, Write};
use penstock_controller::wire::v1::controller_message::Message;
use penstock_controller::wire::v1::{Applied, ControllerMessage, Report, TenantUsage};
use penstock_fabric::queue_binding::{Mode, Settings};
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::{NodeId, Regular, Tier};
use penstock_sim::Rng;
use penstock_units::BitsPerSecond;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::sim_switches::{connected, far, sim_switches};

/// Length of an interval of the controllers.
pub(super) const INTERVAL: Duration = Duration::from_secs(4);
/// Number of tenants. Seven tenants can have their own queues on a port.
const TENANTS_COUNT: usize = 10;
/// Guarantee of a VM. Each tenant has a VM on each of the ten hosts, so the guarantees of all
/// tenants take 60 % of the links between the racks.
const VM_BPS: u64 = 12_000_000;
/// Number of servers in a rack.
const RACK: u32 = 5;
const GBIT: BitsPerSecond = BitsPerSecond(1_000_000_000);
/// Time after which a controller notices that an agent no longer answers, as with the default
/// limits of a session.
const PING: Duration = Duration::from_secs(8);
/// Pause before an agent tries to connect again, and time between two reports.
const SECOND: Duration = Duration::from_secs(1);
/// Time limit for the answer of a switch or host to one message, as in the default configuration.
const LIMIT: Duration = Duration::from_secs(2);
/// Time between two changes of demand.
const DEMAND_EVERY: Duration = Duration::from_secs(7);

/// A simulated agent and the plan that its host carries out.
#[derive(Debug)]
struct Host {
    name: String,
    plan: Mutex<HostPlan>,
    silent: watch::Sender<bool>,
}

#[derive(Debug)]
struct Member {
    controller: Arc<Controller>,
    registry: Arc<Registry>,
    alive: AtomicBool,
}

/// State that the tasks of the hosts share.
#[derive(Debug)]
struct Shared {
    hosts: Vec<Host>,
    members: Vec<Member>,
    /// Rate at which each tenant's VM on a host sends and receives, in bit/s.
    demand: Mutex<Vec<u64>>,
}

/// The simulated fabric with its controllers.
pub(super) struct Bed {
    /// Fabric with the tenants, but without a binding.
    fabric: Fabric,
    switches: BTreeMap<NodeId, Arc<SimSwitch>>,
    shared: Arc<Shared>,
    running: Vec<JoinHandle<()>>,
    /// Keeps the controllers running.
    _stop: watch::Sender<bool>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name(tenant: usize) -> String {
    format!("t{tenant}")
}

fn fabric() -> anyhow::Result<Fabric> {
    let tier = |fan_out| Tier { fan_out, uplinks: 1, rate: GBIT };
    let slots = u32::try_from(TENANTS_COUNT)?;
    let topology = Regular { slots, tiers: vec![tier(RACK), tier(2)] }.build()?;
    Ok(Fabric::new(topology, 0, Policy::default(), Settings::new(Mode::PerPortMap))?)
}

fn tenant(number: usize) -> TenantSpec {
    let class = ClassRecord { vms: 2 * RACK, send: VM_BPS, recv: VM_BPS };
    TenantSpec {
        name: name(number),
        classes: vec![class],
        spread: vec![SpreadRecord { layer: 0, most_vms: Some(1), least_domains: None }],
        ..TenantSpec::default()
    }
}

/// Creates the switches, each with a delay of its own.
fn switches(fabric: &Fabric, rng: &mut Rng) -> BTreeMap<NodeId, Arc<SimSwitch>> {
    let all = sim_switches(fabric);
    for switch in all.values() {
        let slow = Duration::from_millis(5 + rng.below(15));
        switch.set_faults(Faults { slow, ..Faults::default() });
    }
    all
}

fn member(
    number: usize,
    switches: &BTreeMap<NodeId, Arc<SimSwitch>>,
    store: &Arc<dyn Store>,
) -> anyhow::Result<Member> {
    let registry = Arc::new(Registry::new(Box::new(fabric()?.topology().clone())));
    let (hosts, switches) = (Arc::clone(&registry), switches.clone());
    let make = move || -> Result<(Fabric, Crew), String> {
        let fabric = fabric().map_err(|error| error.to_string())?;
        let hosts: Arc<dyn Hosts> = hosts.clone();
        let crew = Crew::new(connected(&fabric, &switches), hosts, LIMIT);
        Ok((fabric, crew))
    };
    let controller = Controller::new(Setup {
        name: format!("controller-{number}"),
        advertise: format!("controller-{number}"),
        interval: INTERVAL,
        leader: LeaderSettings::default(),
        store: Arc::clone(store),
        hosts: Arc::clone(&registry),
        make: Box::new(make),
    });
    Ok(Member { controller, registry, alive: AtomicBool::new(true) })
}

impl Shared {
    /// Returns the registry of the controller that leads.
    fn leading(&self) -> Option<Arc<Registry>> {
        let leads = |member: &&Member| {
            let here = matches!(*member.controller.leading().borrow(), Leading::Here(_));
            here && member.alive.load(Ordering::Relaxed)
        };
        self.members.iter().find(leads).map(|member| Arc::clone(&member.registry))
    }

    /// Returns what a host reports each second.
    fn report(&self, number: u64) -> Report {
        let demand = lock(&self.demand).clone();
        let active = demand.iter().enumerate().filter(|(_, rate)| **rate > 0);
        let used = |(tenant, rate): (usize, &u64)| {
            let bytes = rate / 8;
            TenantUsage { name: name(tenant), sent_bytes: bytes, received_bytes: bytes }
        };
        Report { number, millis: 1_000, tenants: active.map(used).collect() }
    }
}

impl Host {
    /// Applies a plan, unless the host has a later plan. Returns the answer to the controller.
    fn apply(&self, plan: HostPlan) -> Applied {
        let mut present = lock(&self.plan);
        let (stamp, has) = (plan.stamp, present.stamp);
        let refused = has > stamp;
        if !refused {
            *present = plan;
        }
        let has = refused.then(|| has.into());
        Applied { stamp: Some(stamp.into()), problem: String::new(), has }
    }
}

/// Runs the agent of a host.
async fn agent(shared: Arc<Shared>, number: usize, mut rng: Rng) {
    let host = &shared.hosts[number];
    loop {
        let silent = *host.silent.borrow();
        let registry = shared.leading().filter(|_| !silent);
        let has = lock(&host.plan).stamp;
        let begun = registry.and_then(|registry| {
            let (session, messages) = registry.begin(&host.name, has).ok()?;
            Some((registry, session, messages))
        });
        if let Some((registry, session, messages)) = begun {
            serve(&shared, host, &registry, session, messages, &mut rng).await;
            registry.end(&host.name, session);
        }
        sleep(SECOND).await;
    }
}

/// Serves a session until it ends. If the host becomes silent, the session stays until the
/// controller would notice the silence.
async fn serve(
    shared: &Shared,
    host: &Host,
    registry: &Registry,
    session: u64,
    mut messages: mpsc::Receiver<ControllerMessage>,
    rng: &mut Rng,
) {
    let mut silent = host.silent.subscribe();
    let mut reports = tokio::time::interval(SECOND);
    let mut number = 0;
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some(ControllerMessage { message }) = message else { return };
                let Some(Message::Plan(plan)) = message else { continue };
                let Ok(plan) = HostPlan::try_from(plan) else { return };
                sleep(Duration::from_millis(2 + rng.below(20))).await;
                if registry.applied(&host.name, session, host.apply(plan)).is_err() {
                    return;
                }
            }
            _ = reports.tick() => {
                number += 1;
                if registry.report(&host.name, session, shared.report(number)).is_err() {
                    return;
                }
            }
            () = async { drop(silent.wait_for(|silent| *silent).await) } => {
                sleep(PING).await;
                return;
            }
        }
    }
}

/// Changes the demand of some tenants from time to time.
async fn change_demand(shared: Arc<Shared>, mut rng: Rng) {
    loop {
        for rate in lock(&shared.demand).iter_mut() {
            if rng.below(3) == 0 {
                *rate = if rng.below(2) == 0 { 0 } else { VM_BPS + rng.below(VM_BPS) };
            }
        }
        sleep(DEMAND_EVERY).await;
    }
}

impl Bed {
    /// Starts two controllers and all hosts, with the store in a file of the directory `folder`.
    pub(super) async fn new(folder: &Path, rng: &mut Rng) -> anyhow::Result<Self> {
        let mut placed = fabric()?;
        let file = folder.join(format!("{}.redb", rng.next_u64()));
        let store: Arc<dyn Store> = Arc::new(Embedded::open(&file).await?);
        for number in 0..TENANTS_COUNT {
            let record = placed.add(tenant(number))?;
            let key = format!("{TENANTS}{}", name(number));
            let put = Write::Put { key, value: to_bytes(&record), lease: None };
            store.commit(Transaction { compare: Vec::new(), writes: vec![put] }).await?;
        }
        let switches = switches(&placed, rng);
        let topology = placed.topology();
        let host = |server| Host {
            name: topology.name(server).to_string(),
            plan: Mutex::default(),
            silent: watch::Sender::new(false),
        };
        let hosts = topology.layer(0).map(host).collect();
        let members = (0..2).map(|number| member(number, &switches, &store));
        let members = members.collect::<anyhow::Result<Vec<_>>>()?;
        let demand = Mutex::new(vec![0; TENANTS_COUNT]);
        let shared = Arc::new(Shared { hosts, members, demand });
        let (stop, stopped) = watch::channel(false);
        let mut running = Vec::new();
        for member in &shared.members {
            running.push(tokio::spawn(Arc::clone(&member.controller).run(stopped.clone())));
            // The first controller stands first, so that it leads.
            sleep(SECOND).await;
        }
        for number in 0..shared.hosts.len() {
            let rng = Rng::new(rng.next_u64());
            running.push(tokio::spawn(agent(Arc::clone(&shared), number, rng)));
        }
        let demand = change_demand(Arc::clone(&shared), Rng::new(rng.next_u64()));
        running.push(tokio::spawn(demand));
        Ok(Self { fabric: placed, switches, shared, running, _stop: stop })
    }

    pub(super) fn hosts(&self) -> usize {
        self.shared.hosts.len()
    }

    /// Returns all switches.
    pub(super) fn switches(&self) -> Vec<NodeId> {
        self.switches.keys().copied().collect()
    }

    /// Kills the first controller, as a power failure does. Its lease remains until it ends.
    pub(super) fn kill(&self) {
        let member = &self.shared.members[0];
        self.running[0].abort();
        member.alive.store(false, Ordering::Relaxed);
        member.registry.end_all();
    }

    /// Makes hosts silent, or makes them answer again.
    pub(super) fn silence(&self, hosts: &BTreeSet<usize>, silent: bool) {
        for number in hosts {
            self.shared.hosts[*number].silent.send_replace(silent);
        }
    }

    /// Sets whether a switch answers. A switch that answers again has just restarted, without
    /// weights and maps.
    pub(super) fn power(&self, node: NodeId, on: bool) {
        let Some(switch) = self.switches.get(&node) else { return };
        if on {
            switch.restart();
        }
        let slow = Duration::from_millis(10);
        switch.set_faults(Faults { unreachable: !on, slow, ..Faults::default() });
    }

    /// Returns true if a controller leads, all hosts carry out a plan of this controller, and all
    /// switches and hosts are up to date.
    pub(super) async fn is_current(&self, member: usize) -> anyhow::Result<bool> {
        let controller = &self.shared.members[member].controller;
        let status = controller.view("status", "").await.context("a controller has a status")?;
        if status["leads"] != true {
            return Ok(false);
        }
        let stamp: Stamp = serde_json::from_value(status["stamp"].clone())?;
        let late = status["out_of_date"].as_array().context("a list of nodes")?;
        let of_it = |host: &Host| lock(&host.plan).stamp.epoch == stamp.epoch;
        let connected = status["hosts_connected"] == self.hosts();
        Ok(late.is_empty() && connected && self.shared.hosts.iter().all(of_it))
    }

    /// Returns the code points with which hosts mark each tenant.
    fn marks(&self) -> BTreeMap<String, BTreeSet<u8>> {
        let mut all: BTreeMap<String, BTreeSet<u8>> = BTreeMap::new();
        for host in &self.shared.hosts {
            for tenant in &lock(&host.plan).tenants {
                all.entry(tenant.name.clone()).or_default().insert(tenant.dscp);
            }
        }
        all
    }

    /// Returns the state of all switches and the stamps of all hosts, to see whether it changes.
    pub(super) fn state(&self) -> (Vec<BTreeMap<String, PortState>>, Vec<Stamp>) {
        let switches = self.switches.values().map(|switch| switch.truth().ports).collect();
        let hosts = self.shared.hosts.iter().map(|host| lock(&host.plan).stamp).collect();
        (switches, hosts)
    }

    /// Returns the smallest share of a guarantee that any port of `nodes` leaves to a queue: the
    /// part of the link's rate by the queue's weight, divided by the guarantees of the tenants in
    /// the queue. 0 if a port does not map the code point with which a tenant's hosts mark. A
    /// tenant whose hosts mark with different code points is in the middle of a plan and does not
    /// count.
    pub(super) fn kept(&self, nodes: &[NodeId]) -> f64 {
        let marks = self.marks();
        let mark = |tenant: &str| {
            let mut all = marks.get(tenant)?.iter();
            all.next().copied().filter(|_| all.next().is_none())
        };
        let mut least = f64::INFINITY;
        for node in nodes {
            let Some(switch) = self.switches.get(node) else { continue };
            let states = switch.truth().ports;
            for port in self.fabric.ports_of(*node) {
                let mut needs = Vec::new();
                for (tenant, slot, _) in self.fabric.tenants() {
                    let found = self.fabric.links(slot).iter().find(|(link, _)| *link == port.link);
                    let need = found.map(|(_, need)| if port.up { need.up } else { need.down });
                    needs.extend(mark(tenant).zip(need));
                }
                let state = states.get(&far(&self.fabric, port)).cloned().unwrap_or_default();
                least = least.min(share(&state, &needs));
            }
        }
        least
    }
}

/// Returns the smallest share of a guarantee on a port with a rate of 1 Gbit/s. `needs` has the
/// code point and the guarantee of each tenant.
fn share(state: &PortState, needs: &[(u8, BitsPerSecond)]) -> f64 {
    let mut reserved: BTreeMap<u8, u64> = BTreeMap::new();
    for (dscp, need) in needs {
        let queue = state.map.get(dscp).copied().unwrap_or(0);
        if *dscp != 0 && queue == 0 {
            return 0.0;
        }
        *reserved.entry(queue).or_default() += need.0;
    }
    let total: u64 = state.weights.iter().map(|weight| u64::from(*weight)).sum();
    let of = |(queue, need): (u8, u64)| {
        let weight = state.weights.get(usize::from(queue)).copied().unwrap_or(0);
        let parts = u128::from(GBIT.0) * u128::from(weight) * 1_000_000;
        let below = u128::from(total) * u128::from(need);
        let millionths = parts.checked_div(below).unwrap_or(0);
        f64::from(u32::try_from(millionths).unwrap_or(u32::MAX)) / 1e6
    };
    reserved.into_iter().filter(|(_, need)| *need > 0).map(of).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_keeps_what_its_weights_give_and_nothing_for_an_unmapped_code_point() {
        let map = BTreeMap::from([(10, 1)]);
        let state = PortState { weights: vec![3, 1], map };
        let need = |dscp, mbit: u64| (dscp, BitsPerSecond(mbit * 1_000_000));
        // Queue 0 gets 750 Mbit/s, and queue 1 gets 250 Mbit/s.
        let least = share(&state, &[need(0, 500), need(0, 100), need(10, 500)]);
        assert!((least - 0.5).abs() < 1e-6, "{least}");
        let least = share(&state, &[need(0, 500), need(10, 200)]);
        assert!((least - 1.25).abs() < 1e-6, "{least}");
        assert!(share(&state, &[need(11, 1)]) < 1e-6);
        let fresh = PortState::default();
        assert!(share(&fresh, &[need(0, 1)]) < 1e-6, "a switch without weights keeps nothing");
    }
}
