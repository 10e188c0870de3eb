//! These tests check outputs at which each flow of a VM, or of a code point, has its own queue:
//! shares hold, sparse flows wait briefly, and a VM with many flows takes nothing from others.

use super::*;

const VMS: usize = 3;
/// Bytes on a link of all frames that a VM may have waiting.
const ROOM: u64 = 1 << 20;
const PLACES: u32 = 4_096;
/// Hash of the sparse flow.
const SPARSE: u32 = u32::MAX;

/// Returns a fair-share output with flow queues, towards a link of `mbps` Mbit/s. The store has
/// room for all its frames.
pub(super) fn output(mbps: u64) -> Bench {
    let pacing = Pacing::Link(BitsPerSecond(mbps * 1_000_000));
    let bound = Bound { bytes: ROOM, wait: Nanos::from_secs(1), excess: Excess::Drop };
    let order = terms(Order::FairShare, Excess::Drop);
    let terms = QueueTerms { pacing, bound, frames: PLACES, flows: true, ..order };
    let mut bench = Bench::new(terms, false, false);
    bench.store = FrameStore::new(20_000);
    bench
}

/// Returns the sender of VM `port`, the only one of its tenant. VM 1 has the weight 3.
fn vm(port: u16) -> Source {
    let weight = Weight::new(if port == 1 { 3 } else { 1 }).expect("possible");
    let share = ShareTerms { tenant: weight, vm: Weight::ONE };
    Source { port, tenant: port, share, shares: 1 }
}

/// Adds a frame of `len` bytes of a VM's flow with the hash `hash` and the ECN field `ecn`. Returns
/// whether the queue accepted the frame, and the ports of the frames that the queue removed for it.
fn come(bench: &mut Bench, (port, hash): (u16, u32), len: usize, ecn: u8) -> (bool, Vec<u16>) {
    let mut bytes = frame(port, 0, len);
    bytes[15] |= ecn;
    let (mut batch, mut lost) = (Batch::new(), Vec::new());
    batch.push(&bytes, Offload::NONE).expect("one frame fits");
    batch.frame_mut(0).hash = hash;
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    let evicted = &mut |port: u16, why: DropReason| {
        assert_eq!(why, DropReason::QueueFull);
        lost.push(port);
    };
    let pushed = bench.queue.push(memory, (&batch, 0), &vm(port), bench.now, evicted);
    (pushed.is_ok(), lost)
}

/// Returns a hash of one of `flows` flows, which are far apart.
fn hash(number: u32, flows: u32) -> u32 {
    (number % flows) * (u32::MAX / flows)
}

/// What the VMs got in 300 ms.
#[derive(Debug, Default)]
struct Got {
    /// Bytes of each VM on the link.
    sent: [u64; VMS],
    marked: u64,
    early: u64,
    /// Longest wait of a frame of the sparse flow of VM 2, and number of its frames.
    sparse: (Nanos, u32),
}

/// Lets VM 1 and VM 2 send bulk with the ECN field `ecn` at 100 Mbit/s, VM 1 in `flows` flows. VM 2
/// also sends a short frame every 5 ms.
fn beside_bulk(flows: u32, ecn: u8) -> Got {
    const STEP: u64 = 20;
    let (mut bench, mut batch, mut got) = (output(100), Batch::new(), Got::default());
    let (mut waiting, mut early) = ([0_u32; VMS], [0_u32; VMS]);
    for step in 0..300_000 / STEP {
        for port in [1, 2] {
            let of = if port == 1 { flows } else { 1 };
            while waiting[usize::from(port)] < 200 {
                let hash = hash(u32::try_from(step).unwrap() + waiting[usize::from(port)], of);
                assert_eq!(come(&mut bench, (port, hash), 1_514, ecn), (true, vec![]));
                waiting[usize::from(port)] += 1;
            }
        }
        if step % (5_000 / STEP) == 0 {
            assert_eq!(come(&mut bench, (2, SPARSE), 60, 0), (true, vec![]));
        }
        bench.now += Nanos::from_micros(STEP);
        batch.clear();
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        let lost = &mut |port: u16, why: DropReason| {
            assert_eq!(why, DropReason::EarlySignal);
            early[usize::from(port)] += 1;
            waiting[usize::from(port)] -= 1;
        };
        got.marked += bench.queue.load(memory, &mut batch, (5, 32), bench.now, lost).marked;
        for (frame, wait) in bench.queue.sending().iter().zip(bench.queue.waits()) {
            got.sent[usize::from(frame.source)] += u64::from(frame.wire());
            if frame.hash == SPARSE {
                got.sparse = (got.sparse.0.max(*wait), got.sparse.1 + 1);
            } else {
                waiting[usize::from(frame.source)] -= 1;
            }
        }
        bench.queue.sent(memory);
    }
    got.early = early.iter().map(|n| u64::from(*n)).sum();
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    bench.queue.clear(memory, bench.now, |_| {});
    assert!(bench.store.is_empty(), "every cell is free again");
    got
}

