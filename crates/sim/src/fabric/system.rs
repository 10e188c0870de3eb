//! The compared systems, which limit the rates of flows.

use super::control::QueueControl;
use super::pair_limits::PairLimits;

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

impl System {
    /// Returns a copy of the system, or `None` if the system has a controller.
    pub(super) fn copied(&self) -> Option<Self> {
        Some(match self {
            Self::PlainTcp => Self::PlainTcp,
            Self::StaticReservation => Self::StaticReservation,
            Self::ElasticSwitch(limits) => Self::ElasticSwitch(*limits),
            Self::Trinity(limits) => Self::Trinity(*limits),
            Self::QShare(_) => return None,
        })
    }
}
