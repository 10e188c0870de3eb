//! Sizes of the recent frames of a stream, from which a limit with waiting frames determines the
//! number of frames of the next batch. Several threads may use the sizes at once.

use core::sync::atomic::{AtomicU32, Ordering};

use penstock_units::Nanos;

use crate::bucket::Bucket;
use crate::policer::{BATCH_TIME, DEBT_TIME};

/// The size of the longest recent frame shrinks by this part with each batch of shorter frames.
const FORGET: u64 = 64;

/// Mean size and largest size of recent frames, in the units of a bucket: bytes or frames.
#[derive(Debug)]
pub(crate) struct FrameSizes {
    /// Mean size of the frames of the last batch.
    mean: AtomicU32,
    /// Size of the longest recent frame.
    longest: AtomicU32,
}

impl FrameSizes {
    /// Returns the sizes for a sender that is not known yet, whose frames may have `most` units.
    pub(crate) const fn new(most: u32) -> Self {
        Self { mean: AtomicU32::new(most), longest: AtomicU32::new(most) }
    }

    /// Notes a batch, by the units of each of its frames.
    pub(crate) fn note(&self, frames: impl Iterator<Item = u64>) {
        let (mut sum, mut count, mut longest) = (0, 0, 0);
        for units in frames {
            (sum, count, longest) = (sum + units, count + 1, units.max(longest));
        }
        let before = u64::from(self.longest.load(Ordering::Relaxed));
        let longest = longest.max(before - before / FORGET);
        let store = |to: &AtomicU32, units: u64| {
            to.store(u32::try_from(units).unwrap_or(u32::MAX), Ordering::Relaxed);
        };
        store(&self.mean, sum / u64::max(count, 1));
        store(&self.longest, longest);
    }

    /// Returns the number of frames of the next batch, at least one. Frames with the mean size of
    /// the last batch fit into the bucket's tokens plus the tokens of [`BATCH_TIME`]. If all frames
    /// are as long as the longest recent frame, the debt is at most [`DEBT_TIME`]. The bucket gains
    /// `rate` parts in a nanosecond, and a unit has `unit` parts.
    pub(crate) fn batch(&self, bucket: &Bucket, rate: u64, unit: i64) -> usize {
        let level = bucket.level().max(0).unsigned_abs();
        let fit = |time: Nanos, each: &AtomicU32| {
            let tokens = level.saturating_add(rate.saturating_mul(time.0));
            let each = u64::from(each.load(Ordering::Relaxed).max(1));
            tokens / each.saturating_mul(unit.unsigned_abs())
        };
        let frames = fit(BATCH_TIME, &self.mean).min(fit(DEBT_TIME, &self.longest));
        usize::try_from(frames.max(1)).unwrap_or(usize::MAX)
    }
}
