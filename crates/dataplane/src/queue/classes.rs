//! Which of an output's queues a frame waits in, and what each of them counts.
//!
//! **Source.** QShare §V-D: queue 0 is shared, another is bound to the tenant whose code point
//! (DSCP, RFC 2474) is mapped to it; RFC 2475's classifier by behaviour aggregate. **Rule.** The
//! code point is read from the frame's private head, behind at most one VLAN tag. What is not IP,
//! and what is not mapped, is queue 0's. Of those that share queue 0 a tenant may be held to a rate
//! ([`Classes::with_held`]): its frames wait in a lane of their own behind the queues, which sends
//! no more than that; on the wire they are queue 0's. [`Classes`] are immutable and swapped
//! between batches.
//! **Cost.** A look at the head and one at a table; counters are those of one writer, as
//! [`crate::counters`] says.

use penstock_qos::wfq::QUEUES_MAX;
use penstock_units::{BitsPerSecond, Weight};

use super::Stored;
use crate::counters::Counter;

/// Code points.
pub const DSCPS: usize = 64;

/// The queues of an output by weight, and whose frames they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    queues: u8,
    /// By code point: the queue.
    map: [u8; DSCPS],
    weights: [Weight; QUEUES_MAX],
    /// Who is held, and in which lane behind the queues.
    held: Vec<(u8, HeldLane)>,
    /// By tenant: its lane, 0 for none.
    lanes: Vec<u8>,
}

/// A tenant of queue 0 that is held to a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLane {
    /// The tenant, as in a port's policy.
    pub tenant: u16,
    /// Bits a second, FCS included.
    pub rate: BitsPerSecond,
}

impl Default for Classes {
    /// The eight queues of a commodity switch, all of weight 1 and nothing mapped.
    fn default() -> Self {
        Self::new(8)
    }
}

impl Classes {
    /// So many queues, 1 to [`QUEUES_MAX`], of weight 1; every code point is queue 0's.
    #[must_use]
    pub fn new(queues: usize) -> Self {
        let queues = u8::try_from(queues.clamp(1, QUEUES_MAX)).unwrap_or(1);
        let weights = [Weight::ONE; QUEUES_MAX];
        Self { queues, map: [0; DSCPS], weights, held: Vec::new(), lanes: Vec::new() }
    }

    /// The same with these tenants of queue 0 held to a rate each. Who had a lane in `old` keeps
    /// it, with the frames in it, and a lane that somebody gave up is taken last. `None`: there are
    /// not so many lanes.
    #[must_use]
    pub fn with_held(mut self, held: &[HeldLane], old: &Self) -> Option<Self> {
        let first = self.queues;
        let had = |held: &HeldLane| old.lane_of(held.tenant).filter(|lane| *lane >= first);
        let mut taken = [false; QUEUES_MAX];
        for held in held {
            if let Some(lane) = had(held) {
                taken[usize::from(lane)] = true;
            }
        }
        let mut left = taken;
        old.held.iter().for_each(|(lane, _)| left[usize::from(*lane)] = true);
        for one in held {
            let free = |of: [bool; QUEUES_MAX]| {
                let lanes = first..=u8::try_from(QUEUES_MAX - 1).unwrap_or(0);
                lanes.into_iter().find(|lane| !of[usize::from(*lane)])
            };
            let lane = had(one).or_else(|| free(left).or_else(|| free(taken)))?;
            (taken[usize::from(lane)], left[usize::from(lane)]) = (true, true);
            let tenant = usize::from(one.tenant);
            if self.lanes.len() <= tenant {
                self.lanes.resize(tenant + 1, 0);
            }
            self.lanes[tenant] = lane;
            self.held.push((lane, *one));
        }
        Some(self)
    }

