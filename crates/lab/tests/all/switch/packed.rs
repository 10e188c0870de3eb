//! Tests of the data path with packed virtio rings.

use penstock_dataplane::port::AttachState;
use penstock_dataplane::port::vhost_user::SocketMode;
use penstock_guest::driver::{Features, VirtioNet, VnetHdr};

use crate::switch::pair;
use crate::switch::rig::{self, Port, Rig, frame, mac, receive, send, tcp_segment};

const PACKED: Features = Features::RING_PACKED;
const BASE: Features = Features(Features::VERSION_1.0 | Features::RING_PACKED.0);
const AVAIL: u16 = 1 << 7;

#[test]
fn frames_cross_whole_and_in_order_with_every_kind_of_driver() {
    let kinds = [
        (BASE, 256, 2048),
        (BASE | Features::IN_ORDER, 4, 2048),
        (BASE | Features::MRG_RXBUF, 64, 256),
        (BASE | Features::MRG_RXBUF | Features::EVENT_IDX | Features::IN_ORDER, 1024, 2048),
        (BASE | Features::MRG_RXBUF | Features::INDIRECT_DESC | Features::OFFLOADS, 128, 1024),
    ];
    for (features, ring, buffer) in kinds {
        let (rig, mut a, mut b) = pair(|mut c| {
            c.wanted = features;
            c.ring_size = ring;
            c.rx_buffer_bytes = buffer;
            c
        });
        assert!(a.features().contains(features));
        assert!(rig.status(0).features.contains(&"packed"));
        let window = u32::from(ring.min(8));
        let mut sent = Vec::new();
        for n in 0..1200_u32 {
            let len = 60 + (n as usize * 37) % 1454;
            let f = frame(mac(0), mac(1), len, n);
            send(&mut a, &VnetHdr::default(), &f);
            sent.push(f);
            if n % window == window - 1 {
                let got: Vec<_> = receive(&mut b, sent.len()).into_iter().map(|(_, f)| f).collect();
                assert!(got == sent, "{features:?}: frames up to {n} differ");
                sent.clear();
            }
        }
        rig.check();
        assert!(rig.counters(0).forwarded >= 1200);
        assert_eq!(a.tx().counters().bad_used, 0);
        assert_eq!((b.rx().counters().bad_used, b.rx().counters().bad), (0, 0));
    }
}

#[test]
fn chained_and_indirect_frames_cross() {
    for features in [Features::NONE, Features::IN_ORDER] {
        let (rig, mut a, mut b) = pair(|mut c| {
            c.wanted = BASE | Features::INDIRECT_DESC | features;
            c.ring_size = 32;
            c
        });
        for round in 0..30 {
            for parts in 1..6 {
                let f = frame(mac(0), mac(1), 1400, round);
                for indirect in [false, true] {
                    let header = VnetHdr::default();
                    a.tx().reclaim(|_| ());
                    let slot = a.tx().take().unwrap();
                    a.tx().slot_mut(slot)[12..12 + f.len()].copy_from_slice(&f);
                    if indirect {
                        a.tx().push_indirect(slot, &header, f.len(), parts).unwrap();
                    } else {
                        a.tx().push_chain(slot, &header, f.len(), parts).unwrap();
                    }
                    a.tx().publish();
                    let got = receive(&mut b, 1).remove(0).1;
                    assert_eq!(got, f, "{parts} parts, indirect {indirect}");
                }
            }
        }
        rig.check();
        assert_eq!(rig.counters(0).rx_errors, 0);
    }
}

#[test]
fn a_large_tcp_segment_fills_many_merged_buffers() {
    for format in [Features::NONE, PACKED] {
        let (rig, mut a, mut b) = pair(|mut c| {
            c.wanted = Features::BASIC | Features::OFFLOADS | format;
            c.tx_slot_bytes = 68_000;
            c
        });
        let (header, f) = tcp_segment(mac(0), mac(1), 60_000, 1448);
        for _ in 0..20 {
            send(&mut a, &header, &f);
            let (got_header, got) = receive(&mut b, 1).remove(0);
            assert_eq!(got, f);
            assert_eq!((got_header.gso_type, got_header.gso_size), (header.gso_type, 1448));
            assert!(got_header.num_buffers > 20);
        }
        rig.check();
    }
}

