//! Live experiments for C2QoS Fig. 3 and Fig. 11 (c): the latency of a frame on a fully loaded
//! core.
//!
//! # Problem
//!
//! Under `round-robin`, every VM waits for every other VM's batch, even if the VM bought many
//! cycles. Under classes (`hbs`) and cycles (`cycles-minmax`), a VM within its purchase waits only
//! for the current batch and for batches before its own.
//!
//! # Source
//!
//! The experiments replay Fig. 3 (§II-C) and Fig. 11 (c) (§IV-B) of C2QoS.
//!
//! # Approach for Fig. 11
//!
//! There are 16 senders, four in each of four classes. The senders of classes 1 to 4 buy in the
//! ratio 8 : 4 : 2 : 1, together 90 % of the core. Seven senders are measured: the four senders of
//! the first class, and one sender of each other class. The measured senders send stamped 512-byte
//! frames at 55 % of their purchase. The other nine senders flood with 1518-byte frames, so that
//! the core is fully loaded. In any class, the frames of a VM that sends more than it bought wait
//! behind earlier frames of the VM. For this reason, the experiment measures only VMs that send
//! less than they bought.
//!
//! The *uncontended* latency is measured while only the VMs of the first class send, with the load
//! of the measured windows. A *worst batch* is the time that the worker needs for 32 frames of 1518
//! bytes, calculated from the measured cost.
//!
//! Each window on a full core lies between two calibrations ([`super::bracket`]). A calibration
//! measures the cost of a small and a large frame. From the measured cost of frames, the
//! calibration computes the load that is 55 % of a sender's purchase. The calibration measures the
//! latency of the first class alone, at the computed load. As a result, the latency of the first
//! class alone and its latency under full load are measured in the same second. Windows in which
//! the machine's speed changed are reported, but do not count.
//!
//! # Approach for Fig. 3
//!
//! One VM sends 20,000 frames of 512 bytes per second. All other VMs flood with 1518-byte frames.
//! There are 1, 4, 8 or 16 VMs in total.
//!
//! # Cost
//!
//! On a quiet machine, a run measures about 20 windows of 0.5 s, each with a calibration of about
//! the same length.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::bracket::{Doubt, Judged, LOAD, Tally, Turns, doubt, judge};
use crate::evidence::{Claim, Context, OVS_DPDK, Outcome};
use crate::rig::fleet::{Offer, Times, Window};
use crate::rig::ovs;
use crate::rig::plan::{Bound, Plan, Policy, Vm};
use crate::rig::{Capacity, Rig, Span, platform};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

/// Number of latency classes in Fig. 11.
const CLASSES: u8 = 4;
const IN_CLASS: u8 = 4;
/// Frame size of the measured VMs, in bytes.
const PROBE: u16 = 512;
const BULK: u16 = 1518;
/// Fraction of the core's cycles that the senders buy.
const SOLD: f64 = 0.9;
/// Offered rate of the measured VMs, as a fraction of their purchase.
const OFFERED: f64 = 0.55;
/// Number of frames in a full batch.
const BATCH: f64 = 32.0;
/// Warm-up and length of a measurement of a frame's cost.
const COST: Span = Span { warm: 0.02, secs: 0.08, parts: 2 };
/// Seconds for which the load runs before the measurement starts.
const WARM_SECS: f64 = 0.1;
/// Frames per second that the measured VM sends in Fig. 3.
const PROBE_PPS: f64 = 20_000.0;
/// Total number of VMs in each case of C2QoS Fig. 3.
const VMS: [u8; 4] = [1, 4, 8, 16];

/// Returns the purchase of one VM of a class, as a fraction of the core's cycles.
fn part(class: u8) -> f64 {
    let parts = |class: u8| f64::from(1_u8 << (CLASSES - class));
    let all: f64 = (1..=CLASSES).map(parts).sum::<f64>() * f64::from(IN_CLASS);
    SOLD * parts(class) / all
}

fn name(class: u8, number: u8) -> String {
    format!("class{class}-vm{number}")
}

/// Returns whether the experiment measures the latency of a VM. A measured VM sends less than it
/// bought.
fn is_measured(class: u8, number: u8) -> bool {
    class == 1 || number == 1
}

fn senders() -> impl Iterator<Item = (u8, u8)> {
    (1..=CLASSES).flat_map(|class| (1..=IN_CLASS).map(move |number| (class, number)))
}

