//! Live experiment for VM jitter's Fig. 12: each VM's share of a core while VMs start and stop.
//!
//! # Source
//!
//! The experiment replays VM jitter §V-C, Fig. 12. The file `figures/jitter_fig12.rs` describes the
//! paper's experiment.
//!
//! # Approach
//!
//! Five micro-guests ([`crate::microguest`]) compute with equal weight. The processes of the guests
//! start and end as VMs do. The experiment has three runs: the Penstock scheduler without
//! deadlines, the Penstock scheduler with deadlines, and the kernel's fair class. In the run with
//! deadlines, VM 3 has the mode `periodic` with a deadline of 5 ms. VM 4 receives an event every 10
//! ms, and must run within 8 ms of each event.
//!
//! In each phase, the experiment compares each VM's share of all VMs' CPU time with an equal share.
//! The first [`SETTLE`] of a phase does not count, because the scheduler needs up to half a second
//! to find new VMs.

use std::time::Duration;

use penstock_units::Nanos;
use penstock_vcpu_host::boost;

use super::bed::{Guest, Mode, Stage, Terms};
use super::events::{now, sleep_until};
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::rig::platform;

const SECS: f64 = 60.0;
const SETTLE: Nanos = Nanos::from_secs(1);
/// Length of a measured window: ten epochs of the scheduler's credit accounting, of 30 ms each.
const WINDOW: Nanos = Nanos::from_millis(300);
/// Interval between VM 4's events.
const EVERY: Nanos = Nanos::from_millis(10);
/// Indices of the VMs that exist in each phase. Index 0 means VM 1.
const PHASES: [&[usize]; 5] =
    [&[0, 1, 2], &[0, 1, 2, 3], &[0, 1, 2, 3, 4], &[1, 2, 3, 4], &[2, 3, 4]];
const VMS: usize = 5;
const RUNS: [&str; 3] = ["by_credit", "with_deadlines", "fair_class"];

#[derive(Default)]
struct Found {
    /// Each VM's share of the core over time, as pairs of seconds and percent. Each share is an
    /// average over ten epochs of the scheduler's credit accounting.
    parts: [Vec<(f64, f64)>; VMS],
    error_max: f64,
    window_error_max: f64,
}

/// Runs the live experiment of VM jitter's Fig. 12.
///
/// # Errors
///
/// Returns an error if there is no KVM, if real-time policies are not permitted, or if a guest or
/// the scheduler fails.
pub(crate) fn fig12(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let stage = Stage::new(context)?;
    let phase = context.live.secs.unwrap_or(SECS).max(2.0);
    let mut outcome = Outcome { platform: platform(&stage.bed, false), ..Outcome::default() };
    outcome.note("accelerator", "kvm, ring-3 micro-guests");
    outcome.note("phase_s", phase);
    let mut worst: f64 = 0.0;
    for (nth, name) in (0_u32..).zip(RUNS) {
        let found = one(context, &stage, (nth, name), phase)?;
        for (vm, parts) in found.parts.iter().enumerate() {
            let name = format!("{name}: VM {}", vm + 1);
            outcome.series(&name, "% of the processor", parts.iter().copied());
        }
        let what = format!("{name}: greatest error of a VM's share of the core in a phase");
        let claim = Claim::new(&format!("share_error_pct_{name}"), what, "% of the processor");
        outcome.claim(claim.measured(found.error_max));
        let what = format!("{name}: greatest error of a VM's share in any ten epochs");
        let claim = Claim::new(&format!("window_error_pct_{name}"), what, "% of the processor");
        outcome.claim(claim.measured(found.window_error_max));
        if name != "fair_class" {
            worst = worst.max(found.error_max);
        }
    }
    let what = "greatest error of a VM's share in a phase, with and without deadlines";
    let claim = Claim::new("share_error_pct_max", what, "% of the processor").at_most(2.0);
    outcome.claim(claim.measured(worst));
    Ok(outcome)
}

fn terms(vm: usize, name: &str) -> Terms {
    match vm {
        2 if name == "with_deadlines" => Terms::real_time(Mode::Periodic, 5),
        3 if name == "with_deadlines" => Terms::real_time(Mode::Event, 8),
        _ => Terms::HOG,
    }
}

