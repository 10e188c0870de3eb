//! Test rig with a guest's two rings and a worker in one process. Benchmarks with this rig measure
//! the instructions of the data path while every cache line is in the first-level cache.
//! `penstock-lab bench` also measures the transfer of cache lines from another core.
#![allow(unsafe_code, reason = "the rig plays the guest, which writes rings into shared memory")]
#![allow(dead_code, reason = "no benchmark uses all functions of the test rig")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::guest_memory::{GuestMemory, RegionSpec};
use penstock_dataplane::port::peer_memory::MemoryAccount;
use penstock_dataplane::port::split_ring::{RingAddresses, RingSpec, SplitRing};
use penstock_dataplane::port::{Pending, PortQueue, TxOutcome};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{
    Actions, Domain, Match, PortPolicy, Rule, RuleTable, RuleTables, Snapshot, Then,
};
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_dataplane::tsc::{CycleCounter, Stage, Tsc, VirtualCounter, Work};
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, TscRate, Vid, WorkerId};

/// Number of descriptors in each ring.
const SIZE: u16 = 256;
const STRIDE: u64 = 2048;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x5000;
const BUFFERS: u64 = 0x1_0000;
const MEMORY: u64 = BUFFERS + SIZE as u64 * STRIDE;
/// Offset of a buffer's virtio-net header. The frame after the header is aligned to a cache line,
/// as in DPDK's driver.
const HEADER_AT: u64 = 116;
const HEADER: u64 = 12;
const WRITE: u16 = 2;

fn pin(core: usize) {
    let mut cores = nix::sched::CpuSet::new();
    cores.set(core).unwrap();
    // On a machine with one core, the call fails. The run then works, but its result is useless.
    let _ = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cores);
}

// SAFETY: `share` passes a guest to one thread. WHY: the mapping's pointer is not Send.
unsafe impl Send for Guest {}

/// Guest memory with one split ring and its buffers.
pub struct Guest {
    base: *mut u8,
    memory: Arc<GuestMemory>,
    next: u16,
}

