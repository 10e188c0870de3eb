//! Summarizes runs with several seeds. Each claim has one summary over all seeds.

use serde::{Deserialize, Serialize};

use crate::evidence::calibrated::Parameter;
use crate::evidence::claim::{number, number_or_dash};
use crate::evidence::stats::five_numbers;
use crate::evidence::{Claim, Mode, Record};

/// The summary of a claim over several seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimSummary {
    pub id: String,
    pub statement: String,
    pub published: Option<f64>,
    pub unit: String,
    /// Lowest value in the claim's band, as in [`Claim`].
    pub low: Option<f64>,
    /// Highest value in the claim's band, as in [`Claim`].
    pub high: Option<f64>,
    pub band: String,
    /// Smallest measured value of the claim. `None` if no run measured the claim.
    pub min: Option<f64>,
    pub median: Option<f64>,
    pub max: Option<f64>,
    /// Number of seeds with which the claim holds, 0 if the claim has no band.
    pub held: usize,
    pub of: usize,
    /// Seeds with which the claim does not hold.
    #[serde(default)]
    pub missed: Vec<u64>,
    /// Whether the claim holds with all seeds. `None` if the claim has no band.
    pub holds: Option<bool>,
}

/// The summary of an experiment over several seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub experiment: String,
    pub mode: Mode,
    pub seeds: Vec<u64>,
    /// Parameters of the simulation that were fitted so that the experiment's results match the
    /// paper.
    #[serde(default)]
    pub calibrated: Vec<Parameter>,
    pub claims: Vec<ClaimSummary>,
}

impl Summary {
    /// Summarizes `records`, which must be of one experiment and mode. Returns `None` if `records`
    /// is empty.
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

    /// Returns the claim's measured values as text: the median, and the range if there are several
    /// seeds.
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
