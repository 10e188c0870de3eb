//! C2QoS Fig. 3 and Fig. 11 (c), live: what a frame waits on a core that is full.
//!
//! **Problem.** In turn (`round-robin`) every VM waits for every other VM's batch, whatever it
//! bought. With classes (`hbs`) and cycles (`cycles-minmax`) a VM that stays within what it bought
//! waits for the batch that is under way and for those before it.
//!
//! **Source.** C2QoS §II-C and Fig. 3; §IV-B and Fig. 11 (c).
//!
//! **Rule, Fig. 11.** 16 senders, four in each of four classes, sold 8 : 4 : 2 : 1 of the core,
//! together 90 %. The four of the first class and one of each other class send 512-byte frames at
//! 55 % of what they bought, stamped; the other nine flood with 1518-byte frames, so that the core
//! is full. A VM that sends more than it bought waits behind its own frames, in any class; so
//! latency is measured of those that do not. *Uncontended* is the first class alone, under the same
//! load of its own. A *worst batch* is 32 frames of 1518 bytes at the cost that was measured.
//!
//! **Rule, Fig. 3.** One VM sends 20,000 frames of 512 bytes a second, the others flood with
//! 1518-byte frames: 1, 4, 8, 16 VMs in all.
//!
//! **Cost.** About 30 windows of 0.8 s.

use serde_json::{Value, json};

use super::fleet::{Offer, Times, Window};
use super::plan::{Bound, Plan, Policy, Vm};
use super::rig::{Capacity, Rig, platform};
use crate::bench::bed::Bed;
use crate::bench::ovs;
use crate::figures::{Claim, Context, OVS_DPDK, Outcome};
use crate::load::Rate;

/// Classes, and senders in each.
const CLASSES: u8 = 4;
const IN_CLASS: u8 = 4;
/// Frame size of those that are measured, and of those that flood.
const PROBE: u16 = 512;
const BULK: u16 = 1518;
/// Sold of the core.
const SOLD: f64 = 0.9;
/// What those that are measured offer of what they bought.
const OFFERED: f64 = 0.55;
/// Frames of a batch.
const BATCH: f64 = 32.0;
/// Of Fig. 3: frames a second of the VM that is measured.
const PROBE_PPS: f64 = 20_000.0;
/// Of Fig. 3: VMs in all.
const VMS: [u8; 4] = [1, 4, 8, 16];

/// What one VM of a class bought, in parts of the core.
fn part(class: u8) -> f64 {
    let parts = |class: u8| f64::from(1_u8 << (CLASSES - class));
    let all: f64 = (1..=CLASSES).map(parts).sum::<f64>() * f64::from(IN_CLASS);
    SOLD * parts(class) / all
}

fn name(class: u8, number: u8) -> String {
    format!("class{class}-vm{number}")
}

/// Whether it stays within what it bought, and is measured.
fn is_measured(class: u8, number: u8) -> bool {
    class == 1 || number == 1
}

fn senders() -> impl Iterator<Item = (u8, u8)> {
    (1..=CLASSES).flat_map(|class| (1..=IN_CLASS).map(move |number| (class, number)))
}

/// 16 senders and a sink for each class.
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

/// The subjects: ours with and without classes, the peer.
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

    /// What frames cost now: a shared host's caches are nearer in some minutes than in others.
    fn calibrate(&mut self) -> anyhow::Result<()> {
        (self.probe, self.bulk) = costs(&self.bed, &mut self.in_turn)?;
        Ok(())
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
        BATCH * self.bulk.cycles / self.bed.tsc_hz() * 1e6
    }
}

/// What a small and a large frame cost without limits.
fn costs(bed: &Bed, rig: &mut Rig) -> anyhow::Result<(Capacity, Capacity)> {
    let names: Vec<String> = (2..=CLASSES).map(|class| name(class, 1)).collect();
    let mut cost = |size| {
        let greedy = Offer { size, flows: 1, rate: Rate::Max };
        let all: Vec<_> = names.iter().map(|n| (n.as_str(), greedy.clone())).collect();
        rig.awake(|rig| rig.capacity(bed, &all, 0.3))
    };
    Ok((cost(PROBE)?, cost(BULK)?))
}

