//! C2QoS, Fig. 1: limits in bits or frames per second ignore that the cost of a frame changes.
//!
//! # Problem
//!
//! VM1 changes its traffic and stays within its limit. VM2 loses bandwidth although VM1 stays
//! within its limit.
//!
//! # Source
//!
//! C2QoS §II-B: two VMs share one I/O core. Each run of Fig. 1 lasts 20 s, with an event in the
//! middle.
//!
//! - In the runs named `bps`, the VMs bought 2 and 8 Gbit/s and send 512 B frames. In the middle of
//!   a run (the size event), VM1 changes to 64 B frames.
//! - In the runs named `pps`, the VMs bought 0.6 and 2.4 M frames/s and send one flow. In the
//!   middle of a run (the flow event), VM1 changes to many flows.
//!
//! # Approach
//!
//! The C2QoS paper says that the VMs "behave well" and that "their bandwidths are precisely
//! limited". In the simulation, each VM sends at exactly the rate that it bought, evenly paced.
//! After the size event VM1 still sends its 2 Gbit/s ("in order to achieve the same throughput").
//! The C2QoS paper's senders cannot have sent at their maximum. If both VMs send at their maximum,
//! the switch spends ingress cycles even on frames that the limiter drops, and VM2 never reaches 8
//! Gbit/s.
//!
//! The sold 2 and 8 Gbit/s together fill the link of 10 Gbit/s. The sold rates of 2 and 8 Gbit/s
//! include preambles and inter-frame gaps. The figure shows bandwidths without preambles and
//! inter-frame gaps.
//!
//! In the runs with C2QoS, each VM's purchase is converted to cycles, with strict limits and one
//! class. The cost model has errors at first and corrects these errors by learning. In the runs
//! with C2QoS, VM1 changes its traffic as in the runs with `bps` and `pps`.
//!
//! # Frame size of (c) and (d)
//!
//! The C2QoS paper does not print the frame size of panels (c) and (d) of Fig. 1. Frames of 64 B at
//! 3.0 M frames/s leave a tenth of the simulated core idle. With 64 B frames, the additional
//! look-ups for VM1's flows would fit into the core's idle cycles, and no VM would lose bandwidth.
//! The C2QoS paper's VM2 loses bandwidth immediately, so the VMs had bought all cycles of the
//! paper's core. [`SOLD_OUT`] is the largest size at which a core with the costs of
//! [`super::paper_platform`] forwards the sold rates. Frames of [`SOLD_OUT`] bytes take 99.5 % of
//! the core at the sold rates. At the frame size [`SOLD_OUT`], VM2 loses exactly the cycles of
//! VM1's additional look-ups.
//!
//! # Calibration
//!
//! The frame size and the factor 2.67 of [`super::paper_platform`] were fitted to VM2's loss in
//! panel (c) of Fig. 1. The record also has three variants of panel (c) of Fig. 1
//! (`pps_victim_delta_pct_…`): a factor of 1.67, 64 B frames, and the combination of factor and
//! frames. A claim about a variant of panel (c) of Fig. 1 has no band, and is shown only for
//! information. Panel (a) of Fig. 1 is independent of the fitted frame size and of the fitted
//! factor for look-ups.

use penstock_sim::testbed::Traffic;
use penstock_units::Nanos;

use super::paper_platform as paper;
use super::paper_testbed::{
    self as testbed, Policy, Scenario, Sold, WARM_UP, delta_pct, gbps, mpps,
};
use crate::evidence::{Claim, Context, Experiment, Mode, Outcome, Picture, Record};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig1",
    source: "C2QoS §II-B, Fig. 1",
    about: "a VM within its limit in bits or frames per second slows its neighbour",
    sim: Some(sim),
    live: Some(live::fig1),
    picture,
};

/// Size of a frame in panels (c) and (d) of Fig. 1, in bytes.
const SOLD_OUT: u16 = 228;
/// Time from the start of the figure until VM1 changes its traffic.
const EVENT: Nanos = Nanos::from_secs(10);

/// Runs a scenario. Returns the change of VM2's frame rate at the event, in percent.
fn run(
    ctx: &Context<'_>,
    scenario: Scenario<'_>,
    (before, after): (Traffic, Traffic),
    (outcome, name): (&mut Outcome, &str),
) -> anyhow::Result<f64> {
    let sold = scenario.vms;
    let mut host = scenario.build()?;
    let [vm1, vm2] = host.vms[..] else { anyhow::bail!("two VMs") };
    host.bed.send(vm2, Nanos::ZERO, Traffic { pace: pace(&sold[1]), ..before.clone() });
    host.bed.send(vm1, Nanos::ZERO, before);
    host.bed.send(vm1, WARM_UP + ctx.scaled(EVENT), after);
    let record = host.record(ctx.scaled(EVENT + EVENT), ctx.scaled(Nanos::from_millis(500)));
    record.add_to(outcome, name);
    let rate = |span| record.mpps(1, ctx.span(span));
    Ok(delta_pct(rate((0.0, 10.0)), rate((10.0, 20.0))))
}

fn pace(sold: &Sold) -> penstock_sim::testbed::Pace {
    penstock_sim::testbed::Pace::FramesPerSecond(sold.frames())
}