/// Returns a plan with 16 senders, and one receiving VM for each class.
fn plan(schedule: &str, bound: impl Fn(u8) -> Bound) -> Plan {
    let mut vms: Vec<Vm> = senders()
        .map(|(class, number)| {
            let vm = Vm::sender(name(class, number), &format!("sink{class}"), bound(class));
            if is_measured(class, number) { vm.stamped() } else { vm }
        })
        .collect();
    vms.extend((1..=CLASSES).map(|class| Vm::sink(&format!("sink{class}"))));
    Plan::new(schedule, vms)
}

fn c2qos(bed: &Bed) -> Plan {
    plan("hbs", |class| Bound {
        policy: Policy::Minmax,
        cycles: part(class) * bed.tsc_hz(),
        weight: 1 << (CLASSES - class),
        priority: class,
        ..Bound::default()
    })
}

fn free(schedule: &str) -> Plan {
    plan(schedule, |_| Bound::default())
}

/// The three switches under test, which are Penstock with classes, Penstock without classes, and
/// OVS-DPDK.
#[derive(Debug)]
struct Subjects {
    bed: Bed,
    c2qos: Rig,
    in_turn: Rig,
    peer: Option<Rig>,
    probe: Capacity,
    bulk: Capacity,
}

impl Subjects {
    fn start(context: &Context<'_>) -> anyhow::Result<Self> {
        if context.live.peer.is_some() {
            ovs::check()?;
        }
        let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
        let c2qos = Rig::ours(&bed, "c2qos", &c2qos(&bed))?;
        let mut in_turn = Rig::ours(&bed, "in-turn", &free("round-robin"))?;
        let peer = match context.live.peer {
            Some(_) => Some(Rig::peer(&bed, "ovs", &free(""))?),
            None => None,
        };
        let (probe, bulk) = costs(&bed, &mut in_turn)?;
        Ok(Self { bed, c2qos, in_turn, peer, probe, bulk })
    }

    fn describe(&self, outcome: &mut Outcome) {
        outcome.platform.append(&mut platform(&self.bed, self.peer.is_some()));
        for (name, cost) in [("probe", self.probe), ("bulk", self.bulk)] {
            let note = json!({
                "cycles_per_frame": cost.cycles,
                "mpps": cost.pps / 1e6,
                "worker_busy_percent": 100.0 * cost.busy,
            });
            outcome.note(name, note);
        }
        outcome.note("worst_batch_us", self.worst_batch_us());
    }

    fn worst_batch_us(&self) -> f64 {
        worst_batch_us(self.bulk, self.bed.tsc_hz())
    }
}

fn worst_batch_us(bulk: Capacity, tsc_hz: f64) -> f64 {
    BATCH * bulk.cycles / tsc_hz * 1e6
}

/// Measures the cost of a small and of a large frame on a switch without limits.
fn costs(bed: &Bed, rig: &mut Rig) -> anyhow::Result<(Capacity, Capacity)> {
    let mut cost = |size: u16| {
        let greedy = Offer { size: size.into(), flows: 1, rate: Rate::Max };
        let all: Vec<_> = (2..=CLASSES).map(|class| (name(class, 1), greedy.clone())).collect();
        rig.awake(|rig| Ok(rig.cost(bed, &all, COST)?.0))
    };
    Ok((cost(PROBE)?, cost(BULK)?))
}

/// Result of a calibration: the costs of frames, and the latency of the first class while no other
/// class sends.
#[derive(Debug, Clone)]
struct Alone {
    probe: Capacity,
    bulk: Capacity,
    /// Window in which only the first class sends.
    window: Window,
    doubt: Option<Doubt>,
}

/// Windows on a full core that alternate with calibrations.
#[derive(Debug)]
struct Rounds<'a> {
    subjects: &'a mut Subjects,
    /// Index of the measured switch in [`SUBJECTS`].
    nth: usize,
    secs: f64,
}

