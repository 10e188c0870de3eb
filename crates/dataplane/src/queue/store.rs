//! The frame store is memory in which frames wait inside the switch.
//!
//! # Problem
//!
//! A waiting frame cannot stay in its sender's memory. The sender gets its buffers back when the
//! batch is done, so the worker must not keep pointers into guest memory.
//!
//! # Approach
//!
//! The worker copies a waiting frame once into as many cells of [`CELL`] bytes as the frame needs.
//! The worker later sends a waiting frame from the frame store's cells. The store reuses the cell
//! that was freed last, so the used cells stay in the CPU's cache. The store does not touch the
//! memory of a cell before the cell's first use.
//!
//! # Reserve
//!
//! The limits on waiting frames count only the free cells above a reserve. If a sender's frames may
//! not be dropped, the worker stops the sender after the batch that exceeds a limit. The frames of
//! this batch find room in the reserve.
//!
//! # Cost
//!
//! Each frame that waits in the store is copied once. The store allocates no memory after
//! construction.

use penstock_qos::policer::Size;

use super::classes::Class;
use crate::batch::{Batch, BatchFull, FRAME_MAX, HEAD_COPY, Verdict};
use crate::ingress_policer::link_bytes;
use crate::offload::Offload;
use crate::port::Held;

/// Bytes of a cell in the frame store. A cell has room for a frame with its tags at an MTU of
/// 1,500, or 2,000 for tunnels.
pub const CELL: usize = 2_048;
const NIL: u32 = u32::MAX;

/// The place of a waiting frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The frame's bytes are in the worker's frame store, from the cell with this number on.
    Cells(u32),
    /// The frame's bytes are in the output port's own memory, with checksum and segmentation
    /// offloads complete.
    Port(Held),
}

impl Default for At {
    fn default() -> Self {
        Self::Cells(NIL)
    }
}

/// Metadata of a waiting frame, without the frame's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub(super) at: At,
    /// Length of the waiting frame in bytes, without FCS.
    pub len: u32,
    /// Size of the frame on a wire, without the overhead of Ethernet: a segmentation request has
    /// the size of its segments. The output queue sets `size`.
    pub(super) size: Size,
    /// Hash of the frame's flow.
    pub(super) hash: u32,
    pub offload: Offload,
    /// VLAN tag control information (TCI) of the frame.
    tci: u16,
    /// Whether the frame's bytes contain the VLAN tag.
    tagged: bool,
    /// Whether a mark in the frame can signal congestion to the sender (ECN, RFC 3168). The output
    /// queue sets `ect` only if it signals congestion.
    pub(super) ect: bool,
    /// Whether the sender expects marks at a short wait (L4S, RFC 9331). Only set with `ect`.
    pub(super) l4s: bool,
    /// The frame's code point, and its queue at an output with several queues.
    pub(super) class: Class,
    /// Number of the port from which the frame came.
    pub source: u16,
}

impl Stored {
    /// Returns the bytes that the frame occupies on a link, including Ethernet's overhead for each
    /// segment.
    pub(super) fn wire(&self) -> u32 {
        link_bytes(self.size)
    }

    /// Creates the metadata of a frame in the output's own memory.
    pub(super) fn held(held: Held, source: u16) -> Self {
        Self { at: At::Port(held), len: held.len, source, ..Self::default() }
    }

    /// Returns the frame's place in the output's own memory, or `None` for a frame in the store.
    pub(crate) fn in_port(&self) -> Option<Held> {
        match self.at {
            At::Port(held) => Some(held),
            At::Cells(_) => None,
        }
    }

    /// Returns the frame's first cell, or [`NIL`] for a frame outside the store.
    fn first(&self) -> u32 {
        match self.at {
            At::Cells(first) => first,
            At::Port(_) => NIL,
        }
    }
}

/// The memory cells of one worker in which frames wait.
#[derive(Debug)]
pub struct FrameStore {
    bytes: Box<[u8]>,
    /// Successor of each cell: the next cell of the cell's frame, or the next free cell.
    next: Box<[u32]>,
    free: u32,
    free_count: usize,
    /// Number of cells that [`Self::free_bytes`] does not count.
    reserve: usize,
    /// Index of the first cell of the frame store that was never used.
    fresh: u32,
}

impl FrameStore {
    /// Creates a frame store of `cells` cells without a reserve.
    #[must_use]
    pub fn new(cells: usize) -> Self {
        Self::with_reserve(cells, 0)
    }

