//! The NIC-bottleneck handler detects when VMs compete for a link instead of the CPU.
//!
//! # Problem
//!
//! Cycle buckets divide the cycles of a core, but not the bandwidth of a link. If a VM's frames are
//! cheaper than its profile says, the VM sends more bits with its cycles and may fill the uplink.
//! If the uplink is full, other VMs lose bandwidth, although their cycle buckets have tokens.
//!
//! # Source
//!
//! In C2QoS (§VII, Fig. 13), a bottleneck handler monitors the forwarding rate. While the
//! forwarding rate equals the link's rate, the handler limits VMs in bits per second.
//!
//! # Approach
//!
//! The load of a link is the traffic that the uplink sent, plus the traffic that the limits held
//! back. The load of a link includes Ethernet's [`FRAME_OVERHEAD`] for each frame. The frames above
//! a limit wait, so nobody knows how much a VM would have sent. While a VM's frames wait, the VM
//! counts as if it could fill the link ([`held_back`]). The handler
//! measures the load in thousandths of the link's capacity. Two thresholds with hysteresis decide
//! when the limits apply:
//!
//! - The handler applies the limits when the load stays at or above [`Hysteresis::enter_permille`]
//!   for [`Hysteresis::enter_after`].
//! - The handler removes the limits when the load stays below [`Hysteresis::leave_permille`] for
//!   the hold time.
//!
//! Traffic that the limits held back counts as load. If a VM continues to send too much, the limits
//! stay in force. If a VM slowed down because of the limits, for example by TCP, no traffic of this
//! VM is held back. A VM that slowed down may fill the link again after the handler removes the
//! limits. If the handler applies the limits again within [`Hysteresis::calm`] of their removal,
//! the hold time doubles, up to [`Hysteresis::hold_max`]. When no limits have applied for a longer
//! time, the hold time returns to its initial value.
//!
//! # Constants
//!
//! - A saturated link has a load of 100 %, including Ethernet's overhead. The threshold of 97 %
//!   leaves a margin for differences between the drivers' counters.
//! - The load must be high for two intervals of 100 ms before limits apply. An overload that is
//!   shorter than 200 ms may be a burst that a queue absorbs.
//! - A VM that lost bandwidth must regain its rate within a second. The limits apply within 300 ms
//!   of the start of an overload, so at least 0.7 s remain for a VM to regain its rate.
//! - The VMs' limits sum to 99 % of the link ([`limits`]), so that the queue at the link becomes
//!   shorter after the overload.
//! - The handler removes the VMs' limits below a link load of 85 %. If all VMs send at their
//!   limits, the load is 99 %. The link's load falls below 85 % if VMs with more than 14 % of the
//!   link in total stop sending.
//!
//! # Example
//!
//! In an example, VM 1 purchased 2 Gbit/s of a 10 Gbit/s link, and VM 2 purchased 6 Gbit/s. When
//! the frames of VM 1 become longer, VM 1 sends 4 Gbit/s with the cycles that it purchased. After
//! 300 ms, VM 1 is limited to 2.475 Gbit/s and VM 2 to 7.425 Gbit/s, and VM 2 sends 6 Gbit/s again.
//!
//! # Departures
//!
//! The paper specifies neither when the handler removes the limits nor how large the limits are.
//!
//! # Cost
//!
//! For each link, the handler needs a few words of memory and runs ten times a second. The handler
//! costs the workers nothing while no limits apply.

use penstock_units::{BitsPerSecond, Nanos};

use crate::policer::{Limit, Spec, SpecError, wait_depth};

/// Bytes that Ethernet adds to each frame on the link: the FCS, preamble, start delimiter and gap.
pub const FRAME_OVERHEAD: u8 = 24;
/// Time between two readings of a link's counters. A reading of a link's counters is ignored if it
/// follows another reading within a tenth of this time.
pub const INTERVAL: Nanos = Nanos::from_millis(100);
/// Sum of all limits, in thousandths of the link's capacity.
pub const LIMITS_PERMILLE: u64 = 990;
/// Smallest limit of a VM without a purchased rate, in thousandths of the link's capacity.
pub const UNSOLD_PERMILLE: u64 = 10;

