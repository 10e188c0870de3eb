//! C2QoS's Algorithm 1 as the paper prints it, for comparisons with Penstock's refill.
//!
//! # Problem
//!
//! Penstock departs from Algorithm 1 of C2QoS in several places ([`super`]). What the departures
//! gain can be measured only if the same worker can also run the printed algorithm.
//!
//! # Source
//!
//! C2QoS §IV-A, Algorithm 1. The names in quotation marks are the paper's.
//!
//! # Approach
//!
//! At each refill, every bucket gets its entitlement (`C_alloc`), a part of the unsold cycles by
//! weight (`C_idle`), and a part of the tokens that overflowed at the refill before
//! (`sum_unused_cc`). The last part is subtracted from `sum_unused_cc` before the next bucket gets
//! its part, and what remains after the last bucket is lost. Tokens above a bucket's depth overflow
//! to the next refill. No bucket keeps arrears, no port borrows, and cycles that the core spends on
//! other work are not subtracted.
//!
//! A [`Mode::Strict`] bucket gets only its entitlement, and a [`Mode::Free`] bucket only its floor,
//! because the paper has neither.
//!
//! # Cost
//!
//! A refill visits all buckets.

use super::{BucketSet, FRACTION, FRACTION_MASK, Mode};

/// Rule by which buckets get the cycles that no bucket's entitlement needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spare {
    /// Buckets that are not full share all spare cycles by weight.
    #[default]
    Pool,
    /// Buckets get spare cycles as in C2QoS's Algorithm 1, which loses a part of them.
    Printed,
}

impl BucketSet {
    /// Makes refills follow `spare`. Call this function before the first bucket joins.
    #[must_use]
    pub fn with_spare(mut self, spare: Spare) -> Self {
        debug_assert!(self.earning.is_empty(), "no bucket has joined");
        self.spare = spare;
        self.lends &= spare == Spare::Pool;
        self
    }

    /// Returns the weight with which a bucket gets spare cycles.
    pub(super) fn weight(&self, terms: &super::Terms) -> u32 {
        match (terms.mode, self.spare) {
            (Mode::Strict, _) | (Mode::Free, Spare::Printed) => 0,
            (Mode::MinMax | Mode::Free, _) => terms.weight.get().into(),
        }
    }

    /// Runs Algorithm 1 for an interval of `elapsed` cycles of the core.
    pub(super) fn refill_as_printed(&mut self, elapsed: u64) {
        (self.host, self.spent_elsewhere) = (0, 0);
        let weights = u128::from(self.earning_weights.max(1));
        let unsold = u128::from(self.capacity).saturating_sub(self.rates);
        let mut sum_unused = self.pool.max(0);
        let mut loop_unused = 0;
        self.ledger.passed_on += sum_unused.cast_unsigned();
        for bucket in self.buckets.iter_mut().filter(|bucket| bucket.is_metered()) {
            let weight = u128::from(bucket.weight);
            let rate = u128::from(bucket.rate) + unsold * weight / weights;
            let sum = rate * u128::from(elapsed) + u128::from(bucket.fraction);
            #[expect(clippy::cast_possible_truncation, reason = "masked")]
            let fraction = sum as u64 & FRACTION_MASK;
            bucket.fraction = fraction;
            let generated = i64::try_from(sum >> FRACTION).unwrap_or(i64::MAX >> 8);
            self.ledger.generated += generated.cast_unsigned();
            self.ledger.stored += generated;
            let part = u128::from(sum_unused.cast_unsigned()) * weight / weights;
            let unused = i64::try_from(part).unwrap_or(sum_unused);
            sum_unused -= unused;
            bucket.tokens += generated + unused;
            let above = bucket.tokens - bucket.depth;
            if above > 0 {
                loop_unused += above;
                bucket.tokens = bucket.depth;
            }
        }
        self.ledger.stored -= sum_unused;
        self.ledger.discarded += sum_unused.cast_unsigned();
        self.pool = loop_unused;
    }
}
