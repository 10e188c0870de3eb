//! These tests use drivers that violate the packed ring's specification, clause by clause.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use penstock_dataplane::batch::{Batch, FRAME_MAX};
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::packed_ring::PackedRing;

use crate::packed_ring::guest::{
    AVAIL, BUFFERS, Guest, INDIRECT, MEMORY, NEXT, Part, RING, SIZE, USED, WRITE, frames_of, give,
    pattern, taken,
};
use crate::ring_bed::{map, memory_file};

/// Offers a bad buffer to the device. `parts` are the descriptors of the buffer. The ring must take
/// no frame from the bad buffer, but must return the buffer's ID to the driver.
fn refuses(name: &str, parts: &[Part]) {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.fill(BUFFERS + 12, &pattern(100));
    let table = BUFFERS + 0x8000;
    guest.table(table, &[(table, 16, INDIRECT)]);
    guest.table(table + 0x100, &[(BUFFERS, 112, WRITE)]);
    guest.table(table + 0x200, &[(BUFFERS, 12, 0), (u64::MAX - 50, 112, 0)]);
    // Repeats the offer, so that it crosses the ring's end.
    for _ in 0..SIZE {
        guest.offer(5, parts);
        let (frames, errors) = taken(&mut ring);
        assert!(frames.is_empty(), "{name}: a frame was taken");
        assert_eq!(errors, 1, "{name}");
        assert_eq!(guest.take_used(), [(5, 0, false)], "{name}: not returned");
        // The ring continues.
        guest.offer(6, &[(BUFFERS, 112, 0)]);
        assert_eq!(taken(&mut ring), (vec![pattern(100)], 0), "{name}: ring did not go on");
        assert_eq!(guest.take_used(), [(6, 0, false)]);
    }
}

#[test]
fn every_unlawful_chain_is_refused_and_returned() {
    let b = BUFFERS;
    let table = b + 0x8000;
    refuses("a writable descriptor", &[(b, 112, WRITE)]);
    refuses("a writable part", &[(b, 12, 0), (b + 12, 50, WRITE), (b + 62, 50, 0)]);
    refuses("header only (CVE-2022-2132)", &[(b, 12, 0)]);
    refuses("less than a header", &[(b, 5, 0)]);
    refuses("nothing at all", &[(b, 0, 0), (b, 0, 0)]);
    refuses("less than an Ethernet header", &[(b, 12 + 13, 0)]);
    refuses("more than the largest frame", &[(0, 13 + FRAME_MAX as u32, 0)]);
    refuses("outside memory", &[(MEMORY, 112, 0)]);
    refuses("beyond a region's end (CVE-2018-1059)", &[(MEMORY / 2 - 50, 112, 0)]);
    refuses("address wraps", &[(u64::MAX - 50, 112, 0)]);
    refuses("address wraps in a chain", &[(b, 12, 0), (u64::MAX - 50, 112, 0)]);
    refuses("address wraps in a table", &[(table + 0x200, 32, INDIRECT)]);
    refuses("length overflows", &[(b, u32::MAX, 0)]);
    refuses("indirect in indirect", &[(table, 16, INDIRECT)]);
    refuses("indirect and chained", &[(table + 0x100, 16, INDIRECT), (b, 112, 0)]);
    refuses("indirect at a chain's end", &[(b, 112, 0), (table + 0x100, 16, INDIRECT)]);
    refuses("writable part of a table", &[(table + 0x100, 16, INDIRECT)]);
    refuses("indirect of odd length", &[(table, 24, INDIRECT)]);
    refuses("indirect of length zero", &[(table, 0, INDIRECT)]);
    refuses("indirect too large", &[(b, 16 * 257, INDIRECT)]);
    refuses("indirect outside memory", &[(MEMORY / 2 - 8, 16, INDIRECT)]);
    refuses("indirect misaligned", &[(table + 4, 16, INDIRECT)]);
}

