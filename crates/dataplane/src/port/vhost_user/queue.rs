//! A queue pair of a VM in the worker: two rings, either of which may be absent.

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
use crate::worker::{SleepCause, stall};

/// A ring of a queue pair, named from the switch's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The guest's transmit ring, from which frames come.
    Rx,
    /// The guest's receive ring, into which frames go.
    Tx,
}

/// Message that installs `ring` and removes the previous one.
#[derive(Debug)]
pub(super) struct SwapRing {
    pub(super) side: Side,
    pub(super) ring: Option<Box<Virtqueue>>,
    pub(super) caps: OffloadCaps,
    /// Whether the driver can kick for this ring.
    pub(super) kicks: bool,
}

/// Message that changes the ring of one side between two batches. The ring is thus never absent
/// while frames pass.
#[derive(Debug)]
pub(super) struct ChangeRing {
    pub(super) side: Side,
    pub(super) change: RingChange,
}

/// The change to make. After execution the message contains the previous value, which the sender
/// drops.
#[derive(Debug)]
pub(super) enum RingChange {
    /// Sets the log of the ring's writes, or ends logging.
    Log(Option<RingLog>),
    /// Sets the descriptor that interrupts the driver, or removes it.
    Call(Option<File>),
    /// Replaces the map of the guest's memory.
    Move(Arc<GuestMemory>, RingAddresses),
    /// The ring is not in the new map and continues in the old one.
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
    /// Whether the driver can kick for `rx`.
    kicks: bool,
    port: PortId,
    halt: Arc<Halt>,
    /// Rings out of use until the session takes them: first the ring of `rx`, then the ring of
    /// `tx`.
    stopped: [Option<Box<Virtqueue>>; 2],
}

impl VhostQueue {
    /// A queue pair without rings.
    pub(super) fn new(port: PortId, halt: Arc<Halt>) -> Self {
        let (rx, tx, caps) = (None, None, OffloadCaps::default());
        Self { rx, tx, caps, kicks: false, port, halt, stopped: [None, None] }
    }

    /// The field that holds the ring of `side`: `rx` or `tx`, or `stopped` after a stop.
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
            // No frame can come until the session installs a ring, which wakes the queue.
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
        // The session's own alarm reports removed memory. A sleep is reported even if the session
        // has taken the rings meanwhile.
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
