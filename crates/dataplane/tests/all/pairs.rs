//! A host that allocates rates to pairs of VMs: what leaves through its uplink, what the uplink
//! answers, and what a hostile VM or network can do.

use std::sync::Arc;

use penstock_dataplane::capture::{BUFFER_BYTES, CaptureTerms, Fate, records};
use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame};
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_dataplane::snapshot::{
    Domain, DomainMap, PortPolicy, SlowPathLimit, Snapshot, VidSet,
};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Reply, Request, Turn, Worker, WorkerConfig};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_qos::pair_table::{PERIOD, PairLimits, PairTable, Sending, VmRates};
use penstock_units::{BitsPerSecond, Cycles, Nanos, PortId, Vid};

use crate::common::{self, attach, frame};

const HZ: u64 = 1_000_000_000;
const UPLINK: usize = 0;
const VM: usize = 1;
const NEAR: usize = 1;
const FAR: usize = 9;
const MARKER_BYTES: usize = 66;
/// Number of frames for which a port has room.
const RING: usize = 1_024;
const MBIT: u64 = 1_000_000;

type Core = common::Core<10>;

/// Returns the queue of an uplink of 1 Gbit/s.
fn queue() -> Arc<QueueHome> {
    let bound = Bound { bytes: 1 << 20, wait: Nanos::from_secs(1), excess: Excess::Drop };
    let pacing = Pacing::Link(BitsPerSecond(1_000 * MBIT));
    let order = Order::Wfq;
    QueueHome::new(
        QueueTerms { order, pacing, bound, frames: 1_024, ..QueueTerms::default() },
        2,
        2,
    )
}

/// A worker with an uplink, port 0, and a VM, port 1.
struct Bed {
    worker: Worker<Core>,
    core: Core,
    drivers: Vec<MemoryDriver>,
    counters: Vec<Arc<PortCounters>>,
    table: Arc<PairTable>,
    uplink: Option<Arc<PortPolicy>>,
}

impl Bed {
    /// Creates the host. If `tagged` is true, the VM's VLAN 5 has a tag on the uplink.
    fn new(tagged: bool) -> Self {
        Self::with_pairs(tagged, true)
    }

    /// Creates the host. If `pairs` is false, the host does not allocate rates.
    fn with_pairs(tagged: bool, pairs: bool) -> Self {
        Self::with_table(tagged, pairs, PairLimits::Rates)
    }

    fn with_table(tagged: bool, pairs: bool, limits: PairLimits) -> Self {
        let core = Core::default();
        let config = WorkerConfig { max_ports: 2, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, core.clone(), None);
        let table = Arc::new(PairTable::with_limits(2, 3, limits));
        let ports = [0, 1].map(|port| attach(&mut worker, port, RING));
        let (drivers, counters) = ports.into_iter().unzip();
        let vid = if tagged { Vid::new(5).unwrap() } else { Vid::UNTAGGED };
        let mut uplink = if tagged {
            let allowed: VidSet = [vid].into_iter().collect();
            PortPolicy::trunk(0, None, None, allowed, DomainMap::trunk([(vid, 0)]))
        } else {
            PortPolicy::access(0, None, vid, 0)
        };
        uplink.marks = true;
        uplink.pairs = pairs.then(|| Arc::clone(&table));
        if limits == PairLimits::Guarantees {
            // Frames above guarantees wait at the uplink.
            let home = queue();
            let lines = home.set_pairs(uplink.pairs.as_ref());
            if let Some(table) = &uplink.pairs {
                table.set_lines(lines);
            }
            uplink.queue = Some(home);
        }
        let vm = PortPolicy::access(1, Some(1), vid, 0);
        let policies = [uplink, vm].map(|mut policy| {
            policy.slow_path = SlowPathLimit::UNLIMITED;
            Some(Arc::new(policy.finish()))
        });
        let uplink = policies[UPLINK].clone();
        let domain =
            Domain { tenant: Some(1), vid: vid.get(), members: (0..2).collect(), fdb_limit: 64 };
        let policies = policies.into();
        worker.swap_snapshot(Arc::new(Snapshot::new(1, policies, vec![domain], vec![], 300)));
        let bed = Self { worker, core, drivers, counters, table, uplink };
        bed.limit(10 * MBIT);
        bed
    }