/// A window under offers by name.
fn window(
    bed: &Bed,
    rig: &mut Rig,
    offers: &[(String, Offer)],
    secs: f64,
) -> anyhow::Result<Window> {
    let offers: Vec<_> = offers.iter().map(|(n, o)| (n.as_str(), o.clone())).collect();
    rig.awake(|rig| rig.window(bed, &offers, secs))
}

/// The percentiles that are told.
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

/// What all 16 offer, or only the first class.
fn offers(bed: &Bed, probe: Capacity, all: bool) -> Vec<(String, Offer)> {
    let offer = |(class, number)| {
        let rate = if is_measured(class, number) {
            let pps = OFFERED * part(class) * bed.tsc_hz() / probe.cycles;
            Offer { size: PROBE, flows: 1, rate: Rate::Frames(pps) }
        } else {
            Offer { size: BULK, flows: 1, rate: Rate::Max }
        };
        (name(class, number), rate)
    };
    senders().filter(|(class, _)| all || *class == 1).map(offer).collect()
}

/// The medians over the runs of one subject.
#[derive(Debug, Clone, Default)]
struct Found {
    /// By class, then by percentile.
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
        of.map_or(f64::NAN, |us| super::fleet::middle(&us[percentile]))
    }
}

/// Runs Fig. 11 (c).
///
/// # Errors
/// When a switch cannot be started or fails.
pub(crate) fn fig11(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let (secs, runs) = (context.live.secs.unwrap_or(0.8), context.live.runs.unwrap_or(5));
    let mut subjects = Subjects::start(context)?;
    let mut outcome = Outcome::new();
    let tsc_hz = subjects.bed.tsc_hz();
    let (mut alone, mut full) = (Found::default(), vec![Found::default(); 3]);
    let bounds = bounds(&mut subjects)?;
    for run in 0..runs {
        context.progress(f64::from(run) / f64::from(runs), format!("run {}", run + 1));
        subjects.calibrate()?;
        let (first, all) = (
            offers(&subjects.bed, subjects.probe, false),
            offers(&subjects.bed, subjects.probe, true),
        );
        let quiet = window(&subjects.bed, &mut subjects.c2qos, &first, secs)?;
        alone.add(&quiet, tsc_hz)?;
        let Subjects { bed, c2qos, in_turn, peer, .. } = &mut subjects;
        let rigs =
            [("c2qos", Some(c2qos)), ("round-robin", Some(in_turn)), (OVS_DPDK, peer.as_mut())];
        for ((name, rig), found) in rigs.into_iter().zip(&mut full) {
            let Some(rig) = rig else { continue };
            let window = window(bed, rig, &all, secs)?;
            found.add(&window, tsc_hz)?;
            if run + 1 == runs {
                note(&mut outcome, name, &window, tsc_hz)?;
            }
        }
    }
    subjects.describe(&mut outcome);
    let worst_batch = subjects.worst_batch_us();
    conclude_fig11(&mut outcome, &alone, &full, worst_batch, &bounds);
    if subjects.peer.is_some() {
        outcome.beside(OVS_DPDK, "top_class_p99_us", full[2].us(1, 1));
        outcome.beside(OVS_DPDK, "added_latency_left_pct", {
            let (alone, rr) = (alone.us(1, 1), full[1].us(1, 1));
            100.0 * (full[2].us(1, 1) - alone) / (rr - alone)
        });
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

/// The worst case of each class in microseconds, as `penstock explain` prints it.
fn bounds(subjects: &mut Subjects) -> anyhow::Result<Vec<f64>> {
    subjects.c2qos.awake(|rig| {
        let Some(ours) = rig.switch.ours() else { return Ok(Vec::new()) };
        let of = |class| {
            let answer = ours.ask(&["explain", &name(class, 1), "--json"]).ok()?;
            super::explained_bound_us(&answer)
        };
        Ok((1..=CLASSES).map(|class| of(class).unwrap_or(f64::NAN)).collect())
    })
}

fn conclude_fig11(
    outcome: &mut Outcome,
    alone: &Found,
    full: &[Found],
    worst_batch: f64,
    bounds: &[f64],
) {
    let (c2qos, in_turn) = (&full[0], &full[1]);
    let classes = || (1..=CLASSES).map(f64::from);
    for (found, name) in full.iter().zip(["c2qos", "round-robin", OVS_DPDK]) {
        if found.us.is_empty() {
            continue;
        }
        for (i, percentile) in PERCENTILES.iter().enumerate() {
            let values = (1..=CLASSES).map(|class| found.us(class, i));
            outcome.series(&format!("{name} p{percentile}"), "us", classes().zip(values));
        }
    }
    outcome.series("bound", "us", classes().zip(bounds.iter().copied()));
    let top_alone = alone.us(1, 1);
    outcome.note("uncontended_p99_us", top_alone);
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
    let added = |found: &Found| found.us(1, 1) - top_alone;
    outcome.claim(
        Claim::new(
            "added_latency_left_pct",
            "Of the latency (p99) that round-robin adds to the first class, this is left.",
            "%",
        )
        .at_most(5.0)
        .measured((100.0 * added(c2qos) / added(in_turn)).max(0.0)),
    );
    let ratios = (1..CLASSES).map(|class| c2qos.us(class + 1, 1) / c2qos.us(class, 1));
    outcome.claim(
        Claim::new("class_p99_ratio_min", "p99 of a class over that of the class before.", "x")
            .measured(ratios.fold(f64::INFINITY, f64::min)),
    );
    let over = (1..=CLASSES).zip(bounds).map(|(class, bound)| c2qos.us(class, 2) / bound);
    outcome.claim(
        Claim::new(
            "p999_over_bound_max",
            "p99.9 of every class is at most the bound that `penstock explain` prints.",
            "x",
        )
        .at_most(1.0)
        .measured(over.fold(f64::NEG_INFINITY, nan_max)),
    );
}

/// The larger one; NaN if one of them is.
fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// Runs Fig. 3.
///
/// # Errors
/// When a switch cannot be started or fails.
pub(crate) fn fig3(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let (secs, runs) = (context.live.secs.unwrap_or(0.6), context.live.runs.unwrap_or(3));
    let mut subjects = Subjects::start(context)?;
    let mut outcome = Outcome::new();
    subjects.describe(&mut outcome);
    let tsc_hz = subjects.bed.tsc_hz();
    let all: Vec<(u8, u8)> = senders().collect();
    // By subject, then by number of VMs.
    let mut found = vec![vec![Found::default(); VMS.len()]; 3];
    for run in 0..runs {
        context.progress(f64::from(run) / f64::from(runs), format!("run {}", run + 1));
        for (at, vms) in VMS.into_iter().enumerate() {
            let offers: Vec<_> = all
                .iter()
                // The first class's others stay silent as long as there are lower ones.
                .filter(|(class, number)| *class > 1 || *number == 1)
                .chain(all.iter().filter(|(class, number)| *class == 1 && *number > 1))
                .take(usize::from(vms))
                .enumerate()
                .map(|(i, (class, number))| {
                    let probe = Offer { size: PROBE, flows: 1, rate: Rate::Frames(PROBE_PPS) };
                    let bulk = Offer { size: BULK, flows: 1, rate: Rate::Max };
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
        ("rr_latency_16_over_1", "In turn: median latency beside 15 others over that alone.", 1, 0),
        ("c2qos_top_class_16_over_1", "In the first class: the same.", 0, 0),
        ("rr_p99_16_over_1", "In turn: the same of p99.", 1, 1),
        ("c2qos_top_class_p99_16_over_1", "In the first class: the same of p99.", 0, 1),
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
        "In turn, latency grows with every further VM.",
        monotone,
    ));
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
        // Else it would have no queue of its own under round-robin, and nothing would be shown.
        assert!(OFFERED * part(1) > 1.0 / f64::from(CLASSES * IN_CLASS));
    }
}
