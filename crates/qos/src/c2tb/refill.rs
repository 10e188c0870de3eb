//! Refills: they advance two clocks and visit a few buckets.
//!
//! # Problem
//!
//! A refill runs every 50 µs. If it visited every bucket with room, its cost would grow with the
//! number of busy ports.
//!
//! # Approach
//!
//! An entitlement is a rate times one clock, and a part of the pool is a weight times another
//! clock. The earnings of a bucket are computed only when the bucket is read, at its gate or its
//! charge. A refill needs only the sums of the rates and weights of all earning buckets.
//!
//! Only buckets that become full need a visit, because their overflow goes to other buckets. A
//! refill visits one bucket, in turn, for every [`VISIT_EVERY_US`] microseconds of time that it
//! generates for. The visit moves the tokens above the bucket's limit to the pool. If a refill has
//! time for all buckets, it repeats the visits until nothing overflows, at most [`ROUNDS`] times.
//!
//! # Cost
//!
//! A refill takes O(1). Overflow reaches other buckets after at most 5 µs times the number of
//! earning buckets. A bucket that is charged is up to date at once.

use super::bucket::Clocks;
use super::{BucketSet, FRACTION, FRACTION_MASK, POOL_FRACTION};
use penstock_units::Cycles;

/// A refill visits one bucket for each period of this many microseconds that it generates for. At
/// ten cycles per visit, this costs a thousandth of the core for any interval and any number of
/// ports.
const VISIT_EVERY_US: u64 = 5;
/// Maximum number of passes over all buckets in one refill.
const ROUNDS: u32 = 4;
/// Largest part of the pool that one refill hands out: an hour of a core. The bound prevents
/// overflow.
const SHARED_MAX: i64 = 1 << 43;

impl BucketSet {
    /// Generates tokens for `elapsed` cycles in which this core could have run batches. The caller
    /// leaves out time in which the core was preempted or spent on control, so that all generated
    /// tokens can be spent.
    pub fn refill(&mut self, elapsed: Cycles) {
        let elapsed = elapsed.0.min(1 << 40);
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

    /// Largest debt of the pool: a millisecond of the core.
    fn debt_max(&self) -> u64 {
        self.core.hz() / 1_000
    }

    /// Cycles that the core could spend on ports that pay.
    fn budget(&mut self, elapsed: u64) -> u64 {
        let sum =
            u128::from(self.capacity) * u128::from(elapsed) + u128::from(self.capacity_fraction);
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let fraction = sum as u64 & FRACTION_MASK;
        self.capacity_fraction = fraction;
        let whole = u64::try_from(sum >> FRACTION).unwrap_or(u64::MAX);
        let spent = core::mem::take(&mut self.spent_elsewhere);
        // A debt carries over, so that a batch across the interval's end is accounted for.
        self.spent_elsewhere = spent.saturating_sub(whole).min(self.debt_max());
        whole.saturating_sub(spent)
    }

    /// The part of `elapsed` for which entitlements can be generated.
    fn affordable(&self, elapsed: u64, budget: u64) -> u64 {
        let sold = ((self.rates >> 8) * u128::from(elapsed)) >> (FRACTION - 8);
        // The pool owes cycles that are missing for a short time.
        let owed = self.debt_max().saturating_add_signed(self.pool.min(0));
        let limit = u128::from(budget) + u128::from(owed);
        if sold <= limit {
            return elapsed;
        }
        // The core is oversold, so all buckets get the same fraction of their entitlement.
        u64::try_from(u128::from(elapsed) * limit / sold).unwrap_or(elapsed)
    }

    /// Subtracts from the pool the cycles that buckets earn, in 2^-56 cycles.
    fn give(&mut self, parts: u128) {
        let sum = i128::try_from(parts).unwrap_or(i128::MAX) + i128::from(self.carry);
        self.pool -= i64::try_from(sum >> FRACTION).unwrap_or(i64::MAX);
        self.carry = i64::try_from(sum & i128::from(FRACTION_MASK)).unwrap_or(0);
    }

    /// Brings the next `most` earning buckets up to date, each once, and removes full ones from the
    /// list. Returns whether a bucket was full.
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

    /// Shares the pool by weight among all earning min-max buckets. If there are none, no bucket
    /// has room and the pool is discarded.
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

    /// Brings an earning bucket up to date and moves the tokens above its limit to the pool.
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

    /// Brings a bucket up to date. A full bucket starts to earn again.
    pub(super) fn touch(&mut self, slot: usize) {
        if self.buckets[slot].is_full() {
            self.enlist(slot);
        } else {
            self.settle(slot);
        }
    }

    /// Adds a bucket to the list of earning buckets.
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

    /// Removes a bucket from the list. The bucket must be up to date.
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

    /// Keeps a leaving bucket's earned fraction of a cycle.
    pub(super) fn keep_fraction(&mut self, fraction: u64) {
        self.carry -= fraction.cast_signed();
    }
}
