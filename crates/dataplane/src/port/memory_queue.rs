//! A queue pair in the switch's own memory. Simulations and tests attach this queue pair instead of
//! a VM or NIC.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_units::Cycles;

use super::{Pending, PortQueue, TxOutcome};
use crate::batch::Batch;
use crate::offload::{Offload, OffloadCaps};
use crate::wake::Doorbell;

/// A frame of a memory queue, with its offload metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFrame {
    /// Bytes of the frame, from the Ethernet header to the end of the payload, without FCS.
    pub bytes: Vec<u8>,
    pub offload: Offload,
}

impl MemoryFrame {
    /// Makes a frame from `bytes`, without offload requests.
    #[must_use]
    pub fn plain(bytes: Vec<u8>) -> Self {
        Self { bytes, offload: Offload::NONE }
    }
}

#[derive(Debug)]
struct Rings {
    to_switch: VecDeque<MemoryFrame>,
    from_switch: VecDeque<MemoryFrame>,
    capacity: usize,
    up: bool,
    /// Doorbell of the worker, and the memory queue's number at the doorbell. The doorbell rings if
    /// a frame arrives while the worker does not poll the queue.
    bell: Option<(Arc<Doorbell>, usize)>,
    resting: bool,
}

/// The VM's side of a memory queue, which sends and receives frames.
#[derive(Clone, Debug)]
pub struct MemoryDriver(Arc<Mutex<Rings>>);

/// The switch's side of a memory queue, which implements [`PortQueue`].
#[derive(Debug)]
pub struct MemoryQueue {
    rings: Arc<Mutex<Rings>>,
    caps: OffloadCaps,
}

/// Makes a queue pair in memory, and the driver that uses it. Each direction of the memory queue
/// has room for `capacity` frames.
#[must_use]
pub fn memory_queue(capacity: usize, caps: OffloadCaps) -> (MemoryQueue, MemoryDriver) {
    let rings = Arc::new(Mutex::new(Rings {
        to_switch: VecDeque::with_capacity(capacity),
        from_switch: VecDeque::with_capacity(capacity),
        capacity,
        up: true,
        bell: None,
        resting: false,
    }));
    let queue = MemoryQueue { rings: Arc::clone(&rings), caps };
    (queue, MemoryDriver(rings))
}

fn lock(rings: &Mutex<Rings>) -> std::sync::MutexGuard<'_, Rings> {
    rings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryDriver {
    /// Offers a frame to the switch. Returns false if the queue has no room for the frame.
    pub fn send(&self, frame: MemoryFrame) -> bool {
        let mut rings = lock(&self.0);
        let room = rings.to_switch.len() < rings.capacity;
        if room {
            rings.to_switch.push_back(frame);
            if rings.resting
                && let Some((doorbell, bell)) = &rings.bell
            {
                doorbell.ring(*bell);
            }
        }
        room
    }

    /// Takes the oldest frame that the switch delivered. `None` if no frame waits.
    #[must_use]
    pub fn receive(&self) -> Option<MemoryFrame> {
        lock(&self.0).from_switch.pop_front()
    }

    /// Number of sent frames that the switch has not taken yet.
    #[must_use]
    pub fn unsent(&self) -> usize {
        lock(&self.0).to_switch.len()
    }

    /// Lets the switch stop polling the queue when the queue is empty. When a frame arrives, the
    /// queue rings `doorbell` and passes the queue's number `bell`.
    pub fn connect_bell(&self, doorbell: Arc<Doorbell>, bell: usize) {
        lock(&self.0).bell = Some((doorbell, bell));
    }

    /// Connects the driver of the memory queue (`true`), or disconnects the driver (`false`).
    pub fn set_up(&self, up: bool) {
        lock(&self.0).up = up;
    }
}

impl PortQueue for MemoryQueue {
    fn pending(&mut self, _now: Cycles) -> Pending {
        let rings = lock(&self.rings);
        if rings.up && !rings.to_switch.is_empty() { Pending::Yes } else { Pending::No }
    }

    fn rx_burst(&mut self, batch: &mut Batch) {
        let mut rings = lock(&self.rings);
        while batch.has_room()
            && let Some(frame) = rings.to_switch.pop_front()
        {
            if batch.push(&frame.bytes, frame.offload).is_err() {
                rings.to_switch.push_front(frame);
                break;
            }
        }
    }

    fn backlog(&mut self) -> Option<usize> {
        Some(lock(&self.rings).to_switch.len())
    }

    fn tx_ready(&self) -> bool {
        lock(&self.rings).up
    }

    fn caps(&self) -> OffloadCaps {
        self.caps
    }

    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        let mut out = TxOutcome::default();
        let mut rings = lock(&self.rings);
        for &i in frames {
            let frame = batch.frame(usize::from(i));
            if rings.from_switch.len() >= rings.capacity {
                out.ring_full += 1;
            } else {
                let mut bytes = Vec::with_capacity(frame.len as usize);
                batch.copy_out(usize::from(i), &mut bytes);
                rings.from_switch.push_back(MemoryFrame { bytes, offload: frame.offload });
                out.frames += 1;
                out.bytes += u64::from(frame.len);
                out.tso += u32::from(frame.offload.is_gso());
            }
        }
        out
    }

    fn rest(&mut self) -> bool {
        let mut rings = lock(&self.rings);
        rings.resting = rings.bell.is_some() && rings.to_switch.is_empty();
        rings.resting
    }

    fn wake(&mut self) {
        lock(&self.rings).resting = false;
    }
}
