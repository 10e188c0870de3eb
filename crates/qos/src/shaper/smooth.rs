//! The shaper `smooth` keeps the spacing between a VM's frames within a window, and their mean rate
//! at the configured rate.
//!
//! # Problem
//!
//! A token bucket lets a burst pass and then delays frames for up to a refill period. The mean rate
//! of a token bucket is right, but the delay varies by a whole refill period.
//!
//! # Source
//!
//! The source is "Defeating Network Jitter for Virtual Machines" §III-C, Figs. 5 and 10.
//!
//! # Quantities
//!
//! - R is the configured rate of the shaper.
//! - A *group* is a set of frames that depart together. At rates below [`GROUPS_FROM`], a group is
//!   a single frame. From the rate [`GROUPS_FROM`] on, a group has the frames that the configured
//!   rate yields in [`GROUP_TIME`], up to 64 KiB.
//! - δ is the spacing in ns per byte: after a frame of s bytes, the next frame departs s·δ later.
//! - The [`Window`] is the range in which the spacing δ must be. The centre of the window is e^c ns
//!   per byte, and the slow rule changes the exponent c. For the spacing after a frame of 1,500
//!   bytes, the window is as wide as [`Smoothing::width`]. Each end of the window of spacings is at
//!   most 30 % away from the window's centre.
//! - The *credit* is the level of a token bucket that fills at the configured rate R. The depth of
//!   the credit is the number of bytes that the configured rate yields in [`DEPTH_TIME`], but at
//!   least four frames of the longest length. The *set point* of the credit is half of the credit's
//!   depth.
//!
//! # Approach
//!
//! If a group of s bytes departed at time t and the spacing is δ, the next group departs at t + s·δ
//! or on its later arrival.
//!
//! - After each group of frames, the *fast* rule computes the spacing δ to the next group from the
//!   credit. If the credit is at its set point, the spacing δ is the centre of the window. A larger
//!   credit shortens the spacing δ between frames, and a smaller credit lengthens the spacing. If
//!   the credit is at most half of its set point, or at least 1.5 times its set point, the spacing
//!   δ is at an end of its window.
//! - The *slow* rule moves the window of the spacing after each [`Smoothing::interval`]. The slow
//!   rule measures the departures of the interval. Their rate r is their bytes divided by the time
//!   between them. The mean spacing m is the time for which the shaper held frames, divided by the
//!   same bytes. Frames with the spacing m departed at the rate r, so the spacing m·r/R yields R.
//!   The slow rule moves the exponent c towards ln(m·r/R), by the part [`GAIN`] of the distance. If
//!   the window's centre differs from the spacing that yields R by more than half of the window's
//!   width, the slow rule moves c by the whole distance.
//! - If frames arrive late, r is lower than the spacing m permits, and the window moves towards
//!   shorter spacings. The window stops at the position at which its longest spacing yields R. If
//!   the VM sends no frames in an interval, the window moves half of the distance to this position.
//!   The `smooth` shaper does not delay frames that arrive only occasionally.
//! - The centre of the window is between a quarter of the spacing that yields R and four times the
//!   spacing that yields R. A change of the rate immediately moves the window.
//! - The *backstop* delays a frame until the credit covers the frame. In any time t, the bytes that
//!   the shaper lets depart are at most max(depth, one group) + R × t.
//!
//! # Why two rules
//!
//! The credit rises by the bytes that R yields and falls by the bytes that depart. While the credit
//! is below its depth, the bytes that depart in a time t differ from R × t by at most the depth.
//! The fast rule keeps the credit below its depth if two conditions hold:
//!
//! - The window contains the spacing that yields R.
//! - The window's shortest spacing makes up for the time that is lost when frames arrive late.
//!
//! The fast rule cannot restore a condition that does not hold, because the fast rule does not move
//! the window. The slow rule restores both conditions. For example, a VM sends twelve frames at
//! once, and the next twelve frames 28 ms after the last departure. Without the slow rule, this VM
//! gets less than R.
//!
//! # Stability
//!
//! - While frames wait, the shaper holds them for the whole time between departures, so m·r is 1.
//!   The slow rule then moves the window's centre towards the spacing that yields R, whatever the
//!   window, the credit and the lengths of frames are. The slow rule therefore does not react to
//!   the fast rule. Both rules together are stable if each rule alone is stable.
//! - The fast rule reduces the credit's distance from its set point by at most 30 % with each
//!   group, because a group has at most a quarter of the depth. The credit does not oscillate.
//! - While frames wait, the slow rule halves the distance of the window's centre from the spacing
//!   that yields R, or removes the distance.
//! - If frames arrive late, a change of c changes ln(m·r/R) in the same direction and by at most as
//!   much. A correction therefore never goes too far, and c does not oscillate. If the VM sends
//!   less than R with any spacing, the window stops at its limit and still contains the spacing
//!   that yields R.
//!
//! The slow rule has no differential gain, because such a gain would only react to single late
//! frames.
//!
//! # Example
//!
//! In a test at 2 Mbit/s, frames of 1,500 bytes depart every 6 ms, and the window extends from 4.5
//! to 7.5 ms. In another test, the shaper starts at a quarter of its rate or at four times its
//! rate. From the third interval on, frames depart at the configured rate.
//!
//! # Departures
//!
//! - In "Defeating Network Jitter", the window limits the delay of each packet, and such a window
//!   does not limit a rate. In Penstock, the window bounds the *spacing* between frames.
//! - The paper "Defeating Network Jitter" prints the two ends of its window in the wrong order. The
//!   proportional rule in "Defeating Network Jitter", as printed, increases the error (positive
//!   feedback).
//! - In "Defeating Network Jitter", the spacing is always at one of the two ends of the window. In
//!   Penstock, the spacing changes in proportion to the credit. If the spacing jumped between the
//!   ends of the window, the jumps would be jitter. At 2 Mbit/s, each end of the window differs
//!   from the mean spacing by a quarter.
//! - In Penstock, the length of a frame delays only the next frames of the VM, not the frame
//!   itself.
//! - In "Defeating Network Jitter", a PID controller moves the window by the deviation of the
//!   credit from its set point. In Penstock, the rate of the departures moves the window. A credit
//!   that is full or empty does not show how far the window is off.
//! - In "Defeating Network Jitter", the window may be anywhere. In Penstock, the window contains
//!   the spacing that yields R after the first correction.
//!
//! # Cost
//!
//! Each frame costs a few multiplications, and each interval costs logarithms and an exponential.
//! The shaper of a VM takes 160 bytes.

