//! The claim `wire_share_error_pct`: four tenants with different traffic share a link by weight.

use std::time::Duration;

use penstock_units::Rng;

use super::calm::Calm;
use super::penstock_road::{PenstockRoad, vm};
use super::traffic::{LINK, TENANTS, Traffic, WEIGHTS, kinds, shuffled};
use super::wire::{departed_bps, share_error_pct};
use crate::evidence::{Claim, Outcome};
use penstock_guest::bed::Bed;

/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// Seconds of the traffic before the measurement. TCP's queue has settled then.
const SETTLE: f64 = 4.0;
/// Seconds for which the TCP programs outlast the measurement.
const SPARE: f64 = 20.0;

/// Rates of the tenants in one turn.
#[derive(Debug)]
struct Turn {
    /// Bits per second on the wire.
    rates: [f64; TENANTS],
    /// Lowest percentage of readings in which frames of a tenant waited. A tenant without waiting
    /// frames did not want more of the link.
    backlogged: f64,
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
        let used = 100.0 * all / f64::from(LINK);
        outcome.note(&format!("shares_run{}_utilisation_pct", kind + 1), used);
        outcome.note(&format!("shares_run{}_backlogged_pct", kind + 1), turn.backlogged);
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
    let mut road = PenstockRoad::start(bed, &format!("shares-{kind}"))?;
    let lasts = SETTLE + secs + SPARE;
    let traffic = Traffic::start(bed, &mut road, kinds(kind), (lasts, seed))?;
    road.stage.watch(SETTLE, STEP)?;
    let readings = road.stage.watch(secs, STEP)?;
    traffic.end()?;
    let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
    let mut rates = [0.0; TENANTS];
    let mut backlogged = 100.0_f64;
    for (tenant, rate) in rates.iter_mut().enumerate() {
        let vm = vm(tenant);
        *rate = departed_bps(first, last, &vm);
        let waited = readings.iter().filter(|reading| reading.level(&vm, "queued") > 0).count();
        backlogged = backlogged.min(100.0 * part(waited, readings.len()));
    }
    Ok(Turn { rates, backlogged })
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred readings")]
fn part(of: usize, all: usize) -> f64 {
    of as f64 / all.max(1) as f64
}
