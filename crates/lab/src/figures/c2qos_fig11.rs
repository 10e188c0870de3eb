//! C2QoS, Fig. 11: how exactly VMs get their purchases, and the effect of classes.
//!
//! # Problem
//!
//! Cycles are only as good as the model that sells them.
//!
//! # Source
//!
//! C2QoS §VI-B:
//!
//! - (a) sizes mixed around the declared mean: deviations of -2 to 3 %.
//! - (b) 1 to 16 VMs on every node: -2 to 4 % on one I/O core, -3 to 6 % on two.
//! - (c) latency of 16 VMs in 4 classes that all send.
//!
//! # Approach: deviations
//!
//! In (a) and (b) all VMs send at their maximum, so their throughput shows the worth of their
//! strict entitlements.
//!
//! (a) Four VMs declared 512 B. They send 512 B, 448 and 576, 256 and 768, 64 and 960. (b) Each VM
//! has its own size, 64 to 1024 B. Together the VMs bought 90 % of the cores.
//!
//! "Before learning" means the first 100 ms, with the entitlements that the model sold. The model's
//! cells are up to 10 % wrong. "After" means [`LENGTH`] from the end of the warm-up. The claim is
//! the deviation furthest from 0 among all VMs and deployments.
//!
//! # Approach: latency
//!
//! (c) 16 VMs, four in each of the classes 1 to 4, bought 90 % of the core in 512 B frames. Each VM
//! sends 92 to 97 % of its purchase in bursts of a batch, with its own period. Small frames enter
//! the rings at random times and are timed from there to the link. They count as part of the VM's
//! traffic. While the model learns, before the measurement, all VMs send at their maximum. A VM
//! that sends more than it bought waits for cycles in a full ring, whatever its class. The figure
//! does not show that case.
//!
//! (d) The VMs send the same load in bursts nearly as large as a bucket lets pass at once. This is
//! the worst load for others that a VM may send within its purchase.
//!
//! `classes_over_bound` compares p99.9 of (c) and (d) with the bound that `penstock explain`
//! computes. The figure and the command use the same function, with the seller's model. Only (d)
//! shows how tight the bound is: in (c) the bound allows for bursts six times as large as those
//! sent. The measurement includes the link; the bound does not. The uplink is in the last class. It
//! has no bucket, so in a higher class it would leave the classes below it without a bound.

use penstock_sim::testbed::{Pace, Traffic};
use penstock_units::Nanos;

use super::paper_platform::{self as paper, Flows, Placement};
use super::paper_testbed::{
    self as testbed, Host, Policy, Scenario, Sold, WARM_UP, delta_pct, mpps,
};
use crate::evidence::stats::{distribution, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig11",
    source: "C2QoS §VI-B, Fig. 11",
    about: "deviation from what was bought, and latency by class",
    sim: Some(sim),
    live: Some(live::fig11),
    picture,
};

/// Length of one measurement.
const LENGTH: Nanos = Nanos::from_secs(2);
/// Share of the cores that is sold.
const SOLD: f64 = 0.9;
const SIZES: [u16; 5] = [64, 128, 256, 512, 1024];
const VMS: [usize; 5] = [1, 2, 4, 8, 16];
const CLASSES: u8 = 4;

/// Frames a second that a share of a core pays for.
fn worth(share: f64, size: u16, factor: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a frequency")]
    let hz = paper::HZ as f64;
    share * hz / (paper::cost(size.into(), Flows::Single).total() * factor)
}

/// Deviations of all VMs in per cent: with the entitlements that the model sold, and after
/// learning.
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

/// Runs panel (a) and returns each VM's deviations.
fn mixed(ctx: &Context<'_>) -> anyhow::Result<Vec<(f64, f64)>> {
    let factor = paper::vms_factor(4, Placement::OneNode);
    let sold: Vec<Sold> = (0..4)
        .map(|_| mpps(worth(SOLD / 4.0, 512, factor) / 1e6, 512))
        .collect::<Result<_, _>>()?;
    let mut host = Scenario::new(ctx.seed, &sold, Policy::StrictHbs).build()?;
    let mixes = [[512, 512], [448, 576], [256, 768], [64, 960]];
    for (vm, [small, large]) in host.vms.clone().into_iter().zip(mixes) {
        let traffic = Traffic::greedy(512).with_sizes(&[(small, 1), (large, 1)]);
        host.bed.send(vm, Nanos::ZERO, traffic);
    }
    Ok(deviations(ctx, &mut host, &sold))
}

/// Runs panel (b) and returns each VM's deviations.
fn deployed(ctx: &Context<'_>, vms: usize, cores: u16) -> anyhow::Result<Vec<(f64, f64)>> {
    let count = u32::try_from(vms)?;
    let placement = Placement::SeveralNodes;
    let factor = paper::vms_factor(count, placement) * paper::cores_factor(cores.into());
    // VMs are dealt to the cores in turn, so a core may have none.
    let on_core = count.div_ceil(cores.into());
    let sold = (0..vms).map(|vm| {
        let size = SIZES[vm % SIZES.len()];
        mpps(worth(SOLD / f64::from(on_core), size, factor) / 1e6, size)
    });
    let sold: Vec<Sold> = sold.collect::<Result<_, _>>()?;
    let scenario = Scenario::new(ctx.seed, &sold, Policy::StrictHbs);
    let scenario = Scenario { cores, placement, ..scenario };
    let mut host = scenario.build()?;
    for (vm, number) in host.vms.clone().into_iter().zip(0..) {
        host.bed.send(vm, Nanos::ZERO, Traffic::greedy(SIZES[number % SIZES.len()].into()));
    }
    Ok(deviations(ctx, &mut host, &sold))
}

