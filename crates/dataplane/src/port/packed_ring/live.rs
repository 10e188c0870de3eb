//! What a packed ring logs for a migration, and what is changed while it runs.
//!
//! **Rule.** A used descriptor overwrites what the driver had said of its buffer, so what was
//! written where is logged as it is written, not found again afterwards as for a split ring. A ring
//! with a log therefore takes another way through [`PackedRing::give`]; one without asks once a
//! burst (datapath rule 24). Nothing here allocates or frees.

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
    /// Logs what the ring writes from now on, or no longer; returns what was in place before.
    /// Between two batches, on a running ring too.
    pub fn set_log(&mut self, log: Option<RingLog>) -> Option<RingLog> {
        let before = core::mem::replace(&mut self.log, log);
        // What was written before is part of what there is to copy.
        self.log_ring(self.device_event.cast(), 4);
        self.log_ring(self.ring.cast(), 16 * u64::from(self.size));
        before
    }

    /// Interrupts the driver through `call` from now on; returns what was in place before.
    pub const fn set_call(&mut self, call: Option<File>) -> Option<File> {
        self.call.replace(call)
    }

    /// Interrupts the driver, whatever it wished.
    pub fn interrupt(&mut self) {
        self.call.interrupt();
    }

    /// Moves the ring to another map of the same guest; returns the one it leaves, of which it
    /// keeps nothing. Between two batches.
    ///
    /// # Errors
    /// [`RingError::Address`]: a part of the ring is not in `memory`; the ring is as it was.
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

    /// [`PackedRing::give`] for rings that log: every frame on the way that says where it went.
    #[cold]
    pub(super) fn give_logged(&mut self, batch: &Batch, frames: &[u8], out: &mut TxOutcome) {
        let mut steps = SEARCH_MAX;
        for &i in frames {
            self.give_scattered(batch, usize::from(i), &mut steps, out);
        }
    }

    /// Marks the first `len` bytes of `pieces`, which were written.
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

    /// Marks the `count` descriptors from `index` on, in which used ones were published.
    #[cold]
    pub(super) fn log_used(&self, index: u16, count: u16) {
        let straight = count.min(self.size - index);
        let first = self.ring.wrapping_add(2 * usize::from(index));
        self.log_ring(first.cast(), 16 * u64::from(straight));
        self.log_ring(self.ring.cast(), 16 * u64::from(count - straight));
    }

    /// Marks a part of the ring, if the front end wants to know. It gives an address only for the
    /// device's event area; the ring's is found in the map.
    fn log_ring(&self, host: *const u8, len: u64) {
        let Some(log) = self.log.as_ref().filter(|log| log.used.is_some()) else { return };
        if let Some(guest) = self.memory.guest_address(host) {
            log.log.mark(guest, len);
        }
    }
}
