//! C2QoS, §VI-D: the cost of metering and scheduling.
//!
//! # Problem
//!
//! Cycles that a switch spends on metering and scheduling cannot be sold to VMs.
//!
//! # Source
//!
//! C2QoS §VI-D, §V. In the C2QoS paper, reading the cycle counter takes 0.018 % of the I/O core.
//! With 28 VMs, the management of tokens and queues takes 2.08 % of another core, which wakes every
//! 50 us. If the core wakes less often, the management costs fewer cycles and is less accurate. In
//! Penstock all metering and scheduling runs on the I/O core, between batches.
//!
//! # Approach: cost
//!
//! Both modes measure the cost of metering and scheduling on this machine, with the buckets and the
//! schedule of the data path ([`super::core_loop`]). For each batch, the core loop decides which VM
//! is next and charges this VM. In some turns the core loop also refills the buckets. The refill
//! interval determines how often the buckets are refilled.
//!
//! The time-stamp counter (TSC) measures the cycles of each turn. The figure subtracts the cost of
//! reading the TSC from each measurement. Between two turns the figure copies 48 KiB within a
//! memory area of 8 MiB. The copy of 48 KiB affects the CPU caches like a batch of 32 × 1518 B. The
//! figure takes the median of turns with a refill and the median of turns without a refill. The
//! cost of metering and scheduling is the mean of the two medians, weighted by the frequencies of
//! turns with and without a refill.
//!
//! The figure shows the cost of metering and scheduling as a share of the cost of a batch of 32 ×
//! 1518 B. In `sim` the cost of a batch is the C2QoS paper's cost with 28 VMs
//! ([`super::paper_platform`]). In `live` the cost of a batch is measured on this machine, between
//! two VMs of the load generator.
//!
//! # Approach: accuracy
//!
//! Only the simulation measures accuracy. The core has 28 VMs, and all VMs are backlogged. Together
//! the 28 VMs bought 95 % of the core, and each VM is limited to its purchase. The figure reports
//! the deviation of a VM's cycles in windows of 10 ms and of 1 s, and its waits between two
//! batches.
//!
//! # Comparison
//!
//! `overhead_pct_28` is the cost with 28 busy VMs and must be below 0.5 %.
//! `overhead_pct_1000_configured` is the cost with 28 busy and 972 silent VMs, and must be within
//! 10 % of `overhead_pct_28`. The cost of reading the TSC once per batch is reported separately,
//! because every kind of metering has this cost.

use std::hint::black_box;

use penstock_dataplane::tsc::{CycleCounter as _, Tsc};
use penstock_qos::c2tb::Mode as Bucket;
use penstock_sim::Rng;
use penstock_units::{CyclesPerSecond, Priority, TscRate, Weight};

use super::core_loop::{Bought, CoreLoop};
use super::paper_platform::{self as paper, Flows, Placement};
use crate::bench::live_pair::LivePair;
use crate::evidence::stats::{self, float as cycles, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record};
use penstock_guest::load::{Rate, SizeMix};

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-overhead",
    source: "C2QoS §VI-D",
    about: "cost of decisions, charges and refills; effect of a longer interval",
    sim: Some(sim),
    live: Some(live),
    picture,
};

const BUSY: u32 = 28;
const CONFIGURED: u32 = 1000;
const REFILL_US: u64 = 50;
const INTERVALS_US: [u64; 7] = [10, 20, 50, 100, 200, 500, 1000];
const VMS: [u32; 7] = [1, 4, 16, 28, 256, 1024, 4096];
/// Number of batches in one measurement. The measured cost is the median of [`ROUNDS`]
/// measurements.
const BATCHES: u32 = 4_000;
const ROUNDS: u32 = 9;
/// Number of frames in a batch. [`SIZE`] is the size of a frame in bytes.
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

/// Measures the cost of metering and scheduling on this machine, relative to a batch that costs
/// `batch` cycles.
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
    let what =
        "decisions, charges and refills with 28 busy VMs, as a share of a batch of 32 x 1518 B";
    // The published value is the sum of 0.018 % of the I/O core and 2.08 % of another core.
    outcome
        .claim(Claim::new("overhead_pct_28", what, "%").published(2.098).below(0.5).measured(busy));
    let what = "the same with 972 more silent VMs; must be within 10 % of overhead_pct_28";
    let claim = Claim::new("overhead_pct_1000_configured", what, "%");
    outcome.claim(claim.within(0.9 * busy, 1.1 * busy).measured(configured));
}

/// Measures the cycles of the turns of a [`CoreLoop`].
struct Timer {
    batch: u64,
    /// Cycles that one read of the time-stamp counter takes.
    read: f64,
    frames: Vec<u8>,
    at: usize,
}

/// Size of a batch in bytes. [`MEMORY`] is the size of the memory area for copies.
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

    /// Copies as many bytes as a batch of frames has, so that the CPU caches change as if frames
    /// had passed.
    fn copy_a_batch(&mut self) {
        let from = self.at;
        self.at = (self.at + 2 * BATCH_BYTES) % (MEMORY - 2 * BATCH_BYTES);
        self.frames.copy_within(from..from + BATCH_BYTES, from + BATCH_BYTES);
        black_box(&mut self.frames);
    }

    /// Returns the cost of metering and scheduling per batch in cycles, if `busy` of `vms` VMs are
    /// backlogged.
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
        // The buckets of silent VMs fill up first, as in a switch that has run for a while.
        while switch.now() < paper::HZ / 5 {
            switch.turn(|_| batch);
        }
        // Turns with and without a refill have separate medians. The medians exclude turns that
        // other programs on this machine delay.
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

/// Adds two series by refill interval: deviations from the purchase, and waits between two batches
/// of a VM.
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
        // The first 0.1 s does not count.
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
