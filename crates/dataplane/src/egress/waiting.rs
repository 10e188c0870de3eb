//! At an output with a queue, egress puts frames into the queue, and later sends the frames from
//! the queue to the port.

use std::sync::Arc;

use penstock_qos::delay_scale::part_of;
use penstock_qos::egress_policer::Policed;
use penstock_qos::pair_table::PairTable;
use penstock_units::{Nanos, PortId, QueueId};

use super::account::{count_loss, drops};
use super::direct::Whole;
use super::pairs::pair_size;
use super::{Around, Delivery, Egress, PortSlot, Way, account, link_bytes};
use crate::batch::{BATCH_BYTES, BATCH_FRAMES, Batch, FRAME_MAX};
use crate::capture::Captures;
use crate::counters::PortCounters;
use crate::finish;
use crate::ingress_policer::on_wire;
use crate::port::{Buffers, Held, TxOutcome};
use crate::queue::{CELL, FrameStore, Memory, OutputQueue, Refused, Source, Stored};
use crate::snapshot::Snapshot;
use crate::unit::Unit;

/// Bytes of a worker's frame store for each port: room for a large segment that waits and another
/// that arrives. Only used cells of the store take memory.
const STORE_OF_PORT: usize = 128 << 10;
/// Minimum and maximum size of a worker's frame store, in bytes, without the reserve. In a store of
/// 64 MiB, six VMs find room for 8 MiB each, although no VM gets more than half of the free memory.
const STORE_BYTES: core::ops::RangeInclusive<usize> = 64 << 20..=128 << 20;
/// Cells that the frames of one batch take at most.
const BATCH_CELLS: usize = (BATCH_BYTES + FRAME_MAX).div_ceil(CELL) + BATCH_FRAMES;
/// Maximum number of source ports for which the store has a reserve of one batch.
const RESERVE_PORTS: usize = 512;

/// State of a worker's egress for outputs with queues.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Time of the current batch on the worker's clock.
    now: Nanos,
    /// Source of the last batch with frames to a shared port to which a limit of the sender's
    /// tenant may apply, or `u16::MAX`.
    pub(super) left: u16,
    /// Outputs that put a frame of the current batch into their queue.
    queued: Vec<u16>,
    /// Output ports at which too many frames of the current batch's source port wait.
    over: Vec<u16>,
    /// The last batch, if all its frames went to one output that may let the next batch of its
    /// source pass.
    pub(super) whole: Option<Whole>,
    /// The worker's frame store, which contains cells for waiting frames. The frame store takes no
    /// memory before the first frame waits.
    store: FrameStore,
    /// Wait of each port's last frame that left a queue, indexed by port number. The last wait of a
    /// port is `None` if no frame of the port has left a queue.
    last: Box<[Option<Nanos>]>,
}

impl Waiting {
    pub(super) fn new(ports: usize) -> Self {
        let bytes = (ports * STORE_OF_PORT).clamp(*STORE_BYTES.start(), *STORE_BYTES.end());
        let reserve = ports.min(RESERVE_PORTS) * BATCH_CELLS;
        let store = FrameStore::with_reserve(bytes / CELL, reserve);
        let list = || Vec::with_capacity(ports);
        let (now, queued, over) = (Nanos::ZERO, list(), list());
        Self {
            now,
            left: u16::MAX,
            queued,
            over,
            whole: None,
            store,
            last: vec![None; ports].into_boxed_slice(),
        }
    }

    /// Returns the time of the current batch.
    pub(super) const fn now(&self) -> Nanos {
        self.now
    }

    /// Notes that frames of the batch wait at an output (`waits`), and that too many frames of the
    /// batch's source wait there (`presses`).
    #[inline]
    fn note(&mut self, output: u16, waits: bool, presses: bool) {
        if presses && !self.over.contains(&output) {
            self.over.push(output);
        }
        if waits && !self.queued.contains(&output) {
            self.queued.push(output);
        }
    }
}

impl Waiting {
    /// Counts how long frames of a port waited, and how much the waits of successive frames differ.
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
    /// Sets the time from which the waits of the current batch's frames are measured.
    #[inline(always)]
    pub(crate) fn set_now(&mut self, now: Nanos) {
        self.waiting.now = now;
    }

