//! What the classifier remembers of a port between batches: its slow-path meter and its filter for
//! strangers.
//!
//! **Source.** Generic cell rate algorithm (ITU-T I.371) for the meter; datapath rules 22, 32.
//! **Quantities.** The meter is one number: the time at which the bucket will be full again. The
//! filter is one cache line, 512 bits, two for each flow; it is wiped after [`FLOWS_BETWEEN_WIPES`]
//! flows. **Rule.** A flow is worth a cache entry the second time it is seen. A port with more
//! flows than the filter holds would never see one twice: so one stranger in [`SAMPLE`] passes too,
//! and the bits a flow has change at each wipe, lest the same flows lose every time.

use super::policy::SlowPathLimit;

/// Flows noted before the filter starts afresh: 512 bits are then about 23 % full.
const FLOWS_BETWEEN_WIPES: u16 = 67;

/// One stranger in so many passes for an acquaintance, while the port has room in the cache.
const SAMPLE: u16 = 8;
/// One in so many when it has not.
const SAMPLE_FULL: u16 = 64;

/// See the module's text.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct PortState {
    seen: [u64; 8],
    flows: u16,
    wipes: u32,
    /// When the slow-path bucket will be full again, in nanoseconds.
    full_at_ns: u64,
}

impl PortState {
    /// Takes one frame's worth from the slow-path bucket.
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

    /// Whether a flow with this hash was seen before, or is taken for one that was; from now on it
    /// was.
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
    use super::super::key::HashSeed;
    use super::*;

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
    fn a_flow_is_a_stranger_once_and_many_flows_are_sampled() {
        let seed = HashSeed::new(3);
        let mut p = PortState::default();
        assert!(!p.seen_before(seed.hash_word(1), false));
        assert!(p.seen_before(seed.hash_word(1), false));
        let mut p = PortState::default();
        let passed = (0..100_000).filter(|&n| p.seen_before(seed.hash_word(n), false)).count();
        assert!((10_000..25_000).contains(&passed), "{passed}");
    }
}
