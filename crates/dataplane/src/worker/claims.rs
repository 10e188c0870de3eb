//! Claims of sources at outputs with fair shares: the output chooses whom the worker polls.
//!
//! # Problem
//!
//! If the core and not the output is the bottleneck, frames wait in the senders' rings. A copy of
//! each frame into the output's queue, only to choose among the senders, takes time of the core.
//!
//! # Approach
//!
//! A source whose last batch was full and went to one output has a *claim* there: its ring counts
//! like a waiting frame ([`penstock_qos::fair_share`]). If a source with a claim gets a turn, its
//! output chooses the source that uses the turn, and the frames of that source pass the output
//! without waiting ([`super::pick`]). All sources of an output together thus have as many turns as
//! without claims. A source whose batch goes to several outputs has no claim, so its other frames
//! wait for no output.
//!
//! A batch that is not full emptied its source's ring, and ends the claim. The worker still knows
//! the output: if frames are in the ring at the source's next turn, the source has a claim again
//! before the output chooses. If these frames waited in the output's queue instead, the worker
//! would copy them twice. Fewer frames would also be in the ring at the next turn, so that the next
//! batch would be short again.
//!
//! A source without a claim may be the one that is most behind its share. Therefore an output
//! looks at the rings of some such sources before it chooses ([`LOOKS_MAX`]). Otherwise, each
//! source with short batches would have one batch in each round of turns, whatever its weight.
//! Outputs do not look at a ring that the worker found empty [`EMPTY_MAX`] times in a row. The
//! worker still knows the source's output for [`KNOWN_FOR`] after its last batch, because an idle
//! worker looks at a ring many times in a short pause.
//!
//! While few sources have claims, a chosen source has several turns in a row
//! ([`OutputQueue::again`]), which saves choices. If the receiver answers, the answers to a few
//! batches then go to one or two VMs and not to all, so they should cause fewer interrupts. If the
//! source's ring has fewer frames than its last batch, the output chooses again: the next batch
//! would be short, and the ring may fill while others have turns.
//!
//! A source with a small share is seldom chosen, and the frames in its ring may have another output
//! by now. Therefore a source gives away at most [`GIVEN_MAX`] turns in a row, or [`GIVEN_SHORT`]
//! turns after a batch that was not full. Then the worker polls it in its own turn, and its frames
//! wait in the output's queue.
//!
//! A source with several queue pairs on the worker has no claim, because a choice does not say
//! which of them the worker polls. Its frames wait in the output's queue.
//!
//! # Classes
//!
//! With the schedule `hbs`, the order of classes decides first, and the output decides among the
//! sources of one class:
//!
//! - All claims at an output belong to sources of one class. A source of a later class has no
//!   claim there, and its frames wait in the output's queue.
//! - If frames of an earlier class join the output's queue, the output withdraws all claims, so
//!   that these frames do not wait for a later class. No source of a later class gets a claim until
//!   they have left.
//! - While sources have claims at an output, the output has its turns in the class of these sources
//!   and not in the first class. In the first class, an output sends each batch before the worker
//!   polls the next source. Frames of two tenants then never wait together, and weights have no
//!   effect: tenants with a VM each get equal shares.
//!
//! # Sources that cannot be polled
//!
//! If a source cannot be polled when it is chosen, its claim is withdrawn: a source that waits for
//! tokens or for a limit, or that moves to another worker, loses its claim when it is chosen next.
//! An output also withdraws the claim of such a source if frames of others wait behind it.
//! Otherwise, these frames would wait although nothing else uses the output.
//!
//! # Cost
//!
//! While no source has a claim, or had one recently, neither a turn nor a batch looks at claims: a
//! turn checks one flag of the roster, which also stands for events of the timing wheel. A source
//! had a claim recently if it sent frames in the last [`KNOWN_FOR`], and is not at rest. While all
//! batches are full, neither an output nor a turn looks at a ring before the output chooses.

use penstock_qos::policer::Size;
use penstock_units::{Nanos, PortId, Priority, QueueId};

use super::account::OwnBatch;
use super::context::Context;
use crate::batch::BATCH_FRAMES;
use crate::egress::{PortSlot, Whole, source_of};
use crate::queue::{Choice, OutputQueue};
use crate::tsc::CycleCounter;
use crate::unit::Unit;

