//! Scheduling: which queue pair runs the next batch.
//!
//! A discipline selects the next queue pair to examine. `round-robin` is the baseline and
//! corresponds to the polling of OVS-DPDK; `hbs` orders by class. A gate before both
//! (`worker/meter`) decides whether a port has cycles left. The discipline only learns the result.

mod hbs;
mod port_qos;
mod round_robin;

pub use hbs::Hbs;
pub use penstock_qos::hbs::Readiness;
pub use port_qos::{IngressPolicy, PortQos};
pub use round_robin::RoundRobin;

use penstock_units::{PortId, Priority, QueueId};

/// A queue pair that the worker polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub port: PortId,
    pub queue: QueueId,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleKind {
    /// Every queue pair runs one batch in turn.
    #[default]
    RoundRobin,
    /// Classes have strict priority; queue pairs of a class take turns (C2QoS §IV-B).
    Hbs,
}

impl ScheduleKind {
    /// Name in configuration and statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Hbs => "hbs",
        }
    }
}

/// A scheduling discipline.
///
/// # Order of calls
/// A decision is one `begin`, then `next` until a unit runs or all units were examined. After a
/// unit ran the worker calls `ran`. If the unit's port has no cycles left, the worker calls `hold`;
/// the unit then does not take part until `release`.
pub trait Schedule: Send {
    /// Adds a queue pair. Must not allocate while the number of units is within the announced
    /// capacity.
    fn add(&mut self, unit: Unit, class: Priority);
    /// Removes all queue pairs of a port.
    fn remove(&mut self, port: PortId);
    /// Removes one queue pair temporarily. The worker may add the pair again.
    fn leave(&mut self, unit: Unit);
    /// Changes the class of a port's queue pairs.
    fn set_class(&mut self, _port: PortId, _class: Priority) {}
    /// Begins a decision.
    fn begin(&mut self) {}
    /// The next unit to examine, or `None` if all units were examined. The flag says whether the
    /// worker must notify the peers of earlier batches before this decision ends.
    fn next(&mut self) -> Option<(Unit, bool)>;
    /// Records that the unit ran a batch.
    fn ran(&mut self, _unit: Unit) {}
    /// Records that the unit's port has no cycles left. The discipline may skip the unit until the
    /// next `release`.
    fn hold(&mut self, _unit: Unit) {}
    /// Checks at most `most` of the held units with `has_tokens`. If a unit's port has cycles
    /// again, the unit takes part again.
    fn release(&mut self, _most: usize, _has_tokens: &dyn Fn(PortId) -> bool) {}
    /// A different held unit at each call. If a discipline holds no units, it returns any unit.
    fn next_held(&mut self) -> Option<Unit>;
    /// A different unit at each call, to be examined outside any decision. Only disciplines that
    /// may leave units out of decisions for long need this function.
    fn glance(&mut self) -> Option<Unit> {
        None
    }
    /// Number of held units.
    fn held(&self) -> usize {
        0
    }
    /// Number of units, including held ones.
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Maximum number of calls of `next` in a decision.
    fn looks_max(&self) -> usize {
        self.len()
    }
}

/// The discipline that a worker was started with. It is an enum and not `dyn`, because the worker
/// calls it several times per batch and an indirect call may be mispredicted.
#[derive(Debug)]
pub enum Discipline {
    RoundRobin(RoundRobin),
    Hbs(Hbs),
}

impl Discipline {
    /// The discipline of a kind, with room for `capacity` units.
    #[must_use]
    pub fn new(kind: ScheduleKind, readiness: Readiness, capacity: usize) -> Self {
        match kind {
            ScheduleKind::RoundRobin => Self::RoundRobin(RoundRobin::with_capacity(capacity)),
            ScheduleKind::Hbs => Self::Hbs(Hbs::with_capacity(capacity, readiness)),
        }
    }
}

/// Implements [`Schedule`] by forwarding each call to the variant.
macro_rules! forward {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*
     $(const $(#[$const_attribute:meta])* fn $const_name:ident() -> $const_result:ty;)*) => {
        impl Schedule for Discipline {
            $($(#[$attribute])*
            fn $name(&mut self, $($argument: $kind),*) $(-> $result)? {
                match self {
                    Self::RoundRobin(inner) => inner.$name($($argument),*),
                    Self::Hbs(inner) => inner.$name($($argument),*),
                }
            })*
            $($(#[$const_attribute])*
            fn $const_name(&self) -> $const_result {
                match self {
                    Self::RoundRobin(inner) => inner.$const_name(),
                    Self::Hbs(inner) => inner.$const_name(),
                }
            })*
        }
    };
}

forward! {
    fn add(unit: Unit, class: Priority);
    fn remove(port: PortId);
    fn leave(unit: Unit);
    fn set_class(port: PortId, class: Priority);
    #[inline]
    fn begin();
    #[inline]
    fn next() -> Option<(Unit, bool)>;
    #[inline]
    fn ran(unit: Unit);
    #[inline]
    fn hold(unit: Unit);
    fn release(most: usize, has_tokens: &dyn Fn(PortId) -> bool);
    fn next_held() -> Option<Unit>;
    fn glance() -> Option<Unit>;
    const #[inline] fn held() -> usize;
    const #[inline] fn len() -> usize;
    const #[inline] fn looks_max() -> usize;
}
