//! Keeps the history of counters over the last seconds.
//!
//! The daemon keeps the last [`SECONDS`] readings, one per second. Reading the counters for the
//! history causes no work for the workers. `penstock explain` uses the growth of counters since the
//! reading of the requested age. If all readings are younger than the requested age, `penstock
//! explain` uses the oldest reading.

use std::collections::{BTreeMap, VecDeque};

use penstock_dataplane::counters::{PortReading, WorkerReading};
use penstock_units::Nanos;

use crate::api::QueueStatus;

/// Number of readings that the daemon keeps, one per second.
pub(crate) const SECONDS: usize = 10;

/// Counters of one port when the history read them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortMoment {
    pub(crate) reading: PortReading,
    /// Cycles that each worker charged to the port.
    pub(crate) cycles: Vec<u64>,
    /// The `wfq` queues of the port; empty for other ports.
    pub(crate) queues: Vec<QueueStatus>,
}

/// A reading of the counters of all ports and workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) at: Nanos,
    pub(crate) ports: BTreeMap<String, PortMoment>,
    pub(crate) workers: Vec<WorkerReading>,
}

/// The last [`SECONDS`] readings of the counters, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<Moment>);

impl History {
    /// Returns whether the last reading of the counters is at least a second old.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.0.back().is_none_or(|last| now.saturating_sub(last.at) >= Nanos::from_secs(1))
    }

    pub(crate) fn push(&mut self, moment: Moment) {
        if self.0.len() > SECONDS {
            self.0.pop_front();
        }
        self.0.push_back(moment);
    }

    /// Returns the latest reading of the counters that is at least `age` old at the time `now`. If
    /// all readings are younger than `age`, returns the oldest reading.
    pub(crate) fn since(&self, now: Nanos, age: Nanos) -> Option<&Moment> {
        let old = self.0.iter().rev().find(|moment| now.saturating_sub(moment.at) >= age);
        old.or_else(|| self.0.front())
    }
}

impl PortMoment {
    /// Returns the growth of all counters since the earlier reading `before`. If `before` is `None`
    /// or the port's counters were reset, the growth is counted from zero.
    pub(crate) fn since(&self, before: Option<&Self>) -> Self {
        let none = Self::default();
        let before = before.filter(|b| b.reading.rx_batches <= self.reading.rx_batches);
        let before = before.unwrap_or(&none);
        let old = |worker: usize| before.cycles.get(worker).copied().unwrap_or(0);
        let cycles = self.cycles.iter().enumerate();
        let dropped = |now: &QueueStatus| {
            let old = before.queues.iter().find(|old| old.queue == now.queue);
            let drops = now.drops.saturating_sub(old.map_or(0, |old| old.drops));
            QueueStatus { drops, ..now.clone() }
        };
        Self {
            queues: self.queues.iter().map(dropped).collect(),
            reading: self.reading.since(&before.reading),
            cycles: cycles.map(|(worker, now)| now.saturating_sub(old(worker))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_seconds_are_kept_and_a_question_finds_its_beginning() {
        let mut history = History::default();
        assert!(history.is_due(Nanos(0)) && history.since(Nanos(0), Nanos(0)).is_none());
        for s in 0..30 {
            assert!(history.is_due(Nanos::from_secs(s)));
            history.push(Moment { at: Nanos::from_secs(s), ..Moment::default() });
            assert!(!history.is_due(Nanos::from_millis(s * 1_000 + 999)));
        }
        let since = |now: u64, age: u64| {
            history
                .since(Nanos::from_millis(now), Nanos::from_millis(age))
                .map(|m| m.at.0 / 1_000_000_000)
        };
        assert_eq!(since(29_500, 3_000), Some(26));
        assert_eq!(since(29_500, 60_000), Some(19), "the oldest");
        assert_eq!(since(29_500, 0), Some(29));
    }

    #[test]
    fn a_port_that_began_anew_counts_from_zero() {
        let moment = |batches, cycles: &[u64]| PortMoment {
            reading: PortReading { rx_batches: batches, ..PortReading::default() },
            cycles: cycles.to_vec(),
            queues: Vec::new(),
        };
        let grown = moment(10, &[100, 7]).since(Some(&moment(4, &[60])));
        assert_eq!((grown.reading.rx_batches, grown.cycles), (6, vec![40, 7]));
        let grown = moment(3, &[100]).since(Some(&moment(4, &[60])));
        assert_eq!((grown.reading.rx_batches, grown.cycles), (3, vec![100]));
    }
}