#[test]
fn a_driver_that_goes_and_comes_back_is_taken_up_again_in_both_modes() {
    for (mode, order) in [
        (SocketMode::Server, Features::NONE),
        (SocketMode::Client, Features::NONE),
        (SocketMode::Server, Features::IN_ORDER),
    ] {
        let port = Port { mode, ..Port::default() };
        let rig = Rig::start(&[port.clone(), port]);
        let [mut a, mut b] = [0, 1].map(|i| {
            let mut config = rig.driver(i);
            config.wanted = BASE | order;
            config.ring_size = 16;
            VirtioNet::prepare(config).unwrap()
        });
        rig::attach(&mut a);
        rig::attach(&mut b);
        rig.wait_up(2);
        // The switch floods frames to unknown addresses, and limits such frames. So it must know
        // the address first.
        rig::announce(&mut b, mac(1), &mut a);
        for round in 0..20 {
            let f = frame(mac(0), mac(1), 100, round);
            send(&mut a, &VnetHdr::default(), &f);
            assert_eq!(receive(&mut b, 1)[0].1, f);
            a.close();
            rig.wait_gone_of(&[0]);
            // The other guest is not affected.
            assert_eq!(rig.state(1), AttachState::Up);
            // Frames that were sent while the driver was disconnected arrive, in order, after it
            // has reconnected.
            let late: Vec<_> = (0..3).map(|n| frame(mac(0), mac(1), 200, 100 * n)).collect();
            late.iter().for_each(|f| send(&mut a, &VnetHdr::default(), f));
            rig::attach(&mut a);
            rig.wait_up(2);
            let got: Vec<_> = receive(&mut b, 3).into_iter().map(|(_, f)| f).collect();
            assert_eq!(got, late);
        }
        rig.check();
    }
}

#[test]
fn rings_said_to_be_at_their_start_are_taken_up_where_they_stand() {
    // After QEMU's network device lost its switch, it sends no base and no inflight region.
    for (features, buffer) in [
        (BASE, 2048),
        (BASE | Features::IN_ORDER, 2048),
        (BASE | Features::MRG_RXBUF | Features::EVENT_IDX, 256),
    ] {
        let (rig, mut a, mut b) = pair(|mut c| {
            c.wanted = features;
            c.ring_size = 16;
            c.rx_buffer_bytes = buffer;
            c.says_start = true;
            c
        });
        for round in 0..50 {
            let count = round % 5;
            let early: Vec<_> = (0..=count).map(|n| frame(mac(0), mac(1), 700, n)).collect();
            early.iter().for_each(|f| send_in(&mut a, f, usize::try_from(round % 3).unwrap()));
            let got: Vec<_> = receive(&mut b, early.len()).into_iter().map(|(_, f)| f).collect();
            assert_eq!(got, early, "{features:?}, round {round}");
            a.close();
            b.close();
            rig.wait_gone_of(&[0, 1]);
            let late: Vec<_> = (0..3).map(|n| frame(mac(0), mac(1), 200, n)).collect();
            late.iter().for_each(|f| send(&mut a, &VnetHdr::default(), f));
            rig::attach(&mut b);
            rig.wait_up_of(&[1]);
            rig::attach(&mut a);
            rig.wait_up(2);
            let got: Vec<_> = receive(&mut b, 3).into_iter().map(|(_, f)| f).collect();
            assert_eq!(got, late, "{features:?}, round {round}");
        }
        assert_eq!((a.tx().counters().bad_used, a.tx().counters().disorder), (0, 0));
        assert_eq!((b.rx().counters().bad_used, b.rx().counters().disorder), (0, 0));
        rig.check();
    }
}

/// Sends the frame `f` in one descriptor if `parts` is 0, and otherwise in a chain with `parts`
/// descriptors of payload.
fn send_in(vm: &mut VirtioNet, f: &[u8], parts: usize) {
    if parts == 0 {
        return send(vm, &VnetHdr::default(), f);
    }
    vm.tx().reclaim(|_| ());
    let slot = vm.tx().take().unwrap();
    vm.tx().slot_mut(slot)[12..12 + f.len()].copy_from_slice(f);
    vm.tx().push_chain(slot, &VnetHdr::default(), f.len(), parts).unwrap();
    vm.tx().publish();
}

