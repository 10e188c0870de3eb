//! `penstock-lab run` runs figures and judges their claims. `penstock-lab list` lists the figures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context as _;

use super::files::{self, Results};
use super::missed::Missed;
use super::registry::{EXPERIMENTS, find};
use super::seeds::Summary;
use crate::evidence::claim::number_or_dash;
use crate::evidence::{Context, Experiment, LiveArgs, Mode, Record};
use penstock_guest::bed::Guard;

/// Exit status if an experiment failed to run. Exit status 1 means that an experiment's claim does
/// not hold.
const FAILED: u8 = 2;
/// Name of the entry in `platform` that marks a short run. In `platform`, the entry has the
/// fraction to which the phases are shortened.
pub const SHORT: &str = "phases_part";
/// Name that selects all experiments that have the mode.
const ALL: &str = "all";

/// Arguments of `penstock-lab run`.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// Names of experiments (see `penstock-lab list`), or `all`
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Simulate at the paper's scale (`sim`), or measure on this machine (`live`)
    #[arg(long, value_enum, default_value_t = Mode::Sim)]
    pub mode: Mode,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    pub seed: u64,
    /// Run once for each seed of a range, such as 1-20 (10000 seeds at most)
    #[arg(long, value_name = "A-B")]
    pub seeds: Option<SeedRange>,
    /// Simulate only this fraction of each phase of a figure (0.1 to 1), for a quick check. The
    /// results of a shortened run are not valid for the figure
    #[arg(
        long,
        value_name = "PART",
        default_value_t = 1.0,
        value_parser = part,
        conflicts_with = "out"
    )]
    pub vary: f64,
    /// Compare the results with a list of claims known as missed, such as
    /// docs/internals/figures.md. The exit status is 1 if the results differ from the list
    #[arg(long, value_name = "FILE")]
    pub missed: Option<PathBuf>,
    /// Write the results as JSON to a file. With `-`, write JSON to standard output and no table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write NAME-MODE.json, .svg, .csv and, for a demo, .txt into a directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Settings that apply only to live runs.
    #[command(flatten)]
    pub live: LiveArgs,
}

/// A seed, or a range of seeds that includes the first and the last seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedRange {
    first: u64,
    last: u64,
}

/// Maximum number of seeds in a range (option `--seeds`).
const SEEDS_MAX: u64 = 10_000;

impl FromStr for SeedRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a range of 1 to {SEEDS_MAX} seeds, such as 1-20");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: u64 = first.trim().parse().map_err(|_| wrong())?;
        let last: u64 = last.trim().parse().map_err(|_| wrong())?;
        if first > last || last - first >= SEEDS_MAX {
            return Err(wrong());
        }
        Ok(Self { first, last })
    }
}

/// Lowest fraction to which the phases of a figure can be shortened. With a lower fraction, phases
/// that begin with a second that does not count would be too short.
const PART_MIN: f64 = 0.1;

fn part(text: &str) -> Result<f64, String> {
    let part: Option<f64> = text.parse().ok();
    let part = part.filter(|part| (PART_MIN..=1.0).contains(part));
    part.ok_or_else(|| format!("`{text}` is not a number from {PART_MIN} to 1"))
}

impl RunArgs {
    /// Returns the selected experiments, without duplicates.
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
                "{name}: no mode `{}`; use --mode {}",
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

    /// Returns true if the run shortens the phases of figures.
    fn is_short(&self) -> bool {
        self.vary < 1.0
    }

    /// Returns true if standard output must contain only JSON.
    fn json_only(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }
}

