//! Two run queues on each processor: by deadline, and by credits.
//!
//! # Problem
//! A VM needs a part of a processor, and it needs this part soon enough. These are two
//! requirements.
//!
//! # Source
//! VM jitter §III-A, §III-B, §IV.
//!
//! # Quantities
//! D is the VM's deadline. S, the slice of the deadline queue, is 0.5 ms. The time between polls is
//! also S.
//!
//! # Approach
//! 1. The driver domain runs before all others and is never preempted.
//! 2. A vCPU that is due in the deadline queue ([`crate::deadline_queue`]) preempts the running one
//!    for S.
//! 3. Otherwise the credit queue decides ([`crate::credit1`]), for 30 ms, by class and then by
//!    credits.
//!
//! A periodic vCPU is queued by deadline from when it is descheduled, as long as it is runnable.
//! This also holds after a yield: the vCPU then runs again at its deadline. An aperiodic vCPU is
//! queued by deadline from an external event on. Both kinds stay queued until they have run for S
//! or have given the processor up by themselves. If a vCPU was picked by credits and preempted
//! before it ran for S, it thus keeps its deadline. An event that comes while the vCPU runs still
//! counts.
//!
//! Both queues charge the same credits for the same time. A deadline therefore changes when a VM
//! runs, but not how long it runs. If a VM's share cannot pay for a deadline, the deadline is not
//! admitted ([`crate::admission`]).
//!
//! # Use by an actuator
//! An actuator does not own the run queue. It reports what ran by [`DoubleQueue::ran`].
//! [`DoubleQueue::due`] returns the vCPU to which the actuator lends a slice.
//! [`VcpuScheduler::charge`] and [`VcpuScheduler::account`] keep the accounts.
//!
//! # Departures
//! A due vCPU has a slot on a fixed grid ([`crate::deadline_queue`]). A vCPU with a deadline stays
//! on its processor, because its slots are there.
//!
//! # Cost
//! The cost is that of the two queues.

use penstock_units::{CpuId, Nanos, VcpuId, VmId};

use crate::contract::{Contract, Mode};
use crate::credit_book::{CreditBook, CreditTerms};
use crate::credit1::{Credit1, QueueTerms};
use crate::deadline_queue::{DeadlineQueue, SLICE};
use crate::scheduler::{Cause, Lane, Leave, Turn, VcpuScheduler, Vm};

/// Minimum time that is lent to a vCPU that continues after its slice.
const LEAST: Nanos = Nanos(SLICE.0 / 2);

#[derive(Clone, Copy, Debug)]
struct Term {
    mode: Mode,
    cpu: CpuId,
    /// The slice that the vCPU is owed, if any.
    owed: Option<Owed>,
    /// The last event that came after the vCPU had already run for the event before.
    again: Option<Owed>,
}

/// Time since which a slice is owed, and how long the vCPU has run since then.
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
    /// Waiting vCPUs of the driver domain.
    drivers: Vec<VcpuId>,
    lane: Option<Lane>,
}

/// Both queues of all processors.
#[derive(Clone, Debug)]
pub struct DoubleQueue {
    credit: Credit1,
    terms: Vec<Option<Term>>,
    cpus: Vec<Cpu>,
}

impl DoubleQueue {
    /// A scheduler for `cpus` processors.
    #[must_use]
    pub fn new(cpus: u16) -> Self {
        Self {
            credit: Credit1::with_terms(cpus, CreditTerms::FINE, QueueTerms::BY_CREDIT),
            terms: Vec::new(),
            cpus: vec![Cpu::default(); usize::from(cpus)],
        }
    }

    /// The accounts of all vCPUs.
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

    /// The vCPU to lend a slice of [`SLICE`] to now.
    #[must_use]
    pub fn due(&self, now: Nanos, cpu: CpuId) -> Option<VcpuId> {
        self.cpus.get(cpu.index())?.deadlines.due(now, self.credit.running(cpu))
    }

    /// Time at which the next vCPU on `cpu` is due. [`DoubleQueue::due`] returns `None` before this
    /// time.
    #[must_use]
    pub fn next_due(&self, cpu: CpuId) -> Option<Nanos> {
        self.cpus.get(cpu.index())?.deadlines.next_due()
    }

