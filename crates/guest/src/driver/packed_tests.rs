//! Tests packed rings. A test acts as the device in the same memory as the driver.

use super::*;
use crate::driver::memory::GuestMemory;
use crate::driver::ring::ring_bytes;

fn ring(size: u16) -> PackedRing {
    let (_memory, mut windows) = GuestMemory::with_windows(&ring_bytes(size), 1, false).unwrap();
    let device = windows.pop().unwrap();
    let driver = windows.pop().unwrap();
    let desc = windows.pop().unwrap();
    PackedRing::new(size, desc, driver, device)
}

/// The device's side of a ring: its positions, and the chains that the device has taken. For each
/// taken chain, `taken` contains the buffer ID and the number of descriptors.
struct Device {
    next: RingPosition,
    used: RingPosition,
    taken: Vec<(u16, u16)>,
}

impl Device {
    fn new() -> Self {
        Self::at(WRAP)
    }

    fn at(base: u16) -> Self {
        let next = RingPosition { index: base & !WRAP, wrap: base & WRAP != 0 };
        Self { next, used: next, taken: Vec::new() }
    }

    fn word(ring: &PackedRing, place: RingPosition) -> u64 {
        ring.ring.u64_at(16 * usize::from(place.index) + 8).load(Ordering::Acquire)
    }

    fn take(&mut self, ring: &PackedRing) -> Vec<u16> {
        let mut ids = Vec::new();
        let mut span = 0;
        loop {
            let word = Self::word(ring, self.next).to_le_bytes();
            let flags = u16::from_le_bytes([word[6], word[7]]);
            if flags & (AVAIL | USED) != self.next.available() {
                assert_eq!(span, 0, "the device sees only a part of a descriptor chain");
                return ids;
            }
            span += 1;
            self.next.advance(1, ring.size);
            if flags & Descriptor::NEXT == 0 {
                let id = u16::from_le_bytes([word[4], word[5]]);
                ids.push(id);
                self.taken.push((id, span));
                span = 0;
            }
        }
    }

    /// Returns a taken chain to the driver. With in-order use, the chain's used descriptor also
    /// returns all earlier chains.
    fn give(&mut self, ring: &PackedRing, id: u16, len: u32, in_order: bool) {
        let at = self.taken.iter().position(|(taken, _)| *taken == id).unwrap();
        let from = if in_order { 0 } else { at };
        let span = self.taken.drain(from..=at).map(|(_, span)| span).sum();
        self.write(ring, id, len);
        self.used.advance(span, ring.size);
    }

    fn write(&self, ring: &PackedRing, id: u16, len: u32) {
        let flags = u64::from(self.used.used()) << 48;
        let word = u64::from(len) | u64::from(id) << 32 | flags;
        ring.ring.u64_at(16 * usize::from(self.used.index) + 8).store(word, Ordering::Release);
    }
}

#[test]
fn chains_go_round_without_one_being_lost() {
    for in_order in [false, true] {
        let mut ring = ring(8);
        ring.set_features(false, in_order);
        let mut device = Device::new();
        for round in 0..5000_u32 {
            let shapes: [usize; 3] = [1, 1 + round as usize % 3, 2];
            let ids: Vec<u16> =
                shapes.iter().map(|n| ring.add(&vec![(64, 7); *n], 0).unwrap()).collect();
            assert!(device.take(&ring).is_empty(), "the device sees an unpublished chain");
            assert!(ring.publish(), "the device did not suppress kicks");
            assert_eq!(device.take(&ring), ids);
            if in_order {
                device.give(&ring, ids[1], 5, true);
                device.give(&ring, ids[2], 6, true);
                // With in-order use, the first chain counts as completely filled.
                let full = 7;
                assert_eq!(ring.used_waiting(), 3);
                let lens: Vec<_> = (0..3).map(|k| ring.peek_used(k).len).collect();
                assert_eq!(lens, [full, 5, 6]);
            } else {
                for k in [2, 0, 1] {
                    device.give(&ring, ids[k], round, false);
                }
            }
            let mut back: Vec<u16> = std::iter::from_fn(|| ring.pop_head()).collect();
            if !in_order {
                assert_eq!(back, [ids[2], ids[0], ids[1]]);
            }
            back.iter().for_each(|id| ring.free(*id));
            back.sort_unstable();
            assert_eq!((back.len(), ring.free_descriptors(), ring.outstanding()), (3, 8, 0));
        }
        assert_eq!((ring.bad_used, ring.disorder > 0), (0, !in_order));
    }
}

#[test]
fn a_full_ring_takes_no_more() {
    let mut ring = ring(4);
    assert!(ring.add(&[(0, 1); 3], 0).is_some());
    assert!(ring.add(&[(0, 1); 2], 0).is_none());
    assert!(ring.add(&[], 0).is_none());
    assert!(ring.add(&[(0, 1)], 0).is_some());
    assert!(ring.add(&[(0, 1)], 0).is_none());
}

