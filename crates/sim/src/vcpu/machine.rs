//! Processors, guests and time.

use penstock_units::{CpuId, Nanos, VcpuId, VmId};
use penstock_vcpu::credit_book::CreditTerms;
use penstock_vcpu::deadline_queue::SLICE;
use penstock_vcpu::{Cause, Contract, Lane, Leave, VcpuScheduler};

use super::guest::{Frame, Guest, GuestSpec, Idle};
use crate::{EventQueue, Rng};

/// A guest of a machine, from 0 in the order in which they were added.
pub type GuestId = usize;

/// A frame that left the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Whose.
    pub guest: GuestId,
    /// What.
    pub frame: Frame,
    /// When.
    pub at: Nanos,
}

/// How long a guest waited for a processor while it had work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The longest, from when it became runnable or lost its processor.
    pub longest: Nanos,
    /// The longest from an external event that found it without a processor.
    pub longest_event: Nanos,
    /// How often it began to run because its deadline had come.
    pub by_deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick,
    Account,
    Poll,
    /// A slice or a piece of work ends; of the turn of this number.
    End(CpuId, u64),
    Timer(GuestId),
    /// A guest that gave its processor up this many turns after its start is activated.
    Activate(GuestId, u64),
    /// A frame reaches the machine for a guest.
    Arrive(GuestId, Frame),
    /// A frame reaches a guest, from within the machine.
    Deliver(GuestId, Frame),
}

#[derive(Clone, Copy, Debug)]
struct Run {
    guest: GuestId,
    vcpu: VcpuId,
    charged: Nanos,
    until: Nanos,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    run: Option<Run>,
    turn: u64,
}

#[derive(Clone, Debug)]
struct Slot {
    guest: Guest,
    vm: VmId,
    vcpu: VcpuId,
    used: Nanos,
    waits: Waits,
    waits_since: Option<Nanos>,
    event_since: Option<Nanos>,
    turns: u64,
    /// The timer that is posted.
    armed: Option<Nanos>,
    gone: bool,
    /// Frames it is to carry: whose each is.
    carries: std::collections::VecDeque<(GuestId, bool)>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Machine<S> {
    scheduler: S,
    now: Nanos,
    cpus: Vec<Cpu>,
    slots: Vec<Slot>,
    events: EventQueue<Event>,
    driver: Option<GuestId>,
    rng: Rng,
    sent: Vec<Sent>,
    switches: u64,
}

impl<S: VcpuScheduler> Machine<S> {
    /// So many idle processors under `scheduler`, which was made for as many.
    #[must_use]
    pub fn new(scheduler: S, cpus: u16, seed: u64) -> Self {
        let mut events = EventQueue::new();
        events.post(CreditTerms::TICK, Event::Tick);
        events.post(CreditTerms::EPOCH, Event::Account);
        events.post(SLICE, Event::Poll);
        Self {
            scheduler,
            now: Nanos(0),
            cpus: vec![Cpu::default(); usize::from(cpus)],
            slots: Vec::new(),
            events,
            driver: None,
            rng: Rng::new(seed),
            sent: Vec::new(),
            switches: 0,
        }
    }

    /// Starts a VM of one vCPU on `home`; `None` if the scheduler does not take it.
    pub fn start(&mut self, contract: &Contract, home: CpuId, spec: GuestSpec) -> Option<GuestId> {
        let vm = self.scheduler.add(self.now, contract, &[home])?;
        let id = self.slots.len();
        let rng = self.rng.fork(u64::try_from(id).unwrap_or(0) + 1);
        let mut guest = Guest::new(spec, rng, self.now);
        guest.see(self.now);
        let (busy, idle) = (guest.work().is_some(), guest.idle());
        self.slots.push(Slot {
            guest,
            vm: vm.id,
            vcpu: *vm.vcpus.first()?,
            used: Nanos(0),
            waits: Waits::default(),
            waits_since: None,
            event_since: None,
            turns: 0,
            armed: None,
            gone: false,
            carries: std::collections::VecDeque::new(),
        });
        self.arm(id);
        if busy || idle != Idle::Blocks {
            self.wake(id, Cause::Timer);
        }
        Some(id)
    }

    /// Starts the driver domain, through which frames go from then on.
    pub fn start_driver(&mut self, contract: &Contract, home: CpuId) -> Option<GuestId> {
        let id = self.start(contract, home, GuestSpec::driver())?;
        self.driver = Some(id);
        Some(id)
    }

    /// Stops a VM.
    pub fn stop(&mut self, id: GuestId) {
        if std::mem::replace(&mut self.slots[id].gone, true) {
            return;
        }
        let (vm, running) = (self.slots[id].vm, self.cpu_of(id));
        if let Some(cpu) = running {
            self.settle(cpu);
            self.scheduler.leave(self.now, cpu_id(cpu), Leave::Blocked);
            self.cpus[cpu].run = None;
        }
        self.scheduler.remove(self.now, vm);
        if let Some(cpu) = running {
            self.begin(cpu);
        }
    }

