//! A fabric of simulated switches and host agents, with the leader of the real controller.
//!
//! # Approach
//!
//! Switches are simulated ([`sim_switches`]). A simulated agent is a session in the controller's
//! registry. A simulated agent reports and answers like a connected agent. The registry of agents,
//! the leader and the store are parts of the real controller. Agents with real connections can
//! replace simulated agents ([`Bed::leave_to_others`]).
//!
//! # Load
//!
//! A tenant is active or idle. Before each interval, a tenant changes between active and idle with
//! a probability of 1 in [`TURNS`]. In each interval every host reports a random number of sent
//! bytes for each of its active tenants. The reported traffic is at most twice the guarantee of the
//! tenant's VMs on that host. Hosts report nothing about idle tenants.
//!
//! # Scarcity
//!
//! Queues change their tenants only where a port has more tenants than queues. By QShare's Table I,
//! about nine of ten tenants have their own queues in any interval. [`CAP`] and [`TENANT_QUEUES`]
//! give a fabric of racks with 18 servers about the same scarcity.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use penstock_controller::Stamp;
use penstock_controller::agents::Registry;
use penstock_controller::carry_out::Crew;
use penstock_controller::fabric_state::{Fabric, Usage};
use penstock_controller::hosts::Hosts;
use penstock_controller::intent::{
    ClassRecord, LEADER, SpreadRecord, TENANTS, TenantSpec, to_bytes,
};
use penstock_controller::leader::{IntervalReport, Leader, Settings as LeaderSettings};
use penstock_controller::store::{Embedded, Store, Transaction, Write};
use penstock_controller::wire::v1::controller_message::Message;
use penstock_controller::wire::v1::{Applied, Report, TenantUsage};
use penstock_fabric::queue_binding::{Mode, Settings};
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::{NodeId, Topology};
use penstock_sim::Rng;

use super::qshare_datacenter::tree;
use super::sim_switches::{connected, sim_switches};
use penstock_guest::clock;

/// Maximum number of VMs of a tenant on a server.
const CAP: u32 = 14;
/// Number of queues of a port that tenants may own. The port has two more: the shared queue, and a
/// queue for traffic that the controller does not control.
pub(super) const TENANT_QUEUES: u8 = 6;
const RESERVED_QUEUES: u8 = 2;
const MEAN_VMS: f64 = 49.0;
const RATES_MBPS: [u64; 4] = [10, 20, 50, 100];
/// Before an interval, a tenant changes between active and idle with a probability of 1 in `TURNS`.
const TURNS: u64 = 10;
/// Number of tenants that one transaction writes to the store.
const BATCH: usize = 100;
/// Time limit for the answer of a switch or host to one message.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Bed {
    pub(super) leader: Leader,
    registry: Arc<Registry>,
    hosts: Vec<Host>,
    activity: Activity,
    reports: u64,
    /// Time that the leader needed to read the store and to configure the switches.
    pub(super) took_over: Duration,
}

/// A server with a simulated agent.
struct Host {
    name: String,
    session: u64,
    tenants: Guaranteed,
}

/// Tenants on a server, each with the guaranteed sending rate of its VMs on this server, in bit/s.
pub(super) type Guaranteed = Vec<(String, u64)>;

/// Tenants that are active or idle.
struct Activity {
    tenants: Vec<String>,
    idle: BTreeSet<String>,
}

impl Activity {
    /// Draws which tenants of `fabric` are active at first: half of them, on average.
    fn new(fabric: &Fabric, rng: &mut Rng) -> Self {
        let tenants: Vec<String> = fabric.tenants().map(|(name, ..)| name.to_owned()).collect();
        let idle = tenants.iter().filter(|_| rng.below(2) == 0).cloned().collect();
        Self { tenants, idle }
    }

    /// Switches some tenants between active and idle.
    fn turn(&mut self, rng: &mut Rng) {
        for tenant in &self.tenants {
            if rng.below(TURNS) == 0 && !self.idle.remove(tenant) {
                self.idle.insert(tenant.clone());
            }
        }
    }

    /// Draws the traffic of one second of a server's active tenants.
    fn usage(&self, tenants: &[(String, u64)], rng: &mut Rng) -> Vec<TenantUsage> {
        let active = tenants.iter().filter(|(tenant, _)| !self.idle.contains(tenant));
        let used = |(tenant, guarantee): &(String, u64)| {
            let sent_bytes = rng.below(guarantee / 4 + 1);
            TenantUsage { name: tenant.clone(), sent_bytes, received_bytes: sent_bytes / 2 }
        };
        active.map(used).collect()
    }
}

pub(super) fn fabric(k: u32) -> anyhow::Result<Fabric> {
    over(tree(k, (k / 2, k / 2))?.build()?)
}

