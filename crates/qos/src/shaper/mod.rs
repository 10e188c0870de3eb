//! Shapers: when a VM's next frame may depart.
//!
//! **Problem.** A rate limit is a delay, and how the delays are spread is what a guest's users see:
//! tokens that come every 50 ms let a burst pass and then nothing. **Source.** "Defeating Network
//! Jitter for Virtual Machines" §II-C, §III-C. **Rule.** A VM's frames go in their order; of each,
//! when it arrived and how long it is gives when it departs ([`Shaper::depart`]). A shaper holds no
//! frame and no timer: frames wait where they are, and a [`crate::wheel::Wheel`] says whose time
//! has come.
//!
//! | Shaper | What it spaces |
//! |---|---|
//! | [`TokenBucket`] | nothing: what the last refill brought goes at once |
//! | [`Smooth`] | frame after frame, within a window |
//!
//! **Limits.** [`RATE_MIN`] to [`RATE_MAX`]. A frame longer than [`segment_max`] should be cut
//! before it comes here: it would stand for longer than a wheel reaches.

mod smooth;
mod token_bucket;

use core::fmt;

use penstock_units::{BitsPerSecond, Nanos};

pub use smooth::{GROUP_TIME, GROUPS_FROM, INTERVAL, Smooth, WIDTH, Window};
pub use token_bucket::{PERIOD_OF_XEN, TokenBucket};

/// The slowest rate.
pub const RATE_MIN: BitsPerSecond = BitsPerSecond(256_000);
/// The fastest rate.
pub const RATE_MAX: BitsPerSecond = BitsPerSecond(10_000_000_000);
/// A frame that every limit lets pass at once: one of an MTU.
pub const FRAME: u32 = 1_514;
/// The longest frame; one that is said to be longer counts as this.
pub const FRAME_MAX: u32 = 1 << 20;
/// Parts of a byte: as many as pass in a nanosecond at 1 bit/s, so that no refill rounds.
const PARTS: i64 = 8_000_000_000;

/// A rate that no shaper can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateError(pub BitsPerSecond);

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate {} is out of range; write {RATE_MIN} to {RATE_MAX}", self.0)
    }
}

impl core::error::Error for RateError {}

/// # Errors
/// A rate out of range.
fn checked(rate: BitsPerSecond) -> Result<BitsPerSecond, RateError> {
    if rate < RATE_MIN || rate > RATE_MAX { Err(RateError(rate)) } else { Ok(rate) }
}

/// The longest segment that does not take longer than `time` at a rate, and at least [`FRAME`].
#[must_use]
pub fn segment_max(rate: BitsPerSecond, time: Nanos) -> u32 {
    let bytes = u128::from(rate.0) * u128::from(time.0) / PARTS.unsigned_abs() as u128;
    u32::try_from(bytes).unwrap_or(u32::MAX).max(FRAME)
}

/// One of the shapers.
#[derive(Clone, Debug)]
pub enum Shaper {
    /// The baseline.
    TokenBucket(TokenBucket),
    /// Spacing within a window.
    Smooth(Smooth),
}

impl Shaper {
    /// When the next frame departs, which arrived at `arrival` behind all others before. No earlier
    /// than it arrived, and than the one before it departs.
    pub fn depart(&mut self, arrival: Nanos, bytes: u32) -> Nanos {
        match self {
            Self::TokenBucket(shaper) => shaper.depart(arrival, bytes),
            Self::Smooth(shaper) => shaper.depart(arrival, bytes),
        }
    }

    /// Another rate, from the next frame on.
    ///
    /// # Errors
    /// When it is out of range; the old one stays.
    pub fn set_rate(&mut self, rate: BitsPerSecond) -> Result<(), RateError> {
        match self {
            Self::TokenBucket(shaper) => shaper.set_rate(rate),
            Self::Smooth(shaper) => shaper.set_rate(rate),
        }
    }

    /// The rate.
    #[must_use]
    pub const fn rate(&self) -> BitsPerSecond {
        match self {
            Self::TokenBucket(shaper) => shaper.rate(),
            Self::Smooth(shaper) => shaper.rate(),
        }
    }
}
