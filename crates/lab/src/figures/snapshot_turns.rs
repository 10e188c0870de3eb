//! Simulated turns of a worker that gets a new snapshot ([`crate::turns`]), and their picture.
//!
//! # Costs
//!
//! Frames have the costs of [`Costs::EXAMPLE`]. A snapshot has the costs of
//! [`SnapshotCost::COLD`], which are calculated from measured costs with warm caches. So the
//! simulated value shows how much work a change causes, and not how long the work takes on a real
//! core. The live form measures the time.

use penstock_dataplane::worker::SwapWork;
use penstock_sim::{Costs, Rng, SimCounter, SnapshotCost};
use penstock_units::{Cycles, Nanos};

use super::uplink_bed::{CORE, float};
use crate::evidence::{Axis, Context, Outcome, Panel, Record, points};
use crate::turns::{Bed, Change, Control, FDB_ENTRIES, GAP, PORTS, Turns, check};

const COSTS: Costs = Costs { snapshot: SnapshotCost::COLD, ..Costs::EXAMPLE };
/// Longest turn in microseconds with which the claim holds.
const MOST_US: f64 = 20.0;
/// Number of changes of each kind, and in a shortened run.
const CHANGES: (u32, u32) = (300, 20);
/// Time between two turns in which the VMs fill their rings.
const PAUSE: Nanos = Nanos::from_micros(5);
/// Number of turns before the first change. In this time, quiet ports come to rest and all buckets
/// get cycles.
const WARM_UP: u32 = 4_000;

pub(super) fn sim(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let changes = if ctx.is_whole() { CHANGES.0 } else { CHANGES.1 };
    let SnapshotCost { request, port, rank, slot } = COSTS.snapshot;
    outcome.note("snapshot_cycles", vec![request, port, rank, slot]);
    let counter = SimCounter::new(COSTS, Rng::new(ctx.seed));
    let mut control = Control::new(CORE);
    let charge: fn(&SimCounter, SwapWork) = charge_snapshot;
    let seeded = (CORE, ctx.seed);
    let mut bed = Bed::new(control.snapshot(), seeded, counter.clone(), Some(charge))?;
    let mut turn = |new| {
        bed.fill();
        counter.advance(CORE.to_cycles(PAUSE));
        bed.turn(new)
    };
    for _ in 0..WARM_UP {
        turn(None);
    }
    for change in Change::ALL {
        let mut turns = Turns::default();
        for nth in 0..changes * GAP {
            let is_due = nth % GAP == GAP - 1;
            let new = if is_due { Some(control.next(change)?) } else { None };
            let timed = turn(new);
            if let Some((work, _)) = &timed.swapped {
                check(change, *work)?;
            }
            turns.add(&timed, us(timed.cycles));
        }
        turns.conclude(outcome, change, (MOST_US, turns.changed.len()));
    }
    Ok(())
}

fn charge_snapshot(counter: &SimCounter, work: SwapWork) {
    counter.advance(COSTS.snapshot.of(work, usize::from(PORTS), FDB_ENTRIES));
}

fn us(cycles: Cycles) -> f64 {
    float(CORE.to_nanos(cycles).0) / 1e3
}

/// Draws the lengths of turns with and without a new snapshot.
/// Draws the turns. `letter` is the letter of the panel in its picture.
pub(crate) fn panel(record: &Record, letter: &str) -> Panel {
    let axis = Axis::log("length of a turn, us");
    let title = format!("{letter} turns with a new snapshot");
    let panel = Panel::new(&title, axis, Axis::linear("% of the turns"));
    let turns = record.series_of("turns, ");
    turns.fold(panel, |panel, (change, series)| panel.line(change, points(series)))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::evidence::Mode;
    use crate::figures::run::RunArgs;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: RunArgs,
    }

    #[test]
    fn a_changed_weight_costs_less_than_a_change_of_decisions() {
        let args = Cli::parse_from(["run", "uplink-shares"]).args;
        let context = Context::new("uplink-shares", (Mode::Sim, 1), &args.live, None, None);
        let mut outcome = Outcome::new();
        sim(&context.with_part(0.1), &mut outcome).unwrap();
        let of = |id: &str| {
            let claim = outcome.claims.iter().find(|claim| claim.id == id);
            claim.and_then(|claim| claim.measured).unwrap()
        };
        let busy = outcome.platform["turns_with_frames_pct"].as_f64().unwrap();
        assert!(busy > 50.0, "the worker has too little load: {busy} % of the turns moved frames");
        let [weight, rule] = ["snapshot_worst_turn_us", "snapshot_worst_turn_us_rule"].map(of);
        assert!(weight > of("turn_us_p50") && rule > weight + 50.0, "{weight} and {rule}");
    }
}
