//! The I/O reserve: credits that a vCPU can use only after an external event.
//!
//! # Problem
//! Compute-bound processes may use up a VM's credits. A VM without credits is in the class OVER and
//! gets no boost when a request arrives, so the VM answers late.
//!
//! # Source
//! The source is the section "Credit Reservation for I/O" of the paper VM jitter (§III-A). The
//! paper on VM jitter does not state the size of the I/O reserve.
//!
//! # Quantities
//! All amounts of the I/O reserve are in credits of the vCPU's [`crate::credit_book`].
//!
//! # Approach
//! In every epoch, a fixed percentage of a vCPU's new credits goes to the vCPU's I/O reserve. The
//! I/O reserve is full if it contains the credits that the reserve gets in two epochs. If the
//! reserve is full, all new credits go to the vCPU's ordinary credits, so shares stay the same. Run
//! time is charged to the I/O reserve only if an external event woke the blocked vCPU. If one slice
//! was not enough for an event, later run time may also be charged to the I/O reserve. Unused
//! credits stay in the reserve for the next epoch.
//!
//! # Example
//! With 10 %, an I/O reserve gets 10 of 100 credits in an epoch and has at most 20 credits.
//!
//! # Departures
//! The I/O reserve has an upper bound. Without an upper bound on the I/O reserve, a VM that was
//! idle for an hour could delay all other VMs for minutes.
//!
//! # Cost
//! Each call of an I/O reserve is O(1).

/// Maximum level of an I/O reserve, as the number of epochs in which the reserve fills.
const EPOCHS_MAX: i64 = 2;

/// The I/O reserve of one vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    pct: i64,
    level: i64,
}

impl Reserve {
    /// Makes an empty I/O reserve that gets `pct` percent of the vCPU's credits.
    #[must_use]
    pub fn new(pct: u8) -> Self {
        Self { pct: i64::from(pct), level: 0 }
    }

    /// Number of credits in the I/O reserve.
    #[must_use]
    pub const fn level(&self) -> i64 {
        self.level
    }

    /// Copies the level of the earlier reserve `before`. If the new reserve gets 0 percent of the
    /// credits, the new reserve's level is 0.
    pub fn resume(&mut self, before: Self) {
        self.level = if self.pct == 0 { 0 } else { before.level };
    }

    /// Adds the I/O reserve's percentage of the new credits to the reserve, and returns the
    /// remaining credits. `given` is the number of credits that the vCPU gets in an epoch.
    pub fn fill(&mut self, given: i64) -> i64 {
        let part = given.saturating_mul(self.pct) / 100;
        let room = (part.saturating_mul(EPOCHS_MAX) - self.level).clamp(0, part);
        self.level += room;
        given - room
    }

    /// Subtracts `used` credits from the reserve, but leaves at least `kept` credits in the
    /// reserve. Returns the part of `used` that the reserve did not cover.
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
