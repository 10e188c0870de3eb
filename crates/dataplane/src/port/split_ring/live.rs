//! Changes to a running split ring: its migration log, its inflight record, its call descriptor and
//! its memory map.
//!
//! # Problem
//! The hypervisor and the next switch need records of the frames that a ring moved. A hypervisor
//! that migrates the guest reads the dirty log. After a crash of the switch, the next switch reads
//! the inflight region.
//!
//! # Approach
//! The switch can derive the dirty log and the inflight record from the used entries of a burst.
//! The function `publish_recorded` writes dirty log and inflight record when the used entries
//! become visible. The switch walks the returned chains again to find the memory that the ring
//! wrote. For a ring without dirty log and inflight record, the only cost is one comparison per
//! burst (datapath rule 24). If a guest rewrites its descriptor chains before the switch walks them
//! for the dirty log, only the guest's own memory is migrated wrongly. Once a worker has the ring,
//! the changes neither allocate nor free memory.
#![allow(unsafe_code, reason = "reads the used ring by raw pointer; the block names its invariant")]

use core::sync::atomic::{AtomicU16, Ordering};
use std::fs::File;
use std::sync::Arc;

use super::{GuestMemory, RingError, SplitRing};
use crate::batch::{CHAIN_MAX, FRAME_MAX};
use crate::offload::VNET_HDR_LEN;
use crate::port::dirty_log::RingLog;
use crate::port::inflight::SplitInflight;
use crate::port::ring::pieces::Piece;
use crate::port::ring::{F_WRITE, PIECES_MAX, RingAddresses};

/// The records that the switch writes when it publishes a burst: the dirty log and the inflight
/// record.
#[derive(Debug, Default)]
pub(super) struct Records {
    log: Option<RingLog>,
    inflight: Option<SplitInflight>,
    /// Entries in the layout of an available ring: first the heads that a previous switch left in
    /// flight, then the driver's own entries.
    replay: Vec<AtomicU16>,
    /// Available index after the last head of the previous switch.
    replay_end: u16,
    /// Available index up to which the list `replay` of resubmitted heads is filled.
    replay_filled: u16,
}

impl SplitRing {
    /// Resubmits the chains that a previous switch left in `inflight`, and records the ring's
    /// progress in `inflight` from now on. The ring must not belong to a worker yet, because this
    /// function allocates memory.
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

    /// Sets the dirty log of the ring's writes; `None` ends logging. Returns the previous dirty
    /// log. The caller may set the log of a running ring between two batches.
    pub fn set_log(&mut self, log: Option<RingLog>) -> Option<RingLog> {
        if let Some(log) = &log {
            // The hypervisor must also copy flags and thresholds that the switch wrote before
            // logging began.
            log.mark_used(0, 6 + 8 * u64::from(self.size));
        }
        let before = core::mem::replace(&mut self.records.log, log);
        self.recording = self.records.log.is_some() || self.records.inflight.is_some();
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

    /// Marks in the dirty log, as written, the words of the ring that tell the driver whether to
    /// kick.
    #[inline]
    pub(super) fn log_wish(&self) {
        if let (true, Some(log)) = (self.recording, &self.records.log) {
            log.mark_used(0, 2);
            log.mark_used(4 + 8 * u64::from(self.size), 2);
        }
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

    /// Appends the driver's own available entries, up to `available_seen`, after the resubmitted
    /// heads.
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

    /// Like [`SplitRing::publish`], for rings with a dirty log or an inflight region. The dirty log
    /// is written before and after the used index. The inflight region is written in the order of
    /// the specification.
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

    /// Head and length of each used entry from index `old` up to `new`, read back from the used
    /// ring.
    fn used_entries(&self, old: u16, new: u16) -> impl Iterator<Item = (u16, u32)> + '_ {
        (0..new.wrapping_sub(old)).map(move |k| {
            let at = 2 + 4 * usize::from(old.wrapping_add(k) & self.mask);
            // SAFETY: as in `push_used`. WHY: volatile, because the driver may write there too.
            let entry = unsafe { self.used.add(at).cast::<[u16; 4]>().read_volatile() };
            (entry[0], u32::from(entry[2]) | u32::from(entry[3]) << 16)
        })
    }

    /// Marks the buffers that the burst filled, and the burst's used entries, as written in the
    /// dirty log.
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

    /// Marks the first `len` bytes of the chain that begins at descriptor `head` as written in the
    /// dirty log.
    fn log_buffer(&mut self, log: &RingLog, head: u16, len: u32) {
        let mut pieces = [Piece::NONE; PIECES_MAX];
        // If the chain is no longer valid, the guest changed it after the switch wrote to it.
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
