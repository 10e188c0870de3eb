//! These tests check the device side of split rings. The tests use a driver that obeys the
//! specification and a driver that violates the specification (datapath rules 3, 7, 8). Every
//! clause of the split ring's specification has a test.
#![expect(clippy::cast_possible_truncation, reason = "small test values")]

use std::ops::Deref;
use std::sync::Arc;

use penstock_dataplane::batch::{Batch, FRAME_MAX};
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::split_ring::{RingAddresses, RingError, RingSpec, SplitRing};

use crate::ring_bed::{
    BUFFERS, HALF, INDIRECT, MEMORY, Memory, NEXT, SECOND, USER, WRITE, batch_of, eventfd,
    frames_of, map, memory_file, pattern, rung,
};

pub const SIZE: u16 = 64;
const DESCRIPTORS: u64 = 0;
pub const AVAILABLE: u64 = 0x1000;
pub const USED: u64 = 0x2000;
pub const ADDRESSES: RingAddresses = RingAddresses {
    descriptors: USER + DESCRIPTORS,
    available: USER + AVAILABLE,
    used: USER + USED,
};

/// A test guest with one split ring.
pub struct Guest {
    pub memory: Memory,
    next: u16,
}

impl Deref for Guest {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Guest {
    pub fn new() -> Self {
        Self::with(Memory::new())
    }

    fn with(memory: Memory) -> Self {
        Self { memory, next: 0 }
    }

    pub fn ring(&self) -> SplitRing {
        self.ring_with(|_| ()).unwrap()
    }

    fn ring_with(&self, edit: impl FnOnce(&mut RingSpec)) -> Result<SplitRing, RingError> {
        let mut spec = RingSpec::new(SIZE.into(), ADDRESSES);
        edit(&mut spec);
        SplitRing::new(spec, Arc::clone(&self.map))
    }

    fn descriptor_at(&self, table: u64, i: u16, guest: u64, len: u32, flags: u16, next: u16) {
        let at = table + 16 * u64::from(i);
        self.write(at, guest);
        self.write(at + 8, len);
        self.write(at + 12, flags);
        self.write(at + 14, next);
    }

    pub fn descriptor(&self, i: u16, guest: u64, len: u32, flags: u16, next: u16) {
        self.descriptor_at(DESCRIPTORS, i, guest, len, flags, next);
    }

    pub fn offer(&mut self, head: u16) {
        self.write(AVAILABLE + 4 + 2 * u64::from(self.next % SIZE), head);
        self.next = self.next.wrapping_add(1);
        self.write(AVAILABLE + 2, self.next);
    }

    /// Offers `len` bytes of buffer `i` to the device in descriptor `i`. `flags` says whether the
    /// device reads or writes the buffer.
    pub fn post(&mut self, i: u16, len: u32, flags: u16) {
        self.descriptor(i, BUFFERS + 0x1000 * u64::from(i), len, flags, 0);
        self.offer(i);
    }

    pub fn used_index(&self) -> u16 {
        self.read(USED + 2)
    }

    pub fn used(&self, i: u16) -> (u32, u32) {
        let at = USED + 4 + 8 * u64::from(i % SIZE);
        (self.read(at), self.read(at + 4))
    }
}

pub fn taken(ring: &mut SplitRing) -> (Vec<Vec<u8>>, u32) {
    let mut batch = Batch::new();
    ring.take(&mut batch);
    let frames = frames_of(&batch);
    ring.complete_taken();
    ring.publish();
    (frames, batch.errors)
}

fn give(ring: &mut SplitRing, frames: &[Vec<u8>]) -> TxOutcome {
    let (batch, order) = batch_of(frames);
    let mut out = TxOutcome::default();
    ring.give(&batch, &order, &mut out);
    ring.publish();
    out
}

/// Offers `frame` to the device as one descriptor.
fn send_plain(guest: &mut Guest, frame: &[u8]) {
    let i = guest.next % SIZE;
    let at = BUFFERS + 0x1000 * u64::from(i);
    guest.fill(at, &[0; 12]);
    guest.fill(at + 12, frame);
    guest.post(i, 12 + frame.len() as u32, 0);
}

#[test]
fn frames_come_out_whole_and_in_order_over_many_wraps_of_the_indices() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    let mut sent = 0_u32;
    while sent < 70_000 {
        let burst = 1 + sent % 32;
        let frames: Vec<_> =
            (0..burst).map(|i| pattern(14 + ((sent + i) % 200) as usize)).collect();
        frames.iter().for_each(|frame| send_plain(&mut guest, frame));
        assert_eq!(taken(&mut ring), (frames, 0));
        sent += burst;
        assert_eq!(guest.used_index(), sent as u16);
    }
}

