//! Code points (DSCP) that VMs wrote into the frames of their flows.
//!
//! # Problem
//!
//! Code points select queues in a fabric, so the sending host overwrites those of its VMs. A frame
//! has no other place for the six bits, and the receiving VM would see the fabric's code point.
//!
//! # Approach
//!
//! The sending host *announces* the VM's own code point of a flow to the receiving host, ahead of
//! the flow's frame ([`CodePoints::announces`]). The receiving host remembers it
//! ([`CodePoints::announced`]) and writes it into the flow's frames ([`CodePoints::code_point`]).
//! A flow without an announcement has the code point 0. So a flow with the code point 0 is
//! announced only if it had another one before.
//!
//! The caller numbers flows in the same way on all hosts. A VM often sends several code points to
//! one address, for example voice and its signalling, so the code point of a pair would be wrong
//! for most of its frames.
//!
//! - A flow is announced with its first frame, when its code point changes, and then once a second
//!   while it has frames. Other hosts forget it after 8 s.
//! - A VM sends an announcement every 4 ms on average, and 64 at once. A flow whose frames mix code
//!   points is announced at most once in 67 ms for each of them.
//! - Each VM has its own [`FLOWS_OF_VM`] places in each direction, in sets of [`WAYS`]. If a set is
//!   full, a new flow replaces the one with the oldest announcement. So a VM only displaces its own
//!   flows, or those to a VM that it may reach. A seeded hash selects the set, and compares flows.
//!
//! A place is one atomic number, so several threads may use it without a lock. It contains 36 bits
//! of the flow's hash, the code point, and the time of the announcement in ticks of 67 ms. These
//! times repeat after 78 hours. An entry of that age seems new for 8 s.
//!
//! # Cost
//!
//! A frame without an own code point, of a VM that announced none in the last 8 s, costs one
//! comparison. Other frames cost a hash and a search in one cache line. A VM takes 4.3 KiB.

use core::sync::atomic::{AtomicU64, Ordering};

use penstock_units::Nanos;

use super::PairKey;
use super::keys::mixed;

/// Flows of a VM in each direction whose code points a host remembers.
pub const FLOWS_OF_VM: usize = SETS * WAYS;
const SETS: usize = 32;
/// Flows of a set, which are in one cache line.
const WAYS: usize = 8;

/// Value of a place without a flow.
const FREE: u64 = 0;
/// Bits of a place for the time of the announcement.
const TIME_BITS: u32 = 22;
const TIME: u64 = (1 << TIME_BITS) - 1;
const CODE_POINT: u64 = 63;
/// Bits of a place for the flow's hash.
const FLOW: u64 = !(CODE_POINT << TIME_BITS | TIME);
/// Binary logarithm of a tick in ns: 67 ms.
const TICK_BITS: u32 = 26;
/// Ticks by which the clocks of two threads may differ.
const SKEW: u64 = 2;
/// Ticks between two announcements of a flow: 1 s.
const REFRESH: u64 = 15;
/// Smallest number of ticks between two announcements with different code points.
const CHANGE: u64 = 1;
/// Ticks after which an announcement is forgotten: 8 s.
const REMEMBERED: u64 = 120;
/// Mean time between two announcements of a VM.
const GAP: Nanos = Nanos::from_millis(4);
/// Time whose announcements a VM may send at once.
const BURST: Nanos = Nanos::from_millis(4 * 63);

/// Flows of a VM in one direction.
#[derive(Debug)]
#[repr(C, align(64))]
struct Flows {
    sets: [[AtomicU64; WAYS]; SETS],
    /// Time in ns until which a flow may be remembered.
    until: AtomicU64,
    /// Time in ns at which the VM's announcements keep to their mean rate.
    paid: AtomicU64,
}

/// Code points of the flows that the VMs of a host send and receive.
#[derive(Debug)]
pub struct CodePoints {
    seed: u64,
    sent: Box<[Flows]>,
    received: Box<[Flows]>,
}

impl CodePoints {
    pub(super) fn new(ports: usize, seed: u64) -> Self {
        let flows = || core::iter::repeat_with(Flows::new).take(ports).collect();
        Self { seed, sent: flows(), received: flows() }
    }

    fn hash(&self, pair: PairKey, flow: u64) -> u64 {
        mixed(mixed(pair.0 ^ self.seed) ^ flow)
    }

    /// Whether no host may remember a code point of the flows that the VM at `port` sends. Frames
    /// with the code point 0 then need no [`Self::announces`].
    #[inline]
    #[must_use]
    pub fn is_plain(&self, port: u16, now: Nanos) -> bool {
        !self.sent.get(usize::from(port)).is_some_and(|flows| flows.has_any(now))
    }

