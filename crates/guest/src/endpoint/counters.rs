//! What an endpoint has moved.

use serde::Serialize;

/// One NIC's counters since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NicReport {
    /// Namespace and interface.
    pub name: String,
    /// Whether the switch is there.
    pub attached: bool,
    /// Times it came back after going away.
    pub reconnects: u64,
    /// Frames from the namespace to the switch.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Those of them to be segmented later (TSO).
    pub tx_tso_frames: u64,
    /// Times the ring was full with a frame waiting in the TAP.
    pub tx_ring_full: u64,
    /// Frames made available again after the switch came back.
    pub tx_resubmitted: u64,
    /// Frames from the switch to the namespace.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Those of them to be segmented later (TSO).
    pub rx_tso_frames: u64,
    /// Frames the TAP refused.
    pub rx_refused: u64,
    /// Frames with ring entries that made no sense.
    pub rx_bad: u64,
    /// Features in force.
    pub features: String,
}

/// All NICs at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EndpointReport {
    /// Seconds since the start.
    pub at_secs: f64,
    /// Times the loop went to sleep.
    pub sleeps: u64,
    /// The NICs.
    pub nics: Vec<NicReport>,
}
