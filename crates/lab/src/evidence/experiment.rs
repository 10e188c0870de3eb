//! Experiments, and the context of their runs.

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

/// Where an experiment happens.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The production worker on virtual time, at the paper's scale.
    Sim,
    /// This machine: real ports and real programs.
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

/// Runs an experiment in one mode.
pub type Run = fn(&Context<'_>) -> anyhow::Result<Outcome>;

/// A published figure or table that the lab reproduces.
///
/// The picture depends only on the record, so it shows what the JSON contains.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Name of the experiment on the command line.
    pub name: &'static str,
    /// Name of the paper, and the place in it.
    pub source: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Runs the simulation. `None` if the experiment cannot be simulated.
    pub sim: Option<Run>,
    /// Runs on this machine. `None` if the experiment has no live run.
    pub live: Option<Run>,
    pub picture: fn(&Record) -> Picture,
}

impl Experiment {
    /// The function that runs the experiment in `mode`. `None` if the experiment lacks the mode.
    #[must_use]
    pub fn run_of(&self, mode: Mode) -> Option<Run> {
        match mode {
            Mode::Sim => self.sim,
            Mode::Live => self.live,
        }
    }

    /// The picture of a record. Its title says if numbers were fitted to the outcome.
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

/// Settings of live runs.
#[derive(Debug, Clone, clap::Args)]
pub struct LiveArgs {
    /// Seconds of one measurement. Default: the experiment's own
    #[arg(long, value_name = "SECS", value_parser = crate::bench::seconds)]
    pub secs: Option<f64>,
    /// Number of measurements of each case (1 to 1000). Default: the experiment's own
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Also measure this switch, if the experiment can; needs root
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Cores and priorities.
    #[command(flatten)]
    pub bed: BedArgs,
}

#[derive(Debug)]
pub struct Context<'a> {
    pub experiment: &'static str,
    pub mode: Mode,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Settings of live runs.
    pub live: &'a LiveArgs,
    /// Directory for results that do not fit into JSON, picture and CSV.
    pub out: Option<&'a Path>,
    /// Fraction to which phases of simulated figures are shortened. See [`Self::scaled`].
    pub part: f64,
    guard: Option<&'a Guard>,
    started: Instant,
    said: Cell<Option<Instant>>,
}

/// Runs shorter than this do not report their progress.
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

    /// Shortens the phases to `part` of their full length.
    #[must_use]
    pub fn with_part(mut self, part: f64) -> Self {
        self.part = part;
        self
    }

    /// Length of a phase in this run, if its full length is `full`. Only repetitions and waiting
    /// times are shortened. Warm-ups are not, and neither are intervals that the figure varies.
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

    /// The guard that removes everything that a live run creates.
    ///
    /// # Errors
    /// The run was started without a guard.
    pub fn guard(&self) -> anyhow::Result<&'a Guard> {
        self.guard.context("a live run needs its guard: start it by `penstock-lab run`")
    }

    /// Reports progress on standard error: `done` (0 to 1) and the current step. Short runs report
    /// nothing. Long runs report at most every half second on a terminal, and otherwise every 5
    /// seconds.
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
        // A run still has a result if its progress cannot be written.
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
