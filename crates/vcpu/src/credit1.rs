//! Xen's credit scheduler, in which each processor has a run queue that is sorted by class.
//!
//! # Problem
//! Xen's credit scheduler is the baseline to which scheduling by deadlines is compared. In
//! [`crate::double_queue`], the credit scheduler also divides the time that vCPUs do not use by
//! their deadlines.
//!
//! # Source
//! The source is xen/common/sched_credit.c (4.x). The implementation follows the rules of Xen's
//! `sched_credit.c` and copies none of its text.
//!
//! # Approach
//! A vCPU is in one of three classes ([`crate::credit_book`]). vCPUs of the three classes run in
//! the following order:
//!
//! 1. BOOST: the vCPU was just woken, and had credits left or an I/O reserve ([`crate::reserve`]).
//! 2. UNDER: the vCPU has credits left.
//! 3. OVER: the vCPU used more than its share. Without an I/O reserve, a vCPU in class OVER gets no
//!    boost when it wakes up, which the paper on VM jitter criticises.
//!
//! Within a class, vCPUs run in the order of arrival. A waking vCPU preempts a running vCPU of a
//! lower class. If the waking vCPU cannot preempt, the scheduler notifies an idle processor. A
//! preempted vCPU queues behind the other vCPUs of its class.
//!
//! A slice of the credit scheduler is 30 ms. No vCPU is preempted in the first millisecond of its
//! slice ([`QueueTerms::ratelimit`]). If the next vCPU of a processor is OVER, the processor
//! searches other processors for a vCPU of a higher class. A processor searches other processors at
//! most once per millisecond. After each epoch, the processor's next tick moves all vCPUs that are
//! OVER to the end of the queue. The tick does not change the order of the other vCPUs.
//!
//! # Example
//! If six vCPUs of equal weight always have work, each vCPU waits five slices (150 ms) between two
//! runs.
//!
//! # Departures
//! - [`QueueTerms::XEN`] differs from Xen in two points. All processors count as one NUMA node. A
//!   vCPU may migrate at once, even if its data is still in the cache of its processor.
//! - With [`QueueTerms::by_credit`], the vCPU with the most credits runs first within a class, as
//!   in the paper (§III-A). The vCPU with the most credits is furthest behind its share, so shares
//!   are accurate to a slice.
//!
//! # Cost
//! If n vCPUs wait on a processor, a wake-up costs O(n) and the end of an epoch costs O(n log n).

use std::collections::VecDeque;

use penstock_units::{CpuId, Nanos, VcpuId, VmId};

use crate::contract::Contract;
use crate::credit_book::{Class, CreditBook, CreditTerms};
use crate::scheduler::{Cause, Lane, Leave, Turn, VcpuScheduler, Vm};

/// Constants of the credit scheduler's run queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTerms {
    /// Whether the vCPU with the most credits runs first within a class. If `by_credit` is false,
    /// vCPUs of a class run in the order of arrival.
    pub by_credit: bool,
    /// Time from the beginning of a slice in which no other vCPU preempts the running vCPU.
    pub ratelimit: Nanos,
}

impl QueueTerms {
    /// Length of a slice of the credit scheduler.
    pub const SLICE: Nanos = Nanos::from_millis(30);
    /// Minimum time between two searches of a processor for vCPUs on other processors.
    const STEAL_GAP: Nanos = Nanos::from_millis(1);
    /// Constants of the run queues in Xen's credit scheduler.
    pub const XEN: Self = Self { by_credit: false, ratelimit: Nanos::from_millis(1) };
    /// Constants of the run queues in Penstock's scheduler.
    pub const BY_CREDIT: Self = Self { by_credit: true, ratelimit: Nanos(0) };
}

#[derive(Clone, Copy, Debug)]
struct VcpuPlace {
    cpu: CpuId,
    /// Whether the vCPU runs or waits to run.
    runnable: bool,
    /// Whether the vCPU must not move to another processor.
    pinned: bool,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    queue: VecDeque<VcpuId>,
    running: Option<VcpuId>,
    /// Time at which the processor's running vCPU started to run.
    since: Nanos,
    /// Time until which [`QueueTerms::ratelimit`] defers a preemption of the running vCPU. `None`
    /// means that no preemption is deferred.
    held: Option<Nanos>,
    /// Number of the epoch after which the processor's queue was last sorted.
    sorted: u64,
    looked: Option<Nanos>,
}

