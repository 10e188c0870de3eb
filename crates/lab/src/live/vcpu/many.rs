//! Several VMs with deadlines at once, and sixteen VMs on a core.
//!
//! # Problem
//!
//! With several deadlines, slices of one VM may be due when another's are. With many VMs, a poll
//! has more to read.
//!
//! # Approach
//!
//! Setting and bars are those of `wakeup`.
//!
//! # Cost
//!
//! A run has 5 cells of 60 s. `--secs` sets the length of a cell.

use super::bed::{Mode, Terms};
use super::events::Cell;
use super::wakeup::{BAR_PCT, Lab, OVER_MS, SECS, gap, picture_by};
use crate::evidence::{Claim, Context, Outcome, Picture, Record};

/// Name, VMs with deadlines, and the number of other hogs.
type Set = (&'static str, &'static [(Mode, u32)], usize);
/// Several VMs with deadlines: name, modes and deadlines of each set, and the number of other hogs.
const SETS: [Set; 3] = [
    ("three of 3 ms", &[(Mode::Periodic, 3); 3], 3),
    ("3, 5 and 8 ms", &[(Mode::Event, 3), (Mode::Periodic, 5), (Mode::Periodic, 8)], 3),
    ("four of 8 ms", &[(Mode::Periodic, 8); 4], 4),
];

/// # Errors
///
/// The same as for [`super::wakeup::run`].
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context, SECS, 5.0)?;
    lab.sets()?;
    lab.sixteen()?;
    Ok(lab.conclude())
}

impl Lab<'_> {
    /// Several VMs with deadlines at once.
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
        let what = "several VMs with deadlines at once: the furthest that 99.9 % of a VM's events \
                    were above its deadline";
        let claim = Claim::new("several_over_deadline_p999_ms", what, "ms").at_most(OVER_MS);
        self.outcome.claim(claim.measured(over));
        Ok(())
    }

    /// Sixteen VMs: with one deadline, and with as many deadlines as are admitted.
    fn sixteen(&mut self) -> anyhow::Result<()> {
        for (id, with) in [("one_deadline", 1), ("eleven_deadlines", 11)] {
            let tested = vec![Terms::real_time(Mode::Periodic, 8); with];
            let gap = gap(Mode::Periodic);
            let cell = Cell { tested, hogs: 16 - with, ours: true, secs: self.secs, gap };
            let found = self.cell(cell)?;
            self.plot("sixteen VMs", u32::try_from(with)?, &found);
            self.tell(&format!("sixteen, {with} with D = 8 ms"), &found);
            let what = format!("sixteen VMs, {with} of them with D = 8 ms: the scheduling thread");
            let claim = Claim::new(&format!("scheduler_pct_16_{id}"), what, "% of the core");
            self.outcome.claim(claim.at_most(BAR_PCT).measured(found.own));
            let what = format!("sixteen VMs, {with} of them with D = 8 ms: 99.9 % of events");
            let claim = Claim::new(&format!("p999_ms_16_{id}"), what, "ms").at_most(9.0);
            self.outcome.claim(claim.measured(found.at(99.9)));
        }
        Ok(())
    }
}

/// The sixteen VMs, by how many of them have a deadline.
pub(crate) fn picture(record: &Record) -> Picture {
    picture_by(record, "VMs with a deadline, of sixteen")
}
