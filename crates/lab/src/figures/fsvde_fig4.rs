//! FS-VDE, Fig. 4: three clients with weights 5, 3 and 1, and with seven, four and one flows.
//!
//! # Problem
//!
//! A first-come, first-served link divides its bandwidth among flows, so a client with more flows
//! gets more.
//!
//! # Source
//!
//! FS-VDE §4.1, Fig. 4: the clients c1, c2 and c3 own three, two and one VMs. The FS-VDE paper says
//! about "the legacy VDE": "c1 gets about a half of the bandwidth, c2 gets a third and c3 gets only
//! a twelfth". The FS-VDE paper also says: "the VTRR scheduler makes schedule (c1, c2, c3, c1, c2,
//! c1, c2, c1, c1)".
//!
//! # Approach
//!
//! The figure compares two results with the FS-VDE paper:
//!
//! - [`penstock_qos::vtrr`] must produce the printed schedule, in which each turn is one frame.
//! - The clients must get 7/12, 4/12 and 1/12 of a link of 1 Gbit/s by flows, and 5/9, 3/9 and 1/9
//!   by weight ([`super::fsvde_link`]).
//!
//! # Departures
//!
//! The FS-VDE paper does not print the number of flows of each VM. In the simulation, c1's VMs have
//! 3, 2 and 2 flows, c2's VMs have 2 and 2 flows, and c3's VM has 1 flow.

use penstock_qos::discipline::Discipline;
use penstock_qos::vtrr::Vtrr;
use penstock_units::{BitsPerSecond, Weight};

use super::fsvde_link::{self as link, Client, Egress};
use crate::evidence::stats::count as number;
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};

pub const EXPERIMENT: Experiment = Experiment {
    name: "fsvde-fig4",
    source: "FS-VDE §4.1, Fig. 4",
    about: "a link divided by weight instead of by the number of flows",
    sim: Some(sim),
    live: None,
    picture,
};

const CLIENTS: [Client; 3] = [
    Client { weight: 5, flows: &[3, 2, 2] },
    Client { weight: 3, flows: &[2, 2] },
    Client { weight: 1, flows: &[1] },
];
/// The client that sends in each turn of the schedule that the FS-VDE paper prints. Clients are
/// numbered from 0.
const SCHEDULE: [usize; 9] = [0, 1, 2, 0, 1, 0, 1, 0, 0];
const RATE: BitsPerSecond = BitsPerSecond(1_000_000_000);
const SECS: u64 = 10;
/// Shares of the clients if the link is divided by flows. [`FAIR`] has the clients' shares if the
/// link is divided by the clients' weights.
const LEGACY: [f64; 3] = [7.0 / 12.0, 4.0 / 12.0, 1.0 / 12.0];
const FAIR: [f64; 3] = [5.0 / 9.0, 3.0 / 9.0, 1.0 / 9.0];
const BAND: f64 = 0.002;

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("link_bps", RATE.0);
    outcome.note("window_frames", link::WINDOW);
    let schedule = schedule()?;
    let at = (0_u32..).map(f64::from).zip(schedule.iter().map(|client| number(client + 1)));
    outcome.series("schedule", "client", at);
    let same = schedule.chunks(SCHEDULE.len()).all(|cycle| cycle == SCHEDULE);
    let what = "every cycle of turns is c1 c2 c3 c1 c2 c1 c2 c1 c1";
    outcome.claim(Claim::truth("schedule", what, same));
    for (egress, name, due) in [(Egress::Fifo, "legacy", LEGACY), (Egress::FairShare, "fair", FAIR)]
    {
        let sent = link::run(&CLIENTS, egress, RATE, (SECS, ctx.seed))?;
        let shares = [0, 1, 2].map(|client| sent.client_mbps(client) / sent.all_mbps());
        outcome.series(name, "share", (0_u32..).map(f64::from).zip(shares));
        for (client, (share, due)) in shares.iter().zip(due).enumerate() {
            let id = format!("{name}_share_c{}", client + 1);
            let what = format!("c{}'s share of the link under {}", client + 1, egress.name());
            let claim = Claim::new(&id, what, "");
            outcome.claim(claim.published(due).within(due - BAND, due + BAND).measured(*share));
        }
    }
    Ok(outcome)
}

/// Returns the client of each turn in three repetitions of the schedule.
fn schedule() -> anyhow::Result<Vec<usize>> {
    let mut vtrr = Vtrr::new(CLIENTS.len());
    for (slot, client) in CLIENTS.iter().enumerate() {
        vtrr.join(slot, Weight::new(client.weight)?);
    }
    let frame = vtrr.turn();
    (0..CLIENTS.len()).for_each(|slot| vtrr.backlogged(slot, frame));
    let mut turn = || {
        let slot = vtrr.pick()?;
        vtrr.charge(slot, frame, frame);
        Some(slot)
    };
    Ok((0..3 * SCHEDULE.len()).filter_map(|_| turn()).collect())
}

fn picture(record: &Record) -> Picture {
    let bars = |title: &str, name: &str, due: [f64; 3]| {
        let axis = Axis::named("client", ["c1", "c2", "c3"]);
        let share = record.series(name).map(points).into_iter().flatten();
        let due = (0_u32..).map(f64::from).zip(due);
        Panel::new(title, axis, Axis::linear("share of the link").to(0.65))
            .bars("measured", share)
            .published_points("by the paper's rule", due)
    };
    let turns = record.series("schedule").map(points).into_iter().flatten();
    let schedule = Panel::new("(c) schedule", Axis::linear("turn"), Axis::linear("client").to(3.5))
        .points("client of the turn", turns);
    Picture::new("FS-VDE, Fig. 4: weights 5, 3, 1; seven, four, one flows")
        .panel(bars("(a) first come, first served", "legacy", LEGACY))
        .panel(bars("(b) fair-share", "fair", FAIR))
        .panel(schedule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn schedule_and_shares_are_the_printed_ones_for_any_seed() {
        assert_holds("fsvde-fig4", sim, &[1, 20]);
    }
}
