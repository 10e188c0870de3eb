//! A switch with the generator attached, measured in windows and stopped in between.
//!
//! **Rule.** Of two switches one runs and the other is stopped (SIGSTOP), with its connections as
//! they are. A window in which worker or generator waited for its core is taken again a few times,
//! and the quietest one counts, whatever its result.

use std::time::Duration;

use serde_json::{Map, Value};

use super::pair::{Pair, PairSettings};
use super::subject::{Case, Subject, WorkerReading};
use penstock_guest::bed::Bed;

/// A window with more wait for a core than this share of it is taken again.
const QUIET: f64 = 0.01;
/// How often.
const TRIES: usize = 3;

/// What was measured, and how long it took.
pub(crate) trait Timed {
    /// Seconds that count.
    fn secs(&self) -> f64;
    /// Nanoseconds that the generator was runnable and did not run.
    fn waited_ns(&self) -> u64;
}

/// One window of one switch.
#[derive(Debug, Clone)]
pub(crate) struct Sample<T> {
    /// The generator's side.
    pub window: T,
    /// The worker's side.
    pub worker: WorkerReading,
    /// Frequency of the worker's cycles.
    pub tsc_hz: f64,
}

impl<T: Timed> Sample<T> {
    /// Cycles of the worker's turns that moved frames over these frames.
    pub fn cycles_per_frame(&self) -> f64 {
        to_f64(self.worker.busy_cycles) / to_f64(self.worker.frames.max(1))
    }

    /// Share of the window that the worker spent in such turns.
    pub fn worker_busy_percent(&self) -> f64 {
        100.0 * to_f64(self.worker.busy_cycles) / (self.window.secs() * self.tsc_hz)
    }

    /// Share of the window that the worker waited for its core.
    pub fn worker_wait_percent(&self) -> f64 {
        percent_of(self.worker.waited_ns, self.window.secs())
    }

    /// Share of the window that the generator waited for its core.
    pub fn generator_wait_percent(&self) -> f64 {
        percent_of(self.window.waited_ns(), self.window.secs())
    }

    /// The greater of the two, as a share.
    pub fn wait_share(&self) -> f64 {
        self.worker_wait_percent().max(self.generator_wait_percent()) / 100.0
    }
}

fn percent_of(ns: u64, secs: f64) -> f64 {
    100.0 * Duration::from_nanos(ns).as_secs_f64() / secs
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

/// A switch and the generator at its sockets.
#[derive(Debug)]
pub(crate) struct Attached {
    /// The generator.
    pub pair: Pair,
    /// The switch.
    pub subject: Box<dyn Subject>,
}

impl Attached {
    /// Attaches the generator to a switch that has just started, and stops the switch.
    pub fn new(bed: &Bed, subject: impl Subject + 'static, link: &Link) -> anyhow::Result<Self> {
        let mut subject: Box<dyn Subject> = Box::new(subject);
        let settings = PairSettings {
            sockets: subject.sockets(),
            ring_size: link.ring_size,
            packed: link.packed,
            touch: link.touch,
            largest: 1518,
        };
        let pair = bed.on_generator_core(|| Pair::connect(&settings))?;
        subject.pause()?;
        Ok(Self { pair, subject })
    }

    /// Programs, settings and agreed features, for the report.
    pub fn describe(&self, platform: &mut Map<String, Value>) {
        self.subject.describe(platform);
        let name = format!("features_{}", self.subject.name());
        platform.insert(name, self.pair.features().into());
    }

    /// Configures the case.
    pub fn set_case(&mut self, case: Case) -> anyhow::Result<()> {
        self.subject.resume()?;
        self.subject.set_case(case)?;
        self.subject.pause()
    }

    /// Runs `warm`, then `run` between two readings of the worker; the quietest of a few.
    pub fn sample<T: Timed + Send>(
        &mut self,
        bed: &Bed,
        warm: impl Fn(&mut Pair) -> anyhow::Result<()> + Sync,
        run: impl Fn(&mut Pair) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Sample<T>> {
        self.subject.resume()?;
        let mut best: Option<Sample<T>> = None;
        for _ in 0..TRIES {
            let pair = &mut self.pair;
            bed.on_generator_core(|| warm(pair))?;
            self.subject.mark()?;
            let pair = &mut self.pair;
            let window = bed.on_generator_core(|| run(pair))?;
            let worker = self.subject.read()?;
            let sample = Sample { window, worker, tsc_hz: self.subject.tsc_hz() };
            if best.as_ref().is_none_or(|best| sample.wait_share() < best.wait_share()) {
                best = Some(sample);
            }
            if best.as_ref().is_some_and(|best| best.wait_share() <= QUIET) {
                break;
            }
        }
        self.subject.pause()?;
        best.ok_or_else(|| anyhow::anyhow!("no window was measured"))
    }
}

/// How the generator attaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Whether the rings are packed.
    pub packed: bool,
    /// Whether every byte is written and verified.
    pub touch: bool,
}