    fn limit(&self, rate: u64) {
        let rate = BitsPerSecond(rate);
        let send = BitsPerSecond(1_000 * MBIT);
        self.table.limit(1, VmRates { default: rate, send, receive: rate });
    }

    fn run(&mut self, cycles: u64) {
        let end = self.core.now().0 + cycles;
        while self.core.now().0 < end {
            if self.worker.turn() == Turn::Idle {
                let next = self.worker.next_due().map_or(end, |due| due.0);
                let at = next.clamp(self.core.now().0 + 1_000, end.max(self.core.now().0 + 1_000));
                self.core.0.advance_to(Cycles(at));
                self.worker.rested();
            }
        }
    }

    /// Sends frames into port `port`, and returns all frames that left through the ports.
    fn pass(&mut self, port: usize, frames: &[Vec<u8>]) -> [Vec<Vec<u8>>; 2] {
        for frame in frames {
            assert!(self.drivers[port].send(MemoryFrame::plain(frame.clone())));
        }
        self.run(HZ / 1_000);
        [0, 1].map(|port: usize| {
            let next = || self.drivers[port].receive().map(|frame| frame.bytes);
            std::iter::from_fn(next).collect()
        })
    }

    fn drops(&self, port: usize, reason: DropReason) -> u64 {
        self.counters[port].drops[reason as usize].get()
    }

    /// Sets the rate of the VM's only pair.
    fn set_rate(&self, rate: u64) {
        let pair = self.table.sending().next().unwrap().pair;
        let rate = BitsPerSecond(rate);
        self.table.set_sender(pair, rate, (rate, rate, rate));
    }

    /// Gives the tenant of the VM the code point `dscp`, if there are no tags.
    fn set_code_point(&mut self, dscp: u8) {
        let mut vm = PortPolicy::access(1, Some(1), Vid::UNTAGGED, 0);
        (vm.slow_path, vm.dscp) = (SlowPathLimit::UNLIMITED, Some(dscp));
        let policies = vec![self.uplink.clone(), Some(Arc::new(vm.finish()))];
        let vid = Vid::UNTAGGED.get();
        let domain = Domain { tenant: Some(1), vid, members: (0..2).collect(), fdb_limit: 64 };
        let number = 2 + u64::from(dscp);
        let next = Snapshot::new(number, policies, vec![domain], vec![], 300);
        self.worker.swap_snapshot(Arc::new(next));
    }

    fn assert_sums(&self) {
        for (port, counters) in self.counters.iter().enumerate() {
            let read = counters.read();
            assert_eq!(read.unaccounted(), 0, "port {port}");
        }
    }
}

/// A frame of 1,000 bytes that is not IP.
fn data(from: usize, to: usize) -> Vec<u8> {
    frame(from, to, 1_000)
}

fn is_marker(frame: &[u8]) -> bool {
    frame.len() == MARKER_BYTES
}

/// Lets the host ask a question, and returns the question.
fn question(bed: &mut Bed) -> Vec<u8> {
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(100 * MBIT);
    bed.run(PERIOD.0);
    let [left, _] = bed.pass(VM, &vec![data(NEAR, FAR); 3]);
    let markers: Vec<_> = left.iter().filter(|frame| is_marker(frame)).cloned().collect();
    assert_eq!((left.len(), markers.len()), (4, 1));
    assert!(is_marker(&left[3]), "behind the frames that it counts");
    markers[0].clone()
}

/// Returns the question from another host, with the addresses exchanged.
fn from_far(question: &[u8]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    bytes[..6].copy_from_slice(&question[6..12]);
    bytes[6..12].copy_from_slice(&question[..6]);
    bytes
}

