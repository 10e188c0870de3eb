//! What a split ring records for others while it runs, and how it changes its memory map.
//!
//! **Problem.** Two parties want to know what a ring did: who copies the guest elsewhere (the dirty
//! log) and who comes after us if we die (the inflight region). **Rule.** Both follow from the used
//! entries of a burst, so both are recorded where these become visible, in a function of its own:
//! a ring without them pays for one comparison a burst (datapath rule 24). What was written where
//! is found by walking the returned chains again: a guest that rewrites them meanwhile gets its own
//! copy wrong. Nothing here allocates or frees once the ring is in the worker.
#![allow(unsafe_code, reason = "reads back the used ring; the invariant is stated")]

use core::sync::atomic::{AtomicU16, Ordering};
use std::fs::File;
use std::sync::Arc;

use super::{GuestMemory, RingError, SplitRing};
use crate::batch::{CHAIN_MAX, FRAME_MAX};
use crate::offload::VNET_HDR_LEN;
use crate::port::dirty_log::RingLog;
use crate::port::inflight::SplitInflight;
use crate::port::ring::pieces::Piece;
use crate::port::ring::{F_WRITE, PIECES_MAX};

/// What becomes known to others when a burst is published.
#[derive(Debug, Default)]
pub(super) struct Records {
    log: Option<RingLog>,
    inflight: Option<SplitInflight>,
    /// Heads that a predecessor left in flight, in the places of an available ring, and the
    /// driver's own behind them.
    replay: Vec<AtomicU16>,
    /// The index behind the last of the predecessor's heads.
    replay_end: u16,
    /// Up to which index `replay` is filled.
    replay_filled: u16,
}

/// Where a driver put a ring's parts: addresses of the driver's own process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table.
    pub descriptors: u64,
    /// Available ring.
    pub available: u64,
    /// Used ring.
    pub used: u64,
}

impl SplitRing {
    /// Records the ring's progress in `inflight` from now on, after resubmitting what a
    /// predecessor left there. For rings that are not in the worker yet: allocates.
    pub fn track(&mut self, inflight: SplitInflight) {
        let available = self.word(self.available, 1).load(Ordering::Acquire);
        let heads = inflight.recover(self.next_used, available);
        let records = &mut *self.records;
        records.inflight = Some(inflight);
        self.recording = true;
        if heads.is_empty() {
            return;
        }
        records.replay = (0..self.size).map(|_| AtomicU16::new(0)).collect();
        let mut index = self.next_used;
        for head in heads {
            records.replay[usize::from(index & self.mask)].store(head, Ordering::Relaxed);
            index = index.wrapping_add(1);
        }
        records.replay_end = index;
        records.replay_filled = index;
        self.heads_at = records.replay.as_ptr().cast_mut().cast();
        self.replaying = true;
    }

