//! The `wfq` discipline of an output: a few queues that share it by weight, frames in their order
//! within each.
//!
//! **Problem.** A commodity switch has eight queues a port and divides the port among them by
//! weight; QShare binds tenants to them. Software at the edge, and a fabric of software, need the
//! same thing. **Source.** QShare §V-D, §VI: queue 0 is shared, the others are bound to a tenant
//! each; which is a frame's, its code point says. **Rule.** Queues with frames are clients of
//! [`Eevdf`]; within a queue first come, first served. Who has nothing is in no line, so the others
//! use its part at once (work-conserving).
//!
//! **Why EEVDF** and not the other disciplines ([`crate::discipline`]). DRR, which hardware has,
//! sends a queue's whole quantum at once: with weights of 1 to 100 the others wait for 100 quanta.
//! [`crate::vtrr`] spreads turns, but its error grows with the number of queues and its line is
//! built anew, a cycle begun, whenever a weight changes, which a controller does every few seconds.
//! EEVDF is ahead or behind by one request and one frame, whatever the weights and however many
//! queues; a new weight touches one account, which keeps its bytes.
//!
//! **Depth.** A queue is bounded in bytes and in time ([`Depth`]); a frame that finds no room is
//! not taken, one that waited too long is dropped when its turn comes, uncharged. Of the places for
//! frames that all queues share none may have more than are free (Choudhury, Hahne, 1998), so that
//! a flood in one leaves room in the others. A queue that is empty takes a frame of any length.
//!
//! **Changes.** Weights and depths are set at any time; what waits stays where it is.
//! **Departures.** None. **Cost.** A frame: one decision of at most 64 clients, one place of the
//! pool. Nothing is allocated after construction.

use penstock_units::{Nanos, Weight};

use crate::discipline::Discipline;
use crate::eevdf::Eevdf;
use crate::fair_share::queue::{Pool, Queue};

/// Most queues of an output.
pub const QUEUES_MAX: usize = 64;

/// How much may wait in a queue, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Bytes.
    pub bytes: u64,
    /// Time that a frame waits at most.
    pub wait: Nanos,
}

/// Why there is no room for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// [`Depth::bytes`] wait in its queue.
    Bytes,
    /// Its queue has as many of the places for frames as are free.
    Frames,
    /// There is no such queue.
    Nowhere,
}

/// A frame whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// What was offered.
    pub item: T,
    /// Its queue.
    pub queue: usize,
    /// Its length.
    pub bytes: u32,
    /// How long it waited.
    pub waited: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    frames: Queue,
    weight: Weight,
    depth: Depth,
}

/// See the module's text. `T` is what the caller knows a frame by.
#[derive(Clone, Debug)]
pub struct Wfq<T> {
    lanes: Box<[Lane]>,
    pool: Pool<T>,
    eevdf: Eevdf,
    /// Frames that wait, and places for them.
    len: u32,
    places: u32,
}

impl<T: Copy + Default> Wfq<T> {
    /// So many queues, each of weight 1 and with this depth, and places for `frames` in all of
    /// them. More than [`QUEUES_MAX`] queues count as that.
    #[must_use]
    pub fn new(queues: usize, frames: u32, depth: Depth) -> Self {
        let queues = queues.min(QUEUES_MAX);
        let lane = Lane { frames: Queue::EMPTY, weight: Weight::ONE, depth };
        let mut eevdf = Eevdf::new(queues);
        (0..queues).for_each(|queue| eevdf.join(queue, Weight::ONE));
        let (lanes, pool) = (vec![lane; queues].into_boxed_slice(), Pool::new(frames));
        Self { lanes, pool, eevdf, len: 0, places: frames }
    }

    /// Frames that wait in all queues.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether no frame waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Frames and bytes that wait in a queue; none where there is no such queue.
    #[must_use]
    pub fn backlog(&self, queue: usize) -> (u32, u64) {
        self.lanes.get(queue).map_or((0, 0), |lane| (lane.frames.frames, lane.frames.bytes))
    }

    /// A queue's weight from now on; what waits in it stays, and what it is ahead or behind in
    /// bytes. Whether there is such a queue.
    pub fn set_weight(&mut self, queue: usize, weight: Weight) -> bool {
        let Some(lane) = self.lanes.get_mut(queue) else { return false };
        if lane.weight != weight {
            lane.weight = weight;
            self.eevdf.join(queue, weight);
        }
        true
    }

