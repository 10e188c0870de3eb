//! The `wfq` discipline divides an output by weight among a few queues. Each queue keeps its frames
//! in order, but short frames that others depend on may pass.
//!
//! # Problem
//!
//! QShare binds tenants to the weighted queues of a switch port. A port of a commodity switch has
//! eight weighted queues. A software switch in a fabric with QShare also needs weighted queues.
//!
//! # Source
//!
//! In QShare (§V-D and §VI), queue 0 is shared, and each of the other queues is bound to a tenant.
//! The code point of a frame selects its queue.
//!
//! # Approach
//!
//! Queues with frames are clients of [`Eevdf`]. Within a queue, frames are served first come, first
//! served. Empty queues are not scheduled, so queues with frames use the whole output (work
//! conservation).
//!
//! A queue has a second line for frames that need not wait behind the others
//! ([`Wfq::offer`]), such as TCP's pure acknowledgements. If they waited behind data, TCP in
//! both directions of a tenant would use only one (Heusse et al., *Two-way TCP connections*, CCR
//! 2011; RFC 3449). The two lines take turns: after [`AHEAD_TURN`] bytes of the second line, a
//! frame of the first one leaves. Both lines together are one client of EEVDF and share the
//! ceiling.
//!
//! With [`Wfq::with_flows`], each flow of a queue has its own queue ([`crate::flow_queues`]). The
//! flows of a queue take turns, and only the frames of each flow stay in order. The second line has
//! no flow queues.
//!
//! The *error* of a discipline is the difference between the bytes that a queue sent and the
//! queue's share. The `wfq` discipline is EEVDF for the following reasons:
//!
//! - With EEVDF, the error is at most one request plus one frame, for any weights and any number of
//!   queues. With EEVDF, a new weight changes only the account of its queue.
//! - Hardware switches use DRR, in which a queue sends all bytes of its turn at once. With weights
//!   of 1 to 100, one queue's turn may be 100 times as long as another queue's turn.
//! - With VTRR ([`crate::vtrr`]), the error grows with the number of queues. VTRR starts a new
//!   cycle whenever a weight changes, and a fabric controller changes weights every few seconds.
//!
//! # Depth
//!
//! A queue has a bound in bytes and a bound in time ([`Depth`]). A frame is refused if its queue
//! would exceed the bound in bytes. The bound counts for each of the two lines of a queue. A frame
//! that waited too long is dropped when its turn comes, and is not charged. All queues of an output
//! share one table of frames. A queue may use at most as many entries of the table as are free
//! (Choudhury, Hahne, 1998). If frames flood one queue, entries for the other queues remain free.
//! An empty queue accepts a frame of any length.
//!
//! # Ceilings
//!
//! A ceiling is the maximum rate of a queue. A queue with a ceiling sends no faster than the
//! ceiling, even if the output has spare time. If the caller serves the queue late, the queue may
//! send a burst of about [`CEILING_BYTES`] to catch up. A queue that must wait because of its
//! ceiling is not scheduled. The function [`Wfq::wake`] returns the time at which a queue may send
//! that waits because of its ceiling. In QShare §VI, hosts limit tenants that have no queue.
//!
//! # Changes
//!
//! Weights, depths and ceilings can change at any time. Frames that wait stay queued when weights,
//! depths or ceilings change.
//!
//! # Cost
//!
//! Sending a frame takes one decision among at most 64 queues, and one entry of the frame table.
//! With flow queues, it also takes a turn among the flows of a queue.
//! The discipline allocates no memory after its construction.

use penstock_units::{BitsPerSecond, Nanos, Weight};

use crate::discipline::Discipline;
use crate::eevdf::Eevdf;
use crate::flow_queues::{FlowTable, Line};
use crate::frame_pool::{Pool, Queue};

