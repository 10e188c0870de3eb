//! Hostile acts of guests and frontends. Each hostile act runs until [`Stage::stop`] is set.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use penstock_guest::driver::{Descriptor, DriverConfig, Features, VirtioNet, VnetHdr};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};

use crate::faults;
use crate::rig::{flow_frame, frame, headers, mac};

/// Port of the hostile guest. The hostile guest's accomplice is a guest of the same tenant.
pub const EVIL: usize = 2;
pub const ACCOMPLICE: usize = 3;

/// Settings and state of a running hostile act.
pub struct Stage {
    pub evil: DriverConfig,
    pub accomplice: DriverConfig,
    pub stop: AtomicBool,
    /// Number of completed rounds of the hostile act.
    pub rounds: AtomicU64,
}

impl Stage {
    pub fn goes_on(&self) -> bool {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }

    fn socket(&self) -> PathBuf {
        self.evil.socket.clone()
    }

    pub fn evil(&self) -> VirtioNet {
        attach(VirtioNet::prepare(self.evil.clone()).unwrap())
    }

    fn accomplice(&self) -> VirtioNet {
        attach(VirtioNet::prepare(self.accomplice.clone()).unwrap())
    }
}

fn attach(mut device: VirtioNet) -> VirtioNet {
    crate::rig::attach(&mut device);
    device
}

pub type Act = (&'static str, fn(&Stage));

pub const ACTS: [Act; 20] = [
    ("never returns buffers", holds_buffers),
    ("floods flows", floods_flows),
    ("floods broadcasts", floods_broadcasts),
    ("kicks without end", kicks),
    ("stops and starts its rings", toggles_rings),
    ("connects and disconnects", reconnects),
    ("floods messages", floods_messages),
    ("sends half messages", sends_half_messages),
    ("maps memory again and again", remaps),
    ("rewrites ring and headers", rewrites),
    ("makes indices senseless", breaks_indices),
    ("sends the longest chains", sends_long_chains),
    ("has its frames cut small", sends_segments),
    ("fills its call descriptor", fills_call),
    ("shortens its memory", faults::shortens),
    ("punches holes into its memory", faults::punches),
    ("replaces its memory", faults::replaces),
    ("has memory of odd block sizes", faults::odd_blocks),
    ("announces odd offsets", faults::odd_offsets),
    ("announces what is no memory", faults::no_memory),
];

/// Indices of the hostile acts in [`ACTS`] that damage memory which the switch maps. The list omits
/// the act that punches holes, because the switch limits how often a port can punch holes per
/// minute (`docs/internals/hostile-guests.md`).
pub const FAULTS: [usize; 6] = [8, 14, 16, 17, 18, 19];

/// Sends up to 32 frames, as long as the ring has free slots.
fn pour(device: &mut VirtioNet, header: &VnetHdr, mut next: impl FnMut() -> Vec<u8>) {
    let tx = device.tx();
    tx.reclaim(|_| ());
    for _ in 0..32 {
        let Some(slot) = tx.take() else { break };
        let bytes = next();
        tx.slot_mut(slot)[12..12 + bytes.len()].copy_from_slice(&bytes);
        tx.push(slot, header, bytes.len()).unwrap();
    }
    tx.publish();
}

fn holds_buffers(stage: &Stage) {
    let (mut evil, mut accomplice) = (stage.evil(), stage.accomplice());
    let to_evil = frame(mac(3), mac(2), 300, 0);
    pour(&mut evil, &VnetHdr::default(), || frame(mac(2), mac(3), 60, 0));
    while stage.goes_on() {
        pour(&mut accomplice, &VnetHdr::default(), || to_evil.clone());
    }
}

/// Sends each frame in a new flow. Half of the frames also have a new source MAC address and an
/// unknown destination MAC address.
fn floods_flows(stage: &Stage) {
    let (mut evil, mut accomplice) = (stage.evil(), stage.accomplice());
    pour(&mut accomplice, &VnetHdr::default(), || frame(mac(3), mac(2), 60, 0));
    let mut n = 0_u32;
    while stage.goes_on() {
        pour(&mut evil, &VnetHdr::default(), || {
            n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [a, b, c, d] = n.to_be_bytes();
            let (mut from, mut to) = (mac(2), mac(3));
            if a & 1 == 0 {
                from.0[2..5].copy_from_slice(&[b, c, d]);
                to.0[2..5].copy_from_slice(&[d, b, c]);
            }
            flow_frame(from, to, 60, n, u16::from_be_bytes([c, d]))
        });
        accomplice.rx().recv(256, |_| ());
    }
}

fn floods_broadcasts(stage: &Stage) {
    let mut evil = stage.evil();
    let bytes = frame(mac(2), penstock_units::MacAddr::BROADCAST, 1400, 0);
    while stage.goes_on() {
        pour(&mut evil, &VnetHdr::default(), || bytes.clone());
    }
}

fn kicks(stage: &Stage) {
    let mut evil = stage.evil();
    while stage.goes_on() {
        evil.raw(0).kick();
        evil.raw(1).kick();
    }
}

fn toggles_rings(stage: &Stage) {
    let mut evil = stage.evil();
    let mut on = false;
    // If a request fails, for example by a timeout, the driver reconnects.
    while stage.goes_on() {
        if evil.enable_ring(0, on).is_err() || evil.enable_ring(1, on).is_err() {
            let _ = evil.try_reconnect();
        }
        on = !on;
    }
}

fn reconnects(stage: &Stage) {
    let mut evil = VirtioNet::prepare(stage.evil.clone()).unwrap();
    while stage.goes_on() {
        let _ = evil.try_reconnect();
        evil.close();
    }
}

/// Builds a vhost-user message without file descriptors.
fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len()).unwrap();
    let header = [request, 1 | flags, size].map(u32::to_ne_bytes).concat();
    [header.as_slice(), body].concat()
}

