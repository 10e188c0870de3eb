//! What waits for outputs, in the worker's loop.
//!
//! **Rule.** An output with a queue takes part in the schedule, as [`OUTPUT`], while a frame of it
//! may go: in the first class where it is shared, since what waits there had its turn already; in
//! its port's class, and under that port's cycle account, where it is one VM's. Is a frame's time
//! still to come, the output stands in the worker's [`Wheel`] until then. Frames of a shared
//! output are charged to whom they came from, in equal parts of their batch.

use penstock_qos::wheel::Wheel;
use penstock_units::{Nanos, PortId, Priority};

use super::account::{Books, NoParts, OwnBatch, Payer};
use super::aside::Why;
use super::pressure::Pressure;
use super::shaping::Gates;
use super::{PortSlot, Worker};
use crate::batch::BATCH_FRAMES;
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::port::PortQueue;
use crate::queue::{Memory, OUTPUT, OutputQueue, QueueHome};
use crate::schedule::{Schedule, Unit};
use crate::tsc::{CycleCounter, Stage, Work};
use std::sync::Arc;

/// Where an output with a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    /// Nothing waits.
    #[default]
    Empty,
    /// In the schedule.
    Ready,
    /// In the wheel.
    Waits,
    /// In the wheel, for the time of a queue with a ceiling: a frame of another may go before.
    Held,
}

/// An output's queue may be looked at again after so long when its port cannot take a frame.
const AGAIN: Nanos = Nanos::from_micros(20);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Outputs {
    /// Times at which outputs (even entries) and shaped ports (odd ones) go on.
    wheel: Wheel,
    stands: Box<[Stand]>,
    /// Homes of the queues that are here.
    homes: Box<[Option<Arc<QueueHome>>]>,
    pub(super) gates: Gates,
    pressure: Pressure,
    /// Ports of which outputs of other workers have too much waiting.
    elsewhere: Vec<PortId>,
    /// Whose delays were told last.
    told: usize,
}

impl Outputs {
    pub(super) fn new(ports: usize, now: Nanos) -> Self {
        Self {
            wheel: Wheel::new(2 * ports, now),
            stands: vec![Stand::Empty; ports].into_boxed_slice(),
            homes: vec![None; ports].into_boxed_slice(),
            gates: Gates::new(ports),
            pressure: Pressure::new(ports),
            elsewhere: Vec::with_capacity(ports),
            told: 0,
        }
    }

    /// A port's next frame may be taken at `at`.
    pub(super) fn gate_until(&mut self, port: PortId, at: Nanos) {
        self.wheel.arm(2 * port.index() + 1, at);
    }

    /// A port's next frame need not wait.
    pub(super) fn gate_open(&mut self, port: PortId) {
        self.wheel.cancel(2 * port.index() + 1);
    }

    /// When the first of those that wait goes on.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        self.wheel.next_event()
    }
}

const fn unit_of(port: PortId) -> Unit {
    Unit { port, queue: OUTPUT }
}

impl<C: CycleCounter> Worker<C> {
    /// Whoever stands in the wheel and whose time has come goes on.
    #[inline]
    pub(super) fn pass_time(&mut self) {
        if !self.outputs.wheel.is_empty() {
            self.expire();
        }
    }

    #[inline(never)]
    fn expire(&mut self) {
        let now = self.nanos();
        while let Some((entry, _)) = self.outputs.wheel.expire(now) {
            let Ok(port) = u16::try_from(entry / 2).map(PortId) else { continue };
            if entry % 2 == 1 {
                self.take_back(port, Why::Shaped);
            } else if matches!(self.outputs.stands[port.index()], Stand::Waits | Stand::Held) {
                self.make_ready(port);
            }
        }
    }

    /// The time of this turn.
    #[inline]
    pub(super) fn nanos(&self) -> Nanos {
        Nanos(self.clock.nanos(self.account.last()))
    }

    fn make_ready(&mut self, port: PortId) {
        self.outputs.stands[port.index()] = Stand::Ready;
        let class = self.output_class(port);
        self.schedule.add(unit_of(port), class);
    }

    fn output_class(&self, port: PortId) -> Priority {
        match self.ports[port.index()].output.as_deref().map(|queue| queue.terms().order) {
            Some(order) if order.is_shared() => Priority::FIRST,
            _ => self.class(port),
        }
    }

