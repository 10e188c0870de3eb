//! Xen's credit scheduler: a run queue by class on each processor.
//!
//! # Problem
//! The credit scheduler is the baseline to which deadlines are compared. It also divides the time
//! that deadlines leave.
//!
//! # Source
//! xen/common/sched_credit.c (4.x). The module follows its rules and copies none of its text.
//!
//! # Approach
//! The classes are BOOST, UNDER and OVER, in this order ([`crate::credit_book`]). Within a class,
//! the vCPU that came first runs first. A vCPU that is woken from block is boosted if it has
//! credits left. A vCPU that is OVER is not boosted, which the paper criticises. A waking vCPU
//! preempts a running one of a lower class. If the waking vCPU cannot preempt, an idle processor is
//! notified. A vCPU that left its processor queues behind the others of its class.
//!
//! A slice is 30 ms. Nothing is preempted in the first millisecond of a slice
//! ([`QueueTerms::ratelimit`]). If the next vCPU of a processor is OVER, the processor looks for a
//! higher class on other processors, at most once per millisecond. After each epoch a queue is
//! sorted by class (stable) at the processor's next tick. The sort keeps the order of BOOST and
//! UNDER.
//!
//! # Example
//! If six vCPUs of equal weight always have work, each waits five slices, 150 ms. A test covers
//! this.
//!
//! # Departures
//! [`QueueTerms::XEN`] departs from Xen in two points: the topology is one node, and there is no
//! cache heat. With [`QueueTerms::by_credit`], the vCPU with the most credits runs first within a
//! class, as in the paper (§III-A). The vCPU with the most credits is furthest behind its share, so
//! shares are accurate to a slice.
//!
//! # Cost
//! A wake-up costs O(n) if n vCPUs wait on the processor. An epoch costs O(n log n).

use std::collections::VecDeque;

use penstock_units::{CpuId, Nanos, VcpuId, VmId};

use crate::contract::Contract;
use crate::credit_book::{Class, CreditBook, CreditTerms};
use crate::scheduler::{Cause, Lane, Leave, Turn, VcpuScheduler, Vm};

/// Constants of the run queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTerms {
    /// Whether the vCPU with the most credits runs first within a class. If false, the vCPU that
    /// came first runs first.
    pub by_credit: bool,
    /// Time after starting to run during which a vCPU is not preempted.
    pub ratelimit: Nanos,
}

impl QueueTerms {
    /// Length of a slice.
    pub const SLICE: Nanos = Nanos::from_millis(30);
    /// Minimum time between two looks at other processors.
    const STEAL_GAP: Nanos = Nanos::from_millis(1);
    /// Constants of Xen's credit scheduler.
    pub const XEN: Self = Self { by_credit: false, ratelimit: Nanos::from_millis(1) };
    /// Constants of Penstock's credit queues.
    pub const BY_CREDIT: Self = Self { by_credit: true, ratelimit: Nanos(0) };
}

#[derive(Clone, Copy, Debug)]
struct VcpuPlace {
    cpu: CpuId,
    /// Whether the vCPU is runnable, which includes running.
    runnable: bool,
    /// Whether the vCPU stays on its processor.
    pinned: bool,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    queue: VecDeque<VcpuId>,
    running: Option<VcpuId>,
    /// Time at which the running vCPU began.
    since: Nanos,
    /// Time at which a deferred preemption takes place: the end of the first millisecond.
    held: Option<Nanos>,
    /// Number of the epoch after which the queue was last sorted.
    sorted: u64,
    looked: Option<Nanos>,
}

/// The run queues of all processors, and the accounts of all vCPUs.
#[derive(Clone, Debug)]
pub struct Credit1 {
    book: CreditBook,
    terms: QueueTerms,
    places: Vec<Option<VcpuPlace>>,
    cpus: Vec<Cpu>,
    epochs: u64,
}

