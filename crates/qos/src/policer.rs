//! Policers mark frames by rate, in bits or frames per second, so that excess frames can be
//! dropped.
//!
//! # Problem
//!
//! Cloud providers limit the rate of VMs in bits or frames per second. Limits in bits or frames per
//! second are the baseline to which cycle buckets are compared (C2QoS §II). Policers also limit VMs
//! while a link is the bottleneck (C2QoS §VII).
//!
//! # Source
//!
//! The markers are from RFC 2697 (single rate three colour marker, srTCM) and RFC 2698 (two rate
//! three colour marker, trTCM).
//!
//! # Approach
//!
//! The level of a bucket is counted in parts of 1/8,000,000,000 byte, or of 1/1,000,000,000 frame
//! for a limit in frames. If the rate is R per second, the bucket gains exactly R parts in each
//! nanosecond, so refills never round. A refill adds the tokens for the time since the last refill,
//! in parts of a byte or frame, up to the bucket's depth. A frame passes if the bucket's level
//! covers the frame's length, which is then subtracted from the level.
//!
//! - In the srTCM, tokens that overflow the committed bucket go to the excess bucket. A frame is
//!   green if the committed bucket has enough tokens, yellow if only the excess bucket has enough,
//!   and otherwise red.
//! - In the trTCM, a frame is red if the peak bucket lacks tokens, and yellow if only the committed
//!   bucket lacks tokens. In the trTCM, a frame is green if both buckets have enough tokens for the
//!   frame; both buckets then lose these tokens.
//!
//! In an example, an srTCM has a CIR of 8 Mbit/s, which is one byte per microsecond. The srTCM of
//! the example has a CBS of 2000 bytes and an EBS of 1000 bytes. The srTCM of the example marks
//! four frames of 1000 bytes green, green, yellow and red. In the example, a frame of 500 bytes
//! that arrives 500 µs later is green.
//!
//! # Frames that wait
//!
//! A limit for which the operator states no depth ([`Spec::waiting`]) marks every frame that the
//! switch takes green and charges it, so the bucket may go into debt. The switch takes no more
//! frames from the port until the debt is paid ([`Policer::wait`]), so the frames wait in the
//! sender's own ring. With a limit that delays frames, a stream of large segments gets its rate. At
//! a rate below [`CUT_BELOW`], the switch cuts large segments first. In any time t, a limit that
//! delays frames passes at most one batch more than the rate yields in t and [`WAIT_DEPTH`]
//! together. A batch has about as many frames as the rate yields in [`BATCH_TIME`]
//! ([`Policer::batch`]), but at least one. The sizes of earlier frames predict the sizes of a
//! batch's frames, so a batch may be longer than its prediction when a sender begins to send longer
//! frames.
//!
//! # What is counted
//!
//! The policer counts bytes from the Ethernet header on, without FCS. The length
//! [`Spec::per_frame`] is the FCS for a purchased rate, or FCS, preamble and gap for the rate of a
//! link. A large segment (TSO) counts as the frames into which it is cut, each with its headers. A
//! port that uses offloads is charged as much as a port that does not use offloads.
//!
//! # Depth and TCP
//!
//! With offloads, a sender sends segments of 64 KiB, and each segment passes or is dropped as a
//! whole. If a round trip is too short to refill the bucket for one segment, all segments in flight
//! are dropped. After the loss of all segments in flight, TCP waits for its retransmission timeout.
//! The default depth of a limit that drops frames is the amount that the rate yields in TCP's
//! retransmission timeout ([`RETRANSMIT_MIN`]). With this default depth, a TCP stream gets its rate
//! on average.
//!
//! # Several threads
//!
//! Several threads may police the same stream. The level of a bucket is one atomic word, and the
//! thread that advances the clock adds the tokens for the elapsed time. If the thread that advances
//! the clock is preempted before it adds the tokens, the bucket lacks the tokens until the thread
//! continues. Concurrent refills never add too many tokens to a bucket.
//!
//! # Departures
//!
//! In the RFCs, a frame longer than the depth of the bucket is always red. By the rule of the RFCs,
//! a port that sends segments of 64 KiB could not send if the depth is below 64 KiB. In Penstock, a
//! *full* bucket lets a longer frame pass and goes into debt. In any period of time, at most
//! max(depth, one frame) + rate × time passes. Frames that are not longer than the depth are marked
//! as in RFC 2697 and RFC 2698, with the same bound.
//!
//! # Cost
//!
//! A batch that is green as a whole takes one or two compare-and-swaps. If some frame of the batch
//! is not green, each frame of the batch takes one or two compare-and-swaps.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond};

