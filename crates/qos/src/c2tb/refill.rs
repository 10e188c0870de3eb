//! Refills the buckets: generates tokens for all buckets at a cost that does not depend on the
//! number of buckets.
//!
//! # Problem
//!
//! A refill runs every 50 µs. If a refill visited every bucket that is not full, its cost would
//! grow with the number of busy ports.
//!
//! # Approach
//!
//! A refill advances two clocks and visits no bucket. A bucket earns its rate times the advance of
//! the first clock, plus its weight times the advance of the second clock. The second clock counts
//! the cycles of the pool of unused cycles. The tokens that a bucket earned are computed only when
//! its port is checked or charged. A refill needs only the sums of the rates and weights of all
//! buckets that earn tokens.
//!
//! A refill must find full buckets, because the tokens above a full bucket's limit go to other
//! buckets. For every [`VISIT_EVERY_US`] microseconds of `elapsed` time, a refill visits one more
//! bucket that earns tokens. When a refill visits a bucket, the tokens above the bucket's limit
//! move to the pool. If a refill has time to visit all buckets, the refill makes up to [`ROUNDS`]
//! passes, until no bucket overflows.
//!
//! # Cost
//!
//! A refill takes O(1) for any number of buckets. Tokens above a full bucket's limit reach other
//! buckets after at most 5 µs for each bucket that earns tokens. A charge updates its bucket
//! immediately.

use super::bucket::Clocks;
use super::{BucketSet, FRACTION, FRACTION_MASK, POOL_FRACTION, Spare};
use penstock_units::Cycles;

/// Elapsed time in microseconds for which a refill visits one bucket. If a refill's visit to a
/// bucket takes ten cycles, all visits together take a thousandth of the core's cycles. The cost of
/// all visits per second does not depend on the refill interval or the number of ports.
const VISIT_EVERY_US: u64 = 5;
/// Maximum number of passes of one refill over all buckets that earn tokens.
const ROUNDS: u32 = 4;
/// Maximum number of pool cycles that a refill gives to buckets, about an hour of a core. A larger
/// number of pool cycles could cause an arithmetic overflow.
const SHARED_MAX: i64 = 1 << 43;

impl BucketSet {
    /// Generates tokens for `elapsed` cycles in which this core could have run batches. The
    /// argument `elapsed` must not include time in which the core was preempted, so that all tokens
    /// can be spent.
    pub fn refill(&mut self, elapsed: Cycles) {
        let elapsed = elapsed.0.min(1 << 40);
        if self.spare == Spare::Printed {
            self.refill_as_printed(elapsed);
            return;
        }
        let budget = self.budget(elapsed);
        self.ledger.generated += budget;
        self.ledger.stored += budget.cast_signed();
        let part = self.affordable(elapsed, budget);
        self.clocks.guaranteed = self.clocks.guaranteed.wrapping_add(part);
        // The pool gets all cycles that the buckets do not earn: unsold cycles and the earnings of
        // full buckets.
        self.pool += budget.cast_signed();
        self.give(self.earning_rates * u128::from(part));
        let visits = elapsed / (self.core.hz() * VISIT_EVERY_US / 1_000_000).max(1);
        let visits = usize::try_from(visits).unwrap_or(usize::MAX).max(1);
        self.visit(visits);
        self.share_pool();
        let mut rounds = 1;
        while rounds < ROUNDS && visits >= self.earning.len() && self.visit(visits) {
            self.share_pool();
            rounds += 1;
        }
    }

    /// Returns the maximum debt of the pool: the cycles of the core in one millisecond.
    fn debt_max(&self) -> u64 {
        self.core.hz() / 1_000
    }

    /// Returns how many of the `elapsed` cycles the core could spend on ports that have buckets.
    fn budget(&mut self, elapsed: u64) -> u64 {
        let sum =
            u128::from(self.capacity) * u128::from(elapsed) + u128::from(self.capacity_fraction);
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let fraction = sum as u64 & FRACTION_MASK;
        self.capacity_fraction = fraction;
        let whole = u64::try_from(sum >> FRACTION).unwrap_or(u64::MAX);
        let host = core::mem::take(&mut self.host).saturating_sub(elapsed.saturating_sub(whole));
        let spent = core::mem::take(&mut self.spent_elsewhere).saturating_add(host);
        // A debt is carried over, because a batch may extend beyond the end of the interval.
        self.spent_elsewhere = spent.saturating_sub(whole).min(self.debt_max());
        whole.saturating_sub(spent)
    }

