//! C2QoS, Fig. 11: deviation of VMs' rates from their purchases, and the effect of classes.
//!
//! # Problem
//!
//! A cost model converts purchases to cycles. If the cost model is wrong, VMs get more or less
//! bandwidth than they bought.
//!
//! # Source
//!
//! C2QoS §VI-B:
//!
//! - In Fig. 11 (a), each VM sends a mix of frame sizes around the frame size that it declared. The
//!   VMs' rates deviate from their purchases by -2 to 3 %.
//! - (b) There are 1 to 16 VMs on all NUMA nodes. The VMs' rates deviate by -2 to 4 % on one I/O
//!   core, and by -3 to 6 % on two I/O cores.
//! - (c) The C2QoS paper shows the latency of 16 VMs in 4 classes while all VMs send.
//!
//! # Approach: deviations
//!
//! In panels (a) and (b) of Fig. 11 all VMs send at their maximum. The VMs' entitlements are
//! strict, so a VM's throughput shows the rate that its entitlement pays for.
//!
//! In panel (a) of Fig. 11, four VMs declared 512 B frames. The first VM sends 512 B frames. The
//! other VMs send pairs of frame sizes: 448 and 576, 256 and 768, 64 and 960 B. In panel (b) of
//! Fig. 11, the VMs have different frame sizes, from 64 to 1024 B. In panels (a) and (b) of Fig.
//! 11, the VMs together bought 90 % of the cores.
//!
//! Panels (a) and (b) of Fig. 11 are also run with the paper's algorithms as printed
//! (`_as_printed`): refills by Algorithm 1, and demotion.
//!
//! "Before learning" means the first 100 ms, with the initial entitlements of the model. Each
//! number in the initial cost model is up to 10 % wrong. The term "after learning" means the time
//! [`LENGTH`] that follows the warm-up. Each claim is about the deviation furthest from 0 among all
//! VMs and deployments.
//!
//! # Approach: latency
//!
//! In panel (c) of Fig. 11, 16 VMs, four in each of the classes 1 to 4, bought 90 % of the core in
//! 512 B frames. Each VM sends 92 to 97 % of its purchase in bursts of one batch. The time between
//! two bursts differs by VM. Small probe frames enter the rings at random times. The figure
//! measures the time of the probe frames from the ring to the link. Probe frames count as part of
//! the VM's traffic. Before the measurement, while the cost model learns, all VMs send at their
//! maximum. If a VM sends more than it bought, its frames wait for cycles in a full ring, whatever
//! the VM's class. The figure does not show the latency of a VM that sends more than it bought.
//!
//! In panel (d) of Fig. 11, the VMs send the load of panel (c) in bursts that are nearly as large
//! as a VM's cycle bucket permits. Among all loads within a VM's purchase, the bursts of panel (d)
//! of Fig. 11 delay the other VMs most.
//!
//! `classes_over_bound` compares the 99.9th percentiles of panels (c) and (d) of Fig. 11 with the
//! latency bound that `penstock explain` computes. The figure and `penstock explain` use the same
//! function, with the seller's cost model. Only panel (d) of Fig. 11 shows how tight the latency
//! bound is. In panel (c) of Fig. 11, the latency bound allows for bursts six times as large as the
//! bursts that the VMs send. The measured latency includes the time on the link, but the computed
//! bound does not include it. The uplink has no bucket, so the uplink may use any number of cycles.
//! The uplink is in the last class, because an uplink in a higher class could delay the lower
//! classes without limit.

use penstock_sim::testbed::{Pace, Traffic};
use penstock_units::Nanos;

use super::paper_platform::{self as paper, Flows, Placement};
use super::paper_testbed::{
    self as testbed, Host, Policy, Scenario, Sold, WARM_UP, delta_pct, mpps, worst,
};
use crate::evidence::stats::{distribution, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig11",
    source: "C2QoS §VI-B, Fig. 11",
    about: "deviation of rates from purchases, and latency by class",
    sim: Some(sim),
    live: Some(live::fig11),
    picture,
};

/// Time over which the VMs' rates after learning are measured.
const LENGTH: Nanos = Nanos::from_secs(2);
/// Share of the cores' cycles that is sold to VMs.
const SOLD: f64 = 0.9;
const SIZES: [u16; 5] = [64, 128, 256, 512, 1024];
const VMS: [usize; 5] = [1, 2, 4, 8, 16];
const CLASSES: u8 = 4;