#[test]
fn a_sparse_flow_does_not_wait_behind_its_vms_bulk_and_shares_stay() {
    for (flows, ecn) in [(1, 2), (1, 0), (1_024, 2), (1_024, 0)] {
        let got = beside_bulk(flows, ecn);
        let [_, first, second] = got.sent;
        assert!(first.abs_diff(3 * second) < 60_000, "{flows} flows, ECN {ecn}: {got:?}");
        // 300 ms at 100 Mbit/s are 3.75 MB.
        assert!(first + second > 3_700_000, "{got:?}");
        let (wait, pings) = got.sparse;
        assert!(wait < Nanos::from_millis(3) && pings >= 58, "{flows} flows, ECN {ecn}: {got:?}");
        // The bulk of VM 2 waits for 100 ms.
        let (signals, others) =
            if ecn == 0 { (got.early, got.marked) } else { (got.marked, got.early) };
        assert!(signals >= 5 && others == 0, "{flows} flows, ECN {ecn}: {got:?}");
    }
}

#[test]
fn a_vm_has_no_more_frames_than_its_limits_and_takes_no_room_from_others() {
    // Long frames reach the limit on bytes, and short frames half of the places.
    for (len, most) in [(1_000, ROOM / 1_024), (60, u64::from(PLACES) / 2)] {
        let mut bench = output(100);
        let mut lost = 0;
        for number in 0..5_000 {
            let (accepted, removed) = come(&mut bench, (1, hash(number, 1_024)), len, 0);
            assert!(accepted && removed.iter().all(|port| *port == 1));
            lost += removed.len() as u64;
        }
        assert_eq!((bench.queue.len() as u64, lost), (most, 5_000 - most), "{len} bytes");
        let (accepted, _) = come(&mut bench, (1, SPARSE), 60, 0);
        assert!(accepted, "another flow of the VM loses a frame");
        for number in 0..500 {
            assert_eq!(come(&mut bench, (2, hash(number, 7)), len, 0), (true, vec![]));
        }
    }
}

#[test]
fn a_queue_by_code_point_has_a_queue_for_each_flow() {
    const OTHER: u32 = 1 << 31;
    let bound = Bound { bytes: 20_000, wait: Nanos::from_secs(1), excess: Excess::Drop };
    let of_queue = QueueTerms { bound, flows: true, ..terms(Order::Wfq, Excess::Drop) };
    let mut bench = Bench::new(of_queue, false, false);
    bench.store = FrameStore::new(2_000);
    // Each frame takes 1,024 bytes on a link. Port 1 has a code point with a queue of its own.
    for port in [1, 2] {
        for _ in 0..19 {
            assert_eq!(come(&mut bench, (port, 0), 1_000, 0), (true, vec![]));
        }
    }
    // The flow uses the quantum of a new flow.
    let go = |bench: &mut Bench| {
        bench.now += Nanos::from_millis(1);
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        let lost = &mut |_: u16, _: DropReason| unreachable!("the wait is short");
        bench.queue.load(memory, &mut Batch::new(), (5, 1), bench.now, lost);
        let sent = bench.queue.sending()[0];
        bench.queue.sent(memory);
        (sent.source, sent.hash)
    };
    (0..8).for_each(|_| assert_eq!(go(&mut bench).1, 0));
    let before = bench.queue.len();
    let mut lost = Vec::new();
    while lost.is_empty() {
        let (accepted, now_lost) = come(&mut bench, (1, OTHER), 1_000, 0);
        assert!(accepted);
        lost = now_lost;
    }
    assert_eq!(lost, [1]);
    assert!(bench.queue.len() > before);
    let mut order = Vec::new();
    while !bench.queue.is_empty() {
        order.push(go(&mut bench));
    }
    let first = order.iter().find(|(port, _)| *port == 1);
    assert_eq!(first, Some(&(1, OTHER)), "{order:?}");
    let counters = bench.queue.lane_counters().expect("the output has classes");
    let read = [1, 2].map(|queue| counters.read(queue));
    assert_eq!(read.map(|lane| (lane.drops, lane.backlog_frames)), [(1, 0), (0, 0)]);
}
