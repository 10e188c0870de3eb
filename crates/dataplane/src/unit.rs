//! A worker schedules units: the queue pairs and the output queues of its ports.

use penstock_units::{PortId, QueueId};

/// Maximum number of queue pairs of a port.
pub const QUEUES_MAX: usize = 8;
/// Maximum number of units of a port: the port's queue pairs and its output queue.
pub const UNITS_MAX: usize = QUEUES_MAX + 1;
/// Queue number of the unit that sends from a port's output queue.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
pub const OUTPUT: QueueId = QueueId(QUEUES_MAX as u16);

/// A unit of the schedule: a queue pair of a port, or a port's output queue ([`OUTPUT`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub port: PortId,
    pub queue: QueueId,
}
