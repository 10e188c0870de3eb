//! Seawall's kind of rate: by weight, without a guarantee.
//!
//! **Problem.** Where a guarantee is not sold, a tunnel from a VM still must not get more by
//! opening more flows. **Source.** Seawall (NSDI 2011): a rate for each tunnel, cut by the share of
//! lost frames, grown by weight along a curve that is flat around the rate at which loss was seen.
//!
//! **Quantities.** r: [`SeawallRate::rate`]; p: share of the period's frames that was lost; goal:
//! r at the last loss; weight 1 and up. **Rule.** Once a period: p > 0: `goal = r; r = r (1 - cut
//! p')`, not below [`RATE_MIN`]. Else weight times step more; below the goal an eighth of the way
//! to it, if that is more; above the goal as much again as r is above it. That is slow around the
//! goal and fast far from it.
//!
//! **Bounds** (a property). [`RATE_MIN`] <= r <= the interface's rate. Tunnels of one queue with
//! the same signals come to rates in proportion to their weights. **Departures.** A curve of two
//! straight parts and not a cubic one: the same shape, in integers.

use penstock_units::{BitsPerSecond, Weight};

use super::{Parts, RateSettings, WHOLE, scaled};

/// A tunnel is never slower.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(1_000_000);

/// A tunnel's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeawallRate {
    weight: Weight,
    rate: BitsPerSecond,
    goal: BitsPerSecond,
}

impl SeawallRate {
    /// A tunnel that begins, at [`RATE_MIN`] for each unit of its weight.
    #[must_use]
    pub fn new(weight: Weight, settings: &RateSettings) -> Self {
        let rate = RATE_MIN.0.saturating_mul(u64::from(weight.get()));
        let rate = BitsPerSecond(rate).min(settings.most).max(RATE_MIN);
        Self { weight, rate, goal: rate }
    }

    /// What it may send now.
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// A period ends in which the share `lost` of its frames was lost; returns the new rate.
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
