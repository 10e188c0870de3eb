//! QShare, Fig. 5: completion times of a tenant's flows, by load of the other tenants.
//!
//! # Problem
//!
//! ElasticSwitch divides a guarantee among pairs of VMs, and increases the rate of a pair step by
//! step. A short flow may end before its pair of VMs reaches the highest possible rate.
//!
//! # Source
//!
//! In QShare §VII-B, Fig. 5, ElasticSwitch's completion times are up to twice as long as QShare's,
//! with the highest ratio at light loads. With static reservation, some completion times are
//! outside the plot in the paper. The paper's flow sizes are from the enterprise trace, and the
//! paper calls results for data mining "similar". The module [`super::qshare_fct`] defines the
//! tenants and their traffic.
//!
//! # Approach
//!
//! The figure compares the mean completion times of the flows of tenant T. All systems transfer the
//! same flows. A claim's value is QShare's mean completion time divided by ElasticSwitch's mean
//! completion time. Two claims compare completion times: one at the lightest load, and one at the
//! load with the highest ratio. QShare runs with the fabric's real controller ([`crate::qshare`]).
//! Each mean at full length is over [`FLOWS`] flows for each of the ten clients, because in a mean
//! over fewer flows a few very long flows decide.
//!
//! ElasticSwitch and Trinity run with all settings of `penstock_sim::fabric::peers` that pass the
//! check of `peers`. The best setting of a system is the same for all loads and workloads, because
//! an operator configures a system only once. A setting of a system is valid if all tenants except
//! T get at least the fraction [`OTHERS_MIN`] of their guarantee in every 0.1 s. A valid setting
//! meets the condition about guarantees at every load and with both workloads. The best setting is
//! the valid setting with the lowest geometric mean of the completion times over all loads and
//! workloads. Runs with fewer flows ([`sweep_flows`]) choose the settings, and only the chosen
//! settings run at full length. `others_ours_least` is the lowest rate of a tenant except T in any
//! 0.1 s with QShare, divided by its guarantee, over all loads and workloads.
//!
//! The figure also shows the completion times with static reservation and with plain TCP. With
//! plain TCP at a load of 90 %, the other tenants get only 87 % of their guarantee.
//! `elasticswitch_oracle` uses the best setting of each load and workload. No operator can know the
//! best setting of each load and workload in advance.
//!
//! # Departures
//!
//! The simulation has two simplifications in favour of ElasticSwitch. After each period,
//! ElasticSwitch knows the share of lost frames exactly, even if there were few frames. TCP flows
//! reach a new rate limit immediately. Claims that end with `_ramp` are from runs of the enterprise
//! workload in which flows start slowly and react to losses ([`RAMP`]). These runs use the settings
//! that are best without slow start.
//!
//! The figure also shows ElasticSwitch's results with two subsets of its settings.
//! `elasticswitch_50ms` uses only settings with a period of 50 ms. `elasticswitch_forgetful` uses
//! only settings that forget the limits of idle pairs, instead of keeping them for 10 s.

use std::collections::BTreeMap;

use anyhow::Context as _;
use penstock_fabric::queue_binding::Mode;
use penstock_sim::fabric::peers::{candidates, passes};
use penstock_sim::fabric::{PairLimits, System};
use penstock_units::Nanos;

use super::qshare_fct::{Had, RAMP, Shuffle, run_all};
use crate::evidence::stats::{count, float as number};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::qshare::{self as bed, Plant, Troubles, Workload};

pub const EXPERIMENT: Experiment = Experiment {
    name: "qshare-fig5",
    source: "QShare §VII-B, Fig. 5",
    about: "flow completion times of one tenant beside others, with five systems",
    sim: Some(sim),
    live: Some(crate::live::qshare_fig5),
    picture,
};

