//! Live experiment in which faults follow each other at random, under the traffic of tenants with
//! guarantees.
//!
//! # Source
//!
//! QShare §V-D does not describe faults. The fabric, its tenants and their demand are those of the
//! live experiment about single faults (module `faults`).
//!
//! # Approach
//!
//! For ten minutes, all tenants demand more than they receive, and a seeded schedule causes a fault
//! every 40 to 44 s ([`super::schedule`]). The schedule repeats five kinds of faults in a random
//! order: a reboot of the core switch, a kill of the leading controller, a flap of a host's links,
//! a foreign change of a port, and an etcd without space.
//!
//! A sample lasts one second. The docs state how long each fault may affect tenants
//! ([`Fault::allowed`]). Samples within this time after a fault are marked, and are judged apart.
//! In all other samples, each tenant must have at least [`KEPT`] of the smaller of its guarantee
//! and its demand. A fault whose effects last longer than stated therefore misses the claim.
//!
//! The core switch counts the frames whose code point its map does not contain. All measured
//! traffic passes the core switch. A foreign change moves a code point to another queue and removes
//! none, so no frame may meet an unmapped code point.
//!
//! For each sample with too little, the entry `short_samples` of the record's `platform` says what
//! the fabric did, as in the live Fig. 4.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::demand::{across, clients, due};
use super::diagnosis::Short;
use super::diary::{Diary, Log};
use super::faults::{COPIES, two_controllers, wait_until};
use super::guarantees::{Demand, KEPT, RACKS, hoses, judge, tell_plans};
use super::parts::Parts;
use super::plan::tenant_name;
use super::samples::{Sample, WARM_UP, points, start, used_pct, watch_until};
use super::schedule::{Fault, Planned, schedule};
use super::world::World;
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;
use penstock_guest::clock;

/// Length of the run in seconds.
const SECS: f64 = 600.0;
/// Time for which the links of a host are down.
const DOWN: Duration = Duration::from_secs(2);
/// Time for which etcd is full: two intervals of the controller.
const FULL: Duration = Duration::from_secs(8);
/// Maximum time until the fabric has recovered from a fault. Then the next fault follows.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Name of the run in the record's events.
const RUN: &str = "chaos";
/// Name of the series that marks samples within stated recovery times.
const MARKED: &str = "within a stated recovery time";

/// A fault that happened. Times count from the start of the programs.
#[derive(Debug, Clone)]
struct Episode {
    fault: Fault,
    /// What the fault concerned, such as the name of a host.
    what: String,
    from: Duration,
    /// Time from which the recovery counts.
    ended: Duration,
    /// `None` if the fabric did not recover within [`RECOVERY_MAX`].
    recovered: Option<Duration>,
}

impl Episode {
    /// Whether a sample overlaps the fault or the stated recovery time after it.
    fn covers(&self, sample: &Sample) -> bool {
        sample.until > self.from && sample.from < self.ended + self.fault.allowed()
    }

    /// Returns the seconds until the recovery. NaN if the fabric did not recover.
    fn recovery_secs(&self) -> f64 {
        let took = self.recovered.map(|at| at.saturating_sub(self.ended).as_secs_f64());
        took.unwrap_or(f64::NAN)
    }

    fn json(&self) -> Value {
        let secs = |at: Duration| at.saturating_sub(WARM_UP).as_secs_f64();
        json!({
            "fault": self.fault.name(),
            "what": self.what,
            "from_s": secs(self.from),
            "ended_s": secs(self.ended),
            "allowed_until_s": secs(self.ended + self.fault.allowed()),
            "recovered_s": self.recovered.map(secs),
        })
    }
}

