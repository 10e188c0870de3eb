//! Shapers: when a VM's next frame may depart.
//!
//! # Problem
//!
//! A rate limit delays frames, and the guest's users notice the distribution of these delays.
//! Tokens that arrive every 50 ms let a burst pass and then nothing.
//!
//! # Source
//!
//! "Defeating Network Jitter for Virtual Machines" §II-C, §III-C.
//!
//! # Approach
//!
//! A VM's frames depart in order. From each frame's arrival and length, the shaper computes its
//! departure ([`Shaper::depart`]). A shaper stores no frames and sets no timers. Frames wait in
//! their queue, and a [`crate::wheel::Wheel`] reports when they are due.
//!
//! | Shaper | Spacing |
//! |---|---|
//! | [`TokenBucket`] | none: frames that the last refill covers depart at once |
//! | [`Smooth`] | between consecutive frames, within a window |
//!
//! # Limits
//!
//! Rates range from [`RATE_MIN`] to [`RATE_MAX`]. A frame longer than [`segment_max`] should be
//! split before it is shaped. Otherwise it would wait longer than a wheel reaches.

mod smooth;
mod token_bucket;

use core::fmt;

use penstock_units::{BitsPerSecond, Nanos};

pub use smooth::{GROUP_TIME, GROUPS_FROM, INTERVAL, Smooth, WIDTH, Window};
pub use token_bucket::{PERIOD_OF_XEN, TokenBucket};

/// Lowest rate of a shaper.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(256_000);
/// Highest rate of a shaper.
pub const RATE_MAX: BitsPerSecond = BitsPerSecond(10_000_000_000);
/// Length in bytes of a frame of one MTU, which every limit lets pass at once.
pub const FRAME: u32 = 1_514;
/// Longest frame in bytes. A longer length counts as this.
pub const FRAME_MAX: u32 = 1 << 20;
/// Parts of a byte: 1 bit/s yields one part in a nanosecond, so no refill rounds.
const PARTS: i64 = 8_000_000_000;

/// Error: the rate is outside [`RATE_MIN`] to [`RATE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateError(pub BitsPerSecond);

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate {} is out of range; write {RATE_MIN} to {RATE_MAX}", self.0)
    }
}

impl core::error::Error for RateError {}

/// Checks the range of a rate.
///
/// # Errors
/// The rate is out of range.
fn checked(rate: BitsPerSecond) -> Result<BitsPerSecond, RateError> {
    if rate < RATE_MIN || rate > RATE_MAX { Err(RateError(rate)) } else { Ok(rate) }
}

/// Length in bytes that takes at most `time` at `rate`; at least [`FRAME`].
#[must_use]
pub fn segment_max(rate: BitsPerSecond, time: Nanos) -> u32 {
    let bytes = u128::from(rate.0) * u128::from(time.0) / PARTS.unsigned_abs() as u128;
    u32::try_from(bytes).unwrap_or(u32::MAX).max(FRAME)
}

/// The shaper of one VM.
#[derive(Clone, Debug)]
pub enum Shaper {
    /// A token bucket, as in hypervisors. It is the baseline for comparison with [`Smooth`].
    TokenBucket(TokenBucket),
    /// Spacing within a window.
    Smooth(Smooth),
}

impl Shaper {
    /// The departure of the next frame. The frame arrived at `arrival`, after all earlier frames.
    /// It never departs before its arrival or before the previous frame.
    pub fn depart(&mut self, arrival: Nanos, bytes: u32) -> Nanos {
        match self {
            Self::TokenBucket(shaper) => shaper.depart(arrival, bytes),
            Self::Smooth(shaper) => shaper.depart(arrival, bytes),
        }
    }

    /// Changes the rate from the next frame on.
    ///
    /// # Errors
    /// The rate is out of range. The old rate then remains in use.
    pub fn set_rate(&mut self, rate: BitsPerSecond) -> Result<(), RateError> {
        match self {
            Self::TokenBucket(shaper) => shaper.set_rate(rate),
            Self::Smooth(shaper) => shaper.set_rate(rate),
        }
    }

    /// Configured rate, between [`RATE_MIN`] and [`RATE_MAX`].
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        match self {
            Self::TokenBucket(shaper) => shaper.rate(),
            Self::Smooth(shaper) => shaper.rate(),
        }
    }
}
