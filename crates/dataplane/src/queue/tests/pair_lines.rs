//! These tests check that frames above the limits of their pairs of VMs wait in lines of their own.

use penstock_qos::pair_table::{Delayed, PAIRS_OF_VM_MAX, PairLimits, PairTable, Sending, VmRates};
use penstock_qos::policer::{RATE_MAX, Size};

use super::*;
use crate::finish::{checksum, sum};
use crate::headers;
use crate::ingress_policer::{link_bytes, on_wire};

const MBIT: u64 = 1_000_000;
const FAR: u64 = 0x0200_0000_0007;

/// What becomes of a new frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passes,
    Waits,
    Refused,
}

/// An output with pairs of VMs.
struct Uplink {
    home: Arc<QueueHome>,
    queue: OutputQueue,
    store: FrameStore,
    table: Arc<PairTable>,
    now: Nanos,
    /// Frames that were dropped while they waited.
    lost: Vec<(u16, DropReason)>,
}

/// Returns the limits of an uplink of 10 Gbit/s.
fn uplink_terms() -> QueueTerms {
    QueueTerms {
        order: Order::Wfq,
        pacing: Pacing::Link(BitsPerSecond(10_000 * MBIT)),
        bound: Bound { bytes: 1 << 20, wait: Nanos::from_secs(1), excess: Excess::Drop },
        frames: 1_024,
        ..QueueTerms::default()
    }
}

impl Uplink {
    fn new(cells: usize) -> Self {
        Self::with_terms(cells, uplink_terms())
    }

    fn with_terms(cells: usize, terms: QueueTerms) -> Self {
        let table = Arc::new(PairTable::with_limits(8, 3, PairLimits::Guarantees));
        let rates = VmRates { default: RATE_MAX, send: RATE_MAX, receive: RATE_MAX };
        (0..8).for_each(|port| table.limit(port, rates));
        let home = QueueHome::new(terms, 8, 8);
        home.set_classes(classes([1; 4], false));
        home.set_pairs(Some(&table));
        let queue = *home.take().expect("nobody has taken it");
        let (store, now) = (FrameStore::new(cells), Nanos::from_secs(1));
        let mut uplink = Self { home, queue, store, table, now, lost: Vec::new() };
        assert!(uplink.adopt().is_empty(), "no frame waits yet");
        uplink
    }

    /// Lets the queue adopt the changes of its home. Returns the ports of the frames that are lost.
    fn adopt(&mut self) -> Vec<u16> {
        let mut lost = Vec::new();
        let memory = &mut Memory::of(&mut self.store, &mut []);
        self.queue.adopt(&self.home, memory, self.now, &mut |port| lost.push(port));
        lost
    }

    /// Limits the pair of a port and an address to `rate` bits per second.
    fn limit(&self, port: u16, mac: u64, rate: u64) {
        self.table.send(port, mac, Size { bytes: 60, frames: 1 }, Nanos(1));
        let rate = BitsPerSecond(rate);
        for read in self.table.sending() {
            let key = read.pair.key;
            if (key.port(), key.mac()) == (port, mac) {
                self.table.set_sender(read.pair, rate, (rate, rate, rate));
            }
        }
    }

    /// Offers a frame that takes `len` bytes on a link.
    fn offer(&mut self, (port, mac): (u16, u64), number: u32, len: usize) -> Fate {
        let mut batch = Batch::new();
        batch.push(&frame(port, number, len - 24), Offload::NONE).expect("one frame fits");
        let memory = &mut Memory::of(&mut self.store, &mut []);
        let (from, now) = (source(port), self.now);
        let size = Size { bytes: link_bytes(on_wire(&batch, 0)), frames: 1 };
        match self.table.send(port, mac, size, now) {
            Sending::Refuse => Fate::Refused,
            Sending::Wait(Delayed { slot, .. }) => {
                let pair = (&self.table, slot);
                if self.queue.delay(memory, (&batch, 0), &from, pair, now).is_ok() {
                    return Fate::Waits;
                }
                self.table.refuse(slot, size);
                Fate::Refused
            }
            Sending::Free | Sending::Pass | Sending::Ask(_) | Sending::Signal(_) => {
                let lost = &mut |_, _| unreachable!("no other frame makes room");
                self.queue.push(memory, (&batch, 0), &from, now, lost).expect("there is room");
                Fate::Passes
            }
        }
    }

