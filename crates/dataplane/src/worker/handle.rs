//! A worker from outside: requests, each answered between two batches.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use penstock_units::{MacAddr, PortId, QueueId, WorkerId};

use super::{Directory, Doorbell, Reply, Request, Worker};
use crate::classify::{FdbRecord, Snapshot};
use crate::counters::{PortCounters, PortReading, WorkerCounters};
use crate::port::{ControlMessage, PortQueue};
use crate::tsc::CycleCounter;

/// A worker did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The thread has ended.
    #[error("worker {0} is not running")]
    Gone(WorkerId),
    /// The thread could not be started or pinned.
    #[error("worker {worker}: {call}: {problem}")]
    Start {
        /// Which worker.
        worker: WorkerId,
        /// What was being done.
        call: &'static str,
        /// The kernel's answer.
        problem: String,
    },
    /// The slot is out of range, taken, or the number of queue pairs is not 1 to 8.
    #[error("port slot {0} is out of range or taken, or its queue pairs are not 1 to 8")]
    Slot(PortId),
    /// No such queue pair.
    #[error("port slot {port} has no queue pair {queue}")]
    NoQueue {
        /// The slot.
        port: PortId,
        /// The queue pair.
        queue: QueueId,
    },
    /// The MAC table or the domain's part of it is full.
    #[error("the MAC table of domain {domain} is full; raise fdb_limit or fdb_entries")]
    FdbFull {
        /// The domain.
        domain: u16,
    },
}

/// A slice of the MAC table.
#[derive(Clone, Debug, Default)]
pub struct FdbChunk {
    /// Its entries.
    pub entries: Vec<FdbRecord>,
    /// Where the next slice starts; `None` after the last.
    pub next: Option<usize>,
    /// The clock that their `seen_s` is to be read against, in seconds.
    pub now_s: u32,
}

/// A request and where its answer goes.
#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) request: Request,
    pub(super) reply: Sender<Reply>,
}

/// The worker's end of the mailbox.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) requests: Receiver<Envelope>,
    pub(super) posted: Arc<AtomicU32>,
}

/// A running worker; clones speak to the same one.
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
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// Requests that may wait at once; a further one waits for a place.
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
        let thread = Arc::default();
        let handle =
            Self { id, requests, posted, counters, max_ports, second, doorbell, directory, thread };
        (handle, mailbox)
    }

    pub(super) fn set_thread(&self, thread: JoinHandle<()>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Waits for the answer: what a request lends the worker must come back before it may be
    /// freed, so there is no time-out; the watchdog reports a worker that does not answer.
    pub(super) fn ask(&self, request: Request) -> Result<Reply, WorkerError> {
        let gone = || WorkerError::Gone(self.id);
        let (reply, answer) = bounded(1);
        self.requests.send(Envelope { request, reply }).map_err(|_| gone())?;
        self.posted.fetch_add(1, Ordering::Release);
        match answer.recv().map_err(|_| gone())? {
            Reply::Refused(error) => Err(error),
            reply => Ok(reply),
        }
    }

    /// Which worker this is.
    #[must_use]
    pub const fn id(&self) -> WorkerId {
        self.id
    }

    /// Lets a port take part.
    ///
    /// # Errors
    /// [`WorkerError::Slot`], [`WorkerError::Gone`].
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

    /// Takes a port out; frames already delivered stay delivered.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
    pub fn detach_port(&self, id: PortId) -> Result<Vec<Box<dyn PortQueue>>, WorkerError> {
        match self.ask(Request::Detach(id))? {
            Reply::Queues(queues) => Ok(queues),
            _ => Err(WorkerError::Slot(id)),
        }
    }

    /// Puts a snapshot in place; the one before comes back.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
    pub fn swap_snapshot(&self, new: Arc<Snapshot>) -> Result<Arc<Snapshot>, WorkerError> {
        match self.ask(Request::Swap(new))? {
            Reply::Snapshot(old) => Ok(old),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Hands a message to a queue pair and returns its answer.
    ///
    /// # Errors
    /// [`WorkerError::NoQueue`], [`WorkerError::Gone`]; the message is dropped.
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

    /// All ports' counters, read between two batches.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
    pub fn checkpoint(&self) -> Result<Vec<(PortId, PortReading)>, WorkerError> {
        match self.ask(Request::Checkpoint(Vec::with_capacity(self.max_ports)))? {
            Reply::Checkpoint(readings) => Ok(readings),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Up to `max` slots of the MAC table from `from_slot` on. Small slices keep the pause short.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
    pub fn fdb_chunk(&self, from_slot: usize, max: usize) -> Result<FdbChunk, WorkerError> {
        match self.ask(Request::FdbChunk(from_slot, max, Vec::with_capacity(max)))? {
            Reply::FdbChunk(entries, next) => {
                Ok(FdbChunk { entries, next, now_s: self.coarse_now_s() })
            }
            _ => Err(WorkerError::Gone(self.id)),
        }
    }

    /// Forgets learned addresses, of a port, of a domain, or all; returns how many.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
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

    /// Adds or removes a static address.
    ///
    /// # Errors
    /// [`WorkerError::FdbFull`], [`WorkerError::Gone`].
    pub fn fdb_static(
        &self,
        domain: u16,
        mac: MacAddr,
        port: PortId,
        add: bool,
    ) -> Result<(), WorkerError> {
        self.ask(Request::FdbStatic(domain, mac, port, add)).map(|_| ())
    }

    /// The worker's own counters.
    #[must_use]
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// Who owns which queue pair.
    pub(super) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Asks for something about a port that is done or not possible.
    pub(super) fn done(&self, port: PortId, request: Request) -> Result<(), WorkerError> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(WorkerError::Slot(port)),
        }
    }

    /// What wakes the worker's queue pairs at rest.
    #[must_use]
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// The worker's coarse clock, against which the MAC table's `last_seen` is to be read.
    #[must_use]
    pub fn coarse_now_s(&self) -> u32 {
        self.second.load(Ordering::Relaxed)
    }

    /// Ends the thread and waits for it. Ports must have been detached: theirs is the memory.
    ///
    /// # Errors
    /// [`WorkerError::Gone`] if it had ended before.
    pub fn stop(&self) -> Result<(), WorkerError> {
        self.ask(Request::Stop)?;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(())) => Ok(()),
            _ => Err(WorkerError::Gone(self.id)),
        }
    }
}
