//! One VM behind a shaper, and what sends through it: RTP, a web server, floods of UDP, TCP.
//!
//! **Problem.** Figs. 8 to 11 of the jitter paper are one VM at a rate limit, under a token bucket
//! that is refilled every 50 ms and under smoothing. **Rule.** Shaper and wheel are those of the
//! data path ([`penstock_qos::shaper`], [`penstock_qos::wheel`]): a frame that becomes the first of
//! its VM is given a time to depart, and departs when the wheel says so, up to a slot later. The
//! queue in front of the shaper is bounded in bytes. Departures take no time: the link is far
//! faster than the limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use penstock_qos::shaper::Shaper;
use penstock_qos::wheel::Wheel;
use penstock_units::Nanos;

/// A frame that waits or has departed. What `tag` says is its sender's business.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub arrived: Nanos,
    pub bytes: u32,
    pub tag: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct ShapedVm {
    shaper: Shaper,
    wheel: Wheel,
    queue: VecDeque<Frame>,
    queued: u64,
    room: u64,
    pub dropped: u64,
}

impl ShapedVm {
    /// With `room` bytes of queue.
    pub fn new(shaper: Shaper, room: u64) -> Self {
        let wheel = Wheel::new(1, Nanos(0));
        Self { shaper, wheel, queue: VecDeque::new(), queued: 0, room, dropped: 0 }
    }

    /// Whether there is room for so many bytes more.
    pub fn has_room(&self, bytes: u32) -> bool {
        self.queued + u64::from(bytes) <= self.room
    }

    /// A frame comes; whether it was taken and not dropped.
    pub fn come(&mut self, now: Nanos, bytes: u32, tag: u64) -> bool {
        if !self.has_room(bytes) {
            self.dropped += 1;
            return false;
        }
        self.queue.push_back(Frame { arrived: now, bytes, tag });
        self.queued += u64::from(bytes);
        if self.queue.len() == 1 {
            let due = self.shaper.depart(now, bytes);
            self.wheel.arm(0, due);
        }
        true
    }

    /// When the next frame departs, if one waits.
    pub fn next_event(&self) -> Option<Nanos> {
        self.wheel.next_event()
    }

    /// All that departs at `now`.
    pub fn depart(&mut self, now: Nanos, mut gone: impl FnMut(Frame)) {
        if self.wheel.expire(now).is_none() {
            return;
        }
        while let Some(frame) = self.queue.pop_front() {
            self.queued -= u64::from(frame.bytes);
            gone(frame);
            let Some(head) = self.queue.front() else { return };
            let due = self.shaper.depart(head.arrived, head.bytes);
            if due > now {
                self.wheel.arm(0, due);
                return;
            }
        }
    }

    pub fn shaper(&self) -> &Shaper {
        &self.shaper
    }
}

/// Runs a VM with sources that are told what departed and say when more comes: (when, bytes, tag).
pub(super) struct Run {
    pub vm: ShapedVm,
    /// Frames that are to come.
    coming: BinaryHeap<Reverse<(u64, u64, u32)>>,
}

impl Run {
    pub fn new(vm: ShapedVm) -> Self {
        Self { vm, coming: BinaryHeap::new() }
    }

    /// A frame is to come.
    pub fn at(&mut self, when: Nanos, bytes: u32, tag: u64) {
        self.coming.push(Reverse((when.0, tag, bytes)));
    }

    /// The next thing that happens, at or before `until`: what departed, or what was dropped.
    pub fn step(&mut self, until: Nanos, happened: &mut Vec<Happened>) -> Option<Nanos> {
        happened.clear();
        let comes = self.coming.peek().map(|Reverse((at, ..))| Nanos(*at));
        let departs = self.vm.next_event();
        let now = match (comes, departs) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        if now > until {
            return None;
        }
        if departs == Some(now) {
            self.vm.depart(now, |frame| happened.push(Happened::Departed(frame)));
        } else if let Some(Reverse((_, tag, bytes))) = self.coming.pop()
            && !self.vm.come(now, bytes, tag)
        {
            happened.push(Happened::Dropped);
        }
        Some(now)
    }
}

/// What happened to frames.
#[derive(Debug, Clone, Copy)]
pub(super) enum Happened {
    /// It left.
    Departed(Frame),
    /// There was no room.
    Dropped,
}
