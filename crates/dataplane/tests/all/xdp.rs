//! These tests check an AF_XDP port on one end of a veth, with a packet socket on the other end.
//! The tests need root, and are skipped without root.
#![expect(clippy::cast_possible_truncation, reason = "small test values, and patterns that wrap")]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::offload::{Offload, OffloadCaps};
use penstock_dataplane::port::packet::{Packet, PacketConfig};
use penstock_dataplane::port::xdp::{Xdp, XdpConfig, ZeroCopy};
use penstock_dataplane::port::{AttachState, Pending, PortQueue, TxOutcome};
use penstock_testing::wait_until as until;
use penstock_units::Cycles;

/// The sender's MAC address in all frames of these tests. The tests ignore other frames on the
/// wire.
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// A network namespace with the two ends of a veth, `up0` and `up1`. Dropping a `Lab` removes the
/// namespace and the veth.
struct Lab(String);

impl Lab {
    /// Creates the network namespace. If the machine does not allow network namespaces, reports the
    /// test as skipped and returns `None`.
    fn new(link: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let lab = Self(format!("xdp{}-{n}", std::process::id()));
        let made = Command::new("ip").args(["netns", "add", &lab.0]).output();
        if !made.as_ref().is_ok_and(|o| o.status.success()) {
            penstock_testing::skip(format_args!(
                "`ip netns add` needs root and iproute2: {made:?}"
            ));
            return None;
        }
        lab.ip(&format!("link add up0 {link} type veth peer name up1 {link}"));
        lab.ip("link set up0 up");
        lab.ip("link set up1 up");
        Some(lab)
    }

    /// Runs the command `ip` in the network namespace.
    fn ip(&self, arguments: &str) -> String {
        let output = Command::new("ip")
            .args(["-n", &self.0])
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn config(&self, queues: u16) -> XdpConfig {
        XdpConfig {
            interface: "up0".to_owned(),
            netns: Some(self.0.clone().into()),
            queues,
            zero_copy: ZeroCopy::Auto,
        }
    }

    fn xdp(&self, queues: u16) -> (Xdp, Vec<Box<dyn PortQueue>>) {
        Xdp::open(&self.config(queues)).unwrap()
    }

    /// Opens a packet socket on the kernel's end of the veth.
    fn peer(&self) -> (Packet, Box<dyn PortQueue>) {
        let (packet, mut queues) = Packet::open(&PacketConfig {
            interface: "up1".to_owned(),
            netns: Some(self.0.clone().into()),
            offloads: OffloadCaps::NONE,
        })
        .unwrap();
        (packet, queues.remove(0))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Returns an IPv4 frame of `len` bytes with a flow and bytes that depend on `n`.
fn frame(n: usize, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i * 7 + n * 13) as u8).collect();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0x78]);
    frame[6..12].copy_from_slice(&OURS);
    frame[12..14].copy_from_slice(&[8, 0]);
    if len >= 42 {
        let total = (len - 14) as u16;
        frame[14..34]
            .copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[34..38].copy_from_slice(&(n as u32).to_be_bytes());
    }
    frame
}

fn tagged(n: usize, len: usize) -> Vec<u8> {
    let plain = frame(n, len);
    [&plain[..12], &[0x81, 0, 0x20, 0x64], &plain[12..]].concat()
}

/// Sends the frames as one batch, as a worker does in one turn. There may be at most one batch of
/// frames.
fn send(queue: &mut dyn PortQueue, frames: &[Vec<u8>]) -> TxOutcome {
    let mut batch = Batch::new();
    for frame in frames {
        batch.push(frame, Offload::NONE).unwrap();
    }
    let all: Vec<u8> = (0..frames.len() as u8).collect();
    let out = queue.tx_burst(&batch, &all);
    queue.publish();
    queue.notify_taken();
    queue.notify();
    out
}

/// Receives frames as a worker does in one turn, and ignores frames of other senders.
fn receive(queue: &mut dyn PortQueue, into: &mut Vec<Vec<u8>>) -> u32 {
    static NOW: AtomicU32 = AtomicU32::new(0);
    // The time advances by more than the longest pause between polls.
    let now = Cycles(u64::from(NOW.fetch_add(1, Ordering::Relaxed)) * 100_000);
    let mut batch = Batch::new();
    if queue.pending(now) != Pending::No {
        queue.rx_burst(&mut batch);
    }
    for i in 0..batch.len() {
        let mut bytes = Vec::new();
        batch.copy_out(i, &mut bytes);
        if bytes[6..12] == OURS {
            into.push(bytes);
        }
    }
    queue.rx_done();
    queue.publish();
    queue.notify_taken();
    queue.notify();
    batch.errors
}

