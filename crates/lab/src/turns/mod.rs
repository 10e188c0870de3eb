//! Turns of a worker that gets a new snapshot, for the simulated and the live form of
//! `uplink-shares`.
//!
//! # Problem
//!
//! A worker adopts a new snapshot between two batches, and no frame passes meanwhile. With
//! thousands of ports, a change of one port must not delay the frames of all others.
//!
//! # Approach
//!
//! A worker has 4,096 ports, which all purchased cycles. Eight VMs keep their rings full of 60-byte
//! frames. One of them sends to an uplink that is shared by weight, and seven send to other VMs.
//! One port's weights change again and again. For each change, the control plane compiles all
//! policies and compares the snapshot with the one before, as on a host. A turn lasts from the end
//! of the batch before to the end of the next batch. The turn of a change contains the request with
//! the new snapshot.
//!
//! Other changes are measured in the same way, and are only shown: the uplink's rate, a purchase of
//! cycles, a port that joins and leaves, and a rule.
//!
//! | Module | Content |
//! |---|---|
//! | [`control`] | the configuration and its changes |
//! | [`bed`] | the worker, its ports and their frames |

mod bed;
mod control;

use core::ops::Range;

use penstock_dataplane::worker::SwapWork;

pub(crate) use bed::{Bed, Timed};
pub(crate) use control::{Change, Control};

use crate::evidence::stats::{count, distribution};
use crate::evidence::{Claim, Outcome, percentile};

/// Number of ports of the configuration.
pub(crate) const PORTS: u16 = 4_096;
/// Number of entries in the worker's MAC table: the default of a worker.
pub(crate) const FDB_ENTRIES: usize = 8_192;
/// Port whose frames wait in a queue that is shared by weight.
const UPLINK: u16 = 0;
const SENDERS: Range<u16> = 1..9;
const RECEIVERS: Range<u16> = 9..17;
/// Port whose policy changes: the sender of the frames to the uplink.
const CHANGED: u16 = SENDERS.start;
/// Port that joins and leaves.
const LAST: u16 = PORTS - 1;
/// Number of turns without a new snapshot between two changes.
pub(crate) const GAP: u32 = 16;

/// Lengths of turns, in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub changed: Vec<f64>,
    pub unchanged: Vec<f64>,
    /// Number of changes that were made again, because the worker did not have its core for the
    /// whole turn.
    pub repeated: u32,
    /// Number of turns that moved frames, and of all turns.
    pub busy: (u32, u32),
}

impl Turns {
    /// Adds a turn of `us` microseconds.
    pub fn add(&mut self, turn: &Timed, us: f64) {
        self.busy.0 += u32::from(turn.is_busy);
        self.busy.1 += 1;
        let turns = if turn.swapped.is_some() { &mut self.changed } else { &mut self.unchanged };
        turns.push(us);
    }

    /// Adds the results for `change` to an outcome. The worst turn with changed weights may have at
    /// most `most` microseconds. Without `wanted` turns, the worst turn counts as not measured.
    pub fn conclude(&self, outcome: &mut Outcome, change: Change, (most, wanted): (f64, usize)) {
        let is_had = self.changed.len() >= wanted;
        let worst = if is_had { worst(&self.changed) } else { f64::NAN };
        let name = change.name();
        outcome.series(&format!("turns, {name}"), "% of the turns", distribution(&self.changed));
        outcome.note(&format!("turns_repeated_{name}"), self.repeated);
        if change != Change::Weight {
            let what = format!("the same for other changes: {name}");
            let id = format!("snapshot_worst_turn_us_{name}");
            outcome.claim(Claim::new(&id, what, "us").measured(worst));
            return;
        }
        outcome.series("turns, no change", "% of the turns", distribution(&self.unchanged));
        let what = "longest turn of a worker with 4,096 ports that gets a snapshot with one port's \
                    weights changed";
        let claim = Claim::new("snapshot_worst_turn_us", what, "us");
        outcome.claim(claim.at_most(most).measured(worst));
        for (id, turns, percent, what) in [
            ("snapshot_turn_us_p50", &self.changed, 50.0, "median of these turns"),
            ("snapshot_turn_us_p99", &self.changed, 99.0, "p99 of these turns"),
            ("turn_us_p50", &self.unchanged, 50.0, "median of the turns without a new snapshot"),
            ("turn_us_p99", &self.unchanged, 99.0, "p99 of the turns without a new snapshot"),
            ("worst_turn_us", &self.unchanged, 100.0, "longest turn without a new snapshot"),
        ] {
            outcome.claim(Claim::new(id, what, "us").measured(percentile(turns, percent)));
        }
        let (busy, all) = (f64::from(self.busy.0), f64::from(self.busy.1));
        outcome.note("turns_with_frames_pct", 100.0 * busy / all.max(1.0));
        outcome.note("turns_with_a_change", count(self.changed.len()));
    }
}

fn worst(turns: &[f64]) -> f64 {
    turns.iter().copied().fold(f64::NAN, f64::max)
}

/// Checks that a worker handled only what `change` changes. Otherwise the measured turn would be
/// the turn of another change.
pub(crate) fn check(change: Change, work: SwapWork) -> anyhow::Result<()> {
    let wanted = match change {
        Change::Weight | Change::Rate | Change::Entitlement => {
            SwapWork { ports: 1, ..SwapWork::default() }
        }
        Change::Port => SwapWork { ports: 1, ranks: false, decisions: true },
        Change::Rule => SwapWork { ports: 0, ranks: false, decisions: true },
    };
    anyhow::ensure!(work == wanted, "{change:?}: the worker did {work:?} instead of {wanted:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(changes: bool) -> Timed {
        let swapped = changes.then(Default::default);
        Timed { cycles: Default::default(), is_busy: true, swapped }
    }

    #[test]
    fn only_turns_with_a_change_count_for_the_claim() {
        let mut turns = Turns::default();
        for (changes, us) in [(true, 3.0), (false, 50.0), (true, 7.0)] {
            turns.add(&timed(changes), us);
        }
        let holds = |most, wanted| {
            let mut outcome = Outcome::new();
            turns.conclude(&mut outcome, Change::Weight, (most, wanted));
            outcome.claims[0].holds
        };
        assert_eq!([holds(7.0, 2), holds(6.9, 2)], [Some(true), Some(false)]);
        assert_eq!(holds(7.0, 3), Some(false), "turns are missing");
    }

    #[test]
    fn a_change_that_does_more_is_an_error() {
        let work = SwapWork { ports: 1, ..SwapWork::default() };
        assert!(check(Change::Weight, work).is_ok());
        assert!(check(Change::Weight, SwapWork { ports: 4_096, ..work }).is_err());
        assert!(check(Change::Weight, SwapWork { decisions: true, ..work }).is_err());
    }
}
