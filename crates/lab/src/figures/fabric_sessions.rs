//! Real host agents, over gRPC, in the registry of a [`Bed`].
//!
//! # Approach
//!
//! The controller, its port and the agents without connections share the caller's runtime. The
//! agents with connections run on `away`, as if on other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
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
use penstock_guest::clock;

/// Time limit until all agents are connected, and until all have ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// File descriptors that each session needs if its agent and the controller share this process, and
/// descriptors for everything else.
const DESCRIPTORS: (u64, u64) = (3, 256);

/// Number of agents that connect, and the length of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) sessions: usize,
    /// Time between two reports of an agent.
    pub(super) report: Duration,
    /// Time between two intervals.
    pub(super) every: Duration,
    pub(super) intervals: usize,
}

/// Results of the run.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Seconds until all agents were connected.
    pub(super) all_there_s: f64,
    /// Seconds of the interval that sends all of the agents their state.
    pub(super) told_s: f64,
    /// For each further interval: its seconds, the CPU seconds of the controller's thread, and two
    /// percentages of hosts heard. The first is of all hosts, the second of those over gRPC.
    pub(super) intervals: Vec<(f64, f64, f64, f64)>,
    /// Elements that did not apply their plan.
    pub(super) failed: usize,
    /// Sessions that began and ended again.
    pub(super) lost: usize,
    pub(super) plans_done: usize,
}

/// A switch whose tenants have sent half of their guarantees since `begin`.
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
    let wanted = u64::try_from(sessions)? * each + others;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    anyhow::ensure!(wanted <= hard, "{wanted} descriptors are needed and {hard} allowed; raise it");
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard)?)
}

/// Creates agents of `hosts` that connect to `endpoint`.
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

/// Replaces some of the bed's agents with agents over gRPC, and closes intervals with both kinds.
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

/// Number of `hosts` that have applied a plan of this leader.
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
        anyhow::ensure!(!done.taken_back, "a plan was taken back: {done:?}");
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
