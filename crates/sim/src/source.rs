//! Sources: VMs that send.

use penstock_units::{MacAddr, Nanos};

/// Traffic that a VM sends.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// Destination address.
    pub target: MacAddr,
    /// Frame sizes in bytes without FCS, and their weights.
    pub sizes: Vec<(usize, u32)>,
    pub frames_per_second: u64,
    /// Number of flows. Frames use the flows in turn.
    pub flows: u16,
    pub from: Nanos,
    pub until: Nanos,
    /// Frames lost before they reach the ring, in parts per million.
    pub loss_ppm: u32,
}

/// Counters of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// Frames generated.
    pub made: u64,
    /// Frames lost before they reached the ring.
    pub lost: u64,
    /// Frames for which the ring had no room.
    pub refused: u64,
    /// Frames that entered the ring. The switch may have received them.
    pub sent: u64,
}

impl SourceSpec {
    /// The frame size for a `draw` below the sum of the weights.
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

    /// Time at which frame number `n` is sent. Frames are evenly spaced, without an accumulating
    /// error.
    pub(crate) fn due(&self, n: u64) -> Nanos {
        let rate = u128::from(self.frames_per_second.max(1));
        let after = u128::from(n) * 1_000_000_000 / rate;
        Nanos(self.from.0.saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}
