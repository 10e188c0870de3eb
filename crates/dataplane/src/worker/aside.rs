//! Who is not polled although it may have frames: because of what it sent already waits.
//!
//! **Problem.** What a VM sends may have to wait: for its part of an uplink (back-pressure), for
//! its own shaper's time. Its frames wait best where they are, in its ring, which costs no copy and
//! tells the guest. **Rule.** A port is put aside for a reason; its queue pairs leave the schedule,
//! and come back when no reason is left. Those at rest stay at rest. **Cost.** Nothing for ports
//! that are not aside.

use penstock_units::PortId;

use super::{QUEUES_MAX, Worker};
use crate::schedule::{Schedule, Unit};
use crate::tsc::CycleCounter;

/// Why a port is not polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Why {
    /// An output of this worker has too much of it waiting.
    Pressed = 1,
    /// An output of another worker has.
    PressedElsewhere = 2,
    /// Its shaper says when its next frame may depart.
    Shaped = 4,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Aside {
    /// By port: the reasons, a bit each.
    why: Box<[u8]>,
}

impl Aside {
    pub(super) fn new(ports: usize) -> Self {
        Self { why: vec![0; ports].into_boxed_slice() }
    }

    pub(super) fn is_aside(&self, port: PortId) -> bool {
        self.why.get(port.index()).is_some_and(|why| *why != 0)
    }

    pub(super) fn is(&self, port: PortId, reason: Why) -> bool {
        self.why.get(port.index()).is_some_and(|why| why & reason as u8 != 0)
    }

    /// True: it was not aside before.
    fn put(&mut self, port: PortId, reason: Why) -> bool {
        let Some(why) = self.why.get_mut(port.index()) else { return false };
        core::mem::replace(why, *why | reason as u8) == 0
    }

    /// True: no reason is left.
    fn take(&mut self, port: PortId, reason: Why) -> bool {
        let Some(why) = self.why.get_mut(port.index()) else { return false };
        let before = core::mem::replace(why, *why & !(reason as u8));
        before != 0 && *why == 0
    }

    pub(super) fn forget(&mut self, port: PortId) {
        if let Some(why) = self.why.get_mut(port.index()) {
            *why = 0;
        }
    }
}

impl<C: CycleCounter> Worker<C> {
    /// A port is not polled until `reason` is over.
    pub(super) fn put_aside(&mut self, port: PortId, reason: Why) {
        if !self.aside.put(port, reason) {
            return;
        }
        for unit in units(port) {
            if self.owns(port, unit.queue) {
                self.schedule.leave(unit);
            }
        }
    }

    /// A reason is over: a port for which it was the last is polled again.
    pub(super) fn take_back(&mut self, port: PortId, reason: Why) {
        if !self.aside.take(port, reason) {
            return;
        }
        let class = self.class(port);
        for unit in units(port) {
            if self.owns(port, unit.queue) && !self.resting.is_resting(unit) {
                self.schedule.add(unit, class);
            }
        }
    }
}

fn units(port: PortId) -> impl Iterator<Item = Unit> {
    #[expect(clippy::cast_possible_truncation, reason = "below 8")]
    (0..QUEUES_MAX).map(move |queue| Unit { port, queue: penstock_units::QueueId(queue as u16) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_comes_back_when_its_last_reason_is_over() {
        let (mut aside, port) = (Aside::new(2), PortId(1));
        assert!(aside.put(port, Why::Pressed) && !aside.put(port, Why::Shaped));
        assert!(aside.is_aside(port) && aside.is(port, Why::Shaped));
        assert!(!aside.take(port, Why::Pressed));
        assert!(!aside.take(port, Why::Pressed), "it was over before");
        assert!(aside.take(port, Why::Shaped) && !aside.is_aside(port));
        assert!(!aside.take(port, Why::Shaped), "nobody comes back twice");
        assert!(!aside.put(PortId(9), Why::Shaped), "there is no such port");
    }
}
