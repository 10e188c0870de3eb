//! Tests that hostile guests and frontends do not affect their neighbours on a running switch.
//!
//! Each test runs one hostile act while two neighbours exchange frames. All frames between the
//! neighbours must arrive complete and in order. A separate measurement shows which part of a fixed
//! sending rate the neighbours keep. The measurement of the neighbours' rate needs an idle machine
//! and is started by hand:
//!
//! ```text
//! cargo test -p penstock-lab --test hostile -- --ignored --nocapture
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the rig serves another test too")]

mod acts;
mod faults;
mod neighbours;
#[path = "../all/switch/rig.rs"]
mod rig;
mod stalls;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use acts::{ACCOMPLICE, ACTS, Act, EVIL, Stage};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::peer_memory::{guarded_mappings, mapped_bytes};
use penstock_guest::driver::{VirtioNet, VnetHdr};
use rig::{Port, Rig, frame, mac, receive, send};

/// Returns the ports of two neighbours, of the hostile guest, and of an accomplice that accepts no
/// offloads.
fn ports() -> [Port; 4] {
    let plain = Port { offloads: OffloadCaps::NONE, ..Port::default() };
    [Port::default(), Port::default(), Port::default(), plain]
}

fn stage(rig: &Rig) -> Stage {
    let with_wait = |i| {
        let mut config = rig.driver(i);
        config.hugepages = false;
        config
    };
    Stage {
        evil: with_wait(EVIL),
        accomplice: with_wait(ACCOMPLICE),
        stop: AtomicBool::new(false),
        rounds: AtomicU64::new(0),
    }
}

/// Number of frames that the two neighbours exchange in each direction.
const FRAMES: u32 = 640;
/// Minimum number of rounds of a hostile act in the nightly run.
const ROUNDS: u64 = 50;

/// Lets only one test run at a time. If a test panics, the other tests ignore the poisoned lock.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Counts the resources that no hostile act may leak. The counts are file descriptors, mapped bytes
/// of peers' memory, guarded mappings, and mappings of faulty memory.
fn left() -> (usize, u64, usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let faulty = maps.matches("memfd:faulty").count();
    (descriptors, mapped_bytes(), guarded_mappings(), faulty)
}

fn neighbours_do_not_notice(act: Act) {
    let _one = alone();
    // The first rig creates resources that the process then keeps.
    static WARM: Once = Once::new();
    WARM.call_once(|| drop(Rig::start(&ports())));
    let before = left();
    plays(act);
    let after = left();
    // The reading before may contain a descriptor that a thread of the test before still closed.
    let is_more =
        after.0 > before.0 || (after.1, after.2, after.3) != (before.1, before.2, before.3);
    assert!(
        !is_more,
        "{}: left {after:?}, before {before:?}: descriptors, mapped bytes, mappings",
        act.0
    );
}

fn plays((name, play): Act) {
    let rig = Rig::start(&ports());
    let mut a = VirtioNet::connect(rig.driver(0)).unwrap();
    let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
    rig.wait_up(2);
    rig::announce(&mut a, mac(0), &mut b);
    rig::announce(&mut b, mac(1), &mut a);
    // Frames may be dropped when they are flooded to ports without a driver. Such earlier drops do
    // not count.
    let before = [rig.counters(0).dropped(), rig.counters(1).dropped()];
    let stage = stage(&rig);
    let rounds = penstock_testing::repetitions(ROUNDS);
    std::thread::scope(|scope| {
        let hostile = scope.spawn(|| play(&stage));
        let _stopped = Stopped(&stage.stop, &rig);
        let mut n = 0;
        while n < FRAMES || stage.rounds.load(Ordering::Relaxed) < rounds {
            assert!(!hostile.is_finished(), "{name}: the act broke off");
            exchange(name, n, (0, &mut a), (1, &mut b));
            exchange(name, n, (1, &mut b), (0, &mut a));
            n += 16;
        }
    });
    let after = [rig.counters(0).dropped(), rig.counters(1).dropped()];
    assert_eq!(after, before, "{name}: dropped frames of the neighbours'");
    rig.check();
    assert!(rig.counters(0).forwarded >= u64::from(FRAMES), "{name}");
}

