//! Behind a shaper or a slow rate limit, large segments (TSO) of a guest leave part by part, from
//! all queue pairs of the port together, and nothing is lost or counted twice.

use std::sync::Arc;

use penstock_dataplane::counters::{PortCounters, PortReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::ingress_policer::IngressPolicer;
use penstock_dataplane::offload::{F_NEEDS_CSUM, GSO_TCPV4, Offload, OffloadCaps};
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::queue::{ShapeTerms, ShaperKind};
use penstock_dataplane::snapshot::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};
use penstock_qos::policer::{Limit, Policer, Spec};
use penstock_qos::shaper::Smoothing;
use penstock_units::{BitsPerSecond, Cycles, Nanos, PortId, QueueId, Vid};

use crate::common;

const HZ: u64 = 1_000_000_000;
const MS: u64 = HZ / 1_000;
const HEADERS: usize = 54;
const MSS: usize = 1_460;
/// Bytes of a part with its FCS, as a shaper counts them.
const PART: u64 = (HEADERS + MSS) as u64 + 4;

type Core = common::Core<10>;

/// A worker with a sender (port 0) and a receiver (port 1).
struct Bed {
    worker: Worker<Core>,
    core: Core,
    senders: Vec<MemoryDriver>,
    receiver: MemoryDriver,
    counters: [Arc<PortCounters>; 2],
    generation: u64,
}

impl Bed {
    fn new(pairs: usize, policy: impl FnOnce(&mut PortPolicy)) -> Self {
        let core = Core::default();
        let config = WorkerConfig { max_ports: 2, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, core.clone(), None);
        let (mut senders, mut queues) = (Vec::new(), Vec::<Box<dyn PortQueue>>::new());
        for _ in 0..pairs {
            let (queue, driver) = memory_queue(256, OffloadCaps::ALL);
            senders.push(driver);
            queues.push(Box::new(queue));
        }
        let (queue, receiver) = memory_queue(8_192, OffloadCaps::ALL);
        let counters: [Arc<PortCounters>; 2] = Default::default();
        assert!(worker.attach(PortId(0), queues, Arc::clone(&counters[0])).is_ok());
        assert!(worker.attach(PortId(1), vec![Box::new(queue)], Arc::clone(&counters[1])).is_ok());
        let mut bed = Self { worker, core, senders, receiver, counters, generation: 0 };
        bed.set(policy);
        // The switch learns where the receiver is.
        let mut hello = segment(0, 100, false).bytes;
        hello[..6].fill(0xff);
        hello[6..12].copy_from_slice(&[0x52, 0, 0, 0, 0, 1]);
        assert!(bed.receiver.send(MemoryFrame::plain(hello)));
        bed.run(MS);
        bed.senders.iter().for_each(|driver| while driver.receive().is_some() {});
        bed
    }

    /// Gives the sender a new policy.
    fn set(&mut self, change: impl FnOnce(&mut PortPolicy)) {
        self.generation += 1;
        let mut sender = PortPolicy::access(0, Some(1), Vid::UNTAGGED, 0);
        change(&mut sender);
        let receiver = PortPolicy::access(1, Some(1), Vid::UNTAGGED, 0);
        let policies = [sender, receiver].map(|policy| Some(Arc::new(policy.finish())));
        let domain = Domain { tenant: Some(1), vid: 0, members: [0, 1].into(), fdb_limit: 64 };
        let snapshot = Snapshot::new(self.generation, policies.into(), vec![domain], vec![], 300);
        self.worker.swap_snapshot(Arc::new(snapshot));
    }

    /// Runs the worker for `cycles` cycles. Returns the received frames with the times at which
    /// they arrived.
    fn run(&mut self, cycles: u64) -> Vec<(u64, MemoryFrame)> {
        let (end, mut got) = (self.core.now().0 + cycles, Vec::new());
        while self.core.now().0 < end {
            if self.worker.turn() == Turn::Idle {
                self.core.0.advance_to(Cycles((self.core.now().0 + 1_000).min(end)));
                self.worker.rested();
            }
            let now = self.core.now().0;
            got.extend(core::iter::from_fn(|| self.receiver.receive()).map(|frame| (now, frame)));
        }
        got
    }