/// Sends vhost-user messages as fast as the socket accepts them. Each message makes the worker
/// replace a ring.
fn floods_messages(stage: &Stage) {
    let mut evil = stage.evil();
    let state = |index: u32, number: u32| [index.to_ne_bytes(), number.to_ne_bytes()].concat();
    let size = u32::from(evil.config().ring_size);
    let flood: Vec<u8> = (0..16)
        .flat_map(|i| {
            [
                // SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ENABLE.
                message(8, 0, &state(i % 2, size)),
                message(10, 0, &state(i % 2, 0)),
                message(18, 0, &state(i % 2, 1)),
            ]
            .concat()
        })
        .collect();
    let mut stream = evil.socket().and_then(|s| s.try_clone().ok());
    while stage.goes_on() {
        let sent = stream.as_mut().map(|stream| {
            stream.set_nonblocking(true).unwrap();
            stream.write(&flood)
        });
        match sent {
            Some(Ok(_)) => {}
            Some(Err(e)) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            // The socket accepted only a part of a message. The switch ended the session, because
            // the next message did not begin with a header.
            _ => {
                evil.close();
                let _ = evil.try_reconnect();
                stream = evil.socket().and_then(|s| s.try_clone().ok());
            }
        }
    }
}

fn sends_half_messages(stage: &Stage) {
    let whole = message(1, 0, &[]);
    let mut held = Vec::new();
    while stage.goes_on() {
        let Ok(mut stream) = UnixStream::connect(stage.socket()) else {
            std::thread::yield_now();
            continue;
        };
        let part = 1 + held.len() % 11;
        let _ = stream.write(&whole[..part]);
        held.push(stream);
        // The switch serves one connection at a time, so the first one blocks the others.
        if held.len() == 8 {
            held.clear();
        }
    }
}