#[test]
fn an_id_beyond_the_ring_is_refused_and_echoed() {
    for id in [SIZE, 0x7fff, 0xffff] {
        let mut guest = Guest::new();
        let mut ring = guest.ring();
        guest.offer(id, &[(BUFFERS, 112, 0)]);
        assert_eq!(taken(&mut ring), (vec![], 1));
        assert_eq!(guest.take_used(), [(id, 0, false)]);
        guest.offer(id, &[(BUFFERS, 512, WRITE)]);
        let out = give(&mut ring, &[pattern(60)]);
        assert_eq!((out.frames, out.error), (0, 1));
        assert_eq!(guest.take_used(), [(id, 0, false)]);
    }
}

#[test]
fn the_same_id_twice_comes_back_as_often_as_it_was_offered() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.fill(BUFFERS + 12, &pattern(100));
    (0..5).for_each(|_| guest.offer(9, &[(BUFFERS, 112, 0)]));
    assert_eq!(taken(&mut ring).0.len(), 5);
    assert_eq!(guest.take_used(), [(9, 0, false); 5]);
}

/// Makes a chain of `count` descriptors available that has no end: the last descriptor also has the
/// flag for a next descriptor.
fn endless(guest: &mut Guest, count: u16, flags: u16) {
    for _ in 0..count {
        let now = flags | NEXT | Guest::available(guest.avail);
        guest.descriptor(RING, guest.avail.index, (BUFFERS, 64, now), 0);
        guest.avail.advance(1, guest.size);
    }
}

#[test]
fn a_chain_without_end_stops_the_ring() {
    // The chain leads to an unavailable descriptor, goes once around the ring, or exceeds the
    // longest allowed chain.
    for (size, count) in [(SIZE, 3), (SIZE, SIZE), (1, 1), (1000, 257), (1000, 1000)] {
        let mut guest = Guest::new();
        guest.size = size;
        let mut ring = guest.ring();
        endless(&mut guest, count, 0);
        assert_eq!(taken(&mut ring), (vec![], 0));
        assert!(ring.is_stopped() && !ring.has_waiting(), "{count} of {size}");
        assert_eq!(taken(&mut ring), (vec![], 0));
        let mut guest = Guest::new();
        guest.size = size;
        let mut ring = guest.ring();
        endless(&mut guest, count, WRITE);
        let out = give(&mut ring, &vec![pattern(2000); 2]);
        assert_eq!((out.frames, out.down), (0, 2));
        assert!(ring.is_stopped());
    }
}

#[test]
fn the_longest_lawful_chain_is_taken() {
    let mut guest = Guest::new();
    guest.size = 1000;
    let mut ring = guest.ring();
    guest.fill(BUFFERS, &[0; 12]);
    guest.fill(BUFFERS + 12, &pattern(255));
    let mut parts = vec![(BUFFERS, 12, 0)];
    parts.extend((0..255).map(|i| (BUFFERS + 12 + i, 1, 0)));
    for _ in 0..8 {
        guest.offer(3, &parts);
        assert_eq!(taken(&mut ring), (vec![pattern(255)], 0));
        assert_eq!(guest.take_used(), [(3, 0, false)]);
    }
}

#[test]
fn frames_taken_before_a_chain_without_end_are_still_returned() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    (0..3).for_each(|_| guest.send_plain(&pattern(60)));
    endless(&mut guest, 2, 0);
    assert_eq!(taken(&mut ring).0.len(), 3);
    assert!(ring.is_stopped());
    assert_eq!(guest.take_used().len(), 3);
}

#[test]
fn a_burst_of_bad_chains_stops_the_ring() {
    for in_order in [false, true] {
        let mut guest = Guest::new();
        guest.in_order = in_order;
        let mut ring = guest.ring();
        let mut errors = 0;
        while !ring.is_stopped() {
            assert!(errors < 200, "never stopped");
            guest.offer(0, &[(BUFFERS, 3, 0)]);
            errors += taken(&mut ring).1;
            guest.take_used();
        }
        assert_eq!(errors, 64);
    }
}

#[test]
fn bad_chains_among_good_ones_do_not_stop_a_ring() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    for _ in 0..100 {
        guest.offer(0, &[(BUFFERS, 3, 0)]);
        guest.send_plain(&pattern(60));
        assert_eq!(taken(&mut ring), (vec![pattern(60)], 1));
        guest.take_used();
    }
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    for _ in 0..100 {
        guest.offer(0, &[(BUFFERS, 512, 0)]);
        guest.offer(1, &[(BUFFERS, 512, WRITE)]);
        let out = give(&mut ring, &[pattern(60), pattern(60)]);
        assert_eq!((out.error, out.frames), (1, 1));
        guest.take_used();
    }
}

