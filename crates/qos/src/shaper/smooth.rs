//! `smooth`: keeps the spacing between a VM's frames within a window, and their mean rate at the
//! configured rate.
//!
//! # Problem
//!
//! A token bucket lets a burst pass and then delays frames for up to a refill period. The mean rate
//! is right, but the delay varies by a whole period.
//!
//! # Source
//!
//! VM jitter §III-C, Figs. 5 and 10.
//!
//! # Quantities
//!
//! - R is the rate.
//! - A *group* departs at once. It is a single frame. From [`GROUPS_FROM`] on, it is the frames
//!   that take [`GROUP_TIME`] at the rate, up to 64 KiB.
//! - δ is the spacing in ns per byte. It lies in a [`Window`] around its centre e^c. The window's
//!   width is [`WIDTH`] for a frame of 1,500 bytes, or ±30 % if that is less.
//! - Credit is a bucket that fills at R. Its depth is [`DEPTH_TIME`] and at least four of the
//!   longest frames. Its set point is half the depth.
//!
//! # Approach
//!
//! After a group of s bytes that departed at t, the next departs at max(arrival, t + s δ).
//!
//! - The *fast* rule sets δ for each group. If credit is above the set point, δ moves towards the
//!   window's short end. If credit is below, δ moves towards the long end. δ reaches the end if
//!   credit is off by half of the set point.
//! - The *slow* rule runs after every [`INTERVAL`] that was backlogged for more than half of its
//!   time. e = ln(the centre's rate/R), and c moves by [`KP`] (e - e') + [`KI`] e, where e' is the
//!   previous error. The step is limited to ±[`STEP_MAX`].
//! - In an interval with less backlog, the window drifts by half the distance towards the position
//!   where R is its long end. Occasional frames then do not wait.
//! - c stays within a factor of four of R. A change of the rate moves the window at once.
//! - The *backstop* lets no frame depart that the credit does not cover. Over any time t, at most
//!   max(depth, one group) + R × t departs.
//!
//! The gains put the poles of z² - (1-Kp-Ki) z - Kp at 0.62 and -0.32. Kd is 0, because it would
//! only react to sizes.
//!
//! # Example
//!
//! In a test at 2 Mbit/s, frames of 1,500 bytes are 6 ms apart, with window ends at 4.5 and 7.5 ms.
//! In another test, the shaper starts four times too slow or too fast and reaches its rate after
//! five intervals.
//!
//! # Departures
//!
//! - The paper delays each packet. A bounded delay does not limit a rate, so here the *spacing* has
//!   a window.
//! - The paper prints the ends of r in the wrong order. Its proportional rule, read literally, is
//!   positive feedback.
//! - The paper's rule knows two values. Here the rule is proportional between them. A spacing that
//!   jumps between its ends is jitter too (a quarter of the spacing at 2 Mbit/s).
//! - Spacing depends on earlier departures, as on a slower link. The length of a frame delays only
//!   the frames after it.
//! - The slow rule's e uses the spacing that the window gave, not actual departures. Frames that
//!   wait for the backstop or do not arrive say nothing about the window.
//!
//! # Cost
//!
//! A frame costs a few multiplications, and an interval costs a logarithm and an exponential. A
//! shaper takes 160 bytes.

use penstock_units::{BitsPerSecond, Nanos};

use super::{FRAME, FRAME_MAX, PARTS, RateError, checked};

/// Width of the window for a frame of 1,500 bytes (§IV: "3ms").
pub const WIDTH: Nanos = Nanos::from_millis(3);
/// Interval of the slow rule (§IV: "1 second").
pub const INTERVAL: Nanos = Nanos::from_secs(1);
/// Rate from which frames depart in groups.
pub const GROUPS_FROM: BitsPerSecond = BitsPerSecond(20_000_000);
/// Time that a group takes at the rate.
pub const GROUP_TIME: Nanos = Nanos::from_micros(500);
/// Largest group in bytes: a large segment.
pub const GROUP_MAX: u32 = 65_536;
/// Depth of the credit, as a time at the rate.
pub const DEPTH_TIME: Nanos = Nanos::from_millis(50);
/// Proportional gain of the slow rule.
pub const KP: f64 = 0.2;
/// Integral gain of the slow rule.
pub const KI: f64 = 0.5;
/// Largest step of the slow rule, as a logarithm of the spacing.
pub const STEP_MAX: f64 = 0.7;

const REFERENCE: f64 = 1_500.0;
/// Largest half of the window, as a fraction of the spacing.
const HALF_MAX: f64 = 0.3;
/// Largest deviation of the window from the rate: a factor of four.
const FAR: f64 = 4.0;
const BITS_NS: f64 = 8e9;

/// Window of the spacing, in ns per byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Shortest spacing in the window.
    pub low: f64,
    /// Centre of the window.
    pub centre: f64,
    /// Longest spacing in the window.
    pub high: f64,
}

