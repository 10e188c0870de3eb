//! An output with order `wfq` divides its rate among several queues by weight. A frame's code point
//! selects the frame's queue.
//!
//! # Approach
//!
//! New classes apply at once, but waiting frames stay in their queue. A code point may move to
//! another queue while frames with the code point wait. If a code point moves to another queue, new
//! frames still join the old queue while earlier frames with the code point wait there. As a
//! result, no frame of a flow overtakes an earlier frame of the flow, except TCP's pure
//! acknowledgements. They do not wait behind data of their queue ([`Wfq::offer`]). Questions
//! and answers about pairs of VMs do not wait either ([`marker::passes_data`]): if they waited in
//! the queues that a pair fills, the pair's limit would come too late.
//!
//! With flow queues, each flow of a queue or lane has its own queue ([`super::flows`]). They decide
//! which frames signal congestion, also in the lanes of rate-limited tenants.
//!
//! A moved code point uses its new queue at the latest after [`FOLLOW_MOST`], because a queue under
//! constant load may never become empty.

use std::sync::Arc;

use penstock_qos::policer::CUT_BELOW;
use penstock_qos::wfq::{Depth, QUEUES_MAX, Wfq};
use penstock_units::{BitsPerSecond, Nanos};

use super::classes::{Class, DSCPS};
use super::early::{Departure, EarlySignals};
use super::flows::{self, flow_of};
use super::line::Next;
use super::{Classes, LaneCounters, QueueTerms, Stored};
use crate::headers::{dscp_of, is_pure_ack};
use crate::pairs::marker;

/// Longest time for which a moved code point stays in its old queue.
const FOLLOW_MOST: Nanos = Nanos::from_millis(100);
/// Longest time for which frames of a rate-limited tenant should wait.
const HELD_TIME: Nanos = Nanos::from_millis(200);
/// Number of bytes that may always wait in the lane of a rate-limited tenant.
const HELD_BYTES: u64 = 65_536;

/// Returns the limits of a rate-limited tenant's lane. The lane has room for the bytes that the
/// rate sends in [`HELD_TIME`]. A lane with room for [`HELD_TIME`] lets TCP use the whole rate and
/// still keeps waits short.
fn held_depth(depth: Depth, rate: BitsPerSecond) -> Depth {
    let wide = u128::from(rate.0) * u128::from(HELD_TIME.0) / 8_000_000_000;
    let bytes = u64::try_from(wide).unwrap_or(u64::MAX).max(HELD_BYTES).min(depth.bytes);
    Depth { bytes, ..depth }
}

/// State of a code point: the queue that its new frames join, and the number of its waiting frames.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    queue: u8,
    /// Number of the code point's frames that wait, in any queue.
    waiting: u32,
}

/// All queues and lanes of an output. An output always has [`QUEUES_MAX`] queues and lanes, so the
/// number of used queues may change while frames wait. Queues without waiting frames take no
/// processing time.
#[derive(Debug)]
pub(super) struct Lanes {
    wfq: Wfq<Stored>,
    classes: Arc<Classes>,
    points: [Point; DSCPS],
    /// Limits on the frames that wait in each queue. Lanes of rate-limited tenants have limits of
    /// their own.
    depth: Depth,
    /// Limits on the frames that wait in each lane with a rate ceiling.
    held: Depth,
    /// Bit mask of code points that still use their old queue after the last change of classes.
    following: u64,
    /// Latest time at which moved code points start to use their new queues.
    until: Nanos,
    pub(super) counters: Arc<LaneCounters>,
    /// Whether each flow of a queue or lane has its own queue.
    flows: bool,
    /// The state of the early signals of each queue with a rate ceiling.
    early: Box<[EarlySignals]>,
}

impl Lanes {
    pub(super) fn new(terms: &QueueTerms) -> Self {
        let depth = Depth { bytes: terms.bound.bytes, wait: terms.bound.wait };
        let held = Depth { bytes: terms.held_bytes, ..depth };
        let flows = if terms.flows { flows::FLOWS_WITHIN } else { 0 };
        Self {
            wfq: Wfq::with_flows(QUEUES_MAX, terms.frames, depth, flows),
            classes: Arc::default(),
            points: [Point::default(); DSCPS],
            depth,
            held,
            following: 0,
            until: Nanos::ZERO,
            counters: Arc::default(),
            flows: terms.flows,
            early: vec![Default::default(); QUEUES_MAX].into_boxed_slice(),
        }
    }