    /// Who is held, and in which lane.
    pub fn held(&self) -> impl Iterator<Item = (u8, HeldLane)> + '_ {
        self.held.iter().copied()
    }

    /// The lane of a tenant of queue 0, if it is held.
    #[inline]
    pub(super) fn lane_of(&self, tenant: u16) -> Option<u8> {
        self.lanes.get(usize::from(tenant)).copied().filter(|lane| *lane != 0)
    }

    /// What each queue and lane weighs. Lanes share queue 0's weight by their rates; so that they
    /// can, all weights are larger by the same factor then. A lane that nobody has is emptied as
    /// fast as queue 0.
    pub(super) fn shares(&self) -> [Weight; QUEUES_MAX] {
        let largest = self.weights().iter().map(|weight| weight.get()).max().unwrap_or(1);
        let factor = if self.held.is_empty() { 1 } else { (Weight::MAX / largest).clamp(1, 100) };
        let weight = |weight: u64| Weight::new(weight.max(1)).unwrap_or(Weight::ONE);
        let scaled = |queue: usize| u64::from(self.weights[queue].get()) * u64::from(factor);
        let shared = scaled(0);
        let mut all = [weight(shared); QUEUES_MAX];
        (0..self.queues()).for_each(|queue| all[queue] = weight(scaled(queue)));
        let rates: u128 = self.held.iter().map(|(_, held)| u128::from(held.rate.0)).sum();
        for (lane, held) in &self.held {
            let part = u128::from(shared) * u128::from(held.rate.0) / rates.max(1);
            all[usize::from(*lane)] = weight(u64::try_from(part).unwrap_or(1));
        }
        all
    }

    /// The same with `dscp` in `queue`; a code point or a queue that is not there changes nothing.
    #[must_use]
    pub fn with_mapped(mut self, dscp: u8, queue: u8) -> Self {
        if let Some(place) = self.map.get_mut(usize::from(dscp))
            && queue < self.queues
        {
            *place = queue;
        }
        self
    }

    /// The same with a queue's weight; a queue that is not there changes nothing.
    #[must_use]
    pub fn with_weight(mut self, queue: usize, weight: Weight) -> Self {
        if queue < usize::from(self.queues) {
            self.weights[queue] = weight;
        }
        self
    }

    /// Queues.
    #[must_use]
    pub const fn queues(&self) -> usize {
        self.queues as usize
    }

    /// The queue of a code point, of which the low six bits count.
    #[inline]
    #[must_use]
    pub fn queue_of(&self, dscp: u8) -> u8 {
        self.map[usize::from(dscp) % DSCPS]
    }

    /// The queues' weights.
    #[must_use]
    pub fn weights(&self) -> &[Weight] {
        &self.weights[..self.queues()]
    }
}

/// Where a frame belongs among an output's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// The queue.
    pub queue: u8,
    /// The code point.
    pub dscp: u8,
}

/// One queue's counters.
#[derive(Debug, Default)]
struct Lane {
    frames: Counter,
    bytes: Counter,
    drops: Counter,
    backlog_frames: Counter,
    backlog_bytes: Counter,
}

/// What one queue counted: of the frames that came, `frames + drops + backlog_frames`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneReading {
    /// Frames that left it for the port.
    pub frames: u64,
    /// Bytes of those, without FCS.
    pub bytes: u64,
    /// Frames for which it had no room, that waited in it too long, or that it had when it went.
    pub drops: u64,
    /// Frames that wait in it now.
    pub backlog_frames: u64,
    /// Bytes of those.
    pub backlog_bytes: u64,
}

/// The counters of an output's queues: written by the worker that has the output, read by anyone.
#[derive(Debug)]
pub struct LaneCounters(Box<[Lane]>);

impl Default for LaneCounters {
    fn default() -> Self {
        Self((0..QUEUES_MAX).map(|_| Lane::default()).collect())
    }
}

impl LaneCounters {
    fn lane(&self, queue: u8) -> &Lane {
        &self.0[usize::from(queue) % QUEUES_MAX]
    }