    /// Offers `count` frames of 1,000 bytes on a link. Returns how many pass, wait and are refused.
    fn offer_all(&mut self, pair: (u16, u64), count: u32) -> [usize; 3] {
        let fates: Vec<Fate> = (0..count).map(|number| self.offer(pair, number, 1_000)).collect();
        [Fate::Passes, Fate::Waits, Fate::Refused]
            .map(|fate| fates.iter().filter(|other| **other == fate).count())
    }

    /// Lets time pass, and returns the ports and numbers of the frames that leave then.
    fn go(&mut self, nanos: u64) -> Vec<(u16, u32)> {
        self.now += Nanos(nanos);
        let mut left = Vec::new();
        loop {
            let mut batch = Batch::new();
            let (before, lost) = (self.lost.len(), &mut self.lost);
            let memory = &mut Memory::of(&mut self.store, &mut []);
            let mut lost = |port, why| lost.push((port, why));
            self.queue.release_delayed(memory, self.now, |_, _| None, &mut lost);
            self.queue.load(memory, &mut batch, (1, 32), self.now, &mut lost);
            for i in 0..batch.len() {
                let mut bytes = Vec::new();
                batch.copy_out(i, &mut bytes);
                let number = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
                left.push((u16::from_be_bytes([bytes[0], bytes[1]]), number));
            }
            self.queue.sent(memory);
            if batch.is_empty() && self.lost.len() == before {
                return left;
            }
        }
    }

    /// Lets `millis` ms pass, and returns the frames that leave.
    fn go_on(&mut self, millis: u64) -> Vec<(u16, u32)> {
        (0..millis).flat_map(|_| self.go(1_000_000)).collect()
    }
}

#[test]
fn frames_above_a_pairs_limit_leave_in_order_and_other_pairs_do_not_wait() {
    let mut uplink = Uplink::new(256);
    uplink.limit(1, FAR, MBIT);
    uplink.limit(1, FAR + 1, MBIT);
    // The bucket has 16,384 bytes.
    assert_eq!(uplink.offer_all((1, FAR), 40), [17, 23, 0]);
    assert_eq!(uplink.go_on(1).len(), 17);
    assert_eq!(uplink.offer_all((1, FAR + 1), 10), [10, 0, 0], "another pair of the VM");
    assert_eq!(uplink.go_on(1).len(), 10);
    assert_eq!(uplink.queue.len(), 23);
    let due = |uplink: &mut Uplink| {
        let memory = &mut Memory::of(&mut uplink.store, &mut []);
        uplink.queue.due(memory, uplink.now, &mut |_| unreachable!("no frame is late"))
    };
    assert!(due(&mut uplink).is_some_and(|at| at > uplink.now));
    let mut left = Vec::new();
    for millis in 3..=190_usize {
        left.extend(uplink.go(1_000_000));
        // 616 bytes were owed. A frame has 1,000 bytes, and leaves when nothing is owed.
        let paid = (millis * 125 + 999).saturating_sub(616) / 1_000;
        assert_eq!(left.len(), paid.min(23), "{millis} ms");
    }
    assert!(left.iter().map(|(_, number)| *number).eq(17..40), "{left:?}");
    assert_eq!((due(&mut uplink), uplink.lost.len()), (None, 0));
    assert!(uplink.queue.is_empty() && uplink.store.is_empty());
}

#[test]
fn frames_that_wait_for_their_pair_do_not_count_as_waiting_for_a_ceiling() {
    let mut uplink = Uplink::new(256);
    uplink.limit(1, FAR, MBIT);
    assert_eq!(uplink.offer_all((1, FAR), 40), [17, 23, 0]);
    uplink.now += Nanos::from_millis(1);
    while uplink.queue.len() > 23 {
        let mut batch = Batch::new();
        let memory = &mut Memory::of(&mut uplink.store, &mut []);
        uplink.queue.load(memory, &mut batch, (1, 32), uplink.now, &mut |_, _| {});
        assert!(!batch.is_empty());
        uplink.queue.sent(memory);
    }
    assert!(!uplink.queue.begins_to_wait());
}

