//! Policers: what is above a rate in bits or frames per second is marked, and dropped.
//!
//! **Problem.** The limits that clouds sell today, as the baseline to compare cycle buckets with
//! (C2QoS §II) and as the help that they need while a link is the bottleneck (§VII). **Source.**
//! RFC 2697 (single rate three colour marker), RFC 2698 (two rate three colour marker).
//! **Quantities.** A bucket's level is kept in parts of a byte (or frame) so small that one
//! nanosecond at a rate of R per second is exactly R parts: 1/8,000,000,000 byte for bits per
//! second, 1/1,000,000,000 frame for frames per second. So no refill rounds and no remainder is to
//! be carried. **Rule.** Refill by the time since the last refill, never above the depth; a frame
//! that the level covers is paid for and passes. srTCM: what overflows the committed bucket goes to
//! the excess one; green if the committed bucket pays, yellow if the excess one does, else red.
//! trTCM: red if the peak bucket cannot pay, yellow if the committed one cannot, else green and
//! both pay. **Example.** CIR 8 Mbit/s is a byte a microsecond: with CBS 2000 and EBS 1000, two
//! frames of 1000 bytes are green, the third is yellow, the fourth red; 500 us later a frame of 500
//! is green.
//!
//! **What is counted.** Bytes of the frame as the switch has it, from the Ethernet header on;
//! [`Spec::per_frame`] adds what each has besides: the FCS for a rate that was sold, and preamble
//! and gap for a link's. A large segment (TSO) counts
//! as the frames that it becomes on a wire, each with its headers: who has offloads pays the same
//! as who has none.
//!
//! **Depth and TCP.** A sender with offloads sends segments of 64 KiB, each of which is dropped
//! whole. If the round trip is shorter than the time in which the bucket earns a segment, all that
//! is in flight is dropped, and TCP waits for its retransmission timeout. So the default depth is
//! what the rate brings in that time ([`RETRANSMIT_MIN`]): then a stream has its rate in the mean.
//!
//! **Several threads** may police one stream together: a level is one atomic word, and who moves
//! the clock on brings the tokens of the time between. A thread that is stopped right between the
//! two has the bucket short by that much until it goes on, never over in sum.
//!
//! **Departure.** By the RFCs a frame longer than the bucket is deep is red for ever, so a port
//! with offloads would starve below a depth of 64 KiB. Here a *full* bucket lets it pass and owes
//! the rest: over any time what passes is at most max(depth, one frame) + rate x time; with
//! frames no longer than the depth that is the RFCs' bound and their rule.
//! **Cost.** A batch that is green as a whole: one or two compare-and-swaps; else as many a frame.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond};

use crate::bucket::{Bucket, PARTS_OF_BYTE, PARTS_OF_FRAME};

/// The slowest rate in bits per second.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(8_000);
/// The fastest rate in bits per second.
pub const RATE_MAX: BitsPerSecond = BitsPerSecond(400_000_000_000);
/// The fastest rate in frames per second: 400 Gbit/s of shortest frames are 595 million.
pub const PACKETS_MAX: PacketsPerSecond = PacketsPerSecond(1_000_000_000);
/// The deepest bucket, in bytes or frames: levels and what they may owe stay within 63 bits.
pub const DEPTH_MAX: u32 = 1 << 29;
/// The most that a large segment (TSO) of 64 KiB takes on the wire, in bytes and in frames: 1,448
/// bytes of payload in each frame, and 66 of headers, 4 of a tag and 4 of FCS before them.
pub const SEGMENT: Size = Size { bytes: 46 * (1_448 + 74), frames: 46 };
/// TCP's least retransmission timeout (Linux). A stream whose window was dropped as a whole sends
/// nothing for so long, and a bucket that holds less loses the tokens of that time.
pub const RETRANSMIT_MIN: Nanos = Nanos::from_millis(200);
/// The least that [`default_depth`] gives, in bytes: four large segments.
pub const DEPTH_DEFAULT_MIN: u32 = 4 * SEGMENT.bytes;
/// The least that [`default_frames`] gives, in frames: five large segments.
pub const FRAMES_DEFAULT_MIN: u32 = 256;

/// RFC 2697 and 2698: the outcome for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Colour {
    /// Within what is committed.
    Green,
    /// Above it, within the excess or the peak.
    Yellow,
    /// Above all; a policer drops it.
    Red,
}

/// What a frame counts: on the wire, its segments one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of all its segments, without FCS.
    pub bytes: u32,
    /// Segments; 1 without segmentation.
    pub frames: u32,
}

impl core::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.frames = self.frames.saturating_add(other.frames);
    }
}

/// What a policer is told to hold a stream to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// RFC 2697; depths in bytes, one of them may be 0.
    SingleRate {
        /// Committed information rate.
        cir: BitsPerSecond,
        /// Committed burst size.
        cbs: u32,
        /// Excess burst size.
        ebs: u32,
    },
    /// RFC 2698; depths in bytes.
    TwoRate {
        /// Committed information rate.
        cir: BitsPerSecond,
        /// Committed burst size.
        cbs: u32,
        /// Peak information rate, no less than `cir`.
        pir: BitsPerSecond,
        /// Peak burst size.
        pbs: u32,
    },
    /// Frames per second, and how many at once.
    Packets {
        /// In the long run.
        rate: PacketsPerSecond,
        /// At once.
        burst: u32,
    },
}

