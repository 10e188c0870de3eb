//! Scheduling reads each port's entitlement and latency class from the snapshot.

use penstock_qos::cost_model::BatchPrice;
use penstock_units::{Cycles, CyclesPerSecond, Priority, Weight};

/// Kind of limit on the frames that a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IngressPolicy {
    /// The ingress policy sets no limit, and the port gets its turns from the scheduler.
    #[default]
    None,
    /// The port may use at most the cycles of its entitlement (C2QoS §IV-A).
    CyclesStrict,
    /// The port may use its entitlement plus a weighted share of spare cycles (C2QoS §IV-A,
    /// MIN-MAX).
    CyclesMinmax,
    /// The port's bits per second are limited, and frames above the rate are dropped (RFC 2697, RFC
    /// 2698).
    Bps,
    /// The port's frames per second are limited, and frames above the rate are dropped.
    Pps,
}

impl IngressPolicy {
    /// Returns the ingress policy's name in configuration and statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::CyclesStrict => "cycles-strict",
            Self::CyclesMinmax => "cycles-minmax",
            Self::Bps => "bps",
            Self::Pps => "pps",
        }
    }

    /// Whether a port with this ingress policy needs cycles in its bucket before the port may send
    /// a batch.
    #[must_use]
    pub const fn is_metered(self) -> bool {
        matches!(self, Self::CyclesStrict | Self::CyclesMinmax)
    }
}

/// QoS parameters of a port for its worker's scheduling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortQos {
    pub ingress: IngressPolicy,
    /// Cycles per second that the port purchased. The metered policies guarantee the purchased
    /// cycles.
    pub entitlement: CyclesPerSecond,
    /// The port's weight when spare cycles are divided.
    pub weight: Weight,
    /// The port's latency class.
    pub priority: Priority,
    /// Depth of the port's bucket in cycles. `None` means [`penstock_qos::c2tb::default_depth`].
    pub depth: Option<Cycles>,
    /// Cost that the cost model expects for the port's batches.
    pub price: BatchPrice,
}
