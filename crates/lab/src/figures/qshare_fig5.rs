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
//! load with the highest ratio.
//!
//! ElasticSwitch and Trinity run with all settings of `penstock_sim::fabric::peers` that pass the
//! check of `peers`. The best setting of a system is the same for all loads and workloads, because
//! an operator configures a system only once. A setting of a system is valid if all tenants except
//! T get at least the fraction [`OTHERS_MIN`] of their guarantee in every 0.1 s. A valid setting
//! meets the condition about guarantees at every load and with both workloads. The best setting is
//! the valid setting with the lowest geometric mean of the completion times over all loads and
//! workloads.
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
//! reach a new rate limit immediately.
//!
//! The figure also shows ElasticSwitch's results with two subsets of its settings.
//! `elasticswitch_50ms` uses only settings with a period of 50 ms. `elasticswitch_forgetful` uses
//! only settings that forget the limits of idle pairs, instead of keeping them for 10 s.

use penstock_sim::fabric::peers::{candidates, check};
use penstock_sim::fabric::{PairLimits, System};
use penstock_units::Nanos;

use super::qshare_fct::{Had, Shuffle};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::qshare::{self as bed, Workload};

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

/// Returns the number of flows that each of tenant T's ten clients requests.
const fn flows(workload: Workload) -> u64 {
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
    let held = bed::parallel(&all, |limits| Ok(check(|| system(*limits))?.holds()))?;
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

/// Runs the shuffle with each system in `runs`. Returns the results in the order of `runs`.
fn measure(shuffle: &Shuffle, runs: &[Run]) -> anyhow::Result<Vec<Had>> {
    bed::parallel(runs, |run| {
        let system = match run {
            Run::Ours => bed::qshare(&shuffle.tenants(), INTERVAL, true)?,
            Run::Fixed => System::StaticReservation,
            Run::Tcp => System::PlainTcp,
            Run::Elastic(limits) => System::ElasticSwitch(*limits),
            Run::Trinity(limits) => System::Trinity(*limits),
        };
        shuffle.run(system)
    })
}

/// Returns the index of the best valid setting among the runs for which `counts` is true. `had` has
/// one list for each load and workload, and each list has the results of `runs` in their order.
fn best_setting(runs: &[Run], had: &[Vec<Had>], counts: impl Fn(&Run) -> bool) -> Option<usize> {
    let holds = |at: &usize| had.iter().all(|point| point[*at].others >= OTHERS_MIN);
    let over_all = |at: &usize| had.iter().map(|point| point[*at].mean_secs.ln()).sum::<f64>();
    let counting = (0..runs.len()).filter(|at| counts(&runs[*at]));
    counting.filter(holds).min_by(|a, b| over_all(a).total_cmp(&over_all(b)))
}

/// Returns the completion times with the best settings, for each load and workload.
fn chosen(runs: &[Run], had: &[Vec<Had>]) -> Vec<Times> {
    let is_elastic = |run: &Run| matches!(run, Run::Elastic(_));
    let slow = |run: &Run| matches!(run, Run::Elastic(limits) if limits.rates.period >= SLOW);
    let forgets = |run: &Run| matches!(run, Run::Elastic(limits) if limits.forget == Nanos(0));
    let elastic = best_setting(runs, had, is_elastic);
    let elastic_slow = best_setting(runs, had, slow);
    let elastic_forgetful = best_setting(runs, had, forgets);
    let trinity = best_setting(runs, had, |run| matches!(run, Run::Trinity(_)));
    let times = |point: &Vec<Had>| {
        // If no setting is valid, the time is NaN.
        let of = |at: Option<usize>| at.map_or(f64::NAN, |at| point[at].mean_secs);
        let there =
            runs.iter().zip(point).filter(|(run, had)| is_elastic(run) && had.others >= OTHERS_MIN);
        let oracle = there.map(|(_, had)| had.mean_secs).reduce(f64::min);
        Times {
            ours: point[0].mean_secs,
            fixed: point[1].mean_secs,
            tcp: point[2].mean_secs,
            elastic: of(elastic),
            elastic_oracle: oracle.unwrap_or(f64::NAN),
            elastic_slow: of(elastic_slow),
            elastic_forgetful: of(elastic_forgetful),
            trinity: of(trinity),
        }
    };
    had.iter().map(times).collect()
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    let elastic = passing(System::ElasticSwitch)?;
    let peers = Peers { elastic, trinity: passing(System::Trinity)? };
    outcome.note("settings_swept", candidates().len());
    outcome.note("settings_elasticswitch", peers.elastic.len());
    outcome.note("settings_trinity", peers.trinity.len());
    let runs = all_runs(&peers);
    let workloads = [Workload::Enterprise, Workload::DataMining];
    let mut had = Vec::new();
    for (at, workload) in workloads.into_iter().enumerate() {
        let sizes = workload.sizes()?;
        // With fewer flows, a few very long flows would determine the mean.
        let flows = ctx.scaled(Nanos(flows(workload))).0.max(40);
        outcome.note(&format!("flows_{}", key(workload)), 10 * flows);
        for (done, load_pct) in LOADS.into_iter().enumerate() {
            let part = number(u64::try_from(LOADS.len() * at + done)?) / 10.0;
            ctx.progress(part, format!("{}, load {load_pct} %", workload.name()));
            let shuffle = Shuffle { load_pct, flows, sizes: sizes.clone(), seed: ctx.seed };
            had.push(measure(&shuffle, &runs)?);
        }
    }
    for (workload, times) in workloads.into_iter().zip(chosen(&runs, &had).chunks(LOADS.len())) {
        told(&mut outcome, workload, times);
    }
    Ok(outcome)
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

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn number(n: u64) -> f64 {
    n as f64
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
    Picture::new("QShare, Fig. 5: flow completion times beside other tenants")
        .panel(panel("enterprise", Workload::Enterprise))
        .panel(panel("data mining", Workload::DataMining))
}

/// Draws the distribution of completion times, and the use of the core link over time.
fn live_picture(record: &Record) -> Picture {
    let series = |name: &str| record.series(name).map(points).into_iter().flatten();
    let mut times = Panel::new("flows, live", Axis::log("time, ms"), Axis::linear("completed, %"));
    let used = Axis::linear("use, %").to(105.0);
    let mut core = Panel::new("use of the core", Axis::linear("time, s"), used);
    for (name, title) in
        [("ours", "QShare"), ("static", "static reservation"), ("tcp", "one queue, held")]
    {
        times = times.line(title, series(&format!("time of flows: {name}")));
        core = core.line(title, series(&format!("core: {name}")));
    }
    Picture::new("QShare, Fig. 5, live: flow completion times").panel(times).panel(core)
}
