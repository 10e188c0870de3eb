//! C2QoS Fig. 1, live: a victim and aggressors on one worker core.
//!
//! **Problem.** Two VMs are sold 1 : 4 of what the core was measured to carry of their declared
//! traffic (512 bytes, one flow), together 90 %. The one with four fifths, the *victim*, sends what
//! it bought and 5 % more. The other, alone or as three VMs that share its part, turns noisy:
//! 64-byte frames, 100,000 flows, or both; at the bit rate (with many flows: the frame rate) it
//! bought, or as fast as its ring takes it.
//!
//! **Source.** C2QoS §II-B and Fig. 1; `ingress_policing_rate` of OVS-DPDK beside it.
//!
//! **Rule.** Each switch has its own calibrated capacity, so what is compared is what each does
//! with its own promise. The victim is to keep min(what it can do alone, what it bought). Three
//! subjects take turns: ours under `cycles-minmax` and `hbs`, ours under `bps` and `round-robin`,
//! the peer. Entitlements in cycles are what the calibration measured for a frame of the declared
//! traffic; the aggressors' traffic is not known to it. All are in one latency class and weighed 1
//! : 4. That the generator is not the limit shows in the aggressors' rings: the share of its turns
//! in which a flooding VM found its ring full is noted for each subject.
//!
//! **Cost.** About 100 windows of 0.7 s.

use serde_json::json;

use super::fleet::{Offer, Window, middle};
use super::plan::{Bound, Plan, Policy, Vm};
use super::rig::{Capacity, Rig, platform};
use crate::bench::bed::Bed;
use crate::bench::ovs;
use crate::figures::{Claim, Context, OVS_DPDK, Outcome};
use crate::load::Rate;

/// The declared frame size.
const SIZE: u16 = 512;
/// Sold of the calibrated capacity.
const SOLD: f64 = 0.9;
/// The victim's part of it.
const VICTIM: f64 = 0.8;
/// What is offered over what was bought.
const OVER: f64 = 1.05;
/// Many flows.
const MANY: u32 = 100_000;
/// The number of aggressors.
const CROWDS: [usize; 2] = [1, 3];
/// Most aggressors.
const MOST: usize = 3;

/// What the aggressors turn to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Size,
    Flows,
    Both,
}

/// One thing that is measured on each subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub crowd: usize,
    pub event: Event,
    pub flood: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        CROWDS.into_iter().flat_map(|crowd| {
            [Event::Size, Event::Flows, Event::Both]
                .into_iter()
                .flat_map(move |event| [false, true].map(|flood| Self { crowd, event, flood }))
        })
    }

    fn name(self) -> String {
        let event = match self.event {
            Event::Size => "64 B",
            Event::Flows => "100k flows",
            Event::Both => "64 B, 100k flows",
        };
        let load = if self.flood { "flood" } else { "as bought" };
        format!("{} x {event}, {load}", self.crowd)
    }

    /// What each aggressor offers, having bought `pps` frames of the declared size.
    pub fn offer(self, pps: f64) -> Offer {
        let small = self.event != Event::Flows;
        let size = if small { 64 } else { SIZE };
        let flows = if self.event == Event::Size { 1 } else { MANY };
        let same_bits = if small { bytes(SIZE) / bytes(64) } else { 1.0 };
        let rate = if self.flood { Rate::Max } else { Rate::Frames(OVER * pps * same_bits) };
        Offer { size, flows, rate }
    }
}

/// Bytes of a frame in the ring.
fn bytes(size: u16) -> f64 {
    f64::from(size) - 4.0
}

/// Subjects in the order of their turns.
const SUBJECTS: [&str; 3] = ["c2qos", "bps", OVS_DPDK];

/// What a subject's VMs bought.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sale {
    pub capacity: Capacity,
    solo_pps: f64,
    /// Of the victim.
    pub victim_pps: f64,
    /// Of all aggressors together.
    noisy_pps: f64,
}

impl Sale {
    /// What the victim is to keep.
    fn kept_pps(&self) -> f64 {
        self.victim_pps.min(self.solo_pps)
    }
}

fn noisy(i: usize) -> String {
    format!("noisy{}", i + 1)
}

fn plan(schedule: &str, crowd: usize, bound: impl Fn(f64, u16) -> Bound) -> Plan {
    let mut vms = vec![Vm::sender("victim", "s2", bound(VICTIM, 40))];
    for i in 0..MOST {
        // One that takes no part in this crowd has bought a little, and sends nothing.
        let share = if i < crowd { (1.0 - VICTIM) / crowd_f64(crowd) } else { 1e-4 };
        let weight = if i < crowd { u16::try_from(10 / crowd).unwrap_or(1) } else { 1 };
        vms.push(Vm::sender(noisy(i), "s1", bound(share, weight)));
    }
    vms.extend([Vm::sink("s1"), Vm::sink("s2")]);
    Plan::new(schedule, vms)
}

