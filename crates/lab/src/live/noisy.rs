//! Live experiment for C2QoS Fig. 1: a victim and aggressors on one worker core.
//!
//! # Problem
//!
//! VMs together buy 90 % of the core's measured capacity. All VMs declare frames of 512 bytes in
//! one flow. The *victim* buys four fifths of the sold capacity, and sends 5 % more than it bought.
//! The other fifth of the sold capacity belongs to one *aggressor*, or to three aggressors
//! together. In each measured case, the aggressors change their traffic: to 64-byte frames, to
//! 100,000 flows, or to both. The aggressors send as fast as their rings accept frames, or 5 % more
//! than they bought. An aggressor with small frames exceeds its purchase by 5 % in bits per second,
//! and other aggressors by 5 % in frames per second.
//!
//! # Source
//!
//! The experiment replays C2QoS §II-B and Fig. 1, and also measures OVS-DPDK with
//! `ingress_policing_rate`.
//!
//! # Approach
//!
//! Each window lies between two calibrations ([`super::bracket`]). In a calibration, the victim and
//! one aggressor send their declared traffic as fast as the switch accepts frames. During a
//! calibration, no VM has a limit in bits. In the second part of a calibration, the victim sends
//! alone. The purchases of all VMs add up to 90 % of the rate that the victim and the aggressor
//! reached in the calibration.
//!
//! - Under C2QoS, a purchase is a fixed fraction of the worker's cycles during the whole run. To
//!   convert a purchase to frames, the run takes the mean of the two calibrations around a window.
//! - Under `bps` and on OVS-DPDK, a purchase is a bit rate. Each calibration sets new limits in
//!   bits per second.
//!
//! The victim must keep its purchase. If the victim reaches less than its purchase while it sends
//! alone, it must keep the rate that it reaches alone.
//!
//! Each switch has its own calibration, so the promise to the victim is different on each switch.
//! The experiment measures three switches (*subjects*) in turn:
//! - The first switch is Penstock with the policy `cycles-minmax` and the schedule `hbs`.
//! - The second switch is Penstock with the policy `bps` and the schedule `round-robin`.
//! - The third switch is OVS-DPDK, which is called the *peer*.
//!
//! Penstock does not know the aggressors' traffic in advance. All VMs are in one latency class. The
//! victim's weight for spare cycles is 40. The weight of a single aggressor is 10, and the weight
//! of each of three aggressors is 3.
//!
//! # The generator
//!
//! The generator plays all VMs from one core and must be faster than the switch. Under both
//! policies, Penstock's worker may therefore spend only the fraction [`CORE_PART`] of its core.
//! OVS-DPDK may use its whole core, but needs more cycles per frame than Penstock. The rings show
//! whether the generator was fast enough. The generator was too slow if, in most turns, a due frame
//! was not published although the ring had room. A window in which the generator was too slow is
//! not judged.
//!
//! # Cost
//!
//! On a quiet machine, a run measures about 130 windows of 0.25 s, each with a calibration of about
//! the same length.

use serde_json::json;

use super::bracket::{Doubt, Judged, LOAD, Rule, Tally, Turns, doubt, judge};
use crate::evidence::{Claim, Context, OVS_DPDK, Outcome};
use crate::rig::fleet::{self, Offer};
use crate::rig::ovs;
use crate::rig::plan::{Bound, Plan, Policy, Vm};
use crate::rig::stats::middle;
use crate::rig::{Rig, Span, platform};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

