//! `smooth`: the spacing between a VM's frames stays within a window, and their mean at its rate.
//!
//! **Problem.** A token bucket lets a burst pass and then has frames wait for up to a refill
//! period: the mean is right, the delay variation is the period. **Source.** VM jitter §III-C,
//! Figs. 5 and 10.
//!
//! **Quantities.** Rate R. A *group* is what departs at once: a frame, and from [`GROUPS_FROM`] on
//! as much as [`GROUP_TIME`] of the rate, 64 KiB at most. Spacing δ, ns a byte, in a [`Window`]
//! around its centre e^c: of [`WIDTH`] for a frame of 1,500 bytes, or ±30 % where that is less.
//! Credit: a bucket that fills at R, [`DEPTH_TIME`] deep and no less than four of the longest
//! frames; its set point is half.
//!
//! **Rule.** A group of s bytes that departed at t has the next depart at max(arrival, t + s δ).
//! *Fast*, for each group: the more credit is above the set point, the nearer is δ to the window's
//! short end, below it to the long one, and at an end when it is off by half of the set point.
//! *Slow*, every [`INTERVAL`] of which more than half was backlogged: e = ln(the centre's rate/R),
//! and c moves by [`KP`] (e - e') + [`KI`] e, e' being the last, no more than ±[`STEP_MAX`]. In an
//! interval with less work the window drifts, by half its way each, to where R is its long end, so
//! that what comes now and then does not wait. c stays within a factor of four of R. A rate that
//! changes takes the window along at once. *Backstop*: nothing departs that the credit does not
//! cover.
//!
//! **Example** (tests). 2 Mbit/s, 1,500 B: 6 ms apart, from 4.5 to 7.5 at the ends. From four times
//! too slow or too fast it is at its rate after five intervals.
//!
//! **Departures.** The paper delays each packet; a bounded delay limits no rate, so here it is the
//! *spacing* that has a window. What it prints for r has its ends exchanged, and its proportional
//! rule, read literally, is positive feedback. There the rule knows two values; here it is
//! proportional between them, since a spacing that jumps from end to end is jitter of its own (a
//! quarter of the spacing at 2 Mbit/s). Spacing follows from what departed before, as on a slower
//! link: no frame waits for its own length. The slow rule's e is of the spacing that the window
//! gave, not of what departed: what waits for the backstop or does not come is no fault of the
//! window. Gains: poles of z² - (1-Kp-Ki) z - Kp are 0.62 and -0.32. Kd is 0, it would only see
//! sizes. **Bound.** Over any time t no more departs than max(depth, one group) + R x t. **Cost.**
//! A frame: a few multiplications; a logarithm and an exponential an interval. 160 bytes.

use penstock_units::{BitsPerSecond, Nanos};

use super::{FRAME, FRAME_MAX, PARTS, RateError, checked};

/// The window's width for a frame of 1,500 bytes (§IV: "3ms").
pub const WIDTH: Nanos = Nanos::from_millis(3);
/// The window is moved so often (§IV: "1 second").
pub const INTERVAL: Nanos = Nanos::from_secs(1);
/// From this rate on frames depart in groups.
pub const GROUPS_FROM: BitsPerSecond = BitsPerSecond(20_000_000);
/// A group's time at the rate.
pub const GROUP_TIME: Nanos = Nanos::from_micros(500);
/// A group's most bytes: those of a large segment.
pub const GROUP_MAX: u32 = 65_536;
/// The credit's depth as a time at the rate.
pub const DEPTH_TIME: Nanos = Nanos::from_millis(50);
/// Proportional and integral gain of the slow rule, and its largest step.
pub const KP: f64 = 0.2;
/// See [`KP`].
pub const KI: f64 = 0.5;
/// See [`KP`].
pub const STEP_MAX: f64 = 0.7;

const REFERENCE: f64 = 1_500.0;
/// Half of the window's width at most, as a part of the spacing.
const HALF_MAX: f64 = 0.3;
/// How far from the rate the window may be: a factor of four.
const FAR: f64 = 4.0;
const BITS_NS: f64 = 8e9;

/// Where the spacing lies, in ns a byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Its short end.
    pub low: f64,
    /// Its middle.
    pub centre: f64,
    /// Its long end.
    pub high: f64,
}

/// What was seen of an interval.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Bytes of groups behind which something waited, and the spacing they had, in ns.
    bytes: f64,
    spacing: f64,
    /// The same spacing if it had been the centre's.
    central: f64,
    /// Time in which something waited, in ns.
    busy: u64,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Smooth {
    rate: BitsPerSecond,
    /// c.
    centre: f64,
    window: Window,
    /// In parts; may be negative after a frame longer than the bucket is deep.
    credit: i64,
    depth: i64,
    credit_at: Nanos,
    /// The longest frame that is expected.
    longest: u32,
    /// The group that departs or departed last: when, and its bytes.
    group_at: Nanos,
    group: u32,
    group_max: u32,
    last: Nanos,
    interval_at: Nanos,
    seen: Seen,
    /// e of the interval before, if that counted.
    error: Option<f64>,
    intervals: u64,
}

