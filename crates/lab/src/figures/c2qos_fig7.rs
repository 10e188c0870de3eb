//! C2QoS, Fig. 7: what is not sold is handed out by weight.
//!
//! **Problem.** Four VMs bought 0.2, 0.2, 0.4 and 0.4 G cycles/s of a core that has more. The rest
//! must go to whoever can use it, all of it, by weight (1, 1, 2, 2). **Source.** C2QoS §IV-A,
//! Fig. 7, Algorithm 1.
//!
//! **Which core.** The figure prints 0.2 + 0.16 and 0.4 + 0.32 G, its text a core of 2.2 G with
//! 1 G idle. Handing out 1 G by these weights gives 0.1667 and 0.3333; what is printed hands out
//! 0.96 G. Both are right for a core of which 2.16 G can be sold: 40 M cycles/s, 1.8 %, stay with
//! the loop itself. So the claims are made with `capacity` at 2.16 G, and the core without it
//! (0.3667, 0.7333) stands beside as series.
//!
//! **What runs.** The buckets and the schedule of the data path ([`super::core_loop`]), batches of
//! 32 frames of 1024 B at the paper's cost ([`super::paper_platform`]), each ±5 % by the seed. For
//! two seconds all four are backlogged; then VM2 sleeps, then VM4 as well, and what they leave goes
//! to the others.
//!
//! **What is compared.** `vm1_max_gcps` and `vm3_max_gcps` while all are backlogged, against the
//! printed 0.36 and 0.72; in every phase the shares must sum to all that there is.

use penstock_qos::c2tb::Mode as Bucket;
use penstock_sim::Rng;
use penstock_units::{CyclesPerSecond, Priority, TscRate, Weight};

use super::claim::Claim;
use super::core_loop::{Bought, CoreLoop};
use super::experiment::{Context, Experiment};
use super::outcome::{Outcome, Record};
use super::paper_platform::{self as paper, Flows};
use super::picture::{Axis, Panel, Picture};

/// See the module's text.
pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig7",
    source: "C2QoS §IV-A, Fig. 7",
    about: "cycles that nobody bought, or nobody uses, are handed out by weight",
    sim: Some(sim),
    live: None,
    picture,
};

/// G cycles/s bought, and weight.
const VMS: [(f64, u64); 4] = [(0.2, 1), (0.2, 1), (0.4, 2), (0.4, 2)];
/// G cycles/s that can be sold so that the figure's numbers follow.
const SALEABLE: f64 = 2.16;
const CORE: f64 = 2.2;
const REFILL_US: u64 = 50;
/// Seconds of a phase, and of the beginning of each that is not counted.
const PHASE: f64 = 2.0;
const SETTLE: f64 = 0.1;
/// Who sleeps in which phase, from 0.
const ASLEEP: [&[usize]; 3] = [&[], &[1], &[1, 3]];
/// Points a phase.
const POINTS: u32 = 50;

/// G cycles/s of each VM, over time and as the mean of each phase.
#[derive(Default)]
struct Shares {
    over_time: Vec<(f64, [f64; 4])>,
    of_phase: Vec<[f64; 4]>,
    unaccounted: i128,
    batches: u64,
    refills: u64,
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("hz", paper::HZ);
    outcome.note("capacity_gcps", SALEABLE);
    outcome.note("refill_us", REFILL_US);
    let sold = hand_out(ctx, SALEABLE)?;
    let whole = hand_out(ctx, CORE)?;
    outcome.note("batches", sold.batches);
    outcome.note("refills", sold.refills);
    for (shares, name) in [(&sold, ""), (&whole, " of 2.2 G")] {
        for vm in 0..VMS.len() {
            let points = shares.over_time.iter().map(|(at, all)| (*at, all[vm]));
            outcome.series(&format!("VM{}{name}", vm + 1), "Gcycles/s", points);
        }
    }
    let max = |vm: usize| sold.of_phase[0][vm];
    for (vm, published) in [(1, 0.36), (3, 0.72)] {
        let what = format!("VM{vm}'s cycles while all four are backlogged");
        outcome.claim(
            Claim::new(&format!("vm{vm}_max_gcps"), what, "Gcycles/s")
                .published(published)
                .within(published - 0.001, published + 0.001)
                .measured(max(vm - 1)),
        );
    }
    let bought: f64 = VMS.iter().map(|vm| vm.0).sum();
    let handed_out = sold.of_phase[0].iter().sum::<f64>() - bought;
    outcome.claim(
        Claim::new(
            "idle_handed_out_gcps",
            "beyond what was bought, all four together",
            "Gcycles/s",
        )
        .published(0.96)
        .within(0.959, 0.961)
        .measured(handed_out),
    );
    let used = |shares: &Shares, of: f64| {
        let sums = shares.of_phase.iter().map(|all| 100.0 * all.iter().sum::<f64>() / of);
        sums.fold(f64::INFINITY, f64::min)
    };
    let what = "of all there is, used in the phase in which the least is, with sleepers too";
    outcome.claim(
        Claim::new("used_pct_min", what, "%").within(99.9, 100.1).measured(used(&sold, SALEABLE)),
    );
    let what = "generated = charged + stored + passed on + discarded, to the cycle";
    let balanced = sold.unaccounted == 0 && whole.unaccounted == 0;
    outcome.claim(Claim::truth("ledger_balances", what, balanced));
    Ok(outcome)
}