/// Maximum number of queues of an output.
pub const QUEUES_MAX: usize = 64;
/// Burst in bytes that a queue with a ceiling may send at once if the caller served the queue late.
/// At a very low or very high ceiling, [`CEILING_TIMES`] limits the burst instead.
pub const CEILING_BYTES: u64 = 65_536;
/// Minimum and maximum of the burst that a queue with a ceiling may send at once. Each limit is the
/// time that a burst takes at the rate of the queue's ceiling.
pub const CEILING_TIMES: (Nanos, Nanos) = (Nanos::from_millis(2), Nanos::from_millis(50));
/// Bytes of frames that may pass before another frame of the queue leaves: one frame of an MTU of
/// 1,500 with a VLAN tag, in bytes on a link.
pub const AHEAD_TURN: u32 = 1_542;
const BITS_NS: u128 = 8_000_000_000;

/// Limits on a queue's waiting frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Maximum number of bytes that wait in the queue.
    pub bytes: u64,
    /// Longest time for which a frame may wait in the queue.
    pub wait: Nanos,
}

/// Limit that is the reason why a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The queue would exceed [`Depth::bytes`].
    Bytes,
    /// The frame table is too full: the queue already has as many waiting frames as the table has
    /// free entries.
    Frames,
    /// The output has no queue with the frame's queue number.
    Nowhere,
}

/// A frame that the output sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// Handle by which the caller identifies the frame.
    pub item: T,
    /// Number of the frame's queue.
    pub queue: usize,
    /// Length of the frame on the link, in bytes.
    pub bytes: u32,
    /// Time that the frame spent in its queue.
    pub waited: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Ceiling {
    rate: BitsPerSecond,
    /// Longest time by which the caller may serve the queue late without lowering the queue's mean
    /// rate below the ceiling.
    late: Nanos,
    /// Time at which the queue may send its next frame, which is the end of all sent frames at the
    /// ceiling's rate.
    free: Nanos,
}

impl Ceiling {
    fn new(rate: BitsPerSecond) -> Self {
        let late = time(CEILING_BYTES, rate).clamp(CEILING_TIMES.0, CEILING_TIMES.1);
        Self { rate, late, free: Nanos::ZERO }
    }

    fn went(&mut self, bytes: u32, now: Nanos) {
        let from = self.free.max(now.saturating_sub(self.late));
        self.free = Nanos(from.0.saturating_add(time(u64::from(bytes), self.rate).0));
    }

    fn came_back(&mut self, bytes: u32) {
        self.free = self.free.saturating_sub(time(u64::from(bytes), self.rate));
    }
}

/// Returns the time that `bytes` bytes take at the rate `rate`.
fn time(bytes: u64, rate: BitsPerSecond) -> Nanos {
    let wide = u128::from(bytes) * BITS_NS / u128::from(rate.0.max(1));
    Nanos(u64::try_from(wide).unwrap_or(u64::MAX))
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    frames: Queue,
    /// Frames that need not wait behind the others.
    ahead: Queue,
    /// Bytes of the frames that have passed since the last other frame left.
    passed: u32,
    /// Bytes of the next frames for which the queue's weight is not charged ([`Wfq::not_sent`]).
    credit: u32,
    weight: Weight,
    depth: Depth,
    ceiling: Option<Ceiling>,
}

impl Lane {
    const fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.ahead.is_empty()
    }

    /// Whether the next frame is one that passes the others.
    const fn is_ahead_next(&self) -> bool {
        !self.ahead.is_empty() && (self.frames.is_empty() || self.passed < AHEAD_TURN)
    }

    const fn line(&self, ahead: bool) -> &Queue {
        if ahead { &self.ahead } else { &self.frames }
    }

    /// Returns the frames of a line. The queues of the flows are in `flows`, if they have queues.
    fn frames_in<'a>(&'a mut self, ahead: bool, flows: Option<&'a mut FlowTable>) -> Line<'a> {
        if ahead {
            Line { queue: &mut self.ahead, flows: None }
        } else {
            Line { queue: &mut self.frames, flows }
        }
    }

    /// Returns the time until which the queue must wait because of its ceiling. Returns `None` if
    /// the queue need not wait for its ceiling.
    fn until(&self, now: Nanos) -> Option<Nanos> {
        self.ceiling.map(|ceiling| ceiling.free).filter(|free| *free > now)
    }
}

