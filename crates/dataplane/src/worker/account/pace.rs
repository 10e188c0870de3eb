//! A worker that may spend a part of its core, whatever bounds its ports.
//!
//! **Problem.** Cycle buckets divide `capacity`; ports under `bps` or `none` have no bucket and
//! would go on using the whole core, so that the same host behaved like another machine under
//! another policy. **Rule.** Each batch is followed by a rest, in proportion to what the batch
//! cost: the worker is as fast as a core that has so many cycles. A rest that was overslept is made
//! good, up to [`BANK`]. **Example.** Of 2 GHz a quarter may be spent: 30,000 cycles are followed
//! by 90,000 in which no batch runs, less [`SLACK`].
//!
//! **Why there is slack.** Cycle buckets give out `capacity` as well. Were the rests as strict, and
//! a little of them overslept for good, then less would be spent than the buckets give out: they
//! would fill, nobody would be out of tokens, and ports would go in turn, whatever they bought.
//!
//! **Cost.** With the whole core: one comparison a turn.

use penstock_units::{Cycles, CyclesPerSecond, TscRate};

/// Cycles of rest that are made good at most, about half a millisecond: a worker that naps wakes
/// tens of microseconds late. More would be a fast core after every pause.
const BANK: u64 = 1 << 20;
/// The part of `capacity` by which rests are too short.
const SLACK: u64 = 64;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pace {
    /// Cycles of rest after 1,024 cycles of work.
    rest: u64,
    until: u64,
}

impl Pace {
    /// Of a core of which `capacity` may be spent.
    pub(super) fn new(core: TscRate, capacity: Option<CyclesPerSecond>) -> Self {
        let hz = core.hz();
        let capacity = capacity.map_or(hz, |c| c.0.saturating_add(c.0 / SLACK).clamp(1, hz));
        let rest = u128::from(hz - capacity) * 1024 / u128::from(capacity);
        Self { rest: u64::try_from(rest).unwrap_or(u64::MAX), until: 0 }
    }

    /// A batch that ended at `now` cost so much.
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

    /// Whether no batch may run at `now`.
    #[inline]
    pub(super) fn rests(&self, now: Cycles) -> bool {
        now.0 < self.until
    }

    /// When the rest is over, if it lasts at `now`.
    pub(super) fn next_due(&self, now: Cycles) -> Option<Cycles> {
        self.rests(now).then_some(Cycles(self.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cycles spent in a second by a worker that always has batches of `cost`.
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
