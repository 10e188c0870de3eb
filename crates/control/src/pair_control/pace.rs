//! Adapts the rate of a bucket to what passes it.
//!
//! # Problem
//!
//! TCP reaches about an eighth less than the rate of a bucket that drops frames. A sender of
//! datagrams reaches the whole rate. If all buckets had an eighth more than the pairs' rates, the
//! pairs with datagrams would take this eighth from the guarantees of other tenants.
//!
//! # Approach
//!
//! Each bucket begins with the larger headroom. A [`Pace`] keeps a moving average of the ratio of
//! the rate that passed to the rate that the pair may have. While the average exceeds the smaller
//! headroom by more than [`TOLERANCE`], the bucket's headroom shrinks. While it is below, the
//! headroom grows again.
//!
//! # Bounds
//!
//! The headroom stays between the smaller and the larger one. A pair that sends datagrams without
//! pause exceeds its rate by no more than the tolerance after about two seconds.

use penstock_units::Nanos;

/// One in the unit of ratios.
const ONE: i64 = 1_000_000;
/// Excess that leaves the headroom unchanged. Frames of a VM with one pair already wait for the
/// VM's own bucket, and the pair's bucket must not also drop some of them.
const TOLERANCE: i64 = ONE / 50;
/// Number of periods over which the ratio is averaged, and within which the headroom changes.
const PERIODS: i64 = 16;

/// Headroom of a bucket, and what passed the bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Total number of bytes that passed, which wraps.
    bytes: u64,
    /// Rate without headroom that was set last, in bits per second. 0 if none was set.
    rate: u64,
    /// Moving average of the ratio.
    mean: i64,
    /// Ratio of the bucket's rate to the rate without headroom.
    headroom: i64,
}

/// Returns thousandths in the unit of ratios.
fn ratio(permille: u32) -> i64 {
    i64::from(permille) * (ONE / 1_000)
}

impl Pace {
    /// Creates the pace of a bucket that `bytes` bytes have passed.
    pub(super) fn new(bytes: u64, most_permille: u32) -> Self {
        Self { bytes, rate: 0, mean: ONE, headroom: ratio(most_permille) }
    }

    /// Ends a period of the length `elapsed`. The arguments `least` and `most` are the smaller and
    /// the larger headroom in thousandths.
    pub(super) fn period_ends(&mut self, bytes: u64, elapsed: Nanos, (least, most): (u32, u32)) {
        let passed = bytes.wrapping_sub(self.bytes);
        self.bytes = bytes;
        let (least, most) = (ratio(least), ratio(most.max(least)));
        if self.rate > 0 && elapsed > Nanos::ZERO {
            let bits = u128::from(passed) * 8_000_000_000 * 1_000_000;
            let ratio = bits / (u128::from(self.rate) * u128::from(elapsed.0));
            // A pause must not hide a later excess, and a burst counts at most twice.
            let ratio = i64::try_from(ratio).unwrap_or(i64::MAX).clamp(ONE * 9 / 10, 2 * ONE);
            self.mean += (ratio - self.mean) / PERIODS;
            self.headroom += (least + TOLERANCE - self.mean) / PERIODS;
        }
        self.headroom = self.headroom.clamp(least, most);
    }

    /// Records the rate without headroom that is in force from now on, in bits per second. Returns
    /// the headroom in parts per million.
    pub(super) const fn set(&mut self, rate: u64) -> u64 {
        self.rate = rate;
        self.headroom.unsigned_abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(50);
    const RATE: u64 = 10_000_000;
    const HEADROOMS: (u32, u32) = (1_000, 1_125);

    /// Lets a sender reach `part` percent of its bucket's rate in `periods` periods. Returns the
    /// headroom.
    fn after(pace: &mut Pace, periods: u32, part: u64) -> u64 {
        for _ in 0..periods {
            let headroom = pace.set(RATE);
            let bytes = RATE / 8 / 20 * headroom / 1_000_000 * part / 100;
            pace.period_ends(pace.bytes.wrapping_add(bytes), PERIOD, HEADROOMS);
        }
        pace.set(RATE)
    }

    #[test]
    fn datagrams_lose_their_headroom_and_tcp_keeps_it() {
        let mut datagrams = Pace::new(u64::MAX - 5, 1_125);
        let headroom = after(&mut datagrams, 1, 100);
        assert!((1_120_000..=1_125_000).contains(&headroom), "{headroom}");
        let headroom = after(&mut datagrams, 100, 100);
        assert!((1_010_000..1_025_000).contains(&headroom), "{headroom}");
        let mut tcp = Pace::new(0, 1_125);
        assert_eq!(after(&mut tcp, 100, 88), 1_125_000);
        // What was taken from a sender of datagrams returns when the sender is one of TCP.
        let headroom = after(&mut datagrams, 100, 85);
        assert_eq!(headroom, 1_125_000);
    }

    #[test]
    fn a_plan_with_more_headroom_leaves_it_to_all() {
        let mut pace = Pace::new(0, 1_125);
        pace.set(RATE);
        pace.period_ends(100_000_000, PERIOD, (1_300, 1_125));
        assert_eq!(pace.set(RATE), 1_300_000);
        pace.period_ends(100_000_000, Nanos::ZERO, (1_000, 1_125));
        assert_eq!(pace.set(RATE), 1_125_000);
    }
}