    /// Whether the last batch of `source` had frames to a shared port, so that a limit of the
    /// sender's tenant may apply. Forgets that the batch had such frames.
    pub(crate) fn take_left(&mut self, source: PortId) -> bool {
        let left = self.waiting.left == source.0;
        if left {
            self.waiting.left = u16::MAX;
        }
        left
    }

    /// Whether [`Self::next_queued`] or [`Self::next_over`] has more outputs to return.
    #[inline(always)]
    pub(crate) fn has_queued(&self) -> bool {
        !self.waiting.queued.is_empty() || !self.waiting.over.is_empty()
    }

    /// Returns the next output with new frames in its queue.
    pub(crate) fn next_queued(&mut self) -> Option<PortId> {
        self.waiting.queued.pop().map(PortId)
    }

    /// Returns the next output at which too many frames of the batch's source wait.
    pub(crate) fn next_over(&mut self) -> Option<PortId> {
        self.waiting.over.pop().map(PortId)
    }

    /// Returns the worker's frame store, in which frames wait for their output.
    pub(crate) fn store(&mut self) -> &mut FrameStore {
        &mut self.waiting.store
    }

    /// Returns the worker's frame store, and the captures that get to know of lost frames.
    pub(crate) fn store_and_captures(&mut self) -> (&mut FrameStore, &mut Captures) {
        (&mut self.waiting.store, &mut self.captures)
    }

    /// Puts the listed frames into the output's queue. The frames must already have or lack a VLAN
    /// tag, as the output port expects.
    #[inline(never)]
    pub(super) fn enqueue(
        &mut self,
        batch: &Batch,
        (source, output): (PortId, u16),
        frames: &[u8],
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let slot = &mut around.ports[usize::from(output)];
        let PortSlot { queues, output: Some(queue), .. } = slot else { return };
        let Some(caps) = queues.iter().find(|queue| queue.tx_ready()).map(|queue| queue.caps())
        else {
            delivery.outcome.down += u32::try_from(frames.len()).unwrap_or(0);
            return;
        };
        let from = source_of(source, around.snapshot);
        let Waiting { now, store, .. } = &mut self.waiting;
        let (counters, captures) = (around.counters, &mut self.captures);
        let memory = &mut Memory::of(store, queues);
        // Copies for a mirror may be dropped, but nobody waits for them.
        let is_mirror = around.snapshot.is_mirror(output);
        if is_mirror && queue.is_over(source.0, memory) {
            delivery.queue_full += frames.len() as u64;
            return;
        }
        let (finished, free) = (memory.is_the_ports(), memory.free_bytes());
        let mut lost = |source, reason| {
            count_loss(counters, captures, (source, PortId(output)), reason);
        };
        let mut push =
            |queue: &mut OutputQueue, part: &Batch, i: usize, delivery: &mut Delivery| {
                let pushed = queue.push(memory, (part, i), &from, *now, &mut lost);
                let Err(refused) = pushed else {
                    delivery.waiting += 1;
                    return;
                };
                match queue.limited_by().filter(|_| refused == Refused::Full) {
                    None | Some(Policed::Pass) => delivery.queue_full += 1,
                    Some(Policed::AboveVm) => delivery.receive_limit += 1,
                    Some(Policed::AboveTenant) => delivery.tenant_limit += 1,
                }
            };
        for &i in frames {
            let i = usize::from(i);
            let (offload, hash) = (batch.at(i).offload, batch.at(i).hash);
            let cut = offload.is_gso()
                && self.finisher.may_cut(on_wire(batch, i).frames)
                && queue.cuts((batch, i), &from, free, *now);
            let whole = !cut && (!finished || caps.takes(offload));
            // A frame that finds no room is refused before its parts are copied.
            if whole || queue.is_full(&from, free, *now) {
                push(queue, batch, i, delivery);
                continue;
            }
            self.finisher.run(batch, i, delivery, |parts, delivery| {
                for part in 0..parts.len() {
                    parts.frame_mut(part).hash = hash;
                    push(queue, parts, part, delivery);
                }
            });
        }
        let (waits, presses) =
            (delivery.waiting > 0, !is_mirror && queue.is_over(source.0, memory));
        if waits && !is_mirror && queue.lets_pass(*now) {
            self.note_whole(batch, (source, output), frames, queues);
        }
        self.waiting.note(output, waits, presses);
    }

