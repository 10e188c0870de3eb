//! These tests check the order of frames in an output queue, and the limits of the queue, with both
//! kinds of packet memory. The tests also check that no frame and no buffer is lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use penstock_qos::egress_policer::{EgressPolicer, Meter, Policed, Sharing, Terms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_units::{BitsPerSecond, Cycles, Nanos, Weight};
use proptest::prelude::*;

use super::*;
use crate::batch::Batch;
use crate::drop::DropReason;
use crate::offload::{F_NEEDS_CSUM, GSO_TCPV4, Offload, OffloadCaps};
use crate::port::{Buffers, Held, Pending, PortQueue, TxOutcome};

mod acks;
mod claims;
mod flows;
mod pair_lines;
mod vm_flows;

/// A test port with its own memory for a few frames.
#[derive(Debug, Default)]
struct OwnMemory {
    buffers: Vec<Option<Vec<u8>>>,
    sent: Vec<Vec<u8>>,
}

impl OwnMemory {
    fn take(&mut self, held: Held) -> Vec<u8> {
        self.buffers[held.buffer as usize].take().expect("a frame is given back once")
    }
}

impl Buffers for OwnMemory {
    fn free(&self) -> usize {
        self.buffers.iter().filter(|buffer| buffer.is_none()).count()
    }

    fn fill(&mut self, batch: &Batch, i: usize) -> Option<Held> {
        let at = self.buffers.iter().position(Option::is_none)?;
        let mut bytes = Vec::new();
        batch.copy_out(i, &mut bytes);
        self.buffers[at] = Some(bytes);
        Some(Held { buffer: u32::try_from(at).unwrap(), len: batch.frame(i).len })
    }

    fn bytes(&mut self, held: Held) -> Option<&mut [u8]> {
        self.buffers[held.buffer as usize].as_deref_mut()
    }

    fn send(&mut self, frames: &[Held]) -> TxOutcome {
        for &held in frames {
            let frame = self.take(held);
            self.sent.push(frame);
        }
        TxOutcome { frames: u32::try_from(frames.len()).unwrap(), ..TxOutcome::default() }
    }

    fn release(&mut self, held: Held) {
        self.take(held);
    }
}

impl PortQueue for OwnMemory {
    fn pending(&mut self, _: Cycles) -> Pending {
        Pending::No
    }
    fn rx_burst(&mut self, _: &mut Batch) {}
    fn tx_ready(&self) -> bool {
        true
    }
    fn caps(&self) -> OffloadCaps {
        OffloadCaps::NONE
    }
    fn tx_burst(&mut self, _: &Batch, _: &[u8]) -> TxOutcome {
        TxOutcome::default()
    }
    fn buffers(&mut self) -> Option<&mut dyn Buffers> {
        Some(self)
    }
}

fn terms(order: Order, excess: Excess) -> QueueTerms {
    QueueTerms {
        order,
        pacing: Pacing::Link(BitsPerSecond(100_000_000)),
        bound: Bound { bytes: 20_000, wait: Nanos::from_millis(2), excess },
        frames: 64,
        ..QueueTerms::default()
    }
}

fn source(port: u16) -> Source {
    let tenant = if port == 4 { 3 } else { port % 2 };
    Source { port, tenant, share: ShareTerms::default(), shares: 1 }
}

/// Returns a frame that contains the number of its sending port, a frame number, and the DSCP of
/// its sending port.
fn frame(port: u16, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.max(34)];
    bytes[..2].copy_from_slice(&port.to_be_bytes());
    bytes[2..6].copy_from_slice(&number.to_be_bytes());
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[15] = dscp_of(port) << 2;
    bytes
}

fn dscp_of(port: u16) -> u8 {
    8 * u8::try_from(port).expect("few ports")
}

/// Returns a class table in which each of the ports 1 to 3 has its own queue. If `held` is true,
/// frames of port 4 wait in a lane with a rate limit, and not in a queue of their own.
fn classes(weights: [u64; 4], held: bool) -> Arc<Classes> {
    let mut classes = Classes::new(4);
    for (queue, weight) in (0_u8..).zip(weights) {
        let weight = Weight::new(weight).expect("possible");
        classes =
            classes.with_mapped(dscp_of(queue.into()), queue).with_weight(queue.into(), weight);
    }
    if held {
        let tenant = source(4).tenant - 1;
        let lane = HeldLane { tenant, rate: BitsPerSecond(40_000_000) };
        classes = classes.clone().with_held(&[lane], &classes).expect("there are lanes");
    }
    Arc::new(classes)
}

