//! A pair's rate by weight, without a guarantee, as in Seawall.
//!
//! # Problem
//!
//! Even if no guarantee is sold, a tunnel from a VM must not gain by opening more flows.
//!
//! # Source
//!
//! Seawall (NSDI 2011) has a rate per tunnel and cuts it by the fraction of lost frames. The rate
//! grows by weight along a curve that is flat around the rate at the last loss.
//!
//! # Approach
//!
//! r is [`SeawallRate::rate`], p is the fraction of the period's frames that was lost, and the goal
//! is r at the last loss. Weights are 1 or more. Once per period:
//!
//! - If p > 0, `goal = r; r = r (1 - cut p')`, at least [`RATE_MIN`].
//! - If p = 0 and r is below the goal, r grows by weight times step, or by an eighth of the
//!   distance to the goal if that is more.
//! - If p = 0 and r is at or above the goal, r grows by weight times step plus its distance above
//!   the goal.
//!
//! Growth is therefore slow around the goal and fast far from it.
//!
//! # Bounds
//!
//! Two properties are tested. [`RATE_MIN`] <= r <= the interface's rate. Tunnels of one queue with
//! the same signals reach rates proportional to their weights.
//!
//! # Departures
//!
//! The curve consists of two parts instead of a cubic function. It has the same shape and needs
//! only integers.

use penstock_units::{BitsPerSecond, Weight};

use super::{Parts, RateSettings, WHOLE, scaled};

/// Lowest rate of a tunnel.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(1_000_000);

/// Rate state of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeawallRate {
    weight: Weight,
    rate: BitsPerSecond,
    goal: BitsPerSecond,
}

impl SeawallRate {
    /// A new tunnel, which starts at [`RATE_MIN`] times its weight.
    #[must_use]
    pub fn new(weight: Weight, settings: &RateSettings) -> Self {
        let rate = RATE_MIN.0.saturating_mul(u64::from(weight.get()));
        let rate = BitsPerSecond(rate).min(settings.most).max(RATE_MIN);
        Self { weight, rate, goal: rate }
    }

    /// Rate at which the tunnel may send now.
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// Ends a period in which the fraction `lost` of the tunnel's frames was lost. Returns the new
    /// rate.
    pub fn period_ends(&mut self, lost: Parts, settings: &RateSettings) -> BitsPerSecond {
        let step = settings.step.0.saturating_mul(u64::from(self.weight.get()));
        let rate = if lost > 0 {
            let felt = lost.saturating_mul(settings.loss_gain).min(WHOLE);
            let cut = scaled(u64::from(settings.cut), felt.into(), WHOLE.into());
            self.goal = self.rate;
            scaled(self.rate.0, u64::from(WHOLE) - cut, WHOLE.into())
        } else if self.rate < self.goal {
            let missing = self.goal.0 - self.rate.0;
            self.rate.0.saturating_add(step.max(missing / 8))
        } else {
            let above = self.rate.0 - self.goal.0;
            self.rate.0.saturating_add(step).saturating_add(above)
        };
        self.rate = BitsPerSecond(rate).min(settings.most).max(RATE_MIN);
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_slow_around_the_last_loss_and_fast_far_from_it() {
        let most = BitsPerSecond(1_000_000_000);
        let step = BitsPerSecond(1_000_000);
        let settings = RateSettings { step, ..RateSettings::cautious(most) };
        let mut tunnel = SeawallRate::new(Weight::new(1).unwrap(), &settings);
        tunnel.rate = BitsPerSecond(400_000_000);
        assert_eq!(tunnel.period_ends(WHOLE, &settings), BitsPerSecond(300_000_000));
        let mut growth = Vec::new();
        while tunnel.rate < most {
            let before = tunnel.rate.0;
            growth.push(tunnel.period_ends(0, &settings).0 - before);
        }
        assert_eq!((growth[0], growth[1]), (12_500_000, 10_937_500));
        let least = growth.iter().copied().min().unwrap();
        assert_eq!(least, 1_000_000, "a step around the goal");
        assert!(growth[growth.len() - 2] > 100_000_000, "{growth:?}");
    }
}
