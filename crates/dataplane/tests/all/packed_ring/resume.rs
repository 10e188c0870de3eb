//! The switch of a packed ring dies, and the ring has no inflight region. QEMU's network device
//! reports that the ring is at its start, but the next switch finds the real position.

use penstock_dataplane::port::packed_ring::{PackedRing, RingError};

use crate::packed_ring::guest::{
    AVAIL, BUFFERS, DEVICE_EVENT, Guest, SIZE, USED, pattern, take, taken, write,
};

/// Returns the ring as QEMU 7.2 presents the ring after QEMU lost its switch.
fn successor(guest: &Guest) -> PackedRing {
    let mut ring = guest.ring();
    ring.resume().unwrap();
    ring
}

#[test]
fn a_ring_is_taken_up_wherever_its_switch_died() {
    for in_order in [false, true] {
        let mut guest = Guest::new();
        guest.in_order = in_order;
        // Enough rounds for the ring's end to fall anywhere in a burst.
        for round in 0..120 {
            let frames: Vec<_> = (0..9).map(|i| pattern(80 + round + i)).collect();
            for (i, frame) in (0..).zip(&frames) {
                match (i + round as u32) % 4 {
                    0 => guest.send_chain(frame, 2 + i % 3),
                    _ => guest.send_plain(frame),
                }
            }
            // The switch is killed before it took the burst, and then again after it took the
            // burst.
            let mut ring = successor(&guest);
            assert_eq!(take(&mut ring), frames, "round {round}");
            ring = successor(&guest);
            assert_eq!(take(&mut ring), frames, "round {round}");
            ring.complete_taken();
            if round % 3 == 0 {
                // The switch is killed after it overwrote all descriptors of the burst except the
                // first. The frames were delivered, and the next switch makes the burst visible.
                assert_eq!(guest.take_used(), []);
                drop(successor(&guest));
            } else {
                ring.publish();
            }
            if round % 2 == 0 {
                assert_eq!(guest.take_used().len(), 9);
                // The driver continues while no switch runs.
                guest.send_plain(&pattern(100));
                ring = successor(&guest);
                assert_eq!(taken(&mut ring).0, [pattern(100)]);
            } else {
                ring = successor(&guest);
                assert_eq!(take(&mut ring), [[0_u8; 0]; 0]);
            }
            guest.take_used();
            assert!(guest.out.is_empty(), "round {round}: {:?}", guest.out);
        }
    }
}

#[test]
fn receive_buffers_come_back_once_and_only_unpublished_ones_may_be_empty() {
    let mut guest = Guest::new();
    let mut ring = successor(&guest);
    for round in 0..60 {
        guest.post(&[80; 12]);
        let frames = [pattern(60), pattern(200), pattern(150)];
        assert_eq!(write(&mut ring, &frames).frames, 3);
        if round % 2 == 0 {
            assert_eq!(guest.take_used(), []);
            ring = successor(&guest);
        }
        ring.publish();
        let used: Vec<u32> = guest.take_used().into_iter().map(|(_, len, _)| len).collect();
        let first = if round % 2 == 0 { 0 } else { 72 };
        assert_eq!(used, [first, 80, 80, 52, 80, 80, 2]);
        ring = successor(&guest);
        assert_eq!(write(&mut ring, &vec![pattern(60); 5]).frames, 5);
        ring.publish();
        assert_eq!(guest.take_used().len(), 5);
    }
}

#[test]
fn a_full_ring_is_taken_up_at_its_first_descriptor() {
    for sent in [0, 7, SIZE, SIZE + 7, 2 * SIZE] {
        let mut guest = Guest::new();
        let mut ring = successor(&guest);
        for _ in 0..sent {
            guest.send_plain(&pattern(60));
            assert_eq!(taken(&mut ring).0.len(), 1);
            guest.take_used();
        }
        (0..SIZE).for_each(|_| guest.send_plain(&pattern(61)));
        let mut ring = successor(&guest);
        let mut got = 0;
        while got < SIZE {
            got += taken(&mut ring).0.len() as u16;
        }
        assert_eq!(guest.take_used().len(), usize::from(SIZE), "after {sent}");
    }
}

#[test]
fn a_ring_that_another_switch_left_in_motion_is_refused() {
    let mut guest = Guest::new();
    let mut ring = successor(&guest);
    guest.send_plain(&pattern(60));
    assert_eq!(taken(&mut ring).0.len(), 1);
    let base = ring.base();
    assert_ne!(guest.read::<u16>(DEVICE_EVENT), 0, "the mark of this switch");
    guest.write(DEVICE_EVENT, 0_u16);
    let unmarked = guest.ring().resume();
    assert_eq!(unmarked, Err(RingError::Lost));
    let told = |base| guest.ring_with(|spec| spec.base = base).unwrap().resume();
    assert_eq!(told(base), Ok(()), "its front end knows");
    assert_eq!(told(0x8005_8005), Err(RingError::Lost), "its front end is wrong");
    guest.take_used();
}

#[test]
fn a_ring_of_nonsense_is_refused_or_taken_up_within_its_bounds() {
    let mut state = 0x5eed_u64;
    for _ in 0..2_000 {
        let guest = Guest::new();
        let mut ring = successor(&guest);
        for index in 0..SIZE {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let [a, b, c, d, ..] = (state >> 13).to_le_bytes();
            let flags = match a % 5 {
                0 => u16::from_le_bytes([c, d]),
                1 => AVAIL | USED | 1,
                2 => AVAIL,
                _ => AVAIL | USED,
            };
            guest.descriptor(0, index, (BUFFERS, u32::from(b % 8), flags), u16::from(c));
        }
        drop(ring);
        ring = guest.ring();
        if ring.resume().is_ok() {
            let (low, high) = (ring.base() & 0x7fff, ring.base() >> 16 & 0x7fff);
            assert!(low < u32::from(SIZE) && high < u32::from(SIZE));
        }
    }
}
