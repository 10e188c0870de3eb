//! Tests split rings. A test acts as the device in the same memory as the driver.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::*;
use crate::driver::memory::GuestMemory;

fn ring(size: u16) -> SplitRing {
    let (_memory, mut windows) = GuestMemory::with_windows(&ring_bytes(size), 1, false).unwrap();
    let used = windows.pop().unwrap();
    let avail = windows.pop().unwrap();
    let desc = windows.pop().unwrap();
    SplitRing::new(size, desc, avail, used)
}

/// The device's side of a ring, which reads available heads and returns them in any order.
#[derive(Default)]
struct Device {
    next: u16,
    used: u16,
}

impl Device {
    fn take(&mut self, ring: &SplitRing) -> Vec<u16> {
        let idx = ring.avail.u16_at(2).load(Acquire);
        let mut heads = Vec::new();
        while self.next != idx {
            let at = usize::from(self.next % ring.size);
            heads.push(ring.avail.u16_at(4 + 2 * at).load(Relaxed));
            self.next = self.next.wrapping_add(1);
        }
        heads
    }

    fn give(&mut self, ring: &SplitRing, head: u16, len: u32) {
        let at = 4 + 8 * usize::from(self.used % ring.size);
        ring.used.u32_at(at).store(u32::from(head), Relaxed);
        ring.used.u32_at(at + 4).store(len, Relaxed);
        self.used = self.used.wrapping_add(1);
        ring.used.u16_at(2).store(self.used, Release);
    }
}

#[test]
fn need_event_follows_the_specification() {
    assert!(need_event(9, 10, 8));
    assert!(!need_event(9, 12, 10));
    assert!(need_event(u16::MAX, 0, u16::MAX));
    assert!(need_event(0, 1, u16::MAX));
    assert!(!need_event(5, 5, 4));
}

#[test]
fn indices_wrap_past_65536_without_losing_a_chain() {
    for in_order in [false, true] {
        let mut ring = ring(8);
        ring.set_features(true, in_order);
        let mut device = Device::default();
        for round in 0..20_000_u32 {
            for i in 0..5 {
                assert!(ring.add(&[(u64::from(round * 5 + i), 60)], 0).is_some());
            }
            ring.publish();
            for head in device.take(&ring) {
                device.give(&ring, head, 0);
            }
            for _ in 0..5 {
                let head = ring.pop_head().unwrap();
                ring.free(head);
            }
            assert_eq!(ring.pop_head(), None);
        }
        assert_eq!((ring.free_descriptors(), ring.outstanding(), ring.bad_used), (8, 0, 0));
    }
}

#[test]
fn steady_state_writes_neither_descriptors_nor_available_entries() {
    let mut ring = ring(4);
    let mut device = Device::default();
    let mut turn = |ring: &mut SplitRing| {
        for i in 0..4_u64 {
            ring.add(&[(0x1000 * i, 72)], 0).unwrap();
        }
        ring.publish();
        for head in device.take(ring) {
            device.give(ring, head, 0);
        }
        while let Some(used) = ring.pop_used() {
            ring.free(used.head);
        }
    };
    turn(&mut ring);
    // The test overwrites the descriptors. A driver without private copies would write them again
    // in the second turn.
    for at in 0..4 {
        ring.desc.u64_at(16 * at).store(0xdead, Relaxed);
    }
    turn(&mut ring);
    assert!((0..4).all(|at| ring.desc.u64_at(16 * at).load(Relaxed) == 0xdead));
}

#[test]
fn chains_take_and_return_all_their_descriptors() {
    let mut ring = ring(8);
    let mut device = Device::default();
    let head = ring.add(&[(1, 12), (2, 100), (3, 200)], 0).unwrap();
    assert_eq!(ring.free_descriptors(), 5);
    assert_eq!(ring.shadow[usize::from(head)].desc.flags, FLAG_NEXT);
    assert!(ring.add(&[(0, 1); 6], 0).is_none());
    ring.publish();
    for head in device.take(&ring) {
        device.give(&ring, head, 0);
    }
    assert_eq!(ring.pop_used(), Some(Used { head, len: 0 }));
    ring.free(head);
    assert_eq!(ring.free_descriptors(), 8);
}

