//! State that the classifier keeps for a port between batches: the port's slow-path meter and its
//! filter for new flows.
//!
//! # Source
//! The slow-path meter is the generic cell rate algorithm (ITU-T I.371). The numbered datapath
//! rules 22 and 32 (`docs/internals/datapath-rules.md`) require the slow-path meter and the filter
//! for new flows.
//!
//! # Quantities
//! The slow-path meter is one number: the time at which the meter's bucket will be full again. The
//! filter for new flows is one cache line of 512 bits, and each flow sets two bits. The filter is
//! cleared after [`FLOWS_BETWEEN_WIPES`] flows.
//!
//! # Approach
//! A flow gets a cache entry with its second frame. If a port has too many flows for the filter,
//! the filter is cleared before a flow's second frame comes. Because the filter may be cleared too
//! early, one new flow in [`SAMPLE`] gets a cache entry at once. A flow's bits change each time the
//! filter is cleared, so that the same flows do not collide every time.

use crate::snapshot::SlowPathLimit;

/// Number of flows that the filter records before it is cleared. After 67 flows, about 23 % of the
/// filter's 512 bits are set.
const FLOWS_BETWEEN_WIPES: u16 = 67;

/// One new flow in 8 counts as known while the port has room in the cache.
const SAMPLE: u16 = 8;
/// One new flow in 64 counts as known if the port has no room in the cache.
const SAMPLE_FULL: u16 = 64;

/// The slow-path meter and the filter for new flows of one port.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct PortState {
    seen: [u64; 8],
    flows: u16,
    wipes: u32,
    /// Time in nanoseconds at which the slow-path bucket will be full again.
    full_at_ns: u64,
}

impl PortState {
    /// Takes one frame's token from the slow-path bucket. Returns false if the slow-path bucket is
    /// empty.
    #[inline]
    pub(super) fn slow_path(&mut self, limit: SlowPathLimit, now_ns: u64) -> bool {
        if limit.per_second == 0 {
            return false;
        }
        let step = 1_000_000_000 / u64::from(limit.per_second);
        if step == 0 {
            return true;
        }
        let depth = step * u64::from(limit.burst.max(1));
        let full_at = self.full_at_ns.max(now_ns).saturating_add(step);
        let fits = full_at - now_ns <= depth;
        if fits {
            self.full_at_ns = full_at;
        }
        fits
    }

    /// Whether the filter has recorded a flow with `hash` before, or the flow counts as known by
    /// sampling. Records the flow in the filter.
    #[inline]
    pub(super) fn seen_before(&mut self, hash: u64, full: bool) -> bool {
        let own = hash.rotate_left(self.wipes);
        let bit = |shift: u32| ((own >> shift) & 511) as usize;
        let (a, b) = (bit(16), bit(32));
        let before = self.seen[a / 64] >> (a % 64) & self.seen[b / 64] >> (b % 64) & 1 != 0;
        if before {
            return true;
        }
        if self.flows >= FLOWS_BETWEEN_WIPES {
            self.seen = [0; 8];
            self.flows = 0;
            self.wipes = (self.wipes + 11) % 64;
        }
        self.flows += 1;
        self.seen[a / 64] |= 1 << (a % 64);
        self.seen[b / 64] |= 1 << (b % 64);
        self.flows.is_multiple_of(if full { SAMPLE_FULL } else { SAMPLE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::key::HashSeed;

    #[test]
    fn the_meter_gives_the_burst_then_the_rate() {
        let limit = SlowPathLimit { per_second: 100, burst: 10 };
        let mut p = PortState::default();
        let took = |p: &mut PortState, now| (0..1000).filter(|_| p.slow_path(limit, now)).count();
        assert_eq!(took(&mut p, 5), 10);
        assert_eq!(took(&mut p, 5 + 50_000_000), 5);
        assert_eq!(took(&mut p, u64::MAX / 2), 10);
        let none = SlowPathLimit { per_second: 0, burst: 10 };
        assert!(!PortState::default().slow_path(none, 0));
        let all = SlowPathLimit::UNLIMITED;
        assert!((0..100_000).all(|_| p.slow_path(all, u64::MAX / 2 + 50)));
    }

    #[test]
    fn a_flow_is_new_once_and_many_flows_are_sampled() {
        let seed = HashSeed::new(3);
        let mut p = PortState::default();
        assert!(!p.seen_before(seed.hash_word(1), false));
        assert!(p.seen_before(seed.hash_word(1), false));
        let mut p = PortState::default();
        let passed = (0..100_000).filter(|&n| p.seen_before(seed.hash_word(n), false)).count();
        assert!((10_000..25_000).contains(&passed), "{passed}");
    }
}
