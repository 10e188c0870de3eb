//! Other threads send requests to a worker, which the worker answers between two batches.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use penstock_units::{MacAddr, PortId, QueueId, WorkerId};

use super::cutter::Spares;
use super::shaping::needs_cutter;
use super::{Reply, Request, Worker};
use crate::capture::{BUFFER_BYTES, CaptureTerms, Tally};
use crate::classify::{FdbRecord, Station};
use crate::counters::{PortCounters, PortReading, WorkerCounters};
use crate::peers::Directory;
use crate::port::{ControlMessage, PortQueue};
use crate::snapshot::Snapshot;
use crate::tsc::CycleCounter;
use crate::wake::Doorbell;

/// Error of a request to a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The worker's thread has ended.
    #[error("worker {0} is not running")]
    Gone(WorkerId),
    /// The worker's thread could not be started or pinned to its CPU.
    #[error("worker {worker}: {call}: {problem}")]
    Start {
        worker: WorkerId,
        /// Name of the start step that failed.
        call: &'static str,
        /// Text of the kernel's error.
        problem: String,
    },
    /// The port number is out of range or taken, or the number of queue pairs is not 1 to 8.
    #[error("port slot {0} is out of range or taken, or the number of queue pairs is not 1 to 8")]
    Slot(PortId),
    /// The port has no queue pair with the requested number.
    #[error("port slot {port} has no queue pair {queue}")]
    NoQueue {
        /// Number of the port in the request.
        port: PortId,
        queue: QueueId,
    },
    /// The worker's MAC table is full, or the domain has reached its limit of addresses.
    #[error("the MAC table of domain {domain} is full; raise fdb_limit or fdb_entries")]
    FdbFull {
        /// Number of the domain in the snapshot.
        domain: u16,
    },
}

/// One part of a listing of a worker's MAC table.
#[derive(Clone, Debug, Default)]
pub struct FdbChunk {
    pub entries: Vec<FdbRecord>,
    /// Slot number at which the next part of the MAC table starts, or `None` after the last part.
    pub next: Option<usize>,
    /// Current time of the worker's coarse clock in seconds. A reader computes the age of an entry
    /// from this time and the entry's `seen_s`.
    pub now_s: u32,
}

/// A request to a worker, and the channel for the answer.
#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) request: Request,
    pub(super) reply: Sender<Reply>,
}

/// The worker's end of its mailbox, which receives requests.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) requests: Receiver<Envelope>,
    pub(super) posted: Arc<AtomicU32>,
}

/// Handle of a running worker. A clone of the handle refers to the same worker.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    id: WorkerId,
    requests: Sender<Envelope>,
    posted: Arc<AtomicU32>,
    counters: Arc<WorkerCounters>,
    max_ports: usize,
    second: Arc<AtomicU32>,
    doorbell: Arc<Doorbell>,
    directory: Arc<Directory>,
    spares: Arc<Spares>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// Maximum number of requests that wait in a worker's mailbox. If the mailbox is full, senders
/// block until there is room.
pub(super) const MAILBOX: usize = 64;

impl WorkerHandle {
    pub(super) fn new<C: CycleCounter>(
        id: WorkerId,
        max_ports: usize,
        worker: &Worker<C>,
    ) -> (Self, Mailbox) {
        let (requests, receiver) = bounded(MAILBOX);
        let posted = Arc::new(AtomicU32::new(0));
        let mailbox = Mailbox { requests: receiver, posted: Arc::clone(&posted) };
        let (counters, second) = (worker.counters(), worker.coarse_clock());
        let (doorbell, directory) = (worker.doorbell(), worker.directory());
        let (spares, thread) = (worker.spares(), Arc::default());
        let handle = Self {
            id,
            requests,
            posted,
            counters,
            max_ports,
            second,
            doorbell,
            directory,
            spares,
            thread,
        };
        (handle, mailbox)
    }

    pub(super) fn set_thread(&self, thread: JoinHandle<()>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Sends a request to the worker and waits for the answer. The wait has no timeout, because the
    /// caller may free the request's memory only after the worker has returned the memory. The
    /// watchdog reports a worker that does not answer.
    pub(super) fn ask(&self, request: Request) -> Result<Reply, WorkerError> {
        match &request {
            Request::Attach(..) | Request::Adopt(_) => self.spares.provide(1),
            Request::Swap(new) => self.provide_for(new),
            _ => {}
        }
        let gone = || WorkerError::Gone(self.id);
        let (reply, answer) = bounded(1);
        self.requests.send(Envelope { request, reply }).map_err(|_| gone())?;
        self.posted.fetch_add(1, Ordering::Release);
        match answer.recv().map_err(|_| gone())? {
            Reply::Refused(error) => Err(error),
            reply => Ok(reply),
        }
    }

    /// Allocates the cutters that the worker may need for a new snapshot.
    pub(super) fn provide_for(&self, new: &Snapshot) {
        let is_here = |port: &PortId| self.directory.owners(*port) >> self.id.0 & 1 != 0;
        let cuts = |port: &PortId| new.port(port.0).is_some_and(|policy| needs_cutter(policy));
        self.spares.provide(new.visited().filter(|port| is_here(port) && cuts(port)).count());
    }

    #[must_use]
    pub const fn id(&self) -> WorkerId {
        self.id
    }

    /// Attaches a new port with all its queue pairs to this worker.
    ///
    /// # Errors
    /// Returns [`WorkerError::Slot`] if the port or its number of queue pairs is invalid, or
    /// [`WorkerError::Gone`] if the worker has ended.
    pub fn attach_port(
        &self,
        id: PortId,
        queues: Vec<Box<dyn PortQueue>>,
        counters: Arc<PortCounters>,
    ) -> Result<(), WorkerError> {
        match self.ask(Request::Attach(id, queues, counters))? {
            Reply::Done => Ok(()),
            _ => Err(WorkerError::Slot(id)),
        }
    }

    /// Detaches a port from the worker and returns the port's queue pairs. Detaching a port does
    /// not affect frames that the switch has already delivered.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn detach_port(&self, id: PortId) -> Result<Vec<Box<dyn PortQueue>>, WorkerError> {
        match self.ask(Request::Detach(id))? {
            Reply::Queues(queues) => Ok(queues),
            _ => Err(WorkerError::Slot(id)),
        }
    }

