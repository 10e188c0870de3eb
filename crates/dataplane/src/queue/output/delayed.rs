//! Frames of an output that wait for the limits of their pairs of VMs before they join its queue
//! ([`super::super::pair_lines`]).

use std::sync::Arc;

use penstock_qos::pair_table::PairTable;
use penstock_units::Nanos;

use super::super::pair_lines::{PairLines, Released};
use super::super::{Memory, Source, Stored};
use super::{OutputQueue, Refused};
use crate::batch::{BATCH_FRAMES, Batch};
use crate::drop::DropReason;
use crate::ingress_policer::on_wire;

/// Maximum number of lines that the queue looks at in one turn. A frame leaves with each look or
/// must still wait. A turn of the worker must be short even if the limits of many pairs end at
/// once, or if a VM with many lines is in debt.
const LOOKS_MAX: usize = 4 * BATCH_FRAMES;

impl OutputQueue {
    /// Makes frame `i` of `batch` wait for the limit of the pair in the slot `slot` of `table`.
    /// Returns whether the output must be looked at earlier than before.
    ///
    /// # Errors
    /// Returns [`Refused`] if the frame cannot wait.
    pub(crate) fn delay(
        &mut self,
        memory: &mut Memory<'_>,
        (batch, i): (&Batch, usize),
        source: &Source,
        (table, slot): (&Arc<PairTable>, usize),
        now: Nanos,
    ) -> Result<bool, Refused> {
        let (size, len) = (on_wire(batch, i), batch.at(i).len);
        let lines = self.pair_lines.as_deref().filter(|lines| lines.is_of(table));
        let lines = lines.ok_or(Refused::AbovePair)?;
        if !lines.has_room(source.port, len, memory.free_bytes()) {
            return Err(Refused::Full);
        }
        let class = self.line.class_of(batch.head(i), source, now);
        let frame = self.store(memory, (batch, i), (source, class), size)?;
        let lines = self.pair_lines.as_deref_mut();
        let pushed = lines.and_then(|lines| lines.push(slot, frame, source.tenant, now));
        if pushed.is_none() {
            memory.release(&frame);
        }
        pushed.ok_or(Refused::AbovePair)
    }

    /// Moves the frames that may leave the lines of their pairs to the output's queue. The function
    /// `code_point` returns the present code point of a port's tenant, from the port's number and
    /// [`Source::tenant`]. If it returns `None`, the frame keeps its code point.
    ///
    /// A frame can wait for 2 s, and its tenant may get a queue of the fabric meanwhile. With its
    /// former code point, the frame would then use the queue that other tenants share, although no
    /// limit holds it any more, and later frames of its flow would overtake it.
    pub(crate) fn release_delayed(
        &mut self,
        memory: &mut Memory<'_>,
        now: Nanos,
        code_point: impl Fn(u16, u16) -> Option<u8>,
        lost: &mut impl FnMut(u16, DropReason),
    ) {
        let (most, mut looks) = (self.terms.bound.wait, LOOKS_MAX);
        loop {
            let lines = self.pair_lines.as_deref_mut();
            let released = lines.and_then(|lines| lines.next(now, most, &mut looks));
            let Some(Released { mut frame, tenant, late }) = released else { return };
            if !late
                && let Some(dscp) = code_point(frame.source, tenant)
                && dscp != frame.class.dscp
                && memory.mark(&frame, dscp)
            {
                frame.class.dscp = dscp;
            }
            let reason = if late { DropReason::QueueLate } else { DropReason::QueueFull };
            if late || !self.join(memory, (frame, tenant), now, lost) {
                memory.release(&frame);
                lost(frame.source, reason);
            }
        }
    }

    /// Adds a frame of a tenant that left the line of its pair to its queue. Like a new frame, it
    /// may take the place of frames of a larger flow. Returns false if the queue has no room.
    fn join(
        &mut self,
        memory: &mut Memory<'_>,
        (mut frame, tenant): (Stored, u16),
        now: Nanos,
        lost: &mut impl FnMut(u16, DropReason),
    ) -> bool {
        let Some(lanes) = self.line.lanes_mut() else { return false };
        let class = lanes.late_class(frame.class, tenant.checked_sub(1), now);
        frame.class = class;
        let (wire, mut evicted) = (frame.wire(), 0);
        loop {
            if self.is_idle() {
                self.pacer.was_empty(now);
            }
            if self.line.push(frame, now) {
                return true;
            }
            let evicts = evicted < wire;
            let of = (frame.source, class);
            let frees = if evicts { self.evict(memory, of, wire, lost) } else { None };
            let Some(bytes) = frees else { break };
            evicted += bytes;
        }
        if let Some(lanes) = self.line.lanes() {
            lanes.counters.refused(class.queue);
        }
        false
    }

    /// Removes all frames that wait for the limits of their pairs. Calls `lost` with the source of
    /// each frame.
    pub(super) fn clear_delayed(&mut self, memory: &mut Memory<'_>, lost: &mut impl FnMut(u16)) {
        while let Some(frame) = self.pair_lines.as_deref_mut().and_then(PairLines::pop) {
            memory.release(&frame);
            lost(frame.source);
        }
    }
}
