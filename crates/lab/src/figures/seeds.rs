//! A run with several seeds: each seed's record, and what became of every claim over all.

use serde::{Deserialize, Serialize};

use crate::evidence::calibrated::Parameter;
use crate::evidence::claim::{number, number_or_dash};
use crate::evidence::stats::five_numbers;
use crate::evidence::{Claim, Mode, Record};

/// A claim over several seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimSummary {
    /// As in [`Claim`].
    pub id: String,
    /// As in [`Claim`].
    pub statement: String,
    /// As in [`Claim`].
    pub published: Option<f64>,
    /// As in [`Claim`].
    pub unit: String,
    /// As in [`Claim`].
    pub low: Option<f64>,
    /// As in [`Claim`].
    pub high: Option<f64>,
    /// The band as text.
    pub band: String,
    /// The smallest value measured; `None`: not measured.
    pub min: Option<f64>,
    /// The median of the measured values.
    pub median: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
    /// With how many seeds it held; 0 of one that is only shown.
    pub held: usize,
    /// Of how many.
    pub of: usize,
    /// The seeds with which it did not hold.
    #[serde(default)]
    pub missed: Vec<u64>,
    /// Whether it held with all; `None`: it has no band and is only shown.
    pub holds: Option<bool>,
}

/// An experiment over several seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The experiment's name.
    pub experiment: String,
    /// Simulated or live.
    pub mode: Mode,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Numbers that were fitted to the outcome.
    #[serde(default)]
    pub calibrated: Vec<Parameter>,
    /// Its claims.
    pub claims: Vec<ClaimSummary>,
}

impl Summary {
    /// The summary of `records`, all of one experiment and mode; `None` of none.
    #[must_use]
    pub fn of(records: &[Record]) -> Option<Self> {
        let first = records.first()?;
        let mut ids: Vec<&Claim> = Vec::new();
        for claim in records.iter().flat_map(|r| &r.claims) {
            if ids.iter().all(|known| known.id != claim.id) {
                ids.push(claim);
            }
        }
        Some(Self {
            experiment: first.experiment.clone(),
            mode: first.mode,
            seeds: records.iter().map(|r| r.seed).collect(),
            calibrated: first.calibrated(),
            claims: ids.into_iter().map(|claim| ClaimSummary::of(claim, records)).collect(),
        })
    }
}

impl ClaimSummary {
    fn of(claim: &Claim, records: &[Record]) -> Self {
        let claims = || records.iter().filter_map(|r| r.claim(&claim.id));
        let values: Vec<f64> = claims().filter_map(|c| c.measured).collect();
        let [min, _, median, _, max] =
            five_numbers(&values).map(|v| Some(v).filter(|v| v.is_finite()));
        let is_judged = claims().any(|claim| claim.holds.is_some());
        let holds = |r: &&Record| r.claim(&claim.id).is_some_and(|c| c.holds == Some(true));
        let missed = records.iter().filter(|record| is_judged && !holds(record));
        let missed: Vec<u64> = missed.map(|record| record.seed).collect();
        Self {
            id: claim.id.clone(),
            statement: claim.statement.clone(),
            published: claim.published,
            unit: claim.unit.clone(),
            low: claim.low,
            high: claim.high,
            band: claim.band(),
            min,
            median,
            max,
            held: records.iter().filter(holds).count(),
            of: records.len(),
            holds: is_judged.then_some(missed.is_empty()),
            missed,
        }
    }

    /// What was measured, as text: the median, and from where to where.
    #[must_use]
    pub fn measured(&self) -> String {
        match (self.min, self.median, self.max) {
            (Some(min), Some(median), Some(max)) if self.of > 1 => {
                format!("{} [{}..{}]", number(median), number(min), number(max))
            }
            (_, median, _) => number_or_dash(median),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    fn record(seed: u64, value: f64) -> Record {
        let claim = Claim::new("a", "A.", "%").within(0.0, 2.0).measured(value);
        Record {
            experiment: "x".to_owned(),
            source: "y".to_owned(),
            mode: Mode::Sim,
            seed,
            platform: Map::new(),
            series: Vec::new(),
            claims: vec![claim],
        }
    }

    #[test]
    fn a_claim_holds_over_seeds_when_it_holds_with_each() {
        let all = [record(1, 1.0), record(2, 2.0), record(3, 1.5)];
        let summary = Summary::of(&all).unwrap();
        let claim = &summary.claims[0];
        assert_eq!((claim.min, claim.median, claim.max), (Some(1.0), Some(1.5), Some(2.0)));
        assert!(claim.holds == Some(true) && claim.measured() == "1.5 [1..2]");
        let summary = Summary::of(&[record(1, 1.0), record(2, 3.0)]).unwrap();
        assert_eq!((summary.claims[0].held, summary.claims[0].holds), (1, Some(false)));
        assert_eq!(summary.claims[0].missed, [2]);
        assert!(Summary::of(&[]).is_none());
    }

    #[test]
    fn a_seed_without_a_measurement_counts_against_the_claim() {
        let summary = Summary::of(&[record(1, 1.0), record(2, f64::NAN)]).unwrap();
        assert_eq!(summary.claims[0].holds, Some(false));
        assert_eq!(summary.claims[0].median, Some(1.0));
    }
}
