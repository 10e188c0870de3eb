//! One bucket, and the clocks by which it is brought up to date when it is looked at.

use super::{FRACTION, FRACTION_MASK, Mode, POOL_FRACTION};

/// Nobody's bucket: the gate is open and charges are only added up.
const UNMETERED: u32 = u32::MAX - 1;
/// Not on the list of those that earn.
const FULL: u32 = u32::MAX;

/// What was handed out so far, to whoever was there to take it. Both wrap; only differences count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clocks {
    /// Cycles for which entitlements were generated.
    pub guaranteed: u64,
    /// Of the pool, for a weight of one, in 2^-20.
    pub shared: u64,
}

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Bucket {
    /// When last looked at.
    pub tokens: i64,
    pub depth: i64,
    /// Cycles per cycle, in 2^-56.
    pub rate: u64,
    /// Of a cycle, in 2^-56: earned, not yet a token.
    pub fraction: u64,
    /// The clocks when last looked at.
    pub seen: Clocks,
    /// Its part of the pool; 0 for one that has none.
    pub weight: u32,
    /// On the list of those that earn; or `FULL`, or `UNMETERED`.
    pub place: u32,
    pub mode: Mode,
    /// Frames were seen waiting at its port, and nobody saw them gone.
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

    /// Takes it off the list, full: what comes from now on is for others.
    pub const fn fill(&mut self) {
        self.place = FULL;
    }

    /// Puts it on the list at `place`: it earns from now on.
    pub const fn begin(&mut self, place: u32, now: Clocks) {
        (self.place, self.seen) = (place, now);
    }

    /// What it earned since it was last looked at, in 2^-56.
    #[inline]
    const fn earned(&self, now: Clocks) -> u128 {
        let guaranteed = now.guaranteed.wrapping_sub(self.seen.guaranteed);
        let shared = now.shared.wrapping_sub(self.seen.shared);
        // A rate is below 256 cycles a cycle and refills are below 2^40; a weight is below 2^14.
        self.rate as u128 * guaranteed as u128
            + ((self.weight as u128 * shared as u128) << (FRACTION - POOL_FRACTION))
            + self.fraction as u128
    }

    /// Books what it earned.
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

    /// Its tokens now, with what it earned and can keep; what it was brought beyond its limit it
    /// has until it is looked at.
    #[inline]
    pub fn level(&self, now: Clocks, cap: i64) -> i64 {
        if self.place >= UNMETERED {
            return self.tokens;
        }
        let whole = i64::try_from(self.earned(now) >> FRACTION).unwrap_or(i64::MAX);
        self.tokens.saturating_add(whole).min(self.limit(cap).max(self.tokens))
    }

    /// The most it keeps: its depth, and up to `cap` more while frames wait.
    #[inline]
    pub const fn limit(&self, cap: i64) -> i64 {
        if self.waiting { self.depth.saturating_add(cap) } else { self.depth }
    }
}
