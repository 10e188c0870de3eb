//! Tests of `kill -9` and of restarts of the switch in the middle of bursts. A kill of the switch
//! only delays the guests' frames. The hypervisor reconnects and returns the inflight region. The
//! switch returns every descriptor once and in order. After a restart under a service manager, the
//! hypervisor's connection goes on.
#![expect(clippy::disallowed_methods, reason = "a test's waits are bounded by the clock")]

use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use penstock_guest::driver::{DriverConfig, Features, FrameId, RxCounters, TxCounters};
use penstock_guest::driver::{VirtioNet, VnetHdr};
use penstock_testing::{TempDir, patience, repetitions, temp_dir};

use crate::support::manager::Manager;

/// Number of times that the nightly run kills the switch.
const KILLS: u64 = 50;
/// Number of times that the nightly run restarts the switch.
const RESTARTS: u64 = 20;
/// Maximum number of frames in flight. At most 100 frames are in flight, so that the receiver
/// always has free buffers, and only the switch can lose a frame.
const WINDOW: u64 = 100;
const A: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0xa];
const B: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0xb];

#[derive(Clone, Copy, Debug)]
struct Kind {
    features: Features,
    /// Size of a receive buffer in bytes. A frame that is larger than one buffer uses several
    /// buffers.
    buffer: usize,
    /// Number of descriptors of a transmitted frame. 0 means an indirect table.
    parts: usize,
    /// Whether the hypervisor keeps an inflight region. Without an inflight region, each kill may
    /// lose a frame.
    inflight: bool,
}

struct Switch {
    dir: TempDir,
    child: Child,
    manager: Manager,
}

impl Switch {
    fn start() -> Self {
        let dir = temp_dir();
        let at = dir.display();
        let port = |name: &str, mac: [u8; 6]| {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            format!(
                "[[port]]\nname = \"{name}\"\ntenant = \"t\"\n\
                 vhost-user.socket = \"{at}/{name}.sock\"\nmac = [\"{mac}\"]\n"
            )
        };
        let config = format!(
            "[host]\nname = \"kill\"\nsocket = \"{at}/host.sock\"\nstate_dir = \"{at}/state\"\n\
             [worker]\nidle_backoff_us = 0\n[[tenant]]\nname = \"t\"\n{}{}",
            port("a", A),
            port("b", B)
        );
        std::fs::write(dir.join("host.toml"), config).unwrap();
        let mut manager = Manager::new(&dir);
        let child = Self::run(&dir, &mut manager);
        Self { dir, child, manager }
    }

