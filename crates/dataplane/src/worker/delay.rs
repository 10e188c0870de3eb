//! How long frames may have waited in a port's ring before their batch was taken.
//!
//! **Problem.** What a class is worth in service is a delay, and frames lie in guests' rings, where
//! nobody stamps them. **Rule.** The worker knows since when a ring's next frame can have been
//! there: since its last look that found the ring empty, or since the end of the last batch. When
//! it takes a batch, that time is the delay of its first frame at most; of the first frame behind a
//! full batch it is the wait for its turn. It is added up by port, and the largest of the second
//! under way and of the one before is kept. A queue pair that was at rest counts from its wake.
//! **Example.** A ring is found empty at 100 us, others have batches until 160 us, then it has
//! frames: 60 us. **Cost.** A store for each look that finds nothing; for each batch an addition
//! and comparisons. No clock is read: the times are those of the turn.

use penstock_units::{Cycles, PortId};

use super::{QUEUES_MAX, Worker};
use crate::counters::PortCounters;
use crate::schedule::Unit;
use crate::tsc::CycleCounter;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Delays {
    /// By queue pair: since when its next frame can have been there; 0: not known.
    since: Box<[u64]>,
    ports: Box<[Largest]>,
}

/// A port's largest delays, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    second: u32,
    /// Of that second.
    now: u64,
    /// Of the one before.
    before: u64,
}

impl Delays {
    pub(super) fn new(ports: usize) -> Self {
        Self {
            since: vec![0; ports * QUEUES_MAX].into_boxed_slice(),
            ports: vec![Largest::default(); ports].into_boxed_slice(),
        }
    }

    /// The next frame of a queue pair comes at `now` or later.
    #[inline]
    pub(super) fn begin(&mut self, unit: Unit, now: Cycles) {
        let slot = unit.port.index() * QUEUES_MAX + unit.queue.index();
        if let Some(since) = self.since.get_mut(slot) {
            *since = now.0;
        }
    }

    /// How long a frame that is taken at `now` can have waited.
    #[inline]
    pub(super) fn of(&self, unit: Unit, now: Cycles) -> Cycles {
        let slot = unit.port.index() * QUEUES_MAX + unit.queue.index();
        let since = self.since.get(slot).copied().filter(|since| *since > 0);
        Cycles(since.map_or(0, |since| now.0.saturating_sub(since)))
    }

    /// Counts a delay of `nanos` in the coarse second `second`.
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

impl<C: CycleCounter> Worker<C> {
    /// A batch is done whose first frame can have `waited` so long before it.
    #[inline]
    pub(super) fn count_delay(&mut self, unit: Unit, waited: Cycles) {
        let (second, nanos) = (self.clock.second(self.account.last()), self.clock.nanos(waited));
        if let Some(counters) = self.port_counters[unit.port.index()].as_deref() {
            self.delays.count(unit.port, second, nanos, counters);
        }
        self.delays.begin(unit, self.account.last());
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
