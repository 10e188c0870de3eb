//! Defines the interface between the host and the data path. The module [`super::live`] implements
//! this interface to the data path with real workers. Tests implement the interface with a fake
//! data path.

use core::fmt;
use std::sync::Arc;

use penstock_dataplane::capture::{CaptureTerms, Tally};
use penstock_dataplane::classify::Station;
use penstock_dataplane::counters::{PortCounterSets, PortReading, WorkerReading};
use penstock_dataplane::port::AttachStatus;
use penstock_dataplane::port::kept::{Kept, KeptTsc};
use penstock_dataplane::snapshot::Snapshot;
use penstock_dataplane::worker::{FdbChunk, WorkerError};
use penstock_units::{MacAddr, Nanos, PortId, QueueId, TscRate, WorkerId};

use crate::config::Attachment;

/// Reason why a port could not be attached, with a remedy.
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

/// Control side of an attached port, which the host uses outside of the workers.
pub(crate) trait Link: Send + Sync {
    fn status(&self) -> AttachStatus;

    /// Whether the interface or socket is lost, so that the port must be attached again.
    fn is_gone(&self) -> bool {
        false
    }

    /// Waits until the port continues where the former process stopped.
    fn await_continued(&self) {}

    /// Takes what the former process kept over, so that no other process can continue it.
    fn take_over(&self) {}

    /// Begins [`Self::keep`] without waiting for its end.
    fn begin_to_keep(&self) {}

    /// Whether [`Self::keep`] returns at once. Waits for it at most `wait_ms` milliseconds.
    fn has_ended(&self, wait_ms: u8) -> bool {
        let _ = wait_ms;
        true
    }

    /// Ends a port that has not ended after [`Self::begin_to_keep`], without waiting for its end.
    /// The port keeps nothing for the next process.
    fn give_up(&self) {}

    /// Ends the port's threads as [`Self::close`] does, and returns what the next process needs to
    /// continue the port. Returns `None` if nothing can be continued.
    fn keep(&self, name: &str) -> Option<Kept> {
        let _ = name;
        None
    }

    /// Ends the port's threads that send requests to the port's worker. The host calls `close` once
    /// for each attached port, before it detaches the port.
    fn close(&self) {}
}

/// Returns the number of the worker that serves a port's queue pair. If no worker is configured,
/// the queue pairs are distributed over all workers.
pub(crate) fn home(id: PortId, queue: QueueId, worker: Option<u16>, workers: usize) -> WorkerId {
    let place = worker.map_or_else(|| id.index() + queue.index(), usize::from);
    WorkerId(u16::try_from(place % workers.max(1)).unwrap_or(0))
}

/// The data path as the host sees it: workers and their ports.
pub(crate) trait DataPath: Send + Sync {
    /// Attaches a port. The port passes frames as soon as the workers' snapshot contains the port.
    fn attach(
        &self,
        id: PortId,
        name: &str,
        attachment: &Attachment,
        worker: Option<u16>,
        counters: &PortCounterSets,
    ) -> Result<Arc<dyn Link>, AttachError>;

    /// Detaches a port. After `detach`, the port's counters do not change.
    fn detach(&self, id: PortId, link: Arc<dyn Link>) -> Result<(), WorkerError>;

    /// Moves the queue pairs of an attached port to the worker `worker`, or distributes them over
    /// all workers. Returns how many queue pairs moved.
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

    /// Learns addresses that the former process had learned.
    fn fdb_relearn(&self, stations: Vec<Station>) -> Result<(), WorkerError> {
        let _ = stations;
        Ok(())
    }

    /// Counters of each worker, and the CPU to which the worker is pinned.
    fn workers(&self) -> Vec<(WorkerReading, Option<u32>)>;
    fn tsc(&self) -> TscRate;

    /// Rate of the time-stamp counter for the next process.
    fn kept_tsc(&self) -> KeptTsc {
        KeptTsc::measured(self.tsc())
    }

    fn uptime(&self) -> Nanos;
    fn stop(&self) -> Result<(), WorkerError>;

    /// Lets frames wait in the senders' rings until [`Self::resume`]. Frames that already left the
    /// senders' rings are delivered, as far as they are due soon.
    fn pause(&self) -> Result<(), WorkerError> {
        Ok(())
    }

    /// Lets frames flow again after [`Self::pause`].
    fn resume(&self) {}

    /// Starts a capture on all workers. Returns false if too many captures run.
    fn capture(&self, id: u64, terms: &dyn Fn() -> Box<CaptureTerms>) -> Result<bool, WorkerError> {
        let _ = (id, terms);
        Ok(false)
    }

    /// Takes what a capture has taken since the last call. `spare` has empty buffers.
    fn capture_next(
        &self,
        id: u64,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<(Vec<u8>, Tally)>, WorkerError> {
        let _ = (id, spare);
        Ok(Vec::new())
    }

    /// Ends a capture.
    fn capture_end(&self, id: u64) {
        let _ = id;
    }
}
