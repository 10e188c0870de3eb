//! A ring that is split or packed. Each call tests once per burst whether the ring is split or
//! packed.

use std::fs::File;
use std::sync::Arc;

use crate::batch::Batch;
use crate::port::TxOutcome;
use crate::port::dirty_log::RingLog;
use crate::port::guest_memory::GuestMemory;
use crate::port::inflight::InflightRegion;
use crate::port::packed_ring::PackedRing;
use crate::port::split_ring::{RingAddresses, RingError, RingSpec, SplitRing};

/// A ring that is split or packed. The users of a `Virtqueue` box the whole value, because a second
/// box around the larger variant would cost one load per call.
#[expect(clippy::large_enum_variant, reason = "boxed as a whole")]
#[derive(Debug)]
pub(super) enum Virtqueue {
    Split(SplitRing),
    Packed(PackedRing),
}

/// Calls the same method on the split or packed ring of a virtqueue.
macro_rules! either {
    ($queue:expr, $ring:ident => $call:expr) => {
        match $queue {
            Virtqueue::Split($ring) => $call,
            Virtqueue::Packed($ring) => $call,
        }
    };
}

impl Virtqueue {
    /// Makes a ring according to `spec`: packed if `packed` is true, otherwise split.
    pub(super) fn new(
        packed: bool,
        spec: RingSpec,
        memory: Arc<GuestMemory>,
    ) -> Result<Self, RingError> {
        Ok(if packed {
            Self::Packed(PackedRing::new(spec, memory)?)
        } else {
            Self::Split(SplitRing::new(spec, memory)?)
        })
    }

    pub(super) fn base(&self) -> u32 {
        either!(self, ring => ring.base())
    }

    #[inline]
    pub(super) fn is_stopped(&self) -> bool {
        either!(self, ring => ring.is_stopped())
    }

    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        either!(self, ring => ring.has_waiting())
    }

    pub(super) fn waiting(&self) -> usize {
        either!(self, ring => ring.waiting())
    }

    #[inline]
    pub(super) fn take(&mut self, batch: &mut Batch) {
        either!(self, ring => ring.take(batch));
    }

    #[inline]
    pub(super) fn complete_taken(&mut self) {
        either!(self, ring => ring.complete_taken());
    }

    #[inline]
    pub(super) fn give(&mut self, batch: &Batch, frames: &[u8], out: &mut TxOutcome) {
        either!(self, ring => ring.give(batch, frames, out));
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        either!(self, ring => ring.publish());
    }

    #[inline]
    pub(super) fn notify(&mut self) -> u32 {
        either!(self, ring => ring.notify())
    }

    pub(super) fn ask_for_kicks(&mut self) -> bool {
        either!(self, ring => ring.ask_for_kicks())
    }

    pub(super) fn suppress_kicks(&mut self) {
        either!(self, ring => ring.suppress_kicks());
    }

    /// Records the ring's progress in queue `index` of the inflight region `region`. Returns false
    /// if the inflight region has no place for the ring. The argument `stood` contains the recorded
    /// positions of a packed ring. It is `None` if the ring must not continue at recorded
    /// positions.
    pub(super) fn track(
        &mut self,
        region: &Arc<InflightRegion>,
        index: u16,
        stood: Option<(u16, u16)>,
    ) -> bool {
        match self {
            Self::Split(ring) => {
                region.split(index, ring.size()).map(|queue| ring.track(queue)).is_some()
            }
            Self::Packed(ring) => {
                region.packed(index, ring.size()).map(|queue| ring.track(queue, stood)).is_some()
            }
        }
    }

    /// Continues the ring at the position that the guest's memory gives. The call does nothing for
    /// a split ring, because a split ring always starts at the position in guest memory.
    pub(super) fn resume(&mut self) -> Result<(), RingError> {
        match self {
            Self::Split(_) => Ok(()),
            Self::Packed(ring) => ring.resume(),
        }
    }

    pub(super) fn set_log(&mut self, log: Option<RingLog>) -> Option<RingLog> {
        either!(self, ring => ring.set_log(log))
    }

    pub(super) fn set_call(&mut self, call: Option<File>) -> Option<File> {
        either!(self, ring => ring.set_call(call))
    }

    /// Interrupts the ring's driver, even if the driver did not enable interrupts. Only the
    /// worker's thread may call `interrupt`, because a call descriptor can block the worker's
    /// thread only briefly.
    pub(super) fn interrupt(&mut self) {
        either!(self, ring => ring.interrupt());
    }

    pub(super) fn move_to(
        &mut self,
        memory: Arc<GuestMemory>,
        at: RingAddresses,
    ) -> Result<Arc<GuestMemory>, RingError> {
        either!(self, ring => ring.move_to(memory, at))
    }
}
