//! C2QoS, Fig. 7: the VMs of a core share unsold cycles by weight.
//!
//! # Problem
//!
//! Four VMs bought 0.2, 0.2, 0.4 and 0.4 G cycles/s of a core that has more cycles. VMs that need
//! more cycles must share all unsold cycles by weight (1, 1, 2, 2).
//!
//! # Source
//!
//! The source is C2QoS §IV-A, Fig. 7, Algorithm 1.
//!
//! # Size of the core
//!
//! The C2QoS paper's figure prints the cycles of two VMs as 0.2 + 0.16 and 0.4 + 0.32 G cycles/s.
//! The C2QoS paper's text describes a core of 2.2 G cycles/s, of which 1 G is idle. The VMs'
//! weights would divide 1 G cycles/s into parts of 0.1667 and 0.3333 G, but the printed parts add
//! up to 0.96 G. The paper's figure and text agree if 2.16 G cycles/s can be sold and the worker's
//! loop needs the remaining 40 M cycles/s (1.8 %). The claims use a core with a `capacity` of 2.16
//! G cycles/s. The capacity is fitted to the C2QoS paper's figure, so the claims are calibrated.
//! For comparison, the record has the results of a core with 2.2 G cycles/s (0.3667 and 0.7333 G
//! cycles/s), without a band (`_of_2_2`).
//!
//! # Approach
//!
//! The production worker runs in the testbed ([`super::paper_testbed`]) with its buckets and its
//! schedule. The setting `capacity` limits the cycles that the worker may spend on frames. Four VMs
//! send 512 B frames at their maximum, at the C2QoS paper's cost ([`super::paper_platform`]) with
//! noise. With larger frames than 512 B, the VMs' shares of idle cycles would fill the link. The
//! cycle counter of a VM's port shows how many cycles the VM uses. In the first two seconds all
//! four VMs are backlogged. VM2 stops sending after two seconds, and VM4 after four seconds. The
//! remaining VMs share the cycles of a VM that has stopped.
//!
//! The same run is repeated with the paper's Algorithm 1 as printed, and the schedule `hbs` with
//! demotion (`_as_printed`). As printed, Algorithm 1 loses a part of the cycles that overflow while
//! a VM sleeps.
//!
//! `vm1_max_gcps` and `vm3_max_gcps` are the cycles of VM1 and VM3 while all VMs are backlogged.
//! The figure compares the cycles of VM1 and VM3 with the printed 0.36 and 0.72 G cycles/s. In
//! every phase the sum of the VMs' cycles must be the whole capacity.

use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_sim::testbed::{Setup, Testbed, Traffic, VmId};
use penstock_units::{CyclesPerSecond, Nanos, Weight};

use super::paper_testbed::{self as testbed, Policy, RING, Scenario, gbps};
use crate::evidence::{Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig7",
    source: "C2QoS §IV-A, Fig. 7",
    about: "unsold and unused cycles are divided by weight",
    sim: Some(sim),
    live: Some(live::fig7),
    picture,
};

/// Purchase of each VM in Gbit/s and in G cycles/s. A VM's purchase in Gbit/s is also its weight.
const VMS: [(f64, f64); 4] = [(1.0, 0.2), (1.0, 0.2), (2.0, 0.4), (2.0, 0.4)];
/// Size of the frames that all VMs send, in bytes.
const SIZE: u16 = 512;
/// G cycles/s of the core that can be sold, according to the numbers in the C2QoS paper's figure.
const SALEABLE: f64 = 2.16;
const CORE: f64 = 2.2;
/// Length of each of the three phases. The figure does not count the first [`SETTLE`] of each
/// phase.
const PHASE: Nanos = Nanos::from_secs(2);
const SETTLE: Nanos = Nanos::from_millis(100);
/// End of the names of the series with the paper's algorithms as printed.
const AS_PRINTED: &str = " as printed";
/// VMs that send no frames in each phase. The phases and VMs of the figure are numbered from 0.
const ASLEEP: [&[usize]; 3] = [&[], &[1], &[1, 3]];
/// Number of readings of the cycle counters in each phase.
const POINTS: u64 = 50;

