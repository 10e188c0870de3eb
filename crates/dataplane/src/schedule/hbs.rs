//! The HBS discipline: adapts [`penstock_qos::hbs`] to [`Schedule`], with queue pairs as its units.

use penstock_qos::hbs::{BatchScheduler, Readiness};
use penstock_units::{PortId, Priority, QueueId};

use super::{Schedule, Unit};
use crate::queue::UNITS_MAX;
use crate::worker::QUEUES_MAX;

/// [`BatchScheduler`] with a slot for each queue pair of each port.
#[derive(Debug)]
pub struct Hbs(BatchScheduler);

impl Hbs {
    /// Reserves room for `capacity` slots, [`UNITS_MAX`] for each port.
    #[must_use]
    pub fn with_capacity(capacity: usize, readiness: Readiness) -> Self {
        Self(BatchScheduler::new(capacity, readiness))
    }
}

#[inline]
const fn slot_of(unit: Unit) -> usize {
    unit.port.index() * UNITS_MAX + unit.queue.index()
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "slots are made from units")]
const fn unit_of(slot: usize) -> Unit {
    Unit { port: PortId((slot / UNITS_MAX) as u16), queue: QueueId((slot % UNITS_MAX) as u16) }
}

impl Schedule for Hbs {
    fn add(&mut self, unit: Unit, class: Priority) {
        self.0.add(slot_of(unit), class);
    }

    fn remove(&mut self, port: PortId) {
        let first = port.index() * UNITS_MAX;
        (first..first + UNITS_MAX).for_each(|slot| self.0.remove(slot));
    }

    fn leave(&mut self, unit: Unit) {
        self.0.remove(slot_of(unit));
    }

    fn set_class(&mut self, port: PortId, class: Priority) {
        let first = port.index() * UNITS_MAX;
        // The output queue of the port keeps its class until the port is removed.
        (first..first + QUEUES_MAX).for_each(|slot| self.0.set_class(slot, class));
    }

    #[inline]
    fn begin(&mut self) {
        self.0.begin();
    }

    #[inline]
    fn next(&mut self) -> Option<(Unit, bool)> {
        let candidate = self.0.next_look()?;
        Some((unit_of(candidate.slot), candidate.ends_round))
    }

    #[inline]
    fn ran(&mut self, unit: Unit) {
        self.0.ran(slot_of(unit));
    }

    #[inline]
    fn hold(&mut self, unit: Unit) {
        self.0.hold(slot_of(unit));
    }

    fn release(&mut self, most: usize, has_tokens: &dyn Fn(PortId) -> bool) {
        self.0.release(most, |slot| has_tokens(unit_of(slot).port));
    }

    fn next_held(&mut self) -> Option<Unit> {
        self.0.next_waiting().map(unit_of)
    }

    fn glance(&mut self) -> Option<Unit> {
        self.0.next_glance().map(unit_of)
    }

    fn held(&self) -> usize {
        self.0.waiting()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn looks_max(&self) -> usize {
        usize::MAX
    }
}