    /// Returns the part of the `elapsed` cycles for which all buckets can get their entitlements.
    /// If more cycles were sold than the core has, the result is less than `elapsed`.
    fn affordable(&self, elapsed: u64, budget: u64) -> u64 {
        let sold = ((self.rates >> 8) * u128::from(elapsed)) >> (FRACTION - 8);
        // The pool may go into debt if cycles are missing for a short time.
        let owed = self.debt_max().saturating_add_signed(self.pool.min(0));
        let limit = u128::from(budget) + u128::from(owed);
        if sold <= limit {
            return elapsed;
        }
        // The core is oversold, so all buckets get the same fraction of their entitlement.
        u64::try_from(u128::from(elapsed) * limit / sold).unwrap_or(elapsed)
    }

    /// Subtracts from the pool the cycles that a refill gave to buckets. The unit of the argument
    /// `parts` is 2^-56 cycles.
    fn give(&mut self, parts: u128) {
        let sum = i128::try_from(parts).unwrap_or(i128::MAX) + i128::from(self.carry);
        self.pool -= i64::try_from(sum >> FRACTION).unwrap_or(i64::MAX);
        self.carry = i64::try_from(sum & i128::from(FRACTION_MASK)).unwrap_or(0);
    }

    /// Updates the next `most` buckets that earn tokens, each once, and removes full buckets from
    /// the list. Returns true if a visited bucket was full.
    fn visit(&mut self, most: usize) -> bool {
        let mut found = false;
        for _ in 0..most.min(self.earning.len()) {
            if self.cursor >= self.earning.len() {
                self.cursor = 0;
            }
            let slot = self.earning[self.cursor] as usize;
            self.settle(slot);
            let bucket = &self.buckets[slot];
            if bucket.tokens >= bucket.limit(self.depths) {
                self.delist(slot);
                self.buckets[slot].fill();
                found = true;
            } else {
                self.cursor += 1;
            }
        }
        found
    }

    /// Shares the pool of unused cycles by weight among the buckets of `minmax` ports that earn
    /// tokens. If no bucket with a weight earns tokens, the cycles in the pool are discarded.
    fn share_pool(&mut self) {
        if self.pool <= 0 {
            return;
        }
        self.ledger.passed_on += self.pool.cast_unsigned();
        if self.earning_weights == 0 {
            self.ledger.stored -= self.pool;
            self.ledger.discarded += self.pool.cast_unsigned();
            self.pool = 0;
            return;
        }
        let pool = self.pool.min(SHARED_MAX).cast_unsigned();
        let each = (pool << POOL_FRACTION) / self.earning_weights;
        self.clocks.shared = self.clocks.shared.wrapping_add(each);
        self.give(u128::from(each * self.earning_weights) << (FRACTION - POOL_FRACTION));
    }

    /// Adds the tokens that a bucket has earned, and moves the tokens above the bucket's limit to
    /// the pool.
    #[inline]
    pub(super) fn settle(&mut self, slot: usize) {
        let (now, cap) = (self.clocks, self.depths);
        let bucket = &mut self.buckets[slot];
        bucket.earn(now);
        let above = bucket.tokens - bucket.limit(cap);
        if above > 0 {
            bucket.tokens -= above;
            self.pool += above;
        }
    }

    /// Updates a bucket. If the bucket is full, puts the bucket back on the list of buckets that
    /// earn tokens.
    pub(super) fn touch(&mut self, slot: usize) {
        if self.buckets[slot].is_full() {
            self.enlist(slot);
        } else {
            self.settle(slot);
        }
    }

    /// Adds the bucket of `slot` to the list of buckets that earn tokens.
    pub(super) fn enlist(&mut self, slot: usize) {
        // The list never exceeds the number of slots, so nothing is allocated and all conversions
        // fit.
        let place = u32::try_from(self.earning.len()).unwrap_or(0);
        self.earning.push(u32::try_from(slot).unwrap_or(0));
        let now: Clocks = self.clocks;
        let bucket = &mut self.buckets[slot];
        bucket.begin(place, now);
        self.earning_rates += u128::from(bucket.rate);
        self.earning_weights += u64::from(bucket.weight);
    }

    /// Removes the bucket of `slot` from the list of buckets that earn tokens. Before this call,
    /// the caller must have added the tokens that the bucket has earned.
    pub(super) fn delist(&mut self, slot: usize) {
        let bucket = &self.buckets[slot];
        let place = bucket.place;
        self.earning_rates -= u128::from(bucket.rate);
        self.earning_weights -= u64::from(bucket.weight);
        self.earning.swap_remove(place as usize);
        if let Some(&moved) = self.earning.get(place as usize) {
            self.buckets[moved as usize].place = place;
        }
    }

    /// When a bucket is removed, returns the fraction of a cycle that the bucket earned to the
    /// pool, so that no cycle is lost.
    pub(super) fn keep_fraction(&mut self, fraction: u64) {
        self.carry -= fraction.cast_signed();
    }
}
