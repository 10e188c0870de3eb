//! C2QoS, Fig. 5: the cost of a frame by rate, size and number of flows.
//!
//! # Problem
//!
//! Operators sell bandwidth, but the switch spends cycles. A cost model must convert bandwidth to
//! cycles.
//!
//! # Source
//!
//! C2QoS §III-B measures one VM on one I/O core. Each panel of Fig. 5 varies one of three
//! quantities: rate, frame size or number of flows. In Fig. 5, the quantities that a panel does not
//! vary stay at 10^5 frames/s, 1500 B or one flow. The figure checks three relations that the C2QoS
//! paper prints:
//!
//! - The cycles are proportional to the frame rate.
//! - Ingress of a 1500 B frame costs more than twice as much as ingress of a 64 B frame.
//! - Classification of many flows costs 1.67 times more than classification of one flow.
//!
//! # Approach: simulation
//!
//! In `sim` the production worker runs in the simulated testbed, and one VM sends at a fixed rate.
//! The figure's numbers come from the worker's counters ([`super::paper_counters`]):
//!
//! - Panel (a) shows the charged cycles, from 10^5 frames/s to the capacity of the link.
//! - Panels (b) and (c) show the cycles of each stage, sampled in one batch of 64.
//!
//! The figure compares the worker's counters with every number that the C2QoS paper states
//! ([`super::paper_platform::statements`]). A line fit of ingress cycles over frame sizes gives the
//! ingress cycles per frame and per byte.
//!
//! The true cost of a simulated frame comes from the cost table in [`super::paper_platform`], with
//! noise. The figure shows whether the worker charges cycles, samples stages and distinguishes
//! flows correctly. The figure also shows that the simulation's cost table agrees with the C2QoS
//! paper. The figure says nothing about other properties of the C2QoS paper's machine. The cost of
//! many flows in the cost table was fitted to a result of the C2QoS paper, so the figure is marked
//! as calibrated. The claim `classification_multiple_over_single_factor_1_67` shows the result if
//! the C2QoS paper's words "1.67 times more" mean a factor of 1.67.
//!
//! # Approach: live
//!
//! In `live` the figure measures the cost on this machine, between two VMs of the load generator
//! behind vhost-user ports. The live numbers come from the worker's counters: cycles of turns that
//! moved frames, and stages from one batch in 64. In panel (a) of Fig. 5 the rate varies from 20
//! to 80 % of the maximum rate of one core. In panels (b) and (c) of Fig. 5 the VM sends at its
//! maximum, so that batches are full. The picture scales the results of panels (b) and (c) of Fig.
//! 5 to 10^5 frames/s. The term "many flows" means 100,000 flows, of which the exact-match cache
//! holds 8,192.
//!
//! # Departures
//!
//! In Penstock, ingress copies only the start of a frame. Penstock's egress copies the rest of the
//! frame directly into the receiver's memory. In Penstock, a frame's size affects the cost of
//! egress, and hardly the cost of ingress. In the C2QoS paper's switch, a frame's size affects only
//! ingress. The figure still checks the C2QoS paper's claim that ingress of larger frames costs
//! more cycles.

use penstock_units::Nanos;

use super::paper_counters::{Load, count};
use super::paper_platform::{self as paper, Flows, Frame, Host, Stages};
use super::paper_testbed as testbed;
use crate::bench::live_pair::{LivePair, Stages as LiveStages};
use crate::evidence::stats::fit;
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use penstock_guest::load::{Rate, SizeMix};

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig5",
    source: "C2QoS §III-B, Fig. 5",
    about: "cycles of ingress, classification and egress by rate, size and flows",
    sim: Some(sim),
    live: Some(live),
    picture,
};

const STAGES: [&str; 3] = ["ingress", "classification", "egress"];
/// Sending rate in panels (b) and (c) of Fig. 5, in frames per second.
const RATE: f64 = paper::RATE;
/// Length of a measurement of the cycles in each stage, which the worker samples in one batch of
/// 64. [`CHARGED_FOR`] is the length of a measurement with counters that cover all batches.
const STAGES_FOR: Nanos = Nanos::from_secs(2);
const CHARGED_FOR: Nanos = Nanos::from_millis(500);

