//! The time from an event until a vCPU that computes runs, and the cost of scheduling.
//!
//! # Problem
//!
//! A VM that computes has used up its time when a frame comes for it. The VM waits until all others
//! had their time.
//!
//! # Source
//!
//! VM jitter §III-A and §V-A. The figure's requirements set these bars:
//!
//! - event to first instruction within D + 1 ms in 99.9 % of the cases;
//! - shares within 2 % of what is due;
//! - scheduler time at most 2 % of the core with 16 vCPUs.
//!
//! # Approach
//!
//! All VMs are micro-guests ([`crate::microguest`]) that compute, of equal weight, on one core. One
//! of them gets events at uniformly random times, 2 to 18 ms apart and in phase with nothing else.
//! The VM notes when it sees them.
//!
//! - `periodic`: the scheduler is not notified.
//! - `event`: the sender notifies the scheduler, as the switch does for frames. Events are 10 to
//!   90 ms apart, so that the VM's reserve pays for them.
//!
//! There are 1, 3 and 5 other hogs, and deadlines of 3, 5 and 8 ms. Then the same VMs run under the
//! kernel's fair class alone. Several VMs with deadlines at once, and sixteen VMs, are experiments
//! of their own (`many`).
//!
//! # Cost
//!
//! A run has 21 cells of 60 s. `--secs` sets the length of a cell. One cell of ten minutes is an
//! experiment of its own, `vcpu-wakeup-long`.

use penstock_units::Nanos;

use super::bed::{Mode, Stage, Terms};
use super::events::{Cell, Found, measure};
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::rig::platform;

pub(super) const SECS: f64 = 60.0;
const LONG_SECS: f64 = 600.0;
const NEIGHBOURS: [u32; 3] = [1, 3, 5];
const DEADLINES_MS: [u32; 3] = [3, 5, 8];
/// Longest permitted time above a deadline, in ms.
pub(super) const OVER_MS: f64 = 1.0;
/// Bar for share and own time, in percent of the core.
pub(super) const BAR_PCT: f64 = 2.0;
/// Percentiles that are drawn for a cell.
const SHOWN: [(&str, f64); 4] = [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9), ("max", 100.0)];

/// Minimum and maximum time between two events of a VM.
pub(super) fn gap(mode: Mode) -> (Nanos, Nanos) {
    match mode {
        Mode::Event => (Nanos::from_millis(10), Nanos::from_millis(90)),
        Mode::Periodic | Mode::None => (Nanos::from_millis(2), Nanos::from_millis(18)),
    }
}

/// # Errors
///
/// Fails if there is no KVM, if real-time policies are not permitted, or if a guest or the
/// scheduler fails.
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

/// Runs one cell for ten minutes.
///
/// # Errors
///
/// The same as for [`run`].
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

    /// One VM with a deadline, or without one under the fair class.
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

    /// Enters a cell with this number of other hogs.
    fn draw(&mut self, name: &str, hogs: u32, found: &Found) {
        self.plot(name, hogs, found);
        self.tell(&format!("{name}, {hogs} hogs"), found);
    }

    /// A cell's numbers for the picture.
    pub fn plot(&mut self, name: &str, x: u32, found: &Found) {
        let x = f64::from(x);
        for (what, percent) in SHOWN {
            self.add(&format!("{name}: {what}"), "ms", (x, found.at(percent)));
        }
        self.add(&format!("share of {name}"), "% of the core", (x, found.share));
        self.add(&format!("scheduler, {name}"), "% of the core", (x, found.own));
    }

    /// Reports the other numbers of a cell.
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
            "event to first instruction, 99.9 % of them, {}, deadline of {deadline} ms, most of 1 \
             to 5 hogs beside",
            mode.name()
        );
        let claim = Claim::new(&id, what, "ms").at_most(f64::from(deadline) + OVER_MS);
        self.outcome.claim(claim.measured(worst));
    }

    pub fn conclude(mut self) -> Outcome {
        let what =
            "the furthest that a VM's part of the core was from its due, in any cell of ours";
        let claim = Claim::new("share_error_pct_max", what, "% of the core").at_most(BAR_PCT);
        self.outcome.claim(claim.measured(self.share_error));
        self.outcome
    }
}

/// Percentiles by the number of hogs.
pub(crate) fn picture(record: &Record) -> Picture {
    picture_by(record, "hogs beside")
}

/// Percentiles by the quantity that `by` names.
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
