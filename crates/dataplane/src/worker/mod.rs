//! The worker: the polling thread that owns one I/O core.
//!
//! **Rule** (C2QoS §IV; ARCHITECTURE.md). Pick a queue pair → take a batch → classify → deliver →
//! read the cycle counter → charge. The counter is read once per batch boundary: the end of one
//! batch is the start of the next. The inner edges are read on every 64th batch only, as a sample.
//! No lock, no allocation, no system call but those a port type cannot avoid. The same
//! [`Worker::turn`] runs under `sim` on a virtual counter.

mod absent;
mod account;
mod aside;
mod delay;
mod directory;
mod doorbell;
mod handle;
mod handover;
mod interrupter;
mod kicks;
mod membership;
mod metering;
mod outputs;
mod peers;
mod positions;
mod pressure;
mod request;
mod resting;
mod shaping;
mod split;
pub(crate) mod stall;
mod thread;
mod workers;

pub use account::{RunQueueWait, bucket_terms};
pub use directory::{Directory, WORKERS_MAX};
pub use doorbell::Doorbell;
pub use handle::{FdbChunk, WorkerError, WorkerHandle};
pub(crate) use interrupter::{
    Interrupter, SIGNAL as INTERRUPT_SIGNAL, install as install_interrupt,
};
pub use membership::Arrival;
pub(crate) use peers::Handed;
pub use peers::{Mesh, Peers};
pub use positions::Positions;
pub use request::{Reply, Request};
pub use resting::{AWAKE_MIN, IDLE_AFTER, LOOK_EVERY, bell_of};
pub use stall::Cause as SleepCause;
pub use thread::spawn;
pub use workers::Workers;

/// Where all cycles went that were generated for buckets.
pub use penstock_qos::c2tb::Ledger;

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, Priority, TscRate, WorkerId};

use crate::batch::{BATCH_FRAMES, Batch};
use crate::classify::{Classifier, ClassifierConfig, Snapshot};
use crate::counters::{PortCounters, WorkerCounters};
use crate::egress::{Egress, Mark, Touched};
use crate::ingress_policer::count_segments;
use crate::port::{Pending, PortQueue};
use crate::queue::{OUTPUT, OutputQueue, UNITS_MAX};
use crate::schedule::{Discipline, Readiness, Schedule, ScheduleKind, Unit};
use crate::tsc::{CycleCounter, Stage, Work};
use account::{Account, Books, NoParts, OwnBatch, Payer};
use aside::Aside;
use delay::Delays;
use handover::Found;
use outputs::Outputs;
use resting::{Resting, unit_of};

/// The inner stage edges are timed on every 64th batch.
pub const SAMPLE_EVERY: u32 = 64;
/// Maximum number of queue pairs of a port.
pub const QUEUES_MAX: usize = 8;
/// Batches after which notifications go out even if the sweep is not over.
const NOTIFY_EVERY: u32 = 8;

/// What a worker is started with.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// From 0.
    pub id: WorkerId,
    /// The CPU to pin to; `None`: any.
    pub core: Option<u32>,
    /// How long an idle worker may sleep at a time; zero: it never gives up the core.
    pub idle_backoff: Nanos,
    /// Turns without a frame after which it may: few where several workers share a core.
    pub idle_turns: u32,
    /// Scheduling discipline.
    pub schedule: ScheduleKind,
    /// How `hbs` treats queue pairs without frames.
    pub readiness: Readiness,
    /// Between two refills of the cycle buckets.
    pub refill: Nanos,
    /// Cycles per second that may be spent on frames; `None`: the whole core.
    pub capacity: Option<CyclesPerSecond>,
    /// Entries of the MAC table.
    pub fdb_entries: usize,
    /// Seed of the hashes that tenants' packets are put through; random per start.
    pub seed: u64,
    /// Rate of the cycle counter.
    pub tsc: TscRate,
    /// Maximum number of ports.
    pub max_ports: usize,
}

impl Default for WorkerConfig {
    /// Worker 0 of a core of 1 GHz, for 64 ports.
    fn default() -> Self {
        Self {
            id: WorkerId(0),
            core: None,
            idle_backoff: Nanos::ZERO,
            idle_turns: 4096,
            schedule: ScheduleKind::RoundRobin,
            readiness: Readiness::Pending,
            refill: Nanos::from_micros(50),
            capacity: None,
            fdb_entries: 8192,
            seed: 0,
            tsc: TscRate::from_hz(1_000_000_000),
            max_ports: 64,
        }
    }
}