/// Frame size that all VMs declare, in bytes.
const SIZE: u16 = 512;
/// Fraction of its core's cycles that Penstock's worker may spend.
pub(super) const CORE_PART: f64 = 0.5;
/// Fraction of the calibrated rate that all VMs together buy.
const SOLD: f64 = 0.9;
/// The victim's purchase, as a fraction of all purchases.
const VICTIM: f64 = 0.8;
/// Rate that a VM with its declared traffic offers, as a multiple of its purchase.
const OVER: f64 = 1.05;
/// Number of flows that an aggressor sends if the event increases its flows.
const MANY: u32 = 100_000;
/// Numbers of aggressors in the two halves of a run.
const CROWDS: [usize; 2] = [1, 3];
const MOST: usize = 3;
/// Seconds for which the load runs before counting starts: in a calibration, and in a window.
const WARM_SECS: [f64; 2] = [0.03, 0.08];
/// Seconds of the two parts of a calibration: with both VMs at full speed, and with the victim
/// alone.
const CALIBRATION_SECS: [f64; 2] = [0.15, 0.08];
/// Factor by which calibrations are longer if disturbed windows count.
const ROUGH_LONGER: f64 = 4.0;

/// Change of the aggressors' traffic: smaller frames, more flows, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Size,
    Flows,
    Both,
}

/// A measured case: the number of aggressors, the change of their traffic, and whether the
/// aggressors send without a rate limit.
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

    /// Returns the load of an aggressor that bought `pps` frames per second of the declared size.
    pub fn offer(self, pps: f64) -> Offer {
        let small = self.event != Event::Flows;
        let size = if small { 64 } else { SIZE };
        let flows = if self.event == Event::Size { 1 } else { MANY };
        let same_bits = if small { bytes(SIZE) / bytes(64) } else { 1.0 };
        let rate = if self.flood { Rate::Max } else { Rate::Frames(OVER * pps * same_bits) };
        Offer { size: size.into(), flows, rate }
    }
}

/// Returns the number of bytes in the ring for a frame of `size` bytes. A frame in the ring is 4
/// bytes shorter, because it has no FCS.
fn bytes(size: u16) -> f64 {
    f64::from(size) - 4.0
}

/// Converts frames of the declared size per second to Gbit/s.
fn gbps(pps: f64) -> f64 {
    pps * bytes(SIZE) * 8.0 / 1e9
}

/// Names of the measured switches, in the order of their measurements.
const SUBJECTS: [&str; 3] = ["c2qos", "bps", OVS_DPDK];

/// Result of a calibration: the rates that VMs with declared traffic reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speed {
    /// Frames per second that the victim and one aggressor reached together, with declared traffic
    /// at full speed.
    pps: f64,
    /// Frames per second that the victim reached alone. The victim offered 5 % more than its
    /// purchase.
    solo_pps: f64,
    doubt: Option<Doubt>,
}

impl Speed {
    /// Returns the victim's purchase, in frames per second.
    fn victim_pps(&self) -> f64 {
        VICTIM * SOLD * self.pps
    }

    /// Returns the purchase of all aggressors together, in frames per second.
    fn noisy_pps(&self) -> f64 {
        (1.0 - VICTIM) * SOLD * self.pps
    }
}

fn noisy(i: usize) -> String {
    format!("noisy{}", i + 1)
}