#[test]
fn a_question_follows_the_frames_of_its_pair_once_a_period() {
    let mut bed = Bed::new(false);
    let asked = question(&mut bed);
    // One frame used the default rate before, and three were sent in this period.
    assert_eq!(asked[30..38], 4_u64.to_be_bytes());
    let [left, _] = bed.pass(VM, &vec![data(NEAR, FAR); 3]);
    assert_eq!(left.iter().filter(|frame| is_marker(frame)).count(), 0, "in the same period");
    bed.assert_sums();
}

#[test]
fn the_question_has_the_tag_of_its_pairs_frames() {
    let mut bed = Bed::new(true);
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(100 * MBIT);
    let [left, _] = bed.pass(VM, &[data(NEAR, FAR)]);
    assert_eq!(left.len(), 2);
    assert_eq!(left[1].len(), MARKER_BYTES + 4);
    assert_eq!(left[1][..16], left[0][..16], "addresses and tag");
    bed.assert_sums();
}

#[test]
fn frames_above_the_pairs_rate_are_dropped_with_their_own_reason() {
    let mut bed = Bed::new(false);
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(8_000);
    let mut left = 0;
    for _ in 0..10 {
        left += bed.pass(VM, &vec![data(NEAR, FAR); 100])[0].len();
    }
    let lost = bed.drops(VM, DropReason::PairLimit);
    assert!(lost > 700, "{lost}");
    // One question was due.
    assert_eq!(left as u64 + lost, 1_001);
    assert_eq!(bed.table.sending().next().unwrap().refused, lost);
    bed.assert_sums();
}

#[test]
fn a_vm_above_the_sum_of_its_pairs_rates_waits_and_loses_nothing() {
    let mut bed = Bed::new(false);
    let rates = VmRates {
        default: BitsPerSecond(1_000 * MBIT),
        send: BitsPerSecond(10 * MBIT),
        receive: BitsPerSecond(10 * MBIT),
    };
    bed.table.limit(1, rates);
    let at_once = bed.pass(VM, &vec![data(NEAR, FAR); 600])[0].len();
    // The bucket has the tokens of 262 frames, and the last batch has up to 32.
    assert!((262..=330).contains(&at_once), "{at_once}");
    assert!(bed.counters[VM].send_waits.get() > 0);
    // A frame takes 0.8 ms at this rate.
    bed.run(HZ / 2);
    let later = std::iter::from_fn(|| bed.drivers[UPLINK].receive()).count();
    assert_eq!(at_once + later, 600);
    assert_eq!(bed.drops(VM, DropReason::PairLimit), 0);
    bed.assert_sums();
}

#[test]
fn frames_above_a_slow_guarantee_leave_in_small_steps() {
    let mut bed = Bed::with_table(false, true, PairLimits::Guarantees);
    let most = BitsPerSecond(400_000 * MBIT);
    let limit = |send| VmRates { default: most, send, receive: most };
    bed.table.limit(1, limit(most));
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(2_060_000);
    bed.table.limit(1, limit(BitsPerSecond(2 * MBIT)));
    // The VM's bucket has the tokens of 4 frames. The line of the pair has room for 32 KiB.
    let [at_once, _] = bed.pass(VM, &vec![data(NEAR, FAR); 30]);
    let at_once = at_once.iter().filter(|frame| !is_marker(frame)).count();
    assert!((4..=6).contains(&at_once), "{at_once}");
    assert!(bed.counters[VM].send_waits.get() > 0);
    let mut left = at_once;
    for _ in 0..3 {
        bed.run(HZ / 20);
        // 12.5 frames pass in 50 ms.
        let frames = departed(&bed).len();
        assert!(frames <= 15, "{frames}");
        left += frames;
    }
    assert_eq!(left, 30);
    bed.assert_sums();
}

