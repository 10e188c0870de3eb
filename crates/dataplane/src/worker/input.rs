//! Runs the batch of a queue pair: receives, polices, classifies and delivers the frames.

use std::sync::Arc;

use penstock_units::{Cycles, Nanos, PortId, WorkerId};

use super::WorkerConfig;
use super::account::OwnBatch;
use super::aside::Why;
use super::bill::Taken;
use super::clock::Clock;
use super::context::Context;
use super::cutter::Spares;
use super::roster::{Event, Roster};
use super::sampler::Sampler;
use super::shaping::{Gates, Holder, Limits, SOON};
use crate::batch::{BATCH_FRAMES, Batch};
use crate::capture::Captures;
use crate::classify::{Classifier, ClassifierConfig};
use crate::congestion::{Signal, signal};
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::egress::PortSlot;
use crate::headers::key::FlowKey;
use crate::headers::parse::TCP;
use crate::headers::{is_ect, key_of};
use crate::inbound_shares::admit;
use crate::ingress_policer::count_segments;
use crate::pairs::arrive;
use crate::port::PortQueue;
use crate::snapshot::{PortPolicy, Snapshot};
use crate::tsc::{CycleCounter, Stage, Work};
use crate::unit::Unit;
use penstock_qos::delay_scale::part_of;
use penstock_qos::pair_table::PairTable;

/// Reasons why the worker does more with a port's frames than to take them from the port's ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Apart {
    /// The worker copies the frames into memory of the switch before it delivers them
    /// ([`super::Worker::stop_sleeper`]).
    copied: bool,
    /// The port has a cutter for its large segments.
    cut: bool,
    /// The port has a rate limit for which frames wait.
    waits: bool,
    /// A capture takes frames of the port.
    captured: bool,
}

/// A worker's state for receiving and classifying the batches of its queue pairs.
#[derive(Debug)]
pub(super) struct Input {
    classifier: Classifier,
    /// For each port, the shaper and the rate limit that make the port's frames wait in the ring.
    gates: Gates,
    /// For each port, why its frames are not only taken from its ring.
    apart: Box<[Apart]>,
    /// Pairs of VMs with their own rates. A VM that exceeds the sum of its pairs' rates waits.
    pairs: Option<Arc<PairTable>>,
    sampler: Sampler,
}

impl Input {
    pub fn new(config: &WorkerConfig) -> Self {
        Self {
            classifier: Classifier::new(&ClassifierConfig {
                fdb_entries: config.fdb_entries,
                seed: config.seed,
                max_ports: config.max_ports,
            }),
            gates: Gates::new(config.max_ports),
            apart: vec![Apart::default(); config.max_ports].into_boxed_slice(),
            pairs: None,
            sampler: Sampler::new(),
        }
    }

    /// Makes this input the input of worker number `me`. If `shares` is true, the worker's MAC
    /// table reports new addresses to other workers.
    pub fn for_worker(mut self, me: WorkerId, shares: bool) -> Self {
        if shares {
            self.classifier.fdb_mut().share();
        }
        self.classifier = self.classifier.for_worker(me.index());
        self
    }

    pub const fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    pub const fn classifier_mut(&mut self) -> &mut Classifier {
        &mut self.classifier
    }

    pub fn on_snapshot(&mut self, new: &Snapshot) {
        self.classifier.on_snapshot(new);
    }

    /// Adopts a snapshot that decides about all frames as the snapshot of generation `before`.
    pub fn on_like_snapshot(&mut self, before: u64, new: &Snapshot) {
        self.classifier.on_like_snapshot(before, new);
    }

    /// Sets the pairs of VMs with their own rates.
    pub fn set_pairs(&mut self, pairs: Option<&Arc<PairTable>>) {
        self.pairs = pairs.cloned();
    }

    /// Returns the cutters that no port uses.
    pub fn spares(&self) -> Arc<Spares> {
        Arc::clone(self.gates.spares())
    }

    /// Returns the shapers and rate limits of all ports.
    #[cfg(test)]
    pub fn state(&self) -> String {
        format!("{:?} {:?}", self.gates, self.apart)
    }

    /// Makes the worker copy the port's frames into memory of the switch first. Returns false if
    /// the worker already copies the port's frames.
    pub fn set_apart(&mut self, port: PortId) -> bool {
        let apart = self.apart.get_mut(port.index());
        apart.is_some_and(|apart| !core::mem::replace(&mut apart.copied, true))
    }

    /// Sets whether a capture takes frames that the worker receives from the port.
    pub fn set_captured(&mut self, port: PortId, captured: bool) {
        if let Some(apart) = self.apart.get_mut(port.index()) {
            apart.captured = captured;
        }
    }