use crate::bucket::{Bucket, PARTS_OF_BYTE, PARTS_OF_FRAME};
use crate::frame_sizes::FrameSizes;

/// Lowest rate of a policer, 8 kbit/s.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(8_000);
/// Highest rate of a policer in bits per second.
pub const RATE_MAX: BitsPerSecond = BitsPerSecond(400_000_000_000);
/// Highest rate of a policer in frames per second. For comparison, a link of 400 Gbit/s carries 595
/// million of the shortest frames per second.
pub const PACKETS_MAX: PacketsPerSecond = PacketsPerSecond(1_000_000_000);
/// Largest depth of a bucket in bytes or frames, so that levels and debts fit into 63 bits.
pub const DEPTH_MAX: u32 = 1 << 29;
/// Size of a large segment (TSO) of 64 KiB on the wire. A segment of 64 KiB becomes 46 frames, each
/// with 1,448 bytes of payload, 66 of headers, 4 of VLAN tag and 4 of FCS.
pub const SEGMENT: Size = Size { bytes: 46 * (1_448 + 74), frames: 46 };
/// Minimum retransmission timeout of TCP in Linux. Until the retransmission timeout ends, a TCP
/// stream that lost a whole window sends nothing. If a bucket fills up in less time than the
/// timeout, the bucket loses tokens during the timeout.
pub const RETRANSMIT_MIN: Nanos = Nanos::from_millis(200);
/// Smallest default depth in bytes ([`default_depth`]): four large segments.
pub const DEPTH_DEFAULT_MIN: u32 = 4 * SEGMENT.bytes;
/// Smallest default depth in frames ([`default_frames`]), into which five large segments of 46
/// frames fit.
pub const FRAMES_DEFAULT_MIN: u32 = 256;

/// Depth of the bucket of a limit with waiting frames, as the time in which the rate fills the
/// bucket. In any second, at most 0.4 % more than the rate passes because of the bucket.
pub const WAIT_DEPTH: Nanos = Nanos::from_millis(4);
/// Time in which the rate of a limit with waiting frames yields the tokens of one batch.
pub const BATCH_TIME: Nanos = Nanos::from_millis(1);
/// Longest time for which the debt of one batch lasts, if the batch has more than one frame and no
/// frame is longer than the recent ones. In any second, at most 2 % more than the rate passes
/// because of the debt.
pub const DEBT_TIME: Nanos = Nanos::from_millis(16);
/// Rate in bits per second below which the switch cuts large segments at a limit with waiting
/// frames. At a lower rate, a segment of 64 KiB takes more than 10 ms, and a second that begins
/// with the segment could get 1 % more than the rate.
pub const CUT_BELOW: BitsPerSecond = BitsPerSecond(SEGMENT.bytes as u64 * 8 * 100);
/// Like [`CUT_BELOW`], for a limit in frames per second.
pub const CUT_BELOW_PACKETS: PacketsPerSecond = PacketsPerSecond(SEGMENT.frames as u64 * 100);
/// Smallest depth in bytes of a limit with waiting frames: one frame of 1,518 bytes with a tag.
pub const WAIT_DEPTH_MIN: u32 = 1_522;

/// Colour that a policer gives a frame (RFC 2697 and 2698).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Colour {
    /// The frame is within the committed rate.
    Green,
    /// The frame is above the committed rate, but within the excess burst or the peak rate.
    Yellow,
    /// The frame exceeds the excess burst (srTCM), the peak rate (trTCM) or the rate in frames. A
    /// policer drops red frames.
    Red,
}

/// Size of a single frame, or total size of the frames that result from a segmentation request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Sum of the lengths of all resulting frames in bytes, without FCS.
    pub bytes: u32,
    /// Number of frames that result from a segmentation request; 1 for a single frame.
    pub frames: u32,
}

