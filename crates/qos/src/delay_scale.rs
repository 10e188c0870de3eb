//! A coarse scale for counting delays, with four buckets per octave.
//!
//! A [`crate::delay::Histogram`] is exact to 3 % but takes 9 KiB, which is too much for every port
//! on every worker. The coarse scale counts delays in only [`PARTS`] counters. An octave is the
//! range of delays from a power of two to the next power of two. From 1 µs (1,024 ns) to 2^35 ns
//! (34 s), the scale divides each octave into four parts of equal width. Each quarter of an octave
//! has its own counter of delays. The reported percentile is the middle of a quarter octave, so it
//! differs from the exact value by at most 12 %. Counting a delay takes a few instructions.

use penstock_units::Nanos;

/// Binary logarithm of the shortest delay in ns that the scale distinguishes from 0.
const FIRST: u32 = 10;
/// Number of octaves that the scale covers.
const OCTAVES: u32 = 25;

/// Number of counters of the scale: one for delays below 1 µs, four for each octave, and one for
/// longer delays.
pub const PARTS: usize = (4 * OCTAVES + 2) as usize;

/// Returns the index of the counter that counts a delay, 0 to [`PARTS`] - 1.
#[inline]
#[must_use]
pub fn part_of(delay: Nanos) -> usize {
    let Some(octave) = delay.0.checked_ilog2().filter(|octave| *octave >= FIRST) else { return 0 };
    let within = (delay.0 >> (octave - 2)) & 3;
    let part = 1 + 4 * u64::from(octave - FIRST) + within;
    usize::try_from(part).unwrap_or(PARTS).min(PARTS - 1)
}

/// Returns the delay at which counter `part` ends and the next counter begins. Returns `None` for
/// the last counter, because its range of delays has no end.
#[must_use]
pub fn end_of(part: usize) -> Option<Nanos> {
    let part = u32::try_from(part).ok().filter(|part| *part < 4 * OCTAVES + 1)?;
    match part.checked_sub(1) {
        None => Some(Nanos(1 << FIRST)),
        Some(part) => Some(Nanos(u64::from(5 + part % 4) << (FIRST - 2 + part / 4))),
    }
}

/// Returns the percentile of the delays counted in `counts`, at `milli_percent` thousandths of a
/// percent (50,000 is the median). The returned percentile is the middle of the range of delays
/// that a counter covers. Returns `None` if no delay was counted.
#[must_use]
pub fn percentile(counts: &[u64], milli_percent: u32) -> Option<Nanos> {
    let all: u64 = counts.iter().sum();
    let wide = u128::from(all) * u128::from(milli_percent.min(100_000));
    let rank = u64::try_from(wide.div_ceil(100_000)).unwrap_or(u64::MAX).max(1);
    let mut seen = 0;
    let part = counts.iter().position(|count| {
        seen += count;
        seen >= rank
    })?;
    let begin = part.checked_sub(1).and_then(end_of).unwrap_or(Nanos::ZERO);
    Some(end_of(part).map_or(begin, |end| Nanos(begin.0.midpoint(end.0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_follow_each_other() {
        assert_eq!((part_of(Nanos(0)), part_of(Nanos(1_023)), part_of(Nanos(1_024))), (0, 0, 1));
        for part in 0..PARTS - 1 {
            let end = end_of(part).unwrap();
            assert_eq!((part_of(Nanos(end.0 - 1)), part_of(end)), (part, part + 1));
        }
        assert_eq!((end_of(PARTS - 1), part_of(Nanos(u64::MAX))), (None, PARTS - 1));
        assert_eq!(end_of(PARTS - 2), Some(Nanos(1 << 35)));
    }

    proptest! {
        #[test]
        fn a_percentile_is_within_an_eighth(
            delays in proptest::collection::vec(2_000..10_000_000_000_u64, 1..200),
            milli in 1..=100_000_u32,
        ) {
            let mut counts = [0; PARTS];
            delays.iter().for_each(|delay| counts[part_of(Nanos(*delay))] += 1);
            let mut sorted = delays;
            sorted.sort_unstable();
            let rank = (sorted.len() * milli as usize).div_ceil(100_000).max(1);
            let exact = sorted[rank - 1];
            let got = percentile(&counts, milli).unwrap().0;
            prop_assert!(got.abs_diff(exact) <= exact / 8 + 1, "{got} {exact}");
        }
    }

    #[test]
    fn nothing_counted_has_no_percentile() {
        assert_eq!(percentile(&[0; PARTS], 50_000), None);
    }
}
