//! C2QoS, §VI-D: the cost of metering and scheduling.
//!
//! # Problem
//!
//! A switch that spends its core on decisions has sold cycles that it does not have.
//!
//! # Source
//!
//! C2QoS §VI-D, §V. Reading the counter takes 0.018 % of the I/O core. At 28 VMs, tokens and queues
//! take 2.08 % of another core that wakes every 50 us. A longer interval costs less and is less
//! accurate. In Penstock all of it runs on the I/O core, between two batches.
//!
//! # Approach: cost
//!
//! The cost is always measured on this machine, with the buckets and the schedule of the data path
//! ([`super::core_loop`]). It consists of a decision, a charge, and refills, whose frequency
//! depends on the interval. The TSC times each turn, and the read's own cost is subtracted. Between
//! two turns 48 KiB are copied through 8 MiB. This has the same effect on the caches as a batch of
//! 32 × 1518 B. The cost is the weighted sum of the median turn with a refill and the median turn
//! without one. The weights are the frequencies of these turns.
//!
//! The cost is shown as a share of a batch of 32 × 1518 B. In `sim` such a batch has the paper's
//! cost for that many VMs ([`super::paper_platform`]). In `live` the batch has the cost of such
//! frames on this machine, measured between two VMs of the load generator in the same run.
//!
//! # Approach: accuracy
//!
//! The accuracy comes from the simulation alone. 28 VMs are all backlogged. Together they bought
//! 95 % of the core, and each is limited to its purchase. The figure reports how much a VM's cycles
//! differ over windows of 10 ms, and how long it waits between two batches.
//!
//! # Comparison
//!
//! `overhead_pct_28` with 28 VMs, all busy, is compared with 0.5 %. `overhead_pct_1000_configured`
//! adds 972 silent VMs and must be within 10 % of `overhead_pct_28`. The cost of reading the
//! counter once a batch is separate, because every kind of metering pays it.

use std::hint::black_box;

use penstock_dataplane::tsc::{CycleCounter as _, Tsc};
use penstock_qos::c2tb::Mode as Bucket;
use penstock_sim::Rng;
use penstock_units::{CyclesPerSecond, Priority, TscRate, Weight};

use super::core_loop::{Bought, CoreLoop};
use super::paper_platform::{self as paper, Flows, Placement};
use crate::bench::live_pair::LivePair;
use crate::evidence::stats::{self, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record};
use penstock_guest::load::{Rate, SizeMix};

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-overhead",
    source: "C2QoS §VI-D",
    about: "what decisions, charges and refills cost, and what a longer interval saves and loses",
    sim: Some(sim),
    live: Some(live),
    picture,
};

const BUSY: u32 = 28;
const CONFIGURED: u32 = 1000;
const REFILL_US: u64 = 50;
const INTERVALS_US: [u64; 7] = [10, 20, 50, 100, 200, 500, 1000];
const VMS: [u32; 7] = [1, 4, 16, 28, 256, 1024, 4096];
/// Number of batches in one timing, and number of timings. The median of the timings counts.
const BATCHES: u32 = 4_000;
const ROUNDS: u32 = 9;
/// Frames of a batch and their size in bytes.
const FRAMES: f64 = 32.0;
const SIZE: u16 = 1518;

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let factor = paper::vms_factor(BUSY, Placement::OneNode);
    let batch = FRAMES * paper::cost(u32::from(SIZE), Flows::Single).total() * factor;
    let mut outcome = Outcome::new();
    outcome.note("hz", paper::HZ);
    measure(ctx, &mut outcome, batch)?;
    accuracy(ctx, &mut outcome)?;
    Ok(outcome)
}

fn live(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    ctx.progress(0.0, "starting the switch");
    let (secs, runs) = (ctx.live.secs.unwrap_or(0.5), ctx.live.runs.unwrap_or(5));
    let mut pair = LivePair::start(&ctx.live.bed, ctx.guard()?)?;
    let mut outcome = Outcome { platform: pair.describe(), ..Outcome::new() };
    let stages = pair.median(&SizeMix::fixed(SIZE), 1, Rate::Max, secs, runs)?;
    drop(pair);
    let frame = stages.busy_per_sec / stages.frames_per_sec;
    outcome.note("cycles_per_frame_1518", frame);
    measure(ctx, &mut outcome, FRAMES * frame)?;
    Ok(outcome)
}