#[test]
fn used_entries_that_name_no_chain_are_counted_and_skipped() {
    let mut ring = ring(4);
    let mut device = Device::default();
    let head = ring.add(&[(1, 60)], 0).unwrap();
    ring.publish();
    device.give(&ring, 77, 0);
    device.give(&ring, 3, 0);
    device.give(&ring, head, 0);
    assert_eq!(ring.pop_used(), Some(Used { head, len: 0 }));
    assert_eq!(ring.bad_used, 2);
}

#[test]
fn suppressed_threshold_never_fires_and_an_armed_one_does() {
    let mut ring = ring(8);
    ring.set_features(true, false);
    let mut device = Device::default();
    for _ in 0..40_000 {
        let old = device.used;
        ring.add(&[(0, 60)], 0).unwrap();
        ring.publish();
        for head in device.take(&ring) {
            device.give(&ring, head, 0);
        }
        assert!(!need_event(ring.used_event(), device.used, old));
        while let Some(used) = ring.pop_used() {
            ring.free(used.head);
        }
    }
    assert!(ring.arm());
    let old = device.used;
    ring.add(&[(0, 60)], 0).unwrap();
    ring.publish();
    let head = device.take(&ring)[0];
    device.give(&ring, head, 0);
    assert!(need_event(ring.used_event(), device.used, old));
    assert!(!ring.arm(), "a used chain waits, so the driver must poll again");
}

/// The indices wrap past 65,536.
#[test]
fn a_delayed_interrupt_comes_after_three_quarters_of_the_chains() {
    let mut ring = ring(8);
    ring.set_features(true, false);
    let mut device = Device::default();
    for _ in 0..10_000 {
        (0..8).for_each(|_| assert!(ring.add(&[(0, 60)], 0).is_some()));
        ring.publish();
        assert!(ring.arm_delayed());
        for (returned, head) in (1..).zip(device.take(&ring)) {
            let old = device.used;
            device.give(&ring, head, 0);
            assert_eq!(need_event(ring.used_event(), device.used, old), returned == 7);
            assert_eq!(ring.arm_delayed(), returned <= 6, "{returned} of 8 chains are back");
        }
        while let Some(used) = ring.pop_used() {
            ring.free(used.head);
        }
    }
    // The device has no chain, so the next one interrupts.
    assert!(ring.arm_delayed());
    assert_eq!(ring.used_event(), device.used);
}

#[test]
fn kick_is_due_by_flag_and_by_threshold() {
    let mut ring = ring(8);
    ring.add(&[(0, 60)], 0).unwrap();
    assert!(ring.publish());
    assert!(!ring.publish(), "nothing new");
    ring.used.u16_at(0).store(NO_NOTIFY, Relaxed);
    ring.add(&[(0, 60)], 0).unwrap();
    assert!(!ring.publish());
    ring.set_features(true, false);
    ring.used.u16_at(4 + 8 * 8).store(2, Relaxed);
    ring.add(&[(0, 60)], 0).unwrap();
    assert!(ring.publish());
    ring.add(&[(0, 60)], 0).unwrap();
    assert!(!ring.publish());
}

#[test]
fn restart_resubmits_what_is_outstanding_in_its_old_order() {
    let mut ring = ring(8);
    let mut device = Device::default();
    for i in 0..5_u64 {
        ring.add(&[(i, 60)], 0).unwrap();
    }
    ring.publish();
    let heads = device.take(&ring);
    // The device returns chains 1 and 3 out of order, and dies. Chains 0, 2 and 4 are still
    // outstanding.
    device.give(&ring, heads[1], 0);
    device.give(&ring, heads[3], 0);
    while let Some(used) = ring.pop_used() {
        ring.free(used.head);
    }
    let (base, resubmitted) = ring.restart();
    assert_eq!((base, resubmitted), (2, 3));
    let mut fresh = Device { next: base, used: base };
    assert_eq!(fresh.take(&ring), [heads[0], heads[2], heads[4]]);
}
