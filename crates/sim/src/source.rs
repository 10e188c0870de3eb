//! Settings and counters of the traffic that simulated VMs send.

use penstock_units::{MacAddr, Nanos};

/// Traffic that a VM sends: destination, frame sizes, rate and time.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// MAC address of the traffic's destination.
    pub target: MacAddr,
    /// Frame sizes in bytes without FCS, and their weights.
    pub sizes: Vec<(usize, u32)>,
    pub frames_per_second: u64,
    /// Number of flows in the traffic. A traffic source sends one frame of each flow in turn (round
    /// robin).
    pub flows: u16,
    pub from: Nanos,
    pub until: Nanos,
    /// Probability that a frame is lost before it reaches the ring, in parts per million.
    pub loss_ppm: u32,
}

/// Counters of the traffic that a VM sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// Number of frames that the VM generated.
    pub made: u64,
    /// Number of frames that were lost before they reached the ring.
    pub lost: u64,
    /// Number of frames for which the ring had no room.
    pub refused: u64,
    /// Number of frames that entered the ring.
    pub sent: u64,
}

impl SourceSpec {
    /// Returns the frame size (bytes) that belongs to the random number `draw`, which is below the
    /// sum of the weights.
    #[must_use]
    pub(crate) fn size(&self, mut draw: u64) -> usize {
        for &(size, weight) in &self.sizes {
            if draw < u64::from(weight) {
                return size;
            }
            draw -= u64::from(weight);
        }
        60
    }

    pub(crate) fn weights(&self) -> u64 {
        self.sizes.iter().map(|s| u64::from(s.1)).sum()
    }

    /// Returns the time at which the source sends its frame number `n`. The frames of a source are
    /// evenly spaced, and rounding errors do not accumulate.
    pub(crate) fn due(&self, n: u64) -> Nanos {
        let rate = u128::from(self.frames_per_second.max(1));
        let after = u128::from(n) * 1_000_000_000 / rate;
        Nanos(self.from.0.saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}
