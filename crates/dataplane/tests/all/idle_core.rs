//! A core does not idle while a port has frames. The test also checks that a port without purchased
//! cycles gets turns, and that no port pays for a pause.

use std::sync::Arc;

use penstock_dataplane::batch::Batch;
use penstock_dataplane::counters::{PortCounters, WorkerReading};
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::memory_queue::{
    MemoryDriver, MemoryFrame, MemoryQueue, memory_queue,
};
use penstock_dataplane::port::{Pending, PortQueue, TxOutcome};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{IngressPolicy, PortQos, Snapshot};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_units::{Cycles, CyclesPerSecond, PortId, Priority};

use crate::common::{self, access, frame, one_network};

const HZ: u64 = 1_000_000_000;
const MS: u64 = HZ / 1_000;
const INTERVAL: u64 = HZ / 20_000;

/// Virtual core on which each of the three stages of a batch takes 100 cycles per frame. A full
/// batch of 32 frames takes 9,600 cycles.
type Core = common::Core<100>;

/// A queue pair for which only a poll shows whether frames wait, like a TAP's queue pair.
pub(crate) struct Polled(pub(crate) MemoryQueue);

impl PortQueue for Polled {
    fn pending(&mut self, _now: Cycles) -> Pending {
        Pending::Unknown
    }

    fn rx_burst(&mut self, batch: &mut Batch) {
        self.0.rx_burst(batch);
    }

    fn tx_ready(&self) -> bool {
        self.0.tx_ready()
    }

    fn caps(&self) -> OffloadCaps {
        self.0.caps()
    }

    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        self.0.tx_burst(batch, frames)
    }
}

#[derive(Clone, Copy)]
struct Sender {
    qos: PortQos,
    polled: bool,
    /// Number of additional queue pairs of the sending port, which never receive a frame.
    silent: usize,
}

fn sender(ingress: IngressPolicy, percent: u64, class: u64) -> Sender {
    let qos = PortQos {
        ingress,
        entitlement: CyclesPerSecond(HZ / 100 * percent),
        priority: Priority::new(class).unwrap(),
        ..PortQos::default()
    };
    Sender { qos, polled: false, silent: 0 }
}

/// Test bed with a worker, senders, and a receiver behind the last port.
struct Bed {
    worker: Worker<Core>,
    core: Core,
    drivers: Vec<MemoryDriver>,
    counters: Vec<Arc<PortCounters>>,
}

impl Bed {
    fn new(schedule: ScheduleKind, senders: &[Sender]) -> Self {
        let core = Core::default();
        let ports = senders.len() + 1;
        let config = WorkerConfig { schedule, max_ports: ports, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, core.clone(), None);
        let (mut drivers, mut counters) = (Vec::new(), Vec::new());
        let mut policies = Vec::new();
        for port in 0..u16::try_from(ports).unwrap() {
            let (pair, driver) = memory_queue(256, OffloadCaps::ALL);
            let polled = senders.get(usize::from(port)).is_some_and(|sender| sender.polled);
            let pair: Box<dyn PortQueue> =
                if polled { Box::new(Polled(pair)) } else { Box::new(pair) };
            let set = Arc::new(PortCounters::default());
            let silent = senders.get(usize::from(port)).map_or(0, |sender| sender.silent);
            let mut pairs = vec![pair];
            pairs.extend((0..silent).map(|_| -> Box<dyn PortQueue> {
                Box::new(memory_queue(256, OffloadCaps::ALL).0)
            }));
            assert!(worker.attach(PortId(port), pairs, Arc::clone(&set)).is_ok());
            drivers.push(driver);
            counters.push(set);
            let mut policy = access(port);
            policy.qos = senders.get(usize::from(port)).map(|s| s.qos).unwrap_or_default();
            policies.push(policy);
        }
        worker.swap_snapshot(one_network(policies));
        let mut bed = Self { worker, core, drivers, counters };
        // From here on the switch knows where the receiver is.
        let last = bed.drivers.len() - 1;
        assert!(bed.drivers[last].send(MemoryFrame::plain(frame(last, 0xff, 60))));
        bed.run(MS, &[]);
        bed
    }

    fn now(&self) -> u64 {
        self.core.now().0
    }

    fn fill(&self, port: usize) {
        let to = self.drivers.len() - 1;
        while self.drivers[port].send(MemoryFrame::plain(frame(port, to, 60))) {}
    }

    /// Runs the worker for `cycles` cycles, and keeps the transmit rings of the ports in `busy`
    /// full. Returns the increase of the worker's counters during the run.
    fn run(&mut self, cycles: u64, busy: &[usize]) -> WorkerReading {
        let before = self.worker.counters().read();
        let end = self.now() + cycles;
        while self.now() < end {
            busy.iter().for_each(|port| self.fill(*port));
            if self.worker.turn() == Turn::Idle {
                // Until then nothing happens outside of the worker.
                let next = self.worker.next_due().map_or(self.now() + 1_000, |due| due.0);
                self.core.0.advance_to(Cycles(next.min(end)));
                self.worker.rested();
            }
            self.drivers.iter().for_each(|driver| while driver.receive().is_some() {});
        }
        self.worker.counters().read().since(&before)
    }

