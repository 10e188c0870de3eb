//! C2QoS, Fig. 10: three of four VMs become noisy.
//!
//! # Problem
//!
//! VM1 sends the declared frame size while its neighbours change to 64 B frames. VM1 must keep its
//! bandwidth and latency.
//!
//! # Source
//!
//! C2QoS §VI-A: one I/O core, and four VMs on NUMA node 1. The C2QoS paper's factors multiply the
//! costs of a frame by 1.4 (memory on another node) and by 1.14 (four VMs). The VMs bought 4, 4, 1
//! and 1 Gbit/s in 1024 B frames of one flow: 36, 36, 9 and 9 % of the core. A run has three phases
//! of 10 s. In each phase the active VMs send at their maximum:
//!
//! 1. VM1 and VM3 send 1024 B frames.
//! 2. VM2 and VM4 start to send 64 B frames.
//! 3. VM3 also changes from 1024 B to 64 B frames.
//!
//! # Approach
//!
//! A VM that sends at its maximum keeps its ring full. Under the policy `bps`, the switch removes
//! all frames from a VM's ring, including the frames that exceed the VM's bit rate limit. The
//! switch spends ingress cycles on the frames that exceed the limit, and drops these frames. VM3
//! costs as many cycles as VM2, although VM3's limit is lower than VM2's limit. VM1 gains bandwidth
//! when VM3's frames become smaller, because dropped frames cost cycles too (the C2QoS paper's
//! "interesting thing"). With the costs of [`super::paper_platform`], VM2 and VM4 take 20 % of the
//! core each, as the C2QoS paper prints.
//!
//! # Latency
//!
//! In Fig. 10 (g), VM1 runs `qperf` beside its normal traffic during the 20 s in which the other
//! VMs are noisy. VM1 sends the share [`OWN`] of its purchase, so that traffic and probe together
//! stay within the purchase. A VM with only the probe would never wait longer than one round of
//! three batches. A round of three batches takes far less time than the latency of "more than 1 ms"
//! that the C2QoS paper prints. Under `bps`, VM1's frames wait in VM1's ring. VM1's ring fills
//! under `bps`, because VM1 gets fewer cycles than it bought.
//!
//! In the run "native", VM1 is alone on the switch. The latency of a policy is the mean over phases
//! 2 and 3. Under the policy `cycles` the limits are strict. If the VMs shared idle cycles, VM3
//! would fill the *link* in the first phase. The figure does not cover the latency of a full link.
//!
//! # The paper's algorithms as printed
//!
//! `cycles-minmax` with HBS is also run with Algorithm 1 of the paper as printed and with demotion
//! instead of checks for frames (`_as_printed`), with the same costs and traffic.
//!
//! # Departures
//!
//! Under `cycles-minmax` the cycles of the first phase would pay for 11.1 Gbit/s, which is more
//! than the link of 10 Gbit/s. The C2QoS paper's TCP senders stayed at 6.3 and 2.1 Gbit/s.

use penstock_sim::testbed::{Probe, Traffic};
use penstock_units::Nanos;

use super::paper_testbed::{
    self as testbed, Host, PROBE_OUTSIDE, Policy, Scenario, Sold, WARM_UP, delta_pct, gbps,
    latencies, mean,
};
use crate::evidence::{Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig10",
    source: "C2QoS §VI-A, Fig. 10",
    about: "bandwidth and latency of a VM with noisy neighbours",
    sim: Some(sim),
    live: Some(live::fig10),
    picture,
};

/// Share of VM1's purchase that VM1 sends in addition to the probe.
const OWN: f64 = 0.97;
const PHASE: Nanos = Nanos::from_secs(10);

/// Returns the time at which the phase `phase` begins. Phases are numbered from 0.
fn start(ctx: &Context<'_>, phase: u64) -> Nanos {
    WARM_UP + Nanos(phase * ctx.scaled(PHASE).0)
}

fn span(phase: u32) -> (f64, f64) {
    (f64::from(phase) * 10.0, f64::from(phase) * 10.0 + 10.0)
}

