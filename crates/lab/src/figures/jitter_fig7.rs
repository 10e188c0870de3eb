//! VM jitter, Fig. 7: ping to a compute-bound VM.
//!
//! # Problem
//!
//! If a request arrives while its VM waits in the run queue, Xen does not boost the VM. A VM that
//! Xen does not boost answers only at its next turn.
//!
//! # Source
//!
//! VM jitter §V-A, Fig. 7: a compute-bound VM receives a ping every 0.1 s, beside one, three and
//! five other compute-bound VMs. With Xen's credit scheduler the answer takes up to 150 ms, which
//! is five slices. With the VM jitter paper's scheduler the pinged VM has a deadline of 3, 5 or 8
//! ms.
//!
//! # Approach
//!
//! All VMs have equal weights, and a run takes 60 s. Each ping has a random delay of up to 1 ms. In
//! addition to the VM jitter paper's cases, the figure tests twenty random sets of VMs. A set has
//! two to six VMs, and some VMs have deadlines of 3, 5 or 8 ms. All VMs with deadlines receive
//! pings. The figure counts only the sets of VMs that pass admission control.
//!
//! The figure compares the longest answer time, from a ping's arrival at the machine to the
//! departure of the answer. The answer time may exceed the deadline by at most 0.5 ms, which is the
//! time between two polls of the scheduler. The tolerance of 0.5 ms must also cover the processor
//! time that the VM needs for an answer.

use penstock_sim::Rng;
use penstock_sim::vcpu::{Frame, GuestId, GuestSpec};
use penstock_units::Nanos;
use penstock_vcpu::Mode;

use super::vcpu_bed::{Bed, are_admitted, credit1, double_queue, start, terms, weight};
use crate::evidence::stats::ms;
use crate::evidence::{
    Axis, Claim, Context, Experiment, Mode as RunMode, Outcome, Panel, Picture, Record, points,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig7",
    source: "VM jitter §V-A, Fig. 7",
    about: "ping to a VM that computes, by credit and with deadlines",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig7),
    picture,
};

const SPAN: Nanos = Nanos::from_secs(60);
const EVERY: Nanos = Nanos::from_millis(100);
const LATE: u64 = 1_000_000;
const NEIGHBOURS: [u32; 3] = [5, 3, 1];
const DEADLINES_MS: [u32; 3] = [3, 5, 8];
/// Number of random sets of VMs that are drawn.
const SETS: u64 = 20;

/// Returns the answer times of each pinged VM, in ms. One VM is pinged for each entry of
/// `deadlines`. In addition, `hogs` compute-bound VMs without a deadline run and receive no ping.
fn pinged(
    ctx: &Context<'_>,
    mut bed: Bed,
    deadlines: &[Option<Nanos>],
    hogs: u64,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let span = ctx.scaled(SPAN);
    let mut rng = Rng::new(ctx.seed).fork(7);
    let mut guests: Vec<GuestId> = Vec::new();
    for deadline in deadlines.iter().copied() {
        let contract = terms(Mode::Aperiodic, deadline, weight(1)?);
        guests.push(start(&mut bed, &contract, GuestSpec::hog())?);
    }
    for _ in 0..hogs {
        start(&mut bed, &terms(Mode::None, None, weight(1)?), GuestSpec::hog())?;
    }
    for guest in &guests {
        let mut due = Nanos(50_000_000 + rng.below(EVERY.0));
        while due < span {
            let at = due + Nanos(rng.below(LATE + 1));
            bed.arrive(at, *guest, Frame::Ping(at));
            due += EVERY;
        }
    }
    // The VM needs time to answer the last ping.
    bed.run_until(span + Nanos::from_secs(1));
    let answers = |guest: &GuestId| {
        let of = |sent: &penstock_sim::vcpu::Sent| match sent.frame {
            Frame::Ping(from) if sent.guest == *guest => Some(ms(sent.at.saturating_sub(from))),
            _ => None,
        };
        bed.sent().iter().filter_map(of).collect()
    };
    Ok(guests.iter().map(answers).collect())
}

