//! `penstock lab run` and `penstock lab list`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context as _;

use super::claim::number_or_dash;
use super::experiment::{Context, Experiment, LiveArgs, Mode};
use super::files::{self, Results};
use super::outcome::Record;
use super::seeds::Summary;
use super::{EXPERIMENTS, find};
use crate::bench::Guard;

/// Exit status when an experiment could not be run; 1 says that a claim does not hold.
const FAILED: u8 = 2;
/// Every experiment that has the mode.
const ALL: &str = "all";

/// Runs experiments and says which of their claims hold.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// Experiments, as `lab list` names them, or `all`
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Where: `sim` on virtual time at the paper's scale, `live` on this machine
    #[arg(long, value_enum, default_value_t = Mode::Sim)]
    pub mode: Mode,
    /// Seed of everything random
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    pub seed: u64,
    /// Once for each of these seeds, such as 1-20
    #[arg(long, value_name = "A-B")]
    pub seeds: Option<SeedRange>,
    /// Write the results here; `-`: to standard output, and no table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write NAME-MODE.json, .svg and .csv into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Settings of live runs.
    #[command(flatten)]
    pub live: LiveArgs,
}

/// Seeds from one to another, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedRange {
    first: u64,
    last: u64,
}

/// More seeds than anybody waits for.
const SEEDS_MAX: u64 = 10_000;

impl FromStr for SeedRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no range of at most {SEEDS_MAX} seeds such as 1-20");
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let first: u64 = first.trim().parse().map_err(|_| wrong())?;
        let last: u64 = last.trim().parse().map_err(|_| wrong())?;
        if first > last || last - first >= SEEDS_MAX {
            return Err(wrong());
        }
        Ok(Self { first, last })
    }
}

impl RunArgs {
    /// The experiments asked for, each once.
    fn experiments(&self) -> anyhow::Result<Vec<&'static Experiment>> {
        let mut chosen: Vec<&'static Experiment> = Vec::new();
        let mut add = |experiment: &'static Experiment| {
            if chosen.iter().all(|c| c.name != experiment.name) {
                chosen.push(experiment);
            }
        };
        for name in &self.names {
            if name == ALL {
                EXPERIMENTS.iter().filter(|e| e.run_of(self.mode).is_some()).for_each(&mut add);
                continue;
            }
            let experiment = find(name)?;
            anyhow::ensure!(
                experiment.run_of(self.mode).is_some(),
                "{name} cannot be run in mode {}; it has {}",
                self.mode,
                modes(experiment)
            );
            add(experiment);
        }
        Ok(chosen)
    }

    fn seeds(&self) -> std::ops::RangeInclusive<u64> {
        match self.seeds {
            Some(range) => range.first..=range.last,
            None => self.seed..=self.seed,
        }
    }

    /// Whether standard output is for JSON alone.
    fn json_only(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }
}

