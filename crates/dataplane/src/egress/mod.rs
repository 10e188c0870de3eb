//! Egress sends or drops the frames of a batch according to their verdicts.
//!
//! # Problem
//!
//! The frames of one batch may go to several output ports. Each port needs its frames in one burst
//! and in order. A port also determines whether its frames have a VLAN tag and whether their
//! offloads are finished.
//!
//! # Approach
//!
//! Egress lists the frames of each output port in their order of arrival, and then sends each port
//! its list. If a frame is not sent, egress counts the frame with the reason at the source and at
//! the destination. Frames go directly to the output port, without a queue in the switch (datapath
//! rule 19). If a port has an output queue ([`crate::queue`]), frames to the port pass through this
//! queue, or pass it without waiting (`direct`).
//!
//! # Cost
//!
//! Egress of a batch takes O(frames + outputs) time. Egress allocates no memory after the worker's
//! start.

mod account;
mod captured;
mod direct;
mod egress_policer;
mod mark;
mod pairs;
mod slot;
mod touched;
mod waiting;

pub(crate) use account::count_loss;
pub(crate) use direct::Whole;
pub use slot::PortSlot;
pub use touched::{Mark, Touched};
pub(crate) use waiting::{code_point_of, source_of};

use std::sync::Arc;

use penstock_qos::bottleneck::on_link;
use penstock_units::{PortId, QueueId};

use crate::batch::{BATCH_FRAMES, Batch, Verdict};
use crate::capture::Captures;
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::finish;
use crate::headers::is_tag;
use crate::inbound_shares;
use crate::ingress_policer::on_wire;
use crate::offload::OffloadCaps;
use crate::port::{PortQueue, TxOutcome};
use crate::snapshot::{PortPolicy, Snapshot};
use crate::unit::Unit;
use account::{Way, account, drops};
use captured::burst;
use egress_policer::{receives, sends};
use waiting::Waiting;

/// List of a batch's frames that go to one output port.
#[derive(Clone, Copy, Debug)]
struct List {
    len: u8,
    frames: [u8; BATCH_FRAMES],
}

impl List {
    const EMPTY: Self = Self { len: 0, frames: [0; BATCH_FRAMES] };

    #[inline(always)]
    fn push(&mut self, frame: u8) {
        // Each frame is listed at most once per port, so 32 entries suffice. Control removes
        // duplicates from output sets.
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

/// Indices of all frames in a full batch: 0 to 31.
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

/// State of the egress stage of a worker.
pub struct Egress {
    lists: Box<[List]>,
    outputs: Vec<u16>,
    finisher: Finisher,
    waiting: Waiting,
    /// Room for markers; `None` while egress sends some.
    markers: Option<Box<Batch>>,
    /// Captures that operators run. The methods with the parameter `SEEN` exist twice, so that a
    /// worker without captures never asks for them.
    pub(crate) captures: Captures,
    /// Whether a rule or a port has a mirror.
    mirrors: bool,
    /// Whether captures or mirrors exist.
    watched: bool,
}

impl core::fmt::Debug for Egress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Egress").field("outputs", &self.outputs).finish_non_exhaustive()
    }
}

/// Result of an attempt to pass a frame to another worker for delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// The frame is in the ring to another worker.
    Over,
    /// The ring to the other worker is full, so the frame is dropped.
    Full,
    /// The output port has no queue pair that is ready to deliver.
    Down,
    /// No port with the output's number is attached to the switch.
    NoPort,
}

/// Interface through which egress hands frames to the other workers of the switch.
pub trait Others {
    /// Returns true if the switch has only one worker.
    fn is_empty(&self) -> bool;
    /// Hands frame `i` of `batch`, which came from `source`, to a worker that can deliver the frame
    /// to `output`.
    fn hand_over(&mut self, batch: &Batch, i: usize, source: PortId, output: u16) -> Handed;
}

/// Worker state that a delivery uses besides the batch.
#[expect(missing_debug_implementations, reason = "the fields are references to a worker's state")]
pub struct Around<'a> {
    /// Port slots, indexed by port number.
    pub ports: &'a mut [PortSlot],
    /// Port counters, indexed by port number. The entry of an unused port number is `None`.
    pub counters: &'a [Option<Arc<PortCounters>>],
    pub snapshot: &'a Snapshot,
    /// Queue pairs whose drivers the worker must notify.
    pub touched: &'a mut Touched,
    pub others: &'a mut dyn Others,
}