fn most(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// Adds the answer times of one VM as a series, in ms.
fn enter(outcome: &mut Outcome, name: &str, times: &[f64]) {
    let numbered = (0_u32..).map(f64::from).zip(times.iter().copied());
    outcome.series(name, "ms", numbered);
}

fn xen(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    for count in NEIGHBOURS {
        let found = pinged(ctx, credit1(ctx.seed), &[None], u64::from(count))?;
        enter(outcome, &format!("credit1, {count} neighbours"), &found[0]);
        let what = format!("longest answer with Xen's credit scheduler, beside {count} busy VMs");
        let mut claim = Claim::new(&format!("credit1_max_ms_{count}_neighbours"), what, "ms");
        if count == 5 {
            claim = claim.published(150.0).within(100.0, 160.0);
        }
        outcome.claim(claim.measured(most(&found[0])));
    }
    Ok(())
}

/// Returns the largest excess of an answer time over the VM's deadline in the random sets of VMs,
/// in ms. The second returned value is the number of random sets of VMs that passed admission
/// control.
fn drawn(ctx: &Context<'_>) -> anyhow::Result<(f64, u32)> {
    let mut rng = Rng::new(ctx.seed).fork(12);
    let (mut over, mut sets) = (f64::NEG_INFINITY, 0);
    for _ in 0..SETS {
        let vms = 2 + rng.below(5);
        let with = 1 + rng.below(vms);
        let one = |rng: &mut Rng| Nanos::from_millis([3, 5, 8, 8][usize_below(rng)]);
        let deadlines: Vec<Nanos> = (0..with).map(|_| one(&mut rng)).collect();
        if !are_admitted(&deadlines, vms) {
            continue;
        }
        sets += 1;
        let promised: Vec<_> = deadlines.iter().copied().map(Some).collect();
        let found = pinged(ctx, double_queue(ctx.seed), &promised, vms - with)?;
        for (deadline, times) in deadlines.iter().zip(found) {
            over = over.max(most(&times) - ms(*deadline));
        }
    }
    Ok((over, sets))
}

fn usize_below(rng: &mut Rng) -> usize {
    usize::try_from(rng.below(4)).unwrap_or(0)
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("every_ms", EVERY.0 / 1_000_000);
    xen(ctx, &mut outcome)?;
    for deadline_ms in DEADLINES_MS {
        let deadline = Nanos::from_millis(u64::from(deadline_ms));
        let mut worst: f64 = 0.0;
        for count in NEIGHBOURS {
            let vms = u64::from(count) + 1;
            anyhow::ensure!(
                are_admitted(&[deadline], vms),
                "admission control refuses a deadline of {deadline_ms} ms"
            );
            let bed = double_queue(ctx.seed);
            let found = pinged(ctx, bed, &[Some(deadline)], u64::from(count))?;
            let name = format!("D = {deadline_ms} ms, {count} neighbours");
            enter(&mut outcome, &name, &found[0]);
            worst = worst.max(most(&found[0]));
        }
        let what =
            format!("longest answer with a deadline of {deadline_ms} ms, beside 1 to 5 busy VMs");
        let claim = Claim::new(&format!("max_ms_d{deadline_ms}"), what, "ms");
        outcome.claim(claim.at_most(f64::from(deadline_ms) + 0.5).measured(worst));
    }
    let (over, sets) = drawn(ctx)?;
    outcome.note("sets_admitted", sets);
    let what = "longest time by which an answer exceeds its deadline, in drawn sets";
    outcome.claim(Claim::new("over_deadline_ms_max", what, "ms").at_most(0.5).measured(over));
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    if record.mode == RunMode::Live {
        return crate::live::picture(record, "request");
    }
    let panel = |title: &str, names: Vec<(String, String)>| {
        let mut panel = Panel::new(title, Axis::linear("ping"), Axis::linear("ms"));
        for (label, name) in names {
            if let Some(series) = record.series(&name) {
                panel = panel.line(label, points(series));
            }
        }
        panel
    };
    let beside =
        |count: &u32| (format!("{count} hogs beside"), format!("credit1, {count} neighbours"));
    let by_deadline = |ms: &u32| (format!("D = {ms} ms"), format!("D = {ms} ms, 5 neighbours"));
    let credit = panel("(a) by credit", NEIGHBOURS.iter().map(beside).collect());
    let ours = DEADLINES_MS.iter().rev().map(by_deadline).collect();
    Picture::new("VM jitter, Fig. 7: ping to a VM that computes")
        .panel(credit.published("five slices", 150.0))
        .panel(panel("(b) with a deadline, 5 hogs beside", ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn answers_come_by_the_deadline_for_any_seed() {
        assert_holds("jitter-fig7", sim, &[1, 20]);
    }
}
