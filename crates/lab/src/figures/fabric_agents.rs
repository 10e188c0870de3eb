//! This figure runs one fabric controller with more than ten thousand hosts.
//!
//! # Problem
//!
//! In each interval the controller collects the measurements of all hosts and decides which tenants
//! have queues. After each decision, the controller stores the decision and notifies the affected
//! hosts. If the controller's work takes longer than an interval, queues follow the load too late.
//!
//! # Source
//!
//! QShare §V-D: an interval lasts some seconds. The QShare paper measures nothing beyond 1,024
//! servers.
//!
//! # Approach
//!
//! The figure measures times on this machine, so it has only a live mode. The real controller runs
//! with a simulated fabric:
//!
//! - A fat-tree of k = 36 with all of its links has 11,664 servers and 1,620 switches.
//! - 18,000 tenants are placed before the run. A tenant has 49 VMs on average, of 10 to 100 Mbit/s
//!   each, and at most 14 VMs on one server. The controller's leader reads the tenants from the
//!   store.
//! - A port has eight queues: six for tenants, the shared queue, and one for other traffic.
//! - The registry of agents, the leader and the store are parts of the real controller. Switches
//!   and agents are in the same process and answer immediately (`fabric_bed` describes their load).
//!
//! CPU affinity limits all threads, including the store's threads, to one processor. The duration
//! of an interval is the time from the last report until all switches and hosts have applied their
//! plans. When a queue moves to another tenant, the interval's duration includes 100 ms in which
//! the queue drains. At the start of the first interval no tenant has a queue, and every host gets
//! a plan. The first interval is called *cold*.
//!
//! In a later part of the run, 1,000 real host agents replace the simulated agents of 1,000 hosts.
//! The real agents connect over gRPC on loopback, without encryption, from threads on other
//! processors. Each real agent reports once a second. Five more intervals with real and simulated
//! agents follow, two seconds apart.
//!
//! # Comparison
//!
//! - Each interval, including the cold interval, takes less than a second, and less than a second
//!   of CPU time.
//! - The process, including switches and agents, uses less than 2 GiB of memory.
//! - In each interval at least 95 % of all hosts report, and at least 95 % of the hosts with real
//!   agents.
//! - In the whole run, no agent loses its session, and no plan fails.
//! - In the median interval, at least 1 % of the tenants get or lose queues. If fewer tenants
//!   changed their queues, the controller would be nearly idle in the intervals.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use penstock_sim::Rng;
use tokio::runtime::{Builder, Handle};