impl Turns for Rounds<'_> {
    type Speed = Alone;
    type Found = (Window, Option<Doubt>);

    fn calibrate(&mut self) -> anyhow::Result<Alone> {
        let Subjects { bed, c2qos, in_turn, .. } = &mut *self.subjects;
        let (probe, bulk) = costs(bed, in_turn)?;
        let first = offers(bed, probe, false);
        let span = Span { warm: WARM_SECS, secs: self.secs / 2.0, parts: 4 };
        let window = c2qos.awake(|rig| rig.once(bed, &first, span))?;
        let doubt = doubt(&window, &first);
        (self.subjects.probe, self.subjects.bulk) = (probe, bulk);
        Ok(Alone { probe, bulk, window, doubt })
    }

    fn measure(&mut self, by: &Alone) -> anyhow::Result<(Window, Option<Doubt>)> {
        let all = offers(&self.subjects.bed, by.probe, true);
        let span = Span { warm: WARM_SECS, secs: self.secs, parts: 8 };
        let Subjects { bed, c2qos, in_turn, peer, .. } = &mut *self.subjects;
        let rig = [Some(c2qos), Some(in_turn), peer.as_mut()].into_iter().nth(self.nth).flatten();
        let rig = rig.context("no such subject")?;
        let window = rig.awake(|rig| rig.once(bed, &all, span))?;
        // The core must be fully loaded by any VM. So the window is fine if one flooding VM always
        // found its ring full.
        let fullest = |a: &&(String, Offer), b: &&(String, Offer)| {
            let full = |name: &str| window.sender(name).map_or(0.0, |sent| sent.full);
            full(&a.0).total_cmp(&full(&b.0))
        };
        let floods = all.iter().filter(|(_, offer)| offer.rate == Rate::Max);
        let fullest: Vec<_> = floods.max_by(fullest).cloned().into_iter().collect();
        let doubt = doubt(&window, &fullest);
        Ok((window, doubt))
    }

    fn speed(of: &Alone) -> f64 {
        of.probe.cycles + of.bulk.cycles
    }

    fn doubt_speed(of: &Alone) -> Option<Doubt> {
        of.doubt
    }

    fn doubt((_, doubt): &Self::Found) -> Option<Doubt> {
        *doubt
    }
}

/// Lets the VMs in `offers` send for `secs` seconds, and returns the measurements.
fn window(
    bed: &Bed,
    rig: &mut Rig,
    offers: &[(String, Offer)],
    secs: f64,
) -> anyhow::Result<Window> {
    rig.awake(|rig| rig.window(bed, offers, secs))
}

/// Names of the switches under test, in the order in which they are measured.
const SUBJECTS: [&str; 3] = ["c2qos", "round-robin", OVS_DPDK];

/// Percentiles of the latency that the experiment reports.
const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];

fn told(times: &Times, tsc_hz: f64) -> Value {
    json!({
        "frames": times.all.len(),
        "quiet_frames": times.quiet.len(),
        "p50_us": times.us(50.0, tsc_hz),
        "p99_us": times.us(99.0, tsc_hz),
        "p99.9_us": times.us(99.9, tsc_hz),
        "p99.9_us_of_all": times.us_of_all(99.9, tsc_hz),
    })
}

fn what_else(window: &Window) -> Value {
    json!({
        "worker_wait_percent": 100.0 * window.worker_wait,
        "generator_wait_percent": 100.0 * window.generator_wait,
        "generator_standstill_percent": 100.0 * window.standstill,
        "generator_idle_percent": 100.0 * window.idle,
    })
}

/// Returns the loads of all 16 senders if `all`, or else the loads of the first class only.
fn offers(bed: &Bed, probe: Capacity, all: bool) -> Vec<(String, Offer)> {
    let offer = |(class, number)| {
        let rate = if is_measured(class, number) {
            let pps = OFFERED * part(class) * bed.tsc_hz() / probe.cycles;
            Offer { size: PROBE.into(), flows: 1, rate: Rate::Frames(pps) }
        } else {
            Offer { size: BULK.into(), flows: 1, rate: Rate::Max }
        };
        (name(class, number), rate)
    };
    senders().filter(|(class, _)| all || *class == 1).map(offer).collect()
}

/// Latencies through one switch in all runs.
#[derive(Debug, Clone, Default)]
struct Found {
    /// Latencies in microseconds: `us[class][percentile]` is a vector with one latency for each
    /// run.
    us: Vec<[Vec<f64>; 3]>,
}

impl Found {
    fn add(&mut self, window: &Window, tsc_hz: f64) -> anyhow::Result<()> {
        self.us.resize(usize::from(CLASSES), Default::default());
        for (class, us) in (1..=CLASSES).zip(&mut self.us) {
            let times = window.times(&format!("class{class}-"))?;
            for (percentile, us) in PERCENTILES.into_iter().zip(us) {
                us.push(times.us(percentile, tsc_hz));
            }
        }
        Ok(())
    }

    fn us(&self, class: u8, percentile: usize) -> f64 {
        let of = self.us.get(usize::from(class) - 1);
        of.map_or(f64::NAN, |us| crate::rig::stats::middle(&us[percentile]))
    }
}

