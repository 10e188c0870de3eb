//! Results of an experiment: series, claims, and the platform of the run.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::claim::Claim;
use super::experiment::{Experiment, Mode};
use super::series::Series;

/// Results of a run of an experiment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Measured curves, which the experiment's picture shows and other tools can read.
    pub series: Vec<Series>,
    /// Claims about the results of the run.
    pub claims: Vec<Claim>,
    /// Description of the real or simulated machine, and of the run's settings.
    pub platform: Map<String, Value>,
}

/// Name of Open vSwitch with DPDK, with which live runs compare Penstock.
pub const OVS_DPDK: &str = "ovs-dpdk";
/// Name of the entry in `platform` that has the values of other switches.
const BESIDE: &str = "beside";
/// Name of the entry in `platform` that has the events of each run.
const EVENTS: &str = "events";
/// Name of the entry in `platform` that has the summary from [`Outcome::tell`].
const STORY: &str = "story";

impl Outcome {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a series of points (x, y). The text `unit` names the unit of the points' y values.
    pub fn series(&mut self, name: &str, unit: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let (x, y) = points.into_iter().unzip();
        self.series.push(Series { name: name.to_owned(), unit: unit.to_owned(), x, y });
    }

    pub fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// Adds an entry to `platform`, the description of the machine and the settings.
    pub fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.platform.insert(name.to_owned(), value.into());
    }

    /// Runs one part of an experiment. If the part fails, the results of all parts remain, and the
    /// claim `PART_measured` is missed, which has the error as its statement.
    pub fn part(&mut self, part: &str, run: impl FnOnce(&mut Self) -> anyhow::Result<()>) {
        if let Err(error) = run(self) {
            let what = format!("not measured: {error:#}");
            self.claim(Claim::new(&format!("{part}_measured"), what, "1 = yes").at_least(1.0));
        }
    }

    /// Adds the results of another run to this outcome. The names of all its claims, series and
    /// notes get the prefix `prefix`.
    pub fn append(&mut self, prefix: &str, other: Self) {
        self.claims.extend(other.claims.into_iter().map(|mut claim| {
            claim.id = format!("{prefix}_{}", claim.id);
            claim.statement = format!("{prefix}: {}", claim.statement);
            claim
        }));
        let series = other.series.into_iter();
        self.series.extend(
            series.map(|series| Series { name: format!("{prefix} {}", series.name), ..series }),
        );
        let notes = other.platform.into_iter();
        self.platform.extend(notes.map(|(name, value)| (format!("{prefix}_{name}"), value)));
    }

    /// Records that the event `what` happened at the time `at` in the run called `run`. The time
    /// `at` has the unit of the run's time axis.
    pub fn event(&mut self, run: &str, at: f64, what: &str) {
        let runs = self.platform.entry(EVENTS).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(runs) = runs
            && let Value::Array(events) = runs.entry(run).or_insert_with(|| Value::Array(vec![]))
        {
            events.push(serde_json::json!({ "at": at, "what": what }));
        }
    }

    /// Records a summary of the run, one sentence in each string. The lab prints the summary after
    /// the run.
    pub fn tell(&mut self, story: &[String]) {
        self.note(STORY, story.to_vec());
    }

    /// Records the value of another switch for the claim with the ID `claim`, measured in the same
    /// run. The string `peer` names the other switch, such as [`OVS_DPDK`].
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

/// The results of a run, with the run's experiment, mode and seed. The lab writes each record as a
/// JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub experiment: String,
    /// Name of the paper, and the section or figure that the experiment reproduces.
    pub source: String,
    pub mode: Mode,
    /// Seed of all random numbers in the run.
    pub seed: u64,
    pub platform: Map<String, Value>,
    pub series: Vec<Series>,
    pub claims: Vec<Claim>,
}

impl Record {
    /// Creates the record of one run of `experiment`.
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

    /// Returns whether the record has claims and misses none of them.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.claims.is_empty() && !self.claims.iter().any(Claim::is_missed)
    }

    #[must_use]
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// Returns the series whose names begin with `prefix`, as pairs of the name without `prefix`
    /// and the series.
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

    /// Returns the events of the run called `run`, as pairs of time and description.
    #[must_use]
    pub fn events(&self, run: &str) -> Vec<(f64, String)> {
        let all = self.platform.get(EVENTS).and_then(|runs| runs.get(run)?.as_array());
        let one = |event: &Value| Some((event["at"].as_f64()?, event["what"].as_str()?.to_owned()));
        all.into_iter().flatten().filter_map(one).collect()
    }

    /// Returns the summary from [`Outcome::tell`], one sentence per line. If the run has no
    /// summary, the returned text is empty.
    #[must_use]
    pub fn story(&self) -> String {
        let lines = self.platform.get(STORY).and_then(Value::as_array).into_iter().flatten();
        lines.filter_map(Value::as_str).map(|line| format!("{line}\n")).collect()
    }

    /// Returns the value of the switch `peer` for the claim with the ID `claim`.
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
    fn a_part_that_fails_keeps_what_others_measured_and_is_missed() {
        let mut outcome = Outcome::new();
        let claim = |id| Claim::new(id, "A claim.", "%").at_most(2.0).measured(1.0);
        outcome.part("one", |outcome| {
            outcome.claim(claim("one"));
            anyhow::bail!("no switch")
        });
        outcome.part("two", |outcome| {
            outcome.claim(claim("two"));
            Ok(())
        });
        let missed = |claim: &Claim| (claim.id.clone(), claim.is_missed());
        let found: Vec<_> = outcome.claims.iter().map(missed).collect();
        let wanted = [("one", false), ("one_measured", true), ("two", false)];
        assert_eq!(found, wanted.map(|(id, missed)| (id.to_owned(), missed)));
        assert_eq!(outcome.claims[1].statement, "not measured: no switch");
    }

    #[test]
    fn a_record_without_claims_does_not_hold() {
        let mut record = record();
        assert!(record.holds());
        record.claims.clear();
        assert!(!record.holds());
    }
}