use super::fabric_bed::Bed;
use super::fabric_sessions::{Sessions, Wanted, sessions};
use super::qshare_scale::memory_gib;
use crate::evidence::stats::{count, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use penstock_guest::clock;

pub const EXPERIMENT: Experiment = Experiment {
    name: "fabric-agents",
    source: "QShare §V-D",
    about: "duration of an interval with 11,664 hosts, 1,000 of them over gRPC",
    sim: None,
    live: Some(live),
    picture,
};

const FULL: Size = Size {
    k: 36,
    // With 5,000 or with 10,000 tenants, at most 17 VMs of a tenant on a server and seven queues
    // for tenants, all tenants that wanted queues had them, and no queue changed its tenant.
    tenants: 18_000,
    intervals: 20,
    over_grpc: Wanted {
        sessions: 1_000,
        report: Duration::from_secs(1),
        every: Duration::from_secs(2),
        intervals: 5,
    },
};

struct Size {
    k: u32,
    tenants: usize,
    intervals: usize,
    over_grpc: Wanted,
}

/// Measurements of one interval of the controller.
#[derive(Debug)]
struct Closed {
    reports_s: f64,
    closed_s: f64,
    cpu_s: f64,
    decided_s: f64,
    changed: f64,
    heard_percent: f64,
}

/// Results of a run with simulated and real agents.
struct Found {
    agents: usize,
    took_over_s: f64,
    /// Measurements by interval. At the start of the first (cold) interval, no tenant has a queue.
    intervals: Vec<Closed>,
    over_grpc: Sessions,
}

fn live(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("cpu", std::env::consts::ARCH);
    let found = measure(&FULL, ctx.seed, |part, what| ctx.progress(part, what))?;
    outcome.note("agents", found.agents);
    outcome.note("tenants", FULL.tenants);
    outcome.note("took_over_s", found.took_over_s);
    report(&mut outcome, &found.intervals);
    report_sessions(&mut outcome, &found.over_grpc);
    let what = "peak memory of controller, switches and agents in one process";
    let claim = Claim::new("memory_gib", what, "GiB");
    outcome.claim(claim.below(2.0).measured(memory_gib()?));
    Ok(outcome)
}

/// Binds the calling thread to one processor until the value is dropped. Threads that the bound
/// thread starts inherit the binding. The struct contains the CPU affinity mask that the thread had
/// before the binding.
struct OneCore(CpuSet);

impl OneCore {
    fn new() -> anyhow::Result<Self> {
        let me = Pid::from_raw(0);
        let before = sched_getaffinity(me)?;
        let last = (0..CpuSet::count()).rev().find(|cpu| before.is_set(*cpu).unwrap_or(false));
        let mut one = CpuSet::new();
        one.set(last.context("no processor to run on")?)?;
        sched_setaffinity(me, &one)?;
        Ok(Self(before))
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        // This affinity was in force before, so the kernel allows it.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

fn measure(size: &Size, seed: u64, progress: impl Fn(f64, &str)) -> anyhow::Result<Found> {
    // This runtime starts first, because its threads must not inherit the affinity set below.
    let away = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let one_core = OneCore::new()?;
    let unique = format!("penstock-fabric-{}-{seed}", std::process::id());
    let folder = std::env::temp_dir().join(unique);
    std::fs::create_dir_all(&folder)?;
    let here = Builder::new_current_thread().enable_all().build()?;
    let found = here.block_on(run(size, seed, &folder, away.handle(), progress));
    drop((here, one_core));
    // Errors are ignored. The files then remain in the directory for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    found
}

async fn run(
    size: &Size,
    seed: u64,
    folder: &Path,
    away: &Handle,
    progress: impl Fn(f64, &str),
) -> anyhow::Result<Found> {
    let mut rng = Rng::new(seed);
    progress(0.0, "placing tenants");
    let mut bed = Bed::new(size.k, size.tenants, folder, &mut rng).await?;
    let (agents, took_over_s) = (bed.agents_count(), bed.took_over.as_secs_f64());
    let mut intervals = Vec::new();
    for number in 0..=size.intervals {
        progress(0.3 + 0.5 * count(number) / count(size.intervals), "intervals");
        intervals.push(interval(&mut bed, &mut rng).await?);
    }
    progress(0.8, "sessions over gRPC");
    let cpu = || cpu_seconds(UsageWho::RUSAGE_THREAD);
    let over_grpc = sessions(&mut bed, size.over_grpc, (folder, away), &mut rng, cpu).await?;
    Ok(Found { agents, took_over_s, intervals, over_grpc })
}

async fn interval(bed: &mut Bed, rng: &mut Rng) -> anyhow::Result<Closed> {
    let begin = clock::now();
    bed.report(rng)?;
    let (reported, cpu) = (clock::now(), cpu_seconds(UsageWho::RUSAGE_SELF)?);
    let (done, _) = bed.close(&std::collections::BTreeSet::new()).await?;
    let (end, cpu) = (clock::now(), cpu_seconds(UsageWho::RUSAGE_SELF)? - cpu);
    anyhow::ensure!(
        done.failed == 0 && !done.taken_back,
        "an interval failed: a switch or host did not apply its plan: {done:?}"
    );
    Ok(Closed {
        reports_s: (reported - begin).as_secs_f64(),
        closed_s: (end - reported).as_secs_f64(),
        cpu_s: cpu,
        decided_s: done.decided_in.as_secs_f64(),
        changed: count(done.promoted + done.demoted),
        heard_percent: 100.0 * count(done.hosts_heard) / count(bed.agents_count()),
    })
}

/// Returns the CPU time of this thread or process in seconds, in user and kernel mode.
fn cpu_seconds(who: UsageWho) -> anyhow::Result<f64> {
    let used = getrusage(who)?;
    let seconds = |time: TimeVal| {
        Duration::from_secs(u64::try_from(time.tv_sec()).unwrap_or(0))
            + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
    };
    Ok((seconds(used.user_time()) + seconds(used.system_time())).as_secs_f64())
}

fn report(outcome: &mut Outcome, all: &[Closed]) {
    let mut series = |name: &str, unit: &str, of: fn(&Closed) -> f64| {
        outcome.series(name, unit, all.iter().enumerate().map(|(n, one)| (count(n), of(one))));
    };
    series("reports_s", "s", |one| one.reports_s);
    series("closed_s", "s", |one| one.closed_s);
    series("cpu_s", "s", |one| one.cpu_s);
    series("decided_s", "s", |one| one.decided_s);
    series("changed", "tenants", |one| one.changed);
    series("heard_percent", "%", |one| one.heard_percent);
    let Some((cold, warm)) = all.split_first() else { return };
    let at = |percent: f64, of: fn(&Closed) -> f64| {
        percentile(&warm.iter().map(of).collect::<Vec<_>>(), percent)
    };
    let mut second = |id: &str, statement: &str, value: f64| {
        outcome.claim(Claim::new(id, statement, "s").below(1.0).measured(value));
    };
    let closed: fn(&Closed) -> f64 = |one| one.closed_s;
    let cpu: fn(&Closed) -> f64 = |one| one.cpu_s;
    second(
        "cold_interval_s",
        "duration of the first interval, in which each host gets its state",
        cold.closed_s,
    );
    second("cold_interval_cpu_s", "CPU time of the process in the first interval", cold.cpu_s);
    second(
        "interval_s",
        "duration of an interval with 11,664 hosts (median of 20)",
        at(50.0, closed),
    );
    second("interval_worst_s", "duration of an interval (longest of 20)", at(100.0, closed));
    second(
        "interval_cpu_worst_s",
        "CPU time of the process in an interval (highest of 20)",
        at(100.0, cpu),
    );
    let what = "tenants that got or lost queues in an interval (median)";
    let claim = Claim::new("changed", what, "");
    outcome.claim(claim.at_least(0.01 * count(FULL.tenants)).measured(at(50.0, |one| one.changed)));
    outcome.claim(
        Claim::new("heard", "hosts with a report in an interval (lowest)", "%")
            .at_least(95.0)
            .measured(all.iter().map(|one| one.heard_percent).fold(100.0, f64::min)),
    );
}

fn report_sessions(outcome: &mut Outcome, found: &Sessions) {
    outcome.note("sessions_all_there_s", found.all_there_s);
    outcome.note("sessions_told_s", found.told_s);
    let all = &found.intervals;
    let series = |of: fn(&(f64, f64, f64, f64)) -> f64| all.iter().map(of).collect::<Vec<_>>();
    let most = |values: &[f64]| percentile(values, 100.0);
    let fewest = |values: &[f64]| percentile(values, 0.0);
    let (closed, cpu) = (series(|one| one.0), series(|one| one.1));
    outcome.series("sessions_closed_s", "s", (1..).map(count).zip(closed.iter().copied()));
    outcome.series("sessions_cpu_s", "s", (1..).map(count).zip(cpu.iter().copied()));
    let what = "duration with 1,000 agents over gRPC (longest of 5)";
    let claim = Claim::new("sessions_interval_worst_s", what, "s");
    outcome.claim(claim.below(1.0).measured(most(&closed)));
    let what = "agents over gRPC that have applied a plan of this leader";
    let claim = Claim::new("sessions_done", what, "");
    outcome.claim(claim.at_least(count(FULL.over_grpc.sessions)).measured(count(found.plans_done)));
    let claim = Claim::new("sessions_lost", "lost sessions and failed plans over gRPC", "");
    outcome.claim(claim.at_most(0.0).measured(count(found.lost + found.failed)));
    let what = "all hosts with a report in an interval (lowest)";
    let claim = Claim::new("sessions_all_heard", what, "%");
    outcome.claim(claim.at_least(95.0).measured(fewest(&series(|one| one.2))));
    let what = "hosts over gRPC with a report in an interval (lowest)";
    let claim = Claim::new("sessions_heard", what, "%");
    outcome.claim(claim.at_least(95.0).measured(fewest(&series(|one| one.3))));
}

fn picture(record: &Record) -> Picture {
    let line = |panel: Panel, label: &str, name: &str| {
        let of = record.series(name).map(points).into_iter().flatten();
        panel.line(label, of.collect::<Vec<_>>())
    };
    let times = Panel::new("(a) an interval", Axis::linear("interval"), Axis::linear("s"));
    let times = line(times, "closed", "closed_s");
    let times = line(times, "CPU time", "cpu_s");
    let times = line(times, "decided", "decided_s");
    let times = line(times, "reports taken in", "reports_s");
    let changes = Panel::new("(b) changes", Axis::linear("interval"), Axis::linear("tenants"));
    let changes = line(changes, "got or lost queues", "changed");
    Picture::new("one controller, 11,664 hosts").panel(times).panel(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_fabric_closes_its_intervals_and_hears_its_agents() -> anyhow::Result<()> {
        let over_grpc = Wanted {
            sessions: 20,
            report: Duration::from_millis(250),
            every: Duration::from_secs(1),
            intervals: 3,
        };
        let small = Size { k: 8, tenants: 230, intervals: 8, over_grpc };
        let found = measure(&small, 1, |_, _| {})?;
        assert_eq!((found.agents, found.intervals.len()), (128, 9));
        assert!(found.intervals[0].changed > 0.0, "nobody got a queue");
        assert!(found.intervals[1..].iter().any(|one| one.changed > 0.0), "nothing changed");
        assert!(found.intervals.iter().all(|one| one.heard_percent >= 95.0));
        let held = found.over_grpc;
        assert_eq!((held.plans_done, held.lost, held.failed), (20, 0, 0), "{held:?}");
        assert_eq!(held.intervals.len(), 3);
        assert!(held.intervals.iter().all(|one| one.2 >= 95.0 && one.3 >= 95.0), "{held:?}");
        Ok(())
    }
}
