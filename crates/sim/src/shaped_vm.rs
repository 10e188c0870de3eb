//! Simulates one VM behind a shaper. The VM's traffic is RTP, HTTP, UDP or TCP.
//!
//! # Problem
//!
//! Figs. 8 to 11 of the VM jitter paper show one VM with a rate limit. Figs. 8 to 11 compare
//! smoothing with a token bucket that is refilled every 50 ms.
//!
//! # Approach
//!
//! The simulation uses the shaper and the timing wheel of the data path ([`penstock_qos::shaper`],
//! [`penstock_qos::wheel`]). A frame receives a departure time when it becomes the first frame in
//! its VM's queue. The frame departs when the timing wheel fires, at most one slot of the wheel (2
//! us) after the departure time. The queue in front of the shaper has a limit in bytes. A departure
//! takes no time, because the link is much faster than the limit.
//!
//! # Cost
//!
//! The loops over frames are here and not in the figures, because unoptimised builds of the figures
//! use an optimised build of this crate.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use penstock_qos::shaper::Shaper;
use penstock_qos::wheel::Wheel;
use penstock_units::Nanos;

/// A frame that waits for departure or has departed. `tag` has a meaning only for the sender.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    pub arrived: Nanos,
    pub bytes: u32,
    pub tag: u64,
}

/// A VM with its queue, shaper and timing wheel.
#[derive(Debug)]
pub struct ShapedVm {
    shaper: Shaper,
    wheel: Wheel,
    queue: VecDeque<Frame>,
    queued: u64,
    room: u64,
    pub dropped: u64,
}

impl ShapedVm {
    /// Creates a VM with a queue of `room` bytes.
    #[must_use]
    pub fn new(shaper: Shaper, room: u64) -> Self {
        let wheel = Wheel::new(1, Nanos(0));
        Self { shaper, wheel, queue: VecDeque::new(), queued: 0, room, dropped: 0 }
    }

    /// Keeps the queue full with frames of `bytes` bytes, which must be above 0, from the time
    /// `from` to the time `until`. Returns the number of bytes that depart in this time.
    pub fn keep_full(&mut self, from: Nanos, until: Nanos, bytes: u32) -> u64 {
        let (mut now, mut gone) = (from, 0);
        loop {
            while self.has_room(bytes) {
                self.come(now, bytes, 0);
            }
            match self.next_event() {
                Some(next) if next <= until => now = next,
                _ => return gone,
            }
            self.depart(now, |frame| gone += u64::from(frame.bytes));
        }
    }

    /// Returns true if the queue has room for `bytes` more bytes.
    fn has_room(&self, bytes: u32) -> bool {
        self.queued + u64::from(bytes) <= self.room
    }

    /// Adds a frame to the queue. Returns false if the queue had no room and the frame was dropped.
    fn come(&mut self, now: Nanos, bytes: u32, tag: u64) -> bool {
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

    /// Returns the time of the next departure. Returns `None` if no frame waits.
    fn next_event(&self) -> Option<Nanos> {
        self.wheel.next_event()
    }

    /// Calls `gone` for each frame that departs at the time `now`.
    fn depart(&mut self, now: Nanos, mut gone: impl FnMut(Frame)) {
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

    #[must_use]
    pub fn shaper(&self) -> &Shaper {
        &self.shaper
    }
}

/// A simulation of a VM and its traffic. The caller of [`Run::step`] gets each departing frame, and
/// can schedule more frames.
#[derive(Debug)]
pub struct Run {
    pub vm: ShapedVm,
    /// Frames that will arrive at the queue, as (time, tag, bytes).
    coming: BinaryHeap<Reverse<(u64, u64, u32)>>,
}

impl Run {
    #[must_use]
    pub fn new(vm: ShapedVm) -> Self {
        Self { vm, coming: BinaryHeap::new() }
    }

    /// Schedules the arrival of a frame at the time `when`.
    pub fn at(&mut self, when: Nanos, bytes: u32, tag: u64) {
        self.coming.push(Reverse((when.0, tag, bytes)));
    }

    /// Runs the next event up to `until`, writes the event's results to `happened`, and returns the
    /// event's time. Returns `None` if there is no event up to `until`.
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

/// Whether a frame departed or was dropped.
#[derive(Debug, Clone, Copy)]
pub enum Happened {
    Departed(Frame),
    /// The queue had no room for the frame.
    Dropped,
}