fn plan(schedule: &str, crowd: usize, bound: impl Fn(f64, u16) -> Bound) -> Plan {
    let mut vms = vec![Vm::sender("victim", "s2", bound(VICTIM, 40))];
    for i in 0..MOST {
        // An unused aggressor buys a tiny part and sends nothing.
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
    Offer { size: SIZE.into(), flows: 1, rate: Rate::Frames(OVER * pps) }
}

/// A running switch that is measured, with its VMs. [`SUBJECTS`] lists the names of the measured
/// switches.
#[derive(Debug)]
pub(super) struct Subject {
    name: &'static str,
    pub rig: Rig,
    crowd: usize,
    pub tally: Tally,
    /// For each window: the fractions of its time for which the worker and the generator waited for
    /// a core. The list of waits also includes windows that were not judged.
    pub waits: Vec<[f64; 2]>,
}

impl Subject {
    /// Returns whether purchases are bit rates, and not cycles.
    fn sells_bits(&self) -> bool {
        self.name != SUBJECTS[0]
    }

    /// Converts frames per second to a limit of the switch's policer, in bits per second.
    fn bits(&self, pps: f64) -> f64 {
        // The peer's policer counts neither the 14 bytes of Ethernet header nor the FCS.
        let counted = if self.name == OVS_DPDK { bytes(SIZE) - 14.0 } else { f64::from(SIZE) };
        pps * counted * 8.0
    }

    /// Sets limits in bits according to the calibration `by`. If `by` is `None`, the function
    /// removes the limits. If purchases are cycles and not bit rates, the function does nothing.
    fn limit(&mut self, by: Option<&Speed>) -> anyhow::Result<()> {
        if !self.sells_bits() {
            return Ok(());
        }
        let each = by.map(|by| self.bits(by.noisy_pps() / crowd_f64(self.crowd)));
        self.rig.switch.limit("victim", by.map(|by| self.bits(by.victim_pps())))?;
        (0..self.crowd).try_for_each(|i| self.rig.switch.limit(&noisy(i), each))
    }

    /// Returns the victim's purchase in frames per second, according to the calibrations around a
    /// window.
    fn bought_pps(&self, judged: &Window) -> f64 {
        let (before, after) = (judged.before.victim_pps(), judged.after.victim_pps());
        if self.sells_bits() { before } else { f64::midpoint(before, after) }
    }

    /// Returns the victim's rate, in percent of the rate that the victim must keep.
    pub fn kept(&self, judged: &Window) -> anyhow::Result<f64> {
        let solo = f64::midpoint(judged.before.solo_pps, judged.after.solo_pps);
        let due = self.bought_pps(judged).min(solo);
        Ok(100.0 * judged.found.window.sender("victim")?.pps / due)
    }

    /// Returns the possible error of a window's result, in percent. A window's result can be wrong
    /// because the calibrations around the window differ, or because a thread waited for a core.
    pub fn unsure(&self, judged: &Window) -> f64 {
        let speeds = [judged.before.pps, judged.after.pps];
        let (low, high) = (speeds[0].min(speeds[1]), speeds[0].max(speeds[1]));
        100.0 * (high / low - 1.0 + judged.found.window.wait())
    }

    /// Returns the victim's purchase in Gbit/s, counted in the same way as the victim's throughput.
    pub fn bought_gbps(&self, judged: &Window) -> f64 {
        gbps(self.bought_pps(judged))
    }

    /// Returns the victim's throughput in Gbit/s.
    pub fn victim_gbps(&self, judged: &Window) -> anyhow::Result<f64> {
        Ok(gbps(judged.found.window.sender("victim")?.pps))
    }

    /// Measures windows of `secs` seconds until `wanted` windows are judged, or until the rule
    /// allows no further attempt. If `case` is `None`, all VMs send their declared traffic.
    pub fn windows(
        &mut self,
        bed: &Bed,
        case: Option<Case>,
        (secs, wanted): (f64, u32),
        rule: Rule,
    ) -> anyhow::Result<Vec<Window>> {
        let mut tally = Tally::default();
        let longer = if rule.rough { ROUGH_LONGER } else { 1.0 };
        self.rig.switch.resume()?;
        let judged =
            judge(&mut Bout { bed, subject: self, case, secs, longer }, (wanted, rule), &mut tally);
        self.rig.switch.pause()?;
        self.tally.add(&tally);
        judged
    }
}

pub(super) type Window = Judged<Speed, Seen>;

/// Measurements of a window, and the traffic that each VM offered in the window.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub window: fleet::Window,
    offers: Vec<(String, Offer)>,
}

/// Measures one case on one switch.
#[derive(Debug)]
struct Bout<'a> {
    bed: &'a Bed,
    subject: &'a mut Subject,
    case: Option<Case>,
    secs: f64,
    /// Factor by which calibrations are longer than [`CALIBRATION_SECS`].
    longer: f64,
}

