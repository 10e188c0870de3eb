//! The worker determines which outputs with a queue may send, and which sources these outputs hold
//! back.
//!
//! # Approach
//!
//! If an output's queue has a due frame, the output is a unit of the schedule, named [`OUTPUT`]. A
//! shared output has the highest class, because its frames already had their senders' turns. While
//! sources have claims at the output, it has the class of these sources ([`super::claims`]). An
//! output that belongs to one VM has the class of the VM's port, and may send only if the VM's port
//! has cycles. If no frame is due yet, the output waits in the [`Roster`]'s timing wheel.
//!
//! If too many frames of a source port wait at an output, the output *presses* the source: the
//! worker holds back the source's next frames. The worker polls a pressed source again when the
//! output has room for more frames of the source ([`Pressure`]).

use std::sync::Arc;

use penstock_units::{Nanos, PortId, Priority};

use super::WorkerConfig;
use super::account::OwnBatch;
use super::aside::Why;
use super::bill::Bill;
use super::claims::Claims;
use super::context::Context;
use super::pressure::Pressure;
use super::roster::{Event, Roster};
use crate::batch::BATCH_FRAMES;
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::egress::{PortSlot, code_point_of, count_loss};
use crate::port::PortQueue;
use crate::queue::{Memory, OutputQueue, QueueHome, Signalled};
use crate::schedule::ScheduleKind;
use crate::tsc::{CycleCounter, Stage, Work};
use crate::unit::OUTPUT;
use crate::unit::Unit;

/// Whether an output with a queue is in the schedule, and if not, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    /// No frame waits at the output.
    #[default]
    Empty,
    /// The output is in the schedule and may send.
    Ready,
    /// The next frame of the output is not due yet, so the output waits in the timing wheel.
    Waits,
    /// A queue of the output reached its rate ceiling, so the output waits in the timing wheel. A
    /// new frame may be sent earlier if the frame joins another queue.
    Held,
}

/// Time until the worker checks an output again after the output's port could not accept a frame.
const AGAIN: Nanos = Nanos::from_micros(20);

/// State of all outputs with queues on one worker.
#[derive(Debug)]
pub(super) struct Outputs {
    stands: Box<[Stand]>,
    /// For each port, the class in which its shared output last joined the schedule. The first
    /// class for outputs of one VM.
    joined: Box<[Priority]>,
    /// The [`QueueHome`] of each port's output queue, indexed by port number. An entry is `None` if
    /// the worker does not have the port's output queue.
    homes: Box<[Option<Arc<QueueHome>>]>,
    pressure: Pressure,
    /// Ports that this worker does not poll because too many of their frames wait at outputs of
    /// other workers.
    elsewhere: Vec<PortId>,
    /// Ports with a queue on this worker that [keeps frames by source][OutputQueue::keeps_sources],
    /// in no particular order.
    by_source: Vec<PortId>,
    /// Whether a queue of the snapshot was not in its home when this worker wanted to take it,
    /// because another worker had the queue.
    lacks_queue: bool,
    /// Number of the output for which the worker last published frame delays.
    published: usize,
    /// Time at which the output that sends at present began its batch.
    now: Nanos,
    /// Sources whose next batches may pass an output without waiting.
    pub claims: Claims,
}

const fn unit_of(port: PortId) -> Unit {
    Unit { port, queue: OUTPUT }
}

impl Outputs {
    pub fn new(config: &WorkerConfig) -> Self {
        let ports = config.max_ports;
        Self {
            stands: vec![Stand::Empty; ports].into_boxed_slice(),
            joined: vec![Priority::FIRST; ports].into_boxed_slice(),
            homes: vec![None; ports].into_boxed_slice(),
            pressure: Pressure::new(ports),
            elsewhere: Vec::with_capacity(ports),
            by_source: Vec::with_capacity(ports),
            lacks_queue: false,
            published: 0,
            now: Nanos::ZERO,
            claims: Claims::new(ports, config.schedule == ScheduleKind::Hbs),
        }
    }

    /// Adds an output to the schedule, because the next frame of the output is due.
    pub fn wake<C: CycleCounter>(&mut self, ctx: &Context<C>, roster: &mut Roster, port: PortId) {
        if matches!(self.stands[port.index()], Stand::Waits | Stand::Held) {
            self.make_ready(ctx, roster, port);
        }
    }

    /// Adds an output to the schedule if its frames wait for a time before which they may be sent
    /// now, because a claim ended.
    pub fn go_on<C: CycleCounter>(&mut self, ctx: &Context<C>, roster: &mut Roster, port: PortId) {
        if self.stands[port.index()] == Stand::Held {
            self.make_ready(ctx, roster, port);
        }
    }

