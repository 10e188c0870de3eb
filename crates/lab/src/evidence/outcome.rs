//! What an experiment found: series, claims, and the platform they were found on.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::claim::Claim;
use super::experiment::{Experiment, Mode};
use super::series::Series;

/// What a run found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The curves, for the picture and for whoever wants to draw his own.
    pub series: Vec<Series>,
    /// What is claimed of them.
    pub claims: Vec<Claim>,
    /// The machine, real or simulated, and the settings.
    pub platform: Map<String, Value>,
}

/// The peer beside which live runs are measured.
pub const OVS_DPDK: &str = "ovs-dpdk";
/// The platform's entry for values of peers.
const BESIDE: &str = "beside";
/// The platform's entry for what happened in each run that its series show.
const EVENTS: &str = "events";
/// The platform's entry for sentences about what was seen.
const STORY: &str = "story";

impl Outcome {
    /// Nothing found yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a series of points.
    pub fn series(&mut self, name: &str, unit: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let (x, y) = points.into_iter().unzip();
        self.series.push(Series { name: name.to_owned(), unit: unit.to_owned(), x, y });
    }

    /// Adds a claim.
    pub fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// Notes something about the platform.
    pub fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.platform.insert(name.to_owned(), value.into());
    }

    /// Notes that `what` happened at `at` in the run called `run`, as its series are over time.
    pub fn event(&mut self, run: &str, at: f64, what: &str) {
        let runs = self.platform.entry(EVENTS).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(runs) = runs
            && let Value::Array(events) = runs.entry(run).or_insert_with(|| Value::Array(vec![]))
        {
            events.push(serde_json::json!({ "at": at, "what": what }));
        }
    }

    /// Notes what was seen, in sentences of a line each: they are shown at the end.
    pub fn tell(&mut self, story: &[String]) {
        self.note(STORY, story.to_vec());
    }

    /// Notes what `peer` ([`OVS_DPDK`]) had where we claim `claim`, measured in the same run.
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

/// An outcome with where it comes from: the lab's one JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The experiment's name.
    pub experiment: String,
    /// The paper's name and place in it.
    pub source: String,
    /// Simulated or live.
    pub mode: Mode,
    /// The seed of everything random.
    pub seed: u64,
    /// As in [`Outcome`].
    pub platform: Map<String, Value>,
    /// As in [`Outcome`].
    pub series: Vec<Series>,
    /// As in [`Outcome`].
    pub claims: Vec<Claim>,
}

impl Record {
    /// The record of an experiment's outcome.
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

    /// Whether there are claims and none is missed.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.claims.is_empty() && !self.claims.iter().any(Claim::is_missed)
    }

    /// The series called `name`.
    #[must_use]
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// The series whose name begins with `prefix`, each with the rest of its name.
    pub fn series_of<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Series)> + 'a {
        self.series.iter().filter_map(move |s| Some((s.name.strip_prefix(prefix)?, s)))
    }

    /// The claim called `id`.
    #[must_use]
    pub fn claim(&self, id: &str) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.id == id)
    }

    /// What happened in the run called `run`, and when.
    #[must_use]
    pub fn events(&self, run: &str) -> Vec<(f64, String)> {
        let all = self.platform.get(EVENTS).and_then(|runs| runs.get(run)?.as_array());
        let one = |event: &Value| Some((event["at"].as_f64()?, event["what"].as_str()?.to_owned()));
        all.into_iter().flatten().filter_map(one).collect()
    }

    /// Sentences about what was seen, a line each; empty if it tells no story.
    #[must_use]
    pub fn story(&self) -> String {
        let lines = self.platform.get(STORY).and_then(Value::as_array).into_iter().flatten();
        lines.filter_map(Value::as_str).map(|line| format!("{line}\n")).collect()
    }

    /// What `peer` had where we claim `claim`.
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
