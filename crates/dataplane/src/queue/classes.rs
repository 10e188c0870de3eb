//! An output with several queues selects the queue in which a frame waits, and counts frames by
//! queue.
//!
//! # Source
//!
//! In QShare §V-D, a tenant's DSCP code point (RFC 2474) is mapped to the tenant's queue. Tenants
//! without a mapped code point share queue 0. RFC 2475 calls the selection of a queue by code point
//! a behaviour aggregate classifier.
//!
//! # Approach
//!
//! The output reads the code point from the switch's private copy of the frame's head, behind at
//! most one VLAN tag. Frames without IP, and frames with an unmapped code point, wait in queue 0. A
//! tenant that shares queue 0 may have a rate limit ([`Classes::with_held`]). Frames of a
//! rate-limited tenant wait in a separate lane, which has a number after the queues' numbers. On
//! the wire, frames of a rate-limited tenant's lane still belong to queue 0. A tenant with its own
//! queue may also have a rate limit ([`Classes::with_ceiling`]), while the fabric changes queues.
//! The limit then applies to the queue. [`Classes`] are immutable and are replaced between batches.
//!
//! # Cost
//!
//! Selecting a queue takes one look at the frame's head and one look at a table. Each queue counter
//! has one writer ([`crate::counters`]).

use penstock_qos::wfq::QUEUES_MAX;
use penstock_units::{BitsPerSecond, Weight};

use super::Stored;
use crate::counters::Counter;

/// Number of DSCP code points.
pub const DSCPS: usize = 64;

/// The queues of an output with their weights, and the mapping of frames to these queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    queues: u8,
    /// Queue of each code point, indexed by DSCP.
    map: [u8; DSCPS],
    weights: [Weight; QUEUES_MAX],
    /// Number of the lane and rate limit of each rate-limited tenant in queue 0.
    held: Vec<(u8, HeldLane)>,
    /// Rate limits of queues that belong to one tenant each.
    limits: Vec<(u8, BitsPerSecond)>,
    /// Lane number of each tenant, indexed by tenant number. A tenant's lane number is 0 if the
    /// tenant has no lane.
    lanes: Vec<u8>,
}

/// A tenant of queue 0 that has a rate limit and a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLane {
    /// Number of the tenant, as in a port's policy.
    pub tenant: u16,
    /// Rate limit in bits per second on the link, including all overhead that Ethernet adds to a
    /// frame.
    pub rate: BitsPerSecond,
}

impl Default for Classes {
    /// Returns the eight queues of a commodity switch, all of weight 1, without mapped code points.
    fn default() -> Self {
        Self::new(8)
    }
}

impl Classes {
    /// Creates classes with `queues` queues of weight 1, clamped to the range from 1 to
    /// [`QUEUES_MAX`]. All code points are mapped to queue 0.
    #[must_use]
    pub fn new(queues: usize) -> Self {
        let queues = u8::try_from(queues.clamp(1, QUEUES_MAX)).unwrap_or(1);
        let weights = [Weight::ONE; QUEUES_MAX];
        let (held, limits, lanes) = (Vec::new(), Vec::new(), Vec::new());
        Self { queues, map: [0; DSCPS], weights, held, limits, lanes }
    }

    /// Adds a rate limit for each tenant in `held` to the classes. A tenant that has a lane
    /// (separate queue) in `old` keeps the lane with its waiting frames. A lane that a former
    /// tenant used is assigned to a new tenant only if no other lane is free. Returns `None` if
    /// there are not enough lanes.
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

    /// Sets the rate limit of a queue that belongs to one tenant. Changes nothing if the queue does
    /// not exist, or if it is queue 0, whose tenants have lanes.
    #[must_use]
    pub fn with_ceiling(mut self, queue: u8, rate: BitsPerSecond) -> Self {
        if (1..self.queues).contains(&queue) {
            self.limits.retain(|(other, _)| *other != queue);
            self.limits.push((queue, rate));
        }
        self
    }

    /// Returns the rate limit of each queue and lane that has one, in bits per second on the link.
    pub fn ceilings(&self) -> impl Iterator<Item = (u8, BitsPerSecond)> + '_ {
        let lanes = self.held.iter().map(|(lane, held)| (*lane, held.rate));
        lanes.chain(self.limits.iter().copied())
    }

    /// Returns the tenants of queue 0 with a rate limit, each with its lane's number.
    pub fn held(&self) -> impl Iterator<Item = (u8, HeldLane)> + '_ {
        self.held.iter().copied()
    }

    /// Returns the number of a tenant's lane. Returns `None` if the tenant has no rate limit.
    #[inline]
    pub(super) fn lane_of(&self, tenant: u16) -> Option<u8> {
        self.lanes.get(usize::from(tenant)).copied().filter(|lane| *lane != 0)
    }

    /// Returns the weight of each queue and lane. Lanes divide queue 0's weight in proportion to
    /// their rate limits. To leave room for the division of queue 0's weight among lanes, the
    /// function multiplies all weights by one factor. An unused lane has the weight of queue 0.
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

    /// Maps code point `dscp` to `queue`, or changes nothing if the code point or the queue does
    /// not exist.
    #[must_use]
    pub fn with_mapped(mut self, dscp: u8, queue: u8) -> Self {
        if let Some(place) = self.map.get_mut(usize::from(dscp))
            && queue < self.queues
        {
            *place = queue;
        }
        self
    }

    /// Sets the weight of a queue, or changes nothing if the queue does not exist.
    #[must_use]
    pub fn with_weight(mut self, queue: usize, weight: Weight) -> Self {
        if queue < usize::from(self.queues) {
            self.weights[queue] = weight;
        }
        self
    }

    /// Number of queues of the output, without lanes.
    #[must_use]
    pub const fn queues(&self) -> usize {
        self.queues as usize
    }

    /// Returns the queue of a code point. Only the low six bits of `dscp` are used.
    #[inline]
    #[must_use]
    pub fn queue_of(&self, dscp: u8) -> u8 {
        self.map[usize::from(dscp) % DSCPS]
    }

    /// Returns the weight of each queue, indexed by queue. Lanes are not included.
    #[must_use]
    pub fn weights(&self) -> &[Weight] {
        &self.weights[..self.queues()]
    }
}