/// A random event of the test: a frame arrives, time passes and due frames are sent, a source port
/// leaves, or the queue weights change.
#[derive(Clone, Debug)]
enum Step {
    Come(u16, usize),
    Go(u64),
    Leave(u16),
    Weigh([u64; 4]),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..5_u16, 14..3_000_usize).prop_map(|(port, len)| Step::Come(port, len)),
        4 => (0..800_000_u64).prop_map(Step::Go),
        1 => (0..5_u16).prop_map(Step::Leave),
        1 => proptest::array::uniform4(1..100_u64).prop_map(Step::Weigh),
    ]
}

/// Test bench with an output queue, its memory, and the frame numbers that should wait in the queue
/// for each source.
struct Bench {
    queue: OutputQueue,
    store: FrameStore,
    port: Vec<Box<dyn PortQueue>>,
    waits: BTreeMap<u16, VecDeque<u32>>,
    now: Nanos,
    number: u32,
    held: bool,
    /// Number of the sources' weights.
    shares: u32,
}

impl Bench {
    fn new(terms: QueueTerms, own: bool, held: bool) -> Self {
        let spare = if terms.bound.excess == Excess::Hold { memory::SPARE } else { 0 };
        let memory = OwnMemory { buffers: vec![None; 24 + spare], sent: Vec::new() };
        let port: Vec<Box<dyn PortQueue>> = if own { vec![Box::new(memory)] } else { Vec::new() };
        let (mut queue, store) = (OutputQueue::new(terms, 8, 8), FrameStore::new(24));
        queue.change(terms.pacing, None, classes([1; 4], held), Nanos(1));
        let (waits, now) = (BTreeMap::new(), Nanos(1));
        Self { queue, store, port, waits, now, number: 0, held, shares: 1 }
    }

    fn come(&mut self, port: u16, len: usize) {
        let mut batch = Batch::new();
        batch.push(&frame(port, self.number, len), Offload::NONE).expect("one frame fits");
        let memory = &mut Memory::of(&mut self.store, &mut self.port);
        let lost = &mut |_, _| unreachable!("no other frame makes room");
        let from = Source { shares: self.shares, ..source(port) };
        if self.queue.push(memory, (&batch, 0), &from, self.now, lost).is_ok() {
            self.waits.entry(port).or_default().push_back(self.number);
        }
        self.number += 1;
    }

    /// Removes the oldest frame number of a source from the expected frames, because the queue
    /// dropped this frame after it waited too long.
    fn forget_oldest(waits: &mut BTreeMap<u16, VecDeque<u32>>, port: u16) {
        waits.get_mut(&port).and_then(VecDeque::pop_front).expect("what is lost had waited");
    }

    fn go(&mut self, nanos: u64) {
        self.now += Nanos(nanos);
        let mut batch = Batch::new();
        let mut lost: BTreeMap<u16, usize> = BTreeMap::new();
        let memory = &mut Memory::of(&mut self.store, &mut self.port);
        self.queue.load(memory, &mut batch, (1, 32), self.now, &mut |port, _| {
            *lost.entry(port).or_default() += 1;
        });
        let sending = self.queue.sending().to_vec();
        if let [port] = &mut self.port[..] {
            let held: Vec<Held> = sending.iter().filter_map(Stored::in_port).collect();
            let buffers = port.buffers().expect("it has some");
            assert_eq!(buffers.send(&held).frames as usize, held.len());
            sending.iter().for_each(|s| Self::forget_oldest(&mut self.waits, s.source));
        } else {
            for (i, stored) in sending.iter().enumerate() {
                let mut bytes = Vec::new();
                batch.copy_out(i, &mut bytes);
                assert_eq!(bytes[..2], stored.source.to_be_bytes());
                let number = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
                let waits = self.waits.get_mut(&stored.source).expect("it came");
                // Earlier frames of the source had waited too long.
                let before = waits.iter().position(|other| *other == number).expect("in its turn");
                waits.drain(..=before);
                let lost = lost.entry(stored.source).or_default();
                *lost = lost.checked_sub(before).expect("in their order");
            }
        }
        for (port, count) in lost {
            (0..count).for_each(|_| Self::forget_oldest(&mut self.waits, port));
        }
        self.queue.sent(&mut Memory::of(&mut self.store, &mut self.port));
    }