/// Sends the frames in batches at one end of the veth, and waits until each batch arrives at the
/// other end.
fn carry(from: &mut dyn PortQueue, to: &mut dyn PortQueue, frames: &[Vec<u8>]) {
    for batch in frames.chunks(BATCH_FRAMES) {
        let out = send(from, batch);
        assert_eq!(out.frames as usize, batch.len(), "{out:?}");
        let mut got = Vec::new();
        until("frames", || {
            assert_eq!(receive(to, &mut got), 0);
            got.len() >= batch.len()
        });
        assert!(got == batch, "a frame came otherwise than it was sent");
    }
}

#[test]
fn frames_pass_both_ways_byte_by_byte() {
    let Some(lab) = Lab::new("") else { return };
    let (xdp, mut queues) = lab.xdp(1);
    let (_packet, mut peer) = lab.peer();
    let ours = queues[0].as_mut();
    until("the link", || ours.tx_ready());
    let status = xdp.status();
    assert_eq!((status.state, status.queues_up), (AttachState::Up, 1));
    assert_eq!(status.features, ["copy", "native", "need-wakeup"]);
    assert_eq!((status.ring_sizes, status.error), (vec![2048, 2048], None));
    let lens = [14, 15, 59, 60, 64, 127, 128, 129, 130, 256, 1000, 1513, 1514];
    let frames: Vec<_> = lens.into_iter().enumerate().map(|(n, len)| frame(n, len)).collect();
    carry(ours, peer.as_mut(), &frames);
    carry(peer.as_mut(), ours, &frames);
    // Frames keep their VLAN tag in both directions.
    let frames: Vec<_> = (0..32).map(|n| tagged(n, 60 + n * 46)).collect();
    carry(ours, peer.as_mut(), &frames);
    carry(peer.as_mut(), ours, &frames);
}

#[test]
fn all_buffers_go_round_many_times() {
    let Some(lab) = Lab::new("") else { return };
    let (_xdp, mut queues) = lab.xdp(1);
    let (_packet, mut peer) = lab.peer();
    let ours = queues[0].as_mut();
    until("the link", || ours.tx_ready());
    let free = ours.buffers().unwrap().free();
    for round in 0..1_000 {
        let frames: Vec<_> = (0..32).map(|n| frame(round * 32 + n, 60 + n * 40)).collect();
        carry(ours, peer.as_mut(), &frames);
        carry(peer.as_mut(), ours, &frames);
    }
    // The last frames may still be on their way back.
    until("the buffers are free", || {
        send(ours, &[]);
        ours.buffers().unwrap().free() == free
    });
}

#[test]
fn each_queue_has_its_flows() {
    let Some(lab) = Lab::new("numrxqueues 2 numtxqueues 2") else { return };
    let (xdp, mut queues) = lab.xdp(2);
    let (_packet, mut peer) = lab.peer();
    until("the link", || queues.iter().all(|q| q.tx_ready()));
    assert_eq!(xdp.status().queues_up, 2);
    let frames: Vec<_> = (0..32).map(|n| frame(n, 200)).collect();
    assert_eq!(send(peer.as_mut(), &frames).frames, 32);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    until("frames in both queues", || {
        receive(queues[0].as_mut(), &mut first);
        receive(queues[1].as_mut(), &mut second);
        first.len() + second.len() == 32
    });
    assert!(!first.is_empty() && !second.is_empty());
    let mut all = [first, second].concat();
    all.sort();
    let mut expected = frames.clone();
    expected.sort();
    assert!(all == expected);
    for queue in &mut queues {
        carry(queue.as_mut(), peer.as_mut(), &frames);
    }
}

#[test]
fn frames_of_queues_that_the_port_does_not_serve_are_reported() {
    let Some(lab) = Lab::new("numrxqueues 2 numtxqueues 2") else { return };
    let (xdp, _queues) = lab.xdp(1);
    let error = xdp.status().error.unwrap();
    assert!(error.contains("1 more queues go to the kernel"), "{error}");
    drop((xdp, _queues));
    let error = Xdp::open(&lab.config(3)).err().unwrap();
    assert_eq!(error.to_string(), "up0: number of queues (limit 2)");
    let error = Xdp::open(&lab.config(9)).err().unwrap();
    assert_eq!(error.to_string(), "up0: number of queues (limit 8)");
}

