//! A port sends to two outputs with queues. If too many of the port's frames wait at one output,
//! the worker stops polling the port, even if the other output has no backlog. The test checks that
//! the switch loses no frame of a held-back port.

use std::sync::Arc;

use penstock_dataplane::counters::{PortCounterSets, PortReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame};
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Request, Turn, Worker, WorkerConfig};
use penstock_units::{BitsPerSecond, Cycles, Nanos};

use crate::common::{self, access, frame, join, one_network, workers};

const HZ: u64 = 1_000_000_000;
const SLOW: usize = 0;
const FAST: usize = 1;
const BOTH: usize = 2;
const OTHER: usize = 3;

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
    fn new(count: usize, home: fn(usize) -> usize) -> Self {
        let config = WorkerConfig { max_ports: 4, ..WorkerConfig::default() };
        let cores: Vec<_> = (0..count).map(|_| Core::default()).collect();
        let mut workers = workers(&config, &cores);
        let (mut drivers, mut counters, mut policies) = (Vec::new(), Vec::new(), Vec::new());
        for (id, port) in (0..).zip([SLOW, FAST, BOTH, OTHER]) {
            let (driver, set) = join(&mut workers, id, &[home(port)], (256, OffloadCaps::ALL));
            drivers.extend(driver);
            counters.push(set);
            let mut policy = access(id);
            if port == SLOW || port == FAST {
                let link = if port == SLOW { 10_000_000 } else { 1_000_000_000 };
                policy.queue = Some(QueueHome::new(terms(link), 4, 4));
            }
            policies.push(policy);
        }
        let snapshot = one_network(policies);
        for worker in &mut workers {
            worker.swap_snapshot(Arc::clone(&snapshot));
        }
        let mut bed = Self { workers, cores, drivers, counters };
        for port in [SLOW, FAST] {
            assert!(bed.drivers[port].send(large(port, 0xff)));
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

    fn port(&self, port: usize) -> PortReading {
        self.counters[port].read()
    }
}

fn terms(link: u64) -> QueueTerms {
    QueueTerms {
        order: Order::FairShare,
        pacing: Pacing::Link(BitsPerSecond(link)),
        ..QueueTerms::default()
    }
}

/// Returns a frame of 1,000 bytes. See [`frame`].
fn large(from: usize, to: usize) -> MemoryFrame {
    MemoryFrame::plain(frame(from, to, 1_000))
}

/// One port sends alternately to both outputs as fast as it can, and another port fills the fast
/// output.
fn flood(bed: &Bed) {
    let driver = &bed.drivers[BOTH];
    while driver.unsent() < 250 {
        assert!(driver.send(large(BOTH, SLOW)) && driver.send(large(BOTH, FAST)));
    }
    while bed.drivers[OTHER].send(large(OTHER, FAST)) {}
}

fn nothing_is_lost(workers: usize, home: fn(usize) -> usize) {
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
    nothing_is_lost(3, |port| if port == SLOW || port == FAST { port } else { 2 });
}

/// Number of frames below the limits of both outputs, so that nothing holds back their sender.
const FEW: u64 = 10;

/// Sends [`FEW`] frames to an output at once, and lets the worker take them all. Returns the number
/// of frames that wait then.
fn fill(bed: &mut Bed, output: usize) -> u64 {
    for _ in 0..FEW {
        assert!(bed.drivers[BOTH].send(large(BOTH, output)));
    }
    for _ in 0..1_000 {
        if bed.drivers[BOTH].unsent() == 0 {
            break;
        }
        bed.workers[0].turn();
    }
    assert_eq!(bed.drivers[BOTH].unsent(), 0);
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
