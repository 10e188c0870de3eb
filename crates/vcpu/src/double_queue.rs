//! Penstock's vCPU scheduler. Each processor has two run queues: a queue that is ordered by
//! deadline, and a queue that is ordered by credits.
//!
//! # Problem
//! A VM has two requirements: a share of a processor, and an upper bound on the time until it runs.
//!
//! # Source
//! The source is the paper VM jitter, §III-A, §III-B and §IV.
//!
//! # Quantities
//! D is the VM's deadline. S is the slice of the deadline queue, 0.5 ms. The slice S is also the
//! time between two polls of a processor.
//!
//! # Approach
//! 1. The driver domain runs before all other VMs and is never preempted.
//! 2. A vCPU that is due in the deadline queue ([`crate::deadline_queue`]) preempts the running
//!    vCPU for S.
//! 3. If no vCPU is due, the credit queue ([`crate::credit1`]) picks a vCPU for 30 ms, by class and
//!    then by credits.
//!
//! A runnable periodic vCPU enters the deadline queue when it is descheduled, even after a yield.
//! An aperiodic vCPU enters the deadline queue at an external event. A vCPU stays in the deadline
//! queue until it has run for S, has blocked or has yielded. A vCPU that is preempted before it ran
//! for the slice S keeps its deadline. An event that arrives while the vCPU runs still counts.
//!
//! The deadline queue and the credit queue charge the same credits for the same run time. A
//! deadline therefore changes the times at which a VM runs, but not the VM's total run time.
//! Admission control refuses a deadline that needs more than the VM's share ([`crate::admission`]).
//!
//! # Use by an actuator
//! An *actuator* is a program that influences another scheduler, such as Linux's, which owns the
//! run queue. The actuator (the program that influences another scheduler) reports with
//! [`DoubleQueue::ran`] which vCPUs ran. [`DoubleQueue::due`] returns the vCPU that the other
//! scheduler, such as Linux's, must run for a slice. [`VcpuScheduler::account`] distributes the
//! credits of an epoch.
//!
//! # Departures
//! The slices of the deadline queue are slots of a fixed grid ([`crate::deadline_queue`]). A vCPU
//! with a deadline never moves, because its slots belong to one processor.
//!
//! # Cost
//! Each call of the scheduler costs as much as the corresponding calls of the deadline queue and
//! the credit queue.

use penstock_units::{CpuId, Nanos, VcpuId, VmId};

use crate::contract::{Contract, Mode};
use crate::credit_book::{CreditBook, CreditTerms};
use crate::credit1::{Credit1, QueueTerms};
use crate::deadline_queue::{DeadlineQueue, SLICE};
use crate::scheduler::{Cause, Lane, Leave, Turn, VcpuScheduler, Vm};

/// Minimum run time for which a vCPU's I/O reserve must suffice, so that the vCPU may continue on
/// the reserve after its slice.
const LEAST: Nanos = Nanos(SLICE.0 / 2);

#[derive(Clone, Copy, Debug)]
struct Term {
    mode: Mode,
    cpu: CpuId,
    /// The slice of the deadline queue that the vCPU must still get; `None` if the vCPU has got all
    /// its slices.
    owed: Option<Owed>,
    /// A second slice, for an event that arrived after the vCPU had used part of its current slice.
    again: Option<Owed>,
}

/// A slice of the deadline queue that a vCPU has not yet used up. The slice's deadline counts from
/// the time `since`, and the vCPU has already run for the time `ran`.
#[derive(Clone, Copy, Debug)]
struct Owed {
    since: Nanos,
    ran: Nanos,
}

impl Owed {
    const fn from(since: Nanos) -> Self {
        Self { since, ran: Nanos(0) }
    }
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    deadlines: DeadlineQueue,
    /// vCPUs of the driver domain that wait to run on this processor.
    drivers: Vec<VcpuId>,
    lane: Option<Lane>,
}

/// Penstock's vCPU scheduler, with the deadline queue and the credit queue of each processor.
#[derive(Clone, Debug)]
pub struct DoubleQueue {
    credit: Credit1,
    terms: Vec<Option<Term>>,
    cpus: Vec<Cpu>,
}

