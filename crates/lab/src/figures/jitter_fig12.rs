//! VM jitter, Fig. 12: processor shares as VMs start and stop.
//!
//! # Problem
//!
//! Deadlines determine when a VM runs. Deadlines must not change how much processor time a VM
//! receives.
//!
//! # Source
//!
//! VM jitter §V-C, Fig. 12: three compute-bound VMs with the same weight share one processor. Later
//! in the run a fourth VM starts, and then a fifth VM. Near the end of a run VM 1 stops, and later
//! VM 2 stops.
//!
//! # Approach
//!
//! Each phase lasts 60 s. There are two runs with Penstock's scheduler. In the first run no VM has
//! a deadline. In the second run VM 3 has a periodic deadline of 5 ms. VM 4 has an aperiodic
//! deadline of 8 ms in the second run, and receives a ping every 10 ms. A run with Xen's scheduler
//! is shown for comparison.
//!
//! In each phase, the error of a VM is the difference between the VM's share of the processor and
//! an equal share. The claim uses the largest error of all VMs and phases, in percent of the
//! processor.
//!
//! The figure shows the error of a VM's share over windows of ten epochs without a band. Ten epochs
//! are ten time slices, and three VMs cannot share ten slices equally. At the end of a window, a VM
//! may be ahead of or behind its share by one slice.

use penstock_sim::vcpu::{Frame, GuestId, GuestSpec};
use penstock_units::Nanos;
use penstock_vcpu::{Contract, Mode};

use super::vcpu_bed::{Bed, credit1, double_queue, start, terms, weight};
use crate::evidence::stats::ms;
use crate::evidence::{
    Axis, Claim, Context, Experiment, Mode as RunMode, Outcome, Panel, Picture, Record,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig12",
    source: "VM jitter §V-C, Fig. 12",
    about: "shares of a processor as VMs start and stop",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig12),
    picture,
};

const PHASE: Nanos = Nanos::from_secs(60);
/// Length of a window, which is ten epochs of the scheduler.
const WINDOW: Nanos = Nanos::from_millis(300);
/// VMs that run in each phase. VMs are numbered from 0.
const PHASES: [&[usize]; 5] =
    [&[0, 1, 2], &[0, 1, 2, 3], &[0, 1, 2, 3, 4], &[1, 2, 3, 4], &[2, 3, 4]];
const VMS: usize = 5;

/// Shares and errors of the VMs in a run, in percent of the processor.
#[derive(Default)]
struct Found {
    /// For each VM, a list of pairs: the time in seconds, and the VM's processor share in a window
    /// of ten epochs.
    parts: [Vec<(f64, f64)>; VMS],
    /// Largest error of a VM's share in a phase. `window_error_max` is the largest error of a VM's
    /// share in a window of ten epochs.
    error_max: f64,
    window_error_max: f64,
}

/// Returns the contract of the VM with the number `vm`. If `real_time` is true, VMs 2 and 3
/// (numbered from 0) have deadlines.
fn contract(vm: usize, real_time: bool) -> anyhow::Result<Contract> {
    let weight = weight(1)?;
    Ok(match vm {
        2 if real_time => terms(Mode::Periodic, Some(Nanos::from_millis(5)), weight),
        3 if real_time => terms(Mode::Aperiodic, Some(Nanos::from_millis(8)), weight),
        _ => Contract::by_credit(weight),
    })
}

fn run(ctx: &Context<'_>, mut bed: Bed, real_time: bool) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut guests: [Option<GuestId>; VMS] = [None; VMS];
    let phase = ctx.scaled(PHASE);
    let mut begin = Nanos::from_millis(30);
    bed.run_until(begin);
    for present in PHASES {
        for (vm, guest) in guests.iter_mut().enumerate() {
            match (*guest, present.contains(&vm)) {
                (None, true) => {
                    *guest = Some(start(&mut bed, &contract(vm, real_time)?, GuestSpec::hog())?);
                }
                (Some(there), false) => bed.stop(there),
                _ => {}
            }
        }
        if let Some(pinged) = guests[3].filter(|_| real_time) {
            let every = Nanos::from_millis(10);
            let pings = (1..phase.0 / every.0).map(|n| begin + Nanos(n * every.0));
            pings.for_each(|at| bed.arrive(at, pinged, Frame::Ping(at)));
        }
        observe(&mut bed, &guests, present, (begin, phase), &mut found);
        begin += phase;
    }
    Ok(found)
}