fn crowd_f64(crowd: usize) -> f64 {
    u32::try_from(crowd).map_or(1.0, f64::from)
}

pub(super) fn well_behaved(pps: f64) -> Offer {
    Offer { size: SIZE, flows: 1, rate: Rate::Frames(OVER * pps) }
}

/// Sells the capacity of the switch in `rig`, which knows no limits.
fn sale(bed: &Bed, rig: &mut Rig, secs: f64) -> anyhow::Result<Sale> {
    let greedy = Offer { size: SIZE, flows: 1, rate: Rate::Max };
    rig.awake(|rig| {
        let both = [("victim", greedy.clone()), ("noisy1", greedy.clone())];
        let capacity = rig.capacity(bed, &both, secs)?;
        let solo_pps = rig.window(bed, &[("victim", greedy.clone())], secs)?.pps();
        let sold = SOLD * capacity.pps;
        let (victim_pps, noisy_pps) = (VICTIM * sold, (1.0 - VICTIM) * sold);
        Ok(Sale { capacity, solo_pps, victim_pps, noisy_pps })
    })
}

/// A subject, ready to be measured.
#[derive(Debug)]
pub(super) struct Subject {
    name: &'static str,
    pub rig: Rig,
    sale: Sale,
}

impl Subject {
    /// What each of `crowd` aggressors bought.
    pub fn each_pps(&self, crowd: usize) -> f64 {
        self.sale.noisy_pps / crowd_f64(crowd)
    }

    pub fn window(
        &mut self,
        bed: &Bed,
        crowd: usize,
        offer: &Offer,
        secs: f64,
    ) -> anyhow::Result<Window> {
        let names: Vec<String> = (0..crowd).map(noisy).collect();
        let mut offers = vec![("victim", well_behaved(self.sale.victim_pps))];
        offers.extend(names.iter().map(|name| (name.as_str(), offer.clone())));
        self.rig.awake(|rig| rig.window(bed, &offers, secs))
    }

    /// Percent of what the victim is to keep.
    pub fn kept(&self, window: &Window) -> anyhow::Result<f64> {
        Ok(100.0 * window.sender("victim")?.pps / self.sale.kept_pps())
    }
}

/// Ours without limits, to sell by; it ends before others start.
pub(super) fn sell_ours(bed: &Bed, secs: f64) -> anyhow::Result<Sale> {
    let free = plan("round-robin", 1, |_, _| Bound::default());
    let mut rig = Rig::ours(bed, "calibration", &free)?;
    let sale = sale(bed, &mut rig, secs)?;
    rig.switch.resume()?;
    Ok(sale)
}

pub(super) fn ours(
    bed: &Bed,
    name: &'static str,
    crowd: usize,
    sale: Sale,
) -> anyhow::Result<Subject> {
    let capacity = sale.capacity;
    let sold_pps = SOLD * capacity.pps;
    let plan = if name == "c2qos" {
        plan("hbs", crowd, |share, weight| Bound {
            policy: Policy::Minmax,
            cycles: share * sold_pps * capacity.cycles,
            weight,
            ..Bound::default()
        })
    } else {
        plan("round-robin", crowd, |share, _| Bound {
            policy: Policy::Bps,
            bits: share * sold_pps * bytes(SIZE) * 8.0,
            ..Bound::default()
        })
    };
    Ok(Subject { name, rig: Rig::ours(bed, name, &plan)?, sale })
}

/// The peer, without limits as yet.
fn peer(bed: &Bed, secs: f64) -> anyhow::Result<Subject> {
    let free = plan("", 1, |_, _| Bound::default());
    let mut rig = Rig::peer(bed, "ovs", &free)?;
    let sale = sale(bed, &mut rig, secs)?;
    Ok(Subject { name: OVS_DPDK, rig, sale })
}

fn limit_peer(subject: &mut Subject, crowd: usize) -> anyhow::Result<()> {
    // Its policer counts a frame without its 14 bytes of Ethernet header.
    let bits = |pps: f64| pps * (bytes(SIZE) - 14.0) * 8.0;
    let (victim, each) = (bits(subject.sale.victim_pps), bits(subject.each_pps(crowd)));
    subject.rig.awake(|rig| {
        rig.switch.limit("victim", victim)?;
        (0..crowd).try_for_each(|i| rig.switch.limit(&noisy(i), each))
    })
}

