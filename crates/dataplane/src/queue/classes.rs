//! Which of an output's queues a frame waits in, and what each of them counts.
//!
//! **Source.** QShare §V-D: queue 0 is shared, another is bound to the tenant whose code point
//! (DSCP, RFC 2474) is mapped to it; RFC 2475's classifier by behaviour aggregate. **Rule.** The
//! code point is read from the frame's private head, behind at most one VLAN tag. What is not IP,
//! and what is not mapped, is queue 0's. [`Classes`] are immutable and swapped between batches.
//! **Cost.** A look at the head and one at a table; counters are those of one writer, as
//! [`crate::counters`] says.

use penstock_qos::wfq::QUEUES_MAX;
use penstock_units::Weight;

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
        Self { queues, map: [0; DSCPS], weights: [Weight::ONE; QUEUES_MAX] }
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
}
