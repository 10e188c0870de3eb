//! Estimated demand of a pair of VMs.
//!
//! # Problem
//!
//! A guarantee kept for an idle pair is missing for its siblings. A guarantee taken from a pair
//! that needs it is broken.
//!
//! # Approach
//!
//! Once a period: a pair that was limited, by its rate limit or by the network, may want any rate.
//! Another pair wanted exactly what it sent, and it gets some slack to grow. The estimate lags by a
//! period. Guarantee partitioning has this weakness; a queue of one's own does not (QShare §II-B).

use penstock_units::BitsPerSecond;

use super::{Parts, WHOLE, scaled};

/// A demand that no rate satisfies.
pub const UNLIMITED: BitsPerSecond = BitsPerSecond(u64::MAX);

/// Estimated demand of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandEstimate {
    slack: Parts,
    want: BitsPerSecond,
}

impl DemandEstimate {
    /// An estimate without measurements: the pair may want any rate. `slack` is the assumed demand
    /// beyond what it sent, in parts per million of that.
    #[must_use]
    pub const fn new(slack: Parts) -> Self {
        Self { slack, want: UNLIMITED }
    }

    /// Records a period in which the pair sent `rate` and was or was not limited.
    pub fn measured(&mut self, rate: BitsPerSecond, held_back: bool) {
        self.want = if held_back {
            UNLIMITED
        } else {
            let slack = scaled(rate.0, u64::from(self.slack), u64::from(WHOLE));
            BitsPerSecond(rate.0.saturating_add(slack))
        };
    }

    /// The demand; [`UNLIMITED`] if it is unknown.
    #[must_use]
    pub const fn want(&self) -> BitsPerSecond {
        self.want
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_pair_may_want_anything_and_another_wanted_what_it_sent() {
        let mut demand = DemandEstimate::new(100_000);
        assert_eq!(demand.want(), UNLIMITED);
        demand.measured(BitsPerSecond(10_000_000), false);
        assert_eq!(demand.want(), BitsPerSecond(11_000_000));
        demand.measured(BitsPerSecond(11_000_000), true);
        assert_eq!(demand.want(), UNLIMITED);
        demand.measured(UNLIMITED, false);
        assert_eq!(demand.want(), UNLIMITED);
    }
}
