//! Cycles that the thread did not run: the core was given to somebody else.
//!
//! **Problem.** The counter goes on while the thread waits for its core; a batch would be charged
//! milliseconds it never used. **Rule.** A cost far above the usual is looked at: if the thread's
//! run-queue wait (`/proc/thread-self/schedstat`) grew meanwhile by most of the excess over what
//! the batch should have cost, it is charged just that, and the rest goes to the account `stolen`,
//! never to the sender. What it should have cost the cost model says; without one, the usual cost
//! of batches. Of a smaller wait only the wait itself is stolen. **Cost.** One comparison a batch;
//! one system call only when the cost is suspicious. The kernel does not show the time a hypervisor
//! took from the whole machine here; that is left in the batch.

use std::fs::File;
use std::os::unix::fs::FileExt;

use penstock_units::{Cycles, Nanos, TscRate};

use crate::worker::stall;

/// A cost above this many microseconds is suspicious: the largest lawful batch (64 KiB) costs
/// a few tens.
const SUSPICIOUS: Nanos = Nanos::from_micros(100);

/// Reads how long the calling thread has waited on a run queue.
#[derive(Debug)]
pub struct RunQueueWait(File);

impl RunQueueWait {
    /// For the calling thread; `None` where the kernel keeps no schedule statistics.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().map(Self)
    }

    /// Waited so far.
    #[must_use]
    pub fn read(&self) -> Nanos {
        let mut text = [0; 96];
        let len = self.0.read_at(&mut text, 0).unwrap_or(0);
        let field = text[..len].split(|&b| b == b' ').nth(1).unwrap_or(&[]);
        let digits = field.iter().take_while(|b| b.is_ascii_digit());
        Nanos(digits.fold(0, |n, &b| n.wrapping_mul(10).wrapping_add(u64::from(b - b'0'))))
    }
}

/// Tells cycles used from cycles stolen.
#[derive(Debug)]
pub(super) struct StolenTime {
    wait: Option<RunQueueWait>,
    waited: Nanos,
    suspicious: Cycles,
    usual: Cycles,
    rate: TscRate,
}

impl StolenTime {
    pub(super) fn new(rate: TscRate, wait: Option<RunQueueWait>) -> Self {
        let waited = wait.as_ref().map_or(Nanos::ZERO, RunQueueWait::read);
        Self { wait, waited, suspicious: rate.to_cycles(SUSPICIOUS), usual: Cycles::ZERO, rate }
    }

    /// Whether a cost is far above the usual.
    #[inline]
    pub fn is_suspicious(&self, cost: Cycles) -> bool {
        cost >= self.suspicious
    }

    /// Notes the cost of a batch.
    #[inline]
    pub fn note_usual(&mut self, cost: Cycles) {
        if cost < self.suspicious {
            // A running mean over some 16 batches, without a division.
            self.usual = Cycles(self.usual.0 - self.usual.0 / 16 + cost.0 / 16);
        }
    }

    /// Cycles of a suspicious `cost` that were stolen. `due` is what the work should have cost, if
    /// that is known.
    pub fn of(&mut self, cost: Cycles, due: Option<Cycles>) -> Cycles {
        let due = due.unwrap_or(self.usual);
        self.stolen_of(cost, due)
    }

    /// The same for work of the host, which may rightly take long.
    pub fn of_host(&mut self, cost: Cycles) -> Cycles {
        self.grown().min(cost)
    }

    /// How long the thread waited for its core since the last look.
    fn grown(&mut self) -> Cycles {
        let Some(wait) = &self.wait else { return Cycles::ZERO };
        let waited = wait.read();
        let grown = waited.saturating_sub(core::mem::replace(&mut self.waited, waited));
        self.rate.to_cycles(grown)
    }

    fn stolen_of(&mut self, cost: Cycles, due: Cycles) -> Cycles {
        if self.wait.is_none() {
            return Cycles::ZERO;
        }
        let (grown, excess) = (self.grown(), cost.saturating_sub(due));
        // To find the caches cold again is part of what was taken.
        let stolen = if grown.0 > excess.0 / 2 { excess } else { grown };
        let kept = cost.saturating_sub(stolen);
        if kept <= self.rate.to_cycles(stall::SLEEP_MAX) {
            return stolen;
        }
        // It slept, or the machine below had the core: whose batch it was is not to pay for that.
        stall::took(self.rate.to_nanos(kept));
        excess
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is charged of a cost.
    fn charged(stolen: &mut StolenTime, cost: u64, due: Option<u64>) -> u64 {
        if !stolen.is_suspicious(Cycles(cost)) {
            stolen.note_usual(Cycles(cost));
            return cost;
        }
        cost - stolen.of(Cycles(cost), due.map(Cycles)).0
    }

    #[test]
    fn without_a_wait_nothing_is_stolen() {
        let mut stolen = StolenTime::new(TscRate::from_hz(2_000_000_000), None);
        assert_eq!(charged(&mut stolen, 50_000_000, None), 50_000_000);
        assert_eq!(stolen.of_host(Cycles(50_000_000)), Cycles::ZERO);
    }

    #[test]
    fn a_grown_wait_goes_to_stolen_and_the_usual_cost_is_charged() {
        let rate = TscRate::from_hz(1_000_000_000);
        let path = std::env::temp_dir().join(format!("penstock-schedstat-{}", std::process::id()));
        let has_waited = |nanos: u64| std::fs::write(&path, format!("100 {nanos} 5\n")).unwrap();
        has_waited(0);
        let wait = RunQueueWait(File::open(&path).unwrap());
        let mut stolen = StolenTime::new(rate, Some(wait));
        for _ in 0..400 {
            assert_eq!(charged(&mut stolen, 8_000, None), 8_000);
        }
        has_waited(3_000_000);
        assert_eq!(charged(&mut stolen, 3_008_000, None), 8_000);
        // The same wait is not counted twice.
        assert_eq!(charged(&mut stolen, 200_000, None), 200_000);
        // The model's cost precedes the usual cost. The refill of the caches is stolen too.
        has_waited(5_000_000);
        assert_eq!(charged(&mut stolen, 2_100_000, Some(12_000)), 12_000);
        // An expensive batch with a short wait is expensive.
        has_waited(5_010_000);
        assert_eq!(charged(&mut stolen, 400_000, Some(12_000)), 390_000);
        // Work of the host may take long. Only the wait itself is stolen from it.
        has_waited(5_110_000);
        assert_eq!(stolen.of_host(Cycles(900_000)), Cycles(100_000));
        std::fs::remove_file(&path).unwrap();
    }
}