/// Observations of an interval.
#[derive(Clone, Copy, Debug, Default)]
struct IntervalSums {
    /// Bytes of groups with frames waiting behind them. The next field is the spacing after these
    /// groups, in ns.
    bytes: f64,
    spacing: f64,
    /// The spacing after these groups if δ had been the window's centre, in ns.
    central: f64,
    /// Time in which frames waited, in ns.
    busy: u64,
}

/// The smoothing shaper of one VM.
#[derive(Clone, Debug)]
pub struct Smooth {
    rate: BitsPerSecond,
    /// c: the logarithm of the centre.
    centre: f64,
    window: Window,
    /// Credit in parts; negative after a frame longer than the depth.
    credit: i64,
    depth: i64,
    credit_at: Nanos,
    /// Longest expected frame in bytes.
    longest: u32,
    /// Departure of the last group. The next field is the group's length in bytes.
    group_at: Nanos,
    group: u32,
    group_max: u32,
    last: Nanos,
    interval_at: Nanos,
    seen: IntervalSums,
    /// e of the previous interval. `None` if the slow rule did not run in it.
    error: Option<f64>,
    intervals: u64,
}

impl Smooth {
    /// A shaper that starts at its rate, with half of its credit.
    ///
    /// # Errors
    /// The rate is out of range.
    pub fn new(rate: BitsPerSecond) -> Result<Self, RateError> {
        let rate = checked(rate)?;
        let mut smooth = Self {
            rate,
            centre: due(rate).ln(),
            window: Window { low: 0.0, centre: 0.0, high: 0.0 },
            credit: 0,
            depth: 0,
            credit_at: Nanos(0),
            longest: FRAME,
            group_at: Nanos(0),
            group: 0,
            group_max: 0,
            last: Nanos(0),
            interval_at: Nanos(0),
            seen: IntervalSums::default(),
            error: None,
            intervals: 0,
        };
        smooth.size();
        smooth.credit = smooth.depth / 2;
        smooth.place();
        Ok(smooth)
    }

    /// Multiplies the window's centre by a factor. A factor above 1 makes the shaper too slow.
    /// Tests use this to watch the recovery.
    #[must_use]
    pub fn off_by(mut self, factor: f64) -> Self {
        self.centre += factor.clamp(1.0 / FAR, FAR).ln();
        self.place();
        self
    }

    /// Sets the longest expected frame. The default is [`FRAME`]. Longer frames keep the rate but
    /// may wait for the backstop.
    #[must_use]
    pub fn frames_up_to(mut self, bytes: u32) -> Self {
        self.longest = bytes.clamp(FRAME, FRAME_MAX);
        self.size();
        self.credit = self.depth / 2;
        self
    }

    /// Computes the depth and the group size for the rate.
    fn size(&mut self) {
        let of = |time: Nanos| self.rate.0.saturating_mul(time.0);
        let depth = i64::try_from(of(DEPTH_TIME)).unwrap_or(i64::MAX / 2);
        self.depth = depth.max(4 * i64::from(self.longest) * PARTS);
        let group = u32::try_from(of(GROUP_TIME) / PARTS.unsigned_abs()).unwrap_or(u32::MAX);
        self.group_max = if self.rate < GROUPS_FROM { 0 } else { group.min(GROUP_MAX) };
    }

    /// Places the window around its centre.
    fn place(&mut self) {
        let due = due(self.rate);
        self.centre = self.centre.clamp((due / FAR).ln(), (due * FAR).ln());
        let centre = self.centre.exp();
        let half = half(self.rate);
        self.window = Window { low: centre * (1.0 - half), centre, high: centre * (1.0 + half) };
    }

    /// Configured rate, between [`super::RATE_MIN`] and [`super::RATE_MAX`].
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// The window in which the last frame's spacing lies.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Credit at the last departure in bytes, rounded down.
    #[must_use]
    pub const fn credit(&self) -> i64 {
        self.credit.div_euclid(PARTS)
    }

    /// Depth of the credit in bytes.
    #[must_use]
    pub const fn depth(&self) -> i64 {
        self.depth / PARTS
    }

    /// Number of intervals that have ended.
    #[must_use]
    pub const fn intervals(&self) -> u64 {
        self.intervals
    }

    /// See [`super::Shaper::set_rate`]. Window and credit scale with the rate.
    ///
    /// # Errors
    /// The rate is out of range.
    pub fn set_rate(&mut self, rate: BitsPerSecond) -> Result<(), RateError> {
        let (old, depth) = (self.rate, self.depth);
        self.rate = checked(rate)?;
        self.size();
        self.centre += (due(rate) / due(old)).ln();
        self.place();
        let credit = i128::from(self.credit) * i128::from(self.depth) / i128::from(depth.max(1));
        self.credit = i64::try_from(credit).unwrap_or(0).min(self.depth);
        // Earlier observations belong to the old rate.
        (self.error, self.seen, self.interval_at) = (None, IntervalSums::default(), self.last);
        Ok(())
    }

