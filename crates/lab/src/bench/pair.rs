//! The load generator of the benchmarks: two VMs in one polling loop, connected once, driven in
//! windows. Between windows no frame is under way, so a switch's counters belong to one window.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::bed::{VM_A, VM_B};
use crate::clock;
use crate::load::{LoadSpec, LoadVm, Phase, Rate, SizeMix, VmCounters, VmSpec, run_queue_wait_ns};

/// How long a ring may be silent before nothing is taken to be under way.
const SILENCE: Duration = Duration::from_millis(20);
/// The longest wait for silence.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// How long a switch may take to connect: OVS tries once a second.
const CONNECT_SECS: f64 = 20.0;
/// Turns between two looks at whether the switch is there.
const WATCH_EVERY: u32 = 1 << 20;

/// How the generator attaches and what it writes.
#[derive(Debug, Clone)]
pub(crate) struct PairSettings {
    /// The sockets it listens on.
    pub sockets: [PathBuf; 2],
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Whether every byte is written and verified.
    pub touch: bool,
    /// The largest frame, FCS included.
    pub largest: u16,
}

/// What was offered and what arrived in a window.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Window {
    /// Seconds of sending.
    pub secs: f64,
    /// Frames given to the ring.
    pub tx_frames: u64,
    /// Frames that arrived, those after the end of sending included.
    pub rx_frames: u64,
    /// Their bytes in the ring.
    pub rx_bytes: u64,
    /// Frames with wrong bytes.
    pub bad: u64,
    /// Seconds in turns of the loop that moved nothing: with as many frames due as the ring takes,
    /// the generator waited for the switch.
    pub idle_secs: f64,
    /// Nanoseconds that the generator was runnable and did not run.
    pub waited_ns: u64,
}

impl Window {
    /// Frames that were sent and did not arrive.
    pub fn lost(&self) -> u64 {
        self.tx_frames.saturating_sub(self.rx_frames)
    }
}

/// The two VMs.
#[derive(Debug)]
pub(crate) struct Pair {
    a: LoadVm,
    b: LoadVm,
    burst: usize,
    start: Instant,
}

impl Pair {
    /// Listens, and waits for the switch to connect to both.
    pub fn connect(settings: &PairSettings) -> anyhow::Result<Self> {
        let [a, b] = &settings.sockets;
        let mut vms = vec![
            VmSpec::new("a", a, VM_A.mac(), VM_A.ip()),
            VmSpec::new("b", b, VM_B.mac(), VM_B.ip()),
        ];
        vms[0].to = Some("b".to_owned());
        for vm in &mut vms {
            vm.mode = crate::driver::SocketMode::Server;
            vm.ring_size = settings.ring_size;
            vm.sizes = SizeMix::fixed(settings.largest);
        }
        let mut spec = LoadSpec::new(vms, 0.0);
        spec.touch = settings.touch;
        spec.wait_secs = CONNECT_SECS;
        let (a, b) = (LoadVm::connect(&spec, 0)?, LoadVm::connect(&spec, 1)?);
        let mut pair = Self { a, b, burst: spec.burst, start: clock::now() };
        pair.a.announce()?;
        pair.b.announce()?;
        pair.settle();
        Ok(pair)
    }

    /// The features agreed on by the sender's device.
    pub fn features(&self) -> String {
        self.a.features()
    }

    /// What is sent from here on.
    pub fn offer(&mut self, sizes: &SizeMix, flows: u32, rate: Rate) {
        let phase = Phase {
            at_secs: 0.0,
            rate: Some(rate),
            sizes: Some(sizes.clone()),
            flows: Some(flows),
        };
        self.a.change(&phase);
    }

    fn now_ns(&self) -> u64 {
        clock::nanos(self.start.elapsed())
    }

    /// Sends for `secs`, then waits until nothing is under way.
    pub fn run(&mut self, secs: f64) -> anyhow::Result<Window> {
        let before = self.counters();
        let waited = run_queue_wait_ns();
        let began = self.now_ns();
        let end = began + clock::nanos(Duration::try_from_secs_f64(secs)?);
        self.a.restart_pacing(began);
        let (mut idle_ns, mut now) = (0, began);
        let mut until_watch = WATCH_EVERY;
        while now < end {
            let moved = self.a.turn(now, self.burst)? + self.b.receive();
            until_watch -= 1;
            if until_watch == 0 {
                until_watch = WATCH_EVERY;
                self.a.keep_connected()?;
                self.b.keep_connected()?;
            }
            let then = self.now_ns();
            if moved == 0 {
                idle_ns += then - now;
            }
            now = then;
        }
        let waited_ns = run_queue_wait_ns() - waited;
        self.settle();
        let after = self.counters();
        Ok(Window {
            secs: Duration::from_nanos(now - began).as_secs_f64(),
            tx_frames: after.0.tx_frames - before.0.tx_frames,
            rx_frames: after.1.sink.frames - before.1.sink.frames,
            rx_bytes: after.1.sink.bytes - before.1.sink.bytes,
            bad: after.1.sink.bad - before.1.sink.bad,
            idle_secs: Duration::from_nanos(idle_ns).as_secs_f64(),
            waited_ns,
        })
    }

    fn counters(&mut self) -> (VmCounters, VmCounters) {
        (self.a.counters(), self.b.counters())
    }

    /// Receives until all that was sent is back and nothing has come for a while.
    fn settle(&mut self) {
        let began = clock::now();
        let mut quiet = began;
        while quiet.elapsed() < SILENCE && began.elapsed() < SILENCE_LIMIT {
            if self.a.receive() + self.b.receive() > 0 || self.a.outstanding() > 0 {
                quiet = clock::now();
            }
        }
    }
}
