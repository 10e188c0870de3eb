//! CoDel decides when a queue signals congestion to its senders, before the queue is full.
//!
//! # Problem
//!
//! TCP increases its rate until a frame is lost. A queue that drops frames only when it is full
//! remains nearly full, so each frame waits as long as the queue allows. A full queue also drops
//! many frames of one flow in a row, and TCP then waits for its retransmission timeout.
//!
//! # Source
//!
//! CoDel is from RFC 8289 §5. The use of ECN instead of a drop is from RFC 8289 §4.6 and RFC 3168.
//!
//! # Approach
//!
//! CoDel looks at the time that each departing frame waited. If every frame of [`INTERVAL`] waited
//! longer than [`TARGET`], CoDel signals with one frame: the caller marks the frame, or drops the
//! frame if its sender does not support marks. While the wait stays above the target, the time
//! between the n-th signal and the next one is [`INTERVAL`] / √n, so TCP flows slow down more and
//! more. A queue that contains at most one frame of the largest size needs no signal, because the
//! output would otherwise become idle. At a low rate, where a frame takes long, target and interval
//! grow with the frame ([`Pace`]).
//!
//! # Departures
//!
//! - RFC 8289 computes 1/√n by an approximation; this code uses an integer square root.
//! - In RFC 8289, the times between signals depend only on the number of signals. A ring with 256
//!   segments of 64 KiB makes frames wait for seconds, and the streams in it would need many
//!   seconds to become slower. Here the times are shorter by the factor waited / (4 × target), up
//!   to 16. When the wait falls below two targets, the count of signals begins at 1. With the old
//!   count, more signals would follow before the senders had reacted to the last ones, and a single
//!   stream would become slower than the output.
//!
//! # Cost
//!
//! A departing frame costs two comparisons. A signal costs one integer square root.

use penstock_units::Nanos;

/// Wait that a queue may have for longer than [`INTERVAL`] without a signal (RFC 8289 §4.3).
pub const TARGET: Nanos = Nanos::from_millis(5);
/// Time of the order of the longest usual round trip (RFC 8289 §4.2).
pub const INTERVAL: Nanos = Nanos::from_millis(100);

/// Number of targets above which a wait is so long that the times between signals become shorter.
const FAST_FROM: u64 = 4;
/// Largest factor by which the times between signals become shorter.
const FAST_MOST: u64 = 16;

/// Target and interval of a queue. If a frame takes long, one frame must not look like a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    target: Nanos,
    interval: Nanos,
}

impl Pace {
    /// [`TARGET`] and [`INTERVAL`].
    pub const DEFAULT: Self = Self { target: TARGET, interval: INTERVAL };

    /// Returns the pace of a queue whose frames take the time `frame` each: a target of at least
    /// one and a half frames, and an interval of at least eight frames.
    #[must_use]
    pub fn of(frame: Nanos) -> Self {
        let times = |n: u64| Nanos(frame.0.saturating_mul(n));
        Self { target: TARGET.max(Nanos(times(3).0 / 2)), interval: INTERVAL.max(times(8)) }
    }
}

/// State of CoDel for one queue.
#[derive(Clone, Debug, Default)]
pub struct Codel {
    /// Time at which the wait will have been above the target for one interval. `None` while the
    /// wait is below the target.
    above_until: Option<Nanos>,
    signalling: bool,
    /// Time of the next signal, while `signalling` is true.
    next: Nanos,
    /// Number of signals since the wait rose above the target.
    count: u64,
    /// Value of `count` at the beginning of the current series of signals.
    first_count: u64,
    /// Whether signals came early because of a very long wait, and the count is from then.
    fast: bool,
}

impl Codel {
    /// Returns the state of an empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the wait was above the target for an interval, and still is.
    #[must_use]
    pub const fn is_signalling(&self) -> bool {
        self.signalling
    }

