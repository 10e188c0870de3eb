//! Measures delays and their variation: histograms, delay variation (RFC 3393) and RTP jitter (RFC
//! 3550).
//!
//! # Problem
//!
//! Queues and shapers delay a VM's frames. For each VM, Penstock reports the distribution of the
//! delays, at a cost of a few instructions per frame.
//!
//! # Approach
//!
//! All times in this module are in nanoseconds.
//!
//! - [`Histogram`] divides each octave of delays into 32 buckets, so each value is exact to 1/32
//!   (3.2 %). A histogram covers 0 to 2^40 ns (18 minutes). Longer delays count as 2^40 ns.
//! - [`Variation`] is the difference between the delays of two consecutive frames of a stream (RFC
//!   3393 §2).
//! - [`Jitter`] computes the jitter J += (|D| - J)/16 in integers (RFC 3550 §6.4.1, Appendix A.8).
//!   In the formula of the jitter, D is the time between the arrivals of two packets minus the
//!   difference of their timestamps.
//!
//! A test covers an RTP stream with timestamps of 90 kHz and packets 20 ms apart. If an RTP packet
//! is 10 ms late, D is 900 timestamp units for this packet and -900 for the next packet.
//!
//! # Cost
//!
//! A histogram takes 9.3 KiB of memory. Recording a delay takes O(1). The computation of a
//! percentile visits at most about 1,200 buckets of the histogram.

use penstock_units::Nanos;

/// Binary logarithm of the number of buckets per octave. An octave is the range from a power of two
/// to the next power of two.
const PARTS: u32 = 5;
/// Number of bits of the largest counted delay in ns.
const BITS: u32 = 40;
const BUCKETS: usize = ((BITS - PARTS + 1) << PARTS) as usize;

/// Histogram of delays with 32 buckets per octave.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u128,
    least: u64,
    most: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

fn bucket(value: u64) -> usize {
    let value = value.min((1 << BITS) - 1);
    // Each value below 2^PARTS has its own bucket.
    let octave = (u64::BITS - value.leading_zeros()).saturating_sub(PARTS + 1);
    let part = value >> octave;
    usize::try_from((u64::from(octave) << PARTS) + part).unwrap_or(BUCKETS - 1)
}

/// Returns the largest delay, in ns, that a bucket of the histogram counts.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let octave = (bucket >> PARTS).saturating_sub(1);
    let part = bucket - (octave << PARTS);
    ((part + 1) << octave) - 1
}

impl Histogram {
    /// Returns a histogram that contains no delays.
    #[must_use]
    pub fn new() -> Self {
        let counts = vec![0; BUCKETS].into_boxed_slice();
        Self { counts, count: 0, sum: 0, least: u64::MAX, most: 0 }
    }

    /// Adds a delay to the histogram's counters, sum, minimum and maximum.
    #[inline]
    pub fn record(&mut self, delay: Nanos) {
        self.counts[bucket(delay.0)] += 1;
        self.count += 1;
        self.sum += u128::from(delay.0);
        self.least = self.least.min(delay.0);
        self.most = self.most.max(delay.0);
    }

    /// Returns the number of delays that were counted.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the shortest delay. 0 if no delay was counted.
    #[must_use]
    pub const fn min(&self) -> Nanos {
        if self.count == 0 { Nanos(0) } else { Nanos(self.least) }
    }

    /// Returns the longest delay. 0 if no delay was counted.
    #[must_use]
    pub const fn max(&self) -> Nanos {
        Nanos(self.most)
    }

    /// Returns the mean delay, rounded down; 0 if no delay was counted.
    #[must_use]
    pub fn mean(&self) -> Nanos {
        let mean = self.sum / u128::from(self.count.max(1));
        Nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Returns the delay percentile at `milli_percent` thousandths of a percent (50,000 is the
    /// median). The returned delay is at most 1/32 above the exact value. 0 if no delay was
    /// counted.
    #[must_use]
    pub fn percentile(&self, milli_percent: u32) -> Nanos {
        let wide = u128::from(self.count) * u128::from(milli_percent.min(100_000));
        let rank = u64::try_from(wide.div_ceil(100_000)).unwrap_or(u64::MAX).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Nanos(upper(at).clamp(self.least, self.most));
            }
        }
        Nanos(self.most)
    }

