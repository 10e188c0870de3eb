//! Medians and spreads of runs, and ratios of pairs of runs.
//!
//! The interval of a median ([`Ranked`]) is that of the sign test: each value is above the true
//! median with a probability of a half, whatever the distribution of the values is.

use serde::Serialize;

pub(crate) use crate::evidence::stats::float as to_f64;

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

/// Minimum number of values from which [`Ranked::of`] returns an interval.
const RANKED_MIN: usize = 10;

/// Median of values, and the interval that has the true median with a probability of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Ranked {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub values: usize,
}

impl Ranked {
    /// Returns the median of `values` with its interval. Returns `None` if there are fewer than
    /// [`RANKED_MIN`] values, or if a value is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.len() < RANKED_MIN || !values.iter().all(|value| value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let below = values_below(sorted.len());
        let (low, high) = (*sorted.get(below)?, *sorted.get(sorted.len() - 1 - below)?);
        Some(Self { median: middle(&sorted), low, high, values: sorted.len() })
    }
}

/// Returns the number of values below the interval of the median: the largest number that is at
/// most `values / 2 - 0.98 * sqrt(values)`.
fn values_below(values: usize) -> usize {
    // Squared, and without fractions: values - 2 * below >= 1.96 * sqrt(values).
    let is_far = |below: &usize| (values - 2 * below).pow(2) * 10_000 >= 38_416 * values;
    (0..=values / 2).rev().find(is_far).unwrap_or(0)
}

/// Returns the median of `values`, or NaN if there are no values.
pub(crate) fn middle(values: &[f64]) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
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
    fn the_interval_of_a_median_is_taken_by_ranks() {
        let below = [10, 24, 100, 150].map(values_below);
        assert_eq!(below, [1, 7, 40, 62]);
        let values: Vec<f64> = (1..=24).rev().map(f64::from).collect();
        let ranked = Ranked::of(&values).unwrap();
        assert_eq!((ranked.median, ranked.low, ranked.high), (12.5, 8.0, 17.0));
        assert_eq!((ranked.values, Ranked::of(&values[..9])), (24, None));
        assert_eq!(Ranked::of(&[f64::NAN; 12]), None);
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
