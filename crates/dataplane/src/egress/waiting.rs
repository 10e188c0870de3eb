//! Egress of outputs with a queue: frames go into it, and later out of it to the port.

use std::sync::Arc;

use penstock_qos::delay_scale::part_of;
use penstock_units::{Nanos, PortId, QueueId};

use super::{Delivery, Egress, Touched, Way, account, finish, link_bytes};
use crate::batch::{BATCH_FRAMES, Batch};
use crate::classify::Snapshot;
use crate::counters::PortCounters;
use crate::port::Held;
use crate::queue::{CELL, FrameStore, Memory, Pacing, Source, Stored};
use crate::schedule::Unit;
use crate::worker::PortSlot;

/// Bytes of a worker's store for each port: a large segment that waits, and one that comes. Only
/// what is used takes memory.
const STORE_OF_PORT: usize = 128 << 10;
/// And in all.
const STORE_BYTES: core::ops::RangeInclusive<usize> = 16 << 20..=128 << 20;

/// What a worker's egress knows about queues.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The time of this batch.
    now: Nanos,
    /// Outputs that got a frame in this batch.
    queued: Vec<u16>,
    /// Outputs of which the batch's source has too much waiting.
    over: Vec<u16>,
    /// Made when the first frame has to wait.
    store: FrameStore,
    /// By port: how long the last of its frames waited.
    last: Box<[Option<Nanos>]>,
}

impl Waiting {
    pub(super) fn new(ports: usize) -> Self {
        let bytes = (ports * STORE_OF_PORT).clamp(*STORE_BYTES.start(), *STORE_BYTES.end());
        let store = FrameStore::new(bytes / CELL);
        let list = || Vec::with_capacity(ports);
        let (now, queued, over) = (Nanos::ZERO, list(), list());
        Self { now, queued, over, store, last: vec![None; ports].into_boxed_slice() }
    }

    /// The time of this batch.
    pub(super) const fn now(&self) -> Nanos {
        self.now
    }
}

impl Waiting {
    /// Counts how long frames of a port waited, and how that varied.
    fn account(&mut self, port: u16, waits: &[Nanos], counters: &PortCounters) {
        let Some(last) = self.last.get_mut(usize::from(port)) else { return };
        for wait in waits {
            counters.waited[part_of(*wait)].add(1);
            if let Some(before) = last.replace(*wait) {
                counters.varied[part_of(Nanos(wait.0.abs_diff(before.0)))].add(1);
            }
        }
    }
}

impl Egress {
    /// The time from which on frames of this batch wait.
    #[inline(always)]
    pub(crate) fn set_now(&mut self, now: Nanos) {
        self.waiting.now = now;
    }

    /// Whether a queue got frames since it was last asked for.
    #[inline(always)]
    pub(crate) fn has_queued(&self) -> bool {
        !self.waiting.queued.is_empty() || !self.waiting.over.is_empty()
    }

    /// The next output whose queue got frames.
    pub(crate) fn next_queued(&mut self) -> Option<PortId> {
        self.waiting.queued.pop().map(PortId)
    }

    /// The next output that has too much of the batch's source waiting.
    pub(crate) fn next_over(&mut self) -> Option<PortId> {
        self.waiting.over.pop().map(PortId)
    }

    /// Where frames wait.
    pub(crate) fn store(&mut self) -> &mut FrameStore {
        &mut self.waiting.store
    }

    /// Puts the listed frames, which have the output's form, into its queue.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "as `send`")]
    pub(super) fn enqueue(
        &mut self,
        batch: &Batch,
        source: PortId,
        slot: &mut PortSlot,
        output: u16,
        frames: &[u8],
        snapshot: &Snapshot,
        delivery: &mut Delivery,
    ) {
        let PortSlot { queues, output: Some(queue), .. } = slot else { return };
        let Some(caps) = queues.iter().find(|queue| queue.tx_ready()).map(|queue| queue.caps())
        else {
            delivery.outcome.down += u32::try_from(frames.len()).unwrap_or(0);
            return;
        };
        let from = source_of(source, snapshot);
        // A large segment would leave a shaper all at once.
        let cuts = matches!(queue.terms().pacing, Pacing::Shaped(_));
        let Waiting { now, store, .. } = &mut self.waiting;
        let memory = &mut Memory::of(store, queues);
        let finished = memory.is_the_ports();
        let mut push = |part: &Batch, i: usize, delivery: &mut Delivery| match queue
            .push(memory, part, i, &from, *now)
        {
            Ok(()) => delivery.waiting += 1,
            Err(_) => delivery.queue_full += 1,
        };
        for &i in frames {
            let i = usize::from(i);
            let offload = batch.at(i).offload;
            if !(cuts && offload.is_gso()) && (!finished || caps.takes(offload)) {
                push(batch, i, delivery);
                continue;
            }
            self.finisher.run(batch, i, delivery, |parts, delivery| {
                (0..parts.len()).for_each(|part| push(parts, part, delivery));
            });
        }
        if queue.is_over(source.0, memory, *now) && !self.waiting.over.contains(&output) {
            self.waiting.over.push(output);
        }
        if delivery.waiting > 0 && !self.waiting.queued.contains(&output) {
            self.waiting.queued.push(output);
        }
    }