#[test]
fn a_vm_with_many_lines_leaves_room_for_others() {
    let mut uplink = Uplink::new(1_000);
    let mut waiting = 0;
    for mac in 0..u64::from(PAIRS_OF_VM_MAX) {
        uplink.limit(1, FAR + mac, 8_000);
        let [passed, waits, _] = uplink.offer_all((1, FAR + mac), 60);
        waiting += waits;
        assert_eq!(uplink.go(20_000).len(), passed);
    }
    assert!((300..=334).contains(&waiting), "a third of the memory: {waiting}");
    uplink.limit(2, FAR, MBIT);
    assert_eq!(uplink.offer_all((2, FAR), 60), [17, 33, 10]);
    uplink.go(20_000);
    // Frames that wait too long are dropped, and none is forgotten.
    let left = uplink.go_on(2_500).len();
    assert_eq!(left + uplink.lost.len(), waiting + 33);
    assert!(uplink.lost.iter().all(|lost| *lost == (1, DropReason::QueueLate)));
    assert!(uplink.queue.is_empty() && uplink.store.is_empty());
    // The lines have room again, in the table as well.
    uplink.limit(1, FAR, MBIT);
    uplink.go_on(1_000);
    assert_eq!(uplink.offer_all((1, FAR), 40), [17, 23, 0]);
}

#[test]
fn what_waits_is_lost_with_the_queue_or_the_pairs_and_nothing_else() {
    for clears in [true, false] {
        let mut uplink = Uplink::new(256);
        uplink.limit(1, FAR, MBIT);
        uplink.offer_all((1, FAR), 40);
        assert_eq!(uplink.go_on(1).len(), 17);
        let mut lost = Vec::new();
        if clears {
            let memory = &mut Memory::of(&mut uplink.store, &mut []);
            uplink.queue.clear(memory, uplink.now, |port| lost.push(port));
        } else {
            uplink.home.set_pairs(None);
            lost = uplink.adopt();
        }
        assert_eq!(lost, [1; 23]);
        assert!(uplink.queue.is_empty() && uplink.store.is_empty());
        uplink.now += Nanos::from_millis(10);
        assert_eq!(uplink.offer((1, FAR), 40, 1_000), Fate::Passes, "no frame waits before it");
    }
}

#[test]
fn the_frames_of_a_port_are_lost_with_it_and_those_of_others_stay() {
    let mut uplink = Uplink::new(256);
    let pairs = [(1, FAR), (2, FAR), (1, FAR + 1)];
    for (port, mac) in pairs {
        uplink.limit(port, mac, MBIT);
        assert_eq!(uplink.offer_all((port, mac), 40), [17, 23, 0]);
        assert_eq!(uplink.go_on(1).len(), 17);
    }
    let mut lost = Vec::new();
    let memory = &mut Memory::of(&mut uplink.store, &mut []);
    uplink.queue.forget(memory, 1, |port| lost.push(port));
    assert_eq!((lost, uplink.queue.len()), (vec![1; 46], 23));
    let left = uplink.go_on(300);
    assert!(left.iter().copied().eq((17..40).map(|number| (2, number))), "{left:?}");
    assert!(uplink.queue.is_empty() && uplink.store.is_empty());
    // The table and the lines know that no frame of the port waits.
    assert_eq!(uplink.offer_all((1, FAR), 40), [17, 23, 0]);
    assert_eq!(uplink.go_on(300).len(), 40);
}

#[test]
fn lines_are_made_and_freed_with_the_home_and_not_with_the_queue() {
    let mut uplink = Uplink::new(64);
    let former = Arc::downgrade(&uplink.table);
    uplink.table = Arc::new(PairTable::with_limits(8, 3, PairLimits::Guarantees));
    uplink.home.set_pairs(Some(&uplink.table));
    assert_eq!(former.strong_count(), 1, "the queue uses the former lines");
    assert!(uplink.adopt().is_empty());
    assert_eq!(former.strong_count(), 1, "the queue has given them back");
    uplink.home.set_pairs(Some(&uplink.table));
    assert_eq!(former.strong_count(), 0);
    // The table, its home and its lines.
    assert_eq!(Arc::strong_count(&uplink.table), 3);
    uplink.home.set_pairs(None);
    assert!(uplink.adopt().is_empty());
    uplink.home.set_pairs(None);
    assert_eq!(Arc::strong_count(&uplink.table), 1);
}

#[test]
fn frames_of_a_pair_do_not_wait_at_outputs_of_another_order() {
    let mut uplink = Uplink::with_terms(64, terms(Order::Fifo, Excess::Drop));
    uplink.limit(1, FAR, MBIT);
    let [_, waits, refused] = uplink.offer_all((1, FAR), 20);
    assert_eq!((waits, refused), (0, 3));
    let read = uplink.table.sending().next().expect("the pair");
    assert_eq!(read.refused, 3);
}

