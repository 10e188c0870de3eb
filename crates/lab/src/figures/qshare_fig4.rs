//! QShare, Fig. 4: guarantees and use of the core link, with predictable and unpredictable demand.
//!
//! # Problem
//!
//! Ten tenants use a port with eight queues, of which one queue is shared. Tenants in the shared
//! queue must keep their guarantees. The core link must not have unused capacity while a tenant has
//! demand.
//!
//! # Source
//!
//! The source is QShare §VII-A, Fig. 4 (a) to (c). [`super::qshare_core`] and [`crate::qshare`]
//! define the details that the paper does not print.
//!
//! # Approach
//!
//! All runs with queues use the fabric's real controller. Its plans have whole weights and several
//! steps, and switches and hosts carry out the steps with random delays ([`crate::qshare`]).
//!
//! In panel (a), demand is predictable, and rate allocation is off as in the paper.
//! `min_rate_over_min_guarantee_demand` is the lowest ratio of a tenant's rate to min(guarantee,
//! demand). `min_rate_over_min_guarantee_demand` covers all samples of 0.1 s, all tenants and both
//! directions of the core link. min(guarantee, demand) is the rate that the tenant's flows reach in
//! a simulation without other tenants. In a simulation without other tenants, only the guarantees
//! of the VMs limit a tenant's flows (hose model). `core_utilisation_pct` is the lowest use of the
//! core link in any sample. The same claims for switches with a map for each port end with
//! `_per_port_map`. Claims that end with `_troubled` are from a run in which switches and hosts
//! refuse 1 % of the messages, and the answer to another 1 % is lost.
//!
//! `dilution_min` is the least share of a guarantee that the weights of any port left to a tenant
//! during any step of any plan, whatever the other tenants sent. `dilution_min` covers the runs of
//! panel (a) without failures, and the runs of panels (b) and (c) without rate allocation.
//! `plan_s_max` is the longest time that the controller's work took in an interval.
//!
//! In panels (b) and (c) of the figure, demand is unpredictable, and the controller assigns queues
//! every 1 to 10 s. Rate allocation in the shared queue is off or on. `utilisation_pct_off_min` is
//! the lowest mean use of the core link in a run without rate allocation. `utilisation_pct_on_min`
//! is the lowest mean use in a run with rate allocation. The paper prints that more than 91 % of
//! the core link is used.
//!
//! For comparison, the figure shows plain TCP, which has no guarantees, and other numbers of
//! connections per VM. If the VMs have too few connections, no system can fill the core link.

use std::sync::{Mutex, PoisonError};

use penstock_fabric::queue_binding::Mode;
use penstock_sim::Rng;
use penstock_sim::fabric::{System, TenantSpec};
use penstock_units::Nanos;

use super::qshare_core::{self as core, CONNECTIONS, Core, Demand};
use crate::evidence::stats::{count, float as number};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::qshare::{self as bed, Done, Plant, Troubles};

pub const EXPERIMENT: Experiment = Experiment {
    name: "qshare-fig4",
    source: "QShare §VII-A, Fig. 4",
    about: "guarantees and use of the core with ten tenants and seven queues",
    sim: Some(sim),
    live: Some(crate::live::qshare_fig4),
    picture,
};

/// The paper's control interval in seconds. Panel (c) shows the use of the core link for all
/// control intervals in [`INTERVALS`].
const INTERVAL: u64 = 4;
const INTERVALS: [u64; 6] = [1, 2, 4, 6, 8, 10];
/// Other numbers of connections per VM, shown for comparison with [`CONNECTIONS`].
const FEWER_AND_MORE: [usize; 3] = [4, 8, 16];
/// Simulated time in seconds of the runs for panel (a). The runs for panels (b) and (c) simulate
/// [`B_SECS`] seconds.
const A_SECS: u64 = 10;
const B_SECS: u64 = 60;
/// Failures of switches and hosts in one of the runs for panel (a).
const TROUBLES: Troubles = Troubles { refused_ppm: 10_000, lost_ppm: 10_000, only: None };
/// Kind of map and failures of each run for panel (a), with the end of the names of its claims.
const PLANTS: [(Mode, Option<Troubles>, &str); 3] = [
    (Mode::StaticMap, None, ""),
    (Mode::PerPortMap, None, "_per_port_map"),
    (Mode::PerPortMap, Some(TROUBLES), "_troubled"),
];