use penstock_units::{BitsPerSecond, Nanos};

use super::{FRAME, FRAME_MAX, PARTS, RateError, checked};

/// Width of the window of spacings after a frame of 1,500 bytes; "3ms" in §IV of "Defeating Network
/// Jitter".
pub const WIDTH: Nanos = Nanos::from_millis(3);
/// Control interval of the window ("1 second" in §IV of the paper "Defeating Network Jitter").
pub const INTERVAL: Nanos = Nanos::from_secs(1);
/// Lowest rate at which frames depart in groups.
pub const GROUPS_FROM: BitsPerSecond = BitsPerSecond(20_000_000);
/// Time that a group of frames takes at the configured rate.
pub const GROUP_TIME: Nanos = Nanos::from_micros(500);
/// Largest group of frames in bytes, which is a large segment.
pub const GROUP_MAX: u32 = 65_536;
/// Depth of the credit, as the time in which the configured rate fills it.
pub const DEPTH_TIME: Nanos = Nanos::from_millis(50);
/// Part of the distance to its new position by which the window moves in one interval. With a gain
/// of 1, the window would move by almost half of its width at once when a VM begins to send more.
pub const GAIN: f64 = 0.5;

/// Width of the window and length of the control interval of a [`Smooth`] shaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Smoothing {
    /// Width of the window of spacings after a frame of 1,500 bytes. A wider window keeps the rate
    /// more exactly, and a narrower window lets the spacing vary less.
    pub width: Nanos,
    /// Time between two movements of the window. The shaper uses at least the time of eight frames
    /// of 1,500 bytes.
    pub interval: Nanos,
}