/// The `wfq` discipline of one output. The type `T` is the caller's handle of a frame.
#[derive(Clone, Debug)]
pub struct Wfq<T> {
    lanes: Box<[Lane]>,
    pool: Pool<T>,
    /// Flow queues of each queue. The slice is empty without flow queues.
    flows: Box<[FlowTable]>,
    eevdf: Eevdf,
    /// Number of frames that wait in all queues. The field `places` is the number of entries of the
    /// frame table.
    len: u32,
    places: u32,
    /// Bitmap of the queues that wait because of their ceiling.
    paused: u64,
}

impl<T: Copy + Default> Wfq<T> {
    /// Returns an output with `queues` queues, at most [`QUEUES_MAX`], which have weight 1 and the
    /// depth `depth`. At most `frames` frames can wait in all queues together.
    #[must_use]
    pub fn new(queues: usize, frames: u32, depth: Depth) -> Self {
        Self::with_flows(queues, frames, depth, 0)
    }

    /// Returns an output as [`Self::new`] does. If `flows` is not 0, each queue of the output has
    /// as many queues for its flows.
    #[must_use]
    pub fn with_flows(queues: usize, frames: u32, depth: Depth, flows: u32) -> Self {
        let queues = queues.min(QUEUES_MAX);
        let lane = Lane {
            frames: Queue::EMPTY,
            ahead: Queue::EMPTY,
            passed: 0,
            credit: 0,
            weight: Weight::ONE,
            depth,
            ceiling: None,
        };
        let mut eevdf = Eevdf::new(queues);
        (0..queues).for_each(|queue| eevdf.join(queue, Weight::ONE));
        let (lanes, pool) = (vec![lane; queues].into_boxed_slice(), Pool::new(frames));
        let tables = if flows > 0 { queues } else { 0 };
        let flows = vec![FlowTable::new(flows); tables].into_boxed_slice();
        Self { lanes, pool, flows, eevdf, len: 0, places: frames, paused: 0 }
    }

    /// Number of frames that wait in all queues.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether all queues are empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of frames that wait in a queue, and their number of bytes. Both numbers
    /// are 0 if the output has no such queue.
    #[must_use]
    pub fn backlog(&self, queue: usize) -> (u32, u64) {
        let both = |Lane { frames, ahead, .. }: &Lane| {
            (frames.frames + ahead.frames, frames.bytes + ahead.bytes)
        };
        self.lanes.get(queue).map_or((0, 0), both)
    }

    /// Sets the weight of a queue. Frames that already wait stay in the queue when its weight
    /// changes. If the weight changes, the queue stays ahead of its share, or behind it, by the
    /// same number of bytes. Returns whether the queue exists.
    pub fn set_weight(&mut self, queue: usize, weight: Weight) -> bool {
        let Some(lane) = self.lanes.get_mut(queue) else { return false };
        if lane.weight != weight {
            lane.weight = weight;
            self.eevdf.join(queue, weight);
        }
        true
    }

    /// Sets the depth of a queue. If the new depth is smaller, frames that already wait stay in the
    /// queue. Returns whether the queue exists.
    pub fn set_depth(&mut self, queue: usize, depth: Depth) -> bool {
        let Some(lane) = self.lanes.get_mut(queue) else { return false };
        lane.depth = depth;
        true
    }

    /// Sets a queue's ceiling in bits per second. If `rate` is `None`, the queue has no ceiling.
    /// After a change of the rate, frames that were sent before do not count against the new
    /// ceiling. Returns whether the queue exists.
    pub fn set_ceiling(&mut self, queue: usize, rate: Option<BitsPerSecond>) -> bool {
        let Some(lane) = self.lanes.get_mut(queue) else { return false };
        if lane.ceiling.map(|ceiling| ceiling.rate) != rate {
            lane.ceiling = rate.map(Ceiling::new);
        }
        true
    }

    /// Returns the time that a frame of `bytes` bytes takes at the ceiling of a queue. Returns
    /// `None` if the queue has no ceiling.
    #[must_use]
    pub fn ceiling_time(&self, queue: usize, bytes: u32) -> Option<Nanos> {
        let ceiling = self.lanes.get(queue)?.ceiling?;
        Some(time(u64::from(bytes), ceiling.rate))
    }

    /// Whether the ceiling of a queue makes the queue's next frame wait.
    #[must_use]
    pub fn is_held(&self, queue: usize, now: Nanos) -> bool {
        self.lanes.get(queue).is_some_and(|lane| lane.until(now).is_some())
    }

