//! Tests of the data path over vhost-user sockets. One side of each socket is Penstock's port,
//! which a worker serves. The guest's driver is on the other side of the socket, and shares no code
//! with the switch.

mod live;
mod packed;
mod rest;
mod rig;
mod workers;

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::AttachState;
use penstock_dataplane::port::vhost_user::SocketMode;
use penstock_guest::driver::{DriverConfig, Features, VirtioNet, VnetHdr};
use rig::{Port, Rig, frame, mac, receive, send, tcp_segment};

fn pair(config: impl Fn(DriverConfig) -> DriverConfig) -> (Rig, VirtioNet, VirtioNet) {
    let rig = Rig::start(&[Port::default(), Port::default()]);
    let a = VirtioNet::connect(config(rig.driver(0))).unwrap();
    let b = VirtioNet::connect(config(rig.driver(1))).unwrap();
    rig.wait_up(2);
    // The switch learns both addresses, so that it floods no later frame.
    let (mut a, mut b) = (a, b);
    rig::announce(&mut a, mac(0), &mut b);
    rig::announce(&mut b, mac(1), &mut a);
    (rig, a, b)
}

#[test]
fn frames_cross_whole_and_in_order_with_every_kind_of_driver() {
    let basic = Features::VERSION_1;
    let kinds = [
        (basic, 256, 2048),
        (basic | Features::MRG_RXBUF, 64, 256),
        (basic | Features::MRG_RXBUF | Features::EVENT_IDX | Features::IN_ORDER, 1024, 2048),
        (basic | Features::MRG_RXBUF | Features::INDIRECT_DESC | Features::OFFLOADS, 128, 1024),
    ];
    for (features, ring, buffer) in kinds {
        let (rig, mut a, mut b) = pair(|mut c| {
            c.wanted = features;
            c.required = basic;
            c.ring_size = ring;
            c.rx_buffer_bytes = buffer;
            c
        });
        assert!(a.features().contains(features));
        let mut sent = Vec::new();
        for n in 0..3000_u32 {
            let len = 60 + (n as usize * 37) % 1454;
            let f = frame(mac(0), mac(1), len, n);
            send(&mut a, &VnetHdr::default(), &f);
            sent.push(f);
            if n % 8 == 7 {
                let got: Vec<_> = receive(&mut b, 8).into_iter().map(|(_, f)| f).collect();
                assert!(got == sent, "{features:?}: frames up to {n} differ");
                sent.clear();
            }
        }
        rig.check();
        assert!(rig.counters(0).forwarded >= 3000);
    }
}

#[test]
fn chained_and_indirect_frames_cross() {
    let (rig, mut a, mut b) = pair(|c| c);
    for parts in 1..6 {
        let f = frame(mac(0), mac(1), 1400, 7);
        for indirect in [false, true] {
            let slot = a.tx().take().unwrap();
            a.tx().slot_mut(slot)[12..12 + f.len()].copy_from_slice(&f);
            let header = VnetHdr::default();
            if indirect {
                a.tx().push_indirect(slot, &header, f.len(), parts).unwrap();
            } else {
                a.tx().push_chain(slot, &header, f.len(), parts).unwrap();
            }
            a.tx().publish();
            assert_eq!(receive(&mut b, 1)[0].1, f, "{parts} parts, indirect {indirect}");
        }
    }
    rig.check();
}

#[test]
fn a_large_tcp_segment_passes_whole_where_the_receiver_takes_it() {
    let (rig, mut a, mut b) = pair(|mut c| {
        c.wanted = Features::BASIC | Features::OFFLOADS;
        c.tx_slot_bytes = 68_000;
        c
    });
    let (header, f) = tcp_segment(mac(0), mac(1), 60_000, 1448);
    send(&mut a, &header, &f);
    let (got_header, got) = receive(&mut b, 1).remove(0);
    assert_eq!(got, f);
    assert_eq!((got_header.gso_type, got_header.gso_size), (header.gso_type, 1448));
    assert_eq!(got_header.csum_start, header.csum_start);
    assert_eq!((rig.counters(0).rx_tso, rig.counters(1).tx_tso), (1, 1));
    rig.check();
}

