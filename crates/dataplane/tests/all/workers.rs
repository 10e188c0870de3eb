//! The tests run two workers turn by turn in one thread. The tests check frames between ports of
//! different workers, the exchange of learned MAC addresses, and moves of ports between workers.

use std::sync::Arc;

use penstock_dataplane::counters::{PortCounterSets, PortReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_dataplane::snapshot::PortPolicy;
use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_dataplane::unit::QUEUES_MAX;
use penstock_dataplane::worker::{Arrival, Reply, Request, Turn, Worker, WorkerConfig};
use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};
use penstock_units::{BitsPerSecond, Cycles, PacketsPerSecond, PortId, QueueId, WorkerId};

use crate::common::{access, frame, join, one_network, workers};

/// A cycle counter that advances at every turn.
#[derive(Clone, Debug, Default)]
struct Ticking(VirtualCounter);

impl CycleCounter for Ticking {
    fn now(&self) -> Cycles {
        self.0.now()
    }

    fn spent(&self, stage: Stage, _: &Work) {
        if !matches!(stage, Stage::Look | Stage::Refill) {
            self.0.advance(Cycles(100));
        }
    }
}

struct Bed {
    workers: Vec<Worker<Ticking>>,
    drivers: Vec<Vec<MemoryDriver>>,
    counters: Vec<PortCounterSets>,
}

const RING: usize = 40_000;

impl Bed {
    /// Creates the workers and ports. `homes` has an entry for each port: the numbers of the
    /// workers that own the port's queue pairs.
    fn new(homes: &[&[usize]]) -> Self {
        let config =
            WorkerConfig { fdb_entries: 256, seed: 1, max_ports: 8, ..WorkerConfig::default() };
        let workers = workers(&config, &[Ticking::default(), Ticking::default()]);
        let mut bed = Self { workers, drivers: Vec::new(), counters: Vec::new() };
        for (port, homes) in (0..).zip(homes) {
            let (drivers, sets) = join(&mut bed.workers, port, homes, (RING, OffloadCaps::ALL));
            bed.drivers.push(drivers);
            bed.counters.push(sets);
        }
        bed.swap(|_| {});
        bed
    }

    /// Replaces the workers' snapshot by a snapshot of all ports, with policies that `change`
    /// modifies.
    fn swap(&mut self, change: impl Fn(&mut PortPolicy)) {
        let policy = |id| {
            let mut policy = access(id);
            change(&mut policy);
            policy
        };
        let snapshot = one_network((0..).take(self.counters.len()).map(policy));
        for worker in &mut self.workers {
            worker.swap_snapshot(Arc::clone(&snapshot));
        }
    }

    fn adopt(
        &mut self,
        worker: usize,
        port: PortId,
        queue: QueueId,
        of: usize,
        pair: Box<dyn PortQueue>,
    ) {
        assert!(self.workers[worker].adopt(Arrival { port, queue, of, pair }).is_ok());
    }

    fn send(&self, port: usize, queue: usize, frame: Vec<u8>) {
        assert!(self.drivers[port][queue].send(MemoryFrame::plain(frame)));
    }

    /// Runs turns of the two workers until the two workers are idle.
    fn settle(&mut self) {
        while (0..2).any(|w| (0..3).any(|_| self.workers[w].turn() != Turn::Idle)) {}
    }

    /// Returns the frame numbers of the frames that a port received on a queue pair.
    fn received(&self, port: usize, queue: usize) -> Vec<u32> {
        core::iter::from_fn(|| self.drivers[port][queue].receive())
            .map(|frame| u32::from_be_bytes(frame.bytes[14..18].try_into().unwrap()))
            .collect()
    }

    fn reading(&self, port: usize) -> PortReading {
        self.counters[port].read()
    }

    fn check(&self) {
        let all: Vec<PortReading> = (0..self.counters.len()).map(|p| self.reading(p)).collect();
        for (port, reading) in all.iter().enumerate() {
            assert_eq!(reading.unaccounted(), 0, "port {port}: {reading:?}");
        }
        let sum = |field: fn(&PortReading) -> u64| all.iter().map(field).sum::<u64>();
        assert_eq!(sum(|r| r.forwarded), sum(|r| r.tx_frames));
    }
}

/// Returns a frame with the number `n`.
fn numbered(from: usize, to: usize, n: u32, len: usize) -> Vec<u8> {
    let mut bytes = frame(from, to, len);
    bytes[14..18].copy_from_slice(&n.to_be_bytes());
    bytes
}

