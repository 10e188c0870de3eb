//! `token-bucket`: the baseline shaper, with its refill period as a parameter.
//!
//! # Source
//!
//! VM jitter §II-C, Fig. 3: Xen's network back end adds a VM's credit every 50 ms.
//!
//! # Approach
//!
//! At the end of each period the level rises by rate × period, up to the depth. A frame that the
//! level covers departs at once. Other frames wait for the period after which the level covers
//! them. A frame longer than the depth departs when the bucket is full, and the bucket then goes
//! into debt. Over any time t, at most max(depth, one frame) + rate × (t + a period) departs.
//!
//! # Departures
//!
//! Xen starts a period when credit is first needed after the previous period. Here periods lie on a
//! fixed grid.
//!
//! # Cost
//!
//! A departure takes O(1), with a division if periods have passed.

use penstock_units::{BitsPerSecond, Nanos};

use super::{FRAME, FRAME_MAX, PARTS, RateError, checked};

/// Xen's period (the paper's "every 50ms").
pub const PERIOD_OF_XEN: Nanos = Nanos::from_millis(50);
/// Longest refill period.
const PERIOD_MAX: Nanos = Nanos::from_millis(400);

/// A token bucket that is refilled once a period.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: BitsPerSecond,
    period: Nanos,
    level: i64,
    depth: i64,
    /// End of the last period for which tokens were added, in ns.
    at: u64,
    last: Nanos,
}

impl TokenBucket {
    /// A full bucket that is as deep as one period's tokens plus a frame. The period is clamped to
    /// 1 µs to 400 ms.
    ///
    /// # Errors
    /// The rate is out of range.
    pub fn new(rate: BitsPerSecond, period: Nanos) -> Result<Self, RateError> {
        let rate = checked(rate)?;
        let period = period.clamp(Nanos(1_000), PERIOD_MAX);
        let mut bucket = Self { rate, period, level: 0, depth: 0, at: 0, last: Nanos(0) };
        bucket.depth = bucket.full();
        bucket.level = bucket.depth;
        Ok(bucket)
    }

    /// Parts that a period adds. 10 Gbit/s × 400 ms is 4 × 10^18, within 62 bits.
    fn worth(&self) -> i64 {
        i64::try_from(self.rate.0.saturating_mul(self.period.0)).unwrap_or(i64::MAX / 2)
    }

    /// Depth in parts: a period's tokens plus a frame. A remainder below a frame is kept for the
    /// next period.
    fn full(&self) -> i64 {
        self.worth() + i64::from(FRAME) * PARTS
    }

    /// Configured rate, between [`super::RATE_MIN`] and [`super::RATE_MAX`].
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// See [`super::Shaper::set_rate`]. The bucket keeps its tokens, up to the new depth.
    ///
    /// # Errors
    /// The rate is out of range.
    pub fn set_rate(&mut self, rate: BitsPerSecond) -> Result<(), RateError> {
        self.rate = checked(rate)?;
        self.depth = self.full();
        self.level = self.level.min(self.depth);
        Ok(())
    }

    /// Computes the departure of the next frame as in [`super::Shaper::depart`].
    pub fn depart(&mut self, arrival: Nanos, bytes: u32) -> Nanos {
        let now = arrival.max(self.last);
        self.refill((now.0.saturating_sub(self.at)) / self.period.0);
        let parts = i64::from(bytes.min(FRAME_MAX)) * PARTS;
        let short = parts.min(self.depth) - self.level;
        let mut departs = now;
        if short > 0 {
            let periods = short.unsigned_abs().div_ceil(self.worth().unsigned_abs());
            self.refill(periods);
            departs = Nanos(self.at).max(now);
        }
        self.level -= parts;
        self.last = departs;
        departs
    }

    fn refill(&mut self, periods: u64) {
        self.at = self.at.saturating_add(periods.saturating_mul(self.period.0));
        let room = (self.depth - self.level).unsigned_abs();
        let more = self.worth().unsigned_abs().saturating_mul(periods).min(room);
        self.level += i64::try_from(more).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A period of 50 ms at 2 Mbit/s adds 12,500 bytes. Eight frames of 1,500 bytes depart at once,
    /// then none for 50 ms. A ninth departs at first, and whenever the remainders suffice.
    #[test]
    fn a_period_of_fifty_milliseconds_alternates_burst_and_wait() {
        let mut bucket = TokenBucket::new(BitsPerSecond(2_000_000), PERIOD_OF_XEN).unwrap();
        let departs: Vec<u64> =
            (0..25).map(|_| bucket.depart(Nanos(1), 1_500).0 / 1_000_000).collect();
        let at = |ms: u64| departs.iter().filter(|d| **d == ms).count();
        assert_eq!([at(0), at(50), at(100)], [9, 8, 8], "{departs:?}");
    }

    #[test]
    fn a_short_period_is_nearly_none() {
        let rate = BitsPerSecond(80_000_000);
        let mut bucket = TokenBucket::new(rate, Nanos::from_micros(10)).unwrap();
        let last = (0..1_000).map(|_| bucket.depart(Nanos(0), 1_000)).last().unwrap();
        // The rate is 10 bytes per microsecond. The bucket starts with a frame of 1,514 bytes and a
        // period's 100 bytes.
        assert!(last.0.abs_diff(99_840_000) < 10_000, "{last:?}");
    }

    #[test]
    fn a_frame_longer_than_the_bucket_leaves_a_debt() {
        let mut bucket = TokenBucket::new(BitsPerSecond(2_000_000), PERIOD_OF_XEN).unwrap();
        assert_eq!(bucket.depart(Nanos(0), 50_000), Nanos(0));
        // 14,014 bytes were available, so the bucket owes 35,986 bytes and needs another 12,500.
        assert_eq!(bucket.depart(Nanos(0), 12_500), Nanos::from_millis(200));
        assert_eq!(bucket.depart(Nanos::from_secs(9), 60), Nanos::from_secs(9));
        assert!(TokenBucket::new(BitsPerSecond(1), PERIOD_OF_XEN).is_err());
    }
}
