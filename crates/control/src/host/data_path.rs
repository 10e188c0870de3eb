//! The seam between the host and what moves frames: real in [`super::live`], a fake in tests.

use core::fmt;
use std::sync::Arc;

use penstock_dataplane::classify::Snapshot;
use penstock_dataplane::counters::{PortCounterSets, PortReading, WorkerReading};
use penstock_dataplane::port::AttachStatus;
use penstock_dataplane::worker::{FdbChunk, WorkerError};
use penstock_units::{MacAddr, Nanos, PortId, QueueId, TscRate, WorkerId};

use crate::config::Attachment;

/// A port could not be attached: what failed, and what would help.
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

/// An attached port's control side.
pub(crate) trait Link: Send + Sync {
    fn status(&self) -> AttachStatus;

    /// Whether what it was attached to is gone for good: only a new attachment helps.
    fn is_gone(&self) -> bool {
        false
    }

    /// Ends what talks to the worker on the port's behalf; called once, before it is detached.
    fn close(&self) {}
}

/// Which worker gets a queue pair of a port: the configured one, else they are dealt out.
pub(crate) fn home(id: PortId, queue: QueueId, worker: Option<u16>, workers: usize) -> WorkerId {
    let place = worker.map_or_else(|| id.index() + queue.index(), usize::from);
    WorkerId(u16::try_from(place % workers.max(1)).unwrap_or(0))
}

/// The data path as the host sees it: workers and their ports.
pub(crate) trait DataPath: Send + Sync {
    /// Attaches a port; it may pass frames as soon as the snapshot knows it.
    fn attach(
        &self,
        id: PortId,
        name: &str,
        attachment: &Attachment,
        worker: Option<u16>,
        counters: &PortCounterSets,
    ) -> Result<Arc<dyn Link>, AttachError>;

    /// Detaches a port; afterwards nobody counts in its counters.
    fn detach(&self, id: PortId, link: Arc<dyn Link>) -> Result<(), WorkerError>;

    /// Gives the queue pairs of an attached port to other workers; returns how many moved.
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

    /// Each worker's counters and the CPU it is pinned to.
    fn workers(&self) -> Vec<(WorkerReading, Option<u32>)>;
    fn tsc(&self) -> TscRate;
    /// Time since the switch started.
    fn uptime(&self) -> Nanos;
    fn stop(&self) -> Result<(), WorkerError>;
}