/// Result of delivering the frames of one source port to one output port.
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
    /// Whether the frames enter the host, leave the host, or do neither.
    way: Way,
    /// Bytes of the delivered frames on the output's link. 0 if the switch does not
    /// watch the link.
    link: u64,
    /// Number of frames of the delivery that egress put into the output's queue.
    waiting: u64,
    /// Number of frames that were dropped because the output's queue had no room.
    queue_full: u64,
    /// Number of frames above the output's receive limit.
    receive_limit: u64,
    /// Number of frames above the receive limit of the output's tenant.
    tenant_limit: u64,
    /// Number of frames above the network limit of the sender's tenant.
    send_limit: u64,
    /// Number of frames above the rate of their pair of VMs.
    pair_limit: u64,
    /// Number of markers that a VM sent.
    forged: u64,
}

impl Egress {
    /// Creates the egress stage for up to `ports` ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        Self {
            lists: vec![List::EMPTY; ports].into_boxed_slice(),
            outputs: Vec::with_capacity(ports),
            finisher: Finisher::new(),
            waiting: Waiting::new(ports),
            markers: Some(Batch::new()),
            captures: Captures::new(),
            mirrors: false,
            watched: false,
        }
    }

    /// Sends the frames of `batch`, which came from port `source`, to the outputs of their
    /// verdicts.
    pub fn deliver(&mut self, batch: &mut Batch, source: PortId, around: &mut Around<'_>) {
        self.finisher.cuts_left = finish::CUTS_PER_TURN_MAX;
        let counters = around.counters;
        let Some(own) = counters[source.index()].as_deref() else { return };
        if let Some(output) = common_output(batch) {
            let frames = &ALL[..batch.len()];
            let Some(target) = counters.get(usize::from(output)) else {
                own.drops[DropReason::NoPort as usize].add(frames.len() as u64);
                return;
            };
            let delivery = self.send::<false>(batch, (source, output), frames, around);
            if account(&delivery, own, target.as_deref()) {
                give_back(&delivery, batch, (source, output), frames, around.snapshot);
            }
            return;
        }
        self.list::<false>(batch, source, around.snapshot, own);
        while let Some(output) = self.outputs.pop() {
            let list = core::mem::replace(&mut self.lists[usize::from(output)], List::EMPTY);
            let list = list.as_slice();
            let delivery = self.send::<false>(batch, (source, output), list, around);
            if account(&delivery, own, counters[usize::from(output)].as_deref()) {
                give_back(&delivery, batch, (source, output), list, around.snapshot);
            }
        }
    }

    /// Adds every frame of the batch to the lists of the frame's outputs.
    fn list<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        source: PortId,
        snapshot: &Snapshot,
        counters: &PortCounters,
    ) {
        for (i, frame) in (0_u8..).zip(batch.frames()) {
            let dropped = match frame.verdict {
                Verdict::Output(port) => self.add(port, i, counters),
                Verdict::Drop(reason) => {
                    counters.drops[reason as usize].add(1);
                    Some(reason)
                }
                Verdict::Flood(domain) => {
                    let members = snapshot.domains.get(usize::from(domain));
                    let members = members.map_or(&[][..], |d| &d.members);
                    let open = |port: u16| port != source.0 && may_reach(snapshot, source.0, port);
                    self.replicate(members, open, i, counters)
                }
                Verdict::OutputSet(set) => {
                    let members = snapshot.output_sets.get(usize::from(set));
                    let members = members.map_or(&[][..], |s| s);
                    self.replicate(members, |_| true, i, counters)
                }
            };
            if SEEN && let Some(reason) = dropped {
                self.captures.dropped(batch, usize::from(i), (source, None), reason);
            }
        }
    }

    /// Adds a frame to the list of an output. Returns why the frame is dropped instead.
    #[inline(always)]
    fn add(&mut self, port: u16, frame: u8, counters: &PortCounters) -> Option<DropReason> {
        let Some(list) = self.lists.get_mut(usize::from(port)) else {
            counters.drops[DropReason::NoPort as usize].add(1);
            return Some(DropReason::NoPort);
        };
        if list.len == 0 {
            self.outputs.push(port);
        }
        list.push(frame);
        None
    }

    fn replicate(
        &mut self,
        members: &[u16],
        gets_it: impl Fn(u16) -> bool,
        frame: u8,
        counters: &PortCounters,
    ) -> Option<DropReason> {
        let mut copies = 0;
        for &port in members.iter().filter(|&&port| gets_it(port)) {
            self.add(port, frame, counters);
            copies += 1;
        }
        if copies == 0 {
            counters.drops[DropReason::NoDestination as usize].add(1);
            return Some(DropReason::NoDestination);
        }
        counters.replicated.add(copies - 1);
        None
    }

    /// Sends the listed frames to one output, with or without a VLAN tag as the output expects.
    fn send<const SEEN: bool>(
        &mut self,
        batch: &mut Batch,
        (source, output): (PortId, u16),
        frames: &[u8],
        around: &mut Around<'_>,
    ) -> Delivery {
        let mut delivery = Delivery::default();
        let snapshot = around.snapshot;
        let policy = snapshot.ports.get(usize::from(output)).and_then(Option::as_deref);
        let Some(policy) = policy else {
            delivery.no_port = frames.len() as u64;
            return delivery;
        };
        let sender = snapshot.port(source.0).map(|policy| &**policy);
        if is_elsewhere(&around.ports[usize::from(output)], around.others.is_empty()) {
            self.note_left(source, sender, policy);
            elsewhere(batch, (source, output), frames, around.others, &mut delivery);
            return delivery;
        }
        let keeps_tags = policy.keeps_tags_in(sender);
        let formed;
        let frames = if !keeps_tags && !batch.carries_tags() {
            // Nearly all frames already have the form of an access port.
            frames
        } else {
            formed = form_all(batch, frames, policy, keeps_tags);
            delivery.vlan += (frames.len() - formed.as_slice().len()) as u64;
            formed.as_slice()
        };
        let passed;
        let frames = match &policy.egress_policer {
            None => frames,
            Some(policer) => {
                let queued = around.ports[usize::from(output)].output.is_some();
                let now = self.waiting.now();
                match receives(policer, queued, batch, frames, now, &mut delivery) {
                    None => frames,
                    Some(List { len: 0, .. }) => return delivery,
                    Some(list) => {
                        passed = list;
                        passed.as_slice()
                    }
                }
            }
        };
        delivery.way = Way::of(sender, Some(policy));
        let sent;
        let frames = match sender.and_then(|sender| sender.tenant_policer.as_deref()) {
            Some(policer) if delivery.way == Way::Out => {
                self.waiting.left = source.0;
                match sends(policer, batch, frames, self.waiting.now(), &mut delivery) {
                    None => frames,
                    Some(List { len: 0, .. }) => return delivery,
                    Some(list) => {
                        sent = list;
                        sent.as_slice()
                    }
                }
            }
            _ => frames,
        };
        let way = (source, output, policy);
        if policy.marks {
            self.leave::<SEEN>(batch, way, frames, around, &mut delivery);
        } else {
            self.pass_on::<SEEN>(batch, way, frames, around, &mut delivery);
        }
        delivery
    }

    /// Records that frames of `source` leave the host, if a limit of the sender's tenant may make
    /// the source wait.
    fn note_left(&mut self, source: PortId, sender: Option<&PortPolicy>, target: &PortPolicy) {
        let is_limited = sender.is_some_and(|sender| sender.tenant_policer.is_some());
        if is_limited && Way::of(sender, Some(target)) == Way::Out {
            self.waiting.left = source.0;
        }
    }

    /// Puts frames into the output's queue, or sends the frames to the port if the output has no
    /// queue. The frames must already have or lack a VLAN tag, as the output port expects.
    #[inline(always)]
    fn pass_on<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        way: (PortId, u16, &PortPolicy),
        frames: &[u8],
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let (source, output, _) = way;
        let slot = &around.ports[usize::from(output)];
        let from_outside = || around.snapshot.port(source.0).is_none_or(|p| p.tenant.is_none());
        if let Some(queue) = slot.output.as_deref()
            && queue.takes_from(from_outside)
        {
            if queue.is_direct() {
                self.pass_directly::<SEEN>(batch, way, frames, around, delivery);
            } else {
                self.enqueue(batch, (source, output), frames, around, delivery);
            }
            return;
        }
        self.send_now::<SEEN>(batch, way, frames, around, delivery);
    }

    /// Sends frames to the port. The frames must already have or lack a VLAN tag, as the output
    /// port expects.
    #[inline(always)]
    fn send_now<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        (source, output, policy): (PortId, u16, &PortPolicy),
        frames: &[u8],
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let slot = &around.ports[usize::from(output)];
        if let Some(streams) = &policy.rtp {
            streams.measure(batch, frames, self.waiting.now());
        }
        if slot.queues.len() == 1 {
            self.send_to_queue::<SEEN>(batch, (source, output, 0), frames, around, delivery);
        } else {
            self.spread::<SEEN>(batch, (source, output), frames, around, delivery);
        }
        if policy.watched {
            delivery.link = link_bytes(batch, frames, &delivery.outcome);
        }
    }

    /// Divides the listed frames among the output's queue pairs that are ready. All frames of a
    /// flow go to one queue pair.
    fn spread<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        (source, output): (PortId, u16),
        frames: &[u8],
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let slot = &around.ports[usize::from(output)];
        let ready = slot.queues.iter().filter(|q| q.tx_ready()).count();
        let mut nth = 0;
        for queue in 0..slot.queues.len() {
            let pair = &around.ports[usize::from(output)].queues[queue];
            if ready == 0 || !pair.tx_ready() {
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
                self.send_to_queue::<SEEN>(batch, way, mine.as_slice(), around, delivery);
            }
        }
        if ready == 0 && around.others.is_empty() {
            delivery.outcome.down += u32::try_from(frames.len()).unwrap_or(0);
        } else if ready == 0 {
            elsewhere(batch, (source, output), frames, around.others, delivery);
        }
    }

    fn send_to_queue<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        (source, output, queue): (PortId, u16, usize),
        frames: &[u8],
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let slot = &mut around.ports[usize::from(output)];
        let port = &mut slot.queues[queue];
        if !port.tx_ready() {
            delivery.outcome.down += u32::try_from(frames.len()).unwrap_or(0);
            return;
        }
        let queue_id = QueueId(u16::try_from(queue).unwrap_or(0));
        let unit = Unit { port: PortId(output), queue: queue_id };
        let caps = port.caps();
        let as_it_is = |i: &u8| caps.takes(batch.frame(usize::from(*i)).offload);
        if caps == OffloadCaps::ALL || frames.iter().all(as_it_is) {
            let captures = &mut self.captures;
            let outcome = burst::<SEEN>(captures, port.as_mut(), batch, frames, (source, unit));
            merge(&mut delivery.outcome, outcome);
        } else {
            // Frames that need finishing are handled between runs of frames that do not. So the
            // order within a flow is kept.
            for run in frames.chunk_by(|a, b| as_it_is(a) && as_it_is(b)) {
                if as_it_is(&run[0]) {
                    let captures = &mut self.captures;
                    let way = (source, unit);
                    let outcome = burst::<SEEN>(captures, port.as_mut(), batch, run, way);
                    merge(&mut delivery.outcome, outcome);
                } else {
                    for &i in run {
                        let (way, port) = ((source, unit), port.as_mut());
                        self.finish::<SEEN>(batch, usize::from(i), port, way, delivery);
                    }
                }
            }
        }
        port.publish();
        around.touched.gave(unit, &mut slot.marked[queue], source, frames.len());
    }

    /// Finishes the offloads of frame `i` in software and sends the resulting frames.
    #[cold]
    fn finish<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        i: usize,
        port: &mut dyn PortQueue,
        way: (PortId, Unit),
        delivery: &mut Delivery,
    ) {
        let captures = &mut self.captures;
        self.finisher.run(batch, i, delivery, |part, delivery| {
            let outcome = burst::<SEEN>(captures, port, part, &ALL[..part.len()], way);
            merge(&mut delivery.outcome, outcome);
        });
    }
}