/// What was found of one case on one subject.
#[derive(Debug, Clone)]
struct Found {
    subject: &'static str,
    case: Case,
    /// Percent of what the victim is to keep.
    kept: f64,
    /// Percent that the victim's rate changed by.
    delta: f64,
    /// Share of turns in which flooding VMs found their rings full.
    full: f64,
    /// As in [`Window`].
    wait: f64,
}

/// Runs it.
///
/// # Errors
/// When a switch cannot be started or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let with_peer = context.live.peer.is_some();
    if with_peer {
        ovs::check()?;
    }
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let (secs, runs) = (context.live.secs.unwrap_or(0.7), context.live.runs.unwrap_or(2));
    let mut outcome = Outcome { platform: platform(&bed, with_peer), ..Outcome::default() };
    let sale = sell_ours(&bed, secs)?;
    let mut other = if with_peer { Some(peer(&bed, secs)?) } else { None };
    let mut found = Vec::new();
    for (nth, crowd) in CROWDS.into_iter().enumerate() {
        let mut subjects = vec![ours(&bed, "c2qos", crowd, sale)?, ours(&bed, "bps", crowd, sale)?];
        if let Some(mut peer) = other.take() {
            limit_peer(&mut peer, crowd)?;
            subjects.push(peer);
        }
        for run in 0..runs {
            let done = (f64::from(run) / f64::from(runs) + crowd_f64(nth + 1) - 1.0) / 2.0;
            context.progress(done, format!("{crowd} aggressors, run {}", run + 1));
            let first = (run == 0 && crowd == 1).then_some(&mut outcome);
            turns(&bed, &mut subjects, crowd, secs, &mut found, first)?;
        }
        // The daemons end when they run.
        for mut subject in subjects {
            subject.rig.switch.resume()?;
            note_sale(&mut outcome, &subject);
            if subject.name == OVS_DPDK {
                subject.rig.switch.pause()?;
                other = Some(subject);
            }
        }
    }
    conclude(&mut outcome, &found, with_peer)?;
    Ok(outcome)
}

/// All cases of one crowd, each on all subjects in turn. The first run draws the curves.
fn turns(
    bed: &Bed,
    subjects: &mut [Subject],
    crowd: usize,
    secs: f64,
    found: &mut Vec<Found>,
    mut draw: Option<&mut Outcome>,
) -> anyhow::Result<()> {
    let mut before = Vec::new();
    for subject in subjects.iter_mut() {
        let offer = well_behaved(subject.each_pps(crowd));
        before.push(subject.window(bed, crowd, &offer, secs)?);
    }
    for case in Case::all().filter(|case| case.crowd == crowd) {
        for (subject, before) in subjects.iter_mut().zip(&before) {
            let offer = case.offer(subject.each_pps(crowd));
            let after = subject.window(bed, crowd, &offer, secs)?;
            let (then, now) = (before.sender("victim")?.pps, after.sender("victim")?.pps);
            let full: Vec<f64> =
                after.senders.iter().skip(1).take(crowd).map(|sender| sender.full).collect();
            found.push(Found {
                subject: subject.name,
                case,
                kept: subject.kept(&after)?,
                delta: 100.0 * (now / then - 1.0),
                full: full.iter().copied().fold(f64::INFINITY, f64::min),
                wait: after.wait().max(before.wait()),
            });
            if let Some(outcome) = &mut draw
                && (case.event, case.flood) == (Event::Size, false)
            {
                curves(outcome, subject.name, before, &after, secs)?;
            }
        }
    }
    Ok(())
}

/// The size event over time.
fn curves(
    outcome: &mut Outcome,
    subject: &str,
    before: &Window,
    after: &Window,
    secs: f64,
) -> anyhow::Result<()> {
    for vm in ["victim", "noisy1"] {
        let bits = before.sender(vm)?.parts.iter().chain(&after.sender(vm)?.parts);
        let count = u32::try_from(before.sender(vm)?.parts.len()).unwrap_or(1);
        let step = secs / f64::from(count.max(1));
        let points = (1..).map(|i: u32| f64::from(i) * step).zip(bits.map(|b| b / 1e9));
        outcome.series(&format!("{subject} {vm}"), "Gbit/s", points);
    }
    Ok(())
}

fn note_sale(outcome: &mut Outcome, subject: &Subject) {
    let sale = subject.sale;
    let note = json!({
        "capacity_mpps": sale.capacity.pps / 1e6,
        "cycles_per_frame": sale.capacity.cycles,
        "worker_busy_percent": 100.0 * sale.capacity.busy,
        "solo_mpps": sale.solo_pps / 1e6,
        "victim_bought_mpps": sale.victim_pps / 1e6,
        "aggressors_bought_mpps": sale.noisy_pps / 1e6,
        "sold_percent": 100.0 * (sale.victim_pps + sale.noisy_pps) / sale.capacity.pps,
    });
    outcome.note(&format!("sold_{}", subject.name.replace('-', "_")), note);
}