impl Smoothing {
    /// [`WIDTH`] and [`INTERVAL`], the values in §IV of "Defeating Network Jitter".
    pub const DEFAULT: Self = Self { width: WIDTH, interval: INTERVAL };
}

impl Default for Smoothing {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Number of frames of 1,500 bytes that a control interval has at least. With fewer frames, the
/// mean rate of an interval says little.
const INTERVAL_FRAMES: f64 = 8.0;
const REFERENCE: f64 = 1_500.0;
/// Maximum distance of the window's ends from its centre, as a fraction of the centre.
const HALF_MAX: f64 = 0.3;
/// Maximum factor between the window's centre and the spacing that yields the configured rate.
const FAR: f64 = 4.0;
const BITS_NS: f64 = 8e9;

/// Range of permitted spacings between frames, in ns per byte of the earlier frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Shortest spacing in the window, in ns per byte.
    pub low: f64,
    /// Centre of the window, in ns per byte.
    pub centre: f64,
    /// Longest spacing in the window, in ns per byte.
    pub high: f64,
}

/// Sums over the groups of frames whose next group departed in one interval.
#[derive(Clone, Copy, Debug, Default)]
struct Departures {
    bytes: u64,
    /// Time in ns from the departure of each group to the departure of the next group. If the VM
    /// had no frame before the interval began, the time without frames in earlier intervals does
    /// not count.
    time: u64,
    /// Part of `time`, in ns, for which the shaper held the next group: until the spacing passed,
    /// and until the credit covered each frame.
    held: u64,
}

/// The smoothing shaper of one VM.
#[derive(Clone, Debug)]
pub struct Smooth {
    rate: BitsPerSecond,
    smoothing: Smoothing,
    /// Control interval in use, which has at least [`INTERVAL_FRAMES`] frames.
    interval: Nanos,
    /// Natural logarithm of the window's centre (c), where the centre is in ns per byte.
    centre: f64,
    window: Window,
    /// Credit in parts (fractions of a byte); negative after a frame longer than the depth of the
    /// credit.
    credit: i64,
    depth: i64,
    credit_at: Nanos,
    /// Length of the longest expected frame in bytes.
    longest: u32,
    /// Time of departure of the last group of frames. The field `group` is the length in bytes of
    /// the last group of frames.
    group_at: Nanos,
    group: u32,
    group_max: u32,
    last: Nanos,
    interval_at: Nanos,
    seen: Departures,
    intervals: u64,
}

impl Smooth {
    /// Returns a shaper for the rate `rate`. A new shaper's window is centred at the spacing that
    /// yields the rate, and its credit is at the set point.
    ///
    /// # Errors
    /// Returns an error if the rate is out of range.
    pub fn new(rate: BitsPerSecond) -> Result<Self, RateError> {
        let rate = checked(rate)?;
        let mut smooth = Self {
            rate,
            smoothing: Smoothing::DEFAULT,
            interval: INTERVAL,
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
            seen: Departures::default(),
            intervals: 0,
        };
        smooth.size();
        smooth.credit = smooth.depth / 2;
        smooth.place();
        Ok(smooth)
    }

    /// Sets the width of the window and the control interval. The window keeps its centre.
    #[must_use]
    pub fn smoothed(mut self, smoothing: Smoothing) -> Self {
        self.set_smoothing(smoothing);
        self
    }

    /// Changes the width of the window and the control interval from the next frame on.
    pub fn set_smoothing(&mut self, smoothing: Smoothing) {
        self.smoothing = smoothing;
        self.size();
        // A narrower window still contains the spacing that yields the rate.
        self.centre = self.centre.max(self.limit());
        self.place();
    }