/// Ends a hostile act when the guard is dropped, even if the test panics. Without this guard, a
/// panic of the test would leave the hostile act running, and the thread scope would wait forever.
struct Stopped<'a>(&'a AtomicBool, &'a Rig);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            for port in 0..4 {
                println!("port {port}: {:?}", self.1.counters(port));
            }
        }
    }
}

/// Sends sixteen frames from one neighbour to the other neighbour, and checks that all sixteen
/// frames arrive.
fn exchange(name: &str, n: u32, from: (u8, &mut VirtioNet), to: (u8, &mut VirtioNet)) {
    let sent: Vec<_> = (n..n + 16).map(|n| frame(mac(from.0), mac(to.0), 300, n)).collect();
    sent.iter().for_each(|f| send(from.1, &VnetHdr::default(), f));
    assert!(own(to.1, from.0, 16) == sent, "{name}: frames from {n} on differ");
}

/// Receives the next `n` frames from the guest `from`, and ignores flooded frames of other guests.
fn own(receiver: &mut VirtioNet, from: u8, n: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    rig::wait("the neighbour's frames", || {
        let from = mac(from).0;
        let frames = rig::drain(receiver).into_iter().map(|(_, f)| f);
        got.extend(frames.filter(|f| f[6..12] == from));
        got.len() >= n
    });
    got
}

macro_rules! acts {
    ($($test:ident = $number:literal),* $(,)?) => {
        $(#[test] fn $test() { neighbours_do_not_notice(ACTS[$number]); })*
    };
}

acts! {
    a_guest_that_never_returns_buffers = 0,
    a_guest_that_floods_flows = 1,
    a_guest_that_floods_broadcasts = 2,
    a_guest_that_kicks_without_end = 3,
    a_guest_that_stops_and_starts_its_rings = 4,
    a_frontend_that_connects_and_disconnects = 5,
    a_frontend_that_floods_messages = 6,
    a_frontend_that_sends_half_messages = 7,
    a_frontend_that_maps_memory_again_and_again = 8,
    a_guest_that_rewrites_ring_and_headers = 9,
    a_guest_that_makes_indices_senseless = 10,
    a_guest_that_sends_the_longest_chains = 11,
    a_guest_whose_frames_are_cut_small = 12,
    a_frontend_that_fills_its_call_descriptor = 13,
    a_frontend_that_shortens_its_memory = 14,
    a_frontend_that_punches_holes_into_its_memory = 15,
    a_frontend_that_replaces_its_memory = 16,
    a_frontend_whose_memory_has_odd_block_sizes = 17,
    a_frontend_that_announces_odd_offsets = 18,
    a_frontend_that_announces_what_is_no_memory = 19,
}

#[test]
fn a_port_whose_session_is_held_can_be_deleted() {
    let _one = alone();
    use std::io::Write;
    let mut rig = Rig::start(&[Port::default()]);
    let mut stream = std::os::unix::net::UnixStream::connect(rig.driver(0).socket).unwrap();
    stream.write_all(&[1, 0, 0]).unwrap();
    rig.until("the half message is waited for", |rig| {
        rig.state(0) == penstock_dataplane::port::AttachState::Connected
    });
    rig.remove(0);
    rig.check();
}

#[test]
fn a_flooder_pays_for_its_floods_itself() {
    let _one = alone();
    let rig = Rig::start(&ports());
    let mut evil = VirtioNet::connect(rig.driver(EVIL)).unwrap();
    rig.wait_up_of(&[EVIL]);
    for n in 0..20_000_u32 {
        let mut to = mac(200);
        to.0[1..5].copy_from_slice(&n.to_be_bytes());
        send(&mut evil, &VnetHdr::default(), &frame(mac(2), to, 60, n));
    }
    rig.until("all are taken", |rig| rig.counters(EVIL).rx_frames == 20_000);
    let refused = rig.counters(EVIL).drops[DropReason::SlowPathLimit as usize];
    assert!(refused > 10_000, "{refused} of 20000 unknown destinations were refused");
    rig.check();
    let _ = receive(&mut evil, 0);
}