#[test]
fn kicks_follow_the_devices_wish() {
    let mut ring = ring(8);
    let mut device = Device::new();
    let wish = |ring: &PackedRing, event: u16, flags: u16| {
        let wish = u32::from(event) | u32::from(flags) << 16;
        ring.device_event.u32_at(0).store(wish, Ordering::Relaxed);
    };
    let mut send = |ring: &mut PackedRing, n: usize| {
        (0..n).for_each(|_| assert!(ring.add(&[(0, 1)], 0).is_some()));
        let kick = ring.publish();
        for id in device.take(ring) {
            device.give(ring, id, 0, false);
        }
        while let Some(id) = ring.pop_head() {
            ring.free(id);
        }
        kick
    };
    wish(&ring, 0, DISABLE);
    assert!(!send(&mut ring, 1));
    // Without EVENT_IDX, the position has no effect.
    wish(&ring, 0, DESC);
    assert!(send(&mut ring, 1));
    ring.set_features(true, false);
    // The ring is at position 2, and the device requests a kick at position 3.
    wish(&ring, WRAP | 3, DESC);
    assert!(!send(&mut ring, 1));
    assert!(send(&mut ring, 2));
    assert!(!send(&mut ring, 2));
    // The ring is at position 7, and the device requests a kick at position 0 of the next round.
    wish(&ring, 0, DESC);
    assert!(send(&mut ring, 2));
    assert!(!ring.publish(), "nothing new");
}

#[test]
fn an_armed_ring_says_where_it_stands() {
    let mut ring = ring(8);
    let mut device = Device::new();
    let wish = |ring: &PackedRing| ring.driver_event.u32_at(0).load(Ordering::Relaxed);
    assert_eq!(wish(&ring) >> 16, u32::from(DISABLE));
    let id = ring.add(&[(0, 1)], 0).unwrap();
    ring.publish();
    device.take(&ring);
    assert!(ring.arm());
    assert_eq!(wish(&ring) >> 16, u32::from(ENABLE));
    ring.set_features(true, false);
    device.give(&ring, id, 0, false);
    assert!(!ring.arm(), "one came back meanwhile");
    assert_eq!(ring.pop_head(), Some(id));
    assert!(ring.arm());
    assert_eq!(wish(&ring), u32::from(WRAP | 1) | u32::from(DESC) << 16);
    ring.suppress();
    assert_eq!(wish(&ring) >> 16, u32::from(DISABLE));
}

#[test]
fn a_delayed_interrupt_comes_after_three_quarters_of_the_descriptors() {
    let mut ring = ring(8);
    let mut device = Device::new();
    let wish = |ring: &PackedRing| ring.driver_event.u32_at(0).load(Ordering::Relaxed);
    let at = |place: u16| u32::from(place) | u32::from(DESC) << 16;
    assert!(ring.arm_delayed());
    assert_eq!(wish(&ring) >> 16, u32::from(ENABLE), "without EVENT_IDX");
    ring.set_features(true, false);
    assert!(ring.arm_delayed());
    assert_eq!(wish(&ring), at(WRAP), "the device has no chain, so the next one interrupts");
    let add = |ring: &mut PackedRing| ring.add(&[(0, 1), (0, 1)], 0).unwrap();
    let first = [0; 4].map(|_| add(&mut ring))[0];
    ring.publish();
    device.take(&ring);
    assert!(ring.arm_delayed());
    assert_eq!(wish(&ring), at(WRAP | 6));
    device.give(&ring, first, 0, false);
    assert!(!ring.arm_delayed(), "a chain is back");
    assert_eq!(ring.pop_head(), Some(first));
    ring.free(first);
    add(&mut ring);
    ring.publish();
    device.take(&ring);
    assert!(ring.arm_delayed());
    assert_eq!(wish(&ring), at(0), "six of the eight descriptors after position 2");
}

#[test]
fn invented_used_descriptors_are_counted_and_stop_the_ring() {
    for id in [8, 3, u16::MAX] {
        let mut ring = ring(8);
        let mut device = Device::new();
        let ours = ring.add(&[(0, 1)], 0).unwrap();
        ring.publish();
        device.take(&ring);
        device.write(&ring, id, 0);
        assert_eq!((ring.used_waiting(), ring.bad_used), (0, 1));
        device.give(&ring, ours, 0, false);
        assert_eq!((ring.used_waiting(), ring.bad_used), (0, 1));
    }
}

#[test]
fn a_new_device_finds_what_the_old_one_kept() {
    let mut ring = ring(8);
    let mut device = Device::new();
    for round in 0..100_u64 {
        let ids: Vec<u16> =
            (0..4).map(|k| ring.add(&[(16 * k, 1), (round, 2)], 0).unwrap()).collect();
        ring.publish();
        device.take(&ring);
        // The device returns the second chain and dies. So a chain is missing in the middle.
        device.give(&ring, ids[1], 9, false);
        assert_eq!(ring.pop_head(), Some(ids[1]));
        ring.free(ids[1]);
        let (base, again) = ring.restart();
        assert_eq!(again, 3);
        device = Device::at(base);
        assert_eq!(device.take(&ring), [ids[0], ids[2], ids[3]]);
        assert_eq!(device.take(&ring), [0_u16; 0], "nothing stale behind them");
        for id in [ids[0], ids[2], ids[3]] {
            device.give(&ring, id, 0, false);
            assert_eq!(ring.pop_head(), Some(id));
            ring.free(id);
        }
        assert_eq!((ring.free_descriptors(), ring.bad_used), (8, 0));
    }
}

#[test]
fn a_full_ring_restarts_whole() {
    let mut ring = ring(8);
    let mut device = Device::new();
    let ids: Vec<u16> = (0..8).map(|k| ring.add(&[(k, 1)], Descriptor::WRITE).unwrap()).collect();
    ring.publish();
    assert_eq!(device.take(&ring), ids);
    for id in &ids[..3] {
        device.give(&ring, *id, 1, false);
        assert_eq!(ring.pop_head(), Some(*id));
        ring.repost(*id);
    }
    // Three chains have been reposted, but not published.
    let (base, again) = ring.restart();
    assert_eq!((base, again), (WRAP | 3, 8));
    let mut device = Device::at(base);
    assert_eq!(device.take(&ring), [3, 4, 5, 6, 7, 0, 1, 2]);
}
