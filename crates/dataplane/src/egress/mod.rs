//! Egress: carries out the verdicts of a batch.
//!
//! **Problem.** A batch's frames go to several ports; each port wants them in one burst, in order,
//! in its own form (tagged or not, offloads finished or not). **Rule.** Frames are listed per
//! output port, in the order they came; then each port gets its list. What does not go is counted
//! with its reason, at the source and at the destination. Frames go straight to the port, without
//! a queue of ours (datapath rule 19), unless the output has one (`waiting`, [`crate::queue`]).
//! **Cost.** O(frames + outputs); no allocation after start.

mod account;
mod egress_policer;
pub mod finish;
mod mark;
pub mod rtp;
mod touched;
mod waiting;

pub use touched::{Mark, Touched};

use std::sync::Arc;

use penstock_qos::bottleneck::on_link;
use penstock_units::{PortId, QueueId};

use crate::batch::{BATCH_FRAMES, Batch, Verdict};
use crate::classify::{PortPolicy, Snapshot, is_tag};
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::ingress_policer::on_wire;
use crate::offload::OffloadCaps;
use crate::port::TxOutcome;
use crate::schedule::Unit;
use crate::worker::{Handed, Peers, PortSlot};
use account::{Way, account};
use egress_policer::{receives, sends};
use waiting::Waiting;

/// The frames of a batch that go to one port.
#[derive(Clone, Copy, Debug)]
struct List {
    len: u8,
    frames: [u8; BATCH_FRAMES],
}

impl List {
    const EMPTY: Self = Self { len: 0, frames: [0; BATCH_FRAMES] };

    #[inline(always)]
    fn push(&mut self, frame: u8) {
        // A frame is listed once a port, so 32 entries suffice; a duplicate in an output set
        // could only come from control code, which removes them.
        if let Some(place) = self.frames.get_mut(usize::from(self.len)) {
            *place = frame;
            self.len += 1;
        }
    }

    #[inline(always)]
    fn as_slice(&self) -> &[u8] {
        &self.frames[..usize::from(self.len)]
    }
}

/// A whole batch's frames, as a list.
const ALL: [u8; BATCH_FRAMES] = {
    let mut all = [0; BATCH_FRAMES];
    let mut i = 0;
    while i < BATCH_FRAMES {
        #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
        let number = i as u8;
        all[i] = number;
        i += 1;
    }
    all
};

/// The egress stage of a worker.
pub struct Egress {
    lists: Box<[List]>,
    outputs: Vec<u16>,
    /// Other workers, for ports that are theirs.
    pub(crate) peers: Peers,
    finisher: Finisher,
    waiting: Waiting,
}

impl core::fmt::Debug for Egress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Egress").field("outputs", &self.outputs).finish_non_exhaustive()
    }
}

/// What became of one source's frames at one output.
#[derive(Clone, Copy, Debug, Default)]
struct Delivery {
    outcome: TxOutcome,
    replicated: u64,
    vlan: u64,
    no_port: u64,
    sw_csum: u64,
    sw_tso: u64,
    handed: u64,
    handover_full: u64,
    /// Whether the frames came into the host or left it.
    way: Way,
    /// Bytes on the output's link, if that is watched.
    link: u64,
    /// Frames that wait in the output's queue now, and those for which it has no room.
    waiting: u64,
    queue_full: u64,
    /// Frames above what the output may have, or its tenant.
    receive_limit: u64,
    tenant_limit: u64,
    /// Frames above what their sender's tenant may send over the network.
    send_limit: u64,
}