    /// Starts the program with the descriptors that the service manager stored.
    fn run(dir: &std::path::Path, manager: &mut Manager) -> Child {
        manager.read();
        let log = std::fs::File::options().create(true).append(true).open(dir.join("log"));
        manager
            .command(env!("CARGO_BIN_EXE_penstock"))
            .args(["host", "run", "--config"])
            .arg(dir.join("host.toml"))
            .env_remove("PENSTOCK_SOCKET")
            .stdin(Stdio::null())
            .stderr(log.unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    fn restart(&mut self) {
        self.child.wait().unwrap();
        self.child = Self::run(&self.dir, &mut self.manager);
    }

    fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        self.manager.read();
        self.child.try_wait().unwrap().is_some()
    }

    /// Whether the service manager got `notice` since the last call.
    fn says(&mut self, notice: &str) -> bool {
        self.manager.read().iter().any(|line| line == notice)
    }

    fn driver(&self, port: &str, kind: Kind) -> VirtioNet {
        let mut config = DriverConfig::new(self.dir.join(format!("{port}.sock")));
        config.inflight = kind.inflight;
        config.says_start = !kind.inflight;
        config.wanted = kind.features;
        config.required = kind.features;
        config.ring_size = 1024;
        config.rx_buffer_bytes = kind.buffer;
        config.wait = patience();
        VirtioNet::connect(config).unwrap()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let socket = self.dir.join("host.sock");
            for line in [&["stats"][..], &["stats", "--drops"], &["port", "show", "b"]] {
                eprintln!("{}", crate::support::penstock(&socket, line).out);
            }
            eprintln!("{}", std::fs::read_to_string(self.dir.join("log")).unwrap_or_default());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// SplitMix64. The pauses between the kills differ from each other, but every run of the test has
/// the same pauses.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 27
}

/// One guest sends numbered frames to another.
struct Flow {
    from: VirtioNet,
    to: VirtioNet,
    kind: Kind,
    /// Whether the sender still sends new frames.
    sends: bool,
    sent: u64,
    returned: u64,
    seen: Vec<bool>,
    arrived: u64,
    again: u64,
    /// Maximum number of frames that the kills so far may have lost.
    may_lose: u64,
}

fn length(n: u64) -> usize {
    60 + usize::try_from(n * 37 % 1400).unwrap()
}

fn fill(frame: &mut [u8], n: u64) {
    frame[..6].copy_from_slice(&B);
    frame[6..12].copy_from_slice(&A);
    frame[12..14].copy_from_slice(&[0x88, 0xb6]);
    frame[14..22].copy_from_slice(&n.to_be_bytes());
    for (byte, value) in frame[22..].iter_mut().zip(n..) {
        *byte = value.to_le_bytes()[0];
    }
}

impl Flow {
    /// Sends frames until [`WINDOW`] frames are in flight, reclaims returned slots and receives
    /// frames.
    fn pump(&mut self) {
        let (kind, tx) = (self.kind, self.from.tx());
        let returned = &mut self.returned;
        tx.reclaim(|FrameId(id)| {
            assert_eq!(id, *returned, "a descriptor was returned twice or not at all");
            *returned += 1;
        });
        while self.sends
            && self.sent - self.arrived < WINDOW
            && let Some(slot) = tx.take()
        {
            let len = length(self.sent);
            fill(&mut tx.slot_mut(slot)[12..12 + len], self.sent);
            let id = match kind.parts {
                0 => tx.push_indirect(slot, &VnetHdr::default(), len, 3),
                1 => tx.push(slot, &VnetHdr::default(), len),
                parts => tx.push_chain(slot, &VnetHdr::default(), len, parts - 1),
            };
            assert_eq!(id.unwrap(), FrameId(self.sent));
            self.sent += 1;
        }
        tx.publish();
        let (seen, sent) = (&mut self.seen, self.sent);
        seen.resize(usize::try_from(sent).unwrap(), false);
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        let (mut arrived, mut again) = (0, 0);
        self.to.rx().recv(usize::MAX, |frame| {
            got.clear();
            frame.append_to(&mut got);
            let n = u64::from_be_bytes(got[14..22].try_into().unwrap());
            assert!(n < sent, "frame {n} was never sent");
            expected.resize(length(n), 0);
            fill(&mut expected, n);
            assert!(got == expected, "frame {n} has wrong bytes");
            let seen = &mut seen[usize::try_from(n).unwrap()];
            again += u64::from(*seen);
            arrived += u64::from(!*seen);
            *seen = true;
        });
        self.arrived += arrived;
        self.again += again;
    }

    /// Checks that the switch returned only the driver's descriptors, and that it returned them in
    /// order.
    fn check(&mut self) {
        let TxCounters { bad_used, disorder, .. } = self.from.tx().counters();
        assert_eq!((bad_used, disorder), (0, 0), "transmit ring");
        let RxCounters { bad_used, disorder, bad, .. } = self.to.rx().counters();
        assert_eq!((bad_used, disorder), (0, 0), "receive ring");
        assert!(bad <= self.may_lose, "{bad} buffers came back empty");
    }

    /// Whether every sent frame is accounted for.
    fn is_settled(&self, sent: u64) -> bool {
        self.returned >= sent && self.arrived + self.may_lose >= sent
    }

    fn pump_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.pump();
            assert!(
                start.elapsed() < patience(),
                "waited in vain: {what}; sent {}, returned {}, arrived {}",
                self.sent,
                self.returned,
                self.arrived
            );
        }
    }
}

/// Runs one test at a time, because each switch polls a core.
static ONE: Mutex<()> = Mutex::new(());

impl Flow {
    fn new(from: VirtioNet, to: VirtioNet, kind: Kind) -> Self {
        let (sent, returned, arrived, again, may_lose) = (0, 0, 0, 0, 0);
        Self { from, to, kind, sends: true, sent, returned, seen: vec![], arrived, again, may_lose }
    }

    /// Pumps until `done` returns true.
    fn pump_while(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            self.pump();
            assert!(start.elapsed() < patience(), "waited in vain: {what}");
        }
    }
}

/// Restarts the switch under a service manager. The drivers keep their connections. Every frame
/// arrives once, and every descriptor is returned once and in order.
fn restart_in_bursts(kind: Kind) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut switch = Switch::start();
    let (to, from) = (switch.driver("b", kind), switch.driver("a", kind));
    let mut flow = Flow::new(from, to, kind);
    let mut random = 0x5eed;
    for restart in 0..repetitions(RESTARTS) {
        let enough = flow.arrived + 500 + next(&mut random) % 5000;
        flow.pump_until("frames before a restart", |flow| flow.arrived >= enough);
        let published = flow.sent;
        flow.pump_until("frames to be stopped over", |flow| flow.sent > published);
        switch.terminate();
        flow.pump_while("the end of the switch", || switch.has_ended());
        switch.restart();
        assert_eq!(switch.manager.store.len(), 2, "restart {restart}: a session is not stored");
        flow.pump_while("the start of the switch", || switch.says("READY=1"));
        let sent = flow.sent;
        flow.pump_until("frames after a restart", |flow| flow.is_settled(sent));
        flow.check();
        assert!(flow.from.is_connected() && flow.to.is_connected(), "restart {restart}");
        assert_eq!(flow.again, 0, "restart {restart}: frames were delivered twice");
        assert!(switch.manager.store.is_empty(), "the store is emptied");
    }
    flow.sends = false;
    flow.pump_until("the last frames", |flow| flow.returned == flow.sent);
    assert_eq!(flow.arrived, flow.sent);
}

