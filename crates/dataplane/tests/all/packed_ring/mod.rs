//! These tests check the device side of packed rings. One driver in the tests obeys the
//! specification, and another driver violates the specification (datapath rules 3, 7, 8). A model
//! of the ring computes the expected results of the tests.
#![allow(unsafe_code, reason = "the test plays the guest, which writes rings into shared memory")]
#![expect(clippy::cast_possible_truncation, reason = "small test values")]

mod events;
mod guest;
mod hostile;
mod inflight;
mod live;
mod model;
mod resume;

use guest::{BUFFERS, FRESH, Guest, Place, SECOND, SIZE, WRITE, frames_of, give, pattern, taken};
use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::packed_ring::RingError;

#[test]
fn frames_come_out_whole_and_in_order_over_many_wraps() {
    for in_order in [false, true] {
        let mut guest = Guest::new();
        guest.in_order = in_order;
        let mut ring = guest.ring();
        let mut sent = 0_u32;
        while sent < 5_000 {
            let burst = 1 + sent % 32;
            let frames: Vec<_> =
                (0..burst).map(|i| pattern(14 + ((sent + i) % 200) as usize)).collect();
            frames.iter().for_each(|frame| guest.send_plain(frame));
            assert!(ring.has_waiting());
            assert_eq!(taken(&mut ring), (frames, 0));
            assert!(!ring.has_waiting());
            assert_eq!(guest.take_used().len(), burst as usize);
            sent += burst;
        }
        assert_eq!(guest.avail, guest.used);
        let both = guest.used.to_base();
        assert_eq!(ring.base(), both | both << 16);
    }
}

#[test]
fn every_frame_of_rings_smaller_than_a_burst_goes_through() {
    for size in [1, 2, 3, 31, 32, 33] {
        let mut guest = Guest::new();
        guest.size = size;
        let mut ring = guest.ring();
        for round in 0..10 {
            let frames: Vec<_> = (0..size).map(|i| pattern(60 + usize::from(i) + round)).collect();
            frames.iter().for_each(|frame| guest.send_plain(frame));
            let mut got = taken(&mut ring).0;
            got.extend(taken(&mut ring).0);
            assert_eq!(got, frames, "size {size}");
            assert_eq!(guest.take_used().len(), usize::from(size));
        }
    }
}

#[test]
fn lawful_shapes_of_a_frame_are_all_taken() {
    let frame = pattern(3000);
    let b = BUFFERS;
    for in_order in [false, true] {
        let mut guest = Guest::new();
        guest.in_order = in_order;
        let mut ring = guest.ring();
        guest.fill(b + 12, &frame);
        // Repeats this often enough that chains cross the ring's end.
        for _ in 0..20 {
            // The header is one part. The payload has three parts, and one of them is empty.
            guest.offer(7, &[(b, 12, 0), (b + 12, 5, 0), (b + 17, 0, 0), (b + 17, 2995, 0)]);
            // The header also has two parts.
            guest.offer(3, &[(b, 7, 0), (b + 7, 3005, 0)]);
            guest.offer(4, &[(b, 3012, 0)]);
            // Indirect, with flags set that have no meaning in a table (virtio 1.2 §2.8.7).
            let table = b + 0x8000;
            let indirect = guest.table(table, &[(b, 12, guest::NEXT), (b + 12, 3000, guest::NEXT)]);
            guest.offer(49, &[indirect]);
            assert_eq!(taken(&mut ring), (vec![frame.clone(); 4], 0));
            let ids: Vec<u16> = guest.take_used().iter().map(|used| used.0).collect();
            assert_eq!(ids, [7, 3, 4, 49]);
        }
    }
}

#[test]
fn in_order_one_used_descriptor_stands_for_a_burst() {
    let mut guest = Guest::new();
    guest.in_order = true;
    let mut ring = guest.ring();
    (0..10).for_each(|_| guest.send_plain(&pattern(60)));
    let before: Vec<u16> = (1..10).map(|i| guest.flags(i)).collect();
    taken(&mut ring);
    assert_eq!(guest.read::<u16>(guest::RING + 12), 9, "the last id, in the first place");
    assert_eq!(guest.flags(0), guest::AVAIL | guest::USED);
    let after: Vec<u16> = (1..10).map(|i| guest.flags(i)).collect();
    assert_eq!(after, before, "and nothing else is touched");
}