#[test]
fn a_driver_that_runs_ahead_gets_no_descriptor_taken_twice() {
    let mut guest = Guest::new();
    guest.size = 8;
    let mut ring = guest.ring();
    guest.fill(BUFFERS + 12, &pattern(100));
    for _ in 0..8 {
        guest.offer(guest.avail.index, &[(BUFFERS, 112, 0)]);
    }
    let mut batch = Batch::new();
    ring.take(&mut batch);
    assert_eq!(batch.len(), 8);
    // All descriptors of the next round are marked available before the device has returned a
    // descriptor of this round.
    for i in 0..8 {
        guest.set_flags(i, USED);
    }
    assert!(ring.has_waiting());
    ring.complete_taken();
    let mut more = Batch::new();
    ring.take(&mut more);
    assert_eq!(more.len(), 0, "the ring is full of what is not given back");
    let out = give(&mut ring, &[pattern(60)]);
    assert_eq!((out.frames, out.ring_full), (0, 1));
    assert_eq!(guest.take_used().len(), 8);
}

#[test]
fn what_a_driver_rewrites_after_it_was_read_changes_nothing() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.fill(BUFFERS + 12, &pattern(60));
    for id in 0..4 {
        guest.offer(id, &[(BUFFERS, 72, 0)]);
    }
    let mut batch = Batch::new();
    ring.take(&mut batch);
    for i in 0..4 {
        let flags = [0, AVAIL | NEXT, 0xffff, AVAIL | INDIRECT][usize::from(i)];
        guest.descriptor(RING, i, (u64::MAX, u32::MAX, flags), 0xffff);
    }
    guest.fill(BUFFERS, &[0xff; 72]);
    assert_eq!(frames_of(&batch), vec![pattern(60); 4]);
    ring.complete_taken();
    ring.publish();
    let ids: Vec<u16> = guest.take_used().iter().map(|used| used.0).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn an_offer_taken_back_in_time_was_none() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.send_plain(&pattern(60));
    guest.send_plain(&pattern(70));
    let flags = guest.flags(0);
    guest.set_flags(0, 0);
    assert!(!ring.has_waiting());
    assert_eq!(taken(&mut ring), (vec![], 0));
    guest.set_flags(0, flags);
    assert_eq!(taken(&mut ring), (vec![pattern(60), pattern(70)], 0));
    // The second descriptor of a chain disappears before it is read.
    guest.offer(7, &[(BUFFERS, 12, 0), (BUFFERS + 12, 60, 0)]);
    guest.set_flags(3, 0);
    assert_eq!(taken(&mut ring), (vec![], 0));
    assert!(ring.is_stopped());
}

#[test]
fn a_bad_receive_buffer_is_handed_back_empty() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.offer(0, &[(BUFFERS, 2048, 0)]);
    guest.offer(1, &[(BUFFERS, 2048, WRITE)]);
    guest.offer(2, &[(BUFFERS, 100, WRITE), (MEMORY, 2048, WRITE)]);
    guest.offer(3, &[(BUFFERS, 2048, WRITE)]);
    let out = give(&mut ring, &vec![pattern(60); 4]);
    assert_eq!((out.frames, out.error), (2, 2));
    let want = [(0, 0, false), (1, 72, true), (2, 0, false), (3, 72, true)];
    assert_eq!(guest.take_used(), want);
    // A bad buffer after a good buffer is returned later, when it becomes the first. The good
    // buffer is returned with it.
    guest.offer(4, &[(BUFFERS, 100, WRITE)]);
    guest.offer(5, &[(BUFFERS, 100, 0)]);
    guest.offer(6, &[(BUFFERS, 100, WRITE)]);
    let out = give(&mut ring, &[pattern(150), pattern(60)]);
    assert_eq!((out.frames, out.error), (1, 1));
    assert_eq!(guest.take_used(), [(4, 72, true)]);
}

