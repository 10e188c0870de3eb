//! Counters of an endpoint.

use serde::Serialize;

/// Counters of one NIC since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NicReport {
    /// Namespace and interface.
    pub name: String,
    /// Whether the switch is connected.
    pub attached: bool,
    /// How often the switch came back after going away.
    pub reconnects: u64,
    /// Frames from the namespace to the switch.
    pub tx_frames: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
    /// Number of these frames that will be segmented later (TSO).
    pub tx_tso_frames: u64,
    /// How often the ring was full while a frame waited in the TAP.
    pub tx_ring_full: u64,
    /// Frames that were resubmitted after the switch came back.
    pub tx_resubmitted: u64,
    /// Frames from the switch to the namespace.
    pub rx_frames: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Number of these frames that will be segmented later (TSO).
    pub rx_tso_frames: u64,
    /// Frames that the TAP refused.
    pub rx_refused: u64,
    /// Frames with invalid ring entries.
    pub rx_bad: u64,
    /// Negotiated features.
    pub features: String,
}

/// Counters of all NICs at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EndpointReport {
    /// Seconds since the start.
    pub at_secs: f64,
    /// How often the loop went to sleep.
    pub sleeps: u64,
    pub nics: Vec<NicReport>,
}