#[test]
fn lawful_shapes_of_a_frame_are_all_taken() {
    let frame = pattern(3000);
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    let b = BUFFERS;
    guest.fill(b + 12, &frame);
    // The header is one piece. The payload has three pieces, and one of them is empty.
    guest.descriptor(0, b, 12, NEXT, 1);
    guest.descriptor(1, b + 12, 5, NEXT, 2);
    guest.descriptor(2, b + 17, 0, NEXT, 3);
    guest.descriptor(3, b + 17, 2995, 0, 0);
    guest.offer(0);
    // The header also has two pieces.
    guest.descriptor(4, b, 7, NEXT, 5);
    guest.descriptor(5, b + 7, 3005, 0, 0);
    guest.offer(4);
    // An indirect table.
    let table = b + 0x8000;
    guest.descriptor_at(table, 0, b, 12, NEXT, 1);
    guest.descriptor_at(table, 1, b + 12, 3000, 0, 0);
    guest.descriptor(6, table, 32, INDIRECT, 0);
    guest.offer(6);
    assert_eq!(taken(&mut ring), (vec![frame.clone(), frame.clone(), frame], 0));
    assert_eq!(guest.used_index(), 3);
    assert_eq!([guest.used(0).0, guest.used(1).0, guest.used(2).0], [0, 4, 6]);
}

#[test]
fn a_buffer_that_spans_two_regions_is_split_at_the_edge() {
    // The guest addresses of the regions adjoin.
    let mut guest = Guest::with(Memory::with(&[(0, 0, HALF), (HALF, HALF, HALF)]));
    let mut ring = guest.ring();
    let frame = pattern(1000);
    let at = HALF - 300;
    guest.fill(at + 12, &frame);
    guest.descriptor(0, at, 1012, 0, 0);
    guest.offer(0);
    assert_eq!(taken(&mut ring), (vec![frame], 0));
}

/// Offers the bad chains that the function `build` writes to the ring. The ring must take no frame
/// from the bad chains, and must return all of these chains.
fn refuses(name: &str, build: impl Fn(&mut Guest)) {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.fill(BUFFERS + 12, &pattern(100));
    build(&mut guest);
    guest.offer(0);
    let (frames, errors) = taken(&mut ring);
    assert!(frames.is_empty(), "{name}: a frame was taken");
    assert_eq!(errors, 1, "{name}");
    assert_eq!((guest.used_index(), guest.used(0)), (1, (0, 0)), "{name}: head not returned");
    // The ring continues.
    guest.descriptor(0, BUFFERS, 112, 0, 0);
    guest.offer(0);
    assert_eq!(taken(&mut ring), (vec![pattern(100)], 0), "{name}: ring did not go on");
}

