//! Estimates the rate that can be delivered from an input: the rate of its link, or less if the
//! worker's core is slower than the link.
//!
//! # Problem
//!
//! A frame that is refused also takes time of the core, because the switch must read its headers.
//! A frame that finds the ring full takes none, but the ring loses frames whatever their VM is due.
//! So the rate that a core can deliver depends on what arrives, and nobody can configure it.
//!
//! # Approach
//!
//! The switch must refuse just so many frames that no VM receives less than its share. While frames
//! wait behind each batch, the ring loses frames, and two cases differ:
//!
//! - All VMs use up their shares, so all are refused frames. More tokens then make the core deliver
//!   more and refuse less.
//! - A VM has *tokens left*: it receives frames, and its bucket is at least a quarter full. Some of
//!   its frames may be among those that the ring loses. Fewer tokens make the core refuse more
//!   frames of the other VMs, so it takes more frames from the ring. A VM that receives seldom, for
//!   example pings, has tokens left for a second after each frame.
//!
//! Frames wait *all the time* if more than a batch waited behind each batch within [`INTERVAL`]. A
//! burst does not wait all the time (RFC 8289 §3.1). A slow core needs more time than [`INTERVAL`]
//! for [`BATCHES_MIN`] batches. As long as frames wait behind each of its batches, the interval
//! goes on, to at most [`INTERVAL_MAX`] ([`is_over`]). A core that takes fewer batches in this time
//! is too slow to be measured, and its estimate remains.
//!
//! | Frames wait all the time | Other condition | Estimate |
//! |---|---|---|
//! | yes | a VM has tokens left | falls to 1/64 below the delivered rate |
//! | yes | the same, but the backlog shrinks, or buckets drain | no change |
//! | yes | no VM has tokens left | grows by 1/64 |
//! | yes | refused and lost frames cost more than delivered ones | grows by 1/64 |
//! | no | a frame was refused in the last [`CALM`] intervals | grows by 1/64 |
//! | no | none was refused | grows by 1/8 |
//!
//! Buckets drain if more is delivered than the estimate.
//!
//! Growth by 1/64 ends at 1/32 above the delivered rate. From there on the estimate grows by
//! 1/1,024. Otherwise the estimate would grow far above the speed of the core before the ring has a
//! backlog again. The surplus would fill the buckets of all VMs, and each VM would get what arrives
//! for it, whatever its weight.
//!
//! The delivered rate is a running mean over about 16 intervals. The frames of an interval may all
//! be for one VM, for example the packets of one large segment, and be refused. The estimate must
//! not follow such intervals.
//!
//! One step lowers the estimate by at most a half, because a worker may lose its core for a moment.
//!
//! A VM that receives little always has tokens left. The core then refuses so much that it takes
//! all frames from the ring. Under a larger flood, refusals take at most about half of the core's
//! time for the input.
//!
//! Frames that pass and are then *lost*, for example at the full ring of a VM, take time of the
//! core like refused frames. A lower estimate refuses none of them, because their VM gets its
//! tokens back. So a flood to such a VM does not lower the estimate for the others.
//!
//! # Work
//!
//! A core may become slower, or pause, at any time, and the estimate follows late. While frames
//! wait, the refills therefore count *work* instead of time ([`work`], [`Capacity::time_of`]). The
//! work of a batch is about the same on a slow core, but it takes longer.
//!
//! # Departures
//!
//! RFC 8289 measures waiting time. A port of the switch knows only how many frames wait.

use penstock_units::Nanos;

use crate::policer::{RATE_MIN, Size};

/// Least time between two changes of the estimate.
const INTERVAL: Nanos = Nanos::from_millis(1);
/// Longest time for which the counts of an interval say something about the core. The worker was
/// away for most of a longer interval, or no frame arrived.
const INTERVAL_MAX: Nanos = Nanos::from_millis(10);
/// Least number of batches that show a standing backlog.
const BATCHES_MIN: u32 = 3;
/// Number of waiting frames above which a backlog counts: one batch.
pub(super) const BACKLOG: u32 = 32;
/// The estimate falls by 1/64, and grows by 1/64, or by 1/8 after [`CALM`] intervals without a
/// refused frame.
const FALL: u32 = 6;
const GROW: u32 = 6;
const GROW_FREELY: u32 = 3;
const CALM: u32 = 16;
/// The estimate grows by 1/64 to at most 1/32 above the delivered rate, and then by 1/1,024.
const AHEAD: u32 = 5;
const GROW_SLOWLY: u32 = 10;
/// An interval has a weight of 1/16 in the mean of the delivered rate.
const MEAN: u32 = 4;
/// Cost of a delivered frame, in costs of a refused frame, and bytes whose copy costs as much as a
/// refused frame. Both are rough estimates; they only limit what refusals may cost.
const DELIVERED: u64 = 2;
const COPIED: u64 = 1_024;