    /// Creates a frame store of `cells` cells, and of `reserve` more cells as its reserve.
    #[must_use]
    pub fn with_reserve(cells: usize, reserve: usize) -> Self {
        let cells = cells.saturating_add(reserve).min(NIL as usize - 1);
        Self {
            bytes: vec![0; cells * CELL].into_boxed_slice(),
            next: vec![0; cells].into_boxed_slice(),
            free: NIL,
            free_count: cells,
            reserve,
            fresh: 0,
        }
    }

    /// Returns the number of bytes in free cells, without the reserve.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        (self.free_count.saturating_sub(self.reserve) * CELL) as u64
    }

    /// Whether every cell of the store is free.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.free_count == self.next.len()
    }

    fn take(&mut self) -> u32 {
        self.free_count -= 1;
        if let Some(next) = self.next.get(self.free as usize) {
            return core::mem::replace(&mut self.free, *next);
        }
        self.fresh += 1;
        self.fresh - 1
    }

    /// Copies frame `i` of `batch`, which came from port `source`, into the store. Returns `None`
    /// if the store has no room.
    pub fn put(&mut self, batch: &Batch, i: usize, source: u16) -> Option<Stored> {
        let frame = batch.frame(i);
        let len = frame.len as usize;
        let cells = len.div_ceil(CELL).max(1);
        if cells > self.free_count || len > FRAME_MAX {
            return None;
        }
        let mut first = NIL;
        // Cells are linked from the last to the first, so that each can name the next one.
        for _ in 0..cells {
            let cell = self.take();
            self.next[cell as usize] = first;
            first = cell;
        }
        self.write(batch, i, first);
        let (hash, offload, tci, tagged) = (frame.hash, frame.offload, frame.tci, frame.tagged);
        let at = At::Cells(first);
        Some(Stored {
            at,
            len: frame.len,
            size: Size::default(),
            ect: false,
            l4s: false,
            hash,
            offload,
            tci,
            tagged,
            class: Class::default(),
            source,
        })
    }

    fn write(&mut self, batch: &Batch, i: usize, first: u32) {
        let (mut cell, mut used) = (first as usize, 0);
        batch.each_piece(i, |mut data, mut len| {
            while len > 0 {
                if used == CELL {
                    (cell, used) = (self.next[cell] as usize, 0);
                }
                let part = len.min(CELL - used);
                let to = &mut self.bytes[cell * CELL + used..][..part];
                // SAFETY: `each_piece` names readable bytes; `to` is ours and has `part` of them.
                // WHY: they may lie in guest memory, over which no slice may exist.
                #[allow(unsafe_code, reason = "the copied bytes may lie in guest memory")]
                unsafe {
                    crate::mem::copy(to.as_mut_ptr(), data, part);
                }
                data = data.wrapping_add(part);
                (len, used) = (len - part, used + part);
            }
        });
    }

    /// Adds a frame to the end of `batch`, with `output` as its verdict. The frame's bytes stay in
    /// the store until [`Self::release`].
    ///
    /// # Errors
    /// Returns [`BatchFull`] if the batch has no room for the frame.
    pub fn load(&self, frame: &Stored, batch: &mut Batch, output: u16) -> Result<(), BatchFull> {
        if !batch.has_room() {
            return Err(BatchFull);
        }
        let len = frame.len as usize;
        let head = len.min(HEAD_COPY);
        let mut cell = frame.first() as usize;
        batch.fill_slot(&self.bytes[cell * CELL..][..head]);
        let (mut at, mut left, mut segments) = (head, len - head, 0);
        while left > 0 {
            if at == CELL {
                (cell, at) = (self.next[cell] as usize, 0);
            }
            let part = left.min(CELL - at);
            batch.add_segment(segments, self.bytes[cell * CELL + at..][..part].as_ptr(), part);
            (at, left, segments) = (at + part, left - part, segments + 1);
        }
        batch.commit(len, head, segments, frame.offload);
        let loaded = batch.frame_mut(batch.len() - 1);
        (loaded.tci, loaded.tagged, loaded.hash) = (frame.tci, frame.tagged, frame.hash);
        loaded.verdict = Verdict::Output(output);
        Ok(())
    }

    /// Returns the bytes of a waiting frame in its first cell. Returns `None` for a frame outside
    /// the store.
    pub(super) fn head_mut(&mut self, frame: &Stored) -> Option<&mut [u8]> {
        let cell = self.bytes.get_mut(frame.first() as usize * CELL..)?;
        cell.get_mut(..CELL.min(frame.len as usize))
    }

    /// Frees the cells of a waiting frame.
    pub fn release(&mut self, frame: &Stored) {
        let cells = (frame.len as usize).div_ceil(CELL).max(1);
        if frame.first() == NIL {
            return;
        }
        let mut last = frame.first();
        for _ in 1..cells {
            last = self.next[last as usize];
        }
        self.next[last as usize] = self.free;
        self.free = frame.first();
        self.free_count += cells;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(len: usize, seed: u8) -> Vec<u8> {
        (0..251_u8).map(|i| i.wrapping_mul(7) ^ seed).cycle().take(len).collect()
    }

    fn put(store: &mut FrameStore, bytes: &[u8]) -> Option<Stored> {
        let mut batch = Batch::new();
        batch.push(bytes, Offload::NONE).unwrap();
        store.put(&batch, 0, 7)
    }

    fn bytes_of(store: &FrameStore, stored: &Stored) -> Vec<u8> {
        let (mut batch, mut out) = (Batch::new(), Vec::new());
        store.load(stored, &mut batch, 3).unwrap();
        assert_eq!(batch.frame(0).verdict, Verdict::Output(3));
        batch.copy_out(0, &mut out);
        out
    }

    #[test]
    fn a_frame_keeps_its_metadata() {
        let mut batch = Batch::new();
        batch.push(&frame(300, 1), Offload::NONE).unwrap();
        let at = batch.frame_mut(0);
        (at.tci, at.hash) = (0x6005, 77);
        batch.set_tagged(0, true);
        let mut whole = Vec::new();
        batch.copy_out(0, &mut whole);
        let mut store = FrameStore::new(4);
        let stored = store.put(&batch, 0, 9).unwrap();
        assert_eq!((stored.source, stored.len), (9, 304));
        batch.clear();
        store.load(&stored, &mut batch, 1).unwrap();
        let (at, mut out) = (batch.frame(0), Vec::new());
        assert_eq!((at.tci, at.hash, at.tagged), (0x6005, 77, true));
        batch.copy_out(0, &mut out);
        assert_eq!(out, whole);
    }

    #[test]
    fn a_full_store_refuses_and_has_room_again() {
        let mut store = FrameStore::new(33);
        let long = put(&mut store, &frame(65_000, 1)).unwrap();
        assert!(put(&mut store, &frame(4_000, 2)).is_none());
        let short = put(&mut store, &frame(60, 3)).unwrap();
        assert_eq!(store.free_bytes(), 0);
        assert!(put(&mut store, &frame(60, 4)).is_none());
        assert_eq!(bytes_of(&store, &long), frame(65_000, 1));
        store.release(&long);
        assert_eq!(bytes_of(&store, &short), frame(60, 3));
        store.release(&short);
        assert!(store.is_empty());
    }

    #[test]
    fn the_reserve_does_not_count_as_free_and_takes_frames() {
        let mut store = FrameStore::with_reserve(2, 1);
        let stored = [1, 2, 3].map(|seed| {
            let free = store.free_bytes();
            (put(&mut store, &frame(1_000, seed)).unwrap(), free / CELL as u64)
        });
        assert_eq!(stored.map(|(_, free)| free), [2, 1, 0]);
        assert!(put(&mut store, &frame(1_000, 4)).is_none());
        stored.iter().for_each(|(frame, _)| store.release(frame));
        assert!(store.is_empty() && store.free_bytes() == 2 * CELL as u64);
    }

    proptest! {
        /// Stores and releases frames in random order, and checks that each frame stays unchanged
        /// and no cell is lost.
        #[test]
        fn frames_stay_what_they_were(
            steps in proptest::collection::vec((1..9_000_usize, any::<u8>(), any::<bool>()), 1..60)
        ) {
            let mut store = FrameStore::new(24);
            let mut there: Vec<(Stored, Vec<u8>)> = Vec::new();
            for (len, seed, leave) in steps {
                if leave && !there.is_empty() {
                    let (stored, bytes) = there.swap_remove(usize::from(seed) % there.len());
                    prop_assert_eq!(bytes_of(&store, &stored), bytes);
                    store.release(&stored);
                }
                let bytes = frame(len.max(14), seed);
                if let Some(stored) = put(&mut store, &bytes) {
                    there.push((stored, bytes));
                }
            }
            for (stored, bytes) in there {
                prop_assert_eq!(bytes_of(&store, &stored), bytes);
                store.release(&stored);
            }
            prop_assert!(store.is_empty());
        }
    }
}