    fn adds_up(&self) {
        for counters in &self.counters {
            let reading = counters.read();
            assert_eq!(reading.unaccounted(), 0, "{reading:?}");
        }
    }
}

/// Returns a TCP segment from the sender to the receiver, with `payload` bytes whose sequence
/// begins at `sequence`, and with a VLAN tag if `tagged` is true.
fn segment(sequence: usize, payload: usize, tagged: bool) -> MemoryFrame {
    let mut bytes = vec![0x52, 0, 0, 0, 0, 1, 0x52, 0, 0, 0, 0, 2];
    if tagged {
        bytes.extend([0x81, 0, 0, 0]);
    }
    let l3 = u16::try_from(bytes.len() + 2).unwrap();
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend(u16::try_from(40 + payload).unwrap().to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0, 80, 0, 81]);
    bytes.extend(u32::try_from(sequence).unwrap().to_be_bytes());
    bytes.extend([0, 0, 0, 1, 0x50, 0x10, 1, 1, 0, 0, 0, 0]);
    bytes.extend((sequence..sequence + payload).map(|at| u8::try_from(at % 251).unwrap()));
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: l3 + 40,
        gso_size: u16::try_from(MSS).unwrap(),
        csum_start: l3 + 20,
        csum_offset: 16,
    };
    MemoryFrame { bytes, offload }
}

fn shaped(rate: u64) -> impl Fn(&mut PortPolicy) {
    let kind = ShaperKind::Smooth(Smoothing::DEFAULT);
    move |policy| policy.shape = Some(ShapeTerms { rate: BitsPerSecond(rate), kind })
}

/// Gives a port a limit of `cir` bits per second for which its frames wait.
fn policed(cir: u64) -> impl FnOnce(&mut PortPolicy) {
    let limit = Limit::SingleRate { cir: BitsPerSecond(cir), cbs: 10_000, ebs: 0 };
    let policer = Arc::new(Policer::new(Spec::new(limit).unwrap().waiting()));
    let limits = IngressPolicer { own: vec![policer], links: Vec::new() };
    move |policy| policy.ingress_policer = Some(Arc::new(limits))
}

/// Checks that the frames are the parts of one stream in order, without gaps, and ready to be sent.
/// Returns the number of payload bytes.
fn payload_in_order(frames: &[(u64, MemoryFrame)]) -> usize {
    frames.iter().fold(0, |next, (_, frame)| {
        assert_eq!(frame.offload, Offload::NONE);
        let sequence = u32::from_be_bytes(frame.bytes[38..42].try_into().unwrap());
        assert_eq!(sequence as usize, next);
        let payload = &frame.bytes[HEADERS..];
        let due = (next..next + payload.len()).map(|at| u8::try_from(at % 251).unwrap());
        assert!(due.eq(payload.iter().copied()), "from byte {next}");
        next + payload.len()
    })
}

#[test]
fn the_parts_of_a_segment_are_spaced_at_the_rate() {
    for rate in [2_000_000, 100_000_000, 1_000_000_000] {
        let mut bed = Bed::new(1, shaped(rate));
        let payload = 40 * MSS;
        // Enough for 200 ms, at least three segments.
        let segments = (usize::try_from(rate).unwrap() / 8 / 5 / payload).max(3);
        let (mut sent, mut got) = (0, Vec::new());
        while sent < segments || got.len() < 40 * segments {
            while sent < segments && bed.senders[0].send(segment(sent * payload, payload, false)) {
                sent += 1;
            }
            got.extend(bed.run(MS));
            assert!(bed.core.now().0 < 3 * HZ, "{} of {}", got.len(), 40 * segments);
        }
        assert_eq!(payload_in_order(&got), segments * payload);
        // A token bucket's worth of frames may leave early; the rest leaves at the rate.
        let after = got.len() / 2;
        let time = got[got.len() - 1].0 - got[after].0;
        let bits = (got.len() - 1 - after) as u64 * PART * 8;
        let off = bits as f64 * 1e9 / time as f64 / rate as f64;
        assert!((0.9..1.1).contains(&off), "{rate}: {off}");
        let group = if rate < 20_000_000 { 1 } else { (rate / 8 / 2_000 / 1_500).clamp(1, 43) };
        let most = got.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).max().unwrap();
        assert!(most as u64 <= group, "{rate}: {most} frames at once, {group} allowed");
        let reading = bed.counters[0].read();
        assert_eq!((reading.rx_cut, reading.rx_tso), (segments as u64, segments as u64));
        assert_eq!((reading.queued, reading.dropped()), (0, 0));
        bed.adds_up();
    }
}

