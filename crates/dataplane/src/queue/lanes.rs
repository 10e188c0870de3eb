//! The line of a `wfq` output: a few queues by weight, a frame's code point says which is its.
//!
//! **Rule.** New classes hold at once, and what waits stays where it is. A code point that gets
//! another queue while frames of it wait in the old one goes on there until none does, so that no
//! flow is overtaken by its own frames; for [`FOLLOW_MOST`] at most, as a queue that is always full
//! would never be left.

use std::sync::Arc;

use penstock_qos::wfq::{Depth, QUEUES_MAX, Wfq};
use penstock_units::Nanos;

use super::classes::{Class, DSCPS};
use super::line::Next;
use super::{Classes, LaneCounters, QueueTerms, Stored};
use crate::classify::dscp_of;

/// How long a code point goes on in the queue that it had.
const FOLLOW_MOST: Nanos = Nanos::from_millis(100);

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
        for (queue, weight) in classes.weights().iter().enumerate() {
            self.wfq.set_weight(queue, *weight);
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

    /// Where a frame belongs that begins so and comes at `now`.
    pub(super) fn class_of(&mut self, head: &[u8], now: Nanos) -> Class {
        if self.following != 0 {
            self.settle(now);
        }
        let dscp = dscp_of(head);
        Class { queue: self.points[usize::from(dscp) % DSCPS].queue, dscp }
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
        let queued = self.wfq.offer(frame.class.queue.into(), frame, frame.len, now).is_ok();
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
