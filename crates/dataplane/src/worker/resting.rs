//! The worker does not poll queue pairs without recent frames, which are *at rest*.
//!
//! # Problem
//!
//! Polling is cheap while the polled word is in the CPU's cache. A worker with four busy ports out
//! of 1,000 would spend more time on the 996 idle ports than on frames.
//!
//! # Approach (datapath rule 14)
//!
//! If no frame came from a queue pair for [`IDLE_AFTER`], the queue pair leaves the schedule. When
//! the queue pair leaves the schedule, the worker requests kicks from the queue pair's driver.
//! After the request for kicks, the worker checks the queue pair once more, because a frame may
//! have arrived before the request. When the driver kicks, the [`Doorbell`] rings and the queue
//! pair returns to the schedule.
//!
//! Every [`LOOK_EVERY`] the worker checks one queue pair at rest, in case its driver forgets to
//! kick. The last [`AWAKE_MIN`] queue pairs never rest, because polling a few queue pairs costs
//! less than a kick. In a switch with at most [`AWAKE_MIN`] queue pairs, no queue pair rests.
//!
//! A frame in the ring of a queue pair at rest waits until the driver kicks. If the driver does not
//! kick, the frame waits for at most [`LOOK_EVERY`] times the number of queue pairs at rest.
//!
//! # Cost
//!
//! An awake queue pair costs one comparison per empty poll. Queue pairs at rest cost only one check
//! per [`LOOK_EVERY`], independent of the number of ports.

use std::sync::Arc;

use penstock_units::{Cycles, Nanos, PortId, QueueId, TscRate};

use crate::unit::QUEUES_MAX;
use crate::unit::Unit;
use crate::wake::Doorbell;

/// Time without a frame after which the worker stops polling a queue pair and waits for a kick
/// instead. At 1.5 ms, a flow of 1,000 frames per second needs no kick per frame.
pub const IDLE_AFTER: Nanos = Nanos::from_micros(1_500);
/// Time between two checks of queue pairs at rest. A check of a queue pair at rest costs a cache
/// miss, which takes less than 1 % of this interval.
pub const LOOK_EVERY: Nanos = Nanos::from_micros(10);
/// Minimum number of queue pairs that a worker always polls, even if they have no frames.
pub const AWAKE_MIN: usize = 8;
/// Maximum number of queue pairs at rest that the worker checks at once after a long pause.
const LOOKS_MAX: u64 = 8;

/// Marker for a queue pair that is not at rest.
const AWAKE: u32 = u32::MAX;

/// Returns the number of a queue pair's bell in the [`Doorbell`].
#[inline]
#[must_use]
pub const fn bell_of(unit: Unit) -> usize {
    unit.port.index() * QUEUES_MAX + unit.queue.index()
}

/// Returns the queue pair with bell number `bell`.
#[inline]
pub(super) fn unit_of(bell: usize) -> Option<Unit> {
    let port = PortId(u16::try_from(bell / QUEUES_MAX).ok()?);
    Some(Unit { port, queue: QueueId(u16::try_from(bell % QUEUES_MAX).ok()?) })
}

/// The queue pairs that the worker does not poll, and the time of the last frame from each queue
/// pair.
#[derive(Debug)]
pub(super) struct Resting {
    /// For each bell number, the time in cycles at which the worker last received a frame from the
    /// bell's queue pair.
    busy_at: Box<[u64]>,
    /// For each bell number, the index of the bell's queue pair in `units`, or [`AWAKE`] if the
    /// queue pair is not at rest.
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

    /// Number of the worker's queue pairs at rest.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Records that a frame arrived from `unit`, or that frames are expected soon.
    #[inline]
    pub(super) fn note_busy(&mut self, unit: Unit, now: Cycles) {
        if let Some(at) = self.busy_at.get_mut(bell_of(unit)) {
            *at = now.0;
        }
    }

    /// Whether `unit` had no frame for longer than [`IDLE_AFTER`].
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

    /// Removes `unit` from the queue pairs at rest. Returns false if `unit` was not at rest.
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

    /// Removes all queue pairs of a port from the queue pairs at rest.
    pub(super) fn remove_port(&mut self, port: PortId) {
        for queue in 0..QUEUES_MAX {
            self.remove(Unit { port, queue: QueueId(u16::try_from(queue).unwrap_or(0)) });
        }
    }

    /// Returns how many queue pairs at rest the worker should check now, at most [`LOOKS_MAX`].
    #[inline]
    pub(super) fn looks_due(&mut self, now: Cycles) -> u64 {
        if now.0 < self.next_look || self.units.is_empty() {
            return 0;
        }
        let late = now.0 - self.next_look;
        self.next_look = now.0 + self.look_every;
        (1 + late / self.look_every).min(LOOKS_MAX)
    }

    /// Returns the queue pair at rest that the worker should check next, in rotation. Returns
    /// `None` if no queue pair is at rest.
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