/// Measures a batch's metering and scheduling on this machine, as a share of `batch` cycles.
fn measure(ctx: &Context<'_>, outcome: &mut Outcome, batch: f64) -> anyhow::Result<()> {
    let mut timer = Timer::new(batch);
    outcome.note("batch_cycles", batch);
    outcome.note("profile", if cfg!(debug_assertions) { "dev" } else { "release" });
    // The two measurements alternate, so that both see the machine in the same state.
    let (mut busy, mut configured) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        ctx.progress(0.3 * f64::from(round) / f64::from(ROUNDS), "28 of 28 and 28 of 1000 VMs");
        busy.push(timer.cycles(BUSY, BUSY, REFILL_US)?);
        configured.push(timer.cycles(BUSY, CONFIGURED, REFILL_US)?);
    }
    let percent = |cycles: f64| 100.0 * cycles / batch;
    let (busy, configured) = (percentile(&busy, 50.0), percentile(&configured, 50.0));
    for (name, series) in [("all busy", true), ("28 busy", false)] {
        let mut points = Vec::new();
        for (i, vms) in (0_u32..).zip(VMS) {
            ctx.progress(0.3 + 0.04 * f64::from(i), format_args!("{vms} VMs, {name}"));
            let cycles = timer.median(if series { vms } else { BUSY.min(vms) }, vms, REFILL_US)?;
            points.push((f64::from(vms), percent(cycles)));
        }
        outcome.series(&format!("cost by VMs, {name}"), "% of a batch", points);
    }
    let mut points = Vec::new();
    for interval in INTERVALS_US {
        ctx.progress(0.8, format_args!("refills every {interval} us"));
        points.push((us(interval), percent(timer.median(BUSY, BUSY, interval)?)));
    }
    outcome.series("cost by interval", "% of a batch", points);
    outcome.note("overhead_cycles_28", busy);
    outcome.note("overhead_cycles_1000_configured", configured);
    outcome.note("tsc_read_cycles", timer.read);
    outcome.note("tsc_read_pct", percent(timer.read));
    claims(outcome, percent(busy), percent(configured));
    Ok(())
}

fn claims(outcome: &mut Outcome, busy: f64, configured: f64) {
    let what = "decisions, charges and refills of 28 busy VMs, of a batch of 32 x 1518 B";
    // Published: 0.018 % of this core and 2.08 % of another.
    outcome
        .claim(Claim::new("overhead_pct_28", what, "%").published(2.098).below(0.5).measured(busy));
    let what = "the same with 972 silent VMs beside them: within 10 % of it";
    outcome.claim(
        Claim::new("overhead_pct_1000_configured", what, "%")
            .within(0.9 * busy, 1.1 * busy)
            .measured(configured),
    );
}

/// Times turns of a core loop.
struct Timer {
    batch: u64,
    /// Cycles of reading the counter.
    read: f64,
    frames: Vec<u8>,
    at: usize,
}

/// Bytes of a batch, and of the memory that batches go through.
const BATCH_BYTES: usize = 48 << 10;
const MEMORY: usize = 8 << 20;

