//! Settings and counters of sinks, which are VMs that receive at a limited rate.

/// Rate at which a VM empties its ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinkSpec {
    /// Maximum number of frames per second that the VM receives. `None` if the VM receives all
    /// frames immediately.
    pub frames_per_second: Option<u64>,
}

/// Counters of a receiving VM (sink).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkStats {
    pub frames: u64,
    pub bytes: u64,
    /// Number of frames with a sequence number that is not above the sequence number of the
    /// sender's previous frame.
    pub reordered: u64,
}