#[test]
fn every_unlawful_chain_is_refused_and_returned() {
    let b = BUFFERS;
    let table = b + 0x8000;
    refuses("a loop", |g| {
        g.descriptor(0, b, 12, NEXT, 1);
        g.descriptor(1, b, 12, NEXT, 0);
    });
    refuses("a loop of empty descriptors", |g| g.descriptor(0, b, 0, NEXT, 0));
    refuses("next beyond the table", |g| g.descriptor(0, b, 12, NEXT, SIZE));
    refuses("a writable descriptor", |g| g.descriptor(0, b, 112, WRITE, 0));
    refuses("header only (CVE-2022-2132)", |g| g.descriptor(0, b, 12, 0, 0));
    refuses("less than a header", |g| g.descriptor(0, b, 5, 0, 0));
    refuses("less than an Ethernet header", |g| g.descriptor(0, b, 12 + 13, 0, 0));
    refuses("more than the largest frame", |g| g.descriptor(0, 0, 13 + FRAME_MAX as u32, 0, 0));
    refuses("outside memory", |g| g.descriptor(0, MEMORY, 112, 0, 0));
    refuses("beyond a region's end (CVE-2018-1059)", |g| {
        g.descriptor(0, HALF - 50, 112, 0, 0);
    });
    refuses("address wraps", |g| g.descriptor(0, u64::MAX - 50, 112, 0, 0));
    refuses("address wraps in a chain", |g| {
        g.descriptor(0, b, 12, NEXT, 1);
        g.descriptor(1, u64::MAX - 50, 112, 0, 0);
    });
    refuses("length overflows", |g| g.descriptor(0, b, u32::MAX, 0, 0));
    refuses("indirect in indirect", |g| {
        g.descriptor_at(table, 0, table, 16, INDIRECT, 0);
        g.descriptor(0, table, 16, INDIRECT, 0);
    });
    refuses("indirect with next", |g| {
        g.descriptor_at(table, 0, b, 112, 0, 0);
        g.descriptor(0, table, 16, INDIRECT | NEXT, 1);
    });
    refuses("indirect of odd length", |g| g.descriptor(0, table, 24, INDIRECT, 0));
    refuses("indirect of length zero", |g| g.descriptor(0, table, 0, INDIRECT, 0));
    refuses("indirect too large", |g| g.descriptor(0, b, 16 * 257, INDIRECT, 0));
    refuses("indirect outside memory", |g| g.descriptor(0, HALF - 8, 16, INDIRECT, 0));
    refuses("indirect next beyond its table", |g| {
        g.descriptor_at(table, 0, b, 12, NEXT, 1);
        g.descriptor(0, table, 16, INDIRECT, 0);
    });
}

#[test]
fn a_ring_with_senseless_indices_stops_and_hurts_nobody() {
    let guest = Guest::new();
    let mut ring = guest.ring();
    guest.write(AVAILABLE + 2, SIZE + 1);
    assert!(ring.has_waiting());
    assert_eq!(taken(&mut ring).0.len(), 0);
    assert!(ring.is_stopped() && !ring.has_waiting());
    guest.write(AVAILABLE + 2, 1_u16);
    assert_eq!(taken(&mut ring).0.len(), 0);
}

#[test]
fn a_burst_of_bad_chains_stops_the_ring() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.descriptor(0, BUFFERS, 3, 0, 0);
    let mut errors = 0;
    while !ring.is_stopped() {
        assert!(errors < 200, "never stopped");
        guest.offer(0);
        errors += taken(&mut ring).1;
    }
    assert_eq!(errors, 64);
}

#[test]
fn rings_in_impossible_places_are_refused() {
    let guest = Guest::new();
    let error = |edit: fn(&mut RingSpec)| guest.ring_with(edit).err();
    assert_eq!(error(|s| s.size = 0), Some(RingError::Size(0)));
    assert_eq!(error(|s| s.size = 100), Some(RingError::Size(100)));
    assert_eq!(error(|s| s.size = 65_536), Some(RingError::Size(65_536)));
    assert!(matches!(error(|s| s.at.used = USER + 2), Some(RingError::Address("used ring", _))));
    assert!(matches!(error(|s| s.at.descriptors = 7), Some(RingError::Address(..))));
    assert!(matches!(
        error(|s| s.at.available = USER + HALF - 4),
        Some(RingError::Address("available ring", _))
    ));
}

/// Posts one chain with a writable buffer for each length in `lens`.
fn post(guest: &mut Guest, lens: &[u32]) {
    for len in lens {
        guest.post(guest.next % SIZE, *len, WRITE);
    }
}