/// Runs the experiment.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let plan = two_controllers(context.seed);
    let faults = schedule(Duration::from_secs_f64(secs), context.seed, plan.hosts());
    eprintln!("starting two racks: ten hosts, their switches, two controllers, an etcd");
    let mut world = World::start(&bed, RUN, &plan)?;
    let flows = across(&world.vms, COPIES, context.seed);
    let from = vec![Duration::ZERO; plan.tenants.len()];
    let due = due(&world.vms, &flows, &hoses(&plan), RACKS.len());
    let all = clients(&world.vms, &flows, &from);
    let diary = Diary::start(world.operator())?;
    let mut programs = start(&bed, &world, all, context.seed)?;
    let parts = world.parts();
    let actor = act(Arc::clone(&parts), programs.began(), faults)?;
    let began = programs.began();
    let progress = || {
        let measured = began.elapsed().saturating_sub(WARM_UP).as_secs_f64();
        context.progress(measured / secs, "faults");
    };
    progress();
    let done = |measured: f64| measured >= secs && actor.is_finished();
    let samples = watch_until((&mut world, &mut programs), done, progress)?;
    let episodes = actor.join().map_err(|_| anyhow::anyhow!("the thread of faults panicked"))??;
    drop(programs);
    let log = diary.close()?;
    outcome.note("secs", secs);
    outcome.note("unmapped_at_hosts", parts.unmapped_at_hosts()?);
    tell(&mut outcome, &samples, &Demand { from, due }, &episodes, &log);
    let what = "frames that met an unmapped code point at the core switch";
    let claim = Claim::new("unmapped_packets", what, "frames").at_most(0.0);
    outcome.claim(claim.measured(to_f64(parts.core()?.unmapped()?)));
    Ok(outcome)
}

/// Starts a thread that causes the faults of a schedule, and waits for the recovery after each.
fn act(
    parts: Arc<Parts>,
    began: Instant,
    faults: Vec<Planned>,
) -> anyhow::Result<JoinHandle<anyhow::Result<Vec<Episode>>>> {
    let act = move || -> anyhow::Result<Vec<Episode>> {
        let mut episodes = Vec::new();
        for Planned { at, fault } in faults {
            wait_until(began, WARM_UP + at);
            let name = fault.name();
            episodes.push(cause(&parts, began, fault).with_context(|| name.to_owned())?);
        }
        Ok(episodes)
    };
    std::thread::Builder::new().name("faults".to_owned()).spawn(act).context("starting a thread")
}

/// Causes a fault, and waits until the fabric has recovered.
fn cause(parts: &Parts, began: Instant, fault: Fault) -> anyhow::Result<Episode> {
    let from = began.elapsed();
    let mut killed = None;
    let (what, ended) = match fault {
        Fault::SwitchReboot => {
            let answered = parts.core()?.reboot(Duration::ZERO, false)?;
            ("core-0".to_owned(), answered.saturating_duration_since(began))
        }
        Fault::LeaderKill => {
            let leader = parts.kill_leader()?;
            killed = Some(leader);
            (format!("epoch {}", leader.1), from)
        }
        Fault::HostFlap(host) => {
            parts.link(host, false)?;
            clock::wait_readable(None, DOWN);
            parts.link(host, true)?;
            (format!("server-{host}"), began.elapsed())
        }
        Fault::ForeignChange(nth) => {
            let port = parts.core()?.change_foreign(nth)?;
            (format!("core-0, port {port}"), began.elapsed())
        }
        Fault::FullStore => {
            let values = parts.fill_etcd()?;
            clock::wait_readable(None, FULL);
            parts.relieve_etcd()?;
            (format!("{values} values"), began.elapsed())
        }
    };
    let above = killed.map_or(0, |(_, epoch)| epoch);
    // After a full store, an operator's command must be stored again.
    let stores = || fault != Fault::FullStore || parts.operator.ask(&["mode", "active"]).is_ok();
    let fine = parts.until(RECOVERY_MAX, || parts.is_current(above) && stores())?;
    let recovered = fine.then(|| began.elapsed());
    if let Some((nth, _)) = killed {
        parts.start_controller(nth)?;
    }
    Ok(Episode { fault, what, from, ended, recovered })
}

