//! Contracts of all kinds of traffic: how close the delivered rate is to the purchased rate.
//!
//! # Problem
//!
//! A contract names bits or packets, and the switch guarantees cycles. The cost of a frame depends
//! on the frame's way: a frame to an uplink costs several times as much as a frame to a VM, and a
//! large segment (TSO) costs less than the frames that it becomes.
//!
//! # Source
//!
//! C2QoS §III-D sells cycles, and §VI-B (Fig. 11) shows deviations of -2 to 4 % on one I/O core.
//! All frames of the paper go to one uplink.
//!
//! # Approach
//!
//! The testbed is that of the paper ([`super::paper_testbed`]), with a link of 100 Gbit/s. The VMs
//! bought 90 % of the core, with strict entitlements, and send at their maximum. The seller's cost
//! of each frame size, of the number of VMs and of a frame to the uplink has its own error of up to
//! 10 %. The measurement begins after the learner's warm-up.
//!
//! - `vm`: 1 to 16 VMs send to another VM. The VMs' frame sizes are single sizes and IMIX.
//! - `uplink`: 4 or 16 VMs send all or half of their frames to the uplink. The costs of a frame to
//!   the uplink are assumed ([`UPLINK`]): an AF_XDP socket costs a frame about a microsecond.
//! - `tso`: 1 or 4 VMs send large segments of 44 frames, after 10 s of learning.
//! - `min_pps`: a VM sends the frames per second that it bought, beside a VM that floods the core
//!   with long frames, with short frames, with many flows, or with kicks: short frames to VMs
//!   that want interrupts.
//!
//! - `verify`: contracts are sold without learning, as by `penstock calibrate --verify`. The costs
//!   of the model are true, or one of them is 15 % too high or too low.
//!
//! - `false_remedy`: in made situations, `penstock explain` names the true cause ([`remedies`]).
//!
//! [`remedies`]: super::remedies
//!
use penstock_qos::cost_model::{Flows as ModelFlows, Rate, SizeMix, Verified};
use penstock_sim::StageCost;
use penstock_sim::testbed::{Link, Traffic, VmId, VmReading};
use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond};

use super::paper_platform::{self as paper, Flows, Placement};
use super::paper_testbed::{
    self as testbed, Errors, Host, LINK, Policy, Scenario, Sold, WARM_UP, delta_pct, mpps, worst,
};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "contracts",
    source: "C2QoS §III-D, §VI-B",
    about: "delivered rate over the purchased rate, by the way of the frames",
    sim: Some(sim),
    live: Some(live::contracts),
    picture,
};

/// Time over which rates are measured.
const LENGTH: Nanos = Nanos::from_secs(2);
/// Time of learning before VMs with large segments are measured.
const LEARNED: Nanos = Nanos::from_secs(10);
/// Share of the core's cycles that is sold.
const SOLD: f64 = 0.9;
/// Assumed cycles that a frame to the uplink costs more than a frame to a VM.
const UPLINK: StageCost = StageCost { batch: 0.0, frame: 700.0, byte: 0.3 };
/// Frames of a large segment, and the size of each frame with FCS.
const SEGMENTS: (u16, u16) = (44, 1506);
/// Share of the core that a contract of a verification is worth.
const VERIFIED: f64 = 0.3;
/// Start and length of the measurement of a verified contract.
const VERIFIED_FOR: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_millis(400));
/// Error of the one wrong cost of a model that a verification must find.
const SPOILED: f64 = 0.15;
const VMS: [usize; 5] = [1, 2, 4, 8, 16];
/// Frame sizes of the VMs in turn; `None` means IMIX.
const SIZES: [Option<u16>; 5] = [Some(64), None, Some(512), Some(1024), Some(1500)];

/// Where the frames of all VMs go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// To the next VM.
    Vm,
    /// To the uplink, in thousandths of the frames; the others go to the next VM.
    Uplink(u16),
}

impl Way {
    const fn out(self) -> u16 {
        match self {
            Self::Vm => 0,
            Self::Uplink(permille) => permille,
        }
    }
}

fn sizes(vm: usize) -> anyhow::Result<SizeMix> {
    Ok(match SIZES[vm % SIZES.len()] {
        Some(size) => SizeMix::fixed(size)?,
        None => SizeMix::imix(),
    })
}

