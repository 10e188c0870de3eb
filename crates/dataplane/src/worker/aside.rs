//! A worker stops polling a port ("puts the port aside") as long as the port's frames may not be
//! sent yet.
//!
//! # Problem
//!
//! A VM's frames may have to wait for the VM's share of an uplink (back-pressure), for the VM's
//! shaper or for the VM's rate limit. A frame that may not be sent yet should stay in the VM's own
//! transmit ring. A wait in the ring costs no copy, and the guest sees a full ring.
//!
//! # Approach
//!
//! If a limit delays a port, the worker records the reason and removes the port's queue pairs from
//! the schedule (puts the port aside). The port's queue pairs return to the schedule when no reason
//! remains for which the port must wait. If one of the returning port's queue pairs is at rest
//! because it had no frames, this queue pair stays at rest.
//!
//! # Cost
//!
//! A port that is not put aside causes no cost.

use penstock_units::PortId;

use crate::unit::QUEUES_MAX;
use crate::unit::Unit;

/// Reason for which the worker does not poll a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Why {
    /// Too many of the port's frames wait at an output queue of this worker.
    Pressed = 1,
    /// Too many of the port's frames wait at an output queue of another worker.
    PressedElsewhere = 2,
    /// The next frame of the port is not due yet according to the port's shaper.
    Shaped = 4,
    /// The port's rate limit is in debt.
    Policed = 8,
}

/// For each port, the reasons for which the worker does not poll the port at present.
#[derive(Debug)]
pub(super) struct Aside {
    /// For each port number, a bit mask of the reasons to put the port aside.
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

    /// Records a reason for which the worker must not poll a port. Returns true if no other reason
    /// was recorded for the port.
    pub(super) fn put(&mut self, port: PortId, reason: Why) -> bool {
        let Some(why) = self.why.get_mut(port.index()) else { return false };
        core::mem::replace(why, *why | reason as u8) == 0
    }

    /// Removes one of the reasons for which the worker does not poll a port. Returns true if the
    /// port has no other reason to stay aside.
    pub(super) fn take(&mut self, port: PortId, reason: Why) -> bool {
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

/// Returns a unit for each possible queue pair of a port, whether or not the queue pair exists.
pub(super) fn units(port: PortId) -> impl Iterator<Item = Unit> {
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