    /// Sets the classes of the output. Frames that already wait stay in their queue when the
    /// classes change.
    pub(super) fn change(&mut self, classes: Arc<Classes>, now: Nanos) {
        if Arc::ptr_eq(&classes, &self.classes) {
            return;
        }
        for (queue, weight) in classes.shares().into_iter().enumerate() {
            self.wfq.set_weight(queue, weight);
        }
        let mut rates = [None; QUEUES_MAX];
        classes.ceilings().for_each(|(lane, rate)| rates[usize::from(lane)] = Some(rate));
        for (lane, rate) in rates.into_iter().enumerate() {
            // An unchanged ceiling keeps its used budget.
            self.wfq.set_ceiling(lane, rate);
            if limit(&classes, lane) != limit(&self.classes, lane)
                && let Some(early) = self.early.get_mut(lane)
            {
                *early = Default::default();
            }
            let depth = rate.map_or(self.depth, |rate| held_depth(self.held, rate));
            self.wfq.set_depth(lane, depth);
        }
        self.classes = classes;
        (self.following, self.until) = (u64::MAX, now + FOLLOW_MOST);
        self.settle(now);
    }

    /// Moves a code point to its new queue if none of its frames waits, and moves all code points
    /// after time `until`.
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

    /// Returns the class of a frame that begins with `head`, belongs to `tenant` and arrives at
    /// `now`.
    pub(super) fn class_of(&mut self, head: &[u8], tenant: Option<u16>, now: Nanos) -> Class {
        let dscp = dscp_of(head);
        let ahead = is_pure_ack(head).unwrap_or_else(|| marker::passes_data(head));
        Class { queue: self.queue_of(dscp, tenant, now), dscp, ahead }
    }

    /// Returns the queue or lane of a frame with the code point `dscp` that belongs to `tenant`.
    #[inline]
    fn queue_of(&mut self, dscp: u8, tenant: Option<u16>, now: Nanos) -> u8 {
        if self.following != 0 {
            self.settle(now);
        }
        let queue = self.points[usize::from(dscp) % DSCPS].queue;
        let lane = tenant.filter(|_| queue == 0).and_then(|tenant| self.classes.lane_of(tenant));
        lane.unwrap_or(queue)
    }

    /// Returns the present class of a frame of `tenant` that waited before it could join a queue.
    /// The classes may have changed since the frame got `class`.
    pub(super) fn late_class(&mut self, class: Class, tenant: Option<u16>, now: Nanos) -> Class {
        let class = Class { queue: self.queue_of(class.dscp, tenant, now), ..class };
        if class.dscp != 0 {
            self.count_if_unmapped(class);
        }
        class
    }

    /// Counts a frame of a class with a code point other than 0 if no queue is mapped to the code
    /// point. A code point that the present map moves from queue 0 to another queue is mapped.
    pub(super) fn count_if_unmapped(&self, class: Class) {
        let shared = class.queue == 0 || usize::from(class.queue) >= self.classes.queues();
        if shared && self.classes.queue_of(class.dscp) == 0 {
            self.counters.met_no_map();
        }
    }

    /// Whether frames of a queue may signal congestion early: the queue has a rate ceiling or flow
    /// queues.
    pub(super) fn signals_early(&self, queue: u8) -> bool {
        self.flows || self.classes.ceilings().any(|(lane, _)| lane == queue)
    }

    /// Whether each flow of a queue or lane has its own queue.
    pub(super) const fn has_flows(&self) -> bool {
        self.flows
    }

    /// Whether the departing frame of an output with flow queues is to signal congestion. The frame
    /// waited for `waited`, and takes the time `time` at the output's rate.
    pub(super) fn flow_signals(
        &mut self,
        frame: &Stored,
        (waited, time): (Nanos, Nanos),
        now: Nanos,
    ) -> bool {
        let queue = usize::from(frame.class.queue);
        let time = self.wfq.ceiling_time(queue, frame.wire()).map_or(time, |held| held.max(time));
        // A frame ahead of others is in no flow queue.
        let table = self.wfq.flow_table(queue).filter(|_| !frame.class.ahead);
        let flow = (flow_of(frame), frame);
        table.is_some_and(|table| flows::signals(table, flow, (waited, time), now))
    }