#[test]
fn all_queue_pairs_of_a_port_share_one_shaper() {
    let mut bed = Bed::new(3, shaped(20_000_000));
    let mut bits = 0;
    for _ in 0..1_000 {
        for driver in &bed.senders {
            while driver.unsent() < 2 {
                assert!(driver.send(segment(0, 20 * MSS, false)));
            }
        }
        bits += bed.run(MS).len() as u64 * PART * 8;
    }
    let off = bits as f64 / 20e6;
    assert!((0.98..1.06).contains(&off), "{off}");
    let unsent: Vec<_> = bed.senders.iter().map(MemoryDriver::unsent).collect();
    assert_eq!(unsent, [2; 3].map(|n| n.min(2)), "each pair is served in its turn");
    bed.adds_up();
}

#[test]
fn a_slow_limit_cuts_and_a_fast_one_does_not() {
    for (cir, cuts) in [(10_000_000, true), (1_000_000_000, false)] {
        let mut bed = Bed::new(1, policed(cir));
        let (mut sent, mut most, mut bytes) = (0, 0, 0);
        for _ in 0..1_000 {
            while bed.senders[0].unsent() < 4 {
                assert!(bed.senders[0].send(segment(sent, 40 * MSS, false)));
                sent += 40 * MSS;
            }
            for (_, frame) in bed.run(MS) {
                most = most.max(frame.bytes.len());
                bytes += frame.bytes.len() as u64;
            }
        }
        assert_eq!(most > 2_000, !cuts, "{cir}: the longest frame has {most} bytes");
        assert_eq!(bed.counters[0].read().rx_cut > 0, cuts);
        let off = (bytes * 8) as f64 / cir as f64;
        let floor = if cuts { 0.97 } else { 0.9 };
        assert!((floor..1.02).contains(&off), "{cir}: {off}");
        bed.adds_up();
    }
}

#[test]
fn other_frames_of_a_batch_keep_their_place_and_bad_metadata_is_dropped() {
    let mut bed = Bed::new(1, shaped(500_000_000));
    let plain = |sequence| MemoryFrame::plain(segment(sequence, 100, false).bytes);
    let mut bad = segment(0, 3 * MSS, false);
    bad.offload.csum_start += 1;
    let frames = [plain(0), segment(100, 3 * MSS, true), bad, plain(100 + 3 * MSS)];
    frames.into_iter().for_each(|frame| assert!(bed.senders[0].send(frame)));
    let got = bed.run(20 * MS);
    assert_eq!(payload_in_order(&got), 200 + 3 * MSS, "a tag of VLAN 0 is taken off each part");
    let reading = bed.counters[0].read();
    assert_eq!(reading.drops[DropReason::BadOffload as usize], 1);
    assert_eq!((reading.rx_frames, reading.rx_cut, reading.queued), (4, 1, 0));
    bed.adds_up();
}

#[test]
fn segments_with_all_options_are_cut_too() {
    let mut bed = Bed::new(1, shaped(100_000_000));
    let MemoryFrame { mut bytes, mut offload } = segment(0, 4 * MSS, false);
    // 40 bytes of options in the IP header and in the TCP header, which ends at byte 134.
    let total = u16::try_from(120 + 4 * MSS).unwrap();
    (bytes[14], bytes[46]) = (0x4f, 0xf0);
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    for at in [54, 34] {
        drop(bytes.splice(at..at, [1; 40]));
    }
    (offload.csum_start, offload.hdr_len) = (74, 134);
    assert!(bed.senders[0].send(MemoryFrame { bytes, offload }));
    let got = bed.run(20 * MS);
    assert_eq!(got.len(), 4);
    for (_, frame) in &got {
        assert_eq!(frame.bytes.len(), 134 + MSS);
        assert_eq!(frame.bytes[94..134], [1; 40]);
    }
    assert_eq!(bed.counters[0].read().rx_cut, 1);
    bed.adds_up();
}

