//! The simulated machine: processors, guests and a virtual clock.

use penstock_units::{CpuId, Nanos, VcpuId, VmId};
use penstock_vcpu::credit_book::CreditTerms;
use penstock_vcpu::deadline_queue::SLICE;
use penstock_vcpu::{Cause, Contract, Lane, Leave, VcpuScheduler};

use super::guest::{Frame, Guest, GuestSpec, Idle};
use crate::{EventQueue, Rng};

/// Number of a guest, counted from 0 in the order of start.
pub type GuestId = usize;

/// A frame that left the simulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub guest: GuestId,
    pub frame: Frame,
    pub at: Nanos,
}

/// Statistics of a guest's waiting times for a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Longest wait of a guest for a processor, after the guest became runnable or lost its
    /// processor.
    pub longest: Nanos,
    /// Longest wait of a guest for a processor, after an external event that arrived while the
    /// guest had no processor.
    pub longest_event: Nanos,
    /// Number of times that the guest began to run because of its deadline.
    pub by_deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick,
    Account,
    Poll,
    /// The slice or the work of the guest on a processor ends. The event is ignored if the
    /// processor's turn number has changed since the event was posted.
    End(CpuId, u64),
    Timer(GuestId),
    /// Activates a guest. The event is ignored if the guest's number of turns has changed since the
    /// event was posted.
    Activate(GuestId, u64),
    /// A frame for a guest reaches the machine. If there is a driver domain, the driver domain
    /// receives the frame first.
    Arrive(GuestId, Frame),
    /// A frame from a guest reaches the driver domain, or the driver domain passes a frame to the
    /// destination guest.
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
    /// Time of the guest's timer event in the event queue.
    armed: Option<Nanos>,
    gone: bool,
    /// Queue of frames that the driver domain must forward, each with the frame's guest, and `true`
    /// if the frame is inbound.
    carries: std::collections::VecDeque<(GuestId, bool)>,
}

/// A simulated machine with processors, guests and a virtual clock.
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
    /// Creates a machine with `cpus` idle processors. The number of processors of `scheduler` must
    /// also be `cpus`.
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

    /// Starts a VM with one vCPU on the processor `home`. Returns `None` if the scheduler refuses
    /// the VM.
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

    /// Starts the driver domain, which forwards all later frames.
    pub fn start_driver(&mut self, contract: &Contract, home: CpuId) -> Option<GuestId> {
        let id = self.start(contract, home, GuestSpec::driver())?;
        self.driver = Some(id);
        Some(id)
    }

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

    /// Posts the arrival of a frame for a guest.
    pub fn arrive(&mut self, at: Nanos, guest: GuestId, frame: Frame) {
        self.events.post(at, Event::Arrive(guest, frame));
    }

    /// Runs the machine until the time `until`.
    pub fn run_until(&mut self, until: Nanos) {
        while let Some((at, event)) = self.events.pop_due(until) {
            self.now = at.max(self.now);
            self.handle(event);
        }
        self.now = until;
        (0..self.cpus.len()).for_each(|cpu| self.settle(cpu));
    }

    /// Returns the processor time that a guest has used.
    #[must_use]
    pub fn used(&self, guest: GuestId) -> Nanos {
        self.slots[guest].used
    }

    #[must_use]
    pub fn waits(&self, guest: GuestId) -> Waits {
        self.slots[guest].waits
    }

    /// Returns the frames that left the machine, in the order of their times.
    #[must_use]
    pub fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// Returns the number of context switches from one vCPU to another vCPU.
    #[must_use]
    pub const fn switches(&self) -> u64 {
        self.switches
    }

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

    /// Posts the event for a guest's next timer.
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
        // A guest that does not run now handles the timer when it runs again.
    }

    /// Delivers a frame to a guest, and wakes the guest.
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
        // The scheduler must charge running vCPUs before it decides.
        (0..self.cpus.len()).for_each(|cpu| self.settle(cpu));
        if let Some(cpu) = self.scheduler.wake(self.now, vcpu, cause) {
            self.decide_anew(cpu.index(), Leave::Preempted);
        }
    }

    /// Charges the vCPU on a processor for the time since the last charge.
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

    /// Handles a frame that a guest sends. If the machine has a driver domain, the driver domain
    /// forwards the frame. Without a driver domain, the frame leaves the machine directly.
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

    /// Handles the end of the running vCPU's slice or work.
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

    /// Takes the processor from the running vCPU, and starts the vCPU that the scheduler chooses.
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

    /// Posts the event for the end of the running vCPU's slice or work.
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
