//! C2QoS, Fig. 6: what deployment adds to a frame's cost.
//!
//! **Problem.** The same frame costs more on a fuller host. **Source.** C2QoS §III-C: VMs' memory
//! on another NUMA node (a), number of VMs on one node or dealt out over several (b), two I/O cores
//! (c). The factors are multiplied: C = C_single × R_1 × R_2 × R_3. **What is compared.** The
//! paper prints 1.4 for another node, 1.14 and 1.07 for four VMs, 1.47 for two cores, and the
//! product of an example.
//!
//! **sim** is the table ([`super::paper_platform`]) that simulated figures multiply by. Between 1
//! and 4 VMs it is straight; beyond 4 the paper says only that it grows much below 8 and stays from
//! 10 on, so the curve's end is drawn from that sentence and claimed nowhere.
//!
//! **live**: the factor of more VMs on this machine with its spread (`crate::live::many`).
//! **Departures.** A machine of one NUMA node has no (a), and one of two cores no (c), where worker
//! and generator need one each; the record's platform says so.

use super::claim::Claim;
use super::experiment::{Context, Experiment};
use super::outcome::{Outcome, Record};
use super::paper_platform::{self as paper, Placement};
use super::picture::{Axis, Panel, Picture, points};
use super::stats::count;

/// See the module's text.
pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig6",
    source: "C2QoS §III-C, Fig. 6",
    about: "what NUMA nodes, more VMs and a second I/O core add to a frame's cost",
    sim: Some(sim),
    live: Some(crate::live::fig6),
    picture,
};

fn sim(_: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("hz", paper::HZ);
    let nodes = (0..4).map(|n| (f64::from(n), if n == 0 { 1.0 } else { paper::REMOTE_NODE }));
    outcome.series("a node", "ratio", nodes);
    for (name, placement) in
        [("one node", Placement::OneNode), ("several nodes", Placement::SeveralNodes)]
    {
        let curve = |cores: u32| {
            (1..=16).map(move |n| {
                (f64::from(n), paper::vms_factor(n, placement) * paper::cores_factor(cores))
            })
        };
        outcome.series(&format!("b {name}"), "ratio", curve(1));
        outcome.series(&format!("c {name}"), "ratio", curve(2));
    }
    let exact = |id: &str, what: &str, published: f64, table: f64| {
        let (low, high) = (published - 0.005, published + 0.005);
        Claim::new(id, what, "ratio").published(published).within(low, high).measured(table)
    };
    outcome.claim(exact(
        "remote_node",
        "VMs' memory on another NUMA node",
        1.4,
        paper::REMOTE_NODE,
    ));
    let one = paper::vms_factor(4, Placement::OneNode);
    outcome.claim(exact("vms_4_one_node", "four VMs on one node", 1.14, one));
    let several = paper::vms_factor(4, Placement::SeveralNodes);
    outcome.claim(exact("vms_4_several_nodes", "four VMs on several nodes", 1.07, several));
    outcome.claim(exact("two_cores", "two I/O cores", 1.47, paper::cores_factor(2)));
    let product = paper::REMOTE_NODE * one * paper::cores_factor(2);
    let what = "4 VMs on node 1 and two I/O cores: the factors multiplied out (§III-C)";
    outcome.claim(exact("example_product", what, 1.4 * 1.14 * 1.47, product));
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    let ratio = || Axis::linear("cycles a frame, ratio").from(0.0);
    let mut picture = Picture::new(format!("C2QoS, Fig. 6: deployment ({})", record.mode));
    if let Some(nodes) = record.series("a node") {
        let bars = points(nodes).enumerate().map(|(i, (_, y))| (count(i), y));
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