/// Returns the purchase of a share of a core, by the true cost of the VM's frames.
fn purchase(sizes: SizeMix, share: f64, factor: f64, way: Way) -> anyhow::Result<Sold> {
    let out = f64::from(way.out()) / 1_000.0;
    let cost = |size: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
        let frame = paper::cost(size as u32, Flows::Single).total();
        frame + out * (UPLINK.frame + UPLINK.byte * size)
    };
    let mean: f64 = sizes.parts().map(|(size, part)| cost(size) * part).sum();
    let frames = share * testbed::float(paper::HZ) / (mean * factor);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 100 M")]
    let rate = Rate::Packets(PacketsPerSecond(frames as u64));
    Ok(testbed::sold(rate, sizes)?.to_uplink(way.out()))
}

const fn link() -> Link {
    Link { rate: BitsPerSecond(100_000_000_000), cost: UPLINK, ..LINK }
}

/// Returns the frames on the wire of a VM that the switch delivered.
fn delivered(vm: &VmReading) -> u64 {
    vm.port.on_wire()[0] - vm.port.dropped() - vm.carried.dropped
}

/// Measures each VM's frames per second over `length`, beginning at `from`.
fn rates(ctx: &Context<'_>, host: &mut Host, (from, length): (Nanos, Nanos)) -> Vec<f64> {
    host.run_until(from);
    let before: Vec<u64> = host.read().iter().map(delivered).collect();
    let length = ctx.scaled(length);
    host.run_until(from + length);
    let secs = testbed::float(length.0) / 1e9;
    let after = host.read();
    after
        .iter()
        .zip(before)
        .map(|(vm, before)| testbed::float(delivered(vm) - before) / secs)
        .collect()
}

fn next(vms: &[VmId], vm: usize) -> VmId {
    vms[(vm + 1) % vms.len()]
}

/// Returns the deviation of each VM's rate from its purchase, in per cent. All VMs send their
/// frames the same way. If only one VM sends, a second VM that bought almost nothing receives.
fn deviations(ctx: &Context<'_>, count: usize, way: Way) -> anyhow::Result<Vec<f64>> {
    let vms = count.max(2);
    let factor = paper::vms_factor(u32::try_from(vms)?, Placement::OneNode);
    let share = SOLD / testbed::float(count as u64);
    let mut sold = Vec::new();
    for vm in 0..vms {
        let share = if vm < count { share } else { 0.001 };
        sold.push(purchase(sizes(vm)?, share, factor, way)?);
    }
    let scenario = Scenario::new(ctx.seed, &sold, Policy::StrictHbs);
    let mut host = Scenario { link: link(), ..scenario }.build()?;
    for (vm, id) in host.vms.clone().into_iter().enumerate().take(count) {
        let sizes: Vec<(usize, u32)> =
            sold[vm].contract.sizes.entries().iter().map(|(s, w)| (usize::from(*s), *w)).collect();
        let to = next(&host.vms, vm);
        let traffic = Traffic::greedy(64).with_sizes(&sizes).to_vm(to, 1_000 - way.out());
        host.bed.send(id, Nanos::ZERO, traffic);
    }
    let rates = rates(ctx, &mut host, (WARM_UP, LENGTH));
    Ok(sold.iter().zip(rates).take(count).map(|(vm, rate)| delta_pct(vm.frames(), rate)).collect())
}

/// Returns the deviation of each VM's rate from its purchase, in per cent, if the VMs send large
/// segments to each other.
fn segments(ctx: &Context<'_>, count: usize) -> anyhow::Result<Vec<f64>> {
    let vms = count.max(2);
    let factor = paper::vms_factor(u32::try_from(vms)?, Placement::OneNode);
    let (frames, size) = SEGMENTS;
    let mut sold = Vec::new();
    for vm in 0..vms {
        let share = if vm < count { SOLD / testbed::float(count as u64) } else { 0.001 };
        sold.push(purchase(SizeMix::fixed(size)?, share, factor, Way::Vm)?);
    }
    let scenario = Scenario::new(ctx.seed, &sold, Policy::StrictHbs);
    let mut host = Scenario { link: link(), ..scenario }.build()?;
    for (vm, id) in host.vms.clone().into_iter().enumerate().take(count) {
        let traffic = Traffic::greedy(size.into()).in_segments(frames);
        host.bed.send(id, Nanos::ZERO, traffic.to_vm(next(&host.vms, vm), 1_000));
    }
    let rates = rates(ctx, &mut host, (LEARNED, LENGTH));
    Ok(sold.iter().zip(rates).take(count).map(|(vm, rate)| delta_pct(vm.frames(), rate)).collect())
}