    /// Gives a queue back `bytes` bytes of a frame that [`Self::next`] returned, because the caller
    /// does not send them. The bytes count neither for the queue's ceiling nor for its weight.
    pub fn not_sent(&mut self, queue: usize, bytes: u32) {
        let Some(lane) = self.lanes.get_mut(queue) else { return };
        lane.credit = lane.credit.saturating_add(bytes);
        if let Some(ceiling) = &mut lane.ceiling {
            ceiling.came_back(bytes);
        }
    }

    /// Returns the flow queues of a queue. Returns `None` if the output has no flow queues.
    pub fn flow_table(&mut self, queue: usize) -> Option<&mut FlowTable> {
        self.flows.get_mut(queue)
    }

    /// Removes and returns the first frame of a queue's flow with many waiting bytes: at least half
    /// as many as any other flow of the queue. Returns `None` if the output has no flow queues, or
    /// if no frame waits in them.
    pub fn evict(&mut self, queue: usize) -> Option<T> {
        let lane = self.lanes.get_mut(queue)?;
        let frame = lane.frames_in(false, self.flows.get_mut(queue)).evict(&mut self.pool)?;
        self.len -= 1;
        if lane.is_empty() {
            self.eevdf.drained(queue);
            self.paused &= !(1 << queue);
        }
        Some(frame.item)
    }

    /// Returns the earliest time at which a queue that waits because of its ceiling may send.
    /// Returns `None` if no ceiling makes a queue wait.
    #[must_use]
    pub fn wake(&self) -> Option<Nanos> {
        let free = |queue: usize| self.lanes[queue].until(Nanos::ZERO).unwrap_or(Nanos::ZERO);
        bits(self.paused).map(free).min()
    }

    /// Schedules the queues again whose ceiling no longer makes them wait.
    #[cold]
    fn resume(&mut self, now: Nanos) {
        for queue in bits(self.paused) {
            let lane = &mut self.lanes[queue];
            if lane.until(now).is_none() {
                self.paused &= !(1 << queue);
                let ahead = lane.is_ahead_next();
                let mut line = lane.frames_in(ahead, self.flows.get_mut(queue));
                if let Some(head) = line.head(&self.pool) {
                    self.eevdf.backlogged(queue, head);
                }
            }
        }
    }

    /// Checks whether the queue would accept a frame of `bytes` bytes now, with `ahead` as in
    /// [`Self::offer`].
    ///
    /// # Errors
    /// Returns an error, which names the limit, if the frame would exceed a limit.
    pub fn room(&self, (queue, ahead): (usize, bool), bytes: u32) -> Result<(), Full> {
        let lane = self.lanes.get(queue).ok_or(Full::Nowhere)?;
        let line = lane.line(ahead);
        if line.frames >= self.places - self.len {
            return Err(Full::Frames);
        }
        let full = line.bytes + u64::from(bytes) > lane.depth.bytes;
        if full && !line.is_empty() { Err(Full::Bytes) } else { Ok(()) }
    }

    /// Offers a frame to a queue at the time `now`. The argument `bytes` is the frame's length on
    /// the link, which counts for weights, ceilings and depths. If `ahead` is true, the frame need
    /// not wait behind the frames of its queue for which `ahead` is false. Frames of the same kind
    /// keep their order. If the output has flow queues, `flow` is the hash of the frame's flow.
    ///
    /// # Errors
    /// Returns the limit because of which the frame was refused.
    pub fn offer(
        &mut self,
        (queue, ahead): (usize, bool),
        flow: u32,
        (item, bytes): (T, u32),
        now: Nanos,
    ) -> Result<(), Full> {
        self.room((queue, ahead), bytes)?;
        let lane = &mut self.lanes[queue];
        let first = lane.is_empty();
        let mut line = lane.frames_in(ahead, self.flows.get_mut(queue));
        line.push(&mut self.pool, flow, (item, bytes), now);
        self.len += 1;
        if first && lane.until(now).is_some() {
            self.paused |= 1 << queue;
        } else if first {
            self.eevdf.backlogged(queue, bytes);
        }
        Ok(())
    }