/// Thresholds and times that decide when the limits of a link apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    /// Load at which the link becomes the bottleneck, in thousandths of its capacity.
    pub enter_permille: u64,
    /// Time for which the load must stay at or above [`Self::enter_permille`] before limits apply.
    pub enter_after: Nanos,
    /// Load below which the link no longer counts as the bottleneck, in thousandths of its
    /// capacity.
    pub leave_permille: u64,
    /// Initial hold time, for which the load must stay below [`Self::leave_permille`] before the
    /// limits are removed.
    pub hold: Nanos,
    /// Upper bound of the hold time, which doubles if the overload returns within [`Self::calm`].
    pub hold_max: Nanos,
    /// If no limits have applied for this time, the hold time is reset to [`Self::hold`].
    pub calm: Nanos,
}

impl Default for Hysteresis {
    fn default() -> Self {
        Self {
            enter_permille: 970,
            enter_after: Nanos::from_millis(200),
            leave_permille: 850,
            hold: Nanos::from_secs(1),
            hold_max: Nanos::from_secs(64),
            calm: Nanos::from_secs(10),
        }
    }
}

/// A change that the caller must make: apply the VMs' limits, or remove them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The link became the bottleneck, so the caller must apply the limits.
    Enter,
    /// The link is no longer the bottleneck, so the caller must remove the limits.
    Leave,
}

/// Values of an uplink's byte counters. The counters never decrease while the port exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes that the uplink sent, with Ethernet's overhead as in [`on_link`].
    pub bytes: u64,
    /// Bytes that the limits on the VMs held back, with Ethernet's overhead as in [`on_link`].
    pub held_back: u64,
}

/// Returns the bytes that frames occupy on a link, including [`FRAME_OVERHEAD`]. The argument
/// `bytes` is the sum of the frames' lengths without FCS.
#[must_use]
pub const fn on_link(bytes: u64, frames: u64) -> u64 {
    bytes.saturating_add(frames.saturating_mul(FRAME_OVERHEAD as u64))
}

