//! One output's queue; see the folder's text.

use penstock_qos::delay::{Histogram, Variation};
use penstock_units::Nanos;
use std::sync::Arc;

use super::classes::Class;
use super::line::{Line, Next};
use super::pacer::Pacer;
use super::{Classes, LaneCounters, Memory, Order, Pacing, QueueTerms, Source, Stored};
use crate::batch::{BATCH_FRAMES, Batch};
use crate::classify::PortPolicy;
use crate::ingress_policer::wire_bytes;

/// Why a frame may not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too much waits already.
    Full,
    /// The memory of all queues together is used up.
    NoMemory,
}

/// Rates in bit/s count the frame check sequence.
pub(crate) const FCS: u32 = 4;

/// See the folder's text.
#[derive(Debug)]
pub struct OutputQueue {
    terms: QueueTerms,
    line: Line,
    pacer: Pacer,
    /// The next frame, taken out of the line while it waits for its time: a shaper says that for a
    /// frame's length, once.
    head: Option<Next>,
    /// Frames of the batch that is being sent.
    sending: Vec<Stored>,
    /// How long each of them waited.
    waits: Vec<Nanos>,
    /// How long frames waited, and how that varies from one to the next.
    delays: Histogram,
    variation: Variation,
    /// The coarse second in which that was last told.
    told: u32,
}

impl OutputQueue {
    /// An empty queue for `ports` sources of `tenants` tenants.
    #[must_use]
    pub fn new(terms: QueueTerms, ports: usize, tenants: usize) -> Self {
        Self {
            terms,
            line: Line::new(&terms, ports, tenants),
            pacer: Pacer::new(terms.pacing),
            head: None,
            sending: Vec::with_capacity(BATCH_FRAMES),
            waits: Vec::with_capacity(BATCH_FRAMES),
            delays: Histogram::new(),
            variation: Variation::new(),
            told: 0,
        }
    }

    /// What its queues count, if it has several.
    pub(super) fn lane_counters(&self) -> Option<Arc<LaneCounters>> {
        self.line.lanes().map(|lanes| Arc::clone(&lanes.counters))
    }

    /// The same queue, which counts there from now on.
    pub(super) fn counting_in(mut self, counters: Arc<LaneCounters>) -> Self {
        if let Some(lanes) = self.line.lanes_mut() {
            lanes.counters = counters;
        }
        self
    }

    /// Its terms.
    #[must_use]
    pub const fn terms(&self) -> &QueueTerms {
        &self.terms
    }

    /// Whether frames of this source wait here. Where nothing is paced or shared, only what comes
    /// from outside does: what another VM sends has had that VM's turn, and its cycles pay.
    #[inline]
    pub(crate) fn takes_from(&self, source: Option<&PortPolicy>) -> bool {
        let from_outside = source.is_none_or(|source| source.tenant.is_none());
        from_outside || self.terms.order != Order::Fifo || self.terms.pacing != Pacing::None
    }

