//! Changes to a running packed ring: its migration log, its call descriptor and its memory map.
//!
//! A used descriptor overwrites the driver's description of its buffer. Writes are thus logged at
//! once and not reconstructed afterwards as for a split ring. A ring with a log takes a different
//! path through [`PackedRing::give`]. A ring without a log checks for it once per burst (datapath
//! rule 24). This module neither allocates nor frees memory.

use std::fs::File;
use std::sync::Arc;

use super::PackedRing;
use crate::batch::Batch;
use crate::port::TxOutcome;
use crate::port::dirty_log::RingLog;
use crate::port::guest_memory::GuestMemory;
use crate::port::ring::pieces::Piece;
use crate::port::ring::{RingError, SEARCH_MAX};
use crate::port::split_ring::RingAddresses;

impl PackedRing {
    /// Sets the log of the ring's writes, or ends logging. Returns the previous log. May be called
    /// on a running ring between two batches.
    pub fn set_log(&mut self, log: Option<RingLog>) -> Option<RingLog> {
        let before = core::mem::replace(&mut self.log, log);
        // The hypervisor must also copy the words that the switch wrote before.
        self.log_ring(self.device_event.cast(), 4);
        self.log_ring(self.ring.cast(), 16 * u64::from(self.size));
        before
    }

    /// Sets the descriptor by which the driver is interrupted, and returns the previous one.
    pub const fn set_call(&mut self, call: Option<File>) -> Option<File> {
        self.call.replace(call)
    }

    /// Interrupts the driver, even if the driver did not enable interrupts.
    pub fn interrupt(&mut self) {
        self.call.interrupt();
    }

    /// Moves the ring to another map of the same guest, and returns the previous map, to which the
    /// ring then has no pointers. Must be called between two batches.
    ///
    /// # Errors
    /// [`RingError::Address`] if a part of the ring is not in `memory`. The ring is then unchanged.
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

    /// [`PackedRing::give`] for rings with a log: every frame takes the path that records where it
    /// was written.
    #[cold]
    pub(super) fn give_logged(&mut self, batch: &Batch, frames: &[u8], out: &mut TxOutcome) {
        let mut steps = SEARCH_MAX;
        for &i in frames {
            self.give_scattered(batch, usize::from(i), &mut steps, out);
        }
    }

    /// Marks the first `len` bytes of `pieces` as written.
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

    /// Marks the `count` descriptors from `index` on, in which used descriptors were published.
    #[cold]
    pub(super) fn log_used(&self, index: u16, count: u16) {
        let straight = count.min(self.size - index);
        let first = self.ring.wrapping_add(2 * usize::from(index));
        self.log_ring(first.cast(), 16 * u64::from(straight));
        self.log_ring(self.ring.cast(), 16 * u64::from(count - straight));
    }

    /// Marks a part of the ring, if the front end requested it. The front end gives an address only
    /// for the device's event area; the address of the ring comes from the map.
    fn log_ring(&self, host: *const u8, len: u64) {
        let Some(log) = self.log.as_ref().filter(|log| log.used.is_some()) else { return };
        if let Some(guest) = self.memory.guest_address(host) {
            log.log.mark(guest, len);
        }
    }
}
