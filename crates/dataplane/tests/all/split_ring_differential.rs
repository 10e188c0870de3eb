//! The test compares the device side of split rings with an independent implementation
//! (`virtio-queue`). If a driver writes the same ring and memory for the two implementations, the
//! implementations must return equal frames, used rings and interrupts.
//!
//! The test's driver makes valid chains of every shape, for example chains of several buffers and
//! indirect tables. The switch and `virtio-queue` deliberately treat invalid chains differently. If
//! a chain is invalid, the switch returns the head of the chain and counts an error. The crate
//! `virtio-queue` ends the chain at the invalid descriptor. The differential test does not use
//! invalid chains, which other tests cover.

use std::fs::File;
use std::os::unix::fs::FileExt;

use penstock_dataplane::port::split_ring::{RingAddresses, RingSpec, SplitRing};
use proptest::prelude::*;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::ring_bed::{USER, eventfd, map, memory_file};
use crate::split_ring::taken;

const SIZE: u16 = 32;
const MEMORY: u64 = 1 << 16;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const TABLES: u64 = 0x1000;
const BUFFERS: u64 = 0x4000;
const HEADER: usize = 12;

/// A random step of the test, either of the driver or of the device.
#[derive(Clone, Debug)]
enum Step {
    /// The driver makes a chain of buffers with the given lengths available. The chain is an
    /// indirect table if the flag is set.
    Offer(Vec<u16>, bool),
    /// The device takes a burst of buffers from the ring and returns them. The driver sets the
    /// event index so that the device interrupts after the given number of further entries.
    Poll(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let lens = prop::collection::vec(prop_oneof![0_u16..40, 0_u16..400], 1..5);
    prop_oneof![
        3 => (lens, any::<bool>()).prop_map(|(lens, indirect)| Step::Offer(lens, indirect)),
        1 => prop_oneof![0_u16..40, any::<u16>()].prop_map(Step::Poll),
    ]
}

/// Two equal copies of a driver's memory, one for each implementation.
struct Twice {
    file: File,
    theirs: GuestMemoryMmap,
    /// Positions at which the driver writes next: descriptor number, available entry, and byte
    /// offset of the buffer.
    next: (u16, u16, u64),
}

impl Twice {
    fn write(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
        self.theirs.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn descriptor(&self, at: u64, guest: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = guest.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(at, &bytes);
    }

    /// Offers a chain in each of the two memories. Returns false if the ring has no room for the
    /// chain before the device's next poll.
    fn offer(&mut self, lens: &[u16], indirect: bool, seed: u8) -> bool {
        let parts = u16::try_from(lens.len()).unwrap();
        let wanted = if indirect { 1 } else { parts };
        if self.next.0 + wanted > SIZE {
            return false;
        }
        let head = self.next.0;
        self.next.0 += wanted;
        let table = if indirect { TABLES + 0x80 * u64::from(head) } else { 16 * u64::from(head) };
        for (i, &len) in (0_u16..).zip(lens) {
            let (last, at) = (i + 1 == parts, self.next.2);
            let next = if indirect { i + 1 } else { head + i + 1 };
            let fill: Vec<u8> = (seed..=u8::MAX).cycle().take(len.into()).collect();
            self.write(at, &fill);
            let (flags, next) = if last { (0, 0) } else { (1, next) };
            self.descriptor(table + 16 * u64::from(i), at, len.into(), flags, next);
            self.next.2 += u64::from(len);
        }
        if indirect {
            self.descriptor(16 * u64::from(head), table, 16 * u32::from(parts), 4, 0);
        }
        self.write(AVAILABLE + 4 + 2 * u64::from(self.next.1 % SIZE), &head.to_le_bytes());
        self.next.1 = self.next.1.wrapping_add(1);
        self.write(AVAILABLE + 2, &self.next.1.to_le_bytes());
        true
    }

    /// Returns the used ring's index and entries in each of the two memories.
    fn used(&self) -> [Vec<u8>; 2] {
        let mut both = [vec![0; 2 + 8 * usize::from(SIZE)], vec![0; 2 + 8 * usize::from(SIZE)]];
        self.file.read_exact_at(&mut both[0], USED + 2).unwrap();
        self.theirs.read_slice(&mut both[1], GuestAddress(USED + 2)).unwrap();
        both
    }
}

/// Takes and returns all waiting chains with the implementation of the crate `virtio-queue`.
/// Returns the chains' frames, and whether the device must interrupt the driver.
fn poll_theirs(queue: &mut Queue, memory: &GuestMemoryMmap) -> (Vec<Vec<u8>>, bool) {
    let (mut frames, mut heads) = (Vec::new(), Vec::new());
    while let Some(chain) = queue.pop_descriptor_chain(memory) {
        heads.push(chain.head_index());
        let mut bytes = Vec::new();
        for d in chain {
            let mut part = vec![0; d.len().try_into().unwrap()];
            memory.read_slice(&mut part, d.addr()).unwrap();
            bytes.extend(part);
        }
        if bytes.len() >= HEADER + 14 {
            frames.push(bytes.split_off(HEADER));
        }
    }
    let any = !heads.is_empty();
    heads.into_iter().for_each(|head| queue.add_used(memory, head, 0).unwrap());
    (frames, any && queue.needs_notification(memory).unwrap())
}

fn poll_ours(ring: &mut SplitRing) -> (Vec<Vec<u8>>, bool) {
    let (frames, _) = taken(ring);
    (frames, ring.notify() == 1)
}

fn compare(steps: &[Step], start: u16) {
    let file = memory_file(MEMORY);
    let ours = map(&file, &[(0, 0, MEMORY)]);
    let theirs =
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY.try_into().unwrap())]).unwrap();
    let mut twice = Twice { file, theirs, next: (0, start, BUFFERS) };
    twice.write(AVAILABLE + 2, &start.to_le_bytes());
    twice.write(USED + 2, &start.to_le_bytes());
    let at = RingAddresses { descriptors: USER, available: USER + AVAILABLE, used: USER + USED };
    let spec = RingSpec {
        base: start.into(),
        event_idx: true,
        call: Some(eventfd()),
        ..RingSpec::new(SIZE.into(), at)
    };
    let mut ring = SplitRing::new(spec, ours).unwrap();
    let mut queue = Queue::new(SIZE).unwrap();
    queue.set_size(SIZE);
    queue.set_avail_ring_address(Some(u32::try_from(AVAILABLE).unwrap()), Some(0));
    queue.set_used_ring_address(Some(u32::try_from(USED).unwrap()), Some(0));
    queue.set_event_idx(true);
    queue.set_next_avail(start);
    queue.set_next_used(start);
    queue.set_ready(true);
    assert!(queue.is_valid(&twice.theirs));
    let mut poll = |twice: &mut Twice, ahead: u16| {
        // The driver's threshold: `ahead` entries from its present position.
        let event = twice.next.1.wrapping_sub(twice.next.0).wrapping_add(ahead);
        twice.write(AVAILABLE + 4 + 2 * u64::from(SIZE), &event.to_le_bytes());
        let wanted = poll_theirs(&mut queue, &twice.theirs);
        assert_eq!(poll_ours(&mut ring), wanted);
        let [mine, other] = twice.used();
        assert_eq!(mine, other, "used ring");
        (twice.next.0, twice.next.2) = (0, BUFFERS);
    };
    for (seed, step) in (0_u8..=255).cycle().zip(steps) {
        match step {
            Step::Offer(lens, indirect) => {
                if !twice.offer(lens, *indirect, seed) {
                    poll(&mut twice, 0);
                }
            }
            Step::Poll(ahead) => poll(&mut twice, *ahead),
        }
    }
    poll(&mut twice, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn two_devices_do_the_same(
        steps in prop::collection::vec(step(), 1..120),
        start in prop::sample::select(vec![0_u16, 7, 0xfff0]),
    ) {
        compare(&steps, start);
    }
}