impl Smooth {
    /// At its rate, with half of its credit.
    ///
    /// # Errors
    /// A rate out of range.
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
            seen: Seen::default(),
            error: None,
            intervals: 0,
        };
        smooth.size();
        smooth.credit = smooth.depth / 2;
        smooth.place();
        Ok(smooth)
    }

    /// The same with the window's centre off by a factor: above 1 too slow. To see it come back.
    #[must_use]
    pub fn off_by(mut self, factor: f64) -> Self {
        self.centre += factor.clamp(1.0 / FAR, FAR).ln();
        self.place();
        self
    }

    /// The same for frames up to so many bytes; without, [`FRAME`]. Longer ones keep the rate, but
    /// may have to wait for the backstop.
    #[must_use]
    pub fn frames_up_to(mut self, bytes: u32) -> Self {
        self.longest = bytes.clamp(FRAME, FRAME_MAX);
        self.size();
        self.credit = self.depth / 2;
        self
    }

    /// Depth and groups for the rate.
    fn size(&mut self) {
        let of = |time: Nanos| self.rate.0.saturating_mul(time.0);
        let depth = i64::try_from(of(DEPTH_TIME)).unwrap_or(i64::MAX / 2);
        self.depth = depth.max(4 * i64::from(self.longest) * PARTS);
        let group = u32::try_from(of(GROUP_TIME) / PARTS.unsigned_abs()).unwrap_or(u32::MAX);
        self.group_max = if self.rate < GROUPS_FROM { 0 } else { group.min(GROUP_MAX) };
    }

    /// The window around its centre.
    fn place(&mut self) {
        let due = due(self.rate);
        self.centre = self.centre.clamp((due / FAR).ln(), (due * FAR).ln());
        let centre = self.centre.exp();
        let half = half(self.rate);
        self.window = Window { low: centre * (1.0 - half), centre, high: centre * (1.0 + half) };
    }

    /// The rate.
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// Where the spacing of the last frame lay.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Credit, in bytes, rounded down, as of the last departure.
    #[must_use]
    pub const fn credit(&self) -> i64 {
        self.credit.div_euclid(PARTS)
    }

    /// How deep the credit's bucket is, in bytes.
    #[must_use]
    pub const fn depth(&self) -> i64 {
        self.depth / PARTS
    }

    /// Intervals that have ended.
    #[must_use]
    pub const fn intervals(&self) -> u64 {
        self.intervals
    }

    /// See [`super::Shaper::set_rate`]. Window and credit go along, in proportion.
    ///
    /// # Errors
    /// A rate out of range.
    pub fn set_rate(&mut self, rate: BitsPerSecond) -> Result<(), RateError> {
        let (old, depth) = (self.rate, self.depth);
        self.rate = checked(rate)?;
        self.size();
        self.centre += (due(rate) / due(old)).ln();
        self.place();
        let credit = i128::from(self.credit) * i128::from(self.depth) / i128::from(depth.max(1));
        self.credit = i64::try_from(credit).unwrap_or(0).min(self.depth);
        // What was seen was seen of the old rate.
        (self.error, self.seen, self.interval_at) = (None, Seen::default(), self.last);
        Ok(())
    }

    /// See [`super::Shaper::depart`].
    pub fn depart(&mut self, arrival: Nanos, bytes: u32) -> Nanos {
        let bytes = bytes.min(FRAME_MAX);
        let ready = arrival.max(self.last);
        self.pass(ready);
        let joins = self.group > 0 && self.group.saturating_add(bytes) <= self.group_max;
        let due = if joins || self.group == 0 { ready } else { self.spaced(arrival, ready) };
        let departs = self.backed(due.max(ready), bytes);
        if departs > arrival {
            // What waited did so since it came, or since the one before it went.
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

    /// When a new group departs by the spacing after the last.
    fn spaced(&mut self, arrival: Nanos, ready: Nanos) -> Nanos {
        let bytes = f64::from(self.group);
        let spacing = self.spacing(ready) * bytes;
        let due = self.group_at + nanos(spacing);
        // Also if it is the backstop that it waits for.
        if due > ready || arrival < ready {
            self.seen.bytes += bytes;
            self.seen.spacing += spacing;
            self.seen.central += self.window.centre * bytes;
        }
        due
    }

    /// The fast rule: δ, by the credit that there will be when the group's time at the rate is
    /// over.
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

    /// The backstop: when credit covers the frame, from `due` on.
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

    /// Intervals that end before `now`.
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
            // Nothing departed in the others.
            self.drift(ended - 1);
        }
        self.place();
    }

    /// The slow rule.
    fn control(&mut self, seen: &Seen) {
        // What passed, over the rate, if the fast rule had left the spacing in the middle.
        let rate = seen.bytes / seen.spacing;
        let middle = rate * seen.spacing / seen.central;
        let error = (middle * due(self.rate)).ln();
        let before = self.error.replace(error).unwrap_or(error);
        let step = KP * (error - before) + KI * error;
        self.centre += step.clamp(-STEP_MAX, STEP_MAX);
    }

    /// Towards where the rate is the window's long end.
    fn drift(&mut self, intervals: u64) {
        self.error = None;
        let rest = due(self.rate).ln() - (1.0 + half(self.rate)).ln();
        let left = 0.5_f64.powi(i32::try_from(intervals.min(64)).unwrap_or(64));
        self.centre = rest + (self.centre - rest) * left;
    }
}

/// δ at which a rate is met, in ns a byte.
fn due(rate: BitsPerSecond) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let rate = rate.0 as f64;
    BITS_NS / rate
}

/// Rounded up.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below an hour")]
fn nanos(ns: f64) -> Nanos {
    Nanos(ns.ceil() as u64)
}

/// Half of the window as a part of its centre.
fn half(rate: BitsPerSecond) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let width = WIDTH.0 as f64;
    (width / 2.0 / (REFERENCE * due(rate))).min(HALF_MAX)
}

#[cfg(test)]
mod tests;
