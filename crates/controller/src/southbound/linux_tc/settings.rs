//! Defines the settings of a Linux switch.

use penstock_units::BitsPerSecond;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of queues of each port, including the shared queue (2 to 16).
    pub queues: u8,
    /// Maximum number of frames that wait in each of a queue's two FIFOs. FIFOs of slow ports are
    /// shorter ([`Self::frames_at`]).
    pub frames: u32,
    /// HTB quantum of a queue with weight 1, in bytes. A queue with weight w has w times the
    /// quantum of a queue with weight 1. The division of spare bandwidth is exact only if even the
    /// smallest quantum has room for the largest frame. With segmentation offload, a frame has up
    /// to 64 KiB. Guaranteed rates do not depend on the quantum.
    pub quantum: u32,
}

/// Longest time in which a port sends all frames of a FIFO, in milliseconds.
const FIFO_MS: u64 = 25;
/// Bits of a full frame on a link, with preamble, gap and VLAN tag.
const FRAME_BITS: u64 = 12_336;
/// Frames that fit into any FIFO. Many connections need a frame each.
const FRAMES_LEAST: u32 = 64;

impl Settings {
    /// Returns the number of frames that wait in each FIFO of a port with the rate `rate`.
    ///
    /// When a queue changes hands, frames of the tenant that lost it still wait there. If they were
    /// more than the queue sends within the pause of a plan, they would delay the new tenant.
    #[must_use]
    pub fn frames_at(&self, rate: BitsPerSecond) -> u32 {
        let frames = rate.0.saturating_mul(FIFO_MS) / 1_000 / FRAME_BITS;
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        frames.clamp(FRAMES_LEAST.min(self.frames), self.frames)
    }
}

impl Default for Settings {
    /// Returns settings with eight queues of 500 frames, as in QShare. The default quantum fits
    /// Ethernet frames of 1,500 bytes.
    fn default() -> Self {
        Self { queues: 8, frames: 500, quantum: 1_600 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_ports_have_short_fifos() {
        let frames = |mbps: u64| Settings::default().frames_at(BitsPerSecond(mbps * 1_000_000));
        assert_eq!([1, 50, 200, 1_000, 100_000].map(frames), [64, 101, 405, 500, 500]);
        let short = Settings { frames: 20, ..Settings::default() };
        assert_eq!(short.frames_at(BitsPerSecond(0)), 20);
    }
}
