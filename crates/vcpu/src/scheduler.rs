//! The one interface of both policies.
//!
//! **Who calls what.** Whoever has the processors tells of what happens and asks what is next:
//!
//! - a vCPU becomes runnable, or an external event came for it: [`VcpuScheduler::wake`];
//! - every 0.5 ms on each processor: [`VcpuScheduler::poll`], every 10 ms
//!   [`VcpuScheduler::tick`], every 30 ms once for all [`VcpuScheduler::account`];
//! - to decide anew: [`VcpuScheduler::charge`] what the running one used since it was last
//!   charged, [`VcpuScheduler::leave`] says why it left, [`VcpuScheduler::decide`] who is next.
//!
//! A charge may come late: it moves accounts and nothing else.

use penstock_units::{CpuId, Nanos, VcpuId, VmId};

use crate::contract::Contract;

/// Why a vCPU is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// From outside: a packet or an interrupt for it. Also told of one that is runnable already.
    Event,
    /// Its own timer, or that it was started.
    Timer,
}

/// Why a vCPU leaves its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Its slice is over or somebody goes before it; it has more to do.
    Preempted,
    /// It waits until it is woken.
    Blocked,
    /// It has nothing to do that it knows of, and nobody will wake it: a periodic one comes again
    /// at its deadline (VM jitter §III-A), others when somebody wakes them.
    Yielded,
}

/// By which right a vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// It is the driver domain's.
    Driver,
    /// Its deadline has come.
    Deadline,
    /// It was first by credit.
    Credit,
}

/// Who runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Who.
    pub vcpu: VcpuId,
    /// For how long at most.
    pub slice: Nanos,
    /// Why.
    pub lane: Lane,
}

/// A VM that was taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Its number; free again when it is removed.
    pub id: VmId,
    /// Its vCPUs, in the order of their processors.
    pub vcpus: Vec<VcpuId>,
}

/// A policy for virtual processors.
pub trait VcpuScheduler {
    /// Takes in a VM with a vCPU on each of `homes`, all blocked. Whether its deadline fits is
    /// asked before ([`crate::admission`]). `None`: no number or processor is left for it.
    fn add(&mut self, now: Nanos, contract: &Contract, homes: &[CpuId]) -> Option<Vm>;

    /// Forgets a VM, none of whose vCPUs runs.
    fn remove(&mut self, now: Nanos, vm: VmId);

    /// A vCPU has something to do. The processor that should decide anew, if one should.
    fn wake(&mut self, now: Nanos, vcpu: VcpuId, cause: Cause) -> Option<CpuId>;

    /// What a vCPU used since it was last charged.
    fn charge(&mut self, vcpu: VcpuId, ran: Nanos);

    /// The one that ran on `cpu` leaves, charged before.
    fn leave(&mut self, now: Nanos, cpu: CpuId, how: Leave);

    /// Who runs next on `cpu`, from which the last one left.
    fn decide(&mut self, now: Nanos, cpu: CpuId) -> Option<Turn>;

    /// Whether somebody on `cpu` is due who goes before the one that runs.
    fn poll(&self, now: Nanos, cpu: CpuId) -> bool;

    /// Every 10 ms on each processor, what runs charged before.
    fn tick(&mut self, now: Nanos, cpu: CpuId);

    /// Every 30 ms: credits are handed out. Processors that should decide anew.
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