    /// After a delivery: outputs that got frames take part, and a source that has too much waiting
    /// is put aside.
    #[inline]
    pub(super) fn heed_outputs(&mut self, source: PortId) {
        if self.egress.has_queued() {
            self.follow(source);
        }
    }

    #[inline(never)]
    fn follow(&mut self, source: PortId) {
        while let Some(port) = self.egress.next_queued() {
            if matches!(self.outputs.stands[port.index()], Stand::Empty | Stand::Held) {
                self.make_ready(port);
            }
        }
        while let Some(output) = self.egress.next_over() {
            if self.outputs.pressure.press(output, source) {
                if let Some(counters) = self.port_counters[source.index()].as_deref() {
                    counters.held_back.add(1);
                }
                let peers = &self.egress.peers;
                peers.directory().set_pressed(source, peers.id(), true);
            }
            self.put_aside(source, Why::Pressed);
        }
    }

    /// A port of which another worker's output has too much waiting is put aside here too.
    #[inline]
    pub(super) fn heed_others(&mut self, port: PortId) {
        let peers = &self.egress.peers;
        if !peers.is_empty() && peers.directory().is_pressed_elsewhere(port, peers.id()) {
            self.press_elsewhere(port);
        }
    }

    #[cold]
    fn press_elsewhere(&mut self, port: PortId) {
        if !self.aside.is(port, Why::PressedElsewhere) {
            self.put_aside(port, Why::PressedElsewhere);
            self.outputs.elsewhere.push(port);
        }
    }

    /// Polls those again of which other workers' outputs have room now.
    #[inline]
    pub(super) fn hear_others(&mut self) {
        for at in (0..self.outputs.elsewhere.len()).rev() {
            let port = self.outputs.elsewhere[at];
            let peers = &self.egress.peers;
            if !peers.directory().is_pressed_elsewhere(port, peers.id()) {
                self.outputs.elsewhere.swap_remove(at);
                self.take_back(port, Why::PressedElsewhere);
            }
        }
    }

    /// Tells what waited how long, of each output once a second: of one of them a call, so that
    /// many outputs make no pause.
    #[inline]
    pub(super) fn tell_delays(&mut self, second: u32) {
        let next = self.outputs.told + 1;
        self.outputs.told = if next < self.ports.len() { next } else { 0 };
        let slot = self.ports.get_mut(self.outputs.told);
        let Some(queue) = slot.and_then(|slot| slot.output.as_deref_mut()) else { return };
        if let Some(counters) = self.port_counters[self.outputs.told].as_deref()
            && queue.is_due_to_tell(second)
        {
            publish_delays(queue, counters);
        }
    }

    /// One batch of what waits for an output; `None`: nothing went.
    pub(super) fn serve_output(&mut self, port: PortId) -> Option<usize> {
        if !self.is_shared(port)? && !self.account.buckets().may_run(port) {
            self.account.buckets_mut().note_throttled();
            self.schedule.hold(unit_of(port));
            return None;
        }
        self.run_output(port, false)
    }

    fn is_shared(&self, port: PortId) -> Option<bool> {
        let queue = self.ports[port.index()].output.as_deref()?;
        Some(queue.terms().order.is_shared())
    }

    /// The same without a look at its cycles.
    pub(super) fn run_output(&mut self, port: PortId, lent: bool) -> Option<usize> {
        let (now, shared) = (self.nanos(), self.is_shared(port)?);
        let (frames, left) = self.depart(port, (shared, lent), now);
        if frames > 0 {
            self.schedule.ran(unit_of(port));
        }
        if !left {
            self.schedule.hold(unit_of(port));
        }
        self.settle_output(port, now);
        (frames > 0).then_some(frames)
    }

    /// Whether an output still takes part in the schedule, or when again.
    fn settle_output(&mut self, port: PortId, now: Nanos) {
        let counters = &self.port_counters;
        let PortSlot { output, queues, .. } = &mut self.ports[port.index()];
        let Some(queue) = output.as_deref_mut() else { return };
        let memory = &mut Memory::of(self.egress.store(), queues);
        let due = queue.due(memory, now, &mut |source| {
            count_loss(counters, source, port, DropReason::QueueLate);
        });
        let (blocked, held) = (room(queues) == 0, queue.is_held());
        let stand = match due {
            None => Stand::Empty,
            Some(due) if due > now || blocked => {
                let at = if blocked { due.max(now + AGAIN) } else { due };
                self.outputs.wheel.arm(2 * port.index(), at);
                if held && !blocked { Stand::Held } else { Stand::Waits }
            }
            Some(_) => Stand::Ready,
        };
        if stand != Stand::Ready {
            self.schedule.leave(unit_of(port));
        }
        self.outputs.stands[port.index()] = stand;
        self.account.buckets_mut().note_waiting(unit_of(port), stand == Stand::Ready);
    }