    /// Runs the worker for `ms` milliseconds with full rings at the senders in `busy`, and returns
    /// each sender's share of the core's cycles in percent.
    fn shares(&mut self, ms: u64, busy: &[usize]) -> Vec<f64> {
        let spent = |bed: &Self| bed.counters.iter().map(|c| c.cycles.get()).collect::<Vec<_>>();
        let (before, from) = (spent(self), self.now());
        self.run(ms * MS, busy);
        let passed = (self.now() - from) as f64;
        let share = |(now, then): (u64, u64)| 100.0 * (now - then) as f64 / passed;
        spent(self).into_iter().zip(before).map(share).collect()
    }
}

use IngressPolicy::{CyclesMinmax, CyclesStrict};

const BOTH: [ScheduleKind; 2] = [ScheduleKind::Hbs, ScheduleKind::RoundRobin];

/// Sixteen ports have emptied their cycle buckets. Then all ports except one stop sending. While
/// the buckets of the fifteen idle ports fill, which takes milliseconds, the sending port gets the
/// whole core.
#[test]
fn a_core_never_stands_still_while_a_minmax_port_has_frames() {
    for schedule in BOTH {
        let senders = vec![sender(CyclesMinmax, 5, 3); 16];
        let mut bed = Bed::new(schedule, &senders);
        let all: Vec<usize> = (0..16).collect();
        let idle = |grown: &WorkerReading| grown.cycles_idle;
        assert!(idle(&bed.run(30 * MS, &all)) <= INTERVAL, "all sixteen");
        // The frames that the other ports left in their rings are served first.
        bed.run(2 * MS, &[0]);
        for alone in [0, 7] {
            let grown = bed.run(20 * MS, &[alone]);
            assert!(idle(&grown) <= INTERVAL, "{schedule:?}: idle for {} cycles", idle(&grown));
            assert!(grown.cycles_charged >= 20 * MS - INTERVAL, "{grown:?}");
            bed.run(20 * MS, &all);
        }
        let shares = bed.shares(200, &all);
        let near = |share: &f64| (share - 6.25).abs() < 0.1;
        assert!(shares[..16].iter().all(near), "lent time changed nothing: {shares:?}");
    }
}

#[test]
fn a_strict_port_gets_no_spare_cycles() {
    for schedule in BOTH {
        let mut bed =
            Bed::new(schedule, &[sender(CyclesStrict, 30, 1), sender(CyclesMinmax, 9, 1)]);
        bed.run(20 * MS, &[0]);
        let shares = bed.shares(200, &[0]);
        assert!((shares[0] - 30.0).abs() < 0.5, "{shares:?}");
        let grown = bed.run(20 * MS, &[0]);
        assert_eq!((grown.lent_batches, grown.cycles_lent), (0, 0));
    }
}

/// One port of the highest class floods the switch and uses spare cycles. Another port in the
/// lowest class purchased no cycles, and the worker can learn only by polling whether this port has
/// frames.
#[test]
fn a_port_that_can_only_be_polled_gets_its_floor_beside_a_flood() {
    // The receiver also has a guarantee. At the start the flood's bucket is full. Emptying it takes
    // a while if nearly all cycles are sold.
    for (sold, settled, floor) in [(50, 100, 1.0), (90, 100, 1.0), (99, 400, 0.5)] {
        let polled = Sender { polled: true, ..sender(IngressPolicy::None, 0, 8) };
        let mut bed = Bed::new(ScheduleKind::Hbs, &[sender(CyclesMinmax, sold, 1), polled]);
        bed.run(settled * MS, &[0, 1]);
        let shares = bed.shares(500, &[0, 1]);
        assert!(shares[1] >= 0.95 * floor, "{shares:?} with {sold} % sold");
        assert!(shares[0] >= sold as f64 - 0.2, "and that is all: {shares:?}");
        assert!(shares.iter().sum::<f64>() > 99.0, "{shares:?}");
        // The port stops sending, and nothing is reserved for it.
        bed.run(20 * MS, &[0]);
        let shares = bed.shares(100, &[0]);
        assert!(shares[0] > 97.0, "{shares:?}");
    }
}

/// A port of the last class has two queue pairs, of which one never has a frame. Polling a queue
/// pair that never has frames takes no cycles from the guarantee of its port's other queue pair.
#[test]
fn a_silent_queue_pair_takes_nothing_from_its_port() {
    for silent in [0, 1, 3] {
        let late = Sender { silent, ..sender(CyclesMinmax, 20, 8) };
        let mut bed = Bed::new(ScheduleKind::Hbs, &[sender(CyclesMinmax, 60, 1), late]);
        bed.run(100 * MS, &[0, 1]);
        let shares = bed.shares(200, &[0, 1]);
        assert!((shares[1] - 30.0).abs() < 0.5, "{silent} silent: {shares:?}");
    }
}

