//! Scheduling: whose batch is next.
//!
//! A discipline names the next queue pair to look at. `round-robin` is the baseline that
//! OVS-DPDK's polling is too; `hbs` orders by class. Whether a port has cycles left is the gate
//! before both (`worker/meter`), not the discipline's business: it only hears of it.

mod hbs;
mod port_qos;
mod round_robin;

pub use hbs::Hbs;
pub use penstock_qos::hbs::Readiness;
pub use port_qos::{IngressPolicy, PortQos};
pub use round_robin::RoundRobin;

use penstock_units::{PortId, Priority, QueueId};

/// A queue pair the worker polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The port.
    pub port: PortId,
    /// Its queue pair.
    pub queue: QueueId,
}

/// Which discipline a worker runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleKind {
    /// Every queue pair in turn, one batch each.
    #[default]
    RoundRobin,
    /// By class, strictly; within a class in turn (C2QoS §IV-B).
    Hbs,
}

impl ScheduleKind {
    /// The name in configuration and statistics.
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
/// A decision is one `begin`, then `next` until a unit runs or there is none left. After a unit
/// ran: `ran`; where its port has no cycles left: `hold`, until `release`.
pub trait Schedule: Send {
    /// A queue pair joins. Must not allocate once `capacity` units were announced.
    fn add(&mut self, unit: Unit, class: Priority);
    /// All queue pairs of a port leave.
    fn remove(&mut self, port: PortId);
    /// One queue pair leaves, for a while: it may be added again.
    fn leave(&mut self, unit: Unit);
    /// A port's queue pairs are of this class from now on.
    fn set_class(&mut self, _port: PortId, _class: Priority) {}
    /// A decision begins.
    fn begin(&mut self) {}
    /// The next unit to look at, and whether what was done for others is to be told to them
    /// before this decision's end; `None`: all were looked at.
    fn next(&mut self) -> Option<(Unit, bool)>;
    /// The unit ran a batch.
    fn ran(&mut self, _unit: Unit) {}
    /// The unit's port has no cycles left: it need not be looked at before the next `release`.
    fn hold(&mut self, _unit: Unit) {}
    /// Of those held, `most` are asked for; whose port has cycles again takes part again.
    fn release(&mut self, _most: usize, _has_tokens: &dyn Fn(PortId) -> bool) {}
    /// A unit of those held, another one each time; where none is put aside, of all.
    fn next_held(&mut self) -> Option<Unit>;
    /// A unit for a look outside any decision, another one each time; only where some may be left
    /// out of decisions for long.
    fn glance(&mut self) -> Option<Unit> {
        None
    }
    /// Units held.
    fn held(&self) -> usize {
        0
    }
    /// Units that take part, those held included.
    fn len(&self) -> usize;
    /// Whether no unit takes part.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Most calls of `next` in a decision.
    fn looks_max(&self) -> usize {
        self.len()
    }
}

/// The discipline a worker was started with. An enum and no `dyn`: what it says is needed several
/// times a batch, and mispredicts no call.
#[derive(Debug)]
pub enum Discipline {
    /// Each in turn.
    RoundRobin(RoundRobin),
    /// By class.
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

/// Hands each call to the variant.
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
