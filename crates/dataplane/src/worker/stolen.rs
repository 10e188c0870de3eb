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

use super::stall;
use crate::counters::{PortCounters, WorkerCounters};

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

    /// What of a batch's `cost` is to be charged; the rest goes to `stolen`. `model` says what it
    /// should have cost, if that is known.
    #[inline]
    pub(super) fn settle(
        &mut self,
        cost: Cycles,
        model: impl FnOnce() -> Option<Cycles>,
        worker: &WorkerCounters,
        port: &PortCounters,
    ) -> Cycles {
        if cost < self.suspicious {
            // A running mean over some 16 batches, without a division.
            self.usual = Cycles(self.usual.0 - self.usual.0 / 16 + cost.0 / 16);
            return cost;
        }
        let due = model().unwrap_or(self.usual);
        let stolen = self.stolen_of(cost, due);
        if stolen.0 > 0 {
            worker.stolen_batches.add(1);
            worker.cycles_stolen.add(stolen.0);
            port.stolen.add(stolen.0);
        }
        cost.saturating_sub(stolen)
    }

    /// The same for what was no batch: an idle turn, a notification.
    #[inline]
    pub(super) fn settle_idle(&mut self, cost: Cycles, worker: &WorkerCounters) -> Cycles {
        if cost < self.suspicious {
            return cost;
        }
        let stolen = self.stolen_of(cost, self.usual);
        worker.cycles_stolen.add(stolen.0);
        cost.saturating_sub(stolen)
    }

    #[cold]
    fn stolen_of(&mut self, cost: Cycles, due: Cycles) -> Cycles {
        let Some(wait) = &self.wait else { return Cycles::ZERO };
        let waited = wait.read();
        let grown = waited.saturating_sub(self.waited);
        self.waited = waited;
        let (grown, excess) = (self.rate.to_cycles(grown), cost.saturating_sub(due));
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

    #[test]
    fn without_a_wait_nothing_is_stolen() {
        let rate = TscRate::from_hz(2_000_000_000);
        let mut stolen = StolenTime::new(rate, None);
        let (worker, port) = (WorkerCounters::default(), PortCounters::default());
        assert_eq!(stolen.settle(Cycles(50_000_000), || None, &worker, &port), Cycles(50_000_000));
        assert_eq!(port.stolen.get(), 0);
    }

    #[test]
    fn a_grown_wait_goes_to_stolen_and_the_usual_cost_is_charged() {
        let rate = TscRate::from_hz(1_000_000_000);
        let path = std::env::temp_dir().join(format!("penstock-schedstat-{}", std::process::id()));
        std::fs::write(&path, "100 0 5\n").unwrap();
        let wait = RunQueueWait(File::open(&path).unwrap());
        let mut stolen = StolenTime::new(rate, Some(wait));
        let (worker, port) = (WorkerCounters::default(), PortCounters::default());
        for _ in 0..400 {
            assert_eq!(stolen.settle(Cycles(8_000), || None, &worker, &port), Cycles(8_000));
        }
        std::fs::write(&path, "100 3000000 5\n").unwrap();
        let charged = stolen.settle(Cycles(3_008_000), || None, &worker, &port);
        assert_eq!(charged, Cycles(8_000));
        assert_eq!(port.stolen.get(), 3_000_000);
        assert_eq!(worker.stolen_batches.get(), 1);
        // The same wait is not counted twice.
        assert_eq!(stolen.settle(Cycles(200_000), || None, &worker, &port), Cycles(200_000));
        // What the model says goes before what is usual; the caches' refill is stolen too.
        std::fs::write(&path, "100 5000000 5\n").unwrap();
        let model = || Some(Cycles(12_000));
        assert_eq!(stolen.settle(Cycles(2_100_000), model, &worker, &port), Cycles(12_000));
        // A dear batch with a short wait is dear.
        std::fs::write(&path, "100 5010000 5\n").unwrap();
        assert_eq!(stolen.settle(Cycles(400_000), model, &worker, &port), Cycles(390_000));
        std::fs::remove_file(&path).unwrap();
    }
}