    fn leave(&mut self, port: u16) {
        let waits = &mut self.waits;
        let memory = &mut Memory::of(&mut self.store, &mut self.port);
        self.queue.forget(memory, port, |port| Self::forget_oldest(waits, port));
    }

    /// Returns the number of frames that the queue's class counters counted, or the number of all
    /// frames if the queue has no class counters.
    fn counted(&self) -> u64 {
        let Some(lanes) = self.queue.lane_counters() else { return self.number.into() };
        let mut all = 0;
        for (queue, port) in (0..5).zip(0..) {
            let lane = lanes.read(queue);
            all += lane.frames + lane.drops + lane.backlog_frames;
            // Port 4 is not mapped. It waits in queue 0, as port 0 does, or in a lane.
            let ports = match queue {
                0 if !self.held => vec![0, 4],
                4 if !self.held => vec![],
                _ => vec![port],
            };
            let waits = ports.iter().filter_map(|port| self.waits.get(port)).map(VecDeque::len);
            assert_eq!(lane.backlog_frames, waits.sum::<usize>() as u64);
            assert_eq!(lane.backlog_bytes == 0, lane.backlog_frames == 0);
        }
        all
    }

    fn free(&mut self) -> u64 {
        Memory::of(&mut self.store, &mut self.port).free_bytes()
    }
}

proptest! {
    #[test]
    fn no_frame_and_no_buffer_is_lost(
        steps in proptest::collection::vec(step(), 1..120),
        order in 0..3_usize,
        drops in any::<bool>(),
        own in any::<bool>(),
        held in any::<bool>(),
    ) {
        let order = [Order::Fifo, Order::FairShare, Order::Wfq][order];
        let holds = order == Order::FairShare && !drops;
        let excess = if holds { Excess::Hold } else { Excess::Drop };
        let mut bench = Bench::new(terms(order, excess), own, held);
        let all = bench.free();
        for step in steps {
            match step {
                Step::Come(port, len) => bench.come(port, len),
                Step::Go(nanos) => bench.go(nanos),
                Step::Leave(port) => bench.leave(port),
                Step::Weigh(weights) => {
                    let pacing = bench.queue.terms().pacing;
                    bench.queue.change(pacing, None, classes(weights, held), bench.now);
                }
            }
            prop_assert_eq!(bench.counted(), u64::from(bench.number));
            let waiting: usize = bench.waits.values().map(VecDeque::len).sum();
            prop_assert_eq!(bench.queue.len(), waiting);
        }
        let waits = &mut bench.waits;
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        bench.queue.clear(memory, bench.now, |port| Bench::forget_oldest(waits, port));
        prop_assert!(bench.queue.is_empty() && bench.waits.values().all(VecDeque::is_empty));
        prop_assert_eq!(bench.free(), all);
        prop_assert_eq!(bench.counted(), u64::from(bench.number));
    }
}

/// Adds frame 0 of `batch`, which came from `port`, to a queue that has room.
fn put(queue: &mut OutputQueue, memory: &mut Memory<'_>, batch: &Batch, port: u16, now: Nanos) {
    queue.push(memory, (batch, 0), &source(port), now, &mut |_, _| unreachable!()).unwrap();
}

/// Advances the time `steps` times by 10 us, and sends at most one frame after each step. Returns
/// the number of sent frames of each queue.
fn pass(bench: &mut Bench, steps: usize) -> [u64; 3] {
    let counters = bench.queue.lane_counters().expect("it has queues");
    let left = || [0, 1, 2].map(|queue| counters.read(queue).frames);
    let before = left();
    for _ in 0..steps {
        bench.now += Nanos(10_000);
        let mut batch = Batch::new();
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        bench.queue.load(memory, &mut batch, (1, 1), bench.now, &mut |_, _| unreachable!());
        bench.queue.sent(memory);
    }
    core::array::from_fn(|queue| left()[queue] - before[queue])
}