impl DoubleQueue {
    /// Makes a scheduler for `cpus` processors, without VMs.
    #[must_use]
    pub fn new(cpus: u16) -> Self {
        Self {
            credit: Credit1::with_terms(cpus, CreditTerms::FINE, QueueTerms::BY_CREDIT),
            terms: Vec::new(),
            cpus: vec![Cpu::default(); usize::from(cpus)],
        }
    }

    /// The credit accounts of all vCPUs.
    #[must_use]
    pub const fn book(&self) -> &CreditBook {
        self.credit.book()
    }

    fn term(&self, vcpu: VcpuId) -> Option<Term> {
        self.terms.get(vcpu.index()).copied().flatten()
    }

    fn term_mut(&mut self, vcpu: VcpuId) -> Option<&mut Term> {
        self.terms.get_mut(vcpu.index())?.as_mut()
    }

    fn deadlines(&mut self, cpu: CpuId) -> &mut DeadlineQueue {
        &mut self.cpus[cpu.index()].deadlines
    }

    /// The vCPU that is due on `cpu` at time `now` and must run for [`SLICE`]. Returns `None` if no
    /// vCPU is due.
    #[must_use]
    pub fn due(&self, now: Nanos, cpu: CpuId) -> Option<VcpuId> {
        self.cpus.get(cpu.index())?.deadlines.due(now, self.credit.running(cpu))
    }

    /// Time at which the next vCPU on `cpu` is due. Returns `None` if no vCPU is in the deadline
    /// queue.
    #[must_use]
    pub fn next_due(&self, cpu: CpuId) -> Option<Nanos> {
        self.cpus.get(cpu.index())?.deadlines.next_due()
    }

    /// Records that a vCPU ran for `time` and left its processor at time `now`, which may be in the
    /// past. The function charges the vCPU for `time`, and the vCPU's next deadline counts from
    /// `now`. Only an actuator, which influences another scheduler, calls `ran`. A caller that owns
    /// the run queue calls [`VcpuScheduler::leave`] instead of `ran`.
    pub fn ran(&mut self, now: Nanos, vcpu: VcpuId, time: Nanos) {
        self.charge_seen(vcpu, time);
        self.requeue(now, vcpu, Leave::Preempted);
    }

    /// Like [`DoubleQueue::ran`], but the vCPU's slice counts as used up. A program that influences
    /// another scheduler uses a little of each slice itself, so the vCPU may have run for less than
    /// a slice.
    pub fn served(&mut self, now: Nanos, vcpu: VcpuId, time: Nanos) {
        self.charge_seen(vcpu, time);
        if let Some(owed) = self.term_mut(vcpu).and_then(|term| term.owed.as_mut()) {
            owed.ran = owed.ran.max(SLICE);
        }
        self.requeue(now, vcpu, Leave::Preempted);
    }

    /// Charges a vCPU for a time in which the vCPU perhaps did not run. The caller calls `stood` if
    /// a vCPU's slice began late because the processor was stopped, for example by a hypervisor.
    /// The charge does not reduce the slice that the vCPU must still get.
    pub fn stood(&mut self, vcpu: VcpuId, time: Nanos) {
        let before = self.term(vcpu);
        self.charge_seen(vcpu, time);
        if let (Some(before), Some(term)) = (before, self.term_mut(vcpu)) {
            (term.owed, term.again) = (before.owed, before.again);
        }
    }

    /// Records that a vCPU has no work. The vCPU leaves the deadline queue until it is woken. Only
    /// an actuator, which influences another scheduler, calls `blocked`.
    pub fn blocked(&mut self, now: Nanos, vcpu: VcpuId) {
        self.credit.block(vcpu);
        self.requeue(now, vcpu, Leave::Blocked);
    }

    /// Copies the credits of vCPU `was` in the earlier scheduler `before` to the newly added
    /// `vcpu`. If `vcpu` and `was` have the same mode, `vcpu` also gets the unused slices of `was`.
    /// A program that influences another scheduler calls `resume` when the program's list of vCPUs
    /// changes.
    pub fn resume(&mut self, now: Nanos, vcpu: VcpuId, before: &Self, was: VcpuId) {
        self.credit.resume(vcpu, &before.credit, was);
        let (Some(old), runnable) = (before.term(was), before.credit.runnable(was)) else { return };
        let Some(term) = self.term_mut(vcpu) else { return };
        if term.mode == old.mode {
            (term.owed, term.again) = (old.owed, old.again);
        } else if term.mode == Mode::Periodic && runnable {
            term.owed = Some(Owed::from(now));
        }
        if let Some(Owed { since, .. }) = term.owed {
            self.enter(now, vcpu, since);
        }
    }