    /// Takes out what may go, sends it, and charges it: how many frames, and whether who pays for
    /// it has cycles left.
    fn depart(&mut self, port: PortId, (shared, lent): (bool, bool), now: Nanos) -> (usize, bool) {
        let id = port.index();
        let PortSlot { output, queues, .. } = &mut self.ports[id];
        let Some(queue) = output.as_deref_mut() else { return (0, true) };
        self.batch.clear();
        let counters = &self.port_counters;
        if queues.iter().all(|queue| !queue.tx_ready()) {
            queue.clear(&mut Memory::of(self.egress.store(), queues), now, |source| {
                count_loss(counters, source, port, DropReason::PortDown);
            });
            self.release_pressed(port, now);
            return (0, true);
        }
        let most = room(queues).min(BATCH_FRAMES);
        self.batch.limit(most);
        let memory = &mut Memory::of(self.egress.store(), queues);
        queue.load(memory, &mut self.batch, (port.0, most), now, &mut |source| {
            count_loss(counters, source, port, DropReason::QueueLate);
        });
        let frames = queue.sending().len();
        if frames == 0 {
            return (0, true);
        }
        let bytes = queue.sending().iter().map(|frame| frame.len as usize).sum();
        let (batch, ports) = (&mut self.batch, &mut self.ports);
        let (snapshot, touched) = (&*self.snapshot, &mut self.touched);
        self.egress.set_now(now);
        self.egress.depart(batch, port, ports, counters, snapshot, touched);
        self.counter.spent(Stage::Egress, &Work { port, frames, bytes, misses: 0 });
        let left = self.charge_departure(port, (shared, lent), frames);
        self.release_sent(port, now);
        (frames, left)
    }

    /// Charges a batch of `frames` that left a queue: to the ports that sent them if the queue is
    /// shared, or else to the queue's own port. Returns false if that port has no tokens left.
    fn charge_departure(
        &mut self,
        port: PortId,
        (shared, lent): (bool, bool),
        frames: usize,
    ) -> bool {
        let now = self.counter.now();
        let books = Books { counters: &self.port_counters, peers: &self.egress.peers };
        if !shared {
            let (unit, class) = (unit_of(port), self.class(port));
            let batch = OwnBatch { unit, class, frames, more: true, lent };
            let payer = Payer::<NoParts>::Unit(batch);
            return self.account.settle(now, payer, || None, books).left;
        }
        let queue = self.ports[port.index()].output.as_deref();
        let sending = queue.map_or(&[][..], OutputQueue::sending);
        let runs = sending.chunk_by(|a, b| a.source == b.source);
        let parts = runs.map(|run| (PortId(run[0].source), run.len() as u64));
        let payer = Payer::Ports { parts, frames: frames as u64 };
        self.account.settle(now, payer, || None, books);
        true
    }

    /// Gives back the memory of what was sent, and polls those again that have little waiting now.
    fn release_sent(&mut self, port: PortId, now: Nanos) {
        let Some(mut queue) = self.ports[port.index()].output.take() else { return };
        for run in queue.sending().chunk_by(|a, b| a.source == b.source) {
            self.ease(&queue, port, PortId(run[0].source), now);
        }
        queue.sent(&mut Memory::of(self.egress.store(), &mut self.ports[port.index()].queues));
        self.ports[port.index()].output = Some(queue);
    }

    fn ease(&mut self, queue: &OutputQueue, port: PortId, source: PortId, now: Nanos) {
        if !self.outputs.pressure.is(port, source) {
            return;
        }
        let memory = Memory::of(self.egress.store(), &mut self.ports[port.index()].queues);
        if queue.is_under(source.0, &memory, now) && self.outputs.pressure.ease(port, source) {
            let peers = &self.egress.peers;
            peers.directory().set_pressed(source, peers.id(), false);
            self.take_back(source, Why::Pressed);
        }
    }

    /// Eases all sources that an output pressed which has nothing waiting any more.
    fn release_pressed(&mut self, port: PortId, now: Nanos) {
        let Some(queue) = self.ports[port.index()].output.take() else { return };
        for source in (0..self.ports.len()).filter_map(|at| u16::try_from(at).ok().map(PortId)) {
            self.ease(&queue, port, source, now);
        }
        self.ports[port.index()].output = Some(queue);
    }

