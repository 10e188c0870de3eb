//! A VM's queue pair in the worker. The queue pair has two rings, and each ring may be absent.

use std::fs::File;
use std::sync::Arc;

use penstock_units::{Cycles, Nanos, PortId};

use super::halt::{Halt, Halted};
use super::virtqueue::Virtqueue;
use crate::batch::Batch;
use crate::offload::OffloadCaps;
use crate::port::dirty_log::RingLog;
use crate::port::guest_memory::GuestMemory;
use crate::port::split_ring::{RingAddresses, RingError};
use crate::port::{ControlMessage, Pending, PortQueue, TxOutcome};
use crate::wake::{Cause as SleepCause, stall};

/// A ring of a queue pair, named from the switch's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The guest's transmit ring, from which the switch receives frames.
    Rx,
    /// The guest's receive ring, into which the switch sends frames.
    Tx,
}

/// Message to the worker that installs `ring` and returns the previous ring.
#[derive(Debug)]
pub(super) struct SwapRing {
    pub(super) side: Side,
    pub(super) ring: Option<Box<Virtqueue>>,
    pub(super) caps: OffloadCaps,
    /// Whether the driver can kick for the new ring.
    pub(super) kicks: bool,
}

/// Message to the worker that changes one ring of a queue pair between two batches, so that the
/// ring is never absent.
#[derive(Debug)]
pub(super) struct ChangeRing {
    pub(super) side: Side,
    pub(super) change: RingChange,
}

/// Message that changes a running ring. After the change, the `RingChange` message contains the
/// ring's previous value, which the sender drops.
#[derive(Debug)]
pub(super) enum RingChange {
    /// Sets the dirty log of the ring's writes. `None` ends logging.
    Log(Option<RingLog>),
    /// Sets the event descriptor that interrupts the driver. `Call(None)` stops interrupts to the
    /// driver.
    Call(Option<File>),
    /// Replaces the ring's map of the guest's memory.
    Move(Arc<GuestMemory>, RingAddresses),
    /// The ring is not in the new memory map, and continues with the old map.
    Refused(RingError),
}

impl RingChange {
    fn apply(self, ring: &mut Virtqueue) -> Self {
        match self {
            Self::Log(log) => Self::Log(ring.set_log(log)),
            Self::Call(call) => {
                let before = ring.set_call(call);
                // The pending interrupt may have gone to the previous descriptor.
                ring.interrupt();
                Self::Call(before)
            }
            Self::Move(memory, at) => match ring.move_to(memory, at) {
                Ok(old) => Self::Move(old, at),
                Err(error) => Self::Refused(error),
            },
            refused @ Self::Refused(_) => refused,
        }
    }
}

/// The worker's side of a vhost-user queue pair.
#[derive(Debug)]
pub(super) struct VhostQueue {
    rx: Option<Box<Virtqueue>>,
    tx: Option<Box<Virtqueue>>,
    caps: OffloadCaps,
    /// Whether the driver can kick for the ring `rx`.
    kicks: bool,
    port: PortId,
    halt: Arc<Halt>,
    /// Rings of a stopped port, until the session takes the rings. Entry 0 is the ring `rx`, and
    /// entry 1 is the ring `tx`.
    stopped: [Option<Box<Virtqueue>>; 2],
}

impl VhostQueue {
    /// Makes a queue pair without rings for port `port`.
    pub(super) fn new(port: PortId, halt: Arc<Halt>) -> Self {
        let (rx, tx, caps) = (None, None, OffloadCaps::default());
        Self { rx, tx, caps, kicks: false, port, halt, stopped: [None, None] }
    }

    /// Returns the field of the queue pair that contains the ring `side` (receive or transmit). If
    /// the worker stopped the port, the ring is in the field `stopped`, otherwise in `rx` or `tx`.
    fn place(&mut self, side: Side) -> &mut Option<Box<Virtqueue>> {
        let (stopped, used) = match side {
            Side::Rx => (&mut self.stopped[0], &mut self.rx),
            Side::Tx => (&mut self.stopped[1], &mut self.tx),
        };
        if stopped.is_some() { stopped } else { used }
    }
}