/// Total guarantees of the other tenants, in percent of the core link's rate. The guarantee of
/// tenant T adds 9.4 %, so the sum of all guarantees is below 100 %.
const LOADS: [u64; 5] = [10, 30, 50, 70, 90];
const INTERVAL: Nanos = Nanos::from_secs(4);
/// A setting of ElasticSwitch or Trinity is valid if all tenants except T get at least this
/// fraction of their guarantee.
const OTHERS_MIN: f64 = 0.99;
/// Shortest control period of the ElasticSwitch settings in the claims whose names end with
/// `_50ms`.
const SLOW: Nanos = Nanos::from_millis(50);

/// Number of flows that each of tenant T's ten clients requests at full length.
const FLOWS: u64 = 1_000;
/// Smallest number of flows for each client in a shortened run. With fewer flows, a few very long
/// flows would determine the mean.
const FLOWS_MIN: u64 = 40;

/// Returns the number of flows for each client in the runs that choose the settings of
/// ElasticSwitch and Trinity.
const fn sweep_flows(workload: Workload) -> u64 {
    match workload {
        Workload::Enterprise => 300,
        Workload::DataMining => 40,
    }
}

/// Settings of ElasticSwitch and Trinity that passed the check of `penstock_sim::fabric::peers`.
struct Peers {
    elastic: Vec<PairLimits>,
    trinity: Vec<PairLimits>,
}

fn passing(system: impl Fn(PairLimits) -> System + Sync) -> anyhow::Result<Vec<PairLimits>> {
    let all = candidates();
    let held = bed::parallel(&all, |limits| Ok(passes(|| system(*limits))?))?;
    let passed = all.into_iter().zip(held).filter(|(_, held)| *held);
    let passed: Vec<_> = passed.map(|(limits, _)| limits).collect();
    anyhow::ensure!(!passed.is_empty(), "no setting of the system passes the check of guarantees");
    Ok(passed)
}

/// Mean completion time with each system at one load, in seconds. The completion time with a system
/// is NaN if no setting of the system is valid.
#[derive(Clone, Copy)]
struct Times {
    ours: f64,
    fixed: f64,
    tcp: f64,
    elastic: f64,
    elastic_oracle: f64,
    elastic_slow: f64,
    elastic_forgetful: f64,
    trinity: f64,
}

#[derive(Clone, Copy)]
enum Run {
    Ours,
    Fixed,
    Tcp,
    Elastic(PairLimits),
    Trinity(PairLimits),
}

fn all_runs(peers: &Peers) -> Vec<Run> {
    let mut runs = vec![Run::Ours, Run::Fixed, Run::Tcp];
    runs.extend(peers.elastic.iter().map(|limits| Run::Elastic(*limits)));
    runs.extend(peers.trinity.iter().map(|limits| Run::Trinity(*limits)));
    runs
}

impl Run {
    /// Creates the system of this run for a shuffle.
    fn system(&self, shuffle: &Shuffle) -> anyhow::Result<System> {
        Ok(match self {
            Self::Ours => {
                let (mode, troubles, seed) = (Mode::StaticMap, Troubles::default(), shuffle.seed);
                let plant = Plant { mode, troubles, seed };
                bed::qshare(&shuffle.tenants(), INTERVAL, true, plant)?.0
            }
            Self::Fixed => System::StaticReservation,
            Self::Tcp => System::PlainTcp,
            Self::Elastic(limits) => System::ElasticSwitch(*limits),
            Self::Trinity(limits) => System::Trinity(*limits),
        })
    }
}

/// Runs the shuffle with each system in `runs`. Returns the results in the order of `runs`.
fn measure(shuffle: &Shuffle, runs: &[Run]) -> anyhow::Result<Vec<Had>> {
    measure_all(&[shuffle], runs)?.pop().context("a shuffle has results")
}