const NUMBERS: core::ops::Range<u32> = 0..200;

/// Makes all workers learn the MAC addresses of `ports`.
fn introduce(bed: &mut Bed, ports: &[usize]) {
    for &port in ports {
        bed.send(port, 0, frame(port, 0xff, 60));
    }
    bed.settle();
    for port in 0..bed.drivers.len() {
        (0..bed.drivers[port].len()).for_each(|queue| drop(bed.received(port, queue)));
    }
}

#[test]
fn frames_cross_workers_in_order_and_are_charged_to_their_sender() {
    let mut bed = Bed::new(&[&[0], &[1], &[1]]);
    introduce(&mut bed, &[0, 1]);
    let flooded = bed.reading(0).replicated;
    for n in NUMBERS {
        bed.send(0, 0, numbered(0, 1, n, 60 + 13 * n as usize));
    }
    while bed.workers[0].turn() != Turn::Idle {}
    assert_eq!(bed.reading(0).queued, 200, "between the workers");
    assert_eq!(bed.reading(0).unaccounted(), 0);
    let charged = bed.reading(0).cycles;
    bed.settle();
    assert_eq!(bed.received(1, 0), NUMBERS.collect::<Vec<_>>());
    assert!(bed.reading(0).cycles > charged, "the delivery is the sender's cost too");
    assert_eq!((bed.reading(1).cycles, bed.reading(0).queued), (charged_once(&bed), 0));
    assert_eq!(bed.reading(0).replicated, flooded, "what one worker learned the other knows");
    assert!(bed.received(2, 0).is_empty());
    bed.check();
}

/// Checks that port 1 sent exactly one frame, in one batch, and returns the cycles charged to port
/// 1.
fn charged_once(bed: &Bed) -> u64 {
    assert_eq!(bed.reading(1).rx_batches, 1);
    bed.reading(1).cycles
}

#[test]
fn a_flood_reaches_the_ports_of_all_workers_once() {
    let mut bed = Bed::new(&[&[0], &[0], &[1], &[1]]);
    bed.send(0, 0, numbered(9, 0xff, 5, 60));
    bed.settle();
    for port in 1..4 {
        assert_eq!(bed.received(port, 0), [5], "port {port}");
    }
    assert!(bed.received(0, 0).is_empty());
    assert_eq!((bed.reading(0).forwarded, bed.reading(0).replicated), (3, 2));
    bed.check();
}

#[test]
fn a_full_ring_between_workers_drops_and_both_ends_say_so() {
    let mut bed = Bed::new(&[&[0], &[1]]);
    introduce(&mut bed, &[0, 1]);
    (0..30_000).for_each(|n| bed.send(0, 0, numbered(0, 1, n, 60)));
    while bed.workers[0].turn() != Turn::Idle {}
    let full = DropReason::HandoverFull as usize;
    let dropped = bed.reading(0).drops[full];
    assert!(dropped > 20_000, "1 MiB holds 8,192 frames of two cells: {dropped}");
    assert_eq!(bed.reading(1).tx_drops[full], dropped);
    assert_eq!(bed.reading(0).unaccounted(), 0);
    bed.settle();
    let got = bed.received(1, 0);
    assert_eq!(got.len() as u64, 30_000 - dropped);
    assert!(got.is_sorted());
    bed.check();
}

#[test]
fn a_port_moves_while_frames_are_on_their_way_and_none_is_lost_or_overtaken() {
    let mut bed = Bed::new(&[&[0], &[1]]);
    introduce(&mut bed, &[0, 1]);
    let mut due = 0;
    for round in 0..6 {
        let (from, to) = (round % 2, 1 - round % 2);
        for _ in 0..100 {
            bed.send(0, 0, numbered(0, 1, due, 60));
            bed.send(1, 0, numbered(1, 0, due, 60));
            due += 1;
        }
        // Some frames are between the workers, and others wait in the rings. Then both workers are
        // held.
        bed.workers.iter_mut().for_each(|worker| _ = worker.turn());
        for _ in 0..40 {
            bed.workers.iter_mut().for_each(|worker| _ = worker.held_turn());
        }
        let request = Request::Release(PortId(0), QueueId(0));
        let Reply::Queue(Some(pair)) = bed.workers[from].serve(request) else {
            panic!("round {round}: the queue pair is not with worker {from}")
        };
        bed.adopt(to, PortId(0), QueueId(0), 1, pair);
    }
    bed.settle();
    assert_eq!(bed.received(0, 0), (0..due).collect::<Vec<_>>());
    assert_eq!(bed.received(1, 0), (0..due).collect::<Vec<_>>());
    bed.check();
}

