//! Defines the counters that an endpoint reports.

use serde::Serialize;

/// Counters of one NIC since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NicReport {
    /// Namespace and interface of the NIC.
    pub name: String,
    /// Whether the NIC is connected to the switch.
    pub attached: bool,
    /// Number of times that the NIC reconnected to the switch.
    pub reconnects: u64,
    /// Number of frames that the NIC passed from the namespace to the switch.
    pub tx_frames: u64,
    /// Number of bytes that the NIC passed from the namespace to the switch.
    pub tx_bytes: u64,
    /// Number of frames from the namespace to the switch that still need segmentation (TSO).
    pub tx_tso_frames: u64,
    /// Number of times that the ring was full while a frame waited in the TAP.
    pub tx_ring_full: u64,
    /// Number of frames that were sent again after a reconnection.
    pub tx_resubmitted: u64,
    /// Number of frames that the NIC passed from the switch to the namespace.
    pub rx_frames: u64,
    /// Number of bytes that the NIC passed from the switch to the namespace.
    pub rx_bytes: u64,
    /// Number of frames from the switch to the namespace that still need segmentation (TSO).
    pub rx_tso_frames: u64,
    /// Number of frames that the TAP did not accept, or for which the NIC's delay had no room.
    pub rx_refused: u64,
    /// Number of received frames with invalid ring entries.
    pub rx_bad: u64,
    /// Names of the features that the NIC and the switch negotiated.
    pub features: String,
}

impl NicReport {
    /// Counts a frame of `len` bytes that the TAP accepted (`written`) or refused.
    pub(crate) fn count_written(&mut self, written: bool, len: usize, tso: bool) {
        if !written {
            self.rx_refused += 1;
            return;
        }
        self.rx_frames += 1;
        self.rx_bytes += len as u64;
        self.rx_tso_frames += u64::from(tso);
    }
}

/// Counters of all NICs at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EndpointReport {
    /// Time of the counters, in seconds since the endpoint's start.
    pub at_secs: f64,
    /// Number of times that the endpoint's loop went to sleep.
    pub sleeps: u64,
    pub nics: Vec<NicReport>,
}