impl Size {
    /// Returns the time that the frames take at `rate`, with `per_frame` more bytes for each frame.
    pub(crate) fn time_at(self, rate: BitsPerSecond, per_frame: u8) -> Nanos {
        let bytes = u64::from(self.bytes) + u64::from(self.frames) * u64::from(per_frame);
        Nanos((bytes * 8).saturating_mul(1_000_000_000) / rate.0.max(1))
    }

    /// Returns the time that the frames take at `rate` frames per second.
    pub(crate) fn time_at_packets(self, rate: PacketsPerSecond) -> Nanos {
        Nanos(u64::from(self.frames) * 1_000_000_000 / rate.0.max(1))
    }
}

impl core::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.frames = self.frames.saturating_add(other.frames);
    }
}

/// Limit on a stream of frames, with rates and bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The single rate three colour marker of RFC 2697. The bucket depths `cbs` and `ebs` are in
    /// bytes. One of the bucket depths `cbs` and `ebs` may be 0.
    SingleRate {
        /// Committed information rate in bits per second (RFC 2697).
        cir: BitsPerSecond,
        /// Committed burst size of the srTCM in bytes.
        cbs: u32,
        /// Excess burst size of the srTCM in bytes.
        ebs: u32,
    },
    /// The two rate three colour marker of RFC 2698. The bucket depths `cbs` and `pbs` are in
    /// bytes.
    TwoRate {
        /// Committed information rate in bits per second (RFC 2698).
        cir: BitsPerSecond,
        /// Committed burst size of the trTCM in bytes.
        cbs: u32,
        /// Peak information rate in bits per second, not below `cir`.
        pir: BitsPerSecond,
        /// Peak burst size of the trTCM in bytes.
        pbs: u32,
    },
    /// A limit on the rate in frames per second.
    Packets {
        /// Long-term rate of the stream in frames per second.
        rate: PacketsPerSecond,
        /// Number of frames that may pass at once.
        burst: u32,
    },
}

/// A validated limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    limit: Limit,
    per_frame: u8,
    waits: bool,
}

/// Reason why a limit is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// The rate in bits per second is outside [`RATE_MIN`] to [`RATE_MAX`].
    Rate(BitsPerSecond),
    /// The rate in frames per second is 0 or above [`PACKETS_MAX`].
    Packets(PacketsPerSecond),
    /// A bucket depth exceeds [`DEPTH_MAX`].
    Deep(u32),
    /// All bucket depths are 0, so no frame could pass.
    Shallow,
    /// The peak rate (the first number) is below the committed rate (the second number).
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
                write!(f, "peak rate {pir} is below the committed rate {cir}; write at least {cir}")
            }
        }
    }
}

impl core::error::Error for SpecError {}

impl Spec {
    /// Validates a limit.
    ///
    /// # Errors
    /// Returns an error if a rate or a depth is out of range.
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
        Ok(Self { limit, per_frame: 0, waits: false })
    }

    /// Adds `bytes` bytes to the length of each frame. To police the length on a link, the caller
    /// adds 24 bytes (FCS, preamble and gap of Ethernet).
    #[must_use]
    pub const fn per_frame(mut self, bytes: u8) -> Self {
        self.per_frame = bytes;
        self
    }

    /// Makes frames above the rate wait in the sender's ring, instead of dropping them.
    #[must_use]
    pub const fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Whether frames above the rate wait in the sender's ring instead of being dropped.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// Returns the policer's rates and bucket depths, which do not include [`Self::per_frame`].
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }
}

/// Returns the default depth in bytes: the amount that `rate` yields in [`RETRANSMIT_MIN`], and at
/// least [`DEPTH_DEFAULT_MIN`].
#[must_use]
pub fn default_depth(rate: BitsPerSecond) -> u32 {
    depth(rate.0 / 8, RETRANSMIT_MIN, DEPTH_DEFAULT_MIN)
}

/// Returns the default depth in frames, which is computed like [`default_depth`]; at least
/// [`FRAMES_DEFAULT_MIN`].
#[must_use]
pub fn default_frames(rate: PacketsPerSecond) -> u32 {
    depth(rate.0, RETRANSMIT_MIN, FRAMES_DEFAULT_MIN)
}