    /// A frame for a guest reaches the machine at `at`.
    pub fn arrive(&mut self, at: Nanos, guest: GuestId, frame: Frame) {
        self.events.post(at, Event::Arrive(guest, frame));
    }

    /// Lets time pass.
    pub fn run_until(&mut self, until: Nanos) {
        while let Some((at, event)) = self.events.pop_due(until) {
            self.now = at.max(self.now);
            self.handle(event);
        }
        self.now = until;
        (0..self.cpus.len()).for_each(|cpu| self.settle(cpu));
    }

    /// Processor time that a guest had so far.
    #[must_use]
    pub fn used(&self, guest: GuestId) -> Nanos {
        self.slots[guest].used
    }

    /// How long a guest waited.
    #[must_use]
    pub fn waits(&self, guest: GuestId) -> Waits {
        self.slots[guest].waits
    }

    /// Frames that left, in the order of time.
    #[must_use]
    pub fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// How often a processor went from one vCPU to another.
    #[must_use]
    pub const fn switches(&self) -> u64 {
        self.switches
    }

    /// The scheduler.
    #[must_use]
    pub const fn scheduler(&self) -> &S {
        &self.scheduler
    }

    fn cpu_of(&self, id: GuestId) -> Option<usize> {
        self.cpus.iter().position(|cpu| cpu.run.is_some_and(|run| run.guest == id))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick => {
                for cpu in 0..self.cpus.len() {
                    self.settle(cpu);
                    self.scheduler.tick(self.now, cpu_id(cpu));
                }
                self.events.post(self.now + CreditTerms::TICK, Event::Tick);
            }
            Event::Account => {
                (0..self.cpus.len()).for_each(|cpu| self.settle(cpu));
                for cpu in self.scheduler.account(self.now) {
                    self.decide_anew(cpu.index(), Leave::Preempted);
                }
                self.events.post(self.now + CreditTerms::EPOCH, Event::Account);
            }
            Event::Poll => {
                for cpu in 0..self.cpus.len() {
                    if self.scheduler.poll(self.now, cpu_id(cpu)) {
                        self.decide_anew(cpu, Leave::Preempted);
                    }
                }
                self.events.post(self.now + SLICE, Event::Poll);
            }
            Event::End(cpu, turn) => {
                if self.cpus[cpu.index()].turn == turn {
                    self.end(cpu.index());
                }
            }
            Event::Timer(id) => self.timer(id),
            Event::Activate(id, turns) => {
                if self.slots[id].turns == turns && !self.slots[id].gone {
                    self.wake(id, Cause::Timer);
                }
            }
            Event::Arrive(id, frame) => match self.driver {
                Some(driver) => {
                    self.slots[driver].carries.push_back((id, true));
                    self.deliver(driver, frame);
                }
                None => self.deliver(id, frame),
            },
            Event::Deliver(id, frame) => self.deliver(id, frame),
        }
    }

    /// Posts a guest's next timer.
    fn arm(&mut self, id: GuestId) {
        let slot = &mut self.slots[id];
        let Some(at) = slot.guest.next_timer() else { return };
        if slot.armed.replace(at) != Some(at) {
            self.events.post(at.max(self.now), Event::Timer(id));
        }
    }

    fn timer(&mut self, id: GuestId) {
        if self.slots[id].gone || self.slots[id].guest.next_timer().is_none_or(|at| at > self.now) {
            return;
        }
        if let Some(cpu) = self.cpu_of(id) {
            self.settle(cpu);
            self.slots[id].guest.see(self.now);
            self.arm(id);
            self.plan(cpu);
        } else if self.slots[id].guest.idle() == Idle::Blocks {
            self.wake(id, Cause::Timer);
        }
        // Else it sees when it runs again.
    }

    /// A frame reaches a guest.
    fn deliver(&mut self, id: GuestId, frame: Frame) {
        if self.slots[id].gone {
            return;
        }
        let running = self.cpu_of(id);
        if let Some(cpu) = running {
            self.settle(cpu);
        }
        self.slots[id].guest.receive(frame);
        if let Some(cpu) = running {
            self.plan(cpu);
        } else {
            self.slots[id].event_since.get_or_insert(self.now);
        }
        self.wake(id, Cause::Event);
    }

    fn wake(&mut self, id: GuestId, cause: Cause) {
        if self.cpu_of(id).is_none() {
            self.slots[id].waits_since.get_or_insert(self.now);
        }
        let vcpu = self.slots[id].vcpu;
        // What runs where the decision falls is charged before.
        (0..self.cpus.len()).for_each(|cpu| self.settle(cpu));
        if let Some(cpu) = self.scheduler.wake(self.now, vcpu, cause) {
            self.decide_anew(cpu.index(), Leave::Preempted);
        }
    }

