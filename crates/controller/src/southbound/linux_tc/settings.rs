//! Defines the settings of a Linux switch.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of queues of each port, including the shared queue (2 to 16).
    pub queues: u8,
    /// Maximum number of frames that wait in each of a queue's two FIFOs.
    pub frames: u32,
    /// HTB quantum of a queue with weight 1, in bytes. A queue with weight w has w times the
    /// quantum of a queue with weight 1. The division of spare bandwidth is exact only if even the
    /// smallest quantum has room for the largest frame. With segmentation offload, a frame has up
    /// to 64 KiB. Guaranteed rates do not depend on the quantum.
    pub quantum: u32,
}

impl Default for Settings {
    /// Returns settings with eight queues of 500 frames, as in QShare. The default quantum fits
    /// Ethernet frames of 1,500 bytes.
    fn default() -> Self {
        Self { queues: 8, frames: 500, quantum: 1_600 }
    }
}
