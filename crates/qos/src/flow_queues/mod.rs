//! Flow queues with CoDel (FQ-CoDel): each flow of an output has its own queue, and the flows take
//! turns.
//!
//! # Problem
//!
//! If the flows of an output share one queue, each frame waits behind the frames of all flows. A
//! single TCP stream fills the queue, so a ping of the same VM waits as long as the stream's
//! frames.
//!
//! # Source
//!
//! FQ-CoDel is from RFC 8290. CoDel ([`crate::codel`]) is from RFC 8289. The turns are deficit
//! round robin (Shreedhar, Varghese, SIGCOMM 1995).
//!
//! # Approach
//!
//! The hash of a frame's flow selects one of a fixed number of queues. The caller computes the hash
//! with a secret seed, so that a sender cannot choose the queue of another sender's flow. Two flows
//! with the same queue count as one flow.
//!
//! A flow that had no frames is *new*: it sends up to one [`QUANTUM`] before all flows with a
//! backlog. A flow that used its quantum is *old*, and old flows send one quantum each in turn. A
//! new flow without further frames becomes an old flow for one round, so it cannot be new again at
//! once. A flow is served while its account of bytes is above 0. The account may be negative, and
//! the flow then waits until the quanta of as many rounds have paid its debt.
//!
//! CoDel decides for each flow when a departing frame signals congestion. The caller marks the
//! frame or drops it. If at most one more frame of the flow waits, the flow gets no signal, even if
//! other flows make its frames wait.
//!
//! If the caller has no room for another frame, [`FlowQueues::evict`] removes the first frame of
//! the flow with the most waiting bytes. TCP notices the loss of a first frame sooner than the loss
//! of a last one.
//!
//! # Units
//!
//! All lengths are bytes on a link, with preamble, gap and FCS. A large segment has the length of
//! its parts.
//!
//! # Departures
//!
//! - RFC 8290 adds one quantum in each visit to a flow in debt. After a segment of 64 KiB, a flow
//!   would be visited 45 times in vain. Here the flow moves to the round in which its debt is paid.
//! - The flow that loses a frame has at least half as many bytes as the largest flow. RFC 8290
//!   searches all queues for the largest one.
//! - RFC 8290 drops up to 64 frames of the largest flow at once. Here the caller decides how many
//!   frames leave. An eviction does not change the state of CoDel.
//! - RFC 8290 has one set of queues for an output. An output that tenants share has a set for each
//!   VM or class, so that no part depends on a number of flows.
//! - Linux compares the bytes of all flows with the longest frame before a signal. Here only the
//!   bytes of the flow itself count, because a flow without a backlog cannot become slower.
//!
//! # Cost
//!
//! Each function takes constant time per frame (amortised). Only [`FlowQueues::next`] has a loop:
//! it visits a flow once for each turn, and once or twice after the flow became empty. A queue
//! takes 112 bytes, so [`FLOWS`] queues take 112 KiB. A place for a frame takes 16 bytes and the
//! caller's handle. The structure allocates no memory after its construction.
//!
//! A [`FlowTable`] has the queues without the places for frames. The VMs of a `fair-share` output
//! ([`crate::fair_share`]) and the queues of a `wfq` output ([`crate::wfq`]) can each have a table.
//! The frames of all tables of an output are in one array.

mod line;
mod sizes;
mod table;
mod turns;

use penstock_units::Nanos;

use crate::frame_pool::Pool;
pub(crate) use line::Line;
pub use table::FlowTable;

/// Default number of queues (RFC 8290 §5.2.4). Of 100 flows with frames, about 9 share a queue with
/// another flow.
pub const FLOWS: u32 = 1_024;
/// Bytes that a flow may send in a turn: one frame of an MTU of 1,500 with a VLAN tag, in bytes on
/// a link.
pub const QUANTUM: u32 = 1_542;

/// A frame that the output sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowDeparture<T> {
    /// Handle by which the caller identifies the frame.
    pub item: T,
    /// Length of the frame in bytes on the link.
    pub bytes: u32,
    /// Time that the frame spent in its queue.
    pub waited: Nanos,
}

/// The flow queues of one output. The type `T` is the caller's handle of a frame.
#[derive(Clone, Debug)]
pub struct FlowQueues<T> {
    table: FlowTable,
    pool: Pool<T>,
}

impl<T: Copy + Default> FlowQueues<T> {
    /// Returns an output with `flows` queues, at least one. At most `frames` frames can wait in all
    /// queues together.
    #[must_use]
    pub fn new(flows: u32, frames: u32) -> Self {
        Self { table: FlowTable::new(flows), pool: Pool::new(frames) }
    }

    /// Number of frames that wait in all queues.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether no frame waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether as many frames wait as possible.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.pool.is_full()
    }

    /// Number of bytes that wait in all queues.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Returns the queues, without their frames.
    pub const fn table(&mut self) -> &mut FlowTable {
        &mut self.table
    }

    /// Adds a frame of the flow with the hash `hash` at the time `now`. The argument `bytes` is the
    /// frame's length on the link. Returns false if the queues are full ([`Self::is_full`]).
    pub fn offer(&mut self, hash: u32, item: T, bytes: u32, now: Nanos) -> bool {
        if self.pool.is_full() {
            return false;
        }
        // Every frame counts, so that each flow with frames can lose one.
        self.table.push(&mut self.pool, hash, (item, bytes.max(1)), now);
        true
    }

    /// Removes and returns the frame that the output sends next. Returns `None` if no frame waits.
    pub fn next(&mut self, now: Nanos) -> Option<FlowDeparture<T>> {
        let frame = self.table.pop(&mut self.pool)?;
        let waited = now.saturating_sub(frame.since);
        Some(FlowDeparture { item: frame.item, bytes: frame.bytes, waited })
    }

    /// Removes and returns the first frame of a flow with many waiting bytes: at least half as many
    /// as any other flow. Returns `None` if no frame waits.
    pub fn evict(&mut self) -> Option<T> {
        self.table.evict(&mut self.pool).map(|frame| frame.item)
    }

    /// Gives a flow bytes back that the caller does not send ([`FlowTable::not_sent`]).
    pub fn not_sent(&mut self, hash: u32, bytes: u32) {
        self.table.not_sent(hash, bytes);
    }
}

#[cfg(test)]
mod tests;