/// Returns the frames per second that the share `share` of a core pays for.
fn worth(share: f64, size: u16, factor: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a frequency")]
    let hz = paper::HZ as f64;
    share * hz / (paper::cost(size.into(), Flows::Single).total() * factor)
}

/// Returns two deviations of each VM's rate in percent: with the model's initial entitlements, and
/// after learning.
fn deviations(ctx: &Context<'_>, host: &mut Host, sold: &[Sold]) -> Vec<(f64, f64)> {
    let frames =
        |host: &Host| -> Vec<u64> { host.read().iter().map(|vm| vm.carried.frames).collect() };
    let of = |from: &[u64], to: &[u64], secs: f64| -> Vec<f64> {
        let passed = from.iter().zip(to).map(|(from, to)| testbed::float(to - from) / secs);
        sold.iter().zip(passed).map(|(vm, passed)| delta_pct(vm.frames(), passed)).collect()
    };
    host.run_until(Nanos::from_millis(20));
    let start = frames(host);
    host.run_until(Nanos::from_millis(100));
    let before = of(&start, &frames(host), 0.08);
    host.run_until(WARM_UP);
    let start = frames(host);
    let length = ctx.scaled(LENGTH);
    host.run_until(WARM_UP + length);
    let after = of(&start, &frames(host), testbed::float(length.0) / 1e9);
    before.into_iter().zip(after).collect()
}

/// Runs panel (a) of Fig. 11 and returns the deviations of each VM's rate in percent.
fn mixed(ctx: &Context<'_>, printed: bool) -> anyhow::Result<Vec<(f64, f64)>> {
    let factor = paper::vms_factor(4, Placement::OneNode);
    let sold: Vec<Sold> = (0..4)
        .map(|_| mpps(worth(SOLD / 4.0, 512, factor) / 1e6, 512))
        .collect::<Result<_, _>>()?;
    let scenario = Scenario { printed, ..Scenario::new(ctx.seed, &sold, Policy::StrictHbs) };
    let mut host = scenario.build()?;
    let mixes = [[512, 512], [448, 576], [256, 768], [64, 960]];
    for (vm, [small, large]) in host.vms.clone().into_iter().zip(mixes) {
        let traffic = Traffic::greedy(512).with_sizes(&[(small, 1), (large, 1)]);
        host.bed.send(vm, Nanos::ZERO, traffic);
    }
    Ok(deviations(ctx, &mut host, &sold))
}

/// Runs panel (b) of Fig. 11 and returns the deviations of each VM's rate in percent.
fn deployed(
    ctx: &Context<'_>,
    (vms, cores): (usize, u16),
    printed: bool,
) -> anyhow::Result<Vec<(f64, f64)>> {
    let count = u32::try_from(vms)?;
    let placement = Placement::SeveralNodes;
    let factor = paper::vms_factor(count, placement) * paper::cores_factor(cores.into());
    // VMs are assigned to the cores in turn. A core may have no VM.
    let on_core = count.div_ceil(cores.into());
    let sold = (0..vms).map(|vm| {
        let size = SIZES[vm % SIZES.len()];
        mpps(worth(SOLD / f64::from(on_core), size, factor) / 1e6, size)
    });
    let sold: Vec<Sold> = sold.collect::<Result<_, _>>()?;
    let scenario = Scenario::new(ctx.seed, &sold, Policy::StrictHbs);
    let scenario = Scenario { cores, placement, printed, ..scenario };
    let mut host = scenario.build()?;
    for (vm, number) in host.vms.clone().into_iter().zip(0..) {
        host.bed.send(vm, Nanos::ZERO, Traffic::greedy(SIZES[number % SIZES.len()].into()));
    }
    Ok(deviations(ctx, &mut host, &sold))
}

