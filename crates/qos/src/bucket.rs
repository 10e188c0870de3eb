//! A token bucket that several threads may use at once, for [`crate::policer`],
//! [`crate::egress_policer`], [`crate::inbound_shares`] and [`crate::pair_table`].
//!
//! The level of a bucket is counted in small parts of a byte or of a frame. If the rate is R per
//! second, the bucket gains exactly R parts in each nanosecond, so refills never round. The level
//! of a bucket is a single atomic integer. The level is negative if the bucket is in debt, and
//! never exceeds the depth.

use core::sync::atomic::{AtomicI64, Ordering};

/// Number of parts into which a byte is divided, for rates in bits per second.
pub(crate) const PARTS_OF_BYTE: i64 = 8_000_000_000;
/// Number of parts into which a frame is divided, for rates in frames per second.
pub(crate) const PARTS_OF_FRAME: i64 = 1_000_000_000;

/// Largest debt of a bucket in parts, so that the depth and the debt together stay below 2^63.
const DEBT_MAX: i64 = (1 << 29) * PARTS_OF_BYTE;

/// A token bucket. The bucket's level and depth are in parts of a byte or of a frame.
#[derive(Debug)]
pub(crate) struct Bucket {
    level: AtomicI64,
    depth: i64,
}

impl Bucket {
    /// Returns a full bucket, which is the initial state in RFC 2697 and RFC 2698. The argument
    /// `depth` is in bytes or frames, and `parts` is the number of parts of a byte or frame.
    pub(crate) const fn new(depth: u32, parts: i64) -> Self {
        let depth = depth as i64 * parts;
        Self { level: AtomicI64::new(depth), depth }
    }

    /// Adds `parts` to the level of the bucket, up to the depth. Returns the number of `parts` that
    /// were not added, because the bucket was full.
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

    /// Subtracts `parts` from the level of the bucket, if the level is high enough or the bucket is
    /// full. Returns false if nothing was subtracted, because the bucket's level was too low.
    pub(crate) fn take(&self, parts: i64) -> bool {
        // A bucket of depth 0 is always full, but must refuse.
        let enough = if self.depth == 0 { i64::MAX } else { parts.min(self.depth) };
        self.take_from(parts, enough)
    }

    /// Subtracts `parts` like [`Self::take`], but the level must not fall below half of the depth
    /// unless the bucket is full.
    pub(crate) fn take_spare(&self, parts: i64) -> bool {
        self.take_from(parts, parts.saturating_add(self.depth / 2).min(self.depth))
    }

    /// Subtracts `parts` if the bucket has any tokens. The bucket may then be in debt. Returns
    /// false if nothing was subtracted.
    pub(crate) fn take_on_credit(&self, parts: i64) -> bool {
        self.take_from(parts, 1)
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

    /// Returns half of the depth in parts, plus one part.
    pub(crate) const fn half(&self) -> i64 {
        self.depth / 2 + 1
    }

    /// Subtracts `parts`, whatever the level of the bucket.
    /// The debt is at most [`DEBT_MAX`].
    pub(crate) fn spend(&self, parts: i64) {
        let spent = |level: i64| Some(level.saturating_sub(parts).max(-DEBT_MAX));
        let _ = self.level.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
    }

    /// Undoes a subtraction for a frame, because another bucket refused the frame.
    pub(crate) fn give_back(&self, parts: i64) {
        self.level.fetch_add(parts, Ordering::Relaxed);
    }

    /// Reduces the level of the bucket to at most `level`.
    pub(crate) fn lower_to(&self, level: i64) {
        self.level.fetch_min(level, Ordering::Relaxed);
    }

    /// Returns whether the level of the bucket is at least `parts`.
    pub(crate) fn covers(&self, parts: i64) -> bool {
        self.level() >= parts
    }

    /// Returns the level in parts; negative if the bucket is in debt.
    pub(crate) fn level(&self) -> i64 {
        self.level.load(Ordering::Relaxed)
    }
}