impl Egress {
    /// For up to `ports` ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        Self {
            lists: vec![List::EMPTY; ports].into_boxed_slice(),
            outputs: Vec::with_capacity(ports),
            peers: Peers::none(ports),
            finisher: Finisher::new(),
            waiting: Waiting::new(ports),
        }
    }

    /// Sends the frames of `batch`, which came from port `source`, where their verdicts say.
    pub fn deliver(
        &mut self,
        batch: &mut Batch,
        source: PortId,
        ports: &mut [PortSlot],
        counters: &[Option<Arc<PortCounters>>],
        snapshot: &Snapshot,
        touched: &mut Touched,
    ) {
        self.finisher.cuts_left = finish::CUTS_PER_TURN_MAX;
        let Some(own) = counters[source.index()].as_deref() else { return };
        if let Some(output) = common_output(batch) {
            let frames = &ALL[..batch.len()];
            let Some(target) = counters.get(usize::from(output)) else {
                own.drops[DropReason::NoPort as usize].add(frames.len() as u64);
                return;
            };
            let delivery = self.send(batch, source, output, frames, ports, snapshot, touched);
            account(&delivery, own, target.as_deref());
            return;
        }
        self.list(batch, source, snapshot, own);
        while let Some(output) = self.outputs.pop() {
            let list = core::mem::replace(&mut self.lists[usize::from(output)], List::EMPTY);
            let list = list.as_slice();
            let delivery = self.send(batch, source, output, list, ports, snapshot, touched);
            account(&delivery, own, counters[usize::from(output)].as_deref());
        }
    }

    /// Lists every frame at its outputs.
    fn list(
        &mut self,
        batch: &Batch,
        source: PortId,
        snapshot: &Snapshot,
        counters: &PortCounters,
    ) {
        for (i, frame) in (0_u8..).zip(batch.frames()) {
            match frame.verdict {
                Verdict::Output(port) => self.add(port, i, counters),
                Verdict::Drop(reason) => counters.drops[reason as usize].add(1),
                Verdict::Flood(domain) => {
                    let members = snapshot.domains.get(usize::from(domain));
                    let members = members.map_or(&[][..], |d| &d.members);
                    let open = |port: u16| port != source.0 && may_reach(snapshot, source.0, port);
                    self.replicate(members, open, i, counters);
                }
                Verdict::OutputSet(set) => {
                    let members = snapshot.output_sets.get(usize::from(set));
                    let members = members.map_or(&[][..], |s| s);
                    self.replicate(members, |_| true, i, counters);
                }
            }
        }
    }

    #[inline(always)]
    fn add(&mut self, port: u16, frame: u8, counters: &PortCounters) {
        let Some(list) = self.lists.get_mut(usize::from(port)) else {
            counters.drops[DropReason::NoPort as usize].add(1);
            return;
        };
        if list.len == 0 {
            self.outputs.push(port);
        }
        list.push(frame);
    }

    fn replicate(
        &mut self,
        members: &[u16],
        gets_it: impl Fn(u16) -> bool,
        frame: u8,
        counters: &PortCounters,
    ) {
        let mut copies = 0;
        for &port in members.iter().filter(|&&port| gets_it(port)) {
            self.add(port, frame, counters);
            copies += 1;
        }
        match copies {
            0 => counters.drops[DropReason::NoDestination as usize].add(1),
            n => counters.replicated.add(n - 1),
        }
    }

    /// Sends the listed frames to one output, in the output's form.
    #[expect(clippy::too_many_arguments, reason = "one list from one port to another")]
    fn send(
        &mut self,
        batch: &mut Batch,
        source: PortId,
        output: u16,
        frames: &[u8],
        ports: &mut [PortSlot],
        snapshot: &Snapshot,
        touched: &mut Touched,
    ) -> Delivery {
        let mut delivery = Delivery::default();
        let policy = snapshot.ports.get(usize::from(output)).and_then(Option::as_deref);
        let slot = &mut ports[usize::from(output)];
        let Some(policy) = policy else {
            delivery.no_port = frames.len() as u64;
            return delivery;
        };
        if slot.queues.is_empty() {
            self.elsewhere(batch, source, output, frames, &mut delivery);
            return delivery;
        }
        let sender = snapshot.port(source.0).map(|policy| &**policy);
        let keeps_tags = policy.keeps_tags_in(sender);
        let mut formed = List::EMPTY;
        let frames = if !keeps_tags && !batch.carries_tags() {
            // What an access port wants, as nearly all frames are.
            frames
        } else {
            for &i in frames {
                if form(batch, usize::from(i), policy, keeps_tags) {
                    formed.push(i);
                } else {
                    delivery.vlan += 1;
                }
            }
            formed.as_slice()
        };
        let passed;
        let frames = match &policy.egress_policer {
            None => frames,
            Some(policer) => {
                let now = self.waiting.now();
                passed = receives(policer, batch, frames, now, &mut delivery);
                if passed.len == 0 {
                    return delivery;
                }
                passed.as_slice()
            }
        };
        delivery.way = Way::of(sender, Some(policy));
        let sent;
        let frames = match sender.and_then(|sender| sender.tenant_policer.as_deref()) {
            Some(policer) if delivery.way == Way::Out => {
                sent = sends(policer, batch, frames, self.waiting.now(), &mut delivery);
                if sent.len == 0 {
                    return delivery;
                }
                sent.as_slice()
            }
            _ => frames,
        };
        let dscp = if policy.marks { snapshot.port(source.0).and_then(|p| p.dscp) } else { None };
        let former = dscp.map(|dscp| mark::mark_all(batch, frames, dscp));
        let wanted = (output, policy);
        self.pass_on(batch, source, slot, wanted, frames, snapshot, &mut delivery, touched);
        if let Some(former) = former {
            mark::restore(batch, frames, &former);
        }
        delivery
    }

    /// Frames in the output's form go into its queue, or to the port.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the second half of `send`")]
    fn pass_on(
        &mut self,
        batch: &Batch,
        source: PortId,
        slot: &mut PortSlot,
        (output, policy): (u16, &PortPolicy),
        frames: &[u8],
        snapshot: &Snapshot,
        delivery: &mut Delivery,
        touched: &mut Touched,
    ) {
        if slot
            .output
            .as_deref()
            .is_some_and(|queue| queue.takes_from(snapshot.port(source.0).map(|policy| &**policy)))
        {
            self.enqueue(batch, source, slot, output, frames, snapshot, delivery);
            return;
        }
        if let Some(streams) = &policy.rtp {
            streams.measure(batch, frames, self.waiting.now());
        }
        if slot.queues.len() == 1 {
            self.send_to_queue(batch, slot, (source, output, 0), frames, delivery, touched);
        } else {
            self.spread(batch, source, slot, output, frames, delivery, touched);
        }
        if policy.watched {
            delivery.link = link_bytes(batch, frames, &delivery.outcome);
        }
    }

    /// Splits the frames over the queue pairs that are ready, each flow to one.
    #[expect(clippy::too_many_arguments, reason = "as `send`, with the slot")]
    fn spread(
        &mut self,
        batch: &Batch,
        source: PortId,
        slot: &mut PortSlot,
        output: u16,
        frames: &[u8],
        delivery: &mut Delivery,
        touched: &mut Touched,
    ) {
        let ready = slot.queues.iter().filter(|q| q.tx_ready()).count();
        let mut nth = 0;
        for queue in 0..slot.queues.len() {
            if ready == 0 || !slot.queues[queue].tx_ready() {
                continue;
            }
            let mut mine = List::EMPTY;
            for &i in frames {
                if batch.frame(usize::from(i)).hash as usize % ready == nth {
                    mine.push(i);
                }
            }
            nth += 1;
            if mine.len > 0 {
                let way = (source, output, queue);
                self.send_to_queue(batch, slot, way, mine.as_slice(), delivery, touched);
            }
        }
        if ready == 0 && self.peers.is_empty() {
            delivery.outcome.down += u32::try_from(frames.len()).unwrap_or(0);
        } else if ready == 0 {
            self.elsewhere(batch, source, output, frames, delivery);
        }
    }

    /// Frames for a port of which no queue pair is ready here: another worker may have one.
    #[cold]
    fn elsewhere(
        &mut self,
        batch: &Batch,
        source: PortId,
        output: u16,
        frames: &[u8],
        delivery: &mut Delivery,
    ) {
        for &i in frames {
            match self.peers.hand_over(batch, usize::from(i), source, output) {
                Handed::Over => delivery.handed += 1,
                Handed::Full => delivery.handover_full += 1,
                Handed::Down => delivery.outcome.down += 1,
                Handed::NoPort => delivery.no_port += 1,
            }
        }
    }

    fn send_to_queue(
        &mut self,
        batch: &Batch,
        slot: &mut PortSlot,
        (source, output, queue): (PortId, u16, usize),
        frames: &[u8],
        delivery: &mut Delivery,
        touched: &mut Touched,
    ) {
        let port = &mut slot.queues[queue];
        if !port.tx_ready() {
            delivery.outcome.down += u32::try_from(frames.len()).unwrap_or(0);
            return;
        }
        let caps = port.caps();
        let as_it_is = |i: &u8| caps.takes(batch.frame(usize::from(*i)).offload);
        if caps == OffloadCaps::ALL || frames.iter().all(as_it_is) {
            merge(&mut delivery.outcome, port.tx_burst(batch, frames));
        } else {
            // Runs of frames that go as they are, and between them those to be finished: the
            // order within a flow stays.
            for run in frames.chunk_by(|a, b| as_it_is(a) && as_it_is(b)) {
                if as_it_is(&run[0]) {
                    merge(&mut delivery.outcome, port.tx_burst(batch, run));
                } else {
                    for &i in run {
                        self.finish(batch, usize::from(i), port.as_mut(), delivery);
                    }
                }
            }
        }
        port.publish();
        let queue_id = QueueId(u16::try_from(queue).unwrap_or(0));
        let unit = Unit { port: PortId(output), queue: queue_id };
        touched.gave(unit, &mut slot.marked[queue], source, frames.len());
    }

    /// Finishes frame `i` in software and sends what comes of it.
    #[cold]
    fn finish(
        &mut self,
        batch: &Batch,
        i: usize,
        port: &mut dyn crate::port::PortQueue,
        delivery: &mut Delivery,
    ) {
        self.finisher.run(batch, i, delivery, |part, delivery| {
            merge(&mut delivery.outcome, port.tx_burst(part, &ALL[..part.len()]));
        });
    }
}