/// Cycles of each VM in 10^9 cycles per second, over time and as the mean of each phase.
#[derive(Default)]
struct Shares {
    over_time: Vec<(f64, [f64; 4])>,
    of_phase: Vec<[f64; 4]>,
    /// Whether the token ledger of the cycle buckets balances and agrees with the ports' cycle
    /// counters.
    balanced: bool,
    batches: u64,
    refills: u64,
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    outcome.note("capacity_gcps", SALEABLE);
    let sold = hand_out(ctx, SALEABLE, false)?;
    let whole = hand_out(ctx, CORE, false)?;
    let printed = hand_out(ctx, SALEABLE, true)?;
    outcome.note("batches", sold.batches);
    outcome.note("refills", sold.refills);
    for (shares, name) in [(&sold, ""), (&whole, " of 2.2 G"), (&printed, AS_PRINTED)] {
        for vm in 0..VMS.len() {
            let points = shares.over_time.iter().map(|(at, all)| (*at, all[vm]));
            outcome.series(&format!("VM{}{name}", vm + 1), "Gcycles/s", points);
        }
    }
    outcome.calibrated([
        "2.16 of 2.2 Gcycles/s can be sold",
        "the printed 0.36 and 0.72 Gcycles/s",
        "2.2, vm1_max_gcps_of_2_2 and vm3_max_gcps_of_2_2",
    ]);
    let max = |vm: usize| sold.of_phase[0][vm];
    for (vm, published) in [(1, 0.36), (3, 0.72)] {
        let what = format!("VM{vm}'s cycles while all four are backlogged");
        outcome.claim(
            Claim::new(&format!("vm{vm}_max_gcps"), what, "Gcycles/s")
                .published(published)
                .within(published - 0.001, published + 0.001)
                .measured(max(vm - 1)),
        );
        let what = format!("another reading, a core of 2.2 G: VM{vm}'s cycles");
        let claim = Claim::new(&format!("vm{vm}_max_gcps_of_2_2"), what, "Gcycles/s");
        outcome.claim(claim.published(published).measured(whole.of_phase[0][vm - 1]));
    }
    let bought: f64 = VMS.iter().map(|vm| vm.1).sum();
    let handed_out = sold.of_phase[0].iter().sum::<f64>() - bought;
    let what = "cycles beyond the purchases, all four VMs together";
    let claim = Claim::new("idle_handed_out_gcps", what, "Gcycles/s");
    outcome.claim(claim.published(0.96).within(0.959, 0.961).measured(handed_out));
    let used = |shares: &Shares, of: f64| {
        let sums = shares.of_phase.iter().map(|all| 100.0 * all.iter().sum::<f64>() / of);
        sums.fold(f64::INFINITY, f64::min)
    };
    let what = "used share of the capacity, in the phase with the lowest use";
    let claim = Claim::new("used_pct_min", what, "%");
    outcome.claim(claim.within(99.9, 100.1).measured(used(&sold, SALEABLE)));
    let what =
        "Algorithm 1 as printed: used share of the capacity, in the phase with the lowest use";
    outcome
        .claim(Claim::new("used_pct_min_as_printed", what, "%").measured(used(&printed, SALEABLE)));
    let what =
        "generated = charged + stored + discarded, and charged and lent = the ports' counters";
    let balanced = sold.balanced && whole.balanced && printed.balanced;
    outcome.claim(Claim::truth("ledger_balances", what, balanced));
    Ok(outcome)
}

/// Runs the figure's three phases on a core with `gcps` G cycles/s for sale, with the paper's
/// algorithms as printed or with Penstock's.
fn hand_out(ctx: &Context<'_>, gcps: f64, printed: bool) -> anyhow::Result<Shares> {
    let (mut bed, vms) = build(ctx.seed, gcps, printed)?;
    let read = |bed: &Testbed| [0, 1, 2, 3].map(|vm| bed.vm(vms[vm]).port.cycles);
    let length = ctx.scaled(PHASE);
    let counted = length.saturating_sub(SETTLE);
    let mut shares = Shares::default();
    for (phase, asleep) in (0..).zip(ASLEEP) {
        let start = Nanos(phase * length.0);
        for vm in asleep {
            bed.send(vms[*vm], start, Traffic::off());
        }
        bed.run_until(start + SETTLE);
        let settled = (bed.now(), read(&bed));
        let mut last = settled;
        for point in 1..=POINTS {
            bed.run_until(start + SETTLE + Nanos(counted.0 * point / POINTS));
            let now = (bed.now(), read(&bed));
            shares.over_time.push((testbed::float(now.0.0) / 1e9, rates(&last, &now)));
            last = now;
        }
        shares.of_phase.push(rates(&settled, &last));
    }
    let (ledger, worker) = (bed.ledger(0), bed.worker(0));
    let counted: u64 = read(&bed).iter().sum();
    shares.balanced = ledger.unaccounted() == 0 && ledger.charged + ledger.lent == counted;
    shares.batches = vms.iter().map(|vm| bed.vm(*vm).port.rx_batches).sum();
    shares.refills = worker.refills;
    Ok(shares)
}

