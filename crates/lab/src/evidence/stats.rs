//! Medians, percentiles, distributions and line fits of a set of values.

use penstock_units::Nanos;

/// Returns the cumulative distribution of `values`, as pairs of a value and the percentage of
/// values up to this value.
#[must_use]
pub fn distribution(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let all = count(sorted.len());
    // Limits the number of points to about 2000. A picture cannot show more.
    let stride = (sorted.len() / 2000).max(1);
    let last = sorted.len().saturating_sub(1);
    let kept = |i: usize| i.is_multiple_of(stride) || i == last;
    let step = |(i, value): (usize, f64)| (value, 100.0 * count(i + 1) / all);
    sorted.into_iter().enumerate().filter(|(i, _)| kept(*i)).map(step).collect()
}

/// Returns minimum, lower quartile, median, upper quartile and maximum of `values`. All five
/// numbers are NaN if `values` is empty.
#[must_use]
pub fn five_numbers(values: &[f64]) -> [f64; 5] {
    [0.0, 25.0, 50.0, 75.0, 100.0].map(|p| percentile(values, p))
}

/// Returns the percentile `percent` (0 to 100) of `values`, with linear interpolation. The
/// percentile is NaN if `values` is empty.
#[must_use]
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = (percent / 100.0).clamp(0.0, 1.0) * count(last);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a length")]
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * at.fract()
}

/// A straight line that was fitted to points by least squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Increase of `y` if `x` increases by 1.
    pub slope: f64,
    /// Value of `y` at `x` = 0.
    pub intercept: f64,
    /// Coefficient of determination: the share of `y`'s variance that the line explains.
    pub r2: f64,
}

/// Fits a line to `points`. If the points define no line, all fields of the returned [`Fit`] are
/// NaN.
#[must_use]
pub fn fit(points: &[(f64, f64)]) -> Fit {
    let n = count(points.len());
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x_mean, y_mean) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|(x, y)| of(x - x_mean, y - y_mean)).sum()
    };
    let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
    let slope = xy / xx;
    Fit { slope, intercept: y_mean - slope * x_mean, r2: xy * xy / (xx * yy) }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn count(n: usize) -> f64 {
    n as f64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_percentiles_are_those_of_the_values() {
        assert_eq!(distribution(&[3.0, 1.0, f64::NAN]), [(1.0, 50.0), (3.0, 100.0)]);
        assert_eq!(five_numbers(&[1.0, 2.0, 3.0, 4.0, 5.0]), [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((percentile(&[1.0, 3.0], 50.0) - 2.0).abs() < 1e-12);
        assert!(percentile(&[], 50.0).is_nan());
        let many: Vec<f64> = (0..100_000).map(f64::from).collect();
        assert!(distribution(&many).len() < 2100);
    }

    #[test]
    fn a_line_is_found_and_noise_is_told() {
        let line: Vec<(f64, f64)> =
            (0..5).map(|x| (f64::from(x), 3.0 + 2.0 * f64::from(x))).collect();
        let found = fit(&line);
        assert!((found.slope - 2.0).abs() < 1e-9 && (found.intercept - 3.0).abs() < 1e-9);
        assert!((found.r2 - 1.0).abs() < 1e-9);
        assert!(fit(&[(0.0, 1.0), (1.0, 0.0), (2.0, 1.0), (3.0, 0.0)]).r2 < 0.3);
        assert!(fit(&[]).r2.is_nan());
    }
}