/// Runs shuffles that have the same load and seed with each system in `runs`. Returns the results
/// of each shuffle in the order of `runs`.
fn measure_all(shuffles: &[&Shuffle], runs: &[Run]) -> anyhow::Result<Vec<Vec<Had>>> {
    let [first, ..] = shuffles else { return Ok(Vec::new()) };
    let by_run = bed::parallel(runs, |run| run_all(shuffles, || run.system(first)))?;
    let of_shuffle = |at: usize| by_run.iter().map(|had: &Vec<Had>| had[at]).collect();
    Ok((0..shuffles.len()).map(of_shuffle).collect())
}

/// Returns the index of the best valid setting among the runs for which `counts` is true. `had` has
/// one list for each load and workload, and each list has the results of `runs` in their order.
fn best_setting(runs: &[Run], had: &[Vec<Had>], counts: impl Fn(&Run) -> bool) -> Option<usize> {
    let holds = |at: &usize| had.iter().all(|point| point[*at].others >= OTHERS_MIN);
    let over_all = |at: &usize| had.iter().map(|point| point[*at].mean_secs.ln()).sum::<f64>();
    let counting = (0..runs.len()).filter(|at| counts(&runs[*at]));
    counting.filter(holds).min_by(|a, b| over_all(a).total_cmp(&over_all(b)))
}

/// Indices of the best settings among the runs. `None` if no setting is valid.
struct Best {
    elastic: Option<usize>,
    slow: Option<usize>,
    forgetful: Option<usize>,
    trinity: Option<usize>,
}

impl Best {
    /// Chooses the best settings by the results of the sweep, as [`best_setting`] does.
    fn of(runs: &[Run], swept: &[Vec<Had>]) -> Self {
        let slow = |run: &Run| matches!(run, Run::Elastic(limits) if limits.rates.period >= SLOW);
        let forgets = |run: &Run| matches!(run, Run::Elastic(limits) if limits.forget == Nanos(0));
        Self {
            elastic: best_setting(runs, swept, is_elastic),
            slow: best_setting(runs, swept, slow),
            forgetful: best_setting(runs, swept, forgets),
            trinity: best_setting(runs, swept, |run| matches!(run, Run::Trinity(_))),
        }
    }