    /// Receives one batch from a queue pair, and delivers its frames. Returns `None` if no frame
    /// waited at the queue pair. `lent` is true if the port has no tokens and uses time that no
    /// port with tokens needs.
    #[inline]
    pub fn run<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        unit: Unit,
        waited: Cycles,
        lent: bool,
    ) -> Option<Taken> {
        self.run_as::<C, false>(ctx, unit, waited, lent)
    }

    /// Runs a batch of a port with a capture.
    #[cold]
    fn run_captured<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        unit: Unit,
        waited: Cycles,
        lent: bool,
    ) -> Option<Taken> {
        if ctx.begin_captures() {
            return self.run_as::<C, true>(ctx, unit, waited, lent);
        }
        // Until control ends the pause, the batches of all ports are like those without captures.
        self.apart.iter_mut().for_each(|apart| apart.captured = false);
        self.run(ctx, unit, waited, lent)
    }

    /// Runs a batch. `SEEN` is true if a capture takes frames of the port.
    #[inline(always)]
    fn run_as<C: CycleCounter, const SEEN: bool>(
        &mut self,
        ctx: &mut Context<C>,
        unit: Unit,
        waited: Cycles,
        lent: bool,
    ) -> Option<Taken> {
        let id = unit.port.index();
        let snapshot = &*ctx.snapshot;
        let policy = snapshot.ports.get(id)?.as_deref()?;
        let counters = ctx.port_counters[id].as_deref()?;
        let sample = self.sampler.count();
        let (batch, class) = (&mut ctx.batch, policy.qos.priority);
        batch.clear();
        batch.limit(ctx.account.batch_limit(unit.port, class).min(self.batch_limit(unit.port)));
        let queue = &mut *ctx.ports[id].queues[unit.queue.index()];
        let counted = if self.apart[id] == Apart::default() {
            queue.rx_burst(batch);
            false
        } else if !SEEN && self.apart[id].captured {
            self.sampler.undo();
            return self.run_captured(ctx, unit, waited, lent);
        } else {
            let times = times(&ctx.clock, ctx.account.last(), waited);
            let captures = &mut ctx.egress.captures;
            self.receive_apart(batch, queue, unit, times, (counters, captures))
        };
        let batch = &mut **batch;
        let (frames, more) = (batch.len(), !batch.has_room());
        if frames == 0 && batch.errors == 0 {
            return self.nothing(ctx, unit, counted);
        }
        let mut work = Work { port: unit.port, frames, bytes: batch.bytes(), misses: 0 };
        ctx.counter.spent(Stage::Ingress, &work);
        let taken = if sample { ctx.counter.now() } else { Cycles::ZERO };
        if !counted {
            count_taken(counters, batch);
        }
        let last = ctx.account.last();
        let (second, nanos) = (ctx.clock.second(last), ctx.clock.nanos(last));
        if SEEN {
            ctx.egress.captures.received(batch, unit, policy.ingress_policer.is_some());
        }
        if let Some(limits) = &policy.ingress_policer {
            limits.police(batch, Nanos(nanos), counters);
            (work.frames, work.bytes) = (batch.len(), batch.bytes());
        }
        if SEEN {
            ctx.egress.captures.policed(batch);
        }
        let (port, classifier) = (unit.port.0, &mut self.classifier);
        work.misses = classifier.classify(batch, port, policy, snapshot, second, nanos, counters);
        ctx.counter.spent(Stage::Classification, &work);
        let classified = if sample { ctx.counter.now() } else { Cycles::ZERO };

        let (now, all, size) = (Nanos(nanos), &ctx.port_counters, (frames, more));
        let ring = || ring_of(&mut ctx.ports, unit, size, self.gates.is_gated(unit.port));
        let left = from_uplink(batch, (policy, snapshot), ring, now, all);
        (work.frames, work.bytes) = left.unwrap_or((work.frames, work.bytes));
        ctx.deliver(unit.port, now, true);
        give_back(ctx, unit);
        ctx.counter.spent(Stage::Egress, &work);
        self.sampler.renew_if(sample);
        Some(Taken {
            batch: OwnBatch { unit, class, frames, more, lent },
            priced: (work.frames, work.bytes),
            waited,
            edges: sample.then_some([taken, classified]),
        })
    }

    /// Returns the number of frames that a port's limits let the worker take at once.
    #[inline]
    fn batch_limit(&self, port: PortId) -> usize {
        let paired = self.pairs.as_ref().map_or(BATCH_FRAMES, |pairs| pairs.batch_limit(port.0));
        self.gates.limit(port).min(paired)
    }

    /// Ends a look at a queue pair without frames. `counted` is true if the only frame was dropped
    /// as a signal.
    #[inline]
    fn nothing<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        unit: Unit,
        counted: bool,
    ) -> Option<Taken> {
        if let Some(counters) = ctx.of(unit.port) {
            counters.rx_empty.add(1);
        }
        if let Some(shares) = ctx.policy(unit.port).and_then(|policy| policy.inbound.as_ref()) {
            shares.note_empty(unit.queue.index());
        }
        self.sampler.undo();
        if counted {
            give_back(ctx, unit);
        }
        None
    }

    /// Fills `batch` for a port in [`Self::apart`]. The next frame of the ring arrived at time
    /// `arrived`. Returns true if the frames were already counted when the worker took them from
    /// the ring.
    #[cold]
    fn receive_apart(
        &mut self,
        batch: &mut Box<Batch>,
        queue: &mut dyn PortQueue,
        unit: Unit,
        (arrived, now): (Nanos, Nanos),
        (counters, captures): (&PortCounters, &mut Captures),
    ) -> bool {
        let counted = self.fill(batch, queue, unit, arrived, counters);
        let may_signal =
            self.apart[unit.port.index()].waits && !batch.is_empty() && self.gates.is_held(unit);
        if !may_signal {
            return counted;
        }
        let Some(key) = heeds_signals(batch, unit.port) else { return counted };
        let first = (self.classifier.flow_hash(&key), batch.frame(0).len);
        if !self.gates.signals(unit, first, queue.backlog().unwrap_or(0), now) {
            return counted;
        }
        if !counted {
            count_taken(counters, batch);
        }
        if !signal_first(batch, unit, counters, captures) {
            // More frames wait behind the only frame, which was dropped.
            queue.rx_done();
            batch.clear();
            if !self.fill(batch, queue, unit, arrived, counters) {
                count_taken(counters, batch);
            }
        }
        true
    }

    /// Fills `batch` from the port's cutter, or from the ring if the cutter is empty. Returns true
    /// if the frames were already counted.
    fn fill(
        &mut self,
        batch: &mut Box<Batch>,
        queue: &mut dyn PortQueue,
        unit: Unit,
        arrived: Nanos,
        counters: &PortCounters,
    ) -> bool {
        let port = unit.port;
        let Apart { copied, cut, waits, .. } = self.apart[port.index()];
        if cut {
            if self.gates.give(port, batch, counters) {
                return true;
            }
            self.apart[port.index()].cut = self.gates.cuts(port);
        }
        queue.rx_burst(batch);
        if waits {
            self.gates.note_sizes(unit, batch);
        }
        let large = batch.frames().iter().any(|frame| frame.offload.is_gso());
        let cutter = self.gates.cutter_of_next(port).filter(|_| large);
        batch.take_in_if(copied || cutter.is_some());
        let Some(cutter) = cutter else { return false };
        count_taken(counters, batch);
        let most = batch.most();
        cutter.take(batch, (unit.queue, arrived), counters);
        batch.limit(most);
        self.gates.give(port, batch, counters)
    }

    /// Whether frames of the port wait in the port's cutter.
    #[inline]
    pub fn holds(&self, port: PortId) -> bool {
        self.apart[port.index()].cut && self.gates.holds(port)
    }

    /// After a batch was charged, counts how long the batch's frames waited in the port's ring.
    /// Puts a port with a shaper or a rate limit aside until its next frame is due.
    #[inline]
    pub fn after<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        taken: &Taken,
    ) {
        let (unit, waited, last) = (taken.batch.unit, taken.waited, ctx.last());
        let (second, nanos) = (ctx.clock.second(last), ctx.clock.nanos(waited));
        if let Some(counters) = ctx.of(unit.port) {
            roster.delays.count(unit.port, second, nanos, counters);
        }
        roster.delays.begin(unit, last);
        let has_pairs = |pairs: &Arc<PairTable>| pairs.is_limited(unit.port.0);
        if self.gates.is_gated(unit.port) || self.pairs.as_ref().is_some_and(has_pairs) {
            self.hold(ctx, roster, unit.port, Nanos(nanos));
        }
    }

    #[inline(never)]
    fn hold<C: CycleCounter>(
        &mut self,
        ctx: &mut Context<C>,
        roster: &mut Roster,
        port: PortId,
        waited: Nanos,
    ) {
        if self.gates.is_shaped(port) {
            self.shape(ctx, roster, port, waited);
        }
        self.gates.note_leaves(port, ctx.egress.take_left(port), ctx.nanos());
        let held = self.held(ctx, roster, port);
        self.gates.note_held(port, held);
        if let Some((_, holder)) = held {
            roster.put_aside(ctx, port, Why::Policed);
            if let Some(counters) = ctx.of(port) {
                let waits = match holder {
                    Holder::Bits => &counters.police_waits,
                    Holder::Frames => &counters.police_pps_waits,
                    Holder::Network => &counters.send_waits,
                    Holder::Link(_) => &counters.link_waits,
                };
                waits.add(1);
            }
        }
    }

    /// Lets the worker poll a port again if the port's rate limit is out of debt. If the rate limit
    /// is still in debt, the worker still does not poll the port.
    pub fn release<C: CycleCounter>(
        &mut self,
        ctx: &Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        if self.held(ctx, roster, port).is_none() {
            roster.take_back(ctx, port, Why::Policed);
        }
    }

    /// Returns the rate limit for which a port must wait because the limit is in debt for more than
    /// [`SOON`], with the wait, and arms the timer event for the time at which the debt is paid.
    /// Returns `None` if the port need not wait.
    fn held<C: CycleCounter>(
        &self,
        ctx: &Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) -> Option<(Nanos, Holder)> {
        let now = ctx.nanos();
        let (wait, holder) = self.gates.debt(port, now);
        let pairs = self.pairs.as_ref().map_or(Nanos::ZERO, |pairs| pairs.wait(port.0, now));
        let (wait, holder) = if pairs > wait { (pairs, Holder::Network) } else { (wait, holder) };
        if wait <= SOON {
            return None;
        }
        roster.arm(Event::Policed(port), Nanos(now.0.saturating_add(wait.0)));
        Some((wait, holder))
    }

    fn shape<C: CycleCounter>(
        &mut self,
        ctx: &Context<C>,
        roster: &mut Roster,
        port: PortId,
        waited: Nanos,
    ) {
        let now = ctx.nanos();
        let since = now.saturating_sub(waited);
        if let Some(counters) = ctx.of(port) {
            // The parts of a segment have waited since the segment arrived.
            let waited = now.saturating_sub(self.gates.arrived(port).unwrap_or(since));
            let waited = self.gates.shaped_wait(port, &ctx.batch, waited);
            counters.shaped[part_of(waited)].add(ctx.batch.len() as u64);
        }
        if let Some(at) = self.gates.pass(port, &ctx.batch, since, now)
            && at > now + SOON
        {
            roster.arm(Event::Shaped(port), at);
            roster.put_aside(ctx, port, Why::Shaped);
        }
    }

    /// Gives a port the shaper and the rate limits that the snapshot contains for the port.
    pub fn place_gate<C: CycleCounter>(
        &mut self,
        ctx: &Context<C>,
        roster: &mut Roster,
        port: PortId,
    ) {
        let policy = ctx.policy(port);
        let terms = policy.and_then(|policy| policy.shape);
        let gone = self.gates.set(port, terms.as_ref(), Limits::of(policy));
        if let Some(apart) = self.apart.get_mut(port.index()) {
            apart.cut = self.gates.cuts(port) || self.gates.holds(port);
            apart.waits = self.gates.has_early(port);
        }
        if gone.shaper {
            roster.cancel(Event::Shaped(port));
            roster.take_back(ctx, port, Why::Shaped);
        }
        if gone.policer {
            roster.cancel(Event::Policed(port));
            roster.take_back(ctx, port, Why::Policed);
        }
    }

    /// Removes the state of a port that has no more queue pairs on this worker.
    pub fn forget<C: CycleCounter>(&mut self, ctx: &Context<C>, port: PortId) {
        let lost = self.gates.forget(port) as u64;
        if let Some(counters) = ctx.of(port).filter(|_| lost > 0) {
            counters.queued.sub(lost);
            counters.drops[DropReason::QueueGone as usize].add(lost);
        }
        if let Some(apart) = self.apart.get_mut(port.index()) {
            (apart.cut, apart.waits) = (false, false);
        }
    }
}

