//! A quantity that was measured several times, and where it comes from.

use core::fmt;
use core::str::FromStr;

/// Runs of one thing: the middle one, the least and the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median; of an even number of runs the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// One value without spread.
    #[must_use]
    pub const fn exact(value: f64) -> Self {
        Self { median: value, min: value, max: value }
    }

    /// Of some runs; `None` of none, or if one is not finite.
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

    /// All three times `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }

    /// Half the range as a part of the median: 0.05 is "give or take 5 %".
    #[must_use]
    pub fn uncertainty(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / 2.0 / self.median } else { 0.0 }
    }

    /// Whether it can be a cost: in order, finite, and not below zero in the middle.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let finite = self.min.is_finite() && self.max.is_finite();
        finite && self.min <= self.median && self.median <= self.max && self.median >= 0.0
    }
}

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This host measured it.
    Measured,
    /// This host cannot measure it: a paper states it.
    Published,
}

impl Source {
    /// As in the model's file.
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