fn over(topology: Topology) -> anyhow::Result<Fabric> {
    let queues = TENANT_QUEUES + RESERVED_QUEUES;
    let policy = Policy {
        queues: queues.into(),
        reserved_queues: RESERVED_QUEUES.into(),
        ..Policy::default()
    };
    // Of the reserved queues, binding uses only the shared queue.
    let settings = Settings { queues: TENANT_QUEUES + 1, ..Settings::new(Mode::PerPortMap) };
    Ok(Fabric::new(topology, 0, policy, settings)?)
}

fn tenants_on(fabric: &Fabric, server: NodeId) -> Guaranteed {
    let here = |(slot, all): (_, ClassRecord)| (fabric.name(slot).to_owned(), all.send);
    fabric.tenants_on(server).map(here).collect()
}

pub(super) fn tenant(number: usize, rng: &mut Rng) -> anyhow::Result<TenantSpec> {
    let vms = (-MEAN_VMS * (1.0 - rng.unit()).ln()).round().max(2.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2,000")]
    let vms = vms as u32;
    let rate = RATES_MBPS[usize::try_from(rng.below(RATES_MBPS.len() as u64))?] * 1_000_000;
    Ok(TenantSpec {
        name: format!("tenant-{number}"),
        classes: vec![ClassRecord { vms, send: rate, recv: rate }],
        spread: vec![SpreadRecord { layer: 0, most_vms: Some(CAP), least_domains: None }],
        ..TenantSpec::default()
    })
}

/// Places the tenants and writes them to the store. A controller reads the tenants from the store
/// when it becomes the leader.
async fn stored(k: u32, tenants: usize, store: &Embedded, rng: &mut Rng) -> anyhow::Result<()> {
    let mut fabric = fabric(k)?;
    let mut writes = Vec::new();
    for number in 0..tenants {
        let record = fabric.add(tenant(number, rng)?)?;
        let key = format!("{TENANTS}{}", record.spec.name);
        writes.push(Write::Put { key, value: to_bytes(&record), lease: None });
    }
    for batch in writes.chunks(BATCH) {
        let writes = batch.to_vec();
        store.commit(Transaction { compare: Vec::new(), writes }).await?;
    }
    Ok(())
}

impl Bed {
    /// Builds a fat-tree of `k`-port switches with `tenants` tenants, and connects the agents of
    /// all servers.
    pub(super) async fn new(
        k: u32,
        tenants: usize,
        folder: &Path,
        rng: &mut Rng,
    ) -> anyhow::Result<Self> {
        let store = Embedded::open(&folder.join("controller.redb")).await?;
        stored(k, tenants, &store, rng).await?;
        let fabric = fabric(k)?;
        let topology: Topology = fabric.topology().clone();
        let registry = Arc::new(Registry::new(Box::new(topology)));
        let hosts: Arc<dyn Hosts> = registry.clone();
        let crew = Crew::new(connected(&fabric, &sim_switches(&fabric)), hosts, LIMIT);
        let store: Arc<dyn Store> = Arc::new(store);
        let lease = store.lease(Duration::from_secs(3_600)).await?;
        let leadership = store.campaign(LEADER, "lab", lease).await?;
        let settings = LeaderSettings { verify_every: 0, ..LeaderSettings::default() };
        let begin = clock::now();
        let leader = Leader::take_over(fabric, crew, store, leadership, settings).await?;
        let took_over = clock::now() - begin;
        let activity = Activity::new(leader.fabric(), rng);
        let (hosts, reports) = (Vec::new(), 0);
        let mut bed = Self { leader, registry, hosts, activity, reports, took_over };
        bed.agents()?;
        Ok(bed)
    }

    /// Connects the agents of all servers.
    fn agents(&mut self) -> anyhow::Result<()> {
        let fabric = self.leader.fabric();
        for server in fabric.topology().layer(0) {
            let name = fabric.topology().name(server).to_string();
            let (session, mut messages) = self.registry.begin(&name, Stamp::default())?;
            let tenants = tenants_on(fabric, server);
            self.hosts.push(Host { name: name.clone(), session, tenants });
            let registry = Arc::clone(&self.registry);
            tokio::spawn(async move {
                while let Some(message) = messages.recv().await {
                    let Some(Message::Plan(plan)) = message.message else { continue };
                    let done = Applied { stamp: plan.stamp, problem: String::new(), has: None };
                    if registry.applied(&name, session, done).is_err() {
                        return;
                    }
                }
            });
        }
        self.welcome();
        Ok(())
    }

    /// Notifies the leader of hosts with a new session. The leader sends its state to hosts with a
    /// new session in the next interval.
    pub(super) fn welcome(&mut self) {
        for host in self.registry.take_arrivals() {
            self.leader.host_came(&host);
        }
    }

    /// Returns the registry with the sessions of all agents.
    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Stops the simulated agents of the first `count` servers, so that other agents can replace
    /// them. Returns the names and tenants of the servers whose simulated agents stopped.
    pub(super) fn leave_to_others(&mut self, count: usize) -> Vec<(String, Guaranteed)> {
        let left = self.hosts.drain(..count.min(self.hosts.len()));
        left.map(|host| (host.name, host.tenants)).collect()
    }

    pub(super) fn agents_count(&self) -> usize {
        self.registry.connected_count()
    }

    /// Switches some tenants between active and idle. Every simulated host reports the traffic of
    /// one second.
    pub(super) fn report(&mut self, rng: &mut Rng) -> anyhow::Result<()> {
        self.reports += 1;
        self.activity.turn(rng);
        for host in &self.hosts {
            let tenants = self.activity.usage(&host.tenants, rng);
            let report = Report { number: self.reports, millis: 1_000, tenants };
            self.registry.report(&host.name, host.session, report)?;
        }
        Ok(())
    }

    /// Closes an interval. The function collects the hosts' reports and passes the reports to the
    /// controller's leader. The second returned value is the number of hosts in `asked` that have
    /// reported.
    pub(super) async fn close(
        &mut self,
        asked: &BTreeSet<String>,
    ) -> anyhow::Result<(IntervalReport, usize)> {
        let (mut usage, mut heard) = (Usage::new(), 0);
        for (host, used) in self.registry.take_usage() {
            heard += usize::from(asked.contains(&host));
            let node = self.leader.fabric().topology().find(&host);
            usage.insert(node.context("a host of the topology")?, used);
        }
        Ok((self.leader.interval(&usage).await?, heard))
    }
}

#[cfg(test)]
mod tests {
    use penstock_controller::fabric_state::Used;
    use penstock_fabric::topology::{Regular, Tier};
    use penstock_units::BitsPerSecond;

    use super::*;
    use crate::evidence::stats::{count, percentile};

    /// A ninth of the racks and of the tenants of the fabric with k = 36.
    const RACKS: u32 = 72;
    const TENANTS: usize = 2_000;
    const SERVERS_OF_RACK: u32 = 18;

    /// Racks as in the fabric with k = 36, below as many switches as a rack has uplinks there.
    fn racks() -> anyhow::Result<Fabric> {
        let tier = |fan_out, uplinks, gbits: u64| Tier {
            fan_out,
            uplinks,
            rate: BitsPerSecond(gbits * 1_000_000_000),
        };
        let tiers = vec![tier(SERVERS_OF_RACK, 1, 10), tier(RACKS, 18, 40)];
        over(Regular { slots: 100, tiers }.build()?)
    }

    fn usage(hosts: &[(NodeId, Guaranteed)], activity: &Activity, rng: &mut Rng) -> Usage {
        let used = |of: TenantUsage| Used {
            tenant: of.name,
            sent: BitsPerSecond(8 * of.sent_bytes),
            received: BitsPerSecond(8 * of.received_bytes),
        };
        let mut usage = Usage::new();
        for (server, tenants) in hosts {
            let of_host = activity.usage(tenants, rng);
            usage.insert(*server, of_host.into_iter().map(used).collect());
        }
        usage
    }

    #[test]
    fn a_hundredth_of_the_tenants_changes_queues_in_an_interval_and_most_have_queues()
    -> anyhow::Result<()> {
        let (mut fabric, mut rng) = (racks()?, Rng::new(1));
        for number in 0..TENANTS {
            fabric.add(tenant(number, &mut rng)?)?;
        }
        let mut activity = Activity::new(&fabric, &mut rng);
        let servers = fabric.topology().layer(0);
        let hosts: Vec<(NodeId, Guaranteed)> =
            servers.map(|server| (server, tenants_on(&fabric, server))).collect();
        let mut changed = Vec::new();
        for _ in 0..=20 {
            activity.turn(&mut rng);
            fabric.follow(&usage(&hosts, &activity, &mut rng));
            let pass = fabric.rebind(|_| true, false);
            changed.push(count(pass.promoted.len() + pass.demoted.len()));
        }
        let median = percentile(&changed[1..], 50.0);
        assert!(median >= 0.01 * count(TENANTS), "{changed:?}");
        let shares = |slot| !fabric.links(slot).is_empty() && fabric.dscp(slot) == 0;
        let sharing = fabric.tenants().filter(|(_, slot, _)| shares(*slot)).count();
        let percent = 100.0 * count(sharing) / count(TENANTS);
        assert!((3.0..15.0).contains(&percent), "{percent} % share queue 0");
        Ok(())
    }
}