/// System and settings of a run with unpredictable demand.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    Bound { interval: u64, shared: bool, connections: usize },
    Tcp { connections: usize },
}

impl Case {
    fn system(self, tenants: &[TenantSpec], seed: u64) -> anyhow::Result<System> {
        match self {
            Self::Bound { interval, shared, .. } => {
                let plant = Plant { mode: Mode::StaticMap, troubles: Troubles::default(), seed };
                Ok(bed::qshare(tenants, Nanos::from_secs(interval), shared, plant)?.0)
            }
            Self::Tcp { .. } => Ok(System::PlainTcp),
        }
    }

    const fn connections(self) -> usize {
        match self {
            Self::Bound { connections, .. } | Self::Tcp { connections } => connections,
        }
    }
}

fn cases() -> Vec<Case> {
    let bound = |interval, shared| Case::Bound { interval, shared, connections: CONNECTIONS };
    let mut cases: Vec<_> = INTERVALS.iter().map(|i| bound(*i, false)).collect();
    cases.extend(INTERVALS.iter().map(|i| bound(*i, true)));
    cases.push(Case::Tcp { connections: CONNECTIONS });
    for connections in FEWER_AND_MORE {
        let interval = INTERVAL;
        cases.push(Case::Tcp { connections });
        cases.push(Case::Bound { interval, shared: false, connections });
        cases.push(Case::Bound { interval, shared: true, connections });
    }
    cases
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("connections_a_vm", CONNECTIONS);
    outcome.calibrated([
        "12 connections per VM when demand is random",
        "the printed use of the core: plain TCP fills it with 12",
        "4, 8 and 16, claims utilisation_pct_on_of_N",
    ]);
    let steady = predictable(ctx, &mut outcome)?;
    ctx.progress(0.05, "demand at random");
    // A run shorter than an interval would not show the effect of that interval.
    let time = ctx.scaled(Nanos::from_secs(B_SECS)).max(Nanos::from_secs(INTERVALS[0]));
    let (cases, seed) = (cases(), ctx.seed);
    let run = |case: &Case| {
        let demand = Demand::Random(case.connections());
        core::run(demand, seed, time, |tenants| case.system(tenants, seed))
    };
    let runs = bed::parallel(&cases, run)?;
    unpredictable(&mut outcome, &cases, &runs);
    let kept = runs.iter().flat_map(Core::kept).map(|(_, kept)| kept).fold(steady, f64::min);
    let what = "least share of a guarantee that the weights of a port left during a step of a plan";
    let claim = Claim::new("dilution_min", what, "");
    outcome.claim(claim.at_least(0.98).measured(kept));
    Ok(outcome)
}