/// A port that the worker must poll gets the cycles that the port purchased.
#[test]
fn a_port_that_can_only_be_polled_gets_what_it_bought() {
    let polled = Sender { polled: true, ..sender(CyclesMinmax, 20, 8) };
    let mut bed = Bed::new(ScheduleKind::Hbs, &[sender(CyclesMinmax, 60, 1), polled]);
    bed.run(100 * MS, &[0, 1]);
    let shares = bed.shares(200, &[0, 1]);
    assert!((shares[0] - 70.0).abs() < 0.5 && (shares[1] - 30.0).abs() < 0.5, "{shares:?}");
}

/// The check of tokens before a batch does not delay a port without purchased cycles. If no port
/// bought cycles, a port without purchased cycles has no bucket.
#[test]
fn a_port_without_entitlement_is_never_held() {
    let free = sender(IngressPolicy::None, 0, 1);
    let mut bed = Bed::new(ScheduleKind::Hbs, &[free, sender(CyclesStrict, 10, 8)]);
    let shares = bed.shares(50, &[0]);
    assert!(shares[0] > 98.0, "{shares:?}");
    let reading = bed.counters[0].read();
    assert_eq!(reading.throttled, 0);
    assert!(reading.cycles_entitled > 0);
    let mut bed = Bed::new(ScheduleKind::Hbs, &[free, free]);
    bed.run(5 * MS, &[0]);
    assert_eq!(bed.worker.counters().read().refills, 0);
}

/// A guest's TCP keeps few segments in its ring (TCP small queues): it sends the next ones when the
/// switch has taken the last ones. Each batch empties the ring, and the next frames arrive while
/// the port has no tokens. They wait for cycles.
#[test]
fn frames_that_arrive_without_tokens_wait_for_cycles() {
    // A batch of 1200 cycles takes 120 us, of which the guest needs 10 to 20 us. The switch sees
    // the frames at one of the next refills, every 50 us.
    for (schedule, least) in BOTH.into_iter().zip([0.5, 0.1]) {
        let waited = waited_for_cycles(Bed::new(schedule, &[sender(CyclesStrict, 1, 8); 2]));
        assert!((least..0.95).contains(&waited), "{schedule:?}: {waited}");
    }
}

/// Returns the part of the time in which the frames of the first of two ports waited for cycles.
fn waited_for_cycles(mut bed: Bed) -> f64 {
    let step = |bed: &mut Bed| {
        let taken = bed.counters[0].rx_frames.get();
        (0..4).for_each(|_| assert!(bed.drivers[0].send(MemoryFrame::plain(frame(0, 2, 60)))));
        while bed.counters[0].rx_frames.get() < taken + 4 {
            bed.run(MS / 100, &[]);
        }
        // The guest takes 10 us to send again.
        bed.run(MS / 100, &[]);
    };
    // The full bucket lasts for some batches.
    (0..100).for_each(|_| step(&mut bed));
    let (from, before) = (bed.now(), bed.counters.iter().map(|c| c.read()).collect::<Vec<_>>());
    (0..200).for_each(|_| step(&mut bed));
    let passed = (bed.now() - from) as f64;
    let grown: Vec<_> = bed.counters.iter().zip(before).map(|(c, b)| c.read().since(&b)).collect();
    assert_eq!(grown[1].throttled, 0, "a port without frames waits for nothing");
    assert_eq!(grown[0].kept_waiting, 0, "no other port had the core");
    grown[0].throttled as f64 / passed
}

/// After a sleep or a control request, the next batch is charged only its own cost.
#[test]
fn a_pause_is_charged_to_no_port() {
    let mut bed = Bed::new(ScheduleKind::Hbs, &[sender(CyclesMinmax, 30, 1)]);
    let batch = |bed: &mut Bed| {
        bed.fill(0);
        let before = bed.counters[0].cycles.get();
        assert_eq!(bed.worker.turn(), Turn::Busy(32));
        bed.counters[0].cycles.get() - before
    };
    let usual = batch(&mut bed);
    assert_eq!(usual, 9_600);
    let before = bed.worker.counters().read();
    bed.core.0.advance(Cycles(3 * MS));
    bed.worker.rested();
    assert_eq!(batch(&mut bed), usual);
    bed.core.0.advance(Cycles(70_000));
    let snapshot = Arc::new(Snapshot::default());
    let _empty = bed.worker.serve(penstock_dataplane::worker::Request::Swap(snapshot));
    let grown = bed.worker.counters().read().since(&before);
    assert_eq!((grown.cycles_idle, grown.cycles_host), (3 * MS, 70_000));
}
