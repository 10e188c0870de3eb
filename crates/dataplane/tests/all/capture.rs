//! Captures at the ports of a worker: the captured bytes, verdicts and reasons, sampling above the
//! budget, and who pays.

use std::sync::Arc;

use penstock_dataplane::capture::{
    BUFFER_BYTES, CAPTURES_MAX, CaptureTerms, Direction, Fate, Filter, Tally, records,
};
use penstock_dataplane::counters::{PortCounters, PortReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::ingress_policer::IngressPolicer;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame};
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_dataplane::snapshot::{Actions, Match, PortPolicy, Rule, RuleTable, RuleTables, Then};
use penstock_dataplane::worker::{Reply, Request, Turn, Worker, WorkerConfig};
use penstock_qos::policer::{Limit, Policer, Spec};
use penstock_units::{BitsPerSecond, Cycles, PortId};

use crate::common::{self, access, attach, frame, join, one_network, workers};

type Core = common::Core<50>;

/// A captured frame: its direction, fate, other port and bytes.
type Taken = (Direction, Fate, Option<u16>, Vec<u8>);

const ID: u64 = 7;
const RING: usize = 64;

struct Bed {
    worker: Worker<Core>,
    core: Core,
    drivers: Vec<MemoryDriver>,
    counters: Vec<Arc<PortCounters>>,
}

impl Bed {
    /// Three ports of one network: 0, 1 and 2.
    fn new(change: impl Fn(&mut PortPolicy)) -> Self {
        let core = Core::default();
        let config = WorkerConfig { max_ports: 4, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, core.clone(), None);
        let ports = [0, 1, 2].map(|port| attach(&mut worker, port, RING));
        worker.swap_snapshot(one_network([0, 1, 2].map(|port| {
            let mut policy = access(port);
            change(&mut policy);
            policy
        })));
        let (drivers, counters) = ports.into_iter().unzip();
        let mut bed = Self { worker, core, drivers, counters };
        for port in 0..3 {
            bed.send(port, [frame(port, 0xff, 60)]);
        }
        bed.run();
        bed
    }

    fn run(&mut self) {
        while matches!(self.worker.turn(), Turn::Busy(_)) {}
    }

    fn capture(&mut self, change: impl Fn(&mut CaptureTerms)) {
        begin(&mut self.worker, change);
    }

    fn taken(&mut self) -> (Vec<Taken>, Tally) {
        taken(&mut self.worker)
    }

    fn send(&self, from: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        for bytes in frames {
            assert!(self.drivers[from].send(MemoryFrame::plain(bytes)));
        }
    }

    fn port(&self, port: usize) -> PortReading {
        self.counters[port].read()
    }
}

fn begin(worker: &mut Worker<Core>, change: impl Fn(&mut CaptureTerms)) {
    let mut terms = Box::new(CaptureTerms {
        id: ID,
        port: PortId(0),
        received: true,
        sent: true,
        drops: false,
        filter: None,
        snap_len: u32::MAX,
        clock: || Cycles::ZERO,
    });
    change(&mut terms);
    let request = Request::Capture(terms, Vec::with_capacity(BUFFER_BYTES));
    assert!(matches!(worker.serve(request), Reply::Done));
}

fn taken(worker: &mut Worker<Core>) -> (Vec<Taken>, Tally) {
    let next = Request::CaptureNext(ID, Vec::with_capacity(BUFFER_BYTES));
    let Reply::Captured(buffer, Some(tally)) = worker.serve(next) else {
        panic!("the capture has ended")
    };
    let record = |r: penstock_dataplane::capture::Record<'_>| {
        (r.direction, r.fate, r.other.map(|port| port.0), r.bytes.to_vec())
    };
    (records(&buffer).map(record).collect(), tally)
}

/// Two workers: port 0 is on the first worker, and port 1 is on the second one.
struct Two {
    workers: Vec<Worker<Core>>,
    drivers: Vec<MemoryDriver>,
}

impl Two {
    fn new() -> Self {
        let config = WorkerConfig { max_ports: 4, ..WorkerConfig::default() };
        let mut workers = workers(&config, &[Core::default(), Core::default()]);
        let queues = (RING, OffloadCaps::ALL);
        let drivers =
            (0..2_u16).flat_map(|port| join(&mut workers, port, &[port.into()], queues).0);
        let drivers = drivers.collect();
        let snapshot = one_network([access(0), access(1)]);
        for worker in &mut workers {
            worker.swap_snapshot(Arc::clone(&snapshot));
        }
        let mut two = Self { workers, drivers };
        for id in 0..2 {
            two.send(id, 1);
        }
        while two.drivers.iter().any(|driver| driver.receive().is_some()) {}
        two
    }

