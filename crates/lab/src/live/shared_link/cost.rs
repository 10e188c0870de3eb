//! The claim `fair_share_cost_pct`: cycles of a frame to an output with `fair-share`, beyond those
//! of a frame to an output with `fifo`.
//!
//! # Approach
//!
//! Switches have the same senders, one tenant each, and differ in the order of the output. The
//! output has a queue and a link that is faster than any core, so frames wait only for the core.
//! Windows of the switches alternate, and all other switches are paused. The value of a turn is the
//! increase of the cycles for a delivered frame over those with `fifo`. The value of a cell is the
//! median of its turns.
//!
//! `fair-share` is measured twice, and the worse value counts ([`VARIANTS`]):
//!
//! - With the schedule `hbs`, the senders are in a later class than the output's port, so long
//!   batches are cut.
//! - With `round-robin`, all batches are full.
//!
//! With both schedules, all tenants are backlogged, and the output chooses among their senders for
//! each batch. With `hbs` and `fifo`, each batch leaves before the worker takes the next batch.
//!
//! With `round-robin`, a queue with `fifo` would drop most frames of many senders. It would look
//! expensive, because the worker takes frames that it does not deliver. Therefore `fifo` is only
//! measured with `hbs`.
//!
//! The worker may use [`CORE_PART`] of its core, so the generator on the other core is faster than
//! the worker. A window counts only if each sender's ring was full in at least half of the
//! generator's turns, and if neither the worker nor the generator waited for its core.

use anyhow::Context as _;
use penstock_units::Rng;
use serde_json::{Value, json};

use super::super::bracket::doubt;
use super::traffic::shuffled;
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::fleet::Offer;
use crate::rig::plan::{Bound, Plan, Vm};
use crate::rig::stats::{Spread, middle, to_f64};
use crate::rig::switch::count;
use crate::rig::{Rig, Span, allow_descriptors};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

const TENANTS: [u32; 3] = [1, 5, 40];
/// Frame sizes in bytes, FCS included.
const SIZES: [u16; 2] = [64, 1_518];
/// Order of the output and schedule of the worker. All others are compared with the last one.
const VARIANTS: [(&str, &str); 3] =
    [("fair-share", "hbs"), ("fair-share", "round-robin"), ("fifo", "hbs")];
const FIFO: usize = VARIANTS.len() - 1;
/// Fraction of its core that the worker may use.
const CORE_PART: f64 = 0.4;
const UP: &str = "up";
const WARM: f64 = 0.1;
/// Number of measurements of a window that does not count.
const TRIES: u32 = 6;
/// File descriptors of the lab for all switches with 40 tenants, with room to spare.
const DESCRIPTORS: u64 = 4_096;

fn plan(bed: &Bed, tenants: u32, (order, schedule): (&str, &str)) -> Plan {
    // With `hbs` and `fifo`, the output has its turn before all senders.
    let class = |priority| Bound { priority, ..Bound::default() };
    let sender = |n: u32| Vm {
        tenant: Some((format!("tenant{n}"), 1)),
        ..Vm::sender(format!("vm{n}"), UP, class(2))
    };
    let mut vms: Vec<Vm> = (0..tenants).map(sender).collect();
    let more = format!("egress = \"{order}\"\nlink = \"400G\"\nqueue = {{}}\n");
    vms.push(Vm { more, bound: class(1), ..Vm::sink(UP) });
    let worker = format!("capacity = {:.0}\n", CORE_PART * bed.tsc_hz());
    Plan { worker, ..Plan::new(schedule, vms) }
}

/// Measurements of one variant in a window.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// Cycles of the worker's turns that moved frames, for each delivered frame.
    cycles: f64,
    /// Frames per second that arrived.
    pps: f64,
    /// Dropped frames, in per cent of the delivered frames.
    dropped_pct: f64,
}

/// Turns of one cell, in which all variants were measured.
#[derive(Debug, Default)]
struct Turns {
    found: Vec<[Found; VARIANTS.len()]>,
    /// Number of windows that did not count.
    repeated: u32,
}

impl Turns {
    /// Returns the values of a variant in all turns.
    fn of(&self, variant: usize, what: fn(&Found) -> f64) -> Vec<f64> {
        self.found.iter().map(|turn| what(&turn[variant])).collect()
    }

    /// Returns a variant's additional cycles over `fifo` in all turns, in per cent.
    fn costs(&self, variant: usize) -> Vec<f64> {
        let cost = |turn: &[Found; VARIANTS.len()]| {
            100.0 * (turn[variant].cycles / turn[FIFO].cycles - 1.0)
        };
        self.found.iter().map(cost).collect()
    }

    /// Returns the median cost of the variant with the highest one. Returns NaN without a turn.
    fn worst(&self) -> f64 {
        let medians = (0..FIFO).map(|variant| middle(&self.costs(variant)));
        if self.found.is_empty() { f64::NAN } else { medians.fold(f64::NEG_INFINITY, f64::max) }
    }
}

/// Measures all numbers of tenants and sizes.
pub(super) fn measure(
    context: &Context<'_>,
    (bed, rng): (&Bed, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    allow_descriptors(DESCRIPTORS)?;
    let mut curves = SIZES.map(|size| (size, Vec::new()));
    let mut worst = f64::NEG_INFINITY;
    let mut repeated = 0;
    for at in shuffled(TENANTS.len(), rng) {
        let tenants = TENANTS[at];
        context.progress(0.0, format_args!("cost with {tenants} tenants"));
        for (curve, (size, turns)) in curves.iter_mut().zip(cells(context, bed, tenants, rng)?) {
            let cost = turns.worst();
            // A cell that could not be measured makes the claim unmeasured.
            worst = if cost.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(cost) };
            curve.1.push((f64::from(tenants), cost));
            repeated += turns.repeated;
            note(outcome, (tenants, size), &turns);
        }
    }
    for (size, mut points) in curves {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        outcome.series(&format!("cost, {size} B"), "% of the cycles with fifo", points);
    }
    outcome.note("cost_windows_repeated", repeated);
    outcome.note("cost_worker_capacity_of_core", CORE_PART);
    let what = "additional cycles per frame of `fair-share` over `fifo`, highest of 1, 5 and 40 \
                tenants with frames of 64 and 1518 bytes";
    outcome.claim(Claim::new("fair_share_cost_pct", what, "%").at_most(1.5).measured(worst));
    Ok(())
}