    /// Makes frames wait in the output's queue for the limits of their pairs of VMs. The argument
    /// `late` has the pairs' table, and each frame's number with the slot of its pair. The frames
    /// must already have or lack a VLAN tag, as the output port expects.
    #[inline(never)]
    pub(super) fn delay(
        &mut self,
        batch: &Batch,
        (source, output): (PortId, u16),
        (table, late): (&Arc<PairTable>, &[(u8, usize)]),
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let from = source_of(source, around.snapshot);
        let PortSlot { queues, output: queue, .. } = &mut around.ports[usize::from(output)];
        let caps = queues.iter().find(|queue| queue.tx_ready()).map(|queue| queue.caps());
        let Some((queue, caps)) = queue.as_deref_mut().zip(caps) else {
            late.iter().for_each(|(i, slot)| {
                table.refuse(*slot, pair_size(table, batch, usize::from(*i)))
            });
            if caps.is_some() {
                delivery.pair_limit += late.len() as u64;
            } else {
                delivery.outcome.down += u32::try_from(late.len()).unwrap_or(0);
            }
            return;
        };
        let Waiting { now, store, .. } = &mut self.waiting;
        let memory = &mut Memory::of(store, queues);
        let (before, mut wakes) = (delivery.waiting, false);
        let mut push = |queue: &mut OutputQueue,
                        memory: &mut Memory<'_>,
                        (part, i): (&Batch, usize),
                        slot: usize,
                        delivery: &mut Delivery| {
            match queue.delay(memory, (part, i), &from, (table, slot), *now) {
                Ok(earlier) => {
                    delivery.waiting += 1;
                    wakes |= earlier;
                }
                Err(refused) => {
                    table.refuse(slot, pair_size(table, part, i));
                    match refused {
                        Refused::Full | Refused::NoMemory => delivery.queue_full += 1,
                        Refused::AbovePair => delivery.pair_limit += 1,
                    }
                }
            }
        };
        for &(i, slot) in late {
            let i = usize::from(i);
            let (offload, hash) = (batch.at(i).offload, batch.at(i).hash);
            let cut = offload.is_gso()
                && self.finisher.may_cut(on_wire(batch, i).frames)
                && queue.cuts((batch, i), &from, memory.free_bytes(), *now);
            if !cut && (!memory.is_the_ports() || caps.takes(offload)) {
                push(queue, memory, (batch, i), slot, delivery);
                continue;
            }
            self.finisher.run(batch, i, delivery, |parts, delivery| {
                for part in 0..parts.len() {
                    parts.frame_mut(part).hash = hash;
                    push(queue, memory, (&*parts, part), slot, delivery);
                }
            });
        }
        if delivery.waiting > before
            && let Some(counters) = around.counters[source.index()].as_deref()
        {
            counters.send_waits.add(1);
        }
        self.waiting.note(output, wakes, false);
    }