#[test]
fn tiny_parts_pass_and_take_no_more_frames_in_a_turn_than_others() {
    let mut bed = Bed::new(1, shaped(100_000_000));
    let mut hostile = segment(0, 2_000, false);
    hostile.offload.gso_size = 1;
    assert!(bed.senders[0].send(hostile));
    let got = bed.run(100 * MS);
    assert_eq!((got.len(), payload_in_order(&got)), (2_000, 2_000));
    let most = got.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).max().unwrap();
    assert!(most <= 32, "{most}");
    bed.adds_up();
}

#[test]
fn without_its_shaper_a_port_sends_what_was_held_and_then_whole_segments() {
    let mut bed = Bed::new(1, shaped(1_000_000));
    for sequence in [0, 20 * MSS] {
        assert!(bed.senders[0].send(segment(sequence, 20 * MSS, false)));
    }
    let first = bed.run(50 * MS);
    assert!((1..15).contains(&first.len()), "{}", first.len());
    assert!(bed.counters[0].read().queued > 0);
    bed.set(|_| {});
    let rest = bed.run(5 * MS);
    assert_eq!(first.len() + rest.len(), 21, "20 parts and a whole segment");
    assert!(rest.last().unwrap().1.offload.is_gso());
    assert_eq!(bed.counters[0].read().queued, 0);
    bed.adds_up();
}

#[test]
fn a_queue_pair_that_moves_leaves_no_part_behind_and_none_is_overtaken() {
    let mut bed = Bed::new(2, shaped(1_000_000));
    assert!(bed.senders[0].send(segment(0, 20 * MSS, false)));
    let mut got = bed.run(50 * MS);
    assert!(got.len() < 20);
    assert!(bed.worker.release(PortId(0), QueueId(0)).is_some());
    got.extend(bed.run(0));
    got.extend(core::iter::from_fn(|| bed.receiver.receive()).map(|frame| (0, frame)));
    assert_eq!((got.len(), payload_in_order(&got)), (20, 20 * MSS));
    assert_eq!(bed.counters[0].read().queued, 0);
    bed.adds_up();
}

#[test]
fn a_late_worker_does_not_send_what_it_missed_in_one_burst() {
    let mut bed = Bed::new(1, shaped(2_000_000));
    assert!(bed.senders[0].send(segment(0, 40 * MSS, false)));
    let before = bed.run(20 * MS).len();
    bed.core.0.advance_to(Cycles(bed.core.now().0 + 150 * MS));
    let after = bed.run(MS).len();
    // The shaper's credit is worth 50 ms, which are eight frames.
    assert!(before < 10 && after <= 10, "{before}, then {after} at once");
}

#[test]
fn a_limit_of_what_leaves_the_host_cuts_nothing_for_neighbours() {
    let mut bed = Bed::new(1, |policy| {
        let rate = Some((BitsPerSecond(10_000_000), 10_000));
        let terms = Terms { bytes: rate, waits: true, ..Terms::default() };
        let limit = EgressPolicer::new(Meter::new(terms), None, Sharing::Strict);
        policy.tenant_policer = Some(Arc::new(limit));
    });
    for sequence in (0..5).map(|n| n * 40 * MSS) {
        assert!(bed.senders[0].send(segment(sequence, 40 * MSS, false)));
    }
    let got = bed.run(10 * MS);
    assert!(got.len() == 5 && got.iter().all(|(_, frame)| frame.offload.is_gso()));
}