const NONE: u16 = u16::MAX;

/// Maximum number of successive turns of a source that others use. A source with less than this
/// fraction of the average share has some of its frames copied into the output's queue.
const GIVEN_MAX: u8 = 16;
/// Like [`GIVEN_MAX`], for a source whose last batch was not full. Such a source is more often one
/// that sends little to several outputs.
const GIVEN_SHORT: u8 = 8;
/// Number of successive looks at the empty ring of a source after which outputs do not look at the
/// ring before they choose.
const EMPTY_MAX: u8 = 8;
/// Time without a batch after which the worker forgets a source's output. The next batch of the
/// source then waits at its output. A VM that shares its core with others pauses for their time
/// slices, each of which takes a few milliseconds.
const KNOWN_FOR: Nanos = Nanos::from_millis(50);
/// Maximum number of rings that an output looks at before it chooses.
const LOOKS_MAX: usize = 4;

/// What the worker knows of a source port that sends to an output with fair shares.
#[derive(Clone, Copy, Debug)]
struct Claimant {
    /// Output to which the last batch of the source went, or [`NONE`] if it is not known.
    output: u16,
    /// Number of the source's turns that others used since its last batch.
    given: u8,
    /// Number of successive looks that found the source's ring empty.
    empty: u8,
    /// Number of frames that the source's last batch took from its ring.
    frames: u8,
    /// Time of the source's last batch.
    busy: Nanos,
    /// Bytes of the source's last batch on a link. The next batch is expected to have as many.
    bytes: u32,
    /// Index of the source in [`Claims::quiet`], or [`NONE`].
    place: u16,
}

impl Claimant {
    const NONE: Self = Self {
        output: NONE,
        given: 0,
        empty: 0,
        frames: 0,
        busy: Nanos::ZERO,
        bytes: 0,
        place: NONE,
    };
}

/// For each source port of a worker, the output at which the port has a claim, or had the last one.
#[derive(Debug)]
pub(super) struct Claims {
    sources: Box<[Claimant]>,
    /// Number of ports of which the output is known.
    count: usize,
    /// Sources of which the output is known, and that had no frames when the worker last polled
    /// them, at most [`EMPTY_MAX`] times in a row. They are in no particular order.
    quiet: Vec<PortId>,
    /// Index in `quiet` of the source at which an output looked last.
    looked: usize,
    /// For each output, the class of the sources that have a claim there, or had the last one.
    classes: Box<[Priority]>,
    /// Whether the schedule orders sources by class.
    by_class: bool,
}

impl Claims {
    pub fn new(ports: usize, by_class: bool) -> Self {
        Self {
            sources: vec![Claimant::NONE; ports].into_boxed_slice(),
            count: 0,
            quiet: Vec::with_capacity(ports),
            looked: 0,
            classes: vec![Priority::FIRST; ports].into_boxed_slice(),
            by_class,
        }
    }

    /// Whether no source of this worker has a claim, or had one recently.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the output at which a port has a claim, or had one recently.
    pub fn output_of(&self, source: PortId) -> Option<PortId> {
        let known = self.sources.get(source.index()).filter(|known| known.output != NONE);
        known.map(|known| PortId(known.output))
    }

    /// Whether a source has a claim at an output.
    pub fn has_claim<C: CycleCounter>(
        ctx: &mut Context<C>,
        (source, output): (PortId, PortId),
    ) -> bool {
        let slot = ctx.ports.get_mut(output.index());
        let queue = slot.and_then(|slot| slot.output.as_deref_mut());
        queue.is_some_and(|queue| queue.has_claim(source.0))
    }

    /// Returns the class of a source. If the schedule ignores classes, all sources have one class.
    fn class_of<C: CycleCounter>(&self, ctx: &Context<C>, source: PortId) -> Priority {
        if self.by_class { ctx.class(source) } else { Priority::FIRST }
    }

    /// Whether two sources are in one class, so that one may use the turn of the other.
    pub fn are_equal<C: CycleCounter>(&self, ctx: &Context<C>, (a, b): (PortId, PortId)) -> bool {
        self.class_of(ctx, a) == self.class_of(ctx, b)
    }

