//! Tests with a peer that makes the worker sleep. The switch must stop only the port of the peer
//! that makes the worker sleep.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use penstock_dataplane::port::AttachState;
use penstock_guest::driver::{Descriptor, GuestMemory, VirtioNet, VnetHdr, Window};

use crate::rig::{Rig, announce, frame, mac, send};
use crate::{ACCOMPLICE, EVIL, exchange, ports};

/// Size in bytes of the memory that the peer punches. If a hostile guest punches a hole in this
/// memory, a worker that reads the memory sleeps longer than a batch may take.
const BYTES: usize = 512 << 20;
/// Number of frames in the punched memory. Each frame is on a separate page of the guest's memory.
const FRAMES: u16 = 64;
/// Number of bytes in the first part of a two-part frame: virtio's header, and the bytes that the
/// switch copies immediately.
const FIRST: u32 = 12 + 128;

/// Punches holes into the peer's whole memory, again and again. Before each hole, the function
/// writes to the pages behind the frames, so that the kernel has pages to remove.
fn punch(memory: &GuestMemory, window: &mut Window, stop: &AtomicBool) {
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    while !stop.load(Ordering::Relaxed) {
        for page in (usize::from(FRAMES) * 4096..BYTES).step_by(4096) {
            window.bytes_mut(page, 1)[0] = 1;
        }
        for file in memory.files() {
            fallocate(file, how, 0, i64::try_from(BYTES).unwrap()).unwrap();
        }
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes a hostile guest send frames from memory and punch holes into the memory at the same time,
/// until the switch stops the guest's port. If `behind_the_first` is true, the first bytes of each
/// frame are in other memory, which has no holes.
fn stalls(behind_the_first: bool) {
    let _one = crate::ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rig = Rig::start(&ports());
    let mut a = VirtioNet::connect(rig.driver(0)).unwrap();
    let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
    let mut accomplice = VirtioNet::connect(rig.driver(ACCOMPLICE)).unwrap();
    let mut config = rig.driver(EVIL);
    config.scratch_bytes = 4096;
    let mut evil = VirtioNet::connect(config).unwrap();
    rig.wait_up(4);
    announce(&mut a, mac(0), &mut b);
    announce(&mut b, mac(1), &mut a);
    announce(&mut accomplice, mac(3), &mut b);
    let (memory, mut window) = GuestMemory::spare(0, BYTES).unwrap();
    evil.add_memory(&memory).unwrap();

    let first = evil.scratch().unwrap();
    first.bytes_mut(0, 12).fill(0);
    first.bytes_mut(12, 128).copy_from_slice(&frame(mac(2), mac(3), 128, 0));
    let first = first.guest(0);
    for n in 0..FRAMES {
        let page = window.guest(4096 * usize::from(n));
        let (head, tail) = (2 * n, 2 * n + 1);
        let next = u16::from(behind_the_first);
        let (addr, len) = if behind_the_first { (first, FIRST) } else { (page, 72) };
        evil.raw(1).write_desc(head, Descriptor { addr, len, flags: next, next: tail });
        evil.raw(1).write_desc(tail, Descriptor { addr: page, len: 900, flags: 0, next: 0 });
        evil.raw(1).write_avail(n, head);
    }

    let stop = AtomicBool::new(false);
    let times = |port| rig.counters(port).stopped;
    std::thread::scope(|scope| {
        scope.spawn(|| punch(&memory, &mut window, &stop));
        let _stop = Stop(&stop);
        rig.until("a port is stopped", |_| {
            let mut raw = evil.raw(1);
            if raw.used_idx() == raw.avail_idx() {
                for n in 0..FRAMES {
                    let at = raw.avail_idx().wrapping_add(n);
                    raw.write_avail(at, 2 * n);
                }
                let at = raw.avail_idx().wrapping_add(FRAMES);
                raw.write_avail_idx(at);
                raw.kick();
            }
            accomplice.rx().recv(256, |_| ());
            (0..4).any(|port| times(port) > 0)
        });
    });
    assert_eq!([0, 1, EVIL, ACCOMPLICE].map(times), [0, 0, 1, 0], "who was stopped");
    rig.until("its session ends", |rig| rig.state(EVIL) == AttachState::Error);
    let why = rig.status(EVIL).error.unwrap();
    assert!(why.contains("made the worker wait for") && why.contains("punched"), "{why}");
    rig.until("it is told for how long", |rig| {
        rig.status(EVIL).error.is_some_and(|why| why.ends_with("(60 s)"))
    });
    // The switch unmaps the peer's memory before the 60 s in which the port stays stopped.
    let inode = format!(" {} ", memory.inode().unwrap());
    drop((evil, window, memory));
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
    rig.until("nobody maps its memory", |_| !maps().contains(&inode));
    exchange("a stopped port", 0, (0, &mut a), (1, &mut b));
    exchange("a stopped port", 0, (1, &mut b), (0, &mut a));
    rig.check();
}

#[test]
fn a_peer_that_punches_holes_under_its_frames_is_stopped() {
    stalls(false);
}

#[test]
fn a_peer_that_punches_holes_while_its_frames_are_copied_is_stopped_and_not_their_receiver() {
    stalls(true);
}

#[test]
fn a_peer_that_fills_its_call_descriptor_is_stopped_whole() {
    let _one = crate::ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rig = Rig::start(&ports());
    let mut evil = VirtioNet::connect(rig.driver(EVIL)).unwrap();
    let mut accomplice = VirtioNet::connect(rig.driver(ACCOMPLICE)).unwrap();
    rig.wait_up_of(&[EVIL, ACCOMPLICE]);
    announce(&mut evil, mac(2), &mut accomplice);
    let call = evil.rx().call_fd();
    let _ = call.read();
    call.write(u64::MAX - 1).unwrap();
    fcntl(call.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    evil.rx().arm();
    send(&mut accomplice, &VnetHdr::default(), &frame(mac(3), mac(2), 60, 0));
    rig.until("its port is stopped", |rig| rig.state(EVIL) == AttachState::Error);
    let why = rig.status(EVIL).error.unwrap();
    assert!(why.contains("because the driver's call descriptor is full and blocks"), "{why}");
    assert_eq!([EVIL, ACCOMPLICE].map(|port| rig.counters(port).stopped), [1, 0]);
    rig.check();
}
