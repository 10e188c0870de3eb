//! When what waits for an output may go.

use penstock_qos::shaper::{RateError, Shaper, Smooth, TokenBucket};
use penstock_units::{BitsPerSecond, Nanos};

use super::{Pacing, ShapeTerms, ShaperKind};

/// A link takes frames ahead for so long: a turn of the worker costs about that.
const AHEAD: Nanos = Nanos::from_micros(10);
/// A worker that was late by more than this has lost the time: what follows is no burst.
const LATE_MOST: Nanos = Nanos::from_millis(1);
const BITS_NS: u64 = 8_000_000_000;

/// A shaper for `terms`.
///
/// # Errors
/// A rate that no shaper can hold.
pub fn shaper(terms: &ShapeTerms) -> Result<Shaper, RateError> {
    Ok(match terms.kind {
        ShaperKind::TokenBucket(period) => {
            Shaper::TokenBucket(TokenBucket::new(terms.rate, period)?)
        }
        ShaperKind::Smooth => Shaper::Smooth(Smooth::new(terms.rate)?),
    })
}

/// See the module's text.
#[derive(Debug)]
pub(super) enum Pacer {
    None,
    Link {
        rate: BitsPerSecond,
        /// When the link has sent all that it got.
        free: Nanos,
    },
    Shaped {
        terms: ShapeTerms,
        shaper: Box<Shaper>,
        /// When the next frame departs, once that was worked out.
        due: Option<Nanos>,
    },
}

impl Pacer {
    pub(super) fn new(pacing: Pacing) -> Self {
        match pacing {
            Pacing::None => Self::None,
            Pacing::Link(rate) => Self::Link { rate, free: Nanos::ZERO },
            Pacing::Shaped(terms) => match shaper(&terms) {
                Ok(shaper) => Self::Shaped { terms, shaper: Box::new(shaper), due: None },
                Err(_) => Self::None,
            },
        }
    }

    /// Another rate from the next frame on, without a step in what departs. False: this pacer
    /// cannot become that one.
    pub(super) fn change(&mut self, to: Pacing) -> bool {
        match (self, to) {
            (Self::None, Pacing::None) => true,
            (Self::Link { rate, .. }, Pacing::Link(new)) => {
                *rate = new;
                true
            }
            (Self::Shaped { terms, shaper, .. }, Pacing::Shaped(new)) if terms.kind == new.kind => {
                *terms = new;
                shaper.set_rate(new.rate).is_ok()
            }
            _ => false,
        }
    }

    /// When the first frame that waits may go, which is `bytes` long and came at `since`.
    pub(super) fn due(&mut self, since: Nanos, bytes: u32) -> Nanos {
        match self {
            Self::None => Nanos::ZERO,
            Self::Link { free, .. } => *free,
            Self::Shaped { shaper, due, .. } => {
                *due.get_or_insert_with(|| shaper.depart(since, bytes))
            }
        }
    }

    /// Whether a frame that is due at `due` goes at `now` with others that do.
    pub(super) fn goes(&self, due: Nanos, now: Nanos, first: bool) -> bool {
        match self {
            Self::None => true,
            Self::Link { .. } if first => due <= now,
            Self::Link { .. } => due <= now + AHEAD,
            Self::Shaped { .. } => due <= now,
        }
    }

    /// A frame went at `now` that takes `wire` bytes on a link.
    pub(super) fn went(&mut self, now: Nanos, wire: u32) {
        match self {
            Self::None => {}
            Self::Link { rate, free } => {
                let from = (*free).max(now.saturating_sub(LATE_MOST));
                *free = from + Nanos((u64::from(wire) * BITS_NS).div_ceil(rate.0.max(1)));
            }
            Self::Shaped { due, .. } => *due = None,
        }
    }

    /// The line was empty: a link that was idle does not send faster for it.
    pub(super) fn was_empty(&mut self, now: Nanos) {
        if let Self::Link { free, .. } = self {
            *free = (*free).max(now);
        }
    }
}
