//! A cycle bucket, whose tokens are cycles. A refill does not visit each bucket, but advances two
//! clocks. When a port is checked or charged, the tokens of its bucket are computed from the two
//! clocks.

use super::{FRACTION, FRACTION_MASK, Mode, POOL_FRACTION};

/// Value of the field `place` if a slot has no bucket. A port without a bucket may always run. The
/// bucket set only adds up the cycles that a port without a bucket spends.
const UNMETERED: u32 = u32::MAX - 1;
/// Value of the field `place` of a full bucket. The list of earning buckets contains no full
/// bucket.
const FULL: u32 = u32::MAX;

/// The two clocks that a worker's refills advance, from which buckets compute their earned tokens.
/// Clock values wrap around, so only the differences between two values of a clock matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clocks {
    /// Clock of the entitlements: the number of core cycles for which the buckets received their
    /// entitlements.
    pub guaranteed: u64,
    /// Clock of the pool: the cycles that a bucket of weight 1 received from the pool, in units of
    /// 2^-20 cycles.
    pub shared: u64,
}

/// The state of a bucket, which occupies exactly one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Bucket {
    /// Number of tokens in the bucket when it was last updated.
    pub tokens: i64,
    pub depth: i64,
    /// Entitlement of the port as a fraction of the core's cycles, in units of 2^-56.
    pub rate: u64,
    /// Fraction of a token that the bucket has earned, in units of 2^-56 cycles.
    pub fraction: u64,
    /// Values of the worker's two refill clocks when the bucket's tokens were last updated.
    pub seen: Clocks,
    /// Weight of the bucket for dividing the pool. 0 if the bucket gets no part of the pool.
    pub weight: u32,
    /// Index of the bucket in the list of earning buckets; `FULL` for a full bucket, `UNMETERED`
    /// without a bucket.
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

    /// Marks the bucket as full. The cycles that a full bucket would earn go to other buckets.
    pub const fn fill(&mut self) {
        self.place = FULL;
    }

    /// Marks the bucket as earning tokens from the clock values `now` on; `place` is its index in
    /// the list.
    pub const fn begin(&mut self, place: u32, now: Clocks) {
        (self.place, self.seen) = (place, now);
    }

    /// Returns the tokens that the bucket has earned since its last update, in units of 2^-56
    /// cycles.
    #[inline]
    const fn earned(&self, now: Clocks) -> u128 {
        let guaranteed = now.guaranteed.wrapping_sub(self.seen.guaranteed);
        let shared = now.shared.wrapping_sub(self.seen.shared);
        // The sum cannot overflow: a rate is below 256 cycles per cycle, a refill below 2^40 cycles
        // and a weight below 2^14.
        self.rate as u128 * guaranteed as u128
            + ((self.weight as u128 * shared as u128) << (FRACTION - POOL_FRACTION))
            + self.fraction as u128
    }

    /// Adds the tokens that the bucket earned until the clock values `now`.
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

    /// Returns the number of tokens at the clock values `now`. Earned tokens count only up to the
    /// bucket's maximum. Tokens that another worker transferred may exceed the maximum until the
    /// bucket's next update.
    #[inline]
    pub fn level(&self, now: Clocks, cap: i64) -> i64 {
        if self.place >= UNMETERED {
            return self.tokens;
        }
        let whole = i64::try_from(self.earned(now) >> FRACTION).unwrap_or(i64::MAX);
        self.tokens.saturating_add(whole).min(self.limit(cap).max(self.tokens))
    }

    /// Returns the maximum number of tokens in the bucket, which is its depth. The maximum number
    /// of tokens is higher by `cap` while frames wait at the port.
    #[inline]
    pub const fn limit(&self, cap: i64) -> i64 {
        if self.waiting { self.depth.saturating_add(cap) } else { self.depth }
    }
}