/// An IPv4 frame of 1,000 bytes from a sender that supports ECN.
fn supports_ecn(from: usize, to: usize) -> Vec<u8> {
    let mut bytes = data(from, to);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let [from, to] = [from, to].map(|port| u8::try_from(port).expect("few ports"));
    let header = [0x45, 2, 3, 0xda, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    bytes[14..34].copy_from_slice(&header);
    bytes[34..42].copy_from_slice(&[0, 9, 0, 9, 3, 0xc6, 0, 0]);
    bytes
}

/// Returns the frames that have left through the uplink, without questions.
fn departed(bed: &Bed) -> Vec<Vec<u8>> {
    let next = || bed.drivers[UPLINK].receive().map(|frame| frame.bytes);
    std::iter::from_fn(next).filter(|frame| !is_marker(frame)).collect()
}

#[test]
fn frames_that_wait_for_a_guarantee_are_marked_if_their_sender_supports_ecn() {
    // The bucket of a rate is deeper, so it takes more frames to empty it.
    for (limits, burst) in [(PairLimits::Guarantees, 14), (PairLimits::Rates, 100)] {
        let mut bed = Bed::with_table(false, true, limits);
        let most = BitsPerSecond(400_000 * MBIT);
        bed.table.limit(1, VmRates { default: most, send: most, receive: most });
        // Without the far address, the frames would go to all ports.
        bed.pass(UPLINK, &[data(FAR, NEAR)]);
        bed.pass(VM, &[supports_ecn(NEAR, FAR)]);
        bed.set_rate(MBIT);
        let mut left = Vec::new();
        for _ in 0..60 {
            let [frames, _] = bed.pass(VM, &vec![supports_ecn(NEAR, FAR); burst]);
            left.extend(frames.into_iter().filter(|frame| !is_marker(frame)));
            bed.run(HZ / 10);
        }
        bed.run(HZ);
        left.extend(departed(&bed));
        let marked = left.iter().filter(|frame| frame[15] & 3 == 3).count();
        let lost = bed.drops(VM, DropReason::PairLimit);
        assert_eq!(left.len() as u64 + lost, 60 * burst as u64, "a mark loses no frame");
        match limits {
            PairLimits::Guarantees => {
                assert!((8..=left.len() / 32 + 1).contains(&marked), "{marked}");
            }
            PairLimits::Rates => assert_eq!(marked, 0, "a mark counts as congestion"),
        }
        bed.assert_sums();
    }
}

/// Returns a frame of 1,000 bytes with a number.
fn numbered(to: usize, number: u8) -> Vec<u8> {
    let mut bytes = data(NEAR, to);
    bytes[20] = number;
    bytes
}

#[test]
fn frames_above_a_guarantee_wait_at_the_uplink_and_other_pairs_of_the_vm_pass() {
    let mut bed = Bed::with_table(false, true, PairLimits::Guarantees);
    let most = BitsPerSecond(400_000 * MBIT);
    bed.table.limit(1, VmRates { default: most, send: most, receive: most });
    bed.pass(UPLINK, &[data(FAR, NEAR), data(FAR + 1, NEAR)]);
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(MBIT);
    let flood: Vec<_> = (0..40).map(|number| numbered(FAR, number)).collect();
    let [at_once, _] = bed.pass(VM, &flood);
    assert_eq!(at_once.iter().filter(|frame| !is_marker(frame)).count(), 5);
    assert_eq!(bed.counters[VM].read().queued, 35);
    assert!(bed.counters[VM].send_waits.get() > 0);
    bed.assert_sums();
    // Another pair of the VM does not wait.
    let [others, _] = bed.pass(VM, &vec![data(NEAR, FAR + 1); 10]);
    assert_eq!(others.len(), 10);
    bed.run(HZ / 10);
    let first = departed(&bed);
    // A frame takes 8 ms.
    assert!((11..=13).contains(&first.len()), "{}", first.len());
    bed.run(HZ / 5);
    let numbers = first.iter().chain(&departed(&bed)).map(|frame| frame[20]).collect::<Vec<_>>();
    assert!(numbers.iter().copied().eq(5..40), "{numbers:?}");
    assert_eq!(bed.drops(VM, DropReason::PairLimit), 0);
    bed.assert_sums();
}

#[test]
fn frames_that_wait_leave_with_the_code_point_of_their_tenant_when_it_gets_a_queue() {
    let mut bed = Bed::with_table(false, true, PairLimits::Guarantees);
    let most = BitsPerSecond(400_000 * MBIT);
    bed.table.limit(1, VmRates { default: most, send: most, receive: most });
    bed.set_code_point(8);
    bed.pass(UPLINK, &[data(FAR, NEAR)]);
    bed.pass(VM, &[supports_ecn(NEAR, FAR)]);
    bed.set_rate(MBIT);
    let numbered = |number: u8| {
        let mut bytes = supports_ecn(NEAR, FAR);
        bytes[60] = number;
        bytes
    };
    // Code points and numbers.
    let read = |frames: &[Vec<u8>]| -> Vec<(u8, u8)> {
        let data = frames.iter().filter(|frame| !is_marker(frame));
        data.map(|frame| (frame[15] >> 2, frame[60])).collect()
    };
    let [at_once, _] = bed.pass(VM, &(0..40).map(numbered).collect::<Vec<_>>());
    let at_once = read(&at_once);
    let first = u8::try_from(at_once.len()).expect("few frames");
    assert!((3..30).contains(&first) && at_once.iter().all(|(dscp, _)| *dscp == 8));
    bed.set_code_point(10);
    bed.table.release(1);
    let [mut left, _] = bed.pass(VM, &(40..45).map(numbered).collect::<Vec<_>>());
    bed.run(HZ / 2);
    left.extend(departed(&bed));
    let left = read(&left);
    assert!(left.iter().copied().eq((first..45).map(|number| (10, number))), "{left:?}");
    assert_eq!(bed.counters[VM].read().queued, 0);
    bed.assert_sums();
}

#[test]
fn frames_above_a_guarantee_are_lost_with_the_uplinks_link() {
    let mut bed = Bed::with_table(false, true, PairLimits::Guarantees);
    let most = BitsPerSecond(400_000 * MBIT);
    bed.table.limit(1, VmRates { default: most, send: most, receive: most });
    bed.pass(UPLINK, &[data(FAR, NEAR)]);
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(MBIT);
    bed.drivers[UPLINK].set_up(false);
    bed.pass(VM, &vec![data(NEAR, FAR); 40]);
    assert!(bed.drops(VM, DropReason::PortDown) >= 40);
    assert_eq!(bed.drops(VM, DropReason::PairLimit), 0);
    bed.assert_sums();
}

#[test]
fn frames_above_a_guarantee_without_a_place_to_wait_are_dropped_as_queue_full() {
    let mut bed = Bed::with_table(false, true, PairLimits::Guarantees);
    let most = BitsPerSecond(400_000 * MBIT);
    bed.table.limit(1, VmRates { default: most, send: most, receive: most });
    let slow = BitsPerSecond(8_000);
    for to in 10..130 {
        bed.pass(VM, &[data(NEAR, to)]);
        for read in bed.table.sending() {
            bed.table.set_sender(read.pair, slow, (slow, slow, slow));
        }
        bed.pass(VM, &vec![data(NEAR, to); 120]);
    }
    // A third of 8,192 places. A line has room for 32 frames, and for those of the same batch.
    let waiting = bed.counters[VM].read().queued;
    assert!((2_600..=2_731).contains(&waiting), "{waiting}");
    let [full, above] =
        [DropReason::QueueFull, DropReason::PairLimit].map(|reason| bed.drops(VM, reason));
    assert!(full > 1_000 && above > 500, "{full} {above}");
    bed.assert_sums();
}

#[test]
fn acknowledgements_do_not_wait_for_a_guarantee() {
    let mut bed = Bed::with_table(false, true, PairLimits::Guarantees);
    let most = BitsPerSecond(400_000 * MBIT);
    bed.table.limit(1, VmRates { default: most, send: most, receive: most });
    bed.pass(UPLINK, &[data(FAR, NEAR)]);
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(MBIT);
    let mut ack = supports_ecn(NEAR, FAR);
    ack.truncate(60);
    (ack[17], ack[23]) = (40, 6);
    ack[16] = 0;
    (ack[46], ack[47]) = (0x50, 0x10);
    bed.pass(VM, &vec![data(NEAR, FAR); 30]);
    let [left, _] = bed.pass(VM, std::slice::from_ref(&ack));
    assert!(left.iter().any(|frame| frame.len() == 60), "{}", left.len());
    // A long frame with the headers of an acknowledgement waits.
    let mut long = ack.clone();
    long.resize(900, 0);
    let [left, _] = bed.pass(VM, &[long]);
    assert!(left.iter().all(|frame| frame.len() != 900));
    // A flood of acknowledgements waits like other frames.
    let floods = (0..20).map(|_| {
        let [left, _] = bed.pass(VM, &vec![ack.clone(); 100]);
        left.iter().filter(|frame| frame.len() == 60).count()
    });
    let passed: usize = floods.sum();
    // Each takes 84 bytes on a link.
    assert!((150..=240).contains(&passed), "a burst of 16,384 bytes: {passed}");
    bed.assert_sums();
}

#[test]
fn a_table_for_guarantees_tells_the_flows_of_a_pair_apart() {
    let mut bed = Bed::with_table(false, true, PairLimits::Guarantees);
    let most = BitsPerSecond(400_000 * MBIT);
    bed.table.limit(1, VmRates { default: most, send: most, receive: most });
    bed.pass(UPLINK, &[data(FAR, NEAR)]);
    let from_port = |port: u8| {
        let mut bytes = supports_ecn(NEAR, FAR);
        bytes[35] = port;
        bytes
    };
    let flows = |bed: &mut Bed, frames: &[Vec<u8>]| {
        bed.pass(VM, frames);
        bed.table.sending().next().unwrap().flows.count_ones()
    };
    assert_eq!(flows(&mut bed, &vec![from_port(1); 20]), 1);
    assert_eq!(flows(&mut bed, &[]), 0);
    let of_ports = |ports: u8| (1..=ports).map(from_port).collect::<Vec<_>>();
    // 64 flows at random have 41 of 64 bits on average.
    let bits = flows(&mut bed, &of_ports(64));
    assert!((28..=54).contains(&bits), "{bits}");
    assert_eq!(flows(&mut bed, &vec![data(NEAR, FAR); 20]), 1, "frames without ports");
    let mut ack = from_port(1);
    ack.truncate(60);
    (ack[16], ack[17], ack[23]) = (0, 40, 6);
    (ack[46], ack[47]) = (0x50, 0x10);
    assert_eq!(flows(&mut bed, &[ack]), 0, "an acknowledgement");
    // The next question reports the number that the control plane has estimated.
    let pair = bed.table.sending().next().unwrap().pair;
    bed.set_rate(100 * MBIT);
    bed.table.set_flows(pair, 2);
    bed.run(2 * PERIOD.0);
    let [left, _] = bed.pass(VM, &of_ports(2));
    let asked: Vec<_> = left.iter().filter(|frame| is_marker(frame)).collect();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0][26] >> 3, 2, "the number of flows");
    bed.assert_sums();
}

