//! Credits kept for I/O.
//!
//! **Problem.** A VM whose compute-bound processes used up its credits cannot answer: it is OVER
//! and is not boosted. **Source.** VM jitter §III-A, "Credit Reservation for I/O"; how much is
//! reserved is left open. **Quantities.** Credits, in the unit of the book that has the account.
//! **Rule.** A part of what a vCPU is given in every accounting epoch goes here first; what is
//! beyond two epochs' parts goes on to its ordinary credits, so nothing is lost and shares stay.
//! Only what runs because an external event woke it from block draws from here, and what goes on
//! when the slice for an event was not enough; what remains stays for the next epoch.
//!
//! **Example** (a test). 10 % of 100: 10 a time, until 20 are there.
//! **Departures.** The carried rest has a bound: a VM silent for an hour would else hold up all
//! others for minutes. **Cost.** O(1).

/// Epochs whose reserve is held at most.
const EPOCHS_MAX: i64 = 2;

/// See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    pct: i64,
    level: i64,
}

impl Reserve {
    /// Empty, of so many percent.
    #[must_use]
    pub fn new(pct: u8) -> Self {
        Self { pct: i64::from(pct), level: 0 }
    }

    /// What is there.
    #[must_use]
    pub const fn level(&self) -> i64 {
        self.level
    }

    /// Has what was there on other terms; without a part of its own nothing.
    pub fn resume(&mut self, before: Self) {
        self.level = if self.pct == 0 { 0 } else { before.level };
    }

    /// Takes its part of what is given in an epoch; the rest.
    pub fn fill(&mut self, given: i64) -> i64 {
        let part = given.saturating_mul(self.pct) / 100;
        let room = (part.saturating_mul(EPOCHS_MAX) - self.level).clamp(0, part);
        self.level += room;
        given - room
    }

    /// Takes what was used from here, down to `kept`; what it could not cover.
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
    fn a_smaller_share_lets_go_of_nothing_and_takes_nothing_more() {
        let mut reserve = Reserve::new(10);
        reserve.fill(1_000);
        assert_eq!((reserve.fill(10), reserve.level()), (10, 100));
        assert_eq!(Reserve::new(0).fill(7), 7);
    }
}
