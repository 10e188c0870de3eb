//! Scheduling: whose batch is next.
//!
//! The seam for the batch scheduler (HBS): a discipline names the next queue pair to poll and is
//! told what the batch cost. `round-robin` is the baseline that OVS-DPDK's polling is too.

mod port_qos;
mod round_robin;

pub use port_qos::{IngressPolicy, PortQos};
pub use round_robin::RoundRobin;

use penstock_units::{Cycles, PortId, QueueId};

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
}

impl ScheduleKind {
    /// The name in configuration and statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
        }
    }
}

/// A scheduling discipline.
pub trait Schedule: Send {
    /// A queue pair joins. Must not allocate once `capacity` units were announced.
    fn add(&mut self, unit: Unit);
    /// All queue pairs of a port leave.
    fn remove(&mut self, port: PortId);
    /// One queue pair leaves, for a while: it may be added again.
    fn leave(&mut self, unit: Unit);
    /// The next unit to poll and whether it ends a sweep over all; `None` if there is none.
    fn next(&mut self) -> Option<(Unit, bool)>;
    /// Units that take part.
    fn len(&self) -> usize;
    /// Whether no unit takes part.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What the batch of `unit` cost, after the fact.
    fn charge(&mut self, unit: Unit, cost: Cycles);
}

/// The discipline of a kind, with room for `capacity` units.
#[must_use]
pub fn build(kind: ScheduleKind, capacity: usize) -> Box<dyn Schedule> {
    match kind {
        ScheduleKind::RoundRobin => Box::new(RoundRobin::with_capacity(capacity)),
    }
}