/// Latencies through one switch in the judged windows.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// Latencies of the first class while no other class sends, before and after the judged
    /// windows.
    alone: Found,
    /// Latencies of the measured senders while the worker's core is fully loaded.
    full: Found,
    worst_batch_us: Vec<f64>,
}

impl Seen {
    fn of(judged: &[Judged<Alone, (Window, Option<Doubt>)>], tsc_hz: f64) -> anyhow::Result<Self> {
        let mut seen = Self::default();
        for judged in judged {
            seen.full.add(&judged.found.0, tsc_hz)?;
            for around in [&judged.before, &judged.after] {
                seen.alone.add(&around.window, tsc_hz)?;
                seen.worst_batch_us.push(worst_batch_us(around.bulk, tsc_hz));
            }
        }
        Ok(seen)
    }

    /// Returns the microseconds that a fully loaded core adds to the 99th percentile of the first
    /// class's latency.
    fn added_us(&self) -> f64 {
        self.full.us(1, 1) - self.alone.us(1, 1)
    }
}

/// Runs the live experiment of C2QoS Fig. 11: (c), and then (a) and (b) ([`super::accuracy`]).
pub(crate) fn fig11(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let (secs, wanted) = (context.live.secs.unwrap_or(0.5), context.live.runs.unwrap_or(5));
    let mut subjects = Subjects::start(context)?;
    let mut outcome = Outcome::new();
    let tsc_hz = subjects.bed.tsc_hz();
    let mut explained = Vec::new();
    let mut tally = Tally::default();
    let mut seen = vec![Seen::default(); SUBJECTS.len()];
    for (nth, name) in SUBJECTS.into_iter().enumerate() {
        if nth == 2 && subjects.peer.is_none() {
            continue;
        }
        context.progress(crate::rig::stats::to_f64(nth as u64) / 3.0, name);
        let mut rounds = Rounds { subjects: &mut subjects, nth, secs };
        let judged = judge(&mut rounds, (wanted, LOAD), &mut tally)?;
        seen[nth] = Seen::of(&judged, tsc_hz)?;
        if nth == 0 {
            explained = bounds(&mut subjects)?;
        }
        if let Some(last) = judged.last() {
            note(&mut outcome, name, &last.found.0, tsc_hz)?;
        }
    }
    subjects.describe(&mut outcome);
    conclude_fig11(&mut outcome, &seen, &explained);
    super::accuracy::panels(context, &subjects.bed, &mut outcome)?;
    for claim in tally.claims() {
        outcome.claim(claim);
    }
    outcome.note("windows", tally.told("cycles of a small and a large frame"));
    if subjects.peer.is_some() {
        outcome.beside(OVS_DPDK, "top_class_p99_us", seen[2].full.us(1, 1));
        let left = 100.0 * seen[2].added_us() / seen[1].added_us();
        outcome.beside(OVS_DPDK, "added_latency_left_pct", left);
    }
    Ok(outcome)
}

fn note(outcome: &mut Outcome, name: &str, window: &Window, hz: f64) -> anyhow::Result<()> {
    let mut note = what_else(window);
    for class in 1..=CLASSES {
        note[format!("class{class}")] = told(&window.times(&format!("class{class}-"))?, hz);
    }
    let rates: serde_json::Map<_, _> = window
        .senders
        .iter()
        .map(|s| {
            let of = json!({ "arrived_kpps": s.pps / 1e3, "sent_kpps": s.offered_pps / 1e3,
                "ring_full_percent": 100.0 * s.full });
            (s.name.clone(), of)
        })
        .collect();
    note["vms"] = Value::Object(rates);
    outcome.note(&format!("last_run_{}", name.replace('-', "_")), note);
    Ok(())
}

/// Runs `penstock explain` and returns the latency bound of each class, in microseconds. Call this
/// function just after a window, because `explain` without a cost model uses the cost of recent
/// frames.
fn bounds(subjects: &mut Subjects) -> anyhow::Result<Vec<f64>> {
    subjects.c2qos.awake(|rig| {
        let of = |class| {
            let answer = rig.switch.ask(&["explain", &name(class, 1), "--json"])?.ok()?;
            explained_bound_us(&answer)
        };
        Ok((1..=CLASSES).map(|class| of(class).unwrap_or(f64::NAN)).collect())
    })
}