    /// Sends all frames of `batch`, which left the queue of `port`, and counts the frames at their
    /// source ports.
    pub(crate) fn depart<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        port: PortId,
        around: &mut Around<'_>,
    ) {
        self.finisher.cuts_left = finish::CUTS_PER_TURN_MAX;
        let (counters, snapshot) = (around.counters, around.snapshot);
        let Some(queue) = around.ports[port.index()].output.take() else { return };
        let policy = snapshot.port(port.0);
        let watched = policy.is_some_and(|policy| policy.watched);
        if let Some(streams) = policy.and_then(|policy| policy.rtp.as_ref()) {
            streams.measure(batch, &super::ALL[..batch.len()], self.waiting.now);
        }
        let (mut first, mut loaded) = (0, 0);
        let are_alike = |a: &Stored, b: &Stored| {
            a.source == b.source && a.in_port().is_some() == b.in_port().is_some()
        };
        for run in queue.sending().chunk_by(are_alike) {
            let waits = &queue.waits()[first..first + run.len()];
            first += run.len();
            // The batch has only the frames that wait in the store.
            let from_store = if run[0].in_port().is_some() { 0 } else { run.len() };
            let frames = &super::ALL[loaded..loaded + from_store];
            loaded += from_store;
            let from = snapshot.port(run[0].source).map(|policy| &**policy);
            let way = Way::of(from, policy.map(|policy| &**policy));
            let mut delivery = Delivery { way, ..Delivery::default() };
            if run[0].in_port().is_some() {
                self.send_held::<SEEN>(around, port, run, &mut delivery);
            } else if around.ports[port.index()].queues.len() == 1 {
                let way = (PortId(run[0].source), port.0, 0);
                self.send_to_queue::<SEEN>(batch, way, frames, around, &mut delivery);
            } else {
                let way = (PortId(run[0].source), port.0);
                self.spread::<SEEN>(batch, way, frames, around, &mut delivery);
            }
            if watched {
                delivery.link = link_bytes(batch, frames, &delivery.outcome);
            }
            if SEEN {
                for (reason, frames) in drops(&delivery) {
                    (0..frames).for_each(|_| {
                        self.captures.dropped_unseen(run[0].source, port, reason);
                    });
                }
            }
            let target = counters[port.index()].as_deref();
            if let Some(target) = target {
                target.tx_queued.sub(run.len() as u64);
                waits.iter().for_each(|wait| target.tx_waited[part_of(*wait)].add(1));
            }
            let source = counters.get(usize::from(run[0].source)).and_then(Option::as_deref);
            // If the source has left meanwhile, its frames are not counted.
            if let Some(source) = source {
                source.queued.sub(run.len() as u64);
                self.waiting.account(run[0].source, waits, source);
                account(&delivery, source, target);
            }
        }
        around.ports[port.index()].output = Some(queue);
    }

    /// Sends a run of frames that wait in the port's own memory.
    fn send_held<const SEEN: bool>(
        &mut self,
        around: &mut Around<'_>,
        port: PortId,
        run: &[Stored],
        delivery: &mut Delivery,
    ) {
        let PortSlot { queues, marked, .. } = &mut around.ports[port.index()];
        let [pair] = &mut queues[..] else { return };
        let Some(buffers) = pair.buffers() else { return };
        let mut held = [Held::default(); BATCH_FRAMES];
        let frames = run.iter().filter_map(Stored::in_port).take(BATCH_FRAMES);
        let count = held.iter_mut().zip(frames).map(|(to, frame)| *to = frame).count();
        let (unit, source) = (Unit { port, queue: QueueId(0) }, PortId(run[0].source));
        let mut outcome = if SEEN && self.captures.takes_sent_to(port.0) {
            self.send_held_captured(buffers, &held[..count], (source, unit))
        } else {
            buffers.send(&held[..count])
        };
        let taken = (outcome.frames + outcome.down + outcome.error) as usize;
        for frame in &held[taken.min(count)..count] {
            buffers.release(*frame);
            outcome.ring_full += 1;
        }
        super::merge(&mut delivery.outcome, outcome);
        pair.publish();
        around.touched.gave(unit, &mut marked[0], source, run.len());
    }

    /// Like [`Buffers::send`], and copies the frames for the captures that want them.
    #[inline(never)]
    fn send_held_captured(
        &mut self,
        buffers: &mut dyn Buffers,
        frames: &[Held],
        way: (PortId, Unit),
    ) -> TxOutcome {
        let (captures, scratch) = (&mut self.captures, &mut *self.finisher.scratch);
        let mut sum = TxOutcome::default();
        for &frame in frames {
            // The kernel owns the buffer of a sent frame.
            let is_read = captures.charge(|| {
                scratch.clear();
                buffers.read(frame, scratch)
            });
            let chosen = if is_read { captures.choose_sent(scratch, 0, way) } else { 0 };
            let outcome = buffers.send(&[frame]);
            if outcome.frames == 1 && chosen != 0 {
                captures.sent(chosen, scratch, 0, way);
            }
            super::merge(&mut sum, outcome);
            if outcome.frames + outcome.down + outcome.error == 0 {
                break;
            }
        }
        sum
    }
}

