//! All steps of a worker's turn share the state in the context.
//!
//! The input, the outputs and the inboxes are separate types with private state. Each function of
//! the input, the outputs and the inboxes takes the shared context as an argument. Because the
//! state of each type is private, a function's signature shows which state the function can change.

use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use penstock_units::{Cycles, Nanos, PortId, Priority, QueueId};

use super::WorkerConfig;
use super::account::{Account, Books, NoParts, OwnBatch, Payer, RunQueueWait, Settled};
use super::clock::Clock;
use super::kicks::NOTIFY_EVERY;
use crate::batch::Batch;
use crate::counters::{PortCounters, WorkerCounters};
use crate::egress::{Around, Egress, PortSlot, Touched};
use crate::peers::Peers;
use crate::queue::OutputQueue;
use crate::snapshot::PortQos;
use crate::snapshot::{PortPolicy, Snapshot};
use crate::tsc::CycleCounter;
use crate::unit::QUEUES_MAX;

/// The part of a worker's state that every step of a turn may use.
#[derive(Debug)]
pub(super) struct Context<C> {
    pub counter: C,
    pub clock: Clock,
    pub ports: Vec<PortSlot>,
    /// Port counters, indexed by port number. The counters are separate from the ports, so that a
    /// batch needs no reference count.
    pub port_counters: Vec<Option<Arc<PortCounters>>>,
    pub snapshot: Arc<Snapshot>,
    pub batch: Box<Batch>,
    pub egress: Egress,
    /// This worker's ends of the rings to and from other workers.
    pub peers: Peers,
    pub touched: Touched,
    pub account: Account,
    /// Number of batches that the worker may still run before the notification round ends
    /// ([`super::kicks`]).
    pub until_notify: u32,
}

impl<C: CycleCounter> Context<C> {
    pub fn new(config: &WorkerConfig, counter: C, wait: Option<RunQueueWait>) -> Self {
        let now = counter.now();
        let ports = config.max_ports;
        let mut egress = Egress::new(ports);
        if let Some(capacity) = config.capacity {
            egress.captures.lower_budget(capacity.0, config.tsc.hz());
        }
        Self {
            clock: Clock::new(now, config.tsc),
            account: Account::new(config, now, wait),
            ports: core::iter::repeat_with(PortSlot::default).take(ports).collect(),
            port_counters: vec![None; ports],
            snapshot: Arc::new(Snapshot::default()),
            batch: Batch::new(),
            egress,
            peers: Peers::none(ports),
            touched: Touched::with_capacity(ports * QUEUES_MAX),
            until_notify: NOTIFY_EVERY,
            counter,
        }
    }

    /// Returns the counter reading at the end of the last bill, which is the time of the present
    /// turn.
    #[inline]
    pub fn last(&self) -> Cycles {
        self.account.last()
    }

    /// Returns the time of the present turn in nanoseconds.
    #[inline]
    pub fn nanos(&self) -> Nanos {
        Nanos(self.clock.nanos(self.last()))
    }

    /// Returns the worker's coarse clock: whole seconds, beginning with 1.
    #[inline]
    pub fn second(&mut self) -> u32 {
        self.clock.second(self.account.last())
    }