/// Returns the time at which frames that waited for `waited` arrived, and the present time.
fn times(clock: &Clock, now: Cycles, waited: Cycles) -> (Nanos, Nanos) {
    let nanos = |at| Nanos(clock.nanos(at));
    (nanos(now.saturating_sub(waited)), nanos(now))
}

/// Returns a queue pair, and the number of frames that wait in its ring behind a batch of `frames`
/// frames. If the batch was `full`, the number is in units of 1/32 of the batch, because a batch of
/// large segments has few frames. A port that cannot tell the number has a backlog if the batch was
/// full. The frames of a `gated` port wait for the port's limit and not for the core, so the port
/// has no backlog.
#[cold]
fn ring_of(
    ports: &mut [PortSlot],
    unit: Unit,
    (frames, full): (usize, bool),
    gated: bool,
) -> (Unit, usize) {
    if gated {
        return (unit, 0);
    }
    let backlog = match ports[unit.port.index()].queues[unit.queue.index()].backlog() {
        Some(backlog) if full => backlog * BATCH_FRAMES / frames.max(1),
        Some(backlog) => backlog,
        None if full => BATCH_FRAMES + 1,
        None => 0,
    };
    (unit, backlog)
}

/// Applies the shares and the pairs of an uplink to a batch that arrived through it. `ring` returns
/// the queue pair of the batch, with the number of frames that wait behind the batch. Returns the
/// numbers of frames and bytes that pass, if the uplink has shares.
#[inline(always)]
fn from_uplink(
    batch: &mut Batch,
    (policy, snapshot): (&PortPolicy, &Snapshot),
    ring: impl FnOnce() -> (Unit, usize),
    now: Nanos,
    counters: &[Option<Arc<PortCounters>>],
) -> Option<(usize, usize)> {
    let shares = policy.inbound.as_ref();
    let left = shares.map(|shares| admit(shares, batch, ring(), now, counters));
    if let Some(pairs) = &policy.pairs {
        arrive(pairs, batch, policy.id, now, counters, snapshot);
    }
    left
}

