//! Scheduling selects the queue pair that runs the next batch.
//!
//! A scheduling discipline selects the next queue pair to examine. The discipline `round-robin` is
//! the baseline and corresponds to the polling of OVS-DPDK. The discipline `hbs` orders queue pairs
//! by class. The module `worker/account` checks whether a port has cycles left, and the worker
//! tells the scheduling discipline if no cycles are left.

mod round_robin;

pub use penstock_qos::hbs::Readiness;
use round_robin::RoundRobin;

use penstock_qos::hbs::BatchScheduler;
use penstock_units::{PortId, Priority, QueueId};

use crate::unit::{QUEUES_MAX, UNITS_MAX, Unit};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleKind {
    /// Every queue pair runs one batch in turn, independent of its class.
    #[default]
    RoundRobin,
    /// Classes have strict priority, and queue pairs of a class take turns (C2QoS §IV-B).
    Hbs,
}

impl ScheduleKind {
    /// Returns the discipline's name in configuration and statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Hbs => "hbs",
        }
    }
}

/// The units (queue pairs and output queues) that a worker schedules, in the order of the worker's
/// discipline.
///
/// # Order of calls
/// For a scheduling decision, the worker calls [`Self::begin`] once, and then [`Self::next_unit`]
/// until a unit runs or all units were examined. After a unit ran a batch, the worker calls
/// [`Self::ran`]. If the port of a unit has no cycles left, the worker calls [`Self::hold`] for the
/// unit. A held unit takes no part in scheduling decisions until [`Self::release`].
///
/// No function of the schedule allocates memory while the number of units is within the capacity
/// given to [`Self::new`].
#[derive(Debug)]
pub struct Schedule(Discipline);

/// The discipline is an enum and not a `dyn` object. The worker calls the discipline several times
/// per batch, and an indirect call may be mispredicted.
#[derive(Debug)]
enum Discipline {
    RoundRobin(RoundRobin),
    /// The scheduler of the discipline `hbs`. [`slot_of`] gives the number of a unit in this
    /// scheduler.
    Hbs(BatchScheduler),
}
use Discipline::{Hbs, RoundRobin as InTurn};

#[inline]
const fn slot_of(unit: Unit) -> usize {
    unit.port.index() * UNITS_MAX + unit.queue.index()
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "each part of a slot number fits 16 bits")]
const fn unit_of(slot: usize) -> Unit {
    Unit { port: PortId((slot / UNITS_MAX) as u16), queue: QueueId((slot % UNITS_MAX) as u16) }
}

impl Schedule {
    /// Creates a schedule with room for `capacity` units. The schedule needs [`UNITS_MAX`] units
    /// for each port.
    #[must_use]
    pub fn new(kind: ScheduleKind, readiness: Readiness, capacity: usize) -> Self {
        Self(match kind {
            ScheduleKind::RoundRobin => InTurn(RoundRobin::with_capacity(capacity)),
            ScheduleKind::Hbs => Hbs(BatchScheduler::new(capacity, readiness)),
        })
    }

    /// Whether the discipline orders units by class.
    #[must_use]
    pub const fn orders_by_class(&self) -> bool {
        matches!(self.0, Hbs(_))
    }

    pub fn add(&mut self, unit: Unit, class: Priority) {
        match &mut self.0 {
            InTurn(units) => units.add(unit),
            Hbs(classes) => classes.add(slot_of(unit), class),
        }
    }

    pub fn remove(&mut self, port: PortId) {
        match &mut self.0 {
            InTurn(units) => units.remove(port),
            Hbs(classes) => {
                let first = port.index() * UNITS_MAX;
                (first..first + UNITS_MAX).for_each(|slot| classes.remove(slot));
            }
        }
    }

    /// Removes one unit from the schedule. Removes one unit from the schedule until the unit is
    /// added again.
    pub fn leave(&mut self, unit: Unit) {
        match &mut self.0 {
            InTurn(units) => units.leave(unit),
            Hbs(classes) => classes.remove(slot_of(unit)),
        }
    }

