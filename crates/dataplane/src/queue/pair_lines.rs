//! Frames that wait for the limits of their pairs of VMs, in a line for each pair.
//!
//! # Problem
//!
//! A host limits pairs of VMs to their receivers' guarantees ([`penstock_qos::pair_table`]). All
//! frames of a VM come from one ring. If the frames of one pair waited in the ring, the frames of
//! the VM's other pairs would wait with them. If they were dropped, TCP would not reach the limit.
//!
//! # Approach
//!
//! Frames above a pair's limit wait in the line of the pair. The line has the number of the pair's
//! slot in the table. A heap orders the lines by the times at which their first frames may leave.
//! The table decides when a frame leaves, because rates change while frames wait. A frame that
//! leaves its line enters the output's queue like a new frame, with the classes and the code point
//! of that moment.
//!
//! # Bounds
//!
//! The table limits the bytes in a line. VMs choose the addresses of pairs, so a VM can have many
//! lines: no VM gets more than half of the places and of the memory that is free. A frame that
//! waits longer than the output's limit on waits, and than several frames of its pair take, is
//! dropped. The VM pays for a frame when the frame leaves.
//!
//! # Cost
//!
//! A frame that waits costs two changes of a list, and a line with new frames two operations of the
//! heap. Outputs without such pairs have no lines. The lines allocate memory only when they are
//! created, and the control plane creates and frees them ([`super::QueueHome::set_pairs`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use penstock_qos::pair_table::{PAIRS_MAX, PairTable};
use penstock_qos::policer::Size;
use penstock_units::Nanos;

use super::{CELL, Stored};

/// Number of frames in all lines together.
const FRAMES_MAX: u32 = 8_192;
/// Time after which a line is looked at again at the earliest. The bucket keeps the tokens of this
/// time, so several frames of a fast pair leave at once.
const STEP: Nanos = Nanos::from_micros(50);
const NIL: u32 = u32::MAX;

/// A place for a frame.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    frame: Stored,
    tenant: u16,
    /// Time at which the frame arrived.
    since: Nanos,
    /// Place of the next frame of the same line, or next free place.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    first: u32,
    last: u32,
    /// Whether the heap contains the line.
    listed: bool,
}

/// A frame that has left its line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Released {
    pub frame: Stored,
    /// Number of the sender's tenant plus one, or 0 if the operator owns the sending port.
    pub tenant: u16,
    /// Whether the frame waited too long and must be dropped.
    pub late: bool,
}

/// The lines of all pairs at an output.
#[derive(Debug)]
pub(super) struct PairLines {
    table: Arc<PairTable>,
    /// Lines by the slots of their pairs.
    lines: Box<[Line]>,
    places: Box<[Place]>,
    /// First free place.
    free: u32,
    len: u32,
    /// Number of waiting frames of each source port, and bytes of their memory.
    sources: Box<[(u32, u64)]>,
    /// Times at which lines are looked at, with the lines' slots.
    due: BinaryHeap<Reverse<Due>>,
    /// Number of times that a line was listed.
    listings: u64,
}

/// When a line is looked at, as its number `turn`. Lines of a VM that waits for its own limit are
/// looked at at the same time, and take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Nanos,
    turn: u64,
    slot: usize,
}

/// Returns the bytes of the cells in which a frame of `len` bytes waits.
fn memory_of(len: u32) -> u64 {
    ((len as usize).div_ceil(CELL).max(1) * CELL) as u64
}

impl PairLines {
    /// Creates empty lines for the pairs of `table` and `ports` source ports.
    pub(super) fn new(table: &Arc<PairTable>, ports: usize) -> Self {
        let line = Line { first: NIL, last: NIL, listed: false };
        let place = |next| Place { next, ..Place::default() };
        let mut places: Box<[Place]> = (1..=FRAMES_MAX).map(place).collect();
        if let Some(last) = places.last_mut() {
            last.next = NIL;
        }
        Self {
            table: Arc::clone(table),
            lines: vec![line; PAIRS_MAX].into_boxed_slice(),
            places,
            free: 0,
            len: 0,
            sources: vec![(0, 0); ports].into_boxed_slice(),
            due: BinaryHeap::with_capacity(PAIRS_MAX),
            listings: 0,
        }
    }