    /// Multiplies the centre of the window by `factor`, so that a test can start a shaper at a
    /// wrong rate. A factor above 1 makes the shaper start with a rate below the configured rate.
    #[must_use]
    pub fn off_by(mut self, factor: f64) -> Self {
        self.centre += factor.clamp(1.0 / FAR, FAR).ln();
        self.place();
        self
    }

    /// Sets the length of the longest expected frame. If `frames_up_to` is not called, the longest
    /// expected length is [`FRAME`]. Frames longer than expected may wait until the credit covers
    /// their length, but the rate stays the same.
    #[must_use]
    pub fn frames_up_to(mut self, bytes: u32) -> Self {
        self.longest = bytes.clamp(FRAME, FRAME_MAX);
        self.size();
        self.credit = self.depth / 2;
        self
    }

    /// Computes the depth of the credit, the maximum size of a group and the control interval from
    /// the configured rate.
    fn size(&mut self) {
        let of = |time: Nanos| self.rate.0.saturating_mul(time.0);
        let depth = i64::try_from(of(DEPTH_TIME)).unwrap_or(i64::MAX / 2);
        self.depth = depth.max(4 * i64::from(self.longest) * PARTS);
        let group = u32::try_from(of(GROUP_TIME) / PARTS.unsigned_abs()).unwrap_or(u32::MAX);
        self.group_max = if self.rate < GROUPS_FROM { 0 } else { group.min(GROUP_MAX) };
        let frames = nanos(INTERVAL_FRAMES * REFERENCE * due(self.rate));
        self.interval = self.smoothing.interval.max(frames);
    }

    /// Returns the distance from the window's centre to its ends, as a fraction of the centre.
    fn half(&self) -> f64 {
        (float(self.smoothing.width.0) / 2.0 / (REFERENCE * due(self.rate))).min(HALF_MAX)
    }

    /// Computes the ends of the window from its centre.
    fn place(&mut self) {
        let due = due(self.rate);
        self.centre = self.centre.clamp((due / FAR).ln(), (due * FAR).ln());
        let centre = self.centre.exp();
        let half = self.half();
        self.window = Window { low: centre * (1.0 - half), centre, high: centre * (1.0 + half) };
    }

    /// Configured rate of the shaper, between [`super::RATE_MIN`] and [`super::RATE_MAX`].
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    /// Returns the current window of the spacing.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Returns the credit, in bytes rounded down, when the last group departed.
    #[must_use]
    pub const fn credit(&self) -> i64 {
        self.credit.div_euclid(PARTS)
    }

    /// Maximum credit in bytes, which is the depth of the shaper's token bucket.
    #[must_use]
    pub const fn depth(&self) -> i64 {
        self.depth / PARTS
    }

    /// Returns the number of control intervals ([`Smoothing::interval`]) that have ended.
    #[must_use]
    pub const fn intervals(&self) -> u64 {
        self.intervals
    }

    /// Changes the shaper's rate, as [`super::Shaper::set_rate`] does. The window and the credit
    /// change in proportion to the rate.
    ///
    /// # Errors
    /// Returns an error if the rate is out of range.
    pub fn set_rate(&mut self, rate: BitsPerSecond) -> Result<(), RateError> {
        let (old, depth) = (self.rate, self.depth);
        self.rate = checked(rate)?;
        self.size();
        self.centre += (due(rate) / due(old)).ln();
        self.place();
        let credit = i128::from(self.credit) * i128::from(self.depth) / i128::from(depth.max(1));
        self.credit = i64::try_from(credit).unwrap_or(0).min(self.depth);
        // Departures at the old rate do not count.
        (self.seen, self.interval_at) = (Departures::default(), self.last);
        Ok(())
    }