impl PortQueue for VhostQueue {
    #[inline]
    fn pending(&mut self, _now: Cycles) -> Pending {
        stall::enter(self.port);
        match &self.rx {
            Some(ring) if ring.has_waiting() => Pending::Yes,
            _ => Pending::No,
        }
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut Batch) {
        stall::enter(self.port);
        if let Some(ring) = &mut self.rx {
            ring.take(batch);
        }
    }

    fn backlog(&mut self) -> Option<usize> {
        stall::enter(self.port);
        Some(self.rx.as_ref().map_or(0, |ring| ring.waiting()))
    }

    #[inline]
    fn rx_done(&mut self) {
        stall::enter(self.port);
        if let Some(ring) = &mut self.rx {
            ring.complete_taken();
        }
    }

    #[inline]
    fn tx_ready(&self) -> bool {
        self.tx.as_ref().is_some_and(|ring| !ring.is_stopped())
    }

    #[inline]
    fn caps(&self) -> OffloadCaps {
        self.caps
    }

    #[inline]
    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        let mut outcome = TxOutcome::default();
        match &mut self.tx {
            Some(ring) => stall::write_to(self.port, || ring.give(batch, frames, &mut outcome)),
            None => outcome.down += u32::try_from(frames.len()).unwrap_or(0),
        }
        outcome
    }

    #[inline]
    fn publish(&mut self) {
        stall::enter(self.port);
        for ring in [&mut self.rx, &mut self.tx].into_iter().flatten() {
            ring.publish();
        }
    }

    #[inline]
    fn notify(&mut self) -> u32 {
        stall::enter(self.port);
        self.tx.as_mut().map_or(0, |ring| ring.notify())
    }

    fn notify_taken(&mut self) -> u32 {
        stall::enter(self.port);
        self.rx.as_mut().map_or(0, |ring| ring.notify())
    }

    fn rest(&mut self) -> bool {
        stall::enter(self.port);
        match &mut self.rx {
            Some(ring) => self.kicks && ring.ask_for_kicks(),
            // No frame can arrive until the session installs a ring. Installing a ring wakes the
            // queue.
            None => true,
        }
    }

    fn stop(&mut self, cause: SleepCause, slept: Nanos) -> bool {
        if self.stopped.iter().any(Option::is_some) {
            return false;
        }
        for (ring, stopped) in [&mut self.rx, &mut self.tx].into_iter().zip(&mut self.stopped) {
            if ring.is_some() {
                *stopped = ring.take();
            }
        }
        // If memory was removed, the SIGBUS handler has signalled the session's alarm already. A
        // sleep is reported even if the session has taken the rings meanwhile.
        if cause == SleepCause::Gone {
            self.halt.hang_up_at_once();
        } else {
            self.halt.stop(Halted { cause, slept });
        }
        true
    }

    fn wake(&mut self) {
        stall::enter(self.port);
        if let Some(ring) = &mut self.rx {
            ring.suppress_kicks();
        }
    }

    fn control(&mut self, mut message: ControlMessage) -> ControlMessage {
        stall::enter(self.port);
        if let Some(swap) = message.downcast_mut::<SwapRing>() {
            match swap.side {
                Side::Rx => self.kicks = swap.kicks,
                Side::Tx => self.caps = swap.caps,
            }
            let place = self.place(swap.side);
            core::mem::swap(place, &mut swap.ring);
            if let Some(ring) = place {
                // A previous switch may have returned chains and died before it interrupted the
                // driver.
                ring.interrupt();
            }
        } else if let Some(message) = message.downcast_mut::<ChangeRing>()
            && let Some(ring) = self.place(message.side)
        {
            let change = core::mem::replace(&mut message.change, RingChange::Log(None));
            message.change = change.apply(ring);
        }
        message
    }
}