/// Runs panel (a) and adds its series and claims. Returns the least share of a guarantee that the
/// weights of a port left to a tenant in the runs without failures.
fn predictable(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<f64> {
    let mut rng = Rng::new(ctx.seed).fork(4);
    // T1 to T5 start at once, T6 and T8 to T10 between 2 and 6 s, and T7 at 8 s.
    let mut start = [-1.0; 10];
    for at in start.iter_mut().skip(5) {
        *at = 2.0 + 4.0 * rng.unit();
    }
    start[6] = 8.0;
    let seed = ctx.seed;
    let runs = bed::parallel(&PLANTS, |(mode, troubles, _)| {
        let plant = Plant { mode: *mode, troubles: troubles.unwrap_or_default(), seed };
        let view = Mutex::new(None);
        let system = |tenants: &[TenantSpec]| -> anyhow::Result<System> {
            let (system, done) = bed::qshare(tenants, Nanos::from_secs(INTERVAL), false, plant)?;
            *view.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            Ok(system)
        };
        let run = core::run(Demand::From(start), seed, Nanos::from_secs(A_SECS), system)?;
        let view = view.into_inner().unwrap_or_else(PoisonError::into_inner);
        let done = view.map(|done| *done.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((run, done.unwrap_or_default()))
    })?;
    let [first, ..] = &runs[..] else { return Ok(f64::NAN) };
    for tenant in 0..first.0.tenants {
        let name = format!("a: T{}", tenant + 1);
        outcome.series(&name, "Mbit/s", first.0.tenant_mbps(tenant));
    }
    let mut steady = f64::INFINITY;
    for ((_, troubles, name), (run, done)) in PLANTS.iter().zip(&runs) {
        steady_claims(outcome, (*name, troubles.is_some()), run, done);
        if troubles.is_none() {
            steady = steady.min(least(&run.kept()));
        }
    }
    Ok(steady)
}

/// Adds the series and claims of one run of panel (a). `name` is the end of their names.
fn steady_claims(outcome: &mut Outcome, (name, fails): (&str, bool), run: &Core, done: &Done) {
    let (ratio, used) = (run.least_of_entitled(), run.utilisation_pct());
    let what = match name {
        "" => String::new(),
        name => format!(", {}", name.trim_start_matches('_').replace('_', " ")),
    };
    let id = |id: &str| format!("{id}{name}");
    let statement =
        format!("lowest rate of a tenant in 0.1 s, divided by min(guarantee, demand){what}");
    // With failures the band is that of the live figure.
    let due = Claim::new(&id("min_rate_over_min_guarantee_demand"), statement, "").published(1.0);
    let due = due.at_least(if fails { 0.98 } else { 1.0 });
    outcome.claim(due.measured(least(&ratio)));
    let statement = format!("lowest use of the core in 0.1 s{what}");
    let core = Claim::new(&id("core_utilisation_pct"), statement, "%").published(100.0);
    let core = if fails { core } else { core.at_least(99.5) };
    outcome.claim(core.measured(least(&used)));
    let statement = format!("longest work of the controller in an interval{what}");
    let plan = Claim::new(&id("plan_s_max"), statement, "s");
    outcome.claim(plan.measured(done.longest.as_secs_f64()));
    if fails {
        let statement = format!("least share of a guarantee that weights left{what}");
        let kept = Claim::new(&id("dilution_min"), statement, "");
        outcome.claim(kept.measured(least(&run.kept())));
    }
    outcome.note(&id("intervals"), done.intervals);
    outcome.note(&id("tenants_promoted"), done.promoted);
    outcome.note(&id("plans_taken_back"), done.taken_back);
    outcome.note(&id("elements_failed"), done.failed);
    let after = run.kept().into_iter().filter(|(at, _)| *at >= 0.0);
    outcome.series(&format!("a: kept{name}"), "", after);
    outcome.series(&format!("a: least of what was due{name}"), "", ratio);
    outcome.series(&format!("a: core{name}"), "%", used);
}

/// Adds the series and claims of panels (b) and (c).
fn unpredictable(outcome: &mut Outcome, cases: &[Case], runs: &[Core]) {
    let of = |case: Case| cases.iter().position(|c| *c == case).map(|at| &runs[at]);
    let used = |case: Case| of(case).map_or(f64::NAN, |run| mean(&run.utilisation_pct()));
    let bound = |interval, shared, connections| Case::Bound { interval, shared, connections };
    for (shared, name, low) in [(false, "off", 91.0), (true, "on", 97.0)] {
        if let Some(run) = of(bound(INTERVAL, shared, CONNECTIONS)) {
            outcome.series(&format!("b: {name}"), "%", run.utilisation_pct());
        }
        let by = INTERVALS.map(|i| (number(i), used(bound(i, shared, CONNECTIONS))));
        outcome.series(&format!("c: {name}"), "%", by);
        let statement =
            format!("lowest use of the core, rate allocation {name}, intervals of 1 to 10 s");
        let claim = Claim::new(&format!("utilisation_pct_{name}_min"), statement, "%");
        outcome.claim(claim.published(91.0).at_least(low).measured(least(&by)));
    }
    let tcp = used(Case::Tcp { connections: CONNECTIONS });
    outcome.series("c: plain TCP", "%", INTERVALS.map(|i| (number(i), tcp)));
    let statement = "use of the core with plain TCP, which has no guarantees";
    outcome.claim(Claim::new("utilisation_pct_plain_tcp", statement, "%").measured(tcp));
    let numbers = [FEWER_AND_MORE[0], FEWER_AND_MORE[1], CONNECTIONS, FEWER_AND_MORE[2]];
    let by = |case: &dyn Fn(usize) -> Case| numbers.map(|n| (count(n), used(case(n))));
    outcome.series("d: off", "%", by(&|n| bound(INTERVAL, false, n)));
    let on = by(&|n| bound(INTERVAL, true, n));
    for (connections, (_, used)) in numbers.into_iter().zip(on) {
        if connections != CONNECTIONS {
            let what =
                format!("another reading, {connections} connections per VM: use of the core");
            let id = format!("utilisation_pct_on_of_{connections}");
            outcome.claim(Claim::new(&id, what, "%").published(91.0).measured(used));
        }
    }
    outcome.series("d: on", "%", on);
    outcome.series("d: plain TCP", "%", by(&|connections| Case::Tcp { connections }));
    let cut: u64 = runs.iter().map(|run| run.cuts.0).sum();
    let all: u64 = runs.iter().map(|run| run.cuts.1).sum();
    outcome.note("rates_cut_ppm", (cut * 1_000_000).checked_div(all));
}

fn least(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min)
}

fn mean(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|point| point.1).sum::<f64>() / count(points.len())
}