#[test]
fn a_receiver_without_offloads_gets_finished_segments() {
    let rig =
        Rig::start(&[Port::default(), Port { offloads: OffloadCaps::NONE, ..Port::default() }]);
    let mut sender = rig.driver(0);
    sender.wanted = Features::BASIC | Features::OFFLOADS;
    sender.tx_slot_bytes = 68_000;
    let mut a = VirtioNet::connect(sender).unwrap();
    let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
    rig.wait_up(2);
    let (header, f) = tcp_segment(mac(0), mac(1), 20_000, 1448);
    send(&mut a, &header, &f);
    let got = receive(&mut b, 14);
    assert!(got.iter().all(|(h, _)| h.flags == 0 && h.gso_type == 0));
    let payload: Vec<u8> = got.iter().flat_map(|(_, f)| f[54..].to_vec()).collect();
    assert_eq!(payload, f[54..]);
    assert_eq!(rig.counters(1).sw_tso, 1);
    rig.check();
}

#[test]
fn lies_about_offloads_are_dropped() {
    let (rig, mut a, _b) = pair(|mut c| {
        c.wanted = Features::BASIC | Features::OFFLOADS;
        c.tx_slot_bytes = 68_000;
        c
    });
    let (header, f) = tcp_segment(mac(0), mac(1), 20_000, 1448);
    let lies = [
        VnetHdr { csum_start: 50_000, ..header },
        VnetHdr { csum_offset: 40, ..header },
        VnetHdr { gso_size: 0, ..header },
        VnetHdr { gso_type: 4, ..header },
    ];
    for lie in lies {
        send(&mut a, &lie, &f);
    }
    rig.until("all lies are counted", |rig| {
        rig.counters(0).drops[DropReason::BadOffload as usize] == 4
    });
    rig.check();
}

#[test]
fn a_driver_that_goes_and_comes_back_is_taken_up_again_in_both_modes() {
    for mode in [SocketMode::Server, SocketMode::Client] {
        let port = Port { mode, ..Port::default() };
        let rig = Rig::start(&[port.clone(), port]);
        let mut a = VirtioNet::prepare(rig.driver(0)).unwrap();
        let mut b = VirtioNet::prepare(rig.driver(1)).unwrap();
        rig::attach(&mut a);
        rig::attach(&mut b);
        rig.wait_up(2);
        for round in 0..5 {
            let f = frame(mac(0), mac(1), 100, round);
            send(&mut a, &VnetHdr::default(), &f);
            assert_eq!(receive(&mut b, 1)[0].1, f);
            a.close();
            rig.wait_gone_of(&[0]);
            // The other guest is not affected.
            assert_eq!(rig.state(1), AttachState::Up);
            rig::attach(&mut a);
            rig.wait_up(2);
        }
        rig.check();
    }
}

#[test]
fn a_port_goes_and_comes_while_the_others_forward_without_loss() {
    let mut rig = Rig::start(&[Port::default(), Port::default(), Port::default()]);
    let mut a = VirtioNet::connect(rig.driver(0)).unwrap();
    let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
    rig.wait_up_of(&[0, 1]);
    rig::announce(&mut b, mac(1), &mut a);
    let (mut sent, mut got) = (0_u32, 0);
    for round in 0..20 {
        let before = sent;
        for _ in 0..50 {
            send(&mut a, &VnetHdr::default(), &frame(mac(0), mac(1), 200, sent));
            sent += 1;
            got += rig::drain(&mut b).len();
        }
        assert!(sent > before);
        if round % 2 == 0 {
            rig.remove(2);
        } else {
            rig.add(2, &Port::default());
        }
        rig::wait("every frame", || {
            got += rig::drain(&mut b).len();
            got == sent as usize
        });
    }
    rig.check();
    assert_eq!(rig.counters(0).dropped(), 0);
}

#[test]
fn queue_pairs_share_a_port() {
    queue_pairs_share(Features::NONE);
    queue_pairs_share(Features::RING_PACKED);
}