    /// Returns the indices of the runs that one load and workload needs at full length: the systems
    /// without settings, the best settings, and the best setting of ElasticSwitch for this load and
    /// workload alone.
    fn needed(&self, runs: &[Run], swept: &[Had]) -> Vec<usize> {
        let mean = |at: &usize| swept[*at].mean_secs;
        let here = (0..runs.len()).filter(|at| is_elastic(&runs[*at]));
        let here = here.filter(|at| swept[*at].others >= OTHERS_MIN);
        let alone = here.min_by(|a, b| mean(a).total_cmp(&mean(b)));
        let best = [self.elastic, self.slow, self.forgetful, self.trinity, alone];
        let fixed = (0..runs.len()).filter(|at| has_no_settings(&runs[*at]));
        let mut needed: Vec<usize> = fixed.chain(best.into_iter().flatten()).collect();
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Returns the completion times at one load and workload. `point` has the results at full
    /// length, by the indices of the runs.
    fn times(&self, runs: &[Run], point: &BTreeMap<usize, Had>) -> Times {
        // If no setting is valid, the time is NaN.
        let of = |at: Option<usize>| {
            at.and_then(|at| point.get(&at)).map_or(f64::NAN, |had| had.mean_secs)
        };
        let there = point.iter().filter(|(at, _)| is_elastic(&runs[**at]));
        let oracle = there.map(|(_, had)| had.mean_secs).reduce(f64::min);
        Times {
            ours: of(Some(0)),
            fixed: of(Some(1)),
            tcp: of(Some(2)),
            elastic: of(self.elastic),
            elastic_oracle: oracle.unwrap_or(f64::NAN),
            elastic_slow: of(self.slow),
            elastic_forgetful: of(self.forgetful),
            trinity: of(self.trinity),
        }
    }
}

fn is_elastic(run: &Run) -> bool {
    matches!(run, Run::Elastic(_))
}

fn has_no_settings(run: &Run) -> bool {
    matches!(run, Run::Ours | Run::Fixed | Run::Tcp)
}

/// Workloads of the figure, in the order of the results.
const WORKLOADS: [Workload; 2] = [Workload::Enterprise, Workload::DataMining];

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    let elastic = passing(System::ElasticSwitch)?;
    let peers = Peers { elastic, trinity: passing(System::Trinity)? };
    outcome.note("settings_swept", candidates().len());
    outcome.note("settings_elasticswitch", peers.elastic.len());
    outcome.note("settings_trinity", peers.trinity.len());
    let runs = all_runs(&peers);
    let flows = ctx.scaled(Nanos(FLOWS)).0.max(FLOWS_MIN);
    outcome.note("flows_a_point", 10 * flows);
    let mut shuffles = Vec::new();
    for workload in WORKLOADS {
        let (sizes, seed) = (workload.sizes()?, ctx.seed);
        let flows = sweep_flows(workload).min(flows);
        shuffles.extend(LOADS.map(|load_pct| {
            let sizes = sizes.clone();
            Shuffle { load_pct, flows, sizes, ramp: None, seed }
        }));
    }
    let swept = sweep(ctx, &shuffles, &runs)?;
    let best = Best::of(&runs, &swept);
    let mut whole = Vec::new();
    for (at, (shuffle, swept)) in shuffles.iter().zip(&swept).enumerate() {
        say(ctx, at, shuffle);
        whole.push(at_full_length(&best, shuffle, flows, &runs, swept)?);
    }
    let times: Vec<Times> = whole.iter().map(|point| best.times(&runs, point)).collect();
    for (workload, times) in WORKLOADS.into_iter().zip(times.chunks(LOADS.len())) {
        told(&mut outcome, workload, times);
    }
    with_ramp(&mut outcome, &best, &shuffles[..LOADS.len()], flows, &runs)?;
    let others = whole.iter().filter_map(|point| point.get(&0)).map(|had| had.others);
    let statement = "lowest rate of another tenant in 0.1 s with QShare, divided by its guarantee";
    let kept = Claim::new("others_ours_least", statement, "").at_least(OTHERS_MIN);
    outcome.claim(kept.measured(others.fold(f64::INFINITY, f64::min)));
    Ok(outcome)
}

/// Runs each load with both workloads and each system in `runs`. Returns the results in the order
/// of `shuffles`.
fn sweep(ctx: &Context<'_>, shuffles: &[Shuffle], runs: &[Run]) -> anyhow::Result<Vec<Vec<Had>>> {
    let mut swept = vec![Vec::new(); shuffles.len()];
    for (at, load) in LOADS.into_iter().enumerate() {
        let part = 0.5 * count(at) / count(LOADS.len());
        ctx.progress(part, format_args!("settings, load {load} %"));
        let of_load: Vec<&Shuffle> = shuffles.iter().skip(at).step_by(LOADS.len()).collect();
        let had = measure_all(&of_load, runs)?;
        for (place, had) in swept.iter_mut().skip(at).step_by(LOADS.len()).zip(had) {
            *place = had;
        }
    }
    Ok(swept)
}

