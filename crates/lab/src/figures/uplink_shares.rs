//! The experiment `uplink-shares`: an uplink divided by weight, full, and without loss.
//!
//! # Problem
//!
//! Tenants buy a share of a link. A link carries preambles and gaps as well as frames, so short
//! frames take more of the link than their bytes suggest. Large segments take the link for
//! milliseconds, and other frames wait for them.
//!
//! # Source
//!
//! FS-VDE §4.1 shares an output by weight, and §6 demands that the sharing costs little. The
//! bands of the claims are Penstock's own, as FS-VDE prints values only for equal TCP segments
//! (Table II, [`super::fsvde_table2`]).
//!
//! # Approach
//!
//! The production worker runs in virtual time ([`super::uplink_bed`]). All queues have the
//! defaults of the configuration.
//!
//! - `wire_share_error_pct`: four tenants of the weights 3, 1, 1 and 7 are always backlogged at a
//!   link of 100 Mbit/s. Two tenants send large TCP segments, with one and with 32 flows. Two
//!   tenants send 64-byte frames, with one and with 32 flows. In four runs, each tenant sends
//!   each kind once. The value is the largest deviation of a tenant's rate on the wire from the
//!   rate by weight, in per cent of the rate by weight. A frame takes 24 bytes of FCS, preamble
//!   and gap.
//! - `wire_share_error_pct_no_ecn` is the same value if the TCP senders neither support ECN nor
//!   slow down. The switch then signals congestion by the loss of parts of segments.
//! - `paced_utilisation_pct_min`: backlogged VMs send frames of 64 bytes, frames of 1,514 bytes,
//!   large segments, or all of these, to links of 10 Mbit/s to 10 Gbit/s. The value is the lowest
//!   rate on the wire, in per cent of the link's rate.
//! - `hold_lost_frames`: three VMs send frames of all lengths to 1 to 8 outputs, each with
//!   `fair-share` and `excess = "hold"`. The outputs have a link's rate or a shaper, or the VMs
//!   have shapers. Each case runs with the default limit on waiting bytes, and with 128 KiB, at
//!   which each VM is held back (`hold_held_back_min`). The value is the number of lost frames of
//!   all runs.
//! - `other_output_kept_pct`: a VM sends 1,514-byte frames to a neighbour at a fixed rate, and bulk
//!   TCP to an uplink of 100 Mbit/s. TCP's window has the default size of Linux (6 MiB), which is
//!   more than the switch accepts for the uplink. The value is the share of the frames to the
//!   neighbour that arrive.
//! - `other_output_kept_pct_flood` is the same value if the VM fills its ring with frames to the
//!   uplink. No switch with a limited queue can then keep both all frames and the neighbour's rate,
//!   as the ring has a single order.
//! - `sparse_p99_ms`: to an uplink of 100 Mbit/s with `fq-codel`, a VM sends a ping about every
//!   5 ms, and bulk TCP with a window of 1 MiB. The value is the 99th percentile of the time from
//!   the VM's ring to the far side of the uplink. The way back is empty. `sparse_fifo_p99_ms` is
//!   the same value with one queue for all frames.
//! - `sparse_shared_p99_ms` is the same value at an uplink with `fair-share` and `queue.flows`,
//!   beside another tenant's bulk TCP. The other tenant has three times the VM's weight, and the
//!   VM's part of the uplink is `sparse_share_pct`. `sparse_shared_plain_p99_ms` is the same value
//!   without `queue.flows`.
//! - `snapshot_worst_turn_us`: a worker with 4,096 ports gets snapshots that each change one port's
//!   weights ([`crate::turns`]). The value is its longest turn with such a snapshot. In the live
//!   form, a thread of the lab runs the worker.
//! - `inbound_share_error_pct` and `inbound_used_pct_min` are about frames that arrive through the
//!   uplink ([`super::inbound_shares`]).
//!
//! The live run is in `crate::live::shared_link`.
//!
//! # Departures
//!
//! The senders of bulk TCP do not react to marks and losses, so their queues are longer than those
//! of real TCP.

use penstock_dataplane::queue::{Order, Pacing, QueueTerms, ShapeTerms, ShaperKind};
use penstock_qos::shaper::Smoothing;
use penstock_units::{BitsPerSecond, Nanos};

