//! One I/O core with C2TB and HBS on it. Batches cost cycles and move no frames.
//!
//! # Problem
//!
//! Buckets hand out cycles to batches, and cost cycles for each batch. Real frames would give the
//! same answer, but slower.
//!
//! # Approach
//!
//! Buckets and schedule are those of the data path ([`penstock_qos`]), called in the worker's
//! order:
//!
//! 1. Refill if the interval has passed, and release the VMs that have tokens again.
//! 2. Pick a VM and run its batch.
//! 3. Charge the VM, and hold it if it is in debt.
//!
//! Time is the core's cycles and advances by the cost of batches. If no VM may run, the core waits
//! for the next refill.

use penstock_qos::c2tb::{BucketSet, Mode, Terms, default_depth};
use penstock_qos::hbs::{BatchScheduler, RELEASE_MOST, Readiness};
use penstock_units::{Cycles, CyclesPerSecond, Priority, TscRate, Weight};

#[derive(Debug, Clone, Copy)]
pub(super) struct Bought {
    pub entitlement: CyclesPerSecond,
    pub weight: Weight,
    pub mode: Mode,
    pub class: Priority,
}

#[derive(Debug)]
pub(super) struct CoreLoop {
    core: TscRate,
    interval: u64,
    buckets: BucketSet,
    schedule: BatchScheduler,
    vms: Vec<Vm>,
    now: u64,
    refilled: u64,
    refills: u64,
}

#[derive(Debug, Clone, Copy)]
struct Vm {
    class: Priority,
    charged: u64,
}

impl CoreLoop {
    /// Creates a core of which `capacity` may be spent, refilled every `refill_us` microseconds.
    pub fn new(core: TscRate, capacity: CyclesPerSecond, refill_us: u64, vms: usize) -> Self {
        Self {
            core,
            interval: core.hz() * refill_us / 1_000_000,
            buckets: BucketSet::new(vms, core, capacity),
            schedule: BatchScheduler::new(vms, Readiness::Pending),
            vms: Vec::with_capacity(vms),
            now: 0,
            refilled: 0,
            refills: 0,
        }
    }

    /// Adds a VM in the next slot.
    pub fn add(&mut self, bought: &Bought, awake: bool) {
        let slot = self.vms.len();
        let depth = default_depth(bought.entitlement, self.core);
        let (entitlement, weight, mode) = (bought.entitlement, bought.weight, bought.mode);
        self.buckets.join(slot, &Terms { entitlement, weight, mode, depth }, 0);
        self.vms.push(Vm { class: bought.class, charged: 0 });
        self.wake(slot, awake);
    }

    /// Sets whether frames wait at `slot` from now on. A sleeping slot is not in the schedule. The
    /// worker does the same with queue pairs that send nothing.
    pub fn wake(&mut self, slot: usize, awake: bool) {
        if awake {
            self.schedule.add(slot, self.vms[slot].class);
        } else {
            self.schedule.remove(slot);
            self.buckets.note_waiting(slot, false);
        }
    }

    /// Cycles since the start.
    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn refills(&self) -> u64 {
        self.refills
    }

    /// Cycles charged to `slot` so far.
    pub fn charged(&self, slot: usize) -> u64 {
        self.vms[slot].charged
    }

    /// Runs one turn of the worker. A batch of `slot` costs `cost(slot)` cycles.
    #[inline]
    pub fn turn(&mut self, mut cost: impl FnMut(usize) -> u64) {
        if self.now - self.refilled >= self.interval {
            self.refill();
        }
        self.schedule.begin();
        while let Some(candidate) = self.schedule.next_look() {
            let slot = candidate.slot;
            if !self.buckets.may_run(slot) {
                self.schedule.hold(slot);
                continue;
            }
            let cost = cost(slot);
            self.now += cost;
            self.vms[slot].charged += cost;
            self.schedule.ran(slot);
            if !self.buckets.charge(slot, Cycles(cost), true) {
                self.schedule.hold(slot);
            }
            return;
        }
        self.now = self.now.max(self.refilled + self.interval);
    }

    fn refill(&mut self) {
        self.buckets.refill(Cycles(self.now - self.refilled));
        self.refilled = self.now;
        self.refills += 1;
        if self.schedule.waiting() > 0 {
            let buckets = &self.buckets;
            self.schedule.release(RELEASE_MOST, |slot| buckets.may_run(slot));
        }
    }
}
