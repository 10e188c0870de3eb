//! Live experiment for VM jitter's Fig. 10: the spacing of a shaped VM's departing frames over
//! time.
//!
//! # Problem
//!
//! The smooth shaper keeps the time between two frames within a window, and adapts the window to
//! the rate limit. The simulation can read the shaper's window. A live measurement can observe only
//! the times at which frames depart.
//!
//! # Source
//!
//! The experiment replays VM jitter §V-B, Fig. 10.
//!
//! # Approach
//!
//! A VM always has frames of 1,500 bytes to send (iperf3, UDP). For the first [`BEFORE`] seconds,
//! the VM's limit is four times too low or too high: 0.5 or 8 Mbit/s. After the first [`BEFORE`]
//! seconds, the VM's limit becomes 2 Mbit/s. A capture at the receiver records when each frame
//! arrives. The spacing after a frame depends on the frame's length, so the spacing is scaled to
//! 1,500 bytes. After the run with iperf3, the stream of Fig. 8 is measured in the same way, always
//! at 2 Mbit/s.
//!
//! `rate_error_pct` is the error of the rate in the third second after the change of the limit. The
//! claim uses the change with the larger error. The claim accepts at most [`MOST_PCT`] percent.
//!
//! A second is *settled* if the rate is within 2 % of the limit, and the median spacing is within
//! the window of a shaper at 2 Mbit/s. The second half of the run counts as steady state.
//!
//! # Departures
//!
//! The simulation starts with a wrong window, to show how the shaper corrects the window. A live
//! run cannot start with a wrong window of the shaper, because a change of the rate limit also
//! changes the window at once. The claims about spacings have no required range, because the
//! receiver's core adds to the spacing. The receiver's core does not change the number of bytes per
//! second.
//!
//! # Cost
//!
//! A run of the experiment takes a minute and a half.

use std::time::Duration;

use penstock_qos::shaper::{Smooth, Window};
use penstock_units::{BitsPerSecond, Nanos};

use super::capture::{Capture, Captured};
use super::needs::needs;
use super::rtp;
use super::shaped::{NET, NET_PLACE, VM, prompt_plan, shape};
use super::stage::Stage;
use crate::evidence::{Claim, Context, Outcome, percentile};
use crate::jitter::shaper::{Kind, RATE};
use crate::jitter::spacing::{OFF, frame_ms, rate_error};
use crate::rig::plan::Plan;
use crate::rig::platform;
use penstock_guest::bed::Bed;
use penstock_guest::clock;

const FCS: u32 = 4;
/// UDP payload in bytes of a frame of 1,500 bytes with FCS.
const PAYLOAD: &str = "1454";
/// Rate that the VM offers, in bits per second, which is above the highest limit.
const OFFERED: &str = "10000000";
/// Seconds at the start of a run for which the VM has a limit other than 2 Mbit/s.
const BEFORE: f64 = 3.0;
/// Seconds for which the VM has the limit of 2 Mbit/s.
const SECS: f64 = 20.0;
/// Number of seconds before the change of the limit that the figure shows. Frames that arrive more
/// than 2 s before the change belong to the start of connections.
const SHOWN: f64 = 2.0;
/// In a *settled* second, the rate of the VM's frames differs from the rate limit by at most this
/// fraction.
const NEAR: f64 = 0.02;
/// Largest error of the rate in the third second after a change, in percent. A second has 166.7
/// frames of 1,500 bytes, so one frame more or less is 0.6 %.
const MOST_PCT: f64 = 2.0;
const SERVER: u16 = 5_201;