/// Runs QShare, plain TCP and ElasticSwitch's best setting with TCP's windows, for every second
/// load of the enterprise workload, and adds series and claims.
fn with_ramp(
    outcome: &mut Outcome,
    best: &Best,
    shuffles: &[Shuffle],
    flows: u64,
    runs: &[Run],
) -> anyhow::Result<()> {
    let Some(elastic) = best.elastic else { return Ok(()) };
    let compared = [Run::Ours, runs[elastic], Run::Tcp];
    let mut found = Vec::new();
    for shuffle in shuffles.iter().step_by(2) {
        let shuffle = Shuffle { flows, ramp: Some(RAMP), ..shuffle.clone() };
        found.push((number(shuffle.load_pct), measure(&shuffle, &compared)?));
    }
    for (at, system) in ["QShare", "ElasticSwitch", "plain TCP"].into_iter().enumerate() {
        let points = found.iter().map(|(load, had)| (*load, 1e3 * had[at].mean_secs));
        outcome.series(&format!("with slow start: {system}"), "ms", points);
    }
    let ratios = found.iter().map(|(_, had)| had[0].mean_secs / had[1].mean_secs);
    let ratios: Vec<f64> = ratios.collect();
    let highest = ratios.iter().copied().fold(f64::NAN, f64::max);
    let what = "enterprise, with slow start and losses: QShare's mean divided by ElasticSwitch's";
    for (id, value, load) in [
        ("mean_fct_ours_over_elasticswitch_ramp", ratios[0], "lightest load"),
        ("mean_fct_ours_over_elasticswitch_ramp_max", highest, "load with the highest ratio"),
    ] {
        outcome.claim(Claim::new(id, format!("{what}, {load}"), "").measured(value));
    }
    Ok(())
}

/// Reports progress before the run number `at` of the figure's second half.
fn say(ctx: &Context<'_>, at: usize, shuffle: &Shuffle) {
    let part = 0.5 + 0.5 * count(at) / count(WORKLOADS.len() * LOADS.len());
    let workload = WORKLOADS[at / LOADS.len()].name();
    ctx.progress(part, format_args!("{workload}, load {} %", shuffle.load_pct));
}

/// Runs the chosen settings with `flows` flows for each client, at one load and workload. `swept`
/// has the results of the sweep, which count if they have as many flows. Returns the results by the
/// indices of the runs.
fn at_full_length(
    best: &Best,
    shuffle: &Shuffle,
    flows: u64,
    runs: &[Run],
    swept: &[Had],
) -> anyhow::Result<BTreeMap<usize, Had>> {
    let needed = best.needed(runs, swept);
    let had: Vec<Had> = if shuffle.flows == flows {
        needed.iter().map(|at| swept[*at]).collect()
    } else {
        let runs: Vec<Run> = needed.iter().map(|at| runs[*at]).collect();
        measure(&Shuffle { flows, ..shuffle.clone() }, &runs)?
    };
    Ok(needed.into_iter().zip(had).collect())
}

fn told(outcome: &mut Outcome, workload: Workload, found: &[Times]) {
    let name = workload.name();
    let mut series = |what: &str, of: &dyn Fn(&Times) -> f64| {
        let by = LOADS.into_iter().zip(found).map(|(load, times)| (number(load), of(times)));
        outcome.series(&format!("{name}: {what}"), "ms", by.map(|(x, y)| (x, 1e3 * y)));
    };
    series("QShare", &|t| t.ours);
    series("ElasticSwitch", &|t| t.elastic);
    series("ElasticSwitch, set for each load", &|t| t.elastic_oracle);
    series("ElasticSwitch, 50 ms", &|t| t.elastic_slow);
    series("ElasticSwitch, forgetful", &|t| t.elastic_forgetful);
    series("Trinity", &|t| t.trinity);
    series("static reservation", &|t| t.fixed);
    series("plain TCP", &|t| t.tcp);
    let ratios = |of: &dyn Fn(&Times) -> f64| found.iter().map(of).collect::<Vec<f64>>();
    // If either value is NaN, the highest is NaN.
    let higher = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
    let highest = |ratios: &[f64]| ratios.iter().copied().fold(0.0, higher);
    let id = |what: &str| format!("mean_fct_ours_over_{what}_{}", key(workload));
    let elastic = ratios(&|t| t.ours / t.elastic);
    let oracle = ratios(&|t| t.ours / t.elastic_oracle);
    let slow = ratios(&|t| t.ours / t.elastic_slow);
    let forget = ratios(&|t| t.ours / t.elastic_forgetful);
    let statement = format!("{name}: QShare's mean divided by ElasticSwitch's best, lightest load");
    let lightest = Claim::new(&id("elasticswitch"), statement, "").published(0.5).at_most(0.5);
    outcome.claim(lightest.measured(elastic[0]));
    let statement = format!("{name}: the same ratio, at the load with the highest ratio");
    let all = Claim::new(&(id("elasticswitch") + "_max"), statement, "").at_most(1.0);
    outcome.claim(all.measured(highest(&elastic)));
    for (what, statement, value) in [
        ("elasticswitch_oracle", "ElasticSwitch's best for the lightest load alone", oracle[0]),
        (
            "elasticswitch_oracle_max",
            "ElasticSwitch's best for each load alone, highest ratio",
            highest(&oracle),
        ),
        (
            "elasticswitch_50ms",
            "ElasticSwitch's best with a period of 50 ms, lightest load",
            slow[0],
        ),
        (
            "elasticswitch_forgetful",
            "ElasticSwitch's best that forgets idle pairs, lightest load",
            forget[0],
        ),
        ("trinity", "Trinity's best, lightest load", ratios(&|t| t.ours / t.trinity)[0]),
        ("static", "static reservation's, lightest load", ratios(&|t| t.ours / t.fixed)[0]),
        ("tcp", "plain TCP's, lightest load", ratios(&|t| t.ours / t.tcp)[0]),
    ] {
        let statement = format!("{name}: QShare's mean divided by {statement}");
        outcome.claim(Claim::new(&id(what), statement, "").measured(value));
    }
}