fn conclude_fig11(outcome: &mut Outcome, seen: &[Seen], bounds: &[f64]) {
    let c2qos = &seen[0].full;
    let classes = || (1..=CLASSES).map(f64::from);
    for (found, name) in seen.iter().map(|seen| &seen.full).zip(SUBJECTS) {
        if found.us.is_empty() {
            continue;
        }
        for (i, percentile) in PERCENTILES.iter().enumerate() {
            let values = (1..=CLASSES).map(|class| found.us(class, i));
            outcome.series(&format!("{name} p{percentile}"), "us", classes().zip(values));
        }
    }
    outcome.series("bound", "us", classes().zip(bounds.iter().copied()));
    let top_alone = seen[0].alone.us(1, 1);
    let worst_batch = crate::rig::stats::middle(&seen[0].worst_batch_us);
    outcome.note("uncontended_p99_us", top_alone);
    outcome.note("worst_batch_us", worst_batch);
    let limit = (1.3 * top_alone).max(top_alone + worst_batch);
    outcome.claim(
        Claim::new(
            "top_class_p99_us",
            "The first class's p99 on a full core is at most max(1.3 x uncontended, uncontended \
             + one worst batch).",
            "us",
        )
        .at_most(limit)
        .measured(c2qos.us(1, 1)),
    );
    outcome.claim(
        Claim::new(
            "added_latency_left_pct",
            "Latency (p99) added to the first class, in percent of what round-robin adds.",
            "%",
        )
        .at_most(5.0)
        .measured(not_below_0(100.0 * seen[0].added_us() / seen[1].added_us())),
    );
    let ratios = (1..CLASSES).map(|class| c2qos.us(class + 1, 1) / c2qos.us(class, 1));
    let what = "p99 of a class over p99 of the class before, the least of all classes.";
    let claim = Claim::new("class_p99_ratio_min", what, "x");
    outcome.claim(claim.measured(ratios.fold(f64::INFINITY, super::noisy::nan_min)));
    let over = (1..=CLASSES).zip(bounds).map(|(class, bound)| c2qos.us(class, 2) / bound);
    let what = "p99.9 of every class is at most the bound that `penstock explain` prints.";
    let claim = Claim::new("p999_over_bound_max", what, "x");
    outcome.claim(claim.at_most(1.0).measured(over.clone().fold(f64::NEG_INFINITY, nan_max)));
    outcome.claim(
        Claim::new("bound_over_p999_max", "The bound over p99.9, the largest of all classes.", "x")
            .at_most(5.0)
            .measured(over.map(f64::recip).fold(f64::NEG_INFINITY, nan_max)),
    );
}

/// Returns `value`, or 0 if the value is negative. Returns NaN if the value is NaN.
fn not_below_0(value: f64) -> f64 {
    if value < 0.0 { 0.0 } else { value }
}

/// Returns the larger of two values, or NaN if one of the values is NaN.
fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// Runs the live experiment of C2QoS Fig. 3.
pub(crate) fn fig3(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let (secs, runs) = (context.live.secs.unwrap_or(0.6), context.live.runs.unwrap_or(3));
    let mut subjects = Subjects::start(context)?;
    let mut outcome = Outcome::new();
    subjects.describe(&mut outcome);
    let tsc_hz = subjects.bed.tsc_hz();
    let all: Vec<(u8, u8)> = senders().collect();
    // Results by subject, and then by number of VMs.
    let mut found = vec![vec![Found::default(); VMS.len()]; 3];
    for run in 0..runs {
        context.progress(f64::from(run) / f64::from(runs), format!("run {}", run + 1));
        for (at, vms) in VMS.into_iter().enumerate() {
            let offers: Vec<_> = all
                .iter()
                // The other VMs of the first class send only if all VMs of lower classes send.
                .filter(|(class, number)| *class > 1 || *number == 1)
                .chain(all.iter().filter(|(class, number)| *class == 1 && *number > 1))
                .take(usize::from(vms))
                .enumerate()
                .map(|(i, (class, number))| {
                    let probe =
                        Offer { size: PROBE.into(), flows: 1, rate: Rate::Frames(PROBE_PPS) };
                    let bulk = Offer { size: BULK.into(), flows: 1, rate: Rate::Max };
                    (name(*class, *number), if i == 0 { probe } else { bulk })
                })
                .collect();
            let Subjects { bed, c2qos, in_turn, peer, .. } = &mut subjects;
            let rigs = [Some(c2qos), Some(in_turn), peer.as_mut()];
            for (rig, found) in rigs.into_iter().zip(&mut found) {
                let Some(rig) = rig else { continue };
                let window = window(bed, rig, &offers, secs)?;
                let times = window.sender(&name(1, 1))?.times.clone();
                let us = &mut found[at].us;
                us.resize(1, Default::default());
                for (percentile, us) in PERCENTILES.into_iter().zip(&mut us[0]) {
                    us.push(times.as_ref().map_or(f64::NAN, |t| t.us(percentile, tsc_hz)));
                }
            }
        }
    }
    conclude_fig3(&mut outcome, &found, subjects.peer.is_some());
    Ok(outcome)
}