/// Returns the bytes that a link of this capacity carries in the time for which VMs waited for
/// their parts of the link.
#[must_use]
pub fn held_back(capacity: BitsPerSecond, waited: Nanos) -> u64 {
    let bytes = u128::from(capacity.0) * u128::from(waited.0) / 8_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Detector that decides whether a link is the bottleneck.
#[derive(Clone, Debug)]
pub struct Bottleneck {
    capacity: BitsPerSecond,
    hysteresis: Hysteresis,
    last: Option<(Nanos, Sent)>,
    /// Start of the time for which the load justifies a change: a high load without limits, or a
    /// low load with limits. `None` if the last measured load of the link does not justify applying
    /// or removing limits.
    since: Option<Nanos>,
    limited: bool,
    left_at: Option<Nanos>,
    hold: Nanos,
    load_permille: u64,
    sent_permille: u64,
    entered: u64,
}

impl Bottleneck {
    /// Returns a detector for a link of this capacity, without limits in force.
    #[must_use]
    pub fn new(capacity: BitsPerSecond) -> Self {
        Self::with(capacity, Hysteresis::default())
    }

    /// Returns a detector without limits in force, with the thresholds and times of `hysteresis`.
    #[must_use]
    pub const fn with(capacity: BitsPerSecond, hysteresis: Hysteresis) -> Self {
        Self {
            capacity,
            hysteresis,
            last: None,
            since: None,
            limited: false,
            left_at: None,
            hold: hysteresis.hold,
            load_permille: 0,
            sent_permille: 0,
            entered: 0,
        }
    }

    /// Evaluates counters read at `now` and returns whether the limits must change. The detector
    /// ignores a reading that follows the previous reading too soon. If the counters are lower than
    /// at the previous reading, the port is new, and the measurement starts again.
    pub fn observe(&mut self, now: Nanos, sent: Sent) -> Option<Change> {
        let Some((then, before)) = self.last else {
            self.last = Some((now, sent));
            return None;
        };
        let passed = now.saturating_sub(then);
        if passed.0 < INTERVAL.0 / 10 {
            return None;
        }
        self.last = Some((now, sent));
        let went = sent.bytes.checked_sub(before.bytes);
        let held = sent.held_back.checked_sub(before.held_back);
        let (Some(went), Some(held)) = (went, held) else {
            self.since = None;
            return None;
        };
        self.sent_permille = self.permille(went, passed);
        // Several VMs, or several workers of a VM, may wait at the same time.
        let held = self.permille(held, passed).min(1_000);
        self.load_permille = self.sent_permille.saturating_add(held);
        if self.limited { self.look_out(then, now) } else { self.look_in(then, now) }
    }

    fn permille(&self, bytes: u64, passed: Nanos) -> u64 {
        // bytes * 8 bit * 1e9 ns/s * 1000 / (ns * bit/s)
        let bits = u128::from(bytes) * 8_000_000_000_000;
        let worth = (u128::from(passed.0) * u128::from(self.capacity.0)).max(1);
        u64::try_from(bits / worth).unwrap_or(u64::MAX)
    }

    fn look_in(&mut self, then: Nanos, now: Nanos) -> Option<Change> {
        let Hysteresis { enter_permille, enter_after, hold, hold_max, calm, .. } = self.hysteresis;
        if self.load_permille < enter_permille {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(then);
        if now.saturating_sub(since) < enter_after {
            return None;
        }
        self.since = None;
        self.limited = true;
        self.entered += 1;
        let back = self.left_at.is_some_and(|left| now.saturating_sub(left) < calm);
        self.hold = if back { Nanos(self.hold.0.saturating_mul(2)).min(hold_max) } else { hold };
        Some(Change::Enter)
    }

    fn look_out(&mut self, then: Nanos, now: Nanos) -> Option<Change> {
        if self.load_permille >= self.hysteresis.leave_permille {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(then);
        if now.saturating_sub(since) < self.hold {
            return None;
        }
        self.since = None;
        self.limited = false;
        self.left_at = Some(now);
        Some(Change::Leave)
    }

    /// Whether the limits on the link currently apply.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.limited
    }

    /// Load of the link in the last interval, in thousandths of its capacity. The load exceeds 1000
    /// if the sum of sent and held-back traffic exceeds the link's capacity. Held-back traffic
    /// counts as at most the capacity.
    #[must_use]
    pub const fn load_permille(&self) -> u64 {
        self.load_permille
    }

    /// Traffic that the uplink sent in the last interval, in thousandths of the link's capacity.
    #[must_use]
    pub const fn sent_permille(&self) -> u64 {
        self.sent_permille
    }

    /// Number of times that the limits on the link were applied since the detector was created.
    #[must_use]
    pub const fn entered(&self) -> u64 {
        self.entered
    }

    /// Current hold time, for which the load must stay low before the limits are removed.
    #[must_use]
    pub const fn hold(&self) -> Nanos {
        self.hold
    }

    /// Capacity of the link in bits per second.
    #[must_use]
    pub const fn capacity(&self) -> BitsPerSecond {
        self.capacity
    }
}

/// Returns a VM's limit on its part of a link, for which the VM's frames wait.
///
/// # Errors
///
/// Returns an error if `rate` is not a rate of a policer ([`crate::policer::RATE_MIN`] to
/// [`crate::policer::RATE_MAX`]).
pub fn part(rate: BitsPerSecond) -> Result<Spec, SpecError> {
    let limit = Limit::SingleRate { cir: rate, cbs: wait_depth(rate), ebs: 0 };
    Ok(Spec::new(limit)?.per_frame(FRAME_OVERHEAD).waiting())
}

/// Divides the bandwidth of a link among the VMs that may send to the link. The argument `bought`
/// has each VM's purchased rate; `None` if the VM purchased no rate. Returns each VM's limit in
/// bits per second, including [`FRAME_OVERHEAD`].
///
/// - VMs without a purchase share the unsold bandwidth equally. If all VMs have a purchase, they
///   share the unsold bandwidth in proportion to their purchased rates.
/// - Each VM without a purchase gets at least [`UNSOLD_PERMILLE`] of the link. If too little
///   bandwidth is unsold, the limits of VMs with a purchase are reduced in proportion.
/// - The minimums of the VMs without a purchase are together at most a quarter of the sum of all
///   limits.
#[must_use]
pub fn limits(capacity: BitsPerSecond, bought: &[Option<BitsPerSecond>]) -> Vec<BitsPerSecond> {
    let link = u128::from(capacity.0) * u128::from(LIMITS_PERMILLE) / 1_000;
    let sold: u128 = bought.iter().flatten().map(|rate| u128::from(rate.0)).sum();
    let unsold = bought.iter().filter(|rate| rate.is_none()).count() as u128;
    let floor =
        (u128::from(capacity.0) * u128::from(UNSOLD_PERMILLE) / 1_000 * unsold).min(link / 4);
    let rest = match (sold, unsold) {
        (_, 0) => 0,
        (0, _) => link,
        _ => link.saturating_sub(sold).max(floor),
    };
    let to_buyers = link - rest;
    let rate = |part: u128| BitsPerSecond(u64::try_from(part).unwrap_or(u64::MAX));
    let one = |bought: &Option<BitsPerSecond>| match bought {
        Some(bought) => rate(to_buyers * u128::from(bought.0) / sold.max(1)),
        None => rate(rest / unsold.max(1)),
    };
    bought.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: BitsPerSecond = BitsPerSecond(10_000_000_000);

    /// A simulated link whose counters the detector reads every 100 ms.
    struct Bed {
        handler: Bottleneck,
        now: u64,
        sent: Sent,
    }

    impl Bed {
        fn new() -> Self {
            let mut bed = Self { handler: Bottleneck::new(LINK), now: 0, sent: Sent::default() };
            assert_eq!(bed.handler.observe(Nanos(0), bed.sent), None);
            bed.now = 0;
            bed
        }

        /// Advances one interval. The arguments `sent` (traffic on the link) and `held` (held-back
        /// traffic) are in thousandths of the link's capacity.
        fn step(&mut self, sent: u64, held: u64) -> Option<Change> {
            // 10 Gbit/s are 125 MB in 100 ms.
            self.sent.bytes += sent * 125_000;
            self.sent.held_back += held * 125_000;
            self.now += 100;
            self.handler.observe(Nanos::from_millis(self.now), self.sent)
        }

        fn steps(&mut self, n: usize, sent: u64, held: u64) -> Vec<(u64, Change)> {
            (0..n).filter_map(|_| self.step(sent, held).map(|change| (self.now, change))).collect()
        }
    }

    #[test]
    fn limits_go_in_after_two_full_intervals_and_out_after_a_second_of_room() {
        let mut bed = Bed::new();
        assert_eq!(bed.steps(50, 969, 0), []);
        assert_eq!(bed.steps(3, 980, 0), [(5_200, Change::Enter)]);
        assert_eq!(bed.steps(20, 850, 0), [], "85 % is not below 85 %");
        assert_eq!(bed.steps(11, 849, 0), [(8_300, Change::Leave)]);
        assert_eq!((bed.handler.entered(), bed.handler.is_limited()), (1, false));
    }

    #[test]
    fn a_burst_of_one_interval_is_no_bottleneck() {
        let mut bed = Bed::new();
        for _ in 0..20 {
            assert_eq!(bed.step(1_000, 0), None);
            assert_eq!(bed.step(900, 0), None);
        }
    }

    #[test]
    fn held_back_traffic_keeps_the_limits_applied() {
        let mut bed = Bed::new();
        assert_eq!(bed.steps(2, 1_000, 0).len(), 1);
        assert_eq!(bed.steps(100, 800, 200), [], "a flood that goes on");
        assert_eq!(bed.handler.load_permille(), 1_000);
        assert_eq!(bed.steps(12, 800, 0).len(), 1, "and ends");
    }

    #[test]
    fn a_quick_return_lengthens_the_hold_and_a_calm_time_resets_it() {
        let mut bed = Bed::new();
        let mut held = Vec::new();
        for _ in 0..9 {
            assert_eq!(bed.steps(2, 1_000, 0).len(), 1);
            let entered = bed.now;
            while bed.step(800, 0).is_none() {}
            held.push((bed.now - entered) / 1_000);
        }
        assert_eq!(held, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(bed.steps(100, 500, 0), []);
        assert_eq!(bed.steps(2, 1_000, 0).len(), 1);
        assert_eq!(bed.handler.hold(), Nanos::from_secs(1));
    }

    #[test]
    fn frames_on_the_wire_are_longer_than_their_bytes() {
        let mut handler = Bottleneck::new(LINK);
        handler.observe(Nanos(0), Sent::default());
        // 10 Gbit/s of shortest frames are 14.88 million frames of 60 bytes a second.
        let sent = Sent { bytes: on_link(1_488_095 * 60, 1_488_095), held_back: 0 };
        handler.observe(Nanos::from_millis(100), sent);
        assert_eq!(handler.sent_permille(), 999);
    }

    #[test]
    fn a_vm_that_waits_all_the_time_keeps_the_limits_applied() {
        assert_eq!(held_back(LINK, Nanos::from_millis(100)), 125_000_000);
        let mut bed = Bed::new();
        assert_eq!(bed.steps(2, 1_000, 0).len(), 1);
        // The VM has a tenth of the link, and the others send nothing.
        assert_eq!(bed.steps(100, 99, 980), []);
        assert_eq!(bed.steps(12, 99, 0).len(), 1, "it sends less");
        bed.steps(10, 990, 3_000);
        assert_eq!(bed.handler.load_permille(), 1_990, "three VMs wait");
    }

    #[test]
    fn a_port_that_is_new_begins_anew() {
        let mut bed = Bed::new();
        assert_eq!(bed.step(1_000, 0), None);
        bed.sent = Sent::default();
        bed.now += 100;
        assert_eq!(bed.handler.observe(Nanos::from_millis(bed.now), bed.sent), None);
        assert_eq!(bed.step(1_000, 0), None, "one interval since");
        assert_eq!(bed.step(1_000, 0), Some(Change::Enter));
    }

    /// Tests a model of C2QoS Fig. 13 with a link of 10 Gbit/s. In the example of C2QoS Fig. 13, VM
    /// 1 purchased 2 Gbit/s of the link, and VM 2 purchased 6 Gbit/s. One second after the start of
    /// the test, the frames of VM 1 become longer, and VM 1 begins to send 5 Gbit/s. In the model
    /// of C2QoS Fig. 13, the link divides its rate in proportion to the arriving traffic.
    #[test]
    fn a_victim_has_its_rate_again_within_a_second() {
        let mut bed = Bed::new();
        let bought = [Some(BitsPerSecond(2_000_000_000)), Some(BitsPerSecond(6_000_000_000))];
        let cap: Vec<u64> = limits(LINK, &bought).iter().map(|rate| rate.0 / 10_000_000).collect();
        assert_eq!(cap, [247, 742]);
        let (mut hurt_from, mut hurt_to) = (None, 0);
        for _ in 0..300 {
            let wants = [if bed.now < 1_000 { 200 } else { 500 }, 600];
            let limited = bed.handler.is_limited();
            let to_link: Vec<u64> =
                wants.iter().zip(&cap).map(|(w, c)| if limited { *w.min(c) } else { *w }).collect();
            let sum: u64 = to_link.iter().sum();
            let victim = to_link[1] * 1_000 / sum.max(1_000);
            if victim < 594 {
                hurt_from.get_or_insert(bed.now);
                hurt_to = bed.now + 100;
            }
            bed.step(sum.min(1_000), wants.iter().sum::<u64>() - sum);
        }
        assert_eq!(hurt_from, Some(1_000));
        assert!(hurt_to <= 1_300, "until {hurt_to} ms");
        assert_eq!(bed.handler.entered(), 1);
    }

    #[test]
    fn limits_use_the_whole_link_and_leave_nobody_out() {
        let rates = |bought: &[u64]| -> Vec<u64> {
            let one = |rate: &u64| (*rate > 0).then_some(BitsPerSecond(*rate * 1_000_000));
            let bought: Vec<_> = bought.iter().map(one).collect();
            limits(LINK, &bought).iter().map(|rate| rate.0 / 1_000_000).collect()
        };
        assert_eq!(rates(&[4_000, 4_000]), [4_950, 4_950], "in proportion");
        assert_eq!(
            rates(&[4_000, 4_000, 0, 0]),
            [4_000, 4_000, 950, 950],
            "the rest to the others"
        );
        assert_eq!(rates(&[6_000, 4_000, 0]), [5_880, 3_920, 100], "one hundredth at least");
        assert_eq!(rates(&[9_000, 9_000]), [4_950, 4_950], "oversold");
        assert_eq!(rates(&[0, 0]), [4_950, 4_950]);
        assert_eq!(rates(&[]), []);
        let crowd = vec![0; 300];
        let many = rates(&[&[10_000], &crowd[..]].concat());
        assert_eq!((many[0], many[1]), (7_425, 8), "a crowd has a quarter");
    }
}
