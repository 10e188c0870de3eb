//! Changes to a running packed ring: its migration log, its call descriptor and its memory map.
//!
//! In a packed ring, a used descriptor overwrites the driver's description of its buffer. For this
//! reason, the switch logs each write into a packed ring's buffers at once. For a split ring, the
//! switch finds the written buffers after the burst. A packed ring with a dirty log takes a
//! different path through [`PackedRing::give`]. For a packed ring without a dirty log, the only
//! cost is one check per burst (datapath rule 24). Changes to a running ring neither allocate nor
//! free memory.

use std::fs::File;
use std::sync::Arc;

use super::PackedRing;
use crate::batch::Batch;
use crate::port::TxOutcome;
use crate::port::dirty_log::RingLog;
use crate::port::guest_memory::GuestMemory;
use crate::port::ring::pieces::Piece;
use crate::port::ring::{RingAddresses, RingError, SEARCH_MAX};

impl PackedRing {
    /// Sets the dirty log of the ring's writes; `None` ends logging. Returns the previous dirty
    /// log. The caller may set the log of a running ring between two batches.
    pub fn set_log(&mut self, log: Option<RingLog>) -> Option<RingLog> {
        let before = core::mem::replace(&mut self.log, log);
        // The hypervisor must also copy the words that the switch wrote before logging began.
        self.log_ring(self.device_event.cast(), 4);
        self.log_ring(self.ring.cast(), 16 * u64::from(self.size));
        before
    }

    /// Sets the event descriptor that interrupts the driver, and returns the previous event
    /// descriptor.
    pub const fn set_call(&mut self, call: Option<File>) -> Option<File> {
        self.call.replace(call)
    }

    /// Interrupts the ring's driver, even if the driver did not enable interrupts.
    pub fn interrupt(&mut self) {
        self.call.interrupt();
    }

    /// Moves the ring to another memory map of the same guest, and returns the previous map. After
    /// the move, the ring has no pointers into the previous map. The caller may move a ring only
    /// between two batches.
    ///
    /// # Errors
    /// Returns [`RingError::Address`] if a part of the ring is not in `memory`. If the function
    /// returns an error, the ring is unchanged.
    pub fn move_to(
        &mut self,
        memory: Arc<GuestMemory>,
        at: RingAddresses,
    ) -> Result<Arc<GuestMemory>, RingError> {
        let (ring, driver_event, device_event) = Self::locate(&memory, at, self.size)?;
        self.ring = ring;
        self.driver_event = driver_event;
        self.device_event = device_event;
        self.hint = 0;
        Ok(core::mem::replace(&mut self.memory, memory))
    }

    /// Like [`PackedRing::give`], for rings with a dirty log. For a ring with a dirty log, every
    /// frame takes the path that records the addresses of the switch's writes.
    #[cold]
    pub(super) fn give_logged(&mut self, batch: &Batch, frames: &[u8], out: &mut TxOutcome) {
        let mut steps = SEARCH_MAX;
        for &i in frames {
            self.give_scattered(batch, usize::from(i), &mut steps, out);
        }
    }

    /// Marks the first `len` bytes of `pieces` as written in the dirty log.
    #[cold]
    pub(super) fn log_pieces(&self, pieces: &[Piece], len: usize) {
        let Some(log) = &self.log else { return };
        let mut left = len as u64;
        for piece in pieces {
            let here = u64::from(piece.len).min(left);
            if let Some(guest) = self.memory.guest_address(piece.at) {
                log.log.mark(guest, here);
            }
            left -= here;
        }
    }

    /// Marks the `count` descriptors from `index` on as written in the dirty log, because the
    /// switch published used descriptors in their places.
    #[cold]
    pub(super) fn log_used(&self, index: u16, count: u16) {
        let straight = count.min(self.size - index);
        let first = self.ring.wrapping_add(2 * usize::from(index));
        self.log_ring(first.cast(), 16 * u64::from(straight));
        self.log_ring(self.ring.cast(), 16 * u64::from(count - straight));
    }

    /// Marks a part of the ring as written in the dirty log, if the front end requested marks for
    /// the ring itself. The front end gives an address for the log only for the device's event
    /// area. The switch looks up the ring's own guest address in the memory map.
    fn log_ring(&self, host: *const u8, len: u64) {
        let Some(log) = self.log.as_ref().filter(|log| log.used.is_some()) else { return };
        if let Some(guest) = self.memory.guest_address(host) {
            log.log.mark(guest, len);
        }
    }
}
