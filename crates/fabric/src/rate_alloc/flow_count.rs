//! Estimates the number of active flows of a pair from a sketch.
//!
//! # Problem
//!
//! TCP shares a link by connection, so a pair with many connections needs a larger part of a
//! guarantee than a pair with one. A host cannot store the flows of each pair, because VMs choose
//! the number of flows.
//!
//! # Source
//!
//! Linear counting: Whang et al., "A linear-time probabilistic counting algorithm for database
//! applications" (ACM TODS 15(2), 1990).
//!
//! # Approach
//!
//! In each period, a pair has a sketch of 64 bits, in which each flow sets the bit that its hash
//! selects. If n flows select bits at random, about 64 * exp(-n / 64) bits remain 0. The
//! estimate solves this equation for n. A slow flow does not send in each period. The estimate
//! therefore uses all sketches of the present block of [`BLOCK`] periods and the block before.

/// Largest estimate. So a VM that opens many flows has at most 16 times the part of another pair of
/// its own tenant. Other tenants have their own guarantees.
pub const FLOWS_MAX: u32 = 16;
/// Periods of a block: one second. A flow with one frame in a second counts.
pub const BLOCK: u32 = 20;
/// Estimates for 0 and more bits that are 1. More bits mean [`FLOWS_MAX`]. A pair has at least one
/// flow.
const ESTIMATES: [u32; 14] = [1, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 15];

/// Sketches of a pair's flows in two blocks of periods.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowCount {
    block: u64,
    before: u64,
    /// Number of periods in `block`.
    periods: u32,
}

impl FlowCount {
    /// Adds the sketch of a period.
    pub(super) const fn add(&mut self, sketch: u64) {
        if self.periods == BLOCK {
            (self.before, self.block, self.periods) = (self.block, 0, 0);
        }
        self.block |= sketch;
        self.periods += 1;
    }

    /// Returns the estimated number of flows, from 1 to [`FLOWS_MAX`].
    pub(super) fn estimate(&self) -> u32 {
        let ones = (self.block | self.before).count_ones();
        let at = usize::try_from(ones).unwrap_or(usize::MAX);
        ESTIMATES.get(at).copied().unwrap_or(FLOWS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_ones(ones: u32) -> u32 {
        let mut count = FlowCount::default();
        (0..ones).for_each(|bit| count.add(1 << bit));
        count.estimate()
    }

    #[test]
    fn the_estimate_is_that_of_linear_counting() {
        for ones in 0..20 {
            let exact = -64.0 * (1.0 - f64::from(ones) / 64.0).ln();
            let near = exact.round().clamp(1.0, f64::from(FLOWS_MAX));
            assert!((f64::from(of_ones(ones)) - near).abs() < 0.1, "{ones} bits: {exact}");
        }
        let mut full = FlowCount::default();
        full.add(u64::MAX);
        assert_eq!(full.estimate(), FLOWS_MAX);
    }

    #[test]
    fn a_flow_counts_for_one_to_two_blocks() {
        for first in 0..BLOCK {
            let mut count = FlowCount::default();
            let period = |count: &mut FlowCount, more: u64| {
                count.add(1 | more);
                count.estimate()
            };
            (0..first).for_each(|_| assert_eq!(period(&mut count, 0), 1));
            assert_eq!(period(&mut count, 0b110), 3);
            let later = (1..3 * BLOCK).take_while(|_| period(&mut count, 0) == 3).count();
            let later = u32::try_from(later).unwrap();
            assert!((BLOCK..2 * BLOCK).contains(&later), "from {first}: {later}");
        }
    }
}
