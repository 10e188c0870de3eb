//! A port sends to two outputs with queues. If too many of the port's frames wait at one output,
//! the worker stops polling the port, even if the other output has no backlog. The test checks that
//! the switch loses no frame of a held-back port.

use std::sync::Arc;

use penstock_dataplane::counters::{PortCounterSets, PortReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::peers::Mesh;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_dataplane::snapshot::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::unit::QUEUES_MAX;
use penstock_dataplane::worker::{Arrival, Request, Turn, Worker, WorkerConfig};
use penstock_qos::fair_share::Bound;
use penstock_units::{BitsPerSecond, Cycles, Nanos, PortId, QueueId, TscRate, Vid, WorkerId};

use crate::common;

const HZ: u64 = 1_000_000_000;
const SLOW: u8 = 0;
const FAST: u8 = 1;
const BOTH: u8 = 2;
const OTHER: u8 = 3;

/// Virtual core on which each stage takes 50 cycles per frame.
type Core = common::Core<50>;

struct Bed {
    workers: Vec<Worker<Core>>,
    cores: Vec<Core>,
    drivers: Vec<MemoryDriver>,
    counters: Vec<PortCounterSets>,
}

impl Bed {
    /// Creates a test bed with four ports. `home` gives the worker of each port. The first two
    /// ports have output queues for links of 10 Mbit/s and 1 Gbit/s.
    fn new(workers: u16, home: fn(u8) -> usize) -> Self {
        let mesh = Mesh::new(workers, 4);
        let cores: Vec<_> = (0..workers).map(|_| Core::default()).collect();
        let worker = |((id, peers), core): ((u16, _), &Core)| {
            let tsc = TscRate::from_hz(HZ);
            let config =
                WorkerConfig { id: WorkerId(id), tsc, max_ports: 4, ..WorkerConfig::default() };
            Worker::new(&config, core.clone(), None).with_peers(peers)
        };
        let workers = (0..).zip(mesh.peers).zip(&cores).map(worker).collect::<Vec<_>>();
        let mut bed = Self { workers, cores, drivers: Vec::new(), counters: Vec::new() };
        let mut policies = Vec::new();
        for port in [SLOW, FAST, BOTH, OTHER] {
            let id = PortId(port.into());
            let set = PortCounterSets::new(bed.workers.len());
            for (worker, at) in bed.workers.iter_mut().zip(0..) {
                let counters = Arc::clone(set.of(WorkerId(at)));
                assert!(worker.join(id, Vec::with_capacity(QUEUES_MAX), counters).is_ok());
            }
            let (pair, driver) = memory_queue(256, OffloadCaps::ALL);
            let arrival = Arrival { port: id, queue: QueueId(0), of: 1, pair: Box::new(pair) };
            assert!(bed.workers[home(port)].adopt(arrival).is_ok());
            bed.drivers.push(driver);
            bed.counters.push(set);
            let mut policy = PortPolicy::access(port.into(), Some(1), Vid::UNTAGGED, 0);
            if port == SLOW || port == FAST {
                let link = if port == SLOW { 10_000_000 } else { 1_000_000_000 };
                policy.queue = Some(QueueHome::new(terms(link), 4, 4));
            }
            policies.push(Some(Arc::new(policy.finish())));
        }
        let members = Box::new([0, 1, 2, 3]);
        let domain = Domain { tenant: Some(1), vid: 0, members, fdb_limit: 64 };
        let snapshot = Arc::new(Snapshot::new(1, policies, vec![domain], Vec::new(), 300));
        for worker in &mut bed.workers {
            worker.swap_snapshot(Arc::clone(&snapshot));
        }
        for port in [SLOW, FAST] {
            assert!(bed.drivers[usize::from(port)].send(frame(port, 0xff)));
        }
        bed.run(5_000_000, |_| {});
        bed
    }

    fn run(&mut self, cycles: u64, offer: impl Fn(&Self)) {
        let now = |bed: &Self| bed.cores.iter().map(|core| core.now().0).min().unwrap();
        let end = now(self) + cycles;
        while now(self) < end {
            offer(self);
            let at = (0..self.cores.len()).min_by_key(|&at| self.cores[at].now().0).unwrap();
            if self.workers[at].turn() == Turn::Idle {
                let next = self.workers[at].next_due().map_or(u64::MAX, |due| due.0);
                self.cores[at].0.advance_to(Cycles(next.min(now(self) + 2_000)));
            }
            for driver in &self.drivers {
                while driver.receive().is_some() {}
            }
        }
    }

    fn port(&self, port: u8) -> PortReading {
        self.counters[usize::from(port)].read()
    }
}

fn terms(link: u64) -> QueueTerms {
    QueueTerms {
        held_bytes: 262_144,
        order: Order::FairShare,
        pacing: Pacing::Link(BitsPerSecond(link)),
        bound: Bound::default(),
        frames: 4_096,
    }
}

fn frame(from: u8, to: u8) -> MemoryFrame {
    let mut bytes = vec![0x52, 0, 0, 0, 0, to, 0x52, 0, 0, 0, 0, from, 0x88, 0xb5];
    if to == 0xff {
        bytes[..6].fill(0xff);
    }
    bytes.resize(1_000, 7);
    MemoryFrame::plain(bytes)
}

/// One port sends alternately to both outputs as fast as it can, and another port fills the fast
/// output.
fn flood(bed: &Bed) {
    let driver = &bed.drivers[usize::from(BOTH)];
    while driver.unsent() < 250 {
        assert!(driver.send(frame(BOTH, SLOW)) && driver.send(frame(BOTH, FAST)));
    }
    while bed.drivers[usize::from(OTHER)].send(frame(OTHER, FAST)) {}
}

fn nothing_is_lost(workers: u16, home: fn(u8) -> usize) {
    let mut bed = Bed::new(workers, home);
    let before = bed.port(FAST).tx_frames;
    bed.run(HZ / 2, flood);
    let port = bed.port(BOTH);
    assert_eq!(port.drops[DropReason::QueueFull as usize], 0, "{port:?}");
    assert_eq!((port.dropped(), port.unaccounted()), (0, 0), "{port:?}");
    assert!(port.held_back > 10 && port.forwarded > 500, "{port:?}");
    // The fast link (1 Gbit/s) is full for the whole half second.
    let sent = bed.port(FAST).tx_frames - before;
    assert!(sent > 1_000_000_000 / 2 / 8 / 1_024 * 98 / 100, "{sent}");
}

#[test]
fn a_sender_that_fills_one_of_two_outputs_waits_until_it_has_room() {
    nothing_is_lost(1, |_| 0);
}

#[test]
fn a_sender_waits_also_if_the_outputs_belong_to_two_workers() {
    nothing_is_lost(2, |port| usize::from(port == SLOW));
    nothing_is_lost(3, |port| if port == SLOW || port == FAST { port.into() } else { 2 });
}

/// Number of frames below the limits of both outputs, so that nothing holds back their sender.
const FEW: u64 = 10;

/// Sends [`FEW`] frames to an output at once, and lets the worker take them all. Returns the number
/// of frames that wait then.
fn fill(bed: &mut Bed, output: u8) -> u64 {
    for _ in 0..FEW {
        assert!(bed.drivers[usize::from(BOTH)].send(frame(BOTH, output)));
    }
    for _ in 0..1_000 {
        if bed.drivers[usize::from(BOTH)].unsent() == 0 {
            break;
        }
        bed.workers[0].turn();
    }
    assert_eq!(bed.drivers[usize::from(BOTH)].unsent(), 0);
    bed.port(output).tx_queued
}

#[test]
fn a_held_worker_sends_what_waits_at_its_outputs() {
    let mut bed = Bed::new(1, |_| 0);
    let before = bed.port(FAST).tx_frames;
    assert!(fill(&mut bed, FAST) > 0, "the link is slower than the worker");
    bed.workers[0].serve(Request::SendWaiting(Nanos::from_millis(5)));
    assert_eq!((bed.port(FAST).tx_queued, bed.port(FAST).tx_frames), (0, before + FEW));
}

#[test]
fn a_held_worker_neither_exceeds_a_link_nor_sends_for_long() {
    let mut bed = Bed::new(1, |_| 0);
    let waiting = fill(&mut bed, SLOW);
    let (before, begin) = (bed.port(SLOW).tx_frames, bed.cores[0].now());
    bed.workers[0].serve(Request::SendWaiting(Nanos::from_millis(5)));
    // 10 Mbit/s are about six of these frames in 5 ms.
    let sent = bed.port(SLOW).tx_frames - before;
    assert!((4..=8).contains(&sent), "{sent} frames");
    assert_eq!(bed.port(SLOW).tx_queued, waiting - sent);
    let took = bed.cores[0].now().saturating_sub(begin).0;
    assert!((4_900_000..6_000_000).contains(&took), "{took} ns");
}