/// Whether only another worker may have a ready queue pair of the output. That worker then polices
/// and marks the frames, so this worker must not.
#[inline(always)]
fn is_elsewhere(slot: &PortSlot, alone: bool) -> bool {
    let pairs = &slot.queues;
    let none_is_ready = || !pairs.iter().any(|pair| pair.tx_ready());
    pairs.is_empty() || (pairs.len() > 1 && !alone && slot.output.is_none() && none_is_ready())
}

/// Hands the listed frames to other workers, one of which may have a ready queue pair of the output
/// port.
#[cold]
fn elsewhere(
    batch: &Batch,
    (source, output): (PortId, u16),
    frames: &[u8],
    others: &mut dyn Others,
    delivery: &mut Delivery,
) {
    for &i in frames {
        match others.hand_over(batch, usize::from(i), source, output) {
            Handed::Over => delivery.handed += 1,
            Handed::Full => delivery.handover_full += 1,
            Handed::Down => delivery.outcome.down += 1,
            Handed::NoPort => delivery.no_port += 1,
        }
    }
}

/// Computes checksums and segments TCP frames in software for outputs without these offloads.
struct Finisher {
    scratch: Box<Batch>,
    segmenter: finish::Segmenter,
    /// Number of TCP segments that the worker may still cut in this turn.
    cuts_left: usize,
}

