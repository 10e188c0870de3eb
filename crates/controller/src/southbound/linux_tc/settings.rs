//! What can be chosen about a Linux switch.

/// What is below a queue's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// First come, first served; drops at the tail, as a switch in hardware does.
    Fifo {
        /// The most frames that wait.
        frames: u32,
    },
    /// `fq_codel`: the flows of one queue share it, and it drops or marks early. Needs the kernel's
    /// module `sch_fq_codel`.
    FqCodel,
}

/// What can be chosen about a Linux switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Queues of a port, the shared one included: 2 to 16.
    pub queues: u8,
    /// What is below a queue's class.
    pub leaf: Leaf,
    /// Bytes that a queue may send in its turn, for each unit of its weight, of what others leave.
    /// Shares of that are exact only where the least weight times this is no smaller than the
    /// largest frame, and where segments are left to be cut by the NIC a frame is up to 64 KiB.
    /// Guarantees do not depend on it.
    pub quantum: u32,
}

impl Default for Settings {
    /// Eight queues as in QShare, of 500 frames; frames of an Ethernet of 1,500 bytes.
    fn default() -> Self {
        Self { queues: 8, leaf: Leaf::Fifo { frames: 500 }, quantum: 1_600 }
    }
}