    /// Whether the vCPU should continue to run while no other vCPU is due. Returns true if the vCPU
    /// used its slice for an event, has not blocked since, and has enough I/O reserve left.
    #[must_use]
    pub fn goes_on(&self, vcpu: VcpuId) -> bool {
        self.credit.runnable(vcpu) && self.book().drawing(vcpu).is_some_and(|left| left >= LEAST)
    }

    /// Charges a vCPU for the run time `time`. If the charge leaves less than [`LEAST`] of run time
    /// in the vCPU's I/O reserve, the rest is kept for later events.
    fn charge_seen(&mut self, vcpu: VcpuId, time: Nanos) {
        self.charge(vcpu, time);
        if self.book().drawing(vcpu).is_some_and(|left| left < LEAST) {
            self.credit.end_drawing(vcpu);
        }
    }

    /// Queues the vCPU for a slice with a deadline that counts from `now`. If the vCPU must still
    /// get an earlier slice, the deadline of the earlier slice stays.
    fn owe(&mut self, now: Nanos, vcpu: VcpuId) {
        let Some(term) = self.term_mut(vcpu) else { return };
        if term.owed.is_some_and(|owed| owed.ran > Nanos(0)) {
            // The vCPU has already used part of the slice for the previous event.
            term.again = Some(Owed::from(now));
        }
        let Owed { since, .. } = *term.owed.get_or_insert(Owed::from(now));
        self.enter(now, vcpu, since);
    }

    /// Queues the vCPU for a slice with a deadline that counts from `since`.
    fn enter(&mut self, now: Nanos, vcpu: VcpuId, since: Nanos) {
        let Some(cpu) = self.term(vcpu).map(|term| term.cpu) else { return };
        let queue = self.deadlines(cpu);
        if let Some(deadline) = queue.deadline(vcpu) {
            queue.enter(now, vcpu, since + deadline);
        }
    }

    /// Decides whether a vCPU that leaves its processor stays in the deadline queue.
    fn requeue(&mut self, now: Nanos, vcpu: VcpuId, how: Leave) {
        let Some(term) = self.term_mut(vcpu).filter(|term| term.mode.is_real_time()) else {
            return;
        };
        let (periodic, cpu) = (term.mode == Mode::Periodic, term.cpu);
        let gives_up = how != Leave::Preempted;
        let had = !gives_up && !periodic && term.owed.is_some_and(|owed| owed.ran >= SLICE);
        if gives_up || term.owed.is_none_or(|owed| owed.ran >= SLICE) {
            term.owed = term.again.take().filter(|owed| !gives_up && owed.ran < SLICE);
            if periodic && how != Leave::Blocked {
                term.owed = Some(Owed::from(now));
            }
            self.deadlines(cpu).leave(vcpu);
        }
        if had {
            self.credit.go_on(vcpu, SLICE);
        }
        if let Some(Owed { since, .. }) = self.term(vcpu).and_then(|term| term.owed) {
            self.enter(now, vcpu, since);
        }
    }

    fn run(&mut self, now: Nanos, cpu: CpuId, turn: Turn) -> Turn {
        self.credit.install(now, cpu, turn.vcpu);
        self.begin(cpu, turn);
        turn
    }

    fn begin(&mut self, cpu: CpuId, turn: Turn) {
        self.cpus[cpu.index()].lane = Some(turn.lane);
        if let Some(term) = self.term_mut(turn.vcpu) {
            // Another processor may have stolen the vCPU. vCPUs with deadlines are not stolen.
            term.cpu = cpu;
        }
    }
}

