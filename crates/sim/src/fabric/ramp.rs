//! The window of a TCP flow, for simulations in which a flow does not have its full rate at once.
//!
//! # Problem
//!
//! A simulated flow usually gets its share of the links from the first bit on. A real TCP flow
//! begins with a small window, and reduces the window when a queue overflows. Short flows then take
//! longer, whatever system shares the links.
//!
//! # Approach
//!
//! A flow may have at most one window of bits on its way per round trip, so its rate is at most the
//! window divided by the round-trip time. At the end of each round, the window changes:
//!
//! - Slow start: the window doubles until the first loss.
//! - Loss: a flow with the rate r has r times the round-trip time on its way, and at most r times
//!   [`Ramp::buffer`] in the bottleneck's queue. If the window is larger, frames are lost, and the
//!   window halves.
//! - Congestion avoidance: after the first loss, the window grows by one segment per round.
//!
//! # Source
//!
//! The rules are those of RFC 5681 §3.1, with the initial window of RFC 6928.
//!
//! # Departures
//!
//! All rounds of a simulation end at the same times, and waiting in a queue does not prolong a
//! round. The flows of a pair of VMs have one window, to which a new flow adds its initial window.
//! Time-outs do not occur. A flow with a fixed pace is limited by its application, and not by its
//! window.

use penstock_units::Nanos;

use super::pair_limits::secs;

/// Parameters of TCP's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// Round-trip time without waiting in queues, above 0.
    pub rtt: Nanos,
    /// Longest time that a frame waits in the queue of a bottleneck. With less than one round-trip
    /// time, a link is not full after a loss.
    pub buffer: Nanos,
    /// Size of a segment in bytes.
    pub segment: u32,
    /// Number of segments in the window of a new flow.
    pub initial: u32,
}

impl Ramp {
    /// Returns a ramp with ten segments of 1,460 bytes in the initial window.
    #[must_use]
    pub const fn new(rtt: Nanos, buffer: Nanos) -> Self {
        Self { rtt, buffer, segment: 1_460, initial: 10 }
    }

    fn segment_bits(&self) -> f64 {
        8.0 * f64::from(self.segment)
    }

    fn initial_bits(&self) -> f64 {
        self.segment_bits() * f64::from(self.initial)
    }
}

/// Window of each flow of a pair of VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window {
    bits: f64,
    slow_start: bool,
}

impl Window {
    /// Adds a flow to a pair that has `flows` flows.
    fn joined(&mut self, flows: f64, ramp: &Ramp) {
        self.bits = (flows * self.bits + ramp.initial_bits()) / (flows + 1.0);
        self.slow_start |= flows == 0.0;
    }

    /// Ends a round in which each flow had the rate `per_flow` in bits/s.
    fn round_ends(&mut self, per_flow: f64, ramp: &Ramp) {
        let room = per_flow * (secs(ramp.rtt) + secs(ramp.buffer));
        if self.bits > room {
            self.bits = (self.bits / 2.0).max(2.0 * ramp.segment_bits());
            self.slow_start = false;
        } else if self.slow_start {
            self.bits *= 2.0;
        } else {
            self.bits += ramp.segment_bits();
        }
    }
}

/// Windows of all pairs of VMs.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    ramp: Ramp,
    of_pair: Vec<Window>,
}

impl Windows {
    pub fn new(ramp: Ramp, pairs: usize) -> Self {
        Self { ramp, of_pair: vec![Window::default(); pairs] }
    }

    pub fn rtt(&self) -> Nanos {
        self.ramp.rtt
    }

    /// Returns the highest rate of each flow of a pair, in bits/s.
    pub fn per_flow(&self, pair: usize) -> f64 {
        self.of_pair[pair].bits / secs(self.ramp.rtt)
    }

    /// Adds a flow to a pair that has `flows` flows.
    pub fn joined(&mut self, pair: usize, flows: f64) {
        self.of_pair[pair].joined(flows, &self.ramp);
    }

    /// Ends a round in which each flow of a pair had the rate `per_flow` in bits/s.
    pub fn round_ends(&mut self, pair: usize, per_flow: f64) {
        self.of_pair[pair].round_ends(per_flow, &self.ramp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_doubles_until_a_loss_and_then_grows_by_segments() {
        let ramp = Ramp::new(Nanos::from_millis(1), Nanos::from_millis(1));
        let mut window = Window::default();
        window.joined(0.0, &ramp);
        let segments = |window: Window| window.bits / ramp.segment_bits();
        let mut found = Vec::new();
        // The flow has 64 segments per millisecond, and room for as many in the queue.
        for _ in 0..6 {
            found.push(segments(window));
            window.round_ends(64.0 * ramp.segment_bits() * 1_000.0, &ramp);
        }
        assert_eq!(found, [10.0, 20.0, 40.0, 80.0, 160.0, 80.0]);
        assert_eq!((segments(window), window.slow_start), (81.0, false));
        // A second flow starts with its own window.
        window.joined(1.0, &ramp);
        assert_eq!((segments(window), window.slow_start), (45.5, false));
    }
}