/// Returns the work of a batch with delivered frames of the size `passed` and `refused` refused
/// ones, in costs of a refused frame.
pub(super) fn work(passed: Size, refused: u32) -> u64 {
    let copies = u64::from(passed.bytes) / COPIED;
    DELIVERED * u64::from(passed.frames) + copies + u64::from(refused)
}

/// Whether an interval is over in which `batches` batches ran, and `backlog` frames waited behind
/// each of them. `was_away` is true if the worker had lost its core for a time, which says nothing
/// about the core's speed.
pub(super) fn is_over(elapsed: Nanos, (batches, backlog): (u32, u32), was_away: bool) -> bool {
    let is_known = batches >= BATCHES_MIN || backlog <= BACKLOG || was_away;
    elapsed >= INTERVAL && (is_known || elapsed >= INTERVAL_MAX)
}

/// Counts of an input since the last change of its estimate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Interval {
    pub elapsed: Nanos,
    pub batches: u32,
    /// Least number of frames that waited after a batch. If a batch was full with fewer frames than
    /// 32, for example with large segments, the number is in proportion larger.
    pub backlog: u32,
    /// Whether a VM had tokens left.
    pub left: bool,
    /// Delivered frames, in bytes on the link.
    pub passed: Size,
    /// Number of refused frames.
    pub refused: u32,
    /// Number of frames that passed and were then lost.
    pub lost: u32,
    /// Sum of the [`work`] of all batches.
    pub work: u64,
}

/// Delivered bytes and time of the last intervals. Earlier intervals have smaller weights.
#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    bytes: u64,
    nanos: u64,
}

/// Time and work of the last intervals in which frames waited, with the same weights. The core had
/// no idle time in them.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    nanos: u64,
    work: u64,
}

/// Adds a value to a weighted sum.
fn add(sum: &mut u64, value: u64) {
    *sum = *sum - (*sum >> MEAN) + value;
}

impl Delivered {
    fn add(&mut self, seen: &Interval) {
        add(&mut self.bytes, seen.passed.bytes.into());
        add(&mut self.nanos, seen.elapsed.0);
    }

    /// Returns the delivered rate in bits per second.
    fn rate(self) -> u64 {
        let bits = u128::from(self.bytes) * 8_000_000_000;
        u64::try_from(bits / u128::from(self.nanos.max(1))).unwrap_or(u64::MAX)
    }
}

/// Estimate of the rate that can be delivered from an input.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    /// Estimate, in bits per second on the link.
    rate: u64,
    /// Rate of the link, in bits per second.
    ceiling: u64,
    /// [`Interval::backlog`] of the last interval.
    backlog: u32,
    delivered: Delivered,
    busy: Busy,
    /// Number of intervals since a frame was refused.
    calm: u32,
    /// Whether the core was slower than what arrived, in the last interval that says it.
    is_slow: bool,
}

impl Capacity {
    pub fn new(ceiling: u64) -> Self {
        let (delivered, busy) = (Delivered::default(), Busy::default());
        Self { rate: ceiling, ceiling, backlog: 0, delivered, busy, calm: 0, is_slow: false }
    }

    /// Returns a capacity for another link, which begins with the estimate of `old`.
    pub fn in_place_of(old: &Self, ceiling: u64) -> Self {
        // An estimate at the link's rate says nothing about the core.
        let rate = if old.rate < old.ceiling { old.rate.min(ceiling) } else { ceiling };
        Self { rate, ceiling, ..old.clone() }
    }

    /// Returns the estimate in bits per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Whether the core limits the rate, and not the link.
    pub fn is_below_link(&self) -> bool {
        self.rate < self.ceiling
    }

