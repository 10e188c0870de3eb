//! Live experiment for VM jitter's Fig. 7: requests every 0.1 s to a VM that computes.
//!
//! # Problem
//!
//! If a VM is in the run queue when a request arrives, the answer waits until the VM's turn.
//!
//! # Source
//!
//! VM jitter §V-A, Fig. 7, measures a ping every 0.1 s beside five, three and one busy VMs.
//! `figures/jitter_fig7.rs` describes the paper's experiment.
//!
//! # Approach
//!
//! The guest is a micro-guest ([`crate::microguest`]). The guest's answer is its first instruction
//! after the event. A real ping also passes a switch and a guest kernel. The switch and the guest
//! kernel take the same time under both schedulers, so they would hide the difference between the
//! schedulers. The module `linux_pings` measures pings with a switch and a guest kernel. Each
//! interval between two requests is up to 1 ms longer than 0.1 s, at random. The program that sends
//! the request notifies the scheduler, as the switch does.
//!
//! The experiment compares p50, p90 and p99 under Linux's fair class and with deadlines of 3, 5 and
//! 8 ms. With deadlines, p99 must be lower by a factor of at least three.

use penstock_units::Nanos;

use super::bed::{Mode, Stage, Terms};
use super::events::{Cell, Found, measure};
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::platform;

const SECS: f64 = 60.0;
const EVERY: Nanos = Nanos::from_millis(100);
const LATE: Nanos = Nanos::from_millis(1);
const NEIGHBOURS: [u32; 3] = [5, 3, 1];
const DEADLINES_MS: [u32; 3] = [3, 5, 8];
const PERCENTS: [f64; 4] = [50.0, 90.0, 99.0, 100.0];
/// Minimum factor by which the Penstock scheduler must reduce the 99th percentile of the answer
/// times.
const LOWER: f64 = 3.0;

/// Runs the live experiment of VM jitter's Fig. 7.
///
/// # Errors
///
/// Returns an error if there is no KVM, if real-time policies are not permitted, or if a guest or
/// the scheduler fails.
pub(crate) fn fig7(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let stage = Stage::new(context)?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&stage.bed, false), ..Outcome::default() };
    outcome.note("accelerator", "kvm, ring-3 micro-guests");
    outcome.note("secs_of_a_cell", secs);
    let (mut done, mut least) = (0.0, f64::INFINITY);
    for hogs in NEIGHBOURS {
        let mut cell = |deadline: Option<u32>| {
            context.progress(done / 12.0, format!("{hogs} busy VMs, D = {deadline:?}"));
            done += 1.0;
            let tested = deadline.map_or(Terms::HOG, |d| Terms::real_time(Mode::Event, d));
            let gap = (EVERY, EVERY + LATE);
            let hogs = usize::try_from(hogs)?;
            let cell = Cell { tested: vec![tested], hogs, ours: deadline.is_some(), secs, gap };
            measure(&stage, &cell, context.seed)
        };
        let fair = cell(None)?;
        enter(&mut outcome, &format!("fair class, {hogs} neighbours"), &fair);
        let id = format!("fair_p99_ms_{hogs}_neighbours");
        let what = format!("p99 under the fair class, beside {hogs} busy VMs");
        outcome.claim(Claim::new(&id, what, "ms").measured(fair.at(99.0)));
        for deadline in DEADLINES_MS {
            let ours = cell(Some(deadline))?;
            enter(&mut outcome, &format!("D = {deadline} ms, {hogs} neighbours"), &ours);
            let id = format!("p99_ms_d{deadline}_{hogs}_neighbours");
            let what = format!("p99 with a deadline of {deadline} ms, beside {hogs} busy VMs");
            outcome.claim(Claim::new(&id, what, "ms").measured(ours.at(99.0)));
            least = least.min(fair.at(99.0) / ours.at(99.0));
        }
    }
    let what =
        "p99 under the fair class over ours, the least of all deadlines and numbers of busy VMs";
    let claim = Claim::new("fair_over_ours_p99_min", what, "").at_least(LOWER);
    outcome.claim(claim.measured(least));
    super::linux_pings::enter(context, &stage, secs, &mut outcome)?;
    Ok(outcome)
}

fn enter(outcome: &mut Outcome, name: &str, found: &Found) {
    let numbered = (0_u32..).map(f64::from).zip(found.answers[0].iter().copied());
    outcome.series(name, "ms", numbered.collect::<Vec<_>>());
    let at = PERCENTS.map(|percent| format!("{:.3}", found.at(percent)));
    outcome.note(&format!("{name}: p50, p90, p99, max, ms"), at.join(", "));
}
