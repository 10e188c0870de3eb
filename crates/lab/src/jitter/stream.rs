//! The RTP stream of Fig. 8, and what its receiver finds, simulated and live.
//!
//! **The stream.** Seven MPEG-TS packets (1,316 bytes) with RTP, UDP, IP and Ethernet headers are
//! frames of 1,370; their mean rate is the limit's. What an encoder's rate control leaves is a rate
//! that changes by up to 5 % every second; and the VM wakes up to 0.5 ms late to send; both by the
//! seed. Timestamps (90 kHz) say when each packet was due, as VLC's do for MPEG-TS.

use penstock_qos::delay::{Jitter, Variation};
use penstock_sim::Rng;
use penstock_units::Nanos;

use super::shaper::{Kind, RATE};
use crate::evidence::stats::{count, ms};
use crate::evidence::{Claim, Outcome};

pub(crate) const FRAME: u32 = 1_370;
pub(crate) const SECS: u64 = 60;
/// Units of RTP's timestamps a second.
pub(crate) const CLOCK: u32 = 90_000;
/// The VM sends up to so much late.
pub(crate) const LATE: u64 = 500_000;

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