fn accuracy(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut groups: Vec<(&str, Vec<(f64, f64)>)> = vec![("mixed_sizes", mixed(ctx, false)?)];
    let places = |all: &[(f64, f64)]| -> Vec<(f64, f64)> {
        (0_u32..).map(f64::from).zip(all.iter().map(|d| d.1)).collect()
    };
    outcome.series("mixed sizes deviation", "%", places(&groups[0].1));
    for (name, cores) in [("1_core", 1), ("2_cores", 2)] {
        let mut all = Vec::new();
        let mut points = Vec::new();
        for (done, vms) in (0_u32..).zip(VMS) {
            ctx.progress(0.1 + 0.08 * f64::from(done), format_args!("{vms} VMs, {name}"));
            let here = deployed(ctx, (vms, cores), false)?;
            points.extend(here.iter().map(|d| (f64::from(done), d.1)));
            all.extend(here);
        }
        outcome.series(&format!("{name} deviation"), "%", points);
        groups.push((name, all));
    }
    let everything = || groups.iter().flat_map(|group| &group.1);
    let what = "largest deviation from a purchase, before learning";
    let claim = Claim::new("deviation_before_learning_pct", what, "%");
    outcome.claim(claim.measured(worst(everything().map(|d| d.0))));
    let what = "largest deviation from a purchase, after learning";
    let claim = Claim::new("deviation_pct", what, "%");
    outcome.claim(claim.within(-1.0, 1.0).measured(worst(everything().map(|d| d.1))));
    let mut printed = mixed(ctx, true)?;
    for cores in [1, 2] {
        for vms in VMS {
            printed.extend(deployed(ctx, (vms, cores), true)?);
        }
    }
    let what = "largest deviation, after learning, with the printed algorithms";
    let claim = Claim::new("deviation_pct_as_printed", what, "%");
    outcome.claim(claim.measured(worst(printed.iter().map(|d| d.1))));
    let published = [3.0, 4.0, 6.0];
    for ((name, all), published) in groups.iter().zip(published) {
        outcome.claim(
            Claim::new(
                &format!("deviation_pct_{name}"),
                "largest deviation in this group, after learning",
                "%",
            )
            .published(published)
            .within(-1.0, 1.0)
            .measured(worst(all.iter().map(|d| d.1))),
        );
    }
    Ok(())
}

/// Size of the bursts that VMs send while their latency is measured.
#[derive(Clone, Copy)]
enum Bursts {
    /// A burst has the frames of one batch, as in panel (c) of Fig. 11.
    OfABatch,
    /// Each burst of a VM is nearly as large as the VM's cycle bucket permits, as in panel (d) of
    /// Fig. 11.
    OfABucket,
}

/// Latencies and latency bounds of panel (c) or (d) of Fig. 11 by class, in microseconds.
struct Found {
    us: Vec<Vec<f64>>,
    bounds: Vec<f64>,
}

impl Found {
    fn p(&self, percent: f64) -> Vec<f64> {
        self.us.iter().map(|us| percentile(us, percent)).collect()
    }

    /// Returns the latency bound of each class, divided by the 99.9th percentile of its latencies.
    fn over(&self) -> Vec<f64> {
        self.bounds.iter().zip(self.p(99.9)).map(|(bound, p999)| bound / p999).collect()
    }
}

/// Probe frames per second of each VM.
const SAMPLES: u64 = 3_000;
/// Time at which VMs stop sending at their maximum: 500 ms before the warm-up ends.
const GREEDY_UNTIL: Nanos = Nanos(WARM_UP.0 - 500_000_000);
/// Size of a burst in panel (d) of Fig. 11, as a share of the burst that the bucket permits. The
/// burst is smaller than the bucket permits, because a batch may cost up to 5 % more than the mean.
const OF_BURST: f64 = 0.95;

fn latencies(ctx: &Context<'_>, bursts: Bursts) -> anyhow::Result<Found> {
    let vms = 4 * usize::from(CLASSES);
    let factor = paper::vms_factor(16, Placement::OneNode);
    let frames = worth(SOLD / 16.0, 512, factor);
    let sold = (0..vms).map(|vm| {
        let class = u8::try_from(vm / 4 + 1)?;
        Ok(mpps(frames / 1e6, 512)?.in_class(class))
    });
    let sold: Vec<Sold> = sold.collect::<anyhow::Result<_>>()?;
    let scenario = Scenario::new(ctx.seed, &sold, Policy::StrictHbs);
    let mut host = Scenario { uplink_class: 8, ..scenario }.build()?;
    for vm in host.vms.clone() {
        host.bed.send(vm, Nanos::ZERO, Traffic::greedy(512));
    }
    host.run_until(GREEDY_UNTIL);
    let end = WARM_UP + ctx.scaled(Nanos::from_secs(4));
    let cost = |size| paper::cost(size, Flows::Single).total() * factor;
    let samples = testbed::float(SAMPLES) * cost(64) / cost(512);
    for (number, vm) in (0_u32..).zip(host.vms.clone()) {
        let part = 0.92 + 0.05 * f64::from(number * 7 % 16) / 15.0;
        let burst = match bursts {
            Bursts::OfABatch => 32,
            Bursts::OfABucket => {
                let terms = host.terms(vm);
                let refill = testbed::REFILL.0 * (terms.entitlement.0 / 1_000) / 1_000_000;
                let cycles = testbed::float(terms.depth.0.saturating_sub(refill));
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "few")]
                let frames = (OF_BURST * cycles / cost(512)) as u64;
                frames.max(32)
            }
        };
        let pace = Pace::Bursts(frames * part - samples, burst);
        host.bed.send(vm, GREEDY_UNTIL, Traffic { pace, ..Traffic::greedy(512) });
        host.bed.sample(vm, (WARM_UP, end), SAMPLES);
    }
    host.run_until(end + Nanos::from_millis(20));
    let (mut all, mut bounds) = (Vec::new(), Vec::new());
    for class in 1..=CLASSES {
        let here = host.vms.iter().zip(&sold).filter(|(_, sold)| sold.class == class);
        let mut us = Vec::new();
        for (vm, _) in here {
            us.extend(host.bed.one_way(*vm).iter().map(|t| testbed::float(t.took.0) / 1e3));
        }
        all.push(us);
        bounds.push(testbed::float(host.bound(class)?.wait.0) / 1e3);
    }
    Ok(Found { us: all, bounds })
}

