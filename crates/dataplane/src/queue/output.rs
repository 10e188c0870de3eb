//! An [`OutputQueue`] combines an order, a pacer and memory into the queue of one output
//! ([`crate::queue`]).

use penstock_qos::delay::{Histogram, Variation};
use penstock_qos::egress_policer::{EgressPolicer, Policed};
use penstock_qos::fair_share::{Excess, Turn};
use penstock_qos::policer::Size;
use penstock_units::Nanos;
use std::sync::Arc;

use super::classes::Class;
use super::flows::SEGMENT_TIME;
use super::limit::OutputLimit;
use super::line::{Fair, Line, Next};
use super::pacer::Pacer;
use super::pair_lines::PairLines;
use super::{Classes, LaneCounters, Memory, Order, Pacing, QueueHome, QueueTerms, Source, Stored};
use crate::batch::{BATCH_FRAMES, Batch};
use crate::congestion::{Signal, is_trimmable, signal};
use crate::drop::DropReason;
use crate::headers::{is_ect, is_l4s};
use crate::ingress_policer::{link_bytes, on_wire};

mod delayed;

/// Reason why a frame cannot wait in an output queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too many frames wait in the queue already.
    Full,
    /// The memory that all queues share is full.
    NoMemory,
    /// The frame exceeds the limit of its pair of VMs, and may not wait for it.
    AbovePair,
}

/// Number of frames that signalled congestion and left the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signalled {
    /// Frames that were marked (ECN).
    pub marked: u64,
    /// Large segments that lost their first part.
    pub trimmed: u64,
}

/// What the worker does in the turn of a source that has a claim at an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The worker polls the source, and the source's frames wait at the output.
    Own,
    /// The output sends its waiting frames.
    Frames,
    /// The worker polls the source with this port number, and its frames pass without waiting.
    Poll(u16),
}

/// A batch whose frames may pass the output's queue without waiting.
#[derive(Clone, Copy, Debug)]
struct Direct {
    /// Frames that passed, and their bytes on the link.
    passed: Size,
    /// Number of frames that the port still has room for.
    left: usize,
}

/// Maximum time for which waiting frames stay behind the claim of a source that is not polled.
const CLAIM_WAIT: Nanos = Nanos::from_micros(20);

/// Bytes of Ethernet's frame check sequence (FCS). Rates in bit/s include the FCS.
pub(crate) const FCS: u32 = 4;

/// Frames that wait for one output, and the times at which the frames may be sent.
#[derive(Debug)]
pub struct OutputQueue {
    terms: QueueTerms,
    line: Line,
    /// Frames that wait for the limits of their pairs of VMs before they join `line`.
    pair_lines: Option<Box<PairLines>>,
    pacer: Pacer,
    /// The limit for which the output's frames wait, if there is one.
    limit: Option<OutputLimit>,
    /// The next frame to send, which has already left the queue `line`. A shaper computes the
    /// frame's time of departure only once, from the frame's length.
    head: Option<Next>,
    /// Frames of the batch that the output is sending.
    sending: Vec<Stored>,
    /// Waiting time of each frame of the batch that the output is sending.
    waits: Vec<Nanos>,
    /// Histogram of the frames' waits.
    delays: Histogram,
    /// Delay variation: the differences between the waiting times of successive frames.
    variation: Variation,
    /// Time of the last report of delays, in seconds of the worker's coarse clock.
    told: u32,
    /// Number of changes of the queue's home ([`QueueHome::changes`]) that the queue has adopted.
    adopted: u32,
    /// The present batch, if its frames may pass without waiting.
    direct: Option<Direct>,
    /// Time since which waiting frames stay behind a claim. The value is `None` if no frame waits,
    /// or if a frame may be sent next.
    stuck: Option<Nanos>,
}

impl OutputQueue {
    /// Creates an empty queue for `ports` source ports of `tenants` tenants.
    #[must_use]
    pub fn new(terms: QueueTerms, ports: usize, tenants: usize) -> Self {
        Self {
            terms,
            line: Line::new(&terms, ports, tenants),
            pair_lines: None,
            pacer: Pacer::new(terms.pacing),
            limit: None,
            head: None,
            sending: Vec::with_capacity(BATCH_FRAMES),
            waits: Vec::with_capacity(BATCH_FRAMES),
            delays: Histogram::new(),
            variation: Variation::new(),
            told: 0,
            adopted: 0,
            direct: None,
            stuck: None,
        }
    }

