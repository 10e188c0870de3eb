//! If the switch is killed at any point, a packed ring continues at the position that the driver
//! saw. The restarted switch returns each buffer once, in order.

use std::sync::Arc;

use penstock_dataplane::port::inflight::{InflightRegion, RingLayout};
use penstock_dataplane::port::packed_ring::PackedRing;

use crate::packed_ring::guest::{Guest, SIZE, pattern, take, write};
use crate::ring_bed::inflight;

/// Returns the ring that a restarted switch creates. The new ring learns its position only from the
/// inflight region, because the front end gives the base of a new ring.
fn successor(guest: &Guest, region: &Arc<InflightRegion>) -> PackedRing {
    let mut ring = guest.ring();
    let queue = region.packed(0, SIZE).unwrap();
    let stood = queue.positions();
    ring.track(queue, stood);
    ring
}

#[test]
fn a_burst_was_shown_or_it_never_was() {
    for in_order in [false, true] {
        let mut guest = Guest::new();
        guest.in_order = in_order;
        let (_, region) = inflight(RingLayout::Packed, SIZE);
        let mut ring = successor(&guest, &region);
        // Enough rounds for the ring's end to fall anywhere in a burst.
        for round in 0..60 {
            let frames: Vec<_> = (0..9).map(|i| pattern(60 + round + i)).collect();
            for (i, frame) in frames.iter().enumerate() {
                if i % 3 == 1 { guest.send_chain(frame, 2) } else { guest.send_plain(frame) }
            }
            let old = ring.base() as u16;
            assert_eq!(take(&mut ring), frames, "round {round}");
            // The switch is killed after it took the burst.
            ring = successor(&guest, &region);
            assert_eq!(take(&mut ring), frames, "round {round}");
            // The switch is killed after it overwrote all descriptors of the burst except the
            // first.
            ring.complete_taken();
            ring = successor(&guest, &region);
            assert_eq!(guest.take_used(), []);
            assert_eq!(take(&mut ring), frames, "round {round}");
            ring.complete_taken();
            let new = ring.base() as u16;
            // The switch is killed after the region recorded the burst and before the burst became
            // visible.
            region.packed(0, SIZE).unwrap().begin(old, new);
            ring = successor(&guest, &region);
            assert_eq!(guest.take_used(), []);
            assert_eq!(take(&mut ring), frames, "round {round}");
            ring.complete_taken();
            ring.publish();
            // The switch is killed after the burst became visible and before the region recorded
            // this. The driver continues.
            region.packed(0, SIZE).unwrap().begin(old, new);
            if round % 2 == 0 {
                assert_eq!(guest.take_used().len(), 9);
                (0..40).for_each(|_| guest.send_plain(&pattern(100)));
            }
            ring = successor(&guest, &region);
            assert_eq!(ring.base() as u16, new);
            while round % 2 == 0 && !take(&mut ring).is_empty() {
                ring.complete_taken();
                ring.publish();
            }
            guest.take_used();
            assert!(guest.out.is_empty());
        }
    }
}

#[test]
fn receive_buffers_come_back_once_wherever_the_switch_is_killed() {
    let mut guest = Guest::new();
    let (_, region) = inflight(RingLayout::Packed, SIZE);
    let mut ring = successor(&guest, &region);
    for round in 0..60 {
        // Two of three frames are spread over several buffers.
        guest.post(&[80; 12]);
        let frames = [pattern(60), pattern(200), pattern(150)];
        assert_eq!(write(&mut ring, &frames).frames, 3);
        if round % 3 > 0 {
            ring = successor(&guest, &region);
            assert_eq!(guest.take_used(), []);
            assert_eq!(write(&mut ring, &frames).frames, 3);
        }
        ring.publish();
        if round % 3 > 1 {
            ring = successor(&guest, &region);
        }
        let used: Vec<u32> = guest.take_used().into_iter().map(|(_, len, _)| len).collect();
        assert_eq!(used, [72, 80, 80, 52, 80, 80, 2]);
        // Uses up the posted buffers, so that the next round starts without any.
        assert_eq!(write(&mut ring, &vec![pattern(60); 5]).frames, 5);
        ring.publish();
        assert_eq!(guest.take_used().len(), 5);
    }
}

#[test]
fn a_region_that_knows_nothing_leaves_the_base_as_it_is() {
    let mut guest = Guest::new();
    let (_, region) = inflight(RingLayout::Packed, SIZE);
    let before = {
        let mut ring = guest.ring();
        guest.send_plain(&pattern(60));
        assert_eq!(take(&mut ring).len(), 1);
        ring.complete_taken();
        ring.publish();
        ring.base()
    };
    let at = |base, recover| {
        let mut ring = guest.ring_with(|spec| spec.base = base).unwrap();
        let queue = region.packed(0, SIZE).unwrap();
        let stood = queue.positions().filter(|_| recover);
        ring.track(queue, stood);
        ring.base()
    };
    assert_eq!(at(before, true), before, "nobody has recorded yet");
    assert_eq!(at(0x8005_8005, false), 0x8005_8005, "a later start is the frontend's to say");
    assert_eq!(at(before, true), 0x8005_8005, "the region knows better than the frontend");
}