    /// Returns the time that the core usually takes for `work`. Returns `None` if that is unknown.
    pub fn time_of(&self, work: u64) -> Option<Nanos> {
        let Busy { nanos, work: all } = self.busy;
        let time = (u128::from(work) * u128::from(nanos)).checked_div(all.into())?;
        Some(Nanos(u64::try_from(time).unwrap_or(u64::MAX)))
    }

    /// Adapts the estimate to the counts of an interval. Returns true if the core is slower than
    /// what arrives.
    pub fn adapt(&mut self, seen: &Interval) -> bool {
        let before = core::mem::replace(&mut self.backlog, seen.backlog);
        let waits = seen.backlog > BACKLOG;
        let is_known = !waits || seen.batches >= BATCHES_MIN;
        if seen.elapsed > INTERVAL_MAX || seen.elapsed.0 == 0 || !is_known {
            return self.is_slow;
        }
        self.is_slow = waits;
        self.delivered.add(seen);
        if waits {
            add(&mut self.busy.nanos, seen.elapsed.0);
            add(&mut self.busy.work, seen.work);
        }
        self.calm = if seen.refused == 0 { self.calm.saturating_add(1) } else { 0 };
        if !waits && self.calm >= CALM {
            self.grow(GROW_FREELY);
        } else if !waits || !seen.left || refusals_cost_most(seen) {
            self.grow_to_delivered();
        } else {
            let delivered = self.delivered.rate();
            let shrinks = seen.backlog < before - before / 16;
            // While buckets still drain, a lower rate would change nothing, and come too late.
            let drains = self.rate < delivered - delivered / 8;
            if !shrinks && !drains {
                let to = self.rate.min(delivered);
                let to = (to - (to >> FALL)).max(self.rate / 2).max(RATE_MIN.0);
                self.rate = to.min(self.ceiling);
            }
        }
        waits
    }

    /// Lets the estimate grow, but only slowly if it is above the delivered rate.
    fn grow_to_delivered(&mut self) {
        let delivered = self.delivered.rate();
        let most = delivered.saturating_add(delivered >> AHEAD);
        let slowly = self.rate.saturating_add((self.rate >> GROW_SLOWLY) + 1);
        self.grow(GROW);
        self.rate = self.rate.min(most.max(slowly));
    }

    fn grow(&mut self, shift: u32) {
        self.rate = self.rate.saturating_add((self.rate >> shift) + 1).min(self.ceiling);
    }
}

