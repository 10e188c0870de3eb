//! The claim `wire_share_error_pct`: four tenants with different traffic share a link by weight.
//!
//! # Approach
//!
//! Shares by weight are due while all tenants want more than their shares. The senders and the far
//! end of the link are programs on one core. If another program or the hypervisor takes this core,
//! the link is idle, or a tenant has no frame to send. Such a time says nothing about shares, so
//! only the steps between two readings count in which the link was full, and at whose ends frames
//! of all tenants waited. Steps are added until those that count are as long as planned, or all of
//! them [`LONGEST`] times as long. If less than [`COUNTED_MIN`] of the time would count, all of it
//! counts. Otherwise a switch that starves a tenant would pass.
//!
//! The notes have the idle time of the senders' core. If the core had none, the senders and not the
//! switch were the bottleneck.

use std::time::Duration;

use penstock_units::Rng;

use super::super::machine;
use super::super::stage::Reading;
use super::calm::Calm;
use super::penstock_road::{PenstockRoad, vm};
use super::traffic::{LINK, TENANTS, Traffic, WEIGHTS, kinds, shuffled};
use super::wire::{frame_bits, share_error_pct};
use crate::evidence::{Claim, Outcome};
use penstock_guest::bed::Bed;
use penstock_guest::clock;

/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// Seconds of the traffic before the measurement. TCP's queue has settled then.
const SETTLE: f64 = 4.0;
/// Seconds for which the TCP programs outlast the measurement.
const SPARE: f64 = 20.0;

/// Least used part of a link that counts as full in a step. The output sends bursts, so a full link
/// does not carry exactly its rate in each step.
const FULL: f64 = 0.97;
/// Largest length of a measurement with added steps, in planned lengths.
const LONGEST: f64 = 3.0;
/// Least part of the time that counts. If less would count, all of it counts.
const COUNTED_MIN: f64 = 0.75;

/// What was seen between two readings.
#[derive(Debug, Clone, Copy)]
struct Step {
    secs: f64,
    /// Bits per second on the wire.
    rates: [f64; TENANTS],
    /// Whether frames of all tenants waited at both readings.
    all_waited: bool,
}

impl Step {
    /// Whether the step says something about shares.
    fn counts(&self) -> bool {
        self.all_waited && self.rates.iter().sum::<f64>() >= FULL * f64::from(LINK)
    }
}

/// Rates of the tenants in one turn.
#[derive(Debug)]
struct Turn {
    /// Bits per second on the wire in the time that counts.
    rates: [f64; TENANTS],
    /// Percentage of the time that counts.
    counted: f64,
    /// Bits per second on the wire of all tenants in all the time.
    used: f64,
    /// Lowest percentage of readings in which frames of a tenant waited. A tenant without waiting
    /// frames did not want more of the link.
    backlogged: f64,
    /// Percentage of the time in which the senders' core was idle.
    idle: f64,
}

/// Measures the shares while each tenant has each kind of traffic once.
pub(super) fn measure(
    calm: &mut Calm<'_>,
    (secs, rng): (f64, &mut Rng),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let bed = calm.bed;
    let mut worst = 0.0_f64;
    let mut backlogged = f64::INFINITY;
    for kind in shuffled(TENANTS, rng) {
        let seed = rng.next_u64();
        let turn = calm.cell(|| turn(bed, kind, secs, seed))?;
        let error = share_error_pct(&turn.rates, &WEIGHTS);
        // `max` would hide an error that is not a number.
        worst = if error.is_nan() { error } else { worst.max(error) };
        backlogged = backlogged.min(turn.backlogged);
        let all: f64 = turn.rates.iter().sum();
        let shares = turn.rates.iter().map(|rate| 100.0 * rate / all);
        let points = (0_u32..).map(f64::from).zip(shares);
        outcome.series(&format!("shares, run {}", kind + 1), "% of the wire", points);
        let used = 100.0 * turn.used / f64::from(LINK);
        outcome.note(&format!("shares_run{}_utilisation_pct", kind + 1), used);
        outcome.note(&format!("shares_run{}_counted_pct", kind + 1), turn.counted);
        outcome.note(&format!("shares_run{}_backlogged_pct", kind + 1), turn.backlogged);
        outcome.note(&format!("shares_run{}_generator_idle_pct", kind + 1), turn.idle);
        if error.is_nan() {
            break;
        }
    }
    let what = "largest deviation of a tenant's rate on the wire from its rate by weight";
    outcome.claim(Claim::new("wire_share_error_pct", what, "%").at_most(1.0).measured(worst));
    let what = "fewest readings in which frames of a tenant waited, in per cent";
    outcome.claim(Claim::new("wire_share_backlogged_pct_min", what, "%").measured(backlogged));
    Ok(())
}

fn turn(bed: &Bed, kind: usize, secs: f64, seed: u64) -> anyhow::Result<Turn> {
    let mut road = PenstockRoad::start(bed, &format!("shares-{kind}"), "")?;
    let lasts = SETTLE + LONGEST * secs + SPARE;
    let traffic = Traffic::start(bed, &mut road, kinds(kind), (lasts, seed))?;
    let settling = road.stage.watch(SETTLE, STEP)?;
    let Some(start) = settling.first() else { anyhow::bail!("{SETTLE} s are too few") };
    let core = [bed.generator_core()];
    let before = machine::Reading::take(&core);
    let mut readings = road.stage.watch(secs, STEP)?;
    let mut seen = steps(start, &readings);
    while needs_more(&seen, secs) {
        clock::wait_readable(None, STEP);
        readings.push(road.stage.read()?);
        seen = steps(start, &readings);
    }
    let idle = before.idle_pct(&machine::Reading::take(&core));
    traffic.end()?;
    let mut backlogged = 100.0_f64;
    for tenant in 0..TENANTS {
        let waited = readings.iter().filter(|reading| waits(reading, tenant)).count();
        backlogged = backlogged.min(100.0 * part(waited, readings.len()));
    }
    let (rates, counted) = counted(&seen);
    let used = mean(&seen).iter().sum();
    Ok(Turn { rates, counted: 100.0 * counted, used, backlogged, idle })
}