/// Xen's credit scheduler: the run queues of all processors, and the credit accounts of all vCPUs.
#[derive(Clone, Debug)]
pub struct Credit1 {
    book: CreditBook,
    terms: QueueTerms,
    places: Vec<Option<VcpuPlace>>,
    cpus: Vec<Cpu>,
    epochs: u64,
}

impl Credit1 {
    /// Makes a scheduler with Xen's constants for `cpus` processors.
    #[must_use]
    pub fn new(cpus: u16) -> Self {
        Self::with_terms(cpus, CreditTerms::XEN, QueueTerms::XEN)
    }

    /// Makes a scheduler for `cpus` processors. `credits` has the constants of the credit accounts,
    /// and `terms` has the constants of the run queues.
    #[must_use]
    pub fn with_terms(cpus: u16, credits: CreditTerms, terms: QueueTerms) -> Self {
        Self {
            book: CreditBook::new(credits, cpus),
            terms,
            places: Vec::new(),
            cpus: vec![Cpu::default(); usize::from(cpus)],
            epochs: 0,
        }
    }

    /// The credit accounts of all vCPUs.
    #[must_use]
    pub const fn book(&self) -> &CreditBook {
        &self.book
    }

    /// The vCPU that runs on `cpu`. Returns `None` if the processor is idle or unknown.
    #[must_use]
    pub fn running(&self, cpu: CpuId) -> Option<VcpuId> {
        self.cpus.get(cpu.index())?.running
    }

