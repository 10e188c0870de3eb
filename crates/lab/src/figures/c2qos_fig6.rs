//! C2QoS, Fig. 6: effect of the deployment on the cost of a frame.
//!
//! # Problem
//!
//! A frame costs more cycles on a host with more VMs, more I/O cores or remote memory.
//!
//! # Source
//!
//! C2QoS §III-C varies the NUMA node of the VMs' memory (a), the number of VMs (b), and the number
//! of I/O cores (c). In §III-C (b), the VMs' memory is on one node or on several nodes. The C2QoS
//! paper multiplies three factors, so that the cost is C = C_single × R_1 × R_2 × R_3. The C2QoS
//! paper prints these factors: 1.4 for memory on another node, 1.14 and 1.07 for four VMs, and 1.47
//! for two cores. The C2QoS paper also prints the product of the factors for an example. The figure
//! compares the worker's costs with the factors that the C2QoS paper prints.
//!
//! # Approach
//!
//! In `sim` one or two production workers run in the simulated testbed, and 1 to 16 VMs send at a
//! fixed rate. A factor is the number of charged cycles of a frame, divided by the charged cycles
//! of a frame with one VM alone ([`super::paper_counters`]). The costs of the simulated core are
//! multiplied by the C2QoS paper's factors ([`super::paper_platform`]). If the ports' counters
//! reproduce the C2QoS paper's factors, the worker charges each port for exactly that port's
//! batches. In the runs with two workers, the workers exchange tokens and frames. Runs with two
//! workers also test the exchange of tokens and frames between the workers.
//!
//! The factor for the number of VMs is linear between 1 and 4 VMs. Above 4 VMs, the C2QoS paper
//! says only that the cost factor grows quickly up to 8 VMs and is constant from 10 VMs on. Above 4
//! VMs, the figure's curve follows the C2QoS paper's text. No claim uses the curve above 4 VMs.
//!
//! In `live` the figure measures how the cost of a frame grows with the number of VMs on this
//! machine (`crate::live::many`). The result of the live run includes the spread of several runs.
//!
//! # Calibration
//!
//! The cost factors are the figure's outcome and also the input of the simulated core. The claims
//! about the factors test the worker's accounting, and say nothing about the C2QoS paper's machine.
//! `remote_node_64_if_ingress_alone` tests the cause that the C2QoS paper gives for the cost of
//! remote memory: "mainly due to the increase of C_ingress". The test assumes that memory on
//! another node increases only the cost of ingress, so that a 1500 B frame costs 1.4 times as much.
//! If only ingress costs more, the factor of a 64 B frame is below 1.4.
//!
//! # Departures
//!
//! On a machine with one NUMA node, panel (a) of Fig. 6 is not measured. On a machine with two
//! cores, panel (c) of Fig. 6 is not measured, because worker and generator need one core each. If
//! the machine cannot measure a panel, the `platform` of the record mentions the missing panel.

use penstock_units::Nanos;

use super::paper_counters::{Load, count};
use super::paper_platform::{self as paper, Flows, Placement};
use super::paper_testbed as testbed;
use crate::evidence::stats::count as count_of;
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig6",
    source: "C2QoS §III-C, Fig. 6",
    about: "effect of NUMA nodes, more VMs and a second I/O core on a frame's cost",
    sim: Some(sim),
    live: Some(crate::live::fig6),
    picture,
};

/// Highest number of VMs in the figure.
const VMS: usize = 16;
/// Sending rate of each VM in frames per second (1500 B, one flow). [`LENGTH`] is the length of a
/// measurement.
const RATE: f64 = 2e4;
const LENGTH: Nanos = Nanos::from_millis(500);

/// Returns the number of cycles charged for a frame, with `vms` VMs on `cores` I/O cores.
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
    // All three remote nodes have the same factor.
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
    let what = "4 VMs on node 1 and two I/O cores: product of the factors (§III-C)";
    for claim in [
        exact("remote_node", "factor of VMs' memory on another NUMA node", 1.4, remote),
        exact("vms_4_one_node", "factor of four VMs on one node", 1.14, one),
        exact("vms_4_several_nodes", "factor of four VMs on several nodes", 1.07, several),
        exact("two_cores", "factor of two I/O cores", 1.47, one_of_two / one),
        exact("example_product", what, 1.4 * 1.14 * 1.47, product),
    ] {
        outcome.claim(claim);
    }
    let what = "another reading: factor of 64 B if only ingress costs more on another node";
    let claim = Claim::new("remote_node_64_if_ingress_alone", what, "ratio").published(1.4);
    outcome.claim(claim.measured(if_ingress_alone()));
    Ok(outcome)
}

/// Returns the factor of a 64 B frame with memory on another node, if only ingress costs more. The
/// estimate assumes that a 1500 B frame costs 1.4 times as much with memory on another node.
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
