//! The common interface of both policies.
//!
//! # Order of calls
//! The owner of the processors reports what happens and asks which vCPU runs next:
//!
//! - If a vCPU becomes runnable, or an external event came for it, call [`VcpuScheduler::wake`].
//! - On each processor, call [`VcpuScheduler::poll`] every 0.5 ms and [`VcpuScheduler::tick`] every
//!   10 ms.
//! - Call [`VcpuScheduler::account`] every 30 ms, once for all processors.
//! - To decide again, make three calls. [`VcpuScheduler::charge`] charges the running vCPU for its
//!   time since the last charge. [`VcpuScheduler::leave`] reports why the vCPU leaves.
//!   [`VcpuScheduler::decide`] picks the next vCPU.
//!
//! A charge may come late, because it changes only accounts.

use penstock_units::{CpuId, Nanos, VcpuId, VmId};

use crate::contract::Contract;

/// Why a vCPU is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An external event: a packet or an interrupt for the vCPU. Events are also reported for a
    /// runnable vCPU.
    Event,
    /// The vCPU's own timer, or its start.
    Timer,
}

/// Why a vCPU leaves its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The vCPU's slice is over, or another vCPU preempts it. The vCPU has more to do.
    Preempted,
    /// The vCPU waits until it is woken.
    Blocked,
    /// The vCPU has nothing to do, and no wake-up is pending. A periodic vCPU runs again at its
    /// deadline (VM jitter §III-A), others when they are woken.
    Yielded,
}

/// The reason for which a vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The vCPU belongs to the driver domain.
    Driver,
    /// The vCPU is due in the deadline queue.
    Deadline,
    /// The vCPU is first in the credit queue.
    Credit,
}

/// A decision: the vCPU that runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The vCPU to run.
    pub vcpu: VcpuId,
    /// Maximum time to run.
    pub slice: Nanos,
    /// Reason for the decision.
    pub lane: Lane,
}

/// A VM that the scheduler has added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Number of the VM; it is free again after removal.
    pub id: VmId,
    /// The VM's vCPUs, in the order of the processors passed to [`VcpuScheduler::add`].
    pub vcpus: Vec<VcpuId>,
}

/// A scheduling policy for virtual processors.
pub trait VcpuScheduler {
    /// Adds a VM with a vCPU on each processor of `homes`. All its vCPUs are blocked. The caller
    /// has checked by [`crate::admission`] that the VM's deadline fits. `None` if no number or
    /// processor is free.
    fn add(&mut self, now: Nanos, contract: &Contract, homes: &[CpuId]) -> Option<Vm>;

    /// Removes a VM. None of its vCPUs may be running.
    fn remove(&mut self, now: Nanos, vm: VmId);

    /// Reports that a vCPU has something to do. Returns the processor that should decide again, if
    /// any.
    fn wake(&mut self, now: Nanos, vcpu: VcpuId, cause: Cause) -> Option<CpuId>;

    /// Charges a vCPU for the time that it ran since the last charge.
    fn charge(&mut self, vcpu: VcpuId, ran: Nanos);

    /// Reports that the running vCPU leaves `cpu`. The vCPU must have been charged before.
    fn leave(&mut self, now: Nanos, cpu: CpuId, how: Leave);

    /// The vCPU that runs next on `cpu`. The previous vCPU must have left ([`Self::leave`]).
    fn decide(&mut self, now: Nanos, cpu: CpuId) -> Option<Turn>;

    /// Whether a vCPU on `cpu` is due that must preempt the running one.
    fn poll(&self, now: Nanos, cpu: CpuId) -> bool;

    /// Called every 10 ms on each processor. The running vCPU must have been charged before.
    fn tick(&mut self, now: Nanos, cpu: CpuId);

    /// Called every 30 ms to hand out credits. Returns the processors that should decide again.
    fn account(&mut self, now: Nanos) -> Vec<CpuId>;
}

impl<T: VcpuScheduler + ?Sized> VcpuScheduler for Box<T> {
    fn add(&mut self, now: Nanos, contract: &Contract, homes: &[CpuId]) -> Option<Vm> {
        (**self).add(now, contract, homes)
    }

    fn remove(&mut self, now: Nanos, vm: VmId) {
        (**self).remove(now, vm);
    }

    fn wake(&mut self, now: Nanos, vcpu: VcpuId, cause: Cause) -> Option<CpuId> {
        (**self).wake(now, vcpu, cause)
    }

    fn charge(&mut self, vcpu: VcpuId, ran: Nanos) {
        (**self).charge(vcpu, ran);
    }

    fn leave(&mut self, now: Nanos, cpu: CpuId, how: Leave) {
        (**self).leave(now, cpu, how);
    }

    fn decide(&mut self, now: Nanos, cpu: CpuId) -> Option<Turn> {
        (**self).decide(now, cpu)
    }

    fn poll(&self, now: Nanos, cpu: CpuId) -> bool {
        (**self).poll(now, cpu)
    }

    fn tick(&mut self, now: Nanos, cpu: CpuId) {
        (**self).tick(now, cpu);
    }

    fn account(&mut self, now: Nanos) -> Vec<CpuId> {
        (**self).account(now)
    }
}
