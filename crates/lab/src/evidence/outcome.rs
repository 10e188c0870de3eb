//! Results of an experiment: series, claims, and the platform of the run.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::claim::Claim;
use super::experiment::{Experiment, Mode};
use super::series::Series;

/// Results of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Curves, for the picture and for other tools.
    pub series: Vec<Series>,
    /// Claims about the results.
    pub claims: Vec<Claim>,
    /// The machine, real or simulated, and the settings.
    pub platform: Map<String, Value>,
}

/// Name of the switch with which live runs are compared.
pub const OVS_DPDK: &str = "ovs-dpdk";
/// Name of the platform entry with the values of peers.
const BESIDE: &str = "beside";
/// Name of the platform entry with the events of each run.
const EVENTS: &str = "events";
/// Name of the platform entry with the story.
const STORY: &str = "story";

impl Outcome {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a series of points.
    pub fn series(&mut self, name: &str, unit: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let (x, y) = points.into_iter().unzip();
        self.series.push(Series { name: name.to_owned(), unit: unit.to_owned(), x, y });
    }

    pub fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// Adds an entry to the platform.
    pub fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.platform.insert(name.to_owned(), value.into());
    }

    /// Records that `what` happened at `at` in the run called `run`. `at` has the unit of the run's
    /// series over time.
    pub fn event(&mut self, run: &str, at: f64, what: &str) {
        let runs = self.platform.entry(EVENTS).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(runs) = runs
            && let Value::Array(events) = runs.entry(run).or_insert_with(|| Value::Array(vec![]))
        {
            events.push(serde_json::json!({ "at": at, "what": what }));
        }
    }

    /// Records the story: sentences of one line each, which are shown after the run.
    pub fn tell(&mut self, story: &[String]) {
        self.note(STORY, story.to_vec());
    }

    /// Records `peer`'s ([`OVS_DPDK`]) value for `claim`, measured in the same run.
    pub fn beside(&mut self, peer: &str, claim: &str, value: f64) {
        let peers = self.platform.entry(BESIDE).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(peers) = peers {
            let values = peers.entry(peer).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(values) = values {
                values.insert(claim.to_owned(), value.into());
            }
        }
    }
}

/// An outcome with its origin. The lab writes each result as this JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub experiment: String,
    /// Name of the paper, and the place in it.
    pub source: String,
    pub mode: Mode,
    /// Seed of all random numbers.
    pub seed: u64,
    pub platform: Map<String, Value>,
    pub series: Vec<Series>,
    pub claims: Vec<Claim>,
}

impl Record {
    /// Creates the record of an experiment's outcome.
    #[must_use]
    pub fn new(experiment: &Experiment, mode: Mode, seed: u64, outcome: Outcome) -> Self {
        let Outcome { series, claims, platform } = outcome;
        Self {
            experiment: experiment.name.to_owned(),
            source: experiment.source.to_owned(),
            mode,
            seed,
            platform,
            series,
            claims,
        }
    }

    /// Whether the record has claims and misses none.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.claims.is_empty() && !self.claims.iter().any(Claim::is_missed)
    }

    #[must_use]
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// Series with names that begin with `prefix`. Each comes with the rest of its name.
    pub fn series_of<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Series)> + 'a {
        self.series.iter().filter_map(move |s| Some((s.name.strip_prefix(prefix)?, s)))
    }

    #[must_use]
    pub fn claim(&self, id: &str) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.id == id)
    }

    /// Events of the run called `run`: (time, description).
    #[must_use]
    pub fn events(&self, run: &str) -> Vec<(f64, String)> {
        let all = self.platform.get(EVENTS).and_then(|runs| runs.get(run)?.as_array());
        let one = |event: &Value| Some((event["at"].as_f64()?, event["what"].as_str()?.to_owned()));
        all.into_iter().flatten().filter_map(one).collect()
    }

    /// The story, one sentence a line. Empty if there is none.
    #[must_use]
    pub fn story(&self) -> String {
        let lines = self.platform.get(STORY).and_then(Value::as_array).into_iter().flatten();
        lines.filter_map(Value::as_str).map(|line| format!("{line}\n")).collect()
    }

    /// `peer`'s value for `claim`.
    #[must_use]
    pub fn beside(&self, peer: &str, claim: &str) -> Option<f64> {
        self.platform.get(BESIDE)?.get(peer)?.get(claim)?.as_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut outcome = Outcome::new();
        outcome.series("vm1", "Gbit/s", [(0.0, 1.0), (1.0, f64::NAN)]);
        outcome.series("vm2", "Gbit/s", [(0.0, 2.0)]);
        outcome.claim(Claim::new("a", "A.", "%").within(0.0, 2.0).measured(1.0));
        outcome.note("cpu", "x");
        outcome.beside(OVS_DPDK, "a", -8.5);
        outcome.event("run", 3.0, "rain");
        outcome.event("run", f64::NAN, "no moment");
        outcome.tell(&["It rained.".to_owned(), "It stopped.".to_owned()]);
        Record {
            experiment: "c2qos-fig0".to_owned(),
            source: "C2QoS".to_owned(),
            mode: Mode::Sim,
            seed: 1,
            platform: outcome.platform,
            series: outcome.series,
            claims: outcome.claims,
        }
    }

    #[test]
    fn the_json_has_exactly_the_contracts_keys_in_its_order() {
        let text = serde_json::to_string(&record()).unwrap();
        let at = |key: &str| text.find(&format!("\"{key}\":")).unwrap();
        let keys = ["experiment", "source", "mode", "seed", "platform", "series", "claims"];
        assert!(keys.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{text}");
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json.as_object().unwrap().len(), keys.len());
        assert_eq!(json["mode"], "sim");
        assert_eq!(json["series"][0]["y"], serde_json::json!([1.0, null]));
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let record = record();
        let text = serde_json::to_string(&record).unwrap();
        let back: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(back.claims, record.claims);
        assert!(back.series[0].y[1].is_nan());
        assert_eq!(back.beside(OVS_DPDK, "a"), Some(-8.5));
        assert_eq!(back.events("run"), [(3.0, "rain".to_owned())]);
        assert!(back.events("other").is_empty());
        assert_eq!(back.story(), "It rained.\nIt stopped.\n");
        assert_eq!(back.series_of("vm").map(|s| s.0).collect::<Vec<_>>(), ["1", "2"]);
    }

    #[test]
    fn a_record_without_claims_does_not_hold() {
        let mut record = record();
        assert!(record.holds());
        record.claims.clear();
        assert!(!record.holds());
    }
}