    /// Changes the class of a port's queue pairs. The class of the port's output queue changes only
    /// if the output queue is removed and added again.
    pub fn set_class(&mut self, port: PortId, class: Priority) {
        if let Hbs(classes) = &mut self.0 {
            let first = port.index() * UNITS_MAX;
            (first..first + QUEUES_MAX).for_each(|slot| classes.set_class(slot, class));
        }
    }

    /// Returns the class of a unit and whether the unit is not held. Returns `None` if the schedule
    /// ignores classes or does not contain the unit.
    #[cfg(test)]
    pub(crate) fn state(&self, unit: Unit) -> Option<(Priority, bool)> {
        match &self.0 {
            InTurn(_) => None,
            Hbs(classes) => classes.state(slot_of(unit)),
        }
    }

    /// Begins a scheduling decision.
    #[inline]
    pub fn begin(&mut self) {
        if let Hbs(classes) = &mut self.0 {
            classes.begin();
        }
    }

    /// Returns the next unit to examine, or `None` if all units were examined. The returned flag is
    /// true if the worker must notify the drivers of earlier batches before it examines the next
    /// unit.
    #[inline]
    pub fn next_unit(&mut self) -> Option<(Unit, bool)> {
        match &mut self.0 {
            InTurn(units) => units.next(),
            Hbs(classes) => {
                let candidate = classes.next_look()?;
                Some((unit_of(candidate.slot), candidate.ends_round))
            }
        }
    }

    /// Records that the unit ran a batch.
    #[inline]
    pub fn ran(&mut self, unit: Unit) {
        if let Hbs(classes) = &mut self.0 {
            classes.ran(slot_of(unit));
        }
    }

    /// Excludes a unit from scheduling, because the port of the unit has no cycles left. With the
    /// discipline `hbs`, the exclusion ends at the next [`Self::release`].
    #[inline]
    pub fn hold(&mut self, unit: Unit) {
        if let Hbs(classes) = &mut self.0 {
            classes.hold(slot_of(unit));
        }
    }

    /// Asks `has_tokens` about the ports of at most `most` held units of the schedule. A held unit
    /// takes part in scheduling again if `has_tokens` returns true for its port.
    pub fn release(&mut self, most: usize, has_tokens: &dyn Fn(PortId) -> bool) {
        if let Hbs(classes) = &mut self.0 {
            classes.release(most, |slot| has_tokens(unit_of(slot).port));
        }
    }

    /// Lets the held units of a port take part in scheduling again, because the port may run now.
    pub fn release_port(&mut self, port: PortId) {
        if let Hbs(classes) = &mut self.0 {
            let first = port.index() * UNITS_MAX;
            (first..first + UNITS_MAX).for_each(|slot| classes.release_slot(slot));
        }
    }

    /// Returns a held unit of the schedule, and a different held unit at each call. The discipline
    /// `round-robin` does not hold units, so it returns any unit.
    pub fn next_held(&mut self) -> Option<Unit> {
        match &mut self.0 {
            InTurn(units) => units.next().map(|(unit, _)| unit),
            Hbs(classes) => classes.next_waiting().map(unit_of),
        }
    }

    /// Returns a unit of the schedule for a check outside a scheduling decision, and a different
    /// unit at each call. The discipline `round-robin` returns `None`, because every unit gets a
    /// turn in each round.
    pub fn glance(&mut self) -> Option<Unit> {
        match &mut self.0 {
            InTurn(_) => None,
            Hbs(classes) => classes.next_glance().map(unit_of),
        }
    }

    /// Number of units that are excluded from scheduling because their ports have no cycles left.
    #[inline]
    #[must_use]
    pub fn held(&self) -> usize {
        match &self.0 {
            InTurn(_) => 0,
            Hbs(classes) => classes.waiting(),
        }
    }

    /// Number of units in the schedule, including units that are held for lack of cycles.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            InTurn(units) => units.len(),
            Hbs(classes) => classes.len(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Maximum number of calls of [`Self::next_unit`] in a scheduling decision.
    #[inline]
    #[must_use]
    pub fn looks_max(&self) -> usize {
        match &self.0 {
            InTurn(units) => units.len(),
            Hbs(_) => usize::MAX,
        }
    }
}