/// Finishes in software what an output or its queue cannot.
struct Finisher {
    scratch: Box<Batch>,
    segmenter: finish::Segmenter,
    /// Segments that may still be cut in this turn.
    cuts_left: usize,
}

impl Finisher {
    fn new() -> Self {
        Self { scratch: Batch::new(), segmenter: finish::Segmenter::new(), cuts_left: 0 }
    }

    /// Hands what frame `i` becomes to `sink`, a batch at a time.
    fn run(
        &mut self,
        batch: &Batch,
        i: usize,
        delivery: &mut Delivery,
        mut sink: impl FnMut(&Batch, &mut Delivery),
    ) {
        let scratch = &mut *self.scratch;
        scratch.clear();
        if !batch.frame(i).offload.is_gso() {
            match finish::finish_checksum(batch, i, scratch) {
                Ok(()) => {
                    delivery.sw_csum += 1;
                    sink(scratch, delivery);
                }
                Err(finish::CannotFinish) => delivery.outcome.error += 1,
            }
            return;
        }
        let wanted = self.segmenter.begin(batch, i).ok();
        let Some(segments) = wanted.filter(|segments| *segments <= self.cuts_left) else {
            delivery.outcome.too_big += 1;
            return;
        };
        self.cuts_left -= segments;
        delivery.sw_tso += 1;
        delivery.replicated += segments as u64 - 1;
        loop {
            scratch.clear();
            let done = self.segmenter.fill(scratch);
            sink(scratch, delivery);
            if done {
                return;
            }
        }
    }
}