    /// Notes that the worker does not poll a source for a while. If frames wait behind a claim of
    /// the source, the output checks them again ([`Self::pass_over`]).
    #[inline(never)]
    pub fn note_waits<C: CycleCounter>(
        &mut self,
        ctx: &Context<C>,
        roster: &mut Roster,
        source: PortId,
    ) {
        if let Some(output) = self.claims.output_of(source) {
            self.go_on(ctx, roster, output);
        }
    }

    /// While frames of an output wait behind the claim of a source that the worker does not poll at
    /// present, withdraws this claim. Returns true if it withdrew a claim.
    fn pass_over<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &Roster,
        output: PortId,
    ) -> bool {
        let mut withdrew = false;
        let waits_for = |ctx: &mut Context<C>| {
            let queue = ctx.ports[output.index()].output.as_deref_mut();
            queue.and_then(OutputQueue::waits_for).map(PortId)
        };
        while let Some(source) = waits_for(ctx) {
            let unit = self.claims.unit_of(ctx, source, output);
            let is_polled = unit.is_some_and(|unit| roster.polls(unit));
            if is_polled && ctx.account.buckets().may_run(source) {
                break;
            }
            self.claims.refuse(ctx, source, output);
            withdrew = true;
        }
        withdrew
    }

    /// Whether a frame waits at the output of a port.
    pub fn holds(&self, port: PortId) -> bool {
        self.stands[port.index()] != Stand::Empty
    }

    /// Whether the output of a port has a due frame.
    pub fn is_ready(&self, port: PortId) -> bool {
        self.stands[port.index()] == Stand::Ready
    }

    fn make_ready<C: CycleCounter>(&mut self, ctx: &Context<C>, roster: &mut Roster, port: PortId) {
        self.stands[port.index()] = Stand::Ready;
        let shared = ctx.output(port).is_some_and(|queue| queue.terms().order.is_shared());
        let class = if shared { self.claims.class_at(ctx, port) } else { ctx.class(port) };
        self.joined[port.index()] = if shared { class } else { Priority::FIRST };
        roster.schedule.add(unit_of(port), class);
    }

    /// After a delivery, adds the outputs that got frames to the schedule. If too many frames of
    /// the source wait, the worker stops polling the source. `batch` is the batch of the frames, or
    /// `None` if another worker took them from the source.
    #[inline]
    pub fn heed<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        source: PortId,
        batch: Option<&OwnBatch>,
    ) {
        if ctx.egress.has_queued() {
            self.follow(ctx, roster, source, batch);
        }
    }

    #[inline(never)]
    fn follow<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        source: PortId,
        batch: Option<&OwnBatch>,
    ) {
        if let Some(batch) = batch {
            if self.claims.follow(ctx, *batch) {
                roster.note_claims(!self.claims.is_empty());
            }
        } else {
            // Only the worker that polls a source can let its batches pass.
            let _ = ctx.egress.take_whole(source);
        }
        while let Some(port) = ctx.egress.next_queued() {
            let joined = self.joined[port.index()];
            let is_late = joined > Priority::FIRST;
            if is_late || roster.has_claims() {
                self.claims.give_way(ctx, source, port);
            }
            match self.stands[port.index()] {
                Stand::Empty | Stand::Held => self.make_ready(ctx, roster, port),
                Stand::Ready if is_late && ctx.class(source) < joined => {
                    roster.schedule.leave(unit_of(port));
                    self.make_ready(ctx, roster, port);
                }
                Stand::Ready | Stand::Waits => {}
            }
        }
        while let Some(output) = ctx.egress.next_over() {
            if self.pressure.press(output, source) {
                if let Some(counters) = ctx.of(source) {
                    counters.held_back.add(1);
                }
                ctx.peers.directory().set_pressed(source, ctx.peers.id(), true);
            }
            roster.put_aside(ctx, source, Why::Pressed);
        }
    }

    /// Stops polling a port if too many of the port's frames wait at an output of another worker.
    #[inline]
    pub fn heed_others<C: CycleCounter>(
        &mut self,
        ctx: &Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        let peers = &ctx.peers;
        if !peers.is_empty() && peers.directory().is_pressed_elsewhere(port, peers.id()) {
            self.press_elsewhere(ctx, roster, port);
        }
    }

    #[cold]
    fn press_elsewhere<C: CycleCounter>(
        &mut self,
        ctx: &Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        if !roster.is_aside(port, Why::PressedElsewhere) {
            roster.put_aside(ctx, port, Why::PressedElsewhere);
            self.elsewhere.push(port);
        }
    }

    /// Polls a port again when no output of another worker holds too many of the port's frames any
    /// more.
    #[inline]
    pub fn hear_others<C: CycleCounter>(&mut self, ctx: &Context<C>, roster: &mut Roster) {
        for at in (0..self.elsewhere.len()).rev() {
            let (port, peers) = (self.elsewhere[at], &ctx.peers);
            if !peers.directory().is_pressed_elsewhere(port, peers.id()) {
                self.elsewhere.swap_remove(at);
                roster.take_back(ctx, port, Why::PressedElsewhere);
            }
        }
    }

    /// Publishes the frame delays of each output once per second. Each call checks only one output,
    /// so that a call is short even if the worker has many outputs.
    #[inline]
    pub fn publish_delays<C: CycleCounter>(&mut self, ctx: &mut Context<C>, second: u32) {
        let next = self.published + 1;
        self.published = if next < ctx.ports.len() { next } else { 0 };
        let slot = ctx.ports.get_mut(self.published);
        let Some(queue) = slot.and_then(|slot| slot.output.as_deref_mut()) else { return };
        if let Some(counters) = ctx.port_counters[self.published].as_deref()
            && queue.is_due_to_tell(second)
        {
            publish_delays(queue, counters);
        }
    }

    /// Whether an output may send a batch now. A shared output always may, and another output needs
    /// cycles of its port. If the output belongs to one VM and the VM's port has no cycles, removes
    /// the output from the schedule until the next refill.
    pub fn may_run<C: CycleCounter>(
        &self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) -> bool {
        let Some(queue) = ctx.output(port) else { return false };
        let may = queue.terms().order.is_shared() || ctx.account.buckets().may_run(port);
        if !may {
            ctx.account.buckets_mut().note_throttled();
            roster.schedule.hold(unit_of(port));
        }
        may
    }

    /// Sends one batch of an output's waiting frames. Returns `None` if no frame was sent.
    pub fn run<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
        lent: bool,
    ) -> Option<Bill> {
        let shared = ctx.output(port)?.terms().order.is_shared();
        self.now = ctx.nanos();
        let mut frames = self.depart(ctx, roster, port);
        if frames == 0 && roster.has_claims() && self.pass_over(ctx, roster, port) {
            frames = self.depart(ctx, roster, port);
        }
        if frames == 0 {
            self.place(ctx, roster, port);
            return None;
        }
        if shared {
            return Some(Bill::Shared { output: port, frames });
        }
        let (unit, class) = (unit_of(port), ctx.class(port));
        Some(Bill::Output(OwnBatch { unit, class, frames, more: true, lent }))
    }

    /// Called after a batch of an output was charged: frees the memory of the sent frames, and
    /// decides whether the output stays in the schedule. `left` is true if the port that paid for
    /// the batch still has cycles.
    pub fn after<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
        left: bool,
    ) {
        self.release_sent(ctx, roster, port);
        roster.schedule.ran(unit_of(port));
        if !left {
            roster.schedule.hold(unit_of(port));
        }
        self.place(ctx, roster, port);
    }

    /// If frames wait at an output, adds the output to the schedule or, until its next frame is
    /// due, to the timing wheel.
    fn place<C: CycleCounter>(&mut self, ctx: &mut Context<C>, roster: &mut Roster, port: PortId) {
        if roster.has_claims() {
            let _ = self.pass_over(ctx, roster, port);
        }
        let now = self.now;
        let counters = &ctx.port_counters;
        let PortSlot { output, queues, .. } = &mut ctx.ports[port.index()];
        let Some(queue) = output.as_deref_mut() else { return };
        let (store, captures) = ctx.egress.store_and_captures();
        let due = queue.due(&mut Memory::of(store, queues), now, &mut |source| {
            count_loss(counters, captures, (source, port), DropReason::QueueLate);
        });
        let (blocked, held) = (room(queues) == 0, queue.is_held());
        let stand = match due {
            None => Stand::Empty,
            Some(due) if due > now || blocked => {
                if queue.begins_to_wait()
                    && let Some(counters) = counters[port.index()].as_deref()
                {
                    counters.receive_waits.add(1);
                }
                let at = if blocked { due.max(now + AGAIN) } else { due };
                roster.arm(Event::Output(port), at);
                if held && !blocked { Stand::Held } else { Stand::Waits }
            }
            Some(_) => Stand::Ready,
        };
        if stand != Stand::Ready {
            roster.schedule.leave(unit_of(port));
        }
        self.stands[port.index()] = stand;
        ctx.account.buckets_mut().note_waiting(unit_of(port), stand == Stand::Ready);
    }

    /// Sends the due frames of an output's queue. Returns the number of sent frames.
    fn depart<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) -> usize {
        let now = self.now;
        let PortSlot { output, queues, .. } = &mut ctx.ports[port.index()];
        let Some(queue) = output.as_deref_mut() else { return 0 };
        ctx.batch.clear();
        let counters = &ctx.port_counters;
        if queues.iter().all(|queue| !queue.tx_ready()) {
            let (store, captures) = ctx.egress.store_and_captures();
            queue.clear(&mut Memory::of(store, queues), now, |source| {
                count_loss(counters, captures, (source, port), DropReason::PortDown);
            });
            self.release_pressed(ctx, roster, port);
            return 0;
        }
        let most = room(queues).min(BATCH_FRAMES);
        ctx.batch.limit(most);
        let (store, captures) = ctx.egress.store_and_captures();
        let memory = &mut Memory::of(store, queues);
        let snapshot = &ctx.snapshot;
        let mut lost = |source, why| count_loss(counters, captures, (source, port), why);
        let code_point = |source, tenant| code_point_of(source, tenant, snapshot);
        queue.release_delayed(memory, now, code_point, &mut lost);
        let signalled = queue.load(memory, &mut ctx.batch, (port.0, most), now, &mut lost);
        if signalled != Signalled::default()
            && let Some(counters) = counters[port.index()].as_deref()
        {
            counters.tx_marked.add(signalled.marked);
            counters.tx_trimmed.add(signalled.trimmed);
        }
        let frames = queue.sending().len();
        if frames == 0 {
            return 0;
        }
        let bytes = queue.sending().iter().map(|frame| frame.len as usize).sum();
        ctx.depart(port, now);
        ctx.counter.spent(Stage::Egress, &Work { port, frames, bytes, misses: 0 });
        frames
    }

    /// Frees the memory of sent frames, and releases sources of which only few frames still wait at
    /// the output.
    fn release_sent<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        let Some(mut queue) = ctx.ports[port.index()].output.take() else { return };
        for run in queue.sending().chunk_by(|a, b| a.source == b.source) {
            self.ease(ctx, roster, (&queue, port), PortId(run[0].source));
        }
        queue.sent(&mut Memory::of(ctx.egress.store(), &mut ctx.ports[port.index()].queues));
        ctx.ports[port.index()].output = Some(queue);
    }

    fn ease<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        (queue, port): (&OutputQueue, PortId),
        source: PortId,
    ) {
        if !self.pressure.is(port, source) {
            return;
        }
        let memory = Memory::of(ctx.egress.store(), &mut ctx.ports[port.index()].queues);
        if queue.is_under(source.0, &memory) && self.pressure.ease(port, source) {
            ctx.peers.directory().set_pressed(source, ctx.peers.id(), false);
            roster.take_back(ctx, source, Why::Pressed);
        }
    }

    /// Lets the worker poll all sources again that an output held back, because the output's queue
    /// is empty.
    fn release_pressed<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        let Some(queue) = ctx.ports[port.index()].output.take() else { return };
        let mut from = 0;
        while let Some(source) = self.pressure.next_source(port, from) {
            self.ease(ctx, roster, (&queue, port), source);
            from = source.index() + 1;
        }
        ctx.ports[port.index()].output = Some(queue);
    }

    /// Whether the worker must try again to take a queue, with the next snapshot.
    pub const fn lacks_queue(&self) -> bool {
        self.lacks_queue
    }

    /// Must be called before [`Self::place_queue`] is called for all ports.
    pub const fn begin_placing(&mut self) {
        self.lacks_queue = false;
    }

    /// Gives a port the output queue that the new snapshot contains for the port, or removes the
    /// port's output queue.
    pub fn place_queue<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        let (now, at) = (ctx.nanos(), port.index());
        let owned = ctx.ports[at].owned != 0;
        let wanted = ctx.policy(port).and_then(|policy| policy.queue.as_ref()).filter(|_| owned);
        let same = match (wanted, &self.homes[at]) {
            (Some(wanted), Some(here)) => Arc::ptr_eq(wanted, here),
            (None, None) => return,
            _ => false,
        };
        if same {
            let Some(home) = &self.homes[at] else { return };
            let before = keeps_sources(ctx, port);
            let changed = adopt(ctx, port, home, now);
            match (before, keeps_sources(ctx, port)) {
                (false, true) => self.by_source.push(port),
                (true, false) => self.by_source.retain(|other| *other != port),
                _ => {}
            }
            if changed && matches!(self.stands[at], Stand::Waits | Stand::Held) {
                roster.cancel(Event::Output(port));
                self.make_ready(ctx, roster, port);
            }
            return;
        }
        let wanted = wanted.cloned();
        self.take_queue(ctx, roster, port);
        let Some(home) = wanted else { return };
        let Some(queue) = home.take() else {
            self.lacks_queue = true;
            return;
        };
        ctx.ports[at].output = Some(queue);
        adopt(ctx, port, &home, now);
        if keeps_sources(ctx, port) {
            self.by_source.push(port);
        }
        self.homes[at] = Some(home);
    }

    /// Empties a port's output queue and returns the queue to its home.
    pub fn take_queue<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        self.now = ctx.nanos();
        let now = self.now;
        let (Some(mut queue), Some(home)) =
            (ctx.ports[port.index()].output.take(), self.homes[port.index()].take())
        else {
            return;
        };
        self.by_source.retain(|other| *other != port);
        let counters = &ctx.port_counters;
        let queues = &mut ctx.ports[port.index()].queues;
        let (store, captures) = ctx.egress.store_and_captures();
        queue.clear(&mut Memory::of(store, queues), now, |source| {
            count_loss(counters, captures, (source, port), DropReason::QueueGone);
        });
        match self.stands[port.index()] {
            Stand::Ready => roster.schedule.leave(unit_of(port)),
            Stand::Waits | Stand::Held => roster.cancel(Event::Output(port)),
            Stand::Empty => {}
        }
        self.stands[port.index()] = Stand::Empty;
        ctx.ports[port.index()].output = Some(queue);
        self.release_pressed(ctx, roster, port);
        if let Some(queue) = ctx.ports[port.index()].output.take() {
            home.put(queue);
        }
    }

    /// Removes a port's output queue from this worker, because the port's last queue pair moves to
    /// another worker. The output queue moves to the other worker without its waiting frames.
    /// Frames that the port sent and that wait at other ports' outputs on this worker stay there.
    pub fn leave<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        self.take_queue(ctx, roster, port);
        self.claims.withdraw(ctx, port);
        self.elsewhere.retain(|other| *other != port);
    }

    /// Removes a port, and drops frames from the port that wait for other ports.
    pub fn forget<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        self.leave(ctx, roster, port);
        // Only these outputs drop the frames of a source that leaves.
        for &target in &self.by_source {
            let PortSlot { output: Some(queue), queues, .. } = &mut ctx.ports[target.index()]
            else {
                continue;
            };
            let counters = &ctx.port_counters;
            let (store, captures) = ctx.egress.store_and_captures();
            queue.forget(&mut Memory::of(store, queues), port.0, |source| {
                count_loss(counters, captures, (source, target), DropReason::QueueGone);
            });
        }
        self.pressure.forget(port);
        ctx.peers.directory().set_pressed(port, ctx.peers.id(), false);
    }
}