/// Returns the buffers of a received batch to the driver of the queue pair.
#[inline(always)]
fn give_back<C: CycleCounter>(ctx: &mut Context<C>, unit: Unit) {
    let slot = &mut ctx.ports[unit.port.index()];
    let queue = &mut slot.queues[unit.queue.index()];
    queue.rx_done();
    queue.publish();
    ctx.touched.took(unit, &mut slot.marked[unit.queue.index()]);
}

/// Returns the headers of the first frame of a batch, if the frame is one of TCP or supports ECN.
/// The senders of other frames would not slow down after a signal.
fn heeds_signals(batch: &mut Batch, port: PortId) -> Option<FlowKey> {
    let key = key_of(batch, 0, port)?;
    (key.proto() == TCP || is_ect(batch.head(0))).then_some(key)
}

/// Makes the first frame of a batch signal that a limit holds the port. Returns false if the frame
/// was the only one and is dropped.
fn signal_first(
    batch: &mut Batch,
    unit: Unit,
    counters: &PortCounters,
    captures: &mut Captures,
) -> bool {
    match signal(batch, 0) {
        Signal::Marked => counters.rx_marked.add(1),
        Signal::Trimmed => counters.rx_trimmed.add(1),
        Signal::Drop => {
            counters.drops[DropReason::EarlySignal as usize].add(1);
            captures.refused(batch, 0, unit, DropReason::EarlySignal);
            batch.retain(!1);
        }
    }
    !batch.is_empty()
}

