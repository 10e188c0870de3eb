//! A pair's rate: its guarantee, plus spare bandwidth.
//!
//! # Problem
//!
//! A hypervisor does not know how much bandwidth is spare on a pair's links. It finds out by
//! sending more until frames are lost or marked, and by then it has taken bandwidth from others.
//!
//! # Source
//!
//! ElasticSwitch's rate allocation sets R = max(B, rate of a weighted TCP), with hold-increase and
//! rate-caution.
//!
//! # Quantities
//!
//! - R is [`PairRate::rate`].
//! - B is the pair's guarantee ([`super::partition::pair`]).
//! - w = B / 100 Mbit/s is its weight.
//! - p is the fraction of the period's frames that was lost or marked.
//! - The goal is the rate at the last loss or mark.
//!
//! # Approach
//!
//! Once per period the rate changes by these rules, with R limited to the interface's rate:
//!
//! - If p > 0, `goal = R; R = max(B, R (1 - cut p'))`. Here p' is min(1, gain × p) for losses, and
//!   the moving average of p for marks. Then R does not grow for `hold / w`.
//! - If p = 0 and the hold is over, R grows by w times `step`. With caution, this growth is divided
//!   by R / B. Below the goal, R grows by an eighth of the distance to the goal, if that is more.
//!
//! The return to the goal is not weighted. Otherwise pairs with small weights would still be
//! returning when the next marks arrive, and their goals would sink each time. Shares would then be
//! proportional to the squares of the guarantees.
//!
//! # Example
//!
//! In a test, B is 100 Mbit/s, R is 200, all frames are lost and the cut is a quarter. R becomes
//! 150 and the goal 200. The next period without loss adds 50 / 8, which gives 156.25.
//!
//! # Bounds
//!
//! Two properties are tested. B <= R <= the interface's rate for any signals. Pairs of one queue
//! with the same signals reach rates proportional to B.

use penstock_units::{BitsPerSecond, Nanos};

use super::{Parts, RateSettings, WHOLE, scaled};

/// A receiver's report about a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Fraction of the pair's frames that was lost.
    Lost(Parts),
    /// Fraction of the pair's frames that arrived with a congestion mark.
    Marked(Parts),
}

impl Signal {
    const fn share(self) -> Parts {
        match self {
            Self::Lost(share) | Self::Marked(share) => share,
        }
    }
}

/// Rate state of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairRate {
    guarantee: BitsPerSecond,
    rate: BitsPerSecond,
    goal: BitsPerSecond,
    marked: Parts,
    held_until: Nanos,
}

/// Smallest guarantee for computing weights, so that a pair with a tiny guarantee still moves.
const WEIGHT_MIN: BitsPerSecond = BitsPerSecond(1_000_000);

impl PairRate {
    /// A new pair, which starts at its guarantee.
    #[must_use]
    pub fn new(guarantee: BitsPerSecond, settings: &RateSettings) -> Self {
        let rate = guarantee.min(settings.most);
        Self { guarantee: rate, rate, goal: rate, marked: 0, held_until: Nanos(0) }
    }

    /// Rate at which the pair may send now.
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// The pair's guarantee, at most the interface's rate.
    #[must_use]
    pub const fn guarantee(&self) -> BitsPerSecond {
        self.guarantee
    }

    /// Changes the guarantee. The rate rises at least to the new guarantee.
    pub fn set_guarantee(&mut self, guarantee: BitsPerSecond, settings: &RateSettings) {
        self.guarantee = guarantee.min(settings.most);
        self.rate = self.rate.max(self.guarantee);
        self.goal = self.goal.max(self.rate);
    }

    /// Ends a period. Returns the new rate.
    pub fn period_ends(
        &mut self,
        now: Nanos,
        signal: Signal,
        settings: &RateSettings,
    ) -> BitsPerSecond {
        let share = signal.share().min(WHOLE);
        // In this average, a new value has a weight of a quarter, so that a mark counts for some
        // periods.
        self.marked = self.marked - self.marked / 4 + share / 4;
        if share > 0 {
            self.cut(now, signal, settings);
        } else if now >= self.held_until {
            self.grow(settings);
        }
        self.rate = self.rate.min(settings.most);
        self.rate
    }

    fn weight(&self) -> u64 {
        self.guarantee.max(WEIGHT_MIN).0
    }