/// A port as the worker holds it.
#[derive(Default)]
pub struct PortSlot {
    /// Its queue pairs; empty: no port here.
    pub queues: Vec<Box<dyn PortQueue>>,
    /// Where [`Touched`] has its queue pairs that wait for a notification.
    pub marked: [Mark; QUEUES_MAX],
    /// Which queue pairs are here, one bit each; in the places of the others stands nothing that
    /// sends or takes.
    pub owned: u8,
    /// What waits for it, if it has a queue.
    pub output: Option<Box<OutputQueue>>,
    /// Frames delivered to it when its VM's bell was rung last.
    pub rung: u64,
}

impl core::fmt::Debug for PortSlot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PortSlot").field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}

/// A worker's state; [`spawn`] gives it a thread, `sim` calls [`Worker::turn`] itself.
#[derive(Debug)]
pub struct Worker<C> {
    counter: C,
    clock: Clock,
    ports: Vec<PortSlot>,
    /// The ports' counters, apart from the ports so that a batch needs no reference count.
    port_counters: Vec<Option<Arc<PortCounters>>>,
    schedule: Discipline,
    account: Account,
    delays: Delays,
    resting: Resting,
    aside: Aside,
    outputs: Outputs,
    /// Ports whose frames are taken into memory of ours, see [`Self::stop_sleeper`].
    apart: Box<[bool]>,
    classifier: Classifier,
    snapshot: Arc<Snapshot>,
    batch: Box<Batch>,
    egress: Egress,
    touched: Touched,
    until_sample: u32,
    until_notify: u32,
    /// Whether the next turn begins with what other workers handed over.
    takes_over: bool,
}

/// Cycle counter readings as time, without a division per batch.
#[derive(Clone, Debug)]
struct Clock {
    /// Nanoseconds per cycle, times 2^32.
    scale: u64,
    /// Count at which the coarse second ends.
    next_second: u64,
    hz: u64,
    second: u32,
    /// The coarse clock for readers outside the worker.
    shared: Arc<AtomicU32>,
}

impl Clock {
    fn new(start: Cycles, rate: TscRate) -> Self {
        let hz = rate.hz();
        let scale = u64::try_from((1_000_000_000_u128 << 32) / u128::from(hz)).unwrap_or(u64::MAX);
        let next_second = start.0.saturating_add(hz);
        let shared = Arc::new(AtomicU32::new(1));
        Self { scale, next_second, hz, second: 1, shared }
    }

    /// Since the counter's zero: the same for all workers, as their counters are.
    #[inline]
    fn nanos(&self, now: Cycles) -> u64 {
        let wide = u128::from(now.0) * u128::from(self.scale);
        #[expect(clippy::cast_possible_truncation, reason = "centuries of nanoseconds")]
        let nanos = (wide >> 32) as u64;
        nanos
    }

    /// The count at which it is `at`, or just after.
    fn cycles(&self, at: Nanos) -> Cycles {
        let wide = (u128::from(at.0) << 32).div_ceil(u128::from(self.scale.max(1)));
        Cycles(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// The coarse clock: whole seconds, from 1.
    #[inline]
    fn second(&mut self, now: Cycles) -> u32 {
        if now.0 >= self.next_second {
            self.next_second(now);
        }
        self.second
    }

    #[cold]
    fn next_second(&mut self, now: Cycles) {
        let passed = (now.0 - self.next_second) / self.hz + 1;
        self.second = self.second.wrapping_add(u32::try_from(passed).unwrap_or(u32::MAX));
        self.next_second = self.next_second.saturating_add(passed.saturating_mul(self.hz));
        self.shared.store(self.second, Ordering::Relaxed);
    }
}

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A batch of this many frames was moved.
    Busy(usize),
    /// Nothing was waiting anywhere.
    Idle,
}

impl<C: CycleCounter> Worker<C> {
    /// A worker without ports.
    pub fn new(config: &WorkerConfig, counter: C, wait: Option<RunQueueWait>) -> Self {
        let now = counter.now();
        let clock = Clock::new(now, config.tsc);
        let outputs = Outputs::new(config.max_ports, Nanos(clock.nanos(now)));
        let (capacity, refill) = (config.capacity, config.refill);
        let account = Account::new(config.max_ports, config.tsc, capacity, refill, now, wait);
        Self {
            counter,
            clock,
            account,
            aside: Aside::new(config.max_ports),
            outputs,
            ports: core::iter::repeat_with(PortSlot::default).take(config.max_ports).collect(),
            port_counters: vec![None; config.max_ports],
            schedule: Discipline::new(
                config.schedule,
                config.readiness,
                config.max_ports * UNITS_MAX,
            ),
            delays: Delays::new(config.max_ports),
            apart: vec![false; config.max_ports].into_boxed_slice(),
            resting: Resting::new(config.max_ports, config.tsc),
            classifier: Classifier::new(&ClassifierConfig {
                fdb_entries: config.fdb_entries,
                seed: config.seed,
                max_ports: config.max_ports,
            }),
            snapshot: Arc::new(Snapshot::default()),
            batch: Batch::new(),
            egress: Egress::new(config.max_ports),
            touched: Touched::with_capacity(config.max_ports * QUEUES_MAX),
            until_sample: SAMPLE_EVERY,
            until_notify: NOTIFY_EVERY,
            takes_over: false,
        }
    }