use super::uplink_bed::{
    Bed, CORE, COSTS, Frames, Pace, QUEUE_BYTES, Traffic, float, terms, terms_with_flows,
};
use super::{inbound_shares, snapshot_turns};
use crate::evidence::stats::{distribution, ms};
use crate::evidence::{
    Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record, percentile, points,
};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "uplink-shares",
    source: "FS-VDE §4.1, §6",
    about: "an uplink is divided by the wire's time, full, without loss, and quick for a ping",
    sim: Some(sim),
    live: Some(live::uplink_shares),
    picture,
};

const LINK: BitsPerSecond = BitsPerSecond(100_000_000);
const MS: Nanos = Nanos::from_millis(1);
/// Step of runs in which a VM sends single frames at a fixed rate.
const FINE: Nanos = Nanos::from_micros(50);

/// Weights of the tenants in `wire_share_error_pct`.
const WEIGHTS: [u64; 4] = [3, 1, 1, 7];
/// Length of each run, and the least length of a shortened run. In 3 s, the tenant with the
/// smallest rate sends 45 large segments.
const SHARES: (Nanos, Nanos) = (Nanos::from_secs(6), Nanos::from_secs(3));

/// Rates of the links in `paced_utilisation_pct_min`, in bits per second.
const RATES: [u64; 4] = [10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];
/// Bytes on the wire in each run of `paced_utilisation_pct_min`, and the least bytes of a shortened
/// run. They are 360 and 90 large segments.
const BYTES: (u64, u64) = (25_000_000, 6_250_000);
/// Bytes on the wire in a step of `paced_utilisation_pct_min`. They are fewer than a ring of the
/// shortest frames has.
const STEP_BYTES: u64 = 12_500;

const OUTPUTS: usize = 8;
/// Rate of each output in `hold_lost_frames`.
const OUTPUT_RATE: BitsPerSecond = BitsPerSecond(50_000_000);
/// Rate of each VM's shaper in `hold_lost_frames`, which is more than the VM's part of an output.
const SHAPED_RATE: BitsPerSecond = BitsPerSecond(30_000_000);
/// Bytes of each VM that may wait at an output in the runs of `hold_lost_frames` in which every VM
/// is held back.
const TIGHT_BYTES: u64 = 128 << 10;
const HOLD: (Nanos, Nanos) = (Nanos::from_millis(500), Nanos::from_millis(100));

const OTHER: (Nanos, Nanos) = (Nanos::from_secs(2), Nanos::from_secs(1));
/// Gap between frames to the neighbour: 0.48 Gbit/s of 1,514-byte frames.
const NEIGHBOUR_GAP: Nanos = Nanos::from_micros(25);
/// Window of bulk TCP that presses an uplink: the largest receive window of Linux by default
/// (`tcp_rmem`).
const PRESSING: u64 = 6 << 20;

const SPARSE: (Nanos, Nanos) = (Nanos::from_secs(4), Nanos::from_secs(1));
const PING_GAP: Nanos = Nanos::from_millis(5);
/// Length of a ping in bytes without FCS: an ICMP echo of 56 bytes.
const PING: usize = 98;
/// Window of the bulk TCP beside a ping.
const BULK: u64 = 1 << 20;

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("core_hz", CORE.hz());
    outcome.note("cost_factor", COSTS.factor);
    ctx.progress(0.0, "shares of the wire");
    shares(ctx, &mut outcome)?;
    ctx.progress(0.4, "utilisation");
    utilisation(ctx, &mut outcome)?;
    ctx.progress(0.7, "back-pressure");
    hold(ctx, &mut outcome)?;
    ctx.progress(0.8, "another output");
    other_output(ctx, &mut outcome)?;
    ctx.progress(0.85, "a ping");
    sparse(ctx, &mut outcome)?;
    ctx.progress(0.9, "what arrives");
    inbound_shares::claims(ctx, &mut outcome)?;
    ctx.progress(0.95, "snapshots");
    snapshot_turns::sim(ctx, &mut outcome)?;
    Ok(outcome)
}