#[test]
fn a_packed_ring_whose_position_is_unknown_is_never_up() {
    let (rig, mut a, mut b) = pair(|mut c| {
        c.wanted = BASE;
        c.says_start = true;
        c
    });
    let f = frame(mac(0), mac(1), 100, 1);
    send(&mut a, &VnetHdr::default(), &f);
    receive(&mut b, 1);
    a.close();
    rig.wait_gone_of(&[0]);
    // This state looks as if another switch had run the ring and recorded no position.
    let mut raw = a.raw(1);
    raw.used_window().u16_at(0).store(0, std::sync::atomic::Ordering::Relaxed);
    assert!(a.reconnect().is_err(), "the ring cannot be taken up");
    rig.until("the port says why", |rig| {
        rig.status(0).error.is_some_and(|e| e.contains("position is unknown"))
    });
    assert_eq!(rig.queues_up(0), 0);
}

#[test]
fn an_armed_queue_is_interrupted_and_a_polled_one_is_not() {
    for events in [Features::NONE, Features::EVENT_IDX] {
        let (_rig, mut a, mut b) = pair(|mut c| {
            c.wanted = BASE | events;
            c.ring_size = 8;
            c
        });
        for n in 0..40 {
            let f = frame(mac(0), mac(1), 100, n);
            b.rx().disarm();
            b.rx().clear_call();
            send(&mut a, &VnetHdr::default(), &f);
            receive(&mut b, 1);
            assert!(b.rx().call_fd().read().is_err(), "polled: no interrupt");
            assert!(b.rx().arm(), "nothing is waiting");
            send(&mut a, &VnetHdr::default(), &f);
            // An interrupt for the previous frame may still arrive. The worker writes a frame and
            // then checks whether an interrupt is requested. A delay between the two steps makes
            // the interrupt late.
            rig::wait("the interrupt", || b.rx().call_fd().read().is_ok() && !b.rx().arm());
            receive(&mut b, 1);
        }
    }
}

#[test]
fn split_and_packed_guests_talk_to_each_other() {
    let rig = Rig::start(&[Port::default(), Port::default()]);
    let mut packed = rig.driver(0);
    packed.wanted = Features::BASIC | PACKED;
    let mut a = VirtioNet::connect(packed).unwrap();
    let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
    rig.wait_up(2);
    for n in 0..500 {
        let there = frame(mac(0), mac(1), 300, n);
        send(&mut a, &VnetHdr::default(), &there);
        assert_eq!(receive(&mut b, 1)[0].1, there);
        let back = frame(mac(1), mac(0), 700, n);
        send(&mut b, &VnetHdr::default(), &back);
        assert_eq!(receive(&mut a, 1)[0].1, back);
    }
    rig.check();
}

#[test]
fn a_hostile_driver_hurts_only_itself() {
    let rig = Rig::start(&[Port::default(), Port::default(), Port::default()]);
    let mut config = rig.driver(2);
    config.wanted = BASE;
    config.scratch_bytes = 4096;
    let mut evil = VirtioNet::connect(config).unwrap();
    let mut a = VirtioNet::connect(rig.driver(0)).unwrap();
    let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
    rig.wait_up(3);
    let mut exchange = |n| {
        let f = frame(mac(0), mac(1), 300, n);
        send(&mut a, &VnetHdr::default(), &f);
        assert_eq!(receive(&mut b, 1)[0].1, f);
    };
    exchange(0);
    let scratch = evil.scratch().unwrap().guest(0);
    let mut raw = evil.raw(1);
    // The arguments are address, length, id and flags.
    let mut write = |index: u16, addr: u64, len: u32, id: u16, flags: u16| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&id.to_le_bytes());
        let window = raw.desc_window();
        window.bytes_mut(16 * usize::from(index), 16).copy_from_slice(&bytes);
        window
            .u16_at(16 * usize::from(index) + 14)
            .store(flags, std::sync::atomic::Ordering::Release);
    };
    for (index, (addr, len, id, flags)) in (0..).zip([
        (u64::MAX - 4, 100, 0, 0),
        (0, u32::MAX, 0, 0),
        (1 << 60, 100, 0, 0),
        (scratch, 17, 0, 4),
        (scratch, 100, 0xffff, 0),
        (scratch, 5, 0, 0),
    ]) {
        write(index, addr, len, id, flags | AVAIL);
        let bad = u64::from(index) + 1;
        rig.until("the bad chain is counted", |rig| rig.counters(2).rx_errors == bad);
        exchange(1);
    }
    // This chain does not end. So the switch stops the ring, and counts no more errors.
    write(6, scratch, 100, 0, AVAIL | 1);
    exchange(2);
    write(7, scratch, 100, 0, AVAIL);
    exchange(3);
    assert_eq!(rig.counters(2).rx_errors, 6);
    rig.check();
}