#[test]
fn what_waits_stays_where_it_is_and_a_flow_keeps_its_order_when_the_map_changes() {
    let mut bench = Bench::new(terms(Order::Wfq, Excess::Drop), false, false);
    let pacing = bench.queue.terms().pacing;
    let counters = bench.queue.lane_counters().expect("it has queues");
    let backlog = || [0, 1, 2].map(|queue| counters.read(queue).backlog_frames);
    (0..3).for_each(|_| bench.come(1, 100));
    bench.come(2, 100);
    assert_eq!(backlog(), [0, 3, 1]);
    // Maps port 1 to queue 2, and ports 2 and 3 to queue 0.
    let map = Classes::new(3).with_mapped(dscp_of(1), 2);
    bench.queue.change(pacing, None, Arc::new(map), bench.now);
    for port in [1, 2, 3] {
        bench.come(port, 100);
    }
    assert_eq!(backlog(), [1, 4, 2], "behind their own; who has none waiting goes at once");
    assert_eq!(pass(&mut bench, 100), [1, 4, 2]);
    for port in [1, 2, 3] {
        bench.come(port, 100);
    }
    assert_eq!(backlog(), [2, 0, 1]);
    // A removed queue sends its remaining frames.
    bench.queue.change(pacing, None, Arc::new(Classes::new(1)), bench.now);
    assert_eq!((backlog(), pass(&mut bench, 100)), ([2, 0, 1], [2, 0, 1]));
}

#[test]
fn a_frame_whose_code_point_has_no_queue_is_counted_also_in_a_lane() {
    for held in [false, true] {
        let mut bench = Bench::new(terms(Order::Wfq, Excess::Drop), false, held);
        let pacing = bench.queue.terms().pacing;
        let counters = bench.queue.lane_counters().expect("it has queues");
        (0..4).for_each(|port| bench.come(port, 100));
        assert_eq!(counters.unmapped(), 0, "code point 0 needs no queue");
        bench.come(4, 100);
        assert_eq!(counters.unmapped(), 1);
        // The frames of port 2 that wait keep their queue, so the next frame joins them.
        bench.queue.change(pacing, None, Arc::new(Classes::new(3)), bench.now);
        bench.come(2, 100);
        assert_eq!(counters.unmapped(), 1);
        pass(&mut bench, 100);
        bench.come(2, 100);
        assert_eq!(counters.unmapped(), 2);
    }
}

#[test]
fn who_is_never_without_frames_leaves_its_old_queue_too() {
    let mut bench = Bench::new(terms(Order::Wfq, Excess::Drop), false, false);
    let (pacing, mut left) = (bench.queue.terms().pacing, [0; 3]);
    (0..3).for_each(|_| bench.come(1, 1_000));
    let map = Classes::new(3).with_mapped(dscp_of(1), 2);
    bench.queue.change(pacing, None, Arc::new(map), bench.now);
    let changed = bench.now;
    while left[2] == 0 {
        bench.come(1, 1_000);
        // A frame takes 82 us, so there is always one more.
        let more = pass(&mut bench, 8);
        left = core::array::from_fn(|queue| left[queue] + more[queue]);
    }
    let took = bench.now.saturating_sub(changed);
    assert!((100..102).contains(&(took.0 / 1_000_000)), "{took:?}, {left:?}");
}

#[test]
fn a_link_that_was_idle_does_not_send_faster_for_it() {
    let mut bench = Bench::new(terms(Order::Fifo, Excess::Drop), false, false);
    bench.go(50_000_000);
    (0..4).for_each(|_| bench.come(1, 1_226));
    // 1,250 bytes, with Ethernet's overhead, take 100 us at 100 Mbit/s.
    let mut left = Vec::new();
    for _ in 0..4 {
        bench.go(50_000);
        left.push(bench.queue.len());
        bench.go(50_000);
        left.push(bench.queue.len());
    }
    assert_eq!(left, [3, 2, 2, 1, 1, 0, 0, 0]);
}

/// Returns a queue in order of arrival whose frames wait for a limit of 8 Mbit/s, which is 1,000
/// bytes in a millisecond.
fn limited(bytes: u64) -> Bench {
    let bound = Bound { bytes, wait: Nanos::from_secs(1), excess: Excess::Drop };
    let terms = QueueTerms { bound, frames: 64, ..QueueTerms::default() };
    let mut bench = Bench::new(terms, false, false);
    bench.store = FrameStore::new(1_000);
    let rate = Some((BitsPerSecond(8_000_000), 1_000));
    let meter = Meter::new(Terms { bytes: rate, waits: true, ..Terms::default() });
    let limit = EgressPolicer::new(meter, None, Sharing::Strict);
    bench.queue.change(Pacing::None, Some(Arc::new(limit)), Arc::default(), Nanos::ZERO);
    bench
}

