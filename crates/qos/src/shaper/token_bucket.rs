//! The shaper `token-bucket` is the baseline to which [`super::Smooth`] is compared. The caller
//! chooses the refill period of the token bucket.
//!
//! # Source
//!
//! The source is "Defeating Network Jitter for Virtual Machines" §II-C, Fig. 3. In Xen, the network
//! back end adds a VM's credit every 50 ms.
//!
//! # Approach
//!
//! At the end of each period, the level of the bucket rises by rate × period, up to the depth. If
//! the bucket's level covers the frame's length, the frame departs without a wait. If the bucket's
//! level does not cover a frame, the frame departs at the end of the first period that raises the
//! level enough. A frame longer than the bucket's depth departs when the bucket is full, and the
//! bucket then goes into debt. In any time t, the bytes that depart are at most max(depth, one
//! frame) + rate × (t + one period).
//!
//! # Departures
//!
//! Xen starts a new period when a frame needs credit after the end of the previous period. In
//! Penstock, the periods of a token bucket follow each other without gaps.
//!
//! # Cost
//!
//! Computing a departure takes O(1); a division is necessary if a period has ended.

use penstock_units::{BitsPerSecond, Nanos};

use super::{FRAME, FRAME_MAX, PARTS, RateError, checked};

/// Refill period of the token bucket in Xen (50 ms).
pub const PERIOD_OF_XEN: Nanos = Nanos::from_millis(50);
/// Longest refill period of a token bucket.
const PERIOD_MAX: Nanos = Nanos::from_millis(400);

/// A token bucket that is refilled at the end of each period.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: BitsPerSecond,
    period: Nanos,
    level: i64,
    depth: i64,
    /// End in ns of the last period whose tokens were added to the bucket.
    at: u64,
    last: Nanos,
}

impl TokenBucket {
    /// Returns a full token bucket. The depth of the token bucket is the number of tokens of one
    /// period plus the length of one frame. The argument `period` is limited to 1 µs to 400 ms.
    ///
    /// # Errors
    /// Returns an error if the rate is out of range.
    pub fn new(rate: BitsPerSecond, period: Nanos) -> Result<Self, RateError> {
        let rate = checked(rate)?;
        let period = period.clamp(Nanos(1_000), PERIOD_MAX);
        let mut bucket = Self { rate, period, level: 0, depth: 0, at: 0, last: Nanos(0) };
        bucket.depth = bucket.full();
        bucket.level = bucket.depth;
        Ok(bucket)
    }

    /// Returns how much a period raises the bucket's level, in parts of a byte. The maximum, 10
    /// Gbit/s × 400 ms, is 4 × 10^18 parts and fits into 62 bits.
    fn worth(&self) -> i64 {
        i64::try_from(self.rate.0.saturating_mul(self.period.0)).unwrap_or(i64::MAX / 2)
    }

    /// Returns the depth in parts of a byte: the tokens of a period plus a frame. With one frame of
    /// extra depth, the bucket keeps tokens that are too few for a frame at the next refill.
    fn full(&self) -> i64 {
        self.worth() + i64::from(FRAME) * PARTS
    }

    /// Configured rate of the shaper, between [`super::RATE_MIN`] and [`super::RATE_MAX`].
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// Changes the rate as in [`super::Shaper::set_rate`]. The bucket keeps its tokens, up to the
    /// depth that belongs to the new rate.
    ///
    /// # Errors
    /// Returns an error if the rate is out of range.
    pub fn set_rate(&mut self, rate: BitsPerSecond) -> Result<(), RateError> {
        self.rate = checked(rate)?;
        self.depth = self.full();
        self.level = self.level.min(self.depth);
        Ok(())
    }

    /// Returns the departure time of the next frame, as [`super::Shaper::depart`] does.
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

    /// At 2 Mbit/s, each period of 50 ms adds 12,500 bytes to the bucket of this test. In each
    /// period of this test, eight frames of 1,500 bytes depart at once, and then no frame departs
    /// for 50 ms. The bucket keeps tokens that are too few for a frame, so nine frames depart in
    /// some periods.
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
        // The rate is 10 bytes per microsecond. The bucket starts with 1,514 bytes for a frame and
        // 100 bytes for a period.
        assert!(last.0.abs_diff(99_840_000) < 10_000, "{last:?}");
    }

    #[test]
    fn a_frame_longer_than_the_bucket_leaves_a_debt() {
        let mut bucket = TokenBucket::new(BitsPerSecond(2_000_000), PERIOD_OF_XEN).unwrap();
        assert_eq!(bucket.depart(Nanos(0), 50_000), Nanos(0));
        // 14,014 bytes were available, so the bucket has a debt of 35,986 bytes and needs another
        // 12,500.
        assert_eq!(bucket.depart(Nanos(0), 12_500), Nanos::from_millis(200));
        assert_eq!(bucket.depart(Nanos::from_secs(9), 60), Nanos::from_secs(9));
        assert!(TokenBucket::new(BitsPerSecond(1), PERIOD_OF_XEN).is_err());
    }
}
