//! The queue pairs of one port are on two workers. The queue pairs together spend the port's
//! entitlement, and tokens are not lost if a queue pair moves to another worker.

use std::sync::Arc;

use penstock_dataplane::counters::PortCounterSets;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::peers::Mesh;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::unit::QUEUES_MAX;
use penstock_dataplane::worker::{Arrival, Reply, Request, Turn, Worker, WorkerConfig};
use penstock_units::{Cycles, CyclesPerSecond, PortId, QueueId, TscRate, Vid, WorkerId};

use crate::common;

const HZ: u64 = 1_000_000_000;
const MS: u64 = HZ / 1_000;
const SENDER: PortId = PortId(0);

/// Virtual core on which each stage takes 200 cycles per frame.
type Core = common::Core<200>;

/// Test bed with two workers, and with a sender and a receiver that have a queue pair on each
/// worker.
struct Bed {
    workers: Vec<Worker<Core>>,
    cores: Vec<Core>,
    drivers: Vec<Vec<MemoryDriver>>,
    counters: Vec<PortCounterSets>,
}

impl Bed {
    fn new(ingress: IngressPolicy, percent: u64) -> Self {
        let mesh = Mesh::new(2, 4);
        let cores = vec![Core::default(), Core::default()];
        let worker = |((id, peers), core): ((u16, _), &Core)| {
            let config = WorkerConfig {
                id: WorkerId(id),
                schedule: ScheduleKind::Hbs,
                tsc: TscRate::from_hz(HZ),
                max_ports: 4,
                ..WorkerConfig::default()
            };
            Worker::new(&config, core.clone(), None).with_peers(peers)
        };
        let workers = (0..).zip(mesh.peers).zip(&cores).map(worker).collect();
        let mut bed = Self { workers, cores, drivers: Vec::new(), counters: Vec::new() };
        for port in [SENDER, PortId(1)] {
            let sets = PortCounterSets::new(2);
            let mut drivers = Vec::new();
            for (worker, id) in bed.workers.iter_mut().zip(0..) {
                let room = Vec::with_capacity(QUEUES_MAX);
                assert!(worker.join(port, room, Arc::clone(sets.of(WorkerId(id)))).is_ok());
                let (pair, driver) = memory_queue(256, OffloadCaps::ALL);
                let pair = Box::new(pair);
                let arrival = Arrival { port, queue: QueueId(id), of: 2, pair };
                assert!(worker.adopt(arrival).is_ok());
                drivers.push(driver);
            }
            bed.drivers.push(drivers);
            bed.counters.push(sets);
        }
        let mut sender = PortPolicy::access(0, Some(1), Vid::UNTAGGED, 0);
        sender.qos = PortQos {
            ingress,
            entitlement: CyclesPerSecond(HZ / 100 * percent),
            ..PortQos::default()
        };
        let receiver = PortPolicy::access(1, Some(1), Vid::UNTAGGED, 0).finish();
        let policies = vec![Some(Arc::new(sender.finish())), Some(Arc::new(receiver))];
        let domain = Domain { tenant: Some(1), vid: 0, members: Box::new([0, 1]), fdb_limit: 64 };
        let snapshot = Arc::new(Snapshot::new(1, policies, vec![domain], Vec::new(), 300));
        for worker in &mut bed.workers {
            worker.swap_snapshot(Arc::clone(&snapshot));
        }
        // Both workers learn the receiver's address.
        assert!(bed.drivers[1][0].send(MemoryFrame::plain(frame(1, 0xff))));
        bed
    }

    fn now(&self) -> u64 {
        self.cores.iter().map(|core| core.now().0).min().unwrap()
    }

    /// Lets `cycles` pass. For each worker, `busy` says whether the sender keeps its ring at this
    /// worker full of frames.
    fn run(&mut self, cycles: u64, busy: [bool; 2]) {
        let end = self.now() + cycles;
        while self.now() < end {
            let at = usize::from(self.cores[1].now() < self.cores[0].now());
            for (driver, _) in self.drivers[0].iter().zip(busy).filter(|(_, busy)| *busy) {
                while driver.send(MemoryFrame::plain(frame(0, 1))) {}
            }
            if self.workers[at].turn() == Turn::Idle {
                let next = self.workers[at].next_due().map_or(u64::MAX, |due| due.0);
                self.cores[at].0.advance_to(Cycles(next.min(self.now() + 2_000)));
            }
            for driver in &self.drivers[1] {
                while driver.receive().is_some() {}
            }
            while self.drivers[0][0].receive().is_some() || self.drivers[0][1].receive().is_some() {
            }
        }
    }

    fn spent(&self) -> u64 {
        self.counters[0].read().cycles
    }

    fn tokens(&self) -> i64 {
        self.workers.iter().map(|worker| worker.tokens(SENDER)).sum()
    }
}

fn frame(from: u8, to: u8) -> Vec<u8> {
    let mut bytes = vec![0x52, 0, 0, 0, 0, to, 0x52, 0, 0, 0, 0, from, 0x88, 0xb5];
    if to == 0xff {
        bytes[..6].fill(0xff);
    }
    bytes.resize(60, 7);
    bytes
}

/// Returns the cycles that the sender spent, in percent of one core.
fn share(bed: &mut Bed, ms: u64, busy: [bool; 2]) -> f64 {
    let before = bed.spent();
    bed.run(ms * MS, busy);
    100.0 * (bed.spent() - before) as f64 / (ms * MS) as f64
}

#[test]
fn two_workers_spend_one_entitlement() {
    for percent in [5, 20, 70] {
        let mut bed = Bed::new(IngressPolicy::CyclesStrict, percent);
        bed.run(20 * MS, [true, true]);
        for busy in [[true, true], [true, false], [false, true], [true, true]] {
            // Tokens that were saved while a side was idle are spent first.
            bed.run(20 * MS, busy);
            let share = share(&mut bed, 200, busy);
            let want = percent as f64;
            assert!((share / want - 1.0).abs() < 0.01, "{share} of {want}, {busy:?}");
        }
    }
}

#[test]
fn a_port_that_moves_between_workers_keeps_its_tokens() {
    let mut bed = Bed::new(IngressPolicy::CyclesStrict, 10);
    bed.run(30 * MS, [false, false]);
    let before = bed.tokens();
    assert!(before > 0);
    let Reply::Queue(Some(pair)) = bed.workers[0].serve(Request::Release(SENDER, QueueId(0)))
    else {
        panic!("it is there");
    };
    let arrival = Arrival { port: SENDER, queue: QueueId(0), of: 2, pair };
    assert!(matches!(bed.workers[1].serve(Request::Adopt(arrival)), Reply::Done));
    let kept = bed.tokens();
    assert_eq!((bed.workers[0].tokens(SENDER), kept), (0, before));
    let share = share(&mut bed, 300, [true, true]);
    assert!((share - 10.0).abs() < 0.1 + 100.0 * kept as f64 / (300 * MS) as f64, "{share}");
}