/// Returns the value furthest from 0.
fn worst(values: impl Iterator<Item = f64>) -> f64 {
    values.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN)
}

fn accuracy(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut groups: Vec<(&str, Vec<(f64, f64)>)> = vec![("mixed_sizes", mixed(ctx)?)];
    let places = |all: &[(f64, f64)]| -> Vec<(f64, f64)> {
        (0_u32..).map(f64::from).zip(all.iter().map(|d| d.1)).collect()
    };
    outcome.series("mixed sizes deviation", "%", places(&groups[0].1));
    for (name, cores) in [("1_core", 1), ("2_cores", 2)] {
        let mut all = Vec::new();
        let mut points = Vec::new();
        for (done, vms) in (0_u32..).zip(VMS) {
            ctx.progress(0.1 + 0.08 * f64::from(done), format_args!("{vms} VMs, {name}"));
            let here = deployed(ctx, vms, cores)?;
            points.extend(here.iter().map(|d| (f64::from(done), d.1)));
            all.extend(here);
        }
        outcome.series(&format!("{name} deviation"), "%", points);
        groups.push((name, all));
    }
    let everything = || groups.iter().flat_map(|group| &group.1);
    outcome.claim(
        Claim::new("deviation_before_learning_pct", "worst of all, as the model sold it", "%")
            .measured(worst(everything().map(|d| d.0))),
    );
    outcome.claim(
        Claim::new("deviation_pct", "worst of all, after learning", "%")
            .within(-1.0, 1.0)
            .measured(worst(everything().map(|d| d.1))),
    );
    let published = [3.0, 4.0, 6.0];
    for ((name, all), published) in groups.iter().zip(published) {
        outcome.claim(
            Claim::new(&format!("deviation_pct_{name}"), "the same, here", "%")
                .published(published)
                .within(-1.0, 1.0)
                .measured(worst(all.iter().map(|d| d.1))),
        );
    }
    Ok(())
}

/// Bursts that VMs send while their latency is measured.
#[derive(Clone, Copy)]
enum Bursts {
    /// Panel (c): bursts of a batch.
    OfABatch,
    /// Panel (d): bursts nearly as large as a bucket's burst.
    OfABucket,
}

/// Latencies and bounds of (c) or (d) by class, in microseconds.
struct Found {
    us: Vec<Vec<f64>>,
    bounds: Vec<f64>,
}

impl Found {
    fn p(&self, percent: f64) -> Vec<f64> {
        self.us.iter().map(|us| percentile(us, percent)).collect()
    }

    /// Ratio of the bound to p99.9, by class.
    fn over(&self) -> Vec<f64> {
        self.bounds.iter().zip(self.p(99.9)).map(|(bound, p999)| bound / p999).collect()
    }
}

/// Small frames a second that are timed for each VM.
const SAMPLES: u64 = 3_000;
/// Time at which VMs stop sending at their maximum: some refills before the warm-up ends.
const GREEDY_UNTIL: Nanos = Nanos(WARM_UP.0 - 500_000_000);
/// Share of a bucket's burst that (d) sends. The rest is a margin, because batches cost up to 5 %
/// more than the mean.
const OF_BURST: f64 = 0.95;

/// Measures the latencies of panel (c) or (d).
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
            outcome.claim(Claim::new(&name, "ring to link", "us").measured(p999));
            let name = format!("{id}class{class}_bound_us");
            outcome
                .claim(Claim::new(&name, "the bound, ring to end of batch", "us").measured(*bound));
        }
    }
    let p99 = found.p(99.0);
    let ratio = p99.windows(2).map(|pair| pair[1] / pair[0]).fold(f64::INFINITY, f64::min);
    outcome.claim(
        Claim::new("class_p99_ratio_min", "p99 of a class over that of the one before it", "ratio")
            .at_least(1.2)
            .measured(ratio),
    );
    let over = || found.over().into_iter().chain(deep.over());
    // NaN counts as over the bound, too.
    let broken = over().filter(|ratio| ratio.is_nan() || *ratio < 1.0).count();
    outcome.claim(
        Claim::new("classes_over_bound", "classes whose p99.9 is above the bound", "classes")
            .at_most(0.0)
            .measured(testbed::float(broken as u64)),
    );
    let most = |found: &Found| found.over().into_iter().fold(f64::NEG_INFINITY, f64::max);
    outcome.claim(
        Claim::new(
            "bound_over_p999_max",
            "bound over p99.9, the largest of all classes; bursts as large as buckets allow",
            "ratio",
        )
        .at_most(5.0)
        .measured(most(&deep)),
    );
    outcome.claim(
        Claim::new("bound_over_p999_max_batches", "the same; bursts of a batch", "ratio")
            .measured(most(&found)),
    );
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
