//! Live experiment about the time from an event to the first instruction of a busy vCPU, and about
//! the cost of scheduling.
//!
//! # Problem
//!
//! If a frame arrives for a VM that computes all the time, the VM has often used up its time slice.
//! A VM that has used up its time slice waits until all other VMs have used their time slices.
//!
//! # Source
//!
//! The experiment follows VM jitter §III-A and §V-A. The scheduler must meet three requirements:
//!
//! - the time from an event to the first instruction is at most D + 1 ms in 99.9 % of the cases,
//! - each VM's share differs from its due share by at most 2 % of the core,
//! - the scheduler uses at most 2 % of the core with 16 vCPUs.
//!
//! # Approach
//!
//! All VMs are micro-guests ([`crate::microguest`]) of equal weight that compute on one core. One
//! VM receives events at uniformly random intervals of 2 to 18 ms. The VM records the time at which
//! it sees each event.
//!
//! - `periodic`: the sender does not notify the scheduler of the events.
//! - `event`: the sender notifies the scheduler, as the switch does for frames. In the mode
//!   `event`, the intervals between events are 10 to 90 ms. With intervals shorter than 10 to 90
//!   ms, the CPU time that the scheduler reserves for the VM would not suffice for all events.
//!
//! Each measurement (*cell*) has one of the deadlines 3, 5 and 8 ms, and 1, 3 or 5 other VMs. For
//! comparison, the same VMs run under the kernel's fair class alone. The module `many` measures
//! several deadlines at once, and sixteen VMs.
//!
//! # Cost
//!
//! A run has 21 measurements of 60 s. The option `--secs` sets the length of one measurement. The
//! experiment `vcpu-wakeup-long` has one measurement of ten minutes.

use penstock_units::Nanos;

use super::bed::{Mode, Stage, Terms};
use super::events::{Cell, Found, measure};
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::rig::platform;

pub(super) const SECS: f64 = 60.0;
const LONG_SECS: f64 = 600.0;
const NEIGHBOURS: [u32; 3] = [1, 3, 5];
const DEADLINES_MS: [u32; 3] = [3, 5, 8];
/// Longest permitted time by which a VM may exceed its deadline, in ms.
pub(super) const OVER_MS: f64 = 1.0;
/// Limit for the error of a VM's share, and for the scheduler's own time, in percent of the core.
pub(super) const BAR_PCT: f64 = 2.0;
/// Percentiles that the picture shows.
const SHOWN: [(&str, f64); 4] = [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9), ("max", 100.0)];

/// Minimum and maximum time between two events of a VM.
pub(super) fn gap(mode: Mode) -> (Nanos, Nanos) {
    match mode {
        Mode::Event => (Nanos::from_millis(10), Nanos::from_millis(90)),
        Mode::Periodic | Mode::None => (Nanos::from_millis(2), Nanos::from_millis(18)),
    }
}

/// Runs the measurements with all deadlines and numbers of other VMs.
///
/// # Errors
///
/// Returns an error if there is no KVM, if real-time policies are not permitted, or if a guest or
/// the scheduler fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context, SECS, 9.0 * 2.0 + 3.0)?;
    for hogs in NEIGHBOURS {
        let found = lab.one(None, hogs)?;
        lab.draw("fair class", hogs, &found);
    }
    for mode in [Mode::Periodic, Mode::Event] {
        for deadline in DEADLINES_MS {
            let mut worst: f64 = 0.0;
            for hogs in NEIGHBOURS {
                let found = lab.one(Some((mode, deadline)), hogs)?;
                worst = worst.max(found.at(99.9));
                let name = format!("{}, D = {deadline} ms", mode.name());
                lab.draw(&name, hogs, &found);
            }
            lab.promise(mode, deadline, worst);
        }
    }
    Ok(lab.conclude())
}

/// Runs one measurement of ten minutes, in the mode `periodic` with D = 3 ms and five busy VMs.
///
/// # Errors
///
/// Returns an error for the same reasons as [`run`].
pub(crate) fn long(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context, LONG_SECS, 1.0)?;
    let found = lab.one(Some((Mode::Periodic, 3)), 5)?;
    lab.draw("periodic, D = 3 ms", 5, &found);
    lab.promise(Mode::Periodic, 3, found.at(99.9));
    Ok(lab.conclude())
}

pub(super) struct Lab<'a> {
    context: &'a Context<'a>,
    stage: Stage,
    pub outcome: Outcome,
    pub secs: f64,
    cells: f64,
    done: f64,
    share_error: f64,
}

impl<'a> Lab<'a> {
    pub fn new(context: &'a Context<'a>, secs: f64, cells: f64) -> anyhow::Result<Self> {
        let stage = Stage::new(context)?;
        let secs = context.live.secs.unwrap_or(secs);
        let mut outcome = Outcome { platform: platform(&stage.bed, false), ..Outcome::default() };
        outcome.note("accelerator", "kvm, ring-3 micro-guests");
        outcome.note("secs_of_a_cell", secs);
        Ok(Self { context, stage, outcome, secs, cells, done: 0.0, share_error: 0.0 })
    }

