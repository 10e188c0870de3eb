//! Tests of Penstock's guest driver and load generator against DPDK's vhost device
//! (`dpdk-testpmd`).

use std::net::Ipv4Addr;

use penstock_guest::driver::{
    Descriptor, DriverConfig, Features, SocketMode, VNET_HDR_LEN, VirtioNet, VnetHdr,
};
use penstock_guest::load::{Destination, LoadSpec, Rate, SizeMix, VmSpec};

use crate::common::{Testpmd, frame, receive, until};

/// Layout of a frame in virtio descriptors.
#[derive(Debug, Clone, Copy)]
enum Layout {
    Direct,
    Chain(usize),
    Indirect(usize),
}

fn send(vm: &mut VirtioNet, bytes: &[u8], layout: Layout) {
    let tx = vm.tx();
    let hdr = VnetHdr::default();
    let mut slot = None;
    until("a free slot", || {
        tx.reclaim(|_| ());
        slot = tx.take();
        slot.is_some()
    });
    let slot = slot.unwrap();
    tx.slot_mut(slot)[VNET_HDR_LEN..VNET_HDR_LEN + bytes.len()].copy_from_slice(bytes);
    match layout {
        Layout::Direct => tx.push(slot, &hdr, bytes.len()),
        Layout::Chain(parts) => tx.push_chain(slot, &hdr, bytes.len(), parts),
        Layout::Indirect(parts) => tx.push_indirect(slot, &hdr, bytes.len(), parts),
    }
    .unwrap();
    tx.publish();
}

/// Connects two VMs to testpmd, and waits until testpmd forwards between the VMs.
fn pair(pmd: &Testpmd, change: impl Fn(&mut DriverConfig)) -> [VirtioNet; 2] {
    let mut vms = [0, 1].map(|port| {
        let mut config = pmd.config(port);
        change(&mut config);
        VirtioNet::connect(config).unwrap()
    });
    settle(&mut vms);
    vms
}

/// Sends frames until a frame arrives, because testpmd drops frames until it has noticed both
/// guests. When a frame has arrived, the function receives the frames that are still in flight.
fn settle(vms: &mut [VirtioNet; 2]) {
    let mut probes = 0;
    until("the first frame", || {
        probes += 1;
        if vms[0].tx().outstanding() < 16 && probes % 1000 == 1 {
            send(&mut vms[0], &frame(60, 0), Layout::Direct);
        }
        vms[0].tx().reclaim(|_| ());
        vms[1].rx().recv(1, |_| ()) == 1
    });
    let mark = frame(60, 99);
    send(&mut vms[0], &mark, Layout::Direct);
    until("the mark behind the probes", || receive(&mut vms[1]) == mark);
}

fn exchange(vms: &mut [VirtioNet; 2], rounds: usize, layouts: &[Layout], lens: &[usize]) {
    let [a, b] = vms;
    let mut seed = 0;
    for _ in 0..rounds {
        for layout in layouts {
            for len in lens {
                seed += 1;
                let sent = frame(*len, seed);
                send(a, &sent, *layout);
                assert!(receive(b) == sent, "{layout:?} of {len} bytes, frame {seed}");
            }
        }
    }
    until("all frames completed", || {
        a.tx().reclaim(|_| ());
        a.tx().outstanding() == 0
    });
    assert_eq!(a.tx().counters().completed, a.tx().counters().frames);
    assert_eq!((a.tx().counters().bad_used, b.rx().counters().bad), (0, 0));
}

#[test]
fn every_layout_and_feature_set_carries_every_byte() {
    let Some(pmd) = Testpmd::start("") else { return };
    let layouts = [Layout::Direct, Layout::Chain(1), Layout::Chain(5), Layout::Indirect(3)];
    let base = Features::VERSION_1 | Features::INDIRECT_DESC;
    let packed = Features::RING_PACKED;
    let (mrg, event, order) = (Features::MRG_RXBUF, Features::EVENT_IDX, Features::IN_ORDER);
    for (wanted, ring, regions) in [
        (base | mrg | event | order, 256, 1),
        (base | mrg, 1024, 3),
        (base | event, 64, 2),
        (base | order, 128, 1),
        (base | packed | mrg | event | order, 256, 1),
        (base | packed | mrg, 1024, 3),
        (base | packed | event, 64, 2),
        (base | packed | order, 128, 1),
    ] {
        let mut vms = pair(&pmd, |config| {
            config.wanted = wanted;
            config.ring_size = ring;
            config.regions = regions;
        });
        let features = vms[0].features().without(Features::PROTOCOL);
        assert_eq!(features, wanted, "testpmd offers all of these");
        exchange(&mut vms, 40, &layouts, &[60, 61, 590, 1514]);
    }
}

#[test]
fn long_frames_arrive_in_merged_buffers() {
    let Some(pmd) = Testpmd::start("") else { return };
    let mut vms = pair(&pmd, |config| {
        config.tx_slot_bytes = 9216;
        config.rx_buffer_bytes = 512;
        config.required = Features::MRG_RXBUF;
    });
    exchange(&mut vms, 50, &[Layout::Direct, Layout::Indirect(7)], &[60, 600, 1514]);
    assert!(vms[1].rx().counters().merged > 0);
}