    /// Whether the host remembers a code point of the flows that the VM at `port` receives.
    #[inline]
    #[must_use]
    pub fn knows_any(&self, port: u16, now: Nanos) -> bool {
        self.received.get(usize::from(port)).is_some_and(|flows| flows.has_any(now))
    }

    /// Whether the host must announce the code point `dscp`, which a VM wrote into a frame of the
    /// flow `flow` of the pair `pair`. The caller must send the announcement.
    #[must_use]
    pub fn announces(&self, pair: PairKey, flow: u64, dscp: u8, now: Nanos) -> bool {
        let Some(flows) = self.sent.get(usize::from(pair.port())) else { return false };
        let hash = self.hash(pair, flow);
        let is_due = match flows.find(hash, now) {
            Some((own, age)) if own == dscp => age >= REFRESH,
            Some((_, age)) => age >= CHANGE,
            None => dscp != 0,
        };
        let announces = is_due && flows.pay(now);
        if announces {
            flows.put(hash, dscp, now);
        }
        announces
    }

    /// Remembers an announcement from the host of the pair's other VM.
    pub fn announced(&self, pair: PairKey, flow: u64, dscp: u8, now: Nanos) {
        if let Some(flows) = self.received.get(usize::from(pair.port())) {
            flows.put(self.hash(pair, flow), dscp, now);
        }
    }

    /// Returns the code point that the pair's other VM wrote into the frames of the flow; 0 if the
    /// host knows none.
    #[must_use]
    pub fn code_point(&self, pair: PairKey, flow: u64, now: Nanos) -> u8 {
        let flows = self.received.get(usize::from(pair.port()));
        let found = flows.and_then(|flows| flows.find(self.hash(pair, flow), now));
        found.map_or(0, |(dscp, _)| dscp)
    }
}

impl Flows {
    fn new() -> Self {
        Self {
            sets: [const { [const { AtomicU64::new(FREE) }; WAYS] }; SETS],
            until: AtomicU64::new(0),
            paid: AtomicU64::new(0),
        }
    }

    #[inline]
    fn has_any(&self, now: Nanos) -> bool {
        self.until.load(Ordering::Relaxed) > now.0
    }

    fn set(&self, hash: u64) -> &[AtomicU64; WAYS] {
        &self.sets[usize::try_from(hash % SETS as u64).unwrap_or(0)]
    }

    /// Returns a flow's code point and the ticks since its announcement.
    fn find(&self, hash: u64, now: Nanos) -> Option<(u8, u64)> {
        let mut stored = self.set(hash).iter().map(|place| place.load(Ordering::Relaxed));
        let own = stored.find(|stored| is_of(*stored, hash))?;
        let dscp = u8::try_from(own >> TIME_BITS & CODE_POINT).unwrap_or(0);
        Some((dscp, age(own, now))).filter(|(_, age)| *age < REMEMBERED)
    }

    /// Stores the code point of a flow, and removes the flow if the code point is 0.
    fn put(&self, hash: u64, dscp: u8, now: Nanos) {
        let set = self.set(hash);
        let own = set.iter().find(|place| is_of(place.load(Ordering::Relaxed), hash));
        if dscp == 0 {
            if let Some(own) = own {
                own.store(FREE, Ordering::Relaxed);
            }
            return;
        }
        let oldest = || set.iter().max_by_key(|place| age(place.load(Ordering::Relaxed), now));
        if let Some(place) = own.or_else(oldest) {
            let dscp = u64::from(dscp) & CODE_POINT;
            place.store(hash & FLOW | dscp << TIME_BITS | ticks(now), Ordering::Relaxed);
        }
        let until = (now.0 >> TICK_BITS).saturating_add(REMEMBERED) << TICK_BITS;
        self.until.store(until, Ordering::Relaxed);
    }