fn picture(record: &Record) -> Picture {
    // Live links are slower, so the guarantees differ.
    let guarantee = record.platform.get("guarantee_mbps").and_then(serde_json::Value::as_f64);
    let live = guarantee.is_some();
    let series = |name: &str| record.series(name).map(points).into_iter().flatten();
    let time = || Axis::linear("time, s");
    let used = || Axis::linear("use of the core, %").to(105.0);
    let mut rates = Panel::new("(a) predictable demand", time(), Axis::linear("Mbit/s"));
    for tenant in 1..=10 {
        rates = rates.line(format!("T{tenant}"), series(&format!("a: T{tenant}")));
    }
    let rates = rates.published("guarantee", guarantee.unwrap_or(94.0));
    let at_random = Panel::new("(b) unpredictable demand, interval 4 s", time(), used())
        .line("rate allocation off", series("b: off"))
        .line("rate allocation on", series("b: on"));
    let title = "QShare, Fig. 4: work-conserving guarantees on the testbed";
    if live {
        let core = Panel::new("the core in both", time(), used())
            .line("predictable", series("a: core"))
            .line("at random", series("b: live"))
            .published("paper", 91.0);
        return Picture::new(title).panel(rates).panel(core);
    }
    let by = |title, axis, part: &str| {
        Panel::new(title, axis, used())
            .line("rate allocation off", series(&format!("{part}: off")))
            .line("rate allocation on", series(&format!("{part}: on")))
            .thin_line("plain TCP", series(&format!("{part}: plain TCP")))
            .published("paper", 91.0)
    };
    let share = Axis::linear("share of a guarantee").from(0.0).to(1.5);
    let plans = Panel::new("(a) during plans", time(), share)
        .line("worst tenant's rate", series("a: least of what was due"))
        .line("the same, map per port", series("a: least of what was due_per_port_map"))
        .line("the same, with failures", series("a: least of what was due_troubled"))
        .steps("left by weights", series("a: kept"))
        .published("guarantee", 1.0);
    Picture::new(title)
        .panel(rates)
        .panel(plans)
        .panel(at_random)
        .panel(by("(c) by interval", Axis::linear("interval, s"), "c"))
        .panel(by("(d) by demand", Axis::linear("connections per VM"), "d"))
}
