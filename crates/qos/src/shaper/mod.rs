//! Shapers compute the time at which a VM's next frame may depart.
//!
//! # Problem
//!
//! A rate limit without drops delays the frames of a VM. Users of a VM notice how much the delays
//! of frames vary. If tokens are added every 50 ms, for example, no frame passes for up to 50 ms
//! after a burst.
//!
//! # Source
//!
//! The shapers are from "Defeating Network Jitter for Virtual Machines" §II-C and §III-C.
//!
//! # Approach
//!
//! The frames of a VM depart in order. The shaper computes a frame's departure from the frame's
//! arrival and length ([`Shaper::depart`]). The shaper neither stores frames nor sets timers.
//! Frames wait in their queue, and a [`crate::wheel::Wheel`] reports when the frames are due.
//!
//! - With a [`TokenBucket`], a frame departs without a wait if the bucket has enough tokens.
//! - With [`Smooth`], the time between consecutive frames stays within a minimum and a maximum.
//!
//! # Limits
//!
//! Rates range from [`RATE_MIN`] to [`RATE_MAX`]. A frame longer than [`FRAME_MAX`] counts as a
//! frame of [`FRAME_MAX`] bytes.

mod smooth;
mod token_bucket;

use core::fmt;

use penstock_units::{BitsPerSecond, Nanos};

pub use smooth::{GROUP_TIME, GROUPS_FROM, INTERVAL, Smooth, Smoothing, WIDTH, Window};
pub use token_bucket::{PERIOD_OF_XEN, TokenBucket};

/// Lowest rate of a shaper in bits per second.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(256_000);
/// Highest rate of a shaper in bits per second.
pub const RATE_MAX: BitsPerSecond = BitsPerSecond(10_000_000_000);
/// Length in bytes of a frame with a payload of one MTU (1,500 bytes).
pub const FRAME: u32 = 1_514;
/// Longest frame that a shaper supports, in bytes. A shaper treats a longer frame as a frame of
/// [`FRAME_MAX`] bytes.
pub const FRAME_MAX: u32 = 1 << 20;
/// Number of parts in a byte. 1 bit/s yields one part in a nanosecond, so refills never round.
const PARTS: i64 = 8_000_000_000;

/// Error of a rate that is outside [`RATE_MIN`] to [`RATE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateError(pub BitsPerSecond);

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate {} is out of range; write {RATE_MIN} to {RATE_MAX}", self.0)
    }
}

impl core::error::Error for RateError {}

/// Checks that a rate is between [`RATE_MIN`] and [`RATE_MAX`].
///
/// # Errors
/// Returns an error if the rate is out of range.
fn checked(rate: BitsPerSecond) -> Result<BitsPerSecond, RateError> {
    if rate < RATE_MIN || rate > RATE_MAX { Err(RateError(rate)) } else { Ok(rate) }
}

/// The shaper of one VM: a token bucket or a smoothing window.
#[derive(Clone, Debug)]
pub enum Shaper {
    /// Token bucket as in Xen, which is the baseline for comparisons with [`Smooth`].
    TokenBucket(TokenBucket),
    /// Shaper that keeps the time between frames within a minimum and a maximum.
    Smooth(Smooth),
}

impl Shaper {
    /// Returns the departure time of a frame that arrives at `arrival`. The time `arrival` must not
    /// be before the arrival of an earlier frame. The next frame never departs before its arrival
    /// or before the previous frame.
    pub fn depart(&mut self, arrival: Nanos, bytes: u32) -> Nanos {
        match self {
            Self::TokenBucket(shaper) => shaper.depart(arrival, bytes),
            Self::Smooth(shaper) => shaper.depart(arrival, bytes),
        }
    }

    /// Changes the rate of the shaper from the next frame on.
    ///
    /// # Errors
    /// Returns an error if the rate is out of range. After an error, the shaper keeps the old rate.
    pub fn set_rate(&mut self, rate: BitsPerSecond) -> Result<(), RateError> {
        match self {
            Self::TokenBucket(shaper) => shaper.set_rate(rate),
            Self::Smooth(shaper) => shaper.set_rate(rate),
        }
    }

    /// Changes the window and the control interval of a [`Smooth`] shaper from the next frame on.
    /// Another shaper has no window.
    pub fn set_smoothing(&mut self, smoothing: Smoothing) {
        if let Self::Smooth(shaper) = self {
            shaper.set_smoothing(smoothing);
        }
    }

    /// Configured rate of the shaper, between [`RATE_MIN`] and [`RATE_MAX`].
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        match self {
            Self::TokenBucket(shaper) => shaper.rate(),
            Self::Smooth(shaper) => shaper.rate(),
        }
    }
}