/// Returns a bed in which 35 frames of the VM wait for the limit of their pair.
fn with_waiting_frames() -> Bed {
    let mut bed = Bed::with_table(false, true, PairLimits::Guarantees);
    let most = BitsPerSecond(400_000 * MBIT);
    bed.table.limit(1, VmRates { default: most, send: most, receive: most });
    bed.pass(UPLINK, &[data(FAR, NEAR)]);
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(MBIT);
    bed.pass(VM, &vec![data(NEAR, FAR); 40]);
    assert_eq!(bed.counters[VM].read().queued, 35);
    bed
}

#[test]
fn frames_that_wait_for_a_guarantee_are_counted_if_the_uplink_loses_its_queue() {
    let mut bed = with_waiting_frames();
    let policies = [0, 1].map(|port| Some(Arc::new(common::access(port).finish())));
    let domain = Domain { tenant: Some(1), vid: 0, members: (0..2).collect(), fdb_limit: 64 };
    let next = Snapshot::new(2, policies.into(), vec![domain], vec![], 300);
    bed.worker.swap_snapshot(Arc::new(next));
    assert_eq!(bed.counters[VM].read().queued, 0);
    assert_eq!(bed.drops(VM, DropReason::QueueGone), 35);
    bed.assert_sums();
    // The table knows that no frame waits any more.
    bed.run(HZ / 10);
    let pair = bed.table.sending().next().unwrap().pair;
    let size = penstock_qos::policer::Size { bytes: 1_000, frames: 1 };
    let now = Nanos(bed.core.now().0);
    let sent = bed.table.send(1, pair.key.mac(), size, now);
    assert!(matches!(sent, Sending::Pass | Sending::Ask(_)), "{sent:?}");
}

