//! These tests check the migration log of a packed ring, and the ring's move from one memory map to
//! another.

use std::sync::Arc;

use penstock_dataplane::port::dirty_log::LOG_PAGE;

use crate::packed_ring::guest::{
    BUFFERS, DEVICE_EVENT, Guest, SECOND, SIZE, WRITE, give, pattern, taken,
};
use crate::ring_bed::{HALF, log, taken_pages};

#[test]
fn exactly_the_pages_written_are_logged() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    let (file, log) = log(Some(DEVICE_EVENT));
    assert!(ring.set_log(Some(log)).is_none());
    assert_eq!(taken_pages(&file), [0, 4], "the ring and its event area as they stand");
    let page = |i: u64| BUFFERS / LOG_PAGE + i;
    let at = |i: u64| BUFFERS + LOG_PAGE * i;
    guest.offer(0, &[(at(0), 2048, WRITE)]);
    assert_eq!(give(&mut ring, &[pattern(100)]).frames, 1);
    assert_eq!(taken_pages(&file), [0, page(0)]);
    assert_eq!(guest.bytes(at(0) + 12, 100), pattern(100));
    // A chain over four pages. The frame ends in the first byte of the third page.
    let parts = [1, 5, 7, 9].map(|i| (at(i), 4096, WRITE));
    guest.offer(1, &parts);
    assert_eq!(give(&mut ring, &[pattern(8192 - 12 + 1)]).frames, 1);
    assert_eq!(taken_pages(&file), [0, page(1), page(5), page(7)]);
    // Merged buffers: one is in the second region, and one is indirect.
    guest.offer(2, &[(at(10), 1000, WRITE)]);
    guest.offer(3, &[(SECOND + 4000, 1000, WRITE)]);
    let table = guest.table(at(20), &[(at(11), 100, WRITE), (at(12), 100, WRITE)]);
    guest.offer(4, &[table]);
    assert_eq!(give(&mut ring, &[pattern(1500), pattern(90)]).frames, 2);
    let second = SECOND / LOG_PAGE;
    assert_eq!(taken_pages(&file), [0, page(10), page(11), page(12), second, second + 1]);
    // A buffer that is returned empty was not written.
    guest.offer(5, &[(at(13), 1000, 0)]);
    assert_eq!(give(&mut ring, &[pattern(60)]).error, 1);
    assert_eq!(taken_pages(&file), [0]);
    assert_eq!(guest.take_used().len(), 6);
    // After the log is removed, nothing is marked. The call returns the old log.
    assert!(ring.set_log(None).is_some());
    guest.post(&[2048]);
    assert_eq!(give(&mut ring, &[pattern(100)]).frames, 1);
    assert_eq!(taken_pages(&file), [0_u64; 0]);
}

#[test]
fn used_descriptors_are_logged_on_every_page_of_a_large_ring() {
    for asked in [true, false] {
        let mut guest = Guest::new();
        // 600 descriptors are two pages and a half.
        guest.size = 600;
        let mut ring = guest.ring();
        let (file, log) = log(asked.then_some(DEVICE_EVENT));
        ring.set_log(Some(log));
        taken_pages(&file);
        let mut pages = Vec::new();
        for _ in 0..25 {
            (0..30).for_each(|id| guest.offer(id, &[(BUFFERS, 112, 0)]));
            assert_eq!(taken(&mut ring).0.len(), 30);
            guest.take_used();
            pages.push(taken_pages(&file));
        }
        let want = |turn: u64| -> Vec<u64> {
            let (from, to) = (480 * (turn % 20), 480 * (turn % 20) + 479);
            (from / LOG_PAGE..=to / LOG_PAGE).collect()
        };
        for (turn, pages) in (0..).zip(&pages) {
            assert_eq!(*pages, if asked { want(turn) } else { vec![] });
        }
    }
}

#[test]
fn a_logged_ring_does_what_an_unlogged_one_does() {
    let mut outcomes = Vec::new();
    for logged in [false, true] {
        let mut guest = Guest::new();
        let mut ring = guest.ring();
        if logged {
            ring.set_log(Some(log(Some(DEVICE_EVENT)).1));
        }
        guest.post(&[512; 12]);
        let frames = [60, 1500, 60, 4000, 500, 501].map(pattern);
        outcomes.push((give(&mut ring, &frames), guest.take_used()));
    }
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0].0.ring_full, 1);
}

#[test]
fn a_ring_moves_to_another_map_between_two_batches() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    guest.send_plain(&pattern(60));
    assert_eq!(taken(&mut ring).0.len(), 1);
    assert_eq!(guest.take_used().len(), 1);
    let new = guest.remapped(HALF);
    let old = ring.move_to(Arc::clone(&new), Guest::addresses()).unwrap();
    assert!(Arc::ptr_eq(&old, &guest.map));
    drop(old);
    guest.memory.map = new;
    assert_eq!(Arc::strong_count(&guest.map), 2, "the ring keeps nothing of the old map");
    for _ in 0..SIZE {
        guest.send_plain(&pattern(70));
        assert_eq!(taken(&mut ring), (vec![pattern(70)], 0));
        assert_eq!(guest.take_used().len(), 1);
    }
    // A map without the ring is refused, and the ring continues in its present map.
    let error = ring.move_to(guest.remapped(0x1000), Guest::addresses()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the driver event area at 0x700000004000 is outside the driver's memory or misaligned"
    );
    guest.send_plain(&pattern(80));
    assert_eq!(taken(&mut ring), (vec![pattern(80)], 0));
}
