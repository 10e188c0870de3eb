//! Live experiment for C2QoS Fig. 13, in which VMs compete for the link, not for the core.
//!
//! # Problem
//!
//! VM1 bought a bit rate for frames of 128 bytes, and therefore the cycles that these frames cost.
//! VM2 bought three times VM1's bit rate, for frames of 1024 bytes. In the middle of a run, VM1
//! changes to frames of 1518 bytes, which cost fewer cycles per bit. With its purchased cycles, VM1
//! can send so many large frames that the uplink is full.
//!
//! # Source
//!
//! The experiment replays C2QoS §VII and Fig. 13.
//!
//! # Approach
//!
//! - A VM represents the uplink. The uplink's VM empties its ring only as fast as a link of the
//!   given rate would carry the frames. Preamble and gap add 20 bytes to each frame.
//! - The cycles per frame of each size are measured just before and just after a run
//!   ([`super::bracket`]).
//! - The worker may spend the fraction [`CORE_PART`] of its core's cycles. VM1 and VM2 together buy
//!   90 % of the worker's cycles. The link's rate is 15 % above the sum of the purchased bit rates.
//! - Each run starts a new switch. Half of the runs set `link` in the switch's configuration. The
//!   key `link` enables C2QoS's handler of bottlenecks, which must restore VM2's rate.
//! - In the middle of a run, VM1 changes to 1518-byte frames and sends as fast as it can, which is
//!   the *event*. Throughout the run, VM2 offers 2 % more than it bought.
//!
//! # Cost
//!
//! A run takes about 30 s on a quiet machine.

use serde_json::json;

use super::bracket::{Doubt, LOAD, Tally, Turns, doubt, judge};
use super::noisy::CORE_PART;
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::fleet::Offer;
use crate::rig::plan::{Bound, Plan, Policy, Vm};
use crate::rig::stats::middle;
use crate::rig::{Rig, Span, platform};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

/// Fraction of the worker's capacity that the two VMs buy.
const SOLD: f64 = 0.9;
/// Rate of the link, as a multiple of the sum of the two purchased bit rates.
const LINK: f64 = 1.15;
/// Rate that a VM offers with frames of the size that it declared, as a multiple of its purchase.
const OVER: f64 = 1.02;
/// Frame sizes in bytes: declared by VM1, declared by VM2, and sent by VM1 after the event.
const SIZES: [u16; 3] = [128, 1024, 1518];
/// VM2's purchase, as a multiple of VM1's purchase.
const RATIO: f64 = 3.0;
/// Warm-up and length of a measurement of a frame's cost.
const COST: Span = Span { warm: 0.03, secs: 0.12, parts: 3 };
/// Seconds between two points of the curves.
const STEP: f64 = 0.1;
/// VM2 has recovered if its rate is within this percentage of its rate before the event.
const RECOVERED: f64 = 2.0;

/// Returns the number of bits of a frame, FCS included.
fn bits(size: u16) -> f64 {
    f64::from(size) * 8.0
}

/// Purchases of VM1 and VM2, in bits per second (FCS included) and in cycles per second.
#[derive(Debug, Clone, Copy)]
struct Sale {
    bits: [f64; 2],
    cycles: [f64; 2],
    link: f64,
    /// Cycles per second that the worker may spend.
    capacity: f64,
}

impl Sale {
    /// Calculates the purchases of VM1 and VM2 from the costs of frames. `frame` contains the
    /// cycles that one frame of each size in [`SIZES`] costs. `capacity` is in cycles per second.
    fn new(frame: [f64; 3], capacity: f64) -> Self {
        let per_bit = [frame[0] / bits(SIZES[0]), frame[1] / bits(SIZES[1])];
        let first = SOLD * capacity / (per_bit[0] + RATIO * per_bit[1]);
        let bits = [first, RATIO * first];
        let on_link = |vm: usize| bits[vm] * (1.0 + 20.0 * 8.0 / self::bits(SIZES[vm]));
        let cycles = [bits[0] * per_bit[0], bits[1] * per_bit[1]];
        Self { bits, cycles, link: (LINK * (on_link(0) + on_link(1))).round(), capacity }
    }

    fn offer(&self, vm: usize) -> Offer {
        let pps = OVER * self.bits[vm] / bits(SIZES[vm]);
        Offer { size: SIZES[vm].into(), flows: 1, rate: Rate::Frames(pps) }
    }