    /// Computes the departure of the next frame as in [`super::Shaper::depart`].
    pub fn depart(&mut self, arrival: Nanos, bytes: u32) -> Nanos {
        let bytes = bytes.min(FRAME_MAX);
        let ready = arrival.max(self.last);
        self.pass(ready);
        let joins = self.group > 0 && self.group.saturating_add(bytes) <= self.group_max;
        let due = if joins || self.group == 0 { ready } else { self.spaced(arrival, ready) };
        let departs = self.backed(due.max(ready), bytes);
        if departs > arrival {
            // The frame waited since its arrival or since the previous departure, whichever is
            // later.
            self.seen.busy += (departs.0).saturating_sub(ready.0);
        }
        if joins {
            self.group += bytes;
        } else {
            (self.group_at, self.group) = (departs, bytes);
        }
        self.credit -= i64::from(bytes) * PARTS;
        self.last = departs;
        departs
    }

    /// Departure of a new group according to the spacing after the last one.
    fn spaced(&mut self, arrival: Nanos, ready: Nanos) -> Nanos {
        let bytes = f64::from(self.group);
        let spacing = self.spacing(ready) * bytes;
        let due = self.group_at + nanos(spacing);
        // This also counts groups that wait for the backstop.
        if due > ready || arrival < ready {
            self.seen.bytes += bytes;
            self.seen.spacing += spacing;
            self.seen.central += self.window.centre * bytes;
        }
        due
    }

    /// The fast rule: computes δ from the credit at the time when the group ends at the nominal
    /// rate.
    fn spacing(&self, ready: Nanos) -> f64 {
        let central = self.group_at + nanos(f64::from(self.group) * due(self.rate));
        let credit = self.credit_at(ready.max(central));
        #[expect(clippy::cast_precision_loss, reason = "a proportion")]
        let off = (credit - self.depth / 2) as f64 / (self.depth / 4) as f64;
        let Window { low, centre, high } = self.window;
        let part = off.clamp(-1.0, 1.0);
        if part > 0.0 { centre - part * (centre - low) } else { centre - part * (high - centre) }
    }

    fn credit_at(&self, now: Nanos) -> i64 {
        let passed = now.saturating_sub(self.credit_at);
        let room = (self.depth - self.credit).max(0).unsigned_abs();
        let more = self.rate.0.saturating_mul(passed.0).min(room);
        self.credit.saturating_add(i64::try_from(more).unwrap_or(0))
    }

    /// The backstop: the first time from `due` on at which the credit covers the frame.
    fn backed(&mut self, due: Nanos, bytes: u32) -> Nanos {
        self.credit = self.credit_at(due);
        self.credit_at = due;
        let short = (i64::from(bytes) * PARTS).min(self.depth) - self.credit;
        if short <= 0 {
            return due;
        }
        let wait = short.unsigned_abs().div_ceil(self.rate.0);
        let departs = due + Nanos(wait);
        self.credit = self.credit_at(departs);
        self.credit_at = departs;
        departs
    }

    /// Handles the intervals that ended before `now`.
    fn pass(&mut self, now: Nanos) {
        let ended = now.saturating_sub(self.interval_at).0 / INTERVAL.0;
        if ended == 0 {
            return;
        }
        self.interval_at += Nanos(ended * INTERVAL.0);
        self.intervals += ended;
        let seen = core::mem::take(&mut self.seen);
        if seen.busy * 2 > INTERVAL.0 && seen.bytes > 0.0 {
            self.control(&seen);
        } else {
            self.drift(1);
        }
        if ended > 1 {
            // Nothing departed in the other intervals.
            self.drift(ended - 1);
        }
        self.place();
    }

    /// The slow rule: moves the centre by the error of the interval.
    fn control(&mut self, seen: &IntervalSums) {
        // The rate relative to R if the fast rule had kept the spacing at the centre.
        let rate = seen.bytes / seen.spacing;
        let middle = rate * seen.spacing / seen.central;
        let error = (middle * due(self.rate)).ln();
        let before = self.error.replace(error).unwrap_or(error);
        let step = KP * (error - before) + KI * error;
        self.centre += step.clamp(-STEP_MAX, STEP_MAX);
    }

    /// Moves the window towards the position where the rate is its long end.
    fn drift(&mut self, intervals: u64) {
        self.error = None;
        let rest = due(self.rate).ln() - (1.0 + half(self.rate)).ln();
        let left = 0.5_f64.powi(i32::try_from(intervals.min(64)).unwrap_or(64));
        self.centre = rest + (self.centre - rest) * left;
    }
}

/// δ that corresponds to a rate, in ns per byte.
fn due(rate: BitsPerSecond) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let rate = rate.0 as f64;
    BITS_NS / rate
}

/// Rounds up to whole nanoseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below an hour")]
fn nanos(ns: f64) -> Nanos {
    Nanos(ns.ceil() as u64)
}

/// Half of the window's width as a fraction of its centre.
fn half(rate: BitsPerSecond) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let width = WIDTH.0 as f64;
    (width / 2.0 / (REFERENCE * due(rate))).min(HALF_MAX)
}

#[cfg(test)]
mod tests;
