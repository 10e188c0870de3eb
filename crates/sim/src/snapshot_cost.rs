//! Cost of a new snapshot on a simulated core.
//!
//! # Approach
//!
//! A worker reports its work for a new snapshot ([`SwapWork`]). The cost is a fixed part, a part
//! for each port that the worker visited, and two further parts for work that the snapshot may
//! cause:
//!
//! - The worker visits all its ports, because the floor of ports without purchased cycles changed.
//! - The worker removes its cached decisions and reads its MAC table, which takes time for each
//!   slot of the table.
//!
//! # Source
//!
//! `cargo bench -p penstock-dataplane --bench snapshot` measures each part with 4,096 ports. On an
//! AMD EPYC processor (machine M1, 2.45 GHz, 2026-11-29), the parts were 430 cycles (without the
//! request of another thread), 266, 8 and 23 cycles. The benchmark's caches are warm, so
//! [`SnapshotCost::COLD`] has larger values.

use penstock_dataplane::worker::SwapWork;
use penstock_units::Cycles;

/// Cost of a new snapshot, in cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotCost {
    /// Cycles of a snapshot without changes, with the request and its answer.
    pub request: u64,
    /// Cycles for each port that the worker visits.
    pub port: u64,
    /// Cycles for each of the worker's ports, if the floor of ports without purchased cycles
    /// changed.
    pub rank: u64,
    /// Cycles for each slot of the MAC table, if decisions about frames may have changed. The part
    /// includes the removal of the cached decisions.
    pub slot: u64,
}

impl SnapshotCost {
    /// Costs with cold caches, by calculation. A visit of a port causes about ten cache misses of
    /// 200 cycles, and a look at a port for the floor causes one.
    pub const COLD: Self = Self { request: 8_000, port: 2_000, rank: 200, slot: 40 };
    /// Costs of a simulated core on which a snapshot takes no time. Figures that do not measure
    /// snapshots use these costs.
    pub const NONE: Self = Self { request: 0, port: 0, rank: 0, slot: 0 };

    /// Returns the cycles of `work` for a worker with `ports` ports and a MAC table of `slots`
    /// slots.
    #[must_use]
    pub fn of(self, work: SwapWork, ports: usize, slots: usize) -> Cycles {
        let times = |cost: u64, count: usize| cost.saturating_mul(count as u64);
        let ranks = if work.ranks { times(self.rank, ports) } else { 0 };
        let decisions = if work.decisions { times(self.slot, slots) } else { 0 };
        let changes = self.request.saturating_add(times(self.port, work.ports));
        Cycles(changes) + Cycles(ranks) + Cycles(decisions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_costs_its_work_and_no_more() {
        let cost = SnapshotCost { request: 1, port: 10, rank: 1_000, slot: 100_000 };
        let one = SwapWork { ports: 1, ..SwapWork::default() };
        let of = |work| cost.of(work, 5, 7).0;
        assert_eq!((of(SwapWork::default()), of(one)), (1, 11));
        assert_eq!(of(SwapWork { ranks: true, ..one }), 5_011);
        assert_eq!(of(SwapWork { decisions: true, ..one }), 700_011);
        assert_eq!(SnapshotCost::NONE.of(SwapWork { ranks: true, ..one }, 5, 7), Cycles::ZERO);
    }
}