    fn plan(&self, handler: bool) -> Plan {
        let vm = |vm: usize| {
            let (cycles, weight) = (self.cycles[vm], if vm == 0 { 1 } else { 3 });
            let bound = Bound { policy: Policy::Minmax, cycles, weight, ..Bound::default() };
            let contract = format!(
                "contract = {{ rate = \"{:.0}\", size = {}, flows = \"single\" }}\n",
                self.bits[vm], SIZES[vm]
            );
            Vm { more: contract, ..Vm::sender(format!("vm{}", vm + 1), "uplink", bound) }
        };
        let link = if handler { format!("link = {:.0}\n", self.link) } else { String::new() };
        let uplink = Vm { more: link, drains: self.link, shared: true, ..Vm::sink("uplink") };
        let mut plan = Plan::new("hbs", vec![vm(0), vm(1), uplink]);
        plan.worker = format!("capacity = {:.0}\n", self.capacity);
        plan
    }
}

/// Starts a switch without limits, on which the costs of frames are measured.
fn scales(bed: &Bed) -> anyhow::Result<Rig> {
    let vms = vec![Vm::sender("vm1", "uplink", Bound::default()), Vm::sink("uplink")];
    let mut plan = Plan::new("round-robin", vms);
    plan.worker = format!("capacity = {:.0}\n", CORE_PART * bed.tsc_hz());
    Rig::ours(bed, "costs", &plan)
}

/// Costs of frames that one calibration measured.
#[derive(Debug, Clone, Copy)]
struct Costs {
    /// Cycles per frame for each size in [`SIZES`].
    cycles: [f64; 3],
    doubt: Option<Doubt>,
}

/// Rates of VM1 and VM2 in bits per second, in each [`STEP`] of a run. In the middle of the run,
/// VM1 changes to larger frames.
#[derive(Debug, Clone, Default)]
struct Curves {
    vms: [Vec<f64>; 2],
    doubt: Option<Doubt>,
}

/// Runs and calibrations of the experiment, which alternate.
#[derive(Debug)]
struct Runs<'a> {
    bed: &'a Bed,
    scales: &'a mut Rig,
    handler: bool,
    secs: f64,
}

