//! A pacer determines the times at which an output may send its waiting frames.

use penstock_qos::policer::CUT_BELOW;
use penstock_qos::shaper::{RateError, Shaper, Smooth, TokenBucket};
use penstock_units::{BitsPerSecond, Nanos};

use super::{Pacing, ShapeTerms, ShaperKind};

/// Longest time by which the switch may send a frame to a link before the frame is due. The limit
/// is about the time of one pass of a worker's loop, 10 us.
const AHEAD: Nanos = Nanos::from_micros(10);
/// Longest delay of a worker after which the worker sends the delayed frames at once.
const LATE_MOST: Nanos = Nanos::from_millis(1);
/// Lowest rate of a link at which whole batches may pass without waiting. A batch of 64 KiB takes
/// 50 us at this rate. On a slower link, frames wait for the link and not for the core.
const DIRECT_LEAST: BitsPerSecond = BitsPerSecond(10_500_000_000);
/// Multiple of the link's rate at which the worker sends delayed frames after a delay above
/// [`LATE_MOST`], to avoid a burst. A worker that shares its core is late by milliseconds, many
/// times per second.
const REPAY_RATE: u64 = 4;
/// Maximum of the link's missed sending time for which the worker can compensate. If the worker is
/// late by more than [`OWED_MOST`], the link loses the sending time above the maximum.
const OWED_MOST: Nanos = Nanos::from_millis(100);
/// Number of bits per byte multiplied by the nanoseconds per second.
const BITS_NS: u64 = 8_000_000_000;

/// Creates a shaper with the rate and the method in `terms`.
///
/// # Errors
/// Returns an error if the shaper does not support the rate.
pub fn shaper(terms: &ShapeTerms) -> Result<Shaper, RateError> {
    Ok(match terms.kind {
        ShaperKind::TokenBucket(period) => {
            Shaper::TokenBucket(TokenBucket::new(terms.rate, period)?)
        }
        ShaperKind::Smooth(smoothing) => {
            Shaper::Smooth(Smooth::new(terms.rate)?.smoothed(smoothing))
        }
    })
}

/// Changes a shaper with the terms `old` to `new`, so that frames sent so far still count. Returns
/// false if only a new shaper can have the terms `new`.
pub(crate) fn reshape(shaper: &mut Shaper, old: &mut ShapeTerms, new: ShapeTerms) -> bool {
    if !old.kind.is_like(new.kind) || shaper.set_rate(new.rate).is_err() {
        return false;
    }
    if let ShaperKind::Smooth(smoothing) = new.kind {
        shaper.set_smoothing(smoothing);
    }
    *old = new;
    true
}

/// State of an output's pacer, one variant for each kind of [`Pacing`].
#[derive(Debug)]
pub(super) enum Pacer {
    None,
    Link {
        rate: BitsPerSecond,
        /// Time at which the link will have sent all accepted frames.
        free: Nanos,
        /// Sending time that the link missed because the worker was late while frames waited.
        /// Delays of the worker up to [`LATE_MOST`] do not count as missed sending time.
        owed: Nanos,
        /// Rounding error of `free`, in nanoseconds multiplied by the link's rate in bit/s. The
        /// exact time is later by less than 1 ns. Without the correction of the rounding error, a
        /// link of 100 Gbit/s would carry 4 % less traffic in small frames.
        rest: u64,
    },
    Shaped {
        terms: ShapeTerms,
        shaper: Box<Shaper>,
        /// Departure time of the next waiting frame. The departure time is `None` if the shaper has
        /// not computed the time yet.
        due: Option<Nanos>,
    },
}

impl Pacer {
    pub(super) fn new(pacing: Pacing) -> Self {
        match pacing {
            Pacing::None => Self::None,
            Pacing::Link(rate) => {
                Self::Link { rate, free: Nanos::ZERO, owed: Nanos::ZERO, rest: 0 }
            }
            Pacing::Shaped(terms) => match shaper(&terms) {
                Ok(shaper) => Self::Shaped { terms, shaper: Box::new(shaper), due: None },
                Err(_) => Self::None,
            },
        }
    }

    /// Changes the pacer's rate from the next frame on, without a jump in departure times. Returns
    /// false if the kind of `to` differs from the pacer's kind.
    pub(super) fn change(&mut self, to: Pacing) -> bool {
        match (self, to) {
            (Self::None, Pacing::None) => true,
            (Self::Link { rate, .. }, Pacing::Link(new)) => {
                *rate = new;
                true
            }
            (Self::Shaped { terms, shaper, .. }, Pacing::Shaped(new)) => {
                reshape(shaper, terms, new)
            }
            _ => false,
        }
    }

    /// Whether large segments must be cut before they wait, because the output would send a segment
    /// at once that takes long at the output's rate.
    pub(super) fn cuts(&self) -> bool {
        match self {
            Self::None => false,
            Self::Link { rate, .. } => *rate < CUT_BELOW,
            Self::Shaped { .. } => true,
        }
    }

    /// Whether a whole batch may pass at time `now` without waiting.
    pub(super) fn passes(&self, now: Nanos) -> bool {
        match self {
            Self::None => true,
            Self::Link { rate, free, .. } => *rate >= DIRECT_LEAST && *free <= now,
            Self::Shaped { .. } => false,
        }
    }

    /// Returns the time in which the pacer sends `wire` bytes on a link. 0 without a rate.
    pub(super) fn time_of(&self, wire: u32) -> Nanos {
        let rate = match self {
            Self::None => return Nanos::ZERO,
            Self::Link { rate, .. } => *rate,
            Self::Shaped { terms, .. } => terms.rate,
        };
        Nanos(u64::from(wire) * BITS_NS / rate.0.max(1))
    }

