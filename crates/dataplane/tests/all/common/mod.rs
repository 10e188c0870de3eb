//! This module contains helpers that several test files use.

use std::sync::Arc;

use penstock_dataplane::batch::Batch;
use penstock_dataplane::counters::{PortCounterSets, PortCounters, PortReading};
use penstock_dataplane::egress::{Around, Egress, PortSlot, Touched};
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::peers::{Mesh, Peers};
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryQueue, memory_queue};
use penstock_dataplane::snapshot::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_dataplane::unit::QUEUES_MAX;
use penstock_dataplane::worker::{Arrival, Worker, WorkerConfig};
use penstock_units::{Cycles, PortId, QueueId, Vid, WorkerId};

/// Lets only one test at a time race two threads that never sleep. On a machine with two cores, the
/// threads of several such tests would wait for each other, and a race would make no progress.
pub fn one_race() -> std::sync::MutexGuard<'static, ()> {
    static RACE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    RACE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Simulated core: each stage of a batch takes `FRAME` cycles per frame, and a turn without a frame
/// takes 200 cycles.
#[derive(Clone, Debug, Default)]
pub struct Core<const FRAME: u64>(pub VirtualCounter);

impl<const FRAME: u64> CycleCounter for Core<FRAME> {
    fn now(&self) -> Cycles {
        self.0.now()
    }

    fn spent(&self, stage: Stage, work: &Work) {
        let frames = work.frames as u64;
        let cost = match stage {
            Stage::Look | Stage::Refill => 0,
            Stage::Idle => 200,
            _ => FRAME * frames.max(1),
        };
        self.0.advance(Cycles(cost));
    }
}

/// Returns a frame of `len` bytes, at least 14, that is not IP. Stations have the numbers of their
/// ports, and 255 is broadcast.
pub fn frame(from: usize, to: usize, len: usize) -> Vec<u8> {
    let [from, to] = [from, to].map(|number| u8::try_from(number).unwrap());
    let mut bytes = vec![0x52, 0, 0, 0, 0, to, 0x52, 0, 0, 0, 0, from, 0x88, 0xb5];
    if to == 0xff {
        bytes[..6].fill(0xff);
    }
    bytes.extend((bytes.len()..len).map(|at| u8::try_from(at % 251).unwrap()));
    bytes
}

/// Returns the policy of an access port of tenant 1 in the network of [`one_network`].
pub fn access(port: u16) -> PortPolicy {
    PortPolicy::access(port, Some(1), Vid::UNTAGGED, 0)
}

/// Returns a snapshot with one network of tenant 1, which all ports belong to. `policies` has the
/// policies of the ports from port 0.
pub fn one_network(policies: impl IntoIterator<Item = PortPolicy>) -> Arc<Snapshot> {
    let policies = policies.into_iter().map(|policy| Some(Arc::new(policy.finish())));
    let policies: Vec<_> = policies.collect();
    let members = (0..).take(policies.len()).collect();
    let domain = Domain { tenant: Some(1), vid: 0, members, fdb_limit: 64 };
    Arc::new(Snapshot::new(1, policies, vec![domain], Vec::new(), 300))
}

/// Attaches a port to a worker. The port has one queue pair, with room for `frames` frames in each
/// direction.
pub fn attach<C: CycleCounter>(
    worker: &mut Worker<C>,
    port: u16,
    frames: usize,
) -> (MemoryDriver, Arc<PortCounters>) {
    let (pair, driver) = memory_queue(frames, OffloadCaps::ALL);
    let counters = Arc::new(PortCounters::default());
    assert!(worker.attach(PortId(port), vec![Box::new(pair)], Arc::clone(&counters)).is_ok());
    (driver, counters)
}

/// Creates the workers of a switch, one for each element of `cores`.
pub fn workers<C: CycleCounter + Clone>(config: &WorkerConfig, cores: &[C]) -> Vec<Worker<C>> {
    let mesh = Mesh::new(u16::try_from(cores.len()).unwrap(), config.max_ports);
    let worker = |((id, peers), core): ((u16, Peers), &C)| {
        let config = WorkerConfig { id: WorkerId(id), ..config.clone() };
        Worker::new(&config, core.clone(), None).with_peers(peers)
    };
    (0..).zip(mesh.peers).zip(cores).map(worker).collect()
}

/// Adds a port to all workers of a switch. `homes` has the worker of each queue pair. A queue pair
/// has room for `frames` frames in each direction.
pub fn join<C: CycleCounter>(
    workers: &mut [Worker<C>],
    port: u16,
    homes: &[usize],
    (frames, caps): (usize, OffloadCaps),
) -> (Vec<MemoryDriver>, PortCounterSets) {
    let port = PortId(port);
    let sets = PortCounterSets::new(workers.len());
    for (worker, id) in workers.iter_mut().zip(0..) {
        let room = Vec::with_capacity(QUEUES_MAX);
        assert!(worker.join(port, room, Arc::clone(sets.of(WorkerId(id)))).is_ok());
    }
    let adopt = |(queue, home): (u16, &usize)| {
        let (pair, driver) = memory_queue(frames, caps);
        let (queue, of) = (QueueId(queue), homes.len());
        let arrival = Arrival { port, queue, of, pair: Box::new(pair) };
        assert!(workers[*home].adopt(arrival).is_ok());
        driver
    };
    ((0..).zip(homes).map(adopt).collect(), sets)
}

/// Sends a batch of port 0 in one turn, if the ports 0 and 1 have queue pairs with `caps`. Returns
/// the counters of port 0, and the driver of port 1.
pub fn deliver(
    batch: &mut Batch,
    snapshot: &Snapshot,
    caps: OffloadCaps,
) -> (PortReading, MemoryDriver) {
    let [(sender, _driver), (receiver, driver)] = [(); 2].map(|()| memory_queue(8_192, caps));
    let slot =
        |queue: MemoryQueue| PortSlot { queues: vec![Box::new(queue)], ..PortSlot::default() };
    let counters = [(); 2].map(|()| Some(Arc::new(PortCounters::default())));
    let (mut egress, mut touched) = (Egress::new(2), Touched::with_capacity(4));
    let frames = batch.len() as u64;
    let mut around = Around {
        ports: &mut [sender, receiver].map(slot),
        counters: &counters,
        snapshot,
        touched: &mut touched,
        others: &mut Peers::none(2),
    };
    egress.deliver(batch, PortId(0), &mut around);
    let mut reading = counters[0].as_ref().unwrap().read();
    reading.rx_frames = frames;
    assert_eq!(reading.unaccounted(), 0);
    (reading, driver)
}