    /// Sends what left the queue of `port`, all of `batch`, and counts it at its sources.
    pub(crate) fn depart(
        &mut self,
        batch: &Batch,
        port: PortId,
        ports: &mut [PortSlot],
        counters: &[Option<Arc<PortCounters>>],
        snapshot: &Snapshot,
        touched: &mut Touched,
    ) {
        self.finisher.cuts_left = finish::CUTS_PER_TURN_MAX;
        let slot = &mut ports[port.index()];
        let Some(queue) = slot.output.take() else { return };
        let policy = snapshot.port(port.0);
        let watched = policy.is_some_and(|policy| policy.watched);
        if let Some(streams) = policy.and_then(|policy| policy.rtp.as_ref()) {
            streams.measure(batch, &super::ALL[..batch.len()], self.waiting.now);
        }
        let mut first = 0;
        for run in queue.sending().chunk_by(|a, b| a.source == b.source) {
            let (frames, waits) = (first..first + run.len(), queue.waits());
            let (frames, waits) = (&super::ALL[frames.clone()], &waits[frames]);
            first += run.len();
            let from = snapshot.port(run[0].source).map(|policy| &**policy);
            let way = Way::of(from, policy.map(|policy| &**policy));
            let mut delivery = Delivery { way, ..Delivery::default() };
            if run[0].in_port().is_some() {
                self.send_held(slot, port, run, &mut delivery, touched);
            } else if slot.queues.len() == 1 {
                let way = (PortId(run[0].source), port.0, 0);
                self.send_to_queue(batch, slot, way, frames, &mut delivery, touched);
            } else {
                let source = PortId(run[0].source);
                self.spread(batch, source, slot, port.0, frames, &mut delivery, touched);
            }
            if watched {
                delivery.link = link_bytes(batch, frames, &delivery.outcome);
            }
            let target = counters[port.index()].as_deref();
            if let Some(target) = target {
                target.tx_queued.sub(run.len() as u64);
                waits.iter().for_each(|wait| target.tx_waited[part_of(*wait)].add(1));
            }
            let source = counters.get(usize::from(run[0].source)).and_then(Option::as_deref);
            // Of a port that left meanwhile nobody counts.
            if let Some(source) = source {
                source.queued.sub(run.len() as u64);
                self.waiting.account(run[0].source, waits, source);
                account(&delivery, source, target);
            }
        }
        slot.output = Some(queue);
    }

    /// Sends frames that wait in the port's own memory.
    fn send_held(
        &mut self,
        slot: &mut PortSlot,
        port: PortId,
        run: &[Stored],
        delivery: &mut Delivery,
        touched: &mut Touched,
    ) {
        let PortSlot { queues, marked, .. } = slot;
        let [pair] = &mut queues[..] else { return };
        let Some(buffers) = pair.buffers() else { return };
        let mut held = [Held::default(); BATCH_FRAMES];
        let frames = run.iter().filter_map(Stored::in_port).take(BATCH_FRAMES);
        let count = held.iter_mut().zip(frames).map(|(to, frame)| *to = frame).count();
        let mut outcome = buffers.send(&held[..count]);
        let taken = (outcome.frames + outcome.down + outcome.error) as usize;
        for frame in &held[taken.min(count)..count] {
            buffers.release(*frame);
            outcome.ring_full += 1;
        }
        super::merge(&mut delivery.outcome, outcome);
        pair.publish();
        let (unit, source) = (Unit { port, queue: QueueId(0) }, PortId(run[0].source));
        touched.gave(unit, &mut marked[0], source, run.len());
    }
}

/// Whose the frames of port `source` are.
fn source_of(source: PortId, snapshot: &Snapshot) -> Source {
    let policy = snapshot.ports.get(source.index()).and_then(Option::as_deref);
    Source {
        port: source.0,
        tenant: policy.and_then(|policy| policy.tenant).map_or(0, |tenant| tenant + 1),
        share: policy.map(|policy| policy.share).unwrap_or_default(),
    }
}