    /// Removes and returns the frame that the output sends next. Returns `None` if no frame may be
    /// sent now ([`Self::wake`]). The function calls `lost` with the queue and the handle of each
    /// frame that was dropped because it waited too long.
    pub fn next(&mut self, now: Nanos, mut lost: impl FnMut(usize, T)) -> Option<Departure<T>> {
        if self.paused != 0 {
            self.resume(now);
        }
        loop {
            let queue = self.eevdf.pick()?;
            let lane = self.lanes.get_mut(queue)?;
            let (ahead, most) = (lane.is_ahead_next(), lane.depth.wait);
            let mut line = lane.frames_in(ahead, self.flows.get_mut(queue));
            let frame = line.pop(&mut self.pool)?;
            let waited = now.saturating_sub(frame.since);
            let late = waited > most;
            if late {
                line.give_back(frame.bytes);
            }
            self.len -= 1;
            lane.passed = if ahead { lane.passed.saturating_add(frame.bytes) } else { 0 };
            let ahead = lane.is_ahead_next();
            let head = lane.frames_in(ahead, self.flows.get_mut(queue)).head(&self.pool);
            if !late {
                let free = lane.credit.min(frame.bytes);
                lane.credit -= free;
                self.eevdf.charge(queue, frame.bytes - free, head.unwrap_or(0));
                if let Some(ceiling) = &mut lane.ceiling {
                    ceiling.went(frame.bytes, now);
                }
            }
            match head {
                None => self.eevdf.drained(queue),
                Some(_) if lane.until(now).is_some() => {
                    self.eevdf.drained(queue);
                    self.paused |= 1 << queue;
                }
                Some(head) if late => self.eevdf.backlogged(queue, head),
                Some(_) => {}
            }
            if late {
                lost(queue, frame.item);
                continue;
            }
            return Some(Departure { item: frame.item, queue, bytes: frame.bytes, waited });
        }
    }
}

