//! Live experiment with several deadlines at once, and with sixteen VMs on a core.
//!
//! # Problem
//!
//! If several VMs have deadlines, time slices of two VMs may be due at the same time. With many
//! VMs, each poll of the scheduler reads the state of more vCPUs.
//!
//! # Approach
//!
//! The method and the limits are the same as in the module `wakeup`.
//!
//! # Cost
//!
//! A run has 5 measurements of 60 s. The option `--secs` sets the length of a measurement.

use super::bed::{Mode, Terms};
use super::events::Cell;
use super::wakeup::{BAR_PCT, Lab, OVER_MS, SECS, gap, picture_by};
use crate::evidence::{Claim, Context, Outcome, Picture, Record};

/// A set of VMs: its name, the VMs with deadlines (mode, milliseconds), and the number of other
/// VMs.
type Set = (&'static str, &'static [(Mode, u32)], usize);
/// Measured sets of VMs, in which several VMs have deadlines.
const SETS: [Set; 3] = [
    ("three of 3 ms", &[(Mode::Periodic, 3); 3], 3),
    ("3, 5 and 8 ms", &[(Mode::Event, 3), (Mode::Periodic, 5), (Mode::Periodic, 8)], 3),
    ("four of 8 ms", &[(Mode::Periodic, 8); 4], 4),
];

/// Measures the sets of VMs with several deadlines, and the sets of sixteen VMs.
///
/// # Errors
///
/// Returns an error for the same reasons as [`super::wakeup::run`].
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context, SECS, 5.0)?;
    lab.sets()?;
    lab.sixteen()?;
    Ok(lab.conclude())
}

impl Lab<'_> {
    /// Measures the sets of VMs with several deadlines.
    fn sets(&mut self) -> anyhow::Result<()> {
        let mut over = f64::NEG_INFINITY;
        for (name, vms, hogs) in SETS {
            let tested = vms.iter().map(|(mode, d)| Terms::real_time(*mode, *d)).collect();
            let modes = vms.iter().map(|(mode, _)| gap(*mode));
            let gap = modes.max().unwrap_or_default();
            let found = self.cell(Cell { tested, hogs, ours: true, secs: self.secs, gap })?;
            for (nth, (mode, deadline)) in vms.iter().enumerate() {
                let p999 = found.at_of(nth, 99.9);
                over = over.max(p999 - f64::from(*deadline));
                self.outcome.note(
                    &format!("several, {name}: VM {} ({})", nth + 1, mode.name()),
                    format!("p99.9 {p999:.2} ms, max {:.2} ms", found.at_of(nth, 100.0)),
                );
            }
            self.outcome.note(&format!("several, {name}: scheduler_pct"), found.own);
            self.tell(&format!("several, {name}"), &found);
        }
        let what = "several VMs with deadlines at once: greatest excess of a VM's p99.9 over its \
                    deadline";
        let claim = Claim::new("several_over_deadline_p999_ms", what, "ms").at_most(OVER_MS);
        self.outcome.claim(claim.measured(over));
        Ok(())
    }

    /// Measures sixteen VMs with one deadline, and with eleven deadlines. The scheduler admits at
    /// most eleven deadlines.
    fn sixteen(&mut self) -> anyhow::Result<()> {
        for (id, with) in [("one_deadline", 1), ("eleven_deadlines", 11)] {
            let tested = vec![Terms::real_time(Mode::Periodic, 8); with];
            let gap = gap(Mode::Periodic);
            let cell = Cell { tested, hogs: 16 - with, ours: true, secs: self.secs, gap };
            let found = self.cell(cell)?;
            self.plot("sixteen VMs", u32::try_from(with)?, &found);
            self.tell(&format!("sixteen, {with} with D = 8 ms"), &found);
            let what = format!("sixteen VMs, {with} with D = 8 ms: CPU use of the scheduler");
            let claim = Claim::new(&format!("scheduler_pct_16_{id}"), what, "% of the core");
            self.outcome.claim(claim.at_most(BAR_PCT).measured(found.own));
            let what = format!("sixteen VMs, {with} with D = 8 ms: p99.9 of event to instruction");
            let claim = Claim::new(&format!("p999_ms_16_{id}"), what, "ms").at_most(9.0);
            self.outcome.claim(claim.measured(found.at(99.9)));
        }
        Ok(())
    }
}

/// Draws the percentiles for sixteen VMs over the number of VMs with deadlines.
pub(crate) fn picture(record: &Record) -> Picture {
    picture_by(record, "VMs with a deadline, of sixteen")
}