/// Frames of a VM that floods the core. [`KICKS`] also floods with kicks.
const FLOODS: [(&str, usize, bool); 4] =
    [("bits", 1500, false), ("packets", 64, false), ("flows", 64, true), (KICKS, 64, false)];
const KICKS: &str = "kicks";
/// Frames per second of each VM that floods with kicks.
const KICKS_PER_SECOND: f64 = 300_000.0;

/// Returns the part of its purchased frames that a VM delivers beside three VMs that flood, in per
/// cent.
fn kept(ctx: &Context<'_>, (flood, size, many_flows): (&str, usize, bool)) -> anyhow::Result<f64> {
    let bought = 0.3;
    let sold = [mpps(bought, 64)?, mpps(0.01, 64)?, mpps(0.01, 64)?, mpps(0.01, 64)?];
    let mut sold = sold.map(|sold| sold.to_uplink(0));
    // Each VM sends to the next one, and the last one to the victim.
    sold[2].interrupts = flood == KICKS;
    sold[3].interrupts = flood == KICKS;
    let scenario = Scenario::new(ctx.seed, &sold, Policy::MinMaxHbs);
    let mut host = Scenario { link: link(), ..scenario }.build()?;
    for (vm, id) in host.vms.clone().into_iter().enumerate() {
        let traffic = match vm {
            0 => Traffic::paced(64, bought * 1e6),
            _ if flood == KICKS => Traffic::paced(size, KICKS_PER_SECOND),
            _ if many_flows => Traffic::greedy(size).with_many_flows(),
            _ => Traffic::greedy(size),
        };
        host.bed.send(id, Nanos::ZERO, traffic.to_vm(next(&host.vms, vm), 1_000));
    }
    let rates = rates(ctx, &mut host, (WARM_UP, LENGTH));
    Ok(100.0 * rates[0] / sold[0].frames())
}

/// Sells a contract by a model without learning, as `penstock calibrate --verify` does, and returns
/// what it got. `wrong` multiplies the model's cost of the contract's frames.
fn verified(
    ctx: &Context<'_>,
    size: u32,
    flows: ModelFlows,
    wrong: Option<f64>,
) -> anyhow::Result<Verified> {
    let many = flows == ModelFlows::Multiple;
    let of = if many { Flows::Multiple } else { Flows::Single };
    let factor = paper::vms_factor(2, Placement::OneNode);
    let bought = VERIFIED * testbed::float(paper::HZ) / (paper::cost(size, of).total() * factor);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 100 M")]
    let rate = Rate::Packets(PacketsPerSecond(bought as u64));
    let mut vm = testbed::sold(rate, SizeMix::fixed(u16::try_from(size)?)?)?.to_uplink(0);
    vm.contract.flows = flows;
    let sold = [vm, mpps(0.001, 64)?.to_uplink(0)];
    let scenario = Scenario::new(ctx.seed, &sold, Policy::StrictHbs);
    let errors = Errors::One(wrong.map(|factor| (size, flows, factor)));
    let mut host = Scenario { link: link(), learns: false, errors, ..scenario }.build()?;
    let traffic = Traffic::greedy(usize::try_from(size)?);
    let traffic = if many { traffic.with_many_flows() } else { traffic };
    let (from, to) = (host.vms[0], host.vms[1]);
    host.bed.send(from, Nanos::ZERO, traffic.to_vm(to, 1_000));
    let delivered = rates(ctx, &mut host, VERIFIED_FOR)[0];
    let (name, band) = (format!("{size} bytes, {flows} flows"), Verified::band(0.0));
    Ok(Verified { name, bought: sold[0].frames(), delivered, band })
}

