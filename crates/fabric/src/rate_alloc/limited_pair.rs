//! State of one limited pair of VMs: its rate, its demand and its parts of the guarantees.
//!
//! # Approach
//!
//! The simulator and the hosts keep a [`LimitedPair`] for each pair. At the end of a rate period,
//! the pair's rate changes by a congestion signal ([`PairRate`]). When the guarantees are divided
//! again, the pair's demand is estimated from the rate at which the pair sent ([`DemandEstimate`]).
//! Each of the two VMs then assigns a part of its guarantee to the pair. The smaller part is the
//! pair's guarantee ([`partition::pair`]).

use penstock_units::{BitsPerSecond, Nanos};

use super::{DemandEstimate, PairRate, Parts, RateSettings, Signal, partition};

/// Number of the sending VM's side in [`LimitedPair::assign`].
pub const SENDER: usize = 0;
/// Number of the receiving VM's side in [`LimitedPair::assign`].
pub const RECEIVER: usize = 1;

/// Fraction of its rate limit, in percent, from which on a pair counts as limited by it.
const HELD_PERCENT: u128 = 95;

/// Rate, demand and guarantee of a pair of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedPair {
    rate: PairRate,
    demand: DemandEstimate,
    /// Parts of the sending VM's and the receiving VM's guarantee that the VMs last assigned to the
    /// pair.
    sides: [BitsPerSecond; 2],
    /// Whether some of the pair's demand was refused since the last measurement.
    pressed: bool,
}

impl LimitedPair {
    /// Creates a pair that starts at its guarantee. `sides` are the parts of the sender's and of
    /// the receiver's guarantee, and `slack` is the slack of the demand's estimate.
    #[must_use]
    pub fn new(sides: [BitsPerSecond; 2], slack: Parts, settings: &RateSettings) -> Self {
        let guarantee = partition::pair(sides[SENDER], sides[RECEIVER]);
        Self {
            rate: PairRate::new(guarantee, settings),
            demand: DemandEstimate::new(slack),
            sides,
            pressed: false,
        }
    }

    /// Returns the pair's guarantee.
    #[must_use]
    pub const fn guarantee(&self) -> BitsPerSecond {
        self.rate.guarantee()
    }

    /// Returns the rate at which the pair may send.
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate.rate()
    }

    /// Records that a part of the pair's demand was refused.
    pub fn press(&mut self) {
        self.pressed = true;
    }

    /// Ends a rate period with the congestion signal `signal`, and changes the pair's rate.
    pub fn period_ends(&mut self, now: Nanos, signal: Signal, settings: &RateSettings) {
        self.pressed |= signal.share() > 0;
        self.rate.period_ends(now, signal, settings);
    }

    /// Ends a rate period in which the pair did not use its rate. The rate falls towards the
    /// guarantee.
    pub fn fade(&mut self) {
        self.rate.fade();
    }

    /// Records the rate at which the pair sent since the last measurement. If the pair reached its
    /// limit, or if some of its demand was refused, its demand counts as unlimited.
    pub fn measured(&mut self, rate: BitsPerSecond) {
        let limit = u128::from(self.rate.rate().0) * HELD_PERCENT;
        let held_back = self.pressed || u128::from(rate.0) * 100 >= limit;
        self.pressed = false;
        self.demand.measured(rate, held_back);
    }

    /// Returns the part of a VM's guarantee that the pair can use: the smaller of the pair's demand
    /// and the part of the other VM. `side` is the number of the VM's side.
    #[must_use]
    pub fn want(&self, side: usize) -> BitsPerSecond {
        self.demand.want().min(self.sides[(side + 1) % 2])
    }

    /// Returns the estimated demand of the pair.
    #[must_use]
    pub const fn demand(&self) -> BitsPerSecond {
        self.demand.want()
    }

    /// Returns the part of a VM's guarantee that the VM last assigned to the pair.
    #[must_use]
    pub fn part(&self, side: usize) -> BitsPerSecond {
        self.sides[side % 2]
    }

    /// Sets the part of a VM's guarantee that the VM assigns to the pair. The pair's guarantee
    /// changes with the next [`Self::settle`].
    pub fn assign(&mut self, side: usize, part: BitsPerSecond) {
        self.sides[side % 2] = part;
    }

    /// Makes the smaller part the pair's guarantee. The rate rises to the guarantee if it is lower,
    /// and never falls.
    pub fn settle(&mut self, settings: &RateSettings) {
        self.rate.set_guarantee(self.smaller_part(), settings);
    }

    /// Makes the smaller part the pair's guarantee, and sets the rate to the guarantee. The pair
    /// forgets earlier congestion.
    pub fn restart(&mut self, settings: &RateSettings) {
        self.rate = PairRate::new(self.smaller_part(), settings);
    }

    fn smaller_part(&self) -> BitsPerSecond {
        partition::pair(self.sides[SENDER], self.sides[RECEIVER])
    }
}

#[cfg(test)]
mod tests {
    use super::super::{UNLIMITED, WHOLE};
    use super::*;

    const MBIT: u64 = 1_000_000;

    fn mbps(rate: u64) -> BitsPerSecond {
        BitsPerSecond(rate * MBIT)
    }

    #[test]
    fn the_smaller_part_is_the_guarantee_and_a_restart_takes_back_what_was_above() {
        let settings = RateSettings::shared_queue(mbps(1_000));
        let mut pair = LimitedPair::new([mbps(80), mbps(60)], 100_000, &settings);
        assert_eq!((pair.guarantee(), pair.rate()), (mbps(60), mbps(60)));
        pair.period_ends(Nanos(0), Signal::Lost(0), &settings);
        assert_eq!(pair.rate(), mbps(90));
        pair.assign(RECEIVER, mbps(20));
        pair.settle(&settings);
        assert_eq!((pair.guarantee(), pair.rate()), (mbps(20), mbps(90)));
        pair.restart(&settings);
        assert_eq!((pair.guarantee(), pair.rate()), (mbps(20), mbps(20)));
    }

    #[test]
    fn who_is_limited_or_refused_may_want_anything() {
        let settings = RateSettings::shared_queue(mbps(1_000));
        let mut pair = LimitedPair::new([mbps(100), mbps(60)], 100_000, &settings);
        pair.measured(mbps(10));
        assert_eq!((pair.demand(), pair.want(SENDER)), (mbps(11), mbps(11)));
        pair.measured(mbps(57));
        assert_eq!((pair.demand(), pair.want(SENDER)), (UNLIMITED, mbps(60)));
        assert_eq!(pair.want(RECEIVER), mbps(100));
        pair.press();
        pair.measured(mbps(10));
        assert_eq!(pair.demand(), UNLIMITED);
        pair.period_ends(Nanos(0), Signal::Lost(WHOLE), &settings);
        pair.measured(mbps(10));
        assert_eq!(pair.demand(), UNLIMITED, "a loss refuses demand, too");
        pair.measured(mbps(10));
        assert_eq!(pair.demand(), mbps(11));
    }
}