    /// Returns the departure time of the next frame, as [`super::Shaper::depart`] does.
    pub fn depart(&mut self, arrival: Nanos, bytes: u32) -> Nanos {
        let bytes = bytes.min(FRAME_MAX);
        let ready = arrival.max(self.last);
        self.pass(ready);
        let joins = self.group > 0 && self.group.saturating_add(bytes) <= self.group_max;
        let opens = self.group > 0 && !joins;
        let due = if opens { self.spaced(ready) } else { ready };
        let permitted = due.max(ready);
        let departs = self.backed(permitted, bytes);
        self.seen.held += departs.saturating_sub(permitted).0;
        if opens {
            self.count(due, departs);
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

    /// Returns the earliest time of departure of a new group, which the spacing after the previous
    /// group permits.
    fn spaced(&self, ready: Nanos) -> Nanos {
        self.group_at + nanos(self.spacing(ready) * f64::from(self.group))
    }

    /// Counts the previous group, after which the next group departs at the time `departs`. The
    /// spacing after the previous group ended at the time `due`.
    fn count(&mut self, due: Nanos, departs: Nanos) {
        // Earlier intervals in which the VM had no frame do not count.
        let earlier = self.interval_at.saturating_sub(due);
        let time = departs.saturating_sub(self.group_at).saturating_sub(earlier);
        self.seen.bytes += u64::from(self.group);
        self.seen.time += time.0;
        self.seen.held += due.saturating_sub(self.group_at).0;
    }

    /// Computes the spacing δ from the credit that is expected when the group ends at the
    /// configured rate (the fast rule).
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

    /// Returns the first time, not before `due`, at which the credit covers the frame (the
    /// backstop).
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

    /// Adjusts the window for the intervals that ended before `now` (the slow rule).
    fn pass(&mut self, now: Nanos) {
        let interval = self.interval;
        let ended = now.saturating_sub(self.interval_at).0 / interval.0;
        if ended == 0 {
            return;
        }
        self.interval_at += Nanos(ended * interval.0);
        self.intervals += ended;
        let seen = core::mem::take(&mut self.seen);
        if seen.bytes > 0 {
            self.approach(self.target(seen), 1);
        }
        let idle = now.saturating_sub(self.last).0 / interval.0;
        self.approach(self.limit(), idle);
        self.place();
    }

    /// Returns the exponent c with which the departures `seen` would have had the configured rate.
    /// The number of bytes in `seen` must not be zero.
    fn target(&self, seen: Departures) -> f64 {
        let (bytes, time) = (float(seen.bytes), float(seen.time.max(1)));
        let spacing = float(seen.held.clamp(1, seen.time.max(1))) / bytes;
        // Rate of the departures, as a multiple of the configured rate.
        let rate = bytes / time * due(self.rate);
        (spacing * rate).ln().max(self.limit())
    }

    /// Returns the exponent c at which the window's longest spacing yields the configured rate.
    fn limit(&self) -> f64 {
        (due(self.rate) / (1.0 + self.half())).ln()
    }

    /// Moves the window's centre towards the exponent `target`, for each of `intervals` intervals.
    fn approach(&mut self, target: f64, intervals: u64) {
        let off = (self.centre - due(self.rate).ln()).abs();
        // If the window is too far off, the fast rule cannot keep the rate.
        let gain = if off > self.half() { 1.0 } else { GAIN };
        let left = (1.0 - gain).powi(i32::try_from(intervals.min(64)).unwrap_or(64));
        self.centre = target + (self.centre - target) * left;
    }
}

/// Returns the spacing that yields the rate `rate`, in ns per byte.
fn due(rate: BitsPerSecond) -> f64 {
    BITS_NS / float(rate.0)
}

/// Converts a rate, a number of bytes or a time to a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Converts a floating-point number of nanoseconds to [`Nanos`], rounded up.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below an hour")]
fn nanos(ns: f64) -> Nanos {
    Nanos(ns.ceil() as u64)
}

#[cfg(test)]
mod tests;
