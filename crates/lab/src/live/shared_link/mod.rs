//! Live experiment `uplink-shares`: an uplink divided by weight, full, and without loss, beside the
//! queueing disciplines of the kernel.
//!
//! # Problem
//!
//! A simulation of output queues knows neither real rings nor Linux's TCP. A tenant also asks what
//! the switch does better than the queueing disciplines that the kernel has.
//!
//! # Source
//!
//! FS-VDE §4.1 shares an output by weight, and §6 demands that sharing costs little. The bands are
//! Penstock's own.
//!
//! # Approach
//!
//! | Claims | Module |
//! |---|---|
//! | `fair_share_cost_pct` | `cost` |
//! | `wire_share_error_pct` | `shares` |
//! | `paced_utilisation_pct_min` | `full` |
//! | `hold_lost_frames`, `other_output_kept_pct` | `pressed` |
//! | `sparse_p99_ms`, `sparse_shared_p99_ms` | `sparse` |
//! | `inbound_share_error_pct`, `inbound_tcp_share_error_pct` (shown) | `inbound` |
//! | `penstock_...`, `htb_...`, `fifo_...`, which are shown | `beside` |
//! | `snapshot_worst_turn_us` | [`super::snapshots`] |
//!
//! | Module | Content |
//! |---|---|
//! | `traffic`, `flood`, `pings` | what the tenants send, and what arrives |
//! | `penstock_road`, `kernel_road` | a switch or a veth that carries the traffic |
//! | `wire` | rates on the wire, and deviations from shares by weight |
//! | `calm` | repeated cells on a disturbed machine |
//!
//! The seed determines the order of the cells, the order in which senders start, their ports, and
//! the gaps between pings.
//!
//! If one part fails, the run goes on with the next part. A claim such as `pings_measured` is then
//! missed ([`Outcome::part`]).
//!
//! # Departures
//!
//! The comparison has no CAKE, CoDel or fq_codel, because the kernels of our machines have none.
//!
//! # Cost
//!
//! With the default lengths, the measured times add up to eight minutes. `--secs` sets the length
//! of one measurement, and `--runs` the turns of `fair_share_cost_pct`.

mod beside;
mod calm;
mod cost;
mod flood;
mod full;
mod inbound;
mod kernel_road;
mod penstock_road;
mod pings;
mod pressed;
mod shares;
mod sparse;
mod traffic;
mod wire;

use penstock_units::Rng;

use super::needs::needs;
use super::snapshots;
use crate::evidence::{Axis, Context, Outcome, Panel, Picture, Record, points};
use crate::figures::{inbound_shares, snapshot_turns};
use crate::rig::platform;
use calm::Calm;
use penstock_guest::bed::Bed;
use traffic::WEIGHTS;

/// Runs the live experiment.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    for (program, package) in [
        ("iperf3", "iperf3"),
        ("ping", "iputils-ping"),
        ("ss", "iproute2"),
        ("tc", "iproute2"),
        ("sysctl", "procps"),
        ("ethtool", "ethtool"),
    ] {
        needs(program, package)?;
    }
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let mut rng = Rng::new(context.seed);
    let length = |usual: f64| context.live.secs.unwrap_or(usual);
    let mut calm = Calm::new(&bed);
    outcome.part("cost", |outcome| cost::measure(context, (&bed, &mut rng), outcome));
    context.progress(0.25, "shares of the wire");
    outcome.part("shares", |outcome| shares::measure(&mut calm, (length(12.0), &mut rng), outcome));
    context.progress(0.5, "utilisation");
    outcome
        .part("utilisation", |outcome| full::measure(&mut calm, (length(4.0), &mut rng), outcome));
    context.progress(0.65, "back-pressure");
    outcome.part("hold", |outcome| pressed::hold(&mut calm, &mut rng, outcome));
    outcome.part("other", |outcome| {
        pressed::other_output(&mut calm, (length(4.0), &mut rng), outcome)
    });
    context.progress(0.75, "a ping");
    outcome.part("pings", |outcome| sparse::measure(&mut calm, (length(8.0), &mut rng), outcome));
    context.progress(0.8, "HTB and one queue");
    outcome.part("beside", |outcome| beside::measure(&mut calm, (length(8.0), &mut rng), outcome));
    context.progress(0.85, "what arrives");
    outcome
        .part("inbound", |outcome| inbound::measure(&mut calm, (length(5.0), &mut rng), outcome));
    let tcp = (length(8.0), rng.next_u64());
    outcome.part("inbound_tcp", |outcome| inbound::tcp(&bed, tcp, outcome));
    calm.describe(&mut outcome);
    outcome.part("snapshots", |outcome| snapshots::measure(context, &bed, outcome));
    Ok(outcome)
}

/// Draws the record of a live run.
pub(crate) fn picture(record: &Record) -> Picture {
    Picture::new("Uplink, live: cost, shares, use, other outputs, pings, snapshots and arrivals")
        .panel(cost_panel(record))
        .panel(shares_panel(record, "(b) shares of the wire", "shares, "))
        .panel(used_panel(record))
        .panel(kept_panel(record))
        .panel(pings_panel(record))
        .panel(shares_panel(record, "(f) shares of the wire, beside the kernel", "beside, "))
        .panel(snapshot_turns::panel(record, "(g)"))
        .panel(inbound_shares::panel(record, "(h)"))
}

fn cost_panel(record: &Record) -> Panel {
    let y = Axis::linear("cycles beyond fifo, %");
    let panel = Panel::new("(a) cost of fair-share", Axis::log("tenants"), y);
    let sizes = record.series_of("cost, ");
    sizes.fold(panel, |panel, (size, series)| panel.series(size, series))
}

fn shares_panel(record: &Record, title: &str, prefix: &str) -> Panel {
    let tenants = WEIGHTS.map(|weight| format!("weight {weight}"));
    let panel = Panel::new(title, Axis::named("tenant", tenants), Axis::linear("% of the wire"));
    let runs = record.series_of(prefix);
    let panel = runs.fold(panel, |panel, (run, series)| panel.bars(run, points(series)));
    let all: f64 = WEIGHTS.into_iter().map(f64::from).sum();
    let due = WEIGHTS.map(|weight| 100.0 * f64::from(weight) / all);
    panel.published_points("by weight", (0_u32..).map(f64::from).zip(due))
}

fn used_panel(record: &Record) -> Panel {
    let y = Axis::linear("used, % of the link").from(98.0).to(101.0);
    let panel = Panel::new("(c) a backlogged link", Axis::log("link, Mbit/s"), y);
    let mixes = record.series_of("utilisation, ");
    mixes.fold(panel, |panel, (mix, series)| panel.series(mix, series))
}

fn kept_panel(record: &Record) -> Panel {
    let axis = Axis::named("traffic to the uplink", ["bulk TCP", "full ring"]);
    let y = Axis::linear("% of the rate alone").from(0.0).to(100.0);
    let kept = record.series("kept").map(points).into_iter().flatten();
    Panel::new("(d) frames to a neighbour", axis, y).bars("beside the uplink", kept)
}

fn pings_panel(record: &Record) -> Panel {
    let y = Axis::linear("% of the pings");
    let panel = Panel::new("(e) pings beside bulk TCP", Axis::log("round trip, ms"), y);
    let orders = record.series_of("pings, ");
    orders.fold(panel, |panel, (order, series)| panel.line(order, points(series)))
}
