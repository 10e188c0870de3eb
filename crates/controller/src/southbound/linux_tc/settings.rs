//! Defines the settings of a Linux switch.

/// Kind of qdisc below the HTB class of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// A FIFO for TCP's pure acknowledgements and a FIFO for all other frames, which take turns.
    /// Acknowledgements of a tenant do not wait behind its data, so TCP keeps the queue's rate in
    /// both directions at once. The FIFOs are below a second HTB, so no other module is needed.
    TwoFifos {
        /// Maximum number of frames that wait in each of the two FIFOs.
        frames: u32,
    },
    /// FIFO with tail drop, as in a hardware switch.
    Fifo {
        /// Maximum number of frames that wait in the queue.
        frames: u32,
    },
    /// The qdisc `fq_codel`, which shares the queue between flows and drops or marks frames early.
    /// `fq_codel` requires the kernel module `sch_fq_codel`.
    FqCodel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of queues of each port, including the shared queue (2 to 16).
    pub queues: u8,
    /// Qdisc below the HTB class of each queue.
    pub leaf: Leaf,
    /// HTB quantum of a queue with weight 1, in bytes. A queue with weight w has w times the
    /// quantum of a queue with weight 1. The division of spare bandwidth is exact only if even the
    /// smallest quantum has room for the largest frame. With segmentation offload, a frame has up
    /// to 64 KiB. Guaranteed rates do not depend on the quantum.
    pub quantum: u32,
}

impl Default for Settings {
    /// Returns settings with eight queues of 500 frames, as in QShare, in which acknowledgements do
    /// not wait behind data. The default quantum fits Ethernet frames of 1,500 bytes.
    fn default() -> Self {
        Self { queues: 8, leaf: Leaf::TwoFifos { frames: 500 }, quantum: 1_600 }
    }
}
