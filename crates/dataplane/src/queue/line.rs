//! Who of those that wait for an output goes next: first come first served, or by shares.

use std::collections::VecDeque;

use penstock_qos::fair_share::{Bound, Capacity, Excess, FairShare, Offer};
use penstock_units::Nanos;

use super::classes::Class;
use super::lanes::Lanes;
use super::{Order, QueueTerms, ShareTerms, Stored};
use crate::batch::{BATCH_BYTES, FRAME_MAX};

/// Whose a frame is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The port it came from.
    pub port: u16,
    /// The tenant's slot; 0: the operator.
    pub tenant: u16,
    /// Its weights.
    pub share: ShareTerms,
}

/// A frame whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub frame: Stored,
    /// When it came.
    pub since: Nanos,
}

/// See the module's text.
#[derive(Debug)]
pub(super) enum Line {
    Fifo(Fifo),
    Fair(Box<Fair>),
    Wfq(Box<Lanes>),
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
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.frames.is_empty(),
            Self::Fair(fair) => fair.share.is_empty(),
            Self::Wfq(lanes) => lanes.len() == 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Fifo(fifo) => fifo.frames.len(),
            Self::Fair(fair) => fair.share.len() as usize,
            Self::Wfq(lanes) => lanes.len(),
        }
    }

    /// Which of its queues a frame of `source` belongs to that begins with these bytes; queue 0
    /// where there is one.
    pub(super) fn class_of(&mut self, head: &[u8], source: &Source, now: Nanos) -> Class {
        match self {
            Self::Fifo(_) | Self::Fair(_) => Class::default(),
            Self::Wfq(lanes) => lanes.class_of(head, source.tenant.checked_sub(1), now),
        }
    }

    /// Whether a frame of `len` bytes, which takes `wire` bytes on a link, would find room in its
    /// queue; `free` is what all outputs together have.
    pub(super) fn has_room(&self, class: Class, (len, wire): (u32, u32), free: u64) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.has_room(len, free),
            Self::Fair(fair) => fair.share.len() < fair.frames,
            Self::Wfq(lanes) => lanes.has_room(class.queue, wire, free),
        }
    }

    /// Takes a frame; false: there is no room.
    pub(super) fn push(&mut self, source: &Source, frame: Stored, now: Nanos) -> bool {
        match self {
            Self::Fifo(fifo) => {
                if fifo.frames.len() >= fifo.most {
                    return false;
                }
                fifo.bytes += u64::from(frame.len);
                fifo.frames.push_back((frame, now));
                true
            }
            Self::Fair(fair) => fair.push(source, frame, now),
            Self::Wfq(lanes) => lanes.push(frame, now),
        }
    }

    /// Takes the next one; `lost` gets those that waited too long.
    pub(super) fn pop(&mut self, now: Nanos, lost: &mut impl FnMut(Stored)) -> Option<Next> {
        match self {
            Self::Fifo(fifo) => fifo.pop(now, lost),
            Self::Fair(fair) => {
                let next = fair.share.next(now, |_, frame| lost(frame))?;
                Some(Next { frame: next.item, since: now.saturating_sub(next.waited) })
            }
            Self::Wfq(lanes) => lanes.pop(now, lost),
        }
    }

    /// When one may be taken, if some wait and none may now.
    pub(super) fn wake(&self) -> Option<Nanos> {
        match self {
            Self::Fifo(_) | Self::Fair(_) => None,
            Self::Wfq(lanes) => lanes.wake(),
        }
    }

    /// Whether a source has so much waiting that no more should be taken from it; `free` is what
    /// all queues together have.
    pub(super) fn is_over(&self, source: u16, free: u64, now: Nanos) -> bool {
        match self {
            // It drops: nobody waits for another's ring.
            Self::Fifo(_) | Self::Wfq(_) => false,
            Self::Fair(fair) => fair.is_over(usize::from(source), 1, free, now),
        }
    }

    /// Whether it has so little that more may be: half of that.
    pub(super) fn is_under(&self, source: u16, free: u64, now: Nanos) -> bool {
        match self {
            Self::Fifo(_) | Self::Wfq(_) => true,
            Self::Fair(fair) => !fair.is_over(usize::from(source), 2, free, now),
        }
    }

    /// A port goes; `lost` gets its frames. First come first served keeps them: they are the
    /// receiver's by now, and so do queues by class.
    pub(super) fn forget(&mut self, source: u16, lost: impl FnMut(Stored)) {
        if let Self::Fair(fair) = self {
            fair.leave(usize::from(source), lost);
        }
    }

    /// Whose counters these are, if each of its queues has some.
    pub(super) fn lanes(&self) -> Option<&Lanes> {
        match self {
            Self::Wfq(lanes) => Some(lanes),
            Self::Fifo(_) | Self::Fair(_) => None,
        }
    }

    /// The same, to be changed.
    pub(super) fn lanes_mut(&mut self) -> Option<&mut Lanes> {
        match self {
            Self::Wfq(lanes) => Some(lanes),
            Self::Fifo(_) | Self::Fair(_) => None,
        }
    }

    /// What was known of the sources' weights may have changed.
    pub(super) fn changed(&mut self) {
        if let Self::Fair(fair) = self {
            fair.generation = fair.generation.wrapping_add(1).max(1);
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

/// By shares.
#[derive(Debug)]
pub(super) struct Fair {
    share: FairShare<Stored>,
    frames: u32,
    bound: Bound,
    /// By port: its tenant, and as of which generation its weights are known.
    members: Box<[(u16, u32)]>,
    /// By tenant: its ports that are members.
    ports: Box<[u16]>,
    generation: u32,
}

/// What a queue takes above its bound: a batch that had been taken when it was reached, which is
/// longer on a link than in memory where it has to be cut into segments.
const OVERSHOOT: u64 = 2 * (BATCH_BYTES + FRAME_MAX) as u64;

impl Fair {
    fn new(terms: &QueueTerms, ports: usize, tenants: usize) -> Self {
        let tenants = tenants + 1;
        Self {
            share: FairShare::new(Capacity { tenants, vms: ports, frames: terms.frames }),
            frames: terms.frames,
            bound: terms.bound,
            members: vec![(0, 0); ports].into_boxed_slice(),
            ports: vec![0; tenants].into_boxed_slice(),
            generation: 1,
        }
    }

    /// What [`FairShare`] is told: where frames are held the ring is where they stay, and what was
    /// taken from there is not lost.
    fn inner_bound(&self) -> Bound {
        let Bound { bytes, wait, excess } = self.bound;
        match excess {
            Excess::Hold => Bound { bytes: bytes + OVERSHOOT, wait: Nanos(u64::MAX), excess },
            Excess::Drop => Bound { bytes, wait, excess },
        }
    }

    fn push(&mut self, source: &Source, frame: Stored, now: Nanos) -> bool {
        let vm = usize::from(source.port);
        if self.members.get(vm).is_none_or(|member| member.1 != self.generation) {
            self.join(source);
        }
        // What is shared is the link's time: short frames cost more of it than their bytes say.
        self.share.offer(vm, frame, frame.wire, now) == Offer::Queued
    }

    #[cold]
    fn join(&mut self, source: &Source) {
        let (vm, tenant) = (usize::from(source.port), usize::from(source.tenant));
        let Some(&(old, known)) = self.members.get(vm) else { return };
        if known != 0 && old != source.tenant {
            // Nothing of it waits: a port changes hands by being detached.
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
            self.members[vm] = (source.tenant, self.generation);
        }
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

    /// Whether more than 1/`part` of what may wait of `vm` does. Of what all queues have together
    /// no VM gets more than half of what is free (Choudhury, Hahne, 1998), so that one that comes
    /// later finds room.
    fn is_over(&self, vm: usize, part: u64, free: u64, now: Nanos) -> bool {
        if self.bound.excess == Excess::Drop {
            return false;
        }
        let Some(account) = self.share.account(vm).filter(|a| a.queued_frames > 0) else {
            return false;
        };
        let bytes = self.bound.bytes.min(free / 2) / part;
        let frames = (self.frames - self.share.len()) / 2;
        let oldest = self.share.oldest(vm).map_or(Nanos::ZERO, |since| now.saturating_sub(since));
        let late = part == 1 && oldest >= self.bound.wait;
        account.queued_bytes > bytes
            || late
            || u64::from(account.queued_frames) * part > frames.into()
    }
}
