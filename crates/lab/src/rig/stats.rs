//! Medians and spreads of runs, and ratios of pairs of runs.

use serde::Serialize;

/// Median, minimum and maximum of repeated runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Median of the values of all runs. If the number of runs is even, the median is the mean of
    /// the two middle values.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub runs: usize,
}

impl Spread {
    /// Returns the median and range of `values`, or `None` if there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, min, max, runs: sorted.len() })
    }
}

/// Returns the median of `values`, or NaN if there are no values.
pub(crate) fn middle(values: &[f64]) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

/// Converts a count to a floating-point number, rounded if the count is above 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

/// Returns the median of `above[i] / below[i]`. The runs `above[i]` and `below[i]` directly
/// followed each other, so the machine's speed was similar in both runs.
pub(crate) fn paired_ratio(above: &[f64], below: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> =
        above.iter().zip(below).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b).collect();
    Spread::of(&ratios).map(|s| s.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_and_none_has_none() {
        let spread = Spread::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max, spread.runs), (3.0, 1.0, 5.0, 3));
        assert!((Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap().median - 2.5).abs() < 1e-9);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_pair() {
        // The machine slowed down by a factor of two in the middle. The ratio did not change.
        let theirs = [300.0, 600.0, 600.0];
        let ours = [100.0, 200.0, 200.0];
        assert!((paired_ratio(&theirs, &ours).unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(paired_ratio(&[1.0], &[0.0]), None);
    }
}