    /// Returns the class in which a shared output has its turns: the class of the sources with a
    /// claim there, or the first class if no source has a claim.
    pub fn class_at<C: CycleCounter>(&self, ctx: &Context<C>, output: PortId) -> Priority {
        let has_claims = ctx.output(output).is_some_and(OutputQueue::has_claims);
        let class = self.classes.get(output.index()).filter(|_| has_claims);
        class.copied().unwrap_or(Priority::FIRST)
    }

    /// If `source` is in an earlier class than the sources with claims at `output`, withdraws these
    /// claims. The frames of `source` that wait there would otherwise wait for a later class.
    pub fn give_way<C: CycleCounter>(&self, ctx: &mut Context<C>, source: PortId, output: PortId) {
        let class = self.class_of(ctx, source);
        if self.classes.get(output.index()).is_some_and(|claims| class < *claims)
            && let Some(queue) = ctx.ports[output.index()].output.as_deref_mut()
        {
            queue.withdraw_claims();
        }
    }

    /// Whether a source may have a claim at an output, to which its last batch went. If the source
    /// is in an earlier class than the sources with claims there, withdraws these claims.
    fn admits<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        source: PortId,
        output: PortId,
    ) -> bool {
        if !self.by_class {
            return true;
        }
        let class = ctx.class(source);
        let slot = ctx.ports.get_mut(output.index());
        let Some(queue) = slot.and_then(|slot| slot.output.as_deref_mut()) else { return false };
        let Some(claims) = self.classes.get_mut(output.index()) else { return false };
        if !queue.has_claims() {
            // Frames of other sources may be of an earlier class.
            let alone = queue.waits_only_from(source.0);
            if alone {
                *claims = class;
            }
            return alone;
        }
        if class < *claims {
            queue.withdraw_claims();
            *claims = class;
        }
        class == *claims
    }

    /// Gives a port with frames in its ring a claim at the output to which its last batch went. If
    /// the port may have no claim there, forgets the output. Returns whether the port has a claim.
    pub fn renew<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        (source, output): (PortId, PortId),
    ) -> bool {
        if !self.admits(ctx, source, output) {
            self.withdraw(ctx, source);
            return false;
        }
        let bytes = self.sources.get(source.index()).map_or(0, |known| known.bytes);
        let from = source_of(source, &ctx.snapshot);
        let slot = ctx.ports.get_mut(output.index());
        let Some(queue) = slot.and_then(|slot| slot.output.as_deref_mut()) else { return false };
        queue.claim(&from, bytes);
        let has_claim = queue.has_claim(source.0);
        self.set_quiet(source, false);
        has_claim
    }

    /// Number of sources to look at before an output chooses.
    pub fn looks(&self) -> usize {
        self.quiet.len().min(LOOKS_MAX)
    }

    /// Returns the source to look at next: a source of which the output is known, and that had no
    /// frames when the worker last polled it. Returns `None` if there is no such source.
    pub fn next_look(&mut self) -> Option<PortId> {
        self.looked = if self.looked + 1 < self.quiet.len() { self.looked + 1 } else { 0 };
        self.quiet.get(self.looked).copied()
    }

    fn set_quiet(&mut self, source: PortId, quiet: bool) {
        let Some(known) = self.sources.get_mut(source.index()) else { return };
        if quiet == (known.place != NONE) {
            return;
        }
        if quiet {
            known.place = u16::try_from(self.quiet.len()).unwrap_or(NONE);
            self.quiet.push(source);
            return;
        }
        let place = core::mem::replace(&mut known.place, NONE);
        self.quiet.swap_remove(usize::from(place));
        if let Some(moved) = self.quiet.get(usize::from(place))
            && let Some(moved) = self.sources.get_mut(moved.index())
        {
            moved.place = place;
        }
    }

    /// Whether an output chooses who uses the turn of a source that has a claim there. Returns
    /// false if the source gave away too many turns, or if it now has another class than the other
    /// sources with claims.
    pub fn gives_turn<C: CycleCounter>(
        &self,
        ctx: &Context<C>,
        (source, output): (PortId, PortId),
    ) -> bool {
        let given = self.sources.get(source.index()).map_or(0, |known| known.given);
        given < GIVEN_MAX && self.classes.get(output.index()) == Some(&self.class_of(ctx, source))
    }

    /// Notes that another source or an output used the turn of a port.
    pub fn give(&mut self, source: PortId) {
        if let Some(known) = self.sources.get_mut(source.index()) {
            known.given = known.given.saturating_add(1);
        }
    }

    fn note_batch(&mut self, batch: OwnBatch) {
        if let Some(known) = self.sources.get_mut(batch.unit.port.index()) {
            known.given = if batch.more { 0 } else { GIVEN_MAX - GIVEN_SHORT };
            known.empty = 0;
            known.frames = u8::try_from(batch.frames).unwrap_or(u8::MAX);
        }
    }

    /// Notes the output to which all frames of a source's last batch went. `more` is true if more
    /// frames wait in the source's ring.
    fn note_output(&mut self, whole: Whole, more: bool, now: Nanos) {
        if let Some(known) = self.sources.get_mut(whole.source.index()) {
            self.count += usize::from(known.output == NONE);
            (known.output, known.bytes, known.busy) = (whole.output.0, whole.bytes, now);
        }
        self.set_quiet(whole.source, !more);
    }

    /// Returns the queue pair that the worker polls if `output` chooses `source`. Returns `None` if
    /// the source has no claim at the output, or not exactly one queue pair on this worker.
    pub fn unit_of<C: CycleCounter>(
        &self,
        ctx: &Context<C>,
        source: PortId,
        output: PortId,
    ) -> Option<Unit> {
        if self.output_of(source) != Some(output) {
            return None;
        }
        only_unit(ctx, source)
    }

    /// Whether the ring of a source has at least as many frames as the source's last batch took.
    fn has_batch<C: CycleCounter>(&self, ctx: &mut Context<C>, source: PortId) -> bool {
        let Some(unit) = only_unit(ctx, source) else { return false };
        let queue = &mut ctx.ports[source.index()].queues[unit.queue.index()];
        let frames = self.sources.get(source.index()).map_or(0, |known| known.frames);
        queue.backlog().is_none_or(|backlog| backlog >= usize::from(frames))
    }

    /// Returns what the worker does in the turn of a source that has a claim at `output`.
    pub fn choice<C: CycleCounter>(&self, ctx: &mut Context<C>, output: PortId) -> Choice {
        let now = ctx.nanos();
        let PortSlot { output: Some(queue), queues, .. } = &mut ctx.ports[output.index()] else {
            return Choice::Own;
        };
        if !queue.lets_pass(now) {
            return Choice::Own;
        }
        // The worker chooses the queue pair of a frame by its flow, so each must have room.
        let ready = queues.iter_mut().filter(|queue| queue.tx_ready());
        let rooms = ready.map(|queue| {
            let free = queue.buffers().map_or(usize::MAX, |buffers| buffers.free());
            queue.tx_room().min(free)
        });
        let room = rooms.min().unwrap_or(0);
        if let Some(source) = queue.again().filter(|_| room >= BATCH_FRAMES)
            && self.has_batch(ctx, PortId(source))
        {
            return Choice::Poll(source);
        }
        ctx.counters().share_choices.add(1);
        let queue = ctx.ports[output.index()].output.as_deref_mut();
        queue.map_or(Choice::Own, |queue| queue.choice(now, room))
    }

    /// Lets the frames of the next batch pass `output`.
    pub fn begin<C: CycleCounter>(ctx: &mut Context<C>, output: PortId) {
        if let Some(queue) = ctx.ports[output.index()].output.as_deref_mut() {
            queue.begin_direct();
        }
    }

    /// Ends a batch that could pass `output`. Returns the frames that passed and are not charged.
    pub fn end<C: CycleCounter>(ctx: &mut Context<C>, output: PortId) -> Size {
        let queue = ctx.ports[output.index()].output.as_deref_mut();
        queue.map_or_else(Size::default, OutputQueue::end_direct)
    }

    /// Charges the source of a batch for the frames that passed `output`, and sets the source's
    /// claim there.
    pub fn charge<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        batch: OwnBatch,
        output: PortId,
    ) {
        let passed = Self::end(ctx, output);
        if passed.frames == 0 {
            self.settle(ctx, batch);
            return;
        }
        let source = batch.unit.port;
        self.note_batch(batch);
        let whole = ctx.egress.take_whole(source).filter(|whole| whole.output == output);
        let claim = whole.filter(|_| batch.more).map_or(0, |whole| whole.bytes);
        let (from, now) = (source_of(source, &ctx.snapshot), ctx.nanos());
        if let Some(queue) = ctx.ports[output.index()].output.as_deref_mut() {
            queue.charge_direct(&from, passed, claim, now);
        }
        match whole {
            Some(whole) => self.note_output(whole, batch.more, now),
            None => self.forget(source),
        }
    }

    /// After a batch that passed no output, sets the claim of a source of which the output is
    /// known.
    pub fn settle<C: CycleCounter>(&mut self, ctx: &mut Context<C>, batch: OwnBatch) {
        self.note_batch(batch);
        if !self.follow(ctx, batch) {
            self.withdraw(ctx, batch.unit.port);
        }
    }

    /// After a batch of which all frames wait at one output, sets the claim of the batch's source.
    /// Returns false if the frames of the batch did not go to one output that lets batches pass.
    pub fn follow<C: CycleCounter>(&mut self, ctx: &mut Context<C>, batch: OwnBatch) -> bool {
        let source = batch.unit.port;
        let Some(whole) = ctx.egress.take_whole(source) else { return false };
        if self.output_of(source).is_some_and(|output| output != whole.output) {
            self.withdraw(ctx, source);
        }
        let may_claim = only_unit(ctx, source).is_some()
            && (!batch.more || self.admits(ctx, source, whole.output));
        if !may_claim {
            self.withdraw(ctx, source);
            return true;
        }
        let from = source_of(source, &ctx.snapshot);
        let slot = ctx.ports.get_mut(whole.output.index());
        if let Some(queue) = slot.and_then(|slot| slot.output.as_deref_mut()) {
            queue.claim(&from, if batch.more { whole.bytes } else { 0 });
            self.note_output(whole, batch.more, ctx.nanos());
        }
        true
    }

    /// Withdraws the claim of a port with an empty ring. Forgets the port's output if the port has
    /// sent nothing for [`KNOWN_FOR`].
    pub fn note_empty<C: CycleCounter>(&mut self, ctx: &mut Context<C>, source: PortId) {
        let Some(output) = self.output_of(source) else { return };
        let Some(known) = self.sources.get_mut(source.index()) else { return };
        if ctx.nanos().saturating_sub(known.busy) > KNOWN_FOR {
            self.withdraw(ctx, source);
            return;
        }
        known.empty = known.empty.saturating_add(1);
        let is_quiet = known.empty < EMPTY_MAX;
        let from = source_of(source, &ctx.snapshot);
        if let Some(queue) = ctx.ports[output.index()].output.as_deref_mut() {
            queue.claim(&from, 0);
        }
        self.set_quiet(source, is_quiet);
    }

    /// Withdraws the claim of a port, if it has one, and forgets the port's output.
    pub fn withdraw<C: CycleCounter>(&mut self, ctx: &mut Context<C>, source: PortId) {
        if let Some(output) = self.output_of(source) {
            self.refuse(ctx, source, output);
        }
    }

    /// Withdraws the claim of a port at `output`, because the worker cannot poll the port.
    pub fn refuse<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        source: PortId,
        output: PortId,
    ) {
        let from = source_of(source, &ctx.snapshot);
        if let Some(queue) = ctx.ports[output.index()].output.as_deref_mut() {
            queue.claim(&from, 0);
        }
        if self.output_of(source) == Some(output) {
            self.forget(source);
        }
    }

    fn forget(&mut self, source: PortId) {
        self.set_quiet(source, false);
        if let Some(known) = self.sources.get_mut(source.index())
            && core::mem::replace(known, Claimant::NONE).output != NONE
        {
            self.count -= 1;
        }
    }
}

/// Returns the queue pair of a port on this worker, if there is exactly one.
fn only_unit<C: CycleCounter>(ctx: &Context<C>, port: PortId) -> Option<Unit> {
    let owned = ctx.ports.get(port.index())?.owned;
    let queue = QueueId(u16::try_from(owned.trailing_zeros()).ok()?);
    (owned.count_ones() == 1).then_some(Unit { port, queue })
}

#[cfg(test)]
mod tests;