impl Turns for Bout<'_> {
    type Speed = Speed;
    type Found = Seen;

    fn calibrate(&mut self) -> anyhow::Result<Speed> {
        let greedy = Offer { size: SIZE.into(), flows: 1, rate: Rate::Max };
        let both = vec![("victim".to_owned(), greedy.clone()), (noisy(0), greedy)];
        self.subject.limit(None)?;
        let mut window = |offers: &[(String, Offer)], secs| {
            let span = Span { warm: WARM_SECS[0], secs, parts: 3 };
            self.subject.rig.once(self.bed, offers, span)
        };
        let all = window(&both, self.longer * CALIBRATION_SECS[0])?;
        let mut speed = Speed { pps: all.pps(), solo_pps: 0.0, doubt: doubt(&all, &both) };
        let alone = vec![("victim".to_owned(), well_behaved(speed.victim_pps()))];
        let solo = window(&alone, self.longer * CALIBRATION_SECS[1])?;
        speed.solo_pps = solo.pps();
        speed.doubt = speed.doubt.or_else(|| doubt(&solo, &alone));
        Ok(speed)
    }

    fn measure(&mut self, by: &Speed) -> anyhow::Result<Seen> {
        self.subject.limit(Some(by))?;
        let crowd = self.subject.crowd;
        let each = by.noisy_pps() / crowd_f64(crowd);
        let offer = self.case.map_or_else(|| well_behaved(each), |case| case.offer(each));
        let mut offers = vec![("victim".to_owned(), well_behaved(by.victim_pps()))];
        offers.extend((0..crowd).map(|i| (noisy(i), offer.clone())));
        let span = Span { warm: WARM_SECS[1], secs: self.secs, parts: 5 };
        let window = self.subject.rig.once(self.bed, &offers, span)?;
        self.subject.waits.push([window.worker_wait, window.generator_wait]);
        Ok(Seen { window, offers })
    }

    fn speed(of: &Speed) -> f64 {
        // If no frame of the victim alone passed, the calibration is useless.
        if of.solo_pps > 0.0 { of.pps } else { 0.0 }
    }

    fn doubt_speed(of: &Speed) -> Option<Doubt> {
        of.doubt
    }

    fn doubt(found: &Seen) -> Option<Doubt> {
        doubt(&found.window, &found.offers)
    }
}

/// Starts Penstock for `crowd` aggressors. The worker may spend the fraction `core_part` of its
/// core. The argument `name` is the switch's name in [`SUBJECTS`], `c2qos` or `bps`.
pub(super) fn ours(
    bed: &Bed,
    name: &'static str,
    (crowd, core_part): (usize, f64),
) -> anyhow::Result<Subject> {
    let capacity = (core_part * bed.tsc_hz()).round();
    let mut plan = if name == SUBJECTS[0] {
        plan("hbs", crowd, |share, weight| Bound {
            policy: Policy::Minmax,
            cycles: share * SOLD * capacity,
            weight,
            ..Bound::default()
        })
    } else {
        plan("round-robin", crowd, |_, _| Bound::default())
    };
    plan.worker = format!("capacity = {capacity:.0}\n");
    let rig = Rig::ours(bed, name, &plan)?;
    Ok(Subject { name, rig, crowd, tally: Tally::default(), waits: Vec::new() })
}

fn peer(bed: &Bed) -> anyhow::Result<Subject> {
    let rig = Rig::peer(bed, "ovs", &plan("", 1, |_, _| Bound::default()))?;
    let (tally, waits) = (Tally::default(), Vec::new());
    Ok(Subject { name: OVS_DPDK, rig, crowd: 1, tally, waits })
}

/// Result of one case on one switch in one window.
#[derive(Debug, Clone)]
struct Found {
    subject: &'static str,
    case: Case,
    /// The victim's rate, in percent of the rate that the victim must keep.
    kept: f64,
    /// Change of the victim's rate in percent, compared with its rate while all VMs send their
    /// declared traffic.
    delta: f64,
    /// Lowest fraction of the turns in which an aggressor found its ring full, among all
    /// aggressors.
    full: f64,
    /// Fraction of the window's time spent waiting for a core, as in [`fleet::Window`].
    wait: f64,
}

