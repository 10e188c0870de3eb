//! Settings of a Linux switch.

/// Qdisc below a queue's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// First in, first out, with tail drop, as in a hardware switch.
    Fifo {
        /// Most frames that wait.
        frames: u32,
    },
    /// `fq_codel`: flows share the queue, and it drops or marks early. Requires the kernel module
    /// `sch_fq_codel`.
    FqCodel,
}

/// Settings of a Linux switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Queues of a port, including the shared one: 2 to 16.
    pub queues: u8,
    /// Qdisc below a queue's class.
    pub leaf: Leaf,
    /// Bytes per unit of weight that a queue may send in its turn, from what others leave. Shares
    /// are exact only if the smallest weight times this is at least the largest frame. With
    /// segmentation in the NIC, a frame has up to 64 KiB. Guarantees do not depend on it.
    pub quantum: u32,
}

impl Default for Settings {
    /// Eight queues of 500 frames, as in QShare, for Ethernet frames of 1,500 bytes.
    fn default() -> Self {
        Self { queues: 8, leaf: Leaf::Fifo { frames: 500 }, quantum: 1_600 }
    }
}