#[test]
fn frames_above_a_limit_wait_and_a_full_queue_says_which_limit_holds() {
    let mut bench = limited(20_000);
    (0..10).for_each(|_| bench.come(1, 1_000));
    let mut left = Vec::new();
    for _ in 0..6 {
        bench.go(0);
        left.push(bench.queue.len());
        bench.go(500_000);
        left.push(bench.queue.len());
    }
    // The bucket has tokens for one frame, and the next one puts it into debt.
    assert_eq!(left, [8, 8, 8, 7, 7, 7, 7, 6, 6, 6, 6, 5]);
    assert_eq!(bench.queue.limited_by(), Some(Policed::AboveVm));
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    let due = bench.queue.due(memory, bench.now, &mut |_| unreachable!());
    let pause = Nanos::from_micros(50);
    assert_eq!(due, Some(bench.now + Nanos::from_micros(1_000) + pause), "others may go first");
    // Without the limit, the frames need not wait.
    bench.queue.change(Pacing::None, None, Arc::default(), bench.now);
    bench.go(0);
    assert!(bench.queue.is_empty());
}

#[test]
fn a_long_wait_is_told_to_the_senders_by_marks_or_else_by_drops() {
    for ecn in [0, 2] {
        let mut bench = limited(1 << 20);
        let (mut marked, mut early, mut late) = (0, 0, 0);
        // Frames arrive twice as fast as they may leave.
        for step in 0..1_000_u64 {
            if bench.queue.len() < 40 {
                let mut bytes = frame(1, 0, 1_000);
                bytes[15] |= ecn;
                let mut batch = Batch::new();
                batch.push(&bytes, Offload::NONE).unwrap();
                let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
                put(&mut bench.queue, memory, &batch, 1, bench.now);
            }
            bench.now += Nanos::from_micros(500);
            let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
            let mut out = Batch::new();
            let mut lost = |_, why| match why {
                DropReason::EarlySignal => early += 1,
                _ => late += 1,
            };
            let now = bench.queue.load(memory, &mut out, (1, 32), bench.now, &mut lost);
            assert_eq!(now.trimmed, 0, "a single packet");
            marked += now.marked;
            let ce = (0..out.len()).filter(|i| out.head(*i)[15] & 3 == 3).count() as u64;
            assert_eq!(ce, now.marked, "in step {step}");
            bench.queue.sent(memory);
        }
        // 500 ms: none in the first 100 ms, then 50, 35, 29 ... ms apart, because a wait of 40 ms
        // is eight times the target.
        let signals = 8..=24;
        assert!(late == 0, "{late}");
        if ecn == 0 {
            assert!(marked == 0 && signals.contains(&early), "{marked} {early}");
        } else {
            assert!(early == 0 && signals.contains(&marked), "{marked} {early}");
        }
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        bench.queue.clear(memory, bench.now, |_| {});
        assert!(bench.store.is_empty(), "every cell is free again");
    }
}

#[test]
fn a_ceiling_signals_early_and_other_queues_do_not() {
    let bound = Bound { bytes: 1 << 20, wait: Nanos::from_secs(1), excess: Excess::Drop };
    let link = Pacing::Link(BitsPerSecond(1_000_000_000));
    let terms = QueueTerms {
        order: Order::Wfq,
        pacing: link,
        bound,
        frames: 1_024,
        ..QueueTerms::default()
    };
    let mut bench = Bench::new(terms, false, false);
    bench.store = FrameStore::new(2_000);
    bench.queue.change(link, None, classes([1; 4], true), Nanos::ZERO);
    let mut early = [0; 5];
    for _ in 0..5_000_u64 {
        // 80 Mbit/s arrive for a ceiling of 40 Mbit/s, and as much for a queue without a ceiling.
        for port in [4, 1] {
            let mut batch = Batch::new();
            batch.push(&frame(port, 0, 1_000), Offload::NONE).unwrap();
            let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
            if bench.queue.len() < 60 {
                put(&mut bench.queue, memory, &batch, port, bench.now);
            }
        }
        bench.now += Nanos::from_micros(100);
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        let mut lost = |port: u16, why| {
            assert_eq!(why, DropReason::EarlySignal);
            early[usize::from(port)] += 1;
        };
        bench.queue.load(memory, &mut Batch::new(), (1, 32), bench.now, &mut lost);
        bench.queue.sent(memory);
    }
    assert!((3..12).contains(&early[4]), "{early:?}");
    assert_eq!(early[1], 0);
}