/// The median over the runs of one case on one subject.
fn of(found: &[Found], subject: &str, case: Case, what: fn(&Found) -> f64) -> f64 {
    let one = found.iter().filter(|f| f.subject == subject && f.case == case);
    middle(&one.map(what).collect::<Vec<_>>())
}

fn conclude(outcome: &mut Outcome, found: &[Found], with_peer: bool) -> anyhow::Result<()> {
    let cases: Vec<Case> = Case::all().collect();
    let names: Vec<String> = cases.iter().map(|case| case.name()).collect();
    outcome.note("cases", json!(names));
    for subject in SUBJECTS {
        if subject == OVS_DPDK && !with_peer {
            continue;
        }
        let points = |what: fn(&Found) -> f64| {
            let values = cases.iter().map(move |case| of(found, subject, *case, what));
            (1..).map(|i: u32| f64::from(i)).zip(values).collect::<Vec<_>>()
        };
        outcome.series(&format!("kept {subject}"), "%", points(|f| f.kept));
        outcome.series(&format!("change {subject}"), "%", points(|f| f.delta));
        outcome.series(&format!("ring full {subject}"), "% of turns", points(|f| 100.0 * f.full));
        outcome.series(&format!("wait {subject}"), "% of time", points(|f| 100.0 * f.wait));
    }
    let worst = |subject: &str| {
        let kept = cases.iter().map(|case| of(found, subject, *case, |f| f.kept));
        kept.fold(f64::INFINITY, f64::min)
    };
    let change = |subject: &str, crowd, event, flood| {
        of(found, subject, Case { crowd, event, flood }, |f| f.delta)
    };
    let kept = "Over all cases the victim keeps of min(what it can do alone, what it bought).";
    outcome.claim(
        Claim::new("c2qos_victim_kept_pct", kept, "%").at_least(99.0).measured(worst("c2qos")),
    );
    let shown = [
        ("bps_victim_kept_pct", "The same under our own `bps`.", worst("bps")),
        (
            "bps_victim_delta_pct",
            "One VM turns to 64-byte frames at its bit rate: the victim's rate under `bps`.",
            change("bps", 1, Event::Size, false),
        ),
        (
            "c2qos_size_event_victim_delta_pct",
            "The same under C2QoS.",
            change("c2qos", 1, Event::Size, false),
        ),
        (
            "c2qos_flow_event_victim_delta_pct",
            "One VM turns to 100,000 flows at its frame rate, under C2QoS.",
            change("c2qos", 1, Event::Flows, false),
        ),
    ];
    for (id, statement, value) in shown {
        outcome.claim(Claim::new(id, statement, "%").measured(value));
    }
    if with_peer {
        outcome.beside(OVS_DPDK, "c2qos_victim_kept_pct", worst(OVS_DPDK));
        outcome.beside(OVS_DPDK, "bps_victim_kept_pct", worst(OVS_DPDK));
        for id in ["bps_victim_delta_pct", "c2qos_size_event_victim_delta_pct"] {
            outcome.beside(OVS_DPDK, id, change(OVS_DPDK, 1, Event::Size, false));
        }
        let flows = change(OVS_DPDK, 1, Event::Flows, false);
        outcome.beside(OVS_DPDK, "c2qos_flow_event_victim_delta_pct", flows);
    }
    anyhow::ensure!(!found.is_empty(), "nothing was measured");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggressors_that_stay_at_what_they_bought_keep_their_bits_or_their_frames() {
        let case = |event, flood| Case { crowd: 1, event, flood };
        let Rate::Frames(small) = case(Event::Both, false).offer(1000.0).rate else { panic!() };
        assert!((small * bytes(64) - OVER * 1000.0 * bytes(SIZE)).abs() < 1e-6);
        assert_eq!(case(Event::Flows, false).offer(1000.0).rate, Rate::Frames(OVER * 1000.0));
        assert_eq!(case(Event::Size, true).offer(1000.0).rate, Rate::Max);
        assert_eq!(Case::all().count(), 12);
    }

    #[test]
    fn everybody_in_the_crowd_bought_a_part_and_all_parts_are_one() {
        for crowd in CROWDS {
            let cycles = |share: f64, weight| Bound {
                policy: Policy::Minmax,
                cycles: share,
                weight,
                ..Bound::default()
            };
            let plan = plan("hbs", crowd, cycles);
            let sold: f64 = plan.vms.iter().map(|vm| vm.bound.cycles).sum();
            assert!((1.0..1.001).contains(&sold), "{sold}");
        }
    }
}