impl Finisher {
    fn new() -> Self {
        Self { scratch: Batch::new(), segmenter: finish::Segmenter::new(), cuts_left: 0 }
    }

    /// Whether the worker may still cut a frame into `segments` segments in this turn.
    fn may_cut(&self, segments: u32) -> bool {
        segments as usize <= finish::SEGMENTS_PER_FRAME_MAX.min(self.cuts_left)
    }

    /// Finishes the offloads of frame `i` and passes the resulting frames to `sink`, one batch at a
    /// time.
    fn run(
        &mut self,
        batch: &Batch,
        i: usize,
        delivery: &mut Delivery,
        mut sink: impl FnMut(&mut Batch, &mut Delivery),
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
        let most = finish::SEGMENTS_PER_FRAME_MAX.min(self.cuts_left);
        let Ok(segments) = self.segmenter.begin(batch, i, most) else {
            delivery.outcome.too_big += 1;
            return;
        };
        self.cuts_left -= segments;
        delivery.sw_tso += 1;
        delivery.replicated += segments as u64 - 1;
        loop {
            scratch.clear();
            let done = self.segmenter.fill(batch, i, scratch);
            sink(scratch, delivery);
            if done {
                return;
            }
        }
    }
}

/// Returns the port to which every frame of the batch goes. Returns `None` if the batch's frames go
/// to different ports.
#[inline(always)]
fn common_output(batch: &Batch) -> Option<u16> {
    let (first, rest) = batch.frames().split_first()?;
    let Verdict::Output(port) = first.verdict else { return None };
    rest.iter().all(|f| f.verdict == first.verdict).then_some(port)
}