fn remaps(stage: &Stage) {
    let mut evil = stage.evil();
    let ranges = evil.memory().ranges();
    let file = File::from(memfd_create(c"remap", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(64 << 20).unwrap();
    use std::os::fd::AsRawFd;
    let table = [VhostUserMemoryRegionInfo {
        guest_phys_addr: ranges[0].0 + (1 << 40),
        memory_size: 64 << 20,
        userspace_addr: 1 << 40,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }];
    while stage.goes_on() {
        let done = evil.frontend().is_ok_and(|f| f.set_mem_table(&table).is_ok());
        if !done {
            let _ = evil.try_reconnect();
        }
    }
}

/// Overwrites virtio descriptors, available entries and headers with random values while the switch
/// reads them.
fn rewrites(stage: &Stage) {
    let mut evil = stage.evil();
    let base = evil.memory().ranges()[0].0;
    let mut n = 88_172_645_463_325_252_u64;
    while stage.goes_on() {
        let mut raw = evil.raw(1);
        for _ in 0..64 {
            n ^= n << 13;
            n ^= n >> 7;
            n ^= n << 17;
            let [a, b, c, d, e, f, g, h] = n.to_be_bytes();
            let spread = if a & 15 == 0 { n } else { base + (n & 0xf_ffff) };
            let len = if b & 7 == 0 { u32::from_be_bytes([a, b, c, d]) } else { u32::from(c) };
            let desc = Descriptor { addr: spread, len, flags: u16::from(d & 7), next: e.into() };
            raw.write_desc(f.into(), desc);
            raw.write_avail(g.into(), h.into());
            let _ = raw.write_memory(spread, &[a, b, c, d, e, f, g, h]);
        }
        let index = raw.avail_idx();
        raw.write_avail_idx(index.wrapping_add(32));
        // The switch may have stopped the port. So the guest regularly returns with a valid ring.
        if stage.rounds.load(Ordering::Relaxed).is_multiple_of(256) {
            evil.close();
            evil = stage.evil();
        }
    }
}

fn breaks_indices(stage: &Stage) {
    let mut evil = stage.evil();
    while stage.goes_on() {
        for ring in 0..2 {
            let mut raw = evil.raw(ring);
            let index = raw.avail_idx();
            raw.write_avail_idx(index.wrapping_add(30_000));
            raw.write_used_idx(index.wrapping_sub(1234));
        }
        let _ = evil.try_reconnect();
    }
}

/// Sends chains of 249 empty descriptors and a frame, and sometimes a chain that has all
/// descriptors of the ring.
fn sends_long_chains(stage: &Stage) {
    let mut evil = stage.evil();
    let buffer = evil.memory().ranges()[0].0 + 0x8000;
    let size = evil.config().ring_size;
    let mut raw = evil.raw(1);
    for i in 0..size {
        let last = i % 250 == 249;
        let (len, flags) = if last { (72, 0) } else { (0, 1) };
        let next = (i + 1) % size;
        raw.write_desc(i, Descriptor { addr: buffer, len, flags, next });
    }
    while stage.goes_on() {
        let index = raw.avail_idx();
        if raw.used_idx() == index {
            for i in 0..size {
                // This chain contains all descriptors of the ring.
                let head = if i % 63 == 62 { 250 } else { 0 };
                raw.write_avail(index.wrapping_add(i), head);
            }
            raw.write_avail_idx(index.wrapping_add(size));
        } else {
            std::thread::yield_now();
        }
    }
}

/// Sends large segments to a guest without offloads. The TCP segment size is one byte, so the
/// switch must cut each large segment into very many frames.
fn sends_segments(stage: &Stage) {
    let mut config = stage.evil.clone();
    config.wanted = Features::BASIC | Features::OFFLOADS;
    let mut evil = attach(VirtioNet::prepare(config).unwrap());
    let mut accomplice = stage.accomplice();
    pour(&mut accomplice, &VnetHdr::default(), || frame(mac(3), mac(2), 60, 0));
    let mut bytes = headers(mac(2), mac(3), 54 + 128, 6);
    bytes.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 1, 0, 0, 0, 0]);
    bytes.resize(54 + 128, 7);
    let header = VnetHdr {
        flags: 1,
        gso_type: 1,
        hdr_len: 54,
        gso_size: 1,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    while stage.goes_on() {
        pour(&mut evil, &header, || bytes.clone());
        accomplice.rx().recv(256, |_| ());
    }
}

/// Requests an interrupt for each frame on an eventfd with a full counter, so that the switch's
/// write would block.
fn fills_call(stage: &Stage) {
    let (mut evil, mut accomplice) = (stage.evil(), stage.accomplice());
    pour(&mut evil, &VnetHdr::default(), || frame(mac(2), mac(3), 60, 0));
    let to_evil = frame(mac(3), mac(2), 60, 0);
    while stage.goes_on() {
        let call = evil.rx().call_fd();
        let _ = fcntl(call.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let _ = call.read();
        let _ = call.write(u64::MAX - 1);
        let _ = fcntl(call.as_fd(), FcntlArg::F_SETFL(OFlag::empty()));
        evil.rx().arm();
        evil.tx().arm();
        pour(&mut accomplice, &VnetHdr::default(), || to_evil.clone());
        pour(&mut evil, &VnetHdr::default(), || frame(mac(2), mac(3), 60, 0));
        evil.rx().recv(256, |_| ());
        accomplice.rx().recv(256, |_| ());
        // The switch may have disabled the ring's interrupts. Only a new session enables them
        // again.
        if stage.rounds.load(Ordering::Relaxed).is_multiple_of(64) {
            let _ = evil.try_reconnect();
        }
    }
}