fn queue_pairs_share(ring: Features) {
    let port = Port { queue_pairs: 2, ..Port::default() };
    let rig = Rig::start(&[port.clone(), port]);
    let config = |i| {
        let mut c = rig.driver(i);
        c.queue_pairs = 2;
        c.wanted = Features::BASIC | Features::MQ | ring;
        c
    };
    let mut a = VirtioNet::connect(config(0)).unwrap();
    let mut b = VirtioNet::connect(config(1)).unwrap();
    rig.wait_up(2);
    assert_eq!(rig.queues_up(0), 2);
    // The switch serves both queues of the sender, and spreads flows over both queues of the
    // receiver.
    for n in 0..64 {
        let f = rig::flow_frame(mac(0), mac(1), 100, n, u16::try_from(n).unwrap());
        rig::send_on(&mut a, (n % 2) as usize, &VnetHdr::default(), &f);
    }
    let mut seen = [0; 2];
    rig::wait("all 64 frames", || {
        for (queue, seen) in seen.iter_mut().enumerate() {
            *seen += rig::drain_queue(&mut b, queue).len();
        }
        seen[0] + seen[1] == 64
    });
    assert!(seen[0] > 8 && seen[1] > 8, "{seen:?}");
    rig.check();
}

#[test]
fn a_hostile_driver_hurts_only_itself() {
    let rig = Rig::start(&[Port::default(), Port::default(), Port::default()]);
    let mut evil = VirtioNet::connect(rig.driver(2)).unwrap();
    let mut a = VirtioNet::connect(rig.driver(0)).unwrap();
    let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
    rig.wait_up(3);
    let mut exchange = |n| {
        let f = frame(mac(0), mac(1), 300, n);
        send(&mut a, &VnetHdr::default(), &f);
        assert_eq!(receive(&mut b, 1)[0].1, f);
    };
    exchange(0);
    let descriptor =
        |addr, len, flags, next| penstock_guest::driver::Descriptor { addr, len, flags, next };
    let mut raw = evil.raw(1);
    for (n, d) in [
        descriptor(u64::MAX - 4, 100, 0, 0),
        descriptor(0, u32::MAX, 0, 0),
        descriptor(1 << 60, 100, 0, 0),
        descriptor(0, 100, 1, 0),
        descriptor(0, 17, 4, 0),
    ]
    .into_iter()
    .enumerate()
    {
        raw.write_desc(0, d);
        let at = raw.avail_idx();
        raw.write_avail(at, 0);
        raw.write_avail_idx(at.wrapping_add(1));
        rig.until("the bad chain is counted", |rig| rig.counters(2).rx_errors == n as u64 + 1);
        exchange(1);
    }
    let at = raw.avail_idx();
    raw.write_avail_idx(at.wrapping_add(5000));
    exchange(2);
    exchange(3);
    rig.check();
}

#[test]
fn a_driver_may_enable_rings_before_it_acknowledges_features() {
    use std::io::{Read, Write};
    // QEMU sends these words: request, flags (version 1, reply requested), length, ring, and 1 for
    // enabled.
    let rig = Rig::start(&[Port::default()]);
    let mut stream = std::os::unix::net::UnixStream::connect(rig.driver(0).socket).unwrap();
    let mut ask = |words: &[u32], reply: usize| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        stream.write_all(&bytes).unwrap();
        let mut answer = vec![0; reply];
        stream.read_exact(&mut answer).unwrap();
        answer.chunks(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(ask(&[18, 9, 8, 1, 1], 20), [18, 5, 8, 0, 0]);
    // The switch refuses a ring that does not exist, and the session continues.
    assert_eq!(ask(&[18, 9, 8, 99, 1], 20), [18, 5, 8, 1, 0]);
    let features = ask(&[1, 1, 0], 20);
    assert_eq!(features[0], 1);
    assert_ne!(features[3] & 1 << 30, 0);
}

#[test]
fn a_guest_cannot_vouch_for_a_checksum() {
    let (rig, mut a, mut b) = pair(|mut c| {
        c.wanted = Features::BASIC | Features::OFFLOADS;
        c
    });
    let f = frame(mac(0), mac(1), 200, 1);
    send(&mut a, &VnetHdr { flags: 2, ..VnetHdr::default() }, &f);
    let (header, got) = receive(&mut b, 1).remove(0);
    assert_eq!((header.flags, got), (0, f));
    rig.check();
}