impl Timer {
    fn new(batch: f64) -> Self {
        let reads: Vec<f64> = (0..1001)
            .map(|_| {
                let before = Tsc.now();
                cycles(Tsc.now().0.saturating_sub(before.0))
            })
            .collect();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "thousands")]
        let batch = batch as u64;
        Self { batch, read: percentile(&reads, 50.0), frames: vec![1; MEMORY], at: 0 }
    }

    /// Copies as much as a batch of frames does, to load the caches as frames do.
    fn copy_a_batch(&mut self) {
        let from = self.at;
        self.at = (self.at + 2 * BATCH_BYTES) % (MEMORY - 2 * BATCH_BYTES);
        self.frames.copy_within(from..from + BATCH_BYTES, from + BATCH_BYTES);
        black_box(&mut self.frames);
    }

    /// Cycles a batch with `busy` of `vms` VMs backlogged.
    fn cycles(&mut self, busy: u32, vms: u32, interval_us: u64) -> anyhow::Result<f64> {
        let core = TscRate::from_hz(paper::HZ);
        let sold = CyclesPerSecond(paper::HZ * 9 / 10 / u64::from(vms));
        let mut switch = CoreLoop::new(core, CyclesPerSecond(paper::HZ), interval_us, count(vms));
        for vm in 0..u64::from(vms) {
            let class = Priority::new(1 + vm % 4)?;
            let weight = Weight::new(1)?;
            let bought = Bought { entitlement: sold, weight, mode: Bucket::MinMax, class };
            switch.add(&bought, vm < u64::from(busy));
        }
        let batch = self.batch;
        // Silent buckets fill up first, as in a switch that has run for a while.
        while switch.now() < paper::HZ / 5 {
            switch.turn(|_| batch);
        }
        // Turns with a refill and without one are timed apart. The median of each excludes turns
        // that other programs on this machine delay.
        let mut took = [Vec::new(), Vec::new()];
        for _ in 0..BATCHES {
            self.copy_a_batch();
            let (refills, before) = (switch.refills(), Tsc.now());
            black_box(&mut switch).turn(|_| batch);
            let cycles = cycles(Tsc.now().0.saturating_sub(before.0)) - self.read;
            took[usize::from(switch.refills() > refills)].push(cycles.max(0.0));
        }
        let of = |took: &[f64]| if took.is_empty() { 0.0 } else { percentile(took, 50.0) };
        let shares = took.each_ref().map(|took| stats::count(took.len()) / f64::from(BATCHES));
        Ok(shares[0] * of(&took[0]) + shares[1] * of(&took[1]))
    }

    fn median(&mut self, busy: u32, vms: u32, interval_us: u64) -> anyhow::Result<f64> {
        let runs = (0..3).map(|_| self.cycles(busy, vms, interval_us));
        Ok(percentile(&runs.collect::<anyhow::Result<Vec<_>>>()?, 50.0))
    }
}

/// Adds the deviation from the purchase in windows of 10 ms, by refill interval, and the time that
/// a VM waits between two of its batches.
fn accuracy(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let (mut deviations, mut seconds, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for interval in INTERVALS_US {
        ctx.progress(0.9, format_args!("accuracy at {interval} us"));
        let found = accuracy_at(ctx.seed, interval)?;
        deviations.push((us(interval), found.window_p99_pct));
        seconds.push((us(interval), found.second_max_pct));
        waits.push((us(interval), found.wait_p99_us));
    }
    outcome.series("deviation over 10 ms, p99", "%", deviations);
    outcome.series("deviation over 1 s, worst", "%", seconds);
    outcome.series("wait between batches, p99", "us", waits);
    Ok(())
}

struct Accuracy {
    window_p99_pct: f64,
    second_max_pct: f64,
    wait_p99_us: f64,
}

fn accuracy_at(seed: u64, interval_us: u64) -> anyhow::Result<Accuracy> {
    let core = TscRate::from_hz(paper::HZ);
    let sold = paper::HZ * 95 / 100 / u64::from(BUSY);
    let mut switch = CoreLoop::new(core, CyclesPerSecond(paper::HZ), interval_us, count(BUSY));
    for _ in 0..BUSY {
        let (weight, class) = (Weight::new(1)?, Priority::new(8)?);
        let entitlement = CyclesPerSecond(sold);
        switch.add(&Bought { entitlement, weight, mode: Bucket::Strict, class }, true);
    }
    let factor = paper::vms_factor(BUSY, Placement::OneNode);
    let mean = FRAMES * paper::cost(1024, Flows::Single).total() * factor;
    let mut noise = Rng::new(seed);
    let mut last = vec![0; count(BUSY)];
    let (mut waits, mut windows) = (Vec::new(), Vec::new());
    let charged = |switch: &CoreLoop| -> Vec<f64> {
        (0..count(BUSY)).map(|slot| cycles(switch.charged(slot))).collect()
    };
    let window = paper::HZ / 100;
    let mut start = Vec::new();
    let mut before = Vec::new();
    for n in 0..=110_u64 {
        while switch.now() < n * window {
            let now = switch.now();
            switch.turn(|slot| {
                if n > 10 {
                    waits.push(cycles(now - last[slot]) * 1e6 / cycles(paper::HZ));
                }
                last[slot] = now;
                let draw = f64::from(u32::try_from(noise.below(1001)).unwrap_or(0));
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "small"
                )]
                let cost = (mean * (0.95 + draw / 10_000.0)) as u64;
                cost
            });
        }
        let now = charged(&switch);
        // The first tenth of a second is for settling.
        if n > 10 {
            let due = cycles(sold) / 100.0;
            windows
                .extend(now.iter().zip(&before).map(|(n, b)| 100.0 * ((n - b) / due - 1.0).abs()));
        } else if n == 10 {
            start.clone_from(&now);
        }
        before = now;
    }
    let due = cycles(sold);
    let second = before.iter().zip(&start).map(|(n, s)| 100.0 * ((n - s) / due - 1.0).abs());
    Ok(Accuracy {
        window_p99_pct: percentile(&windows, 99.0),
        second_max_pct: second.fold(0.0, f64::max),
        wait_p99_us: percentile(&waits, 99.0),
    })
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn cycles(count: u64) -> f64 {
    count as f64
}