#[test]
fn frames_that_waited_join_the_queues_of_the_present_classes() {
    let mut uplink = Uplink::new(256);
    uplink.limit(4, FAR, MBIT);
    assert_eq!(uplink.offer_all((4, FAR), 40), [17, 23, 0]);
    assert_eq!(uplink.go_on(1).len(), 17);
    // Port 4 now has a lane of its own.
    let pacing = uplink.queue.terms().pacing;
    uplink.queue.change(pacing, None, classes([1; 4], true), uplink.now);
    assert_eq!(uplink.go_on(300).len(), 23);
    let lanes = uplink.queue.lane_counters().expect("queues by class");
    assert_eq!([0, 4].map(|lane| lanes.read(lane).frames), [17, 23]);
}

#[test]
fn frames_that_waited_take_the_places_of_a_larger_flow() {
    let bound = Bound { bytes: 20_000, ..uplink_terms().bound };
    let terms = QueueTerms { bound, flows: true, ..uplink_terms() };
    let mut uplink = Uplink::with_terms(256, terms);
    uplink.limit(4, FAR, MBIT);
    assert_eq!(uplink.offer_all((4, FAR), 40), [17, 23, 0]);
    assert_eq!(uplink.go_on(1).len(), 17);
    // Ports 0 and 4 share queue 0, which is full now.
    assert_eq!(uplink.offer_all((0, FAR), 20), [20, 0, 0]);
    // The limit of the pair lets three frames leave.
    let mut left = uplink.go(20_000_000);
    assert_eq!(uplink.lost, [(0, DropReason::QueueFull); 3]);
    left.extend(uplink.go_on(300));
    let of = |port| left.iter().filter(|(from, _)| *from == port).count();
    assert_eq!((of(4), of(0), uplink.lost.len()), (23, 17, 3));
    assert!(uplink.queue.is_empty() && uplink.store.is_empty());
}

