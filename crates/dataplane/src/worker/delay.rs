//! The worker estimates how long frames waited in a port's ring before the worker took their batch.
//!
//! # Problem
//!
//! Customers buy a higher class for a shorter delay. Frames wait in the guests' rings, and a ring
//! does not record the arrival time of a frame.
//!
//! # Approach
//!
//! For each ring, the worker knows a time before which the next frame cannot have arrived. A ring's
//! next frame arrived at the earliest at the last check that found the ring empty, or at the last
//! batch's end. The first frame of a batch can have waited at most since the earliest time at which
//! the frame can have arrived. After a batch that filled completely, the next frame may already
//! wait in the ring, so its measured delay begins at the end of this batch. If a queue pair was at
//! rest, the delay of its first frame is measured from the time of the wake-up.
//!
//! The worker adds up the delays of each port. The worker also keeps each port's largest delay of
//! the current second and of the previous second.
//!
//! For example, the worker finds a ring empty at 100 us, serves other queue pairs, and finds frames
//! in the ring at 160 us. The worker then counts a delay of 60 us, the difference between 160 us
//! and 100 us.
//!
//! # Cost
//!
//! The measurement of delays costs one store for each check that finds no frame, and one addition
//! and some comparisons for each batch. The measurement of delays reads no clock, because the
//! worker already knows the time of the present turn.

use penstock_units::{Cycles, PortId};

use crate::counters::PortCounters;
use crate::unit::QUEUES_MAX;
use crate::unit::Unit;

/// For each queue pair, the earliest arrival time of its next frame. For each port, the largest
/// delays.
#[derive(Debug)]
pub(super) struct Delays {
    /// For each queue pair, the time in cycles before which its next frame cannot have arrived. An
    /// entry is 0 if the earliest arrival time of the queue pair's next frame is not known.
    since: Box<[u64]>,
    ports: Box<[Largest]>,
}

/// The largest delays of one port in the current second and in the previous second, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    second: u32,
    /// Largest delay of the port's frames in the current second (number `second`).
    now: u64,
    /// Largest delay of the port's frames in the second before `second`.
    before: u64,
}

impl Delays {
    pub(super) fn new(ports: usize) -> Self {
        Self {
            since: vec![0; ports * QUEUES_MAX].into_boxed_slice(),
            ports: vec![Largest::default(); ports].into_boxed_slice(),
        }
    }

    /// Records that the next frame of a queue pair cannot have arrived before time `now`.
    #[inline]
    pub(super) fn begin(&mut self, unit: Unit, now: Cycles) {
        let slot = unit.port.index() * QUEUES_MAX + unit.queue.index();
        if let Some(since) = self.since.get_mut(slot) {
            *since = now.0;
        }
    }

    /// Returns an upper limit of the time for which the first frame of a batch, received at time
    /// `now`, waited in the ring. Returns zero if no earliest arrival time is recorded for the
    /// queue pair.
    #[inline]
    pub(super) fn of(&self, unit: Unit, now: Cycles) -> Cycles {
        let slot = unit.port.index() * QUEUES_MAX + unit.queue.index();
        let since = self.since.get(slot).copied().filter(|since| *since > 0);
        Cycles(since.map_or(0, |since| now.0.saturating_sub(since)))
    }

    /// Records that frames of `port` were delayed by up to `nanos` nanoseconds in second `second`
    /// of the worker's coarse clock.
    #[inline]
    pub(super) fn count(&mut self, port: PortId, second: u32, nanos: u64, counters: &PortCounters) {
        counters.delay.add(nanos);
        let Some(largest) = self.ports.get_mut(port.index()) else { return };
        if largest.second == second {
            if nanos <= largest.now {
                return;
            }
            largest.now = nanos;
        } else {
            let follows = largest.second.wrapping_add(1) == second;
            largest.before = if follows { largest.now } else { 0 };
            (largest.second, largest.now) = (second, nanos);
        }
        counters.delay_max.set(largest.now.max(largest.before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_units::QueueId;

    const UNIT: Unit = Unit { port: PortId(1), queue: QueueId(2) };

    #[test]
    fn a_frame_waited_no_longer_than_since_its_ring_was_seen_empty() {
        let mut delays = Delays::new(2);
        assert_eq!(delays.of(UNIT, Cycles(500)), Cycles::ZERO, "never looked at");
        delays.begin(UNIT, Cycles(100));
        delays.begin(Unit { queue: QueueId(1), ..UNIT }, Cycles(150));
        assert_eq!(delays.of(UNIT, Cycles(160)), Cycles(60));
        delays.begin(UNIT, Cycles(170));
        assert_eq!(delays.of(UNIT, Cycles(160)), Cycles::ZERO, "no time runs backwards");
        let beyond = Unit { port: PortId(9), ..UNIT };
        delays.begin(beyond, Cycles(1));
        assert_eq!(delays.of(beyond, Cycles(9)), Cycles::ZERO);
    }

    #[test]
    fn the_largest_is_that_of_this_second_and_the_last() {
        let (mut delays, counters) = (Delays::new(2), PortCounters::default());
        let mut largest = |second, nanos| {
            delays.count(UNIT.port, second, nanos, &counters);
            (counters.delay.get(), counters.delay_max.get())
        };
        assert_eq!(largest(7, 100), (100, 100));
        assert_eq!(largest(7, 300), (400, 300));
        assert_eq!(largest(7, 200), (600, 300));
        assert_eq!(largest(8, 10), (610, 300), "the last second's still counts");
        assert_eq!(largest(9, 20), (630, 20));
        assert_eq!(largest(99, 5), (635, 5), "after a pause nothing does");
    }
}