    /// A queue's depth from now on; what waits above it stays. Whether there is such a queue.
    pub fn set_depth(&mut self, queue: usize, depth: Depth) -> bool {
        let Some(lane) = self.lanes.get_mut(queue) else { return false };
        lane.depth = depth;
        true
    }

    /// Whether a frame of so many bytes would be taken now.
    ///
    /// # Errors
    /// Why not.
    pub fn room(&self, queue: usize, bytes: u32) -> Result<(), Full> {
        let lane = self.lanes.get(queue).ok_or(Full::Nowhere)?;
        if lane.frames.frames >= self.places - self.len {
            return Err(Full::Frames);
        }
        let full = lane.frames.bytes + u64::from(bytes) > lane.depth.bytes;
        if full && !lane.frames.is_empty() { Err(Full::Bytes) } else { Ok(()) }
    }

    /// A frame comes at `now`.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn offer(&mut self, queue: usize, item: T, bytes: u32, now: Nanos) -> Result<(), Full> {
        self.room(queue, bytes)?;
        let lane = &mut self.lanes[queue];
        let first = lane.frames.is_empty();
        self.pool.push(&mut lane.frames, item, bytes, now);
        self.len += 1;
        if first {
            self.eevdf.backlogged(queue, bytes);
        }
        Ok(())
    }

    /// The frame that goes next; `None` when none waits. `lost` gets those that have waited too
    /// long and are dropped on the way, each with its queue.
    pub fn next(&mut self, now: Nanos, mut lost: impl FnMut(usize, T)) -> Option<Departure<T>> {
        loop {
            let queue = self.eevdf.pick()?;
            let lane = self.lanes.get_mut(queue)?;
            let frame = self.pool.pop(&mut lane.frames)?;
            self.len -= 1;
            let head = self.pool.head(&lane.frames).map(|frame| frame.bytes);
            let waited = now.saturating_sub(frame.since);
            let late = waited > lane.depth.wait;
            if !late {
                self.eevdf.charge(queue, frame.bytes, head.unwrap_or(0));
            }
            match head {
                None => self.eevdf.drained(queue),
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
    fn a_queue_keeps_its_order_and_its_part() {
        let mut wfq = queues(&[1, 3]);
        for n in 0..8 {
            wfq.offer(0, n, 1_000, Nanos(0)).unwrap();
            wfq.offer(1, n, 1_000, Nanos(0)).unwrap();
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
    fn what_is_too_much_or_too_late_is_not_sent() {
        let mut wfq = queues(&[1, 1]);
        assert_eq!(wfq.offer(2, 0, 64, Nanos(0)), Err(Full::Nowhere));
        assert_eq!(wfq.offer(0, 1, 60_000, Nanos(0)), Ok(()), "an empty queue takes any");
        assert_eq!(wfq.offer(0, 2, 64, Nanos(0)), Err(Full::Bytes));
        assert_eq!(wfq.offer(1, 3, 6_000, Nanos(500)), Ok(()));
        assert_eq!(wfq.offer(1, 4, 4_000, Nanos(1_200)), Ok(()));
        assert_eq!(wfq.offer(1, 5, 1, Nanos(1_200)), Err(Full::Bytes));
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
        assert_eq!(wfq.offer(0, 6, 64, Nanos(0)), Ok(()));
        assert_eq!(wfq.offer(0, 7, 64, Nanos(0)), Err(Full::Bytes));
    }

    #[test]
    fn a_flood_in_one_queue_leaves_places_to_the_others() {
        let mut wfq = queues(&[1, 1, 1]);
        let fill = |wfq: &mut Wfq<u32>, queue| {
            (0..1_000).take_while(|n| wfq.offer(queue, *n, 1, Nanos(0)).is_ok()).count()
        };
        assert_eq!(fill(&mut wfq, 0), 50);
        assert_eq!(fill(&mut wfq, 1), 25);
        assert_eq!(wfq.room(0, 1), Err(Full::Frames));
        assert!(fill(&mut wfq, 2) >= 12);
    }

    #[test]
    fn another_weight_counts_from_the_next_frame_and_loses_nothing() {
        let mut wfq = queues(&[1, 1]);
        let mut sent = [0_u32; 2];
        let mut offered = [0_u32; 2];
        for n in 0..4_000 {
            for (queue, offered) in offered.iter_mut().enumerate() {
                while wfq.backlog(queue).0 < 8 {
                    wfq.offer(queue, *offered, 1_000, Nanos(0)).unwrap();
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
        // 1,000 each, then 500 and 1,500.
        assert!(sent[0].abs_diff(1_500) <= 10 && sent[1].abs_diff(2_500) <= 10, "{sent:?}");
    }
}
