//! One simulated I/O core with the token buckets (C2TB) and the schedule (HBS) of C2QoS. Batches on
//! the simulated core cost cycles but move no frames.
//!
//! # Problem
//!
//! The figure `c2qos-overhead` measures the cost and the accuracy of the cycle buckets. A
//! measurement of the cycle buckets with real frames would be slower and have the same result.
//!
//! # Approach
//!
//! The loop uses the buckets and the schedule of the data path ([`penstock_qos`]). In each turn,
//! the loop takes the same three steps as a worker of the data path:
//!
//! 1. If the refill interval has passed, refill the buckets and release the VMs that have tokens
//!    again.
//! 2. Pick a VM and run a batch of the VM.
//! 3. Charge the VM. If the balance of the VM's bucket is negative, remove the VM from the schedule
//!    until the bucket has tokens.
//!
//! The unit of time is a cycle of the core. Each batch advances the time by the batch's cost. If no
//! VM may run, the core waits for the next refill.

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
    /// Creates a core with up to `vms` VMs. The VMs' buckets share `capacity` and are refilled
    /// every `refill_us` microseconds.
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

    /// Adds a VM in the next free slot of the core.
    pub fn add(&mut self, bought: &Bought, awake: bool) {
        let slot = self.vms.len();
        let depth = default_depth(bought.entitlement, self.core);
        let (entitlement, weight, mode) = (bought.entitlement, bought.weight, bought.mode);
        self.buckets.join(slot, &Terms { entitlement, weight, mode, depth }, 0);
        self.vms.push(Vm { class: bought.class, charged: 0 });
        self.wake(slot, awake);
    }

    /// Sets whether the VM in `slot` has frames to send. A VM without frames is not in the
    /// schedule. A worker of the data path likewise removes queue pairs without frames from its
    /// schedule.
    pub fn wake(&mut self, slot: usize, awake: bool) {
        if awake {
            self.schedule.add(slot, self.vms[slot].class);
        } else {
            self.schedule.remove(slot);
            self.buckets.note_waiting(slot, false);
        }
    }

    /// Returns the number of cycles since the start of the simulation.
    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn refills(&self) -> u64 {
        self.refills
    }

    /// Returns the number of cycles charged to the VM in `slot` so far.
    pub fn charged(&self, slot: usize) -> u64 {
        self.vms[slot].charged
    }

    /// Runs one turn of the loop, with at most one batch. A batch of the VM in slot `slot` costs
    /// `cost(slot)` cycles.
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