#[test]
fn what_a_port_held_is_counted_as_lost_when_it_leaves() {
    let mut bed = Bed::new(1, shaped(1_000_000));
    assert!(bed.senders[0].send(segment(0, 20 * MSS, false)));
    let got = bed.run(50 * MS).len() as u64;
    assert!(got < 20);
    bed.worker.detach(PortId(0));
    let reading = bed.counters[0].read();
    assert_eq!(reading.drops[DropReason::QueueGone as usize], 20 - got);
    bed.adds_up();
}

/// Runs a port with a limit of 200 Mbit/s for a second, with `waiting` segments of 58 kB in its
/// ring at all times. Returns the port's counters and the received frames.
fn behind_a_limit(waiting: usize, ecn: u8) -> (PortReading, Vec<(u64, MemoryFrame)>) {
    let mut bed = Bed::new(1, policed(200_000_000));
    let mut got = Vec::new();
    for _ in 0..1_000 {
        while bed.senders[0].unsent() < waiting {
            let mut frame = segment(0, 40 * MSS, false);
            frame.bytes[15] |= ecn;
            assert!(bed.senders[0].send(frame));
        }
        got.extend(bed.run(MS));
    }
    bed.adds_up();
    (bed.counters[0].read(), got)
}

#[test]
fn a_long_ring_behind_a_limit_signals_early_and_loses_one_packet_at_a_time() {
    // A segment takes 2.4 ms at the limit.
    let (quiet, _) = behind_a_limit(2, 0);
    assert_eq!((quiet.rx_trimmed, quiet.rx_marked, quiet.dropped()), (0, 0, 0));
    let (full, got) = behind_a_limit(10, 0);
    assert!((5..60).contains(&full.rx_trimmed), "{}", full.rx_trimmed);
    assert_eq!((full.rx_marked, full.dropped()), (0, 0));
    let trimmed = got.iter().filter(|(_, frame)| frame.bytes.len() == HEADERS + 39 * MSS);
    assert_eq!(trimmed.count() as u64, full.rx_trimmed);
    let (marked, got) = behind_a_limit(10, 2);
    assert!((5..60).contains(&marked.rx_marked), "{}", marked.rx_marked);
    assert_eq!((marked.rx_trimmed, marked.dropped()), (0, 0));
    let ce = got.iter().filter(|(_, frame)| frame.bytes[15] & 3 == 3).count();
    assert_eq!(ce as u64, marked.rx_marked);
}

#[test]
fn single_packets_of_tcp_are_dropped_as_signals_and_others_wait_without_a_loss() {
    for (proto, drops) in [(6, 5..60), (17, 0..1)] {
        let mut bed = Bed::new(1, policed(10_000_000));
        let mut packet = segment(0, MSS, false).bytes;
        packet[23] = proto;
        for _ in 0..1_000 {
            while bed.senders[0].unsent() < 20 {
                assert!(bed.senders[0].send(MemoryFrame::plain(packet.clone())));
            }
            bed.run(MS);
        }
        let reading = bed.counters[0].read();
        let dropped = reading.drops[DropReason::EarlySignal as usize];
        assert!(drops.contains(&dropped), "protocol {proto}: {dropped}");
        assert_eq!(reading.dropped(), dropped);
        bed.adds_up();
    }
}

#[test]
fn a_window_may_change_while_frames_wait() {
    let mut bed = Bed::new(1, shaped(4_000_000));
    let mut bits = 0;
    for second in 0..2 {
        for _ in 0..1_000 {
            while bed.senders[0].unsent() < 2 {
                assert!(bed.senders[0].send(segment(0, 20 * MSS, false)));
            }
            bits += bed.run(MS).len() as u64 * PART * 8;
        }
        if second == 0 {
            let (width, interval) = (Nanos::from_micros(100), Nanos::from_millis(100));
            let kind = ShaperKind::Smooth(Smoothing { width, interval });
            let terms = ShapeTerms { rate: BitsPerSecond(4_000_000), kind };
            bed.set(|policy| policy.shape = Some(terms));
        }
    }
    let off = bits as f64 / 8e6;
    assert!((0.97..1.06).contains(&off), "{off}");
    bed.adds_up();
}