/// Gives the listed frames the form that the output port expects ([`form`]). Returns the frames
/// that the port admits.
fn form_all(batch: &mut Batch, frames: &[u8], policy: &PortPolicy, keeps_tags: bool) -> List {
    let mut formed = List::EMPTY;
    for &i in frames {
        if form(batch, usize::from(i), policy, keeps_tags) {
            formed.push(i);
        }
    }
    formed
}

/// Adds or removes a frame's VLAN tag, as the output requires. Returns false if the output does not
/// carry the frame's VLAN. Returns false also if a second VLAN tag would move the frame into
/// another VLAN.
#[inline(always)]
fn form(batch: &mut Batch, i: usize, policy: &PortPolicy, keeps_tags: bool) -> bool {
    let frame = batch.frame(i);
    match policy.egress_form(frame.tci & 0xfff) {
        Some(tagged) => {
            if tagged != frame.tagged {
                batch.set_tagged(i, tagged);
            }
            // The head is checked only if the frame leaves without a tag on a link that uses tags.
            tagged || !keeps_tags || !begins_with_tag(batch.head(i))
        }
        None => false,
    }
}

/// Whether an untagged frame of a VM has a VLAN tag of the VM after its MAC addresses. On a trunk
/// or an uplink, a VLAN tag that the VM wrote would select a VLAN that may belong to another
/// tenant.
#[inline]
fn begins_with_tag(head: &[u8]) -> bool {
    let Some(&ethertype) = head.get(12..14).and_then(|bytes| bytes.first_chunk()) else {
        return false;
    };
    is_tag(u16::from_be_bytes(ethertype))
}

/// Whether a flooded frame from `source` may go to `port`. Isolated ports cannot send frames to
/// each other.
fn may_reach(snapshot: &Snapshot, source: u16, port: u16) -> bool {
    match (snapshot.port(source), snapshot.port(port)) {
        (Some(source), Some(port)) => source.may_reach(port),
        _ => false,
    }
}

/// Gives the receiver at `output` the tokens of its dropped frames back, if the frames came through
/// an uplink with `inbound`. Large segments may count as one frame or as their parts, so the
/// receiver gets the part of the listed frames' tokens that the drops are of all counted frames.
#[cold]
fn give_back(
    delivery: &Delivery,
    batch: &Batch,
    (source, output): (PortId, u16),
    frames: &[u8],
    snapshot: &Snapshot,
) {
    let policy = snapshot.port(source.0).map(|policy| &**policy);
    let Some(shares) = policy.and_then(|policy| policy.inbound.as_deref()) else { return };
    let lost: u64 = drops(delivery).map(|(_, frames)| frames).sum();
    let all = lost + u64::from(delivery.outcome.frames) + delivery.waiting + delivery.handed;
    inbound_shares::give_back(shares, (batch, frames), output, (lost, all));
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

/// Returns the bytes that a delivery takes on the output's link. The number of bytes includes the
/// segments of all listed large frames, so the load is overestimated if a ring was full.
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
