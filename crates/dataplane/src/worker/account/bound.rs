//! The batch bound limits the time for which a batch of a lower class occupies the core.
//!
//! # Problem
//!
//! The worker cannot interrupt a batch. A port of the highest class therefore waits until the
//! current batch ends, even if a port of the lowest class runs this batch. On the C2QoS paper's
//! platform, 32 frames of 1024 B take 24 us. A port of the highest class therefore waits mostly for
//! the end of a batch of 24 us.
//!
//! # Source
//!
//! In C2QoS §IV-B.2, a class's worst latency is a multiple of `c`, the time of one batch. The C2QoS
//! paper takes the batch time `c` as given.
//!
//! # Approach
//!
//! With the discipline `hbs`, a port below the worker's highest class gets smaller batches than a
//! port of the highest class. At the port's recent cost per frame, a batch of a port below the
//! highest class takes at most [`LOWER_CLASS`], but has at least one frame. Ports of the highest
//! class get whole batches. If all ports of the worker have the same class, all ports get whole
//! batches.
//!
//! For example, if a batch of 32 frames costs 24 us, a limit of 5 us allows 6 frames in the next
//! batch. A batch of 6 frames then costs 4.5 us, so the limit of 5 us again allows 6 frames.
//!
//! A batch may cause calls of the kernel, which wake drivers or send on sockets. A call can take
//! ten times as long as [`LOWER_CLASS`], however few frames the batch has. So a batch may take as
//! long as the calls that a batch of the port causes on average. Without this, a port whose
//! receiver wants interrupts would send single frames with a wake-up each.
//!
//! # Departures
//!
//! The paper's batches always have 32 frames.
//!
//! # Cost
//!
//! For a port below the highest class, the limit costs a few additions and comparisons per batch,
//! and one division if a whole batch would take longer than the limit.

use penstock_qos::latency_bound::{self, LOWER_CLASS};
use penstock_units::{Cycles, PortId, Priority, TscRate};

use crate::batch::BATCH_FRAMES;

// The latency bound depends on this.
const _: () = assert!(BATCH_FRAMES == latency_bound::BATCH_FRAMES as usize);

/// For each port, the maximum number of frames in the port's next batch.
#[derive(Debug)]
pub(super) struct BatchBound {
    /// Maximum length in cycles of a batch of a port below the highest class.
    cycles: u64,
    /// Highest latency class among the worker's ports.
    pub(super) first: Priority,
    /// State of each port, indexed by port number.
    ports: Box<[Port]>,
}

#[derive(Debug, Clone, Copy)]
struct Port {
    /// Maximum number of frames in the next batch.
    frames: u8,
    /// Cycles of calls of the kernel since the last batch.
    called: u64,
    /// Exponential average of the cycles of calls that a batch causes.
    calls: u64,
}

/// Reciprocal of the weight of a batch in the average of [`Port::calls`].
const CALLS_OVER: u64 = 8;

/// Number of frames in a full batch.
const WHOLE: u8 = {
    assert!(BATCH_FRAMES <= u8::MAX as usize);
    #[expect(clippy::cast_possible_truncation, reason = "asserted")]
    let whole = BATCH_FRAMES as u8;
    whole
};

impl BatchBound {
    pub(super) fn new(ports: usize, tsc: TscRate) -> Self {
        Self {
            cycles: tsc.to_cycles(LOWER_CLASS).0.max(1),
            first: Priority::LAST,
            ports: vec![Port { frames: WHOLE, called: 0, calls: 0 }; ports].into_boxed_slice(),
        }
    }

    /// Sets the highest latency class among the worker's ports. [`Priority::LAST`] means that the
    /// schedule ignores classes.
    pub(super) fn set_first(&mut self, first: Priority) {
        self.first = first;
    }

    /// Returns the maximum number of frames in a port's next batch.
    #[inline]
    pub(super) fn frames(&self, port: PortId, class: Priority) -> usize {
        if class <= self.first {
            return BATCH_FRAMES;
        }
        self.ports.get(port.index()).map_or(BATCH_FRAMES, |port| usize::from(port.frames))
    }

    /// Records the cost of a call of the kernel that the port's frames caused.
    #[inline]
    pub(super) fn note_call(&mut self, port: PortId, cost: Cycles) {
        if let Some(port) = self.ports.get_mut(port.index()) {
            port.called = port.called.saturating_add(cost.0);
        }
    }

    /// Records the cost of a port's batch of `frames` frames.
    #[inline]
    pub(super) fn note(&mut self, port: PortId, class: Priority, frames: usize, cost: Cycles) {
        if class <= self.first {
            return;
        }
        let Some(port) = self.ports.get_mut(port.index()) else { return };
        let called = core::mem::take(&mut port.called) / CALLS_OVER;
        port.calls = port.calls - port.calls / CALLS_OVER + called;
        let most = port.calls.max(self.cycles);
        if cost.0 > most || port.frames < WHOLE {
            let fit = (frames as u64).saturating_mul(most) / cost.0.max(1);
            port.frames = u8::try_from(fit.max(1)).unwrap_or(WHOLE).min(WHOLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: PortId = PortId(1);

    fn bound() -> BatchBound {
        // 5 us are 5,000 cycles.
        BatchBound::new(2, TscRate::from_hz(1_000_000_000))
    }

    #[test]
    fn the_first_class_has_whole_batches_and_so_has_whoever_is_alone() {
        let mut bound = bound();
        bound.note(ME, Priority::LAST, 32, Cycles(24_000));
        assert_eq!(bound.frames(ME, Priority::LAST), 32, "there is but one class");
        bound.set_first(Priority::FIRST);
        bound.note(ME, Priority::FIRST, 32, Cycles(24_000));
        assert_eq!(bound.frames(ME, Priority::FIRST), 32);
        assert_eq!(bound.frames(ME, Priority::LAST), 32);
    }

    #[test]
    fn a_lower_class_s_batch_fits_the_bound_and_grows_back() {
        let mut bound = bound();
        bound.set_first(Priority::FIRST);
        let next = |bound: &mut BatchBound, frames, cost| {
            bound.note(ME, Priority::LAST, frames, Cycles(cost));
            bound.frames(ME, Priority::LAST)
        };
        assert_eq!(next(&mut bound, 32, 24_000), 6);
        assert_eq!(next(&mut bound, 6, 4_500), 6);
        assert_eq!(next(&mut bound, 6, 900), 32, "frames became cheap");
        assert_eq!(next(&mut bound, 32, 4_999), 32);
        assert_eq!(next(&mut bound, 1, 90_000), 1, "never none");
        assert_eq!(next(&mut bound, 1, 0), 32);
    }

    /// A batch costs 6,000 cycles and 1,000 more for each frame, and wakes a driver for 100,000.
    #[test]
    fn a_batch_may_take_as_long_as_the_calls_that_it_causes() {
        let mut bound = bound();
        bound.set_first(Priority::FIRST);
        let mut run = |call| {
            let frames = bound.frames(ME, Priority::LAST);
            bound.note(ME, Priority::LAST, frames, Cycles(6_000 + 1_000 * frames as u64));
            bound.note_call(ME, Cycles(call));
            frames
        };
        let mut runs = |call, of: usize| (0..of).map(|_| run(call)).last().unwrap();
        assert_eq!(runs(0, 5), 1, "no batch fits");
        assert_eq!(runs(100_000, 20), 32);
        assert_eq!(runs(0, 60), 1, "the driver polls again");
    }
}
