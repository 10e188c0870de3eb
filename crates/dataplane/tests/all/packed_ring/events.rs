//! These tests check event suppression of packed rings in both directions (virtio 1.2 §2.8.14).

use crate::packed_ring::guest::{
    BUFFERS, DEVICE_EVENT, DRIVER_EVENT, Guest, Place, SIZE, give, pattern, taken,
};
use crate::ring_bed::{eventfd, rung};

const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;

fn wish(guest: &Guest, place: Place, flags: u16) {
    guest.write(DRIVER_EVENT, place.to_base() as u16);
    guest.write(DRIVER_EVENT + 2, flags);
}

const NOWHERE: Place = Place { index: 0, wrap: false };

#[test]
fn the_driver_is_asked_not_to_kick_while_the_switch_polls() {
    let guest = Guest::new();
    guest.write(DEVICE_EVENT, 0xffff_ffff_u32);
    let _ring = guest.ring();
    assert_eq!(guest.read::<u32>(DEVICE_EVENT), u32::from(DISABLE) << 16);
}

#[test]
fn flags_switch_interrupts_on_and_off() {
    for event_idx in [false, true] {
        let call = eventfd();
        let mut guest = Guest::new();
        let mut ring = guest
            .ring_with(|s| {
                s.call = Some(call.try_clone().unwrap());
                s.event_idx = event_idx;
            })
            .unwrap();
        let mut send = |guest: &mut Guest| {
            guest.send_plain(&pattern(60));
            taken(&mut ring);
            guest.take_used();
            let told = ring.notify();
            assert_eq!(ring.notify(), 0, "nothing new to tell");
            (told, rung(&call))
        };
        wish(&guest, NOWHERE, ENABLE);
        assert_eq!(send(&mut guest), (1, true));
        wish(&guest, NOWHERE, DISABLE);
        assert_eq!(send(&mut guest), (0, false));
        // Reserved bits change nothing.
        wish(&guest, NOWHERE, 0xfff0 | DISABLE);
        assert_eq!(send(&mut guest), (0, false));
        // A position counts only if event indices were negotiated. An additional interrupt does no
        // harm.
        wish(&guest, NOWHERE, DESC);
        assert_eq!(send(&mut guest), if event_idx { (0, false) } else { (1, true) });
        wish(&guest, NOWHERE, 3);
        assert_eq!(send(&mut guest), (1, true));
    }
}

/// For each event position, the device interrupts the driver if and only if the device returns the
/// descriptor at this position in the burst.
#[test]
fn an_event_is_told_once_when_its_descriptor_is_used() {
    let call = eventfd();
    let mut guest = Guest::new();
    guest.size = 7;
    let mut ring = guest
        .ring_with(|s| {
            s.call = Some(call.try_clone().unwrap());
            s.event_idx = true;
        })
        .unwrap();
    let mut told = 0;
    for round in 0..400_u16 {
        let burst = 1 + round % 7;
        // The event's position is up to more than a round ahead.
        let mut event = guest.used;
        event.advance(round / 7 % 14, 7);
        wish(&guest, event, DESC);
        let ahead = round / 7 % 14;
        for i in 0..burst {
            guest.offer(i, &[(BUFFERS, 72, 0)]);
        }
        assert_eq!(taken(&mut ring).0.len(), usize::from(burst));
        guest.take_used();
        assert_eq!(ring.notify(), u32::from(ahead < burst), "{ahead} ahead, burst of {burst}");
        assert_eq!(rung(&call), ahead < burst);
        told += u32::from(ahead < burst);
    }
    assert!(told > 50);
}

#[test]
fn the_descriptors_of_a_chain_count_for_events() {
    for in_order in [false, true] {
        let call = eventfd();
        let mut guest = Guest::new();
        guest.in_order = in_order;
        let mut ring = guest
            .ring_with(|s| {
                s.call = Some(call.try_clone().unwrap());
                s.event_idx = true;
            })
            .unwrap();
        let b = BUFFERS;
        // The driver waits for the second of two chains. Each chain has three descriptors.
        wish(&guest, Place { index: 3, wrap: true }, DESC);
        guest.offer(0, &[(b, 12, 0), (b + 12, 30, 0), (b + 42, 30, 0)]);
        taken(&mut ring);
        assert_eq!(ring.notify(), 0);
        guest.offer(1, &[(b, 12, 0), (b + 12, 30, 0), (b + 42, 30, 0)]);
        taken(&mut ring);
        assert_eq!(ring.notify(), 1);
        assert!(rung(&call));
    }
}

#[test]
fn an_event_that_lies_nowhere_is_harmless() {
    let mut guest = Guest::new();
    let mut ring = guest.ring_with(|s| s.event_idx = true).unwrap();
    for event in [SIZE, 0x7fff, 0xffff, 0x8000 | SIZE] {
        guest.write(DRIVER_EVENT, event);
        guest.write(DRIVER_EVENT + 2, DESC);
        guest.post(&[100]);
        assert_eq!(give(&mut ring, &[pattern(60)]).frames, 1);
        assert_eq!(ring.notify(), 0, "no call descriptor, no interrupt");
        guest.take_used();
    }
}