/// Returns the depth in bytes of a limit with waiting frames: the amount that `rate` yields in
/// [`WAIT_DEPTH`], and at least [`WAIT_DEPTH_MIN`].
#[must_use]
pub fn wait_depth(rate: BitsPerSecond) -> u32 {
    depth(rate.0 / 8, WAIT_DEPTH, WAIT_DEPTH_MIN)
}

/// Returns the depth in frames of a limit with waiting frames, computed like [`wait_depth`]; at
/// least one frame.
#[must_use]
pub fn wait_frames(rate: PacketsPerSecond) -> u32 {
    depth(rate.0, WAIT_DEPTH, 1)
}

/// Returns the smallest depth in bytes at which a TCP stream of large segments gets at least about
/// half of `rate`. The returned depth is the number of bytes or frames that the rate yields in half
/// of [`RETRANSMIT_MIN`], but at least two segments.
#[must_use]
pub fn segments_depth(rate: BitsPerSecond) -> u32 {
    depth(rate.0 / 8, Nanos(RETRANSMIT_MIN.0 / 2), 2 * SEGMENT.bytes)
}

/// Returns the smallest depth in frames at which a TCP stream of large segments gets at least about
/// half of `rate`, computed like [`segments_depth`].
#[must_use]
pub fn segments_frames(rate: PacketsPerSecond) -> u32 {
    depth(rate.0, Nanos(RETRANSMIT_MIN.0 / 2), 2 * SEGMENT.frames)
}

/// Returns the bytes or frames that a rate yields in `time`, but at least `least` and at most
/// [`DEPTH_MAX`].
fn depth(per_second: u64, time: Nanos, least: u32) -> u32 {
    let whole = u128::from(per_second) * u128::from(time.0) / 1_000_000_000;
    u32::try_from(whole).unwrap_or(DEPTH_MAX).clamp(least, DEPTH_MAX)
}

/// Policer of one stream of frames. Several threads may use the policer at once.
#[derive(Debug)]
pub struct Policer {
    spec: Spec,
    /// Time in ns of the last refill: the buckets contain the tokens up to this time.
    at: AtomicU64,
    committed: Bucket,
    /// Excess bucket of an srTCM, or peak bucket of a trTCM. If the limit is in frames per second,
    /// the excess or peak bucket is unused.
    other: Bucket,
    /// Sizes of recent frames in bytes or frames, if frames wait.
    sizes: FrameSizes,
}

impl Policer {
    /// Returns a policer with full buckets.
    #[must_use]
    pub const fn new(spec: Spec) -> Self {
        let (first, second, parts) = match spec.limit {
            Limit::SingleRate { cbs, ebs, .. } => (cbs, ebs, PARTS_OF_BYTE),
            Limit::TwoRate { cbs, pbs, .. } => (cbs, pbs, PARTS_OF_BYTE),
            Limit::Packets { burst, .. } => (burst, 0, PARTS_OF_FRAME),
        };
        let (committed, other) = (Bucket::new(first, parts), Bucket::new(second, parts));
        // A sender that is not known yet may send large segments.
        let segment = match spec.limit {
            Limit::Packets { .. } => SEGMENT.frames,
            _ => SEGMENT.bytes,
        };
        Self { spec, at: AtomicU64::new(0), committed, other, sizes: FrameSizes::new(segment) }
    }

    /// Whether large segments must be cut before the limit, because their frames wait and one
    /// segment takes too long at the limit's rate ([`CUT_BELOW`]).
    #[must_use]
    pub fn cuts(&self) -> bool {
        let slow = match self.spec.limit {
            Limit::SingleRate { cir: rate, .. } | Limit::TwoRate { pir: rate, .. } => {
                rate < CUT_BELOW
            }
            Limit::Packets { rate, .. } => rate < CUT_BELOW_PACKETS,
        };
        slow && self.spec.waits
    }

    /// Returns the time in which the limit's rate passes frames of the size `size`.
    #[must_use]
    pub fn time_for(&self, size: Size) -> Nanos {
        match self.spec.limit {
            Limit::SingleRate { cir: rate, .. } | Limit::TwoRate { pir: rate, .. } => {
                size.time_at(rate, self.spec.per_frame)
            }
            Limit::Packets { rate, .. } => size.time_at_packets(rate),
        }
    }

