//! Which decision something is the result of: the fence against a controller that was deposed.
//!
//! **Problem.** A leader that was cut off goes on for a while, and what it says may arrive after
//! what its successor said. **Rule.** Everything that a controller tells a host or a switch carries
//! the number of its term, which the store counts up with every election, and within it the number
//! of the decision. Who is told keeps the highest it has seen and refuses what is lower. A store
//! that was restored or is new counts from lower numbers; an operator raises them then
//! (`penstock controller epoch`, `docs/disaster-recovery.md`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A term and a decision in it. Orders by term first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp {
    /// Larger with every election of a store: its revision then, and what an operator added.
    pub epoch: u64,
    /// Counted up with every decision, from 1 in each term.
    pub generation: u64,
}

/// The highest epoch that an operator may ask for: it leaves room for every election to come.
pub const EPOCH_MAX: u64 = 1 << 62;

impl Stamp {
    /// The lowest epoch whose decisions are all later than this one.
    #[must_use]
    pub const fn next_epoch(self) -> u64 {
        self.epoch.saturating_add(1)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::Stamp;

    #[test]
    fn a_later_term_is_above_every_decision_of_an_earlier_one() {
        let stamp = |epoch, generation| Stamp { epoch, generation };
        assert!(stamp(2, 1) > stamp(1, 999) && stamp(2, 2) > stamp(2, 1));
        assert_eq!(stamp(3, 14).to_string(), "3.14");
    }
}
