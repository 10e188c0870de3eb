//! Queue pairs at rest: those that nothing came from for a while are not polled.
//!
//! **Problem.** Polling is cheap while the word polled is in the cache. A worker with 1,000 ports
//! of which four are busy would spend more on the other 996 than on the frames. **Rule** (datapath
//! rule 14). A queue pair that was found empty for [`IDLE_AFTER`] leaves the schedule: its driver
//! is asked to kick, then it is looked at once more, so that no frame falls between the two. It
//! comes back when its [`Doorbell`] rings. One look at one queue pair at rest every [`LOOK_EVERY`]
//! stands in for a driver that forgets to kick. The last [`AWAKE_MIN`] never rest: polling so few
//! costs less than a kick, and a small switch behaves as if there were no rest at all. **Cost.**
//! Awake: one comparison an empty poll. At rest: nothing but the looks, whose number does not grow
//! with the ports. **Bound.** A driver that kicks waits for its kick; one that does not, for
//! [`LOOK_EVERY`] times the number of queue pairs at rest.

use std::sync::Arc;

use penstock_units::{Cycles, Nanos, PortId, QueueId, TscRate};

use super::{Doorbell, QUEUES_MAX};
use crate::schedule::Unit;

/// Without a frame for so long, a queue pair goes to rest. Long enough that a flow of 1,000
/// frames per second costs its driver no kick a frame.
pub const IDLE_AFTER: Nanos = Nanos::from_micros(1_500);
/// Between two looks at queue pairs at rest: a look costs a cache miss, below 1 % of this.
pub const LOOK_EVERY: Nanos = Nanos::from_micros(10);
/// So many queue pairs stay awake whatever comes from them.
pub const AWAKE_MIN: usize = 8;
/// Looks at once after a pause in which several were due.
const LOOKS_MAX: u64 = 8;

/// Not at rest.
const AWAKE: u32 = u32::MAX;

/// The number of a queue pair's bell.
#[inline]
#[must_use]
pub const fn bell_of(unit: Unit) -> usize {
    unit.port.index() * QUEUES_MAX + unit.queue.index()
}

