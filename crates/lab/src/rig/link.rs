//! Settings of the connection between a benchmark's VMs and a switch.

/// Rings and frame contents of a benchmark's VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// Number of descriptors in each ring of a VM.
    pub ring_size: u16,
    /// Whether VMs use packed rings instead of split rings.
    pub packed: bool,
    /// Whether VMs write and verify every byte of their frames.
    pub touch: bool,
}

/// Whether the load generator of a benchmark waits for the switch after each burst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Rounds {
    /// The load generator sends bursts without waiting for the switch.
    #[default]
    Never,
    /// The load generator waits until the switch has taken all frames from the rings.
    UntilTaken,
    /// The load generator waits until all frames have arrived at VMs.
    UntilArrived,
}
