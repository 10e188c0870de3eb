//! A bucket of parts, for several threads: what [`crate::policer`] and [`crate::policing`] hold.
//!
//! **Quantities.** A part is so small that one nanosecond at a rate of R per second is exactly R
//! parts: no refill rounds. **Rule.** The level is one atomic word; it may be in debt, never above
//! the depth.

use core::sync::atomic::{AtomicI64, Ordering};

/// Of bits per second.
pub(crate) const PARTS_OF_BYTE: i64 = 8_000_000_000;
/// Of frames per second.
pub(crate) const PARTS_OF_FRAME: i64 = 1_000_000_000;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Bucket {
    level: AtomicI64,
    depth: i64,
}

impl Bucket {
    /// Full, as RFC 2697 and 2698 have it.
    pub(crate) const fn new(depth: u32, parts: i64) -> Self {
        let depth = depth as i64 * parts;
        Self { level: AtomicI64::new(depth), depth }
    }

    /// Adds; returns what found no room.
    pub(crate) fn give(&self, parts: u64) -> u64 {
        let mut level = self.level();
        loop {
            // Neither a full bucket nor one in debt is further apart than 63 bits.
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

    /// Pays, if the level covers it or the bucket is full.
    pub(crate) fn take(&self, parts: i64) -> bool {
        // A bucket of no depth is full and empty at once.
        let enough = if self.depth == 0 { i64::MAX } else { parts.min(self.depth) };
        self.take_from(parts, enough)
    }

    /// Pays out of the upper half, if that covers it or the bucket is full.
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

    /// Gives back what was taken a moment ago.
    pub(crate) fn give_back(&self, parts: i64) {
        self.level.fetch_add(parts, Ordering::Relaxed);
    }

    /// No more is there than `level`.
    pub(crate) fn lower_to(&self, level: i64) {
        self.level.fetch_min(level, Ordering::Relaxed);
    }

    /// Whether all of it is there.
    pub(crate) fn covers(&self, parts: i64) -> bool {
        self.level() >= parts
    }

    /// What is there; negative while some is owed.
    pub(crate) fn level(&self) -> i64 {
        self.level.load(Ordering::Relaxed)
    }
}
