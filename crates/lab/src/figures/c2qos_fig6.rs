//! C2QoS, Fig. 6: the cost that deployment adds to a frame.
//!
//! # Problem
//!
//! The same frame costs more on a fuller host.
//!
//! # Source
//!
//! C2QoS §III-C varies three things: VMs' memory on another NUMA node (a), the number of VMs on one
//! or several nodes (b), and two I/O cores (c). The factors are multiplied: C = C_single × R_1 ×
//! R_2 × R_3. The paper prints 1.4 for another node, 1.14 and 1.07 for four VMs, 1.47 for two
//! cores, and the product of an example. This figure compares these numbers.
//!
//! # Approach
//!
//! In `sim` the production worker runs in the testbed: 1 to 16 VMs, one or two workers, and all VMs
//! at a pace. A factor is the cycles charged for a frame, divided by the cycles charged with one VM
//! alone ([`super::paper_counters`]). The simulated core's costs are multiplied by the paper's
//! factors ([`super::paper_platform`]). If the same factors come out again, each port is charged
//! its own batches and nothing else. Two workers that hand each other tokens and frames are tested
//! in the same way.
//!
//! Between 1 and 4 VMs the factor is linear. Beyond 4 the paper says only that the factor grows
//! much below 8 and stays constant from 10 on. The curve's end is drawn from that statement, and no
//! claim uses it.
//!
//! In `live` the figure measures the factor of more VMs on this machine with its spread
//! (`crate::live::many`).
//!
//! # Calibration
//!
//! The factors are the figure's outcome and also the simulated core's input. So the claims test the
//! worker's accounting and say nothing about the paper's machine. One more number tests the cause
//! that the paper gives, "mainly due to the increase of C_ingress". If another node made ingress
//! alone more expensive, so that 1500 B cost 1.4 times as much, 64 B would cost less than that
//! (`remote_node_64_if_ingress_alone`).
//!
//! # Departures
//!
//! A machine of one NUMA node has no (a). A machine of two cores has no (c), because worker and
//! generator need one core each. The record's platform says so.

use penstock_units::Nanos;

use super::paper_counters::{Load, count};
use super::paper_platform::{self as paper, Flows, Placement};
use super::paper_testbed as testbed;
use crate::evidence::stats::count as count_of;
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig6",
    source: "C2QoS §III-C, Fig. 6",
    about: "what NUMA nodes, more VMs and a second I/O core add to a frame's cost",
    sim: Some(sim),
    live: Some(crate::live::fig6),
    picture,
};

/// Highest number of VMs.
const VMS: usize = 16;
/// Frames a second of each VM (1500 B, one flow), and the length of a measurement.
const RATE: f64 = 2e4;
const LENGTH: Nanos = Nanos::from_millis(500);

/// Cycles charged for a frame of `vms` VMs on `cores` cores.
fn charged(
    ctx: &Context<'_>,
    vms: usize,
    cores: u16,
    (placement, remote): (Placement, bool),
) -> anyhow::Result<f64> {
    let load = Load::alone(1500, Flows::Single, RATE);
    let load = Load { vms, senders: vms, cores, placement, remote, ..load };
    Ok(count(ctx, &load, LENGTH)?.frame.total)
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    outcome.calibrated([
        "factors of 1.4, 1.14, 1.07 and 1.47 in the simulated core",
        "the figure itself, which prints them",
        "a factor of ingress alone, remote_node_64_if_ingress_alone",
    ]);
    let here = (Placement::OneNode, false);
    let alone = charged(ctx, 1, 1, here)?;
    let remote = charged(ctx, 1, 1, (Placement::OneNode, true))? / alone;
    // The three other nodes are alike.
    let nodes = (0..4).map(|n| (f64::from(n), if n == 0 { 1.0 } else { remote }));
    outcome.series("a node", "ratio", nodes);
    let mut of_four = Vec::new();
    for (name, placement) in
        [("one node", Placement::OneNode), ("several nodes", Placement::SeveralNodes)]
    {
        for (letter, cores) in [("b", 1), ("c", 2)] {
            let mut points = Vec::new();
            for vms in 1..=VMS {
                ctx.progress(count_of(vms) / 16.0, format_args!("{name}, {cores} cores"));
                let ratio = charged(ctx, vms, cores, (placement, false))? / alone;
                points.push((count_of(vms), ratio));
            }
            of_four.push(points[3].1);
            outcome.series(&format!("{letter} {name}"), "ratio", points);
        }
    }
    let &[one, one_of_two, several, _] = &of_four[..] else { anyhow::bail!("four curves") };
    let product = charged(ctx, 4, 2, (Placement::OneNode, true))? / alone;
    let exact = |id: &str, what: &str, published: f64, found: f64| {
        let (low, high) = (published - 0.005, published + 0.005);
        Claim::new(id, what, "ratio").published(published).within(low, high).measured(found)
    };
    let what = "4 VMs on node 1 and two I/O cores: the factors multiplied out (§III-C)";
    for claim in [
        exact("remote_node", "VMs' memory on another NUMA node", 1.4, remote),
        exact("vms_4_one_node", "four VMs on one node", 1.14, one),
        exact("vms_4_several_nodes", "four VMs on several nodes", 1.07, several),
        exact("two_cores", "two I/O cores", 1.47, one_of_two / one),
        exact("example_product", what, 1.4 * 1.14 * 1.47, product),
    ] {
        outcome.claim(claim);
    }
    let what = "another reading: 64 B, if another node makes only ingress dearer";
    let claim = Claim::new("remote_node_64_if_ingress_alone", what, "ratio").published(1.4);
    outcome.claim(claim.measured(if_ingress_alone()));
    Ok(outcome)
}

/// Factor of 64 B on another node if ingress alone makes 1500 B cost 1.4 times as much.
fn if_ingress_alone() -> f64 {
    let [small, large] = [64, 1500].map(|size| paper::cost(size, Flows::Single));
    let ingress = (paper::REMOTE_NODE * large.total() - large.total()) / large.ingress;
    (small.total() + ingress * small.ingress) / small.total()
}

fn picture(record: &Record) -> Picture {
    let ratio = || Axis::linear("cycles a frame, ratio").from(0.0);
    let mut picture = Picture::new(format!("C2QoS, Fig. 6: deployment ({})", record.mode));
    if let Some(nodes) = record.series("a node") {
        let bars = points(nodes).enumerate().map(|(i, (_, y))| (count_of(i), y));
        let axis = Axis::named("NUMA node of the VMs' memory", ["0", "1", "2", "3"]);
        let panel = Panel::new("(a) memory on another node", axis, ratio())
            .bars("against node 0", bars)
            .published("published: 1.4", 1.4);
        picture = picture.panel(panel);
    }
    for (letter, title, published) in [
        ("b", "(b) number of VMs, one I/O core", [1.14, 1.07]),
        ("c", "(c) number of VMs, two I/O cores", [1.14 * 1.47, 1.07 * 1.47]),
    ] {
        let mut panel = Panel::new(title, Axis::linear("VMs"), ratio());
        for (name, series) in record.series_of(&format!("{letter} ")) {
            panel = panel.series(name, series);
        }
        if record.series_of(&format!("{letter} ")).next().is_none() {
            continue;
        }
        let published = published.map(|value| (4.0, value));
        picture = picture.panel(panel.published_points("published", published));
    }
    picture
}