#[test]
fn a_new_port_does_not_pay_for_the_frames_of_a_port_that_had_its_number() {
    let mut bed = with_waiting_frames();
    drop(bed.worker.detach(PortId(1)));
    assert_eq!(bed.counters[VM].read().queued, 0);
    assert_eq!(bed.drops(VM, DropReason::QueueGone), 35);
    bed.assert_sums();
    (bed.drivers[VM], bed.counters[VM]) = attach(&mut bed.worker, 1, RING);
    bed.run(HZ / 2);
    let read = bed.counters[VM].read();
    assert_eq!((read.queued, read.forwarded, departed(&bed).len()), (0, 0, 0));
    bed.assert_sums();
}

#[test]
fn a_lost_question_is_no_lost_frame_of_the_vm_in_a_capture() {
    let mut bed = Bed::new(false);
    bed.limit(1_000 * MBIT);
    bed.pass(UPLINK, &[data(FAR, NEAR), data(FAR + 1, NEAR)]);
    bed.pass(VM, &[data(NEAR, FAR)]);
    bed.set_rate(100 * MBIT);
    bed.run(PERIOD.0);
    // The ring of the uplink then has room for one frame.
    for _ in 1..RING {
        assert!(bed.drivers[VM].send(MemoryFrame::plain(data(NEAR, FAR + 1))));
    }
    bed.run(HZ / 1_000);
    let terms = CaptureTerms {
        id: 7,
        port: PortId(1),
        received: true,
        sent: false,
        drops: false,
        filter: None,
        snap_len: 64,
        clock: || Cycles::ZERO,
    };
    let begin = Request::Capture(Box::new(terms), Vec::with_capacity(BUFFER_BYTES));
    assert!(matches!(bed.worker.serve(begin), Reply::Done));
    assert!(bed.drivers[VM].send(MemoryFrame::plain(data(NEAR, FAR))));
    bed.run(HZ / 1_000);
    let Reply::CaptureEnded(Some((_, buffer, _))) = bed.worker.serve(Request::CaptureEnd(7)) else {
        panic!("the capture has ended by itself")
    };
    let fates: Vec<Fate> = records(&buffer).map(|record| record.fate).collect();
    assert_eq!((fates, bed.drops(VM, DropReason::RingFull)), (vec![Fate::Forwarded], 1));
    bed.assert_sums();
}