impl Guest {
    /// Creates a guest whose buffers contain `frame` to transmit. If `frame` is `None`, the buffers
    /// are empty receive buffers.
    pub fn new(frame: Option<&[u8]>) -> Self {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(MEMORY).unwrap();
        let region = RegionSpec {
            guest: 0,
            user: 0,
            len: MEMORY,
            offset: 0,
            file: file.try_clone().unwrap(),
        };
        let memory = Arc::new(GuestMemory::map(&MemoryAccount::default(), vec![region]).unwrap());
        let len = NonZeroUsize::new(usize::try_from(MEMORY).unwrap()).unwrap();
        let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping of the benchmark's own file. WHY: the guest's view of its memory.
        let base = unsafe { mmap(None, len, rw, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
        let guest = Self { base: base.as_ptr().cast(), memory, next: 0 };
        for i in 0..SIZE {
            let at = BUFFERS + u64::from(i) * STRIDE + HEADER_AT;
            let len = frame.map_or(STRIDE - HEADER_AT, |f| HEADER + f.len() as u64);
            guest.write(16 * u64::from(i), at);
            guest.write(16 * u64::from(i) + 8, u32::try_from(len).unwrap());
            guest.write(16 * u64::from(i) + 12, if frame.is_some() { 0 } else { WRITE });
            guest.write(AVAILABLE + 4 + 2 * u64::from(i), i);
            for (k, byte) in (at + HEADER..).zip(frame.unwrap_or(&[])) {
                guest.write(k, *byte);
            }
        }
        // The driver requests no interrupts.
        guest.write(AVAILABLE, 1_u16);
        guest
    }

    /// Returns the device's side of the guest's ring.
    pub fn ring(&self) -> SplitRing {
        let at = RingAddresses { descriptors: 0, available: AVAILABLE, used: USED };
        let spec = RingSpec { in_order: true, ..RingSpec::new(SIZE.into(), at) };
        SplitRing::new(spec, Arc::clone(&self.memory)).unwrap()
    }

    /// Returns a second handle to the guest for another thread. After a call of `share`, only the
    /// thread with the second handle may use the guest.
    fn share(&self) -> Self {
        Self { base: self.base, memory: Arc::clone(&self.memory), next: self.next }
    }

    /// Makes the guest's next 32 buffers available to the device. Because the device uses the ring
    /// in order, only the available index changes.
    pub fn offer_batch(&mut self) {
        self.next = self.next.wrapping_add(32);
        self.write(AVAILABLE + 2, self.next);
    }

    /// Overwrites the UDP source and destination port of each of the next 32 frames with a number
    /// that `number` returns.
    pub fn number_flows(&mut self, mut number: impl FnMut() -> u32) {
        for i in 0..32 {
            let i = u64::from(self.next.wrapping_add(i) % SIZE);
            let at = BUFFERS + i * STRIDE + HEADER_AT + HEADER + 34;
            self.write(at, number().to_be());
        }
    }

    /// Runs one step of a driver on its own core: takes back used buffers and offers them again.
    /// Before the offer, the driver writes or reads every cache line of the buffers' frames.
    fn recycle(&mut self, len: usize, sends: bool) {
        // SAFETY: inside the mapping and aligned. WHY: plays the guest; the device is another
        // thread.
        let (used, available) = unsafe {
            let at = |at: u64| self.base.add(usize::try_from(at).unwrap()).cast();
            (AtomicU16::from_ptr(at(USED + 2)), AtomicU16::from_ptr(at(AVAILABLE + 2)))
        };
        let room = SIZE - self.next.wrapping_sub(used.load(Ordering::Acquire));
        if room < 32 {
            return;
        }
        for i in 0..32 {
            let i = u64::from(self.next.wrapping_add(i) % SIZE);
            let frame = BUFFERS + i * STRIDE + HEADER_AT + HEADER;
            for line in (0..len as u64).step_by(64) {
                // The address lies in the second half of a short frame's payload, so that the
                // headers stay unchanged.
                let at = frame + line + 48.min(len as u64 - line - 8);
                if sends {
                    self.write(at, self.next);
                } else {
                    // SAFETY: inside the mapping. WHY: plays the guest.
                    let at = unsafe { self.base.add(usize::try_from(at).unwrap()) };
                    // SAFETY: as above.
                    std::hint::black_box(unsafe { at.cast::<u64>().read_unaligned() });
                }
            }
        }
        self.next = self.next.wrapping_add(32);
        available.store(self.next, Ordering::Release);
    }

    fn write<T: Copy>(&self, at: u64, value: T) {
        assert!(at + size_of::<T>() as u64 <= MEMORY);
        // SAFETY: inside the mapping. WHY: plays the guest.
        unsafe { self.base.add(usize::try_from(at).unwrap()).cast::<T>().write_unaligned(value) }
    }
}

/// A queue pair that has only one ring, to transmit or to receive.
struct OneRing {
    rx: Option<SplitRing>,
    tx: Option<SplitRing>,
}

impl PortQueue for OneRing {
    fn pending(&mut self, _now: Cycles) -> Pending {
        match &self.rx {
            Some(ring) if ring.has_waiting() => Pending::Yes,
            _ => Pending::No,
        }
    }
    fn rx_burst(&mut self, batch: &mut Batch) {
        if let Some(ring) = &mut self.rx {
            ring.take(batch);
        }
    }
    fn rx_done(&mut self) {
        if let Some(ring) = &mut self.rx {
            ring.complete_taken();
        }
    }
    fn tx_ready(&self) -> bool {
        self.tx.is_some()
    }
    fn caps(&self) -> OffloadCaps {
        OffloadCaps::ALL
    }
    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        let mut outcome = TxOutcome::default();
        if let Some(ring) = &mut self.tx {
            ring.give(batch, frames, &mut outcome);
        }
        outcome
    }
    fn publish(&mut self) {
        for ring in [&mut self.rx, &mut self.tx].into_iter().flatten() {
            ring.publish();
        }
    }
    fn notify(&mut self) -> u32 {
        self.tx.as_mut().map_or(0, |ring| ring.notify())
    }
    fn notify_taken(&mut self) -> u32 {
        self.rx.as_mut().map_or(0, |ring| ring.notify())
    }
}

/// Returns a UDP frame of `len` bytes, without FCS.
pub fn udp(len: usize) -> Vec<u8> {
    let mut f = vec![0x52, 0x54, 0, 0, 0, 0x0b, 0x52, 0x54, 0, 0, 0, 0x0a, 8, 0];
    let total = u16::try_from(len - 14).unwrap().to_be_bytes();
    f.extend([0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let udp = u16::try_from(len - 34).unwrap().to_be_bytes();
    f.extend([0, 1, 0, 2, udp[0], udp[1], 0, 0]);
    f.resize(len, 0x5a);
    f
}

/// Cycle counter that advances by 4 us per batch if cycles are metered. If cycles are not metered,
/// the benchmark's cycle counter never advances.
struct Paced(VirtualCounter, bool);

impl CycleCounter for Paced {
    #[inline(always)]
    fn now(&self) -> Cycles {
        self.0.now()
    }

    #[inline(always)]
    fn spent(&self, stage: Stage, _work: &Work) {
        if self.1 && matches!(stage, Stage::Egress | Stage::Idle) {
            self.0.advance(Cycles(8_000));
        }
    }
}

/// A switch with one worker, a sending guest on port 0 and a receiving guest on port 1. One rule
/// forwards every IPv4 frame from port 0 to port 1.
pub struct Switch {
    worker: Worker<Paced>,
    source: Guest,
    sink: Guest,
    flows: u32,
    flow: u32,
}

impl Switch {
    /// Creates a switch for frames of `len` bytes in `flows` flows that differ in their UDP ports.
    /// `ports` adds a rule that examines UDP ports.
    pub fn new(len: usize, flows: u32, ports: bool) -> Self {
        Self::scheduled(len, flows, ports, false)
    }

    /// Like [`Self::new`]. If `metered` is set, the worker schedules by class and the sender has a
    /// cycle bucket that never empties.
    pub fn scheduled(len: usize, flows: u32, ports: bool, metered: bool) -> Self {
        let (source, sink) = (Guest::new(Some(&udp(len))), Guest::new(None));
        let config = WorkerConfig {
            id: WorkerId(0),
            core: None,
            idle_backoff: Nanos::ZERO,
            idle_turns: 4096,
            fdb_entries: 1024,
            seed: 7,
            tsc: TscRate::from_hz(2_000_000_000),
            max_ports: 2,
            schedule: if metered { ScheduleKind::Hbs } else { ScheduleKind::RoundRobin },
            ..WorkerConfig::default()
        };
        let mut worker = Worker::new(&config, Paced(VirtualCounter::default(), metered), None);
        let ipv4 = Match { ethertype: Some(0x0800), ..Match::default() };
        let to_sink =
            Rule { priority: 1, matching: ipv4, actions: Actions::only(Then::Output(1)), id: 1 };
        let mut rules = vec![to_sink];
        if ports {
            let matching = Match { proto: Some(6), dst_port: Some((7, 0xffff)), ..ipv4 };
            let actions = Actions::only(Then::Drop);
            rules.push(Rule { priority: 2, matching, actions, id: 2 });
        }
        let mut policy = PortPolicy::access(0, Some(1), Vid::UNTAGGED, 0);
        let own = Some(Arc::new(RuleTable::build(&rules, 32).unwrap()));
        policy.rules = RuleTables { own, ..RuleTables::default() };
        if metered {
            policy.qos = PortQos {
                ingress: IngressPolicy::CyclesMinmax,
                entitlement: CyclesPerSecond(1_000_000_000),
                ..PortQos::default()
            };
        }
        let other = PortPolicy::access(1, Some(1), Vid::UNTAGGED, 0).finish();
        let domain = Domain { tenant: Some(1), vid: 0, members: Box::new([0, 1]), fdb_limit: 1000 };
        let ports = vec![Some(Arc::new(policy.finish())), Some(Arc::new(other))];
        worker.swap_snapshot(Arc::new(Snapshot::new(1, ports, vec![domain], Vec::new(), 300)));
        let rx = OneRing { rx: Some(source.ring()), tx: None };
        let tx = OneRing { rx: None, tx: Some(sink.ring()) };
        for (port, queue) in [(0, rx), (1, tx)] {
            let attached = worker.attach(
                PortId(port),
                vec![Box::new(queue)],
                Arc::new(PortCounters::default()),
            );
            assert!(attached.is_ok());
        }
        // There are no tokens until the first refill.
        while metered && worker.tokens(PortId(0)) <= 0 {
            worker.turn();
        }
        let mut switch = Self { worker, source, sink, flows, flow: 0 };
        (0..flows.min(1000) * 8).for_each(|_| switch.round());
        switch
    }

    /// Makes both guests offer 32 buffers to the switch: 32 frames to send, and room for 32
    /// received frames.
    pub fn prepare(&mut self) {
        if self.flows > 1 {
            let (flows, flow) = (self.flows, &mut self.flow);
            self.source.number_flows(|| {
                *flow = if *flow + 1 >= flows { 0 } else { *flow + 1 };
                flow.wrapping_mul(0x9e37_79b1)
            });
        }
        self.source.offer_batch();
        self.sink.offer_batch();
    }

    /// Moves one batch of 32 frames through the worker.
    #[inline(never)]
    pub fn turn(&mut self) {
        let turn = self.worker.turn();
        assert_eq!(turn, penstock_dataplane::worker::Turn::Busy(BATCH_FRAMES));
    }

    /// Runs both guests on another core, where the guests access every cache line of their frames.
    /// While the guests run, the calling core runs turns until the worker has moved `batches`
    /// batches. Returns the TSC cycles per frame of the turns that moved frames.
    pub fn across_cores(mut self, len: usize, batches: u32) -> f64 {
        let (mut source, mut sink) = (self.source.share(), self.sink.share());
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        pin(1);
        let guests = std::thread::spawn(move || {
            pin(0);
            while !seen.load(Ordering::Relaxed) {
                source.recycle(len, true);
                sink.recycle(len, false);
            }
        });
        let (mut cycles, mut moved) = (0, 0);
        while moved < batches {
            let start = Tsc.now();
            if let Turn::Busy(32) = self.worker.turn() {
                let passed = Tsc.now().saturating_sub(start).0;
                // Turns during which the core was taken away do not count.
                if passed < 100_000 {
                    cycles += passed;
                    moved += 1;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        guests.join().unwrap();
        cycles as f64 / f64::from(moved) / BATCH_FRAMES as f64
    }

    /// Runs one round of the benchmark: the guests offer buffers, and the worker moves one batch.
    pub fn round(&mut self) {
        self.prepare();
        self.turn();
    }
}