    /// The same worker among others: these are its ends of what they share.
    #[must_use]
    pub fn with_peers(mut self, peers: Peers) -> Self {
        if !peers.is_empty() {
            self.classifier.fdb_mut().share();
        }
        self.classifier = self.classifier.for_worker(peers.id().index());
        self.egress.peers = peers;
        self
    }

    /// The coarse clock in seconds, shared with whoever reads the MAC table.
    #[must_use]
    pub fn coarse_clock(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.clock.shared)
    }

    /// The worker's own counters, shared with whoever reports them.
    #[must_use]
    pub fn counters(&self) -> Arc<WorkerCounters> {
        Arc::clone(self.account.counters())
    }

    /// Who owns which queue pair, shared with all workers.
    pub(super) fn directory(&self) -> Arc<Directory> {
        Arc::clone(self.egress.peers.directory())
    }

    /// What wakes queue pairs at rest, shared with whoever hears their drivers' kicks.
    #[must_use]
    pub fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(self.resting.doorbell())
    }

    /// One loop turn: the next queue pair with something waiting gets one batch.
    pub fn turn(&mut self) -> Turn {
        if self.account.rests() {
            self.idle_turn();
            return Turn::Idle;
        }
        self.pass_time();
        // Turn and turn about with its own ports, when there are other workers at all.
        self.takes_over = !self.takes_over && !self.egress.peers.is_empty();
        if self.takes_over
            && let Some(frames) = self.take_over()
        {
            return Turn::Busy(frames);
        }
        if let Some(frames) = self.sweep() {
            return Turn::Busy(frames);
        }
        if !self.takes_over
            && !self.egress.peers.is_empty()
            && let Some(frames) = self.take_over()
        {
            return Turn::Busy(frames);
        }
        if self.wake_some()
            && let Some(frames) = self.sweep()
        {
            return Turn::Busy(frames);
        }
        if self.account.buckets().is_due_early(self.account.last(), self.schedule.held() > 0) {
            self.refill();
            if let Some(frames) = self.sweep() {
                return Turn::Busy(frames);
            }
        }
        if self.account.buckets().holds_back(self.schedule.held() > 0)
            && let Some(frames) = self.lend_batch()
        {
            return Turn::Busy(frames);
        }
        self.idle_turn();
        Turn::Idle
    }

    /// A turn that takes nothing from any port, while control holds all workers: what others
    /// handed over is delivered until nothing is on its way.
    pub fn held_turn(&mut self) -> Turn {
        match self.take_over() {
            Some(frames) => Turn::Busy(frames),
            None => {
                self.end_idle_turn();
                Turn::Idle
            }
        }
    }

    /// Delivers one batch of what another worker handed over, all from one port, and charges it
    /// to that port. `None`: nothing was there.
    #[inline(never)]
    fn take_over(&mut self) -> Option<usize> {
        let second = self.clock.second(self.account.last());
        loop {
            self.batch.clear();
            self.batch.limit(BATCH_FRAMES);
            match self.egress.peers.fill(&mut self.batch) {
                Found::Nothing => return None,
                Found::News(news) => {
                    self.classifier.hear(&news, second, &self.snapshot);
                    self.egress.peers.release();
                }
                Found::Frames(source) => {
                    self.deliver_for(source);
                    return Some(self.batch.len());
                }
            }
        }
    }

    fn deliver_for(&mut self, source: PortId) {
        let (frames, bytes) = (self.batch.len(), self.batch.bytes());
        // The frames of a port that has left are dropped.
        if let Some(counters) = self.port_counters[source.index()].as_deref() {
            let (batch, ports) = (&mut self.batch, &mut self.ports);
            let (all, snapshot) = (&self.port_counters, &*self.snapshot);
            counters.queued.sub(frames as u64);
            self.egress.set_now(Nanos(self.clock.nanos(self.account.last())));
            self.egress.deliver(batch, source, ports, all, snapshot, &mut self.touched);
            self.counter.spent(Stage::Egress, &Work { port: source, frames, bytes, misses: 0 });
        }
        self.charge(source, frames as u64);
        self.heed_outputs(source);
        self.account.counters().taken_over.add(frames as u64);
        // Shown before the cells are given back: what is on its way is in one ring or another.
        self.egress.peers.show();
        self.egress.peers.release();
        self.finish_turn(false);
    }

    /// Charges a port for work on its frames beside its own batches.
    fn charge(&mut self, port: PortId, frames: u64) {
        let payer = Payer::Ports { parts: core::iter::once((port, frames)), frames };
        let books = Books { counters: &self.port_counters, peers: &self.egress.peers };
        self.account.settle(self.counter.now(), payer, || None, books);
    }

    /// Charges the host for work that no port caused.
    pub(super) fn charge_host(&mut self) {
        let books = Books { counters: &self.port_counters, peers: &self.egress.peers };
        self.account.settle(self.counter.now(), Payer::<NoParts>::Host, || None, books);
    }

    /// What this batch left for the other workers.
    #[inline(never)]
    fn tell_peers(&mut self) {
        while let Some(news) = self.classifier.fdb_mut().take_news() {
            self.egress.peers.tell(news);
        }
        self.hear_others();
        self.egress.peers.show();
    }

    /// Polls each queue pair that is awake until one has a batch; `None`: none has.
    #[inline]
    fn sweep(&mut self) -> Option<usize> {
        self.schedule.begin();
        for _ in 0..self.schedule.looks_max() {
            let Some((unit, sweep_ends)) = self.schedule.next() else { break };
            if unit.queue == OUTPUT {
                if let Some(frames) = self.serve_output(unit.port) {
                    self.finish_turn(sweep_ends);
                    return Some(frames);
                }
                continue;
            }
            if !self.account.buckets().may_run(unit.port) {
                self.account.buckets_mut().note_throttled();
                self.schedule.hold(unit);
                if sweep_ends && !self.touched.is_empty() {
                    self.notify();
                }
                continue;
            }
            let slot = &mut self.ports[unit.port.index()];
            let queue = &mut slot.queues[unit.queue.index()];
            if queue.pending(self.account.last()) != Pending::No {
                let waited = self.delays.of(unit, self.account.last());
                let frames = self.run_batch(unit, false);
                if frames > 0 {
                    self.after_batch(unit, waited);
                    self.resting.note_busy(unit, self.account.last());
                    self.finish_turn(sweep_ends);
                    return Some(frames);
                }
            }
            self.account.buckets_mut().note_waiting(unit, false);
            self.delays.begin(unit, self.account.last());
            if self.schedule.len() > AWAKE_MIN && self.resting.is_idle(unit, self.account.last()) {
                self.put_to_rest(unit);
            }
            if sweep_ends && !self.touched.is_empty() {
                self.notify();
            }
        }
        self.account.buckets_mut().note_passed();
        None
    }

    /// A queue pair from which nothing comes is no longer polled, if its port can tell when that
    /// changes.
    #[cold]
    fn put_to_rest(&mut self, unit: Unit) {
        let slot = &mut self.ports[unit.port.index()];
        if slot.queues[unit.queue.index()].rest() {
            self.schedule.leave(unit);
            self.resting.add(unit);
            self.account.counters().resting.set(self.resting.len() as u64);
        } else {
            self.resting.note_busy(unit, self.account.last());
        }
    }

    /// Polls a queue pair again that was at rest.
    fn wake(&mut self, unit: Unit) {
        if !self.resting.remove(unit) {
            return;
        }
        let slot = self.ports.get_mut(unit.port.index());
        if let Some(queue) = slot.and_then(|slot| slot.queues.get_mut(unit.queue.index())) {
            queue.wake();
            self.resting.note_busy(unit, self.account.last());
            self.delays.begin(unit, self.account.last());
            if !self.aside.is_aside(unit.port) {
                let class = self.class(unit.port);
                self.schedule.add(unit, class);
            }
            self.account.counters().wakes.add(1);
        }
        self.account.counters().resting.set(self.resting.len() as u64);
    }

    /// Wakes those whose bell has rung, and looks at as many of the others as are due. Returns
    /// whether one woke.
    #[inline]
    fn wake_some(&mut self) -> bool {
        let looks = self.resting.looks_due(self.account.last());
        (looks > 0 || self.resting.doorbell().has_rung()) && self.wake_waiting(looks)
    }

    #[inline(never)]
    fn wake_waiting(&mut self, looks: u64) -> bool {
        let resting = self.resting.len();
        let doorbell = self.doorbell();
        doorbell.answer(|bell| {
            self.account.counters().kicks.add(1);
            if let Some(unit) = unit_of(bell) {
                self.wake(unit);
            }
        });
        for _ in 0..looks {
            let Some(unit) = self.resting.next_look() else { break };
            let queue = &mut self.ports[unit.port.index()].queues[unit.queue.index()];
            if queue.pending(self.account.last()) != Pending::No {
                self.wake(unit);
            }
        }
        self.resting.len() < resting
    }

    /// Ingress → classification → egress → charge, for one queue pair. Returns the number of frames
    /// moved. `lent`: the port has no tokens, and no port with tokens wants the time.
    fn run_batch(&mut self, unit: Unit, lent: bool) -> usize {
        let id = unit.port.index();
        let snapshot = &*self.snapshot;
        let Some(policy) = snapshot.ports.get(id).and_then(Option::as_deref) else { return 0 };
        let Some(counters) = self.port_counters[id].as_deref() else { return 0 };
        self.until_sample -= 1;
        let sample = self.until_sample == 0;

        self.batch.clear();
        let most = self.account.batch_limit(unit.port, policy.qos.priority);
        self.batch.limit(most.min(self.outputs.gates.limit(unit.port)));
        let queue = &mut self.ports[id].queues[unit.queue.index()];
        queue.rx_burst(&mut self.batch);
        self.batch.take_in_if(self.apart[id]);
        let (frames, more) = (self.batch.len(), !self.batch.has_room());
        if frames == 0 && self.batch.errors == 0 {
            counters.rx_empty.add(1);
            self.until_sample += 1;
            return 0;
        }
        let mut work = Work { port: unit.port, frames, bytes: self.batch.bytes(), misses: 0 };
        self.counter.spent(Stage::Ingress, &work);
        let taken = if sample { self.counter.now() } else { Cycles::ZERO };

        count_taken(counters, &mut self.batch);
        let (second, nanos) =
            (self.clock.second(self.account.last()), self.clock.nanos(self.account.last()));
        if let Some(limits) = &policy.ingress_policer {
            limits.police(&mut self.batch, Nanos(nanos), counters);
            (work.frames, work.bytes) = (self.batch.len(), self.batch.bytes());
        }
        let port = unit.port.0;
        let (batch, classifier) = (&mut self.batch, &mut self.classifier);
        work.misses = classifier.classify(batch, port, policy, snapshot, second, nanos, counters);
        self.counter.spent(Stage::Classification, &work);
        let classified = if sample { self.counter.now() } else { Cycles::ZERO };

        let (batch, ports) = (&mut self.batch, &mut self.ports);
        let all = &self.port_counters;
        self.egress.set_now(Nanos(nanos));
        self.egress.deliver(batch, unit.port, ports, all, snapshot, &mut self.touched);
        let slot = &mut self.ports[id];
        let queue = &mut slot.queues[unit.queue.index()];
        queue.rx_done();
        queue.publish();
        self.touched.took(unit, &mut slot.marked[unit.queue.index()]);

        self.counter.spent(Stage::Egress, &work);
        let began = self.account.last();
        let now = self.counter.now();
        let class = policy.qos.priority;
        let payer = Payer::<NoParts>::Unit(OwnBatch { unit, class, frames, more, lent });
        let price = || policy.qos.price.of_batch(work.frames, work.bytes);
        let books = Books { counters: &self.port_counters, peers: &self.egress.peers };
        let settled = self.account.settle(now, payer, price, books);
        self.schedule.ran(unit);
        if !settled.left {
            self.schedule.hold(unit);
        }
        if sample {
            self.until_sample = SAMPLE_EVERY;
            if settled.whole {
                count_stages(counters, frames, [began, taken, classified, now]);
            }
        }
        frames.max(1)
    }

    fn finish_turn(&mut self, sweep_ends: bool) {
        if stall::is_due() {
            self.stop_sleeper();
        }
        self.account.counters().turns.add(1);
        self.account.counters().busy_turns.add(1);
        self.account.counters().heartbeat.set(self.account.last().0);
        if !self.egress.peers.is_empty() {
            self.tell_peers();
        }
        if self.account.buckets().is_due(self.account.last()) {
            self.refill();
        }
        self.until_notify -= 1;
        if sweep_ends || self.until_notify == 0 {
            self.age();
            self.notify();
            let _ = self.wake_some();
        }
    }

    fn idle_turn(&mut self) {
        self.age();
        self.end_idle_turn();
    }

    fn end_idle_turn(&mut self) {
        if stall::is_due() {
            self.stop_sleeper();
        }
        self.notify();
        if !self.egress.peers.is_empty() {
            self.tell_peers();
        }
        self.counter.spent(Stage::Idle, &Work::NONE);
        self.account.counters().turns.add(1);
        self.rested();
        self.account.counters().heartbeat.set(self.account.last().0);
        if self.account.buckets().is_due(self.account.last()) {
            self.refill();
        }
    }

    /// Told by whoever calls [`Self::turn`] after a pause between two turns: it was idle time, and
    /// is not charged to whoever sends next.
    pub fn rested(&mut self) {
        let books = Books { counters: &self.port_counters, peers: &self.egress.peers };
        self.account.settle(self.counter.now(), Payer::<NoParts>::Nobody, || None, books);
    }

    fn age(&mut self) {
        let second = self.clock.second(self.account.last());
        self.classifier.age(second, &self.snapshot);
        self.tell_delays(second);
    }

    /// One full fence for all rings touched, then one look at each driver's wish for interrupts
    /// (datapath rule 14).
    fn notify(&mut self) {
        self.until_notify = NOTIFY_EVERY;
        if !self.touched.is_empty() {
            self.kick();
        }
    }
    /// What follows from a batch whose first frame can have `waited` so long.
    #[inline]
    fn after_batch(&mut self, unit: Unit, waited: Cycles) {
        self.count_delay(unit, waited);
        self.heed_outputs(unit.port);
        self.heed_others(unit.port);
        if self.outputs.gates.is_shaped(unit.port) {
            self.shape(unit.port, waited);
        }
    }

    /// Puts a new snapshot in place of the old one, which goes back to the caller.
    pub fn swap_snapshot(&mut self, new: Arc<Snapshot>) -> Arc<Snapshot> {
        self.classifier.on_snapshot(&new);
        let old = core::mem::replace(&mut self.snapshot, new);
        for port in (0..self.ports.len()).filter_map(|at| u16::try_from(at).ok().map(PortId)) {
            self.place_queue(port);
            if self.ports[port.index()].owned != 0 {
                self.place_gate(port);
                self.schedule_port(port, 0);
            }
        }
        self.rank();
        old
    }

    /// What follows from all ports here together may have become another: the first class, and what
    /// those have that bought nothing.
    pub(super) fn rank(&mut self) {
        let first = self.here().map(|port| self.class(port)).min();
        let by_class = matches!(self.schedule, Discipline::Hbs(_));
        self.account.set_first(first.filter(|_| by_class).unwrap_or(Priority::LAST));
        self.rank_free();
    }
}

