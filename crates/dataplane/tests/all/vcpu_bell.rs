//! The worker notifies the vCPU scheduler when frames arrive for a VM, but not when the VM sends.
//! One system call wakes a sleeping scheduler, for any number of frames.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame};
use penstock_dataplane::port::vcpu_bells::VcpuBells;
use penstock_dataplane::tsc::VirtualCounter;
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_testing::{TempDir, memory_dir};
use penstock_vcpu::bells::{BELLS_FILE, Bell, SOCKET_PREFIX};

use crate::common::{access, attach, frame, one_network};

/// Test bed with two ports on one worker. The second port of the test bed belongs to the VM.
struct Bed {
    worker: Worker<VirtualCounter>,
    drivers: [MemoryDriver; 2],
    counters: Arc<PortCounters>,
    dir: TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = memory_dir();
        let bell = VcpuBells::open(&dir).unwrap().claim("web").unwrap();
        let mut worker = Worker::new(&WorkerConfig::default(), VirtualCounter::default(), None);
        let [(sender, _), (vm, counters)] = [0, 1].map(|port| attach(&mut worker, port, 4_096));
        let mut policy = access(1);
        policy.bell = Some(bell);
        worker.swap_snapshot(one_network([access(0), policy]));
        Self { worker, drivers: [sender, vm], counters, dir }
    }

    fn send(&mut self, from: usize, frames: usize) {
        for _ in 0..frames {
            assert!(self.drivers[from].send(MemoryFrame::plain(frame(from, 1 - from, 60))));
        }
        // Idle turns are needed, because the worker sends notifications there.
        let mut idle = 0;
        while idle < 3 {
            idle = if self.worker.turn() == Turn::Idle { idle + 1 } else { 0 };
        }
    }

    fn rung(&self) -> u64 {
        let mut word = [0; 8];
        let at = Bell::new(0).unwrap().counter_at();
        let file = File::open(self.dir.join(BELLS_FILE)).unwrap();
        file.read_exact_at(&mut word, u64::try_from(at).unwrap()).unwrap();
        u64::from_ne_bytes(word)
    }
}

#[test]
fn frames_ring_the_bell_of_the_vm_they_came_for() {
    let mut bed = Bed::new();
    bed.send(1, 40);
    assert_eq!(bed.rung(), 0, "what it sent is no event");
    bed.send(0, 1);
    assert_eq!(bed.rung(), 1, "{:?}", bed.counters.read());
    bed.send(0, 2_000);
    let after = bed.rung();
    assert!((2..=64).contains(&after), "a batch of frames at a time: {after}");
    bed.send(1, 40);
    assert_eq!(bed.rung(), after, "nothing came since");
    assert_eq!(bed.counters.read().tx_frames, 2_001);
    assert_eq!(bed.counters.read().vcpu_wakes, 0, "nobody sleeps");
}

#[test]
fn a_sleeping_scheduler_is_woken_once_however_many_frames_arrive() {
    let mut bed = Bed::new();
    let socket = UnixDatagram::bind(bed.dir.join(format!("{SOCKET_PREFIX}0"))).unwrap();
    socket.set_nonblocking(true).unwrap();
    let summons = u64::try_from(Bell::new(0).unwrap().summons_at()).unwrap();
    let file = File::options().write(true).open(bed.dir.join(BELLS_FILE)).unwrap();
    // The switch learns the VM's address.
    bed.send(1, 1);
    for times in 1..=2 {
        file.write_all_at(&[1], summons).unwrap();
        bed.send(0, 2_000);
        let mut name = [0; 8];
        assert_eq!((socket.recv(&mut name).unwrap(), &name[..3]), (3, &b"web"[..]));
        assert!(socket.recv(&mut name).is_err(), "once");
        assert_eq!(bed.counters.read().vcpu_wakes, times);
    }
}