fn noise(ctx: &Context<'_>, host: &mut Host) {
    let [_, vm2, vm3, vm4] = host.vms[..] else { return };
    host.bed.send(vm3, Nanos::ZERO, Traffic::greedy(1024));
    host.bed.send(vm2, start(ctx, 1), Traffic::greedy(64));
    host.bed.send(vm4, start(ctx, 1), Traffic::greedy(64));
    host.bed.send(vm3, start(ctx, 2), Traffic::greedy(64));
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let sold = [gbps(4.0, 1024)?.in_class(1), gbps(4.0, 1024)?, gbps(1.0, 1024)?, gbps(1.0, 1024)?];
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    let policies = [Policy::Rates, Policy::StrictHbs, Policy::MinMaxHbs];
    let runs = policies.map(|policy| (policy, false)).into_iter();
    let mut vm1 = Vec::new();
    for (done, (policy, printed)) in (0_u32..).zip(runs.chain([(Policy::MinMaxHbs, true)])) {
        let name = name(policy, printed);
        ctx.progress(f64::from(done) / 9.0, &name);
        let scenario = Scenario { printed, ..Scenario::new(ctx.seed, &sold, policy) };
        let mut host = scenario.remote().build()?;
        host.bed.send(host.vms[0], Nanos::ZERO, Traffic::greedy(1024));
        noise(ctx, &mut host);
        let length = Nanos(3 * ctx.scaled(PHASE).0);
        let record = host.record(length, ctx.scaled(Nanos::from_millis(500)));
        record.add_to(&mut outcome, &name);
        vm1.push([0, 1, 2].map(|phase| record.gbps(0, ctx.span(span(phase)))));
    }
    bandwidth_claims(&mut outcome, &vm1);
    let policies = [Policy::None, Policy::Rates, Policy::Strict, Policy::StrictHbs];
    let runs = policies.map(|policy| (policy, false)).into_iter();
    let mut added = Vec::new();
    for (done, (policy, printed)) in (4_u32..).zip(runs.chain([(Policy::StrictHbs, true)])) {
        ctx.progress(f64::from(done) / 9.0, name(policy, printed));
        added.push(latency(ctx, &sold, (policy, printed), &mut outcome)?);
    }
    latency_claims(&mut outcome, &added);
    Ok(outcome)
}

/// Returns the name of a run, with the paper's algorithms as printed or with Penstock's.
fn name(policy: Policy, printed: bool) -> String {
    format!("{}{}", policy.name(), if printed { " as printed" } else { "" })
}

fn bandwidth_claims(outcome: &mut Outcome, vm1: &[[f64; 3]]) {
    let [bps, strict, minmax, printed] = vm1 else { return };
    let what = "bps: VM1's change when VM2 and VM4 send 64 B";
    let claim = Claim::new("bps_vm1_phase2_delta_pct", what, "%");
    outcome.claim(claim.published(-12.0).within(-25.0, -5.0).measured(delta_pct(bps[0], bps[1])));
    // The value furthest from 4 Gbit/s is reported.
    let off = |gbps: &f64| (gbps - 4.0).abs();
    let worst = strict.iter().copied().max_by(|a, b| off(a).total_cmp(&off(b)));
    let what = "cycles-strict: VM1's rate in the worst phase";
    let claim = Claim::new("strict_vm1_gbps", what, "Gbit/s");
    outcome.claim(claim.published(4.0).within(3.96, 4.04).measured(worst.unwrap_or(f64::NAN)));
    outcome.claim(
        Claim::new(
            "minmax_vm1_gbps_min",
            "cycles-minmax: VM1's lowest rate of all phases",
            "Gbit/s",
        )
        .published(4.0)
        .at_least(3.96)
        .measured(minmax.iter().copied().fold(f64::INFINITY, f64::min)),
    );
    let what = "cycles-minmax: VM1's rate while two VMs sleep";
    let claim = Claim::new("minmax_vm1_gbps_phase1", what, "Gbit/s");
    outcome.claim(claim.published(6.3).at_least(6.0).measured(minmax[0]));
    for (id, what, gbps) in [
        (
            "minmax_vm1_gbps_min_as_printed",
            "cycles-minmax with the printed algorithms: VM1's lowest rate of all phases",
            printed.iter().copied().fold(f64::INFINITY, f64::min),
        ),
        (
            "minmax_vm1_gbps_phase1_as_printed",
            "cycles-minmax with the printed algorithms: VM1's rate while two VMs sleep",
            printed[0],
        ),
    ] {
        outcome.claim(Claim::new(id, what, "Gbit/s").measured(gbps));
    }
}

