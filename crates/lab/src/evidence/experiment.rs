//! An experiment, and the settings of its runs.

use std::cell::Cell;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use penstock_units::Nanos;
use serde::{Deserialize, Serialize};

use super::outcome::{Outcome, Record};
use super::picture::Picture;
use crate::bench::Peer;
use penstock_guest::bed::{BedArgs, Guard};
use penstock_guest::clock;

/// Whether an experiment is simulated or live.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Runs the production worker in virtual time, at the paper's scale.
    Sim,
    /// Runs on this machine, with real ports and real programs.
    Live,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sim => "sim",
            Self::Live => "live",
        })
    }
}

/// A function that runs an experiment in one mode.
pub type Run = fn(&Context<'_>) -> anyhow::Result<Outcome>;

/// A published figure or table that the lab reproduces.
///
/// The picture is drawn only from the record in the JSON file, so picture and file show the same
/// data.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Name of the experiment on the command line.
    pub name: &'static str,
    /// Name of the paper, and the section or figure that the experiment reproduces.
    pub source: &'static str,
    /// Description of the experiment in one line.
    pub about: &'static str,
    /// Runs the simulation. `None` if the experiment cannot be simulated.
    pub sim: Option<Run>,
    /// Runs the experiment on this machine. `None` if the experiment has no live run.
    pub live: Option<Run>,
    pub picture: fn(&Record) -> Picture,
}

impl Experiment {
    /// Returns the function that runs the experiment as a simulation or live, according to `mode`.
    /// Returns `None` if the experiment lacks this mode.
    #[must_use]
    pub fn run_of(&self, mode: Mode) -> Option<Run> {
        match mode {
            Mode::Sim => self.sim,
            Mode::Live => self.live,
        }
    }

    /// Draws the picture of a record. The picture's title ends with "(calibrated)" if numbers were
    /// fitted to the outcome.
    #[must_use]
    pub fn drawn(&self, record: &Record) -> Picture {
        let picture = (self.picture)(record);
        if record.calibrated().is_empty() { picture } else { picture.noted("calibrated") }
    }

    #[must_use]
    pub fn modes(&self) -> Vec<Mode> {
        [Mode::Sim, Mode::Live].into_iter().filter(|m| self.run_of(*m).is_some()).collect()
    }
}

/// Settings that apply only to live runs.
#[derive(Debug, Clone, clap::Args)]
pub struct LiveArgs {
    /// Length of one measurement in seconds. The default depends on the experiment
    #[arg(long, value_name = "SECS", value_parser = crate::bench::seconds)]
    pub secs: Option<f64>,
    /// Number of measurements of each case (1 to 1000). The default depends on the experiment
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Also measure the named switch, if the experiment supports it. Needs root
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Cores and scheduling priorities of a live run.
    #[command(flatten)]
    pub bed: BedArgs,
}

#[derive(Debug)]
pub struct Context<'a> {
    pub experiment: &'static str,
    pub mode: Mode,
    /// Seed of all random numbers in the run.
    pub seed: u64,
    /// Settings that apply only to live runs.
    pub live: &'a LiveArgs,
    /// Directory for additional result files. `None` if the run writes no additional files.
    pub out: Option<&'a Path>,
    /// Length of a simulated phase in this run, as a fraction of the phase's full length (1: not
    /// shortened). See [`Self::scaled`].
    pub part: f64,
    guard: Option<&'a Guard>,
    started: Instant,
    said: Cell<Option<Instant>>,
}

/// Length of the first part of a run, in which the run reports no progress.
const SILENT_FOR: Duration = Duration::from_secs(2);

impl<'a> Context<'a> {
    /// Creates the context for one run of `experiment`.
    #[must_use]
    pub fn new(
        experiment: &'static str,
        (mode, seed): (Mode, u64),
        live: &'a LiveArgs,
        out: Option<&'a Path>,
        guard: Option<&'a Guard>,
    ) -> Self {
        let started = clock::now();
        let said = Cell::new(None);
        Self { experiment, mode, seed, live, out, part: 1.0, guard, started, said }
    }

    /// Shortens the simulated phases to the fraction `part` of their full length.
    #[must_use]
    pub fn with_part(mut self, part: f64) -> Self {
        self.part = part;
        self
    }

    /// Whether the simulated phases have their full length.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.part >= 1.0
    }

    /// Returns the length of a phase in this run, given its full length. Figures call `scaled` only
    /// for the lengths of repetitions and waits. Warm-ups, and intervals that the figure varies,
    /// always keep their full length.
    #[must_use]
    pub fn scaled(&self, full: Nanos) -> Nanos {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52 ns")]
        let nanos = (full.0 as f64 * self.part).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of a length")]
        let nanos = nanos as u64;
        Nanos(nanos)
    }

    /// Shortens a time span in seconds, as [`Self::scaled`] does.
    #[must_use]
    pub fn span(&self, (from, until): (f64, f64)) -> (f64, f64) {
        (from * self.part, until * self.part)
    }

    /// Returns the guard, which removes everything that a live run creates.
    ///
    /// # Errors
    /// Returns an error if the run was started without a guard.
    pub fn guard(&self) -> anyhow::Result<&'a Guard> {
        self.guard.context("a live run needs a guard; start it with `penstock-lab run`")
    }

    /// Reports the run's progress on standard error. `done` is the completed fraction of the run (0
    /// to 1), and `at` names the run's current step. A run reports no progress in its first 2
    /// seconds. After the first 2 seconds, a run reports its progress at most every 0.5 s on a
    /// terminal, and otherwise at most every 5 s.
    pub fn progress(&self, done: f64, at: impl fmt::Display) {
        let now = clock::now();
        let terminal = std::io::stderr().is_terminal();
        let gap = Duration::from_millis(if terminal { 500 } else { 5000 });
        let recently = self.said.get().is_some_and(|then| now.duration_since(then) < gap);
        if now.duration_since(self.started) < SILENT_FOR || recently {
            return;
        }
        self.said.set(Some(now));
        let percent = 100.0 * done.clamp(0.0, 1.0);
        let line = format!("{} ({}) {percent:3.0} %  {at}", self.experiment, self.mode);
        // Errors are ignored, because the result does not depend on the progress line.
        let _ = if terminal {
            write!(std::io::stderr(), "\r\x1b[2K{line}")
        } else {
            writeln!(std::io::stderr(), "{line}")
        };
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if self.said.get().is_some() && std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
