//! Policers: mark, and drop, traffic above a rate in bits or frames per second.
//!
//! # Problem
//!
//! Clouds sell limits in bits or frames per second. These limits are the baseline for cycle buckets
//! (C2QoS §II). They also assist cycle buckets while a link is the bottleneck (§VII).
//!
//! # Source
//!
//! RFC 2697 (single rate three colour marker) and RFC 2698 (two rate three colour marker).
//!
//! # Approach
//!
//! A bucket's level is counted in parts. A rate of R per second yields exactly R parts in a
//! nanosecond: a part is 1/8,000,000,000 byte for bits per second, or 1/1,000,000,000 frame for
//! frames per second. No refill rounds, so no remainder has to be carried over. A refill adds the
//! parts for the time since the last refill, up to the depth. If the level covers a frame, the
//! frame is paid for and passes.
//!
//! - srTCM: tokens that overflow the committed bucket go to the excess bucket. A frame is green if
//!   the committed bucket pays, yellow if the excess bucket pays, and otherwise red.
//! - trTCM: a frame is red if the peak bucket cannot pay, and yellow if the committed bucket
//!   cannot. Otherwise the frame is green and both buckets pay.
//!
//! For example, a CIR of 8 Mbit/s is a byte per microsecond. With a CBS of 2000 and an EBS of 1000,
//! two frames of 1000 bytes are green, the third is yellow and the fourth red. After 500 µs a frame
//! of 500 bytes is green.
//!
//! # What is counted
//!
//! Bytes are those of the frame in the switch, from the Ethernet header on. [`Spec::per_frame`]
//! adds the FCS for a purchased rate, or also preamble and gap for a link's rate. A large segment
//! (TSO) counts as the frames that it becomes on the wire, each with its headers. A port with
//! offloads therefore pays as much as a port without offloads.
//!
//! # Depth and TCP
//!
//! A sender with offloads sends segments of 64 KiB, and each segment passes or is dropped as a
//! whole. If the round trip is shorter than the time in which the bucket earns a segment, all
//! segments in flight are dropped. TCP then waits for its retransmission timeout. The default depth
//! is therefore the amount that the rate yields in this timeout ([`RETRANSMIT_MIN`]). A stream then
//! gets its rate on average.
//!
//! # Several threads
//!
//! Several threads may police one stream. A level is one atomic word, and the thread that advances
//! the clock adds the tokens for that time. If that thread is preempted in between, the bucket
//! lacks these tokens until the thread continues. The bucket never has too many tokens.
//!
//! # Departures
//!
//! By the RFCs, a frame longer than the bucket's depth is always red, so a port with offloads would
//! starve below a depth of 64 KiB. Here a *full* bucket lets such a frame pass and goes into debt.
//! Over any time, at most max(depth, one frame) + rate × time passes. For frames no longer than the
//! depth, this equals the RFCs' bound and rule.
//!
//! # Cost
//!
//! A batch that is green as a whole takes one or two compare-and-swaps. Otherwise each frame takes
//! this many.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond};

use crate::bucket::{Bucket, PARTS_OF_BYTE, PARTS_OF_FRAME};

/// Lowest rate in bits per second.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(8_000);
/// Highest rate in bits per second.
pub const RATE_MAX: BitsPerSecond = BitsPerSecond(400_000_000_000);
/// Highest rate in frames per second. 400 Gbit/s of shortest frames are 595 million.
pub const PACKETS_MAX: PacketsPerSecond = PacketsPerSecond(1_000_000_000);
/// Largest depth in bytes or frames. Levels and debts stay within 63 bits.
pub const DEPTH_MAX: u32 = 1 << 29;
/// Size on the wire of a large segment (TSO) of 64 KiB. Each frame has 1,448 bytes of payload, 66
/// of headers, 4 of a tag and 4 of FCS.
pub const SEGMENT: Size = Size { bytes: 46 * (1_448 + 74), frames: 46 };
/// TCP's smallest retransmission timeout (Linux). A stream that lost a whole window is silent for
/// this long. If the bucket's depth is less than this time, it overflows and loses tokens during
/// the silence.
pub const RETRANSMIT_MIN: Nanos = Nanos::from_millis(200);
/// Smallest result of [`default_depth`] in bytes: four large segments.
pub const DEPTH_DEFAULT_MIN: u32 = 4 * SEGMENT.bytes;
/// Smallest result of [`default_frames`]: five large segments.
pub const FRAMES_DEFAULT_MIN: u32 = 256;

/// Colour of a frame (RFC 2697 and 2698).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Colour {
    /// The frame is within the committed rate.
    Green,
    /// The frame is above the committed rate, and within the excess burst or the peak rate.
    Yellow,
    /// The frame is above all limits. A policer drops it.
    Red,
}

/// Size of a frame on the wire, summed over its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of all segments, without FCS.
    pub bytes: u32,
    /// Number of segments. 1 without segmentation.
    pub frames: u32,
}

impl core::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.frames = self.frames.saturating_add(other.frames);
    }
}

