//! Result of a verification: what contracts got that the cost model priced.
//!
//! # Problem
//!
//! Nobody sees from a cost model whether its costs are right. A wrong cost becomes a wrong number
//! of cycles, and a VM gets less or more than it bought.
//!
//! # Approach
//!
//! Contracts are sold by the model, with strict cycles and without learning, and VMs send more than
//! they bought. The rate that the switch delivers, over the rate that was bought, is then the
//! model's cost over the true cost. A case holds if the deviation is within the case's band. The
//! band is twice the uncertainty of the case's costs, but at least [`BAND_LEAST`], because equal
//! measurements differ by about so much, and at most [`BAND_MOST`].
//!
//! # Example
//!
//! The model says that a frame of 64 bytes costs 250 cycles, but it costs 290. A VM that bought 1
//! Mpps gets 250 million cycles per second, which suffice for 0.86 Mpps. The case does not hold.

use core::fmt;

/// Smallest band, as a fraction of the purchased rate.
pub const BAND_LEAST: f64 = 0.03;
/// Largest band, as a fraction of the purchased rate.
pub const BAND_MOST: f64 = 0.08;

/// One contract of a verification.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// The traffic, for example `64 bytes, single flow, 1 rule, split ring`.
    pub name: String,
    /// Frames per second that were bought.
    pub bought: f64,
    /// Frames per second that the switch delivered.
    pub delivered: f64,
    /// Largest permitted deviation, as a fraction of `bought`.
    pub band: f64,
}

impl Verified {
    /// Returns the band for costs with this relative uncertainty
    /// ([`super::CostModel::uncertainty`]).
    #[must_use]
    pub fn band(uncertainty: f64) -> f64 {
        (2.0 * uncertainty).clamp(BAND_LEAST, BAND_MOST)
    }

    /// Returns the deviation of the delivered from the purchased rate, as a fraction of the
    /// purchased rate.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.delivered / self.bought - 1.0
    }

    /// Whether the deviation is within the band.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.deviation().abs() <= self.band
    }

    /// Whether the numbers are those of a contract: finite, a positive purchase, and a band of at
    /// most 1.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let finite = [self.bought, self.delivered, self.band].iter().all(|n| n.is_finite());
        finite && self.bought > 0.0 && self.delivered >= 0.0 && (0.0..=1.0).contains(&self.band)
    }
}

/// All contracts of a verification.
#[derive(Clone, Debug, PartialEq)]
pub struct Verification {
    /// Date and time of the verification, in UTC.
    pub date: String,
    /// Every contract that was measured.
    pub cases: Vec<Verified>,
}

impl Verification {
    /// Whether contracts were measured, and every one got its rate.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.cases.is_empty() && self.cases.iter().all(Verified::holds)
    }

    /// Returns the contract that is furthest outside its band, in proportion to the band.
    #[must_use]
    pub fn worst(&self) -> Option<&Verified> {
        let excess = |case: &Verified| case.deviation().abs() / case.band.max(f64::MIN_POSITIVE);
        self.cases.iter().max_by(|a, b| excess(a).total_cmp(&excess(b)))
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, wrong) =
            (self.cases.len(), self.cases.iter().filter(|case| !case.holds()).count());
        let deviations = || self.cases.iter().map(|case| 100.0 * case.deviation());
        let (least, most) = (
            deviations().fold(f64::INFINITY, f64::min),
            deviations().fold(-f64::INFINITY, f64::max),
        );
        match self.worst().filter(|_| wrong > 0) {
            None if all == 0 => write!(f, "verified {}: no contract was measured", self.date),
            None => write!(
                f,
                "verified {}: {all} contracts of different traffic got {least:+.1} to {most:+.1} % \
                 of their rates",
                self.date
            ),
            Some(worst) => write!(
                f,
                "does not hold: {wrong} of {all} contracts were outside their bands on {}; {} got \
                 {:.0} % of its rate",
                self.date,
                worst.name,
                100.0 * worst.delivered / worst.bought
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, delivered: f64, band: f64) -> Verified {
        Verified { name: name.to_owned(), bought: 1e6, delivered, band }
    }

    fn of(cases: &[Verified]) -> Verification {
        Verification { date: "2026-11-28".to_owned(), cases: cases.to_vec() }
    }

    #[test]
    fn one_contract_outside_its_band_spoils_the_model_and_is_named() {
        let good = of(&[case("a", 0.98e6, 0.03), case("b", 1.01e6, 0.03)]);
        assert!(good.holds());
        assert!(good.to_string().contains("2 contracts of different traffic got -2.0 to +1.0 %"));
        let bad = of(&[case("a", 0.93e6, 0.08), case("64 bytes", 0.86e6, 0.03)]);
        assert!(!bad.holds());
        assert_eq!(
            bad.to_string(),
            "does not hold: 1 of 2 contracts were outside their bands on 2026-11-28; 64 bytes got \
             86 % of its rate"
        );
        assert!(!of(&[]).holds(), "nothing was measured");
        assert!(!of(&[case("too much", 1.15e6, 0.08)]).holds(), "a gift is a wrong cost, too");
    }

    #[test]
    fn an_uncertain_cost_has_a_wider_band_but_a_seventh_is_never_permitted() {
        assert!((Verified::band(0.0) - 0.03).abs() < 1e-12);
        assert!((Verified::band(0.025) - 0.05).abs() < 1e-12);
        // A cost that is too low by 15 % gives 1 / 1.15, which is 13 % less.
        assert!(Verified::band(9.0) < 0.13);
    }
}
