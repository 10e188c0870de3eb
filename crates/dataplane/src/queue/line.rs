//! Frames that wait for an output are sent in one of four orders: first come first served, by
//! shares, by class, or by flow.

use std::collections::VecDeque;

use penstock_qos::codel::{Codel, Pace, TARGET};
use penstock_qos::fair_share::{Bound, Capacity, Excess, FairShare, Turn};
use penstock_units::Nanos;

use super::classes::Class;
use super::flows::{self, Flows};
use super::lanes::Lanes;
use super::{CELL, Order, QueueTerms, ShareTerms, Stored};
use crate::batch::{BATCH_BYTES, BATCH_FRAMES, FRAME_MAX};

/// The sender of a waiting frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Number of the port from which the frame came.
    pub port: u16,
    /// Number of the sender's tenant plus one, or 0 if the operator owns the sending port.
    pub tenant: u16,
    /// Weights of the sender's tenant and of the sender's VM.
    pub share: ShareTerms,
    /// Number of the weights and tenants of all senders ([`crate::snapshot::Snapshot::shares`]).
    pub shares: u32,
}

/// The waiting frame that the output sends next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub frame: Stored,
    /// Time at which the frame arrived in the queue.
    pub since: Nanos,
}

/// The waiting frames of an output, in the output's [`Order`].
#[derive(Debug)]
pub(super) enum Line {
    Fifo(Fifo),
    Fair(Box<Fair>),
    Wfq(Box<Lanes>),
    Flows(Box<Flows>),
}

impl Line {
    pub(super) fn new(terms: &QueueTerms, ports: usize, tenants: usize) -> Self {
        match terms.order {
            Order::Fifo => Self::Fifo(Fifo {
                frames: VecDeque::with_capacity(terms.frames as usize),
                most: terms.frames as usize,
                bytes: 0,
                bound: terms.bound,
            }),
            Order::FairShare => Self::Fair(Box::new(Fair::new(terms, ports, tenants))),
            Order::Wfq => Self::Wfq(Box::new(Lanes::new(terms))),
            Order::FqCodel => Self::Flows(Box::new(Flows::new(terms))),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.frames.is_empty(),
            Self::Fair(fair) => fair.share.is_empty(),
            Self::Wfq(lanes) => lanes.len() == 0,
            Self::Flows(flows) => flows.len() == 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Fifo(fifo) => fifo.frames.len(),
            Self::Fair(fair) => fair.share.len() as usize,
            Self::Wfq(lanes) => lanes.len(),
            Self::Flows(flows) => flows.len(),
        }
    }

    /// Returns the class of a frame of `source` that begins with `head`. For an output with a
    /// single queue, the class has queue 0.
    pub(super) fn class_of(&mut self, head: &[u8], source: &Source, now: Nanos) -> Class {
        match self {
            Self::Fifo(_) | Self::Fair(_) | Self::Flows(_) => Class::default(),
            Self::Wfq(lanes) => lanes.class_of(head, source.tenant.checked_sub(1), now),
        }
    }

    /// Whether each flow of the output, or of each sender or queue, has its own queue.
    pub(super) fn has_flows(&self) -> bool {
        match self {
            Self::Fifo(_) => false,
            Self::Fair(fair) => fair.flows,
            Self::Wfq(lanes) => lanes.has_flows(),
            Self::Flows(_) => true,
        }
    }

    /// Whether the line has room for the parts of a batch of large segments. A fair-share queue
    /// must not drop a part, because its senders' frames wait in their rings. `free` is the free
    /// memory of all outputs, in bytes.
    pub(super) fn has_room_for_parts(&self, free: u64) -> bool {
        match self {
            Self::Fifo(_) | Self::Wfq(_) | Self::Flows(_) => true,
            Self::Fair(fair) if fair.flows => true,
            Self::Fair(fair) => {
                let frames = fair.frames.saturating_sub(fair.share.len());
                frames > PARTS_ROOM && free > u64::from(PARTS_ROOM) * CELL as u64
            }
        }
    }