/// The limit of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The single rate three colour marker of RFC 2697. Depths are in bytes, and one of them may be
    /// 0.
    SingleRate {
        /// Committed information rate (RFC 2697).
        cir: BitsPerSecond,
        /// Committed burst size in bytes.
        cbs: u32,
        /// Excess burst size in bytes.
        ebs: u32,
    },
    /// The two rate three colour marker of RFC 2698. Depths are in bytes.
    TwoRate {
        /// Committed information rate (RFC 2698).
        cir: BitsPerSecond,
        /// Committed burst size in bytes.
        cbs: u32,
        /// Peak information rate, no less than `cir`.
        pir: BitsPerSecond,
        /// Peak burst size in bytes.
        pbs: u32,
    },
    /// A limit in frames per second.
    Packets {
        /// Long-term rate of the stream.
        rate: PacketsPerSecond,
        /// Frames that may pass at once.
        burst: u32,
    },
}

/// A validated limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    limit: Limit,
    per_frame: u8,
}

/// Reason for which a limit is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// The rate in bits per second is outside [`RATE_MIN`] to [`RATE_MAX`].
    Rate(BitsPerSecond),
    /// The rate in frames per second is 0 or above [`PACKETS_MAX`].
    Packets(PacketsPerSecond),
    /// The depth exceeds [`DEPTH_MAX`].
    Deep(u32),
    /// No frame could ever pass the buckets.
    Shallow,
    /// The first rate, the peak rate, is below the second, the committed rate.
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
    /// Validates a limit.
    ///
    /// # Errors
    /// A number is out of range.
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

    /// Adds `bytes` to each frame on the wire. Ethernet's FCS, preamble and gap are 24.
    #[must_use]
    pub const fn per_frame(mut self, bytes: u8) -> Self {
        self.per_frame = bytes;
        self
    }

    /// The limit without the bytes added by [`Self::per_frame`].
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }
}

/// Default depth in bytes: the amount that `rate` yields in [`RETRANSMIT_MIN`], and at least
/// [`DEPTH_DEFAULT_MIN`].
#[must_use]
pub fn default_depth(rate: BitsPerSecond) -> u32 {
    depth(rate.0 / 8, RETRANSMIT_MIN, DEPTH_DEFAULT_MIN)
}

/// Default depth in frames, computed as [`default_depth`]; at least [`FRAMES_DEFAULT_MIN`].
#[must_use]
pub fn default_frames(rate: PacketsPerSecond) -> u32 {
    depth(rate.0, RETRANSMIT_MIN, FRAMES_DEFAULT_MIN)
}

/// Smallest depth in bytes at which a TCP stream of large segments gets about half of `rate` or
/// more. This is the amount that the rate yields in half of [`RETRANSMIT_MIN`], and at least two
/// segments.
#[must_use]
pub fn segments_depth(rate: BitsPerSecond) -> u32 {
    depth(rate.0 / 8, Nanos(RETRANSMIT_MIN.0 / 2), 2 * SEGMENT.bytes)
}

/// As [`segments_depth`], in frames.
#[must_use]
pub fn segments_frames(rate: PacketsPerSecond) -> u32 {
    depth(rate.0, Nanos(RETRANSMIT_MIN.0 / 2), 2 * SEGMENT.frames)
}

/// The amount that a rate yields in `time`, clamped to `least` and [`DEPTH_MAX`].
fn depth(per_second: u64, time: Nanos, least: u32) -> u32 {
    let whole = u128::from(per_second) * u128::from(time.0) / 1_000_000_000;
    u32::try_from(whole).unwrap_or(DEPTH_MAX).clamp(least, DEPTH_MAX)
}

/// The policer of one stream. Several threads may use it at once.
#[derive(Debug)]
pub struct Policer {
    spec: Spec,
    /// Time up to which tokens were added, in ns.
    at: AtomicU64,
    committed: Bucket,
    /// The excess or peak bucket. Unused for a limit in frames per second.
    other: Bucket,
}

impl Policer {
    /// A policer with full buckets.
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

    /// The limit that the policer was made with.
    #[must_use]
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Adds the tokens earned up to `now`. All threads must use the same clock. A time before the
    /// last one is ignored.
    #[inline]
    pub fn refill(&self, now: Nanos) {
        let at = self.at.load(Ordering::Relaxed);
        if now.0 <= at {
            return;
        }
        // The loser of a race leaves the remaining time to the next refill.
        if self.at.compare_exchange(at, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.pass(now.0 - at);
        }
    }

    fn pass(&self, nanos: u64) {
        // A product beyond 64 bits exceeds any two buckets.
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
        // Every length beyond the largest depth is treated the same.
        i64::try_from(count.min(u64::from(DEPTH_MAX))).unwrap_or(i64::MAX).saturating_mul(parts)
    }

    /// Marks all frames of a batch green if each of them would be. Otherwise it charges nothing.
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

    /// Marks a frame without a previous colour (colour-blind mode).
    #[inline]
    pub fn mark(&self, frame: Size) -> Colour {
        self.mark_aware(frame, Colour::Green)
    }

    /// Marks a frame that already has a colour (colour-aware mode). The colour never improves.
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

    /// Levels of the committed bucket and the other bucket in whole bytes or frames, rounded down.
    /// A negative level is a debt.
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