    /// Sends frames of port `from` to the other port.
    fn send(&mut self, from: usize, frames: usize) {
        for _ in 0..frames {
            assert!(self.drivers[from].send(MemoryFrame::plain(frame(from, 1 - from, 60))));
        }
        for _ in 0..20 {
            for worker in &mut self.workers {
                while matches!(worker.turn(), Turn::Busy(_)) {}
            }
        }
    }
}

const IN: Direction = Direction::Received;
const OUT: Direction = Direction::Sent;

#[test]
fn what_the_port_sends_and_receives_is_captured_byte_for_byte() {
    let mut bed = Bed::new(|_| {});
    bed.capture(|_| {});
    let (there, back, flood) = (frame(0, 1, 1_514), frame(1, 0, 61), frame(2, 0xff, 99));
    bed.send(0, [there.clone()]);
    bed.send(1, [back.clone(), frame(1, 2, 60)]);
    bed.send(2, [flood.clone()]);
    bed.run();
    let (mut taken, tally) = bed.taken();
    taken.sort_by_key(|(.., bytes)| bytes.len());
    assert_eq!(
        taken,
        [
            (OUT, Fate::Forwarded, Some(1), back.clone()),
            (OUT, Fate::Forwarded, Some(2), flood.clone()),
            (IN, Fate::Forwarded, Some(1), there.clone()),
        ]
    );
    assert_eq!(tally, Tally::default());
    let got: Vec<_> = std::iter::from_fn(|| bed.drivers[0].receive()).collect();
    assert!(got.iter().any(|frame| frame.bytes == back), "the port got what was captured");

    bed.capture(|terms| (terms.id, terms.sent, terms.snap_len) = (8, false, 20));
    bed.send(0, [there.clone()]);
    bed.send(1, [back]);
    bed.run();
    let Reply::CaptureEnded(Some((_, buffer, _))) = bed.worker.serve(Request::CaptureEnd(8)) else {
        panic!("the capture has ended by itself")
    };
    let short: Vec<_> = records(&buffer).collect();
    assert_eq!((short.len(), short[0].bytes, short[0].len), (1, &there[..20], 1_514));
}

/// Sends five frames that are dropped for different reasons, and two that are not.
fn cause_drops(bed: &mut Bed) {
    bed.drivers[2].set_up(false);
    let mut spoofed = frame(0, 1, 60);
    spoofed[6] = 0x53;
    bed.send(0, [frame(0, 1, 100), spoofed, frame(0, 2, 200), frame(0, 1, 60)]);
    bed.run();
}

#[test]
fn a_drop_has_the_reason_that_the_counters_have() {
    let rules = [Rule {
        priority: 1,
        matching: Match { ethertype: Some(0x88b6), ..Match::default() },
        actions: Actions::only(Then::Drop),
        id: 0,
    }];
    let table = Arc::new(RuleTable::build(&rules, 16).unwrap());
    for drops in [false, true] {
        let mut bed = Bed::new(|policy| {
            policy.rules = RuleTables { own: Some(Arc::clone(&table)), ..RuleTables::default() };
        });
        let before = bed.port(0);
        bed.capture(|terms| terms.drops = drops);
        let mut ruled = frame(0, 1, 70);
        ruled[13] = 0xb6;
        bed.send(0, [ruled]);
        cause_drops(&mut bed);
        // The ring of port 1 has room for only some of the next frames.
        for _ in 0..3 {
            bed.send(0, (0..60).map(|_| frame(0, 1, 300)));
            bed.run();
        }
        let (taken, _) = bed.taken();
        let after = bed.port(0);
        for (at, reason) in DropReason::ALL.iter().enumerate() {
            let counted = after.drops[at] - before.drops[at];
            let seen = taken.iter().filter(|(_, fate, ..)| *fate == Fate::Dropped(*reason));
            assert_eq!(seen.count() as u64, counted, "{} drops={drops}", reason.name());
        }
        let counted = |reason| after.drops[reason as usize] - before.drops[reason as usize];
        assert!(counted(DropReason::RingFull) > 50 && counted(DropReason::Rule) == 1);
        assert_eq!(counted(DropReason::PortDown), 1);
        let received = after.rx_frames - before.rx_frames;
        let dropped = after.drops.iter().sum::<u64>() - before.drops.iter().sum::<u64>();
        assert_eq!(taken.len() as u64, if drops { dropped } else { received });
    }
}