#[test]
fn a_question_from_the_network_is_answered_and_never_delivered() {
    let mut bed = Bed::new(false);
    let asked = from_far(&question(&mut bed));
    let [left, delivered] = bed.pass(UPLINK, std::slice::from_ref(&asked));
    assert_eq!((left.len(), delivered.len()), (0, 0), "the receiver's part is not known yet");
    let pair = bed.table.receiving().next().unwrap().pair;
    bed.table.set_receiver(pair, BitsPerSecond(5 * MBIT));
    let [_, delivered] = bed.pass(UPLINK, &vec![data(FAR, NEAR); 7]);
    assert_eq!(delivered.len(), 7);
    let [left, delivered] = bed.pass(UPLINK, std::slice::from_ref(&asked));
    assert_eq!((left.len(), delivered.len()), (1, 0));
    let answer = &left[0];
    assert_eq!((answer.len(), answer[19]), (MARKER_BYTES, 2));
    assert_eq!((&answer[..6], &answer[6..12]), (&asked[6..12], &asked[..6]));
    assert_eq!(answer[46..54], 7_u64.to_be_bytes(), "what arrived");
    assert_eq!(answer[38..46], (5 * MBIT).to_be_bytes(), "the receiver's part");
    bed.assert_sums();
}

#[test]
fn a_vm_cannot_forge_markers() {
    let mut bed = Bed::new(false);
    let asked = question(&mut bed);
    for tags in 0..2 {
        let mut forged = asked[..12].to_vec();
        (0..tags).for_each(|_| forged.extend([0x81, 0, 0, 0]));
        forged.extend(&asked[12..]);
        let [left, _] = bed.pass(VM, &[forged]);
        assert!(left.is_empty(), "{tags} tags");
        assert_eq!(bed.drops(VM, DropReason::ForgedMarker), tags + 1);
    }
    // Not even a VM without limits of its pairs.
    bed.table.unlimit(1);
    assert!(bed.pass(VM, &[asked])[0].is_empty());
    // Other frames of the same type pass.
    assert_eq!(bed.pass(VM, &[data(NEAR, FAR)])[0].len(), 1);
    bed.assert_sums();
}

