//! What a port bought and in which class it runs: the part of the snapshot that scheduling reads.

use penstock_qos::cost_model::BatchPrice;
use penstock_units::{Cycles, CyclesPerSecond, Priority, Weight};

/// What bounds the frames a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IngressPolicy {
    /// Nothing but its turn.
    #[default]
    None,
    /// Its cycles: no more than the entitlement (C2QoS §IV-A).
    CyclesStrict,
    /// Its cycles: the entitlement, and by weight what others leave (C2QoS §IV-A, MIN-MAX).
    CyclesMinmax,
    /// Bits per second: frames above are dropped (RFC 2697, RFC 2698).
    Bps,
    /// Frames per second: frames above are dropped.
    Pps,
}

impl IngressPolicy {
    /// The name in configuration and statistics.
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

/// A port's share of the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortQos {
    /// What bounds it.
    pub ingress: IngressPolicy,
    /// Cycles per second it bought; what metered policies guarantee.
    pub entitlement: CyclesPerSecond,
    /// Its part of what is left over.
    pub weight: Weight,
    /// Its latency class.
    pub priority: Priority,
    /// Most cycles its bucket keeps; `None`: [`penstock_qos::c2tb::default_depth`].
    pub depth: Option<Cycles>,
    /// What its batches should cost, by the cost model.
    pub price: BatchPrice,
}