#[test]
fn a_frame_that_another_worker_may_still_drop_is_not_forwarded_yet() {
    let fates = |taken: Vec<Taken>| taken.into_iter().map(|(_, fate, ..)| fate).collect::<Vec<_>>();
    for drops in [false, true] {
        let mut two = Two::new();
        for worker in &mut two.workers {
            begin(worker, |terms| terms.drops = drops);
        }
        // The ring of port 1 has room for only some of the frames.
        for _ in 0..3 {
            two.send(0, 40);
        }
        let [first, second] = &mut two.workers[..] else { panic!("two workers") };
        let (sent, lost) = (fates(taken(first).0), fates(taken(second).0));
        if drops {
            assert!(sent.is_empty(), "{sent:?}");
            assert!(lost.len() > 50, "{}", lost.len());
            assert!(lost.iter().all(|fate| *fate == Fate::Dropped(DropReason::RingFull)));
        } else {
            assert_eq!(sent, [Fate::HandedOver; 120]);
            assert!(lost.is_empty(), "the capture of all frames has each frame once");
        }
    }
}

#[test]
fn a_frame_that_waits_in_a_queue_is_not_forwarded_yet() {
    let mut bed = Bed::new(|policy| {
        if policy.id == 1 {
            let terms = QueueTerms {
                order: Order::FairShare,
                pacing: Pacing::Link(BitsPerSecond(1_000_000)),
                frames: 8,
                ..QueueTerms::default()
            };
            policy.queue = Some(QueueHome::new(terms, 4, 4));
        }
    });
    bed.capture(|terms| terms.sent = false);
    bed.send(0, [frame(0, 1, 100), frame(0, 2, 101)]);
    bed.run();
    let (mut taken, _) = bed.taken();
    taken.sort_by_key(|(.., bytes)| bytes.len());
    let received = |fate, to: u16, len| (IN, fate, Some(to), frame(0, usize::from(to), len));
    let waits = received(Fate::Queued, 1, 100);
    assert_eq!(taken, [waits, received(Fate::Forwarded, 2, 101)]);
}

#[test]
fn a_frame_above_a_limit_is_captured_with_its_bytes() {
    for drops in [false, true] {
        let mut bed = Bed::new(|policy| {
            let cir = BitsPerSecond(8_000_000);
            let limit = Limit::SingleRate { cir, cbs: 2_000, ebs: 0 };
            let own = vec![Arc::new(Policer::new(Spec::new(limit).unwrap()))];
            if policy.id == 0 {
                policy.ingress_policer = Some(Arc::new(IngressPolicer { own, links: Vec::new() }));
            }
        });
        bed.capture(|terms| terms.drops = drops);
        bed.send(0, [frame(0, 1, 1_400), frame(0, 1, 1_000), frame(0, 1, 200)]);
        bed.run();
        let (taken, _) = bed.taken();
        let red = (IN, Fate::Dropped(DropReason::Policed), None, frame(0, 1, 1_000));
        if drops {
            assert_eq!(taken, [red]);
        } else {
            let green = |len| (IN, Fate::Forwarded, Some(1), frame(0, 1, len));
            assert_eq!(taken, [green(1_400), red, green(200)]);
        }
    }
}

#[test]
fn a_filter_takes_only_frames_with_its_headers() {
    let mut bed = Bed::new(|_| {});
    let matching = Match { ethertype: Some(0x88b6), ..Match::default() };
    let filter = move || Some(Filter::new(vec![matching.compile().unwrap()], 0));
    bed.capture(|terms| terms.filter = filter());
    let special = |from, to, len| {
        let mut bytes = frame(from, to, len);
        bytes[13] = 0xb6;
        bytes
    };
    bed.send(0, [frame(0, 1, 60), special(0, 1, 70)]);
    bed.send(1, [frame(1, 0, 80), special(1, 0, 90)]);
    bed.run();
    let (mut taken, _) = bed.taken();
    taken.sort_by_key(|(.., bytes)| bytes.len());
    assert_eq!(
        taken,
        [
            (IN, Fate::Forwarded, Some(1), special(0, 1, 70)),
            (OUT, Fate::Forwarded, Some(1), special(1, 0, 90)),
        ]
    );
}

