//! The interface between the host and the data path. [`super::live`] implements it, and tests use a
//! fake.

use core::fmt;
use std::sync::Arc;

use penstock_dataplane::classify::Snapshot;
use penstock_dataplane::counters::{PortCounterSets, PortReading, WorkerReading};
use penstock_dataplane::port::AttachStatus;
use penstock_dataplane::worker::{FdbChunk, WorkerError};
use penstock_units::{MacAddr, Nanos, PortId, QueueId, TscRate, WorkerId};

use crate::config::Attachment;

/// The error of a port that could not be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachError {
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

/// The control side of an attached port.
pub(crate) trait Link: Send + Sync {
    fn status(&self) -> AttachStatus;

    /// Whether the attachment is lost, so that the port must be attached again.
    fn is_gone(&self) -> bool {
        false
    }

    /// Ends the threads that talk to the worker for the port. The host calls this function once,
    /// before the port is detached.
    fn close(&self) {}
}

/// The worker of a queue pair. Without a configured worker, queue pairs are spread over all
/// workers.
pub(crate) fn home(id: PortId, queue: QueueId, worker: Option<u16>, workers: usize) -> WorkerId {
    let place = worker.map_or_else(|| id.index() + queue.index(), usize::from);
    WorkerId(u16::try_from(place % workers.max(1)).unwrap_or(0))
}

/// The data path as the host sees it: workers and their ports.
pub(crate) trait DataPath: Send + Sync {
    /// Attaches a port. It passes frames as soon as the snapshot contains it.
    fn attach(
        &self,
        id: PortId,
        name: &str,
        attachment: &Attachment,
        worker: Option<u16>,
        counters: &PortCounterSets,
    ) -> Result<Arc<dyn Link>, AttachError>;

    /// Detaches a port. After that its counters do not change.
    fn detach(&self, id: PortId, link: Arc<dyn Link>) -> Result<(), WorkerError>;

    /// Moves the queue pairs of an attached port to other workers. Returns how many moved.
    fn place(&self, id: PortId, queues: u16, worker: Option<u16>) -> Result<usize, WorkerError>;
    /// The workers that own a port's queue pairs.
    fn owners(&self, id: PortId, queues: u16) -> Vec<u16>;

    fn swap_snapshot(&self, snapshot: Arc<Snapshot>) -> Result<(), WorkerError>;
    fn checkpoint(&self) -> Result<Vec<(PortId, PortReading)>, WorkerError>;
    fn fdb_chunk(&self, from: usize, max: usize) -> Result<FdbChunk, WorkerError>;
    fn fdb_flush(&self, port: Option<PortId>, domain: Option<u16>) -> Result<usize, WorkerError>;
    fn fdb_static(
        &self,
        domain: u16,
        mac: MacAddr,
        port: PortId,
        add: bool,
    ) -> Result<(), WorkerError>;

    /// Counters of each worker, and the CPU to which it is pinned.
    fn workers(&self) -> Vec<(WorkerReading, Option<u32>)>;
    fn tsc(&self) -> TscRate;
    fn uptime(&self) -> Nanos;
    fn stop(&self) -> Result<(), WorkerError>;
}
