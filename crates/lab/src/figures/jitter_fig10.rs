//! VM jitter, Fig. 10: departures from the smooth shaper reach the rate limit, and its window stays
//! there.
//!
//! # Problem
//!
//! The smooth shaper keeps the spacing of frames within a window. The spacing window enforces the
//! configured rate only if the window matches the rate limit.
//!
//! # Source
//!
//! VM jitter §V-B, Fig. 10: the window adapts by itself during the experiments of Figs. 8 and 9.
//!
//! # Approach
//!
//! The initial window of the smooth shaper is four times too slow in one run, and four times too
//! fast in another run. The limit is 2 Mbit/s, and frames have random sizes from 64 to 1,514 bytes.
//! All claims about rates count the bytes of the frames that depart.
//!
//! - `rate_error_pct` is the error of the rate in the third interval of 1 s. The VM always has
//!   frames. The claim uses the run with the larger error.
//! - `settle_intervals` is the number of intervals after which all later intervals are settled. An
//!   interval is settled if its rate is within 2 % of the limit and the shaper's window contains
//!   the limit's frame spacing. The VM always has frames, and the claim uses the run that takes
//!   longer.
//! - `late_rate_error_pct` is the error of the rate from the third interval to the end, if frames
//!   arrive late. The VM sends [`BATCH`] frames at once, and the next frames [`PAUSE`] after the
//!   last departure. With a window around the limit's frame spacing, this VM gets less than its
//!   limit, so the shaper must measure what departs.
//!
//! `spacing_outside_window` counts departures after the first 10 s that are earlier or later than
//! the window allows. `spacing_outside_window` covers runs at 256 kbit/s, 2 Mbit/s, 8 Mbit/s and
//! 200 Mbit/s. At 200 Mbit/s frames depart in groups. The figure uses the departure times that the
//! shaper assigns. In the data path, the timing wheel delays a departure by up to 2 us more
//! ([`penstock_qos::wheel`]).
//!
//! The figure also shows how the shaper's window changes over time under the RTP stream of Fig. 8.
//! The live run in `live/spacing.rs` shows the departure times of frames instead of the shaper's
//! window.

use penstock_qos::shaper::{INTERVAL, Shaper, Smooth, Window};
use penstock_sim::Rng;
use penstock_sim::shaped_vm::{Run, ShapedVm};
use penstock_units::{BitsPerSecond, Nanos};

use crate::evidence::stats::ms;
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::jitter::shaper::{Kind, RATE};
use crate::jitter::spacing::{OFF, frame_ms, rate_error};
use crate::jitter::stream::{FRAME, stream};

pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig10",
    source: "VM jitter §V-B, Fig. 10",
    about: "departures from the smooth shaper reach the rate limit after a step, and stay there",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig10),
    picture,
};

/// Length of a run in seconds. The steady state begins after [`SETTLED`] seconds.
const SECS: u64 = 20;
const SETTLED: u64 = 10;
const RATES: [u64; 4] = [256_000, RATE.0, 8_000_000, 200_000_000];
/// Largest relative deviation of a settled interval's rate from the limit.
const NEAR: f64 = 0.02;
/// Number of frames that a VM with late frames sends at once.
const BATCH: u32 = 16;
/// Time from the last departure of a batch to the arrival of the next batch. At 2 Mbit/s, the
/// frames of a batch take 50 ms.
const PAUSE: Nanos = Nanos::from_millis(16);
/// Number of intervals after which the rate of a VM with late frames is measured.
const LATE_FROM: u64 = 2;

/// Measured rate and window of the shaper in one second of a run.
#[derive(Clone, Copy)]
struct Interval {
    /// Measured rate divided by the rate limit.
    rate: f64,
    window: Window,
}

#[derive(Default)]
struct Backlogged {
    intervals: Vec<Interval>,
    outside: u64,
    spacings: u64,
}

fn backlogged(rate: u64, off: f64, seed: u64) -> anyhow::Result<Backlogged> {
    let mut shaper = Smooth::new(BitsPerSecond(rate))?.off_by(off);
    let mut noise = Rng::new(seed);
    let mut run = Backlogged::default();
    let (mut last, mut group, mut bytes, mut end) = (Nanos(0), 0_u32, 0_u64, INTERVAL);
    loop {
        let length = length(&mut noise)?;
        let at = shaper.depart(Nanos(0), length);
        let window = shaper.window();
        while at >= end {
            run.intervals.push(Interval { rate: over(bytes, rate), window });
            (bytes, end) = (0, end + INTERVAL);
        }
        if at >= Nanos::from_secs(SECS) {
            return Ok(run);
        }
        if at > last && last >= Nanos::from_secs(SETTLED) {
            let (low, high) = (window.low * f64::from(group), window.high * f64::from(group));
            let spacing = ms(at.saturating_sub(last)) * 1e6;
            run.spacings += 1;
            // Departures are rounded to whole nanoseconds.
            run.outside += u64::from(spacing + 1.0 < low || spacing - 1.0 > high);
        }
        group = if at > last { length } else { group + length };
        bytes += u64::from(length);
        last = at;
    }
}

/// Returns the length of a frame, 64 to 1,514 bytes.
fn length(noise: &mut Rng) -> anyhow::Result<u32> {
    Ok(u32::try_from(64 + noise.below(1_451))?)
}

