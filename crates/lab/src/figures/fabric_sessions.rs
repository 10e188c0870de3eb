//! Real host agents that connect to the registry of a [`Bed`] over gRPC.
//!
//! # Approach
//!
//! The controller, its gRPC server and the simulated agents use the caller's runtime. The real
//! agents use a separate Tokio runtime, with the handle `away`. The real agents' runtime `away`
//! runs on other processors than the controller, as if the agents were on other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use penstock_controller::Stamp;
use penstock_controller::agent::{Agent, AgentSettings, Carried, HostSide, SideError};
use penstock_controller::agents::{AgentServer, Identity, Leading, Limits, Registry, serve};
use penstock_controller::hosts::HostPlan;
use penstock_sim::Rng;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::fabric_bed::{Bed, Guaranteed};
use crate::evidence::stats::count;
use crate::rig::allow_descriptors;
use penstock_guest::clock;

/// Time limit until all agents are connected, and time limit until a stopped agent has ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of file descriptors that a session needs if agent and controller are in one process. The
/// second number of the pair is the number of file descriptors that the rest of the process needs.
const DESCRIPTORS: (u64, u64) = (3, 256);

/// Number of agents, their report interval, and length of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) sessions: usize,
    /// Time between two reports of an agent.
    pub(super) report: Duration,
    /// Time between the ends of two control intervals.
    pub(super) every: Duration,
    pub(super) intervals: usize,
}

/// Results of the run with real agents.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Time until all agents were connected, in seconds.
    pub(super) all_there_s: f64,
    /// Duration of the first interval with all agents, in seconds. In the first interval with all
    /// agents, the controller sends its state to each agent.
    pub(super) told_s: f64,
    /// Duration, CPU time and report percentages of each interval after the first, in the order of
    /// this list:
    ///
    /// - the duration of the interval in seconds;
    /// - the CPU time of the controller's thread in seconds;
    /// - the percentage of all hosts that reported in the interval;
    /// - the percentage of the hosts with real agents that reported in the interval.
    pub(super) intervals: Vec<(f64, f64, f64, f64)>,
    /// Number of switches and hosts that failed to apply their plan.
    pub(super) failed: usize,
    /// Number of sessions that ended and had to be opened again.
    pub(super) lost: usize,
    pub(super) plans_done: usize,
}

/// The agent's interface to a simulated virtual switch. Each tenant on the simulated switch has
/// sent at half of its guarantee since `begin`.
#[derive(Debug)]
struct Side {
    begin: std::time::Instant,
    tenants: Guaranteed,
}

#[async_trait]
impl HostSide for Side {
    async fn usage(&self) -> Result<BTreeMap<String, Carried>, SideError> {
        let millis = u64::try_from((clock::now() - self.begin).as_millis()).unwrap_or(u64::MAX);
        let carried = |rate: u64| {
            let sent = (rate / 16_000).saturating_mul(millis);
            Carried { sent, received: sent }
        };
        Ok(self.tenants.iter().map(|(name, rate)| (name.clone(), carried(*rate))).collect())
    }

    async fn apply(&self, _: &HostPlan) -> Result<(), SideError> {
        Ok(())
    }
}

fn descriptors(sessions: usize) -> anyhow::Result<()> {
    let (each, others) = DESCRIPTORS;
    allow_descriptors(u64::try_from(sessions)? * each + others)
}

/// Starts agents for `hosts` that connect to `endpoint`.
fn agents(
    hosts: Vec<(String, Guaranteed)>,
    endpoint: &str,
    folder: &Path,
    away: &Handle,
    stopped: &watch::Receiver<bool>,
) -> anyhow::Result<JoinSet<anyhow::Result<()>>> {
    let mut tasks = JoinSet::new();
    let begin = clock::now();
    for (host, tenants) in hosts {
        let plan = folder.join(format!("{host}.plan"));
        let settings = AgentSettings::new(&host, vec![endpoint.to_owned()], None, &plan);
        let agent = Agent::new(settings, Arc::new(Side { begin, tenants }))?;
        let mut told = stopped.clone();
        let run = async move {
            agent.run(async { drop(told.wait_for(|stop| *stop).await) }).await;
            Ok(())
        };
        tasks.spawn_on(run, away);
    }
    Ok(tasks)
}