/// A limit that was found possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    limit: Limit,
    per_frame: u8,
}

/// Why a limit is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// A rate in bits per second outside [`RATE_MIN`] to [`RATE_MAX`].
    Rate(BitsPerSecond),
    /// A rate in frames per second that is 0 or above [`PACKETS_MAX`].
    Packets(PacketsPerSecond),
    /// A depth above [`DEPTH_MAX`].
    Deep(u32),
    /// No bucket that could ever let a frame pass.
    Shallow,
    /// A peak rate below the committed one: peak, committed.
    Peak(BitsPerSecond, BitsPerSecond),
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => {
                write!(f, "rate {rate} is out of range; write {RATE_MIN} to {RATE_MAX}")
            }
            Self::Packets(rate) => {
                write!(f, "{rate} frames per second is out of range; write 1 to {PACKETS_MAX}")
            }
            Self::Deep(depth) => write!(f, "burst {depth} is too large; write at most {DEPTH_MAX}"),
            Self::Shallow => f.write_str("a burst of 0 lets no frame pass; write at least 1514"),
            Self::Peak(pir, cir) => {
                write!(f, "peak rate {pir} is below the committed rate {cir}; write at least that")
            }
        }
    }
}

impl core::error::Error for SpecError {}

impl Spec {
    /// Looks at the numbers once, so that a [`Policer`] need not.
    ///
    /// # Errors
    /// A number out of its range.
    pub const fn new(limit: Limit) -> Result<Self, SpecError> {
        let (rates, depths) = match limit {
            Limit::SingleRate { cir, cbs, ebs } => {
                if cbs == 0 && ebs == 0 {
                    return Err(SpecError::Shallow);
                }
                ([cir, cir], [cbs, ebs])
            }
            Limit::TwoRate { cir, cbs, pir, pbs } => {
                if cbs == 0 || pbs == 0 {
                    return Err(SpecError::Shallow);
                }
                ([cir, pir], [cbs, pbs])
            }
            Limit::Packets { rate, burst } => {
                if rate.0 == 0 || rate.0 > PACKETS_MAX.0 {
                    return Err(SpecError::Packets(rate));
                }
                if burst == 0 {
                    return Err(SpecError::Shallow);
                }
                ([RATE_MIN; 2], [burst, burst])
            }
        };
        let [a, b] = rates;
        if a.0 < RATE_MIN.0 || a.0 > RATE_MAX.0 {
            return Err(SpecError::Rate(a));
        }
        if b.0 < RATE_MIN.0 || b.0 > RATE_MAX.0 {
            return Err(SpecError::Rate(b));
        }
        if b.0 < a.0 {
            return Err(SpecError::Peak(b, a));
        }
        let [a, b] = depths;
        if a > DEPTH_MAX || b > DEPTH_MAX {
            return Err(SpecError::Deep(if a > b { a } else { b }));
        }
        Ok(Self { limit, per_frame: 0 })
    }

    /// Counts so many bytes more for each frame on the wire: 24 on Ethernet for FCS, preamble and
    /// gap.
    #[must_use]
    pub const fn per_frame(mut self, bytes: u8) -> Self {
        self.per_frame = bytes;
        self
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }
}

/// A depth in bytes for `rate` where none is given: what the rate brings in [`RETRANSMIT_MIN`], and
/// at least [`DEPTH_DEFAULT_MIN`].
#[must_use]
pub fn default_depth(rate: BitsPerSecond) -> u32 {
    depth(rate.0 / 8, RETRANSMIT_MIN, DEPTH_DEFAULT_MIN)
}

/// A depth in frames, likewise; at least [`FRAMES_DEFAULT_MIN`].
#[must_use]
pub fn default_frames(rate: PacketsPerSecond) -> u32 {
    depth(rate.0, RETRANSMIT_MIN, FRAMES_DEFAULT_MIN)
}

/// Least depth in bytes for `rate` with which a TCP stream of large segments has about half of it
/// or more: two segments, and what the rate brings in half of [`RETRANSMIT_MIN`].
#[must_use]
pub fn segments_depth(rate: BitsPerSecond) -> u32 {
    depth(rate.0 / 8, Nanos(RETRANSMIT_MIN.0 / 2), 2 * SEGMENT.bytes)
}

/// The same in frames.
#[must_use]
pub fn segments_frames(rate: PacketsPerSecond) -> u32 {
    depth(rate.0, Nanos(RETRANSMIT_MIN.0 / 2), 2 * SEGMENT.frames)
}