#[test]
fn frames_that_wait_for_an_output_keep_their_turn_although_their_sender_moved() {
    let mut bed = Bed::new(&[&[0], &[0]]);
    introduce(&mut bed, &[0, 1]);
    let terms = QueueTerms {
        order: Order::FairShare,
        pacing: Pacing::Link(BitsPerSecond(10_000_000)),
        frames: 64,
        ..QueueTerms::default()
    };
    let home = QueueHome::new(terms, 8, 8);
    bed.swap(|policy| policy.queue = (policy.id == 1).then(|| Arc::clone(&home)));
    (0..20).for_each(|n| bed.send(0, 0, numbered(0, 1, n, 60)));
    while bed.reading(0).queued == 0 {
        bed.workers[0].turn();
    }
    assert_eq!(bed.reading(0).queued, 20, "one batch, and none has gone");
    let pair = bed.workers[0].release(PortId(0), QueueId(0)).unwrap();
    bed.adopt(1, PortId(0), QueueId(0), 1, pair);
    let mut received = Vec::new();
    for _ in 0..200_000 {
        bed.workers.iter_mut().for_each(|worker| {
            worker.turn();
        });
        received.extend(bed.received(1, 0));
    }
    assert_eq!(received, (0..20).collect::<Vec<_>>());
    assert_eq!((bed.reading(0).queued, bed.reading(0).dropped()), (0, 0));
    bed.check();
}

/// First frame number of the second sender in a test with two senders.
const SECOND: u32 = 1 << 20;

/// Creates two senders and an output with fair shares, which is as fast as the worker.
fn fair_bed() -> Bed {
    let mut bed = Bed::new(&[&[0], &[0], &[0]]);
    introduce(&mut bed, &[0, 1, 2]);
    let terms = QueueTerms { order: Order::FairShare, ..QueueTerms::default() };
    let home = QueueHome::new(terms, 8, 8);
    bed.swap(|policy| policy.queue = (policy.id == 2).then(|| Arc::clone(&home)));
    bed
}

/// Lets both senders send the frames `numbers` to the output, and runs some turns.
fn flood(bed: &mut Bed, numbers: core::ops::Range<u32>) {
    for n in numbers {
        bed.send(0, 0, numbered(0, 2, n, 60));
        bed.send(1, 0, numbered(1, 2, SECOND + n, 60));
    }
    for _ in 0..8 {
        bed.workers.iter_mut().for_each(|worker| _ = worker.turn());
    }
}

/// Returns the numbers of the frames that the output got from each sender.
fn from_each(bed: &Bed) -> (Vec<u32>, Vec<u32>) {
    bed.received(2, 0).into_iter().partition(|n| *n < SECOND)
}

#[test]
fn a_sender_whose_batches_pass_an_output_moves_and_no_frame_is_lost_or_overtaken() {
    let mut bed = fair_bed();
    for (round, from) in (0_u32..6).zip([0, 1].into_iter().cycle()) {
        flood(&mut bed, round * 300..(round + 1) * 300);
        // No frame is between the workers, but frames wait at the output and in the rings.
        for _ in 0..40 {
            bed.workers.iter_mut().for_each(|worker| _ = worker.held_turn());
        }
        let pair = bed.workers[from].release(PortId(0), QueueId(0)).unwrap();
        bed.adopt(1 - from, PortId(0), QueueId(0), 1, pair);
    }
    bed.settle();
    let waited = bed.reading(2).tx_waited.iter().sum::<u64>();
    assert!((200..3_000).contains(&waited), "{waited} frames waited, and others passed");
    let (first, second) = from_each(&bed);
    assert_eq!(first, (0..1_800).collect::<Vec<_>>());
    assert_eq!(second, (SECOND..SECOND + 1_800).collect::<Vec<_>>());
    assert_eq!((bed.reading(0).dropped(), bed.reading(1).dropped()), (0, 0));
    bed.check();
}

