//! An output with order `fq-codel` has a queue for each flow ([`penstock_qos::flow_queues`]). Each
//! VM at an output with order `fair-share`, and each queue of an output with order `wfq`, can have
//! flow queues, too.
//!
//! # Approach
//!
//! The flow of a frame is the classifier's hash of its addresses and ports. If several VMs use the
//! flow queues, the number of the sending port is mixed in. The classifier's seed is secret, so a
//! VM cannot choose the queue of another flow. CoDel signals with a departing frame of a flow that
//! waits too long, whether the output waits for a rate limit, for its link or for the receiver.
//!
//! A sender of L4S (RFC 9331) reacts little to one mark, and expects a mark on each frame that
//! waits for longer than about a millisecond. RFC 9330 describes such marks for outputs with a
//! queue for each flow. A frame behind which no frame of its flow waits gets no mark.
//!
//! If there is no room, a flow with many waiting bytes loses its first frame, and the new frame is
//! accepted. The flow is one of the same VM or of the same queue. A new frame removes frames of at
//! most its own length and one more frame. If another output needs the memory, the new frame is
//! refused instead.

use penstock_qos::codel::Pace;
use penstock_qos::fair_share::Bound;
use penstock_qos::flow_queues::{FLOWS, FlowQueues, FlowTable};
use penstock_units::Nanos;

use super::line::Next;
use super::{QueueTerms, Stored};

/// Longest time of a segment that waits as a whole. The frames of other flows wait for the whole
/// segment, because the output sends a segment at once.
pub(super) const SEGMENT_TIME: Nanos = Nanos::from_millis(1);

/// Wait from which on each frame of an L4S flow is marked. The queue of L4S in RFC 9332 marks at
/// about the same wait.
const L4S_TARGET: Nanos = Nanos::from_millis(1);

/// Number of queues for the flows of a VM at a `fair-share` output, or of a queue of a `wfq`
/// output. They take 28 KiB.
pub(super) const FLOWS_WITHIN: u32 = 256;
/// Maximum number of VMs with frames at a `fair-share` output that have flow queues at a time. The
/// frames of further VMs wait in one queue for each VM.
pub(super) const VMS_WITH_FLOWS: usize = 128;

/// Odd number that spreads the numbers of ports over all bits of a hash (Fibonacci hashing).
const SPREAD: u32 = 0x9e37_79b9;

/// Waiting frames of an output with a queue for each flow.
#[derive(Debug)]
pub(super) struct Flows {
    queues: FlowQueues<Stored>,
    bound: Bound,
}

/// Returns the hash of a frame's flow. Flows of different ports differ, even with the same
/// addresses.
pub(super) fn flow_of(frame: &Stored) -> u32 {
    frame.hash.wrapping_add(u32::from(frame.source).wrapping_mul(SPREAD))
}

impl Flows {
    pub(super) fn new(terms: &QueueTerms) -> Self {
        Self { queues: FlowQueues::new(FLOWS, terms.frames), bound: terms.bound }
    }

    pub(super) fn len(&self) -> usize {
        self.queues.len() as usize
    }

    /// Whether the output has room for a frame that takes `wire` bytes on a link. `free` is the
    /// free memory of all outputs, in bytes.
    pub(super) fn has_room(&self, wire: u32, free: u64) -> bool {
        let bytes = self.queues.bytes() + u64::from(wire);
        let fits = !self.queues.is_full() && bytes <= self.bound.bytes.min(free / 2);
        self.queues.is_empty() || fits
    }

    /// Adds a frame to the queue of its flow. Returns false if the output has too many frames.
    pub(super) fn push(&mut self, frame: Stored, now: Nanos) -> bool {
        self.queues.offer(flow_of(&frame), frame, frame.wire(), now)
    }

    /// Removes and returns the next frame to send. Calls `lost` for each frame that the queue
    /// removes because the frame waited too long.
    pub(super) fn pop(&mut self, now: Nanos, lost: &mut impl FnMut(Stored)) -> Option<Next> {
        loop {
            let next = self.queues.next(now)?;
            if next.waited <= self.bound.wait {
                return Some(Next { frame: next.item, since: now.saturating_sub(next.waited) });
            }
            self.not_sent(&next.item, next.bytes);
            lost(next.item);
        }
    }

    /// Removes and returns the first frame of a flow that has at least half as many waiting bytes
    /// as any other flow.
    pub(super) fn evict(&mut self) -> Option<Stored> {
        self.queues.evict()
    }

    /// Notes that `bytes` bytes of a departing frame are not sent.
    pub(super) fn not_sent(&mut self, frame: &Stored, bytes: u32) {
        self.queues.not_sent(flow_of(frame), bytes);
    }

    /// Whether the departing frame is to signal congestion. The frame waited for `waited`, and
    /// takes the time `time` at the output's rate.
    pub(super) fn signals(
        &mut self,
        frame: &Stored,
        waited: Nanos,
        time: Nanos,
        now: Nanos,
    ) -> bool {
        signals(self.queues.table(), (flow_of(frame), frame), (waited, time), now)
    }
}

/// Whether a departing frame of the flow with the hash `flow` is to signal congestion. The frame
/// waited for `waited`, and takes the time `time` at the output's rate.
pub(super) fn signals(
    table: &mut FlowTable,
    (flow, frame): (u32, &Stored),
    (waited, time): (Nanos, Nanos),
    now: Nanos,
) -> bool {
    if frame.l4s {
        // At a low rate, one frame must not look like a queue.
        let target = L4S_TARGET.max(time + time);
        return waited >= target && table.backlog(flow).0 > 0;
    }
    table.signals(flow, waited, Pace::of(time), now)
}