#[test]
fn a_vm_of_a_host_without_pairs_cannot_forge_markers_either() {
    let asked = question(&mut Bed::new(false));
    let mut bed = Bed::with_pairs(false, false);
    let frames = [data(NEAR, FAR), asked.clone(), data(NEAR, FAR), asked];
    let [left, _] = bed.pass(VM, &frames);
    assert_eq!(left.len(), 2);
    assert!(left.iter().all(|frame| !is_marker(frame)));
    assert_eq!(bed.drops(VM, DropReason::ForgedMarker), 2);
    bed.assert_sums();
}

#[test]
fn hostile_markers_from_the_network_change_nothing() {
    let mut bed = Bed::new(false);
    let asked = question(&mut bed);
    let mut answer = from_far(&asked);
    answer[19] = 2;
    answer[46..54].copy_from_slice(&4_u64.to_be_bytes());
    answer[54..62].fill(0);
    let mut hostile = vec![answer[..30].to_vec(), answer[..60].to_vec()];
    hostile.push([&answer[..], &[0; 100][..]].concat());
    // A wrong version, an answer to no question, to a later one, to another pair's beginning, with
    // more frames than were sent, and with more marked frames than frames.
    let wrong = [(18, 9), (25, 0), (22, 1), (29, 99), (30, 1), (54, 1)];
    hostile.extend(wrong.map(|(at, value)| {
        let mut bytes = answer.clone();
        bytes[at] = value;
        bytes
    }));
    let mut another = answer.clone();
    another[11] = 77;
    hostile.push(another);
    for frame in hostile {
        let [left, delivered] = bed.pass(UPLINK, std::slice::from_ref(&frame));
        assert_eq!((left.len(), delivered.len()), (0, 0), "{frame:?}");
        assert_eq!(bed.table.sending().next().unwrap().answer, None, "{frame:?}");
    }
    let [_, delivered] = bed.pass(UPLINK, std::slice::from_ref(&answer));
    assert!(delivered.is_empty());
    let kept = bed.table.sending().next().unwrap().answer.unwrap();
    assert_eq!((kept.number, kept.received), (1, 4));
    bed.assert_sums();
}

#[test]
fn a_flood_of_addresses_leaves_the_vm_its_default_rate() {
    let mut bed = Bed::new(false);
    for round in 0..20_u8 {
        let frames: Vec<_> = (0..50)
            .map(|to| {
                let mut frame = data(NEAR, to);
                frame[4] = round + 1;
                frame.truncate(60);
                frame
            })
            .collect();
        bed.pass(VM, &frames);
    }
    assert_eq!(bed.table.sending().count(), 256, "a VM's share of the table");
    bed.limit(8_000);
    let mut left = 0;
    for _ in 0..10 {
        left += bed.pass(VM, &vec![data(NEAR, 200); 100])[0].len();
    }
    assert!(left < 300, "the burst of the default rate: {left}");
    assert!(bed.drops(VM, DropReason::PairLimit) >= 700);
    bed.assert_sums();
}