    /// Counts an announcement. Returns false if the VM has sent too many, or if another thread
    /// counts one.
    fn pay(&self, now: Nanos) -> bool {
        let paid = self.paid.load(Ordering::Relaxed);
        if paid > now.0.saturating_add(BURST.0) {
            return false;
        }
        let next = paid.max(now.0).saturating_add(GAP.0);
        self.paid.compare_exchange(paid, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

fn is_of(stored: u64, hash: u64) -> bool {
    stored != FREE && (stored ^ hash) & FLOW == 0
}

const fn ticks(now: Nanos) -> u64 {
    now.0 >> TICK_BITS & TIME
}

/// Returns the ticks since the announcement in a place. A free place is older than all others.
const fn age(stored: u64, now: Nanos) -> u64 {
    if stored == FREE {
        return u64::MAX;
    }
    let age = ticks(now).wrapping_sub(stored) & TIME;
    if age > TIME - SKEW { 0 } else { age }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: u16 = 2;
    const OTHER: u16 = 3;
    const EF: u8 = 46;

    fn points() -> CodePoints {
        CodePoints::new(4, 7)
    }

    fn pair(port: u16) -> PairKey {
        PairKey::new(port, 0x5200_0000_0007).unwrap()
    }

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(1_000 + millis)
    }

    #[test]
    fn a_flow_is_announced_first_at_each_change_and_once_a_second() {
        let points = points();
        assert!(points.is_plain(VM, ms(0)));
        assert!(!points.announces(pair(VM), 1, 0, ms(0)), "nobody would take it for another");
        assert!(points.announces(pair(VM), 1, EF, ms(0)));
        assert!(!points.is_plain(VM, ms(0)) && points.is_plain(OTHER, ms(0)));
        let again: Vec<u64> =
            (1..3_500).filter(|at| points.announces(pair(VM), 1, EF, ms(*at))).collect();
        assert_eq!(again.len(), 3, "{again:?}");
        assert!(again.windows(2).all(|two| (900..1_100).contains(&(two[1] - two[0]))), "{again:?}");
        assert!(points.announces(pair(VM), 1, 34, ms(3_600)));
        assert!(points.announces(pair(VM), 1, 0, ms(3_700)));
        assert!(!points.announces(pair(VM), 1, 0, ms(3_800)));
        assert!(!points.announces(pair(VM), 2, 0, ms(3_800)), "another flow");
        assert!(points.is_plain(VM, ms(12_000)));
    }

    #[test]
    fn an_announcement_counts_for_its_flow_pair_and_vm_until_it_is_forgotten() {
        let points = points();
        assert!(!points.knows_any(VM, ms(0)));
        points.announced(pair(VM), 1, EF, ms(0));
        assert!(points.knows_any(VM, ms(0)) && !points.knows_any(OTHER, ms(0)));
        assert_eq!(points.code_point(pair(VM), 1, ms(7_900)), EF);
        assert_eq!(points.code_point(pair(VM), 2, ms(0)), 0);
        assert_eq!(points.code_point(pair(OTHER), 1, ms(0)), 0);
        let other = PairKey::new(VM, 0x5200_0000_0008).unwrap();
        assert_eq!(points.code_point(other, 1, ms(0)), 0);
        assert_eq!(points.code_point(pair(VM), 1, ms(8_200)), 0);
        points.announced(pair(VM), 1, EF, ms(9_000));
        points.announced(pair(VM), 1, 34, ms(9_001));
        assert_eq!(points.code_point(pair(VM), 1, ms(9_002)), 34);
        points.announced(pair(VM), 1, 0, ms(9_003));
        assert_eq!(points.code_point(pair(VM), 1, ms(9_004)), 0);
    }

    #[test]
    fn the_clock_of_another_thread_may_be_behind() {
        let points = points();
        points.announced(pair(VM), 1, EF, ms(100));
        assert_eq!(points.code_point(pair(VM), 1, ms(0)), EF);
        assert!(points.announces(pair(VM), 1, EF, ms(100)));
        assert!(!points.announces(pair(VM), 1, EF, ms(0)));
    }

    #[test]
    fn a_flood_of_flows_displaces_only_flows_of_the_same_vm() {
        let points = points();
        points.announced(pair(OTHER), 1, EF, ms(0));
        points.announced(pair(VM), 1, EF, ms(0));
        for flow in 2..20_000 {
            points.announced(pair(VM), flow, 34, ms(200));
        }
        assert_eq!(points.code_point(pair(OTHER), 1, ms(200)), EF);
        assert_eq!(points.code_point(pair(VM), 1, ms(200)), 0);
        assert_eq!(points.code_point(pair(VM), 19_999, ms(200)), 34);
    }

    #[test]
    fn a_vm_has_a_rate_of_announcements_and_leaves_others_theirs() {
        let points = points();
        let announced = |port: u16, flows: core::ops::Range<u64>, at: Nanos| {
            flows.filter(|flow| points.announces(pair(port), *flow, EF, at)).count()
        };
        assert_eq!(announced(VM, 0..1_000, ms(0)), 64);
        assert_eq!(announced(VM, 2_000..3_000, ms(40)), 10);
        assert_eq!(announced(OTHER, 0..10, ms(40)), 10);
        // A flow that mixes two code points on each frame uses a small part of the rate.
        let mixes = |at: &u64| {
            let dscp = if at.is_multiple_of(2) { EF } else { 34 };
            points.announces(pair(1), 1, dscp, ms(at / 10))
        };
        let mixes = (0..10_000).filter(mixes).count();
        assert!((10..=16).contains(&mixes), "{mixes}");
    }

    #[test]
    fn a_port_without_a_place_has_no_code_points() {
        let points = points();
        assert!(!points.announces(pair(9), 1, EF, ms(0)));
        points.announced(pair(9), 1, EF, ms(0));
        assert_eq!(points.code_point(pair(9), 1, ms(0)), 0);
        assert!(points.is_plain(9, ms(0)) && !points.knows_any(9, ms(0)));
    }
}
