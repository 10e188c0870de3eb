//! A claim consists of a statement about a figure, the published value, and the band of valid
//! values.
//!
//! # Approach
//!
//! A claim holds if its measured value lies in the band. The band includes its ends, except with
//! [`Claim::above`] and [`Claim::below`]. A claim that was not measured does not hold. A claim
//! without a band is shown for information, and neither holds nor is missed. The figure's author
//! sets the band, and the measurement does not influence the band.

use serde::{Deserialize, Serialize};

/// A statement about the results of a run, with the band in which the statement holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Name of the claim, unique within its experiment.
    pub id: String,
    pub statement: String,
    /// Value that the paper prints. `None` if the paper prints no value.
    pub published: Option<f64>,
    /// Value that this run measured. `None` if the run measured no value.
    pub measured: Option<f64>,
    /// Unit of all values of the claim.
    pub unit: String,
    /// Lowest value with which the claim holds. `None` if the claim has no lower limit.
    pub low: Option<f64>,
    /// Highest value with which the claim holds. `None` if the claim has no upper limit.
    pub high: Option<f64>,
    /// Whether the claim holds. `None` if the claim has no band.
    pub holds: Option<bool>,
    /// Whether the claim's band excludes its two end values.
    #[serde(skip)]
    open: bool,
}

impl Claim {
    /// Creates a claim without a band and without a measured value.
    #[must_use]
    pub fn new(id: &str, statement: impl Into<String>, unit: &str) -> Self {
        Self {
            id: id.to_owned(),
            statement: statement.into(),
            published: None,
            measured: None,
            unit: unit.to_owned(),
            low: None,
            high: None,
            holds: None,
            open: false,
        }
    }

    /// Creates a claim that is either true or false. The claim's measured value is 1 if `is_so` is
    /// true, and otherwise 0. The claim holds if the measured value is 1.
    #[must_use]
    pub fn truth(id: &str, statement: impl Into<String>, is_so: bool) -> Self {
        let measured = if is_so { 1.0 } else { 0.0 };
        Self::new(id, statement, "1 = yes").published(1.0).at_least(1.0).measured(measured)
    }

    #[must_use]
    pub fn published(mut self, value: f64) -> Self {
        self.published = Some(value);
        self
    }

    /// The claim holds if its measured value is from `low` to `high`.
    #[must_use]
    pub fn within(mut self, low: f64, high: f64) -> Self {
        (self.low, self.high) = (Some(low), Some(high));
        self.judged()
    }

    /// The claim holds if its measured value is at least `low`.
    #[must_use]
    pub fn at_least(mut self, low: f64) -> Self {
        self.low = Some(low);
        self.judged()
    }

    /// The claim holds if its measured value is above `low`.
    #[must_use]
    pub fn above(mut self, low: f64) -> Self {
        (self.low, self.open) = (Some(low), true);
        self.judged()
    }

    /// The claim holds if its measured value is at most `high`.
    #[must_use]
    pub fn at_most(mut self, high: f64) -> Self {
        self.high = Some(high);
        self.judged()
    }

    /// The claim holds if its measured value is below `high`.
    #[must_use]
    pub fn below(mut self, high: f64) -> Self {
        (self.high, self.open) = (Some(high), true);
        self.judged()
    }

    /// Sets the claim's measured value. NaN and infinite values count as not measured.
    #[must_use]
    pub fn measured(mut self, value: f64) -> Self {
        self.measured = Some(value).filter(|v| v.is_finite());
        self.judged()
    }

    fn judged(mut self) -> Self {
        let is_judged = self.low.is_some() || self.high.is_some();
        self.holds = is_judged.then(|| self.measured.is_some_and(|value| self.covers(value)));
        self
    }

    /// Returns true if the claim has a band but does not hold.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.holds == Some(false)
    }

    /// Returns true if `value` lies in the claim's band.
    #[must_use]
    pub fn covers(&self, value: f64) -> bool {
        let above = |low| if self.open { value > low } else { value >= low };
        let below = |high| if self.open { value < high } else { value <= high };
        self.low.is_none_or(above) && self.high.is_none_or(below)
    }

    #[must_use]
    pub fn band(&self) -> String {
        band(self.low, self.high, self.open)
    }
}

/// Returns the band from `low` to `high` as text. The flag `open` is true if the claim's band
/// excludes its two end values.
pub(crate) fn band(low: Option<f64>, high: Option<f64>, open: bool) -> String {
    match (low, high) {
        (Some(low), Some(high)) if (low - high).abs() < f64::EPSILON => number(low),
        (Some(low), Some(high)) => format!("{} to {}", number(low), number(high)),
        (Some(low), None) => format!("{} {}", if open { ">" } else { ">=" }, number(low)),
        (None, Some(high)) => format!("{} {}", if open { "<" } else { "<=" }, number(high)),
        (None, None) => "shown".to_owned(),
    }
}

/// Formats a number with four significant digits and without trailing zeros.
#[must_use]
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    if !magnitude.is_finite() {
        return "-".to_owned();
    }
    if !(-5.0..9.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 8")]
    let digits = (3.0 - magnitude).clamp(0.0, 8.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Formats a value like [`number`], and `None` as a dash.
#[must_use]
pub fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim::new("c", "a claim", "%")
    }

    #[test]
    fn a_band_holds_its_ends_and_an_open_one_does_not() {
        let holds = |claim: Claim| claim.holds.unwrap();
        assert!(holds(claim().within(-1.0, 1.0).measured(1.0)));
        assert!(!holds(claim().within(-1.0, 1.0).measured(1.000_001)));
        assert!(holds(claim().measured(2.0).at_least(2.0)));
        assert!(!holds(claim().above(1.0).measured(1.0)));
        assert!(holds(claim().above(1.0).measured(1.1)));
        assert!(!holds(claim().below(0.5).measured(0.5)));
        assert!(holds(claim().at_most(0.5).measured(0.5)));
    }

    #[test]
    fn what_was_not_measured_never_holds() {
        assert!(claim().at_least(0.0).is_missed());
        assert!(claim().at_least(0.0).measured(f64::NAN).is_missed());
    }

    #[test]
    fn what_has_no_band_is_shown_and_neither_holds_nor_is_missed() {
        for shown in [claim(), claim().measured(3.0), claim().measured(f64::INFINITY)] {
            assert_eq!((shown.holds, shown.is_missed()), (None, false), "{shown:?}");
            assert!(serde_json::to_value(&shown).unwrap()["holds"].is_null());
        }
    }

    #[test]
    fn numbers_have_four_digits_that_count() {
        assert_eq!(number(0.36), "0.36");
        assert_eq!(number(-12.3456), "-12.35");
        assert_eq!(number(488_281.25), "488281");
        assert_eq!(number(0.000_12), "0.00012");
        assert_eq!(number_or_dash(None), "-");
        assert_eq!(claim().within(-30.0, -10.0).band(), "-30 to -10");
        assert_eq!(claim().at_least(5.0).band(), ">= 5");
        assert_eq!(claim().above(1.0).band(), "> 1");
    }

    #[test]
    fn the_json_has_the_keys_that_readers_rely_on() {
        let json = serde_json::to_value(claim().published(-20.0).measured(f64::NAN)).unwrap();
        let keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let wanted = ["id", "statement", "published", "measured", "unit", "low", "high", "holds"];
        assert!(wanted.iter().all(|key| keys.contains(key)) && keys.len() == wanted.len());
        assert!(json["measured"].is_null() && json["low"].is_null());
    }
}
