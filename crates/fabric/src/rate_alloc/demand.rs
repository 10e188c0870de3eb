//! What a pair of VMs seems to want.
//!
//! **Problem.** A guarantee that is kept for a pair without traffic is missing to its siblings; one
//! that is taken from a pair that wanted it is broken. **Rule.** Once a period: a pair that was
//! held back, by its limit or by the network, may want anything; of any other what it sent is known
//! to be all that it wanted, and it is given a slack to grow into. The estimate lags a period
//! behind what it estimates. That is the weakness of guarantee partitioning which a queue of one's
//! own does not have (QShare §II-B).

use penstock_units::BitsPerSecond;

use super::{Parts, WHOLE, scaled};

/// A demand that no rate satisfies.
pub const UNLIMITED: BitsPerSecond = BitsPerSecond(u64::MAX);

/// What a pair wants, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandEstimate {
    slack: Parts,
    want: BitsPerSecond,
}

impl DemandEstimate {
    /// Nothing is known yet: it may want anything. `slack`: how much more than what it sent a pair
    /// is thought to want, in parts of a million of that.
    #[must_use]
    pub const fn new(slack: Parts) -> Self {
        Self { slack, want: UNLIMITED }
    }

    /// A period in which the pair sent `rate` and was `held_back` or not.
    pub fn measured(&mut self, rate: BitsPerSecond, held_back: bool) {
        self.want = if held_back {
            UNLIMITED
        } else {
            let slack = scaled(rate.0, u64::from(self.slack), u64::from(WHOLE));
            BitsPerSecond(rate.0.saturating_add(slack))
        };
    }

    /// What it wants; [`UNLIMITED`] where that is not known.
    #[must_use]
    pub const fn want(&self) -> BitsPerSecond {
        self.want
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_back_may_want_anything_and_what_was_not_has_told() {
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