/// Builds a host on which all VMs send at their maximum.
fn build(seed: u64, gcps: f64, printed: bool) -> anyhow::Result<(Testbed, [VmId; 4])> {
    let sold = [0, 1, 2, 3].map(|vm| gbps(VMS[vm].0, SIZE));
    let sold = sold.into_iter().collect::<Result<Vec<_>, _>>()?;
    let policy = if printed { Policy::MinMaxHbs } else { Policy::MinMax };
    let scenario = Scenario { printed, ..Scenario::new(seed, &sold, policy).remote() };
    let mut bed = Testbed::new(&Setup { capacity: Some(rate(gcps)), ..scenario.setup()? });
    let mut vms = Vec::new();
    for ((_, bought), sold) in VMS.iter().zip(&sold) {
        let qos = PortQos {
            ingress: IngressPolicy::CyclesMinmax,
            entitlement: rate(*bought),
            weight: Weight::new(sold.weight)?,
            ..PortQos::default()
        };
        let vm = bed.add_vm(RING, qos, 0);
        bed.send(vm, Nanos::ZERO, Traffic::greedy(SIZE.into()));
        vms.push(vm);
    }
    Ok((bed, vms[..].try_into()?))
}

/// Returns the G cycles/s of each VM between two readings.
fn rates(from: &(Nanos, [u64; 4]), to: &(Nanos, [u64; 4])) -> [f64; 4] {
    let nanos = testbed::float(to.0.saturating_sub(from.0).0);
    [0, 1, 2, 3].map(|vm| testbed::float(to.1[vm] - from.1[vm]) / nanos)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a core's cycles")]
fn rate(gcps: f64) -> CyclesPerSecond {
    CyclesPerSecond((gcps * 1e9).round() as u64)
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::picture(record, "phase");
    }
    let panel = |title: &str, suffix: &str| {
        let y = Axis::linear("cycles, G/s").to(1.75);
        let mut panel = Panel::new(title, Axis::linear("time, s"), y);
        for vm in 1..=VMS.len() {
            if let Some(series) = record.series(&format!("VM{vm}{suffix}")) {
                panel = panel.series(format!("VM{vm}"), series);
            }
        }
        let phase = testbed::float(PHASE.0) / 1e9;
        panel.event("VM2 sleeps", phase).event("VM4 sleeps", 2.0 * phase)
    };
    let sold = panel("(a) 2.16 G can be sold", "")
        .published("published: 0.36 and 0.72", 0.36)
        .published("", 0.72);
    Picture::new("C2QoS, Fig. 7: shares of one core by purchase and weight")
        .panel(sold)
        .panel(panel("(b) all 2.2 G can be sold", " of 2.2 G"))
        .panel(panel("2.16 G, Algorithm 1 as printed", AS_PRINTED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::RunArgs;
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
            let failed: Vec<_> = outcome.claims.iter().filter(|c| c.is_missed()).collect();
            assert!(failed.is_empty(), "seed {seed}: {failed:?}");
        }
    }

    #[test]
    fn a_core_without_its_own_part_gives_a_sixth_and_a_third_of_the_rest() {
        let args = Cli::parse_from(["run", "c2qos-fig7"]).args;
        let context = Context::new("c2qos-fig7", (Mode::Sim, 3), &args.live, None, None);
        let shares = hand_out(&context, CORE, false).unwrap().of_phase[0];
        // 1.2 G are sold. Refills take a part of the other 1 G cycles.
        let refills = 1_000_000_000 / testbed::REFILL.0 * testbed::OVERHEADS.refill.0;
        let sixth = (1.0 - testbed::float(refills) / 1e9) / 6.0;
        for (share, due) in shares.iter().zip([0.2 + sixth, 0.2 + sixth, 0.4 + 2.0 * sixth]) {
            assert!((share - due).abs() < 0.001, "{share} is not {due}");
        }
    }
}
