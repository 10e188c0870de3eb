//! C2QoS, Fig. 3: latency by the number of VMs.
//!
//! # Problem
//!
//! A polling switch takes a batch from one VM after the other, so every VM waits for all other VMs.
//!
//! # Source
//!
//! C2QoS §II-C: 1 to 16 VMs on one I/O core, with `qperf tcp_lat` in each VM. The C2QoS paper's
//! latency is 26 to 27 us with one VM, and hundreds of times as long with 16 VMs.
//!
//! # Approach
//!
//! `qperf` has one small frame in flight. The `qperf` frames of 16 VMs take 1 % of the core and
//! delay no VM, so the printed latency requires neighbours that send. Only one VM at a time
//! measures its latency. While one VM measures, all other VMs send 384 B frames at their maximum.
//! Neighbours that send match the C2QoS paper's explanation of the latency: "each VM will suffer
//! the additional latency caused by n - 1 batches". With larger frames, one sender alone would fill
//! the link of 10 Gbit/s. The figure does not cover the queue of the link. `qperf` reports half of
//! a round trip.
//!
//! With C2QoS, the VMs have limits in cycles (min-max, equal parts of 90 % of the core) and HBS
//! schedules the VMs. The VM that measures the latency has class 1, and all other VMs have class 2.
//! Replies arrive through the uplink's port, which is in class 1.

use penstock_sim::testbed::{Probe, Timed, Traffic};
use penstock_units::{Nanos, Priority};

use super::paper_platform::{self as paper, Flows, Placement};
use super::paper_testbed::{
    self as testbed, PROBE_OUTSIDE, Policy, Scenario, latencies, mean, mpps,
};
use crate::evidence::stats::five_numbers;
use crate::evidence::{Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig3",
    source: "C2QoS §II-C, Fig. 3",
    about: "latency of 1 to 16 VMs, with round-robin and in the first class",
    sim: Some(sim),
    live: Some(live::fig3),
    picture,
};

const VMS: [usize; 5] = [1, 2, 4, 8, 16];
const SIZE: u16 = 384;
/// Time for which each VM measures its latency. Before the measurement, the VM sends nothing for
/// [`QUIET`], so that its ring becomes empty.
const TURN: Nanos = Nanos::from_millis(50);
const QUIET: Nanos = Nanos::from_millis(10);

/// Returns the latencies that the VMs measured, in microseconds.
fn run(ctx: &Context<'_>, vms: usize, policy: Policy) -> anyhow::Result<Vec<f64>> {
    let count = u32::try_from(vms)?;
    let cost = paper::cost(SIZE.into(), Flows::Single).total();
    let factor = paper::vms_factor(count, Placement::OneNode);
    #[expect(clippy::cast_precision_loss, reason = "a frequency")]
    let all = 0.9 * paper::HZ as f64 / (cost * factor) / 1e6;
    let sold: Vec<_> = vec![mpps(all / f64::from(count), SIZE)?.in_class(2); vms];
    let mut host = Scenario { learns: false, ..Scenario::new(ctx.seed, &sold, policy) }.build()?;
    let traffic = Traffic::greedy(SIZE.into());
    let measures = ctx.scaled(TURN);
    let turn = |n: usize| Nanos((n as u64 + 1) * (measures + QUIET).0);
    for (n, vm) in host.vms.clone().into_iter().enumerate() {
        host.bed.send(vm, Nanos::ZERO, traffic.clone());
        host.bed.send(vm, turn(n), Traffic::off());
        host.bed.send(vm, turn(n + 1), traffic.clone());
        let (from, until) = (turn(n) + QUIET, turn(n + 1));
        host.bed.probe(vm, Probe { from, until, server: PROBE_OUTSIDE, guest: PROBE_OUTSIDE });
    }
    let mut all: Vec<Timed> = Vec::new();
    for (n, vm) in host.vms.clone().into_iter().enumerate() {
        host.run_until(turn(n));
        let mut qos = host.bed.qos(vm);
        qos.priority = Priority::FIRST;
        host.bed.set_qos(vm, qos);
        host.run_until(turn(n + 1));
        qos.priority = sold_class()?;
        host.bed.set_qos(vm, qos);
        all.extend(host.bed.round_trips(vm));
    }
    Ok(latencies(&all, (Nanos::ZERO, Nanos(u64::MAX))))
}

fn sold_class() -> anyhow::Result<Priority> {
    Priority::new(2).map_err(anyhow::Error::from)
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    let mut ratios = Vec::new();
    for (name, policy) in [("round-robin", Policy::None), ("c2qos", Policy::MinMaxHbs)] {
        let mut means = Vec::new();
        for vms in VMS {
            ctx.progress(0.0, format_args!("{vms} VMs"));
            let us = run(ctx, vms, policy)?;
            means.push(mean(&us));
            let numbers = five_numbers(&us);
            let all = (0_u32..).map(f64::from).zip(numbers);
            outcome.series(&format!("{name} {vms}"), "us", all);
        }
        let over = VMS.iter().map(|n| f64::from(u32::try_from(*n).unwrap_or(0)));
        outcome.series(&format!("{name} mean"), "us", over.zip(means.iter().copied()));
        ratios.push(means);
    }
    let [rr, c2qos] = &ratios[..] else { anyhow::bail!("two runs") };
    let what = "round-robin: mean latency with 16 VMs divided by that with 1";
    let claim = Claim::new("rr_latency_16_over_1", what, "ratio");
    outcome.claim(claim.at_least(5.0).measured(rr[4] / rr[0]));
    let grows = rr.windows(2).all(|pair| pair[1] > pair[0]);
    outcome.claim(Claim::truth(
        "rr_latency_monotone",
        "round-robin: latency grows with every doubling of VMs",
        grows,
    ));
    let what = "C2QoS: class 1's latency with 16 VMs divided by that with 1";
    let claim = Claim::new("c2qos_top_class_16_over_1", what, "ratio");
    outcome.claim(claim.at_most(1.5).measured(c2qos[4] / c2qos[0]));
    let claim = Claim::new("rr_latency_1_us", "round-robin: mean latency with 1 VM", "us");
    outcome.claim(claim.published(26.5).measured(rr[0]));
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::picture(record, "VMs");
    }
    let mut picture = Picture::new("C2QoS, Fig. 3: latency by the number of VMs");
    for (name, title) in [("round-robin", "round-robin"), ("c2qos", "C2QoS, class 1")] {
        let mut panel = Panel::new(
            title,
            Axis::named("VMs", VMS.map(|n| n.to_string())),
            Axis::log("us, half a round trip"),
        );
        let boxes = (0_u32..).zip(VMS).filter_map(|(at, vms)| {
            let series = record.series(&format!("{name} {vms}"))?;
            Some((f64::from(at), <[f64; 5]>::try_from(series.y.clone()).ok()?))
        });
        panel = panel.boxes(title, boxes);
        picture = picture.panel(panel);
    }
    picture
}