    /// Whether a large segment that begins with `head` must be cut, because its queue has a low
    /// rate ceiling.
    pub(super) fn cuts(&mut self, head: &[u8], source: &Source, now: Nanos) -> bool {
        let class = self.class_of(head, source, now);
        self.lanes().is_some_and(|lanes| lanes.cuts(class.queue))
    }

    /// Whether frames of a class may signal congestion without a limit of the output.
    pub(super) fn signals_early(&self, class: Class) -> bool {
        match self {
            Self::Fifo(_) => false,
            Self::Fair(_) | Self::Flows(_) => true,
            Self::Wfq(lanes) => lanes.signals_early(class.queue),
        }
    }

    /// Whether a frame's queue has room for a frame of `source` with `len` bytes that takes `wire`
    /// bytes on a link. `free` is the free memory of all outputs, in bytes.
    pub(super) fn has_room(
        &mut self,
        (source, class): (&Source, Class),
        (len, wire): (u32, u32),
        free: u64,
        now: Nanos,
    ) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.has_room(len, free),
            Self::Fair(fair) => fair.has_room(source, wire, free, now),
            Self::Wfq(lanes) => lanes.has_room(class, wire, free),
            Self::Flows(flows) => flows.has_room(wire, free),
        }
    }

    /// Whether a fair-share queue has no room for any further frame of `source`. The other orders,
    /// and flow queues, answer for each frame.
    pub(super) fn is_full(&mut self, source: &Source, free: u64, now: Nanos) -> bool {
        match self {
            Self::Fifo(_) | Self::Wfq(_) | Self::Flows(_) => false,
            Self::Fair(fair) => !fair.flows && !fair.has_room(source, 1, free, now),
        }
    }

    /// Adds a frame to the queue, after [`Self::has_room`] found room for the frame. Returns false
    /// if there is no room for the frame.
    pub(super) fn push(&mut self, frame: Stored, now: Nanos) -> bool {
        match self {
            Self::Fifo(fifo) => {
                if fifo.frames.len() >= fifo.most {
                    return false;
                }
                fifo.bytes += u64::from(frame.len);
                fifo.frames.push_back((frame, now));
                true
            }
            Self::Fair(fair) => {
                // The link's time is shared: short frames cost more of it than their bytes suggest.
                let item = (frame, frame.wire());
                fair.share.accept_flow(usize::from(frame.source), frame.hash, item, now);
                true
            }
            Self::Wfq(lanes) => lanes.push(frame, now),
            Self::Flows(flows) => flows.push(frame, now),
        }
    }

    /// Removes and returns a frame of the flow with the most waiting bytes, which makes room for
    /// another frame of the port `source` and of `class`. With fair shares, the flow is one of
    /// `source`, and with several queues, one in the queue of `class`. Returns `None` if the output
    /// has no flow queues, or if no such frame waits.
    pub(super) fn evict(&mut self, (source, class): (u16, Class)) -> Option<Stored> {
        match self {
            Self::Fair(fair) if fair.flows => fair.share.evict(source.into()),
            Self::Fifo(_) | Self::Fair(_) => None,
            Self::Wfq(lanes) => lanes.evict(class),
            Self::Flows(flows) => flows.evict(),
        }
    }

    /// Removes and returns the next frame to send. Calls `lost` for each frame that the queue
    /// removes because the frame waited too long.
    pub(super) fn pop(&mut self, now: Nanos, lost: &mut impl FnMut(Stored)) -> Option<Next> {
        match self {
            Self::Fifo(fifo) => fifo.pop(now, lost),
            Self::Fair(fair) => {
                let next = fair.share.next(now, |_, frame| lost(frame))?;
                Some(Next { frame: next.item, since: now.saturating_sub(next.waited) })
            }
            Self::Wfq(lanes) => lanes.pop(now, lost),
            Self::Flows(flows) => flows.pop(now, lost),
        }
    }

    /// Returns the fair-share queue of the output, if it has one.
    pub(super) fn fair(&self) -> Option<&Fair> {
        match self {
            Self::Fair(fair) => Some(fair),
            Self::Fifo(_) | Self::Wfq(_) | Self::Flows(_) => None,
        }
    }

    /// Returns the fair-share queue of the output, if it has one, as a mutable reference.
    pub(super) fn fair_mut(&mut self) -> Option<&mut Fair> {
        match self {
            Self::Fair(fair) => Some(fair),
            Self::Fifo(_) | Self::Wfq(_) | Self::Flows(_) => None,
        }
    }

    /// If all waiting frames must still wait, returns the time at which the next frame may be sent.
    pub(super) fn wake(&self) -> Option<Nanos> {
        match self {
            Self::Fifo(_) | Self::Fair(_) | Self::Flows(_) => None,
            Self::Wfq(lanes) => lanes.wake(),
        }
    }

    /// Whether the worker should take no more frames from a source, because too many frames of the
    /// source wait. `free` is the free memory of all queues, in bytes.
    pub(super) fn is_over(&self, source: u16, free: u64) -> bool {
        match self {
            // These orders drop frames and hold back no sender.
            Self::Fifo(_) | Self::Wfq(_) | Self::Flows(_) => false,
            Self::Fair(fair) => fair.is_over(usize::from(source), ALL, free),
        }
    }

    /// Whether the worker may take frames from `source` again, because at most [`UNDER`] parts of
    /// the limit of waiting frames are in use. While the worker does not poll the source, the
    /// source's frames for other outputs wait too, so this time must be short.
    pub(super) fn is_under(&self, source: u16, free: u64) -> bool {
        match self {
            Self::Fifo(_) | Self::Wfq(_) | Self::Flows(_) => true,
            Self::Fair(fair) => !fair.is_over(usize::from(source), UNDER, free),
        }
    }

    /// Removes a port as a source of frames. With fair shares, calls `lost` for each waiting frame
    /// of the port. With the orders other than fair shares, the sending port's waiting frames stay
    /// in the queue, because the frames already belong to the receiver.
    pub(super) fn forget(&mut self, source: u16, lost: impl FnMut(Stored)) {
        if let Self::Fair(fair) = self {
            fair.leave(usize::from(source), lost);
        }
    }

    /// Notes that a departing frame is dropped instead of being sent.
    pub(super) fn drops(&mut self, frame: &Stored) {
        match self {
            Self::Fifo(_) => {}
            Self::Fair(fair) => fair.not_sent(frame, frame.wire()),
            Self::Wfq(lanes) => lanes.drops(frame),
            Self::Flows(flows) => flows.not_sent(frame, frame.wire()),
        }
    }

    /// Notes that `bytes` bytes of a departing frame are not sent.
    pub(super) fn not_sent(&mut self, frame: &Stored, bytes: u32) {
        match self {
            Self::Fifo(_) => {}
            Self::Fair(fair) => fair.not_sent(frame, bytes),
            Self::Wfq(lanes) => lanes.not_sent(frame, bytes),
            Self::Flows(flows) => flows.not_sent(frame, bytes),
        }
    }

    /// Returns the queues and lanes of a [`Order::Wfq`] output.
    pub(super) fn lanes(&self) -> Option<&Lanes> {
        match self {
            Self::Wfq(lanes) => Some(lanes),
            Self::Fifo(_) | Self::Fair(_) | Self::Flows(_) => None,
        }
    }

    /// Returns the queues and lanes of a [`Order::Wfq`] output, as a mutable reference.
    pub(super) fn lanes_mut(&mut self) -> Option<&mut Lanes> {
        match self {
            Self::Wfq(lanes) => Some(lanes),
            Self::Fifo(_) | Self::Fair(_) | Self::Flows(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Fifo {
    frames: VecDeque<(Stored, Nanos)>,
    most: usize,
    bytes: u64,
    bound: Bound,
}

impl Fifo {
    /// Bytes of the waiting frames.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    fn has_room(&self, bytes: u32, free: u64) -> bool {
        let Self { frames, most, bound, .. } = self;
        let limit = bound.bytes.min(free / 2);
        frames.is_empty() || (frames.len() < *most && self.bytes + u64::from(bytes) <= limit)
    }

    fn pop(&mut self, now: Nanos, lost: &mut impl FnMut(Stored)) -> Option<Next> {
        loop {
            let (frame, since) = self.frames.pop_front()?;
            self.bytes -= u64::from(frame.len);
            if now.saturating_sub(since) <= self.bound.wait {
                return Some(Next { frame, since });
            }
            lost(frame);
        }
    }
}

/// Waiting frames of an output that tenants and VMs share by weight.
///
/// # Frames that are not dropped
///
/// With [`Excess::Hold`], the worker stops polling a VM after the batch with which the VM exceeds a
/// limit. The frames of this batch find room beyond the limits: [`OVERSHOOT`] bytes for each VM, a
/// batch of frames for each source port ([`BEYOND`]), and the reserve of the frame store. The limit
/// on the wait does not hold a VM, because the VM's frames for other outputs would wait as well.
///
/// # Flow queues
///
/// A frame of a flow with few frames is found behind bulk frames only after it has left the VM's
/// ring. So with flow queues, the worker takes all frames from the ring. Above the VM's limits,
/// the VM's largest flow loses its first frame. CoDel keeps the queues of TCP flows far below.
#[derive(Debug)]
pub(super) struct Fair {
    share: FairShare<Stored>,
    /// Limit on the waiting frames of all VMs. With [`Excess::Hold`], the table has more places.
    frames: u32,
    bound: Bound,
    /// Whether each flow of a VM has its own queue.
    flows: bool,
    /// Tenant of each source port, and [`Source::shares`] when the queue last read the port's
    /// weights. 0 means that the port is not a member of the fair-share queue.
    members: Box<[(u16, u32)]>,
    /// For each source port, the state of the early signals to its senders, and the length of its
    /// longest frame on the link, in bytes.
    early: Box<[(Codel, u32)]>,
    /// Number of member ports of each tenant, indexed by tenant.
    ports: Box<[u16]>,
}

/// Parts of a VM's limits, of which each has [`PARTS`]: all, the part below which a VM that was
/// held back is polled again, and the part above which the queue counts as long for early signals.
const ALL: u64 = PARTS;
const UNDER: u64 = PARTS - 1;
const LONG: u64 = PARTS / 4;
const PARTS: u64 = 32;

/// Number of frames by which the table of a fair-share queue may exceed the limit on frames, if the
/// queue has enough source ports and the limit is not higher. The number is a batch of 512 ports.
const BEYOND: u32 = 16_384;

/// Room in frames from which a fair-share queue lets segments be cut: more than the worker cuts in
/// a turn.
const PARTS_ROOM: u32 = 512;

/// Number of batches in a rotation of the sources with claims ([`FairShare::again`]). While the
/// other sources pass their batches, a ring of 256 frames has room for as many batches of short
/// frames, so its VM need not stop.
const ROTATION: u32 = 8;

/// Number of bytes that a queue accepts above its byte limit, so that a whole batch fits. A queue
/// that reaches its byte limit within a batch must still accept the rest of the batch. The factor
/// of two is needed because the segments of a batch take more bytes on a link than in memory.
const OVERSHOOT: u64 = 2 * (BATCH_BYTES + FRAME_MAX) as u64;

impl Fair {
    fn new(terms: &QueueTerms, ports: usize, tenants: usize) -> Self {
        let tenants = tenants + 1;
        let beyond = match terms.bound.excess {
            Excess::Hold => u32::try_from(ports * BATCH_FRAMES).unwrap_or(u32::MAX),
            Excess::Drop => 0,
        };
        let frames = terms.frames.saturating_add(beyond.min(terms.frames.max(BEYOND)));
        let capacity = Capacity { tenants, vms: ports, frames };
        let flows = terms.flows && terms.bound.excess == Excess::Drop;
        let tables = if flows { ports.min(flows::VMS_WITH_FLOWS) } else { 0 };
        Self {
            share: FairShare::with_flows(capacity, tables, flows::FLOWS_WITHIN),
            frames: terms.frames,
            bound: terms.bound,
            flows,
            members: vec![(0, 0); ports].into_boxed_slice(),
            early: vec![Default::default(); ports].into_boxed_slice(),
            ports: vec![0; tenants].into_boxed_slice(),
        }
    }

    /// Returns the limits of the inner [`FairShare`] queue. If the switch makes senders wait
    /// ([`Excess::Hold`]), excess frames wait in the sender's ring, so the queue must not drop a
    /// frame taken from the ring.
    fn inner_bound(&self) -> Bound {
        let Bound { bytes, wait, excess } = self.bound;
        match excess {
            Excess::Hold => Bound { bytes: bytes + OVERSHOOT, wait: Nanos(u64::MAX), excess },
            Excess::Drop => Bound { bytes, wait, excess },
        }
    }

    /// Whether a frame of `source` that takes `wire` bytes on a link finds room. With
    /// [`Excess::Drop`], no VM gets more than half of the free memory `free`, or more frames than
    /// there are free places.
    fn has_room(&mut self, source: &Source, wire: u32, free: u64, now: Nanos) -> bool {
        let vm = usize::from(source.port);
        if self.members.get(vm).is_none_or(|member| member.1 != source.shares) {
            self.join(source);
        }
        if self.share.room(vm, wire, now).is_err() {
            return false;
        }
        match self.bound.excess {
            Excess::Hold => true,
            Excess::Drop => {
                let (waiting, bytes) = self.share.backlog(vm);
                let places = self.frames.saturating_sub(self.share.len());
                let fits = memory_of(waiting, bytes) + u64::from(wire) <= free / 2;
                waiting == 0 || fits && waiting < places
            }
        }
    }

    /// Reads the weights of a source, with its first frame after weights or tenants changed. If
    /// those of the source are unchanged, the join costs a few comparisons, and the schedule goes
    /// on as before.
    #[cold]
    fn join(&mut self, source: &Source) {
        let (vm, tenant) = (usize::from(source.port), usize::from(source.tenant));
        let Some(&(old, known)) = self.members.get(vm) else { return };
        if known != 0 && old != source.tenant {
            // No frame of the port waits here: a port must be detached to change its tenant.
            self.leave(vm, |_| {});
        }
        if !self.share.set_tenant(tenant, source.share.tenant) {
            return;
        }
        let bound = self.inner_bound();
        if self.share.set_vm(vm, tenant, source.share.vm, bound) {
            if self.members[vm].1 == 0 {
                self.ports[tenant] += 1;
            }
            self.members[vm] = (source.tenant, source.shares);
        }
    }

    /// Returns what the output sends next: a waiting frame, or frames from the ring of a VM.
    pub(super) fn turn(&mut self) -> Option<Turn> {
        self.share.turn()
    }

    /// Returns the port number of the last chosen source, if the source's next batch may pass
    /// without another choice.
    pub(super) fn again(&self) -> Option<u16> {
        self.share.again(ROTATION).and_then(|vm| u16::try_from(vm).ok())
    }

    /// Whether frames wait and a source has a claim. If [`Line::pop`] returns no frame then, frames
    /// wait behind a claim.
    pub(super) const fn waits_for_claim(&self) -> bool {
        !self.share.is_empty() && self.share.has_claims()
    }

    /// Whether a source has a claim.
    pub(super) const fn has_claims(&self) -> bool {
        self.share.has_claims()
    }

    /// Whether no frame of a source other than `source` waits.
    pub(super) fn waits_only_from(&self, source: u16) -> bool {
        self.share.backlog(usize::from(source)).0 == self.share.len()
    }

    /// Returns the claim of a source ([`FairShare::claimed`]).
    pub(super) fn claimed(&self, source: u16) -> u32 {
        self.share.claimed(usize::from(source))
    }

    /// Sets the claim of a source ([`FairShare::claim`]). Reads the source's weights with its first
    /// claim after weights or tenants changed.
    pub(super) fn claim(&mut self, source: &Source, bytes: u32) {
        let vm = usize::from(source.port);
        if bytes > 0 && self.members.get(vm).is_none_or(|member| member.1 != source.shares) {
            self.join(source);
        }
        self.share.claim(vm, bytes);
    }

    /// Reports that frames of a source passed without waiting. `size` is their number, and their
    /// bytes on the link.
    pub(super) fn passed(&mut self, source: &Source, size: (u32, u32), claim: u32) {
        self.share.passed(usize::from(source.port), size, claim);
        if claim > 0 {
            self.claim(source, claim);
        }
    }

    /// Withdraws the claims of all sources.
    pub(super) fn withdraw_claims(&mut self) {
        self.share.withdraw_claims();
    }

    fn leave(&mut self, vm: usize, mut lost: impl FnMut(Stored)) {
        let Some(member) = self.members.get_mut(vm) else { return };
        let (tenant, known) = core::mem::take(member);
        if known == 0 {
            return;
        }
        self.share.remove_vm(vm, &mut lost);
        let ports = &mut self.ports[usize::from(tenant)];
        *ports -= 1;
        if *ports == 0 {
            self.share.remove_tenant(tenant.into(), |_, frame| lost(frame));
        }
    }

    /// Whether the departing frame is to signal congestion to its sender. The queue holds only a
    /// part of the sender's frames, and the others wait in the sender's ring for a time that the
    /// queue does not know. So a sender of which more than a quarter of the limit waits counts as
    /// if its frames waited for CoDel's target.
    pub(super) fn signals(&mut self, frame: &Stored, free: u64, waited: Nanos, now: Nanos) -> bool {
        let vm = usize::from(frame.source);
        let full = self.is_over(vm, LONG, free);
        let (_, behind) = self.share.backlog(vm);
        let Some((codel, longest)) = self.early.get_mut(vm) else { return false };
        *longest = (*longest).max(frame.wire());
        let waited = if full { waited.max(TARGET) } else { waited };
        codel.signals(waited, Pace::DEFAULT, behind > u64::from(*longest), now)
    }

    /// Whether each flow of a VM has its own queue.
    pub(super) const fn has_flows(&self) -> bool {
        self.flows
    }

    /// Whether the departing frame of a VM with flow queues is to signal congestion. The frame
    /// waited for `waited`, and takes the time `time` at the output's rate.
    pub(super) fn flow_signals(
        &mut self,
        frame: &Stored,
        (waited, time): (Nanos, Nanos),
        now: Nanos,
    ) -> bool {
        let table = self.share.flow_table(frame.source.into());
        table.is_some_and(|table| flows::signals(table, (frame.hash, frame), (waited, time), now))
    }

    /// Gives a VM with flow queues back `bytes` bytes of a departing frame that are not sent.
    fn not_sent(&mut self, frame: &Stored, bytes: u32) {
        if !self.flows {
            return;
        }
        let vm = usize::from(frame.source);
        self.share.not_sent(vm, bytes);
        if let Some(table) = self.share.flow_table(vm) {
            table.not_sent(frame.hash, bytes);
        }
    }

    /// Whether more frames of `vm` wait than `parts` parts of the VM's limits ([`PARTS`]). No VM
    /// gets more than half of the free memory of all queues (Choudhury, Hahne, 1998), so that later
    /// VMs find room.
    fn is_over(&self, vm: usize, parts: u64, free: u64) -> bool {
        if self.bound.excess == Excess::Drop {
            return false;
        }
        let (waiting, bytes) = self.share.backlog(vm);
        if waiting == 0 {
            return false;
        }
        let frames = u64::from(self.frames.saturating_sub(self.share.len())) / 2;
        bytes > self.bound.bytes * parts / PARTS
            || memory_of(waiting, bytes) > free / 2 * parts / PARTS
            || u64::from(waiting) * PARTS > frames * parts
    }
}

/// Returns the memory that `frames` waiting frames with `bytes` bytes on a link take at most. A
/// frame takes whole cells, so a short frame takes much more memory than time on the link.
fn memory_of(frames: u32, bytes: u64) -> u64 {
    bytes + u64::from(frames) * CELL as u64
}