/// Whose bell has number `bell`.
#[inline]
pub(super) fn unit_of(bell: usize) -> Option<Unit> {
    let port = PortId(u16::try_from(bell / QUEUES_MAX).ok()?);
    Some(Unit { port, queue: QueueId(u16::try_from(bell % QUEUES_MAX).ok()?) })
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Resting {
    /// When a frame last came, by bell.
    busy_at: Box<[u64]>,
    /// The place in `units`, by bell.
    place: Box<[u32]>,
    units: Vec<Unit>,
    cursor: usize,
    next_look: u64,
    idle_after: u64,
    look_every: u64,
    doorbell: Arc<Doorbell>,
}

impl Resting {
    pub(super) fn new(max_ports: usize, rate: TscRate) -> Self {
        let bells = max_ports * QUEUES_MAX;
        Self {
            busy_at: vec![0; bells].into_boxed_slice(),
            place: vec![AWAKE; bells].into_boxed_slice(),
            units: Vec::with_capacity(bells),
            cursor: 0,
            next_look: 0,
            idle_after: rate.to_cycles(IDLE_AFTER).0,
            look_every: rate.to_cycles(LOOK_EVERY).0.max(1),
            doorbell: Arc::new(Doorbell::new(bells)),
        }
    }

    pub(super) fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Queue pairs at rest.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// A frame came from `unit`, or it is taken for one from which some will.
    #[inline]
    pub(super) fn note_busy(&mut self, unit: Unit, now: Cycles) {
        if let Some(at) = self.busy_at.get_mut(bell_of(unit)) {
            *at = now.0;
        }
    }

    /// Whether nothing came from `unit` for long enough.
    #[inline]
    pub(super) fn is_idle(&self, unit: Unit, now: Cycles) -> bool {
        let busy_at = self.busy_at.get(bell_of(unit)).copied().unwrap_or(u64::MAX);
        now.0.saturating_sub(busy_at) > self.idle_after
    }

    pub(super) fn is_resting(&self, unit: Unit) -> bool {
        self.place.get(bell_of(unit)).is_some_and(|place| *place != AWAKE)
    }

    pub(super) fn add(&mut self, unit: Unit) {
        let Some(place) = self.place.get_mut(bell_of(unit)) else { return };
        if *place == AWAKE {
            *place = u32::try_from(self.units.len()).unwrap_or(AWAKE);
            self.units.push(unit);
        }
    }

    /// Takes `unit` out; false if it was not at rest.
    pub(super) fn remove(&mut self, unit: Unit) -> bool {
        let Some(place) = self.place.get_mut(bell_of(unit)) else { return false };
        let at = core::mem::replace(place, AWAKE);
        if at == AWAKE {
            return false;
        }
        self.units.swap_remove(at as usize);
        if let Some(moved) = self.units.get(at as usize) {
            self.place[bell_of(*moved)] = at;
        }
        true
    }

    /// Takes a port's queue pairs out.
    pub(super) fn remove_port(&mut self, port: PortId) {
        for queue in 0..QUEUES_MAX {
            self.remove(Unit { port, queue: QueueId(u16::try_from(queue).unwrap_or(0)) });
        }
    }

    /// How many looks are due.
    #[inline]
    pub(super) fn looks_due(&mut self, now: Cycles) -> u64 {
        if now.0 < self.next_look || self.units.is_empty() {
            return 0;
        }
        let late = now.0 - self.next_look;
        self.next_look = now.0 + self.look_every;
        (1 + late / self.look_every).min(LOOKS_MAX)
    }

    /// The next to look at.
    pub(super) fn next_look(&mut self) -> Option<Unit> {
        self.cursor = if self.cursor + 1 < self.units.len() { self.cursor + 1 } else { 0 };
        self.units.get(self.cursor).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn unit(port: u16, queue: u16) -> Unit {
        Unit { port: PortId(port), queue: QueueId(queue) }
    }

    #[test]
    fn who_rests_is_looked_at_in_turn_and_whoever_leaves_is_not() {
        let mut resting = Resting::new(4, TscRate::from_hz(1_000_000_000));
        for u in [unit(0, 0), unit(1, 0), unit(1, 1), unit(3, 7)] {
            resting.add(u);
            resting.add(u);
        }
        assert_eq!(resting.len(), 4);
        assert!(resting.remove(unit(0, 0)) && !resting.remove(unit(0, 0)));
        resting.remove_port(PortId(1));
        assert_eq!(resting.next_look(), Some(unit(3, 7)));
        assert!(resting.remove(unit(3, 7)), "its place was kept up when others left");
        assert_eq!(resting.next_look(), None);
    }

    #[test]
    fn looks_follow_the_clock_and_are_never_many_at_once() {
        let mut resting = Resting::new(4, TscRate::from_hz(1_000_000_000));
        assert_eq!(resting.looks_due(Cycles(1_000_000)), 0, "nobody rests");
        resting.add(unit(0, 0));
        assert_eq!(resting.looks_due(Cycles(1_000_000_000)), LOOKS_MAX);
        assert_eq!(resting.looks_due(Cycles(1_000_009_999)), 0);
        assert_eq!(resting.looks_due(Cycles(1_000_010_000)), 1);
        assert_eq!(resting.looks_due(Cycles(1_000_050_000)), 4);
    }

    #[test]
    fn a_unit_is_idle_only_after_the_time() {
        let mut resting = Resting::new(1, TscRate::from_hz(1_000_000_000));
        resting.note_busy(unit(0, 3), Cycles(5_000_000));
        assert!(!resting.is_idle(unit(0, 3), Cycles(6_500_000)));
        assert!(resting.is_idle(unit(0, 3), Cycles(6_500_001)));
        assert!(!resting.is_idle(unit(9, 0), Cycles(u64::MAX)), "no such unit");
    }
}