    /// Whether a vCPU on `cpu` has a deadline. If not, `cpu` need not be polled.
    #[must_use]
    pub fn has_deadlines(&self, cpu: CpuId) -> bool {
        self.cpus.get(cpu.index()).is_some_and(|cpu| !cpu.deadlines.is_empty())
    }

    /// Records that a vCPU was seen to run for `time` and left its processor at `now`, which may be
    /// in the past. Charges the vCPU and counts its deadline from `now`. Only an actuator calls
    /// this. A caller that owns the run queue uses [`VcpuScheduler::leave`] instead.
    pub fn ran(&mut self, now: Nanos, vcpu: VcpuId, time: Nanos) {
        self.charge_seen(vcpu, time);
        self.requeue(now, vcpu, Leave::Preempted);
    }

    /// Like [`DoubleQueue::ran`], but the vCPU counts as having had its whole slice. The actuator
    /// keeps a little of each slice that it lends, so the vCPU may have run for less.
    pub fn served(&mut self, now: Nanos, vcpu: VcpuId, time: Nanos) {
        self.charge_seen(vcpu, time);
        if let Some(owed) = self.term_mut(vcpu).and_then(|term| term.owed.as_mut()) {
            owed.ran = owed.ran.max(SLICE);
        }
        self.requeue(now, vcpu, Leave::Preempted);
    }

    /// Like [`DoubleQueue::ran`], for a vCPU that may not have run in the time for which it is
    /// charged. The actuator lent the slice late, because the processor stood still for both the
    /// actuator and the vCPU. The vCPU is still owed its slice.
    pub fn stood(&mut self, vcpu: VcpuId, time: Nanos) {
        let before = self.term(vcpu);
        self.charge_seen(vcpu, time);
        if let (Some(before), Some(term)) = (before, self.term_mut(vcpu)) {
            (term.owed, term.again) = (before.owed, before.again);
        }
    }

    /// Records that a vCPU was seen to have nothing to do. It is owed no slice until it is woken.
    /// Only an actuator calls this, as with [`DoubleQueue::ran`].
    pub fn blocked(&mut self, now: Nanos, vcpu: VcpuId) {
        self.credit.block(vcpu);
        self.requeue(now, vcpu, Leave::Blocked);
    }

    /// Lets the newly added `vcpu` continue as `was` in `before`: with its credits, and with its
    /// owed slice if the mode is the same. An actuator calls this when it gets a new list of vCPUs.
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

    /// Whether an actuator should lend to the vCPU while no vCPU is due. True if the vCPU had a
    /// slice for an event, has not blocked since, and has a reserve that pays for more.
    #[must_use]
    pub fn goes_on(&self, vcpu: VcpuId) -> bool {
        self.credit.runnable(vcpu) && self.book().drawing(vcpu).is_some_and(|left| left >= LEAST)
    }

    /// Charges a vCPU. If the rest of its reserve is too small to be worth a switch to the vCPU,
    /// the rest is kept for later events.
    fn charge_seen(&mut self, vcpu: VcpuId, time: Nanos) {
        self.charge(vcpu, time);
        if self.book().drawing(vcpu).is_some_and(|left| left < LEAST) {
            self.credit.end_drawing(vcpu);
        }
    }

    /// Owes the vCPU a slice from `now` on, unless it is owed one already.
    fn owe(&mut self, now: Nanos, vcpu: VcpuId) {
        let Some(term) = self.term_mut(vcpu) else { return };
        if term.owed.is_some_and(|owed| owed.ran > Nanos(0)) {
            // The vCPU has already run for the event before.
            term.again = Some(Owed::from(now));
        }
        let Owed { since, .. } = *term.owed.get_or_insert(Owed::from(now));
        self.enter(now, vcpu, since);
    }

    /// Queues the vCPU for a slice that is owed since `since`.
    fn enter(&mut self, now: Nanos, vcpu: VcpuId, since: Nanos) {
        let Some(cpu) = self.term(vcpu).map(|term| term.cpu) else { return };
        let queue = self.deadlines(cpu);
        if let Some(deadline) = queue.deadline(vcpu) {
            queue.enter(now, vcpu, since + deadline);
        }
    }

    /// Decides whether a vCPU that leaves its processor is owed a slice.
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
            // The vCPU's slice is over, and it continues before all others.
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
