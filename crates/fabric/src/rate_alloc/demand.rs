//! Estimated demand of a pair of VMs.
//!
//! # Problem
//!
//! If a guarantee is kept for an idle pair, its siblings cannot use it. If it is taken from a pair
//! that needs it, the guarantee is broken.
//!
//! # Approach
//!
//! An estimate is made once per period. A pair that was limited, by its rate limit or by the
//! network, may want any rate. A pair that was not limited wanted exactly the rate that it sent.
//! Its estimate has some slack, so that the pair can grow. The estimate lags by a period. This lag
//! is a weakness of guarantee partitioning. A queue of the tenant's own avoids this weakness
//! (QShare §II-B).

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
    /// An estimate without measurements, so the pair may want any rate. `slack` is the assumed
    /// demand beyond the rate that the pair sent, in parts per million of that rate.
    #[must_use]
    pub const fn new(slack: Parts) -> Self {
        Self { slack, want: UNLIMITED }
    }

    /// Records a period in which the pair sent `rate`. `held_back` is true if the pair was limited.
    pub fn measured(&mut self, rate: BitsPerSecond, held_back: bool) {
        self.want = if held_back {
            UNLIMITED
        } else {
            let slack = scaled(rate.0, u64::from(self.slack), u64::from(WHOLE));
            BitsPerSecond(rate.0.saturating_add(slack))
        };
    }

    /// The estimated demand. [`UNLIMITED`] if it is unknown.
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