/// Counts a batch whose inner edges were timed.
fn count_stages(
    counters: &PortCounters,
    frames: usize,
    [began, taken, classified, ended]: [Cycles; 4],
) {
    counters.sampled_frames.add(frames as u64);
    counters.cycles_ingress.add(taken.saturating_sub(began).0);
    counters.cycles_classification.add(classified.saturating_sub(taken).0);
    counters.cycles_egress.add(ended.saturating_sub(classified).0);
}

/// Counts what a burst took in, before anything is decided about it.
#[inline]
fn count_taken(counters: &PortCounters, batch: &mut Batch) {
    counters.rx_batches.add(1);
    counters.rx_frames.add(batch.len() as u64);
    counters.rx_bytes.add(batch.bytes() as u64);
    if !batch.has_room() {
        counters.rx_full.add(1);
    }
    if batch.errors > 0 {
        counters.rx_errors.add(u64::from(batch.errors));
        batch.errors = 0;
    }
    if batch.asks_for_offloads() {
        count_offloads(batch, counters);
    }
}

fn count_offloads(batch: &Batch, counters: &PortCounters) {
    let (mut tso, mut csum) = (0, 0);
    for frame in batch.frames() {
        tso += u64::from(frame.offload.is_gso());
        csum += u64::from(frame.offload.needs_csum());
    }
    counters.rx_tso.add(tso);
    counters.rx_csum.add(csum);
    if tso > 0 {
        count_segments(batch, counters);
    }
}
