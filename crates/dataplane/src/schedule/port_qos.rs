//! The entitlement and the latency class of a port: the part of the snapshot that scheduling reads.

use penstock_qos::cost_model::BatchPrice;
use penstock_units::{Cycles, CyclesPerSecond, Priority, Weight};

/// The limit on the frames that a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IngressPolicy {
    /// There is no limit except the scheduler's turns.
    #[default]
    None,
    /// The port may use at most the cycles of its entitlement (C2QoS §IV-A).
    CyclesStrict,
    /// The port may use its entitlement plus a weighted share of spare cycles (C2QoS §IV-A,
    /// MIN-MAX).
    CyclesMinmax,
    /// Bits per second are limited; frames above the rate are dropped (RFC 2697, RFC 2698).
    Bps,
    /// Frames per second are limited; frames above the rate are dropped.
    Pps,
}

impl IngressPolicy {
    /// Name in configuration and statistics.
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

    /// Whether a batch needs cycles in the port's bucket.
    #[must_use]
    pub const fn is_metered(self) -> bool {
        matches!(self, Self::CyclesStrict | Self::CyclesMinmax)
    }
}

/// QoS parameters of a port on its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortQos {
    pub ingress: IngressPolicy,
    /// Cycles per second that the port purchased. The metered policies guarantee them.
    pub entitlement: CyclesPerSecond,
    /// Weight for the share of spare cycles.
    pub weight: Weight,
    /// Latency class.
    pub priority: Priority,
    /// Depth of the bucket in cycles; `None` means [`penstock_qos::c2tb::default_depth`].
    pub depth: Option<Cycles>,
    /// Expected cost of the port's batches according to the cost model.
    pub price: BatchPrice,
}