    /// Frames that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.line.len() + usize::from(self.head.is_some())
    }

    /// Whether no frame waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.is_none() && self.line.is_empty()
    }

    /// Whether that is to be told in this coarse second; once.
    pub(crate) fn is_due_to_tell(&mut self, second: u32) -> bool {
        core::mem::replace(&mut self.told, second) != second
    }

    /// How long frames waited since this was last cleared, and how that varies.
    pub(crate) fn delays(&mut self) -> (&mut Histogram, &mut Variation) {
        (&mut self.delays, &mut self.variation)
    }

    /// Frame `i` of `batch` waits from `now` on.
    ///
    /// # Errors
    /// When it may not; nothing was copied then.
    pub(crate) fn push(
        &mut self,
        memory: &mut Memory<'_>,
        batch: &Batch,
        i: usize,
        source: &Source,
        now: Nanos,
    ) -> Result<(), Refused> {
        let class = self.line.class_of(batch.head(i), source, now);
        let pushed = self.put(memory, batch, i, (source, class), now);
        if pushed.is_err()
            && let Some(lanes) = self.line.lanes()
        {
            lanes.counters.refused(class.queue);
        }
        pushed
    }

    #[inline]
    fn put(
        &mut self,
        memory: &mut Memory<'_>,
        batch: &Batch,
        i: usize,
        (source, class): (&Source, Class),
        now: Nanos,
    ) -> Result<(), Refused> {
        let wire = wire_bytes(batch, i);
        if !self.line.has_room(class, (batch.at(i).len, wire), memory.free_bytes()) {
            return Err(Refused::Full);
        }
        if self.is_empty() {
            self.pacer.was_empty(now);
        }
        let mut frame = memory.put(batch, i, source.port).ok_or(Refused::NoMemory)?;
        (frame.class, frame.wire) = (class, wire);
        if self.line.push(source, frame, now) {
            return Ok(());
        }
        memory.release(&frame);
        Err(Refused::Full)
    }

    /// When the next frame may go; `None`: none waits. `lost` gets the sources of those that waited
    /// too long.
    pub(crate) fn due(
        &mut self,
        memory: &mut Memory<'_>,
        now: Nanos,
        lost: &mut impl FnMut(u16),
    ) -> Option<Nanos> {
        if self.head.is_none() {
            let mut late = |frame: Stored| {
                memory.release(&frame);
                lost(frame.source);
            };
            self.head = self.line.pop(now, &mut late);
        }
        let Some(head) = self.head.as_ref() else { return self.line.wake() };
        Some(self.pacer.due(head.since, head.frame.len + FCS))
    }

    /// Whether all that waits does so for its queue's ceiling: a frame of another queue need not.
    pub(crate) const fn is_held(&self) -> bool {
        self.head.is_none()
    }

    /// Takes out the frames whose time has come, at most `most`: into the empty `batch` those that
    /// have to be copied to `output`. They keep their memory until [`Self::sent`].
    pub(crate) fn load(
        &mut self,
        memory: &mut Memory<'_>,
        batch: &mut Batch,
        (output, most): (u16, usize),
        now: Nanos,
        lost: &mut impl FnMut(u16),
    ) {
        self.sending.clear();
        self.waits.clear();
        while self.sending.len() < most
            && let Some(due) = self.due(memory, now, lost)
        {
            let Some(Next { frame, since }) = self.head else { break };
            if !self.pacer.goes(due, now, self.sending.is_empty()) {
                break;
            }
            if memory.load(&frame, batch, output).is_err() {
                break;
            }
            self.head = None;
            self.pacer.went(now, frame.wire);
            if let Some(lanes) = self.line.lanes() {
                lanes.counters.went(&frame);
            }
            let waited = now.saturating_sub(since);
            self.delays.record(waited);
            self.variation.record(waited);
            self.sending.push(frame);
            self.waits.push(waited);
        }
    }

    /// The frames that were loaded last, in their order.
    pub(crate) fn sending(&self) -> &[Stored] {
        &self.sending
    }

    /// How long each of them waited.
    pub(crate) fn waits(&self) -> &[Nanos] {
        &self.waits
    }

    /// They are no longer needed. Those in the port's memory are the port's by now.
    pub(crate) fn sent(&mut self, memory: &mut Memory<'_>) {
        let copied = self.sending.drain(..).filter(|frame| frame.in_port().is_none());
        copied.for_each(|frame| memory.release(&frame));
    }

    /// See [`Line::is_over`].
    pub(crate) fn is_over(&self, source: u16, memory: &Memory<'_>, now: Nanos) -> bool {
        self.line.is_over(source, memory.free_bytes(), now)
    }

    /// See [`Line::is_under`].
    pub(crate) fn is_under(&self, source: u16, memory: &Memory<'_>, now: Nanos) -> bool {
        self.line.is_under(source, memory.free_bytes(), now)
    }

    /// A port goes; `lost` is told of each of its frames that waited.
    pub(crate) fn forget(
        &mut self,
        memory: &mut Memory<'_>,
        source: u16,
        mut lost: impl FnMut(u16),
    ) {
        if matches!(self.line, Line::Fair(_))
            && let Some(head) = self.head.take_if(|head| head.frame.source == source)
        {
            memory.release(&head.frame);
            lost(source);
        }
        self.line.forget(source, |frame| {
            memory.release(&frame);
            lost(frame.source);
        });
    }

    /// Takes out all that waits; `lost` is told of each frame's source.
    pub(crate) fn clear(&mut self, memory: &mut Memory<'_>, now: Nanos, mut lost: impl FnMut(u16)) {
        // What waits for its time under a ceiling goes too: in the end all have waited too long.
        let now = if self.line.lanes().is_some() { Nanos(u64::MAX) } else { now };
        while self.due(memory, now, &mut lost).is_some() {
            if let Some(head) = self.head.take() {
                if let Some(lanes) = self.line.lanes() {
                    lanes.counters.lost(&head.frame);
                }
                memory.release(&head.frame);
                lost(head.frame.source);
            }
        }
    }

    /// The sources' weights may have changed, and its pacing and classes are these from now on;
    /// what waits stays where it is. A pacing of another kind takes another queue, and changes
    /// nothing here.
    pub(crate) fn change(&mut self, pacing: Pacing, classes: Arc<Classes>, now: Nanos) {
        self.line.changed();
        if let Some(lanes) = self.line.lanes_mut() {
            lanes.change(classes, now);
        }
        if pacing != self.terms.pacing && self.pacer.change(pacing) {
            self.terms.pacing = pacing;
        }
    }
}