/// Adds the cycles of each stage of a batch (reception, classification and delivery) to the port's
/// counters.
pub(super) fn count_stages(
    counters: &PortCounters,
    frames: usize,
    [began, taken, classified, ended]: [Cycles; 4],
) {
    counters.sampled_frames.add(frames as u64);
    counters.cycles_ingress.add(taken.saturating_sub(began).0);
    counters.cycles_classification.add(classified.saturating_sub(taken).0);
    counters.cycles_egress.add(ended.saturating_sub(classified).0);
}

/// Counts the frames, bytes and errors of a received batch, before policing and classification.
#[inline]
fn count_taken(counters: &PortCounters, batch: &mut Batch) {
    counters.rx_batches.add(1);
    counters.rx_frames.add(batch.len() as u64);
    counters.rx_bytes.add(batch.bytes() as u64);
    if !batch.has_room() {
        counters.rx_full.add(1);
    }
    if batch.errors > 0 {
        counters.rx_errors.add(u64::from(batch.errors));
        batch.errors = 0;
    }
    if batch.asks_for_offloads() {
        count_offloads(batch, counters);
    }
}

fn count_offloads(batch: &mut Batch, counters: &PortCounters) {
    let (mut tso, mut csum) = (0, 0);
    for frame in batch.frames() {
        tso += u64::from(frame.offload.is_gso());
        csum += u64::from(frame.offload.needs_csum());
    }
    counters.rx_tso.add(tso);
    counters.rx_csum.add(csum);
    if tso > 0 {
        count_segments(batch, counters);
    }
}