fn classes(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let found = latencies(ctx, Bursts::OfABatch)?;
    ctx.progress(0.95, "classes, bursts as large as buckets");
    let deep = latencies(ctx, Bursts::OfABucket)?;
    for (prefix, found) in [("", &found), ("deep ", &deep)] {
        let id = prefix.replace(' ', "_");
        for ((class, us), (p999, bound)) in
            (1..).zip(&found.us).zip(found.p(99.9).into_iter().zip(&found.bounds))
        {
            let class: u8 = class;
            outcome.series(&format!("{prefix}class {class}"), "share", distribution(us));
            let name = format!("{id}class{class}_p99.9_us");
            let what = "99.9th percentile of the latency from ring to link";
            let claim = Claim::new(&name, what, "us");
            outcome.claim(claim.measured(p999));
            let name = format!("{id}class{class}_bound_us");
            let claim = Claim::new(&name, "latency bound from ring to end of batch", "us");
            outcome.claim(claim.measured(*bound));
        }
    }
    let p99 = found.p(99.0);
    let ratio = p99.windows(2).map(|pair| pair[1] / pair[0]).fold(f64::INFINITY, f64::min);
    let what = "lowest ratio of a class's p99 to the previous class's p99";
    let claim = Claim::new("class_p99_ratio_min", what, "ratio");
    outcome.claim(claim.at_least(1.2).measured(ratio));
    let over = || found.over().into_iter().chain(deep.over());
    // NaN also counts as above the bound.
    let broken = over().filter(|ratio| ratio.is_nan() || *ratio < 1.0).count();
    let what = "classes with a p99.9 above their bound";
    let claim = Claim::new("classes_over_bound", what, "classes");
    outcome.claim(claim.at_most(0.0).measured(testbed::float(broken as u64)));
    let most = |found: &Found| found.over().into_iter().fold(f64::NEG_INFINITY, f64::max);
    let what = "largest ratio of bound to p99.9; bursts as large as buckets permit";
    let claim = Claim::new("bound_over_p999_max", what, "ratio");
    outcome.claim(claim.at_most(5.0).measured(most(&deep)));
    let what = "largest ratio of bound to p99.9; bursts of one batch";
    let claim = Claim::new("bound_over_p999_max_batches", what, "ratio");
    outcome.claim(claim.measured(most(&found)));
    Ok(())
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    accuracy(ctx, &mut outcome)?;
    ctx.progress(0.9, "classes");
    classes(ctx, &mut outcome)?;
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::picture(record, "class");
    }
    let mut panel = Panel::new(
        "(a), (b) after learning",
        Axis::named("VMs", VMS.map(|n| n.to_string())),
        Axis::linear("deviation, %").from(-2.0).to(2.0),
    );
    for name in ["1_core", "2_cores"] {
        if let Some(series) = record.series(&format!("{name} deviation")) {
            let points = series.x.iter().copied().zip(series.y.iter().copied());
            panel = panel.points(name.replace('_', " "), points);
        }
    }
    let mut classes =
        Panel::new("(c)", Axis::log("us, ring to link"), Axis::linear("part of all").to(1.0));
    for (class, series) in record.series_of("class ") {
        classes = classes.series(format!("class {class}"), series);
    }
    Picture::new("C2QoS, Fig. 11: accuracy, and latency by class").panel(panel).panel(classes)
}
