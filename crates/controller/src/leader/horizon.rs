//! Decides when the store compacts its history, and up to which revision.
//!
//! # Problem
//!
//! etcd keeps every earlier value of a key until a client compacts etcd's history. etcd refuses
//! writes when its file reaches the quota, and the history counts.
//!
//! # Approach
//!
//! - Only the leader compacts the store's history, at most once per period.
//! - At the end of a period, the leader compacts up to the last revision before the start of that
//!   period. After a compaction, the store keeps the changes of one to two periods.
//! - Compaction does not delete present values, such as the leader's key, which every transaction
//!   of the leader compares.
//! - If the store is full, the leader compacts the whole history at once.
//! - If the leader has compacted changes that an interrupted watch has not delivered, the watch
//!   gets an error. The client of the watch must then list the keys again.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Revision;

/// Last revision of the store now, and last revision at the start of the present period.
#[derive(Debug, Default)]
pub struct Horizon {
    last: Revision,
    /// True if the store refused the leader's last write because the store is full.
    full: bool,
    /// Start of the present compaction period, and last revision of the store before the period.
    mark: Option<(Instant, Revision)>,
}

impl Horizon {
    /// Records the store's revision after a write.
    pub(super) fn saw(&mut self, revision: Revision) {
        self.last = self.last.max(revision);
    }

    /// Records whether the store accepted a write of values, or refused the write because the store
    /// is full.
    pub(super) fn found(&mut self, full: bool) {
        self.full = full;
    }

    /// Returns true if the store was full at the leader's last write.
    pub(super) const fn is_full(&self) -> bool {
        self.full
    }

    /// Returns the revision up to which the store must compact, or `None` if the present compaction
    /// period has not ended or had no write.
    pub(super) fn due(&mut self, now: Instant, period: Duration) -> Option<Revision> {
        let mark = self.mark;
        if mark.is_some_and(|(began, _)| now.saturating_duration_since(began) < period) {
            return None;
        }
        self.mark = Some((now, self.last));
        let (_, revision) = mark?;
        (Revision(0) < revision && revision < self.last).then_some(revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_one_and_two_periods_of_history_are_kept() {
        let (mut horizon, start) = (Horizon::default(), Instant::now());
        let period = Duration::from_secs(120);
        let mut compacted = Vec::new();
        // There is one change per second, and the revision equals the number of seconds.
        for second in 1..=600 {
            horizon.saw(Revision(second));
            if let Some(to) = horizon.due(start + Duration::from_secs(second), period) {
                compacted.push((second, to.0));
            }
        }
        assert_eq!(compacted, [(121, 1), (241, 121), (361, 241), (481, 361)]);
        let later = start + Duration::from_secs(1_000);
        assert_eq!(horizon.due(later, period), Some(Revision(481)));
        assert_eq!(horizon.due(later + period, period), None, "nothing was written since");
    }
}