    /// Removes a frame of the largest flow in the queue of `class`, which makes room for a frame of
    /// this class. Returns `None` if the output has no flow queues, or if no such frame waits.
    pub(super) fn evict(&mut self, class: Class) -> Option<Stored> {
        if class.ahead {
            // Frames ahead of others have their own limits.
            return None;
        }
        let frame = self.wfq.evict(class.queue.into())?;
        self.points[usize::from(frame.class.dscp) % DSCPS].waiting -= 1;
        self.counters.lost(&frame);
        Some(frame)
    }

    /// Whether the departing frame is to signal congestion, because the frames of its queue wait
    /// too long for the queue's rate ceiling.
    pub(super) fn signals(&mut self, frame: &Stored, waited: Nanos, now: Nanos) -> bool {
        // The loss of such a frame slows nobody down, and its wait says nothing about data.
        if frame.class.ahead {
            return false;
        }
        let queue = frame.class.queue;
        let Some(time) = self.wfq.ceiling_time(queue.into(), frame.wire()) else { return false };
        let held = self.wfq.is_held(queue.into(), now);
        let (_, behind) = self.wfq.backlog(queue.into());
        let departure = Departure { waited, time, held, behind, now };
        let early = self.early.get_mut(usize::from(queue));
        early.is_some_and(|early| early.signals(frame, departure))
    }

    /// Notes that a departing frame is dropped as a signal instead of being sent.
    pub(super) fn drops(&mut self, frame: &Stored) {
        self.not_sent(frame, frame.wire());
        self.counters.lost(frame);
    }

    /// Notes that `bytes` bytes of a departing frame are not sent.
    pub(super) fn not_sent(&mut self, frame: &Stored, bytes: u32) {
        let queue = usize::from(frame.class.queue);
        self.wfq.not_sent(queue, bytes);
        if let Some(table) = self.wfq.flow_table(queue).filter(|_| !frame.class.ahead) {
            table.not_sent(flow_of(frame), bytes);
        }
    }

    /// Whether the rate ceiling of a queue is so low that a large segment takes long.
    pub(super) fn cuts(&self, queue: u8) -> bool {
        self.classes.ceilings().any(|(lane, rate)| lane == queue && rate < CUT_BELOW)
    }

    /// If rate ceilings delay all waiting frames, returns the earliest time at which a ceiling
    /// permits a frame.
    pub(super) fn wake(&self) -> Option<Nanos> {
        self.wfq.wake()
    }

    /// Whether a frame of a class with `bytes` bytes finds room in its queue. No queue gets more
    /// than half of the free memory of all outputs.
    pub(super) fn has_room(&self, class: Class, bytes: u32, free: u64) -> bool {
        let queue = usize::from(class.queue);
        let (_, waiting) = self.wfq.backlog(queue);
        let fits = waiting == 0 || waiting + u64::from(bytes) <= free / 2;
        fits && self.wfq.room((queue, class.ahead), bytes).is_ok()
    }

    /// Adds a frame to its queue. Returns false if the queue has no room.
    pub(super) fn push(&mut self, frame: Stored, now: Nanos) -> bool {
        let Class { queue, ahead, .. } = frame.class;
        let flow = if ahead { 0 } else { flow_of(&frame) };
        let wire = frame.wire();
        let queued = self.wfq.offer((queue.into(), ahead), flow, (frame, wire), now).is_ok();
        if queued {
            self.points[usize::from(frame.class.dscp) % DSCPS].waiting += 1;
            self.counters.came(&frame);
        }
        queued
    }

    /// Removes and returns the next frame to send. Calls `lost` for each frame that the queue
    /// removes because the frame waited too long.
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

/// Returns the ceiling of a queue or lane, and the tenant of a lane. Returns `None` if the queue or
/// lane has no ceiling.
fn limit(classes: &Classes, lane: usize) -> Option<(BitsPerSecond, Option<u16>)> {
    let (_, rate) = classes.ceilings().find(|(number, _)| usize::from(*number) == lane)?;
    let held = classes.held().find(|(number, _)| usize::from(*number) == lane);
    Some((rate, held.map(|(_, held)| held.tenant)))
}