#[test]
fn the_link_is_followed_down_and_up() {
    let Some(lab) = Lab::new("") else { return };
    let (xdp, mut queues) = lab.xdp(1);
    let (_packet, mut peer) = lab.peer();
    let ours = queues[0].as_mut();
    until("the link", || ours.tx_ready());
    for (down, up) in [("up1 down", "up1 up"), ("up0 down", "up0 up")] {
        lab.ip(&format!("link set {down}"));
        until("the link is down", || !ours.tx_ready());
        assert_eq!(xdp.status().state, AttachState::Down);
        assert_eq!(send(ours, &[frame(1, 60)]).down, 1);
        lab.ip(&format!("link set {up}"));
        until("the link is up", || ours.tx_ready());
        carry(ours, peer.as_mut(), &[frame(2, 600)]);
        carry(peer.as_mut(), ours, &[frame(3, 600)]);
    }
    // A longer MTU is adopted as far as the buffers allow.
    assert_eq!(send(ours, &[frame(1, 1519)]).too_big, 1);
    lab.ip("link set up1 mtu 1600");
    lab.ip("link set up0 mtu 1600");
    until("the longer frame", || send(ours, &[frame(1, 1614)]).frames == 1);
    lab.ip("link del up1");
    until("the interface is gone", || xdp.status().state == AttachState::Error);
    assert!(!ours.tx_ready());
    assert!(xdp.status().error.unwrap().contains("the interface is gone"));
    let mut none = Vec::new();
    receive(ours, &mut none);
}

#[test]
fn a_ring_that_the_kernel_does_not_empty_drops_and_recovers() {
    let Some(lab) = Lab::new("") else { return };
    let (_xdp, mut queues) = lab.xdp(1);
    let (_packet, mut peer) = lab.peer();
    let ours = queues[0].as_mut();
    until("the link", || ours.tx_ready());
    let mut batch = Batch::new();
    (0..32).for_each(|n| batch.push(&frame(n, 60), Offload::NONE).unwrap());
    let all: Vec<u8> = (0..32).collect();
    // Without `notify` the kernel never reads the ring, which has 2048 entries.
    let mut sent = 0;
    for _ in 0..80 {
        let out = ours.tx_burst(&batch, &all);
        ours.publish();
        sent += out.frames;
        assert_eq!(out.frames + out.ring_full, 32);
    }
    assert_eq!(sent, 2048);
    let mut got = Vec::new();
    until("the ring is emptied", || {
        ours.notify_taken();
        ours.notify();
        receive(peer.as_mut(), &mut got);
        got.len() == 2048
    });
    carry(ours, peer.as_mut(), &[frame(9, 900)]);
}

#[test]
fn frames_wait_in_the_ports_memory_and_are_sent_from_there() {
    let Some(lab) = Lab::new("") else { return };
    let (_xdp, mut queues) = lab.xdp(1);
    let (_packet, mut peer) = lab.peer();
    let ours = queues[0].as_mut();
    until("the link", || ours.tx_ready());
    let mut batch = Batch::new();
    batch.push(&frame(1, 1514), Offload::NONE).unwrap();
    let filled = ours.buffers().unwrap().fill(&batch, 0).unwrap();
    batch.clear();
    batch.push(&frame(2, 1400), Offload::NONE).unwrap();
    let second = ours.buffers().unwrap().fill(&batch, 0).unwrap();
    let out = ours.buffers().unwrap().send(&[second, filled]);
    assert_eq!((out.frames, out.bytes), (2, 2914));
    ours.publish();
    ours.notify_taken();
    ours.notify();
    let mut got = Vec::new();
    until("both frames", || {
        receive(peer.as_mut(), &mut got);
        got.len() >= 2
    });
    assert!(got == [frame(2, 1400), frame(1, 1514)]);
}

