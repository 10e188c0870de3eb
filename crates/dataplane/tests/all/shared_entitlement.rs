//! The queue pairs of one port are on two workers. The queue pairs together spend the port's
//! entitlement, and tokens are not lost if a queue pair moves to another worker.

use std::sync::Arc;

use penstock_dataplane::counters::PortCounterSets;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Arrival, Reply, Request, Turn, Worker, WorkerConfig};
use penstock_units::{Cycles, CyclesPerSecond, PortId, QueueId};

use crate::common::{self, access, frame, join, one_network, workers};

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
        let cores = vec![Core::default(), Core::default()];
        let schedule = ScheduleKind::Hbs;
        let config = WorkerConfig { schedule, max_ports: 4, ..WorkerConfig::default() };
        let mut workers = workers(&config, &cores);
        let ports = [0, 1].map(|port| join(&mut workers, port, &[0, 1], (256, OffloadCaps::ALL)));
        let (drivers, counters) = ports.into_iter().unzip();
        let mut sender = access(0);
        sender.qos = PortQos {
            ingress,
            entitlement: CyclesPerSecond(HZ / 100 * percent),
            ..PortQos::default()
        };
        let snapshot = one_network([sender, access(1)]);
        for worker in &mut workers {
            worker.swap_snapshot(Arc::clone(&snapshot));
        }
        let bed = Self { workers, cores, drivers, counters };
        // Both workers learn the receiver's address.
        assert!(bed.drivers[1][0].send(MemoryFrame::plain(frame(1, 0xff, 60))));
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
                while driver.send(MemoryFrame::plain(frame(0, 1, 60))) {}
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