/// Offers `n` receive buffers. Each receive buffer is an indirect table of `entries` descriptors.
/// All descriptors of an indirect table except its last descriptor have length 0.
fn post_crumbs(guest: &mut Guest, n: u16, entries: usize, last: u32) {
    let mut parts = vec![(BUFFERS + 0x8000, 0, WRITE); entries - 1];
    parts.push((BUFFERS + 0x8000, last, WRITE));
    let table = guest.table(BUFFERS, &parts);
    (0..n).for_each(|id| guest.offer(id, &[table]));
}

#[test]
fn receive_buffers_without_room_are_handed_back_and_stop_the_ring() {
    let mut guest = Guest::new();
    guest.size = 80;
    let mut ring = guest.ring();
    post_crumbs(&mut guest, 80, 200, 0);
    let out = give(&mut ring, &[pattern(60)]);
    assert_eq!((out.error, guest.take_used()), (1, vec![(0, 0, false)]));
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
    guest.size = 80;
    let mut ring = guest.ring();
    post_crumbs(&mut guest, 80, 255, 1);
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
fn a_memory_file_that_shrinks_hurts_only_its_own_ring() {
    let file = memory_file(MEMORY);
    let mut other = Guest::new();
    let mut well = other.ring();
    let mut ring = PackedRing::new(other.spec(), map(&file, &[(0, 0, MEMORY)])).unwrap();
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
    other.send_plain(&pattern(60));
    assert_eq!(taken(&mut well), (vec![pattern(60)], 0));
}

/// Guard object that stops the test's second thread when it is dropped, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is limited in time")]
fn a_thread_that_rewrites_the_ring_while_it_is_read_harms_only_its_own_ring() {
    let _race = crate::common::one_race();
    for in_order in [false, true] {
        let mut guest = Guest::new();
        guest.size = 64;
        guest.in_order = in_order;
        let words = guest.address();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                let mut state = 0x9e37_79b9_7f4a_7c15_u64;
                while !stop.load(Ordering::Relaxed) {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let at = (words + (state % 128 * 8) as usize) as *mut u64;
                    // Addresses inside and outside, lengths and flags of all kinds.
                    let flags = [AVAIL, USED, AVAIL | WRITE, USED | WRITE, AVAIL | NEXT, INDIRECT];
                    let value = match state >> 60 {
                        0 => state,
                        _ if (at as usize).is_multiple_of(16) => state >> 8 & 0x7_ffff,
                        _ => {
                            let flags = flags[(state >> 32) as usize % flags.len()];
                            state & 0x3f_0000_0fff | u64::from(flags) << 48
                        }
                    };
                    // SAFETY: one of the ring's 128 words, which stay mapped until the threads are
                    // joined. WHY: plays a guest that races with the device.
                    unsafe { at.write_volatile(value) };
                }
            });
            let _end = Stop(stop);
            let mut batch = Batch::new();
            let mut gifts = Batch::new();
            for len in [60, 1500, 9000] {
                gifts.push(&pattern(len), Offload::NONE).unwrap();
            }
            let mut ring = guest.ring();
            let (mut frames, mut given, mut stops) = (0, 0, 0);
            let until = Instant::now() + penstock_testing::patience();
            while frames < 2000 || given < 2000 || stops < 20 {
                let late = Instant::now() > until;
                assert!(!late, "{frames} taken, {given} given, {stops} times stopped");
                if ring.is_stopped() {
                    stops += 1;
                    ring = guest.ring();
                }
                batch.clear();
                ring.take(&mut batch);
                if batch.is_empty() {
                    // On a busy machine, both threads may share a core, and the other thread must
                    // run to change the ring.
                    std::thread::yield_now();
                }
                frames += batch.len();
                assert!(frames_of(&batch).iter().all(|f| (14..=FRAME_MAX).contains(&f.len())));
                ring.complete_taken();
                let mut out = TxOutcome::default();
                ring.give(&gifts, &[0, 1, 2], &mut out);
                ring.publish();
                assert_eq!(out.frames + out.ring_full + out.too_big + out.down + out.error, 3);
                given += out.frames;
                ring.notify();
            }
        });
    }
}
