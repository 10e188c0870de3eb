//! FS-VDE, Table II: five TCP flows of two clients with weights 1 and 2.
//!
//! # Problem
//!
//! Client c1 has one flow from one VM, and client c2 has four flows from two VMs. By weight c2
//! should get twice c1's rate.
//!
//! # Source
//!
//! The source is FS-VDE §5, Tables I and II. The FS-VDE paper's unit is MB/s in the table and Mbps
//! in the text. The rates and the sums that the FS-VDE paper prints agree only if the unit is
//! Mbit/s.
//!
//! # Approach
//!
//! - `fifo_ratio_c2_over_c1` is c2's rate divided by c1's rate if the link is first come, first
//!   served. In the FS-VDE paper, the ratio of c2's rate to c1's rate is 3.28 for TCP flows. Flows
//!   with equal rates give a ratio of 4 ([`super::fsvde_link`]).
//! - `fair_ratio_c2_over_c1` is c2's rate divided by c1's rate if the link uses `fair-share`. With
//!   FS-VDE's schedule, the paper prints a ratio of 2.01.
//! - `share_of_due_pct_min` is the lowest ratio of a client's rate to the client's share by weight.
//!   The lowest ratio of a client's rate to its share is 99.4 % in the FS-VDE paper.
//!
//! The simulated link has the total rate of the FS-VDE paper's legacy switch, 582.4 Mbit/s.
//!
//! # Departures
//!
//! The FS-VDE paper's scheduling cost 5 % of throughput. A simulation cannot show the cost of
//! scheduling. The live figure shows the cost of scheduling as `throughput_vs_fifo_pct`.

use penstock_units::BitsPerSecond;

use super::fsvde_link::{self as link, Client, Egress, Sent};
use crate::evidence::{
    Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record, points,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "fsvde-table2",
    source: "FS-VDE §5, Tables I and II",
    about: "one client with one flow, and another with four flows and twice the weight",
    sim: Some(sim),
    live: Some(crate::live::table2),
    picture,
};

/// Clients of Table I: c1 has flow f1; c2 has f2 and f3 on one VM, and f4 and f5 on another VM.
const CLIENTS: [Client; 2] =
    [Client { weight: 1, flows: &[1] }, Client { weight: 2, flows: &[2, 2] }];
const RATE: BitsPerSecond = BitsPerSecond(582_400_000);
const SECS: u64 = 10;
/// Rate of each flow in Table II, in Mbit/s.
const VDE: [f64; 5] = [136.0, 110.4, 116.0, 116.0, 104.0];
const FS_VDE: [f64; 5] = [183.2, 107.2, 93.6, 75.3, 93.6];

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("link_bps", RATE.0);
    outcome.note("window_frames", link::WINDOW);
    let mut run = |egress: Egress| -> anyhow::Result<Sent> {
        let sent = link::run(&CLIENTS, egress, RATE, (SECS, ctx.seed))?;
        let flows = (0..sent.flows.len()).map(|flow| sent.mbps(flow));
        outcome.series(egress.name(), "Mbit/s", (0_u32..).map(f64::from).zip(flows));
        Ok(sent)
    };
    let (fifo, fair) = (run(Egress::Fifo)?, run(Egress::FairShare)?);
    let ratio = |sent: &Sent| sent.client_mbps(1) / sent.client_mbps(0);
    let what = "c2's rate divided by c1's, first come, first served";
    let claim = Claim::new("fifo_ratio_c2_over_c1", what, "");
    outcome.claim(claim.published(3.28).at_least(3.0).measured(ratio(&fifo)));
    let what = "c2's rate divided by c1's under fair-share";
    let claim = Claim::new("fair_ratio_c2_over_c1", what, "");
    outcome.claim(claim.published(2.01).within(1.998, 2.002).measured(ratio(&fair)));
    let part = |(client, weight): (usize, f64)| {
        100.0 * fair.client_mbps(client) / (fair.all_mbps() * weight / 3.0)
    };
    let least = [(0, 1.0), (1, 2.0)].map(part).into_iter().fold(f64::INFINITY, f64::min);
    let what = "lowest ratio of a client's rate to its share by weight";
    let claim = Claim::new("share_of_due_pct_min", what, "%");
    outcome.claim(claim.published(99.4).at_least(99.9).measured(least));
    let what = "total rate of fair-share, as a share of fifo's";
    let of_fifo = 100.0 * fair.all_mbps() / fifo.all_mbps();
    outcome.claim(Claim::new("throughput_vs_fifo_pct", what, "%").measured(of_fifo));
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live_picture(record);
    }
    let panel = |title: &str, egress: Egress, published: [f64; 5]| {
        let axis = Axis::named("flow (f1: c1; others: c2)", ["f1", "f2", "f3", "f4", "f5"]);
        let flows = record.series(egress.name()).map(points).into_iter().flatten();
        Panel::new(title, axis, Axis::linear("Mbit/s").to(220.0))
            .bars("measured", flows)
            .published_points("published", (0_u32..).map(f64::from).zip(published))
    };
    Picture::new("FS-VDE, Table II: clients of weights 1 and 2")
        .panel(panel("(a) first come, first served (VDE)", Egress::Fifo, VDE))
        .panel(panel("(b) fair-share (FS-VDE)", Egress::FairShare, FS_VDE))
}

/// Draws the rates of the VMs, with and without a rate of the output.
fn live_picture(record: &Record) -> Picture {
    let panel = |title: &str, prefix: &str| {
        let axis = Axis::named("VM (first: c1; others: c2)", ["f1", "f2, f3", "f4, f5"]);
        let panel = Panel::new(title, axis, Axis::linear("Mbit/s"));
        [Egress::Fifo, Egress::FairShare].into_iter().fold(panel, |panel, egress| {
            let name = format!("{prefix}{}", egress.name());
            let rates = record.series(&name).map(points).into_iter().flatten();
            panel.bars(egress.name(), rates)
        })
    };
    Picture::new("FS-VDE, Table II, live: clients of weights 1 and 2")
        .panel(panel("(a) output of 582.4 Mbit/s", ""))
        .panel(panel("(b) the worker is the bottleneck", "unpaced "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn clients_have_their_due_for_any_seed() {
        assert_holds("fsvde-table2", sim, &[1, 20]);
    }
}
