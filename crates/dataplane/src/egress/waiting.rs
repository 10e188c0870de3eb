//! Egress of outputs with a queue: frames go into it, and later out of it to the port.

use std::sync::Arc;

use penstock_units::{Nanos, PortId};

use super::{Delivery, Egress, Touched, account, link_bytes};
use crate::batch::Batch;
use crate::classify::Snapshot;
use crate::counters::PortCounters;
use crate::queue::{CELL, FrameStore, Pacing, Source};
use crate::worker::PortSlot;

/// Cells of a worker's store: 16 MiB, of which only what is used takes memory.
const CELLS: usize = (16 << 20) / CELL;

/// What a worker's egress knows about queues.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The time of this batch.
    now: Nanos,
    /// Outputs that got a frame in this batch.
    queued: Vec<u16>,
    /// Whether the source has too much waiting somewhere.
    over: bool,
    /// Made when the first frame has to wait.
    store: FrameStore,
}

impl Waiting {
    pub(super) fn new(ports: usize) -> Self {
        let store = FrameStore::new(CELLS);
        Self { now: Nanos::ZERO, queued: Vec::with_capacity(ports), over: false, store }
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
        !self.waiting.queued.is_empty() || self.waiting.over
    }

    /// The next output whose queue got frames.
    pub(crate) fn next_queued(&mut self) -> Option<PortId> {
        self.waiting.queued.pop().map(PortId)
    }

    /// Whether the batch's source has too much waiting; asked once.
    pub(crate) fn take_over_bound(&mut self) -> bool {
        core::mem::take(&mut self.waiting.over)
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
        let Some(queue) = slot.output.as_deref_mut() else { return };
        if !slot.queues.iter().any(|queue| queue.tx_ready()) {
            delivery.outcome.down += u32::try_from(frames.len()).unwrap_or(0);
            return;
        }
        let policy = snapshot.ports.get(source.index()).and_then(Option::as_deref);
        let from = Source {
            port: source.0,
            tenant: policy.and_then(|policy| policy.tenant).map_or(0, |tenant| tenant + 1),
            share: policy.map(|policy| policy.share).unwrap_or_default(),
        };
        // A large segment would leave a shaper all at once.
        let cuts = matches!(queue.terms().pacing, Pacing::Shaped(_));
        let Waiting { now, store, .. } = &mut self.waiting;
        for &i in frames {
            let i = usize::from(i);
            if cuts && batch.at(i).offload.is_gso() {
                let wanted = self.segmenter.begin(batch, i).ok();
                let Some(segments) = wanted.filter(|segments| *segments <= self.cuts_left) else {
                    delivery.outcome.too_big += 1;
                    continue;
                };
                self.cuts_left -= segments;
                delivery.sw_tso += 1;
                delivery.replicated += segments as u64 - 1;
                loop {
                    self.scratch.clear();
                    let done = self.segmenter.fill(&mut self.scratch);
                    for part in 0..self.scratch.len() {
                        match queue.push(store, &self.scratch, part, &from, *now) {
                            Ok(()) => delivery.waiting += 1,
                            Err(_) => delivery.queue_full += 1,
                        }
                    }
                    if done {
                        break;
                    }
                }
                continue;
            }
            match queue.push(store, batch, i, &from, *now) {
                Ok(()) => delivery.waiting += 1,
                Err(_) => delivery.queue_full += 1,
            }
        }
        let over = queue.is_over(source.0, store, *now);
        self.waiting.over |= over;
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
        self.cuts_left = super::finish::CUTS_PER_TURN_MAX;
        let slot = &mut ports[port.index()];
        let Some(queue) = slot.output.take() else { return };
        let watched = snapshot.port(port.0).is_some_and(|policy| policy.watched);
        let mut first = 0;
        for run in queue.sending().chunk_by(|a, b| a.source == b.source) {
            let frames = &super::ALL[first..first + run.len()];
            first += run.len();
            let mut delivery = Delivery::default();
            if slot.queues.len() == 1 {
                self.send_to_queue(batch, slot, port.0, 0, frames, &mut delivery, touched);
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
            }
            let source = counters.get(usize::from(run[0].source)).and_then(Option::as_deref);
            // Of a port that left meanwhile nobody counts.
            if let Some(source) = source {
                source.queued.sub(run.len() as u64);
                account(&delivery, source, target);
            }
        }
        slot.output = Some(queue);
    }
}
