//! The worker measures which of a batch's cycles its thread used, and in which cycles another
//! thread had the core.
//!
//! # Problem
//!
//! The cycle counter continues while the thread waits for its core. Without a correction, the port
//! that sent a batch would pay for milliseconds in which another thread used the core.
//!
//! # Approach
//!
//! If a batch's cost is far above the usual cost, the worker reads the thread's run-queue wait
//! (`/proc/thread-self/schedstat`). The excess of a batch is the batch's cost minus the expected
//! cost. The cost model gives the expected cost of a batch. If the worker has no cost model, the
//! expected cost of a batch is the usual cost of recent batches. If the run-queue wait grew by more
//! than half of the excess, the whole excess counts as `stolen`. If the run-queue wait grew by at
//! most half of the excess cost, only the growth of the run-queue wait counts as `stolen`. The
//! sender never pays for stolen cycles. A system call for ports has no expected cost, so that only
//! the growth of the run-queue wait counts.
//!
//! The run-queue wait does not include time for which a hypervisor stopped the whole machine. If a
//! hypervisor stopped the whole machine during a batch, the port that sent the batch pays for the
//! time of the stop.
//!
//! # Cost
//!
//! The check for stolen cycles costs one comparison per batch, and one system call if the cost is
//! suspicious.

use std::fs::File;
use std::os::unix::fs::FileExt;

use penstock_units::{Cycles, Nanos, TscRate};

use crate::wake::stall;

/// Cost at or above which the worker checks whether another thread used the core during a batch.
/// The largest valid batch (64 KiB) takes a few tens of microseconds.
const SUSPICIOUS: Nanos = Nanos::from_micros(100);

/// Reader of a thread's total wait on run queues.
#[derive(Debug)]
pub struct RunQueueWait(File);

impl RunQueueWait {
    /// Opens the wait statistics of the calling thread. Returns `None` if the kernel has no
    /// schedule statistics.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().map(Self)
    }

    /// Returns the thread's total wait on run queues since the thread's start.
    #[must_use]
    pub fn read(&self) -> Nanos {
        let mut text = [0; 96];
        let len = self.0.read_at(&mut text, 0).unwrap_or(0);
        let field = text[..len].split(|&b| b == b' ').nth(1).unwrap_or(&[]);
        let digits = field.iter().take_while(|b| b.is_ascii_digit());
        Nanos(digits.fold(0, |n, &b| n.wrapping_mul(10).wrapping_add(u64::from(b - b'0'))))
    }
}

/// Determines which cycles of a batch the worker's thread used, and in which cycles another thread
/// or the kernel had the core (stolen cycles).
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

    /// Whether a batch's cost is far above the usual cost, so that cycles may have been stolen.
    #[inline]
    pub fn is_suspicious(&self, cost: Cycles) -> bool {
        cost >= self.suspicious
    }

    /// Updates the moving average of batch costs with the cost of one more batch.
    #[inline]
    pub fn note_usual(&mut self, cost: Cycles) {
        if cost < self.suspicious {
            // A running mean over about 16 batches, without a division.
            self.usual = Cycles(self.usual.0 - self.usual.0 / 16 + cost.0 / 16);
        }
    }

    /// Returns the stolen part of a batch's suspicious cost `cost`. `due` is the cost that the cost
    /// model expects for the batch, or `None` if the worker has no cost model.
    pub fn of(&mut self, cost: Cycles, due: Option<Cycles>) -> Cycles {
        let excess = cost.saturating_sub(due.unwrap_or(self.usual));
        self.stolen_of(cost, excess, |grown| {
            // Refilling the cold caches also counts as stolen.
            if grown.0 > excess.0 / 2 { excess } else { grown }
        })
    }

    /// Returns the stolen part of the suspicious cost `cost` of system calls for ports. A system
    /// call has no expected cost, so only the growth of the run-queue wait counts as stolen.
    /// Otherwise a VM whose send call takes long would not pay for it when another thread, such as
    /// the kernel's own for network traffic, takes the core in the call.
    pub fn of_calls(&mut self, cost: Cycles) -> Cycles {
        self.stolen_of(cost, cost.saturating_sub(self.usual), |grown| grown.min(cost))
    }

    /// The host's own work has no expected cost, so only the growth of the run-queue wait counts as
    /// stolen. The host's own work may take long even if no cycles were stolen.
    pub fn of_host(&mut self, cost: Cycles) -> Cycles {
        self.grown().min(cost)
    }

    /// Returns the time for which the thread waited for its core since the last check.
    fn grown(&mut self) -> Cycles {
        let Some(wait) = &self.wait else { return Cycles::ZERO };
        let waited = wait.read();
        let grown = waited.saturating_sub(core::mem::replace(&mut self.waited, waited));
        self.rate.to_cycles(grown)
    }

    /// Returns the stolen part of `cost`, by the growth of the run-queue wait. If the port would
    /// have to pay for more than a sleep of [`stall::SLEEP_MAX`], all of `excess` is stolen.
    fn stolen_of(
        &mut self,
        cost: Cycles,
        excess: Cycles,
        by_wait: impl FnOnce(Cycles) -> Cycles,
    ) -> Cycles {
        if self.wait.is_none() {
            return Cycles::ZERO;
        }
        let stolen = by_wait(self.grown());
        let kept = cost.saturating_sub(stolen);
        if kept <= self.rate.to_cycles(stall::SLEEP_MAX) {
            return stolen;
        }
        // The thread slept, or the hypervisor took the core. The batch's port must not pay for
        // that.
        stall::took(self.rate.to_nanos(kept));
        excess
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the cycles of a batch that the sending port pays: the batch's cost minus the stolen
    /// cycles.
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
        // A port pays for its system calls, although another thread took the core in a call.
        has_waited(6_010_000);
        assert_eq!(stolen.of_calls(Cycles(1_300_000)), Cycles(900_000));
        has_waited(6_020_000);
        let day = Cycles(86_400_000_000_000);
        assert_eq!(stolen.of_calls(day), Cycles(day.0 - 8_000), "but not for a long sleep");
        std::fs::remove_file(&path).unwrap();
    }
}
