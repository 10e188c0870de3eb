//! These tests check outputs with a queue for each flow: no frame is lost or sent twice, sparse
//! flows wait briefly, and only flows with long waits lose or mark frames.

use super::*;

/// Returns a queue with a queue for each flow, towards a link of `mbps` Mbit/s. The store has room
/// for all its frames.
fn flow_queues(mbps: u64, bytes: u64) -> Bench {
    let pacing = Pacing::Link(BitsPerSecond(mbps * 1_000_000));
    let bound = Bound { bytes, wait: Nanos::from_secs(1), excess: Excess::Drop };
    let terms = QueueTerms { pacing, bound, frames: 512, ..terms(Order::FqCodel, Excess::Drop) };
    let mut bench = Bench::new(terms, false, false);
    bench.store = FrameStore::new(2_000);
    bench
}

proptest! {
    /// Checks that an output with flow queues sends or reports each frame once, sends the frames of
    /// a flow in order, and frees all memory. The flow queues are those of the output, of each VM
    /// or of each code point.
    #[test]
    fn flow_queues_lose_no_frame_and_no_buffer(
        steps in proptest::collection::vec(step(), 1..120),
        own in any::<bool>(),
        order in 0..3_usize,
    ) {
        let order = [Order::FqCodel, Order::FairShare, Order::Wfq][order];
        let terms = QueueTerms { flows: true, ..terms(order, Excess::Drop) };
        let mut bench = Bench::new(terms, own, false);
        let (all, mut last) = (bench.free(), BTreeMap::new());
        let (mut came, mut lost, mut sent) = (0, 0, 0);
        for step in steps {
            let Bench { queue, store, port: ports, now, number, .. } = &mut bench;
            let memory = &mut Memory::of(store, ports);
            match step {
                Step::Come(port, len) => {
                    let mut batch = Batch::new();
                    batch.push(&frame(port, *number, len), Offload::NONE).expect("one fits");
                    let mut evicted = |_: u16, why: DropReason| {
                        assert_eq!(why, DropReason::QueueFull);
                        lost += 1;
                    };
                    let at = (&*batch, 0);
                    let pushed = queue.push(memory, at, &source(port), *now, &mut evicted);
                    came += usize::from(pushed.is_ok());
                    *number += 1;
                }
                Step::Go(nanos) => {
                    *now += Nanos(nanos);
                    let mut batch = Batch::new();
                    queue.load(memory, &mut batch, (1, 32), *now, &mut |_, _| lost += 1);
                    let sending = queue.sending().to_vec();
                    sent += sending.len();
                    for (i, stored) in sending.iter().enumerate().filter(|_| !own) {
                        let mut bytes = Vec::new();
                        batch.copy_out(i, &mut bytes);
                        let number = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
                        let before = last.insert(stored.source, number);
                        prop_assert!(before.is_none_or(|before| before < number));
                    }
                    queue.sent(memory);
                    if let [port] = &mut ports[..] {
                        let held: Vec<Held> = sending.iter().filter_map(Stored::in_port).collect();
                        let buffers = port.buffers().expect("it has some");
                        prop_assert_eq!(buffers.send(&held).frames as usize, held.len());
                    }
                }
                Step::Leave(port) => queue.forget(memory, port, |_| {
                    assert_eq!(order, Order::FairShare, "the frames belong to the receiver");
                    lost += 1;
                }),
                Step::Weigh(_) => {}
            }
            prop_assert_eq!(bench.queue.len() + lost + sent, came);
        }
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        bench.queue.clear(memory, bench.now, |_| lost += 1);
        prop_assert_eq!((bench.queue.len(), lost + sent), (0, came));
        prop_assert_eq!(bench.free(), all);
    }
}

#[test]
fn a_sparse_flow_waits_for_about_one_frame_of_a_flood() {
    let mut bench = flow_queues(100, 1 << 20);
    // A frame of the flood takes 123 us.
    (0..200).for_each(|_| bench.come(1, 1_514));
    let (mut waits, mut flood) = (Vec::new(), 0);
    for step in 0..2_000 {
        if step % 70 == 0 {
            bench.come(2, 60);
        }
        bench.now += Nanos::from_micros(10);
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        let lost = &mut |_, _| unreachable!("the queue is short");
        bench.queue.load(memory, &mut Batch::new(), (1, 32), bench.now, lost);
        for (frame, wait) in bench.queue.sending().iter().zip(bench.queue.waits()) {
            if frame.source == 2 {
                waits.push(*wait);
            } else {
                flood += 1;
            }
        }
        bench.queue.sent(memory);
    }
    assert!(waits.len() >= 28 && flood > 150, "{} of {flood}", waits.len());
    assert!(waits.iter().all(|wait| *wait < Nanos::from_micros(300)), "{waits:?}");
}

#[test]
fn a_full_output_takes_a_frame_from_the_largest_flow_for_another_flow() {
    let mut bench = flow_queues(100, 20_000);
    // Each frame takes 1,024 bytes on a link.
    (0..19).for_each(|_| bench.come(1, 1_000));
    let (mut batch, mut lost) = (Batch::new(), Vec::new());
    batch.push(&frame(2, 0, 1_000), Offload::NONE).unwrap();
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    let evicted = &mut |port: u16, why: DropReason| lost.push((port, why));
    bench.queue.push(memory, (&batch, 0), &source(2), bench.now, evicted).unwrap();
    assert_eq!((lost, bench.queue.len()), (vec![(1, DropReason::QueueFull)], 19));
}