fn us(interval: u64) -> f64 {
    cycles(interval)
}

fn count(vms: u32) -> usize {
    usize::try_from(vms).unwrap_or(usize::MAX)
}

fn picture(record: &Record) -> Picture {
    let line = |panel: Panel, label: &str, name: &str| match record.series(name) {
        Some(series) => panel.series(label, series),
        None => panel,
    };
    let share = || Axis::log("of a batch of 32 x 1518 B, %");
    let vms = Panel::new("(a) by number of VMs, refills every 50 us", Axis::log("VMs"), share());
    let vms = line(vms, "all busy", "cost by VMs, all busy");
    let vms =
        line(vms, "28 busy, the others silent", "cost by VMs, 28 busy").published("0.5 %", 0.5);
    let interval = || Axis::log("refill interval, us");
    let cost = Panel::new("(b) by refill interval, 28 busy VMs", interval(), share());
    let cost = line(cost, "cost", "cost by interval").published("0.5 %", 0.5);
    let mut picture =
        Picture::new(format!("C2QoS: overhead ({})", record.mode)).panel(vms).panel(cost);
    if record.series("wait between batches, p99").is_some() {
        let y = Axis::linear("from what was bought, %");
        let off = Panel::new("(c) accuracy, 28 VMs sold 95 % of the core", interval(), y);
        let off = line(off, "over 10 ms, p99", "deviation over 10 ms, p99");
        let off = line(off, "over 1 s, worst", "deviation over 1 s, worst");
        let y = Axis::linear("time, us");
        let wait = Panel::new("(d) between two batches of a VM, p99", interval(), y);
        let wait = line(wait, "p99", "wait between batches, p99");
        picture = picture.panel(off).panel(wait);
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_interval_is_never_less_accurate_over_a_second_than_one_percent() {
        for interval in [10, 50, 1000] {
            let found = accuracy_at(1, interval).unwrap();
            assert!(found.second_max_pct < 1.0, "{interval} us: {}", found.second_max_pct);
            assert!(found.wait_p99_us.is_finite() && found.window_p99_pct.is_finite());
        }
    }

    #[test]
    fn a_turn_costs_something_and_far_less_than_a_batch() {
        let mut timer = Timer::new(38_000.0);
        let cycles = timer.cycles(4, 4, 50).unwrap();
        assert!(cycles > 0.0 && cycles < 38_000.0, "{cycles}");
    }
}
