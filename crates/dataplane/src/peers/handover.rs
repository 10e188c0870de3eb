//! A worker hands frames and learned addresses over to another worker through a ring.
//!
//! # Problem
//!
//! A queue pair belongs to one worker. A frame for the queue pair may come from a port of another
//! worker. The frame lies in guest memory, which no worker may use after the turn.
//!
//! # Approach
//!
//! Each pair of workers has one ring in each direction. The module [`super::positions`] ensures
//! that a ring's two ends never access a cell at the same time. The sending worker copies the frame
//! with its metadata into the ring unchanged. The receiving worker sends the frame from the ring as
//! if the ring's cells were a guest's buffer. After it has sent a frame, the receiving worker
//! returns the frame's ring cells. If the ring is full, the sending worker drops the frame
//! (datapath rule 19).
//!
//! A ring consists of cells of 64 bytes. A record takes one cell, and the frame's bytes follow the
//! record.
//!
//! # Cost
//!
//! A handover costs one more copy of the frame than a delivery within a worker.
#![allow(unsafe_code, reason = "two threads access the ring cells in turn; see module `positions`")]

use core::cell::UnsafeCell;
use std::sync::Arc;

use penstock_units::PortId;

use super::positions::{Giver, Positions, Taker, positions};
use crate::batch::{Batch, HEAD_COPY, Verdict};
use crate::classify::News;
use crate::offload::Offload;

/// Number of 64-byte cells in a ring, 1 MiB in total. A cell takes memory only from its first use
/// on.
pub(crate) const CELLS: usize = 16 * 1024;
const CELL: usize = 64;

#[repr(C, align(64))]
struct Cell([u8; CELL]);

/// Metadata of a frame at the time of the frame's handover to another worker.
#[derive(Clone, Copy, Debug)]
struct HandedFrame {
    source: PortId,
    output: u16,
    len: u32,
    hash: u32,
    offload: Offload,
    tci: u16,
    tagged: bool,
}

/// Content of the first cell of a record in the ring.
#[derive(Clone, Copy, Debug)]
enum Record {
    /// The next record begins after the given number of cells.
    Skip(usize),
    Frame(HandedFrame),
    News(News),
}

const _: () = assert!(size_of::<Record>() <= CELL && align_of::<Record>() <= CELL);

struct Cells(Box<[UnsafeCell<Cell>]>);

// SAFETY: only one side touches a cell at a time. The giver does from `claim` to `show`, the taker
// from `next` to `release`. Positions are handed over with release and acquire. WHY: two threads
// share the cells of a ring.
unsafe impl Sync for Cells {}
// SAFETY: as above; the cells are plain bytes. WHY: control creates the rings and workers use them.
unsafe impl Send for Cells {}

impl Cells {
    fn new() -> Self {
        Self((0..CELLS).map(|_| UnsafeCell::new(Cell([0; CELL]))).collect())
    }

    /// Returns the address of the first byte of ring cell number `at`. The returned pointer is
    /// valid for all cells from `at` to the ring's end.
    #[inline]
    fn byte(&self, at: usize) -> *mut u8 {
        let first = &self.0[at..];
        UnsafeCell::raw_get(first.as_ptr()).cast()
    }

    /// # Safety
    /// Cell `at` must belong to the caller.
    #[inline]
    unsafe fn put(&self, at: usize, record: Record) {
        // SAFETY: the cell has the record's size and alignment (asserted above) and is ours. WHY: a
        // cell contains either bytes or a record.
        unsafe { self.byte(at).cast::<Record>().write(record) }
    }
}

const fn cells_of(len: usize) -> usize {
    1 + len.div_ceil(CELL)
}

/// The sending end of a ring between two workers.
pub(crate) struct Outbox {
    cells: Arc<Cells>,
    giver: Giver,
}

/// The receiving end of a ring between two workers.
pub(crate) struct Inbox {
    cells: Arc<Cells>,
    taker: Taker,
}

/// Result of [`Inbox::fill`].
pub(crate) enum Found {
    /// The batch contains frames that came from the given port.
    Frames(PortId),
    /// The ring contained another worker's report of a MAC address, so the batch is empty.
    News(News),
    /// The ring has no record to read.
    Nothing,
}

/// Creates a ring from one worker to another, and returns the ring's two ends.
pub(crate) fn handover() -> (Outbox, Inbox) {
    let cells = Arc::new(Cells::new());
    let (giver, taker) = positions(CELLS);
    (Outbox { cells: Arc::clone(&cells), giver }, Inbox { cells, taker })
}

impl Outbox {
    pub(crate) fn positions(&self) -> Arc<Positions> {
        self.giver.positions()
    }

    /// Reserves adjacent cells of the ring and writes the record to the first cell. Returns `None`
    /// if the ring has no room.
    #[inline]
    fn claim(&mut self, cells: usize, record: Record) -> Option<usize> {
        let claim = self.giver.claim(cells)?;
        // SAFETY: all of them were claimed and not shown yet. WHY: see `Cells::put`.
        unsafe {
            if let Some((at, skipped)) = claim.skipped {
                self.cells.put(at, Record::Skip(skipped));
            }
            self.cells.put(claim.at, record);
        }
        Some(claim.at)
    }

