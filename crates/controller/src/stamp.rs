//! Defines the stamps of decisions. Because of stamps, hosts and switches refuse the messages of a
//! controller that no longer leads.
//!
//! # Problem
//!
//! A leader that lost its connection to the store may continue to send messages for a while. The
//! former leader's messages may arrive after the messages of its successor.
//!
//! # Approach
//!
//! Every message from a controller to a host or switch carries a stamp. A stamp contains the number
//! of the controller's term and the number of the decision within this term. The store increases
//! the term with every election. A receiver keeps the highest stamp that it has seen and refuses
//! messages with lower stamps. A restored or new store starts with lower term numbers. After a
//! restore, an operator raises the term numbers with `penstock controller epoch`
//! (`docs/guides/disaster-recovery.md`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Stamp with the term and number of a decision. Stamps are ordered first by term, and then by
/// number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp {
    /// Number of the controller's term: the store's revision at the election plus an operator's
    /// offset. The term's number increases with every election in a store.
    pub epoch: u64,
    /// Number of the decision, which starts at 1 in each term and increases with every decision.
    pub generation: u64,
}

/// Highest epoch that an operator may request. Epochs above the limit are reserved for future
/// elections.
pub const EPOCH_MAX: u64 = 1 << 62;

impl Stamp {
    /// Returns the lowest epoch above this stamp's epoch. Every stamp of the returned epoch is
    /// later than this stamp.
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