    /// Logs what the ring writes from now on, or no longer; returns what was in place before.
    /// Between two batches, on a running ring too.
    pub fn set_log(&mut self, log: Option<RingLog>) -> Option<RingLog> {
        if let Some(log) = &log {
            // Flags and thresholds written before are part of what there is to copy.
            log.mark_used(0, 6 + 8 * u64::from(self.size));
        }
        let before = core::mem::replace(&mut self.records.log, log);
        self.recording = self.records.log.is_some() || self.records.inflight.is_some();
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

    /// Marks what was just said to the driver about its kicks.
    #[inline]
    pub(super) fn log_wish(&self) {
        if let (true, Some(log)) = (self.recording, &self.records.log) {
            log.mark_used(0, 2);
            log.mark_used(4 + 8 * u64::from(self.size), 2);
        }
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
        let (descriptors, available, used) = Self::locate(&memory, at, self.size)?;
        self.descriptors = descriptors;
        self.available = available;
        self.used = used;
        if !self.replaying {
            self.heads_at = self.guest_heads();
        }
        self.hint = 0;
        Ok(core::mem::replace(&mut self.memory, memory))
    }

    /// The driver's own available entries follow what is resubmitted, up to `available_seen`.
    #[cold]
    pub(super) fn extend_replay(&mut self) {
        let guest = self.guest_heads();
        let mut index = self.records.replay_filled;
        while index != self.available_seen {
            let at = usize::from(index & self.mask);
            let head = self.word(guest, at).load(Ordering::Relaxed);
            if let Some(place) = self.records.replay.get(at) {
                place.store(head, Ordering::Relaxed);
            }
            index = index.wrapping_add(1);
        }
        self.records.replay_filled = index;
    }

    /// [`SplitRing::publish`] for rings that record: logged before and after the index, the region
    /// as its specification wants it.
    #[cold]
    pub(super) fn publish_recorded(&mut self) {
        let (old, new) = (self.published, self.next_used);
        let (log, inflight) = (self.records.log.take(), self.records.inflight.take());
        if let Some(log) = &log {
            self.log_burst(log, old, new);
        }
        if let Some(inflight) = inflight.as_ref().filter(|_| self.replaying) {
            inflight.begin(self.used_entries(old, new).map(|entry| entry.0));
        }
        self.word(self.used, 1).store(new, Ordering::Release);
        self.published = new;
        if let Some(log) = &log {
            log.mark_used(2, 2);
        }
        match &inflight {
            Some(inflight) if self.replaying => {
                inflight.end(self.used_entries(old, new).map(|entry| entry.0), new);
            }
            Some(inflight) => inflight.note(new),
            None => {}
        }
        let left = self.records.replay_end.wrapping_sub(old);
        if self.replaying && new.wrapping_sub(old) >= left {
            self.replaying = false;
            self.heads_at = self.guest_heads();
        }
        self.records.log = log;
        self.records.inflight = inflight;
    }

    /// The used entries from index `old` up to `new` as they were written: head and length.
    fn used_entries(&self, old: u16, new: u16) -> impl Iterator<Item = (u16, u32)> + '_ {
        (0..new.wrapping_sub(old)).map(move |k| {
            let at = 2 + 4 * usize::from(old.wrapping_add(k) & self.mask);
            // SAFETY: as in `push_used`. WHY: volatile: the driver may write there too.
            let entry = unsafe { self.used.add(at).cast::<[u16; 4]>().read_volatile() };
            (entry[0], u32::from(entry[2]) | u32::from(entry[3]) << 16)
        })
    }

    /// Marks the buffers that the burst wrote and its used entries.
    fn log_burst(&mut self, log: &RingLog, old: u16, new: u16) {
        let mut index = old;
        while index != new {
            let entry = self.used_entries(index, index.wrapping_add(1)).next();
            if let Some((head, len @ 1..)) = entry {
                self.log_buffer(log, head, len);
            }
            index = index.wrapping_add(1);
        }
        let (first, count) = (old & self.mask, new.wrapping_sub(old));
        let straight = count.min(self.size - first);
        log.mark_used(4 + 8 * u64::from(first), 8 * u64::from(straight));
        log.mark_used(4, 8 * u64::from(count - straight));
    }

    /// Marks the first `len` bytes of the buffer that begins at descriptor `head`.
    fn log_buffer(&mut self, log: &RingLog, head: u16, len: u32) {
        let mut pieces = [Piece::NONE; PIECES_MAX];
        // A chain that no longer makes sense was changed by the guest after it was written to.
        let count = self.walk(head, F_WRITE, &mut pieces, &mut { CHAIN_MAX }).unwrap_or(0);
        let mut left = u64::from(len).min((VNET_HDR_LEN + FRAME_MAX) as u64);
        for piece in &pieces[..count] {
            let here = u64::from(piece.len).min(left);
            if let Some(guest) = self.memory.guest_address(piece.at) {
                log.log.mark(guest, here);
            }
            left -= here;
        }
    }
}
