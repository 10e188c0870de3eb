//! Summary of repeated measurements of a cost, and whether the cost was measured or published.

use core::fmt;
use core::str::FromStr;

/// Median and range of a cost in repeated runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median. If the number of measurements is even, the median is the mean of the two middle
    /// values.
    pub median: f64,
    /// Smallest value of the repeated measurements.
    pub min: f64,
    /// Largest value of the repeated measurements.
    pub max: f64,
}

impl Spread {
    /// Returns a spread with equal median, minimum and maximum.
    #[must_use]
    pub const fn exact(value: f64) -> Self {
        Self { median: value, min: value, max: value }
    }

    /// Returns the median and the range of the measured values. Returns `None` if `values` is empty
    /// or contains a value that is not finite.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, min, max })
    }

    /// Multiplies the median, the minimum and the maximum by `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }

    /// Returns the relative uncertainty: half of (maximum - minimum), divided by the median; 0.05
    /// means ± 5 %.
    #[must_use]
    pub fn uncertainty(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / 2.0 / self.median } else { 0.0 }
    }

    /// Returns whether the values can be a cost: finite numbers with a median that is not negative
    /// and is within the range.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let finite = self.min.is_finite() && self.max.is_finite();
        finite && self.min <= self.median && self.median <= self.max && self.median >= 0.0
    }
}

/// Origin of a cost or coefficient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The cost or coefficient was measured on this host.
    Measured,
    /// The cost or coefficient is from a paper, because this host cannot measure it.
    Published,
}

impl Source {
    /// Returns the name of a cost's source, `measured` or `published`, in the cost model's file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Published => "published",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Source {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "measured" => Ok(Self::Measured),
            "published" => Ok(Self::Published),
            _ => Err("a source is \"measured\" or \"published\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_the_ends() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert!((spread.uncertainty() - 0.6).abs() < 1e-12 && spread.is_sound());
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
        assert!(!Spread { median: 1.0, min: 2.0, max: 3.0 }.is_sound());
        assert!(!Spread::exact(-1.0).is_sound() && !Spread::exact(f64::INFINITY).is_sound());
    }
}
