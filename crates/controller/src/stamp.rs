//! Stamps of decisions. They exclude a controller that was deposed.
//!
//! # Problem
//!
//! If a leader is cut off, it continues for a while. Its messages may arrive after those of its
//! successor.
//!
//! # Approach
//!
//! Every message from a controller to a host or switch carries a stamp. A stamp has the number of
//! the controller's term and the number of the decision within this term. The store increases the
//! term with every election. A receiver keeps the highest stamp that it has seen and refuses lower
//! ones. A restored or new store starts with lower terms. An operator then raises them with
//! `penstock controller epoch` (`docs/guides/disaster-recovery.md`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Term and number of a decision. Stamps are ordered by term first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp {
    /// Number of the term. It is the store's revision plus an operator's offset, so it increases
    /// with every election of a store.
    pub epoch: u64,
    /// Number of the decision. It starts at 1 in each term and increases with every decision.
    pub generation: u64,
}

/// Highest epoch that an operator may request. It leaves room for all future elections.
pub const EPOCH_MAX: u64 = 1 << 62;

impl Stamp {
    /// Returns the lowest epoch with stamps that are all later than this one.
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