/// Runs the live experiment of VM jitter's Fig. 10.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    needs("iperf3", "iperf3")?;
    rtp::needs_rtp()?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("rate_bps", RATE.0);
    let window = Smooth::new(RATE)?.window();
    outcome.note("window_ms", vec![frame_ms(window.low), frame_ms(window.high)]);
    let mut stage = Stage::start(&bed, "spacing", &prompt_plan())?;
    let (mut settled, mut outside, mut steps) = (0, Vec::new(), Vec::new());
    for ((off, name), done) in OFF.into_iter().zip([0.0, 0.35]) {
        context.progress(done, name);
        let departed = change(&bed, &mut stage, off, secs)?;
        show(&mut outcome, name, &departed);
        let rates = seconds(&departed, secs);
        settled = settled.max(settle(&rates, &window));
        let rates: Vec<f64> = rates.iter().map(|second| second.rate).collect();
        let at = (1_u32..).map(f64::from);
        outcome.series(&format!("{name} rate"), "of the limit", at.zip(rates.clone()));
        steps.push(rates);
        let steady = departed.iter().filter(|d| d.at >= secs / 2.0).map(|d| d.spacing);
        outside.extend(steady.map(|s| s < frame_ms(window.low) || s > frame_ms(window.high)));
    }
    context.progress(0.7, "an RTP stream");
    shape(&stage, Kind::Smooth, RATE)?;
    let due = rtp::due(context.seed, Some(secs));
    let video = rtp::video(stage.dir(), &due)?;
    let (_, frames) = rtp::play(&bed, &mut stage, &video, due.len())?;
    show(&mut outcome, "rtp", &departures(&frames, frames.first().map_or(Nanos(0), |f| f.at)));
    outcome.claim(rate_error(&steps, MOST_PCT));
    conclude(&mut outcome, settled, &outside);
    Ok(outcome)
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Departed {
    /// Seconds since the change of the rate. A frame that arrives before the change of the rate has
    /// a negative time.
    at: f64,
    /// Time until the next frame, in ms, scaled to 1,500 bytes.
    spacing: f64,
    /// Length of the frame in bytes, FCS included.
    bytes: u32,
}

/// Captures the frames around a change of the rate limit to [`RATE`]. Until the change of the
/// limit, the VM has a rate limit of [`RATE`] divided by `off`.
fn change(bed: &Bed, stage: &mut Stage, off: f64, secs: f64) -> anyhow::Result<Vec<Departed>> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of `OFF`")]
    let before = BitsPerSecond((crate::rig::stats::to_f64(RATE.0) / off) as u64);
    shape(stage, Kind::Smooth, before)?;
    let first = stage.programs();
    stage.start_program(bed, NET, "iperf3", &["-s"])?;
    stage.await_tcp(VM, NET_PLACE, SERVER)?;
    let server = Plan::ip(NET_PLACE).to_string();
    let capture = Capture::start(bed, stage, NET, &format!("ip dst host {server}"))?;
    let words = ["-c", &server, "-t", "600", "-u", "-l", PAYLOAD, "-b", OFFERED];
    stage.start_program(bed, VM, "iperf3", &words)?;
    pass(stage, BEFORE)?;
    let at = clock::since_1970();
    shape(stage, Kind::Smooth, RATE)?;
    pass(stage, secs)?;
    let (_, frames) = capture.end(stage)?;
    stage.end_programs(first..stage.programs());
    Ok(departures(&frames, at))
}

/// Waits `secs` seconds without querying the switch, because a query would compete for the
/// receiver's core.
fn pass(stage: &Stage, secs: f64) -> anyhow::Result<()> {
    stage.watch(secs, Duration::from_secs_f64(secs)).map(drop)
}

/// Returns the times (relative to `zero`) and spacings of the captured frames.
fn departures(frames: &[Captured], zero: Nanos) -> Vec<Departed> {
    let since = |from: Nanos, to: Nanos| {
        #[expect(clippy::cast_precision_loss, reason = "of a run")]
        let nanos = to.0.wrapping_sub(from.0).cast_signed() as f64;
        nanos / 1e9
    };
    let each = |pair: &[Captured]| {
        let bytes = pair[0].bytes + FCS;
        let spacing = 1e9 * since(pair[0].at, pair[1].at) / f64::from(bytes);
        Departed { at: since(zero, pair[0].at), spacing: frame_ms(spacing), bytes }
    };
    frames.windows(2).map(each).collect()
}

