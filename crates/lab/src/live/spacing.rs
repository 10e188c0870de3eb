//! VM jitter, Fig. 10, live: how far apart a shaped VM's frames leave, over time.
//!
//! # Problem
//!
//! The simulation sees the shaper's window. From outside, only departures can be seen.
//!
//! # Source
//!
//! VM jitter §V-B, Fig. 10.
//!
//! # Approach
//!
//! A VM always has frames of 1,500 bytes to send (iperf3, UDP). For [`BEFORE`] it is limited to a
//! quarter of 2 Mbit/s, or to four times that rate. Then its rate becomes 2 Mbit/s, and the window
//! is off by a factor of four. A capture at the receiver records when each frame came. The spacing
//! after a frame depends on that frame's length, and is scaled to 1,500 bytes. The measurement is
//! then repeated with Fig. 8's stream.
//!
//! A second is settled if it meets two conditions. Its rate is within 2 % of the limit, and its
//! median spacing is within the window of a shaper at that rate. The second half is the steady
//! state.
//!
//! # Departures
//!
//! A running shaper's window cannot be set, and a change of rate moves the window at once. The
//! simulation removes that move to show the controller, which cannot be seen here. Claims have no
//! band, because the receiver's core adds to the spacing.
//!
//! # Cost
//!
//! A run takes a minute and a half.

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
use crate::jitter::spacing::{OFF, frame_ms};
use crate::rig::plan::Plan;
use crate::rig::platform;
use penstock_guest::bed::Bed;
use penstock_guest::clock;

const FCS: u32 = 4;
/// Payload of a frame of 1,500 bytes with FCS.
const PAYLOAD: &str = "1454";
/// Rate that the VM offers, in bits per second: more than four times the limit.
const OFFERED: &str = "10000000";
/// Seconds at the other rate.
const BEFORE: f64 = 3.0;
/// Seconds at 2 Mbit/s.
const SECS: f64 = 20.0;
/// Seconds before the change that are shown. The beginning of connections is left out.
const SHOWN: f64 = 2.0;
/// Largest distance of a settled second's rate from the limit, as a fraction of the limit.
const NEAR: f64 = 0.02;
const SERVER: u16 = 5_201;

/// # Errors
///
/// Fails if a program is missing or fails.
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
    let (mut settled, mut outside) = (0, Vec::new());
    for ((off, name), done) in OFF.into_iter().zip([0.0, 0.35]) {
        context.progress(done, name);
        let departed = change(&bed, &mut stage, off, secs)?;
        show(&mut outcome, name, &departed);
        let rates = seconds(&departed, secs);
        settled = settled.max(settle(&rates, &window));
        let rates = rates.iter().zip(1_u32..).map(|(second, at)| (f64::from(at), second.rate));
        outcome.series(&format!("{name} rate"), "of the limit", rates);
        let steady = departed.iter().filter(|d| d.at >= secs / 2.0).map(|d| d.spacing);
        outside.extend(steady.map(|s| s < frame_ms(window.low) || s > frame_ms(window.high)));
    }
    context.progress(0.7, "an RTP stream");
    shape(&stage, Kind::Smooth, RATE)?;
    let due = rtp::due(context.seed, Some(secs));
    let video = rtp::video(stage.dir(), &due)?;
    let (_, frames) = rtp::play(&bed, &mut stage, &video, due.len())?;
    show(&mut outcome, "rtp", &departures(&frames, frames.first().map_or(Nanos(0), |f| f.at)));
    conclude(&mut outcome, settled, &outside);
    Ok(outcome)
}

/// A frame that departed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Departed {
    /// Seconds since the change. Negative before it.
    at: f64,
    /// Time until the next frame, in ms, scaled to 1,500 bytes.
    spacing: f64,
    /// Length with FCS.
    bytes: u32,
}

/// Captures the frames that depart around a change of the rate. Before the change the rate is wrong
/// by the factor `off`.
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

/// Lets seconds pass. A query to the switch during that time would take the receiver's core away.
fn pass(stage: &Stage, secs: f64) -> anyhow::Result<()> {
    stage.watch(secs, Duration::from_secs_f64(secs)).map(drop)
}

/// Times and spacings of the captured frames, from `zero` on.
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

/// A second after the change.
#[derive(Debug, Clone, Copy)]
struct Second {
    /// Rate, as a fraction of the limit.
    rate: f64,
    /// Median spacing, in ms, scaled to 1,500 bytes.
    spacing: f64,
}

/// The whole seconds after the change.
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

/// Number of seconds until all later seconds are settled.
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

    /// Frames of 1,500 bytes with FCS, at these milliseconds.
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
