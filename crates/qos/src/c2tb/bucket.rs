//! One cycle bucket, and the clocks that bring it up to date when it is read.

use super::{FRACTION, FRACTION_MASK, Mode, POOL_FRACTION};

/// Place of a slot without a bucket. The gate is open, and charges are only summed.
const UNMETERED: u32 = u32::MAX - 1;
/// Place of a full bucket, which is not on the list of earning buckets.
const FULL: u32 = u32::MAX;

/// Totals of the cycles that were handed out. Both counters wrap, so only their differences matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clocks {
    /// Cycles for which entitlements were generated.
    pub guaranteed: u64,
    /// Amount of the pool handed out for a weight of one, in 2^-20 cycles.
    pub shared: u64,
}

/// A bucket, exactly one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Bucket {
    /// Tokens when the bucket was last brought up to date.
    pub tokens: i64,
    pub depth: i64,
    /// Entitlement in cycles per cycle of the core, in 2^-56.
    pub rate: u64,
    /// Earned fraction of a cycle in 2^-56 that is not a whole token yet.
    pub fraction: u64,
    /// The clocks when the bucket was last brought up to date.
    pub seen: Clocks,
    /// Weight in the pool. 0 for a bucket that gets no part of the pool.
    pub weight: u32,
    /// Index in the list of earning buckets, or `FULL`, or `UNMETERED`.
    pub place: u32,
    pub mode: Mode,
    /// Whether frames waited at the port when it was last checked.
    pub waiting: bool,
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    pub const NONE: Self = Self {
        tokens: i64::MAX,
        depth: 0,
        rate: 0,
        fraction: 0,
        seen: Clocks { guaranteed: 0, shared: 0 },
        weight: 0,
        place: UNMETERED,
        mode: Mode::Strict,
        waiting: false,
    };

    #[inline]
    pub const fn is_metered(&self) -> bool {
        self.place != UNMETERED
    }

    #[inline]
    pub const fn is_full(&self) -> bool {
        self.place == FULL
    }

    /// Marks the bucket as full. From now on its earnings go to other buckets.
    pub const fn fill(&mut self) {
        self.place = FULL;
    }

    /// Marks the bucket as earning from `now`, at `place` in the list.
    pub const fn begin(&mut self, place: u32, now: Clocks) {
        (self.place, self.seen) = (place, now);
    }

    /// Earnings since the bucket was last brought up to date, in 2^-56 cycles.
    #[inline]
    const fn earned(&self, now: Clocks) -> u128 {
        let guaranteed = now.guaranteed.wrapping_sub(self.seen.guaranteed);
        let shared = now.shared.wrapping_sub(self.seen.shared);
        // A rate is below 256 cycles per cycle, a refill below 2^40 cycles and a weight below 2^14,
        // so this cannot overflow.
        self.rate as u128 * guaranteed as u128
            + ((self.weight as u128 * shared as u128) << (FRACTION - POOL_FRACTION))
            + self.fraction as u128
    }

    /// Books the earnings up to `now`.
    #[inline]
    pub fn earn(&mut self, now: Clocks) {
        let sum = self.earned(now);
        self.seen = now;
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let fraction = sum as u64 & FRACTION_MASK;
        self.fraction = fraction;
        let whole = i64::try_from(sum >> FRACTION).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(whole);
    }

    /// Tokens at `now`, up to the limit. Tokens that were transferred beyond the limit count until
    /// the bucket is brought up to date.
    #[inline]
    pub fn level(&self, now: Clocks, cap: i64) -> i64 {
        if self.place >= UNMETERED {
            return self.tokens;
        }
        let whole = i64::try_from(self.earned(now) >> FRACTION).unwrap_or(i64::MAX);
        self.tokens.saturating_add(whole).min(self.limit(cap).max(self.tokens))
    }

    /// Maximum number of tokens that the bucket keeps: its depth, plus up to `cap` while frames
    /// wait.
    #[inline]
    pub const fn limit(&self, cap: i64) -> i64 {
        if self.waiting { self.depth.saturating_add(cap) } else { self.depth }
    }
}
