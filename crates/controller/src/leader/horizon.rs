//! Decides when the store compacts its history, and up to which revision.
//!
//! # Problem
//!
//! etcd keeps every earlier value of a key until a client compacts it. A binding of 18,000 tenants
//! writes gigabytes an hour, and etcd refuses writes above its quota.
//!
//! # Approach
//!
//! Only the leader compacts. It compacts up to the last revision that it knew one period ago, so
//! between one and two periods of history are kept. Compaction keeps present values. One of these
//! values is the leader's key, which every transaction of the leader compares. If a watch was
//! interrupted for longer than the kept history, the watch gets an error, and the watching client
//! lists again.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Revision;

/// Known revisions of the store.
#[derive(Debug, Default)]
pub(super) struct Horizon {
    last: Revision,
    /// Start of this period, and the last revision at that time.
    mark: Option<(Instant, Revision)>,
}

impl Horizon {
    /// Records the revision of a write.
    pub(super) fn saw(&mut self, revision: Revision) {
        self.last = self.last.max(revision);
    }

    /// Returns the revision to compact up to, if a period has passed and contained a write.
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