fn tell(
    outcome: &mut Outcome,
    samples: &[Sample],
    demand: &Demand,
    episodes: &[Episode],
    log: &Log,
) {
    let marked = |sample: &Sample| episodes.iter().any(|episode| episode.covers(sample));
    for tenant in 0..demand.due.len() {
        let part = |sample: &Sample| part(sample, &demand.due[tenant], tenant);
        outcome.series(&tenant_name(tenant), "rate over due", points(samples, part));
    }
    outcome.series("core", "%", points(samples, used_pct));
    let mark = |sample: &Sample| if marked(sample) { 1.0 } else { 0.0 };
    outcome.series(MARKED, "1 = yes", points(samples, mark));
    outcome.note("faults", episodes.iter().map(Episode::json).collect::<Vec<Value>>());
    for episode in episodes {
        let at = episode.from.saturating_sub(WARM_UP).as_secs_f64();
        outcome.event(RUN, at, &format!("{}: {}", episode.fault.name(), episode.what));
    }
    let outside: Vec<Sample> = samples.iter().filter(|s| !marked(s)).cloned().collect();
    outcome.note("seconds_judged", outside.len());
    outcome.note("seconds_marked", samples.len() - outside.len());
    let least = judge(outcome, &outside, demand, log);
    tell_plans(outcome, "plans", samples, log);
    let what = "the least that a tenant had in a second over min(guarantee, demand), outside of \
                stated recovery times";
    let claim = Claim::new("min_rate_over_min_guarantee_demand", what, "");
    outcome.claim(claim.at_least(KEPT).measured(least));
    tell_faults(outcome, samples, demand, episodes);
}

/// Returns the lowest rate of a tenant in a sample over its due rates `due`. NaN if no rate is due.
fn part(sample: &Sample, due: &[f64], tenant: usize) -> f64 {
    let rates = sample.rates.tenants[tenant].iter().zip(due);
    let parts = rates.filter(|(_, due)| **due > 0.0).map(|(rate, due)| rate / due);
    parts.fold(f64::NAN, f64::min)
}

/// Adds two claims for each kind of fault that happened: the longest recovery, and the lowest rate
/// of a tenant within the stated recovery time, which has no band.
fn tell_faults(outcome: &mut Outcome, samples: &[Sample], demand: &Demand, episodes: &[Episode]) {
    let mut kinds: BTreeMap<&str, Vec<&Episode>> = BTreeMap::new();
    for episode in episodes {
        kinds.entry(episode.fault.name()).or_default().push(episode);
    }
    for (name, of) in kinds {
        let id = name.replace(' ', "_");
        let Some(first) = of.first() else { continue };
        let secs: Vec<f64> = of.iter().map(|episode| episode.recovery_secs()).collect();
        let longest = match secs.iter().any(|secs| secs.is_nan()) {
            true => f64::NAN,
            false => secs.into_iter().fold(0.0, f64::max),
        };
        let what = format!("the longest recovery after a {name}, {} faults", of.len());
        let claim = Claim::new(&format!("recovery_s_{id}"), what, "s");
        outcome.claim(claim.at_most(first.fault.allowed().as_secs_f64()).measured(longest));
        let within = |sample: &&Sample| of.iter().any(|episode| episode.covers(sample));
        let inside: Vec<Sample> = samples.iter().filter(within).cloned().collect();
        let parts = demand.judged(&inside);
        let least = parts.iter().map(Short::part).fold(f64::INFINITY, f64::min);
        let what =
            format!("the least that a tenant had in a second within the stated time, {name}");
        outcome.claim(Claim::new(&format!("min_rate_{id}"), what, "").measured(least));
    }
}

/// Draws the tenants' rates over their due rates and the use of the core link, with the faults as
/// marks.
pub(crate) fn picture(record: &Record) -> Picture {
    let panel = |title: &str, y: Axis| {
        let mut panel = Panel::new(title, Axis::linear("time, s"), y);
        for (at, what) in record.events(RUN) {
            panel = panel.event(what.split(':').next().unwrap_or_default(), at);
        }
        panel
    };
    let mut rates = panel("what tenants received", Axis::linear("rate over due").from(0.0));
    let tenants = record.series.iter().filter(|series| series.unit == "rate over due");
    for series in tenants {
        rates = rates.series(&series.name, series);
    }
    let rates = rates.published("kept", KEPT);
    let mut core = panel("the core link", Axis::linear("use, %").from(0.0));
    if let Some(series) = record.series("core") {
        core = core.series("both directions", series);
    }
    let mut marked = panel(MARKED, Axis::linear("1 = yes").from(0.0));
    if let Some(series) = record.series(MARKED) {
        marked = marked.series("samples that are judged apart", series);
    }
    Picture::new("Faults under traffic, live").panel(rates).panel(core).panel(marked)
}