    /// The port's queue is the one that the snapshot names, if there is one.
    pub(super) fn place_queue(&mut self, port: PortId) {
        let now = self.nanos();
        let policy = self.snapshot.ports.get(port.index()).and_then(Option::as_deref);
        let owned = self.ports[port.index()].owned != 0;
        let wanted = policy.and_then(|policy| policy.queue.clone()).filter(|_| owned);
        let here = self.outputs.homes[port.index()].clone();
        let same = match (&wanted, &here) {
            (Some(wanted), Some(here)) => Arc::ptr_eq(wanted, here),
            (None, None) => return,
            _ => false,
        };
        if same {
            if let (Some(queue), Some(home)) =
                (self.ports[port.index()].output.as_deref_mut(), &wanted)
            {
                queue.change(home.pacing(), home.classes(), now);
            }
            return;
        }
        self.take_queue(port);
        if let Some(home) = wanted
            && let Some(mut queue) = home.take()
        {
            queue.change(home.pacing(), home.classes(), now);
            self.ports[port.index()].output = Some(queue);
            self.outputs.homes[port.index()] = Some(home);
        }
    }

    /// A port's queue goes home, empty.
    pub(super) fn take_queue(&mut self, port: PortId) {
        let now = self.nanos();
        let (Some(mut queue), Some(home)) =
            (self.ports[port.index()].output.take(), self.outputs.homes[port.index()].take())
        else {
            return;
        };
        let counters = &self.port_counters;
        let queues = &mut self.ports[port.index()].queues;
        queue.clear(&mut Memory::of(self.egress.store(), queues), now, |source| {
            count_loss(counters, source, port, DropReason::QueueGone);
        });
        match self.outputs.stands[port.index()] {
            Stand::Ready => self.schedule.leave(unit_of(port)),
            Stand::Waits | Stand::Held => {
                self.outputs.wheel.cancel(2 * port.index());
            }
            Stand::Empty => {}
        }
        self.outputs.stands[port.index()] = Stand::Empty;
        self.ports[port.index()].output = Some(queue);
        self.release_pressed(port, now);
        if let Some(queue) = self.ports[port.index()].output.take() {
            home.put(queue);
        }
    }

    /// The last queue pair of a port goes to another worker: its queue goes along, empty. What of
    /// the port's own frames waits here for others stays and goes in its turn.
    pub(super) fn leave_outputs(&mut self, port: PortId) {
        self.take_queue(port);
        self.outputs.elsewhere.retain(|other| *other != port);
        self.outputs.wheel.cancel(2 * port.index() + 1);
        self.outputs.gates.forget(port);
        self.aside.forget(port);
    }

    /// A port goes: nothing of it waits anywhere, and nothing for it.
    pub(super) fn forget_outputs(&mut self, port: PortId) {
        self.leave_outputs(port);
        for other in 0..self.ports.len() {
            let PortSlot { output: Some(queue), queues, .. } = &mut self.ports[other] else {
                continue;
            };
            let target = PortId(u16::try_from(other).unwrap_or(u16::MAX));
            let counters = &self.port_counters;
            queue.forget(&mut Memory::of(self.egress.store(), queues), port.0, |source| {
                count_loss(counters, source, target, DropReason::QueueGone);
            });
        }
        self.outputs.pressure.forget(port);
        let peers = &self.egress.peers;
        peers.directory().set_pressed(port, peers.id(), false);
    }
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

/// Frames that the port can take now.
fn room(queues: &mut [Box<dyn PortQueue>]) -> usize {
    let ready = queues.iter_mut().filter(|queue| queue.tx_ready());
    ready.map(|queue| queue.tx_room()).max().unwrap_or(1)
}

/// Counts a frame of `source` that waited for `target` and is lost.
fn count_loss(
    counters: &[Option<Arc<PortCounters>>],
    source: u16,
    target: PortId,
    reason: DropReason,
) {
    if let Some(counters) = counters.get(usize::from(source)).and_then(Option::as_deref) {
        counters.queued.sub(1);
        counters.drops[reason as usize].add(1);
    }
    if let Some(counters) = counters[target.index()].as_deref() {
        counters.tx_queued.sub(1);
        counters.tx_drops[reason as usize].add(1);
    }
}
