//! Credits that are kept for I/O.
//!
//! # Problem
//! A VM may have compute-bound processes that use up its credits. It then cannot answer requests,
//! because it is OVER and not boosted.
//!
//! # Source
//! VM jitter §III-A, \"Credit Reservation for I/O\". The paper leaves open how much is reserved.
//!
//! # Quantities
//! Amounts are credits, in the unit of the book that has the account.
//!
//! # Approach
//! In every accounting epoch, a part of what a vCPU gets goes to the reserve first. The reserve is
//! bounded to two epochs' parts. The excess goes to the vCPU's ordinary credits, so nothing is lost
//! and shares stay the same. A vCPU runs on the reserve only if an external event woke it from
//! block. It may continue on the reserve if the slice for the event was not enough. Unused reserve
//! stays for the next epoch.
//!
//! # Example
//! A reserve of 10 % gets 10 of 100 credits in an epoch and holds at most 20. A test covers this.
//!
//! # Departures
//! The reserve that is carried over is bounded. Otherwise a VM that was silent for an hour could
//! delay all others for minutes.
//!
//! # Cost
//! Each call is O(1).

/// Maximum level of a reserve, in epochs' parts.
const EPOCHS_MAX: i64 = 2;

/// The reserve of one vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    pct: i64,
    level: i64,
}

impl Reserve {
    /// An empty reserve of `pct` percent.
    #[must_use]
    pub fn new(pct: u8) -> Self {
        Self { pct: i64::from(pct), level: 0 }
    }

    /// Credits in the reserve.
    #[must_use]
    pub const fn level(&self) -> i64 {
        self.level
    }

    /// Takes over the level of a previous reserve. If this reserve has 0 percent, the level becomes
    /// 0.
    pub fn resume(&mut self, before: Self) {
        self.level = if self.pct == 0 { 0 } else { before.level };
    }

    /// Takes the reserve's part of the credits given in an epoch, and returns the rest.
    pub fn fill(&mut self, given: i64) -> i64 {
        let part = given.saturating_mul(self.pct) / 100;
        let room = (part.saturating_mul(EPOCHS_MAX) - self.level).clamp(0, part);
        self.level += room;
        given - room
    }

    /// Pays for `used` credits, down to the level `kept`, and returns the credits that it could not
    /// pay.
    pub fn draw(&mut self, used: i64, kept: i64) -> i64 {
        let drawn = used.min(self.level - kept).max(0);
        self.level -= drawn;
        used - drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_epochs_are_carried_over_and_no_more() {
        let mut reserve = Reserve::new(10);
        assert_eq!([100, 100, 100].map(|given| reserve.fill(given)), [90, 90, 100]);
        assert_eq!(reserve.level(), 20);
        assert_eq!((reserve.draw(15, 0), reserve.draw(15, 0)), (0, 10));
        assert_eq!((reserve.fill(100), reserve.level()), (90, 10));
    }

    #[test]
    fn a_smaller_share_keeps_the_level_and_adds_nothing() {
        let mut reserve = Reserve::new(10);
        reserve.fill(1_000);
        assert_eq!((reserve.fill(10), reserve.level()), (10, 100));
        assert_eq!(Reserve::new(0).fill(7), 7);
    }
}