/// Runs all five phases under one scheduler.
fn one(
    context: &Context<'_>,
    stage: &Stage,
    (nth, name): (u32, &str),
    phase: f64,
) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let scheduler = if name == "fair_class" {
        None
    } else {
        let terms: Vec<Terms> = (0..VMS).map(|vm| terms(vm, name)).collect();
        Some(stage.schedule(&terms)?)
    };
    let mut guests: [Option<Guest>; VMS] = std::array::from_fn(|_| None);
    let length = Nanos(penstock_guest::clock::nanos(Duration::from_secs_f64(phase)));
    let begin = now();
    for (at, present) in (0_u32..).zip(PHASES) {
        context.progress(f64::from(5 * nth + at) / 15.0, name);
        for (vm, guest) in guests.iter_mut().enumerate() {
            match (guest.is_some(), present.contains(&vm)) {
                (false, true) => *guest = Some(stage.guest(vm, 5.0 * phase)?),
                (true, false) => *guest = None,
                _ => {}
            }
        }
        let pinged = (name == "with_deadlines" && present.contains(&3)).then(|| Stage::named(3));
        let from = now();
        idle(stage, from + SETTLE, pinged.as_deref())?;
        observe(stage, (begin, from + length), &guests, (present, pinged), &mut found)?;
    }
    drop(guests);
    drop(scheduler);
    Ok(found)
}

/// Sleeps until `until`. If `pinged` names a VM, the function sends events to the VM while it
/// waits.
fn idle(stage: &Stage, until: Nanos, pinged: Option<&str>) -> anyhow::Result<()> {
    if let Some(name) = pinged {
        while now() + EVERY < until {
            sleep_until(now() + EVERY);
            boost::event(stage.run_dir(), name)?;
        }
    }
    sleep_until(until);
    Ok(())
}

fn observe(
    stage: &Stage,
    (begin, end): (Nanos, Nanos),
    guests: &[Option<Guest>; VMS],
    (present, pinged): (&[usize], Option<String>),
    found: &mut Found,
) -> anyhow::Result<()> {
    let read = || -> anyhow::Result<Vec<f64>> {
        let there = present.iter().filter_map(|vm| guests[*vm].as_ref());
        there.map(|guest| Ok(guest.ran()?.as_secs_f64())).collect()
    };
    let due = 100.0 / f64::from(u32::try_from(present.len())?);
    let part = |from: &[f64], to: &[f64]| -> Vec<f64> {
        let all: f64 = to.iter().zip(from).map(|(to, from)| to - from).sum();
        to.iter().zip(from).map(|(to, from)| 100.0 * (to - from) / all).collect()
    };
    let furthest = |parts: &[f64]| parts.iter().map(|part| (part - due).abs()).fold(0.0, f64::max);
    let first = read()?;
    let mut before = first.clone();
    while now() + WINDOW <= end {
        idle(stage, now() + WINDOW, pinged.as_deref())?;
        let after = read()?;
        let parts = part(&before, &after);
        let at = Duration::from_nanos(now().saturating_sub(begin).0).as_secs_f64();
        for (vm, part) in present.iter().zip(&parts) {
            found.parts[*vm].push((at, *part));
        }
        found.window_error_max = found.window_error_max.max(furthest(&parts));
        before = after;
    }
    found.error_max = found.error_max.max(furthest(&part(&first, &before)));
    Ok(())
}

/// Draws each VM's share of the core over time.
pub(crate) fn fig12_picture(record: &Record) -> Picture {
    let mut picture =
        Picture::new("VM jitter, Fig. 12, live: shares as VMs start and stop; parts of 0.3 s");
    let titles = ["(a) no deadlines", "(b) VM 3 within 5 ms, VM 4 within 8 ms", "(c) fair class"];
    for (name, title) in RUNS.into_iter().zip(titles) {
        let axis = Axis::linear("% of the processor").to(60.0);
        let mut panel = Panel::new(title, Axis::linear("time, s"), axis);
        let prefix = format!("{name}: ");
        for (vm, series) in record.series_of(&prefix) {
            panel = panel.series(vm, series);
        }
        picture = picture.panel(panel);
    }
    picture
}
