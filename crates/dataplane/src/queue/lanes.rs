//! The line of a `wfq` output: a few queues by weight, a frame's code point says which is its.

use std::sync::Arc;

use penstock_qos::wfq::{Depth, QUEUES_MAX, Wfq};
use penstock_units::Nanos;

use super::line::Next;
use super::{Classes, LaneCounters, QueueTerms, Stored};
use crate::classify::dscp_of;

/// See the module's text. There are always [`QUEUES_MAX`] queues, so that their number may change
/// while frames wait; one without frames costs nothing.
#[derive(Debug)]
pub(super) struct Lanes {
    wfq: Wfq<Stored>,
    classes: Arc<Classes>,
    pub(super) counters: Arc<LaneCounters>,
}

impl Lanes {
    pub(super) fn new(terms: &QueueTerms) -> Self {
        let depth = Depth { bytes: terms.bound.bytes, wait: terms.bound.wait };
        let wfq = Wfq::new(QUEUES_MAX, terms.frames, depth);
        Self { wfq, classes: Arc::default(), counters: Arc::default() }
    }

    /// The classes from now on; what waits stays where it is.
    pub(super) fn change(&mut self, classes: Arc<Classes>) {
        for (queue, weight) in classes.weights().iter().enumerate() {
            self.wfq.set_weight(queue, *weight);
        }
        self.classes = classes;
    }

    pub(super) fn len(&self) -> usize {
        self.wfq.len() as usize
    }

    pub(super) fn class_of(&self, head: &[u8]) -> u8 {
        self.classes.queue_of(dscp_of(head))
    }

    /// Whether a frame finds room. Of the memory of all outputs no queue gets more than half of
    /// what is free, as nobody does.
    pub(super) fn has_room(&self, class: u8, bytes: u32, free: u64) -> bool {
        let (_, waiting) = self.wfq.backlog(class.into());
        let fits = waiting == 0 || waiting + u64::from(bytes) <= free / 2;
        fits && self.wfq.room(class.into(), bytes).is_ok()
    }

    /// Takes a frame; false: there is no room.
    pub(super) fn push(&mut self, frame: Stored, now: Nanos) -> bool {
        let queued = self.wfq.offer(frame.class.into(), frame, frame.len, now).is_ok();
        if queued {
            self.counters.came(&frame);
        }
        queued
    }

    /// Takes the next one; `lost` gets those that waited too long.
    pub(super) fn pop(&mut self, now: Nanos, lost: &mut impl FnMut(Stored)) -> Option<Next> {
        let counters = &self.counters;
        let next = self.wfq.next(now, |_, frame| {
            counters.lost(&frame);
            lost(frame);
        })?;
        Some(Next { frame: next.item, since: now.saturating_sub(next.waited) })
    }
}