fn note(outcome: &mut Outcome, (tenants, size): (u32, u16), turns: &Turns) {
    for (variant, (order, schedule)) in VARIANTS.into_iter().enumerate() {
        let spread = |what: fn(&Found) -> f64| Spread::of(&turns.of(variant, what));
        let value = json!({
            "cost_pct": Spread::of(&turns.costs(variant)),
            "cycles_per_frame": spread(|found| found.cycles),
            "frames_per_second": spread(|found| found.pps),
            "dropped_pct": spread(|found| found.dropped_pct),
        });
        outcome.note(&format!("cost_{tenants}_tenants_{size}_bytes_{order}_{schedule}"), value);
    }
}

/// Measures all sizes with one number of tenants.
fn cells(
    context: &Context<'_>,
    bed: &Bed,
    tenants: u32,
    rng: &mut Rng,
) -> anyhow::Result<Vec<(u16, Turns)>> {
    let secs = context.live.secs.unwrap_or(0.5).min(2.0);
    let mut rigs = Vec::new();
    for (order, schedule) in VARIANTS {
        let name = format!("cost-{tenants}-{order}-{schedule}");
        rigs.push(Rig::ours(bed, &name, &plan(bed, tenants, (order, schedule)))?);
    }
    let mut all = Vec::new();
    for size in SIZES {
        let offer =
            |n: u32| (format!("vm{n}"), Offer { size: size.into(), flows: 1, rate: Rate::Max });
        let offers: Vec<_> = (0..tenants).map(offer).collect();
        let mut turns = Turns::default();
        for _ in 0..context.live.runs.unwrap_or(9) {
            turn(bed, &mut rigs, (&offers[..], secs), rng, &mut turns)?;
        }
        all.push((size, turns));
    }
    // A paused daemon cannot exit.
    for rig in &mut rigs {
        rig.switch.resume()?;
    }
    Ok(all)
}

/// Measures all variants in random order, and adds the turn unless one of them has no window that
/// counts.
fn turn(
    bed: &Bed,
    rigs: &mut [Rig],
    (offers, secs): (&[(String, Offer)], f64),
    rng: &mut Rng,
    turns: &mut Turns,
) -> anyhow::Result<()> {
    let mut found = [None; VARIANTS.len()];
    for at in shuffled(VARIANTS.len(), rng) {
        found[at] = window(bed, &mut rigs[at], offers, (secs, &mut turns.repeated))?;
    }
    if let [Some(first), Some(backlogged), Some(fifo)] = found {
        turns.found.push([first, backlogged, fifo]);
    }
    Ok(())
}

/// Counters of a switch: cycles charged to ports, delivered frames, and dropped frames.
fn counts(rig: &Rig) -> anyhow::Result<[f64; 3]> {
    let stats = rig.switch.ask(&["stats", "--json"]).context("no Penstock")??;
    let stats: Value = serde_json::from_str(&stats).context("reading the counters")?;
    let cycles = stats["workers"][0]["counters"]["cycles_charged"].as_u64();
    let ports = stats["ports"].as_array().context("no ports")?;
    let drops = ports.iter().filter_map(|port| port["drops"].as_object());
    let dropped: u64 = drops.flat_map(|drops| drops.values()).filter_map(Value::as_u64).sum();
    let cycles = cycles.context("no cycles_charged")?;
    Ok([cycles, count(&stats, UP, "tx_frames"), dropped].map(to_f64))
}

/// Measures a window of one switch. Returns `None` if no window counted.
fn window(
    bed: &Bed,
    rig: &mut Rig,
    offers: &[(String, Offer)],
    (secs, repeated): (f64, &mut u32),
) -> anyhow::Result<Option<Found>> {
    let span = Span { warm: WARM, secs, parts: 4 };
    rig.awake(|rig| {
        for _ in 0..TRIES {
            let before = counts(rig)?;
            let window = rig.once(bed, offers, span)?;
            let after = counts(rig)?;
            let grown = |at: usize| after[at] - before[at];
            let (cycles, delivered, dropped) = (grown(0), grown(1), grown(2));
            if doubt(&window, offers).is_none() && delivered > 0.0 {
                return Ok(Some(Found {
                    cycles: cycles / delivered,
                    pps: window.pps(),
                    dropped_pct: 100.0 * dropped / delivered,
                }));
            }
            *repeated += 1;
        }
        Ok(None)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_variant_counts() {
        let found = |cycles| Found { cycles, pps: 1.0, dropped_pct: 0.0 };
        let turn = |first, backlogged| [found(first), found(backlogged), found(200.0)];
        let mut turns = Turns::default();
        assert!(turns.worst().is_nan());
        turns.found.push(turn(201.0, 204.0));
        turns.found.push(turn(202.0, 206.0));
        turns.found.push(turn(290.0, 205.0));
        assert!((turns.worst() - 2.5).abs() < 1e-9, "{}", turns.worst());
        assert_eq!(turns.costs(FIFO), [0.0; 3]);
    }
}
