//! The compared systems, which limit the rates of flows.

use penstock_fabric::rate_alloc::{Parts, RateSettings};
use penstock_units::{BitsPerSecond, Nanos};

use super::control::QueueControl;

/// Method by which a simulated network divides its capacity among tenants.
#[derive(Debug)]
pub enum System {
    /// All flows use TCP without rate limits, so all flows on a link have equal shares.
    PlainTcp,
    /// Each VM is limited to its guarantee in each direction.
    StaticReservation,
    /// ElasticSwitch limits pairs of VMs. VMs divide their guarantees among their pairs, and pairs
    /// increase their rates above the guarantees. All pairs of VMs share one queue.
    ElasticSwitch(PairLimits),
    /// Trinity has the same limits as [`Self::ElasticSwitch`], but two strict priorities:
    /// guaranteed traffic has the higher priority.
    Trinity(PairLimits),
    /// QShare gives some tenants dedicated queues. A controller sets queues, weights and limits.
    QShare(QueueControl),
}

/// Parameters of the limits on pairs of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLimits {
    /// Parameters for changes of the pairs' rates.
    pub rates: RateSettings,
    /// Time between two divisions of a VM's guarantee.
    pub partition: Nanos,
    /// Additional demand that a VM assumes for a pair, in parts per million of the rate that the
    /// pair sent.
    pub slack: Parts,
    /// Time for which a pair without flows keeps its limit.
    pub forget: Nanos,
}
