//! The two shapers that VM jitter compares, and the rate limit of Figs. 8 to 10.

use penstock_qos::shaper::{PERIOD_OF_XEN, Shaper, Smooth, TokenBucket};
use penstock_units::BitsPerSecond;

/// Rate limit in Figs. 8 to 10 of VM jitter.
pub(crate) const RATE: BitsPerSecond = BitsPerSecond(2_000_000);

/// One of the two shapers that VM jitter compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A token bucket that is refilled every 50 ms, as in Xen.
    TokenBucket,
    /// A shaper that spaces frames evenly.
    Smooth,
}

impl Kind {
    pub const BOTH: [Self; 2] = [Self::TokenBucket, Self::Smooth];

    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
            Self::Smooth => "smooth",
        }
    }

    /// Creates a shaper of this kind with the rate limit `rate`.
    ///
    /// # Errors
    /// Returns an error if the rate is out of range.
    pub fn shaper(self, rate: BitsPerSecond) -> anyhow::Result<Shaper> {
        Ok(match self {
            Self::TokenBucket => Shaper::TokenBucket(TokenBucket::new(rate, PERIOD_OF_XEN)?),
            Self::Smooth => Shaper::Smooth(Smooth::new(rate)?),
        })
    }
}