/// Runs what was asked for. Returns 0, 1 if a claim does not hold, 2 if a run failed.
///
/// # Errors
/// When nothing could be started, or a result cannot be written.
pub fn run(args: &RunArgs, guard: Option<&Guard>) -> anyhow::Result<ExitCode> {
    let experiments = args.experiments()?;
    let (mut groups, mut failed) = (Vec::new(), false);
    for experiment in experiments {
        let mut records = Vec::new();
        for seed in args.seeds() {
            match once(experiment, seed, args, guard) {
                Ok(record) => records.push(record),
                Err(error) => {
                    let (name, mode) = (experiment.name, args.mode);
                    eprintln!("penstock lab: {name} ({mode}, seed {seed}): {error:#}");
                    failed = true;
                }
            }
        }
        if !args.json_only()
            && let Some(summary) = Summary::of(&records)
        {
            print!("{}", table(experiment, &summary));
        }
        if let Some(dir) = &args.out {
            files::write(dir, experiment, &records)?;
        }
        groups.push(records);
    }
    groups.retain(|records| !records.is_empty());
    let holds = groups.iter().flatten().all(Record::holds);
    write_json(args, &groups)?;
    Ok(match (failed, holds) {
        (true, _) => ExitCode::from(FAILED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

fn once(
    experiment: &'static Experiment,
    seed: u64,
    args: &RunArgs,
    guard: Option<&Guard>,
) -> anyhow::Result<Record> {
    let run = experiment.run_of(args.mode).context("it does not have this mode")?;
    let out = args.out.as_deref();
    let context = Context::new(experiment.name, (args.mode, seed), &args.live, out, guard);
    Ok(Record::new(experiment, args.mode, seed, run(&context)?))
}

fn write_json(args: &RunArgs, groups: &[Vec<Record>]) -> anyhow::Result<()> {
    let Some(file) = &args.json else { return Ok(()) };
    if groups.is_empty() {
        return Ok(());
    }
    let text = Results::of(groups).json()?;
    if args.json_only() {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

/// The claims of an experiment as text.
fn table(experiment: &Experiment, summary: &Summary) -> String {
    let seeds = match summary.seeds[..] {
        [seed] => format!("seed {seed}"),
        _ => format!("{} seeds", summary.seeds.len()),
    };
    let mut rows =
        vec![["claim", "published", "measured", "band", "unit", "holds", ""].map(str::to_owned)];
    for claim in &summary.claims {
        let holds = match (claim.holds, claim.of) {
            (true, _) => "yes".to_owned(),
            (false, 1) => "NO".to_owned(),
            (false, of) => format!("{} of {of}", claim.held),
        };
        rows.push([
            claim.id.clone(),
            number_or_dash(claim.published),
            claim.measured(),
            claim.band.clone(),
            claim.unit.clone(),
            holds,
            claim.statement.clone(),
        ]);
    }
    let mut text = format!(
        "{} ({}, {seeds})  {}: {}\n",
        experiment.name, summary.mode, experiment.source, experiment.about
    );
    text += &columns(&rows);
    text.push('\n');
    text
}

/// Rows in columns as wide as they need to be; the last one ends ragged.
fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}"));
        text += "  ";
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

fn modes(experiment: &Experiment) -> String {
    let modes: Vec<_> = experiment.modes().iter().map(ToString::to_string).collect();
    modes.join(", ")
}

/// The list of experiments, as a table or as JSON.
///
/// # Errors
/// When JSON cannot be written, which is a fault of the program.
pub fn list(json: bool) -> anyhow::Result<String> {
    if json {
        let list: Vec<_> = EXPERIMENTS
            .iter()
            .map(|e| {
                serde_json::json!({
                    "name": e.name, "source": e.source, "about": e.about, "modes": e.modes()
                })
            })
            .collect();
        return Ok(serde_json::to_string_pretty(&list).context("writing the list")? + "\n");
    }
    let row =
        |e: &Experiment| [e.name.to_owned(), modes(e), e.source.to_owned(), e.about.to_owned()];
    let head = ["NAME", "MODES", "SOURCE", "WHAT IT SHOWS"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(EXPERIMENTS.iter().map(row)).collect();
    Ok(columns(&rows).lines().map(|line| format!("{}\n", line.trim_start())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_seeds_is_read_and_nonsense_is_refused() {
        let range: SeedRange = "1-20".parse().unwrap();
        assert_eq!((range.first, range.last), (1, 20));
        for text in ["20-1", "5", "a-b", "0-99999999"] {
            assert!(text.parse::<SeedRange>().unwrap_err().contains("1-20"), "{text}");
        }
    }

    #[test]
    fn the_list_has_every_experiment_and_its_modes() {
        let text = list(false).unwrap();
        assert!(EXPERIMENTS.iter().all(|e| text.contains(e.name)), "{text}");
        let json: serde_json::Value = serde_json::from_str(&list(true).unwrap()).unwrap();
        assert_eq!(json.as_array().unwrap().len(), EXPERIMENTS.len());
        assert!(json[0]["modes"].as_array().is_some_and(|m| !m.is_empty()));
    }
}
