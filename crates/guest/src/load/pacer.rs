//! Decides when a VM may send its next frame.

use super::spec::Rate;

/// Paces the frames of a VM. The pacer earns credit at a rate in frames or bits per second. A frame
/// is due if the credit covers the frame's cost, which is 1 frame or the frame's number of bits.
#[derive(Debug)]
pub(crate) struct Pacer {
    rate: Rate,
    credit: f64,
    last_ns: u64,
}

/// Maximum sending credit of a VM, expressed as seconds of the VM's configured rate. After a longer
/// stall of the loop, a VM sends at most its maximum credit at once, and exceeds its rate only
/// briefly.
const KEEP_SECS: f64 = 0.002;

impl Pacer {
    pub fn new(rate: Rate, now_ns: u64) -> Self {
        Self { rate, credit: 0.0, last_ns: now_ns }
    }

    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
        self.credit = 0.0;
    }

    /// Discards all credit. The pacer earns new credit from the time `now_ns` on.
    pub fn restart(&mut self, now_ns: u64) {
        self.credit = 0.0;
        self.last_ns = now_ns;
    }

    /// Adds credit for the time since the last call. The credit is limited to the larger of two
    /// values: the rate times [`KEEP_SECS`], or a burst of `burst` frames.
    #[expect(clippy::cast_precision_loss, reason = "a turn takes far less than 2^52 ns")]
    pub fn advance(&mut self, now_ns: u64, burst: usize) {
        let secs = now_ns.saturating_sub(self.last_ns) as f64 * 1e-9;
        self.last_ns = now_ns;
        let (per_sec, least) = match self.rate {
            Rate::Max | Rate::Stop => return,
            Rate::Frames(frames) => (frames, burst as f64),
            Rate::Bits(bits) => (bits, burst as f64 * 1518.0 * 8.0),
        };
        self.credit = (self.credit + per_sec * secs).min((per_sec * KEEP_SECS).max(least));
    }

    /// Whether a frame of `size` bytes, including the FCS, may be sent now.
    #[inline]
    pub fn due(&self, size: u16) -> bool {
        self.cost(size).is_some_and(|cost| self.credit >= cost)
    }

    /// Subtracts the cost of a frame that was due.
    #[inline]
    pub fn pay(&mut self, size: u16) {
        self.credit -= self.cost(size).unwrap_or(0.0);
    }

    #[inline]
    fn cost(&self, size: u16) -> Option<f64> {
        match self.rate {
            Rate::Max => Some(0.0),
            Rate::Stop => None,
            Rate::Frames(_) => Some(1.0),
            Rate::Bits(_) => Some(f64::from(size) * 8.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(rate: Rate, size: u16, step_ns: u64, secs: u64) -> u64 {
        let mut pacer = Pacer::new(rate, 0);
        let mut count = 0;
        for turn in 1..=secs * 1_000_000_000 / step_ns {
            pacer.advance(turn * step_ns, 32);
            while pacer.due(size) {
                pacer.pay(size);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn rates_are_met_within_a_frame_in_a_thousand() {
        assert!((99_990..=100_000).contains(&sent(Rate::Frames(100_000.0), 64, 777, 1)));
        // 10 Mbit/s of 1,250-byte frames are 1,000 frames per second.
        assert!((999..=1000).contains(&sent(Rate::Bits(1e7), 1250, 3_331, 1)));
        assert_eq!(sent(Rate::Stop, 64, 1_000_000, 1), 0);
    }

    #[test]
    fn a_stall_is_not_made_good_beyond_its_bound() {
        let mut pacer = Pacer::new(Rate::Frames(1e6), 0);
        pacer.advance(1_000_000_000, 32);
        let mut caught_up = 0;
        while pacer.due(64) {
            pacer.pay(64);
            caught_up += 1;
        }
        assert_eq!(caught_up, 2000);
    }
}
