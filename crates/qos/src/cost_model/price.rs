//! Computes the expected cost of a batch in integers, so that workers can use it.
//!
//! If the core was preempted during a batch, the elapsed cycles exceed the cost of the batch. If
//! the core was preempted during a batch, the worker charges the price of the batch instead of the
//! elapsed cycles. The price of a batch is the sum of a cost per batch, a cost per frame and a cost
//! per byte, in fixed point.

use penstock_units::Cycles;

/// Number of fractional bits in the cost of a frame.
const FRAME_BITS: u32 = 8;
/// Number of fractional bits in the cost of a byte.
const BYTE_BITS: u32 = 16;

/// Price of a batch in cycles: a cost per batch, per frame and per byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchPrice {
    batch: u64,
    frame: u64,
    byte: u64,
}

impl BatchPrice {
    /// Makes a price from cycles per batch, per frame and per byte. Negative costs are raised to
    /// zero.
    #[must_use]
    pub fn new(batch: f64, frame: f64, byte: f64) -> Self {
        let fixed = |value: f64, bits: u32| fixed(value * f64::from(1_u32 << bits));
        Self {
            batch: fixed(batch, 0),
            frame: fixed(frame, FRAME_BITS),
            byte: fixed(byte, BYTE_BITS),
        }
    }

    /// Returns the price in cycles of a batch of `frames` frames with `bytes` bytes in total,
    /// without FCS. The price is rounded down to whole cycles; an overflow gives the largest value.
    #[inline]
    #[must_use]
    pub const fn of(&self, frames: u64, bytes: u64) -> Cycles {
        let frames = self.frame.saturating_mul(frames) >> FRAME_BITS;
        let bytes = self.byte.saturating_mul(bytes) >> BYTE_BITS;
        Cycles(self.batch.saturating_add(frames).saturating_add(bytes))
    }

    /// Returns the price of a batch as [`Self::of`] does; `None` if no price is set.
    #[inline]
    #[must_use]
    pub const fn of_batch(&self, frames: usize, bytes: usize) -> Option<Cycles> {
        if self.is_some() { Some(self.of(frames as u64, bytes as u64)) } else { None }
    }

    /// Returns whether a price for batches was set. A default `BatchPrice` is not set, and
    /// [`Self::of`] then returns 0.
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
