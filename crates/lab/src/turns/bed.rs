//! A production worker with 4,096 ports, which a thread of the lab or a simulated core runs.

use std::sync::Arc;

use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::Snapshot;
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::unit::Unit;
use penstock_dataplane::worker::{Reply, Request, SwapWork, Turn, Worker, WorkerConfig, bell_of};
use penstock_sim::{World, udp_frame};
use penstock_units::{Cycles, PortId, QueueId, TscRate};

use super::{FDB_ENTRIES, LAST, PORTS, RECEIVERS, SENDERS, UPLINK};

/// Frames in a ring of a port with frames. The ring of another port has [`QUIET_RING`].
const RING: usize = 256;
const QUIET_RING: usize = 4;
/// Length of the frames in bytes, without FCS.
const FRAME: usize = 60;

/// A turn of the worker.
#[derive(Debug)]
pub(crate) struct Timed {
    /// Cycles from the end of the turn before to the end of this turn.
    pub cycles: Cycles,
    /// Whether the turn moved frames.
    pub is_busy: bool,
    /// Work for the new snapshot, and the snapshot before it. `None` without a new snapshot.
    pub swapped: Option<(SwapWork, Arc<Snapshot>)>,
}

/// A worker with its ports, and the VMs of the ports with frames.
pub(crate) struct Bed<C> {
    worker: Worker<C>,
    counter: C,
    /// Advances a virtual counter by the cost of a snapshot. `None` with a real counter.
    charge: Option<fn(&C, SwapWork)>,
    /// Drivers of all ports, by port number.
    drivers: Vec<MemoryDriver>,
    /// Frames of the senders, each with its port number.
    frames: Vec<(u16, MemoryFrame)>,
}

impl<C: CycleCounter + Clone> Bed<C> {
    /// Creates a worker with the snapshot `snapshot` on a core of the frequency `core`.
    pub fn new(
        snapshot: Arc<Snapshot>,
        (core, seed): (TscRate, u64),
        counter: C,
        charge: Option<fn(&C, SwapWork)>,
    ) -> anyhow::Result<Self> {
        let config = WorkerConfig {
            schedule: ScheduleKind::Hbs,
            fdb_entries: FDB_ENTRIES,
            seed,
            tsc: core,
            max_ports: usize::from(PORTS),
            ..WorkerConfig::default()
        };
        let mut worker = Worker::new(&config, counter.clone(), None);
        let mut drivers = Vec::new();
        for id in 0..LAST {
            let ring = if id < RECEIVERS.end { RING } else { QUIET_RING };
            let (queue, driver) = memory_queue(ring, OffloadCaps::ALL);
            let unit = Unit { port: PortId(id), queue: QueueId(0) };
            driver.connect_bell(worker.doorbell(), bell_of(unit));
            let pairs: Vec<Box<dyn PortQueue>> = vec![Box::new(queue)];
            let attached = worker.attach(unit.port, pairs, Arc::new(PortCounters::default()));
            anyhow::ensure!(attached.is_ok(), "port {id} cannot be attached");
            drivers.push(driver);
        }
        drop(worker.swap_snapshot(snapshot));
        for id in 0..LAST {
            let pin = Request::FdbStatic(0, World::mac_of(id), PortId(id), true);
            let is_pinned = matches!(worker.serve(pin), Reply::Done);
            // Without their addresses, frames would be flooded to all ports. The addresses of quiet
            // ports only fill the MAC table.
            anyhow::ensure!(is_pinned || id >= RECEIVERS.end, "no room for the address of {id}");
        }
        let frames = SENDERS.map(|id| (id, frame(id))).collect();
        Ok(Self { worker, counter, charge, drivers, frames })
    }

    /// Lets the VMs fill their rings, and take the frames that they received.
    pub fn fill(&mut self) {
        for (id, frame) in &self.frames {
            let driver = &self.drivers[usize::from(*id)];
            let room = RING.saturating_sub(driver.unsent());
            for _ in 0..room {
                driver.send(frame.clone());
            }
        }
        for id in RECEIVERS.chain([UPLINK]) {
            while self.drivers[usize::from(id)].receive().is_some() {}
        }
    }

    /// Gives the worker a new snapshot if there is one, and runs a turn. Both together are the time
    /// for which other frames wait.
    pub fn turn(&mut self, new: Option<Arc<Snapshot>>) -> Timed {
        // The time in which VMs filled their rings belongs to no sender.
        self.worker.rested();
        let begin = self.counter.now();
        let swapped = new.and_then(|new| self.swap(new));
        let turn = self.worker.turn();
        let cycles = self.counter.now().saturating_sub(begin);
        Timed { cycles, is_busy: turn != Turn::Idle, swapped }
    }

    fn swap(&mut self, new: Arc<Snapshot>) -> Option<(SwapWork, Arc<Snapshot>)> {
        let Reply::Snapshot(old) = self.worker.serve(Request::Swap(new)) else { return None };
        let work = self.worker.swapped();
        if let Some(charge) = self.charge {
            charge(&self.counter, work);
            self.worker.rested();
        }
        Some((work, old))
    }
}

/// Returns a frame of a sender. The first sender sends to the uplink, and each other sender to its
/// own receiver.
fn frame(sender: u16) -> MemoryFrame {
    let nth = sender - SENDERS.start;
    let to = if nth == 0 { UPLINK } else { RECEIVERS.start + nth };
    let bytes = udp_frame(World::mac_of(sender), World::mac_of(to), FRAME, sender, 0);
    MemoryFrame::plain(bytes)
}