    /// Whether the pairs are those of `table`.
    pub(super) fn is_of(&self, table: &Arc<PairTable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a frame of `len` bytes from port `source` finds a place. `free` is the free memory
    /// of all outputs, in bytes.
    pub(super) fn has_room(&self, source: u16, len: u32, free: u64) -> bool {
        let Some(&(frames, bytes)) = self.sources.get(usize::from(source)) else { return false };
        let left = FRAMES_MAX - self.len;
        let fits = frames == 0 || bytes + memory_of(len) <= free / 2;
        left > 0 && frames <= left / 2 && fits
    }

    /// Adds a frame of a tenant to the line of the pair in `slot`. [`Self::has_room`] must have
    /// found a place. Returns whether the output must be looked at earlier than before. Returns
    /// `None` if the table does not let the frame wait.
    pub(super) fn push(
        &mut self,
        slot: usize,
        frame: Stored,
        tenant: u16,
        now: Nanos,
    ) -> Option<bool> {
        let source = self.sources.get_mut(usize::from(frame.source))?;
        let (line, at) = (self.lines.get_mut(slot)?, self.free);
        let place = self.places.get_mut(at as usize)?;
        let size = Size { bytes: frame.wire(), ..frame.size };
        if !self.table.waits(frame.source, slot, size) {
            return None;
        }
        self.free = place.next;
        *place = Place { frame, tenant, since: now, next: NIL };
        *source = (source.0 + 1, source.1 + memory_of(frame.len));
        self.len += 1;
        let before = core::mem::replace(&mut line.last, at);
        match self.places.get_mut(before as usize) {
            Some(before) => before.next = at,
            None => line.first = at,
        }
        if core::mem::replace(&mut line.listed, true) {
            return Some(false);
        }
        let is_next = self.next_due().is_none_or(|next| now + STEP < next);
        self.list(now + STEP, slot);
        Some(is_next)
    }

    /// Lists the line of a slot for the time `at`, after other lines of the same time. Times are
    /// multiples of [`STEP`], so lines that wait for the same VM have the same time.
    fn list(&mut self, at: Nanos, slot: usize) {
        self.listings += 1;
        let at = Nanos(at.0.next_multiple_of(STEP.0));
        self.due.push(Reverse(Due { at, turn: self.listings, slot }));
    }

    /// Returns the time at which a frame may leave. Returns `None` if no frame waits.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    /// Removes and returns a frame that leaves at time `now`. A frame that waited longer than
    /// `most` and than the table lets its pair wait is late.
    pub(super) fn next(&mut self, now: Nanos, most: Nanos) -> Option<Released> {
        loop {
            let Reverse(Due { at, slot, .. }) = *self.due.peek()?;
            if at > now {
                return None;
            }
            let Place { frame, tenant, since, .. } = self.first(slot)?;
            let late = now.saturating_sub(since) > self.table.longest_wait(slot, most);
            if late {
                self.lose(slot, &frame);
            } else if let Err(more) = self.table.departs(frame.source, slot, frame.wire(), now) {
                self.due.pop();
                self.list(now + more.max(STEP), slot);
                continue;
            }
            self.remove_first(slot, at);
            return Some(Released { frame, tenant, late });
        }
    }

    /// Removes and returns any frame, which is lost.
    pub(super) fn pop(&mut self) -> Option<Stored> {
        let Reverse(Due { at, slot, .. }) = *self.due.peek()?;
        let Place { frame, .. } = self.first(slot)?;
        self.lose(slot, &frame);
        self.remove_first(slot, at);
        Some(frame)
    }

    /// Notes that the first frame in the line of a slot is dropped.
    fn lose(&self, slot: usize, frame: &Stored) {
        self.table.lost(frame.source, slot, Size { bytes: frame.wire(), ..frame.size });
    }

    /// Returns the first frame in the line of a slot.
    fn first(&self, slot: usize) -> Option<Place> {
        let first = self.lines.get(slot)?.first;
        self.places.get(first as usize).copied()
    }

    /// Removes the first frame of the line at the top of the heap. Lists the line again for the
    /// time `at` if more frames wait.
    fn remove_first(&mut self, slot: usize, at: Nanos) {
        let Some(line) = self.lines.get_mut(slot) else { return };
        let first = line.first;
        let Some(place) = self.places.get_mut(first as usize) else { return };
        line.first = core::mem::replace(&mut place.next, self.free);
        line.listed = line.first != NIL;
        if !line.listed {
            line.last = NIL;
        }
        self.free = first;
        self.len -= 1;
        if let Some((frames, bytes)) = self.sources.get_mut(usize::from(place.frame.source)) {
            *frames -= 1;
            *bytes -= memory_of(place.frame.len);
        }
        let more = line.listed;
        self.due.pop();
        if more {
            self.list(at, slot);
        }
    }
}
