//! What a refill does: it moves two clocks on, and looks at a few buckets.
//!
//! **Problem.** A refill that looked at every bucket with room would cost the more the more ports
//! are busy, every 50 us. **Rule.** Entitlements are a rate times one clock, parts of the pool a
//! weight times another; what a bucket earned is worked out when somebody looks at it: its gate,
//! its charge. That takes the sum of the rates and of the weights of all buckets that earn, and no
//! look at any. What needs one is a bucket that has become full, as the rest is for others: a
//! refill looks at one of them, in turn, for every [`VISIT_EVERY_US`] that it generates for, and
//! what is found above the limit goes through the pool. If that is time enough for all of them, it
//! goes round until nothing overflows any more. **Bound.** So what overflows reaches others after
//! 5 us times the number of buckets that earn; who is charged is up to date at once.

use super::bucket::Clocks;
use super::{BucketSet, FRACTION, FRACTION_MASK, POOL_FRACTION};
use penstock_units::Cycles;

/// Time for which a refill looks at one bucket, in microseconds: some ten cycles a visit are then
/// a thousandth of the core, whatever the interval and the number of ports.
const VISIT_EVERY_US: u64 = 5;
/// How often at most a refill that has time for all buckets goes round.
const ROUNDS: u32 = 4;
/// Most of the pool that one refill hands out, so that nothing overflows: an hour of a core.
const SHARED_MAX: i64 = 1 << 43;

impl BucketSet {
    /// Generates for `elapsed` cycles in which this core could have run batches: time that it was
    /// taken away or spent on control is left out, so that what is generated can be spent.
    pub fn refill(&mut self, elapsed: Cycles) {
        let elapsed = elapsed.0.min(1 << 40);
        let budget = self.budget(elapsed);
        self.ledger.generated += budget;
        self.ledger.stored += budget.cast_signed();
        let part = self.affordable(elapsed, budget);
        self.clocks.guaranteed = self.clocks.guaranteed.wrapping_add(part);
        // All but what the buckets earn: not sold, or for full ones.
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

    /// What the pool may owe: a millisecond of the core.
    fn debt_max(&self) -> u64 {
        self.core.hz() / 1_000
    }

    /// What the core could spend on ports that pay.
    fn budget(&mut self, elapsed: u64) -> u64 {
        let sum =
            u128::from(self.capacity) * u128::from(elapsed) + u128::from(self.capacity_fraction);
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let fraction = sum as u64 & FRACTION_MASK;
        self.capacity_fraction = fraction;
        let whole = u64::try_from(sum >> FRACTION).unwrap_or(u64::MAX);
        let spent = core::mem::take(&mut self.spent_elsewhere);
        // A debt is remembered, so that a batch across the interval's end is not forgotten.
        self.spent_elsewhere = spent.saturating_sub(whole).min(self.debt_max());
        whole.saturating_sub(spent)
    }

    /// Of `elapsed` cycles those that entitlements can be generated for.
    fn affordable(&self, elapsed: u64, budget: u64) -> u64 {
        let sold = ((self.rates >> 8) * u128::from(elapsed)) >> (FRACTION - 8);
        // What is short for a moment is owed by the pool.
        let owed = self.debt_max().saturating_add_signed(self.pool.min(0));
        let limit = u128::from(budget) + u128::from(owed);
        if sold <= limit {
            return elapsed;
        }
        // More is sold than there is: everybody gets the same part of it.
        u64::try_from(u128::from(elapsed) * limit / sold).unwrap_or(elapsed)
    }

    /// Takes what buckets earn off the pool; in 2^-56.
    fn give(&mut self, parts: u128) {
        let sum = i128::try_from(parts).unwrap_or(i128::MAX) + i128::from(self.carry);
        self.pool -= i64::try_from(sum >> FRACTION).unwrap_or(i64::MAX);
        self.carry = i64::try_from(sum & i128::from(FRACTION_MASK)).unwrap_or(0);
    }

    /// Looks at the next `most` of those that earn, each once, and takes full ones off the list.
    /// Returns whether one was.
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

    /// Shares the pool by weight among all min-max buckets that earn; without any, nobody has room.
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

    /// Brings a bucket that earns up to date; what it cannot keep goes to the pool.
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

    /// Brings a bucket up to date; one that was full earns again.
    pub(super) fn touch(&mut self, slot: usize) {
        if self.buckets[slot].is_full() {
            self.enlist(slot);
        } else {
            self.settle(slot);
        }
    }

    /// Puts a bucket on the list of those that earn.
    pub(super) fn enlist(&mut self, slot: usize) {
        // Never more than there are slots: nothing is allocated, and all numbers fit.
        let place = u32::try_from(self.earning.len()).unwrap_or(0);
        self.earning.push(u32::try_from(slot).unwrap_or(0));
        let now: Clocks = self.clocks;
        let bucket = &mut self.buckets[slot];
        bucket.begin(place, now);
        self.earning_rates += u128::from(bucket.rate);
        self.earning_weights += u64::from(bucket.weight);
    }

    /// Takes one that was just settled off the list.
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

    /// What was earned in parts of a cycle by a bucket that goes stays here.
    pub(super) fn keep_fraction(&mut self, fraction: u64) {
        self.carry -= fraction.cast_signed();
    }
}