    /// Measures one VM beside `hogs` other VMs. `terms` holds the VM's mode and deadline, or is
    /// `None` for the kernel's fair class.
    fn one(&mut self, terms: Option<(Mode, u32)>, hogs: u32) -> anyhow::Result<Found> {
        let hogs = usize::try_from(hogs)?;
        let mode = terms.map_or(Mode::None, |(mode, _)| mode);
        let tested = terms.map_or(Terms::HOG, |(mode, d)| Terms::real_time(mode, d));
        let ours = terms.is_some();
        self.cell(Cell { tested: vec![tested], hogs, ours, secs: self.secs, gap: gap(mode) })
    }

    pub fn cell(&mut self, cell: Cell) -> anyhow::Result<Found> {
        let vms = cell.tested.len() + cell.hogs;
        let of = &cell.tested[0];
        let at = format!("{vms} VMs, {} {} ms", of.mode.name(), of.deadline_ms);
        self.context.progress(self.done / self.cells, at);
        self.done += 1.0;
        let found = measure(&self.stage, &cell, self.context.seed)?;
        if cell.ours {
            self.share_error = self.share_error.max(found.share_error);
        }
        Ok(found)
    }

    /// Adds the results of a measurement with `hogs` other VMs to the picture and to the report.
    fn draw(&mut self, name: &str, hogs: u32, found: &Found) {
        self.plot(name, hogs, found);
        self.tell(&format!("{name}, {hogs} hogs"), found);
    }

    /// Adds the results of a measurement to the picture, at position `x`.
    pub fn plot(&mut self, name: &str, x: u32, found: &Found) {
        let x = f64::from(x);
        for (what, percent) in SHOWN {
            self.add(&format!("{name}: {what}"), "ms", (x, found.at(percent)));
        }
        self.add(&format!("share of {name}"), "% of the core", (x, found.share));
        self.add(&format!("scheduler, {name}"), "% of the core", (x, found.own));
    }

    /// Adds the results of a measurement that the picture does not show to the report.
    pub fn tell(&mut self, name: &str, found: &Found) {
        let answers: usize = found.answers.iter().map(Vec::len).sum();
        let worst = found.worst.iter().map(|(answer, told)| format!("{answer:.2} ({told:.2})"));
        let worst = worst.collect::<Vec<_>>().join(", ");
        let text = format!(
            "{answers} events, {} waits over D + 1 ms, {:.0} polls/s, {} slots skipped, {:.2} % of \
             the core stolen, the scheduling thread's own work {:.2} %, shares off {:.2}; worst \
             answers, and when all events were reported, ms: {worst}",
            found.missed, found.polls, found.skipped, found.stolen, found.work, found.share_error
        );
        self.outcome.note(name, text);
    }

    fn add(&mut self, name: &str, unit: &str, point: (f64, f64)) {
        match self.outcome.series.iter_mut().find(|series| series.name == name) {
            Some(series) => {
                series.x.push(point.0);
                series.y.push(point.1);
            }
            None => self.outcome.series(name, unit, [point]),
        }
    }

    fn promise(&mut self, mode: Mode, deadline: u32, worst: f64) {
        let id = format!("{}_d{deadline}_p999_ms", mode.name());
        let what = format!(
            "event to first instruction, p99.9, {}, deadline of {deadline} ms, greatest value \
             beside 1 to 5 busy VMs",
            mode.name()
        );
        let claim = Claim::new(&id, what, "ms").at_most(f64::from(deadline) + OVER_MS);
        self.outcome.claim(claim.measured(worst));
    }

    pub fn conclude(mut self) -> Outcome {
        let what = "greatest error of a VM's share of the core, in any cell under our scheduler";
        let claim = Claim::new("share_error_pct_max", what, "% of the core").at_most(BAR_PCT);
        self.outcome.claim(claim.measured(self.share_error));
        self.outcome
    }
}

/// Draws percentiles of the reaction time over the number of other VMs.
pub(crate) fn picture(record: &Record) -> Picture {
    picture_by(record, "hogs beside")
}

/// Draws percentiles of the reaction time. `by` is the label of the x axis.
pub(super) fn picture_by(record: &Record, by: &str) -> Picture {
    let mut picture = Picture::new("Event to first instruction of a vCPU that computes, live");
    for (title, what) in [("(a) 99.9 % of events", "p99.9"), ("(b) half of them", "p50")] {
        let axis = Axis::linear(by);
        let mut panel = Panel::new(title, axis, Axis::linear("ms").from(0.0));
        let suffix = format!(": {what}");
        for series in &record.series {
            if let Some(name) = series.name.strip_suffix(&suffix) {
                panel = panel.series(name, series);
            }
        }
        picture = picture.panel(panel);
    }
    for (title, prefix) in [("(c) share", "share of "), ("(d) scheduling thread", "scheduler, ")] {
        let axis = Axis::linear("% of the core").from(0.0);
        let mut panel = Panel::new(title, Axis::linear(by), axis);
        for (name, series) in record.series_of(prefix) {
            panel = panel.series(name, series);
        }
        picture = picture.panel(panel);
    }
    picture
}