    /// Returns the time at which the output may send the first waiting frame. The first waiting
    /// frame has `bytes` bytes and arrived at time `since`.
    pub(super) fn due(&mut self, since: Nanos, bytes: u32) -> Nanos {
        match self {
            Self::None => Nanos::ZERO,
            Self::Link { free, .. } => *free,
            Self::Shaped { shaper, due, .. } => {
                *due.get_or_insert_with(|| shaper.depart(since, bytes))
            }
        }
    }

    /// Whether the output may send, at time `now`, a frame that is due at time `due`. If `first` is
    /// true, the frame is the first frame of a burst.
    pub(super) fn goes(&self, due: Nanos, now: Nanos, first: bool) -> bool {
        match self {
            Self::None => true,
            Self::Link { .. } if first => due <= now,
            Self::Link { .. } => due <= now + AHEAD,
            Self::Shaped { .. } => due <= now,
        }
    }

    /// Counts a frame that was sent at time `now` and takes `wire` bytes on a link.
    pub(super) fn went(&mut self, now: Nanos, wire: u32) {
        match self {
            Self::None => {}
            Self::Link { rate, free, owed, rest } => {
                if *free + LATE_MOST < now {
                    *owed = (*owed + now.saturating_sub(*free)).min(OWED_MOST);
                    *free = now;
                }
                let (bits, rate) = (u64::from(wire) * BITS_NS + *rest, rate.0.max(1));
                let time = Nanos(bits / rate);
                *rest = bits % rate;
                let repaid = Nanos(time.0 - time.0 / REPAY_RATE).min(*owed);
                *owed = owed.saturating_sub(repaid);
                *free += time.saturating_sub(repaid);
            }
            Self::Shaped { due, .. } => *due = None,
        }
    }

    /// Counts a frame that was due and is dropped instead of being sent. The next frame must not
    /// leave at the price of the dropped frame, so a shaper counts both.
    pub(super) fn dropped(&mut self) {
        if let Self::Shaped { due, .. } = self {
            *due = None;
        }
    }

    /// Records that the queue was empty until time `now`. The pacer does not compensate for the
    /// idle time of a link, so the link later does not exceed its rate.
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
    use penstock_qos::shaper::Smoothing;
    use proptest::prelude::*;

    use super::*;

    /// Sends frames of the lengths `wires`, repeatedly, for 2 s at `rate`. Before each burst, the
    /// worker is late by the next value in `pauses`. Returns the sent bytes as a fraction of the
    /// bytes that `rate` permits in 2 s, and the maximum number of bytes sent in 1 ms.
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
        /// Checks that a backlogged link carries its rate for all frame lengths, even if the worker
        /// is away for a third of the time.
        #[test]
        fn a_backlogged_link_carries_its_rate(
            rate in prop_oneof![Just(10_000_000_u64), Just(100_000_000), Just(10_000_000_000)],
            wires in proptest::collection::vec(84..9_100_u32, 1..6),
            late in 1_000_000..8_000_000_u64,
        ) {
            // The worker is away for `late`, then looks every 20 us for twice as long.
            let there = usize::try_from(late * 2 / 20_000).unwrap();
            let mut pauses = vec![20_000; there];
            pauses.push(late);
            let (part, _) = carry(rate, &wires, &pauses);
            prop_assert!((0.995..1.005).contains(&part), "{} of the rate", part);
        }
    }

    #[test]
    fn a_frame_does_not_leave_at_the_price_of_a_dropped_one() {
        for kind in [
            ShaperKind::TokenBucket(Nanos::from_millis(10)),
            ShaperKind::Smooth(Smoothing::DEFAULT),
        ] {
            let mut pacer =
                Pacer::new(Pacing::Shaped(ShapeTerms { rate: BitsPerSecond(1_000_000), kind }));
            for _ in 0..200 {
                let _ = pacer.due(Nanos::ZERO, 64);
                pacer.dropped();
            }
            // The rate yields 200 frames of 64 bytes in 102 ms, of which 50 ms may leave at once.
            assert!(pacer.due(Nanos::ZERO, 1_514) > Nanos::from_millis(50));
        }
    }

    #[test]
    fn a_fast_link_carries_its_rate_in_small_frames() {
        let mut pacer = Pacer::new(Pacing::Link(BitsPerSecond(100_000_000_000)));
        (0..1_000).for_each(|_| pacer.went(Nanos::ZERO, 84));
        assert_eq!(pacer.due(Nanos::ZERO, 0), Nanos(6_720));
    }

    #[test]
    fn what_was_missed_is_made_good_without_a_burst() {
        // After an absence of 20 ms, a millisecond carries at most five times its own bytes, plus
        // the frames that may go at once.
        let mut pauses = vec![20_000; 49_000];
        pauses[100] = 20_000_000;
        let (part, most) = carry(100_000_000, &[1_538], &pauses);
        assert!((0.999..1.001).contains(&part), "{part}");
        assert!(most <= (4 + 1) * 12_500 + 2 * 1_538, "{most} bytes in a millisecond");
        // An idle link makes up for nothing.
        let mut pacer = Pacer::new(Pacing::Link(BitsPerSecond(100_000_000)));
        pacer.went(Nanos::from_secs(1), 1_250);
        pacer.was_empty(Nanos::from_secs(2));
        pacer.went(Nanos::from_secs(2), 1_250);
        assert_eq!(pacer.due(Nanos::ZERO, 0), Nanos::from_secs(2) + Nanos(100_000));
    }
}