/// Returns the length of a phase in this run.
fn length(ctx: &Context<'_>, (full, least): (Nanos, Nanos)) -> Nanos {
    ctx.scaled(full).max(least)
}

fn greedy(frames: Frames, flows: u16) -> Traffic {
    Traffic { frames, flows, pace: Pace::Greedy }
}

fn large(pace: Pace) -> Traffic {
    Traffic { frames: Frames::Segments { ecn: true }, flows: 1, pace }
}

fn shares(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut worst = 0.0_f64;
    for turn in 0..WEIGHTS.len() {
        let rates = tenant_rates(ctx, turn, true)?;
        worst = worst.max(share_error(&rates));
        let all: f64 = rates.iter().sum();
        let shares = rates.iter().map(|rate| 100.0 * rate / all);
        let name = format!("shares, run {}", turn + 1);
        outcome.series(&name, "% of the wire", (0_u32..).map(f64::from).zip(shares));
    }
    let no_ecn = share_error(&tenant_rates(ctx, 0, false)?);
    let what = "largest deviation of a tenant's rate on the wire from its rate by weight";
    outcome.claim(Claim::new("wire_share_error_pct", what, "%").at_most(0.2).measured(worst));
    let what = "the same if TCP supports no ECN and does not slow down";
    outcome.claim(Claim::new("wire_share_error_pct_no_ecn", what, "%").measured(no_ecn));
    Ok(())
}

/// Returns the rate of each tenant on the wire, in bits per second. The kinds of traffic begin with
/// the tenant number `turn`.
fn tenant_rates(ctx: &Context<'_>, turn: usize, ecn: bool) -> anyhow::Result<Vec<f64>> {
    let mut kinds = [
        greedy(Frames::Segments { ecn }, 1),
        greedy(Frames::Of(60), 1),
        greedy(Frames::Segments { ecn }, 32),
        greedy(Frames::Of(60), 32),
    ];
    kinds.rotate_right(turn);
    let mut bed = Bed::new(ctx.seed);
    let up = bed.add_output(Some(terms(Order::FairShare, Pacing::Link(LINK))))?;
    for ((tenant, weight), traffic) in (0..).zip(WEIGHTS).zip(kinds) {
        let vm = bed.add_vm((tenant, weight), None)?;
        bed.send(vm, &[up], traffic);
    }
    bed.warm_up(MS, Nanos::from_millis(400));
    Ok(bed.rates(MS, length(ctx, SHARES)))
}

/// Returns the largest deviation of a tenant's rate from its rate by weight, in per cent of the
/// latter.
fn share_error(rates: &[f64]) -> f64 {
    let all: f64 = rates.iter().sum();
    let weights = float(WEIGHTS.iter().sum());
    let error = |(rate, weight): (&f64, u64)| {
        let due = all * float(weight) / weights;
        100.0 * (rate / due - 1.0).abs()
    };
    rates.iter().zip(WEIGHTS).map(error).fold(0.0, f64::max)
}

/// Mixes of frames, each with its name and the frames of one or more VMs.
const MIXES: [(&str, &[Frames]); 4] = [
    ("64 B", &[Frames::Of(60)]),
    ("1,514 B", &[Frames::Of(1_514)]),
    ("64 KiB segments", &[Frames::Segments { ecn: true }]),
    ("mixed", &[Frames::Of(60), Frames::Of(1_514), Frames::Segments { ecn: true }, Frames::Mixed]),
];

fn utilisation(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut least = f64::INFINITY;
    for (name, mix) in MIXES {
        let mut points = Vec::new();
        for rate in RATES {
            let used = 100.0 * link_rate(ctx, mix, rate)? / float(rate);
            least = least.min(used);
            points.push((float(rate) / 1e6, used));
        }
        outcome.series(&format!("utilisation, {name}"), "% of the link", points);
    }
    let what = "lowest rate on the wire of a backlogged link, in per cent of the link's rate";
    let claim = Claim::new("paced_utilisation_pct_min", what, "%");
    outcome.claim(claim.at_least(99.5).measured(least));
    Ok(())
}

