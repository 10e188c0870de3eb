//! The workers of a simulated switch. Each worker has a core.
//!
//! Each core has its own counter. The core that is furthest behind runs the next turn. For this
//! reason, a frame that one core hands to another arrives with an error of at most one turn.

use std::sync::Arc;

use penstock_dataplane::classify::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::counters::PortCounterSets;
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::schedule::{Readiness, ScheduleKind, Unit};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Arrival, Mesh, QUEUES_MAX, Worker, WorkerConfig};
use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, Rng, TscRate, WorkerId};

use crate::cost::{Costs, SimCounter};

/// Entries of a worker's MAC table.
const FDB_ENTRIES: usize = 8192;

/// Configuration of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldConfig {
    /// Number of workers, at least one.
    pub workers: u16,
    /// Schedule of the workers.
    pub schedule: ScheduleKind,
    /// How `hbs` treats units without frames.
    pub readiness: Readiness,
    /// Time between two refills of the cycle buckets.
    pub refill: Nanos,
    /// Cycles per second that each worker may spend on frames; `None` for the whole core.
    pub capacity: Option<CyclesPerSecond>,
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            workers: 1,
            schedule: ScheduleKind::RoundRobin,
            readiness: Readiness::Pending,
            refill: Nanos::from_micros(50),
            capacity: None,
        }
    }
}

/// A worker on its core.
#[derive(Debug)]
pub(crate) struct Core {
    pub worker: Worker<SimCounter>,
    pub counter: SimCounter,
    /// Whether the last turn found no frame and no event has happened since.
    pub idle: bool,
}

/// Workers on cores of the same rate.
#[derive(Debug)]
pub(crate) struct Cores {
    pub rate: TscRate,
    pub all: Vec<Core>,
    generation: u64,
}

impl Cores {
    /// Workers for up to `max_ports` ports.
    pub fn new(
        config: &WorldConfig,
        rate: TscRate,
        costs: Costs,
        max_ports: usize,
        seed: u64,
    ) -> Self {
        let rng = Rng::new(seed);
        let core = |(id, peers)| {
            let counter = SimCounter::new(costs, rng.fork(0x1000 + u64::from(id)));
            let config = WorkerConfig {
                id: WorkerId(id),
                schedule: config.schedule,
                readiness: config.readiness,
                refill: config.refill,
                capacity: config.capacity,
                fdb_entries: FDB_ENTRIES,
                seed,
                tsc: rate,
                max_ports,
                ..WorkerConfig::default()
            };
            let worker = Worker::new(&config, counter.clone(), None).with_peers(peers);
            Core { worker, counter, idle: false }
        };
        let mesh = Mesh::new(config.workers.max(1), max_ports);
        Self { rate, all: (0..).zip(mesh.peers).map(core).collect(), generation: 0 }
    }

    /// Attaches one of a port's `of` queue pairs to a worker. When the first pair is attached, all
    /// workers learn of the port. Returns false if there is no room.
    pub fn attach(
        &mut self,
        unit: Unit,
        of: usize,
        worker: usize,
        pair: Box<dyn PortQueue>,
        counters: &PortCounterSets,
    ) -> bool {
        let Unit { port, queue } = unit;
        if queue.index() == 0 {
            for (core, id) in self.all.iter_mut().zip(0..) {
                let (room, set) = (Vec::with_capacity(QUEUES_MAX), counters.of(WorkerId(id)));
                if core.worker.join(port, room, Arc::clone(set)).is_err() {
                    return false;
                }
            }
        }
        self.all[worker].worker.adopt(Arrival { port, queue, of, pair }).is_ok()
    }

    /// Gives all workers a new snapshot.
    pub fn swap(
        &mut self,
        policies: Vec<Option<Arc<PortPolicy>>>,
        domains: Vec<Domain>,
        fdb_age: u32,
    ) {
        self.generation += 1;
        let snapshot = Snapshot::new(self.generation, policies, domains, Vec::new(), fdb_age);
        let snapshot = Arc::new(snapshot);
        for core in &mut self.all {
            drop(core.worker.swap_snapshot(Arc::clone(&snapshot)));
        }
    }

    /// Index of the core that is furthest behind. If several cores are equally far behind, the
    /// first one.
    pub fn behind(&self) -> usize {
        let cores = self.all.iter().enumerate();
        cores.min_by_key(|(_, core)| core.counter.now()).map_or(0, |(at, _)| at)
    }

    /// The current time on the core that is furthest behind.
    pub fn now(&self) -> Nanos {
        self.rate.to_nanos(self.all[self.behind()].counter.now())
    }

    /// Makes all cores poll again.
    pub fn stir(&mut self) {
        self.all.iter_mut().for_each(|core| core.idle = false);
    }

    /// Tokens of a port, summed over all workers.
    pub fn tokens(&self, port: PortId) -> i64 {
        self.all.iter().map(|core| core.worker.tokens(port)).sum()
    }
}

impl Core {
    /// Advances the core's time to `to` without any event.
    pub fn jump(&mut self, to: Cycles) {
        self.counter.advance_to(to);
        self.worker.rested();
    }
}
