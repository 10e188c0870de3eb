//! The pace limits a worker to a part of its core, independent of its ports' policies.
//!
//! # Problem
//!
//! Cycle buckets divide the worker's `capacity` (cycles per second that the worker may spend) among
//! ports. Ports under the policy `bps` or `none` have no bucket and would use the whole core. If
//! the buckets were the only limit, the share of the core that a worker uses would depend on the
//! policies of its ports.
//!
//! # Approach
//!
//! The worker rests after each batch, in proportion to the batch's cost. A worker that pauses after
//! each batch forwards frames as fast as a core with `capacity` cycles per second. If a rest was
//! longer than necessary, the following rests are shorter, by at most [`BANK`] cycles in total.
//!
//! For example, a worker may spend 500 million cycles per second of a 2 GHz core. After 30,000
//! cycles of work, a worker with a quarter of its core must pause for 90,000 cycles, or slightly
//! less because of the slack ([`SLACK`]).
//!
//! The worker may spend slightly more than `capacity` (the slack), because the cycle buckets also
//! give out `capacity` cycles per second. Without the slack and without shorter rests after long
//! rests, the worker would spend fewer cycles than the buckets give out. If ports spent fewer
//! cycles than the buckets give out, the buckets would fill, and no port would run out of tokens.
//! If buckets never became empty, ports would take turns independently of their purchased cycles.
//!
//! # Cost
//!
//! If the worker may use the whole core, the limit costs one comparison per turn.

use penstock_units::{Cycles, CyclesPerSecond, TscRate};

/// Maximum number of cycles by which rests are shortened after a rest that was too long: about half
/// a millisecond. A sleeping worker wakes tens of microseconds late. If rests were shortened by
/// more than this number, the worker would exceed its capacity for too long after each pause.
const BANK: u64 = 1 << 20;
/// The worker may spend 1/64 (one divided by this number) more cycles per second than `capacity`.
const SLACK: u64 = 64;

/// State of the limit on the cycles per second that a worker may spend.
#[derive(Debug)]
pub(super) struct Pace {
    /// Number of cycles for which the worker must pause for each 1,024 cycles of work.
    rest: u64,
    /// Reading of the cycle counter until which the worker must pause.
    until: u64,
}

impl Pace {
    /// Creates the rest state of a worker that may spend `capacity` cycles per second of a core
    /// with frequency `core`. If `capacity` is `None`, the worker may spend all cycles of the core.
    pub(super) fn new(core: TscRate, capacity: Option<CyclesPerSecond>) -> Self {
        let hz = core.hz();
        let capacity = capacity.map_or(hz, |c| c.0.saturating_add(c.0 / SLACK).clamp(1, hz));
        let rest = u128::from(hz - capacity) * 1024 / u128::from(capacity);
        Self { rest: u64::try_from(rest).unwrap_or(u64::MAX), until: 0 }
    }

    /// Records that a batch with cost `cost` ended at time `now`.
    #[inline]
    pub(super) fn spend(&mut self, cost: Cycles, now: Cycles) {
        if self.rest > 0 {
            let began = now.0.saturating_sub(cost.0);
            let rest = u128::from(cost.0) * u128::from(self.rest) / 1024;
            let rest = u64::try_from(rest).unwrap_or(u64::MAX);
            let from = self.until.max(began.saturating_sub(BANK));
            self.until = from.saturating_add(cost.0).saturating_add(rest);
        }
    }

    /// Whether the worker must pause at time `now` and may not run a batch.
    #[inline]
    pub(super) fn rests(&self, now: Cycles) -> bool {
        now.0 < self.until
    }

    /// Returns the reading of the cycle counter at which the worker may run batches again. Returns
    /// `None` if the worker may run batches at time `now`.
    pub(super) fn next_due(&self, now: Cycles) -> Option<Cycles> {
        self.rests(now).then_some(Cycles(self.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a worker that always has a next batch of `cost` cycles, and returns the cycles
    /// that the worker spends in a second.
    fn spent(capacity: Option<u64>, cost: u64, overslept: u64) -> u64 {
        let mut pace = Pace::new(TscRate::from_hz(2_000_000_000), capacity.map(CyclesPerSecond));
        let (mut now, mut spent) = (1 << 40, 0);
        let end = now + 2_000_000_000;
        while now < end {
            if pace.rests(Cycles(now)) {
                now = pace.next_due(Cycles(now)).unwrap().0 + overslept;
                continue;
            }
            now += cost;
            spent += cost;
            pace.spend(Cycles(cost), Cycles(now));
        }
        spent
    }

    #[test]
    fn a_worker_spends_what_it_may() {
        for cost in [500, 30_000] {
            for overslept in [0, 50_000] {
                let spent = spent(Some(500_000_000), cost, overslept);
                let bank = BANK + 4 * cost;
                let most = 500_000_000 + 500_000_000 / SLACK;
                assert!((500_000_000..=most + bank).contains(&spent), "{spent}");
            }
        }
    }

    #[test]
    fn the_whole_core_is_never_at_rest() {
        assert!(spent(None, 30_000, 0) >= 2_000_000_000);
        assert!(spent(Some(2_000_000_000), 30_000, 0) >= 2_000_000_000);
    }
}