/// Returns the share of a link's bits that belong to frames of `size` bytes. Each frame has 20
/// bytes of preamble and inter-frame gap.
fn payload(size: u16) -> f64 {
    f64::from(size) / (f64::from(size) + 20.0)
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    outcome.note("size_of_pps", SOLD_OUT);
    outcome.calibrated([
        "228 bytes a frame in (c)",
        "VM2's loss in (c): the largest size that the core can forward at the sold rates",
        "64 bytes, pps_victim_delta_pct_64b",
    ]);
    let [parameter, fitted_to] = paper::TOLD;
    let beside = "1.67 times, pps_victim_delta_pct_factor_1_67";
    outcome.calibrated([parameter, fitted_to, beside]);
    let bits = [gbps(2.0 * payload(512), 512)?, gbps(8.0 * payload(512), 512)?];
    let frames = [mpps(0.6, SOLD_OUT)?, mpps(2.4, SOLD_OUT)?];
    let size = (
        Traffic::paced(512, bits[0].frames()),
        // At this rate, 64 B frames take as many bits on the wire as VM1's frames before the event.
        Traffic::paced(64, 2e9 * payload(64) / 512.0),
    );
    let flows = flow_event(SOLD_OUT, &frames);
    let rows = [
        ("bps", &bits, &size, Policy::Rates),
        ("pps", &frames, &flows, Policy::Rates),
        ("c2qos size event", &bits, &size, Policy::StrictHbs),
        ("c2qos flow event", &frames, &flows, Policy::StrictHbs),
    ];
    let mut delta = Vec::new();
    for (done, (name, sold, traffic, policy)) in (0_u32..).zip(rows) {
        ctx.progress(f64::from(done) / 7.0, name);
        let scenario = Scenario::new(ctx.seed, sold, policy);
        delta.push(run(ctx, scenario, traffic.clone(), (&mut outcome, name))?);
    }
    let claims = [
        (
            "bps_victim_delta_pct",
            "bps: VM2's change when VM1 sends 64 B",
            Some(-20.0),
            (-30.0, -10.0),
        ),
        (
            "pps_victim_delta_pct",
            "pps: VM2's change when VM1 sends many flows",
            Some(-16.0),
            (-25.0, -8.0),
        ),
        (
            "c2qos_size_event_victim_delta_pct",
            "cycles: VM2's change when VM1 sends 64 B",
            None,
            (-1.0, 1.0),
        ),
        (
            "c2qos_flow_event_victim_delta_pct",
            "cycles: VM2's change when VM1 sends many flows",
            None,
            (-1.0, 1.0),
        ),
    ];
    for ((id, what, published, (low, high)), delta) in claims.into_iter().zip(delta) {
        let claim = Claim::new(id, what, "%").within(low, high).measured(delta);
        outcome.claim(published.map_or(claim.clone(), |value| claim.published(value)));
    }
    other_readings(ctx, &mut outcome)?;
    Ok(outcome)
}

/// Returns VM1's traffic before and after the flow event.
fn flow_event(size: u16, sold: &[Sold; 2]) -> (Traffic, Traffic) {
    let single = Traffic::paced(size.into(), sold[0].frames());
    (single.clone(), single.with_many_flows())
}

/// Runs panel (c) of Fig. 1 with combinations of frame size and look-up factor other than the
/// fitted combination. Claims about combinations of frame size and factor that were not fitted have
/// no band.
fn other_readings(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let (as_read, factor) = (paper::CLASSIFICATION_MULTIPLE, paper::CLASSIFICATION_IF_A_FACTOR);
    for (done, (name, id, size, many_flows)) in (4_u32..).zip([
        ("pps 1.67", "pps_victim_delta_pct_factor_1_67", SOLD_OUT, factor),
        ("pps 64 B", "pps_victim_delta_pct_64b", 64, as_read),
        ("pps 64 B 1.67", "pps_victim_delta_pct_64b_factor_1_67", 64, factor),
    ]) {
        ctx.progress(f64::from(done) / 7.0, name);
        let sold = [mpps(0.6, size)?, mpps(2.4, size)?];
        let scenario = Scenario::new(ctx.seed, &sold, Policy::Rates);
        let scenario = Scenario { many_flows, ..scenario };
        let delta = run(ctx, scenario, flow_event(size, &sold), (&mut *outcome, name))?;
        let factor = many_flows / paper::CLASSIFICATION_SINGLE;
        let what = format!("pps, another reading: {size} B, many flows cost {factor:.2} x");
        outcome.claim(Claim::new(id, what, "%").published(-16.0).measured(delta));
    }
    Ok(())
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::picture(record, "time, s (rates); number of the case (shares)");
    }
    let mut picture = Picture::new("C2QoS, Fig. 1: VM1 changes its traffic at 10 s");
    for name in ["bps", "pps", "pps 1.67", "c2qos size event", "c2qos flow event"] {
        picture = picture
            .panel(testbed::panel(record, name, "bandwidth", "Gbit/s"))
            .panel(testbed::panel(record, name, "core", "% of the core"));
    }
    picture
}