impl Turns for Runs<'_> {
    type Speed = Costs;
    type Found = Curves;

    fn calibrate(&mut self) -> anyhow::Result<Costs> {
        let bed = self.bed;
        self.scales.awake(|rig| {
            let mut costs = Costs { cycles: [0.0; 3], doubt: None };
            for (cost, size) in costs.cycles.iter_mut().zip(SIZES) {
                let greedy = Offer { size: size.into(), flows: 1, rate: Rate::Max };
                let offers = [("vm1".to_owned(), greedy)];
                let (found, window) = rig.cost(bed, &offers, COST)?;
                *cost = found.cycles;
                // If no frame moved, its cost is unknown, and purchases cannot be computed.
                let none = (found.cycles <= 0.0).then_some(Doubt::GeneratorShort);
                costs.doubt = costs.doubt.or(none).or_else(|| doubt(&window, &offers));
            }
            Ok(costs)
        })
    }

    fn measure(&mut self, by: &Costs) -> anyhow::Result<Curves> {
        let name = if self.handler { "handler" } else { "no-handler" };
        let sale = Sale::new(by.cycles, CORE_PART * self.bed.tsc_hz());
        let mut rig = Rig::ours(self.bed, name, &sale.plan(self.handler))?;
        let (bed, secs) = (self.bed, self.secs);
        let mut curves = Curves::default();
        rig.switch.resume()?;
        let flood = Offer { size: SIZES[2].into(), flows: 1, rate: Rate::Max };
        for (first, warm) in [(sale.offer(0), 0.4), (flood, 0.0)] {
            let offers = [("vm1".to_owned(), first), ("vm2".to_owned(), sale.offer(1))];
            let window = rig.once(bed, &offers, Span { warm, secs, parts: parts(secs) })?;
            curves.doubt = curves.doubt.or_else(|| doubt(&window, &offers));
            for (curve, sent) in curves.vms.iter_mut().zip(&window.senders) {
                curve.extend(&sent.parts);
            }
        }
        // `rig` is dropped here while its switch runs, because a paused daemon cannot exit.
        Ok(curves)
    }

    fn speed(of: &Costs) -> f64 {
        of.cycles.iter().sum()
    }

    fn doubt_speed(of: &Costs) -> Option<Doubt> {
        of.doubt
    }

    fn doubt(found: &Curves) -> Option<Doubt> {
        found.doubt
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred")]
fn parts(secs: f64) -> u32 {
    (secs / STEP).round() as u32
}

/// Returns the effect of the event on VM2: the change of its rate in percent, and the seconds until
/// its rate stays recovered. The change of VM2's rate is the difference between the medians of the
/// last quarter and of the first half of `curve`.
fn effect(curve: &[f64]) -> (f64, f64) {
    let (before, after) = curve.split_at(curve.len() / 2);
    let normal = middle(before);
    let change = |rate: f64| 100.0 * (rate / normal - 1.0);
    // A single low point may be the machine's fault, so only two in a row count.
    let low = |pair: &[f64]| pair.iter().all(|rate| change(*rate) < -RECOVERED);
    let last_low = after.windows(2).rposition(low);
    let points = last_low.map_or(0, |at| u32::try_from(at + 2).unwrap_or(u32::MAX));
    (change(middle(&after[after.len() / 2..])), f64::from(points) * STEP)
}

/// Runs the live experiment of C2QoS Fig. 13.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(1.5).max(0.8);
    let wanted = context.live.runs.unwrap_or(2);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("worker_capacity_of_core", CORE_PART);
    let mut scales = scales(&bed)?;
    let mut tally = Tally::default();
    let mut effects = [const { Vec::new() }; 2];
    for (nth, (handler, name)) in [(false, "without"), (true, "with")].into_iter().enumerate() {
        context.progress(if handler { 0.5 } else { 0.0 }, format_args!("{name} the handler"));
        let mut runs = Runs { bed: &bed, scales: &mut scales, handler, secs };
        let judged = judge(&mut runs, (wanted, LOAD), &mut tally)?;
        effects[nth] = judged.iter().map(|judged| effect(&judged.found.vms[1])).collect();
        if let Some(first) = judged.first() {
            let sale = Sale::new(first.before.cycles, CORE_PART * bed.tsc_hz());
            let sold = json!({ "cycles_per_frame": first.before.cycles, "sizes": SIZES,
                "link_gbps": sale.link / 1e9, "vm1_gbps": sale.bits[0] / 1e9,
                "vm2_gbps": sale.bits[1] / 1e9 });
            outcome.note(&format!("sold_{name}_handler"), sold);
            for (vm, curve) in ["vm1", "vm2"].into_iter().zip(&first.found.vms) {
                let at = (1_u32..).map(|i| f64::from(i) * STEP);
                let points = at.zip(curve.iter().map(|bits| bits / 1e9));
                outcome.series(&format!("{name} handler {vm}"), "Gbit/s", points);
            }
        }
    }
    scales.switch.resume()?;
    let of = |nth: usize, what: fn(&(f64, f64)) -> f64| {
        middle(&effects[nth].iter().map(what).collect::<Vec<_>>())
    };
    let claims = [
        (
            "without_handler_victim_delta_pct",
            "Change of VM2's rate after the event, without the handler.",
            "%",
            of(0, |e| e.0),
        ),
        (
            "with_handler_victim_delta_pct",
            "Change of VM2's rate after the event, with the handler.",
            "%",
            of(1, |e| e.0),
        ),
        ("recovery_s", "Time until VM2 has its rate again.", "s", of(1, |e| e.1)),
    ];
    for (id, statement, unit, value) in claims {
        outcome.claim(Claim::new(id, statement, unit).measured(value));
    }
    for claim in tally.claims() {
        outcome.claim(claim);
    }
    outcome.note("windows", tally.told("cycles of one frame of each size"));
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_and_six_parts_are_ninety_percent_of_the_core() {
        let sale = Sale::new([120.0, 250.0, 320.0], 2e9);
        assert!((sale.cycles[0] + sale.cycles[1] - 1.8e9).abs() < 1.0);
        assert!((sale.bits[1] / sale.bits[0] - 3.0).abs() < 1e-9);
        // The event fills the link: VM1's cycles buy frames of 1518 bytes, in addition to VM2's
        // rate.
        let event = sale.cycles[0] / 320.0 * bits(1518) + sale.bits[1];
        assert!(event > sale.link, "{event} {}", sale.link);
    }

    #[test]
    fn an_effect_has_a_depth_and_an_end() {
        let mut curve = vec![6.0; 20];
        curve.extend([5.0, 5.0, 5.0, 5.9, 6.0, 5.0]);
        curve.extend([6.0; 14]);
        let (change, recovery) = effect(&curve);
        assert!(change.abs() < 1e-9);
        assert!((recovery - 0.3).abs() < 1e-9, "{recovery}");
    }
}