/// Returns the rate on the wire of a backlogged link of `rate` bits per second.
fn link_rate(ctx: &Context<'_>, mix: &[Frames], rate: u64) -> anyhow::Result<f64> {
    let time = |bytes: u64| Nanos(bytes * 8_000_000_000 / rate);
    let mut bed = Bed::new(ctx.seed);
    let pacing = Pacing::Link(BitsPerSecond(rate));
    let up = bed.add_output(Some(terms(Order::FairShare, pacing)))?;
    for (tenant, frames) in (0..).zip(mix) {
        let vm = bed.add_vm((tenant, 1), None)?;
        bed.send(vm, &[up], greedy(*frames, 4));
    }
    let step = time(STEP_BYTES);
    bed.warm_up(step, time(BYTES.1 / 2));
    let rates = bed.rates(step, length(ctx, (time(BYTES.0), time(BYTES.1))));
    Ok(rates.iter().sum())
}

/// Shapers of a run of `hold_lost_frames`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shapers {
    None,
    Outputs,
    Vms,
}

fn hold(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let (mut lost, mut held) = (0, u64::MAX);
    for (shapers, name) in [
        (Shapers::None, "no shaper"),
        (Shapers::Outputs, "outputs with shapers"),
        (Shapers::Vms, "VMs with shapers"),
    ] {
        let mut points = Vec::new();
        for outputs in 1..=OUTPUTS {
            let (with_room, _) = held_frames(ctx, outputs, shapers, QUEUE_BYTES)?;
            let (tight, least) = held_frames(ctx, outputs, shapers, TIGHT_BYTES)?;
            held = held.min(least);
            lost += with_room + tight;
            points.push((float(outputs as u64), float(with_room + tight)));
        }
        outcome.series(&format!("lost, {name}"), "frames", points);
    }
    let what = "lost frames of VMs that press 1 to 8 outputs, with and without shapers";
    let claim = Claim::new("hold_lost_frames", what, "frames");
    outcome.claim(claim.at_most(0.0).measured(float(lost)));
    let what = "fewest times that a VM was held back in a run with a low limit";
    let claim = Claim::new("hold_held_back_min", what, "times");
    outcome.claim(claim.at_least(1.0).measured(float(held)));
    Ok(())
}

/// Lets three VMs press `outputs` outputs, at which `bytes` bytes of each VM may wait. Returns the
/// number of lost frames, and the fewest times that the switch held a VM back.
fn held_frames(
    ctx: &Context<'_>,
    outputs: usize,
    shapers: Shapers,
    bytes: u64,
) -> anyhow::Result<(u64, u64)> {
    let kind = ShaperKind::Smooth(Smoothing::DEFAULT);
    let pacing = match shapers {
        Shapers::Outputs => Pacing::Shaped(ShapeTerms { rate: OUTPUT_RATE, kind }),
        Shapers::None | Shapers::Vms => Pacing::Link(OUTPUT_RATE),
    };
    let mut bed = Bed::new(ctx.seed);
    let mut to = Vec::new();
    for _ in 0..outputs {
        let mut terms = terms(Order::FairShare, pacing);
        terms.bound.bytes = bytes;
        to.push(bed.add_output(Some(terms))?);
    }
    // All outputs together are slower than all VMs' shapers.
    let rate = BitsPerSecond(SHAPED_RATE.0 * outputs as u64);
    let shape = (shapers == Shapers::Vms).then_some(ShapeTerms { rate, kind });
    let mut vms = Vec::new();
    for tenant in 0..3 {
        let vm = bed.add_vm((tenant, u64::from(tenant) + 1), shape)?;
        bed.send(vm, &to, greedy(Frames::Mixed, 4));
        vms.push(vm);
    }
    bed.warm_up(MS, Nanos::from_millis(40));
    bed.run(MS, length(ctx, HOLD));
    let held = vms.iter().map(|vm| bed.held_back(*vm)).min().unwrap_or(0);
    Ok((bed.lost(), held))
}