/// Runs the live experiment of C2QoS Fig. 1.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let with_peer = context.live.peer.is_some();
    if with_peer {
        ovs::check()?;
    }
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let windows = (context.live.secs.unwrap_or(0.25), context.live.runs.unwrap_or(3));
    let mut outcome = Outcome { platform: platform(&bed, with_peer), ..Outcome::default() };
    outcome.note("worker_capacity_of_core", CORE_PART);
    outcome.note("sold_of_calibrated_percent", 100.0 * SOLD);
    let mut other = if with_peer { Some(peer(&bed)?) } else { None };
    let mut found = Vec::new();
    let mut tallies = vec![Tally::default(); SUBJECTS.len()];
    for (nth, crowd) in CROWDS.into_iter().enumerate() {
        let mut subjects = ["c2qos", "bps"]
            .map(|name| ours(&bed, name, (crowd, CORE_PART)))
            .into_iter()
            .collect::<anyhow::Result<Vec<_>>>()?;
        if let Some(mut peer) = other.take() {
            peer.crowd = crowd;
            subjects.push(peer);
        }
        let draw = (nth == 0).then_some(&mut outcome);
        all_cases((context, nth), &bed, &mut subjects, windows, &mut found, draw)?;
        // A paused daemon cannot exit.
        for (mut subject, tally) in subjects.into_iter().zip(&mut tallies) {
            tally.add(&std::mem::take(&mut subject.tally));
            subject.rig.switch.resume()?;
            if subject.name == OVS_DPDK {
                subject.rig.switch.pause()?;
                other = Some(subject);
            }
        }
    }
    conclude(&mut outcome, &found, with_peer)?;
    tell(&mut outcome, &tallies, with_peer);
    Ok(outcome)
}

