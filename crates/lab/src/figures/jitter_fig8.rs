//! VM jitter, Fig. 8: an RTP stream at a rate limit of 2 Mbit/s.
//!
//! **Problem.** A video's packets leave a VM evenly, and reach its viewers in bursts. **Source.**
//! VM jitter §V-B, Fig. 8: VLC streams a video by RTP from a VM limited to 2 Mbit/s, "consistent
//! with the output rate of the video", with Xen's credit every 50 ms, and smoothed; decoded by
//! Wireshark.
//!
//! **The stream.** Seven MPEG-TS packets (1,316 bytes) with RTP, UDP, IP and Ethernet headers are
//! frames of 1,370; their mean rate is the limit's. What an encoder's rate control leaves is a rate
//! that changes by up to 5 % every second; and the VM wakes up to 0.5 ms late to send; both by the
//! seed. Timestamps (90 kHz) say when each packet was due, as VLC's do for MPEG-TS. Frames and not
//! payload count against the limit.
//!
//! **What is compared.** RFC 3550's J, its mean over the stream of 60 s as received
//! ([`penstock_qos::delay::Jitter`]): token bucket over smooth. Values are not printed; the band is
//! the issue's. Live the same packets are due at the same times: `live/rtp.rs`.

use penstock_qos::delay::{Jitter, Variation};
use penstock_sim::Rng;
use penstock_units::{BitsPerSecond, Nanos};

use super::claim::Claim;
use super::experiment::{Context, Experiment};
use super::outcome::{Outcome, Record};
use super::picture::{Axis, Panel, Picture};
use super::shaped_vm::{Happened, Kind, Run, ShapedVm, ms};
use super::stats::count;

/// See the module's text.
pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig8",
    source: "VM jitter §V-B, Fig. 8",
    about: "an RTP stream under a token bucket of 50 ms, and smoothed",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig8),
    picture,
};

pub(crate) const RATE: BitsPerSecond = BitsPerSecond(2_000_000);
pub(crate) const FRAME: u32 = 1_370;
pub(crate) const SECS: u64 = 60;
/// Units of RTP's timestamps a second.
pub(crate) const CLOCK: u32 = 90_000;
/// The VM sends up to so much late.
const LATE: u64 = 500_000;
/// The queue's bytes.
const ROOM: u64 = 256 * 1024;

/// The stream's packets: when each is due, and when it is sent.
pub(crate) fn stream(seed: u64) -> Vec<(Nanos, Nanos)> {
    let mut noise = Rng::new(seed);
    let mean = u64::from(FRAME) * 8_000_000_000 / RATE.0;
    let (mut due, mut sent, mut scene, mut gap) = (0, 0, 0, mean);
    let mut packets = Vec::new();
    while due < SECS * 1_000_000_000 {
        if due >= scene {
            scene += 1_000_000_000;
            // 95.0 % to 105.0 % of the mean.
            gap = mean * 1_000 / (950 + noise.below(101));
        }
        // One after the other, however late the first was.
        sent = (due + noise.below(LATE + 1)).max(sent);
        packets.push((Nanos(due), Nanos(sent)));
        due += gap;
    }
    packets
}

/// A stream as it was received.
pub(crate) struct Received {
    /// Seconds, and J in ms after each packet.
    jitter: Vec<(f64, f64)>,
    /// Seconds, and ms that the packet took.
    delay: Vec<(f64, f64)>,
    j: Jitter,
    variation: Variation,
    /// Packets that did not arrive.
    pub dropped: u64,
}

impl Received {
    pub fn new() -> Self {
        let (j, variation) = (Jitter::new(CLOCK), Variation::new());
        Self { jitter: Vec::new(), delay: Vec::new(), j, variation, dropped: 0 }
    }

    /// A packet came at `at` that says `timestamp` and took `waited`, from any zeros that stay.
    pub fn packet(&mut self, at: Nanos, timestamp: u32, waited: Nanos) {
        self.j.record(at, timestamp);
        self.variation.record(waited);
        self.jitter.push((ms(at) / 1e3, ms(self.j.nanos())));
        self.delay.push((ms(at) / 1e3, ms(waited)));
    }

    /// Packets that came.
    pub fn packets(&self) -> usize {
        self.jitter.len()
    }

    /// The mean of J, in ms.
    pub fn mean(&self) -> f64 {
        self.jitter.iter().map(|point| point.1).sum::<f64>() / count(self.jitter.len())
    }

    fn max(&self) -> f64 {
        self.jitter.iter().map(|point| point.1).fold(0.0, f64::max)
    }
}

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

/// What streams under both shapers, in [`Kind::BOTH`]'s order, show.
pub(crate) fn conclude(outcome: &mut Outcome, both: [&Received; 2]) {
    for (kind, received) in Kind::BOTH.into_iter().zip(both) {
        let name = kind.name();
        outcome.note(&format!("{name} dropped"), received.dropped);
        outcome.series(&format!("{name} jitter"), "ms", thinned(&received.jitter));
        outcome.series(&format!("{name} delay"), "ms", received.delay.iter().copied().take(2_000));
        let id = name.replace('-', "_");
        let shown = [
            ("jitter_ms_mean", "mean of RFC 3550's J", received.mean()),
            ("jitter_ms_max", "greatest of RFC 3550's J", received.max()),
            (
                "ipdv_ms_p99",
                "99 % of RFC 3393's delay variations, without sign",
                ms(received.variation.sizes().percentile(99_000)),
            ),
        ];
        for (what, text, value) in shown {
            let claim = Claim::new(&format!("{id}_{what}"), format!("{name}: {text}"), "ms");
            outcome.claim(claim.measured(value));
        }
    }
    let what = "mean of RFC 3550's jitter, token bucket over smooth";
    let ratio = both[0].mean() / both[1].mean();
    outcome.claim(Claim::new("token_bucket_over_smooth", what, "").at_least(10.0).measured(ratio));
}

/// Every eighth point: more than a picture can show.
fn thinned(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + '_ {
    points.iter().copied().step_by(8)
}

fn picture(record: &Record) -> Picture {
    let panel = |title: &str, what: &str, y: &str| {
        let mut panel = Panel::new(title, Axis::linear("time, s"), Axis::linear(y));
        for kind in Kind::BOTH {
            if let Some(series) = record.series(&format!("{} {what}", kind.name())) {
                panel = panel.series(kind.name(), series);
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
