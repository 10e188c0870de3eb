//! Computes the rate of a pair of VMs, which is the pair's guarantee plus spare bandwidth.
//!
//! # Problem
//!
//! A hypervisor does not know how much bandwidth is spare on a pair's links. The hypervisor can
//! only increase the pair's rate until frames are lost or marked. At the first loss or mark, the
//! pair has already taken bandwidth from other pairs.
//!
//! # Source
//!
//! ElasticSwitch's rate allocation sets the rate R to max(B, rate of a weighted TCP), where B is
//! the guarantee. Penstock also uses ElasticSwitch's precautions hold-increase and rate-caution.
//!
//! # Quantities
//!
//! - R is the pair's rate, [`PairRate::rate`].
//! - B is the guarantee of the pair ([`super::partition::pair`]).
//! - The pair's weight w is B / 100 Mbit/s.
//! - p is the fraction of a period's frames that was lost or marked.
//! - The goal is the value of the rate R at the last loss or mark.
//!
//! # Approach
//!
//! `gain`, `cut`, `hold` and `step` are settings ([`RateSettings`]). Once per period, the rate R
//! changes by these rules, but never exceeds the interface's rate:
//!
//! - If frames were lost or marked (p > 0), `goal = R; R = max(B, R (1 - cut p'))`. If p is the
//!   lost fraction of frames, p' is min(1, gain × p). If p is the marked fraction of frames, p' is
//!   the moving average of p. After a reduction, R does not grow for the time `hold / w`.
//! - If no frame was lost or marked (p = 0) and the time `hold / w` is over, the rate R grows by w
//!   times `step`. If [`RateSettings::caution`] is set, the growth of the rate R is divided by R /
//!   B. If R is below the goal, the rate R grows by at least an eighth of the distance to the goal.
//!
//! If R grows by an eighth of the distance to the goal, the growth does not depend on the pair's
//! weight w. If growth towards the goal depended on w, a pair with a small weight would not reach
//! its goal before the next mark. If a pair does not reach its goal, the goal falls with each mark.
//! If goals fell with each mark, the rates of pairs would be proportional to the squares of the
//! pairs' guarantees.
//!
//! A host may call [`PairRate::fade`] instead for a pair that does not use its rate. R then loses a
//! sixteenth of its distance to B. The spare bandwidth of former periods says nothing about the
//! present, and a pair that kept R could send at R in bursts.
//!
//! # Example
//!
//! In a test, the guarantee B is 100 Mbit/s, the rate R is 200 Mbit/s and `cut` is a quarter. After
//! a period of the test in which all frames are lost, the rate R is 150 Mbit/s and the goal is 200
//! Mbit/s. In the next period without loss, R grows by an eighth of the missing 50 Mbit/s to 156.25
//! Mbit/s.
//!
//! # Bounds
//!
//! For any signals, the rate R is at least the guarantee B and at most the interface's rate. Pairs
//! in one queue whose frames are lost or marked equally often reach rates proportional to their
//! guarantees.

use penstock_units::{BitsPerSecond, Nanos};

use super::{Parts, RateSettings, WHOLE, scaled};

/// Fraction of a pair's frames in a period that was lost or marked, as reported by the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Fraction of the pair's frames that was lost in the period.
    Lost(Parts),
    /// Fraction of the pair's frames in the period that arrived with a congestion mark.
    Marked(Parts),
}

impl Signal {
    pub(super) const fn share(self) -> Parts {
        match self {
            Self::Lost(share) | Self::Marked(share) => share,
        }
    }
}

/// Rate of a pair of VMs, and the state on which changes of the rate depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairRate {
    guarantee: BitsPerSecond,
    rate: BitsPerSecond,
    goal: BitsPerSecond,
    marked: Parts,
    held_until: Nanos,
}

/// Smallest guarantee from which a pair's weight is computed. A pair with a smaller guarantee gets
/// the weight of the smallest guarantee, so that its rate still grows.
const WEIGHT_MIN: BitsPerSecond = BitsPerSecond(1_000_000);

impl PairRate {
    /// Creates the rate of a new pair, which starts at the pair's guarantee.
    #[must_use]
    pub fn new(guarantee: BitsPerSecond, settings: &RateSettings) -> Self {
        let rate = guarantee.min(settings.most);
        Self { guarantee: rate, rate, goal: rate, marked: 0, held_until: Nanos(0) }
    }

    /// Returns the rate at which the pair may send now.
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// Returns the pair's guarantee, which is at most the interface's rate.
    #[must_use]
    pub const fn guarantee(&self) -> BitsPerSecond {
        self.guarantee
    }

    /// Changes the pair's guarantee. If the rate is below the new guarantee, the rate rises to the
    /// guarantee.
    pub fn set_guarantee(&mut self, guarantee: BitsPerSecond, settings: &RateSettings) {
        self.guarantee = guarantee.min(settings.most);
        self.rate = self.rate.max(self.guarantee);
        self.goal = self.goal.max(self.rate);
    }

    /// Changes the pair's rate at the end of a period, by the rules of the module's documentation,
    /// and returns the new rate.
    pub fn period_ends(
        &mut self,
        now: Nanos,
        signal: Signal,
        settings: &RateSettings,
    ) -> BitsPerSecond {
        let share = signal.share().min(WHOLE);
        // A new value has a weight of a quarter, so that a mark has an effect for some periods.
        self.marked = self.marked - self.marked / 4 + share / 4;
        if share > 0 {
            self.cut(now, signal, settings);
        } else if now >= self.held_until {
            self.grow(settings);
        }
        self.rate = self.rate.min(settings.most);
        self.rate
    }

    /// Ends a period in which the pair did not use its rate. The rate falls towards the guarantee.
    pub fn fade(&mut self) {
        let above = self.rate.0.saturating_sub(self.guarantee.0);
        self.rate.0 -= above.div_ceil(16);
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
        // For a pair of weight 1, the hold ends with the next period.
        let back = pair.period_ends(at(100), Signal::Lost(0), &settings);
        assert_eq!(back, BitsPerSecond(156_250_000));
    }

    #[test]
    fn a_small_guarantee_waits_longer_and_grows_more_slowly() {
        let settings = settings();
        let mut pair = PairRate::new(BitsPerSecond(10 * MBIT), &settings);
        pair.period_ends(Nanos(0), Signal::Lost(1000), &settings);
        assert_eq!(pair.rate(), BitsPerSecond(10 * MBIT), "never below the guarantee");
        // The guarantee is 10 Mbit/s, so the hold is 50 ms x 100 / 10.
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
    fn an_unused_rate_falls_to_the_guarantee_and_no_lower() {
        let mut pair = PairRate::new(BitsPerSecond(100 * MBIT), &settings());
        pair.fade();
        assert_eq!(pair.rate(), BitsPerSecond(100 * MBIT));
        pair.rate = BitsPerSecond(260 * MBIT);
        pair.fade();
        assert_eq!(pair.rate(), BitsPerSecond(250 * MBIT));
        (0..1_000).for_each(|_| pair.fade());
        assert_eq!(pair.rate(), BitsPerSecond(100 * MBIT));
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