#[test]
fn a_driver_sees_nothing_of_a_burst_before_it_is_published() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    (0..3).for_each(|_| guest.send_plain(&pattern(60)));
    let mut batch = Batch::new();
    ring.take(&mut batch);
    ring.complete_taken();
    assert_eq!(guest.take_used(), []);
    ring.publish();
    assert_eq!(guest.take_used().len(), 3);
    guest.post(&[2048; 4]);
    let mut out = TxOutcome::default();
    ring.give(&batch, &[2, 0], &mut out);
    ring.give(&batch, &[1], &mut out);
    assert_eq!((out.frames, guest.take_used()), (3, vec![]));
    ring.publish();
    assert_eq!(guest.take_used(), [(3, 72, true), (4, 72, true), (5, 72, true)]);
}

#[test]
fn a_batch_takes_no_more_than_it_holds_and_the_rest_stays() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    let b = BUFFERS;
    guest.fill(b + 12, &pattern(40_000));
    for id in 0..3 {
        guest.offer(id, &[(b, 40_012, 0)]);
    }
    assert_eq!(taken(&mut ring).0.len(), 2, "64 KiB");
    assert_eq!(taken(&mut ring).0.len(), 1);
    let mut batch = Batch::new();
    for _ in 0..30 {
        batch.push(&pattern(60), Offload::NONE).unwrap();
    }
    (0..3).for_each(|_| guest.send_plain(&pattern(60)));
    ring.take(&mut batch);
    assert_eq!(frames_of(&batch).len(), 32);
    ring.complete_taken();
    ring.publish();
    assert_eq!(taken(&mut ring).0.len(), 1);
    assert_eq!(guest.take_used().len(), 6);
}

#[test]
fn receivers_get_header_and_frame_in_every_shape_of_buffer() {
    let b = BUFFERS;
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    for round in 0..30 {
        let frame = pattern(1000 + round);
        guest.offer(1, &[(b, 2048, WRITE)]);
        guest.offer(
            2,
            &[(b + 0x1000, 12, WRITE), (b + 0x2000, 400, WRITE), (b + 0x3000, 900, WRITE)],
        );
        let table = guest.table(b + 0x8000, &[(b + 0x4000, 100, WRITE), (b + 0x5000, 2000, WRITE)]);
        guest.offer(3, &[table]);
        // A buffer in the second region.
        guest.offer(4, &[(SECOND, 4096, WRITE)]);
        let out = give(&mut ring, &vec![frame.clone(); 4]);
        assert_eq!((out.frames, out.bytes), (4, 4 * frame.len() as u64));
        let len = 12 + frame.len() as u32;
        let used = guest.take_used();
        assert_eq!(used, [(1, len, true), (2, len, true), (3, len, true), (4, len, true)]);
        let header = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        for at in [b, b + 0x1000, b + 0x4000, SECOND] {
            assert_eq!(guest.bytes(at, 12), header);
        }
        for parts in [
            vec![(b + 12, frame.len())],
            vec![(b + 0x2000, 400), (b + 0x3000, frame.len() - 400)],
            vec![(b + 0x400c, 88), (b + 0x5000, frame.len() - 88)],
            vec![(SECOND + 12, frame.len())],
        ] {
            let got: Vec<u8> = parts.iter().flat_map(|(at, len)| guest.bytes(*at, *len)).collect();
            assert_eq!(got, frame);
        }
    }
}