/// Whether refused and lost frames cost more than delivered ones.
fn refusals_cost_most(seen: &Interval) -> bool {
    u64::from(seen.refused) + u64::from(seen.lost) > work(seen.passed, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u64 = 10_000_000_000;

    /// Returns an interval of 1 ms with `bits` delivered bits per second in frames of 1,538 bytes,
    /// in which a VM has tokens left.
    fn interval(backlog: u32, bits: u64, refused: u32) -> Interval {
        let bytes = u32::try_from(bits / 8_000).unwrap();
        let passed = Size { bytes, frames: bytes / 1_538 };
        Interval {
            elapsed: INTERVAL,
            batches: 20,
            backlog,
            left: true,
            passed,
            refused,
            lost: 0,
            work: work(passed, refused),
        }
    }

    #[test]
    fn an_interval_goes_on_until_the_batches_of_a_slow_core_show_its_backlog() {
        let over = |micros, counts, away| is_over(Nanos::from_micros(micros), counts, away);
        assert!(!over(999, (20, 500), false));
        assert!(over(1_000, (3, 500), false));
        assert!(!over(1_000, (2, 500), false) && !over(9_999, (2, 500), false));
        assert!(over(10_000, (2, 500), false), "the core is too slow to be known");
        assert!(over(1_000, (2, BACKLOG), false), "no frames wait all the time");
        assert!(over(1_000, (0, 0), false));
        assert!(over(1_000, (2, 500), true), "the worker was away");
    }

    #[test]
    fn a_burst_or_an_absent_worker_does_not_lower_the_estimate() {
        let mut capacity = Capacity::new(LINK);
        assert!(!capacity.adapt(&interval(BACKLOG, 1_000_000_000, 0)));
        let away = Interval { elapsed: Nanos::from_millis(50), ..interval(900, 1_000_000, 0) };
        assert!(!capacity.adapt(&away));
        let once = Interval { batches: 1, ..interval(900, 1_000_000, 0) };
        assert!(!capacity.adapt(&once));
        assert_eq!(capacity.rate(), LINK);
    }

    #[test]
    fn a_standing_backlog_lowers_the_estimate_to_what_is_delivered_and_below() {
        let mut capacity = Capacity::new(LINK);
        for _ in 0..8 {
            assert!(capacity.adapt(&interval(900, 3_000_000_000, 100)));
        }
        assert!(capacity.rate() < 3_000_000_000, "{}", capacity.rate());
        let before = capacity.rate();
        assert!(capacity.adapt(&interval(700, 2_800_000_000, 100)), "the backlog shrinks");
        assert_eq!(capacity.rate(), before);
        assert!(!capacity.adapt(&interval(0, 2_800_000_000, 100)));
        assert_eq!(capacity.rate(), before + before / 64 + 1);
    }

    #[test]
    fn an_estimate_does_not_collapse_under_a_flood_and_recovers_after_it() {
        let mut capacity = Capacity::new(LINK);
        for _ in 0..1_000 {
            // The core can deliver 3 Gbit/s, and refuses the rest of an endless flood.
            let delivered = capacity.rate().min(3_000_000_000);
            let refused = u32::try_from((4_000_000_000 - delivered) / 3_000_000).unwrap();
            capacity.adapt(&interval(900, delivered, refused));
        }
        assert!(capacity.rate() > 200_000_000, "{}", capacity.rate());
        for _ in 0..100 {
            capacity.adapt(&interval(0, 1_000_000, 0));
        }
        assert_eq!(capacity.rate(), LINK);
    }

    /// Returns a capacity whose core has delivered 3 Gbit/s for long.
    fn slow() -> Capacity {
        let mut capacity = Capacity::new(LINK);
        (0..40).for_each(|_| assert!(capacity.adapt(&interval(900, 3_000_000_000, 100))));
        capacity
    }

    #[test]
    fn work_takes_the_usual_time_of_the_busy_core() {
        assert_eq!(Capacity::new(LINK).time_of(100), None, "nothing is known");
        let mut capacity = slow();
        let of_ms = interval(900, 3_000_000_000, 100).work;
        let near = |capacity: &Capacity| {
            let found = capacity.time_of(of_ms / 2).unwrap().0;
            assert!((498_000..=502_000).contains(&found), "{found} ns");
        };
        near(&capacity);
        // A pause, and time in which the core waits for frames.
        let pause = Interval { elapsed: Nanos::from_millis(50), ..interval(900, 1_000_000, 0) };
        capacity.adapt(&pause);
        capacity.adapt(&interval(0, 1_000_000, 0));
        near(&capacity);
    }

    #[test]
    fn an_estimate_grows_while_frames_wait_if_all_vms_are_refused_frames() {
        let mut capacity = slow();
        let before = capacity.rate();
        for _ in 0..8 {
            let seen = Interval { left: false, ..interval(900, capacity.rate(), 100) };
            assert!(capacity.adapt(&seen), "the core is slower than what arrives");
        }
        assert!(capacity.rate() > before + before / 10, "{before}, {}", capacity.rate());
    }

    #[test]
    fn one_interval_with_few_deliveries_hardly_lowers_the_estimate() {
        let mut capacity = slow();
        // The buckets are empty, and no more is delivered than the estimate.
        for _ in 0..40 {
            capacity.adapt(&interval(900, capacity.rate(), 100));
        }
        let before = capacity.rate();
        // Most frames of this interval were for a VM without tokens.
        assert!(capacity.adapt(&interval(900, 80_000_000, 20)));
        assert!(capacity.adapt(&interval(900, before, 0)));
        assert!(capacity.rate() > before - before / 8, "{before}, {}", capacity.rate());
    }

    #[test]
    fn an_estimate_grows_slowly_above_what_is_delivered_beside_refusals() {
        let mut capacity = slow();
        for _ in 0..100 {
            assert!(!capacity.adapt(&interval(0, 3_000_000_000, 1)));
        }
        let rate = capacity.rate();
        assert!((3_000_000_000..3_450_000_000).contains(&rate), "{rate}");
        // Without refusals, the estimate soon is the rate of the link.
        (0..30).for_each(|_| assert!(!capacity.adapt(&interval(0, 3_000_000_000, 0))));
        assert_eq!(capacity.rate(), LINK);
    }
}