    /// Adds the counts of another histogram to this histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.sum += other.sum;
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }

    /// Resets the histogram to its empty state.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.count, self.sum, self.least, self.most) = (0, 0, u64::MAX, 0);
    }
}

/// Delay variation of a stream: differences between the delays of consecutive frames (RFC 3393).
#[derive(Clone, Debug, Default)]
pub struct Variation {
    last: Option<u64>,
    sizes: Histogram,
    least: i64,
    most: i64,
}

impl Variation {
    /// Returns the delay variation of a stream that has no frames yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the delay of the next frame of the stream. Returns the frame's delay minus the delay
    /// of the stream's previous frame, in ns. Returns `None` if the stream has no previous frame
    /// whose delay can be compared.
    #[inline]
    pub fn record(&mut self, delay: Nanos) -> Option<i64> {
        let delay = delay.0.min(i64::MAX.unsigned_abs());
        let before = self.last.replace(delay)?;
        let size = i64::try_from(delay.abs_diff(before)).unwrap_or(i64::MAX);
        let difference = if delay < before { -size } else { size };
        self.sizes.record(Nanos(size.unsigned_abs()));
        self.least = self.least.min(difference);
        self.most = self.most.max(difference);
        Some(difference)
    }

    /// Records that a frame of the stream was lost. After the loss of a frame, no difference is
    /// computed for the stream's next frame.
    pub fn interrupt(&mut self) {
        self.last = None;
    }

    /// Resets the variation to the state before the stream's first frame.
    pub fn clear(&mut self) {
        self.sizes.clear();
        (self.last, self.least, self.most) = (None, 0, 0);
    }

    /// Returns the histogram of the absolute values of the differences between consecutive delays.
    #[must_use]
    pub const fn sizes(&self) -> &Histogram {
        &self.sizes
    }

    /// Returns the smallest and the largest difference of delays in ns, both 0 before the second
    /// frame. The smallest difference is at most 0, and the largest difference is at least 0.
    #[must_use]
    pub const fn range(&self) -> (i64, i64) {
        (self.least, self.most)
    }
}

/// Interarrival jitter of a stream with timestamps (RFC 3550).
#[derive(Clone, Copy, Debug)]
pub struct Jitter {
    /// Number of timestamp units per second.
    clock_hz: u32,
    transit: Option<u32>,
    /// Jitter J of RFC 3550, multiplied by 16 as in its appendix A.8.
    scaled: u32,
}

impl Jitter {
    /// Returns the jitter of a new stream with timestamps that count `clock_hz` units a second
    /// (90,000 for video). A `clock_hz` of 0 counts as 1.
    #[must_use]
    pub const fn new(clock_hz: u32) -> Self {
        Self { clock_hz: if clock_hz == 0 { 1 } else { clock_hz }, transit: None, scaled: 0 }
    }

    /// Records a packet's arrival and timestamp. Returns |D| of RFC 3550: how much the transit time
    /// differs from the previous packet's, in timestamp units. Returns `None` for the first packet
    /// of the stream.
    #[inline]
    pub fn record(&mut self, arrival: Nanos, timestamp: u32) -> Option<u32> {
        let units = u128::from(arrival.0) * u128::from(self.clock_hz) / 1_000_000_000;
        #[expect(clippy::cast_possible_truncation, reason = "timestamps wrap around at 2^32")]
        let transit = (units as u32).wrapping_sub(timestamp);
        let before = self.transit.replace(transit)?;
        let apart = transit.wrapping_sub(before);
        // Absolute value of the difference as a signed number.
        let apart = apart.min(apart.wrapping_neg());
        // RFC 3550 A.8: s->jitter += d - ((s->jitter + 8) >> 4)
        let decay = self.scaled.saturating_add(8) >> 4;
        self.scaled = self.scaled.saturating_add(apart).saturating_sub(decay);
        Some(apart)
    }