#[test]
fn frames_above_the_budget_and_above_the_buffer_are_counted() {
    use core::sync::atomic::{AtomicU64, Ordering};
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut bed = Bed::new(|_| {});
    // Each look at a batch costs a hundred thousand cycles on this clock.
    bed.capture(|terms| terms.clock = || Cycles(NOW.fetch_add(100_000, Ordering::Relaxed)));
    let mut sent = 0;
    for _ in 0..100 {
        bed.send(0, (0..20).map(|_| frame(0, 1, 60)));
        sent += 20;
        bed.run();
        bed.core.0.advance(Cycles(1_000_000));
        while bed.drivers[1].receive().is_some() {}
    }
    let (taken, tally) = bed.taken();
    assert_eq!(taken.len() as u64 + tally.left_out, sent);
    assert!(tally.left_out > 100 && taken.len() > 20, "{tally:?}");
    assert_eq!(tally.lost, 0);

    let mut bed = Bed::new(|_| {});
    let small = Vec::with_capacity(1_000);
    bed.capture(|_| {});
    let Reply::Captured(..) = bed.worker.serve(Request::CaptureNext(ID, small)) else { panic!() };
    bed.send(0, (0..20).map(|_| frame(0, 1, 60)));
    bed.run();
    let (taken, tally) = bed.taken();
    assert_eq!((taken.len(), tally.lost), (10, 10));
}

#[test]
fn a_pause_hides_no_drop() {
    use core::sync::atomic::{AtomicU64, Ordering};
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut bed = Bed::new(|policy| {
        let cir = BitsPerSecond(8_000_000);
        let limit = Limit::SingleRate { cir, cbs: 2_000, ebs: 0 };
        let own = vec![Arc::new(Policer::new(Spec::new(limit).unwrap()))];
        if policy.id == 0 {
            policy.ingress_policer = Some(Arc::new(IngressPolicer { own, links: Vec::new() }));
        }
    });
    let before: u64 = bed.port(0).drops.iter().sum();
    bed.capture(|terms| {
        terms.drops = true;
        terms.clock = || Cycles(NOW.fetch_add(100_000, Ordering::Relaxed));
    });
    let (mut taken, mut left_out) = (0, 0);
    for round in 0..200 {
        bed.send(0, (0..20).map(|_| frame(0, 1, 1_000)));
        bed.run();
        bed.core.0.advance(Cycles(1_000_000));
        while bed.drivers[1].receive().is_some() {}
        if round % 10 == 7 {
            let (records, tally) = bed.taken();
            (taken, left_out) = (taken + records.len() as u64, left_out + tally.left_out);
        }
    }
    let (records, tally) = bed.taken();
    (taken, left_out) = (taken + records.len() as u64, left_out + tally.left_out);
    let dropped: u64 = bed.port(0).drops.iter().sum::<u64>() - before;
    assert_eq!(taken + left_out, dropped, "{taken} and {left_out}");
    assert!(taken > 10 && left_out > 10, "{taken} and {left_out}");
}

#[test]
fn the_host_pays_and_the_port_does_not() {
    use core::sync::atomic::{AtomicU64, Ordering};
    static NOW: AtomicU64 = AtomicU64::new(0);
    let cost = |captured: bool| {
        let mut bed = Bed::new(|_| {});
        if captured {
            bed.capture(|terms| terms.clock = || Cycles(NOW.fetch_add(100, Ordering::Relaxed)));
        }
        let before = bed.port(0).cycles;
        bed.send(0, (0..20).map(|_| frame(0, 1, 60)));
        bed.run();
        bed.port(0).cycles - before
    };
    let (without, with) = (cost(false), cost(true));
    assert!(with <= without, "the core's clock stands still during the copies: {with} {without}");
}

#[test]
fn the_number_of_captures_is_limited_and_an_ended_one_leaves_nothing() {
    let mut bed = Bed::new(|_| {});
    for id in 0..CAPTURES_MAX as u64 {
        bed.capture(|terms| terms.id = id);
    }
    let terms = CaptureTerms {
        id: 99,
        port: PortId(1),
        received: true,
        sent: true,
        drops: false,
        filter: None,
        snap_len: 60,
        clock: || Cycles::ZERO,
    };
    let more = bed.worker.serve(Request::Capture(Box::new(terms), Vec::new()));
    assert!(matches!(more, Reply::CaptureEnded(Some(_))), "refused, and its memory comes back");
    for id in 0..CAPTURES_MAX as u64 {
        let ended = bed.worker.serve(Request::CaptureEnd(id));
        assert!(matches!(ended, Reply::CaptureEnded(Some(_))));
    }
    assert!(matches!(bed.worker.serve(Request::CaptureEnd(0)), Reply::CaptureEnded(None)));
    bed.send(0, [frame(0, 1, 60)]);
    bed.run();
    let next = bed.worker.serve(Request::CaptureNext(0, Vec::new()));
    assert!(matches!(next, Reply::Captured(_, None)));
}