fn conclude_fig3(outcome: &mut Outcome, found: &[Vec<Found>], with_peer: bool) {
    for (found, subject) in found.iter().zip(["c2qos", "round-robin", OVS_DPDK]) {
        if subject == OVS_DPDK && !with_peer {
            continue;
        }
        for (i, percentile) in PERCENTILES.iter().enumerate() {
            let points = VMS.into_iter().zip(found).map(|(vms, f)| (f64::from(vms), f.us(1, i)));
            outcome.series(&format!("{subject} p{percentile}"), "us", points);
        }
    }
    let growth =
        |found: &[Found], percentile| found[3].us(1, percentile) / found[0].us(1, percentile);
    let monotone = found[1].windows(2).all(|pair| pair[1].us(1, 0) >= pair[0].us(1, 0));
    let claims = [
        (
            "rr_latency_16_over_1",
            "Round-robin: median latency beside 15 other VMs over that alone.",
            1,
            0,
        ),
        (
            "c2qos_top_class_16_over_1",
            "First class: median latency beside 15 other VMs over that alone.",
            0,
            0,
        ),
        ("rr_p99_16_over_1", "Round-robin: p99 latency beside 15 other VMs over that alone.", 1, 1),
        (
            "c2qos_top_class_p99_16_over_1",
            "First class: p99 latency beside 15 other VMs over that alone.",
            0,
            1,
        ),
    ];
    for (id, statement, subject, percentile) in claims {
        let value = growth(&found[subject], percentile);
        outcome.claim(Claim::new(id, statement, "x").measured(value));
        if with_peer && id.starts_with("rr") {
            outcome.beside(OVS_DPDK, id, growth(&found[2], percentile));
        }
    }
    outcome.claim(Claim::truth(
        "rr_growth_is_monotone",
        "Under round-robin, latency grows with every further VM.",
        monotone,
    ));
}

/// Reads the latency bound of a VM's class, in microseconds, from the output of `penstock explain
/// VM --json`.
fn explained_bound_us(answer: &str) -> Option<f64> {
    fn find(of: &serde_json::Value) -> Option<f64> {
        let units = [("bound_ns", 1e-3), ("bound_us", 1.0), ("bound_ms", 1e3), ("bound_s", 1e6)];
        match of {
            serde_json::Value::Object(map) => map.iter().find_map(|(key, value)| {
                let unit = units.iter().find(|(unit, _)| key.ends_with(unit));
                unit.and_then(|(_, factor)| Some(value.as_f64()? * factor)).or_else(|| find(value))
            }),
            serde_json::Value::Array(all) => all.iter().find_map(find),
            _ => None,
        }
    }
    find(&serde_json::from_str(answer).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_classes_bought_ninety_percent_and_nine_of_sixteen_flood() {
        let sold: f64 = senders().map(|(class, _)| part(class)).sum();
        assert!((sold - SOLD).abs() < 1e-9);
        assert_eq!(senders().filter(|(c, n)| !is_measured(*c, *n)).count(), 9);
        let plan = plan("hbs", |_| Bound::default());
        assert_eq!(plan.vms.iter().filter(|vm| vm.stamped).count(), 7);
        assert_eq!(plan.vms.len(), 20);
    }

    #[test]
    fn the_first_class_bought_more_than_a_turn_gives() {
        // At a lower offer, the first class would have no backlog under round-robin, and the figure
        // would show nothing.
        assert!(OFFERED * part(1) > 1.0 / f64::from(CLASSES * IN_CLASS));
    }

    #[test]
    fn a_bound_is_found_wherever_it_stands() {
        let of = explained_bound_us;
        assert_eq!(of(r#"{"class": {"latency_bound_ns": 1500}}"#), Some(1.5));
        assert_eq!(of(r#"[{"bound_us": 7.5}]"#), Some(7.5));
        assert_eq!((of("{}"), of("no json")), (None, None));
    }
}
