//! Settings of a Linux switch.

/// Qdisc below a queue's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// A FIFO with tail drop, as in a hardware switch.
    Fifo {
        /// Maximum number of frames in the queue.
        frames: u32,
    },
    /// The qdisc `fq_codel`, which shares the queue between flows and drops or marks frames early.
    /// It requires the kernel module `sch_fq_codel`.
    FqCodel,
}

/// Settings of a Linux switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Queues of a port, including the shared one: 2 to 16.
    pub queues: u8,
    /// Qdisc below a queue's class.
    pub leaf: Leaf,
    /// Bytes per unit of weight that a queue may send in its turn, when queues share spare
    /// bandwidth. Shares are exact only if the smallest weight times the quantum is at least the
    /// largest frame. With segmentation in the NIC, a frame has up to 64 KiB. Guarantees do not
    /// depend on the quantum.
    pub quantum: u32,
}

impl Default for Settings {
    /// Returns settings with eight queues of 500 frames, as in QShare. Frames are Ethernet frames
    /// of 1,500 bytes.
    fn default() -> Self {
        Self { queues: 8, leaf: Leaf::Fifo { frames: 500 }, quantum: 1_600 }
    }
}
