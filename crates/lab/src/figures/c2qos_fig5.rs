//! C2QoS, Fig. 5: what a frame costs by rate, size and number of flows.
//!
//! **Problem.** Bandwidth is sold, cycles are spent; the one must follow from the other.
//! **Source.** C2QoS §III-B: one VM, one I/O core; of rate, size and flows one is varied and the
//! others stay (1500 B, one flow, 10^5 frames/s). **What is compared.** The paper prints three
//! relations: cycles are proportional to the rate; ingress of 1500 B costs more than twice that of
//! 64 B; classification of many flows costs 1.67 times more than of one.
//!
//! **sim** is the table that all simulated figures start from ([`super::paper_platform`], with its
//! derivation), held against every number that the paper states about it. Nothing runs: a table
//! that is read back through a simulator says no more than the table.
//!
//! **live** measures them on this machine: two VMs of the load generator behind vhost-user ports,
//! the worker's own counters (cycles of its turns that moved frames; stages from every 64th batch).
//! The rate is varied from a fifth of what one core forwards to nearly all of it, paced; sizes and
//! flows are varied at full rate, so that batches are full, and are drawn as if at 10^5 frames/s.
//! Many flows are 100,000, of which the cache holds 8,192.
//!
//! **Departures.** Our switch copies a frame's body once, straight into the receiver's memory, in
//! egress; ingress copies its head. So egress knows a frame's size and ingress hardly does, where
//! the paper's has it the other way round; the claim is the published one all the same.

use super::claim::Claim;
use super::experiment::{Context, Experiment};
use super::outcome::{Outcome, Record};
use super::paper_platform::{self as paper, Flows};
use super::picture::{Axis, Panel, Picture, points};
use super::stats::fit;
use crate::bench::live_pair::{LivePair, Stages};
use crate::load::{Rate, SizeMix};

/// See the module's text.
pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig5",
    source: "C2QoS §III-B, Fig. 5",
    about: "cycles of ingress, classification and egress by rate, size and flows",
    sim: Some(sim),
    live: Some(live),
    picture,
};

const STAGES: [&str; 3] = ["ingress", "classification", "egress"];
/// Frames a second of panels (b) and (c).
const RATE: f64 = 1e5;

/// Adds a series for each stage: cycles a second in millions.
fn add(outcome: &mut Outcome, panel: &str, rows: &[(f64, [f64; 3])]) {
    for (i, stage) in STAGES.iter().enumerate() {
        let values = rows.iter().map(|(x, cycles)| (*x, cycles[i] / 1e6));
        outcome.series(&format!("{panel} {stage}"), "Mcycles/s", values);
    }
}

fn sim(_: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("hz", paper::HZ);
    let at = |rate: f64, size, flows| {
        let cost = paper::cost(size, flows);
        [cost.ingress, cost.classification, cost.egress].map(|cycles| cycles * rate)
    };
    let rates: Vec<_> =
        (1..=10).map(|n| f64::from(n) * 1e5).map(|r| (r, at(r, 1500, Flows::Single))).collect();
    add(&mut outcome, "a", &rates);
    let sizes = paper::SIZES.map(|size| (f64::from(size), at(RATE, size, Flows::Single)));
    add(&mut outcome, "b", &sizes);
    let flows = [(1.0, Flows::Single), (1e5, Flows::Multiple)].map(|(n, f)| (n, at(RATE, 1500, f)));
    add(&mut outcome, "c", &flows);
    for s in paper::statements() {
        let mut claim = Claim::new(s.id, s.what, s.unit).measured(s.table);
        if let Some(value) = s.published {
            claim = claim.published(value);
        }
        claim = match (s.low, s.high) {
            (Some(low), Some(high)) => claim.within(low, high),
            (Some(low), None) => claim.at_least(low),
            (None, Some(high)) => claim.at_most(high),
            (None, None) => claim,
        };
        outcome.claim(claim);
    }
    Ok(outcome)
}

/// Shares of the full rate at which the rate is varied.
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

    let by_rate = |s: &Stages| (s.frames_per_sec, s.of_frame.map(|c| c * s.frames_per_sec));
    add(&mut outcome, "a", &rates.iter().map(by_rate).collect::<Vec<_>>());
    let busy: Vec<_> = rates.iter().map(|s| (s.frames_per_sec, s.busy_per_sec)).collect();
    let total = busy.iter().map(|(rate, cycles)| (*rate, cycles / 1e6));
    outcome.series("a all turns that moved frames", "Mcycles/s", total);
    let at_rate = |(x, s): &(f64, Stages)| (*x, s.of_frame.map(|c| c * RATE));
    add(&mut outcome, "b", &sizes.iter().map(at_rate).collect::<Vec<_>>());
    let flows = [(1.0, full), (f64::from(MANY_FLOWS), many)];
    add(&mut outcome, "c", &flows.iter().map(at_rate).collect::<Vec<_>>());
    claims(&mut outcome, fit(&busy).r2, full.of_frame[0] / sizes[0].1.of_frame[0], {
        many.of_frame[1] / full.of_frame[1]
    });
    Ok(outcome)
}

fn claims(outcome: &mut Outcome, r2: f64, ingress: f64, classification: f64) {
    outcome.claim(
        Claim::new(
            "pps_linearity_r2",
            "cycles a second lie on a straight line over frames a second (R^2)",
            "R^2",
        )
        .at_least(0.98)
        .measured(r2),
    );
    outcome.claim(
        Claim::new(
            "ingress_1500_over_64",
            "ingress of 1500 B costs more than of 64 B; the paper's more than twice",
            "ratio",
        )
        .published(2.0)
        .above(1.0)
        .measured(ingress),
    );
    outcome.claim(
        Claim::new(
            "classification_multiple_over_single",
            "classification of many flows costs more than of one",
            "ratio",
        )
        .published(1.67)
        .above(1.0)
        .measured(classification),
    );
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
                let at = points(series).enumerate().map(|(i, (_, y))| (super::stats::count(i), y));
                bars = bars.stack(stage, at);
            }
        }
        bars
    };
    let sizes = Axis::named("bytes of a frame", paper::SIZES.map(|s| s.to_string()));
    let flows = Axis::named("flows", ["one", "many"]);
    Picture::new(format!("C2QoS, Fig. 5: what a frame costs ({})", record.mode))
        .panel(rates)
        .panel(bars("(b) by size: 100,000 frames/s, one flow", sizes, "b"))
        .panel(bars("(c) by flows: 100,000 frames/s, 1500 B", flows, "c"))
}