/// Runs one phase and records each VM's share.
fn observe(
    bed: &mut Bed,
    guests: &[Option<GuestId>; VMS],
    present: &[usize],
    (begin, phase): (Nanos, Nanos),
    found: &mut Found,
) {
    let due = 100.0 / crate::evidence::stats::count(present.len());
    let used = |bed: &Bed, vm: usize| guests[vm].map_or(0.0, |guest| ms(bed.used(guest)));
    let first = [0, 1, 2, 3, 4].map(|vm| used(bed, vm));
    let mut before = first;
    for window in 1..=phase.0 / WINDOW.0 {
        let now = begin + Nanos(window * WINDOW.0);
        bed.run_until(now);
        for vm in present.iter().copied() {
            let total = used(bed, vm);
            let part = 100.0 * (total - before[vm]) / ms(WINDOW);
            before[vm] = total;
            found.parts[vm].push((ms(now) / 1e3, part));
            found.window_error_max = found.window_error_max.max((part - due).abs());
        }
    }
    bed.run_until(begin + phase);
    for vm in present.iter().copied() {
        let part = 100.0 * (used(bed, vm) - first[vm]) / ms(phase);
        found.error_max = found.error_max.max((part - due).abs());
    }
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("phase_s", ctx.scaled(PHASE).0 / 1_000_000_000);
    let runs = [
        ("by_credit", run(ctx, double_queue(ctx.seed), false)?),
        ("with_deadlines", run(ctx, double_queue(ctx.seed), true)?),
        ("credit1", run(ctx, credit1(ctx.seed), false)?),
    ];
    for (name, found) in &runs {
        for (vm, parts) in found.parts.iter().enumerate() {
            // A picture cannot show more than one window in ten.
            let points = parts.iter().copied().step_by(10);
            outcome.series(&format!("{name}: VM {}", vm + 1), "% of the processor", points);
        }
        let what = format!("{name}: largest error of a VM's share in a phase");
        let claim = Claim::new(&format!("share_error_pct_{name}"), what, "% of the processor");
        outcome.claim(claim.measured(found.error_max));
        let what = format!("{name}: largest error of a VM's share in ten epochs");
        let claim = Claim::new(&format!("window_error_pct_{name}"), what, "% of the processor");
        outcome.claim(claim.measured(found.window_error_max));
    }
    let what = "largest error of a VM's share in a phase, with and without deadlines";
    let worst = runs[0].1.error_max.max(runs[1].1.error_max);
    let claim = Claim::new("share_error_pct_max", what, "% of the processor").at_most(1.0);
    outcome.claim(claim.measured(worst));
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    if record.mode == RunMode::Live {
        return crate::live::jitter_fig12_picture(record);
    }
    let panel = |title: &str, prefix: &str| {
        let axis = Axis::linear("% of the processor").to(60.0);
        let mut panel = Panel::new(title, Axis::linear("time, s"), axis);
        for (vm, series) in record.series_of(prefix) {
            panel = panel.series(vm, series);
        }
        panel
    };
    Picture::new("VM jitter, Fig. 12: shares as VMs start and stop; windows of 0.3 s")
        .panel(panel("(a) no deadlines", "by_credit: "))
        .panel(panel("(b) VM 3 within 5 ms, VM 4 within 8 ms", "with_deadlines: "))
        .panel(panel("(c) Xen's credit scheduler", "credit1: "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn shares_follow_who_is_there_for_any_seed() {
        assert_holds("jitter-fig12", sim, &[1, 20]);
    }
}
