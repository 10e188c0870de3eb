//! Live experiment for C2QoS Fig. 7: the VMs of a core share unsold and unused cycles by weight.
//!
//! # Source
//!
//! C2QoS §IV-A, Fig. 7, Algorithm 1.
//!
//! # Approach
//!
//! The worker may spend [`CAPACITY`] cycles per second, a tenth of the paper's core, so that the
//! load generator can fill it. Four VMs bought a tenth of what the paper's VMs bought, with the
//! same weights, and send 512-byte frames at their maximum. VM2 stops sending in the second phase,
//! and VM4 in the third phase. The switch's counters show the cycles of each VM. The three phases
//! are measured with Penstock's refill, and with the paper's algorithms as printed: `spare_cycles =
//! "printed"`, and the schedule `hbs` with demotion.

use anyhow::Context as _;
use serde_json::Value;

use crate::evidence::{Claim, Context, Outcome};
use crate::rig::fleet::{Offer, Size};
use crate::rig::plan::{Bound, Plan, Policy, Vm};
use crate::rig::stats::{middle, to_f64};
use crate::rig::switch::count;
use crate::rig::{Rig, Span, platform};
use penstock_guest::bed::Bed;
use penstock_guest::clock;
use penstock_guest::load::Rate;

/// Cycles per second that the worker may spend on frames.
const CAPACITY: f64 = 216e6;
/// Weight of each VM. A VM bought [`EACH`] cycles per second for a weight of 1.
const WEIGHTS: [u16; 4] = [1, 1, 2, 2];
const EACH: f64 = 20e6;
/// VMs that send no frames in each phase.
const ASLEEP: [&[usize]; 3] = [&[], &[1], &[1, 3]];
/// Seconds before a phase is measured.
const SETTLE: f64 = 0.3;
/// Names of the rules that are compared, and lines of the worker's table.
const RULES: [(&str, &str); 2] =
    [("pool", ""), ("as printed", "spare_cycles = \"printed\"\nreadiness = \"demotion\"\n")];

fn name(vm: usize) -> String {
    format!("vm{}", vm + 1)
}

fn plan(lines: &str) -> Plan {
    let vm = |(vm, weight): (usize, &u16)| {
        let cycles = EACH * f64::from(*weight);
        let bound = Bound { policy: Policy::Minmax, cycles, weight: *weight, ..Bound::default() };
        Vm::sender(name(vm), "sink", bound)
    };
    let vms = WEIGHTS.iter().enumerate().map(vm).chain([Vm::sink("sink")]);
    let mut plan = Plan::new("hbs", vms.collect());
    plan.worker = format!("capacity = {CAPACITY:.0}\n{lines}");
    plan
}

/// Returns the cycles per second of each VM in a phase, as parts of [`CAPACITY`].
fn shares(rig: &mut Rig, bed: &Bed, asleep: &[usize], secs: f64) -> anyhow::Result<[f64; 4]> {
    let greedy = || Offer { size: Size::Of(512), flows: 1, rate: Rate::Max };
    let awake = (0..WEIGHTS.len()).filter(|vm| !asleep.contains(vm));
    let offers: Vec<_> = awake.map(|vm| (name(vm), greedy())).collect();
    let read = |rig: &Rig| -> anyhow::Result<[u64; 4]> {
        let stats = rig.switch.ask(&["stats", "--json"]).context("no Penstock")??;
        let stats: Value = serde_json::from_str(&stats).context("reading the counters")?;
        Ok([0, 1, 2, 3].map(|vm| count(&stats, &name(vm), "cycles")))
    };
    rig.once(bed, &offers, Span { warm: SETTLE, secs: 0.01, parts: 1 })?;
    let (before, start) = (read(rig)?, clock::now());
    rig.once(bed, &offers, Span { warm: 0.0, secs, parts: 1 })?;
    let (after, took) = (read(rig)?, start.elapsed().as_secs_f64());
    Ok([0, 1, 2, 3].map(|vm| to_f64(after[vm] - before[vm]) / took / CAPACITY))
}

/// Runs the live experiment of C2QoS Fig. 7.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let (secs, runs) = (context.live.secs.unwrap_or(2.0), context.live.runs.unwrap_or(3));
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("capacity_mcycles_per_s", CAPACITY / 1e6);
    let mut found = Vec::new();
    for (done, (rule, lines)) in (0_u32..).zip(RULES) {
        let mut rig = Rig::ours(&bed, &rule.replace(' ', "-"), &plan(lines))?;
        let mut phases = [const { Vec::new() }; ASLEEP.len()];
        for run in 0..runs {
            let at = f64::from(done * runs + run) / f64::from(2 * runs);
            context.progress(at, format_args!("{rule}, run {}", run + 1));
            for (asleep, all) in ASLEEP.into_iter().zip(&mut phases) {
                all.push(rig.awake(|rig| shares(rig, &bed, asleep, secs))?);
            }
        }
        // A paused daemon cannot exit.
        rig.switch.resume()?;
        let of = |all: &Vec<[f64; 4]>| {
            [0, 1, 2, 3].map(|vm| middle(&all.iter().map(|of| of[vm]).collect::<Vec<_>>()))
        };
        let shares = phases.each_ref().map(of);
        for vm in 0..WEIGHTS.len() {
            let points = (1_u32..).map(f64::from).zip(shares.map(|of| 100.0 * of[vm]));
            outcome.series(&format!("{rule}, VM{}", vm + 1), "% of the capacity", points);
        }
        found.push(shares);
    }
    conclude(&mut outcome, &found);
    Ok(outcome)
}

/// Adds the claims about each VM's part of the capacity, by rule and phase.
fn conclude(outcome: &mut Outcome, found: &[[[f64; 4]; 3]]) {
    let [pool, printed] = found else { return };
    for (vm, published) in [(0, 0.36 / 2.16), (2, 0.72 / 2.16)] {
        let id = format!("vm{}_max_pct", vm + 1);
        let what = format!("VM{}'s part of the capacity while all VMs are backlogged", vm + 1);
        let published = 100.0 * published;
        outcome.claim(
            Claim::new(&id, what, "%")
                .published(published)
                .within(published - 1.0, published + 1.0)
                .measured(100.0 * pool[0][vm]),
        );
    }
    let used = |phases: &[[f64; 4]; 3]| {
        phases.iter().map(|of| 100.0 * of.iter().sum::<f64>()).fold(f64::INFINITY, f64::min)
    };
    let what = "used part of the capacity, in the phase with the lowest use";
    outcome.claim(Claim::new("used_pct_min", what, "%").within(97.0, 101.0).measured(used(pool)));
    let what = "the same with the paper's algorithms as printed";
    outcome.claim(Claim::new("used_pct_min_as_printed", what, "%").measured(used(printed)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_vms_bought_a_tenth_of_the_papers_cycles() {
        let bought: f64 = WEIGHTS.iter().map(|weight| EACH * f64::from(*weight)).sum();
        assert!((bought / CAPACITY - 1.2 / 2.16).abs() < 1e-9);
        let text = plan(RULES[1].1).configuration(Path::new("/d"), (1, 0));
        for part in ["spare_cycles = \"printed\"", "cycle_weight = 2", "capacity = 216000000\n"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
