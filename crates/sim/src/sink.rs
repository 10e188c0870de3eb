//! Sinks: a VM that receives, at most so fast.

/// How fast a VM empties its ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinkSpec {
    /// Frames per second; `None`: at once.
    pub frames_per_second: Option<u64>,
}

/// What a VM received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkStats {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames whose sequence number was not above the last one of their sender.
    pub reordered: u64,
}
