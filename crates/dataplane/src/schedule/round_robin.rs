//! In the discipline `round-robin`, every queue pair runs one batch in turn, independent of the
//! batch's cost.
//!
//! Round-robin is the baseline for comparison, because a polling switch without cycle metering
//! works in this way (C2QoS §II). Units run in the order in which the units joined the schedule. A
//! scheduling decision takes O(1) time.

use penstock_units::PortId;

use crate::unit::Unit;

/// Units of the schedule, in the order in which the units get their turns.
#[derive(Debug)]
pub(super) struct RoundRobin {
    units: Vec<Unit>,
    next: usize,
}

impl RoundRobin {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { units: Vec::with_capacity(capacity), next: 0 }
    }

    pub(super) fn add(&mut self, unit: Unit) {
        self.units.push(unit);
    }

    pub(super) fn remove(&mut self, port: PortId) {
        self.units.retain(|unit| unit.port != port);
        self.next = 0;
    }

    pub(super) fn leave(&mut self, unit: Unit) {
        let Some(at) = self.units.iter().position(|other| *other == unit) else { return };
        self.units.remove(at);
        // The unit whose turn is next keeps its turn.
        if at < self.next {
            self.next -= 1;
        }
        if self.next == self.units.len() {
            self.next = 0;
        }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<(Unit, bool)> {
        let unit = *self.units.get(self.next)?;
        self.next += 1;
        let wraps = self.next == self.units.len();
        if wraps {
            self.next = 0;
        }
        Some((unit, wraps))
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_units::QueueId;

    #[test]
    fn every_unit_has_its_turn_and_leavers_do_not_stop_the_others() {
        let unit = |port| Unit { port: PortId(port), queue: QueueId(0) };
        let mut rr = RoundRobin::with_capacity(4);
        assert_eq!(rr.next(), None);
        (1..=3).for_each(|p| rr.add(unit(p)));
        let seen = |rr: &mut RoundRobin, n: usize| -> Vec<(u16, bool)> {
            (0..n).filter_map(|_| rr.next()).map(|(u, end)| (u.port.0, end)).collect()
        };
        assert_eq!(seen(&mut rr, 4), [(1, false), (2, false), (3, true), (1, false)]);
        rr.remove(PortId(2));
        assert_eq!(seen(&mut rr, 3), [(1, false), (3, true), (1, false)]);
    }

    #[test]
    fn a_temporary_leave_costs_no_other_unit_its_turn() {
        let unit = |port| Unit { port: PortId(port), queue: QueueId(0) };
        let mut rr = RoundRobin::with_capacity(4);
        (1..=4).for_each(|p| rr.add(unit(p)));
        let next = |rr: &mut RoundRobin| rr.next().map(|(u, end)| (u.port.0, end));
        assert_eq!((next(&mut rr), next(&mut rr)), (Some((1, false)), Some((2, false))));
        rr.leave(unit(1));
        assert_eq!(next(&mut rr), Some((3, false)), "an earlier one left");
        rr.leave(unit(4));
        assert_eq!(next(&mut rr), Some((2, false)), "the one whose turn it was left");
        rr.add(unit(4));
        rr.leave(unit(9));
        assert_eq!((next(&mut rr), next(&mut rr)), (Some((3, false)), Some((4, true))));
        (2..=4).for_each(|p| rr.leave(unit(p)));
        assert_eq!(next(&mut rr), None);
    }
}