/// Adds a series for each stage, in millions of cycles per second.
fn add(outcome: &mut Outcome, panel: &str, rows: &[(f64, [f64; 3])]) {
    for (i, stage) in STAGES.iter().enumerate() {
        let values = rows.iter().map(|(x, cycles)| (*x, cycles[i] / 1e6));
        outcome.series(&format!("{panel} {stage}"), "Mcycles/s", values);
    }
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    let mut rates = Vec::new();
    let mut charged = Vec::new();
    // The link carries at most 8 × 10^5 frames/s of 1500 B.
    for rate in (1..=8).map(|n| f64::from(n) * RATE) {
        ctx.progress(0.05 * rate / RATE, "rates");
        let here = count(ctx, &Load::alone(1500, Flows::Single, rate), CHARGED_FOR)?;
        rates.push((here.rate, a_second(&here.frame, here.rate)));
        charged.push((here.rate, here.cycles));
    }
    add(&mut outcome, "a", &rates);
    let total = charged.iter().map(|(rate, cycles)| (*rate, cycles / 1e6));
    outcome.series("a all batches", "Mcycles/s", total);
    let stages = |size, flows| {
        ctx.progress(0.5, "sizes and flows");
        let here = count(ctx, &Load::alone(size, flows, RATE), STAGES_FOR)?;
        anyhow::Ok(a_second(&here.frame, RATE))
    };
    let mut sizes = Vec::new();
    for size in paper::SIZES {
        sizes.push((f64::from(size), stages(u16::try_from(size)?, Flows::Single)?));
    }
    add(&mut outcome, "b", &sizes);
    let one = sizes.last().map_or([f64::NAN; 3], |last| last.1);
    add(&mut outcome, "c", &[(1.0, one), (1e5, stages(1500, Flows::Multiple)?)]);
    outcome.claim(linearity(fit(&charged).r2));
    let ingress: Vec<_> = sizes.iter().map(|(size, stages)| (*size, stages[0] / RATE)).collect();
    let line = fit(&ingress);
    let what = "ingress cycles by the counters, from a line fit over frame sizes";
    outcome.claim(Claim::new("ingress_cycles_a_frame", what, "cycles").measured(line.intercept));
    outcome.claim(Claim::new("ingress_cycles_a_byte", what, "cycles").measured(line.slope));
    ctx.progress(0.7, "what the paper states");
    for statement in paper::statements(|stated| stated_load(ctx, stated))? {
        outcome.claim(claim_of(&statement));
    }
    other_reading(ctx, &mut outcome)?;
    Ok(outcome)
}

/// Adds the result for the interpretation that "1.67 times more" in the C2QoS paper means a factor
/// of 1.67.
fn other_reading(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let id = "classification_multiple_over_single_factor_1_67";
    let [parameter, fitted_to] = paper::TOLD;
    outcome.calibrated([parameter, fitted_to, &format!("1.67 times, {id}")]);
    let single = count(ctx, &Load::alone(64, Flows::Single, RATE), STAGES_FOR)?;
    let many = Load::alone(64, Flows::Multiple, RATE);
    let many = Load { many_flows: paper::CLASSIFICATION_IF_A_FACTOR, ..many };
    let many = count(ctx, &many, STAGES_FOR)?;
    let ratio = many.frame.stages.classification / single.frame.stages.classification;
    let what = "another reading: classification of many flows costs 1.67 times one flow's";
    outcome.claim(Claim::new(id, what, "ratio").published(1.67).measured(ratio));
    Ok(())
}

/// Returns the cycles per second that each stage takes at `rate` frames per second.
fn a_second(frame: &Frame, rate: f64) -> [f64; 3] {
    let Stages { ingress, classification, egress } = frame.stages;
    [ingress, classification, egress].map(|cycles| cycles * rate)
}

/// Runs a load for which the C2QoS paper has a statement. Returns the cost in cycles of a frame of
/// the load.
fn stated_load(ctx: &Context<'_>, stated: &paper::Stated) -> anyhow::Result<Frame> {
    let &(size, flows, host, rate) = stated;
    let load = Load::alone(size, flows, rate);
    let load = match host {
        Host::Alone => load,
        Host::TwoVms => load.of(2),
        Host::Section6a => load.of(4).remote(),
    };
    Ok(count(ctx, &load, STAGES_FOR)?.frame)
}

fn claim_of(statement: &paper::Statement) -> Claim {
    let claim = Claim::new(statement.id, statement.what, statement.unit).measured(statement.found);
    let claim = match statement.published {
        Some(value) => claim.published(value),
        None => claim,
    };
    match (statement.low, statement.high) {
        (Some(low), Some(high)) => claim.within(low, high),
        (Some(low), None) => claim.at_least(low),
        (None, Some(high)) => claim.at_most(high),
        (None, None) => claim,
    }
}

/// Sending rates of the live run, as shares of the maximum rate.
const SHARES: [f64; 7] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
const MANY_FLOWS: u32 = 100_000;