#[test]
fn who_has_too_much_waiting_is_over_until_a_part_of_it_has_left() {
    let mut bench = Bench::new(terms(Order::FairShare, Excess::Hold), false, false);
    bench.store = FrameStore::new(1_000);
    let over = |bench: &mut Bench| {
        let memory = Memory::of(&mut bench.store, &mut bench.port);
        (bench.queue.is_over(3, &memory), bench.queue.is_under(3, &memory))
    };
    // Each frame takes 1,000 bytes on a link.
    (0..19).for_each(|_| bench.come(3, 976));
    assert_eq!(over(&mut bench), (false, true), "less than 31 of 32 parts");
    bench.come(3, 976);
    assert_eq!(over(&mut bench), (false, false), "more than that, but not too much");
    bench.now = Nanos::from_secs(1);
    assert_eq!(over(&mut bench), (false, false), "a long wait holds nobody");
    bench.come(3, 976);
    assert_eq!(over(&mut bench), (true, false));
    let memory = Memory::of(&mut bench.store, &mut bench.port);
    assert!(!bench.queue.is_over(2, &memory), "another VM has nothing");
}

#[test]
fn frames_of_held_senders_wait_in_the_store_if_the_ports_own_memory_is_full() {
    let bound = Bound { bytes: 8 << 20, ..Bound::default() };
    let terms = QueueTerms { frames: 4_096, bound, ..terms(Order::FairShare, Excess::Hold) };
    let mut bench = Bench::new(terms, true, false);
    bench.store = FrameStore::with_reserve(0, 100);
    let free = bench.free();
    for number in 0..100 {
        bench.come(1 + number % 3, 1_000);
        assert_eq!(bench.queue.len(), usize::from(number) + 1, "no frame is refused");
    }
    let memory = Memory::of(&mut bench.store, &mut bench.port);
    assert!([1, 2, 3].iter().all(|port| bench.queue.is_over(*port, &memory)));
    let (mut from_port, mut from_store) = (0, 0);
    while !bench.queue.is_empty() {
        bench.now += Nanos::from_millis(1);
        let mut batch = Batch::new();
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        bench.queue.load(memory, &mut batch, (1, 32), bench.now, &mut |_, _| unreachable!());
        let held: Vec<Held> = bench.queue.sending().iter().filter_map(Stored::in_port).collect();
        assert_eq!(held.len() + batch.len(), bench.queue.sending().len());
        (from_port, from_store) = (from_port + held.len(), from_store + batch.len());
        bench.queue.sent(memory);
        bench.port[0].buffers().expect("it has some").send(&held);
    }
    assert_eq!((from_port, from_store), (24, 76));
    assert!(bench.store.is_empty() && bench.free() == free);
}

#[test]
fn short_frames_count_with_their_memory() {
    let bound = Bound { bytes: 8 << 20, ..Bound::default() };
    let terms = QueueTerms { frames: 4_096, bound, ..terms(Order::FairShare, Excess::Hold) };
    let mut bench = Bench::new(terms, false, false);
    bench.store = FrameStore::with_reserve(300, 100);
    let mut waiting = 0;
    loop {
        let memory = Memory::of(&mut bench.store, &mut bench.port);
        if bench.queue.is_over(3, &memory) {
            break;
        }
        bench.come(3, 60);
        waiting += 1;
    }
    // At most half of the free memory: a third of all.
    assert!((90..=101).contains(&waiting), "{waiting}");
    // A VM with more than its part still finds room in the reserve.
    (0..300).for_each(|_| bench.come(3, 60));
    assert_eq!((bench.queue.len(), bench.free()), (waiting + 300, 0));
}

