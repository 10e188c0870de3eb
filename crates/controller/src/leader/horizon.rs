//! Up to where the store forgets its history.
//!
//! **Problem.** etcd keeps every value that a key ever had until somebody has it compacted. A
//! binding of 18,000 tenants writes gigabytes an hour, and above its quota etcd takes no writes.
//! **Rule.** The leader, and nobody else, has it compacted, up to the last revision that it knew
//! one period before: so between one and two periods of history are kept. What keys have now stays,
//! and with it all that a transaction compares: who leads is a key that is there. A watch that was
//! cut off for longer than that is told so, and its reader lists again.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Revision;

/// What the store's revisions were.
#[derive(Debug, Default)]
pub(super) struct Horizon {
    last: Revision,
    /// The beginning of this period, and the last revision then.
    mark: Option<(Instant, Revision)>,
}

impl Horizon {
    /// A write was this change.
    pub(super) fn saw(&mut self, revision: Revision) {
        self.last = self.last.max(revision);
    }

    /// Up to where to compact, if a period has passed and something was written in it.
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
        // A change a second, its number that of the second.
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