#[test]
fn frames_are_written_with_their_header_and_length() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    let mut total = 0;
    for round in 0..3000_u32 {
        let frames: Vec<_> =
            (0..1 + round % 7).map(|i| pattern(14 + (round + i) as usize % 300)).collect();
        post(&mut guest, &vec![2048; frames.len()]);
        let out = give(&mut ring, &frames);
        assert_eq!((out.frames as usize, out.ring_full), (frames.len(), 0));
        for frame in &frames {
            let (id, len) = guest.used(total);
            assert_eq!(len as usize, 12 + frame.len());
            let at = BUFFERS + 0x1000 * u64::from(id);
            assert_eq!(guest.bytes(at, 12), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
            assert_eq!(&guest.bytes(at + 12, frame.len()), frame);
            total = total.wrapping_add(1);
        }
        assert_eq!(guest.used_index(), total);
    }
}

#[test]
fn a_large_frame_is_spread_over_merged_buffers() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    post(&mut guest, &[1500, 700, 2000, 4096]);
    let frame = pattern(4000);
    assert_eq!(give(&mut ring, std::slice::from_ref(&frame)).frames, 1);
    assert_eq!(guest.used_index(), 3);
    assert_eq!([guest.used(0).1, guest.used(1).1, guest.used(2).1], [1500, 700, 1812]);
    assert_eq!(guest.bytes(BUFFERS + 10, 2), [3, 0], "num_buffers");
    let mut got = guest.bytes(BUFFERS + 12, 1488);
    got.extend(guest.bytes(BUFFERS + 0x1000, 700));
    got.extend(guest.bytes(BUFFERS + 0x2000, 1812));
    assert_eq!(got, frame);
    // The fourth buffer is still available for the next frame.
    assert_eq!(give(&mut ring, &[pattern(60)]).frames, 1);
    assert_eq!(guest.used(3), (3, 72));
}

#[test]
fn what_does_not_fit_is_dropped_for_its_reason_and_takes_no_buffer() {
    let mut guest = Guest::new();
    let mut ring = guest.ring_with(|s| s.mergeable = false).unwrap();
    assert_eq!(give(&mut ring, &[pattern(60)]).ring_full, 1);
    post(&mut guest, &[100]);
    assert_eq!(give(&mut ring, &[pattern(89)]).too_big, 1);
    assert_eq!(guest.used_index(), 0);
    assert_eq!(give(&mut ring, &[pattern(88)]).frames, 1);

    let mut guest = Guest::new();
    let mut ring = guest.ring();
    post(&mut guest, &[1000, 1000]);
    assert_eq!(give(&mut ring, &[pattern(3000)]).ring_full, 1);
    assert_eq!(guest.used_index(), 0, "no buffer may go for a frame that did not fit");
    assert_eq!(give(&mut ring, &[pattern(1500)]).frames, 1);
}

#[test]
fn a_readable_receive_buffer_is_handed_back_empty() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.descriptor(0, BUFFERS, 2048, 0, 0);
    guest.offer(0);
    guest.descriptor(1, BUFFERS, 2048, WRITE, 0);
    guest.offer(1);
    let out = give(&mut ring, &[pattern(60), pattern(60)]);
    assert_eq!((out.frames, out.error), (1, 1));
    assert_eq!([guest.used(0), guest.used(1)], [(0, 0), (1, 72)]);
    // A head that does not exist cannot be returned, so the ring stops.
    guest.offer(SIZE + 3);
    let out = give(&mut ring, &[pattern(60)]);
    assert_eq!(out.frames, 0);
    assert!(ring.is_stopped());
}

#[test]
fn a_driver_that_wants_no_interrupt_gets_none() {
    for event_idx in [false, true] {
        let call = eventfd();
        let mut guest = Guest::new();
        let mut ring = guest
            .ring_with(|s| {
                s.call = Some(call.try_clone().unwrap());
                s.event_idx = event_idx;
            })
            .unwrap();
        let quiet = |guest: &Guest, on: bool| {
            if event_idx {
                // The used event is far ahead, or at the next entry.
                let next = guest.used_index().wrapping_add(if on { 1000 } else { 0 });
                guest.write(AVAILABLE + 4 + 2 * u64::from(SIZE), next);
            } else {
                guest.write(AVAILABLE, u16::from(on));
            }
        };
        quiet(&guest, false);
        send_plain(&mut guest, &pattern(60));
        taken(&mut ring);
        assert_eq!((ring.notify(), rung(&call)), (1, true));
        assert_eq!(ring.notify(), 0, "nothing new to tell");
        quiet(&guest, true);
        send_plain(&mut guest, &pattern(60));
        taken(&mut ring);
        assert_eq!((ring.notify(), rung(&call)), (0, false));
    }
}