/// Returns a frame of port 1 with an IPv4 header, one with a VLAN tag, one with an IPv6 header, and
/// one without an IP header.
fn kinds() -> [Vec<u8>; 4] {
    let mut v4 = frame(1, 7, 200);
    // Code point 8 and ECN 1.
    v4[14..34]
        .copy_from_slice(&[0x45, 33, 0, 186, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let header = checksum(sum(&v4[14..34], 0));
    v4[24..26].copy_from_slice(&header.to_be_bytes());
    let tagged = [&v4[..12], &[0x81, 0, 0, 5][..], &v4[12..]].concat();
    let mut v6 = frame(1, 7, 200);
    v6[12..16].copy_from_slice(&[0x86, 0xdd, 0x62, 0x10]);
    let mut other = frame(1, 7, 200);
    other[12..14].copy_from_slice(&[8, 6]);
    [v4, tagged, v6, other]
}

/// Makes a frame of port 1 wait for its pair, in the memory of the port (`own`) or in the store.
/// Returns the frame as it leaves while its sender has the code point `dscp`, and its queue.
fn after_a_wait(own: bool, bytes: &[u8], dscp: Option<u8>) -> (Vec<u8>, u8) {
    let mut uplink = Uplink::new(64);
    uplink.limit(1, FAR, MBIT);
    assert_eq!(uplink.offer_all((1, FAR), 17), [17, 0, 0]);
    assert_eq!(uplink.go_on(1).len(), 17);
    let memory = OwnMemory { buffers: vec![None; 4], sent: Vec::new() };
    let mut port: Vec<Box<dyn PortQueue>> = if own { vec![Box::new(memory)] } else { Vec::new() };
    let memory = &mut Memory::of(&mut uplink.store, &mut port);
    let mut batch = Batch::new();
    batch.push(bytes, Offload::NONE).expect("one frame fits");
    let size = Size { bytes: link_bytes(on_wire(&batch, 0)), frames: 1 };
    let Sending::Wait(Delayed { slot, .. }) = uplink.table.send(1, FAR, size, uplink.now) else {
        panic!("the pair is in debt")
    };
    let (queue, pair) = (&mut uplink.queue, (&uplink.table, slot));
    queue.delay(memory, (&batch, 0), &source(1), pair, uplink.now).expect("there is room");
    let code_point = |port: u16, tenant: u16| {
        assert_eq!((port, tenant), (1, source(1).tenant));
        dscp
    };
    let (later, lost) = (uplink.now + Nanos::from_millis(20), &mut |_, _| unreachable!("no loss"));
    queue.release_delayed(memory, later, code_point, lost);
    batch.clear();
    queue.load(memory, &mut batch, (1, 32), later, lost);
    let &[sent] = queue.sending() else { panic!("one frame leaves") };
    assert_eq!(sent.in_port().is_some(), own);
    if let Some(held) = sent.in_port() {
        let buffers = port[0].buffers().expect("it has some");
        assert!(buffers.read(held, &mut batch));
    }
    let mut left = Vec::new();
    batch.copy_out(0, &mut left);
    (left, sent.class.queue)
}

#[test]
fn a_frame_leaves_its_line_with_the_code_point_that_its_sender_has_then() {
    for own in [false, true] {
        let [v4, tagged, v6, other] = kinds();
        for (number, before) in [&v4, &tagged, &v6].into_iter().enumerate() {
            let (mut left, queue) = after_a_wait(own, before, Some(16));
            assert_eq!((headers::dscp_of(&left), queue), (16, 2), "frame {number}");
            if number < 2 {
                let ip = &left[14 + 4 * number..][..20];
                assert_eq!(checksum(sum(ip, 0)), 0, "frame {number}");
            }
            // Nothing else has changed.
            headers::mark(&mut left, 8);
            assert_eq!(&left, before);
            assert_eq!(after_a_wait(own, before, None), (before.clone(), 1));
        }
        assert_eq!(after_a_wait(own, &other, Some(16)), (other, 0), "not IP");
    }
}

#[test]
fn a_line_leaves_soon_but_not_at_once_if_its_limit_ends_and_new_frames_follow_it() {
    let mut uplink = Uplink::new(256);
    uplink.limit(1, FAR, MBIT);
    assert_eq!(uplink.offer_all((1, FAR), 40), [17, 23, 0]);
    assert_eq!(uplink.go_on(1).len(), 17);
    uplink.table.release(1);
    assert_eq!(uplink.offer((1, FAR), 40, 1_000), Fate::Waits);
    let mut left = Vec::new();
    for millis in 0..200 {
        let now = uplink.go(1_000_000);
        assert!(now.len() <= 1, "{} frames after {millis} ms", now.len());
        left.extend(now.into_iter().map(|(_, number)| number));
    }
    assert!(left.iter().copied().eq(17..41), "{left:?}");
    assert_eq!((uplink.offer((1, FAR), 41, 1_000), uplink.lost.len()), (Fate::Passes, 0));
}

proptest! {
    #[test]
    fn no_pair_exceeds_its_limit_or_changes_the_order_of_its_frames(
        steps in proptest::collection::vec((0..6_u16, 60..3_000_usize, 0..4_000_000_u64), 1..200),
        rates in proptest::array::uniform6(1..40_u64),
    ) {
        let mut uplink = Uplink::new(2_000);
        let pair = |number: u16| (1 + number % 3, FAR + u64::from(number));
        let pairs: Vec<(u16, u64)> = (0..6).map(pair).collect();
        for (pair, rate) in pairs.iter().zip(rates) {
            uplink.limit(pair.0, pair.1, rate * MBIT / 4);
        }
        let (mut sent, mut taken, begin) = (BTreeMap::new(), [0; 6], uplink.now);
        let mut left = Vec::new();
        for (number, (pair, len, pause)) in (0_u32..).zip(&steps) {
            let fate = uplink.offer(pairs[usize::from(*pair)], number, *len);
            if fate != Fate::Refused {
                sent.insert(number, (usize::from(*pair), *len));
            }
            let now = uplink.now + Nanos(*pause);
            left.extend(uplink.go(*pause).into_iter().map(|(_, number)| (number, now)));
        }
        for _ in 0..1_200 {
            let now = uplink.now + Nanos::from_millis(1);
            left.extend(uplink.go(1_000_000).into_iter().map(|(_, number)| (number, now)));
        }
        prop_assert!(uplink.queue.is_empty() && uplink.store.is_empty());
        prop_assert_eq!(left.len() + uplink.lost.len(), sent.len());
        let mut last = [None; 6];
        for (number, at) in left {
            let (pair, len) = sent[&number];
            prop_assert!(last[pair].replace(number) < Some(number));
            taken[pair] += len as u64;
            let rate = rates[pair] * MBIT / 4;
            let time = at.0 - begin.0;
            // The bucket's depth, and one frame beyond it.
            let burst = (rate / 160).max(16_384) + 3_000;
            let most = burst + rate * time / 8_000_000_000;
            prop_assert!(taken[pair] <= most, "{} of {}", taken[pair], most);
        }
    }
}
