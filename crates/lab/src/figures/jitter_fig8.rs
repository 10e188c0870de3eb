//! VM jitter, Fig. 8: an RTP stream at a rate limit of 2 Mbit/s.
//!
//! # Problem
//!
//! A VM sends the packets of a video evenly, but the packets reach the viewers in bursts.
//!
//! # Source
//!
//! In VM jitter §V-B, Fig. 8, VLC streams a video by RTP from a VM. The VM is limited to 2 Mbit/s,
//! "consistent with the output rate of the video". The VM jitter paper compares Xen's rate limit,
//! which adds credit every 50 ms, with smoothing. Wireshark decodes the stream.
//!
//! # Approach
//!
//! [`crate::jitter::stream`] defines the RTP stream. The rate limit counts the bytes of frames, not
//! the bytes of payload.
//!
//! The figure compares the interarrival jitter J of RFC 3550, as the mean over the received stream
//! of 60 s ([`penstock_qos::delay::Jitter`]). The claim's value is the mean jitter J with the token
//! bucket, divided by the mean jitter J with smoothing. The VM jitter paper prints no values of the
//! jitter J, so the band is the figure's own requirement. The live run, `live/rtp.rs`, sends the
//! packets of the simulated stream at the simulated times.

use penstock_sim::shaped_vm::{Happened, Run, ShapedVm};
use penstock_units::Nanos;

use crate::evidence::{Axis, Context, Experiment, Outcome, Panel, Picture, Record};
use crate::jitter::shaper::{Kind, RATE};
use crate::jitter::stream::{CLOCK, FRAME, LATE, Received, conclude, stream};

pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig8",
    source: "VM jitter §V-B, Fig. 8",
    about: "an RTP stream under a token bucket of 50 ms, and smoothed",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig8),
    picture,
};

/// Size of the shaper's queue in bytes.
const ROOM: u64 = 256 * 1024;

fn receive(kind: Kind, seed: u64) -> anyhow::Result<Received> {
    let mut run = Run::new(ShapedVm::new(kind.shaper(RATE)?, ROOM));
    for (due, sent) in stream(seed) {
        run.at(sent, FRAME, due.0);
    }
    let (mut received, mut happened) = (Received::new(), Vec::new());
    while let Some(now) = run.step(Nanos(u64::MAX), &mut happened) {
        for event in &happened {
            let Happened::Departed(frame) = event else { continue };
            let units = u128::from(frame.tag) * u128::from(CLOCK) / 1_000_000_000;
            #[expect(clippy::cast_possible_truncation, reason = "timestamps go round")]
            received.packet(now, units as u32, now.saturating_sub(frame.arrived));
        }
    }
    received.dropped = run.vm.dropped;
    Ok(received)
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("rate_bps", RATE.0);
    outcome.note("frame_bytes", FRAME);
    outcome.note("late_us_max", LATE / 1_000);
    let [bucket, smooth] = Kind::BOTH.map(|kind| receive(kind, ctx.seed));
    conclude(&mut outcome, [&bucket?, &smooth?]);
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    let panel = |title: &str, what: &str, y: &str| {
        let mut panel = Panel::new(title, Axis::linear("time, s"), Axis::linear(y));
        for (guest, of) in [("", ""), ("default_guest ", ", default guest")] {
            for kind in Kind::BOTH {
                let name = format!("{guest}{} {what}", kind.name());
                if let Some(series) = record.series(&name) {
                    panel = panel.series(format!("{}{of}", kind.name()), series);
                }
            }
        }
        panel
    };
    Picture::new("VM jitter, Fig. 8: an RTP stream at a limit of 2 Mbit/s")
        .panel(panel("(a) jitter", "jitter", "RFC 3550's J, ms"))
        .panel(panel("(b) delay in the shaper", "delay", "ms"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn smoothing_takes_the_jitter_away_for_any_seed() {
        assert_holds("jitter-fig8", sim, &[1, 20]);
    }
}