    fn cut(&mut self, now: Nanos, signal: Signal, settings: &RateSettings) {
        let felt = match signal {
            Signal::Lost(share) => share.saturating_mul(settings.loss_gain).min(WHOLE),
            Signal::Marked(_) => self.marked,
        };
        self.goal = self.rate;
        let kept = u64::from(WHOLE) - scaled(u64::from(settings.cut), felt.into(), WHOLE.into());
        let rate = scaled(self.rate.0, kept, WHOLE.into());
        self.rate = BitsPerSecond(rate).max(self.guarantee);
        let hold = scaled(settings.hold.0, RateSettings::WEIGHT_ONE.0, self.weight());
        self.held_until = now + Nanos(hold).min(settings.hold_max);
    }

    fn grow(&mut self, settings: &RateSettings) {
        let missing = self.goal.0.saturating_sub(self.rate.0);
        let mut step = scaled(settings.step.0, self.weight(), RateSettings::WEIGHT_ONE.0);
        if settings.caution && self.rate.0 > self.weight() {
            step = scaled(step, self.weight(), self.rate.0);
        }
        let growth = step.max(missing / 8).max(1);
        self.rate = BitsPerSecond(self.rate.0.saturating_add(growth));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    fn settings() -> RateSettings {
        RateSettings { step: BitsPerSecond(2 * MBIT), ..RateSettings::cautious(nic()) }
    }

    fn nic() -> BitsPerSecond {
        BitsPerSecond(1000 * MBIT)
    }

    #[test]
    fn a_quarter_is_cut_and_regained_by_eighths() {
        let settings = settings();
        let mut pair = PairRate::new(BitsPerSecond(100 * MBIT), &settings);
        pair.rate = BitsPerSecond(200 * MBIT);
        let at = |ms| Nanos::from_millis(ms);
        let lost = pair.period_ends(at(50), Signal::Lost(WHOLE), &settings);
        assert_eq!(lost, BitsPerSecond(150 * MBIT));
        // The hold of a pair of weight 1 ends with the next period.
        let back = pair.period_ends(at(100), Signal::Lost(0), &settings);
        assert_eq!(back, BitsPerSecond(156_250_000));
    }

    #[test]
    fn a_small_guarantee_waits_longer_and_grows_more_slowly() {
        let settings = settings();
        let mut pair = PairRate::new(BitsPerSecond(10 * MBIT), &settings);
        pair.period_ends(Nanos(0), Signal::Lost(1000), &settings);
        assert_eq!(pair.rate(), BitsPerSecond(10 * MBIT), "never below the guarantee");
        // The hold is 50 ms x 100 / 10.
        for ms in (50..500).step_by(50) {
            pair.period_ends(Nanos::from_millis(ms), Signal::Lost(0), &settings);
            assert_eq!(pair.rate(), BitsPerSecond(10 * MBIT), "held at {ms} ms");
        }
        pair.period_ends(Nanos::from_millis(500), Signal::Lost(0), &settings);
        assert_eq!(pair.rate(), BitsPerSecond(10 * MBIT + 2 * MBIT / 10));
    }

    #[test]
    fn marks_count_by_their_average_and_losses_at_once() {
        let settings = settings();
        let start = |signal| {
            let mut pair = PairRate::new(BitsPerSecond(100 * MBIT), &settings);
            pair.rate = BitsPerSecond(400 * MBIT);
            pair.period_ends(Nanos(0), signal, &settings).0 / MBIT
        };
        assert_eq!(start(Signal::Marked(WHOLE)), 375);
        assert_eq!(start(Signal::Lost(WHOLE)), 300);
        assert_eq!(start(Signal::Lost(WHOLE / 100)), 390);
    }

    #[test]
    fn another_guarantee_lifts_the_rate_and_never_lowers_it() {
        let settings = settings();
        let mut pair = PairRate::new(BitsPerSecond(10 * MBIT), &settings);
        pair.set_guarantee(BitsPerSecond(50 * MBIT), &settings);
        assert_eq!(pair.rate(), BitsPerSecond(50 * MBIT));
        pair.set_guarantee(BitsPerSecond(5 * MBIT), &settings);
        assert_eq!((pair.rate().0, pair.guarantee().0), (50 * MBIT, 5 * MBIT));
        pair.set_guarantee(BitsPerSecond(9000 * MBIT), &settings);
        assert_eq!(pair.rate(), nic());
    }
}
