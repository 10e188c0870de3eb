//! Memory in which frames wait inside the switch.
//!
//! **Problem.** A frame that waits for an output cannot stay in its sender's memory: the sender
//! gets its buffers back when the batch is done, and no guest pointer outlives a turn. **Rule.** A
//! frame is copied once into cells of [`CELL`] bytes, as many as it needs, and sent from there.
//! Cells are given out last in, first out, so that those in use stay in the cache and memory that
//! was never needed is never touched. **Cost.** One copy; nothing is allocated after construction.

use super::classes::Class;
use crate::batch::{Batch, BatchFull, FRAME_MAX, HEAD_COPY, Verdict};
use crate::offload::Offload;
use crate::port::Held;

/// Bytes of a cell: a frame of an MTU of 1,500 with its tags, and of 2,000 for tunnels.
pub const CELL: usize = 2_048;
const NIL: u32 = u32::MAX;

/// Where a frame's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// In the store, from this cell on.
    Cells(u32),
    /// In its output's own memory, finished.
    Port(Held),
}

impl Default for At {
    fn default() -> Self {
        Self::Cells(NIL)
    }
}

/// A frame that waits, without its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub(super) at: At,
    /// Its length.
    pub len: u32,
    /// Bytes that it takes on a link, with what Ethernet adds to each frame that comes of it. Its
    /// queue sets them.
    pub(super) wire: u32,
    /// The hash of its flow.
    hash: u32,
    /// Offload metadata.
    pub offload: Offload,
    /// The VLAN that it belongs to.
    tci: u16,
    /// Whether its bytes carry the tag.
    tagged: bool,
    /// Its queue at an output that has several, and its code point.
    pub(super) class: Class,
    /// The port it came from.
    pub source: u16,
}

impl Stored {
    /// A frame in its output's own memory.
    pub(super) fn held(held: Held, source: u16) -> Self {
        Self { at: At::Port(held), len: held.len, source, ..Self::default() }
    }

    /// Where it is in its output's own memory, if it is there.
    pub(crate) fn in_port(&self) -> Option<Held> {
        match self.at {
            At::Port(held) => Some(held),
            At::Cells(_) => None,
        }
    }

    /// The first cell; [`NIL`] of a frame that is not in the store.
    fn first(&self) -> u32 {
        match self.at {
            At::Cells(first) => first,
            At::Port(_) => NIL,
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct FrameStore {
    bytes: Box<[u8]>,
    /// By cell: the next one of its frame, or the next one that is free.
    next: Box<[u32]>,
    free: u32,
    free_count: usize,
    /// Cells from here on were never used.
    fresh: u32,
}

impl FrameStore {
    /// Room for so many cells.
    #[must_use]
    pub fn new(cells: usize) -> Self {
        let cells = cells.min(NIL as usize - 1);
        Self {
            bytes: vec![0; cells * CELL].into_boxed_slice(),
            next: vec![0; cells].into_boxed_slice(),
            free: NIL,
            free_count: cells,
            fresh: 0,
        }
    }

    /// Bytes for which there is room: of frames that fill their cells.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        (self.free_count * CELL) as u64
    }

    /// Whether every cell is free.
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

    /// Copies frame `i` of `batch`, which came from port `source`; `None`: there is no room.
    pub fn put(&mut self, batch: &Batch, i: usize, source: u16) -> Option<Stored> {
        let frame = batch.frame(i);
        let len = frame.len as usize;
        let cells = len.div_ceil(CELL).max(1);
        if cells > self.free_count || len > FRAME_MAX {
            return None;
        }
        let mut first = NIL;
        // From the last cell to the first, so that each knows the one behind it.
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
            wire: 0,
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
                #[allow(unsafe_code, reason = "reads a piece that may lie in guest memory")]
                unsafe {
                    crate::mem::copy(to.as_mut_ptr(), data, part);
                }
                data = data.wrapping_add(part);
                (len, used) = (len - part, used + part);
            }
        });
    }

    /// Puts a frame at the end of `batch`, with `output` as its verdict. Its bytes stay here until
    /// [`Self::release`].
    ///
    /// # Errors
    /// When the batch is full.
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

    /// A frame's cells are free again.
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

    proptest! {
        /// Frames come and go in any order; each comes out as it went in, and no cell is lost.
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