    /// Returns the limit that the policer enforces.
    #[must_use]
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Adds the tokens earned up to the time `now` to the buckets. All threads must use the same
    /// clock. If `now` is before the last refill, the buckets do not change.
    #[inline]
    pub fn refill(&self, now: Nanos) {
        let at = self.at.load(Ordering::Relaxed);
        if now.0 <= at {
            return;
        }
        // If another thread refilled first, the next refill adds the remaining time.
        if self.at.compare_exchange(at, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.pass(now.0 - at);
        }
    }

    fn pass(&self, nanos: u64) {
        // A product above 64 bits fills any bucket.
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
        // All lengths above the largest depth are equivalent.
        i64::try_from(count.min(u64::from(DEPTH_MAX))).unwrap_or(i64::MAX).saturating_mul(parts)
    }

    /// Charges the sum of a batch if all of its frames are green, and otherwise charges nothing.
    /// Returns false if the batch was not charged; the caller must then check each frame.
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

    /// Returns the colour of a frame that has no colour yet (colour-blind mode).
    #[inline]
    pub fn mark(&self, frame: Size) -> Colour {
        self.mark_aware(frame, Colour::Green)
    }

    /// Returns the colour of a frame that already has a colour (colour-aware mode). The policer may
    /// keep or worsen the colour of a frame (green, yellow, red), but never improves the colour.
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

    /// Charges a batch for a limit whose frames wait ([`Spec::waits`]). The batch passes regardless
    /// of the bucket's level. Returns false if a frame is above the committed rate of a two-rate
    /// limit.
    pub fn charge(&self, frames: impl Iterator<Item = Size> + Clone) -> bool {
        let mut sum = Size::default();
        frames.clone().for_each(|size| sum += size);
        self.sizes.note(frames.map(|size| self.units(size)));
        let parts = self.parts(sum);
        self.strictest().0.spend(parts);
        !matches!(self.spec.limit, Limit::TwoRate { .. }) || self.committed.take(parts)
    }

    /// Returns the time until the bucket is out of debt, for a limit whose frames wait. A wait of 0
    /// means that the switch may take a batch of frames now. The caller must refill the bucket
    /// first.
    pub fn wait(&self) -> Nanos {
        let (bucket, rate) = self.strictest();
        let debt = bucket.level().min(0).unsigned_abs();
        Nanos(debt.div_ceil(rate.max(1)))
    }

    /// Returns the number of frames of the next batch, at most `most` and at least one, for a limit
    /// whose frames wait. Frames with the mean size of the last batch fit into the bucket's tokens
    /// plus the tokens of [`BATCH_TIME`]. If all frames are as long as the longest recent frame,
    /// the debt is at most [`DEBT_TIME`].
    pub fn batch(&self, most: usize) -> usize {
        let (bucket, rate) = self.strictest();
        self.sizes.batch(bucket, rate, self.unit()).min(most)
    }

    /// Returns the bytes or frames that the limit counts for `size`.
    fn units(&self, size: Size) -> u64 {
        u64::try_from(self.parts(size) / self.unit()).unwrap_or(0)
    }

    /// Returns the bucket with the highest rate of the limit, and the rate in parts per nanosecond.
    const fn strictest(&self) -> (&Bucket, u64) {
        match self.spec.limit {
            Limit::SingleRate { cir, .. } => (&self.committed, cir.0),
            Limit::TwoRate { pir, .. } => (&self.other, pir.0),
            Limit::Packets { rate, .. } => (&self.committed, rate.0),
        }
    }

    /// Returns the number of parts (units of a bucket's level) in a byte, or in a frame for a limit
    /// in frames per second.
    const fn unit(&self) -> i64 {
        match self.spec.limit {
            Limit::Packets { .. } => PARTS_OF_FRAME,
            _ => PARTS_OF_BYTE,
        }
    }

    /// Returns the levels of the committed bucket and of the excess or peak bucket, in whole bytes
    /// or frames, rounded down. A negative level is a debt.
    #[must_use]
    pub fn levels(&self) -> (i64, i64) {
        let level = |bucket: &Bucket| bucket.level().div_euclid(self.unit());
        (level(&self.committed), level(&self.other))
    }
}

#[cfg(test)]
mod tests;
