//! If frames make a notification of a driver necessary, the ports of these frames pay for the
//! notification. The port of the next batch does not pay.

use std::sync::Arc;

use penstock_dataplane::batch::Batch;
use penstock_dataplane::counters::PortCounterSets;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::memory_queue::{
    MemoryDriver, MemoryFrame, MemoryQueue, memory_queue,
};
use penstock_dataplane::port::{Pending, PortQueue, TxOutcome};
use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_units::{Cycles, PortId, TscRate, WorkerId};

use crate::common::{access, frame, one_network};

/// Cycles that each batch costs on the simulated core of these tests. `KICK` is the number of
/// cycles that each notification of a driver costs.
const BATCH: u64 = 1_000;
const KICK: u64 = 70_000;

/// Simulated core on which only the last stage of a batch takes cycles.
#[derive(Clone, Debug, Default)]
struct Core(VirtualCounter);

impl CycleCounter for Core {
    fn now(&self) -> Cycles {
        self.0.now()
    }

    fn spent(&self, stage: Stage, _work: &Work) {
        if stage == Stage::Egress {
            self.0.advance(Cycles(BATCH));
        }
    }
}

/// A queue pair with a driver that may request a notification of received frames, a notification of
/// taken frames, both, or none.
struct Sleeper {
    queue: MemoryQueue,
    clock: VirtualCounter,
    wants: [bool; 2],
    owed: [bool; 2],
}

impl Sleeper {
    fn wake(&mut self, taken: usize) -> u32 {
        let kick = core::mem::take(&mut self.owed[taken]) && self.wants[taken];
        self.clock.advance(Cycles(if kick { KICK } else { 0 }));
        u32::from(kick)
    }
}

impl PortQueue for Sleeper {
    fn pending(&mut self, now: Cycles) -> Pending {
        self.queue.pending(now)
    }
    fn rx_burst(&mut self, batch: &mut Batch) {
        self.queue.rx_burst(batch);
        self.owed[1] = !batch.is_empty();
    }
    fn tx_ready(&self) -> bool {
        self.queue.tx_ready()
    }
    fn caps(&self) -> OffloadCaps {
        self.queue.caps()
    }
    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        self.owed[0] = true;
        self.queue.tx_burst(batch, frames)
    }
    fn notify(&mut self) -> u32 {
        self.wake(0)
    }
    fn notify_taken(&mut self) -> u32 {
        self.wake(1)
    }
}

struct Bed {
    worker: Worker<Core>,
    drivers: Vec<MemoryDriver>,
    counters: Vec<PortCounterSets>,
}

impl Bed {
    /// Creates three ports. For each port, `wants` has two flags: whether the driver requests
    /// notifications of received frames, and of taken frames.
    fn new(wants: [[bool; 2]; 3]) -> Self {
        let core = Core::default();
        let tsc = TscRate::from_hz(2_000_000_000);
        let config = WorkerConfig { tsc, max_ports: 4, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, core.clone(), None);
        let (mut drivers, mut counters, mut policies) = (Vec::new(), Vec::new(), Vec::new());
        for (port, wants) in (0_u16..).zip(wants) {
            let (queue, driver) = memory_queue(256, OffloadCaps::ALL);
            let queue = Sleeper { queue, clock: core.0.clone(), wants, owed: [false; 2] };
            let set = PortCounterSets::new(1);
            let own = Arc::clone(set.of(WorkerId(0)));
            assert!(worker.attach(PortId(port), vec![Box::new(queue)], own).is_ok());
            policies.push(access(port));
            drivers.push(driver);
            counters.push(set);
        }
        worker.swap_snapshot(one_network(policies));
        let mut bed = Self { worker, drivers, counters };
        // The switch learns the addresses of all ports.
        for port in 0..3 {
            assert!(bed.send(port, 9, 1));
        }
        bed.run();
        bed
    }

    fn send(&self, from: usize, to: usize, frames: usize) -> bool {
        let driver = &self.drivers[from];
        (0..frames).all(|_| driver.send(MemoryFrame::plain(frame(from, to, 60))))
    }

    fn run(&mut self) {
        while self.worker.turn() != Turn::Idle {}
        for driver in &self.drivers {
            while driver.receive().is_some() {}
        }
    }

    /// Returns the cycles that each port has been charged since the start.
    fn charged(&self) -> [u64; 3] {
        [0, 1, 2].map(|port: usize| self.counters[port].read().cycles)
    }

    /// Sends the frames in `frames`: each element has the number of the sending port, the number of
    /// the receiving port, and the number of frames. Returns the cycles that each port is charged.
    fn cost(&mut self, frames: &[(usize, usize, usize)]) -> [u64; 3] {
        let before = self.charged();
        for &(from, to, count) in frames {
            assert!(self.send(from, to, count));
        }
        self.run();
        let after = self.charged();
        [0, 1, 2].map(|port: usize| after[port] - before[port])
    }
}

const POLLS: [bool; 2] = [false, false];

#[test]
fn the_sender_to_a_sleeping_driver_pays_for_the_kick() {
    let mut bed = Bed::new([POLLS, POLLS, [true, false]]);
    assert_eq!(bed.cost(&[(0, 1, 8)]), [BATCH, 0, 0], "nobody sleeps there");
    assert_eq!(bed.cost(&[(0, 2, 8)]), [BATCH + KICK, 0, 0]);
    // The kick comes after the other port's batch, and is not charged to that port.
    assert_eq!(bed.cost(&[(0, 2, 8), (1, 0, 8)]), [BATCH + KICK, BATCH, 0]);
    assert_eq!(bed.cost(&[(1, 0, 8), (0, 2, 8)]), [BATCH + KICK, BATCH, 0]);
    assert_eq!(bed.counters[2].read().tx_kicks, 4, "with the frame by which it was learned");
    let counters = bed.worker.counters();
    let notified = (counters.cycles_notified.get(), counters.taken_notifications.get());
    assert_eq!(notified, (4 * KICK, 0));
}

#[test]
fn several_senders_share_a_kick_by_their_frames() {
    let mut bed = Bed::new([POLLS, POLLS, [true, false]]);
    let cost = bed.cost(&[(0, 2, 24), (1, 2, 8)]);
    assert_eq!(cost, [BATCH + KICK * 3 / 4, BATCH + KICK / 4, 0]);
}

#[test]
fn a_driver_that_wants_notifications_of_its_own_frames_pays_for_them() {
    let mut bed = Bed::new([[false, true], POLLS, POLLS]);
    let before = bed.worker.counters().taken_notifications.get();
    assert_eq!(bed.cost(&[(0, 1, 8)]), [BATCH + KICK, 0, 0]);
    assert_eq!(bed.worker.counters().taken_notifications.get(), before + 1);
    // Frames that another port sends to port 0 at the same time do not change the charge.
    assert_eq!(bed.cost(&[(0, 1, 8), (1, 0, 8)]), [BATCH + KICK, BATCH, 0]);
}