/// Runs the selected experiments. Returns exit status 2 if a run failed, 1 if a claim does not
/// hold, and otherwise 0. With `--missed`, exit status 1 means that the missed claims differ from
/// the list.
///
/// # Errors
/// Returns an error if an argument is invalid, the list cannot be read, or a result cannot be
/// written.
pub fn run(args: &RunArgs, guard: Option<&Guard>) -> anyhow::Result<ExitCode> {
    let experiments = args.experiments()?;
    anyhow::ensure!(
        !args.is_short() || args.mode == Mode::Sim,
        "--vary: only for simulated figures; use --secs and --runs for live runs"
    );
    let missed = args.missed.as_deref().map(Missed::read).transpose()?;
    let (mut groups, mut failed) = (Vec::new(), false);
    for experiment in experiments {
        let mut records = Vec::new();
        for seed in args.seeds() {
            match once(experiment, seed, args, guard) {
                Ok(record) => records.push(record),
                Err(error) => {
                    let (name, mode) = (experiment.name, args.mode);
                    eprintln!("penstock-lab: {name} ({mode}, seed {seed}): {error:#}");
                    failed = true;
                }
            }
        }
        if !args.json_only()
            && let Some(summary) = Summary::of(&records)
        {
            print!("{}", table(experiment, &summary, args.vary));
            records.iter().for_each(|record| print!("{}", record.story()));
        }
        if let Some(dir) = &args.out {
            files::write(dir, experiment, &records)?;
        }
        groups.push(records);
    }
    groups.retain(|records| !records.is_empty());
    let holds = match &missed {
        Some(list) => as_listed(list, &groups, args),
        None => groups.iter().flatten().all(Record::holds),
    };
    write_json(args, &groups)?;
    Ok(match (failed, holds) {
        (true, _) => ExitCode::from(FAILED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

/// Returns true if the results agree with the list of missed claims. Prints a remark about each
/// claim that is in the list or does not hold.
fn as_listed(list: &Missed, groups: &[Vec<Record>], args: &RunArgs) -> bool {
    let mut right = true;
    for remark in groups.iter().flat_map(|group| list.judge(group, args.is_short())) {
        right &= !remark.is_failure();
        // Remarks are on standard error, because standard output may contain JSON.
        eprintln!("penstock-lab: {remark}");
    }
    right && groups.iter().flatten().all(|record| !record.claims.is_empty())
}

fn once(
    experiment: &'static Experiment,
    seed: u64,
    args: &RunArgs,
    guard: Option<&Guard>,
) -> anyhow::Result<Record> {
    let run = experiment.run_of(args.mode).context("the experiment does not have this mode")?;
    let out = args.out.as_deref();
    let context = Context::new(experiment.name, (args.mode, seed), &args.live, out, guard);
    let mut outcome = run(&context.with_part(args.vary))?;
    if args.is_short() {
        outcome.note(SHORT, args.vary);
    }
    Ok(Record::new(experiment, args.mode, seed, outcome))
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

/// Returns the claims of an experiment as a text table.
fn table(experiment: &Experiment, summary: &Summary, part: f64) -> String {
    let seeds = match summary.seeds[..] {
        [seed] => format!("seed {seed}"),
        _ => format!("{} seeds", summary.seeds.len()),
    };
    let mut rows =
        vec![["claim", "published", "measured", "band", "unit", "holds", ""].map(str::to_owned)];
    for claim in &summary.claims {
        let holds = match (claim.holds, claim.of) {
            (None, _) => "shown".to_owned(),
            (Some(true), _) => "yes".to_owned(),
            (Some(false), 1) => "NO".to_owned(),
            (Some(false), of) => format!("{} of {of}, not {}", claim.held, joined(&claim.missed)),
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
    let short = if part < 1.0 {
        format!(", SHORT, phases x {part}: not valid for the figure")
    } else {
        String::new()
    };
    let calibrated = if summary.calibrated.is_empty() { "" } else { ", CALIBRATED" };
    let mut text = format!(
        "{} ({}, {seeds}{short}{calibrated})  {}: {}\n",
        experiment.name, summary.mode, experiment.source, experiment.about
    );
    for parameter in &summary.calibrated {
        text += &format!("  {}\n", parameter.told());
    }
    text += &columns(&rows);
    text.push('\n');
    text
}

fn joined(seeds: &[u64]) -> String {
    let seeds: Vec<_> = seeds.iter().map(ToString::to_string).collect();
    seeds.join(" ")
}

/// Pads the cells of each column except the last column to equal width.
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

/// Returns the list of experiments, as a table or as JSON.
///
/// # Errors
/// Returns an error if the list cannot be serialized, which would be a bug.
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
    use crate::evidence::{Claim, Outcome};

    #[test]
    fn a_range_of_seeds_is_read_and_nonsense_is_refused() {
        let range: SeedRange = "1-20".parse().unwrap();
        assert_eq!((range.first, range.last), (1, 20));
        let one: SeedRange = "5".parse().unwrap();
        assert_eq!((one.first, one.last), (5, 5));
        for text in ["20-1", "", "x", "a-b", "0-99999999"] {
            assert!(text.parse::<SeedRange>().unwrap_err().contains("1-20"), "{text}");
        }
    }

    #[test]
    fn a_short_run_says_that_it_is_not_the_figure() {
        assert!(part("0.1").is_ok() && part("1").is_ok());
        for text in ["0.05", "1.5", "-1", "NaN", "x"] {
            assert!(part(text).is_err(), "{text}");
        }
        let claim = Claim::new("a", "A.", "%").at_most(1.0);
        let record = |seed, value: f64| {
            let mut outcome = Outcome::new();
            outcome.claim(claim.clone().measured(value));
            Record::new(&EXPERIMENTS[0], Mode::Sim, seed, outcome)
        };
        let summary = Summary::of(&[record(1, 0.0), record(5, 2.0), record(9, 3.0)]).unwrap();
        let short = table(&EXPERIMENTS[0], &summary, 0.1);
        assert!(short.lines().next().unwrap().contains("SHORT, phases x 0.1: not valid"));
        let full = table(&EXPERIMENTS[0], &summary, 1.0);
        assert!(!full.contains("SHORT") && full.contains("1 of 3, not 5 9"), "{full}");
    }

    #[test]
    fn a_figure_with_a_fitted_number_is_called_calibrated_everywhere() {
        let mut outcome = Outcome::new();
        outcome.claim(Claim::new("a", "A.", "%").at_most(1.0).measured(0.0));
        let record =
            |outcome: &Outcome| Record::new(&EXPERIMENTS[0], Mode::Sim, 1, outcome.clone());
        let told = |record: &Record| {
            let summary = Summary::of(std::slice::from_ref(record)).unwrap();
            let text = table(&EXPERIMENTS[0], &summary, 1.0);
            (text, EXPERIMENTS[0].drawn(record).svg())
        };
        let (text, svg) = told(&record(&outcome));
        assert!(!text.to_lowercase().contains("calibrated") && !svg.contains("(calibrated)"));
        outcome.calibrated(["a size of 228 bytes", "a loss of 16 %", "64 bytes"]);
        outcome.calibrated(["a factor of 2.67", "the same", "1.67"]);
        let record = record(&outcome);
        let (text, svg) = told(&record);
        assert!(
            text.lines().next().unwrap().contains("CALIBRATED") && svg.contains("(calibrated)")
        );
        assert!(
            text.contains("calibrated: a size of 228 bytes; fitted to a loss of 16 %"),
            "{text}"
        );
        assert!(
            text.contains("a factor of 2.67; fitted to the same; for comparison: 1.67"),
            "{text}"
        );
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["platform"]["calibrated"][1]["parameter"], "a factor of 2.67");
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
