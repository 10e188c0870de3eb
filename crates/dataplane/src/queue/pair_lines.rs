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
//! dropped. The VM pays for a frame when the frame leaves. If the VM's port leaves, its frames are
//! dropped, because another VM may get the number of the port.
//!
//! # Cost
//!
//! A frame that waits costs two changes of a list, and a line with new frames two operations of the
//! heap. If a VM with many lines is in debt, the lines are looked at again and again, and no frame
//! leaves. If many lines wait, there are therefore longer steps between two looks at a line, up to
//! 1.6 ms. The bucket of a VM keeps the tokens of such a step, so no VM becomes slower. The caller
//! limits the looks of a turn.
//!
//! Outputs without such pairs have no lines. The lines allocate memory only when they are created,
//! and the control plane creates and frees them ([`super::QueueHome::set_pairs`]).

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
/// Number of lines that may all be looked at once in a [`STEP`]. More lines have longer steps.
const LINES_PER_STEP: usize = 32;
/// Length of the longest step, in [`STEP`]s.
const STEPS_MAX: usize = 32;
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
    /// Bytes that left in the line's turn.
    left: u64,
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

/// When a line is looked at, as its number `turn`. Lines that wait for the same account are looked
/// at at the same time, and take turns. In a turn, a full frame leaves for each flow of the pair
/// ([`PairTable::bytes_of_turn`]), or one larger segment.
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
        let line = Line { first: NIL, last: NIL, listed: false, left: 0 };
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

    /// Returns the least time between two looks at a line whose first frame must wait.
    fn step(&self) -> Nanos {
        let steps = (self.due.len() / LINES_PER_STEP).clamp(1, STEPS_MAX).next_power_of_two();
        Nanos(STEP.0 * steps as u64)
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
    /// `most` and than the table lets its pair wait is late. Subtracts the lines that the function
    /// looked at from `looks`, and returns `None` at 0 although frames may be due.
    pub(super) fn next(&mut self, now: Nanos, most: Nanos, looks: &mut usize) -> Option<Released> {
        loop {
            let Reverse(due @ Due { at, slot, .. }) = *self.due.peek()?;
            if at > now {
                return None;
            }
            *looks = looks.checked_sub(1)?;
            let Place { frame, tenant, since, .. } = self.first(slot)?;
            let late = now.saturating_sub(since) > self.table.longest_wait(slot, most);
            if late {
                self.lose(slot, &frame);
            } else if let Err(more) = self.table.departs(frame.source, slot, frame.wire(), now) {
                // Steps are multiples of each other, so lines of a VM stay together.
                let step = self.step();
                self.due.pop();
                let at = (now + more.max(step)).0.next_multiple_of(step.0);
                self.list(Nanos(at), slot);
                continue;
            }
            self.remove_first(due, if late { 0 } else { frame.wire() });
            return Some(Released { frame, tenant, late });
        }
    }

    /// Removes and returns any frame, which is lost.
    pub(super) fn pop(&mut self) -> Option<Stored> {
        let Reverse(due) = *self.due.peek()?;
        let Place { frame, .. } = self.first(due.slot)?;
        self.lose(due.slot, &frame);
        self.remove_first(due, 0);
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

    /// Removes the frames of the port `source`, which are lost, and calls `lost` with each.
    pub(super) fn forget(&mut self, source: u16, mut lost: impl FnMut(Stored)) {
        for slot in 0..self.lines.len() {
            while let Some(Place { frame, .. }) = self.first(slot)
                && frame.source == source
            {
                self.lose(slot, &frame);
                self.unlink_first(slot);
                lost(frame);
            }
        }
        let lines = &self.lines;
        self.due.retain(|Reverse(due)| lines.get(due.slot).is_some_and(|line| line.listed));
    }

    /// Removes the first frame of the line at the top of the heap, which is `due`. `sent` is the
    /// number of bytes that leave, and 0 if the frame is dropped. Lists the line again if more
    /// frames wait: in the same turn, or after the others.
    fn remove_first(&mut self, due: Due, sent: u32) {
        self.due.pop();
        if !self.unlink_first(due.slot) {
            return;
        }
        let most = self.table.bytes_of_turn(due.slot);
        let Some(line) = self.lines.get_mut(due.slot) else { return };
        line.left += u64::from(sent);
        if line.left < most {
            self.due.push(Reverse(due));
        } else {
            line.left = 0;
            self.list(due.at, due.slot);
        }
    }

    /// Removes the first frame of a line from the line. Returns whether more frames wait there.
    fn unlink_first(&mut self, slot: usize) -> bool {
        let Some(line) = self.lines.get_mut(slot) else { return false };
        let first = line.first;
        let Some(place) = self.places.get_mut(first as usize) else { return false };
        line.first = core::mem::replace(&mut place.next, self.free);
        line.listed = line.first != NIL;
        if !line.listed {
            (line.last, line.left) = (NIL, 0);
        }
        self.free = first;
        self.len -= 1;
        if let Some((frames, bytes)) = self.sources.get_mut(usize::from(place.frame.source)) {
            *frames -= 1;
            *bytes -= memory_of(place.frame.len);
        }
        line.listed
    }
}

#[cfg(test)]
mod tests {
    use penstock_qos::pair_table::{Delayed, PAIRS_OF_VM_MAX, PairLimits, Sending, VmRates};
    use penstock_qos::policer::RATE_MAX;
    use penstock_units::BitsPerSecond;

    use super::*;
    use crate::port::Held;

    const VM: u16 = 1;
    /// A frame takes 1,000 bytes on a link.
    const BYTES: u32 = 1_000;

    /// Returns a table with a VM at 100 Mbit/s.
    fn table() -> Arc<PairTable> {
        let table = Arc::new(PairTable::with_limits(2, 3, PairLimits::Guarantees));
        table.set_first(VM, RATE_MAX);
        let send = BitsPerSecond(100_000_000);
        table.limit(VM, VmRates { default: RATE_MAX, send, receive: RATE_MAX });
        table.set_lines(true);
        table
    }

    #[test]
    fn a_vm_in_debt_keeps_its_rate_and_its_many_lines_cost_few_looks() {
        let (table, mut now) = (table(), Nanos::from_secs(1));
        let mut lines = PairLines::new(&table, 2);
        let size = Size { bytes: BYTES - 24, frames: 1 };
        let mut frame = Stored::held(Held { buffer: 0, len: size.bytes }, VM);
        frame.size = size;
        assert_eq!(frame.wire(), BYTES);
        for pair in 0..u64::from(PAIRS_OF_VM_MAX) {
            let mac = 0x0200_0000_0000 + pair;
            let on_link = Size { bytes: BYTES, frames: 1 };
            let slot = (0..1_000).find_map(|_| {
                let sending = table.send(VM, mac, on_link, now);
                if let Sending::Wait(Delayed { slot, .. }) = sending { Some(slot) } else { None }
            });
            let slot = slot.expect("the VM is in debt");
            (0..10).for_each(|_| assert!(lines.push(slot, frame, 0, now).is_some()));
        }
        let (most, mut left, mut looks) = (Nanos::from_secs(9), 0, usize::MAX);
        for _ in 0..10_000 {
            now += Nanos::from_micros(10);
            left += std::iter::from_fn(|| lines.next(now, most, &mut looks)).count();
        }
        // The VM has 1,250,000 bytes in 100 ms, and pays for a question about each pair.
        assert!((1_200..=1_227).contains(&left), "{left} frames");
        // 2,000 steps.
        let looks = usize::MAX - looks;
        assert!(looks <= 2_000 * 40, "{looks} looks");
    }

    #[test]
    fn a_pair_with_more_flows_sends_more_in_a_turn() {
        let (table, mut now) = (table(), Nanos::from_secs(1));
        let mut lines = PairLines::new(&table, 2);
        let size = Size { bytes: 1_538, frames: 1 };
        let mut frame = Stored::held(Held { buffer: 0, len: 1_514 }, VM);
        frame.size = Size { bytes: 1_514, ..size };
        assert_eq!(frame.wire(), size.bytes);
        let slots = [1_u64, 2].map(|mac| {
            let slot = (0..1_000).find_map(|_| {
                let sending = table.send(VM, mac, size, now);
                if let Sending::Wait(Delayed { slot, .. }) = sending { Some(slot) } else { None }
            });
            slot.expect("the VM is in debt")
        });
        let pair = table.sending().find(|read| read.pair.key.mac() == 2).expect("it sends").pair;
        table.set_flows(pair, 3);
        for (number, slot) in (0..2).zip(slots) {
            frame.hash = number;
            (0..60).for_each(|_| assert!(lines.push(slot, frame, 0, now).is_some()));
        }
        let mut left = [0_u32; 2];
        while left.iter().sum::<u32>() < 40 {
            now += Nanos::from_micros(50);
            while let Some(released) = lines.next(now, Nanos::from_secs(9), &mut { usize::MAX }) {
                left[usize::try_from(released.frame.hash).unwrap()] += 1;
            }
        }
        assert_eq!(left, [10, 30]);
    }

    #[test]
    fn late_frames_take_nothing_of_their_lines_turn() {
        let (table, now) = (table(), Nanos::from_secs(1));
        let mut lines = PairLines::new(&table, 2);
        let mut frame = Stored::held(Held { buffer: 0, len: 1_514 }, VM);
        for slot in 0..2 {
            frame.hash = slot;
            for since in [now, now, Nanos::from_secs(5)] {
                assert!(lines.push(slot as usize, frame, 0, since).is_some());
            }
        }
        let (now, most) = (Nanos::from_secs(5) + STEP, Nanos::from_secs(1));
        let left: Vec<_> = std::iter::from_fn(|| lines.next(now, most, &mut { usize::MAX }))
            .map(|released| (released.frame.hash, released.late))
            .collect();
        assert_eq!(left, [0, 1].map(|slot| [true, true, false].map(|late| (slot, late))).concat());
    }

    #[test]
    fn lines_that_are_due_wait_if_a_turn_has_no_more_looks() {
        let (table, now) = (table(), Nanos::from_secs(1));
        let mut lines = PairLines::new(&table, 2);
        let frame = Stored::held(Held { buffer: 0, len: 60 }, VM);
        (0..3).for_each(|slot| assert!(lines.push(slot, frame, 0, now).is_some()));
        let (now, most, mut looks) = (Nanos::from_secs(2), Nanos::from_secs(9), 2);
        assert_eq!(std::iter::from_fn(|| lines.next(now, most, &mut looks)).count(), 2);
        assert_eq!((looks, lines.len()), (0, 1));
        assert!(lines.next_due().is_some_and(|due| due <= now));
    }
}
