//! The workers of a simulated switch. Each worker has its own core.
//!
//! Each core has its own cycle counter. Because the core with the lowest counter runs the next
//! turn, the arrival time of a frame from another core is wrong by at most one turn.

use std::sync::Arc;

use penstock_dataplane::counters::PortCounterSets;
use penstock_dataplane::peers::Mesh;
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::schedule::{Readiness, ScheduleKind};
use penstock_dataplane::snapshot::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::unit::QUEUES_MAX;
use penstock_dataplane::unit::Unit;
use penstock_dataplane::worker::{Arrival, Worker, WorkerConfig};
use penstock_qos::c2tb::Spare;
use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, Rng, TscRate, WorkerId};

use crate::cost::{Costs, SimCounter};

/// Number of entries in a worker's MAC table.
const FDB_ENTRIES: usize = 8192;

/// Configuration of a simulated switch's workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldConfig {
    /// Number of workers, at least one.
    pub workers: u16,
    pub schedule: ScheduleKind,
    /// Treatment of queue pairs without frames by the schedule `hbs`.
    pub readiness: Readiness,
    /// Rule by which ports get the cycles that no port bought or used.
    pub spare: Spare,
    /// Time between two refills of the cycle buckets.
    pub refill: Nanos,
    /// Cycles per second that each worker may spend on frames. `None` lets a worker
    /// spend all cycles of its core.
    pub capacity: Option<CyclesPerSecond>,
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            workers: 1,
            schedule: ScheduleKind::RoundRobin,
            readiness: Readiness::Pending,
            spare: Spare::Pool,
            refill: Nanos::from_micros(50),
            capacity: None,
        }
    }
}

/// A simulated core and the worker that runs on it.
#[derive(Debug)]
pub(crate) struct Core {
    pub worker: Worker<SimCounter>,
    pub counter: SimCounter,
    /// True if the worker's last turn found no frame, and no event has happened since this turn.
    pub idle: bool,
}

/// All workers of a simulated switch, with their cores. The cores of all workers have the same
/// frequency.
#[derive(Debug)]
pub(crate) struct Cores {
    pub rate: TscRate,
    pub all: Vec<Core>,
    pub costs: Costs,
    max_ports: usize,
    generation: u64,
    /// Snapshot that all workers use.
    snapshot: Arc<Snapshot>,
}

impl Cores {
    /// Creates the workers of a switch with up to `max_ports` ports.
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
                spare: config.spare,
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
        let all = (0..).zip(mesh.peers).map(core).collect();
        Self { rate, all, costs, max_ports, generation: 0, snapshot: Arc::default() }
    }

    /// Attaches one of a port's `of` queue pairs to a worker. With the first queue pair, the port
    /// is added to all workers. Returns `false` if a worker has no room for the port or the queue
    /// pair.
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

    /// Gives all workers new port policies, networks, and an ageing time for learned addresses. As
    /// on a host, the workers handle only the ports that differ from their present snapshot.
    pub fn swap(
        &mut self,
        policies: Vec<Option<Arc<PortPolicy>>>,
        domains: Vec<Domain>,
        fdb_age: u32,
    ) {
        self.generation += 1;
        let snapshot = Snapshot::new(self.generation, policies, domains, Vec::new(), fdb_age);
        let snapshot = Arc::new(snapshot).following(&self.snapshot);
        self.snapshot = Arc::clone(&snapshot);
        for core in &mut self.all {
            drop(core.worker.swap_snapshot(Arc::clone(&snapshot)));
            let work = core.worker.swapped();
            let cost = self.costs.snapshot.of(work, self.max_ports, FDB_ENTRIES);
            if cost > Cycles::ZERO {
                core.counter.advance(cost);
                // No sender of frames pays for the work.
                core.worker.rested();
            }
        }
    }

    /// Returns the index of the core with the lowest counter. If several cores have the lowest
    /// counter, the first of these cores is returned.
    pub fn behind(&self) -> usize {
        let cores = self.all.iter().enumerate();
        cores.min_by_key(|(_, core)| core.counter.now()).map_or(0, |(at, _)| at)
    }

    /// Returns the time on the core with the lowest counter.
    pub fn now(&self) -> Nanos {
        self.rate.to_nanos(self.all[self.behind()].counter.now())
    }

    /// Returns the lowest counter of a core at which the core's time is at least `time`.
    pub fn first_at(&self, time: Nanos) -> Cycles {
        // Times are rounded down.
        let cycles = (u128::from(time.0) * u128::from(self.rate.hz())).div_ceil(1_000_000_000);
        Cycles(u64::try_from(cycles).unwrap_or(u64::MAX))
    }

    /// Makes all idle cores poll their queue pairs again.
    pub fn stir(&mut self) {
        self.all.iter_mut().for_each(|core| core.idle = false);
    }

    /// Returns the tokens (in cycles) of a port's bucket, summed over all workers.
    pub fn tokens(&self, port: PortId) -> i64 {
        self.all.iter().map(|core| core.worker.tokens(port)).sum()
    }
}

impl Core {
    /// Advances the core's cycle counter to `to` without work.
    pub fn jump(&mut self, to: Cycles) {
        self.counter.advance_to(to);
        self.worker.rested();
    }
}
