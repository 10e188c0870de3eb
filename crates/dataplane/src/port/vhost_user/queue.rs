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

/// Which ring of a queue pair, seen from the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The guest's transmit ring: frames come from it.
    Rx,
    /// The guest's receive ring: frames go into it.
    Tx,
}

/// Puts `ring` in place and takes out what was there.
#[derive(Debug)]
pub(super) struct SwapRing {
    pub(super) side: Side,
    pub(super) ring: Option<Box<Virtqueue>>,
    pub(super) caps: OffloadCaps,
    /// The driver can kick for this ring.
    pub(super) kicks: bool,
}

/// Changes the ring of one side where it is, between two batches: no frame finds it absent.
#[derive(Debug)]
pub(super) struct ChangeRing {
    pub(super) side: Side,
    pub(super) change: RingChange,
}

/// What is to change; afterwards what was there before, for the sender to let go of.
#[derive(Debug)]
pub(super) enum RingChange {
    /// What is written is logged here, or nowhere.
    Log(Option<RingLog>),
    /// The driver is interrupted here, or not at all.
    Call(Option<File>),
    /// The guest's memory is mapped anew.
    Move(Arc<GuestMemory>, RingAddresses),
    /// The ring is not in the new map and goes on in the old one.
    Refused(RingError),
}

impl RingChange {
    fn apply(self, ring: &mut Virtqueue) -> Self {
        match self {
            Self::Log(log) => Self::Log(ring.set_log(log)),
            Self::Call(call) => {
                let before = ring.set_call(call);
                // The interrupt that was due may have gone to the descriptor before.
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

/// See the module's text.
#[derive(Debug)]
pub(super) struct VhostQueue {
    rx: Option<Box<Virtqueue>>,
    tx: Option<Box<Virtqueue>>,
    caps: OffloadCaps,
    /// The driver can kick for `rx`.
    kicks: bool,
    port: PortId,
    halt: Arc<Halt>,
    /// Rings that are not used any more, until the session takes them: of `rx`, of `tx`.
    stopped: [Option<Box<Virtqueue>>; 2],
}

impl VhostQueue {
    /// Without rings yet.
    pub(super) fn new(port: PortId, halt: Arc<Halt>) -> Self {
        let (rx, tx, caps) = (None, None, OffloadCaps::default());
        Self { rx, tx, caps, kicks: false, port, halt, stopped: [None, None] }
    }

    /// Where the ring of `side` is.
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
            // Nothing comes until the session puts a ring in place, which wakes the queue.
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
        // Of memory that is gone the session hears by its own alarm. Of a sleep it does also if it
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
                // A switch before us may have returned chains and died before it said so.
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
