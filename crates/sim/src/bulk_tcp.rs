//! A TCP sender that always has data to send, behind a shaper.
//!
//! # Approach
//!
//! The sender begins with slow start from ten segments. A loss halves the window, at most once in a
//! round trip. After a loss, the window grows by one segment per round trip. A segment is lost if
//! the shaper's queue is full. An acknowledgement arrives at a random time 0.2 to 0.25 ms after the
//! segment's departure.

use std::collections::VecDeque;

use penstock_units::{Nanos, Rng};

use crate::shaped_vm::{Happened, Run, ShapedVm};

const ROUND_TRIP: u64 = 200_000;

/// A TCP sender. The sender's window is a number of segments.
#[derive(Debug)]
pub struct BulkTcp {
    segment: u32,
    window: f64,
    threshold: f64,
    in_flight: u32,
    /// Time until which further losses do not halve the TCP window again.
    recovered: Nanos,
    noise: Rng,
    /// Arrival times of acknowledgements, in the order of departures.
    acks: VecDeque<Nanos>,
}

impl BulkTcp {
    /// Creates a sender of segments with `segment` bytes. `noise` decides when acknowledgements
    /// arrive.
    #[must_use]
    pub const fn new(segment: u32, noise: Rng) -> Self {
        Self {
            segment,
            window: 10.0,
            threshold: f64::INFINITY,
            in_flight: 0,
            recovered: Nanos(0),
            noise,
            acks: VecDeque::new(),
        }
    }

    /// Sends through the shaper of `vm` from the time `from` on. Returns the number of bytes that
    /// depart in the time `length` after the first departure. Returns `None` if nothing is in
    /// flight any more.
    #[must_use]
    pub fn run(mut self, vm: ShapedVm, from: Nanos, length: Nanos) -> Option<u64> {
        let mut run = Run::new(vm);
        let (mut now, mut bytes, mut first) = (from, 0, None);
        let mut happened = Vec::new();
        loop {
            while f64::from(self.in_flight + 1) <= self.window {
                self.in_flight += 1;
                run.at(now, self.segment, 0);
            }
            let until = self.acks.front().copied().unwrap_or(Nanos(u64::MAX));
            let Some(at) = run.step(until, &mut happened) else {
                // Nothing happens before the next acknowledgement.
                now = self.acks.pop_front()?;
                self.acknowledged();
                continue;
            };
            now = at;
            let begin = *first.get_or_insert(now);
            if now > begin + length {
                return Some(bytes);
            }
            for event in &happened {
                match event {
                    Happened::Departed(frame) => {
                        bytes += u64::from(frame.bytes);
                        self.departed(now);
                    }
                    Happened::Dropped => self.lost(now),
                }
            }
        }
    }

    fn departed(&mut self, now: Nanos) {
        let back = now.0 + ROUND_TRIP + self.noise.below(ROUND_TRIP / 4);
        let last = self.acks.back().copied().unwrap_or(Nanos(0));
        self.acks.push_back(last.max(Nanos(back)));
    }

    fn acknowledged(&mut self) {
        self.in_flight -= 1;
        self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
    }

    fn lost(&mut self, now: Nanos) {
        self.in_flight -= 1;
        if now >= self.recovered {
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = self.threshold;
            self.recovered = now + Nanos(ROUND_TRIP);
        }
    }
}