    /// Charges what runs on a processor for the time since it was last charged.
    fn settle(&mut self, cpu: usize) {
        let Some(run) = self.cpus[cpu].run.as_mut() else { return };
        let (id, vcpu) = (run.guest, run.vcpu);
        let ran = self.now.saturating_sub(run.charged);
        run.charged = self.now;
        if ran.0 == 0 {
            return;
        }
        self.scheduler.charge(vcpu, ran);
        self.slots[id].used += ran;
        if let Some(frame) = self.slots[id].guest.run(self.now, ran) {
            self.leaves(id, frame);
        }
    }

    /// A frame leaves a guest: through the driver domain, or for good.
    fn leaves(&mut self, id: GuestId, frame: Frame) {
        if Some(id) == self.driver {
            let carried = self.slots[id].carries.pop_front();
            match carried {
                Some((guest, true)) => self.events.post(self.now, Event::Deliver(guest, frame)),
                Some((guest, false)) => self.sent.push(Sent { guest, frame, at: self.now }),
                None => {}
            }
            return;
        }
        match self.driver {
            Some(driver) => {
                self.slots[driver].carries.push_back((id, false));
                self.events.post(self.now, Event::Deliver(driver, frame));
            }
            None => self.sent.push(Sent { guest: id, frame, at: self.now }),
        }
    }

    /// A slice or a piece of work is over.
    fn end(&mut self, cpu: usize) {
        self.settle(cpu);
        let Some(run) = self.cpus[cpu].run else { return };
        let guest = &mut self.slots[run.guest].guest;
        if guest.work().is_none() {
            guest.see(self.now);
            self.arm(run.guest);
        }
        let guest = &self.slots[run.guest].guest;
        if guest.work().is_none() {
            let how = match guest.idle() {
                Idle::Blocks => Leave::Blocked,
                Idle::Yields => Leave::Yielded,
                Idle::ActivatedAfter(pause) => {
                    let turns = self.slots[run.guest].turns;
                    self.events.post(self.now + pause, Event::Activate(run.guest, turns));
                    Leave::Blocked
                }
            };
            self.decide_anew(cpu, how);
        } else if self.now >= run.until {
            self.decide_anew(cpu, Leave::Preempted);
        } else {
            self.plan(cpu);
        }
    }

    /// What runs leaves; who is next begins.
    fn decide_anew(&mut self, cpu: usize, how: Leave) {
        self.settle(cpu);
        let left = self.cpus[cpu].run.take();
        if let Some(run) = left {
            self.scheduler.leave(self.now, cpu_id(cpu), how);
            let slot = &mut self.slots[run.guest];
            slot.waits_since = (how == Leave::Preempted).then_some(self.now);
        }
        self.begin(cpu);
        let next = self.cpus[cpu].run.map(|run| run.guest);
        if next.is_some() && next != left.map(|run| run.guest) {
            self.switches += 1;
        }
    }

    fn begin(&mut self, cpu: usize) {
        self.cpus[cpu].turn += 1;
        let Some(turn) = self.scheduler.decide(self.now, cpu_id(cpu)) else { return };
        let Some(id) = self.slots.iter().position(|s| !s.gone && s.vcpu == turn.vcpu) else {
            return;
        };
        let slot = &mut self.slots[id];
        slot.turns += 1;
        if let Some(since) = slot.waits_since.take() {
            slot.waits.longest = slot.waits.longest.max(self.now.saturating_sub(since));
        }
        if let Some(since) = slot.event_since.take() {
            let waited = self.now.saturating_sub(since);
            slot.waits.longest_event = slot.waits.longest_event.max(waited);
        }
        slot.waits.by_deadline += u64::from(turn.lane == Lane::Deadline);
        slot.guest.see(self.now);
        slot.guest.activate();
        self.arm(id);
        let until = self.now + turn.slice;
        self.cpus[cpu].run = Some(Run { guest: id, vcpu: turn.vcpu, charged: self.now, until });
        self.plan(cpu);
    }

    /// Posts the end of what runs: of its slice, or of its work.
    fn plan(&mut self, cpu: usize) {
        let Some(run) = self.cpus[cpu].run else { return };
        self.cpus[cpu].turn += 1;
        let done = self.slots[run.guest].guest.work().map_or(self.now, |left| self.now + left);
        self.events.post(done.min(run.until), Event::End(cpu_id(cpu), self.cpus[cpu].turn));
    }
}

fn cpu_id(cpu: usize) -> CpuId {
    CpuId(u16::try_from(cpu).unwrap_or(u16::MAX))
}
