//! A queue of events, ordered by time. Events at the same time keep the order of their posting.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use penstock_units::Nanos;

/// A queue of timed events of type `T`.
#[derive(Clone, Debug)]
pub struct EventQueue<T> {
    heap: BinaryHeap<Reverse<(Nanos, u64, T)>>,
    posted: u64,
}

impl<T: Ord> EventQueue<T> {
    #[must_use]
    pub const fn new() -> Self {
        Self { heap: BinaryHeap::new(), posted: 0 }
    }

    /// Posts `event` for time `at`.
    pub fn post(&mut self, at: Nanos, event: T) {
        self.heap.push(Reverse((at, self.posted, event)));
        self.posted += 1;
    }

    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Removes and returns the next event that is due at `now` or earlier.
    pub fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, T)> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

impl<T: Ord> Default for EventQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_posted() {
        let mut queue = EventQueue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'b')] {
            queue.post(Nanos(at), event);
        }
        assert_eq!(queue.pop_due(Nanos(0)), None);
        assert_eq!(queue.pop_due(Nanos(9)), Some((Nanos(1), 'a')));
        assert_eq!(queue.pop_due(Nanos(9)), Some((Nanos(5), 'c')));
        assert_eq!(queue.pop_due(Nanos(9)), Some((Nanos(5), 'b')));
    }
}