    /// The processor on which a vCPU waits or runs. Returns `None` for an unknown vCPU.
    #[must_use]
    pub fn cpu_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.place(vcpu).map(|place| place.cpu)
    }

    /// Whether a vCPU runs or waits to run.
    #[must_use]
    pub fn runnable(&self, vcpu: VcpuId) -> bool {
        self.place(vcpu).is_some_and(|place| place.runnable)
    }

    fn place(&self, vcpu: VcpuId) -> Option<VcpuPlace> {
        self.places.get(vcpu.index()).copied().flatten()
    }

    fn place_mut(&mut self, vcpu: VcpuId) -> Option<&mut VcpuPlace> {
        self.places.get_mut(vcpu.index())?.as_mut()
    }

    /// Pins a vCPU to its present processor.
    pub(crate) fn pin(&mut self, vcpu: VcpuId) {
        if let Some(place) = self.place_mut(vcpu) {
            place.pinned = true;
        }
    }

    /// Whether vCPU `a`, which is already queued, stays in front of vCPU `b`.
    fn before(&self, a: VcpuId, b: VcpuId) -> bool {
        let key =
            |v| (self.book.class(v), if self.terms.by_credit { self.book.credit(v) } else { 0 });
        key(a) >= key(b)
    }

    /// Queues a vCPU behind the other vCPUs of its class. With [`QueueTerms::by_credit`], the vCPU
    /// queues behind the vCPUs of its class with as many or more credits.
    fn insert(&mut self, vcpu: VcpuId) {
        let Some(place) = self.place(vcpu) else { return };
        let queue = &self.cpus[place.cpu.index()].queue;
        let at = queue.iter().position(|other| !self.before(*other, vcpu)).unwrap_or(queue.len());
        self.cpus[place.cpu.index()].queue.insert(at, vcpu);
    }

    /// Removes a vCPU from its queue. Returns whether the vCPU was queued.
    pub(crate) fn unqueue(&mut self, vcpu: VcpuId) -> bool {
        let Some(place) = self.place(vcpu) else { return false };
        let queue = &mut self.cpus[place.cpu.index()].queue;
        let at = queue.iter().position(|other| *other == vcpu);
        at.map(|at| queue.remove(at)).is_some()
    }

    /// Records that a vCPU is blocked, and removes the vCPU from its queue.
    pub(crate) fn block(&mut self, vcpu: VcpuId) {
        self.unqueue(vcpu);
        self.book.end_drawing(vcpu);
        if let Some(place) = self.place_mut(vcpu) {
            place.runnable = false;
        }
    }

    /// Copies the credit account of vCPU `was` in the earlier scheduler `before` to `vcpu`. If vCPU
    /// `was` was runnable in the earlier scheduler, the function puts `vcpu` into a run queue.
    pub(crate) fn resume(&mut self, vcpu: VcpuId, before: &Self, was: VcpuId) {
        self.book.resume(vcpu, &before.book, was);
        if before.runnable(was) {
            self.queue(vcpu);
        }
    }

    /// Records that a vCPU used its slice for an event and has more work. While the vCPU's I/O
    /// reserve lasts, the vCPU is in the class BOOST.
    pub(crate) fn go_on(&mut self, vcpu: VcpuId, slice: Nanos) {
        self.book.go_on(vcpu, slice);
        if self.unqueue(vcpu) {
            self.insert(vcpu);
        }
    }

    /// Stops charging a vCPU's I/O reserve. Later run time of the vCPU reduces the vCPU's ordinary
    /// credits.
    pub(crate) fn end_drawing(&mut self, vcpu: VcpuId) {
        self.book.end_drawing(vcpu);
    }

    /// Makes a vCPU runnable, and queues the vCPU unless it is parked.
    fn queue(&mut self, vcpu: VcpuId) {
        if let Some(place) = self.place_mut(vcpu) {
            place.runnable = true;
        }
        if !self.book.parked(vcpu) {
            self.insert(vcpu);
        }
    }

    /// Returns the processor that must pick a vCPU again because `vcpu` became runnable. Returns
    /// `None` if no processor must pick another vCPU.
    fn tickle(&mut self, now: Nanos, vcpu: VcpuId) -> Option<CpuId> {
        let place = self.place(vcpu)?;
        let cpu = &mut self.cpus[place.cpu.index()];
        let Some(running) = cpu.running else { return Some(place.cpu) };
        if self.book.class(vcpu) > self.book.class(running) {
            let until = cpu.since + self.terms.ratelimit;
            if now >= until {
                return Some(place.cpu);
            }
            cpu.held = Some(until);
        }
        if place.pinned {
            return None;
        }
        let idle = |cpu: &Cpu| cpu.running.is_none() && cpu.queue.is_empty();
        let at = self.cpus.iter().position(idle)?;
        u16::try_from(at).ok().map(CpuId)
    }

    /// Moves a waiting vCPU from another processor to the processor `thief`. If `than` is not
    /// `None`, only a vCPU of a class above `than` moves.
    fn steal(&mut self, now: Nanos, thief: CpuId, than: Option<Class>) -> Option<VcpuId> {
        let looked = self.cpus[thief.index()].looked;
        if looked.is_some_and(|at| now < at + QueueTerms::STEAL_GAP) && than.is_some() {
            return None;
        }
        self.cpus[thief.index()].looked = Some(now);
        let count = self.cpus.len();
        for at in (1..count).map(|step| (thief.index() + step) % count) {
            if self.cpus[at].running.is_none() {
                continue;
            }
            let higher = |v: &&VcpuId| than.is_none_or(|than| self.book.class(**v) > than);
            let movable = |v: &&VcpuId| self.place(**v).is_some_and(|place| !place.pinned);
            let found = self.cpus[at].queue.iter().take_while(higher).find(movable).copied();
            if let Some(vcpu) = found {
                self.unqueue(vcpu);
                if let Some(place) = self.place_mut(vcpu) {
                    place.cpu = thief;
                }
                return Some(vcpu);
            }
        }
        None
    }

    /// Marks processor `cpu` as idle and returns the vCPU that ran on it. `vacate` does not put the
    /// returned vCPU into a run queue.
    pub(crate) fn vacate(&mut self, cpu: CpuId) -> Option<VcpuId> {
        let state = self.cpus.get_mut(cpu.index())?;
        state.held = None;
        state.running.take()
    }

    /// Records that vCPU `vcpu` runs on processor `cpu` from time `now` on.
    pub(crate) fn install(&mut self, now: Nanos, cpu: CpuId, vcpu: VcpuId) {
        self.unqueue(vcpu);
        if let Some(place) = self.place_mut(vcpu) {
            place.runnable = true;
        }
        let state = &mut self.cpus[cpu.index()];
        (state.running, state.since, state.held) = (Some(vcpu), now, None);
    }

    fn resort(&mut self, cpu: usize) {
        let mut queue = std::mem::take(&mut self.cpus[cpu].queue);
        let book = &self.book;
        if self.terms.by_credit {
            let key = |v: &VcpuId| std::cmp::Reverse((book.class(*v), book.credit(*v)));
            queue.make_contiguous().sort_by_key(key);
        } else {
            queue.make_contiguous().sort_by_key(|v| book.class(*v) == Class::Over);
        }
        self.cpus[cpu].queue = queue;
    }
}