/// Returns VM1's mean latency while the other VMs are noisy, in microseconds.
fn latency(
    ctx: &Context<'_>,
    sold: &[Sold],
    (policy, printed): (Policy, bool),
    outcome: &mut Outcome,
) -> anyhow::Result<f64> {
    let scenario = Scenario { printed, ..Scenario::new(ctx.seed, sold, policy) };
    let mut host = scenario.remote().build()?;
    let vm1 = host.vms[0];
    host.bed.send(vm1, Nanos::ZERO, Traffic::paced(1024, sold[0].frames() * OWN));
    if policy != Policy::None {
        noise(ctx, &mut host);
    }
    let (server, guest) = (PROBE_OUTSIDE, PROBE_OUTSIDE);
    let (from, until) = (start(ctx, 0), start(ctx, 3));
    host.bed.probe(vm1, Probe { from, until, server, guest });
    host.run_until(until);
    let trips = host.bed.round_trips(vm1);
    let step = ctx.scaled(Nanos::from_millis(500)).0;
    let means = (0..until.saturating_sub(from).0 / step).map(|n| {
        let from = from + Nanos(n * step);
        let here = latencies(&trips, (from, from + Nanos(step)));
        (testbed::float((n + 1) * step) / 1e9, mean(&here))
    });
    outcome.series(&format!("{} vm1 latency", name(policy, printed)), "us", means);
    let phase = |n| mean(&latencies(&trips, (start(ctx, n), start(ctx, n + 1))));
    Ok(f64::midpoint(phase(1), phase(2)))
}

fn latency_claims(outcome: &mut Outcome, latency: &[f64]) {
    let &[native, bps, cycles, hbs, printed] = latency else { return };
    let left = |us: f64| 100.0 * (us - native) / (bps - native);
    let what = "share of bps's added latency that remains with cycles alone";
    let claim = Claim::new("added_latency_left_pct_cycles_only", what, "%");
    outcome.claim(claim.at_most(60.0).measured(left(cycles)));
    let what = "share of bps's added latency that remains with cycles and HBS";
    let claim = Claim::new("added_latency_left_pct_hbs", what, "%");
    outcome.claim(claim.at_most(5.0).measured(left(hbs)));
    let what = "share of bps's added latency that remains with the printed algorithms";
    let claim = Claim::new("added_latency_left_pct_hbs_as_printed", what, "%");
    outcome.claim(claim.measured(left(printed)));
    outcome.claim(Claim::new("native_latency_us", "latency of VM1 alone", "us").measured(native));
    outcome.claim(Claim::new("bps_latency_us", "latency of VM1 under bps", "us").measured(bps));
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::picture(record, "time, s (rates); number of the case (shares)");
    }
    let mut picture = Picture::new("C2QoS, Fig. 10: three of four VMs become noisy");
    let runs = [
        (Policy::Rates, false),
        (Policy::StrictHbs, false),
        (Policy::MinMaxHbs, false),
        (Policy::MinMaxHbs, true),
    ];
    for (policy, printed) in runs {
        let name = name(policy, printed);
        picture = picture
            .panel(testbed::panel(record, &name, "bandwidth", "Gbit/s"))
            .panel(testbed::panel(record, &name, "core", "% of the core"));
    }
    let mut panel =
        Panel::new("VM1's latency", Axis::linear("time, s"), Axis::log("us, half a round trip"));
    let policies = [Policy::None, Policy::Rates, Policy::Strict, Policy::StrictHbs];
    let runs = policies.map(|policy| (policy, false)).into_iter();
    for (policy, printed) in runs.chain([(Policy::StrictHbs, true)]) {
        let name = name(policy, printed);
        if let Some(series) = record.series(&format!("{name} vm1 latency")) {
            panel = panel.series(&name, series);
        }
    }
    picture.panel(panel)
}