    /// Returns the counters of the queues by class if the output has several queues.
    pub(super) fn lane_counters(&self) -> Option<Arc<LaneCounters>> {
        self.line.lanes().map(|lanes| Arc::clone(&lanes.counters))
    }

    /// Sets the counters of the queues and lanes of a [`super::Order::Wfq`] output to `counters`.
    pub(super) fn counting_in(mut self, counters: Arc<LaneCounters>) -> Self {
        if let Some(lanes) = self.line.lanes_mut() {
            lanes.counters = counters;
        }
        self
    }

    #[must_use]
    pub const fn terms(&self) -> &QueueTerms {
        &self.terms
    }

    /// Whether frames from a given source wait in the output's queue. A queue without pacing,
    /// without a limit and without sharing contains only frames from outside the host. At such an
    /// output, a frame from a local VM is sent at once, and the sending VM is charged for the
    /// cycles.
    #[inline]
    pub(crate) fn takes_from(&self, from_outside: impl FnOnce() -> bool) -> bool {
        self.terms.order.is_shared()
            || self.terms.pacing != Pacing::None
            || self.limit.is_some()
            || from_outside()
    }

    /// Whether frame `i` of `batch`, a large segment, must be cut before it waits. The output sends
    /// a segment at once, and at a low rate that is a burst. `free` is the free memory of all
    /// outputs, in bytes.
    pub(crate) fn cuts(
        &mut self,
        (batch, i): (&Batch, usize),
        source: &Source,
        free: u64,
        now: Nanos,
    ) -> bool {
        if !self.line.has_room_for_parts(free) {
            return false;
        }
        self.pacer.cuts()
            || self.limit.as_ref().is_some_and(OutputLimit::cuts)
            || self.line.cuts(batch.head(i), source, now)
            || self.cuts_for_flows(batch, i)
    }

    /// Whether every further frame of `source` would be refused ([`Line::is_full`]).
    pub(crate) fn is_full(&mut self, source: &Source, free: u64, now: Nanos) -> bool {
        self.line.is_full(source, free, now)
    }

    /// Whether a large segment would make other flows wait too long at an output with flow queues.
    fn cuts_for_flows(&self, batch: &Batch, i: usize) -> bool {
        self.line.has_flows()
            && time_of(&self.pacer, self.limit.as_ref(), on_wire(batch, i)) > SEGMENT_TIME
    }

    /// Returns the limit that the output's frames wait for. Returns `None` if they wait for no
    /// limit.
    pub(crate) fn limited_by(&self) -> Option<Policed> {
        self.limit.as_ref().and_then(OutputLimit::holder)
    }

    /// Whether the output sent frames and now begins to wait for its limit or a ceiling.
    pub(crate) fn begins_to_wait(&self) -> bool {
        // Frames that only wait for the limits of their pairs are not in the line yet.
        let ceiling = self.is_held() && !self.is_idle() && self.stuck.is_none();
        let sent = !self.waits.is_empty();
        self.limit.as_ref().is_some_and(OutputLimit::begins_to_wait) || sent && ceiling
    }

    /// Number of frames that wait for the output.
    #[must_use]
    pub fn len(&self) -> usize {
        let delayed = self.pair_lines.as_deref().map_or(0, PairLines::len);
        self.line.len() + usize::from(self.head.is_some()) + delayed
    }