/// Adds a frame of `len` bytes from port 2 to the queue. Returns whether the queue accepted it, and
/// the number of frames that the queue removed for it.
fn evicted_for(bench: &mut Bench, len: usize) -> (bool, usize) {
    let (mut batch, mut lost) = (Batch::new(), 0);
    batch.push(&frame(2, 0, len), Offload::NONE).unwrap();
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    let pushed =
        bench.queue.push(memory, (&batch, 0), &source(2), bench.now, &mut |_, _| lost += 1);
    (pushed.is_ok(), lost)
}

#[test]
fn one_frame_does_not_empty_the_flow_queues() {
    let mut bench = flow_queues(100, 20_000);
    (0..19).for_each(|_| bench.come(1, 1_000));
    assert_eq!(evicted_for(&mut bench, 30_000), (false, 0), "longer than the limit");
    // Other outputs fill the memory of which the flow queues had a part.
    let mut bench = flow_queues(100, 1 << 20);
    (0..500).for_each(|_| bench.come(1, 1_000));
    let fifo = QueueTerms {
        bound: Bound { bytes: 4 << 20, ..Bound::default() },
        frames: 2_000,
        ..terms(Order::Fifo, Excess::Drop)
    };
    let mut others = [OutputQueue::new(fifo, 8, 8), OutputQueue::new(fifo, 8, 8)];
    let mut batch = Batch::new();
    batch.push(&frame(3, 0, 1_000), Offload::NONE).unwrap();
    for other in &mut others {
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        let full = &mut |_, _| unreachable!();
        while other.push(memory, (&batch, 0), &source(3), bench.now, full).is_ok() {}
    }
    assert_eq!(evicted_for(&mut bench, 1_000), (false, 1), "no room, and one frame made way");
}

#[test]
fn only_a_flow_with_a_long_wait_is_marked_or_loses_frames() {
    for ecn in [0, 2] {
        let mut bench = flow_queues(8, 1 << 20);
        let (mut marked, mut early) = (0, 0);
        for step in 0..1_000_u64 {
            // A frame takes a millisecond. Port 1 sends more than that until 40 frames wait.
            let port = if step % 40 == 0 { 2 } else { 1 };
            if port == 2 || bench.queue.len() < 40 {
                let mut bytes = frame(port, 0, 976);
                bytes[15] |= ecn;
                let mut batch = Batch::new();
                batch.push(&bytes, Offload::NONE).unwrap();
                let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
                put(&mut bench.queue, memory, &batch, port, bench.now);
            }
            bench.now += Nanos::from_micros(500);
            let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
            let (mut out, mut late) = (Batch::new(), 0);
            let mut lost = |port: u16, why| match (port, why) {
                (1, DropReason::EarlySignal) => early += 1,
                _ => late += 1,
            };
            let now = bench.queue.load(memory, &mut out, (1, 32), bench.now, &mut lost);
            marked += now.marked;
            let ce = |i: &usize| out.head(*i)[15] & 3 == 3 && out.head(*i)[..2] == [0, 1];
            assert_eq!((0..out.len()).filter(ce).count() as u64, now.marked, "in step {step}");
            assert_eq!(late, 0);
            bench.queue.sent(memory);
        }
        // In 500 ms: none in the first 100 ms, then 50, 35, 29 ... ms apart, because a wait of
        // 40 ms is eight times the target.
        let (signals, others) = if ecn == 0 { (early, marked) } else { (marked, early) };
        assert!((8..=30).contains(&signals) && others == 0, "ECN {ecn}: {marked} {early}");
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        bench.queue.clear(memory, bench.now, |_| {});
        assert!(bench.store.is_empty(), "every cell is free again");
    }
}

#[test]
fn each_frame_of_an_l4s_flow_is_marked_if_it_waits_for_longer_than_a_millisecond() {
    // A frame takes 100 us, so the frames wait for 0 to 1.9 ms. Behind the last one, none waits.
    for (ecn, due) in [(0, 0), (1, 9), (2, 0)] {
        let mut bench = flow_queues(80, 1 << 20);
        for _ in 0..20 {
            let mut bytes = frame(1, 0, 976);
            bytes[15] |= ecn;
            let mut batch = Batch::new();
            batch.push(&bytes, Offload::NONE).unwrap();
            let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
            put(&mut bench.queue, memory, &batch, 1, bench.now);
        }
        let mut marked = 0;
        while !bench.queue.is_empty() {
            let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
            let lost = &mut |_: u16, _: DropReason| unreachable!("the wait is short");
            let now = bench.queue.load(memory, &mut Batch::new(), (1, 1), bench.now, lost);
            bench.queue.sent(memory);
            marked += now.marked;
            bench.now += Nanos::from_micros(100);
        }
        assert_eq!(marked, due, "ECN {ecn}");
    }
}

#[test]
fn flow_queues_cut_segments_that_take_more_than_a_millisecond() {
    let mut bytes = frame(1, 0, 34 + 32 + 30_000);
    // The length of the TCP header in words.
    bytes[46] = 0x80;
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 66,
        gso_size: 1_448,
        csum_start: 34,
        csum_offset: 16,
    };
    let mut batch = Batch::new();
    batch.push(&bytes, offload).unwrap();
    for shared in [false, true] {
        let cuts = |mbps| {
            let mut bench =
                if shared { vm_flows::output(mbps) } else { flow_queues(mbps, 1 << 20) };
            bench.queue.cuts((&batch, 0), &source(1), 1 << 20, Nanos(1))
        };
        // The segment takes 2.5 ms at 100 Mbit/s.
        assert_eq!([10, 100, 200, 300, 1_000].map(cuts), [true, true, true, false, false]);
    }
}