/// Returns the rate of a VM with late frames from [`LATE_FROM`] seconds to the end of a run, as a
/// multiple of the limit. The spacing of frames is wrong by the factor `off` at first.
fn late(off: f64, seed: u64) -> anyhow::Result<f64> {
    let mut shaper = Smooth::new(RATE)?.off_by(off);
    let mut noise = Rng::new(seed);
    let (mut arrival, mut bytes) = (Nanos(0), 0);
    loop {
        let mut last = arrival;
        for _ in 0..BATCH {
            let length = length(&mut noise)?;
            last = shaper.depart(arrival, length);
            if last >= Nanos::from_secs(SECS) {
                return Ok(over(bytes, RATE.0 * (SECS - LATE_FROM)));
            }
            if last >= Nanos::from_secs(LATE_FROM) {
                bytes += u64::from(length);
            }
        }
        arrival = last + PAUSE;
    }
}

/// Returns `bytes` per second as a multiple of `rate`, which is in bits per second.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn over(bytes: u64, rate: u64) -> f64 {
    bytes as f64 * 8.0 / rate as f64
}

/// Returns the number of intervals up to and including the last interval that is not settled.
fn settle(run: &Backlogged, rate: u64) -> usize {
    // Nanoseconds per byte at the rate limit.
    let due = over(1, rate) * 1e9;
    let settled =
        |i: &Interval| (i.rate - 1.0).abs() <= NEAR && i.window.low <= due && due <= i.window.high;
    run.intervals.iter().rposition(|interval| !settled(interval)).map_or(0, |last| last + 1)
}

fn add_window(outcome: &mut Outcome, name: &str, over_time: &[(f64, Window)]) {
    let end =
        |which: fn(&Window) -> f64| over_time.iter().map(move |(at, w)| (*at, frame_ms(which(w))));
    outcome.series(&format!("{name} low"), "ms", end(|w| w.low));
    outcome.series(&format!("{name} high"), "ms", end(|w| w.high));
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("rate_bps", RATE.0);
    let (mut slowest, mut outside, mut spacings) = (0, 0, 0);
    let (mut steps, mut late_error) = (Vec::new(), 0.0_f64);
    for (off, name) in OFF {
        late_error = late_error.max(100.0 * (late(off, ctx.seed)? - 1.0).abs());
        for rate in RATES {
            let run = backlogged(rate, off, ctx.seed)?;
            (outside, spacings) = (outside + run.outside, spacings + run.spacings);
            if rate != RATE.0 {
                continue;
            }
            slowest = slowest.max(settle(&run, rate));
            let seconds = || (1_u32..).map(f64::from);
            let windows: Vec<_> = seconds().zip(run.intervals.iter().map(|i| i.window)).collect();
            add_window(&mut outcome, name, &windows);
            let rates: Vec<f64> = run.intervals.iter().map(|i| i.rate).collect();
            outcome.series(&format!("{name} rate"), "of the limit", seconds().zip(rates.clone()));
            steps.push(rates);
        }
    }
    outcome.note("spacings", spacings);
    outcome.claim(rate_error(&steps, 1.0));
    let what = "error of the rate if frames arrive late, from the third interval on";
    let claim = Claim::new("late_rate_error_pct", what, "%");
    outcome.claim(claim.at_most(1.0).measured(late_error));
    let what = "intervals until rate and window stay settled, from a window four times off";
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let (slowest, outside) = (slowest as f64, outside as f64);
    outcome.claim(Claim::new("settle_intervals", what, "").at_most(2.0).measured(slowest));
    let what = "spacings outside the window in steady state";
    outcome
        .claim(Claim::new("spacing_outside_window", what, "").within(0.0, 0.0).measured(outside));
    add_window(&mut outcome, "rtp", &under_rtp(ctx.seed)?);
    Ok(outcome)
}

/// Returns the window after each second of Fig. 8's stream.
fn under_rtp(seed: u64) -> anyhow::Result<Vec<(f64, Window)>> {
    let mut run = Run::new(ShapedVm::new(Kind::Smooth.shaper(RATE)?, 256 * 1024));
    for (due, sent) in stream(seed) {
        run.at(sent, FRAME, due.0);
    }
    let (mut windows, mut happened, mut next) = (Vec::new(), Vec::new(), Nanos(0));
    while let Some(now) = run.step(Nanos(u64::MAX), &mut happened) {
        if now >= next
            && let Shaper::Smooth(smooth) = run.vm.shaper()
        {
            windows.push((ms(now) / 1e3, smooth.window()));
            next = now + INTERVAL;
        }
    }
    Ok(windows)
}

fn picture(record: &Record) -> Picture {
    let mut picture = Picture::new("VM jitter, Fig. 10: departures and window find the rate");
    for (name, title) in
        [(OFF[0].1, "(a) 4 x too slow"), (OFF[1].1, "(b) 4 x too fast"), ("rtp", "(c) under RTP")]
    {
        let y = Axis::linear("ms between frames of 1,500 B");
        let mut panel = Panel::new(title, Axis::linear("time, s"), y);
        for end in ["low", "high"] {
            if let Some(series) = record.series(&format!("{name} {end}")) {
                panel = panel.series(format!("window, {end} end"), series);
            }
        }
        // Only live runs record spacings.
        if let Some(series) = record.series(&format!("{name} spacing")) {
            panel = panel.points("departures", points(series));
        }
        picture = picture.panel(panel.published("the rate", frame_ms(4_000.0)));
    }
    let mut panel =
        Panel::new("(d) rate", Axis::linear("time, s"), Axis::linear("of the limit").to(1.5));
    for (_, name) in OFF {
        if let Some(series) = record.series(&format!("{name} rate")) {
            panel = panel.series(name, series);
        }
    }
    picture.panel(panel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn departures_reach_the_rate_and_spacing_stays_in_the_window_for_any_seed() {
        assert_holds("jitter-fig10", sim, &[1, 20]);
    }
}
