//! When what waits for an output may go.

use penstock_qos::shaper::{RateError, Shaper, Smooth, TokenBucket};
use penstock_units::{BitsPerSecond, Nanos};

use super::{Pacing, ShapeTerms, ShaperKind};

/// A link takes frames ahead for so long: a turn of the worker costs about that.
const AHEAD: Nanos = Nanos::from_micros(10);
/// What a worker was late by up to this long it sends at once.
const LATE_MOST: Nanos = Nanos::from_millis(1);
/// What it was late by for longer it makes good at this many times the link's rate, so that no
/// burst follows. A worker that shares its core is late by milliseconds, many times a second.
const REPAY_RATE: u64 = 4;
/// And at most so much of it: what a link missed for longer is lost.
const OWED_MOST: Nanos = Nanos::from_millis(100);
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
        /// What it did not send while frames waited, when that was more than [`LATE_MOST`].
        owed: Nanos,
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
            Pacing::Link(rate) => Self::Link { rate, free: Nanos::ZERO, owed: Nanos::ZERO },
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
            Self::Link { rate, free, owed } => {
                if *free + LATE_MOST < now {
                    *owed = (*owed + now.saturating_sub(*free)).min(OWED_MOST);
                    *free = now;
                }
                let time = Nanos((u64::from(wire) * BITS_NS).div_ceil(rate.0.max(1)));
                let repaid = Nanos(time.0 - time.0 / REPAY_RATE).min(*owed);
                *owed = owed.saturating_sub(repaid);
                *free += time.saturating_sub(repaid);
            }
            Self::Shaped { due, .. } => *due = None,
        }
    }

    /// The line was empty: a link that was idle does not send faster for it.
    pub(super) fn was_empty(&mut self, now: Nanos) {
        if let Self::Link { free, owed, .. } = self
            && *free < now
        {
            (*free, *owed) = (now, Nanos::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sends frames of these lengths, over and over, for 2 s at `rate`, by a worker that is late
    /// by the next of `pauses` each time: the part of the rate that was sent, and the most that
    /// was sent in 1 ms.
    fn carry(rate: u64, wires: &[u32], pauses: &[u64]) -> (f64, u64) {
        let mut pacer = Pacer::new(Pacing::Link(BitsPerSecond(rate)));
        let (mut now, end) = (Nanos::ZERO, Nanos::from_secs(2));
        let (mut sent, mut since, mut burst, mut most) = (0_u64, Nanos::ZERO, 0_u64, 0);
        let mut wires = wires.iter().cycle();
        for pause in pauses.iter().cycle() {
            now = now.max(pacer.due(Nanos::ZERO, 0)) + Nanos(*pause);
            if now >= end {
                break;
            }
            if now > since + Nanos::from_millis(1) {
                (since, burst) = (now, 0);
            }
            let mut first = true;
            loop {
                let due = pacer.due(Nanos::ZERO, 0);
                if !pacer.goes(due, now, first) {
                    break;
                }
                let wire = *wires.next().unwrap();
                pacer.went(now, wire);
                (sent, burst, first) = (sent + u64::from(wire), burst + u64::from(wire), false);
            }
            most = most.max(burst);
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let part = (sent * 8) as f64 / (rate * 2) as f64;
        (part, most)
    }

    proptest! {
        /// A link with frames waiting carries its rate, whatever their lengths, by a worker that
        /// is away for a third of the time, some milliseconds each.
        #[test]
        fn a_backlogged_link_carries_its_rate(
            rate in prop_oneof![Just(10_000_000_u64), Just(100_000_000), Just(10_000_000_000)],
            wires in proptest::collection::vec(84..9_100_u32, 1..6),
            late in 1_000_000..8_000_000_u64,
        ) {
            // Away for `late`, then there for twice as long, a look each 20 us.
            let there = usize::try_from(late * 2 / 20_000).unwrap();
            let mut pauses = vec![20_000; there];
            pauses.push(late);
            let (part, _) = carry(rate, &wires, &pauses);
            prop_assert!((0.995..1.005).contains(&part), "{} of the rate", part);
        }
    }

    #[test]
    fn what_was_missed_is_made_good_without_a_burst() {
        // Away for 20 ms once: in a millisecond no more than that one's, four times over, and what
        // may go at once.
        let mut pauses = vec![20_000; 49_000];
        pauses[100] = 20_000_000;
        let (part, most) = carry(100_000_000, &[1_538], &pauses);
        assert!((0.999..1.001).contains(&part), "{part}");
        assert!(most <= (4 + 1) * 12_500 + 2 * 1_538, "{most} bytes in a millisecond");
        // Nothing is owed to a link that had nothing to send.
        let mut pacer = Pacer::new(Pacing::Link(BitsPerSecond(100_000_000)));
        pacer.went(Nanos::from_secs(1), 1_250);
        pacer.was_empty(Nanos::from_secs(2));
        pacer.went(Nanos::from_secs(2), 1_250);
        assert_eq!(pacer.due(Nanos::ZERO, 0), Nanos::from_secs(2) + Nanos(100_000));
    }
}