const fn key(workload: Workload) -> &'static str {
    match workload {
        Workload::Enterprise => "enterprise",
        Workload::DataMining => "data_mining",
    }
}

fn picture(record: &Record) -> Picture {
    if record.series("time of flows: ours").is_some() {
        return live_picture(record);
    }
    let panel = |title: &str, workload: Workload| {
        let axis = Axis::linear("load, % of the core");
        let mut panel = Panel::new(title, axis, Axis::log("mean completion time, ms"));
        for system in ["QShare", "ElasticSwitch", "Trinity", "static reservation"] {
            let name = format!("{}: {system}", workload.name());
            panel = panel.line(system, record.series(&name).map(points).into_iter().flatten());
        }
        for system in ["ElasticSwitch, 50 ms", "plain TCP"] {
            let name = format!("{}: {system}", workload.name());
            panel = panel.thin_line(system, record.series(&name).map(points).into_iter().flatten());
        }
        panel
    };
    let (load, time) = (Axis::linear("load, % of the core"), Axis::log("mean completion time, ms"));
    let mut ramp = Panel::new("enterprise, with slow start and losses", load, time);
    for system in ["QShare", "ElasticSwitch", "plain TCP"] {
        let name = format!("with slow start: {system}");
        ramp = ramp.line(system, record.series(&name).map(points).into_iter().flatten());
    }
    Picture::new("QShare, Fig. 5: flow completion times beside other tenants")
        .panel(panel("enterprise", Workload::Enterprise))
        .panel(panel("data mining", Workload::DataMining))
        .panel(ramp)
}

/// Draws the distribution of completion times, and the use of the core link over time.
fn live_picture(record: &Record) -> Picture {
    let series = |name: &str| record.series(name).map(points).into_iter().flatten();
    let mut times = Panel::new("flows, live", Axis::log("time, ms"), Axis::linear("completed, %"));
    let used = Axis::linear("use, %").to(105.0);
    let mut core = Panel::new("use of the core", Axis::linear("time, s"), used);
    for (name, title) in [
        ("ours", "QShare"),
        ("elasticswitch", "ElasticSwitch"),
        ("static", "static reservation"),
        ("tcp", "one queue, held"),
    ] {
        times = times.line(title, series(&format!("time of flows: {name}")));
        core = core.line(title, series(&format!("core: {name}")));
    }
    Picture::new("QShare, Fig. 5, live: flow completion times").panel(times).panel(core)
}
