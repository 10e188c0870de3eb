//! VM jitter, Fig. 11: under smoothing, the mean rate of TCP and UDP equals the limit.
//!
//! # Problem
//!
//! Smoothing must not make the rate less accurate.
//!
//! # Source
//!
//! In VM jitter §V-B, Fig. 11, Netperf sends TCP and UDP at limits of 4, 8, 16 and 32 Mbit/s. The
//! VM jitter paper has three runs of 60 s for each limit. The simulation adds limits of 200 Mbit/s
//! and 2 Gbit/s.
//!
//! # Approach
//!
//! The UDP sender sends frames of 1,514 bytes and keeps the shaper's queue of 128 KiB full.
//!
//! The TCP sender begins with slow start from ten segments. A loss halves the TCP window. After a
//! loss the window grows by one segment per round trip. A segment is lost if the shaper's queue is
//! full. The TCP sender's queue holds 256 KiB, or as many bytes as the rate limit passes in 20 ms
//! if that is more. An acknowledgement arrives at a random time 0.2 to 0.25 ms after the segment's
//! departure. At limits below 200 Mbit/s, a TCP segment has 1,514 bytes. At limits of 200 Mbit/s
//! and more, a segment has eight times 1,448 bytes and one header, as with TSO.
//!
//! The figure compares the limit with the rate of frame bytes in the 60 s after the first
//! departure. The claim uses the run with the largest deviation of the rate from the limit.

use anyhow::Context as _;
use penstock_sim::Rng;
use penstock_sim::bulk_tcp::BulkTcp;
use penstock_sim::shaped_vm::ShapedVm;
use penstock_units::{BitsPerSecond, Nanos};

use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::jitter::shaper::Kind;

pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig11",
    source: "VM jitter §V-B, Fig. 11",
    about: "the mean rate under smoothing, TCP and UDP, from 4 Mbit/s to 2 Gbit/s",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig11),
    picture,
};

const RATES: [u64; 6] = [4_000_000, 8_000_000, 16_000_000, 32_000_000, 200_000_000, 2_000_000_000];
const SECS: u64 = 60;
const RUNS: u64 = 3;
const FRAME: u32 = 1_514;
const SEGMENT: u32 = 8 * 1_448 + 66;
/// Lowest rate at which TCP sends large segments.
const LARGE_FROM: u64 = 200_000_000;

/// Returns the number of bytes that a UDP stream sends in 60 s.
fn udp(rate: u64, seed: u64) -> anyhow::Result<u64> {
    let mut vm = ShapedVm::new(Kind::Smooth.shaper(BitsPerSecond(rate))?, 128 * 1024);
    // The first frame arrives within 10 ms.
    let start = Nanos(Rng::new(seed).below(10_000_000));
    Ok(vm.keep_full(start, start + Nanos::from_secs(SECS), FRAME))
}

/// Returns the number of bytes that a TCP stream sends in 60 s.
fn tcp(rate: u64, seed: u64) -> anyhow::Result<u64> {
    let room = (rate / 8 / 50).max(256 * 1024);
    let vm = ShapedVm::new(Kind::Smooth.shaper(BitsPerSecond(rate))?, room);
    let segment = if rate >= LARGE_FROM { SEGMENT } else { FRAME };
    let mut noise = Rng::new(seed);
    let start = Nanos(noise.below(10_000_000));
    let bytes = BulkTcp::new(segment, noise).run(vm, start, Nanos::from_secs(SECS));
    bytes.context("the TCP stream has no frame and no acknowledgement in flight")
}

/// Simulates a stream with a rate limit in bit/s and a seed. Returns the number of bytes that leave
/// the shaper.
type Stream = fn(u64, u64) -> anyhow::Result<u64>;

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("secs", SECS);
    outcome.note("runs", RUNS);
    let mut worst: f64 = 0.0;
    let streams: [(&str, Stream); 2] = [("tcp", tcp), ("udp", udp)];
    for (done, (name, stream)) in (0_u32..).zip(streams) {
        let (mut got, mut errors) = (Vec::new(), Vec::new());
        for (at, rate) in (0_u32..).zip(RATES) {
            ctx.progress(f64::from(6 * done + at) / 12.0, format!("{name} at {rate} bit/s"));
            let mut sum = 0.0;
            let mut off: f64 = 0.0;
            for run in 0..RUNS {
                let part = over(stream(rate, ctx.seed * RUNS + run)?, rate);
                sum += part;
                off = off.max(100.0 * (part - 1.0).abs());
            }
            got.push((f64::from(at), 100.0 * sum / over_runs()));
            errors.push((f64::from(at), off));
            worst = worst.max(off);
        }
        outcome.series(name, "% of the limit", got);
        outcome.series(&format!("{name} error"), "%", errors);
    }
    let what = "largest deviation of a run's rate from its limit";
    outcome.claim(Claim::new("rate_error_pct_max", what, "%").at_most(1.0).measured(worst));
    Ok(outcome)
}

fn over_runs() -> f64 {
    f64::from(u32::try_from(RUNS).unwrap_or(1))
}

/// Returns the number of bytes of a run, divided by the number of bytes that `rate` allows in a
/// run.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn over(bytes: u64, rate: u64) -> f64 {
    bytes as f64 * 8.0 / (rate * SECS) as f64
}

fn picture(record: &Record) -> Picture {
    let names = ["4 M", "8 M", "16 M", "32 M", "200 M", "2 G"];
    let axis = || Axis::named("limit, bit/s", names);
    let series = |name: &str| record.series(name).map(points).into_iter().flatten();
    let mut rate = Panel::new("(a) rate", axis(), Axis::linear("% of the limit").to(110.0));
    let mut error = Panel::new("(b) largest deviation", axis(), Axis::linear("%").to(1.2));
    for (guest, of) in [("", ""), ("default_guest ", ", default guest")] {
        for (name, proto) in [("TCP", "tcp"), ("UDP", "udp")] {
            let (mean, worst) = (format!("{guest}{proto}"), format!("{guest}{proto} error"));
            if record.series(&mean).is_some() {
                rate = rate.bars(format!("{name}{of}"), series(&mean));
                error = error.bars(format!("{name}{of}"), series(&worst));
            }
        }
    }
    let rate = rate.published("the limit", 100.0);
    let error = error.published("highest that holds", 1.0);
    Picture::new("VM jitter, Fig. 11: the mean rate under smoothing").panel(rate).panel(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn the_mean_is_the_limit_for_any_seed() {
        assert_holds("jitter-fig11", sim, &[1]);
    }
}