/// What comes in `time` at so much a second, from `least` to [`DEPTH_MAX`].
fn depth(per_second: u64, time: Nanos, least: u32) -> u32 {
    let whole = u128::from(per_second) * u128::from(time.0) / 1_000_000_000;
    u32::try_from(whole).unwrap_or(DEPTH_MAX).clamp(least, DEPTH_MAX)
}

/// Holds one stream to its limit; see the module's text.
#[derive(Debug)]
pub struct Policer {
    spec: Spec,
    /// Up to when tokens have been brought.
    at: AtomicU64,
    committed: Bucket,
    /// The excess bucket, or the peak one; without use for frames per second.
    other: Bucket,
}

impl Policer {
    /// With full buckets.
    #[must_use]
    pub const fn new(spec: Spec) -> Self {
        let (first, second, parts) = match spec.limit {
            Limit::SingleRate { cbs, ebs, .. } => (cbs, ebs, PARTS_OF_BYTE),
            Limit::TwoRate { cbs, pbs, .. } => (cbs, pbs, PARTS_OF_BYTE),
            Limit::Packets { burst, .. } => (burst, 0, PARTS_OF_FRAME),
        };
        let (committed, other) = (Bucket::new(first, parts), Bucket::new(second, parts));
        Self { spec, at: AtomicU64::new(0), committed, other }
    }

    /// What it was made with.
    #[must_use]
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Brings the tokens of the time up to `now`, on a clock that all who use it share. A time
    /// that lies before the last is no time.
    #[inline]
    pub fn refill(&self, now: Nanos) {
        let at = self.at.load(Ordering::Relaxed);
        if now.0 <= at {
            return;
        }
        // Who comes second leaves the rest of the time to the next refill.
        if self.at.compare_exchange(at, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.pass(now.0 - at);
        }
    }

    fn pass(&self, nanos: u64) {
        // A product that leaves 64 bits is more than two buckets of any depth hold.
        match self.spec.limit {
            Limit::SingleRate { cir, .. } => {
                let over = self.committed.give(cir.0.saturating_mul(nanos));
                if over > 0 {
                    self.other.give(over);
                }
            }
            Limit::TwoRate { cir, pir, .. } => {
                self.committed.give(cir.0.saturating_mul(nanos));
                self.other.give(pir.0.saturating_mul(nanos));
            }
            Limit::Packets { rate, .. } => {
                self.committed.give(rate.0.saturating_mul(nanos));
            }
        }
    }

    #[inline]
    fn parts(&self, size: Size) -> i64 {
        let (count, parts) = match self.spec.limit {
            Limit::Packets { .. } => (u64::from(size.frames), PARTS_OF_FRAME),
            _ => {
                let more = u64::from(size.frames) * u64::from(self.spec.per_frame);
                (u64::from(size.bytes) + more, PARTS_OF_BYTE)
            }
        };
        // Longer than any bucket is deep is all the same.
        i64::try_from(count.min(u64::from(DEPTH_MAX))).unwrap_or(i64::MAX).saturating_mul(parts)
    }

    /// Marks all frames of a batch green at once, if each of them would be; else none is paid for.
    #[inline]
    pub fn all_green(&self, sum: Size) -> bool {
        let parts = self.parts(sum);
        match self.spec.limit {
            Limit::TwoRate { .. } => {
                if !self.other.covers(parts) || !self.committed.covers(parts) {
                    return false;
                }
                self.mark(sum) == Colour::Green
            }
            _ => self.committed.covers(parts) && self.committed.take(parts),
        }
    }

    /// The colour of a frame that comes without one (colour-blind mode).
    #[inline]
    pub fn mark(&self, frame: Size) -> Colour {
        self.mark_aware(frame, Colour::Green)
    }

    /// The colour of a frame that was marked before (colour-aware mode): none gets better.
    #[inline]
    pub fn mark_aware(&self, frame: Size, before: Colour) -> Colour {
        let parts = self.parts(frame);
        match self.spec.limit {
            Limit::SingleRate { .. } => {
                if before == Colour::Green && self.committed.take(parts) {
                    Colour::Green
                } else if before != Colour::Red && self.other.take(parts) {
                    Colour::Yellow
                } else {
                    Colour::Red
                }
            }
            Limit::TwoRate { .. } => {
                if before == Colour::Red || !self.other.take(parts) {
                    Colour::Red
                } else if before == Colour::Green && self.committed.take(parts) {
                    Colour::Green
                } else {
                    Colour::Yellow
                }
            }
            Limit::Packets { .. } => {
                if before != Colour::Red && self.committed.take(parts) {
                    before
                } else {
                    Colour::Red
                }
            }
        }
    }

    /// Levels of the committed and of the other bucket now, in whole bytes or frames, rounded
    /// down; negative while one is owed.
    #[must_use]
    pub fn levels(&self) -> (i64, i64) {
        let parts = match self.spec.limit {
            Limit::Packets { .. } => PARTS_OF_FRAME,
            _ => PARTS_OF_BYTE,
        };
        let level = |bucket: &Bucket| bucket.level().div_euclid(parts);
        (level(&self.committed), level(&self.other))
    }
}

#[cfg(test)]
mod tests;
