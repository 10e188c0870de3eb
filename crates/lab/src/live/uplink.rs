//! C2QoS Fig. 13, live: the link, and not the core, is what VMs compete for.
//!
//! **Problem.** VM1 bought 2 parts at 128 bytes, VM2 6 parts at 1024 bytes. Then VM1 sends frames
//! of 1518 bytes: out of the cycles it bought it gets so many bits that the uplink is full.
//!
//! **Source.** C2QoS §VII and Fig. 13.
//!
//! **Rule.** The stand-in of the uplink is a VM that empties its ring no faster than a link of the
//! given rate would carry the frames (24 bytes each for FCS, preamble and gap). What cycles a frame
//! of each profile costs is measured first; the two parts are scaled so that they are 90 % of the
//! core; the link is 15 % above what was sold. The same switch runs without and with `link` in its
//! configuration, which switches the handler on. VM1 floods after the event, VM2 offers 2 % more
//! than it bought throughout.
//!
//! **Cost.** About 20 s.

use serde_json::json;

use super::fleet::{Offer, middle};
use super::plan::{Bound, Plan, Policy, Vm};
use super::rig::{Rig, platform};
use crate::bench::bed::Bed;
use crate::figures::{Claim, Context, Outcome};
use crate::load::Rate;

/// Sold of the core.
const SOLD: f64 = 0.9;
/// The link over what was sold.
const LINK: f64 = 1.15;
/// What well-behaved VMs offer over what they bought.
const OVER: f64 = 1.02;
/// Frame sizes: VM1's and VM2's profile, and what VM1 turns to.
const SIZES: [u16; 3] = [128, 1024, 1518];
/// What VM2 bought over what VM1 bought.
const RATIO: f64 = 3.0;
/// Seconds between two points of the curves.
const STEP: f64 = 0.1;
/// Within this of its rate before, VM2 has it again, in percent.
const RECOVERED: f64 = 2.0;

/// Bits of a frame without FCS.
fn bits(size: u16) -> f64 {
    (f64::from(size) - 4.0) * 8.0
}

/// What was sold, in bits a second without FCS, and its cycles.
#[derive(Debug, Clone, Copy)]
struct Sale {
    bits: [f64; 2],
    cycles: [f64; 2],
    link: f64,
}

impl Sale {
    /// `frame`: cycles of a frame of each of [`SIZES`].
    fn new(frame: [f64; 3], hz: f64) -> Self {
        let per_bit = [frame[0] / bits(SIZES[0]), frame[1] / bits(SIZES[1])];
        let first = SOLD * hz / (per_bit[0] + RATIO * per_bit[1]);
        let bits = [first, RATIO * first];
        let on_link = |vm: usize| bits[vm] * (1.0 + 24.0 * 8.0 / self::bits(SIZES[vm]));
        let cycles = [bits[0] * per_bit[0], bits[1] * per_bit[1]];
        Self { bits, cycles, link: (LINK * (on_link(0) + on_link(1))).round() }
    }

    fn offer(&self, vm: usize) -> Offer {
        let pps = OVER * self.bits[vm] / bits(SIZES[vm]);
        Offer { size: SIZES[vm], flows: 1, rate: Rate::Frames(pps) }
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
        Plan::new("hbs", vec![vm(0), vm(1), uplink])
    }
}

/// Cycles of a frame of each size, one VM flooding, no limits.
fn measure(bed: &Bed) -> anyhow::Result<[f64; 3]> {
    let bound = Bound::default();
    let vms = vec![Vm::sender("vm1", "uplink", bound), Vm::sink("uplink")];
    let mut rig = Rig::ours(bed, "costs", &Plan::new("round-robin", vms))?;
    let mut costs = [0.0; 3];
    rig.awake(|rig| {
        for (cost, size) in costs.iter_mut().zip(SIZES) {
            let greedy = Offer { size, flows: 1, rate: Rate::Max };
            *cost = rig.capacity(bed, &[("vm1", greedy)], 0.5)?.cycles;
        }
        Ok(())
    })?;
    Ok(costs)
}

/// VM1's and VM2's bits a second over time, the event in the middle.
type Curves = [Vec<f64>; 2];

fn watch(bed: &Bed, sale: Sale, handler: bool, secs: f64) -> anyhow::Result<Curves> {
    let name = if handler { "handler" } else { "no-handler" };
    let mut rig = Rig::ours(bed, name, &sale.plan(handler))?;
    let mut curves = Curves::default();
    rig.awake(|rig| {
        let flood = Offer { size: SIZES[2], flows: 1, rate: Rate::Max };
        for first in [sale.offer(0), flood] {
            rig.fleet.offer("vm1", &first);
            rig.fleet.offer("vm2", &sale.offer(1));
            let parts = parts(secs);
            let warm = if curves[0].is_empty() { 0.5 } else { 0.0 };
            let (fleet, switch) = (&mut rig.fleet, rig.switch.as_ref());
            let window = bed.on_generator_core(|| fleet.run(switch, warm, secs, parts))?;
            for (curve, sent) in curves.iter_mut().zip(&window.senders) {
                curve.extend(&sent.parts);
            }
        }
        Ok(())
    })?;
    Ok(curves)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred")]
fn parts(secs: f64) -> u32 {
    (secs / STEP).round() as u32
}

/// VM2 after the event: its change in percent over the second half, and seconds until it has its
/// rate again, for good.
fn effect(curve: &[f64]) -> (f64, f64) {
    let (before, after) = curve.split_at(curve.len() / 2);
    let normal = middle(before);
    let change = |rate: f64| 100.0 * (rate / normal - 1.0);
    // One point below is the machine's.
    let low = |pair: &[f64]| pair.iter().all(|rate| change(*rate) < -RECOVERED);
    let last_low = after.windows(2).rposition(low);
    let points = last_low.map_or(0, |at| u32::try_from(at + 2).unwrap_or(u32::MAX));
    (change(middle(&after[after.len() / 2..])), f64::from(points) * STEP)
}

/// Runs it.
///
/// # Errors
/// When the switch cannot be started or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(3.0).max(1.0);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let costs = measure(&bed)?;
    let sale = Sale::new(costs, bed.tsc_hz());
    outcome.note(
        "sold",
        json!({ "cycles_per_frame": costs, "sizes": SIZES, "link_gbps": sale.link / 1e9,
            "vm1_gbps": sale.bits[0] / 1e9, "vm2_gbps": sale.bits[1] / 1e9 }),
    );
    let without = watch(&bed, sale, false, secs)?;
    context.progress(0.5, "with the handler");
    let with = watch(&bed, sale, true, secs)?;
    for (name, curves) in [("without", &without), ("with", &with)] {
        for (vm, curve) in ["vm1", "vm2"].into_iter().zip(curves) {
            let points = (1_u32..).map(|i| f64::from(i) * STEP).zip(curve.iter().map(|b| b / 1e9));
            outcome.series(&format!("{name} handler {vm}"), "Gbit/s", points);
        }
    }
    let (lost, _) = effect(&without[1]);
    let (kept, recovery) = effect(&with[1]);
    let claims = [
        ("without_handler_victim_delta_pct", "VM2 after the event, no handler.", "%", lost),
        ("with_handler_victim_delta_pct", "The same with the handler.", "%", kept),
        ("recovery_s", "Until VM2 has its rate again.", "s", recovery),
    ];
    for (id, statement, unit, value) in claims {
        outcome.claim(Claim::new(id, statement, unit).measured(value));
    }
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
        // The event fills the link: VM1's cycles in frames of 1518 bytes, beside VM2's rate.
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