fn hand_out(ctx: &Context<'_>, gcps: f64) -> anyhow::Result<Shares> {
    let core = TscRate::from_hz(paper::HZ);
    let mut switch = CoreLoop::new(core, rate(gcps), REFILL_US, VMS.len());
    let class = Priority::new(8)?;
    for (bought, weight) in VMS {
        let (entitlement, weight) = (rate(bought), Weight::new(weight)?);
        switch.add(&Bought { entitlement, weight, mode: Bucket::MinMax, class }, true);
    }
    let mut noise = Rng::new(ctx.seed);
    let batch = 32.0 * paper::cost(1024, Flows::Single).total();
    let mut cost = |_: usize| {
        let draw = noise.below(1001);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "thousands")]
        #[expect(clippy::cast_precision_loss, reason = "at most 1000")]
        let cycles = (batch * (0.95 + draw as f64 / 10_000.0)) as u64;
        cycles
    };
    let read = |switch: &CoreLoop| [0, 1, 2, 3].map(|slot| gcycles(switch.charged(slot)));
    let mut shares = Shares::default();
    for (phase, asleep) in (0_u32..).zip(ASLEEP) {
        (0..VMS.len()).for_each(|slot| switch.wake(slot, !asleep.contains(&slot)));
        let start = f64::from(phase) * PHASE;
        let run = |switch: &mut CoreLoop, until: f64, cost: &mut dyn FnMut(usize) -> u64| {
            while gcycles(switch.now()) < until * CORE {
                switch.turn(&mut *cost);
            }
        };
        run(&mut switch, start + SETTLE, &mut cost);
        let (settled, from) = (read(&switch), gcycles(switch.now()) / CORE);
        let (mut last, mut at) = (settled, from);
        for point in 1..=POINTS {
            let share = f64::from(point) / f64::from(POINTS);
            run(&mut switch, start + SETTLE + share * (PHASE - SETTLE), &mut cost);
            let (now, then) = (read(&switch), gcycles(switch.now()) / CORE);
            let rates = [0, 1, 2, 3].map(|i| (now[i] - last[i]) / (then - at));
            shares.over_time.push((then, rates));
            (last, at) = (now, then);
        }
        shares.of_phase.push([0, 1, 2, 3].map(|i| (last[i] - settled[i]) / (at - from)));
    }
    shares.unaccounted = switch.ledger().unaccounted();
    (shares.batches, shares.refills) = (switch.batches(), switch.refills());
    Ok(shares)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a core's cycles")]
fn rate(gcps: f64) -> CyclesPerSecond {
    CyclesPerSecond((gcps * 1e9).round() as u64)
}

#[expect(clippy::cast_precision_loss, reason = "seconds of a core are far below 2^52 cycles")]
fn gcycles(cycles: u64) -> f64 {
    cycles as f64 / 1e9
}

fn picture(record: &Record) -> Picture {
    let panel = |title: &str, suffix: &str| {
        let y = Axis::linear("cycles, G/s").to(1.75);
        let mut panel = Panel::new(title, Axis::linear("time, s"), y);
        for vm in 1..=VMS.len() {
            if let Some(series) = record.series(&format!("VM{vm}{suffix}")) {
                panel = panel.series(format!("VM{vm}"), series);
            }
        }
        panel.event("VM2 sleeps", PHASE).event("VM4 sleeps", 2.0 * PHASE)
    };
    let sold = panel("(a) 2.16 G can be sold", "")
        .published("published: 0.36 and 0.72", 0.36)
        .published("", 0.72);
    Picture::new("C2QoS, Fig. 7: shares of one core by purchase and weight")
        .panel(sold)
        .panel(panel("(b) all 2.2 G can be sold", " of 2.2 G"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Mode, run::RunArgs};
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: RunArgs,
    }

    #[test]
    fn the_printed_shares_follow_for_any_seed() {
        let args = Cli::parse_from(["run", "c2qos-fig7"]).args;
        for seed in [1, 20] {
            let context = Context::new("c2qos-fig7", (Mode::Sim, seed), &args.live, None, None);
            let outcome = sim(&context).unwrap();
            let failed: Vec<_> = outcome.claims.iter().filter(|c| !c.holds).collect();
            assert!(failed.is_empty(), "seed {seed}: {failed:?}");
        }
    }

    #[test]
    fn a_core_without_its_own_part_gives_a_sixth_and_a_third_of_the_rest() {
        let args = Cli::parse_from(["run", "c2qos-fig7"]).args;
        let context = Context::new("c2qos-fig7", (Mode::Sim, 3), &args.live, None, None);
        let shares = hand_out(&context, CORE).unwrap().of_phase[0];
        for (share, due) in shares.iter().zip([0.2 + 1.0 / 6.0, 0.2 + 1.0 / 6.0, 0.4 + 1.0 / 3.0]) {
            assert!((share - due).abs() < 0.001, "{share} is not {due}");
        }
    }
}
