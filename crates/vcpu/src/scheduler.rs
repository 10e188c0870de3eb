//! The common interface of the scheduling policies [`crate::credit1`] and [`crate::double_queue`].
//!
//! # Order of calls
//! The owner of the processors reports events to the scheduler, and asks which vCPU runs next:
//!
//! - If a vCPU becomes runnable, or if an external event arrives for a vCPU, call
//!   [`VcpuScheduler::wake`].
//! - On each processor, call [`VcpuScheduler::poll`] every 0.5 ms and [`VcpuScheduler::tick`] every
//!   10 ms.
//! - Call [`VcpuScheduler::account`] every 30 ms, once for all processors.
//! - To switch to another vCPU, call [`VcpuScheduler::charge`], [`VcpuScheduler::leave`] and
//!   [`VcpuScheduler::decide`] in this order. [`VcpuScheduler::charge`] charges the running vCPU.
//!   [`VcpuScheduler::leave`] reports why the vCPU leaves. [`VcpuScheduler::decide`] picks the next
//!   vCPU.
//!
//! A call of [`VcpuScheduler::charge`] may be late, because the call changes only the credit
//! accounts.

use penstock_units::{CpuId, Nanos, VcpuId, VmId};

use crate::contract::Contract;

/// Reason why a vCPU is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An external event occurred: a packet or an interrupt for the vCPU. The owner of the
    /// processors reports events even if the vCPU is already runnable.
    Event,
    /// The vCPU's own timer expired, or the vCPU was started.
    Timer,
}

/// Reason why a vCPU leaves its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The vCPU's slice is over, or another vCPU preempts the vCPU. The preempted vCPU has more
    /// work.
    Preempted,
    /// The vCPU waits for an event or a timer, which will wake the vCPU.
    Blocked,
    /// The vCPU has no work and set no timer. A vCPU of a periodic VM runs again at its deadline
    /// (VM jitter §III-A). After a yield, a vCPU of a VM that is not periodic runs again when the
    /// vCPU is woken.
    Yielded,
}

/// The queue from which the scheduler picked a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The vCPU belongs to the driver domain.
    Driver,
    /// The vCPU is due in the deadline queue.
    Deadline,
    /// The scheduler picked the vCPU from the front of the credit queue.
    Credit,
}

/// A decision of the scheduler: the vCPU that runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The vCPU that must run now.
    pub vcpu: VcpuId,
    /// Maximum time for which the vCPU may run.
    pub slice: Nanos,
    /// The queue from which the scheduler picked the vCPU.
    pub lane: Lane,
}

/// A VM that the scheduler has added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Number of the VM in the scheduler. After the VM is removed, another VM may get the same
    /// number.
    pub id: VmId,
    /// The VM's vCPUs, in the order of the processors passed to [`VcpuScheduler::add`].
    pub vcpus: Vec<VcpuId>,
}

/// A scheduling policy for virtual processors.
pub trait VcpuScheduler {
    /// Adds a VM with a vCPU on each processor of `homes`. All vCPUs of the new VM are blocked. The
    /// caller has checked with [`crate::admission`] that the VM's deadline fits. Returns `None` if
    /// no VM or vCPU number is free, or if a processor does not exist.
    fn add(&mut self, now: Nanos, contract: &Contract, homes: &[CpuId]) -> Option<Vm>;

    /// Removes a VM. The caller must ensure that no vCPU of the removed VM is running.
    fn remove(&mut self, now: Nanos, vm: VmId);

    /// Reports that a vCPU has work. Returns the processor that must call [`Self::decide`] again,
    /// or `None` if no call is necessary.
    fn wake(&mut self, now: Nanos, vcpu: VcpuId, cause: Cause) -> Option<CpuId>;

    /// Charges a vCPU for its run time `ran` since the last charge.
    fn charge(&mut self, vcpu: VcpuId, ran: Nanos);

    /// Reports that the running vCPU leaves processor `cpu`. The caller must have charged the
    /// vCPU's run time before the call of `leave`.
    fn leave(&mut self, now: Nanos, cpu: CpuId, how: Leave);

    /// Decides which vCPU runs next on processor `cpu`; `None` if no vCPU can run. The previous
    /// vCPU must have left the processor ([`Self::leave`]).
    fn decide(&mut self, now: Nanos, cpu: CpuId) -> Option<Turn>;

    /// Whether a waiting vCPU on processor `cpu` must preempt the running vCPU at time `now`.
    fn poll(&self, now: Nanos, cpu: CpuId) -> bool;

    /// Samples the running vCPU of processor `cpu`. On each processor, the caller calls `tick`
    /// every 10 ms, after the call of `charge`.
    fn tick(&mut self, now: Nanos, cpu: CpuId);

    /// Distributes the credits of an epoch. The caller calls `account` every 30 ms. Returns the
    /// processors that must call [`Self::decide`] again.
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