/// The port that every frame of the batch goes to, if it is one.
#[inline(always)]
fn common_output(batch: &Batch) -> Option<u16> {
    let (first, rest) = batch.frames().split_first()?;
    let Verdict::Output(port) = first.verdict else { return None };
    rest.iter().all(|f| f.verdict == first.verdict).then_some(port)
}

/// Brings a frame into the output's VLAN form; false if the output does not carry its VLAN, or
/// would carry it into another: by a tag behind its own, if those are to be kept in.
#[inline(always)]
fn form(batch: &mut Batch, i: usize, policy: &PortPolicy, keeps_tags: bool) -> bool {
    let frame = batch.frame(i);
    match policy.egress_form(frame.tci & 0xfff) {
        Some(tagged) => {
            if tagged != frame.tagged {
                batch.set_tagged(i, tagged);
            }
            // A look at the head only where no tag of ours goes on a link that has some.
            tagged || !keeps_tags || !begins_with_tag(batch.head(i))
        }
        None => false,
    }
}

/// Whether a frame without a tag of ours has one behind its addresses. Sent as it is to a trunk or
/// an uplink, that would become its tag: its sender would pick a VLAN that may be another tenant's.
#[inline]
fn begins_with_tag(head: &[u8]) -> bool {
    let Some(&ethertype) = head.get(12..14).and_then(|bytes| bytes.first_chunk()) else {
        return false;
    };
    is_tag(u16::from_be_bytes(ethertype))
}

/// Whether a flood from `source` may go to `port`: isolated ports do not see each other.
fn may_reach(snapshot: &Snapshot, source: u16, port: u16) -> bool {
    match (snapshot.port(source), snapshot.port(port)) {
        (Some(source), Some(port)) => source.may_reach(port),
        _ => false,
    }
}

fn merge(into: &mut TxOutcome, o: TxOutcome) {
    into.frames += o.frames;
    into.bytes += o.bytes;
    into.tso += o.tso;
    into.ring_full += o.ring_full;
    into.too_big += o.too_big;
    into.down += o.down;
    into.error += o.error;
}

/// Bytes that a delivery takes on the output's link. The segments of large frames are those of the
/// whole list: where a ring was full, a link's load is overestimated.
#[inline(never)]
fn link_bytes(batch: &Batch, frames: &[u8], outcome: &TxOutcome) -> u64 {
    let mut bytes = on_link(outcome.bytes, outcome.frames.into());
    if outcome.tso > 0 {
        for &i in frames {
            let whole = batch.at(usize::from(i)).len;
            let size = on_wire(batch, usize::from(i));
            bytes += on_link((size.bytes - whole).into(), (size.frames - 1).into());
        }
    }
    bytes
}