#[test]
fn a_restarted_device_goes_on_where_the_old_one_stopped() {
    let Some(mut pmd) = Testpmd::start("") else { return };
    let mut vms = pair(&pmd, |_| ());
    exchange(&mut vms, 30, &[Layout::Direct], &[60]);
    pmd.kill();
    for vm in &mut vms {
        until("the death is noticed", || !vm.is_connected());
    }
    // Frames that are pushed while no device is connected stay in the ring.
    for seed in 1000..1010 {
        send(&mut vms[0], &frame(100, seed), Layout::Direct);
    }
    pmd.restart();
    // The receiver reconnects first, so that the forwarder has buffers for the resubmitted frames.
    assert_eq!(vms[1].reconnect().unwrap().rx_buffers, 256);
    assert_eq!(vms[0].reconnect().unwrap().tx_frames, 10);
    // The new device takes all frames and returns their buffers. It may drop the frames, because
    // its other port may not be ready.
    until("the resubmitted frames are taken", || {
        vms[0].tx().reclaim(|_| ());
        vms[0].tx().outstanding() == 0
    });
    settle(&mut vms);
    exchange(&mut vms, 300, &[Layout::Direct], &[60]);
}

#[test]
fn a_device_that_connects_to_us_is_served() {
    let Some(pmd) = Testpmd::start(",client=1") else { return };
    // The driver creates the sockets. testpmd tries to connect once per second.
    let mut vms = [0, 1].map(|port| {
        let mut config = pmd.config(port);
        config.mode = SocketMode::Server;
        VirtioNet::prepare(config).unwrap()
    });
    vms.iter_mut().for_each(|vm| assert_eq!(vm.reconnect().unwrap().tx_frames, 0));
    settle(&mut vms);
    exchange(&mut vms, 20, &[Layout::Direct], &[60, 1514]);
}

#[test]
fn an_armed_queue_interrupts_and_a_polled_one_does_not() {
    let Some(pmd) = Testpmd::start("") else { return };
    for wanted in [Features::BASIC, Features::BASIC | Features::EVENT_IDX] {
        let mut vms = pair(&pmd, |config| config.wanted = wanted);
        vms.iter_mut().for_each(|vm| vm.rx().clear_call());
        exchange(&mut vms, 50, &[Layout::Direct], &[60]);
        assert!(vms[1].rx().call_fd().read().is_err(), "polled: no interrupt");
        assert!(vms[1].rx().arm(), "nothing is waiting");
        send(&mut vms[0], &frame(60, 1), Layout::Direct);
        until("the interrupt", || vms[1].rx().call_fd().read().is_ok());
        assert!(!vms[1].rx().arm(), "a frame is waiting");
        vms[1].rx().disarm();
        receive(&mut vms[1]);
    }
}

#[test]
fn touched_load_arrives_without_a_wrong_byte() {
    let Some(pmd) = Testpmd::start("") else { return };
    let vm = |i: u8| {
        let mac = format!("52:54:00:00:00:0{i}").parse().unwrap();
        let socket = pmd.socket(usize::from(i) - 1);
        VmSpec::new(&format!("vm{i}"), socket, mac, Ipv4Addr::new(10, 0, 0, i))
    };
    let (mut a, mut b) = (vm(1), vm(2));
    a.to = Some(Destination::Vm("vm2".to_owned()));
    a.sizes = SizeMix::imix();
    a.flows = 1000;
    b.to = Some(Destination::Vm("vm1".to_owned()));
    b.rate = Rate::Frames(5_000.0);
    let mut spec = LoadSpec::new(vec![a, b], 1.0);
    spec.touch = true;
    spec.wait_secs = 20.0;
    spec.interval_secs = Some(0.25);
    let mut intervals = 0;
    let report = spec.run(|_| intervals += 1).unwrap();
    assert!((3..=4).contains(&intervals), "{intervals}");
    for (from, to) in [("vm1", "vm2"), ("vm2", "vm1")] {
        let (from, to) = (report.vm(from).unwrap(), report.vm(to).unwrap());
        assert!(to.rx_frames > 1000, "{report}");
        assert_eq!(to.rx_bad, 0, "{report}");
        // Frames lost at the very end leave no gap in the sequence.
        assert!(to.rx_frames + to.rx_lost <= from.tx_frames, "{report}");
        assert!(to.rx_frames + to.rx_lost + 300 >= from.tx_frames, "{report}");
    }
}

#[test]
fn raw_access_reaches_the_ring_as_the_device_sees_it() {
    let Some(pmd) = Testpmd::start("") else { return };
    let mut vms = pair(&pmd, |config| {
        config.scratch_bytes = 8192;
        config.regions = 2;
    });
    let scratch = vms[0].scratch().unwrap().guest(0);
    let sent = frame(200, 5);
    let mut raw = vms[0].raw(1);
    let (size, next) = (raw.size(), raw.avail_idx());
    let head = size - 1;
    let table = [
        Descriptor { addr: scratch, len: 12, flags: Descriptor::NEXT, next: 1 },
        Descriptor { addr: scratch + 12, len: 200, flags: 0, next: 0 },
    ];
    assert!(raw.write_memory(scratch, &[0; 12]) && raw.write_memory(scratch + 12, &sent));
    assert!(raw.write_table(scratch + 4096, &table));
    assert!(!raw.write_memory(7, &[0]), "outside of guest memory");
    let indirect =
        Descriptor { addr: scratch + 4096, len: 32, flags: Descriptor::INDIRECT, next: 0 };
    raw.write_desc(head, indirect);
    raw.write_avail(next, head);
    raw.write_avail_idx(next.wrapping_add(1));
    raw.kick();
    assert!(receive(&mut vms[1]) == sent);
    let mut raw = vms[0].raw(1);
    until("the used entry", || raw.used_idx() == next.wrapping_add(1));
    assert_eq!(raw.used(next).0, u32::from(head));
}