    /// Copies frame `i` of `batch`, which came from `source` and goes to `output`, into the ring.
    /// Returns false if the ring has no room.
    pub(crate) fn give(&mut self, batch: &Batch, i: usize, source: PortId, output: u16) -> bool {
        let f = batch.frame(i);
        let len = f.len as usize;
        let record = HandedFrame {
            source,
            output,
            len: f.len,
            hash: f.hash,
            offload: f.offload,
            tci: f.tci,
            tagged: f.tagged,
        };
        let Some(at) = self.claim(cells_of(len), Record::Frame(record)) else { return false };
        if len > 0 {
            // SAFETY: the cells behind the record were claimed for `len` bytes and are ours alone
            // until `show`; they were initialised. WHY: the frame goes where the taker reads it.
            let to = unsafe { core::slice::from_raw_parts_mut(self.cells.byte(at + 1), len) };
            batch.copy_to(i, to);
        }
        true
    }

    /// Reports a learned address to the other worker. Returns false if the ring has no room.
    pub(crate) fn tell(&mut self, news: News) -> bool {
        self.claim(1, Record::News(news)).is_some()
    }

    /// Makes all written records visible to the receiving worker.
    #[inline]
    pub(crate) fn show(&mut self) {
        self.giver.show();
    }
}

impl Inbox {
    /// Fills the empty `batch` with the next frames from one port. The frames' bytes stay in the
    /// ring until [`Self::release`].
    pub(crate) fn fill(&mut self, batch: &mut Batch) -> Found {
        let mut source = None;
        while let Some(at) = self.taker.next_cell() {
            // SAFETY: the cell was shown to us and not given back; the giver wrote a record there.
            // WHY: see `Cells::put`.
            let record = unsafe { self.cells.byte(at).cast::<Record>().read() };
            match record {
                Record::Skip(cells) => self.taker.pass(cells),
                Record::News(_) if source.is_some() => break,
                Record::News(news) => {
                    self.taker.pass(1);
                    return Found::News(news);
                }
                Record::Frame(frame) => {
                    if source.is_some_and(|source| source != frame.source) || !batch.has_room() {
                        break;
                    }
                    source = Some(frame.source);
                    self.add(batch, at + 1, &frame);
                    self.taker.pass(cells_of(frame.len as usize));
                }
            }
        }
        source.map_or(Found::Nothing, Found::Frames)
    }

    fn add(&self, batch: &mut Batch, at: usize, frame: &HandedFrame) {
        let len = frame.len as usize;
        let head = len.min(HEAD_COPY);
        let from = self.cells.byte(at).cast_const();
        // SAFETY: `len` bytes of the frame begin there; the slot has HEAD_COPY, and cannot
        // overlap. WHY: the slot is the batch's own memory, written through a pointer.
        unsafe { core::ptr::copy_nonoverlapping(from, batch.next_slot(), head) };
        let rest = len - head;
        if rest > 0 {
            batch.add_segment(0, from.wrapping_add(head), rest);
        }
        batch.commit(len, head, usize::from(rest > 0), frame.offload);
        let f = batch.frame_mut(batch.len() - 1);
        (f.tci, f.tagged, f.hash) = (frame.tci, frame.tagged, frame.hash);
        f.verdict = Verdict::Output(frame.output);
    }

    /// Returns all read cells to the sending worker. A batch that the worker filled
    /// from the cells of a ring is invalid after the return.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.taker.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize, seed: u8) -> Vec<u8> {
        (0..251_u8).map(|i| i.wrapping_mul(7) ^ seed).cycle().take(len).collect()
    }

    /// Takes all frames from the ring and returns the source, output, bytes and tag of each frame.
    fn take(inbox: &mut Inbox) -> Vec<(u16, Verdict, Vec<u8>, bool)> {
        let (mut batch, mut all) = (Batch::new(), Vec::new());
        loop {
            batch.clear();
            match inbox.fill(&mut batch) {
                Found::Frames(source) => {
                    for i in 0..batch.len() {
                        let mut bytes = Vec::new();
                        batch.copy_out(i, &mut bytes);
                        let f = batch.frame(i);
                        all.push((source.0, f.verdict, bytes, f.tagged));
                    }
                }
                Found::News(_) => {}
                Found::Nothing => break,
            }
            inbox.release();
        }
        all
    }

    #[test]
    fn frames_of_any_length_arrive_as_they_were_over_many_rounds() {
        let (mut outbox, mut inbox) = handover();
        for round in 0..40_u8 {
            let mut sent = Vec::new();
            for len in [14, 60, 127, 128, 129, 1514, 40_000, 65_000] {
                let mut batch = Batch::new();
                batch.push(&frame(len, round), Offload::NONE).unwrap();
                batch.frame_mut(0).tci = 100;
                batch.set_tagged(0, len == 60);
                let mut whole = Vec::new();
                batch.copy_out(0, &mut whole);
                assert!(outbox.give(&batch, 0, PortId(round.into()), 7));
                sent.push((round.into(), Verdict::Output(7), whole, len == 60));
            }
            assert!(take(&mut inbox).is_empty(), "not shown yet");
            outbox.show();
            assert!(take(&mut inbox) == sent, "round {round}");
        }
    }

    #[test]
    fn a_full_ring_refuses_and_a_batch_has_one_source() {
        let (mut outbox, mut inbox) = handover();
        let mut batch = Batch::new();
        batch.push(&frame(60, 0), Offload::NONE).unwrap();
        let given = (0..CELLS)
            .filter(|n| outbox.give(&batch, 0, PortId(u16::try_from(n / 3 % 9).unwrap()), 1))
            .count();
        assert_eq!(given, CELLS / 2);
        outbox.show();
        let mut taken = Batch::new();
        assert!(matches!(inbox.fill(&mut taken), Found::Frames(PortId(0))));
        assert_eq!(taken.len(), 3);
        assert!(!outbox.give(&batch, 0, PortId(0), 1), "taken but not given back");
        inbox.release();
        assert!(outbox.give(&batch, 0, PortId(0), 1));
    }
}