fn other_output(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let kept = kept_pct(ctx, large(Pace::Window(PRESSING)))?;
    let what = "frames to a neighbour that arrive while the VM's bulk TCP presses its uplink";
    let claim = Claim::new("other_output_kept_pct", what, "%");
    outcome.claim(claim.at_least(99.0).measured(kept));
    let flood = kept_pct(ctx, large(Pace::Greedy))?;
    let what = "the same while the VM fills its ring with frames to the uplink";
    outcome.claim(Claim::new("other_output_kept_pct_flood", what, "%").measured(flood));
    let bars = [(0.0, kept), (1.0, flood)];
    outcome.series("kept", "% of the frames to a neighbour", bars);
    Ok(())
}

/// Returns the share of a VM's frames to a neighbour that arrive beside the VM's traffic `bulk` to
/// an uplink, in per cent.
fn kept_pct(ctx: &Context<'_>, bulk: Traffic) -> anyhow::Result<f64> {
    let mut bed = Bed::new(ctx.seed);
    let up = bed.add_output(Some(terms(Order::FairShare, Pacing::Link(LINK))))?;
    let neighbour = bed.add_output(None)?;
    let vm = bed.add_vm((0, 1), None)?;
    let pace = Pace::Every(NEIGHBOUR_GAP);
    let traffic = Traffic { frames: Frames::Of(1_514), flows: 1, pace };
    let stream = bed.send(vm, &[neighbour], traffic);
    bed.send(vm, &[up], bulk);
    bed.warm_up(FINE, Nanos::from_millis(400));
    let before = bed.count(stream);
    bed.run(FINE, length(ctx, OTHER));
    let after = bed.count(stream);
    Ok(100.0 * float(after.frames - before.frames) / float(after.made - before.made))
}

/// Weights of the VM that sends pings, and of another tenant.
const PING_WEIGHTS: (u64, u64) = (1, 3);

fn sparse(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let link = Pacing::Link(LINK);
    let codel = pings(ctx, terms(Order::FqCodel, link), false)?;
    let fifo = pings(ctx, terms(Order::Fifo, link), false)?;
    let p99 = percentile(&codel.waits, 99.0);
    let what = "p99 of a ping's way to the far side of an uplink, beside the VM's own bulk TCP";
    outcome.claim(Claim::new("sparse_p99_ms", what, "ms").at_most(3.0).measured(p99));
    let what = "the same with one queue for all frames";
    let p99 = percentile(&fifo.waits, 99.0);
    outcome.claim(Claim::new("sparse_fifo_p99_ms", what, "ms").measured(p99));
    let what = "rate of the bulk TCP beside the pings";
    let bulk = codel.bulk.min(fifo.bulk);
    outcome.claim(Claim::new("sparse_bulk_mbps", what, "Mbit/s").measured(bulk));
    outcome.series("pings, fq-codel", "% of the pings", distribution(&codel.waits));
    outcome.series("pings, fifo", "% of the pings", distribution(&fifo.waits));
    sparse_shared(ctx, outcome)
}

fn sparse_shared(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let link = Pacing::Link(LINK);
    let flows = pings(ctx, terms_with_flows(link), true)?;
    let plain = pings(ctx, terms(Order::FairShare, link), true)?;
    let what = "p99 of a ping's way to the far side of a shared uplink with flow queues of VMs";
    let claim = Claim::new("sparse_shared_p99_ms", what, "ms").at_most(3.0);
    outcome.claim(claim.measured(percentile(&flows.waits, 99.0)));
    let what = "the same without flow queues";
    let claim = Claim::new("sparse_shared_plain_p99_ms", what, "ms");
    outcome.claim(claim.measured(percentile(&plain.waits, 99.0)));
    let what = "part of the shared uplink that the VM with the pings gets, 25 % by weight";
    let claim = Claim::new("sparse_share_pct", what, "%").within(24.8, 25.2);
    outcome.claim(claim.measured(flows.share));
    let unit = "% of the pings";
    outcome.series("pings, fair-share with flows", unit, distribution(&flows.waits));
    outcome.series("pings, fair-share", unit, distribution(&plain.waits));
    Ok(())
}

/// What a VM gets that sends pings and bulk TCP to an uplink.
#[derive(Debug)]
struct Pings {
    /// Times of the pings to the far side of the uplink, in ms.
    waits: Vec<f64>,
    /// Rate of the VM's bulk TCP on the wire, in Mbit/s.
    bulk: f64,
    /// Part of all frames on the wire that is the VM's, in per cent.
    share: f64,
}

