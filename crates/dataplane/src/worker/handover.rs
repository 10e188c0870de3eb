//! What one worker hands to another: frames for its ports, and addresses it should know.
//!
//! **Problem.** A queue pair belongs to one worker. A frame for it may come from a port of another,
//! in memory of a guest that must not be held beyond the turn. **Rule.** Each pair of workers has a
//! ring each way, whose two ends [`super::positions`] keeps apart. A frame is copied into it as it
//! is, with its metadata; the receiving worker sends it from there, as if the cells were a guest's
//! buffer, and gives them back. A full ring drops (datapath rule 19). **Quantities.** Cells of 64
//! bytes; a record is one cell, and the frame's bytes follow it. **Cost.** One copy more than
//! within a worker.
#![allow(unsafe_code, reason = "cells change hands between two threads; see `positions`")]

use core::cell::UnsafeCell;
use std::sync::Arc;

use penstock_units::PortId;

use super::positions::{Giver, Positions, Taker, positions};
use crate::batch::{Batch, HEAD_COPY, Verdict};
use crate::classify::News;
use crate::offload::Offload;

/// Cells of a ring: 1 MiB, of which only what is used takes memory.
pub(super) const CELLS: usize = 16 * 1024;
const CELL: usize = 64;

#[repr(C, align(64))]
struct Cell([u8; CELL]);

/// A frame as it was when it was handed over, without its bytes.
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

/// What the first cell of a piece says.
#[derive(Clone, Copy, Debug)]
enum Record {
    /// Go on behind so many cells.
    Skip(usize),
    Frame(HandedFrame),
    News(News),
}

const _: () = assert!(size_of::<Record>() <= CELL && align_of::<Record>() <= CELL);

struct Cells(Box<[UnsafeCell<Cell>]>);

// SAFETY: a cell is touched by one side at a time: by the giver from `claim` to `show`, by the
// taker from `next` to `release`; their positions are handed over with release and acquire.
// WHY: this is what the ring is for.
unsafe impl Sync for Cells {}
// SAFETY: as above; the cells are plain bytes.
// WHY: control makes them, workers use them.
unsafe impl Send for Cells {}

impl Cells {
    fn new() -> Self {
        Self((0..CELLS).map(|_| UnsafeCell::new(Cell([0; CELL]))).collect())
    }

    /// The first byte of cell `at`, good for all cells from there to the end.
    #[inline]
    fn byte(&self, at: usize) -> *mut u8 {
        let first = &self.0[at..];
        UnsafeCell::raw_get(first.as_ptr()).cast()
    }

    /// # Safety
    /// Cell `at` belongs to the caller.
    #[inline]
    unsafe fn put(&self, at: usize, record: Record) {
        // SAFETY: the cell has the record's size and alignment (asserted above) and is ours.
        // WHY: a cell holds bytes or a record, as the giver likes.
        unsafe { self.byte(at).cast::<Record>().write(record) }
    }
}

const fn cells_of(len: usize) -> usize {
    1 + len.div_ceil(CELL)
}

/// The giving end.
pub(super) struct Outbox {
    cells: Arc<Cells>,
    giver: Giver,
}

/// The taking end.
pub(super) struct Inbox {
    cells: Arc<Cells>,
    taker: Taker,
}

/// What [`Inbox::fill`] found beside frames.
pub(super) enum Found {
    /// Frames of one port, in the batch.
    Frames(PortId),
    /// Something to be known.
    News(News),
    /// Nothing.
    Nothing,
}

/// A ring from one worker to another.
pub(super) fn handover() -> (Outbox, Inbox) {
    let cells = Arc::new(Cells::new());
    let (giver, taker) = positions(CELLS);
    (Outbox { cells: Arc::clone(&cells), giver }, Inbox { cells, taker })
}

impl Outbox {
    pub(super) fn positions(&self) -> Arc<Positions> {
        self.giver.positions()
    }

    /// Cells in a row, with the record at their start.
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

    /// Copies frame `i` of `batch`, which came from `source` and goes to `output`. False: no room.
    pub(super) fn give(&mut self, batch: &Batch, i: usize, source: PortId, output: u16) -> bool {
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

    /// Tells something. False: no room.
    pub(super) fn tell(&mut self, news: News) -> bool {
        self.claim(1, Record::News(news)).is_some()
    }

    /// Lets the other worker see all that was given.
    #[inline]
    pub(super) fn show(&mut self) {
        self.giver.show();
    }
}

impl Inbox {
    /// Fills the empty `batch` with the next frames that came from one and the same port. They lie
    /// in the ring until [`Self::release`].
    pub(super) fn fill(&mut self, batch: &mut Batch) -> Found {
        let mut source = None;
        while let Some(at) = self.taker.next() {
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

    /// Gives back what was taken; the batch filled from it is of no use any more.
    #[inline]
    pub(super) fn release(&mut self) {
        self.taker.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize, seed: u8) -> Vec<u8> {
        (0..251_u8).map(|i| i.wrapping_mul(7) ^ seed).cycle().take(len).collect()
    }

    /// Takes all there is: source, output, bytes and tag of each frame.
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