/// Returns the present code point of the tenant of port `source`. Returns `None` if the tenant has
/// none, or if the port no longer belongs to `tenant`, which is a number like [`Source::tenant`].
pub(crate) fn code_point_of(source: u16, tenant: u16, snapshot: &Snapshot) -> Option<u8> {
    let dscp = snapshot.port(source)?.dscp;
    dscp.filter(|_| source_of(PortId(source), snapshot).tenant == tenant)
}

/// Returns the description of port `source` for output queues.
pub(crate) fn source_of(source: PortId, snapshot: &Snapshot) -> Source {
    let policy = snapshot.ports.get(source.index()).and_then(Option::as_deref);
    Source {
        port: source.0,
        tenant: policy.and_then(|policy| policy.tenant).map_or(0, |tenant| tenant + 1),
        share: policy.map(|policy| policy.share).unwrap_or_default(),
        shares: snapshot.shares(),
    }
}

#[cfg(test)]
mod tests {
    use penstock_units::{Cycles, Vid};

    use super::*;
    use crate::capture::{BUFFER_BYTES, CaptureTerms, Fate, records};
    use crate::snapshot::PortPolicy;

    /// Frames that wait in a port's own memory. The port's ring has room for some of them.
    struct OwnMemory {
        frames: Vec<Vec<u8>>,
        room: u32,
    }

    impl Buffers for OwnMemory {
        fn free(&self) -> usize {
            0
        }

        fn fill(&mut self, _: &Batch, _: usize) -> Option<Held> {
            None
        }

        fn bytes(&mut self, frame: Held) -> Option<&mut [u8]> {
            self.frames.get_mut(frame.buffer as usize).map(Vec::as_mut_slice)
        }

        fn send(&mut self, frames: &[Held]) -> TxOutcome {
            let sent = u32::try_from(frames.len()).unwrap().min(self.room);
            self.room -= sent;
            TxOutcome { frames: sent, ..TxOutcome::default() }
        }

        fn release(&mut self, _: Held) {}
    }

    #[test]
    fn a_port_has_a_code_point_only_for_its_present_tenant() {
        let mut policy = PortPolicy::access(1, Some(4), Vid::UNTAGGED, 0);
        policy.dscp = Some(9);
        let ports = vec![None, Some(Arc::new(policy))];
        let snapshot = Snapshot::new(1, ports, Vec::new(), Vec::new(), 300);
        let of = |port, tenant| code_point_of(port, tenant, &snapshot);
        assert_eq!(of(1, 5), Some(9));
        assert_eq!([of(1, 4), of(1, 0), of(0, 5), of(7, 5)], [None; 4]);
    }

    #[test]
    fn frames_that_waited_in_the_ports_memory_are_captured_when_they_leave() {
        let mut egress = Egress::new(4);
        let terms = CaptureTerms {
            id: 1,
            port: PortId(2),
            received: false,
            sent: true,
            drops: false,
            filter: None,
            snap_len: u32::MAX,
            clock: || Cycles::ZERO,
        };
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        assert!(egress.captures.add(Box::new(terms), buffer, &[]).is_none());
        egress.captures.resume(Cycles(1), &[]);
        assert!(egress.captures.begin(Cycles(2), &[]));
        let frames: Vec<Vec<u8>> = (1..4).map(|number| vec![number; 60]).collect();
        let held = [0, 1, 2].map(|buffer| Held { buffer, len: 60 });
        let mut waiting = OwnMemory { frames: frames.clone(), room: 2 };
        let way = (PortId(1), Unit { port: PortId(2), queue: QueueId(0) });
        let outcome = egress.send_held_captured(&mut waiting, &held, way);
        assert_eq!(outcome.frames, 2, "the rest stays, because the ring is full");
        let (buffer, _) = egress.captures.exchange(1, Vec::new(), &[]).unwrap();
        let taken: Vec<_> = records(&buffer).map(|r| (r.fate, r.other, r.bytes.to_vec())).collect();
        let sent = |bytes: &Vec<u8>| (Fate::Forwarded, Some(PortId(1)), bytes.clone());
        assert_eq!(taken, frames[..2].iter().map(sent).collect::<Vec<_>>());
    }
}
