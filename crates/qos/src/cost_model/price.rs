//! What a batch should cost, in whole numbers: for a worker that must not compute with floats.
//!
//! **Problem.** When the core was taken away during a batch its cycles say nothing of what it
//! used. **Rule.** A batch costs something for being one, something for each frame and something
//! for each byte; fixed point, one multiplication each.

use penstock_units::Cycles;

/// Fraction bits of a frame's cost.
const FRAME_BITS: u32 = 8;
/// Fraction bits of a byte's cost.
const BYTE_BITS: u32 = 16;

/// The price of batches of one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchPrice {
    batch: u64,
    frame: u64,
    byte: u64,
}

impl BatchPrice {
    /// From cycles a batch, a frame and a byte; what is below zero is zero.
    #[must_use]
    pub fn new(batch: f64, frame: f64, byte: f64) -> Self {
        let fixed = |value: f64, bits: u32| fixed(value * f64::from(1_u32 << bits));
        Self {
            batch: fixed(batch, 0),
            frame: fixed(frame, FRAME_BITS),
            byte: fixed(byte, BYTE_BITS),
        }
    }

    /// What a batch of so many frames and so many bytes of them (without FCS, as counters have
    /// them) costs, rounded down, saturating.
    #[inline]
    #[must_use]
    pub const fn of(&self, frames: u64, bytes: u64) -> Cycles {
        let frames = self.frame.saturating_mul(frames) >> FRAME_BITS;
        let bytes = self.byte.saturating_mul(bytes) >> BYTE_BITS;
        Cycles(self.batch.saturating_add(frames).saturating_add(bytes))
    }

    /// The same; `None` if there is no price.
    #[inline]
    #[must_use]
    pub const fn of_batch(&self, frames: usize, bytes: usize) -> Option<Cycles> {
        if self.is_some() { Some(self.of(frames as u64, bytes as u64)) } else { None }
    }

    /// Whether there is one: the default is none, all batches are free.
    #[must_use]
    pub const fn is_some(&self) -> bool {
        self.batch | self.frame | self.byte != 0
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn fixed(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_costs_its_parts() {
        let price = BatchPrice::new(300.0, 62.5, 0.125);
        assert_eq!(price.of(32, 32 * 60), Cycles(300 + 2_000 + 240));
        assert_eq!(price.of(0, 0), Cycles(300));
        assert_eq!(BatchPrice::new(1.0, -5.0, f64::NAN).of(10, 10), Cycles(1));
        assert!(price.of(u64::MAX, u64::MAX).0 > 1 << 55, "saturates");
        assert!(price.is_some() && !BatchPrice::default().is_some());
    }
}