/// Replaces some simulated agents with real agents over gRPC, and closes intervals with real and
/// simulated agents.
pub(super) async fn sessions(
    bed: &mut Bed,
    wanted: Wanted,
    (folder, away): (&Path, &Handle),
    rng: &mut Rng,
    cpu: impl Fn() -> anyhow::Result<f64>,
) -> anyhow::Result<Sessions> {
    descriptors(wanted.sessions)?;
    let registry = Arc::clone(bed.registry());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let endpoint = listener.local_addr()?.to_string();
    let leads = Leading::Here(Stamp { epoch: bed.leader.stamp().epoch, generation: 0 });
    let (_leads, leading) = watch::channel(leads);
    let millis = u64::try_from(wanted.report.as_millis())?;
    let server = AgentServer::new(Arc::clone(&registry), leading, Identity::Trusted, millis);
    let (stop, stopped) = watch::channel(false);
    let mut told = stopped.clone();
    let served = tokio::spawn(async move {
        let stop = async { drop(told.wait_for(|stop| *stop).await) };
        serve(listener, server, None, Limits::default(), stop).await
    });
    let hosts = bed.leave_to_others(wanted.sessions);
    let asked: BTreeSet<String> = hosts.iter().map(|(name, _)| name.clone()).collect();
    let began = registry.counts();
    let begin = clock::now();
    let mut tasks = agents(hosts, &endpoint, folder, away, &stopped)?;
    let due = began.sessions + u64::try_from(wanted.sessions)?;
    let mut counts = registry.watch_counts();
    let there = counts.wait_for(|counts| counts.sessions >= due);
    timeout(PATIENCE, there).await.context("not all agents connected")??;
    let mut found =
        Sessions { all_there_s: (clock::now() - begin).as_secs_f64(), ..Sessions::default() };
    follow(bed, wanted, &asked, rng, cpu, &mut found).await?;
    found.lost = usize::try_from(registry.counts().sessions - due)?;
    found.plans_done = done_by(&registry, &asked, bed.leader.stamp().epoch);
    stop.send_replace(true);
    while let Some(ended) = timeout(PATIENCE, tasks.join_next()).await? {
        ended??;
    }
    timeout(PATIENCE, served).await???;
    Ok(found)
}

/// Returns the number of `hosts` that have applied a plan of the leader with the epoch `epoch`.
fn done_by(registry: &Registry, hosts: &BTreeSet<String>, epoch: u64) -> usize {
    let done = |host: &&String| {
        registry.has(host).is_some_and(|has| has.epoch == epoch && has.generation > 0)
    };
    hosts.iter().filter(done).count()
}

async fn follow(
    bed: &mut Bed,
    wanted: Wanted,
    asked: &BTreeSet<String>,
    rng: &mut Rng,
    cpu: impl Fn() -> anyhow::Result<f64>,
    found: &mut Sessions,
) -> anyhow::Result<()> {
    let all = bed.agents_count();
    let mut ticks = interval(wanted.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0..=wanted.intervals {
        ticks.tick().await;
        bed.welcome();
        bed.report(rng)?;
        let (begin, before) = (clock::now(), cpu()?);
        let (done, heard) = bed.close(asked).await?;
        let (took, cpu) = ((clock::now() - begin).as_secs_f64(), cpu()? - before);
        anyhow::ensure!(!done.taken_back, "an interval failed: its plan was rolled back: {done:?}");
        found.failed += done.failed;
        if number == 0 {
            found.told_s = took;
            continue;
        }
        let share = |heard: usize, of: usize| 100.0 * count(heard) / count(of);
        let heard = (share(done.hosts_heard, all), share(heard, asked.len()));
        found.intervals.push((took, cpu, heard.0, heard.1));
    }
    Ok(())
}
