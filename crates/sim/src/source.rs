//! Sources: a VM that sends.

use penstock_units::{MacAddr, Nanos};

/// What a VM sends.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// To whom.
    pub target: MacAddr,
    /// Bytes of a frame without FCS, and how often each comes, as weights.
    pub sizes: Vec<(usize, u32)>,
    /// Frames per second while it sends.
    pub frames_per_second: u64,
    /// Flows it goes round.
    pub flows: u16,
    /// When it starts.
    pub from: Nanos,
    /// When it stops.
    pub until: Nanos,
    /// Frames lost before they reach the ring, in parts per million.
    pub loss_ppm: u32,
}

/// What became of a source's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// Frames it made.
    pub made: u64,
    /// Frames lost on the way to the ring.
    pub lost: u64,
    /// Frames its ring had no room for.
    pub refused: u64,
    /// Frames in the ring or taken by the switch.
    pub sent: u64,
}

impl SourceSpec {
    /// The size of the frame for a `draw` below the sum of the weights.
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

    /// When frame number `n` is due: spaced evenly, without an error that adds up.
    pub(crate) fn due(&self, n: u64) -> Nanos {
        let rate = u128::from(self.frames_per_second.max(1));
        let after = u128::from(n) * 1_000_000_000 / rate;
        Nanos(self.from.0.saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}