/// Measurements of frames in one second after the change of the rate limit.
#[derive(Debug, Clone, Copy)]
struct Second {
    /// Rate of the frames, as a fraction of the limit.
    rate: f64,
    /// Median spacing of the frames in ms, scaled to 1,500 bytes.
    spacing: f64,
}

/// Splits the frames after the change of the rate into whole seconds.
fn seconds(departed: &[Departed], secs: f64) -> Vec<Second> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of a length")]
    let whole = secs as u32;
    let second = |at: u32| {
        let within = f64::from(at)..f64::from(at + 1);
        let of: Vec<_> = departed.iter().filter(|d| within.contains(&d.at)).collect();
        let bytes: u32 = of.iter().map(|d| d.bytes).sum();
        let spacings: Vec<f64> = of.iter().map(|d| d.spacing).collect();
        let rate = f64::from(bytes) * 8.0 / crate::rig::stats::to_f64(RATE.0);
        Second { rate, spacing: percentile(&spacings, 50.0) }
    };
    (0..whole).map(second).collect()
}

/// Returns the time in seconds from the change of the rate limit to the end of the last second that
/// is not settled.
fn settle(seconds: &[Second], window: &Window) -> usize {
    let spacings = frame_ms(window.low)..=frame_ms(window.high);
    let settled = |s: &Second| (s.rate - 1.0).abs() <= NEAR && spacings.contains(&s.spacing);
    seconds.iter().rposition(|second| !settled(second)).map_or(0, |last| last + 1)
}

fn show(outcome: &mut Outcome, name: &str, departed: &[Departed]) {
    let points = departed.iter().filter(|d| d.at >= -SHOWN).map(|d| (d.at, d.spacing));
    outcome.series(&format!("{name} spacing"), "ms", points);
}

fn conclude(outcome: &mut Outcome, settled: usize, outside: &[bool]) {
    let count = |n: usize| crate::rig::stats::to_f64(n as u64);
    let what = "seconds from a rate four times off until rate and spacing stay right";
    outcome.claim(Claim::new("settle_intervals", what, "").measured(count(settled)));
    let out = outside.iter().filter(|out| **out).count();
    let what = "spacings outside of the window in steady state, as they arrive";
    let part = 100.0 * count(out) / count(outside.len());
    outcome.claim(Claim::new("spacing_outside_window_pct", what, "%").measured(part));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns captured frames of 1,500 bytes (FCS included) that arrive at the times `at` in
    /// milliseconds.
    fn frames(at: &[u64]) -> Vec<Captured> {
        let frame = |ms: &u64| Captured {
            at: Nanos::from_millis(1_000_000 + ms),
            bytes: 1_496,
            head: Vec::new(),
        };
        at.iter().map(frame).collect()
    }

    #[test]
    fn spacing_is_told_for_a_frame_of_1_500_bytes_and_from_the_change_on() {
        let mut frames = frames(&[0, 24, 30]);
        frames[1].bytes = 746;
        let departed = departures(&frames, Nanos::from_millis(1_000_012));
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(departed[0].at, -0.012) && near(departed[0].spacing, 24.0));
        assert!(near(departed[1].spacing, 12.0), "half of the bytes in 6 ms");
        assert_eq!(departed.len(), 2);
    }

    #[test]
    fn a_rate_is_settled_when_all_later_seconds_are() {
        // A frame leaves every 24 ms at first, and every 6 ms from 2 s on.
        let times: Vec<u64> = (0..83).map(|n| n * 24).chain((333..1_000).map(|n| n * 6)).collect();
        let departed = departures(&frames(&times), Nanos::from_millis(1_000_000));
        let seconds = seconds(&departed, 5.5);
        assert_eq!(seconds.len(), 5);
        let window = Smooth::new(RATE).unwrap().window();
        assert_eq!(settle(&seconds, &window), 2);
        assert_eq!(settle(&seconds[3..], &window), 0);
    }
}