#[test]
fn a_vm_that_floods_leaves_places_to_others_also_if_its_frames_are_dropped() {
    let plain = terms(Order::FairShare, Excess::Drop);
    let bound = Bound { bytes: 8 << 20, ..plain.bound };
    let mut bench = Bench::new(QueueTerms { bound, ..plain }, false, false);
    bench.store = FrameStore::new(1_000);
    (0..100).for_each(|_| bench.come(3, 60));
    assert_eq!(bench.queue.len(), 32, "half of the places");
    (0..100).for_each(|_| bench.come(2, 60));
    assert_eq!(bench.queue.len(), 48, "half of the rest");
}

/// Sends frames of three tenants one by one, and returns their source ports. If `renewed` is true,
/// the worker gets a snapshot with other weights of other sources before each frame.
fn sources(renewed: bool) -> Vec<u16> {
    let terms = QueueTerms { pacing: Pacing::None, ..terms(Order::FairShare, Excess::Hold) };
    let mut bench = Bench::new(terms, false, false);
    let mut left = Vec::new();
    for _ in 0..300 {
        if renewed {
            bench.shares += 1;
        }
        for port in [1_u16, 2, 4] {
            while bench.waits.get(&port).map_or(0, VecDeque::len) < 3 {
                bench.come(port, 300 * (1 + usize::from(port)));
            }
        }
        let mut batch = Batch::new();
        let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
        bench.queue.load(memory, &mut batch, (1, 1), bench.now, &mut |_, _| unreachable!());
        let source = bench.queue.sending()[0].source;
        bench.queue.sent(memory);
        Bench::forget_oldest(&mut bench.waits, source);
        left.push(source);
    }
    left
}

#[test]
fn a_snapshot_with_the_same_weights_changes_no_departure() {
    assert_eq!(sources(true), sources(false));
}

#[test]
fn a_queue_adopts_each_change_of_its_home_once() {
    let home = QueueHome::new(terms(Order::Fifo, Excess::Drop), 8, 8);
    let mut queue = *home.take().expect("nobody has taken it");
    let mut store = FrameStore::new(1);
    let mut adopt = |queue: &mut OutputQueue, at| {
        let memory = &mut Memory::of(&mut store, &mut []);
        queue.adopt(&home, memory, Nanos(at), &mut |_| unreachable!("no frame waits"))
    };
    assert!(!adopt(&mut queue, 1), "nothing is new");
    let faster = Pacing::Link(BitsPerSecond(200_000_000));
    home.set_pacing(faster);
    assert!(adopt(&mut queue, 2) && queue.terms().pacing == faster);
    home.set_pacing(faster);
    assert!(!adopt(&mut queue, 3), "the same rate");
    let rate = Some((BitsPerSecond(8_000_000), 1_000));
    let meter = Meter::new(Terms { bytes: rate, waits: true, ..Terms::default() });
    let limit = Arc::new(EgressPolicer::new(meter, None, Sharing::Strict));
    home.set_limit(Some(Arc::clone(&limit)));
    assert!(adopt(&mut queue, 4));
    home.set_limit(Some(limit));
    assert!(!adopt(&mut queue, 5), "the same limit");
    home.set_limit(None);
    assert!(adopt(&mut queue, 6));
}

#[test]
fn who_is_held_has_its_rate_and_holds_up_nobody() {
    let terms = QueueTerms { pacing: Pacing::None, ..terms(Order::Wfq, Excess::Drop) };
    let mut bench = Bench::new(terms, false, true);
    let counters = bench.queue.lane_counters().expect("it has queues");
    let frames = |queue| counters.read(queue).frames;
    // 1,024 bytes on a link at 40 Mbit/s: 205 microseconds.
    for _ in 0..500 {
        bench.come(4, 1_000);
        bench.come(1, 1_000);
        bench.go(100_000);
    }
    assert_eq!(frames(1), 500, "each in its turn");
    let due = 50_000 * 40 / (8 * 1_024);
    assert!((due - 2..=due + 2).contains(&frames(4)), "{} of {due}", frames(4));
    // The queue says when the tenant may send again. A frame of another queue does not wait for
    // that.
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    let at = bench.queue.due(memory, bench.now, &mut |_| {}).expect("some wait");
    assert!(at > bench.now && bench.queue.is_held());
    bench.come(2, 100);
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    assert!(bench.queue.due(memory, bench.now, &mut |_| {}).is_some_and(|at| at <= bench.now));
    assert!(!bench.queue.is_held());
}
