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
//! - Linux compares the bytes of all flows with the longest frame before a signal. Here only the
//!   bytes of the flow itself count, because a flow without a backlog cannot become slower.
//!
//! # Cost
//!
//! Each function takes constant time per frame (amortised). Only [`FlowQueues::next`] has a loop:
//! it visits a flow once for each turn, and once or twice after the flow became empty. A queue
//! takes 104 bytes, so [`FLOWS`] queues take 104 KiB. A place for a frame takes 16 bytes and the
//! caller's handle. The structure allocates no memory after its construction.

mod sizes;
mod turns;

use penstock_units::Nanos;

use crate::codel::{Codel, Pace};
use crate::fair_share::queue::{Pool, Queue};
use sizes::Sizes;
use turns::{ROUNDS_AHEAD, Turns};

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

/// Queue and accounts of the flows with the same hash.
#[derive(Clone, Debug)]
struct Flow {
    frames: Queue,
    codel: Codel,
    /// Bytes that the flow may still send in its turn. A negative account is a debt.
    account: i64,
    /// Length of the longest frame since the flow was last new, in bytes.
    longest: u32,
    /// Whether the flow has a turn. A flow keeps its turn for a while after its last frame.
    has_turn: bool,
}

impl Flow {
    fn new() -> Self {
        let (frames, codel) = (Queue::EMPTY, Codel::new());
        Self { frames, codel, account: 0, longest: 0, has_turn: false }
    }

    /// Adds the quanta that pay the flow's debt. Returns the number of rounds after which the flow
    /// has its next turn. After a very long frame, a part of the debt remains.
    fn pay(&mut self) -> u32 {
        let quantum = i64::from(QUANTUM);
        let due = self.account.saturating_neg() / quantum + 1;
        let rounds = u32::try_from(due).unwrap_or(ROUNDS_AHEAD).clamp(1, ROUNDS_AHEAD);
        self.account += i64::from(rounds) * quantum;
        rounds
    }
}

/// The flow queues of one output. The type `T` is the caller's handle of a frame.
#[derive(Clone, Debug)]
pub struct FlowQueues<T> {
    flows: Box<[Flow]>,
    pool: Pool<T>,
    turns: Turns,
    sizes: Sizes,
    /// Number of frames that wait in all queues.
    len: u32,
    /// Bytes of the frames that wait in all queues.
    bytes: u64,
}

impl<T: Copy + Default> FlowQueues<T> {
    /// Returns an output with `flows` queues, at least one. At most `frames` frames can wait in all
    /// queues together.
    #[must_use]
    pub fn new(flows: u32, frames: u32) -> Self {
        let flows = flows.max(1) as usize;
        Self {
            flows: vec![Flow::new(); flows].into_boxed_slice(),
            pool: Pool::new(frames),
            turns: Turns::new(flows),
            sizes: Sizes::new(flows),
            len: 0,
            bytes: 0,
        }
    }

    /// Number of frames that wait in all queues.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether no frame waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether as many frames wait as possible.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.pool.is_full()
    }

    /// Number of bytes that wait in all queues.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of waiting frames of the flow with the hash `hash`, and their number of
    /// bytes.
    #[must_use]
    pub fn backlog(&self, hash: u32) -> (u32, u64) {
        let Queue { frames, bytes, .. } = self.flows[self.slot_of(hash) as usize].frames;
        (frames, bytes)
    }

    /// Returns the number of the queue for a hash, which the upper bits of the hash decide.
    fn slot_of(&self, hash: u32) -> u32 {
        let wide = u64::from(hash) * self.flows.len() as u64;
        u32::try_from(wide >> 32).unwrap_or(0)
    }

    /// Adds a frame of the flow with the hash `hash` at the time `now`. The argument `bytes` is the
    /// frame's length on the link. Returns false if the queues are full ([`Self::is_full`]).
    pub fn offer(&mut self, hash: u32, item: T, bytes: u32, now: Nanos) -> bool {
        if self.pool.is_full() {
            return false;
        }
        let slot = self.slot_of(hash);
        // Every frame counts, so that each flow with frames can lose one.
        let bytes = bytes.max(1);
        let flow = &mut self.flows[slot as usize];
        self.pool.push(&mut flow.frames, item, bytes, now);
        if flow.has_turn {
            flow.longest = flow.longest.max(bytes);
        } else {
            (flow.has_turn, flow.longest) = (true, bytes);
            flow.account = i64::from(QUANTUM);
            self.turns.enter(slot);
        }
        self.sizes.set(slot, flow.frames.bytes);
        self.len += 1;
        self.bytes += u64::from(bytes);
        true
    }

    /// Removes and returns the frame that the output sends next. Returns `None` if no frame waits.
    pub fn next(&mut self, now: Nanos) -> Option<FlowDeparture<T>> {
        if self.len == 0 {
            return None;
        }
        loop {
            let turn = self.turns.first()?;
            let flow = self.flows.get_mut(turn.flow as usize)?;
            if flow.account <= 0 {
                self.turns.leave();
                self.turns.follow(turn.flow, flow.pay());
                continue;
            }
            let Some(frame) = self.pool.pop(&mut flow.frames) else {
                self.turns.leave();
                flow.has_turn = turn.is_new && self.turns.has_old();
                if flow.has_turn {
                    self.turns.follow(turn.flow, 1);
                }
                continue;
            };
            flow.account -= i64::from(frame.bytes);
            self.left(turn.flow, frame.bytes);
            let waited = now.saturating_sub(frame.since);
            return Some(FlowDeparture { item: frame.item, bytes: frame.bytes, waited });
        }
    }

    /// Removes and returns the first frame of a flow with many waiting bytes: at least half as many
    /// as any other flow. Returns `None` if no frame waits.
    pub fn evict(&mut self) -> Option<T> {
        let slot = self.sizes.largest()?;
        let frame = self.pool.pop(&mut self.flows.get_mut(slot as usize)?.frames)?;
        self.left(slot, frame.bytes);
        Some(frame.item)
    }

    /// Counts a frame of `bytes` bytes that left the queue `slot`.
    fn left(&mut self, slot: u32, bytes: u32) {
        self.sizes.set(slot, self.flows[slot as usize].frames.bytes);
        self.len -= 1;
        self.bytes -= u64::from(bytes);
    }

    /// Whether a departing frame of the flow with the hash `hash` is to signal congestion. The
    /// frame waited for `waited`. If the caller drops the frame, it calls [`Self::not_sent`], and
    /// this function again for the next frame.
    pub fn signals(&mut self, hash: u32, waited: Nanos, pace: Pace, now: Nanos) -> bool {
        let slot = self.slot_of(hash);
        let flow = &mut self.flows[slot as usize];
        let backlog = flow.frames.bytes > u64::from(flow.longest);
        flow.codel.signals(waited, pace, backlog, now)
    }

    /// Gives the flow with the hash `hash` back `bytes` bytes of a frame that [`Self::next`]
    /// returned, because the caller does not send them.
    pub fn not_sent(&mut self, hash: u32, bytes: u32) {
        let slot = self.slot_of(hash);
        self.flows[slot as usize].account += i64::from(bytes);
    }
}

#[cfg(test)]
mod tests;
