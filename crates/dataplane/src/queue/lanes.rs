//! The line of a `wfq` output: a few queues by weight, a frame's code point says which is its.
//!
//! **Rule.** New classes hold at once, and what waits stays where it is. A code point that gets
//! another queue while frames of it wait in the old one goes on there until none does, so that no
//! flow is overtaken by its own frames; for [`FOLLOW_MOST`] at most, as a queue that is always full
//! would never be left.

use std::sync::Arc;

use penstock_qos::wfq::{Depth, QUEUES_MAX, Wfq};
use penstock_units::{BitsPerSecond, Nanos};

use super::classes::{Class, DSCPS};
use super::line::Next;
use super::{Classes, LaneCounters, QueueTerms, Stored};
use crate::classify::dscp_of;

/// How long a code point goes on in the queue that it had.
const FOLLOW_MOST: Nanos = Nanos::from_millis(100);
/// How long frames of who is held wait at most for their time, and bytes that always may.
const HELD_TIME: Nanos = Nanos::from_millis(200);
const HELD_BYTES: u64 = 65_536;

/// What waits in the lane of who is held: as much as its rate takes in [`HELD_TIME`], so that TCP
/// fills it and nobody waits for long.
fn held_depth(depth: Depth, rate: BitsPerSecond) -> Depth {
    let wide = u128::from(rate.0) * u128::from(HELD_TIME.0) / 8_000_000_000;
    let bytes = u64::try_from(wide).unwrap_or(u64::MAX).max(HELD_BYTES).min(depth.bytes);
    Depth { bytes, ..depth }
}

/// Where frames of a code point go.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    queue: u8,
    /// Frames of it that wait.
    waiting: u32,
}

/// See the module's text. There are always [`QUEUES_MAX`] queues, so that their number may change
/// while frames wait; one without frames costs nothing.
#[derive(Debug)]
pub(super) struct Lanes {
    wfq: Wfq<Stored>,
    classes: Arc<Classes>,
    points: [Point; DSCPS],
    /// What waits in a queue at most.
    depth: Depth,
    /// Code points, a bit each, that still go where they went before the last change, and until
    /// when.
    following: u64,
    until: Nanos,
    pub(super) counters: Arc<LaneCounters>,
}

impl Lanes {
    pub(super) fn new(terms: &QueueTerms) -> Self {
        let depth = Depth { bytes: terms.bound.bytes, wait: terms.bound.wait };
        Self {
            wfq: Wfq::new(QUEUES_MAX, terms.frames, depth),
            classes: Arc::default(),
            points: [Point::default(); DSCPS],
            depth,
            following: 0,
            until: Nanos::ZERO,
            counters: Arc::default(),
        }
    }

    /// The classes from now on; what waits stays where it is.
    pub(super) fn change(&mut self, classes: Arc<Classes>, now: Nanos) {
        if Arc::ptr_eq(&classes, &self.classes) {
            return;
        }
        for (queue, weight) in classes.shares().into_iter().enumerate() {
            self.wfq.set_weight(queue, weight);
        }
        let mut rates = [None; QUEUES_MAX];
        classes.held().for_each(|(lane, held)| rates[usize::from(lane)] = Some(held.rate));
        for (lane, rate) in rates.into_iter().enumerate() {
            // One that stays as it is goes on with what it has used.
            self.wfq.set_ceiling(lane, rate);
            let depth = rate.map_or(self.depth, |rate| held_depth(self.depth, rate));
            self.wfq.set_depth(lane, depth);
        }
        self.classes = classes;
        (self.following, self.until) = (u64::MAX, now + FOLLOW_MOST);
        self.settle(now);
    }

    /// Lets code points go where they should that may.
    #[cold]
    fn settle(&mut self, now: Nanos) {
        let late = now >= self.until;
        let mut rest = self.following;
        while rest != 0 {
            let at = rest.trailing_zeros();
            rest &= rest - 1;
            let Some(dscp) = u8::try_from(at).ok() else { return };
            let (point, queue) = (&mut self.points[usize::from(dscp)], self.classes.queue_of(dscp));
            if late || point.waiting == 0 || point.queue == queue {
                point.queue = queue;
                self.following &= !(1 << at);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.wfq.len() as usize
    }

    /// Where a frame of a tenant belongs that begins so and comes at `now`.
    pub(super) fn class_of(&mut self, head: &[u8], tenant: Option<u16>, now: Nanos) -> Class {
        if self.following != 0 {
            self.settle(now);
        }
        let dscp = dscp_of(head);
        let queue = self.points[usize::from(dscp) % DSCPS].queue;
        let lane = tenant.filter(|_| queue == 0).and_then(|tenant| self.classes.lane_of(tenant));
        Class { queue: lane.unwrap_or(queue), dscp }
    }

    /// When the first of those may go that wait for their time.
    pub(super) fn wake(&self) -> Option<Nanos> {
        self.wfq.wake()
    }

    /// Whether a frame finds room. Of the memory of all outputs no queue gets more than half of
    /// what is free, as nobody does.
    pub(super) fn has_room(&self, queue: u8, bytes: u32, free: u64) -> bool {
        let (_, waiting) = self.wfq.backlog(queue.into());
        let fits = waiting == 0 || waiting + u64::from(bytes) <= free / 2;
        fits && self.wfq.room(queue.into(), bytes).is_ok()
    }

    /// Takes a frame; false: there is no room.
    pub(super) fn push(&mut self, frame: Stored, now: Nanos) -> bool {
        let queued = self.wfq.offer(frame.class.queue.into(), frame, frame.wire, now).is_ok();
        if queued {
            self.points[usize::from(frame.class.dscp) % DSCPS].waiting += 1;
            self.counters.came(&frame);
        }
        queued
    }

    /// Takes the next one; `lost` gets those that waited too long.
    pub(super) fn pop(&mut self, now: Nanos, lost: &mut impl FnMut(Stored)) -> Option<Next> {
        let Self { wfq, points, counters, .. } = self;
        let mut left = |frame: &Stored| {
            points[usize::from(frame.class.dscp) % DSCPS].waiting -= 1;
        };
        let next = wfq.next(now, |_, frame| {
            left(&frame);
            counters.lost(&frame);
            lost(frame);
        })?;
        left(&next.item);
        Some(Next { frame: next.item, since: now.saturating_sub(next.waited) })
    }
}