#[test]
fn a_sender_that_leaves_takes_its_turns_at_an_output_with_it() {
    let mut bed = fair_bed();
    flood(&mut bed, 0..500);
    for worker in &mut bed.workers {
        drop(worker.detach(PortId(0)));
    }
    bed.settle();
    let (first, second) = from_each(&bed);
    assert!(first.len() < 500, "some frames were in the ring or waited");
    assert_eq!(first, (0..).take(first.len()).collect::<Vec<_>>());
    assert_eq!(second, (SECOND..SECOND + 500).collect::<Vec<_>>());
    // Another port gets the number of the port that left.
    (bed.drivers[0], bed.counters[0]) = join(&mut bed.workers, 0, &[0], (RING, OffloadCaps::ALL));
    flood(&mut bed, 500..1_000);
    bed.settle();
    let (first, second) = from_each(&bed);
    assert_eq!(first, (500..1_000).collect::<Vec<_>>());
    assert_eq!(second, (SECOND + 500..SECOND + 1_000).collect::<Vec<_>>());
    assert_eq!((bed.reading(0).dropped(), bed.reading(0).unaccounted()), (0, 0));
}

#[test]
fn queue_pairs_of_one_port_may_have_two_owners_and_each_worker_uses_its_own() {
    let mut bed = Bed::new(&[&[0], &[1], &[0, 1]]);
    introduce(&mut bed, &[0, 1, 2]);
    for n in NUMBERS {
        bed.send(0, 0, numbered(0, 2, n, 60));
        bed.send(1, 0, numbered(1, 2, n, 60));
    }
    bed.settle();
    let all: Vec<u32> = NUMBERS.collect();
    assert_eq!((bed.received(2, 0), bed.received(2, 1)), (all.clone(), all));
    let handed: u64 = bed.workers.iter().map(|w| w.counters().taken_over.get()).sum();
    let greetings = 6;
    assert!(handed <= greetings, "none but the greetings crossed: {handed}");
    bed.check();
}

#[test]
fn frames_for_a_pair_of_another_worker_are_charged_to_the_limits_once() {
    let mut bed = Bed::new(&[&[0], &[0, 0, 1]]);
    introduce(&mut bed, &[0, 1]);
    let count = NUMBERS.len() as u64;
    // Each limit passes all frames once, but not twice, and hardly refills meanwhile.
    let limit = || {
        let depth = u32::try_from(count + count / 2).unwrap();
        let frames = Some((PacketsPerSecond(1), depth));
        let terms = Terms { bytes: None, frames, per_frame: 4, waits: false };
        Arc::new(EgressPolicer::new(Meter::new(terms), None, Sharing::Strict))
    };
    let (sends, receives) = (limit(), limit());
    bed.swap(|policy| match policy.id {
        0 => policy.tenant_policer = Some(Arc::clone(&sends)),
        _ => (policy.tenant, policy.egress_policer) = (None, Some(Arc::clone(&receives))),
    });
    (0..2).for_each(|pair| bed.drivers[1][pair].set_up(false));
    bed.settle();
    for n in NUMBERS {
        bed.send(0, 0, numbered(0, 1, n, 60));
    }
    bed.settle();
    assert_eq!(bed.received(1, 2), NUMBERS.collect::<Vec<u32>>());
    assert_eq!(bed.reading(0).drops[DropReason::SendLimit as usize], 0);
    bed.check();
}

#[test]
fn requests_that_make_no_sense_are_refused_and_give_back_what_they_lent() {
    let mut bed = Bed::new(&[&[0], &[1]]);
    let pair = || -> Box<dyn PortQueue> { Box::new(memory_queue(1, OffloadCaps::ALL).0) };
    let arrival = |port, queue, of| Arrival { port: PortId(port), queue, of, pair: pair() };
    let worker = &mut bed.workers[0];
    assert!(worker.adopt(arrival(0, QueueId(0), 1)).is_err(), "taken");
    assert!(worker.adopt(arrival(1, QueueId(1), 1)).is_err(), "no such place");
    assert!(worker.adopt(arrival(5, QueueId(0), 1)).is_err(), "unknown port");
    assert!(worker.adopt(arrival(0, QueueId(1), 9)).is_err(), "too many");
    assert!(worker.release(PortId(1), QueueId(0)).is_none(), "the other's");
    assert!(worker.release(PortId(99), QueueId(0)).is_none());
    let set = Arc::clone(bed.counters[0].of(WorkerId(0)));
    assert!(worker.join(PortId(0), Vec::with_capacity(QUEUES_MAX), set).is_err(), "known");
}