    /// Whether no frame waits for the output.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_idle() && self.pair_lines.as_deref().is_none_or(PairLines::is_empty)
    }

    /// Whether no frame waits for the output's link. Frames may wait for the limits of their pairs.
    fn is_idle(&self) -> bool {
        self.head.is_none() && self.line.is_empty()
    }

    /// Whether the queue should report its delays in second `second` of the worker's coarse clock.
    /// In each second, only the first call returns true.
    pub(crate) fn is_due_to_tell(&mut self, second: u32) -> bool {
        core::mem::replace(&mut self.told, second) != second
    }

    /// Returns the histogram of waits since the last clear, and the differences between the waits
    /// of successive frames.
    pub(crate) fn delays(&mut self) -> (&mut Histogram, &mut Variation) {
        (&mut self.delays, &mut self.variation)
    }

    /// Adds frame `i` of `batch` to the queue at time `now`. Calls `lost` with the source of each
    /// waiting frame that the queue removes to make room, and with the reason.
    ///
    /// # Errors
    /// Returns [`Refused`] if the frame cannot wait in the queue.
    pub(crate) fn push(
        &mut self,
        memory: &mut Memory<'_>,
        (batch, i): (&Batch, usize),
        source: &Source,
        now: Nanos,
        lost: &mut impl FnMut(u16, DropReason),
    ) -> Result<(), Refused> {
        let class = self.line.class_of(batch.head(i), source, now);
        // Outputs without queues by code point, and frames without one, pay only this comparison.
        if class.dscp != 0
            && let Some(lanes) = self.line.lanes()
        {
            lanes.count_if_unmapped(class);
        }
        let pushed = self.put(memory, (batch, i), (source, class), now, lost);
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
        (batch, i): (&Batch, usize),
        (source, class): (&Source, Class),
        now: Nanos,
        lost: &mut impl FnMut(u16, DropReason),
    ) -> Result<(), Refused> {
        let size = on_wire(batch, i);
        let lens = (batch.at(i).len, link_bytes(size));
        // One frame makes others leave only for its own bytes, even if another output has filled
        // the memory meanwhile.
        let mut evicted = 0;
        while !self.line.has_room((source, class), lens, memory.free_bytes(), now) {
            if evicted >= lens.1 {
                return Err(Refused::Full);
            }
            let frees = self.evict(memory, (source.port, class), lens.1, lost);
            evicted += frees.ok_or(Refused::Full)?;
        }
        if self.is_idle() {
            self.pacer.was_empty(now);
        }
        let frame = self.store(memory, (batch, i), (source, class), size)?;
        if self.line.push(frame, now) {
            return Ok(());
        }
        memory.release(&frame);
        Err(Refused::Full)
    }

    /// Copies frame `i` of `batch` into the memory.
    #[inline]
    fn store(
        &self,
        memory: &mut Memory<'_>,
        (batch, i): (&Batch, usize),
        (source, class): (&Source, Class),
        size: Size,
    ) -> Result<Stored, Refused> {
        let holds = self.holds();
        let mut frame = memory.put(batch, i, source.port, holds).ok_or(Refused::NoMemory)?;
        (frame.class, frame.size) = (class, size);
        // A frame in the port's own memory cannot be marked any more.
        let early = self.limit.is_some() || self.line.signals_early(class);
        frame.ect = early && frame.in_port().is_none() && is_ect(batch.head(i));
        frame.l4s = frame.ect && is_l4s(batch.head(i));
        Ok(frame)
    }

    /// Removes a waiting frame, to make room for a frame of a source port and class with `wire`
    /// bytes on a link. Returns the bytes of the removed frame on a link. Returns `None` if the
    /// output's order removes no waiting frames for others, if no frame waits, or if the new frame
    /// finds no room at all.
    #[cold]
    fn evict(
        &mut self,
        memory: &mut Memory<'_>,
        of: (u16, Class),
        wire: u32,
        lost: &mut impl FnMut(u16, DropReason),
    ) -> Option<u32> {
        if u64::from(wire) > self.terms.bound.bytes {
            return None;
        }
        let frame = self.line.evict(of)?;
        let reason = match self.limited_by() {
            None | Some(Policed::Pass) => DropReason::QueueFull,
            Some(Policed::AboveVm) => DropReason::ReceiveLimit,
            Some(Policed::AboveTenant) => DropReason::TenantLimit,
        };
        memory.release(&frame);
        lost(frame.source, reason);
        Some(frame.wire())
    }

    /// Returns the time at which the output may send the next frame, or at which it withdraws the
    /// claims that are before all waiting frames. Returns `None` if no frame waits. Calls `lost`
    /// with the source of each frame that the queue removes because the frame waited too long.
    pub(crate) fn due(
        &mut self,
        memory: &mut Memory<'_>,
        now: Nanos,
        lost: &mut impl FnMut(u16),
    ) -> Option<Nanos> {
        self.fetch(memory, now, lost);
        if self.head.is_none() {
            let queued = self.stuck.map(|since| since + CLAIM_WAIT).or_else(|| self.line.wake());
            let delayed = self.pair_lines.as_deref().and_then(PairLines::next_due);
            return [queued, delayed].into_iter().flatten().min();
        }
        self.head_due(now).map(|(paced, limited)| paced.max(limited))
    }

    /// Moves the next frame from the line to [`Self::head`], unless the head has a frame already.
    /// If frames wait behind a claim for [`CLAIM_WAIT`], withdraws all claims.
    fn fetch(&mut self, memory: &mut Memory<'_>, now: Nanos, lost: &mut impl FnMut(u16)) {
        if self.head.is_none() {
            let mut late = |frame: Stored| {
                memory.release(&frame);
                lost(frame.source);
            };
            self.head = self.line.pop(now, &mut late);
            if self.head.is_none()
                && let Some(fair) = self.line.fair_mut()
                && fair.waits_for_claim()
            {
                let since = *self.stuck.get_or_insert(now);
                if now < since + CLAIM_WAIT {
                    return;
                }
                fair.withdraw_claims();
                self.head = self.line.pop(now, &mut late);
            }
            self.stuck = None;
        }
    }

    /// Returns the port number of the last chosen source, if the source's next batch may pass
    /// without another choice. [`Self::lets_pass`] must be true.
    pub(crate) fn again(&self) -> Option<u16> {
        self.line.fair().filter(|_| self.head.is_none())?.again()
    }

    /// Returns what the worker does in the turn of a source that has a claim at the output. `room`
    /// is the number of frames that each queue pair of the port accepts.
    pub(crate) fn choice(&mut self, now: Nanos, room: usize) -> Choice {
        if room < BATCH_FRAMES || !self.lets_pass(now) {
            return Choice::Own;
        }
        if self.head.is_some() {
            return Choice::Frames;
        }
        match self.line.fair_mut().and_then(Fair::turn) {
            None => Choice::Own,
            Some(Turn::Frame) => Choice::Frames,
            Some(Turn::Claim(vm)) => u16::try_from(vm).map_or(Choice::Own, Choice::Poll),
        }
    }

    /// Whether the batch of a source with a claim may pass at time `now`, if it is the claim's
    /// turn.
    pub(crate) fn lets_pass(&self, now: Nanos) -> bool {
        self.terms.order == Order::FairShare && self.limit.is_none() && self.pacer.passes(now)
    }

    /// Sets the claim of a source: the expected bytes of its next batch on the link, or 0.
    pub(crate) fn claim(&mut self, source: &Source, bytes: u32) {
        if let Some(fair) = self.line.fair_mut() {
            fair.claim(source, bytes);
        }
    }

    /// Returns the number of the source's port if all waiting frames are behind the claim of a
    /// source.
    pub(crate) fn waits_for(&mut self) -> Option<u16> {
        if self.head.is_some() {
            return None;
        }
        let fair = self.line.fair_mut().filter(|fair| fair.waits_for_claim())?;
        match fair.turn()? {
            Turn::Claim(vm) => u16::try_from(vm).ok(),
            Turn::Frame => None,
        }
    }

    /// Whether a source has a claim.
    pub(crate) fn has_claim(&mut self, source: u16) -> bool {
        self.line.fair_mut().is_some_and(|fair| fair.claimed(source) > 0)
    }

    /// Whether any source has a claim.
    pub(crate) fn has_claims(&self) -> bool {
        self.line.fair().is_some_and(Fair::has_claims)
    }

    /// Whether the output has fair shares, and no frame of a source other than `source` waits.
    pub(crate) fn waits_only_from(&self, source: u16) -> bool {
        self.head.is_none_or(|head| head.frame.source == source)
            && self.line.fair().is_some_and(|fair| fair.waits_only_from(source))
    }

    /// Whether [`Self::forget`] drops the waiting frames of a source. Other queues keep them.
    pub(crate) fn keeps_sources(&self) -> bool {
        self.line.fair().is_some() || self.pair_lines.is_some()
    }

    /// Withdraws the claims of all sources.
    pub(crate) fn withdraw_claims(&mut self) {
        if let Some(fair) = self.line.fair_mut() {
            fair.withdraw_claims();
        }
    }

    /// Lets the frames of the next batch pass without waiting. [`Self::choice`] or [`Self::again`]
    /// must have returned the batch's source.
    pub(crate) fn begin_direct(&mut self) {
        self.direct = Some(Direct { passed: Size::default(), left: BATCH_FRAMES });
    }

    /// Whether frames of the present batch may pass without waiting.
    #[inline]
    pub(crate) const fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Whether the next `frames` frames of the present batch may pass without waiting.
    pub(crate) fn lets_direct(&self, frames: usize) -> bool {
        self.direct.is_some_and(|direct| frames <= direct.left)
    }

    /// Counts frames of the present batch that passed. `passed` has their number, and their bytes
    /// on the link.
    pub(crate) fn note_passed(&mut self, passed: Size) {
        if let Some(direct) = &mut self.direct {
            direct.passed += passed;
            direct.left = direct.left.saturating_sub(passed.frames as usize);
        }
    }

    /// Makes all further frames of the present batch wait, because a frame of the batch must wait.
    /// A frame that passed would otherwise overtake the waiting frame.
    pub(crate) fn stop_direct(&mut self, source: &Source, now: Nanos) {
        let passed = self.end_direct();
        if passed.frames > 0 {
            let claim = self.line.fair_mut().map_or(0, |fair| fair.claimed(source.port));
            self.charge_direct(source, passed, claim, now);
        }
    }

    /// Ends a batch whose frames could pass without waiting. Returns the number of frames that
    /// passed and are not charged yet, and their bytes on the link.
    pub(crate) fn end_direct(&mut self) -> Size {
        self.direct.take().map_or_else(Size::default, |direct| direct.passed)
    }

    /// Charges a source for frames that passed at time `now`, and sets the source's next claim.
    pub(crate) fn charge_direct(&mut self, source: &Source, passed: Size, claim: u32, now: Nanos) {
        if self.is_idle() {
            self.pacer.was_empty(now);
        }
        self.pacer.went(now, passed.bytes);
        self.stuck = None;
        if let Some(fair) = self.line.fair_mut() {
            fair.passed(source, (passed.frames, passed.bytes), claim);
        }
    }

    /// Returns the times at which the pacer and the limit permit the head to leave. Returns `None`
    /// if there is no head.
    fn head_due(&mut self, now: Nanos) -> Option<(Nanos, Nanos)> {
        let head = self.head.as_ref()?;
        let paced = self.pacer.due(head.since, head.frame.len + FCS);
        Some((paced, self.limit.as_mut().map_or(Nanos::ZERO, |limit| limit.due(now))))
    }

    /// Whether every waiting frame is delayed by the rate ceiling of its queue. A new frame in a
    /// queue without such a delay may be sent before the waiting frames.
    pub(crate) const fn is_held(&self) -> bool {
        self.head.is_none()
    }

    /// Removes up to `most` frames that are due from the output queue. Frames in lines of pairs are
    /// not due before [`Self::release_delayed`]. Frames that must be copied to `output` are added
    /// to the empty `batch`. Each removed frame keeps its memory until the caller calls
    /// [`Self::sent`]. Calls `lost` with the source of each frame that the queue dropped. Returns
    /// the number of removed frames that signal congestion.
    pub(crate) fn load(
        &mut self,
        memory: &mut Memory<'_>,
        batch: &mut Batch,
        (output, most): (u16, usize),
        now: Nanos,
        lost: &mut impl FnMut(u16, DropReason),
    ) -> Signalled {
        self.sending.clear();
        self.waits.clear();
        let mut signalled = Signalled::default();
        if let Some(limit) = &mut self.limit {
            limit.begin();
        }
        while self.sending.len() < most {
            self.fetch(memory, now, &mut |from| lost(from, DropReason::QueueLate));
            let Some((paced, limited)) = self.head_due(now) else { break };
            let Some(Next { frame, since }) = self.head else { break };
            if limited > now || !self.pacer.goes(paced, now, self.sending.is_empty()) {
                break;
            }
            let waited = now.saturating_sub(since);
            if self.limit.is_some() && waited > self.terms.bound.wait && !self.holds() {
                self.drop_head(memory, &frame);
                lost(frame.source, DropReason::QueueLate);
                continue;
            }
            let whole = !frame.ect && !is_trimmable(&frame.offload, frame.len);
            let signals = self.signals((&frame, whole), memory, waited, now);
            if signals && whole {
                self.drop_head(memory, &frame);
                lost(frame.source, DropReason::EarlySignal);
                continue;
            }
            if memory.load(&frame, batch, output).is_err() {
                break;
            }
            self.head = None;
            let sent = if signals { self.signal(batch, frame, &mut signalled) } else { frame };
            self.pacer.went(now, sent.wire());
            if let Some(limit) = &mut self.limit {
                limit.went(&sent);
            }
            if let Some(lanes) = self.line.lanes() {
                lanes.counters.went(&frame);
            }
            self.delays.record(waited);
            self.variation.record(waited);
            self.sending.push(frame);
            self.waits.push(waited);
        }
        signalled
    }

    /// Whether frames above the limits wait in their senders' rings, so that no frame is dropped.
    fn holds(&self) -> bool {
        self.terms.order == Order::FairShare && self.terms.bound.excess == Excess::Hold
    }

    /// Drops the frame that was to be sent next.
    fn drop_head(&mut self, memory: &mut Memory<'_>, frame: &Stored) {
        self.head = None;
        self.pacer.dropped();
        self.line.drops(frame);
        memory.release(frame);
    }

    /// Makes the last frame of the batch signal congestion. Returns the frame as it is sent.
    fn signal(&mut self, batch: &mut Batch, frame: Stored, counted: &mut Signalled) -> Stored {
        let (last, mut sent) = (batch.len() - 1, frame);
        match signal(batch, last) {
            Signal::Marked => counted.marked += 1,
            Signal::Trimmed => {
                counted.trimmed += 1;
                sent.size = on_wire(batch, last);
                self.line.not_sent(&frame, frame.wire().saturating_sub(sent.wire()));
            }
            // Without room for the rest of a segment, the next frame signals.
            Signal::Drop => {}
        }
        sent
    }

    /// Whether the frame that leaves the queue is to signal congestion. `whole` is true for a frame
    /// that is dropped if it signals, because it can signal in no other way.
    fn signals(
        &mut self,
        (frame, whole): (&Stored, bool),
        memory: &Memory<'_>,
        waited: Nanos,
        now: Nanos,
    ) -> bool {
        match &mut self.line {
            Line::Wfq(lanes) if lanes.has_flows() => {
                let time = time_of(&self.pacer, self.limit.as_ref(), frame.size);
                lanes.flow_signals(frame, (waited, time), now)
            }
            Line::Wfq(lanes) => lanes.signals(frame, waited, now),
            Line::Fair(fair) if fair.has_flows() => {
                let time = time_of(&self.pacer, self.limit.as_ref(), frame.size);
                fair.flow_signals(frame, (waited, time), now)
            }
            // Other frames wait in their sender's ring, and none is dropped.
            Line::Fair(fair) => !whole && fair.signals(frame, memory.free_bytes(), waited, now),
            Line::Flows(flows) => {
                let time = time_of(&self.pacer, self.limit.as_ref(), frame.size);
                flows.signals(frame, waited, time, now)
            }
            Line::Fifo(fifo) => {
                let bytes = fifo.bytes();
                self.limit.as_mut().is_some_and(|limit| limit.signals(frame, waited, bytes, now))
            }
        }
    }

    /// Returns the frames of the last [`Self::load`], in order.
    pub(crate) fn sending(&self) -> &[Stored] {
        &self.sending
    }

    /// Returns the wait of each frame of [`Self::sending`].
    pub(crate) fn waits(&self) -> &[Nanos] {
        &self.waits
    }

    /// Frees the memory of the frames that the output has sent. A frame in the port's own memory
    /// needs no release, because the port already owns the frame.
    pub(crate) fn sent(&mut self, memory: &mut Memory<'_>) {
        let copied = self.sending.drain(..).filter(|frame| frame.in_port().is_none());
        copied.for_each(|frame| memory.release(&frame));
    }

    /// Whether too many frames of `source` wait ([`Line::is_over`]).
    pub(crate) fn is_over(&self, source: u16, memory: &Memory<'_>) -> bool {
        self.line.is_over(source, self.free_to_hold(memory))
    }

    /// Whether the worker may take frames from `source` again, because few frames of `source` wait
    /// ([`Line::is_under`]).
    pub(crate) fn is_under(&self, source: u16, memory: &Memory<'_>) -> bool {
        self.line.is_under(source, self.free_to_hold(memory))
    }

    /// Returns the free memory in bytes that decides whether the worker stops polling a source.
    fn free_to_hold(&self, memory: &Memory<'_>) -> u64 {
        if self.holds() { memory.free_bytes_to_hold() } else { memory.free_bytes() }
    }

    /// Removes a port from the sources of the queue's frames, with its frames that wait in fair
    /// shares ([`Line::forget`]) or for the limits of their pairs. Calls `lost` with the source of
    /// each removed frame.
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
        let mut gone = |frame: Stored| {
            memory.release(&frame);
            lost(frame.source);
        };
        if let Some(lines) = self.pair_lines.as_deref_mut() {
            lines.forget(source, &mut gone);
        }
        self.line.forget(source, gone);
    }

    /// Removes all waiting frames from the output queue. Calls `lost` with the source of each
    /// removed frame.
    pub(crate) fn clear(&mut self, memory: &mut Memory<'_>, now: Nanos, mut lost: impl FnMut(u16)) {
        // The latest possible time also removes frames that wait for a ceiling: all have waited too
        // long.
        let now = if self.line.lanes().is_some() { Nanos(u64::MAX) } else { now };
        self.withdraw_claims();
        self.clear_delayed(memory, &mut lost);
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

    /// Adopts the changes of the queue's home. If the home has not changed, the call reads only its
    /// number of changes. Calls `lost` with the source of each frame that waits for a pair of a
    /// former table. Returns true if the frames may now be due at another time.
    pub(crate) fn adopt(
        &mut self,
        home: &QueueHome,
        memory: &mut Memory<'_>,
        now: Nanos,
        lost: &mut impl FnMut(u16),
    ) -> bool {
        let changes = home.changes();
        if core::mem::replace(&mut self.adopted, changes) == changes {
            return false;
        }
        if home.has_other_lines(self.pair_lines.as_deref()) {
            self.clear_delayed(memory, lost);
            home.exchange_lines(&mut self.pair_lines);
        }
        self.change(home.pacing(), home.limit(), home.classes(), now)
    }

    /// Sets the output's pacing, limit and classes. Waiting frames keep their places in the queue.
    /// If `pacing` is of another kind, the pacing stays unchanged, because a change of the kind
    /// needs a new queue. Returns true if the frames may now be due at another time.
    pub(crate) fn change(
        &mut self,
        pacing: Pacing,
        limit: Option<Arc<EgressPolicer>>,
        classes: Arc<Classes>,
        now: Nanos,
    ) -> bool {
        let same = match (&self.limit, &limit) {
            (Some(old), Some(new)) => old.is(new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same {
            self.limit = limit.map(OutputLimit::new);
        }
        if let Some(lanes) = self.line.lanes_mut() {
            lanes.change(classes, now);
        }
        let paced = pacing != self.terms.pacing && self.pacer.change(pacing);
        if paced {
            self.terms.pacing = pacing;
        }
        paced || !same
    }
}

/// Returns the time that frames of the size `size` take at the rate of an output's pacer or limit,
/// whichever is lower. 0 without a rate.
fn time_of(pacer: &Pacer, limit: Option<&OutputLimit>, size: Size) -> Nanos {
    let limited = limit.map_or(Nanos::ZERO, |limit| limit.time_of(size));
    limited.max(pacer.time_of(link_bytes(size)))
}