/// Returns the indices of the set bits in ascending order.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = set.trailing_zeros();
        set &= set.checked_sub(1)?;
        Some(at as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: Depth = Depth { bytes: 10_000, wait: Nanos(1_000) };

    fn weight(weight: u64) -> Weight {
        Weight::new(weight).unwrap()
    }

    fn queues(weights: &[u64]) -> Wfq<u32> {
        let mut wfq = Wfq::new(weights.len(), 100, DEPTH);
        for (queue, of) in weights.iter().enumerate() {
            assert!(wfq.set_weight(queue, weight(*of)));
        }
        wfq
    }

    fn go(wfq: &mut Wfq<u32>) -> Option<(usize, u32)> {
        wfq.next(Nanos(0), |_, _| unreachable!()).map(|d| (d.queue, d.item))
    }

    #[test]
    fn a_queue_keeps_its_order_and_its_share() {
        let mut wfq = queues(&[1, 3]);
        for n in 0..8 {
            wfq.offer((0, false), 0, (n, 1_000), Nanos(0)).unwrap();
            wfq.offer((1, false), 0, (n, 1_000), Nanos(0)).unwrap();
        }
        assert_eq!((wfq.len(), wfq.backlog(1)), (16, (8, 8_000)));
        let all: Vec<_> = (0..16).map(|_| go(&mut wfq).unwrap()).collect();
        for queue in 0..2 {
            let of: Vec<_> = all.iter().filter(|(q, _)| *q == queue).map(|(_, n)| *n).collect();
            assert_eq!(of, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
        let second = all[..8].iter().filter(|(queue, _)| *queue == 1).count();
        assert!((4..=8).contains(&second), "{all:?}");
        assert!(wfq.is_empty() && go(&mut wfq).is_none());
    }

    #[test]
    fn frames_that_pass_take_turns_with_the_others_and_keep_their_order() {
        let mut wfq = queues(&[1]);
        (0..4).for_each(|n| wfq.offer((0, false), 0, (n, 1_500), Nanos(0)).unwrap());
        (100..140).for_each(|n| wfq.offer((0, true), 0, (n, 90), Nanos(0)).unwrap());
        assert_eq!(wfq.backlog(0), (44, 9_600));
        let all: Vec<u32> = std::iter::from_fn(|| go(&mut wfq)).map(|(_, n)| n).collect();
        // 18 frames of 90 bytes have more than a turn.
        let wanted: Vec<u32> = (100..118).chain([0]).chain(118..136).chain([1]).collect();
        assert_eq!(all[..38], wanted);
        assert_eq!(all[38..], [136, 137, 138, 139, 2, 3]);
        assert!(wfq.is_empty());
    }

    #[test]
    fn frames_that_pass_have_a_bound_of_their_own_and_share_weight_and_ceiling() {
        let mut wfq = queues(&[1, 1]);
        wfq.offer((0, false), 0, (0, 10_000), Nanos(0)).unwrap();
        assert_eq!(wfq.offer((0, false), 0, (1, 64), Nanos(0)), Err(Full::Bytes));
        assert_eq!(wfq.offer((0, true), 0, (2, 64), Nanos(0)), Ok(()), "data leaves room");
        assert_eq!(wfq.room((0, true), 10_000), Err(Full::Bytes));
        assert_eq!(wfq.offer((2, true), 0, (3, 64), Nanos(0)), Err(Full::Nowhere));

        // Queue 0 has both lines, and queue 1 has one. Both queues send the same bytes.
        let mut wfq = queues(&[1, 1]);
        let mut sent = [0; 2];
        for _ in 0..2_000 {
            let _ = wfq.offer((0, false), 0, (0, 1_500), Nanos(0));
            let _ = wfq.offer((0, true), 0, (1, 100), Nanos(0));
            let _ = wfq.offer((1, false), 0, (2, 1_500), Nanos(0));
            let gone = wfq.next(Nanos(0), |_, _| unreachable!()).unwrap();
            sent[gone.queue] += gone.bytes;
        }
        assert!(sent[0].abs_diff(sent[1]) <= 20_000, "{sent:?}");

        // 1,000 bytes at 8 Mbit/s take a millisecond, and 50 ms are the burst.
        let mut wfq = Wfq::new(1, 400, Depth { bytes: 1 << 20, wait: Nanos::from_secs(9) });
        assert!(wfq.set_ceiling(0, Some(BitsPerSecond(8_000_000))));
        let now = Nanos::from_secs(1);
        (0..100_u32).for_each(|n| wfq.offer((0, true), 0, (n, 1_000), now).unwrap());
        assert_eq!(std::iter::from_fn(|| wfq.next(now, |_, _| {})).count(), 51);
        assert_eq!(wfq.wake(), Some(now + Nanos::from_millis(1)));
        assert!(wfq.next(now + Nanos::from_millis(1), |_, _| {}).is_some());
    }

    #[test]
    fn a_frame_too_many_or_too_late_is_not_sent() {
        let mut wfq = queues(&[1, 1]);
        assert_eq!(wfq.offer((2, false), 0, (0, 64), Nanos(0)), Err(Full::Nowhere));
        assert_eq!(
            wfq.offer((0, false), 0, (1, 60_000), Nanos(0)),
            Ok(()),
            "an empty queue takes any"
        );
        assert_eq!(wfq.offer((0, false), 0, (2, 64), Nanos(0)), Err(Full::Bytes));
        assert_eq!(wfq.offer((1, false), 0, (3, 6_000), Nanos(500)), Ok(()));
        assert_eq!(wfq.offer((1, false), 0, (4, 4_000), Nanos(1_200)), Ok(()));
        assert_eq!(wfq.offer((1, false), 0, (5, 1), Nanos(1_200)), Err(Full::Bytes));
        let mut late = Vec::new();
        let mut next = |wfq: &mut Wfq<u32>, now| {
            let mut lost = |queue, item| late.push((queue, item));
            wfq.next(Nanos(now), &mut lost).map(|d| (d.item, d.waited.0))
        };
        assert_eq!(next(&mut wfq, 1_501), Some((4, 301)));
        assert_eq!(next(&mut wfq, 1_501), None);
        late.sort_unstable();
        assert_eq!(late, [(0, 1), (1, 3)]);
        assert!(wfq.set_depth(0, Depth { bytes: 100, ..DEPTH }) && !wfq.set_depth(2, DEPTH));
        assert_eq!(wfq.offer((0, false), 0, (6, 64), Nanos(0)), Ok(()));
        assert_eq!(wfq.offer((0, false), 0, (7, 64), Nanos(0)), Err(Full::Bytes));
    }

    #[test]
    fn a_flood_in_one_queue_leaves_places_to_the_others() {
        let mut wfq = queues(&[1, 1, 1]);
        let fill = |wfq: &mut Wfq<u32>, queue| {
            (0..1_000)
                .take_while(|n| wfq.offer((queue, false), 0, (*n, 1), Nanos(0)).is_ok())
                .count()
        };
        assert_eq!(fill(&mut wfq, 0), 50);
        assert_eq!(fill(&mut wfq, 1), 25);
        assert_eq!(wfq.room((0, false), 1), Err(Full::Frames));
        assert!(fill(&mut wfq, 2) >= 12);
    }

    #[test]
    fn a_new_weight_counts_from_the_next_frame_and_loses_nothing() {
        let mut wfq = queues(&[1, 1]);
        let mut sent = [0_u32; 2];
        let mut offered = [0_u32; 2];
        for n in 0..4_000 {
            for (queue, offered) in offered.iter_mut().enumerate() {
                while wfq.backlog(queue).0 < 8 {
                    wfq.offer((queue, false), 0, (*offered, 1_000), Nanos(0)).unwrap();
                    *offered += 1;
                }
            }
            let before = sent;
            let (queue, item) = go(&mut wfq).unwrap();
            assert_eq!(item, sent[queue], "in their order, none left out");
            sent[queue] += 1;
            if n == 1_999 {
                assert!(before[0].abs_diff(before[1]) <= 10, "{before:?}");
                assert!(wfq.set_weight(1, weight(3)));
                assert_eq!(wfq.backlog(1).0 + wfq.backlog(0).0, 15);
            }
        }
        // Each queue sends 1,000 frames. After the change of weights, the queues send 500 and
        // 1,500.
        assert!(sent[0].abs_diff(1_500) <= 10 && sent[1].abs_diff(2_500) <= 10, "{sent:?}");
    }

    #[test]
    fn a_ceiling_limits_a_queue_beside_others_and_loses_nothing() {
        // 1,000 bytes at 8 Mbit/s take a millisecond.
        let ceiling = Some(BitsPerSecond(8_000_000));
        let mut wfq = queues(&[10, 1]);
        assert!(wfq.set_ceiling(0, ceiling) && !wfq.set_ceiling(2, ceiling));
        let (mut sent, mut offered) = ([0_u32; 2], [0_u32; 2]);
        for now in (0..1_000).map(Nanos::from_millis) {
            for (queue, offered) in offered.iter_mut().enumerate() {
                while wfq.backlog(queue).0 < 8 {
                    wfq.offer((queue, false), 0, (*offered, 1_000), now).unwrap();
                    *offered += 1;
                }
            }
            // The output sends two frames per millisecond.
            for _ in 0..2 {
                let next = wfq.next(now, |_, _| {}).map(|d| (d.queue, d.item));
                let (queue, item) = next.expect("the other has no ceiling");
                assert!(item >= sent[queue], "in their order");
                sent[queue] += 1;
            }
        }
        // First, the burst of 50 ms is sent at once. Later frames are sent one by one.
        assert!((1_000..=1_051).contains(&sent[0]), "{sent:?}");
        assert_eq!(sent[0] + sent[1], 2_000);
    }

    #[test]
    fn a_queue_held_by_its_ceiling_says_until_when_and_goes_when_it_is_removed() {
        let mut wfq = Wfq::new(1, 200, Depth { bytes: 1 << 20, wait: Nanos::from_secs(9) });
        assert!(wfq.set_ceiling(0, Some(BitsPerSecond(8_000_000))));
        let now = Nanos::from_secs(1);
        (0..80_u32).for_each(|n| wfq.offer((0, false), 0, (n, 1_000), now).unwrap());
        let burst = std::iter::from_fn(|| wfq.next(now, |_, _| {})).count();
        assert_eq!(burst, 51, "50 that had time, and one ahead");
        let wake = wfq.wake().unwrap();
        assert_eq!((wake, wfq.len()), (now + Nanos::from_millis(1), 29));
        assert!(wfq.next(Nanos(wake.0 - 1), |_, _| {}).is_none());
        assert_eq!(wfq.next(wake, |_, _| {}).map(|d| d.item), Some(51));
        assert_eq!(wfq.wake(), Some(wake + Nanos::from_millis(1)));
        assert!(wfq.set_ceiling(0, None));
        let rest: Vec<_> = std::iter::from_fn(|| wfq.next(wake, |_, _| {})).collect();
        assert_eq!(rest.iter().map(|d| d.item).collect::<Vec<_>>(), (52..80).collect::<Vec<_>>());
        assert_eq!((wfq.wake(), wfq.is_empty()), (None, true));
    }

    #[test]
    fn the_flows_of_a_queue_take_turns_and_change_no_share() {
        let depth = Depth { bytes: 100_000, ..DEPTH };
        let (mut wfq, mut sent) = (Wfq::with_flows(2, 200, depth, 8), [0_u64; 2]);
        let add = |wfq: &mut Wfq<u32>, queue, flow: u32| {
            wfq.offer((queue, false), flow << 29, (flow, 1_000), Nanos(0)).unwrap();
        };
        assert!(wfq.set_weight(0, weight(3)));
        for step in 0..8_000 {
            while wfq.backlog(0).0 < 20 {
                add(&mut wfq, 0, 1);
            }
            while wfq.backlog(1).0 < 20 {
                (1..8).for_each(|flow| add(&mut wfq, 1, flow));
            }
            let next = wfq.next(Nanos(0), |_, _| unreachable!("no wait is too long")).unwrap();
            if next.queue == 0 && step % 3 == 0 {
                wfq.not_sent(0, next.bytes);
            } else {
                sent[next.queue] += 1;
            }
        }
        assert!(sent[0].abs_diff(3 * sent[1]) <= 30, "{sent:?}");
        // A new flow goes before the other flows of its queue.
        add(&mut wfq, 1, 0);
        let mut rest = core::iter::from_fn(|| wfq.next(Nanos(0), |_, _| unreachable!("the same")));
        assert_eq!(rest.find(|next| next.queue == 1).map(|next| next.item), Some(0));
    }

    #[test]
    fn late_frames_take_no_turns_of_their_flow() {
        let depth = Depth { bytes: 100_000, wait: Nanos(1_000) };
        let (mut wfq, now) = (Wfq::with_flows(1, 100, depth, 8), Nanos(2_000));
        let mut add = |flow: u32, item: u32, at, frames| {
            (0..frames).for_each(|_| {
                wfq.offer((0, false), flow << 29, (item, 1_500), at).unwrap();
            });
        };
        add(1, 0, Nanos(0), 10);
        add(1, 1, now, 4);
        add(2, 2, now, 4);
        let mut late = Vec::new();
        let next = || wfq.next(now, |_, item| late.push(item)).map(|next| next.item);
        let order: Vec<u32> = std::iter::from_fn(next).collect();
        assert_eq!((late, &order[..4], order.len()), (vec![0; 10], &[1, 1, 2, 2][..], 8));
    }

    #[test]
    fn a_queue_loses_frames_of_its_largest_flow() {
        let mut wfq = Wfq::with_flows(2, 200, DEPTH, 8);
        for (queue, flow) in [(0, 1), (0, 1), (0, 2), (1, 3)] {
            wfq.offer((queue, false), flow << 29, (flow, 1_000), Nanos(0)).unwrap();
        }
        assert_eq!((wfq.evict(0), wfq.backlog(0), wfq.len()), (Some(1), (2, 2_000), 3));
        // The queue without frames has no turn.
        assert_eq!((wfq.evict(1), wfq.evict(1), wfq.evict(2)), (Some(3), None, None));
        let rest = core::iter::from_fn(|| wfq.next(Nanos(0), |_, _| unreachable!("no wait")));
        assert_eq!(rest.map(|next| next.queue).collect::<Vec<_>>(), [0, 0]);
        assert_eq!(queues(&[1]).evict(0), None, "without flow queues");
    }
}