    /// Returns true if the departing frame is to be marked or dropped. The frame waited for
    /// `waited`. The argument `backlog` is true if more bytes wait behind the frame than the
    /// largest frame has. If the caller drops the frame, it calls the function again for the next
    /// frame.
    pub fn signals(&mut self, waited: Nanos, pace: Pace, backlog: bool, now: Nanos) -> bool {
        let interval = pace.interval;
        if waited < pace.target || !backlog {
            (self.above_until, self.signalling) = (None, false);
            return false;
        }
        let until = *self.above_until.get_or_insert(now + interval);
        // The more a wait is above the target, the shorter are the times between signals.
        let over = (waited.0 / pace.target.0.max(1) / FAST_FROM).clamp(1, FAST_MOST);
        let interval = Nanos(interval.0 / over);
        if self.signalling {
            if now < self.next {
                return false;
            }
            self.fast |= over > 1;
            if self.fast && waited.0 < 2 * pace.target.0 {
                (self.count, self.first_count, self.next) = (0, 0, now);
                self.fast = false;
            }
            self.count += 1;
            self.next = after(self.next, interval, self.count);
            return true;
        }
        if now < until {
            return false;
        }
        self.signalling = true;
        // A series that follows soon after another one starts at the rate that was needed before.
        let recent = now.saturating_sub(self.next) < Nanos(interval.0.saturating_mul(16));
        let needed = self.count - self.first_count;
        self.count = if needed > 1 && recent { needed } else { 1 };
        self.first_count = self.count;
        self.next = after(now, interval, self.count);
        true
    }
}

/// Returns the time of the signal after the `count`-th signal, which was at time `at`.
fn after(at: Nanos, interval: Nanos, count: u64) -> Nanos {
    let square = u128::from(interval.0) * u128::from(interval.0) / u128::from(count.max(1));
    at + Nanos(u64::try_from(square.isqrt()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a frame depart every millisecond from `from_ms` to `to_ms`, each with the wait
    /// `wait_ms`. Returns the times of the signals in milliseconds.
    fn run(codel: &mut Codel, from_ms: u64, to_ms: u64, wait_ms: u64, backlog: bool) -> Vec<u64> {
        let wait = Nanos::from_millis(wait_ms);
        let times = from_ms..to_ms;
        times
            .filter(|ms| codel.signals(wait, Pace::DEFAULT, backlog, Nanos::from_millis(*ms)))
            .collect()
    }

    #[test]
    fn signals_come_after_one_interval_and_then_more_often() {
        let mut codel = Codel::new();
        // 100 ms after the first frame; then 100, 100/√2, 100/√3 ... ms later.
        assert_eq!(run(&mut codel, 0, 480, 6, true), [100, 200, 271, 329, 379, 424, 464]);
    }

    #[test]
    fn no_signal_below_the_target_or_without_a_backlog() {
        let mut codel = Codel::new();
        assert_eq!(run(&mut codel, 0, 1_000, 4, true), []);
        assert_eq!(run(&mut codel, 1_000, 2_000, 50, false), []);
        // One short wait in each interval means that the queue is only a burst.
        for start in (2_000..3_000).step_by(99) {
            assert_eq!(run(&mut codel, start, start + 98, 50, true), []);
            assert_eq!(run(&mut codel, start + 98, start + 99, 1, true), []);
        }
    }

    #[test]
    fn a_very_long_wait_signals_more_often() {
        let signals = |wait| run(&mut Codel::new(), 0, 1_000, wait, true).len();
        let (short, long, longest) = (signals(19), signals(200), signals(5_000));
        assert_eq!(short, signals(6));
        assert!(long > 2 * short && longest > long, "{short}, {long}, {longest}");
    }

    #[test]
    fn after_a_very_long_wait_the_signals_are_few_again() {
        let mut codel = Codel::new();
        let many = run(&mut codel, 0, 1_000, 200, true);
        assert!(many.len() > 100, "{many:?}");
        assert_eq!(run(&mut codel, 1_000, 1_300, 9, true), [1_000, 1_100, 1_171, 1_229, 1_279]);
    }

    #[test]
    fn a_new_series_soon_after_another_starts_at_its_rate() {
        let mut codel = Codel::new();
        let first = run(&mut codel, 0, 1_000, 6, true);
        assert_eq!(run(&mut codel, 1_000, 1_001, 1, true), []);
        let second = run(&mut codel, 1_001, 1_300, 6, true);
        assert_eq!(second[0], 1_101);
        let gap = INTERVAL.0 / u64::try_from(first.len() - 1).unwrap().isqrt() / 1_000_000;
        assert!(second[1] - second[0] <= gap, "{second:?} after {} signals", first.len());
        // After a long pause, the next series starts at one signal per interval again.
        assert_eq!(run(&mut codel, 1_300, 1_301, 1, true), []);
        assert_eq!(run(&mut codel, 9_000, 9_250, 6, true), [9_100, 9_200]);
    }
}