fn keeps_sources<C: CycleCounter>(ctx: &Context<C>, port: PortId) -> bool {
    ctx.output(port).is_some_and(OutputQueue::keeps_sources)
}

/// Lets the output queue of a port adopt the changes of its home. Returns true if the frames may
/// now be due at another time.
fn adopt<C: CycleCounter>(
    ctx: &mut Context<C>,
    port: PortId,
    home: &QueueHome,
    now: Nanos,
) -> bool {
    let counters = &ctx.port_counters;
    let PortSlot { output, queues, .. } = &mut ctx.ports[port.index()];
    let Some(queue) = output.as_deref_mut() else { return false };
    let (store, captures) = ctx.egress.store_and_captures();
    queue.adopt(home, &mut Memory::of(store, queues), now, &mut |source| {
        count_loss(counters, captures, (source, port), DropReason::QueueGone);
    })
}

#[cold]
fn publish_delays(queue: &mut OutputQueue, counters: &PortCounters) {
    let (delays, variation) = queue.delays();
    counters.tx_queue_p50.set(delays.percentile(50_000).0);
    counters.tx_queue_p99.set(delays.percentile(99_000).0);
    counters.tx_queue_max.set(delays.max().0);
    counters.tx_queue_variation.set(variation.sizes().percentile(99_000).0);
    delays.clear();
    variation.clear();
}

/// Returns the number of frames that the port can accept at present.
fn room(queues: &mut [Box<dyn PortQueue>]) -> usize {
    let ready = queues.iter_mut().filter(|queue| queue.tx_ready());
    ready.map(|queue| queue.tx_room()).max().unwrap_or(1)
}
