//! The budget limits the cycles of all captures of a worker.
//!
//! # Approach
//!
//! A token bucket in cycles gets one cycle in [`SHARE`]. When the bucket is empty, captures take no
//! frame. So that the captured frames are spread over time, captures then also take fewer frames:
//! one frame in `one_in`, chosen at random. After each [`WINDOW`], `one_in` doubles if the bucket
//! was empty, and halves if the bucket is more than half full.

use penstock_units::Cycles;

/// Captures may use one cycle in `SHARE`.
pub const SHARE: u64 = 200;
/// Largest number of cycles that captures may use at once.
const BURST: i64 = 2_000_000;
/// Cycles between two changes of the sampling rate.
const WINDOW: u64 = 20_000_000;
/// Least sampling rate: one frame in so many.
const ONE_IN_MAX: u32 = 1 << 16;

#[derive(Debug)]
pub(super) struct Budget {
    tokens: i64,
    last: Cycles,
    /// Cycles for which no token has been added yet.
    rest: u64,
    window: Cycles,
    was_empty: bool,
    one_in: u32,
    random: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            tokens: BURST,
            last: Cycles::ZERO,
            rest: 0,
            window: Cycles::ZERO,
            was_empty: false,
            one_in: 1,
            random: 0x9e37_79b9,
        }
    }
}

impl Budget {
    pub(super) const fn one_in(&self) -> u32 {
        self.one_in
    }

    /// Whether captures may use cycles at time `now`.
    pub(super) fn may(&mut self, now: Cycles) -> bool {
        if now > self.last {
            let passed = now.saturating_sub(self.last).0.saturating_add(self.rest);
            self.last = now;
            self.rest = passed % SHARE;
            let tokens = i64::try_from(passed / SHARE).unwrap_or(BURST).min(2 * BURST);
            self.tokens = self.tokens.saturating_add(tokens).min(BURST);
        }
        if now.saturating_sub(self.window).0 >= WINDOW {
            self.adapt(now);
        }
        self.was_empty |= self.tokens <= 0;
        self.tokens > 0
    }

    fn adapt(&mut self, now: Cycles) {
        if self.was_empty {
            self.one_in = (self.one_in * 2).min(ONE_IN_MAX);
        } else if self.tokens > BURST / 2 {
            self.one_in = (self.one_in / 2).max(1);
        }
        (self.was_empty, self.window) = (false, now);
    }

    /// Whether the sampling takes the next frame.
    pub(super) fn chosen(&mut self) -> bool {
        // Xorshift with 32 bits (Marsaglia 2003). The sampling rate is a power of two.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random & (self.one_in - 1) == 0
    }

    pub(super) fn spend(&mut self, cost: Cycles) {
        self.tokens = self.tokens.saturating_sub(i64::try_from(cost.0).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_get_their_share_of_the_cycles_and_no_more() {
        let mut budget = Budget::default();
        let (mut now, mut spent) = (0, 0_u64);
        while now < 2_000_000_000 {
            now += 10_000;
            if budget.may(Cycles(now)) && budget.chosen() {
                budget.spend(Cycles(3_000));
                spent += 3_000;
            }
        }
        let share = now / SHARE;
        assert!((share..share + 2_010_000).contains(&spent), "{spent} of {share}");
        assert!(budget.one_in() > 1, "frames are left out");
    }

    #[test]
    fn without_pressure_every_frame_is_taken_again() {
        let mut budget = Budget::default();
        assert!(budget.may(Cycles(1)));
        budget.spend(Cycles(100_000_000));
        let mut now = 0;
        for _ in 0..5 {
            now += WINDOW;
            budget.may(Cycles(now));
        }
        assert!(!budget.may(Cycles(now)) && budget.one_in() >= 16);
        for _ in 0..10_000 {
            now += WINDOW;
            budget.may(Cycles(now));
        }
        assert_eq!(budget.one_in(), 1);
        assert!(budget.chosen());
    }

    #[test]
    fn one_frame_in_so_many_is_chosen() {
        let mut budget = Budget { one_in: 64, ..Budget::default() };
        let chosen = (0..64_000).filter(|_| budget.chosen()).count();
        assert!((800..1_200).contains(&chosen), "{chosen}");
    }
}