    /// Replaces the worker's snapshot. Returns the worker's previous snapshot.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn swap_snapshot(&self, new: Arc<Snapshot>) -> Result<Arc<Snapshot>, WorkerError> {
        match self.ask(Request::Swap(new))? {
            Reply::Snapshot(old) => Ok(old),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Passes a message to a queue pair and returns the queue pair's answer.
    ///
    /// # Errors
    /// Returns [`WorkerError::NoQueue`] if the queue pair does not exist, or [`WorkerError::Gone`]
    /// if the worker has ended. If the request fails, the worker drops the control message.
    pub fn control_queue(
        &self,
        port: PortId,
        queue: QueueId,
        message: ControlMessage,
    ) -> Result<ControlMessage, WorkerError> {
        match self.ask(Request::Control(port, queue, message))? {
            Reply::Control(answer) => Ok(answer),
            _ => Err(WorkerError::NoQueue { port, queue }),
        }
    }

    /// Reads the counters of all ports of the worker between two batches.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn checkpoint(&self) -> Result<Vec<(PortId, PortReading)>, WorkerError> {
        match self.ask(Request::Checkpoint(Vec::with_capacity(self.max_ports)))? {
            Reply::Checkpoint(readings) => Ok(readings),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Returns the entries of the worker's MAC table in up to `max` slots, beginning with slot
    /// `from_slot`. If `max` is small, the request delays the worker only briefly.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn fdb_chunk(&self, from_slot: usize, max: usize) -> Result<FdbChunk, WorkerError> {
        match self.ask(Request::FdbChunk(from_slot, max, Vec::with_capacity(max)))? {
            Reply::FdbChunk(entries, next) => {
                Ok(FdbChunk { entries, next, now_s: self.coarse_now_s() })
            }
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Removes learned addresses of a port, of a domain, of a port in a domain, or all learned
    /// addresses. Returns the number of addresses that were removed.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn fdb_flush(
        &self,
        port: Option<PortId>,
        domain: Option<u16>,
    ) -> Result<usize, WorkerError> {
        match self.ask(Request::FdbFlush(port, domain))? {
            Reply::Flushed(n) => Ok(n),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Adds a static address if `add` is true, or removes the address.
    ///
    /// # Errors
    /// Returns [`WorkerError::FdbFull`] if the MAC table has no room, or [`WorkerError::Gone`] if
    /// the worker has ended.
    pub fn fdb_static(
        &self,
        domain: u16,
        mac: MacAddr,
        port: PortId,
        add: bool,
    ) -> Result<(), WorkerError> {
        self.ask(Request::FdbStatic(domain, mac, port, add)).map(|_| ())
    }

    /// Learns addresses that the former process of the switch had learned.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn fdb_relearn(&self, stations: &Arc<[Station]>) -> Result<(), WorkerError> {
        self.ask(Request::FdbRelearn(Arc::clone(stations))).map(|_| ())
    }

    /// Starts a capture. Returns false if the worker has [`CAPTURES_MAX`] captures.
    ///
    /// [`CAPTURES_MAX`]: crate::capture::CAPTURES_MAX
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn capture(&self, terms: Box<CaptureTerms>) -> Result<bool, WorkerError> {
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Ok(matches!(self.ask(Request::Capture(terms, buffer))?, Reply::Done))
    }

    /// Exchanges a capture's buffer for `empty`. Returns `empty` and no numbers if the worker has
    /// no such capture.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn capture_next(
        &self,
        id: u64,
        empty: Vec<u8>,
    ) -> Result<(Vec<u8>, Option<Tally>), WorkerError> {
        match self.ask(Request::CaptureNext(id, empty))? {
            Reply::Captured(buffer, tally) => Ok((buffer, tally)),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Ends a capture. Returns its last frames and numbers.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker has ended.
    pub fn capture_end(&self, id: u64) -> Result<Option<(Vec<u8>, Tally)>, WorkerError> {
        match self.ask(Request::CaptureEnd(id))? {
            Reply::CaptureEnded(ended) => Ok(ended.map(|(_, buffer, tally)| (buffer, tally))),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Returns the worker's own counters, without the counters of its ports.
    #[must_use]
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// Returns the directory that records which worker owns each queue pair.
    pub(super) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Sends a request for which [`Reply::Done`] means success. If the worker gives any other
    /// answer than [`Reply::Done`], the function returns the error [`WorkerError::Slot`].
    pub(super) fn done(&self, port: PortId, request: Request) -> Result<(), WorkerError> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(WorkerError::Slot(port)),
        }
    }

    /// Returns the doorbell that wakes the worker's resting queue pairs.
    #[must_use]
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Returns the time of the worker's coarse clock in seconds, which the MAC table uses for
    /// `seen_s`.
    #[must_use]
    pub fn coarse_now_s(&self) -> u32 {
        self.second.load(Ordering::Relaxed)
    }

    /// Stops the worker's thread and waits for the thread's end. The caller must detach all ports
    /// before, because the thread uses the ports' memory.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if the worker's thread had already ended.
    pub fn stop(&self) -> Result<(), WorkerError> {
        self.ask(Request::Stop)?;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(())) => Ok(()),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }
}