/// Runs a VM with pings and bulk TCP to an uplink with a queue of the terms `terms`. If `beside` is
/// true, another tenant also sends bulk TCP.
fn pings(ctx: &Context<'_>, terms: QueueTerms, beside: bool) -> anyhow::Result<Pings> {
    let mut bed = Bed::new(ctx.seed);
    let up = bed.add_output(Some(terms))?;
    let vm = bed.add_vm((0, PING_WEIGHTS.0), None)?;
    let ping = Traffic { frames: Frames::Of(PING), flows: 1, pace: Pace::Every(PING_GAP) };
    let mut streams = vec![bed.send(vm, &[up], ping)];
    streams.push(bed.send(vm, &[up], large(Pace::Window(BULK))));
    if beside {
        let other = bed.add_vm((1, PING_WEIGHTS.1), None)?;
        streams.push(bed.send(other, &[up], large(Pace::Window(BULK))));
    }
    bed.warm_up(FINE, Nanos::from_millis(400));
    let wire =
        |bed: &Bed| -> Vec<u64> { streams.iter().map(|stream| bed.count(*stream).wire).collect() };
    let before = wire(&bed);
    let length = length(ctx, SPARSE);
    bed.run(FINE, length);
    let rate = |(after, before): (u64, u64)| float(after - before) * 8.0 / (ms(length) * 1e3);
    let rates: Vec<f64> = wire(&bed).into_iter().zip(before).map(rate).collect();
    let (of_vm, all): (f64, f64) = (rates[..2].iter().sum(), rates.iter().sum());
    let waits = bed.waits(streams[0]).to_vec();
    Ok(Pings { waits, bulk: rates[1], share: 100.0 * of_vm / all })
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::uplink_shares_picture(record);
    }
    let tenants = WEIGHTS.map(|weight| format!("weight {weight}"));
    let axis = Axis::named("tenant", tenants);
    let panel = Panel::new("(a) shares of the wire", axis, Axis::linear("% of the wire"));
    let runs = record.series_of("shares, ");
    let panel = runs.fold(panel, |panel, (run, series)| panel.bars(run, points(series)));
    let weights = float(WEIGHTS.iter().sum());
    let due = WEIGHTS.map(|weight| 100.0 * float(weight) / weights);
    let shares = panel.published_points("by weight", (0_u32..).map(f64::from).zip(due));

    let y = Axis::linear("used, % of the link").from(99.0).to(100.5);
    let panel = Panel::new("(b) a backlogged link", Axis::log("link, Mbit/s"), y);
    let mixes = record.series_of("utilisation, ");
    let used = mixes.fold(panel, |panel, (mix, series)| panel.series(mix, series));

    let axis = Axis::named("traffic to the uplink", ["bulk TCP", "full ring"]);
    let y = Axis::linear("% of the frames that arrive").from(0.0).to(100.0);
    let kept = record.series("kept").map(points).into_iter().flatten();
    let kept = Panel::new("(c) frames to a neighbour", axis, y).bars("beside the uplink", kept);

    let y = Axis::linear("% of the pings");
    let panel = Panel::new("(d) pings beside bulk TCP", Axis::log("time to the far side, ms"), y);
    let orders = record.series_of("pings, ");
    let pings = orders.fold(panel, |panel, (order, series)| panel.line(order, points(series)));

    Picture::new("Uplink: shares, utilisation, other outputs, pings, snapshots and arrivals")
        .panel(shares)
        .panel(used)
        .panel(kept)
        .panel(pings)
        .panel(snapshot_turns::panel(record, "(e)"))
        .panel(inbound_shares::panel(record, "(f)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_as_listed;

    #[test]
    fn the_claims_hold_for_any_seed() {
        assert_as_listed(&EXPERIMENT, 0.1, &[1, 20]);
    }

    #[test]
    fn a_deviation_is_relative_to_the_rate_by_weight() {
        assert!(share_error(&[3.0, 1.0, 1.0, 7.0]) < 1e-9);
        let error = share_error(&[3.0, 0.9, 1.1, 7.0]);
        assert!((error - 10.0).abs() < 1e-9, "{error}");
    }
}