    pub fn coarse_clock(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.clock.shared)
    }

    #[inline]
    pub fn counters(&self) -> &Arc<WorkerCounters> {
        self.account.counters()
    }

    /// Returns the parts of the context that a delivery of frames changes: the egress stage, the
    /// batch, and the state in [`Around`].
    #[inline]
    pub fn delivery(&mut self) -> (&mut Egress, &mut Batch, Around<'_>) {
        let Self { ports, port_counters: counters, snapshot, touched, peers, .. } = self;
        let around = Around { ports, counters, snapshot, touched, others: peers };
        (&mut self.egress, &mut self.batch, around)
    }

    /// Delivers the frames of the context's batch, which came from `source`. `fresh` is true if
    /// this worker has just received the frames, and false if another worker handed them over.
    #[inline(always)]
    pub fn deliver(&mut self, source: PortId, now: Nanos, fresh: bool) {
        if self.egress.is_watched() {
            self.deliver_watched(source, now, fresh);
            return;
        }
        let (egress, batch, mut around) = self.delivery();
        egress.set_now(now);
        egress.deliver(batch, source, &mut around);
    }

    #[cold]
    fn deliver_watched(&mut self, source: PortId, now: Nanos, fresh: bool) {
        let open = self.begin_captures();
        let (egress, batch, mut around) = self.delivery();
        egress.set_now(now);
        if open || egress.has_mirrors() {
            egress.deliver_watched(batch, source, fresh, &mut around);
        } else {
            egress.deliver(batch, source, &mut around);
        }
        self.charge_captures();
    }

    /// Sends the frames of the context's batch, which left the queue of `port`.
    #[inline]
    pub fn depart(&mut self, port: PortId, now: Nanos) {
        if self.egress.captures.is_open() {
            self.depart_captured(port, now);
            return;
        }
        let (egress, batch, mut around) = self.delivery();
        egress.set_now(now);
        egress.depart::<false>(batch, port, &mut around);
    }

    #[cold]
    fn depart_captured(&mut self, port: PortId, now: Nanos) {
        self.begin_captures();
        let (egress, batch, mut around) = self.delivery();
        egress.set_now(now);
        egress.depart::<true>(batch, port, &mut around);
        self.charge_captures();
    }

    /// Begins a batch of the captures. Returns false in a pause of the captures.
    pub fn begin_captures(&mut self) -> bool {
        let at = self.last();
        let open = self.egress.captures.begin(at, &self.port_counters);
        if !open {
            self.egress.note_watched();
        }
        open
    }

    /// Charges the host for the cycles that captures used, so that no port pays for them.
    pub fn charge_captures(&mut self) {
        let spent = self.egress.captures.take_spent();
        self.account.exempt(spent, self.counter.now());
    }

    /// Returns the counters of a port. Returns `None` if the port is not on this worker.
    #[inline]
    pub fn of(&self, port: PortId) -> Option<&PortCounters> {
        self.port_counters.get(port.index()).and_then(Option::as_deref)
    }

    /// Whether this worker polls the queue pair.
    pub fn owns(&self, port: PortId, queue: QueueId) -> bool {
        let owned = self.ports.get(port.index()).map_or(0, |slot| slot.owned);
        queue.index() < QUEUES_MAX && owned & 1 << queue.index() != 0
    }

    pub fn policy(&self, port: PortId) -> Option<&PortPolicy> {
        self.snapshot.port(port.0).map(|policy| &**policy)
    }

    /// Returns the QoS parameters that the snapshot contains for the port.
    pub fn qos(&self, port: PortId) -> PortQos {
        self.policy(port).map_or_else(PortQos::default, |policy| policy.qos)
    }

    pub fn class(&self, port: PortId) -> Priority {
        self.qos(port).priority
    }

    pub fn output(&self, port: PortId) -> Option<&OutputQueue> {
        self.ports.get(port.index()).and_then(|slot| slot.output.as_deref())
    }

    /// Charges a port for a batch that a unit of the port ran. `priced` contains the numbers of
    /// frames and bytes from which the cost model computes the batch's cost.
    #[inline]
    pub fn charge_batch(&mut self, batch: OwnBatch, priced: Option<(usize, usize)>) -> Settled {
        let books = Books { counters: &self.port_counters, peers: &self.peers };
        let policy = self.snapshot.port(batch.unit.port.0);
        let price = || {
            let (frames, bytes) = priced?;
            policy?.qos.price.of_batch(frames, bytes)
        };
        self.account.settle(self.counter.now(), Payer::<NoParts>::Unit(batch), price, books)
    }

    /// Charges a port for work on `frames` of the port's frames that was not part of a batch of the
    /// port.
    pub fn charge_port(&mut self, port: PortId, frames: u64) -> Settled {
        let payer = Payer::Ports { parts: core::iter::once((port, frames)), frames };
        let books = Books { counters: &self.port_counters, peers: &self.peers };
        self.account.settle(self.counter.now(), payer, || None, books)
    }

    /// Divides the cost of a batch from an output queue among the senders of its frames, in
    /// proportion to the senders' numbers of frames.
    pub fn charge_senders(&mut self, output: PortId) {
        let sending = self.ports[output.index()].output.as_deref().map_or(&[][..], |q| q.sending());
        let runs = sending.chunk_by(|a, b| a.source == b.source);
        let parts = runs.map(|run| (PortId(run[0].source), run.len() as u64));
        let payer = Payer::Ports { parts, frames: sending.len() as u64 };
        let books = Books { counters: &self.port_counters, peers: &self.peers };
        let settled = self.account.settle(self.counter.now(), payer, || None, books);
        self.counters().cycles_queued.add(settled.cost.0);
    }

    /// Charges the host for work that no port caused.
    pub fn charge_host(&mut self) {
        let books = Books { counters: &self.port_counters, peers: &self.peers };
        self.account.settle(self.counter.now(), Payer::<NoParts>::Host, || None, books);
    }

    /// Charges nobody for the cycles since the last bill, and counts these cycles as idle time.
    pub fn charge_nobody(&mut self) {
        let books = Books { counters: &self.port_counters, peers: &self.peers };
        self.account.settle(self.counter.now(), Payer::<NoParts>::Nobody, || None, books);
    }
}