    /// What a queue counted.
    #[must_use]
    pub fn read(&self, queue: u8) -> LaneReading {
        let lane = self.lane(queue);
        // Of a reading between two stores, what seems to be fewer than none is none.
        let gauge = |counter: &Counter| Some(counter.get()).filter(|n| *n < u64::MAX / 2);
        LaneReading {
            frames: lane.frames.get(),
            bytes: lane.bytes.get(),
            drops: lane.drops.get(),
            backlog_frames: gauge(&lane.backlog_frames).unwrap_or(0),
            backlog_bytes: gauge(&lane.backlog_bytes).unwrap_or(0),
        }
    }

    /// A frame waits.
    pub(super) fn came(&self, frame: &Stored) {
        let lane = self.lane(frame.class.queue);
        lane.backlog_frames.add(1);
        lane.backlog_bytes.add(frame.len.into());
    }

    fn left(&self, frame: &Stored) -> &Lane {
        let lane = self.lane(frame.class.queue);
        lane.backlog_frames.sub(1);
        lane.backlog_bytes.sub(frame.len.into());
        lane
    }

    /// A frame that waited goes to the port.
    pub(super) fn went(&self, frame: &Stored) {
        let lane = self.left(frame);
        lane.frames.add(1);
        lane.bytes.add(frame.len.into());
    }

    /// A frame that waited is lost.
    pub(super) fn lost(&self, frame: &Stored) {
        self.left(frame).drops.add(1);
    }

    /// A frame found no room.
    pub(super) fn refused(&self, queue: u8) {
        self.lane(queue).drops.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_is_queue_0s() {
        let classes = Classes::new(4).with_mapped(8, 1).with_mapped(63, 3).with_mapped(16, 4);
        let queues = [0, 8, 16, 63, 64 + 8].map(|dscp| classes.queue_of(dscp));
        assert_eq!(queues, [0, 1, 0, 3, 1]);
        let ten = Weight::new(10).unwrap();
        let classes = classes.with_weight(3, ten).with_weight(4, ten);
        assert_eq!(classes.weights(), [Weight::ONE, Weight::ONE, Weight::ONE, ten]);
        assert_eq!((Classes::new(0).queues(), Classes::new(100).queues()), (1, QUEUES_MAX));
    }

    #[test]
    fn who_is_held_has_a_lane_behind_the_queues_and_its_part_of_queue_0() {
        let held = |tenant, mbit: u64| {
            let rate = BitsPerSecond(mbit * 1_000_000);
            HeldLane { tenant, rate }
        };
        let two = Weight::new(2).unwrap();
        let plain = Classes::new(3).with_weight(0, two);
        let shares = |of: &Classes| of.shares().map(Weight::get)[..6].to_vec();
        assert_eq!(shares(&plain), [2, 1, 1, 2, 2, 2]);
        let lanes = |of: &Classes| [2, 5, 7].map(|tenant| of.lane_of(tenant));
        let first = plain.clone().with_held(&[held(7, 30), held(2, 10)], &plain).unwrap();
        assert_eq!(lanes(&first), [Some(4), None, Some(3)]);
        assert_eq!(shares(&first), [200, 100, 100, 150, 50, 200]);
        // What waits in lane 3 is tenant 7's still: another is taken first.
        let next = plain.clone().with_held(&[held(5, 10), held(2, 10)], &first).unwrap();
        assert_eq!(lanes(&next), [Some(4), Some(5), None]);
        let last = plain.with_held(&[held(9, 1), held(5, 10), held(2, 10)], &next).unwrap();
        assert_eq!((lanes(&last), last.lane_of(9)), ([Some(4), Some(5), None], Some(3)));

        let full = Classes::new(QUEUES_MAX - 1).with_weight(0, Weight::new(10_000).unwrap());
        assert!(full.clone().with_held(&[held(0, 1), held(1, 1)], &full).is_none());
        let one = full.clone().with_held(&[held(0, 1)], &full).unwrap();
        let other = full.with_held(&[held(1, 1)], &one).unwrap();
        assert_eq!((one.lane_of(0), other.lane_of(1)), (Some(63), Some(63)));
        assert_eq!(one.shares()[63].get(), 10_000);
    }
}