impl VcpuScheduler for Credit1 {
    fn add(&mut self, _: Nanos, contract: &Contract, homes: &[CpuId]) -> Option<Vm> {
        if homes.iter().any(|home| home.index() >= self.cpus.len()) {
            return None;
        }
        let (id, vcpus) = self.book.open(contract, homes.len())?;
        for (vcpu, cpu) in vcpus.iter().zip(homes) {
            if self.places.len() <= vcpu.index() {
                self.places.resize(vcpu.index() + 1, None);
            }
            let place = VcpuPlace { cpu: *cpu, runnable: false, pinned: contract.pinned };
            self.places[vcpu.index()] = Some(place);
        }
        Some(Vm { id, vcpus })
    }

    fn remove(&mut self, _: Nanos, vm: VmId) {
        for vcpu in self.book.vcpus(vm).to_vec() {
            self.unqueue(vcpu);
            self.places[vcpu.index()] = None;
        }
        self.book.close(vm);
    }

    fn wake(&mut self, now: Nanos, vcpu: VcpuId, cause: Cause) -> Option<CpuId> {
        if self.place(vcpu)?.runnable {
            return None;
        }
        self.book.boost(vcpu, cause == Cause::Event);
        self.queue(vcpu);
        if self.book.parked(vcpu) { None } else { self.tickle(now, vcpu) }
    }

    fn charge(&mut self, vcpu: VcpuId, ran: Nanos) {
        self.book.burn(vcpu, ran);
    }

    fn leave(&mut self, _: Nanos, cpu: CpuId, how: Leave) {
        let Some(vcpu) = self.vacate(cpu) else { return };
        self.book.end_drawing(vcpu);
        if how == Leave::Preempted {
            self.queue(vcpu);
        } else if let Some(place) = self.place_mut(vcpu) {
            place.runnable = false;
        }
    }

    fn decide(&mut self, now: Nanos, cpu: CpuId) -> Option<Turn> {
        let head = self.cpus.get(cpu.index())?.queue.front().copied();
        let class = head.map(|head| self.book.class(head));
        let stolen = match class {
            Some(Class::Under | Class::Boost) => None,
            than => self.steal(now, cpu, than),
        };
        let vcpu = stolen.or(head)?;
        self.install(now, cpu, vcpu);
        let on_reserve = self.book.drawing(vcpu).map(|left| Nanos(left.0.max(1)));
        let slice = on_reserve.map_or(QueueTerms::SLICE, |left| left.min(QueueTerms::SLICE));
        Some(Turn { vcpu, slice, lane: Lane::Credit })
    }

    fn poll(&self, now: Nanos, cpu: CpuId) -> bool {
        self.cpus.get(cpu.index()).is_some_and(|cpu| cpu.held.is_some_and(|until| now >= until))
    }

    fn tick(&mut self, _: Nanos, cpu: CpuId) {
        let Some(state) = self.cpus.get_mut(cpu.index()) else { return };
        let stale = std::mem::replace(&mut state.sorted, self.epochs) != self.epochs;
        if let Some(vcpu) = state.running {
            self.book.tick(vcpu);
        }
        if stale && !self.terms.by_credit {
            self.resort(cpu.index());
        }
    }

    fn account(&mut self, now: Nanos) -> Vec<CpuId> {
        let places = &self.places;
        let busy = |v: VcpuId| places.get(v.index()).copied().flatten().is_some_and(|p| p.runnable);
        let parking = self.book.account(busy);
        self.epochs += 1;
        let mut anew = Vec::new();
        for vcpu in parking.parked {
            self.unqueue(vcpu);
            let cpu = self.cpu_of(vcpu).filter(|cpu| self.running(*cpu) == Some(vcpu));
            anew.extend(cpu);
        }
        for vcpu in parking.unparked {
            if self.runnable(vcpu) && self.cpu_of(vcpu).and_then(|c| self.running(c)) != Some(vcpu)
            {
                self.insert(vcpu);
                anew.extend(self.tickle(now, vcpu));
            }
        }
        if self.terms.by_credit {
            (0..self.cpus.len()).for_each(|cpu| self.resort(cpu));
        }
        anew
    }
}

#[cfg(test)]
#[path = "credit1_tests.rs"]
mod tests;
