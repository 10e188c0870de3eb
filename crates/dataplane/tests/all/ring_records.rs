//! A split ring records in-flight chains for the next switch process, and written pages for a live
//! migration. The tests check a split ring's inflight and dirty-log records, and move the ring
//! between memory maps.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::dirty_log::LOG_PAGE;
use penstock_dataplane::port::inflight::{InflightRegion, RingLayout};
use penstock_dataplane::port::split_ring::SplitRing;

use crate::ring_bed::{BUFFERS, HALF, NEXT, WRITE, inflight, log, taken_pages};
use crate::split_ring::{ADDRESSES, Guest, SIZE, USED};

const BUFFER: u64 = 0x1000;

impl Guest {
    /// Sends a frame from buffer `i` of 60 bytes with value `i`.
    fn send(&mut self, i: u16) {
        self.fill(BUFFERS + BUFFER * u64::from(i) + 12, &[u8::try_from(i).unwrap(); 60]);
        self.post(i, 72, 0);
    }

    fn used_heads(&self) -> Vec<u32> {
        (0..self.used_index()).map(|i| self.used(i).0).collect()
    }
}

fn region() -> (File, Arc<InflightRegion>) {
    inflight(RingLayout::Split, SIZE)
}

fn mark(region: &File, head: u16, counter: u64) {
    let at = 16 + 16 * u64::from(head);
    region.write_all_at(&[1], at).unwrap();
    region.write_all_at(&counter.to_le_bytes(), at + 8).unwrap();
}

fn marks(region: &File) -> usize {
    let marked = |head: &u16| {
        let mut byte = [0];
        region.read_exact_at(&mut byte, 16 + 16 * u64::from(*head)).unwrap();
        byte == [1]
    };
    (0..SIZE).filter(marked).count()
}

/// Takes a batch from the ring and returns the first byte of each frame.
fn take(ring: &mut SplitRing) -> Vec<u8> {
    let mut batch = Batch::new();
    ring.take(&mut batch);
    (0..batch.len()).map(|i| batch.head(i)[0]).collect()
}

fn give(ring: &mut SplitRing, frame: &[u8]) -> TxOutcome {
    let mut batch = Batch::new();
    batch.push(frame, Offload::NONE).unwrap();
    let mut outcome = TxOutcome::default();
    ring.give(&batch, &[0], &mut outcome);
    outcome
}

#[test]
fn a_ring_killed_before_or_after_it_returned_a_batch_is_taken_up_where_it_stood() {
    let mut guest = Guest::new();
    let (file, region) = region();
    let successor = |guest: &Guest| {
        let mut ring = guest.ring();
        ring.track(region.split(0, SIZE).unwrap());
        ring
    };
    let mut ring = successor(&guest);
    (0..10).for_each(|i| guest.send(i));
    let all: Vec<u8> = (0..10).collect();
    assert_eq!(take(&mut ring), all);
    // The switch is killed after it took the batch, and again after it wrote the used entries. The
    // batch is taken again, in order.
    ring = successor(&guest);
    assert_eq!(take(&mut ring), all);
    ring.complete_taken();
    ring = successor(&guest);
    assert_eq!(guest.used_index(), 0);
    assert_eq!(take(&mut ring), all);
    ring.complete_taken();
    ring.publish();
    // The switch is killed after it returned the batch. Nothing is taken again.
    ring = successor(&guest);
    assert_eq!(guest.used_heads(), (0..10).collect::<Vec<_>>());
    assert_eq!(take(&mut ring), [0_u8; 0]);
    guest.send(3);
    assert_eq!(take(&mut ring), [3]);
    assert_eq!(marks(&file), 0);
}

#[test]
fn chains_that_another_program_left_in_flight_are_resubmitted_first_in_its_order() {
    let mut guest = Guest::new();
    (0..8).for_each(|i| guest.send(i));
    // The other program took six chains, returned 1, 4 and 5 out of order, and died.
    for (entry, head) in [1_u16, 4, 5].into_iter().enumerate() {
        guest.write(USED + 4 + 8 * entry as u64, head);
    }
    guest.write(USED + 2, 3_u16);
    let (file, region) = region();
    file.write_all_at(&[3], 14).unwrap();
    for (head, counter) in [(0, 0), (2, 2), (3, 3)] {
        mark(&file, head, counter);
    }
    let mut ring = guest.ring();
    ring.track(region.split(0, SIZE).unwrap());
    assert!(ring.has_waiting());
    assert_eq!(take(&mut ring), [0, 2, 3, 6, 7]);
    // The successor is killed before it returns the chains, and again afterwards.
    let mut ring = guest.ring();
    ring.track(region.split(0, SIZE).unwrap());
    assert_eq!(take(&mut ring), [0, 2, 3, 6, 7]);
    ring.complete_taken();
    ring.publish();
    assert_eq!(guest.used_heads(), [1, 4, 5, 0, 2, 3, 6, 7]);
    assert_eq!(marks(&file), 0);
    // From here on the ring behaves like any other, beyond the wrap of its indices.
    for round in 0..40 {
        (0..8).for_each(|i| guest.send(i));
        if round == 20 {
            ring = guest.ring();
            ring.track(region.split(0, SIZE).unwrap());
        }
        assert_eq!(take(&mut ring), (0..8).collect::<Vec<_>>());
        ring.complete_taken();
        ring.publish();
    }
    assert_eq!(guest.used_index(), 8 * 41);
}

