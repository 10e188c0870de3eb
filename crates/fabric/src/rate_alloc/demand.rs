//! Estimates the demand of a pair of VMs.
//!
//! # Problem
//!
//! The hypervisor divides a VM's guarantee among pairs, one for each VM with which the VM
//! communicates. If an idle pair keeps a part of the guarantee, the VM's other pairs cannot use
//! this part. If a pair of VMs loses a part of the guarantee that the pair needs, the guarantee is
//! violated.
//!
//! # Approach
//!
//! The hypervisor estimates a pair's demand once per period. If the rate limit or the network
//! limited the pair, its demand is unknown and counts as unlimited. The estimated demand of a pair
//! that was not limited is the rate at which the pair sent, plus some slack for growth. Estimates
//! of demand are one period late, which is a weakness of guarantee partitioning. Tenants with their
//! own switch queues need no estimates of demand (QShare §II-B).

use penstock_units::BitsPerSecond;

use super::{Parts, WHOLE, scaled};

/// Estimate for a pair whose demand is unknown, which counts as unlimited.
pub const UNLIMITED: BitsPerSecond = BitsPerSecond(u64::MAX);

/// Estimated demand of a pair of VMs, which follows from its measured rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandEstimate {
    slack: Parts,
    want: BitsPerSecond,
}

impl DemandEstimate {
    /// Creates an estimate without measurements, which is [`UNLIMITED`]. `slack` is the assumed
    /// demand beyond the sent rate, in parts per million of the sent rate.
    #[must_use]
    pub const fn new(slack: Parts) -> Self {
        Self { slack, want: UNLIMITED }
    }

    /// Records a period in which the pair sent at `rate`. `held_back` is true if the rate limit or
    /// the network limited the pair.
    pub fn measured(&mut self, rate: BitsPerSecond, held_back: bool) {
        self.want = if held_back {
            UNLIMITED
        } else {
            let slack = scaled(rate.0, u64::from(self.slack), u64::from(WHOLE));
            BitsPerSecond(rate.0.saturating_add(slack))
        };
    }

    /// Returns the estimated demand of the pair, or [`UNLIMITED`] if the demand is unknown.
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