/// Measures all cases that have the same number of aggressors, each case on all switches. If `draw`
/// is set, the function adds the curves of the windows to `draw`.
fn all_cases(
    (context, nth): (&Context<'_>, usize),
    bed: &Bed,
    subjects: &mut [Subject],
    windows: (f64, u32),
    found: &mut Vec<Found>,
    mut draw: Option<&mut Outcome>,
) -> anyhow::Result<()> {
    let mut before = Vec::new();
    for subject in subjects.iter_mut() {
        before.push(subject.windows(bed, None, windows, LOAD)?);
    }
    let cases: Vec<Case> = Case::all().filter(|case| case.crowd == CROWDS[nth]).collect();
    for (at, case) in cases.iter().enumerate() {
        let done = (crowd_f64(nth) + crowd_f64(at) / crowd_f64(cases.len())) / 2.0;
        context.progress(done, case.name());
        for (subject, before) in subjects.iter_mut().zip(&before) {
            let after = subject.windows(bed, Some(*case), windows, LOAD)?;
            let kept = |judged| subject.kept(judged);
            let normal = before.iter().map(kept).collect::<anyhow::Result<Vec<_>>>()?;
            for judged in &after {
                found.push(of_window(subject, *case, middle(&normal), judged)?);
            }
            if let Some(outcome) = &mut draw
                && (case.event, case.flood) == (Event::Size, false)
            {
                curves(outcome, subject, [before, &after], windows.0)?;
            }
        }
    }
    Ok(())
}

fn of_window(subject: &Subject, case: Case, normal: f64, judged: &Window) -> anyhow::Result<Found> {
    let window = &judged.found.window;
    let kept = subject.kept(judged)?;
    let aggressors = window.senders.iter().filter(|s| s.name.starts_with("noisy"));
    let full = aggressors.take(subject.crowd).map(|sender| sender.full);
    Ok(Found {
        subject: subject.name,
        case,
        kept,
        delta: 100.0 * (kept / normal - 1.0),
        full: full.fold(f64::INFINITY, f64::min),
        wait: window.wait(),
    })
}

/// Draws the windows before and after the aggressors change to 64-byte frames as one curve, without
/// a gap.
fn curves(
    outcome: &mut Outcome,
    subject: &Subject,
    windows: [&[Window]; 2],
    secs: f64,
) -> anyhow::Result<()> {
    let all = || windows.into_iter().flatten();
    let curve = |outcome: &mut Outcome, name: &str, bits: Vec<f64>, step: f64| {
        let points = (1_u32..).map(|i| f64::from(i) * step).zip(bits);
        outcome.series(&format!("{} {name}", subject.name), "Gbit/s", points);
    };
    for vm in ["victim", "noisy1"] {
        let (mut bits, mut step) = (Vec::new(), secs);
        for judged in all() {
            let parts = &judged.found.window.sender(vm)?.parts;
            step = secs / crowd_f64(parts.len().max(1));
            bits.extend(parts.iter().map(|bits| bits / 1e9));
        }
        curve(outcome, vm, bits, step);
    }
    let bought = all().map(|judged| subject.bought_gbps(judged)).collect();
    curve(outcome, "victim bought", bought, secs);
    Ok(())
}

/// Reports the numbers of judged and repeated windows, with the reasons for repetitions.
fn tell(outcome: &mut Outcome, tallies: &[Tally], with_peer: bool) {
    for (subject, tally) in SUBJECTS.into_iter().zip(tallies) {
        if subject != OVS_DPDK || with_peer {
            let name = format!("windows_{}", subject.replace('-', "_"));
            outcome.note(&name, tally.told("frames/s"));
        }
    }
    let mut all = Tally::default();
    tallies.iter().for_each(|tally| all.add(tally));
    for claim in all.claims() {
        outcome.claim(claim);
    }
}

/// Returns the median of `what` over all windows of one case on one switch.
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
        kept.fold(f64::INFINITY, nan_min)
    };
    let change = |subject: &str, crowd, event, flood| {
        of(found, subject, Case { crowd, event, flood }, |f| f.delta)
    };
    let kept =
        "The least part that the victim keeps of its purchase, or of its rate alone if smaller.";
    let claim = Claim::new("c2qos_victim_kept_pct", kept, "%");
    outcome.claim(claim.at_least(99.0).measured(worst("c2qos")));
    let shown = [
        (
            "bps_victim_kept_pct",
            "The least part that the victim keeps under our own `bps`.",
            worst("bps"),
        ),
        (
            "bps_victim_delta_pct",
            "The victim's change under `bps` if one VM turns to 64-byte frames at its bit rate.",
            change("bps", 1, Event::Size, false),
        ),
        (
            "c2qos_size_event_victim_delta_pct",
            "The victim's change under C2QoS if one VM turns to 64-byte frames at its bit rate.",
            change("c2qos", 1, Event::Size, false),
        ),
        (
            "c2qos_flow_event_victim_delta_pct",
            "The victim's change under C2QoS if one VM turns to 100,000 flows at its frame rate.",
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
    anyhow::ensure!(!found.is_empty(), "no window was judged; run it again on a quieter machine");
    Ok(())
}

/// Returns the smaller value, or NaN if one of the values is NaN. A claim with the value NaN fails,
/// for example because a case was not measured.
pub(super) fn nan_min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
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
    fn a_case_without_a_judged_window_is_not_dropped_from_the_worst_of_all() {
        let case = Case::all().next().unwrap();
        let one = Found { subject: "c2qos", case, kept: 100.0, delta: 0.0, full: 1.0, wait: 0.0 };
        let mut outcome = Outcome::new();
        conclude(&mut outcome, &[one], false).unwrap();
        let claim = outcome.claims.iter().find(|c| c.id == "c2qos_victim_kept_pct").unwrap();
        assert_eq!((claim.measured, claim.holds), (None, Some(false)));
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