#[test]
fn an_interface_has_one_owner_and_is_as_before_without_it() {
    let Some(lab) = Lab::new("") else { return };
    let has_program = || lab.ip("-d link show dev up0").contains("prog/xdp");
    let promiscuous = || lab.ip("-d link show dev up0").contains("promiscuity 1");
    assert!(!has_program() && !promiscuous());
    let first = lab.xdp(1);
    assert!(has_program() && promiscuous(), "{}", lab.ip("-d link show dev up0"));
    let error = Xdp::open(&lab.config(1)).err().unwrap();
    assert!(!error.is_refusal());
    let text = error.to_string();
    assert!(text.contains("another XDP program is attached to the interface"), "{text}");
    drop(first);
    until("the program is off", || !has_program() && !promiscuous());
    // The next owner gets the interface at once.
    let (_xdp, mut queues) = lab.xdp(1);
    let (_packet, mut peer) = lab.peer();
    until("the link", || queues[0].tx_ready());
    carry(queues[0].as_mut(), peer.as_mut(), &[frame(1, 60)]);
}

#[test]
fn where_the_driver_refuses_frames_are_taken_in_the_stack() {
    let Some(lab) = Lab::new("") else { return };
    // A veth's driver accepts no program while its peer may send frames longer than a page.
    lab.ip("link set up1 mtu 9000");
    let (xdp, mut queues) = lab.xdp(1);
    let (_packet, mut peer) = lab.peer();
    let ours = queues[0].as_mut();
    until("the link", || ours.tx_ready());
    assert_eq!(xdp.status().features, ["copy", "generic", "need-wakeup"]);
    let lens = [14, 60, 128, 129, 1514];
    let frames: Vec<_> = lens.into_iter().enumerate().map(|(n, len)| frame(n, len)).collect();
    carry(ours, peer.as_mut(), &frames);
    carry(peer.as_mut(), ours, &frames);
    let frames: Vec<_> = (0..32).map(|n| tagged(n, 60 + n * 46)).collect();
    carry(ours, peer.as_mut(), &frames);
    carry(peer.as_mut(), ours, &frames);
    // The kernel drops a frame longer than a buffer, and the port counts it.
    assert_eq!(send(peer.as_mut(), &[frame(1, 1518)]).frames, 1);
    lab.ip("link set up0 mtu 4000");
    assert_eq!(send(peer.as_mut(), &[frame(1, 3000)]).frames, 1);
    let (mut got, mut errors) = (Vec::new(), 0);
    until("it is counted", || {
        errors += receive(ours, &mut got);
        errors > 0
    });
    assert!(errors == 1 && got.iter().all(|f| f.len() == 1518));
}

#[test]
fn impossible_configurations_are_refused_with_a_reason() {
    let Some(lab) = Lab::new("") else { return };
    let open = |interface: &str| {
        let interface = interface.to_owned();
        Xdp::open(&XdpConfig { interface, ..lab.config(1) }).err().unwrap()
    };
    let error = open("up9");
    assert!(!error.is_refusal() && error.to_string().contains("find the interface"), "{error}");
    lab.ip("link set up0 mtu 9000");
    let error = open("up0");
    assert!(error.is_refusal() && error.to_string().contains("lower the MTU"), "{error}");
}

/// Verifies the UDP checksum of an IPv4 frame: returns 0xffff if the checksum is right.
fn udp_sum(frame: &[u8]) -> u32 {
    let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let (ip, udp) = (&frame[14..34], &frame[34..end]);
    let mut words = [&ip[12..20], &[0, 17], &(udp.len() as u16).to_be_bytes(), udp].concat();
    words.resize(words.len().next_multiple_of(2), 0);
    let sum = words.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn checksums_left_open_by_the_other_end_are_finished() {
    let Some(lab) = Lab::new("") else { return };
    let (_xdp, mut queues) = lab.xdp(1);
    let ours = queues[0].as_mut();
    until("the link", || ours.tx_ready());
    lab.ip(&format!("link set up1 address {}", mac(OURS)));
    lab.ip("addr add 10.9.0.1/24 dev up1");
    lab.ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:78 dev up1");
    let run = |command: &[&str]| {
        let done = Command::new("ip").args(["netns", "exec", &lab.0]).args(command).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{command:?}: {done:?}");
    };
    let mut hear = || {
        run(&["bash", "-c", "echo hello > /dev/udp/10.9.0.2/99"]);
        let mut got = Vec::new();
        let mut found = None;
        until("a datagram", || {
            receive(ours, &mut got);
            found = got.iter().find(|f| f.windows(5).any(|w| w == b"hello")).cloned();
            found.is_some()
        });
        found.unwrap()
    };
    // Either the sender or the port finishes the checksum.
    assert_eq!(udp_sum(&hear()), 0xffff);
    run(&["ethtool", "-K", "up1", "tx", "off"]);
    assert_eq!(udp_sum(&hear()), 0xffff);
}

fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}