/// Returns the part of models about which the verification says the truth, in per cent. One cost of
/// each model is too high or too low, or all are true.
fn verify_catches(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<f64> {
    let (mut right, mut all) = (0_u32, 0_u32);
    for wrong in [None, Some(1.0 - SPOILED), Some(1.0 + SPOILED)] {
        let mut points = Vec::new();
        for flows in ModelFlows::ALL {
            for size in paper::SIZES {
                let case = verified(ctx, size, flows, wrong)?;
                all += 1;
                right += u32::from(case.holds() == wrong.is_none());
                points.push((f64::from(all), 100.0 * case.deviation()));
            }
        }
        let name = wrong.map_or_else(|| "true".to_owned(), |of| format!("{:.0} %", 100.0 * of));
        outcome.series(&format!("verified, costs of {name}"), "%", points);
    }
    Ok(100.0 * f64::from(right) / f64::from(all))
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    outcome.note("uplink_cycles_per_frame", UPLINK.frame);
    outcome.note("uplink_cycles_per_byte", UPLINK.byte);
    let uplink = [(4, 1_000), (16, 1_000), (4, 500), (16, 500)];
    let vm = VMS.map(|count| (format!("{count} VMs"), count, Way::Vm));
    let uplink = uplink.map(|(count, permille)| {
        (format!("{count} VMs, {} %", permille / 10), count, Way::Uplink(permille))
    });
    for (at, id, what, cases) in [
        (0.0, "vm", "VM to VM", &vm[..]),
        (0.3, "uplink", "to an uplink, all and half of the frames", &uplink[..]),
    ] {
        let mut all = Vec::new();
        for (case, count, way) in cases {
            ctx.progress(at, format_args!("{id}: {case}"));
            let here = deviations(ctx, *count, *way)?;
            let points: Vec<_> = (0_u32..).map(f64::from).zip(here.iter().copied()).collect();
            outcome.series(&format!("{id}, {case}"), "%", points);
            all.extend(here);
        }
        deviation(&mut outcome, id, what, &all);
    }
    let mut all = Vec::new();
    for count in [1, 4] {
        ctx.progress(0.7, format_args!("large segments, {count} VMs"));
        all.extend(segments(ctx, count)?);
    }
    deviation(&mut outcome, "tso", "large segments (TSO), after 10 s of learning", &all);
    let mut least = f64::INFINITY;
    for flood in FLOODS {
        let name = flood.0;
        ctx.progress(0.9, format_args!("beside a flood of {name}"));
        let kept = kept(ctx, flood)?;
        outcome.note(&format!("min_pps_kept_pct_{name}"), kept);
        least = least.min(kept);
    }
    let what = "part of `min_pps` that a VM keeps beside floods";
    let claim = Claim::new("min_pps_kept_pct", what, "%");
    outcome.claim(claim.at_least(99.5).measured(least));
    ctx.progress(0.95, "verification of models with one wrong cost");
    let catches = verify_catches(ctx, &mut outcome)?;
    let what =
        "part of models, true or with one cost wrong by 15 %, that a verification judges right";
    outcome.claim(Claim::new("verify_catches_pct", what, "%").at_least(100.0).measured(catches));
    ctx.progress(0.97, "made situations");
    let wrong = super::remedies::wrong(ctx, &mut outcome)?;
    outcome.claim(live::false_remedy(wrong));
    Ok(outcome)
}

fn deviation(outcome: &mut Outcome, id: &str, what: &str, all: &[f64]) {
    let what = format!("largest deviation of the delivered rate from the purchase: {what}");
    let claim = Claim::new(&format!("contract_deviation_pct_{id}"), &what, "%");
    outcome.claim(claim.within(-1.0, 1.0).measured(worst(all.iter().copied())));
}

fn picture(record: &Record) -> Picture {
    let panel = |id: &str, title: &str| {
        let mut panel =
            Panel::new(title, Axis::linear("VM"), Axis::linear("deviation, %").from(-2.0).to(2.0));
        for (name, series) in record.series_of(&format!("{id}, ")) {
            panel = panel.points(name, series.x.iter().copied().zip(series.y.iter().copied()));
        }
        panel
    };
    Picture::new("Contracts: delivered rate over the purchased rate")
        .panel(panel("vm", "VM to VM"))
        .panel(panel("uplink", "to an uplink"))
}
