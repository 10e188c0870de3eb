//! Sinks: VMs that receive at a limited rate.

/// Rate at which a VM empties its ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinkSpec {
    /// Frames per second; `None` receives at once.
    pub frames_per_second: Option<u64>,
}

/// Counters of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkStats {
    pub frames: u64,
    pub bytes: u64,
    /// Frames whose sequence number was not higher than their sender's previous one.
    pub reordered: u64,
}
