//! Computes the rate of a pair of VMs by weight and without a guarantee, as in Seawall.
//!
//! # Problem
//!
//! Even without guarantees, a VM must not get more bandwidth by opening more flows. A *tunnel*
//! consists of all flows between two VMs.
//!
//! # Source
//!
//! Seawall (NSDI 2011) limits the rate of each tunnel, and reduces the rate according to the
//! fraction of lost frames. A tunnel's rate grows along a curve that is flat around the rate at the
//! last loss. Tunnels with a larger weight grow faster.
//!
//! # Approach
//!
//! Let r be the tunnel's rate, [`SeawallRate::rate`]. The goal is the value of the rate r at the
//! last loss. The value p is the lost fraction of a period's frames, and p' is min(1, gain × p).
//! `gain`, `cut` and `step` are settings ([`RateSettings`]). Once per period, the tunnel's rate r
//! changes by these rules:
//!
//! - If frames were lost (p > 0), `goal = r; r = r (1 - cut p')`, at least [`RATE_MIN`].
//! - If no frame was lost (p = 0) and r is below the goal, r grows by weight times `step`, but at
//!   least by an eighth of the distance to the goal.
//! - If no frame was lost (p = 0) and r is at or above the goal, r grows by weight times `step`
//!   plus its distance above the goal.
//!
//! A rate grows slowly around its goal, and fast far from its goal.
//!
//! # Bounds
//!
//! For any signals, the rate r is at least [`RATE_MIN`] and at most the interface's rate. Tunnels
//! of one queue with equal signals reach rates proportional to their weights.
//!
//! # Departures
//!
//! The growth curve of a tunnel's rate consists of two parts instead of a cubic function. The two
//! parts of the growth curve have the shape of a cubic function, but need only integers.

use penstock_units::{BitsPerSecond, Weight};

use super::{Parts, RateSettings, WHOLE, scaled};

/// Lowest rate of a tunnel, in bits per second.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(1_000_000);

/// Rate of a tunnel, and the state on which changes of the rate depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeawallRate {
    weight: Weight,
    rate: BitsPerSecond,
    goal: BitsPerSecond,
}

impl SeawallRate {
    /// Creates the rate of a new tunnel, which starts at [`RATE_MIN`] times the tunnel's weight.
    #[must_use]
    pub fn new(weight: Weight, settings: &RateSettings) -> Self {
        let rate = RATE_MIN.0.saturating_mul(u64::from(weight.get()));
        let rate = BitsPerSecond(rate).min(settings.most).max(RATE_MIN);
        Self { weight, rate, goal: rate }
    }

    /// Returns the rate at which the tunnel may send now.
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// Changes the tunnel's rate at the end of a period, by the rules of the module's
    /// documentation, and returns the new rate. `lost` is the fraction of the tunnel's frames that
    /// was lost.
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