impl VcpuScheduler for DoubleQueue {
    fn add(&mut self, now: Nanos, contract: &Contract, homes: &[CpuId]) -> Option<Vm> {
        let vm = self.credit.add(now, contract, homes)?;
        let mut fits = true;
        for (vcpu, cpu) in vm.vcpus.iter().zip(homes) {
            if self.terms.len() <= vcpu.index() {
                self.terms.resize(vcpu.index() + 1, None);
            }
            let term = Term { mode: contract.mode, cpu: *cpu, owed: None, again: None };
            self.terms[vcpu.index()] = Some(term);
            if contract.mode.is_real_time() {
                fits &= self.deadlines(*cpu).join(now, *vcpu, contract.deadline);
            }
            if contract.mode != Mode::None {
                self.credit.pin(*vcpu);
            }
        }
        if !fits {
            self.remove(now, vm.id);
            return None;
        }
        Some(vm)
    }

    fn remove(&mut self, now: Nanos, vm: VmId) {
        for vcpu in self.book().vcpus(vm).to_vec() {
            if let Some(term) = self.terms[vcpu.index()].take() {
                let cpu = &mut self.cpus[term.cpu.index()];
                cpu.deadlines.part(now, vcpu);
                cpu.drivers.retain(|other| *other != vcpu);
            }
        }
        self.credit.remove(now, vm);
    }

    fn wake(&mut self, now: Nanos, vcpu: VcpuId, cause: Cause) -> Option<CpuId> {
        let term = self.term(vcpu)?;
        let waits_or_runs = self.credit.runnable(vcpu);
        if cause == Cause::Event && term.mode == Mode::Aperiodic {
            self.owe(now, vcpu);
        }
        if waits_or_runs {
            return None;
        }
        if term.mode == Mode::Periodic {
            self.owe(now, vcpu);
        }
        let anew = self.credit.wake(now, vcpu, cause);
        if term.mode == Mode::Driver {
            self.credit.unqueue(vcpu);
            let state = &mut self.cpus[term.cpu.index()];
            state.drivers.push(vcpu);
            return (state.lane != Some(Lane::Driver)).then_some(term.cpu);
        }
        anew.filter(|cpu| self.cpus[cpu.index()].lane.is_none_or(|lane| lane == Lane::Credit))
    }

    fn charge(&mut self, vcpu: VcpuId, ran: Nanos) {
        self.credit.charge(vcpu, ran);
        let Some(term) = self.term_mut(vcpu) else { return };
        for owed in [&mut term.owed, &mut term.again].into_iter().flatten() {
            owed.ran += ran;
        }
    }

    fn leave(&mut self, now: Nanos, cpu: CpuId, how: Leave) {
        let Some(vcpu) = self.credit.running(cpu) else { return };
        let driver = self.term(vcpu).is_some_and(|term| term.mode == Mode::Driver);
        self.credit.leave(now, cpu, how);
        self.cpus[cpu.index()].lane = None;
        if driver && how == Leave::Preempted {
            // A vCPU of the driver domain continues after its slice, before all others.
            self.credit.unqueue(vcpu);
            self.cpus[cpu.index()].drivers.push(vcpu);
        }
        self.requeue(now, vcpu, how);
    }

    fn decide(&mut self, now: Nanos, cpu: CpuId) -> Option<Turn> {
        let state = self.cpus.get_mut(cpu.index())?;
        if !state.drivers.is_empty() {
            let vcpu = state.drivers.remove(0);
            let turn = Turn { vcpu, slice: QueueTerms::SLICE, lane: Lane::Driver };
            return Some(self.run(now, cpu, turn));
        }
        if let Some(vcpu) = state.deadlines.due(now, None) {
            if !self.book().parked(vcpu) {
                return Some(self.run(now, cpu, Turn { vcpu, slice: SLICE, lane: Lane::Deadline }));
            }
            self.deadlines(cpu).leave(vcpu);
        }
        let turn = self.credit.decide(now, cpu)?;
        self.begin(cpu, turn);
        Some(turn)
    }

    fn poll(&self, now: Nanos, cpu: CpuId) -> bool {
        let Some(state) = self.cpus.get(cpu.index()) else { return false };
        match state.lane {
            Some(Lane::Driver | Lane::Deadline) => false,
            Some(Lane::Credit) | None => self.due(now, cpu).is_some() || self.credit.poll(now, cpu),
        }
    }

    fn tick(&mut self, now: Nanos, cpu: CpuId) {
        self.credit.tick(now, cpu);
    }

    fn account(&mut self, now: Nanos) -> Vec<CpuId> {
        self.credit.account(now)
    }
}

#[cfg(test)]
#[path = "double_queue_tests.rs"]
mod tests;
