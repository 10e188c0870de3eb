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

/// Defines methods that call the methods of the same names of the split or packed ring.
macro_rules! forward {
    ($($(#[$about:meta])*
    fn $name:ident(&mut $own:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {$(
        $(#[$about])*
        #[inline]
        pub(super) fn $name(&mut $own $(, $arg: $kind)*) $(-> $result)? {
            either!($own, ring => ring.$name($($arg),*))
        }
    )*};
    ($(fn $name:ident(&$own:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {$(
        #[inline]
        pub(super) fn $name(&$own $(, $arg: $kind)*) $(-> $result)? {
            either!($own, ring => ring.$name($($arg),*))
        }
    )*};
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

    forward! {
        fn base(&self) -> u32;
        fn is_stopped(&self) -> bool;
        fn has_waiting(&self) -> bool;
        fn waiting(&self) -> usize;
    }

    forward! {
        fn take(&mut self, batch: &mut Batch);
        fn complete_taken(&mut self);
        fn give(&mut self, batch: &Batch, frames: &[u8], out: &mut TxOutcome);
        fn publish(&mut self);
        fn notify(&mut self) -> u32;
        fn ask_for_kicks(&mut self) -> bool;
        fn suppress_kicks(&mut self);
        fn set_log(&mut self, log: Option<RingLog>) -> Option<RingLog>;
        fn set_call(&mut self, call: Option<File>) -> Option<File>;
        /// Interrupts the ring's driver, even if the driver did not enable interrupts. Only the
        /// worker's thread may call `interrupt`, because a call descriptor can block the worker's
        /// thread only briefly.
        fn interrupt(&mut self);
        fn move_to(
            &mut self,
            memory: Arc<GuestMemory>,
            at: RingAddresses
        ) -> Result<Arc<GuestMemory>, RingError>;
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
}