#[test]
fn a_restart_keeps_the_sessions_of_split_rings() {
    let features = Features::VERSION_1 | Features::MRG_RXBUF | Features::EVENT_IDX;
    let kind = Kind { features, buffer: 256, parts: 4, inflight: false };
    restart_in_bursts(kind);
    restart_in_bursts(Kind { inflight: true, ..kind });
}

#[test]
fn a_restart_keeps_the_sessions_of_packed_rings() {
    let features = Features::VERSION_1 | Features::RING_PACKED | Features::MRG_RXBUF;
    let kind = Kind { features, buffer: 256, parts: 4, inflight: false };
    restart_in_bursts(kind);
    restart_in_bursts(Kind { inflight: true, ..kind });
    let features = features | Features::IN_ORDER;
    restart_in_bursts(Kind { features, ..kind });
}

fn kill_in_bursts(kind: Kind) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut switch = Switch::start();
    // The receiver connects first, because otherwise its port drops frames.
    let to = switch.driver("b", kind);
    let from = switch.driver("a", kind);
    let mut flow = Flow::new(from, to, kind);
    let (mut random, mut doubled) = (0x5eed, 0);
    let kills = repetitions(KILLS);
    for kill in 0..kills {
        let before = flow.arrived;
        let enough = before + 500 + next(&mut random) % 5000;
        flow.pump_until("frames before a kill", |flow| flow.arrived >= enough);
        // The sender has just published a full window. The kill occurs at a random point in the
        // batches of this window.
        let published = flow.sent;
        flow.pump_until("frames to be killed over", |flow| flow.sent > published);
        for _ in 0..next(&mut random) % 2000 {
            core::hint::spin_loop();
        }
        switch.kill();
        // The guest continues to work while its switch ends.
        for _ in 0..next(&mut random) % 200 {
            flow.pump();
        }
        switch.restart();
        let again = flow.again;
        for device in [&mut flow.to, &mut flow.from] {
            let moved = device.reconnect().unwrap();
            assert_eq!(moved.tx_frames + moved.rx_buffers + moved.rx_dropped, 0);
        }
        flow.may_lose += u64::from(!kind.inflight);
        let sent = flow.sent;
        flow.pump_until("frames after a kill", |flow| flow.is_settled(sent));
        flow.check();
        doubled += flow.again - again;
        assert!(flow.again - again <= 32, "kill {kill}: more than a batch was delivered twice");
    }
    // Every slot returns, and every sent frame arrived.
    flow.sends = false;
    flow.pump_until("the last frames", |flow| flow.returned == flow.sent);
    println!(
        "{kind:?}: {kills} kills, {} frames sent, returned, delivered, {doubled} of them twice",
        flow.sent
    );
}

#[test]
fn no_descriptor_of_a_plain_ring_is_lost_or_returned_twice() {
    let features = Features::VERSION_1;
    kill_in_bursts(Kind { features, buffer: 2048, parts: 1, inflight: true });
}

#[test]
fn nor_of_rings_with_chains_and_merged_buffers() {
    let features = Features::VERSION_1 | Features::MRG_RXBUF | Features::EVENT_IDX;
    kill_in_bursts(Kind { features, buffer: 256, parts: 4, inflight: true });
}

#[test]
fn nor_of_rings_with_indirect_tables() {
    let features = Features::VERSION_1 | Features::MRG_RXBUF | Features::INDIRECT_DESC;
    kill_in_bursts(Kind { features, buffer: 1024, parts: 0, inflight: true });
}

#[test]
fn nor_of_packed_rings() {
    let features = Features::VERSION_1 | Features::RING_PACKED;
    kill_in_bursts(Kind { features, buffer: 2048, parts: 1, inflight: true });
}

#[test]
fn nor_of_packed_rings_with_chains_and_merged_buffers() {
    let features = Features::VERSION_1 | Features::RING_PACKED | Features::MRG_RXBUF;
    kill_in_bursts(Kind { features, buffer: 256, parts: 4, inflight: true });
}

#[test]
fn packed_rings_go_on_where_their_hypervisor_keeps_no_inflight_region() {
    let features = Features::VERSION_1 | Features::RING_PACKED;
    kill_in_bursts(Kind { features, buffer: 2048, parts: 1, inflight: false });
    let features = features | Features::IN_ORDER;
    kill_in_bursts(Kind { features, buffer: 2048, parts: 3, inflight: false });
}