#[test]
fn long_frames_span_merged_buffers_and_say_how_many() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    for _ in 0..10 {
        let places = guest.post(&[512; 20]);
        let frame = pattern(3000);
        assert_eq!(give(&mut ring, &[frame.clone(), pattern(60), frame.clone()]).frames, 3);
        // 3012 bytes are five full buffers and 452 bytes more.
        let used = guest.take_used();
        let lens: Vec<u32> = used.iter().map(|used| used.1).collect();
        assert_eq!(lens, [512, 512, 512, 512, 512, 452, 72, 512, 512, 512, 512, 512, 452]);
        assert_eq!(guest.bytes(places[0] + 10, 2), [6, 0]);
        assert_eq!(guest.bytes(places[6] + 10, 2), [1, 0]);
        let got: Vec<u8> = (0..6).flat_map(|i| guest.bytes(places[i], lens[i] as usize)).collect();
        assert_eq!(got[12..], frame);
        // The seven remaining buffers are used too.
        assert_eq!(give(&mut ring, &vec![pattern(60); 9]).frames, 7);
        guest.take_used();
    }
}

#[test]
fn a_frame_without_buffers_enough_is_dropped_whole() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    assert_eq!(give(&mut ring, &[pattern(60)]).ring_full, 1);
    guest.post(&[512, 512]);
    let out = give(&mut ring, &[pattern(3000), pattern(60)]);
    assert_eq!((out.ring_full, out.frames), (1, 1));
    assert_eq!(guest.take_used(), [(0, 72, true)]);
    // Without merged buffers a frame gets one buffer or none.
    let mut guest = Guest::new();
    let mut ring = guest.ring_with(|s| s.mergeable = false).unwrap();
    guest.post(&[512, 512]);
    let out = give(&mut ring, &[pattern(600), pattern(60)]);
    assert_eq!((out.too_big, out.frames), (1, 1));
}

#[test]
fn a_ring_is_taken_up_where_its_base_says() {
    let mut guest = Guest::new();
    let mut ring = guest.ring();
    for _ in 0..3 {
        (0..SIZE / 2 - 1).for_each(|_| guest.send_plain(&pattern(60)));
        taken(&mut ring);
        guest.take_used();
    }
    let base = ring.base();
    drop(ring);
    guest.send_plain(&pattern(77));
    let mut ring = guest.ring_with(|s| s.base = base).unwrap();
    assert_eq!(taken(&mut ring), (vec![pattern(77)], 0));
    assert_eq!(guest.take_used().len(), 1);
    // A switch died after it took frames. The next switch takes them again, from the used position
    // on.
    guest.send_plain(&pattern(78));
    guest.send_plain(&pattern(79));
    let died = guest.avail.to_base() | guest.used.to_base() << 16;
    let mut ring = guest.ring_with(|s| s.base = died).unwrap();
    assert_eq!(taken(&mut ring), (vec![pattern(78), pattern(79)], 0));
    assert_eq!(guest.take_used().len(), 2);
}

#[test]
fn impossible_rings_are_refused() {
    let guest = Guest::new();
    let refused = |edit: fn(&mut penstock_dataplane::port::packed_ring::RingSpec)| {
        guest.ring_with(edit).unwrap_err()
    };
    assert_eq!(refused(|s| s.size = 0), RingError::PackedSize(0));
    assert_eq!(refused(|s| s.size = 32_769), RingError::PackedSize(32_769));
    assert_eq!(refused(|s| s.base = u32::from(SIZE)), RingError::Base(u32::from(SIZE)));
    let at = |error| match error {
        RingError::Address(what, _) => what,
        other => panic!("{other}"),
    };
    assert_eq!(at(refused(|s| s.at.descriptors += 8)), "packed ring");
    assert_eq!(
        at(refused(|s| (s.size, s.at.descriptors) = (32_768, s.at.descriptors + 16))),
        "packed ring"
    );
    assert_eq!(at(refused(|s| s.at.available += 2)), "driver event area");
    assert_eq!(at(refused(|s| s.at.used = 1)), "device event area");
    assert!(guest.ring_with(|s| s.base = FRESH & 0xffff).is_ok(), "as DPDK's driver says it");
    assert_eq!(Place { index: 0, wrap: true }.to_base(), FRESH & 0xffff);
}
