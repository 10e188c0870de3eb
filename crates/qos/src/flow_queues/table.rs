//! The queues of flows, without the array in which their frames are stored.

use penstock_units::Nanos;

use super::QUANTUM;
use super::sizes::Sizes;
use super::turns::{ROUNDS_AHEAD, Turns};
use crate::codel::{Codel, Pace};
use crate::frame_pool::{Frame, Pool, Queue};

/// Queue and accounts of the flows with the same hash.
#[derive(Clone, Debug)]
struct Flow {
    frames: Queue,
    codel: Codel,
    /// Value of [`FlowTable::owner`] when a frame last came.
    owner: u32,
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
        Self { frames, codel, owner: 0, account: 0, longest: 0, has_turn: false }
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

/// The queues of flows, and their turns. The frames are in an array of the caller, which may
/// contain frames of other queues.
#[derive(Clone, Debug)]
pub struct FlowTable {
    flows: Box<[Flow]>,
    turns: Turns,
    sizes: Sizes,
    /// Number of frames that wait in all queues.
    len: u32,
    /// Bytes of the frames that wait in all queues.
    bytes: u64,
    /// Number of owners that the table had before.
    owner: u32,
    /// Queue of the frame that [`Self::pop`] returned last.
    popped: u32,
}

impl FlowTable {
    /// Returns a table of `flows` empty queues, at least one.
    pub(crate) fn new(flows: u32) -> Self {
        let flows = flows.max(1) as usize;
        Self {
            flows: vec![Flow::new(); flows].into_boxed_slice(),
            turns: Turns::new(flows),
            sizes: Sizes::new(flows),
            len: 0,
            bytes: 0,
            owner: 0,
            popped: 0,
        }
    }

    /// Number of frames that wait in all queues.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Number of bytes that wait in all queues.
    pub(crate) const fn bytes(&self) -> u64 {
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
    /// frame's length on the link, at least 1. The caller must check that the pool has a free
    /// entry.
    pub(crate) fn push<T: Copy + Default>(
        &mut self,
        pool: &mut Pool<T>,
        hash: u32,
        (item, bytes): (T, u32),
        now: Nanos,
    ) {
        let slot = self.slot_of(hash);
        let flow = &mut self.flows[slot as usize];
        pool.push(&mut flow.frames, item, bytes, now);
        if flow.has_turn {
            flow.longest = flow.longest.max(bytes);
        } else {
            (flow.has_turn, flow.longest) = (true, bytes);
            flow.account = i64::from(QUANTUM);
            if flow.owner != self.owner {
                (flow.owner, flow.codel) = (self.owner, Codel::new());
            }
            self.turns.enter(slot);
        }
        self.sizes.set(slot, flow.frames.bytes);
        self.len += 1;
        self.bytes += u64::from(bytes);
    }

    /// Gives the next turn to a flow with frames. Returns the flow and the length of its first
    /// frame in bytes. Returns `None` if no frame waits.
    pub(crate) fn head<T: Copy + Default>(&mut self, pool: &Pool<T>) -> Option<(u32, u32)> {
        if self.len == 0 {
            return None;
        }
        loop {
            let turn = self.turns.first()?;
            let flow = self.flows.get_mut(turn.flow as usize)?;
            if flow.account <= 0 {
                self.turns.leave();
                self.turns.follow(turn.flow, flow.pay());
            } else if let Some(frame) = pool.head(&flow.frames) {
                return Some((turn.flow, frame.bytes));
            } else {
                self.turns.leave();
                flow.has_turn = turn.is_new && self.turns.has_old();
                if flow.has_turn {
                    self.turns.follow(turn.flow, 1);
                }
            }
        }
    }

    /// Removes and returns the frame whose turn it is. Returns `None` if no frame waits.
    pub(crate) fn pop<T: Copy + Default>(&mut self, pool: &mut Pool<T>) -> Option<Frame<T>> {
        let (slot, _) = self.head(pool)?;
        let flow = self.flows.get_mut(slot as usize)?;
        let frame = pool.pop(&mut flow.frames)?;
        flow.account -= i64::from(frame.bytes);
        self.popped = slot;
        self.left(slot, frame.bytes);
        Some(frame)
    }

    /// Gives the flow of the frame that [`Self::pop`] returned last `bytes` bytes back, because the
    /// caller drops the frame.
    pub(crate) fn give_back(&mut self, bytes: u32) {
        if let Some(flow) = self.flows.get_mut(self.popped as usize) {
            flow.account += i64::from(bytes);
        }
    }

    /// Removes and returns the first frame of a flow with many waiting bytes: at least half as many
    /// as any other flow. Returns `None` if no frame waits.
    pub(crate) fn evict<T: Copy + Default>(&mut self, pool: &mut Pool<T>) -> Option<Frame<T>> {
        let slot = self.sizes.largest()?;
        let frame = pool.pop(&mut self.flows.get_mut(slot as usize)?.frames)?;
        self.left(slot, frame.bytes);
        Some(frame)
    }

    /// Counts a frame of `bytes` bytes that left the queue `slot`.
    fn left(&mut self, slot: u32, bytes: u32) {
        self.sizes.set(slot, self.flows[slot as usize].frames.bytes);
        self.len -= 1;
        self.bytes -= u64::from(bytes);
    }

    /// Prepares the table for another owner, whose flows have neither turns nor states of CoDel
    /// yet. No frame may wait.
    pub(crate) fn release(&mut self) {
        while let Some(turn) = self.turns.first() {
            self.turns.leave();
            self.flows[turn.flow as usize].has_turn = false;
        }
        self.owner = self.owner.wrapping_add(1);
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

    /// Gives the flow with the hash `hash` back `bytes` bytes of a frame that left its queue,
    /// because the caller does not send them.
    pub fn not_sent(&mut self, hash: u32, bytes: u32) {
        let slot = self.slot_of(hash);
        self.flows[slot as usize].account += i64::from(bytes);
    }
}
