//! Estimates the rate that can be delivered from an input: the rate of its link, or less if the
//! worker's core is slower than the link.
//!
//! # Problem
//!
//! A frame that is refused also takes time of the core, because the switch must read its headers.
//! So the rate that a core can deliver depends on what arrives, and nobody can configure it. An
//! estimate that only falls while frames wait would fall to zero under a flood that is larger than
//! what the core can even refuse.
//!
//! # Approach
//!
//! The estimate follows a standing backlog: the least number of frames that waited behind a batch
//! within [`INTERVAL`]. A burst leaves no standing backlog (RFC 8289 §3.1). A slow core needs more
//! time than [`INTERVAL`] for the batches that show a standing backlog. As long as frames wait
//! behind each of its batches, the interval goes on, to at most [`INTERVAL_MAX`] ([`is_over`]). A
//! core that takes fewer than three whole batches (96 frames) in this time is too slow to be
//! measured.
//!
//! | State of the input | Estimate |
//! |---|---|
//! | a standing backlog that does not shrink | falls to 1/32 below the delivered rate |
//! | a standing backlog that shrinks, or more is delivered than the estimate | no change |
//! | a standing backlog; refused and lost frames cost more than delivered ones | grows by 1/64 |
//! | no standing backlog | grows by 1/64, or by 1/8 if no frame was refused |
//!
//! One step lowers the estimate by at most a half, because a worker may lose its core for a moment.
//!
//! Refused frames free time of the core, the backlog disappears, and the estimate grows again.
//! Under a larger flood, refusals take at most about half of the core's time for the input.
//!
//! Frames that pass and are then *lost*, for example at the full ring of a VM, take time of the
//! core like refused frames. A lower estimate refuses none of them, because their VM gets its
//! tokens back. So a flood to such a VM does not lower the estimate for the others.
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
/// The estimate falls by 1/32, and grows by 1/64, or by 1/8 while no frame is refused.
const FALL: u32 = 5;
const GROW: u32 = 6;
const GROW_FREELY: u32 = 3;
/// Cost of a delivered frame, in costs of a refused frame, and bytes whose copy costs as much as a
/// refused frame. Both are rough estimates; they only limit what refusals may cost.
const DELIVERED: u64 = 2;
const COPIED: u64 = 1_024;

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
    /// Least number of frames that waited after a batch.
    pub backlog: u32,
    /// Delivered frames, in bytes on the link.
    pub passed: Size,
    /// Number of refused frames.
    pub refused: u32,
    /// Number of frames that passed and were then lost.
    pub lost: u32,
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
}

impl Capacity {
    pub fn new(ceiling: u64) -> Self {
        Self { rate: ceiling, ceiling, backlog: 0 }
    }

    /// Returns a capacity for another link, which begins with the estimate of `old`.
    pub fn in_place_of(old: &Self, ceiling: u64) -> Self {
        // An estimate at the link's rate says nothing about the core.
        let rate = if old.rate < old.ceiling { old.rate.min(ceiling) } else { ceiling };
        Self { rate, ceiling, backlog: old.backlog }
    }

    /// Returns the estimate in bits per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Adapts the estimate to the counts of an interval. Returns true if the core is slower than
    /// what arrives.
    pub fn adapt(&mut self, seen: &Interval) -> bool {
        let before = core::mem::replace(&mut self.backlog, seen.backlog);
        if seen.elapsed > INTERVAL_MAX || seen.elapsed.0 == 0 {
            return false;
        }
        if seen.backlog <= BACKLOG || seen.batches < BATCHES_MIN {
            self.grow(if seen.refused == 0 { GROW_FREELY } else { GROW });
            return false;
        }
        let copies = u64::from(seen.passed.bytes) / COPIED;
        let delivery = DELIVERED * u64::from(seen.passed.frames) + copies;
        if u64::from(seen.refused) + u64::from(seen.lost) > delivery {
            self.grow(GROW);
            return true;
        }
        let bits = u128::from(seen.passed.bytes) * 8_000_000_000;
        let delivered = u64::try_from(bits / u128::from(seen.elapsed.0)).unwrap_or(u64::MAX);
        let shrinks = seen.backlog < before - before / 16;
        // While buckets still drain, a lower rate would change nothing, and come too late.
        let drains = self.rate < delivered - delivered / 8;
        if !shrinks && !drains {
            let to = self.rate.min(delivered);
            self.rate = (to - (to >> FALL)).max(self.rate / 2).max(RATE_MIN.0).min(self.ceiling);
        }
        true
    }

    fn grow(&mut self, shift: u32) {
        self.rate = self.rate.saturating_add((self.rate >> shift) + 1).min(self.ceiling);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u64 = 10_000_000_000;

    /// Returns an interval of 1 ms with `bits` delivered bits per second in frames of 1,538 bytes.
    fn interval(backlog: u32, bits: u64, refused: u32) -> Interval {
        let bytes = u32::try_from(bits / 8_000).unwrap();
        let passed = Size { bytes, frames: bytes / 1_538 };
        Interval { elapsed: INTERVAL, batches: 20, backlog, passed, refused, lost: 0 }
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
}
