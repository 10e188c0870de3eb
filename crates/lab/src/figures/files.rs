//! Writes the results of experiments to files, as JSON, a picture, and the series as CSV.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::seeds::Summary;
use crate::evidence::series::csv;
use crate::evidence::{Experiment, Record};

/// The content of a JSON result file: one record, or several records with their summaries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Results {
    One(Box<Record>),
    Many {
        runs: Vec<Record>,
        /// Summaries of the claims, one for each experiment and mode.
        summaries: Vec<Summary>,
    },
}

impl Results {
    /// Creates the content of a result file from `groups`. A group holds the runs of one experiment
    /// and mode.
    #[must_use]
    pub fn of(groups: &[Vec<Record>]) -> Self {
        if let [group] = groups
            && let [record] = &group[..]
        {
            return Self::One(Box::new(record.clone()));
        }
        let summaries = groups.iter().filter_map(|group| Summary::of(group)).collect();
        Self::Many { runs: groups.concat(), summaries }
    }

    #[must_use]
    pub fn into_records(self) -> Vec<Record> {
        match self {
            Self::One(record) => vec![*record],
            Self::Many { runs, .. } => runs,
        }
    }

    /// Returns the results as JSON text that ends with a newline.
    ///
    /// # Errors
    /// Returns an error if the results cannot be serialized, which would be a bug.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self).context("writing the results")? + "\n")
    }
}

/// Writes the runs of one experiment and mode into `dir` and returns the paths of the files. The
/// result file `NAME-MODE.json` contains the records of all runs. The other files have the picture
/// of the first run, its series as CSV, and its summary as text if the run has a summary.
///
/// # Errors
/// Returns an error if the directory or a file cannot be written.
pub fn write(dir: &Path, experiment: &Experiment, runs: &[Record]) -> anyhow::Result<Vec<PathBuf>> {
    let Some(first) = runs.first() else { return Ok(Vec::new()) };
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let name = format!("{}-{}", first.experiment, first.mode);
    let texts = [
        ("json", Results::of(&[runs.to_vec()]).json()?),
        ("svg", experiment.drawn(first).svg()),
        ("csv", csv(&first.series)),
    ];
    let story = Some(("txt", first.story())).filter(|(_, story)| !story.is_empty());
    let mut files = Vec::new();
    for (ending, text) in texts.into_iter().chain(story) {
        let file = dir.join(format!("{name}.{ending}"));
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        files.push(file);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Axis, Claim, Mode, Outcome, Panel, Picture};

    fn experiment() -> Experiment {
        Experiment {
            name: "test",
            source: "nowhere",
            about: "for tests",
            sim: None,
            live: None,
            picture: |record| {
                let panel = Panel::new("a", Axis::linear("x"), Axis::linear("y"));
                Picture::new(record.experiment.clone()).panel(panel)
            },
        }
    }

    fn record(seed: u64) -> Record {
        let mut outcome = Outcome::new();
        outcome.series("vm \"1\", bps", "Gbit/s", [(0.0, 1.5), (1.0, f64::NAN)]);
        outcome.claim(Claim::new("a", "A.", "%").measured(1.0));
        Record::new(&experiment(), Mode::Sim, seed, outcome)
    }

    #[test]
    fn a_single_run_is_exactly_its_object_and_several_have_a_summary() {
        let one = Results::of(&[vec![record(1)]]);
        let json: serde_json::Value = serde_json::from_str(&one.json().unwrap()).unwrap();
        assert_eq!(json["experiment"], "test");
        let many = Results::of(&[vec![record(1), record(2)]]);
        let json: serde_json::Value = serde_json::from_str(&many.json().unwrap()).unwrap();
        assert_eq!(json["runs"].as_array().unwrap().len(), 2);
        assert_eq!(json["summaries"][0]["seeds"], serde_json::json!([1, 2]));
        let back: Results = serde_json::from_str(&many.json().unwrap()).unwrap();
        assert_eq!(back.into_records().len(), 2);
    }

    #[test]
    fn json_picture_and_csv_are_written_side_by_side() {
        let dir = penstock_testing::temp_dir();
        let files = write(&dir, &experiment(), &[record(1)]).unwrap();
        let names: Vec<_> = files.iter().filter_map(|f| f.file_name()?.to_str()).collect();
        assert_eq!(names, ["test-sim.json", "test-sim.svg", "test-sim.csv"]);
        let csv = std::fs::read_to_string(&files[2]).unwrap();
        assert!(csv.contains("\"vm \"\"1\"\", bps\",Gbit/s,0,1.5\n"), "{csv}");
        assert!(csv.ends_with("Gbit/s,1,\n"), "{csv}");
    }
}