/// Returns the steps between `readings`. `start` is an earlier reading.
fn steps(start: &Reading, readings: &[Reading]) -> Vec<Step> {
    let Some(last) = readings.last() else { return Vec::new() };
    // The frames that leave in a step are others than those that the switch takes, or it takes none
    // because too many wait. So their size is that of all frames.
    let bits: [f64; TENANTS] = core::array::from_fn(|tenant| frame_bits(start, last, &vm(tenant)));
    let ends = readings.iter().zip(&readings[1..]);
    ends.map(|ends| step(ends, &bits)).collect()
}

/// Whether steps must be added, because those that count last for less than `secs`, and all of them
/// may last longer.
fn needs_more(steps: &[Step], secs: f64) -> bool {
    let counted: Vec<Step> = steps.iter().filter(|step| step.counts()).copied().collect();
    length(&counted) < secs && length(steps) < LONGEST * secs
}

/// Returns the length of `steps` in seconds.
fn length(steps: &[Step]) -> f64 {
    steps.iter().map(|step| step.secs).sum()
}

/// Whether frames of a tenant wait at a reading.
fn waits(reading: &Reading, tenant: usize) -> bool {
    reading.level(&vm(tenant), "queued") > 0
}

/// Returns the step between two readings. `bits` are the bits on the wire of each tenant's frames.
fn step((before, after): (&Reading, &Reading), bits: &[f64; TENANTS]) -> Step {
    let rate = |tenant: usize| bits[tenant] * after.per_second(before, &vm(tenant), "forwarded");
    let all_wait = |reading: &Reading| (0..TENANTS).all(|tenant| waits(reading, tenant));
    Step {
        secs: after.secs_since(before),
        rates: core::array::from_fn(rate),
        all_waited: all_wait(before) && all_wait(after),
    }
}

/// Returns the tenants' rates in the time that counts, and its part of all the time.
fn counted(steps: &[Step]) -> ([f64; TENANTS], f64) {
    let kept: Vec<Step> = steps.iter().filter(|step| step.counts()).copied().collect();
    let part = length(&kept) / length(steps);
    if part >= COUNTED_MIN { (mean(&kept), part) } else { (mean(steps), 1.0) }
}

/// Returns the tenants' mean rates in `steps`.
fn mean(steps: &[Step]) -> [f64; TENANTS] {
    let secs = length(steps);
    let bits = |tenant: usize| steps.iter().map(|step| step.rates[tenant] * step.secs).sum::<f64>();
    core::array::from_fn(|tenant| bits(tenant) / secs)
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred readings")]
fn part(of: usize, all: usize) -> f64 {
    of as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of a quarter of a second in which the tenants used `used` of what is due to them.
    fn seen(used: [f64; TENANTS], all_waited: bool) -> Step {
        let all: u32 = WEIGHTS.iter().sum();
        let due = |tenant: usize| f64::from(LINK) * f64::from(WEIGHTS[tenant]) / f64::from(all);
        Step {
            secs: 0.25,
            rates: core::array::from_fn(|tenant| used[tenant] * due(tenant)),
            all_waited,
        }
    }

    #[test]
    fn a_step_without_demand_says_nothing_about_shares() {
        let full = seen([1.0; TENANTS], true);
        let (idle, empty) = (seen([0.2, 0.0, 0.1, 0.1], true), seen([0.2, 1.2, 1.2, 1.3], false));
        let mut steps = vec![full; 46];
        steps.extend([idle, empty]);
        assert!(share_error_pct(&mean(&steps), &WEIGHTS) > 1.0);
        let (rates, part) = counted(&steps);
        assert!(share_error_pct(&rates, &WEIGHTS) < 1e-9 && (part - 46.0 / 48.0).abs() < 1e-9);
    }

    #[test]
    fn steps_that_say_nothing_are_measured_again_for_a_limited_time() {
        let (full, idle) = (seen([1.0; TENANTS], true), seen([0.1; TENANTS], true));
        let more = |counted: usize, others: usize| {
            needs_more(&[vec![full; counted], vec![idle; others]].concat(), 12.0)
        };
        assert!(!more(48, 0) && !more(48, 20), "12 s count");
        assert!(more(40, 8) && more(0, 48) && more(40, 102));
        assert!(!more(40, 104), "36 s are enough");
    }

    #[test]
    fn a_tenant_that_always_lacks_frames_or_a_link_that_is_never_full_is_not_hidden() {
        for lack in [seen([0.2, 1.2, 1.2, 1.3], false), seen([0.2, 1.0, 1.0, 1.0], true)] {
            let mut steps = vec![seen([1.0; TENANTS], true); 10];
            steps.extend([lack; 10]);
            let (rates, part) = counted(&steps);
            assert!((part - 1.0).abs() < 1e-9);
            assert!(share_error_pct(&rates, &WEIGHTS) > 10.0, "{rates:?}");
        }
    }
}