fn live(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let secs = ctx.live.secs.unwrap_or(0.5);
    let runs = ctx.live.runs.unwrap_or(3);
    ctx.progress(0.0, "starting the switch");
    let mut pair = LivePair::start(&ctx.live.bed, ctx.guard()?)?;
    let mut outcome = Outcome { platform: pair.describe(), ..Outcome::new() };
    outcome.note("secs", secs);
    outcome.note("runs", runs);
    let (mut done, all) = (0.0, 9.0 + 7.0);
    let mut measure = |at: &str, size: u16, flows: u32, rate: Rate| {
        ctx.progress(done / all, at);
        done += 1.0;
        pair.median(&SizeMix::fixed(size), flows, rate, secs, runs)
    };

    let full = measure("full rate of 1500 B", 1500, 1, Rate::Max)?;
    let mut rates = Vec::new();
    for share in SHARES {
        let offered = share * full.frames_per_sec;
        rates.push(measure("rates", 1500, 1, Rate::Frames(offered))?);
    }
    let mut sizes = Vec::new();
    for size in [64, 128, 256, 512, 1024] {
        sizes.push((f64::from(size), measure("sizes", size, 1, Rate::Max)?));
    }
    sizes.push((1500.0, full));
    let many = measure("flows", 1500, MANY_FLOWS, Rate::Max)?;

    let by_rate = |s: &LiveStages| (s.frames_per_sec, s.of_frame.map(|c| c * s.frames_per_sec));
    add(&mut outcome, "a", &rates.iter().map(by_rate).collect::<Vec<_>>());
    let busy: Vec<_> = rates.iter().map(|s| (s.frames_per_sec, s.busy_per_sec)).collect();
    let total = busy.iter().map(|(rate, cycles)| (*rate, cycles / 1e6));
    outcome.series("a all turns that moved frames", "Mcycles/s", total);
    let at_rate = |(x, s): &(f64, LiveStages)| (*x, s.of_frame.map(|c| c * RATE));
    add(&mut outcome, "b", &sizes.iter().map(at_rate).collect::<Vec<_>>());
    let flows = [(1.0, full), (f64::from(MANY_FLOWS), many)];
    add(&mut outcome, "c", &flows.iter().map(at_rate).collect::<Vec<_>>());
    claims(&mut outcome, fit(&busy).r2, full.of_frame[0] / sizes[0].1.of_frame[0], {
        many.of_frame[1] / full.of_frame[1]
    });
    Ok(outcome)
}

fn linearity(r2: f64) -> Claim {
    let what = "R^2 of a line fit of cycles per second over frames per second";
    Claim::new("pps_linearity_r2", what, "R^2").at_least(0.98).measured(r2)
}

fn claims(outcome: &mut Outcome, r2: f64, ingress: f64, classification: f64) {
    outcome.claim(linearity(r2));
    let what = "ingress cycles of 1500 B divided by those of 64 B";
    let claim = Claim::new("ingress_1500_over_64", what, "ratio");
    outcome.claim(claim.published(2.0).above(1.0).measured(ingress));
    let what = "classification cycles of many flows divided by those of one";
    let claim = Claim::new("classification_multiple_over_single", what, "ratio");
    outcome.claim(claim.published(1.67).above(1.0).measured(classification));
}

fn picture(record: &Record) -> Picture {
    let cycles = || Axis::linear("cycles, M/s");
    let mut rates = Panel::new("(a) by rate: 1500 B, one flow", Axis::linear("frames/s"), cycles());
    for (name, series) in record.series_of("a ") {
        rates = rates.series(name, series);
    }
    let bars = |title: &str, x: Axis, panel: &str| {
        let mut bars = Panel::new(title, x, cycles());
        for stage in STAGES {
            if let Some(series) = record.series(&format!("{panel} {stage}")) {
                let at = points(series)
                    .enumerate()
                    .map(|(i, (_, y))| (crate::evidence::stats::count(i), y));
                bars = bars.stack(stage, at);
            }
        }
        bars
    };
    let sizes = Axis::named("bytes of a frame", paper::SIZES.map(|s| s.to_string()));
    let flows = Axis::named("flows", ["one", "many"]);
    Picture::new(format!("C2QoS, Fig. 5: cost of a frame ({})", record.mode))
        .panel(rates)
        .panel(bars("(b) by size: 100,000 frames/s, one flow", sizes, "b"))
        .panel(bars("(c) by flows: 100,000 frames/s, 1500 B", flows, "c"))
}
