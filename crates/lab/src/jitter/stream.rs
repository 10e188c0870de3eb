//! The RTP stream of Fig. 8 and the measurements of its receiver, simulated and live.
//!
//! # Approach
//!
//! A frame has 1,370 bytes: seven MPEG-TS packets (1,316 bytes) and RTP, UDP, IP and Ethernet
//! headers. The mean rate of the stream's frames equals the rate limit.
//!
//! The stream's rate changes by up to 5 % every second, because an encoder's rate control is not
//! exact. The VM sends each packet up to 0.5 ms late. The stream's rate and the delays of packets
//! depend on the seed. As with VLC and MPEG-TS, a packet's timestamp (90 kHz) is the time at which
//! the packet is due.

use penstock_qos::delay::{Jitter, Variation};
use penstock_sim::Rng;
use penstock_units::Nanos;

use super::shaper::{Kind, RATE};
use crate::evidence::stats::{count, ms};
use crate::evidence::{Claim, Outcome};

pub(crate) const FRAME: u32 = 1_370;
pub(crate) const SECS: u64 = 60;
/// Frequency of RTP timestamps in Hz.
pub(crate) const CLOCK: u32 = 90_000;
/// Largest time in nanoseconds by which the VM sends a packet after the packet's due time.
pub(crate) const LATE: u64 = 500_000;

/// Returns the packets of the stream, as pairs of due time and sending time.
pub(crate) fn stream(seed: u64) -> Vec<(Nanos, Nanos)> {
    let mut noise = Rng::new(seed);
    let mean = u64::from(FRAME) * 8_000_000_000 / RATE.0;
    let (mut due, mut sent, mut scene, mut gap) = (0, 0, 0, mean);
    let mut packets = Vec::new();
    while due < SECS * 1_000_000_000 {
        if due >= scene {
            scene += 1_000_000_000;
            // 95.0 % to 105.0 % of the mean rate.
            gap = mean * 1_000 / (950 + noise.below(101));
        }
        // A late packet also delays the next packet, so that packets keep their order.
        sent = (due + noise.below(LATE + 1)).max(sent);
        packets.push((Nanos(due), Nanos(sent)));
        due += gap;
    }
    packets
}

/// Measurements of the stream's receiver.
pub(crate) struct Received {
    /// Interarrival jitter J after each packet, as pairs of seconds and ms.
    jitter: Vec<(f64, f64)>,
    /// Delay of each packet, as pairs of seconds and ms.
    delay: Vec<(f64, f64)>,
    j: Jitter,
    variation: Variation,
    /// Number of packets that did not arrive at the receiver.
    pub dropped: u64,
}

impl Received {
    pub fn new() -> Self {
        let (j, variation) = (Jitter::new(CLOCK), Variation::new());
        Self { jitter: Vec::new(), delay: Vec::new(), j, variation, dropped: 0 }
    }

    /// Records a packet's arrival time, RTP timestamp, and delay. The arrival time, the timestamp
    /// and the delay may come from clocks with different zero points. The zero point of a clock
    /// must not change during a run.
    pub fn packet(&mut self, at: Nanos, timestamp: u32, waited: Nanos) {
        self.j.record(at, timestamp);
        self.variation.record(waited);
        self.jitter.push((ms(at) / 1e3, ms(self.j.nanos())));
        self.delay.push((ms(at) / 1e3, ms(waited)));
    }

    /// Returns the number of packets that arrived at the receiver.
    pub fn packets(&self) -> usize {
        self.jitter.len()
    }

    /// Returns the mean of the interarrival jitter J, in ms.
    pub fn mean(&self) -> f64 {
        self.jitter.iter().map(|point| point.1).sum::<f64>() / count(self.jitter.len())
    }

    fn max(&self) -> f64 {
        self.jitter.iter().map(|point| point.1).fold(0.0, f64::max)
    }
}

/// Adds the series and claims for the streams of both shapers, in the order of [`Kind::BOTH`].
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
                "99th percentile of RFC 3393's delay variation, without sign",
                ms(received.variation.sizes().percentile(99_000)),
            ),
        ];
        for (what, text, value) in shown {
            let claim = Claim::new(&format!("{id}_{what}"), format!("{name}: {text}"), "ms");
            outcome.claim(claim.measured(value));
        }
    }
    let what = "mean of RFC 3550's J, token bucket divided by smooth";
    let ratio = both[0].mean() / both[1].mean();
    outcome.claim(Claim::new("token_bucket_over_smooth", what, "").at_least(10.0).measured(ratio));
}

/// Returns every eighth point, because a picture cannot show more points.
fn thinned(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + '_ {
    points.iter().copied().step_by(8)
}