    /// Returns the jitter J in timestamp units, as in an RTCP receiver report.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.scaled >> 4
    }

    /// Returns the jitter J in nanoseconds.
    #[must_use]
    pub fn nanos(&self) -> Nanos {
        Nanos(u64::from(self.scaled) * 62_500_000 / u64::from(self.clock_hz))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_known_to_a_thirty_second() {
        let mut last = 0;
        for shift in 0..BITS {
            for value in [1_u64 << shift, (1 << shift) + 1, (1 << shift) * 3 / 2, (2 << shift) - 1]
            {
                let at = bucket(value);
                assert!(at < BUCKETS && at >= last, "{value}");
                let top = upper(at);
                assert!(top >= value && top - value <= value / 32, "{value} is in {top}");
                last = if value == 1 << shift { at } else { last };
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_means_and_merging() {
        let (mut low, mut high) = (Histogram::new(), Histogram::new());
        assert_eq!((low.percentile(50_000), low.min(), low.mean()), (Nanos(0), Nanos(0), Nanos(0)));
        (1..=500).for_each(|v| low.record(Nanos(v * 1_000)));
        (501..=1_000).for_each(|v| high.record(Nanos(v * 1_000)));
        low.merge(&high);
        assert_eq!((low.count(), low.min(), low.max()), (1_000, Nanos(1_000), Nanos(1_000_000)));
        assert_eq!(low.mean(), Nanos(500_500));
        for (of, want) in [(1_000, 10_000), (50_000, 500_000), (99_000, 990_000)] {
            let got = low.percentile(of).0;
            assert!(got >= want && got - want <= want / 32, "{of}: {got}");
        }
        assert_eq!(low.percentile(100_000), Nanos(1_000_000));
        low.clear();
        assert_eq!((low.count(), low.max()), (0, Nanos(0)));
    }

    #[test]
    fn variation_compares_neighbours_and_an_interruption_separates_them() {
        let mut variation = Variation::new();
        assert_eq!(variation.record(Nanos(100)), None);
        assert_eq!(variation.record(Nanos(130)), Some(30));
        assert_eq!(variation.record(Nanos(90)), Some(-40));
        variation.interrupt();
        assert_eq!(variation.record(Nanos(9_000)), None);
        assert_eq!(variation.range(), (-40, 30));
        assert_eq!((variation.sizes().count(), variation.sizes().max()), (2, Nanos(40)));
        variation.clear();
        assert_eq!(variation.record(Nanos(9_000)), None);
        assert_eq!((variation.range(), variation.sizes().count()), ((0, 0), 0));
    }

    /// Tests an example of RFC 3550 A.8. In the example of RFC 3550 A.8, |D| is 0, then 900, then
    /// 900 with the opposite sign, then 0 timestamp units.
    #[test]
    fn jitter_follows_rfc_3550() {
        let mut jitter = Jitter::new(90_000);
        let step =
            |n: u64| (Nanos::from_millis(20 * n), 0xffff_ff00_u32.wrapping_add(1_800 * narrow(n)));
        let mut record = |n: u64, late: u64| {
            let (at, stamp) = step(n);
            jitter.record(at + Nanos::from_millis(late), stamp);
            (jitter.units(), jitter.nanos().0 / 1_000)
        };
        assert_eq!(record(0, 0), (0, 0));
        assert_eq!(record(1, 0), (0, 0));
        assert_eq!(record(2, 10), (56, 625), "900 / 16");
        assert_eq!(record(3, 0), (109, 1_211), "56.25 + (900 - 56.25) / 16");
        let settled = (4..400).map(|n| record(n, 0)).last();
        assert_eq!(settled, Some((0, 4)), "what is left is below the rounding of A.8");
    }

    fn narrow(n: u64) -> u32 {
        u32::try_from(n).unwrap()
    }
}
