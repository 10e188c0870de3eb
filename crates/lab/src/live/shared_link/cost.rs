//! The claim `fair_share_cost_pct`: cycles of a frame to an output with `fair-share`, beyond those
//! of a frame to an output with `fifo`.
//!
//! # Approach
//!
//! Two switches have the same senders, one tenant each, and differ only in the order of the output.
//! The output has a queue and a link that is faster than any core, so frames wait only for the
//! core. Windows of the switches alternate (A B A B), and one is paused while the other is
//! measured. The value of a pair of windows is the increase of the cycles per frame, and the value
//! of a cell is the median of its pairs.
//!
//! The worker may use [`CORE_PART`] of its core, so the generator on the other core is faster than
//! the worker. A window counts only if each sender's ring was full in at least half of the
//! generator's turns, and if neither the worker nor the generator waited for its core.
//!
//! Cycles per frame are those of the worker's turns that moved frames. With the same cycles for
//! both orders, the frame rate shows the same difference, and the record has it, too.

use penstock_units::Rng;
use serde_json::json;

use super::super::bracket::doubt;
use super::traffic::shuffled;
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::fleet::Offer;
use crate::rig::plan::{Bound, Plan, Vm};
use crate::rig::stats::{Spread, middle};
use crate::rig::{Capacity, Rig, Span, allow_descriptors};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

const TENANTS: [u32; 3] = [1, 5, 40];
/// Frame sizes in bytes, FCS included.
const SIZES: [u16; 2] = [64, 1_518];
/// Orders of the output: the compared one, and the one with which it is compared.
const ORDERS: [&str; 2] = ["fair-share", "fifo"];
/// Fraction of its core that the worker may use.
const CORE_PART: f64 = 0.4;
const UP: &str = "up";
const WARM: f64 = 0.1;
/// Number of measurements of a window that does not count.
const TRIES: u32 = 6;
/// File descriptors of the lab for both switches with 40 tenants, with room to spare.
const DESCRIPTORS: u64 = 2_048;

fn plan(bed: &Bed, tenants: u32, order: &str) -> Plan {
    let sender = |n: u32| Vm {
        tenant: Some((format!("tenant{n}"), 1)),
        ..Vm::sender(format!("vm{n}"), UP, Bound::default())
    };
    let mut vms: Vec<Vm> = (0..tenants).map(sender).collect();
    let more = format!("egress = \"{order}\"\nlink = \"400G\"\nqueue = {{}}\n");
    vms.push(Vm { more, ..Vm::sink(UP) });
    let worker = format!("capacity = {:.0}\n", CORE_PART * bed.tsc_hz());
    Plan { worker, ..Plan::new("", vms) }
}

/// Increases of one cell in per cent, one for each pair of windows.
#[derive(Debug, Default)]
struct Pairs {
    cycles: Vec<f64>,
    /// Decreases of the frame rate.
    rate: Vec<f64>,
    /// Cycles per frame of each order, as in [`ORDERS`].
    each: [Vec<f64>; 2],
    /// Number of windows that did not count.
    repeated: u32,
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
        for (curve, (size, pairs)) in curves.iter_mut().zip(cells(context, bed, tenants, rng)?) {
            let cost = middle(&pairs.cycles);
            // A cell that could not be measured makes the claim unmeasured.
            worst = if cost.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(cost) };
            curve.1.push((f64::from(tenants), cost));
            repeated += pairs.repeated;
            note(outcome, (tenants, size), &pairs);
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

fn note(outcome: &mut Outcome, (tenants, size): (u32, u16), pairs: &Pairs) {
    let [fair, fifo] = pairs.each.each_ref().map(|cycles| middle(cycles));
    let value = json!({
        "cost_pct": Spread::of(&pairs.cycles),
        "frame_rate_loss_pct": Spread::of(&pairs.rate),
        "cycles_per_frame": { "fair-share": fair, "fifo": fifo },
        "windows_repeated": pairs.repeated,
    });
    outcome.note(&format!("cost_{tenants}_tenants_{size}_bytes"), value);
}

/// Measures all sizes with one number of tenants.
fn cells(
    context: &Context<'_>,
    bed: &Bed,
    tenants: u32,
    rng: &mut Rng,
) -> anyhow::Result<Vec<(u16, Pairs)>> {
    let secs = context.live.secs.unwrap_or(0.5).min(2.0);
    let runs = context.live.runs.unwrap_or(9);
    let start = |order: &str| {
        Rig::ours(bed, &format!("cost-{tenants}-{order}"), &plan(bed, tenants, order))
    };
    let [fair, fifo] = ORDERS;
    let mut rigs = [start(fair)?, start(fifo)?];
    let mut all = Vec::new();
    for size in SIZES {
        let mut pairs = Pairs::default();
        for _ in 0..runs {
            pair(bed, &mut rigs, (tenants, size, secs), rng, &mut pairs)?;
        }
        all.push((size, pairs));
    }
    // A paused daemon cannot exit.
    for rig in &mut rigs {
        rig.switch.resume()?;
    }
    Ok(all)
}

/// Measures both switches, the first one by chance, and adds the pair unless a window did not
/// count.
fn pair(
    bed: &Bed,
    rigs: &mut [Rig; 2],
    (tenants, size, secs): (u32, u16, f64),
    rng: &mut Rng,
    pairs: &mut Pairs,
) -> anyhow::Result<()> {
    let offer = |n: u32| (format!("vm{n}"), Offer { size: size.into(), flows: 1, rate: Rate::Max });
    let offers: Vec<_> = (0..tenants).map(offer).collect();
    let mut both = [None; 2];
    for at in shuffled(ORDERS.len(), rng) {
        both[at] = window(bed, &mut rigs[at], &offers, (secs, &mut pairs.repeated))?;
    }
    let [Some(fair), Some(fifo)] = both else { return Ok(()) };
    pairs.cycles.push(100.0 * (fair.cycles / fifo.cycles - 1.0));
    pairs.rate.push(100.0 * (1.0 - fair.pps / fifo.pps));
    for (each, of) in pairs.each.iter_mut().zip([fair, fifo]) {
        each.push(of.cycles);
    }
    Ok(())
}

/// Measures a window of one switch. Returns `None` if no window counted.
fn window(
    bed: &Bed,
    rig: &mut Rig,
    offers: &[(String, Offer)],
    (secs, repeated): (f64, &mut u32),
) -> anyhow::Result<Option<Capacity>> {
    let span = Span { warm: WARM, secs, parts: 4 };
    rig.awake(|rig| {
        for _ in 0..TRIES {
            let (capacity, window) = rig.cost(bed, offers, span)?;
            if doubt(&window, offers).is_none() && capacity.cycles > 0.0 {
                return Ok(Some(capacity));
            }
            *repeated += 1;
        }
        Ok(None)
    })
}
