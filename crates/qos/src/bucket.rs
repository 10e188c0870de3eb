//! A token bucket that several threads share, for [`crate::policer`] and [`crate::egress_policer`].
//!
//! Levels are counted in parts. A part is so small that a rate of R per second yields exactly R
//! parts in a nanosecond, so refills never round. The level is one atomic word. It may be negative
//! (a debt) and never exceeds the depth.

use core::sync::atomic::{AtomicI64, Ordering};

/// Parts of one byte if the rate is in bits per second.
pub(crate) const PARTS_OF_BYTE: i64 = 8_000_000_000;
/// Parts of one frame if the rate is in frames per second.
pub(crate) const PARTS_OF_FRAME: i64 = 1_000_000_000;

/// A token bucket. Its level and depth are in parts.
#[derive(Debug)]
pub(crate) struct Bucket {
    level: AtomicI64,
    depth: i64,
}

impl Bucket {
    /// A full bucket, as RFC 2697 and 2698 start it. `depth` is in bytes or frames, and `parts` is
    /// the number of parts of one byte or frame.
    pub(crate) const fn new(depth: u32, parts: i64) -> Self {
        let depth = depth as i64 * parts;
        Self { level: AtomicI64::new(depth), depth }
    }

    /// Adds parts and returns the parts that do not fit.
    pub(crate) fn give(&self, parts: u64) -> u64 {
        let mut level = self.level();
        loop {
            // The depth and any debt together stay below 2^63.
            let room = (self.depth - level).unsigned_abs();
            if room == 0 {
                return parts;
            }
            let (to, over) = match i64::try_from(parts) {
                Ok(more) if parts < room => (level + more, 0),
                _ => (self.depth, parts - room.min(parts)),
            };
            match self.level.compare_exchange_weak(level, to, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return over,
                Err(now) => level = now,
            }
        }
    }

    /// Takes parts if the level covers them or the bucket is full. Returns whether it took them.
    pub(crate) fn take(&self, parts: i64) -> bool {
        // A bucket of depth 0 is always full. It must refuse nevertheless.
        let enough = if self.depth == 0 { i64::MAX } else { parts.min(self.depth) };
        self.take_from(parts, enough)
    }

    /// Takes parts like [`Self::take`], but leaves the lower half of the bucket untouched unless
    /// the bucket is full.
    pub(crate) fn take_spare(&self, parts: i64) -> bool {
        self.take_from(parts, parts.saturating_add(self.depth / 2).min(self.depth))
    }

    fn take_from(&self, parts: i64, enough: i64) -> bool {
        let mut level = self.level();
        loop {
            if level < enough {
                return false;
            }
            let to = level - parts;
            match self.level.compare_exchange_weak(level, to, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => level = now,
            }
        }
    }

    /// Returns parts that were taken a moment ago.
    pub(crate) fn give_back(&self, parts: i64) {
        self.level.fetch_add(parts, Ordering::Relaxed);
    }

    /// Lowers the level to `level` if it is higher.
    pub(crate) fn lower_to(&self, level: i64) {
        self.level.fetch_min(level, Ordering::Relaxed);
    }

    /// Whether the level is at least `parts`.
    pub(crate) fn covers(&self, parts: i64) -> bool {
        self.level() >= parts
    }

    /// The level in parts; negative if the bucket is in debt.
    pub(crate) fn level(&self) -> i64 {
        self.level.load(Ordering::Relaxed)
    }
}