#[test]
fn a_ring_is_taken_up_where_the_drivers_memory_says() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    (0..5).for_each(|_| send_plain(&mut guest, &pattern(60)));
    assert_eq!(taken(&mut ring).0.len(), 5);
    send_plain(&mut guest, &pattern(77));
    // The switch dies. The front end did not learn of the five frames, so it reports base 0.
    let mut again = guest.ring();
    assert_eq!(taken(&mut again), (vec![pattern(77)], 0));
    assert_eq!(again.base(), 6);
}

/// Offers `n` receive buffers. Each receive buffer is an indirect table of `entries` descriptors.
/// All descriptors of an indirect table except its last descriptor have length 0.
fn post_crumbs(guest: &mut Guest, n: u16, entries: u16, last: u32) {
    let table = BUFFERS;
    for i in 0..entries {
        let (len, flags) = if i + 1 == entries { (last, WRITE) } else { (0, WRITE | NEXT) };
        guest.descriptor_at(table, i, BUFFERS + 0x8000, len, flags, i + 1);
    }
    for i in 0..n {
        guest.descriptor(i, table, 16 * u32::from(entries), INDIRECT, 0);
        guest.offer(i);
    }
}

#[test]
fn receive_buffers_without_room_are_handed_back_and_stop_the_ring() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    post_crumbs(&mut guest, SIZE, 200, 0);
    let out = give(&mut ring, &[pattern(60)]);
    assert_eq!((out.error, guest.used_index(), guest.used(0)), (1, 1, (0, 0)));
    let mut errors = out.error;
    while !ring.is_stopped() {
        assert!(errors < 200, "never stopped");
        errors += give(&mut ring, &vec![pattern(60); 4]).error;
    }
    assert_eq!(errors, 64);
}

#[test]
fn a_receiver_of_crumbs_costs_its_senders_a_bounded_search_and_is_stopped() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    post_crumbs(&mut guest, SIZE, 255, 1);
    let mut too_big = 0;
    let mut bursts = 0;
    while !ring.is_stopped() {
        assert!(bursts < 64, "never stopped");
        too_big += give(&mut ring, &vec![pattern(1000); 32]).too_big;
        bursts += 1;
    }
    assert_eq!((bursts, too_big), (64, 64 * 32));
    assert_eq!(give(&mut ring, &[pattern(60)]).down, 1);
}

#[test]
fn an_indirect_table_is_aligned_where_it_is_read() {
    // The bytes of a region begin at an odd offset of the file. Its guest addresses look aligned,
    // but its host addresses are not.
    let mut guest = Guest::with(Memory::with(&[(0, 0, HALF), (SECOND, HALF + 4, 0x1000)]));
    let mut ring = guest.ring();
    guest.descriptor_at(SECOND + 4, 0, BUFFERS, 112, 0, 0);
    guest.descriptor(0, SECOND, 16, INDIRECT, 0);
    guest.offer(0);
    assert_eq!(taken(&mut ring), (vec![], 1));
}

#[test]
fn a_memory_file_that_shrinks_hurts_only_its_own_ring() {
    let file = memory_file(MEMORY);
    let mut victim = Guest::new();
    let mut other = victim.ring();
    let spec = RingSpec::new(SIZE.into(), ADDRESSES);
    let mut ring = SplitRing::new(spec, map(&file, &[(0, 0, MEMORY)])).unwrap();
    let before = penstock_dataplane::port::peer_memory::pages_replaced();
    file.set_len(0).unwrap();
    // The pages of ring and buffers are missing. All reads return zeros, and no fault ends the
    // process.
    for _ in 0..100 {
        let _ = taken(&mut ring);
        let _ = give(&mut ring, &[pattern(3000)]);
        ring.notify();
    }
    assert!(penstock_dataplane::port::peer_memory::pages_replaced() > before);
    send_plain(&mut victim, &pattern(60));
    assert_eq!(taken(&mut other), (vec![pattern(60)], 0));
}