/// The queue and code point of a frame at an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// Number of the queue or lane in which the frame waits.
    pub queue: u8,
    pub dscp: u8,
    /// Whether the frame need not wait behind data of its queue, as TCP's pure acknowledgements,
    /// and questions and answers about pairs of VMs.
    pub ahead: bool,
}

/// Counters of one queue or lane, as the worker writes them.
#[derive(Debug, Default)]
struct Lane {
    frames: Counter,
    bytes: Counter,
    drops: Counter,
    backlog_frames: Counter,
    backlog_bytes: Counter,
}

/// Counters of one queue or lane. The sum `frames + drops + backlog_frames` is the number of frames
/// that arrived at the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneReading {
    /// Number of frames that left the queue for the port.
    pub frames: u64,
    /// Bytes of the frames that left the queue for the port, without FCS.
    pub bytes: u64,
    /// Number of dropped frames: no room in the queue, too long a wait, or removal of the queue.
    pub drops: u64,
    /// Number of frames that now wait in the queue.
    pub backlog_frames: u64,
    /// Bytes of the frames that now wait in the queue, without FCS.
    pub backlog_bytes: u64,
}

/// Counters of an output's queues. The output's worker writes the counters, and any thread may read
/// the counters.
#[derive(Debug)]
pub struct LaneCounters {
    lanes: Box<[Lane]>,
    unmapped: Counter,
}

impl Default for LaneCounters {
    fn default() -> Self {
        let lanes = (0..QUEUES_MAX).map(|_| Lane::default()).collect();
        Self { lanes, unmapped: Counter::default() }
    }
}

impl LaneCounters {
    fn lane(&self, queue: u8) -> &Lane {
        &self.lanes[usize::from(queue) % QUEUES_MAX]
    }

    /// Returns the number of frames that arrived with an unmapped code point other than 0. These
    /// frames share queue 0, or were dropped there.
    #[must_use]
    pub fn unmapped(&self) -> u64 {
        self.unmapped.get()
    }

    /// Counts a frame with an unmapped code point.
    pub(super) fn met_no_map(&self) {
        self.unmapped.add(1);
    }

    /// Reads the counters of a queue or lane.
    #[must_use]
    pub fn read(&self, queue: u8) -> LaneReading {
        let lane = self.lane(queue);
        // A reading between two stores may show a negative backlog. It is reported as zero.
        let gauge = |counter: &Counter| Some(counter.get()).filter(|n| *n < u64::MAX / 2);
        LaneReading {
            frames: lane.frames.get(),
            bytes: lane.bytes.get(),
            drops: lane.drops.get(),
            backlog_frames: gauge(&lane.backlog_frames).unwrap_or(0),
            backlog_bytes: gauge(&lane.backlog_bytes).unwrap_or(0),
        }
    }

    /// Counts a frame that joins a queue of the output.
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

    /// Counts a frame that leaves the queue and goes to the port.
    pub(super) fn went(&self, frame: &Stored) {
        let lane = self.left(frame);
        lane.frames.add(1);
        lane.bytes.add(frame.len.into());
    }

    /// Counts a frame that is dropped after a wait.
    pub(super) fn lost(&self, frame: &Stored) {
        self.left(frame).drops.add(1);
    }

    /// Counts a frame that found no room in `queue`.
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
        // Frames of tenant 7 may still wait in lane 3, so another lane is used first.
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

    #[test]
    fn a_ceiling_of_a_queue_changes_no_weight_and_no_lane() {
        let rate = |mbit: u64| BitsPerSecond(mbit * 1_000_000);
        let lane = HeldLane { tenant: 7, rate: rate(30) };
        let plain = Classes::new(3).with_weight(1, Weight::new(5).unwrap());
        let held = plain.clone().with_held(&[lane], &plain).unwrap();
        let both = held.clone().with_ceiling(1, rate(9)).with_ceiling(1, rate(10));
        let wrong = both.clone().with_ceiling(0, rate(1)).with_ceiling(3, rate(1));
        assert_eq!(wrong, both, "queue 0 has lanes, and queue 3 does not exist");
        assert_eq!(both.ceilings().collect::<Vec<_>>(), [(3, rate(30)), (1, rate(10))]);
        assert_eq!(both.shares(), held.shares());
        assert_eq!((both.lane_of(7), both.held().count()), (Some(3), 1));
    }
}