#[test]
fn a_frame_larger_than_what_was_left_in_flight_goes_on_into_new_buffers() {
    let mut guest = Guest::new();
    // Two buffers of 100 bytes were in flight, and the second comes before the first.
    (0..8).for_each(|i| guest.post(i, 100, WRITE));
    let (file, region) = region();
    mark(&file, 1, 0);
    mark(&file, 0, 1);
    let mut ring = guest.ring();
    ring.track(region.split(0, SIZE).unwrap());
    let frame: Vec<u8> = (0..=255).cycle().take(500).collect();
    assert_eq!(give(&mut ring, &frame).frames, 1);
    // Some resubmitted chains are returned in one burst with the chains that follow them.
    assert_eq!(marks(&file), 2);
    ring.publish();
    assert_eq!(guest.used_heads(), [1, 0, 2, 3, 4, 5]);
    assert_eq!(marks(&file), 0);
    assert_eq!(give(&mut ring, &frame[..80]).frames, 1);
    ring.publish();
    assert_eq!(guest.used_heads()[6..], [6]);
}

#[test]
fn exactly_the_pages_written_are_logged() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    let (file, log) = log(Some(USED));
    assert!(ring.set_log(Some(log)).is_none());
    assert_eq!(taken_pages(&file), [2], "the used ring as it stands");
    let page = |i: u64| BUFFERS / LOG_PAGE + i;
    // One buffer, within its page.
    guest.post(0, 2048, WRITE);
    assert_eq!(give(&mut ring, &[7; 100]).frames, 1);
    assert_eq!(taken_pages(&file), [0_u64; 0], "marked when it is returned, after it was written");
    ring.publish();
    assert_eq!(taken_pages(&file), [2, page(0)]);
    // A chain over three pages. The frame fills two pages and ends in the first byte of the third
    // page.
    guest.descriptor(1, BUFFERS + BUFFER, 4096, WRITE | NEXT, 2);
    guest.descriptor(2, BUFFERS + 5 * BUFFER, 4096, WRITE | NEXT, 3);
    guest.descriptor(3, BUFFERS + 7 * BUFFER, 4096, WRITE | NEXT, 4);
    guest.descriptor(4, BUFFERS + 9 * BUFFER, 4096, WRITE, 0);
    guest.offer(1);
    assert_eq!(give(&mut ring, &vec![1; 8192 - 12 + 1]).frames, 1);
    ring.publish();
    assert_eq!(taken_pages(&file), [2, page(1), page(5), page(7)]);
    // Merged buffers are all marked.
    for i in [10, 12, 14] {
        guest.post(i, 1000, WRITE);
    }
    assert_eq!(give(&mut ring, &[3; 1500]).frames, 1);
    ring.publish();
    assert_eq!(taken_pages(&file), [2, page(10), page(12)]);
    // A buffer that is returned empty was not written.
    guest.write(14 * 16 + 12, 0_u16);
    assert_eq!(give(&mut ring, &[3; 1500]).error, 1);
    ring.publish();
    assert_eq!(taken_pages(&file), [2]);
    // After the log is removed, nothing is marked. The call returns the old log.
    assert!(ring.set_log(None).is_some());
    guest.post(20, 2048, WRITE);
    assert_eq!(give(&mut ring, &[7; 100]).frames, 1);
    ring.publish();
    assert_eq!(taken_pages(&file), [0_u64; 0]);
}

#[test]
fn frames_taken_dirty_the_used_ring_alone_and_only_where_that_was_asked_for() {
    for asked in [true, false] {
        let mut guest = Guest::new();
        let mut ring = guest.ring();
        let (file, log) = log(asked.then_some(USED));
        ring.set_log(Some(log));
        taken_pages(&file);
        guest.send(1);
        assert_eq!(take(&mut ring), [1]);
        ring.complete_taken();
        ring.publish();
        assert_eq!(taken_pages(&file), if asked { vec![2] } else { vec![] });
    }
}

#[test]
fn a_guest_that_rewrites_returned_chains_cannot_mark_foreign_pages() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    let (file, log) = log(Some(USED));
    ring.set_log(Some(log));
    taken_pages(&file);
    guest.post(0, 2048, WRITE);
    assert_eq!(give(&mut ring, &[7; 100]).frames, 1);
    // Between the write and the return, the driver changes the buffer, builds a loop, and writes a
    // used entry.
    guest.descriptor(0, u64::MAX - 5, u32::MAX, WRITE | NEXT, 0);
    guest.fill(USED + 4, &[0, 0, 0, 0, 255, 255, 255, 255]);
    ring.publish();
    assert_eq!(taken_pages(&file), [2]);
    assert_eq!(guest.used_index(), 1);
}

#[test]
fn a_ring_moves_to_another_map_between_two_batches() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.send(0);
    assert_eq!(take(&mut ring), [0]);
    ring.complete_taken();
    ring.publish();
    let new = guest.remapped(HALF);
    let old = ring.move_to(Arc::clone(&new), ADDRESSES).unwrap();
    assert!(Arc::ptr_eq(&old, &guest.map));
    drop(old);
    guest.memory.map = new;
    assert_eq!(Arc::strong_count(&guest.map), 2, "the ring keeps nothing of the old map");
    guest.send(1);
    assert_eq!(take(&mut ring), [1]);
    ring.complete_taken();
    ring.publish();
    assert_eq!(guest.used_heads(), [0, 1]);
    // A map without the ring is refused, and the ring continues in its present map.
    let error = ring.move_to(guest.remapped(0x2000), ADDRESSES).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the used ring at 0x700000002000 is outside the driver's memory or misaligned"
    );
    guest.send(2);
    assert_eq!(take(&mut ring), [2]);
}