impl Credit1 {
    /// Xen's scheduler on `cpus` processors.
    #[must_use]
    pub fn new(cpus: u16) -> Self {
        Self::with_terms(cpus, CreditTerms::XEN, QueueTerms::XEN)
    }

    /// A scheduler with these constants.
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

    /// The accounts of all vCPUs.
    #[must_use]
    pub const fn book(&self) -> &CreditBook {
        &self.book
    }

    /// The vCPU that runs on a processor.
    #[must_use]
    pub fn running(&self, cpu: CpuId) -> Option<VcpuId> {
        self.cpus.get(cpu.index())?.running
    }

    /// The processor on which a vCPU waits or runs.
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

    /// Keeps a vCPU on its processor.
    pub(crate) fn pin(&mut self, vcpu: VcpuId) {
        if let Some(place) = self.place_mut(vcpu) {
            place.pinned = true;
        }
    }

    /// Whether `a` stays in front of `b` if `b` comes later.
    fn before(&self, a: VcpuId, b: VcpuId) -> bool {
        let key =
            |v| (self.book.class(v), if self.terms.by_credit { self.book.credit(v) } else { 0 });
        key(a) >= key(b)
    }

    /// Queues a vCPU behind the others of its class.
    fn insert(&mut self, vcpu: VcpuId) {
        let Some(place) = self.place(vcpu) else { return };
        let queue = &self.cpus[place.cpu.index()].queue;
        let at = queue.iter().position(|other| !self.before(*other, vcpu)).unwrap_or(queue.len());
        self.cpus[place.cpu.index()].queue.insert(at, vcpu);
    }

    /// Removes a vCPU from its queue, and returns whether it was queued.
    pub(crate) fn unqueue(&mut self, vcpu: VcpuId) -> bool {
        let Some(place) = self.place(vcpu) else { return false };
        let queue = &mut self.cpus[place.cpu.index()].queue;
        let at = queue.iter().position(|other| *other == vcpu);
        at.map(|at| queue.remove(at)).is_some()
    }

    /// Records that a vCPU waits for something and runs nowhere.
    pub(crate) fn block(&mut self, vcpu: VcpuId) {
        self.unqueue(vcpu);
        self.book.end_drawing(vcpu);
        if let Some(place) = self.place_mut(vcpu) {
            place.runnable = false;
        }
    }

    /// Lets `vcpu` continue with the account that `was` has in `before`. `vcpu` runs or waits as
    /// `was` did.
    pub(crate) fn resume(&mut self, vcpu: VcpuId, before: &Self, was: VcpuId) {
        self.book.resume(vcpu, &before.book, was);
        if before.runnable(was) {
            self.queue(vcpu);
        }
    }

    /// Records that the vCPU had a slice for an event and has more to do. The vCPU runs before
    /// other vCPUs as long as its reserve pays.
    pub(crate) fn go_on(&mut self, vcpu: VcpuId, slice: Nanos) {
        self.book.go_on(vcpu, slice);
        if self.unqueue(vcpu) {
            self.insert(vcpu);
        }
    }

    /// Ends a vCPU's running on its reserve.
    pub(crate) fn end_drawing(&mut self, vcpu: VcpuId) {
        self.book.end_drawing(vcpu);
    }

    /// Makes a vCPU runnable, and queues it unless it is parked.
    fn queue(&mut self, vcpu: VcpuId) {
        if let Some(place) = self.place_mut(vcpu) {
            place.runnable = true;
        }
        if !self.book.parked(vcpu) {
            self.insert(vcpu);
        }
    }

    /// The processor that should decide again because `vcpu` became runnable.
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

    /// Takes a vCPU of a higher class from another processor.
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

    /// Removes the vCPU that ran on `cpu`, without queueing it.
    pub(crate) fn vacate(&mut self, cpu: CpuId) -> Option<VcpuId> {
        let state = self.cpus.get_mut(cpu.index())?;
        state.held = None;
        state.running.take()
    }

    /// Runs the waiting `vcpu` on its processor for a reason other than its credits.
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