#[cfg(test)]
mod tests {
    use super::super::counters::{Rates, Repairs};
    use super::*;

    /// A sample of one second in which the only tenant has the rate `rate` in both directions.
    fn sample(from: u64, rate: f64) -> Sample {
        let at = |secs: u64| WARM_UP + Duration::from_secs(secs);
        Sample {
            from: at(from),
            until: at(from + 1),
            at_ms: [1_000 * from, 1_000 * (from + 1)],
            rates: Rates {
                tenants: vec![vec![rate, 2.0 * rate]],
                core: vec![4.0, 4.0],
                repairs: vec![vec![Repairs::default(); 2]],
            },
            sweep: Duration::ZERO,
            link: 8.0,
        }
    }

    fn episode(fault: Fault, from: u64, recovered: Option<u64>) -> Episode {
        let at = |secs: u64| WARM_UP + Duration::from_secs(secs);
        let (from, recovered) = (at(from), recovered.map(at));
        Episode { fault, what: "x".to_owned(), from, ended: from, recovered }
    }

    fn told(samples: &[Sample], episodes: &[Episode]) -> Outcome {
        let mut outcome = Outcome::new();
        let demand = Demand { from: vec![Duration::ZERO], due: vec![vec![10.0, 10.0]] };
        tell(&mut outcome, samples, &demand, episodes, &Log::default());
        outcome
    }

    fn claim(outcome: &Outcome, id: &str) -> (Option<f64>, Option<bool>) {
        let claim = outcome.claims.iter().find(|claim| claim.id == id).unwrap();
        (claim.measured, claim.holds)
    }

    #[test]
    fn a_short_second_counts_only_outside_of_stated_recovery_times() {
        const LEAST: &str = "min_rate_over_min_guarantee_demand";
        let mut samples: Vec<Sample> = (0..40).map(|at| sample(at, 10.0)).collect();
        samples[12] = sample(12, 5.0);
        let kill = episode(Fault::LeaderKill, 10, Some(19));
        let outcome = told(&samples, std::slice::from_ref(&kill));
        assert_eq!(claim(&outcome, LEAST), (Some(1.0), Some(true)));
        assert_eq!(claim(&outcome, "min_rate_leader_kill"), (Some(0.5), None));
        assert_eq!(claim(&outcome, "recovery_s_leader_kill"), (Some(9.0), Some(true)));
        samples[30] = sample(30, 9.0);
        let outcome = told(&samples, &[kill]);
        assert_eq!(claim(&outcome, LEAST), (Some(0.9), Some(false)));
        assert_eq!(outcome.platform["seconds_marked"], 15);
        assert_eq!(outcome.platform["short_samples_count"], 1);
    }

    #[test]
    fn a_fault_without_a_recovery_is_not_measured_and_missed() {
        let samples: Vec<Sample> = (0..40).map(|at| sample(at, 10.0)).collect();
        let flap = |recovered| episode(Fault::HostFlap(3), 10, recovered);
        let outcome = told(&samples, &[flap(Some(12)), flap(None)]);
        assert_eq!(claim(&outcome, "recovery_s_host_flap"), (None, Some(false)));
        let outcome = told(&samples, &[flap(Some(12)), flap(Some(19))]);
        assert_eq!(claim(&outcome, "recovery_s_host_flap"), (Some(9.0), Some(false)));
    }

    #[test]
    fn the_lowest_direction_of_a_tenant_is_drawn() {
        let sample = sample(0, 5.0);
        assert!((part(&sample, &[10.0, 10.0], 0) - 0.5).abs() < 1e-9);
        assert!((part(&sample, &[0.0, 10.0], 0) - 1.0).abs() < 1e-9, "nothing is due to rack 0");
        assert!(part(&sample, &[0.0, 0.0], 0).is_nan());
    }
}
