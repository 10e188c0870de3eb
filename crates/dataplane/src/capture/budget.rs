//! The budget limits the cycles of all captures of a worker.
//!
//! # Approach
//!
//! A token bucket in cycles gets one cycle in [`SHARE`] of those that the worker may use. When the
//! bucket is empty, the captures pause. They then take no frame, and the delivery is the one
//! without captures. The length of a pause is random, so that a periodic stream is not always seen
//! at the same place.

use penstock_units::Cycles;

/// Captures may use one cycle in `SHARE` of the worker's cycles.
///
/// The budget has what the copies take, but not what they take from others: the cache lines and
/// branches that the other batches must learn again. With one cycle in 200, another port kept
/// 98.6 % of its rate in a run with frames of 64 bytes (by ranks, 97.4 to 100 %), and 99 % is the
/// goal.
pub const SHARE: u64 = 400;
/// Largest number of cycles that captures may use before a pause: the copies of some thousand small
/// frames, or of 50 large segments.
const BURST: i64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Budget {
    tokens: i64,
    /// One cycle in `one_in` of the core is for captures.
    one_in: u64,
    last: Cycles,
    /// Cycles for which no token has been added yet.
    rest: u64,
    paused_until: Cycles,
    random: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            tokens: BURST,
            one_in: SHARE,
            last: Cycles::ZERO,
            rest: 0,
            paused_until: Cycles::ZERO,
            random: 0x9e37_79b9,
        }
    }
}

impl Budget {
    /// Lowers the budget to that of a worker that may use `capacity` of the `core` cycles that its
    /// core has per second.
    pub(super) fn lower(&mut self, capacity: u64, core: u64) {
        let one_in = u128::from(SHARE) * u128::from(core) / u128::from(capacity.max(1));
        self.one_in = u64::try_from(one_in).unwrap_or(u64::MAX).max(SHARE);
    }

    /// Whether captures may use cycles at time `now`.
    #[inline]
    pub(super) fn may(&mut self, now: Cycles) -> bool {
        now >= self.paused_until && self.refill(now)
    }

    fn refill(&mut self, now: Cycles) -> bool {
        let passed = now.saturating_sub(self.last).0.saturating_add(self.rest);
        self.last = self.last.max(now);
        self.rest = passed % self.one_in;
        let tokens = i64::try_from(passed / self.one_in).unwrap_or(BURST);
        self.tokens = self.tokens.saturating_add(tokens).min(BURST);
        if self.tokens <= 0 {
            // Half to three halves of the time in which the bucket fills.
            let full = BURST.unsigned_abs().saturating_mul(self.one_in);
            let random = u64::from(self.next_random() >> 16);
            let pause = (full / 2).saturating_add((full >> 16).saturating_mul(random));
            self.paused_until = Cycles(now.0.saturating_add(pause));
        }
        self.tokens > 0
    }

    /// Xorshift with 32 bits (Marsaglia 2003).
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    pub(super) fn spend(&mut self, cost: Cycles) {
        self.tokens = self.tokens.saturating_sub(i64::try_from(cost.0).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers work of `cost` every 10,000 cycles. Returns the elapsed and the spent cycles.
    fn offer(budget: &mut Budget, cost: u64, rounds: u64) -> (u64, u64) {
        let spent = (1..=rounds).filter(|round| {
            let may = budget.may(Cycles(round * 10_000));
            if may {
                budget.spend(Cycles(cost));
            }
            may
        });
        (rounds * 10_000, spent.count() as u64 * cost)
    }

    #[test]
    fn captures_get_their_share_of_the_cycles_and_no_more() {
        let mut budget = Budget::default();
        let (elapsed, spent) = offer(&mut budget, 3_000, 1_000_000);
        let share = elapsed / SHARE;
        assert!((share / 2..share + 1_010_000).contains(&spent), "{spent} of {share}");
    }

    #[test]
    fn a_worker_with_a_third_of_its_core_spends_a_third() {
        let mut budget = Budget::default();
        budget.lower(700_000_000, 2_100_000_000);
        let (elapsed, spent) = offer(&mut budget, 3_000, 1_000_000);
        let share = elapsed / SHARE / 3;
        assert!((share / 2..share + 1_010_000).contains(&spent), "{spent} of {share}");
    }

    #[test]
    fn one_costly_batch_is_paid_back() {
        let mut budget = Budget::default();
        let (elapsed, spent) = offer(&mut budget, 1_000_000, 1_000_000);
        let share = elapsed / SHARE;
        assert!((share / 2..share + 2_010_000).contains(&spent), "{spent} of {share}");
    }

    #[test]
    fn within_the_budget_nothing_is_left_out() {
        let mut budget = Budget::default();
        let (elapsed, spent) = offer(&mut budget, 20, 100_000);
        assert_eq!((elapsed, spent), (1_000_000_000, 2_000_000));
        assert!(spent < elapsed / SHARE);
    }
}
