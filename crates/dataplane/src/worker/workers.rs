//! Other threads use [`Workers`] to control all workers of a switch.
//!
//! # Approach
//!
//! Each queue pair has one owner, which the [`Directory`] records. Some changes concern all workers
//! at once, for example a new snapshot, the removal or move of a port, or an exact reading of
//! counters. During a change that concerns all workers, the control plane *holds* all workers. A
//! held worker takes no frames from its ports. A held worker still delivers frames from other
//! workers, until the rings between workers are empty.
//!
//! Because workers are held, no frame is lost or overtaken, and no frame is classified by one
//! snapshot and delivered by another. While the control plane holds the workers, frames wait in the
//! senders' rings. The hold lasts as long as a few messages to the workers take. If a switch has
//! only one worker, the control plane need not hold it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use penstock_units::{MacAddr, Nanos, PortId, QueueId, WorkerId};

use super::membership::Arrival;
use super::thread::spawn_one;
use super::{FdbChunk, Reply, Request, WorkerConfig, WorkerError, WorkerHandle, bell_of};
use crate::capture::{BUFFER_BYTES, CaptureTerms, Tally};
use crate::classify::Station;
use crate::counters::{PortCounterSets, PortReading};
use crate::peers::{Directory, Mesh, Positions};
use crate::port::{ControlMessage, PortQueue, QueueOwners, Unreachable};
use crate::snapshot::Snapshot;
use crate::unit::QUEUES_MAX;
use crate::unit::Unit;

/// Size of the range of slot numbers that each worker has in a listing of all workers' MAC tables.
/// A worker's MAC table has at most this number of slots.
const TABLE: usize = 1 << 20;
/// Time for which each worker sends its waiting frames before a restart, twice.
const SEND_LIMIT: Nanos = Nanos::from_millis(2);

/// Handle of all workers of a switch. A clone of the handle refers to the same workers.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    handles: Vec<WorkerHandle>,
    directory: Arc<Directory>,
    rings: Vec<Arc<Positions>>,
    /// Lock that the control plane takes for each hold of the workers and for each attachment of a
    /// port.
    changes: Mutex<()>,
    /// Whether the workers stay held between changes ([`Workers::pause`]).
    paused: AtomicBool,
    /// Lock that the control plane takes for writing while it moves a queue pair from one worker to
    /// another.
    moves: RwLock<()>,
}

impl From<WorkerHandle> for Workers {
    /// Creates the handle of a switch with only one worker.
    fn from(handle: WorkerHandle) -> Self {
        let directory = Arc::clone(handle.directory());
        Self::new(vec![handle], directory, Vec::new())
    }
}

/// Guard object: workers receive no frames from their ports until the object is dropped.
struct Held<'a> {
    workers: &'a Shared,
    _changes: MutexGuard<'a, ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.workers.handles.len() > 1 && !self.workers.paused.load(Ordering::Relaxed) {
            self.workers.release();
        }
    }
}

impl Shared {
    fn release(&self) {
        for handle in &self.handles {
            // A worker that has ended needs no release.
            let _ = handle.ask(Request::Hold(false));
        }
    }
}

impl Workers {
    fn new(
        handles: Vec<WorkerHandle>,
        directory: Arc<Directory>,
        rings: Vec<Arc<Positions>>,
    ) -> Self {
        let (changes, moves) = (Mutex::default(), RwLock::default());
        let paused = AtomicBool::new(false);
        Self(Arc::new(Shared { handles, directory, rings, changes, paused, moves }))
    }

    /// Starts one worker for each core in `cores`. All other start parameters of the workers come
    /// from `config`.
    ///
    /// # Errors
    /// Returns [`WorkerError::Start`] if a worker cannot be started. If one worker cannot be
    /// started, the workers that were already started are stopped.
    pub fn spawn(config: &WorkerConfig, cores: &[Option<u32>]) -> Result<Self, WorkerError> {
        let count = u16::try_from(cores.len()).unwrap_or(u16::MAX);
        let Mesh { peers, directory, rings } = Mesh::new(count, config.max_ports);
        let mut handles: Vec<WorkerHandle> = Vec::new();
        for ((id, core), peers) in (0..).zip(cores).zip(peers) {
            let config = WorkerConfig { id: WorkerId(id), core: *core, ..config.clone() };
            match spawn_one(config, Some(peers)) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    handles.iter().for_each(|started| drop(started.stop()));
                    return Err(error);
                }
            }
        }
        Ok(Self::new(handles, directory, rings))
    }

    /// Returns the handles of the workers, indexed by worker number.
    #[must_use]
    pub fn handles(&self) -> &[WorkerHandle] {
        &self.0.handles
    }

    fn handle(&self, id: WorkerId) -> Result<&WorkerHandle, WorkerError> {
        self.0.handles.get(id.index()).ok_or(WorkerError::Gone(id))
    }

    /// Returns the owner of a queue pair. Returns `None` if no worker owns the queue pair, or if
    /// the port or queue pair does not exist.
    #[must_use]
    pub fn owner(&self, port: PortId, queue: QueueId) -> Option<WorkerId> {
        self.0.directory.owner(port, queue)
    }

    /// Pauses all workers: returns when no worker receives frames from its ports and all rings
    /// between workers are empty.
    fn hold(&self) -> Result<Held<'_>, WorkerError> {
        let changes = self.0.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let held = Held { workers: &self.0, _changes: changes };
        if self.0.handles.len() > 1 {
            self.hold_all()?;
        }
        Ok(held)
    }

    fn hold_all(&self) -> Result<(), WorkerError> {
        for handle in &self.0.handles {
            handle.ask(Request::Hold(true))?;
        }
        self.await_drained();
        Ok(())
    }

    /// Waits until all rings between workers are empty.
    fn await_drained(&self) {
        while !self.is_drained() {
            std::thread::yield_now();
        }
    }

    /// Holds all workers until [`Self::resume`], so that frames wait in the senders' rings while
    /// ports are attached or detached one after the other.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn pause(&self) -> Result<(), WorkerError> {
        let _changes = self.0.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.paused.store(true, Ordering::Relaxed);
        self.hold_all()
    }

    /// Lets the paused workers send the frames that they took before [`Self::pause`] and that wait
    /// in the queues of outputs. Frames that are due later than a few milliseconds still wait
    /// afterwards.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn send_waiting(&self) -> Result<(), WorkerError> {
        let _changes = self.0.changes.lock().unwrap_or_else(PoisonError::into_inner);
        // A frame from the cutter of one worker may then wait at an output of another worker.
        for _ in 0..2 {
            for handle in &self.0.handles {
                handle.ask(Request::SendWaiting(SEND_LIMIT))?;
            }
            self.await_drained();
        }
        Ok(())
    }

    /// Lets the workers receive frames again after [`Self::pause`].
    pub fn resume(&self) {
        let _changes = self.0.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.paused.swap(false, Ordering::Relaxed) {
            self.0.release();
        }
    }

    /// Whether no frame is in any of the rings between workers. For each ring, the function reads
    /// the position up to which frames were taken (`taken`) before the position up to which frames
    /// were given (`given`). The positions `taken` and `given` of a ring only grow, and `taken`
    /// never exceeds `given`. If the earlier reading of `taken` equals the later reading of
    /// `given`, the ring was empty between the two readings.
    fn is_drained(&self) -> bool {
        let taken: Vec<usize> = self.0.rings.iter().map(|ring| ring.taken()).collect();
        self.0.rings.iter().zip(taken).all(|(ring, taken)| ring.given() == taken)
    }

    /// Attaches a port. `home` selects the worker for each of the port's queue pairs.
    ///
    /// # Errors
    /// Returns [`WorkerError::Slot`] if the port or its number of queue pairs is invalid, or
    /// [`WorkerError::Gone`] if a worker has ended. If `attach_port` fails, no worker has the port.
    pub fn attach_port(
        &self,
        id: PortId,
        queues: Vec<Box<dyn PortQueue>>,
        home: impl Fn(QueueId) -> WorkerId,
        counters: &PortCounterSets,
    ) -> Result<(), WorkerError> {
        if let [only] = &self.0.handles[..] {
            return only.attach_port(id, queues, Arc::clone(counters.of(only.id())));
        }
        let _changes = self.0.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let of = queues.len();
        if !(1..=QUEUES_MAX).contains(&of) {
            return Err(WorkerError::Slot(id));
        }
        for (at, handle) in self.0.handles.iter().enumerate() {
            let room = Vec::with_capacity(QUEUES_MAX);
            let set = Arc::clone(counters.of(handle.id()));
            if let Err(error) = handle.done(id, Request::Join(id, room, set)) {
                self.0.handles[..at].iter().for_each(|joined| drop(joined.detach_port(id)));
                return Err(error);
            }
        }
        for (queue, pair) in (0..).map(QueueId).zip(queues) {
            let adopted = self
                .handle(home(queue))
                .and_then(|h| h.done(id, Request::Adopt(Arrival { port: id, queue, of, pair })));
            if let Err(error) = adopted {
                self.0.handles.iter().for_each(|handle| drop(handle.detach_port(id)));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Detaches a port from all workers and returns the port's queue pairs. Detaching a port does
    /// not affect frames that the switch has already delivered.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn detach_port(&self, id: PortId) -> Result<Vec<Box<dyn PortQueue>>, WorkerError> {
        let _held = self.hold()?;
        let mut all = Vec::new();
        for handle in &self.0.handles {
            all.extend(handle.detach_port(id)?);
        }
        Ok(all)
    }

    /// Moves the queue pairs of a port to other workers: `home` gives the new worker of each queue
    /// pair. Returns the number of moved queue pairs. While queue pairs move, frames of all ports
    /// wait in their rings, and no frame is lost or overtaken.
    ///
    /// # Errors
    /// Returns [`WorkerError::NoQueue`] if the port is not attached, or [`WorkerError::Gone`] if a
    /// worker has ended.
    pub fn move_port(
        &self,
        id: PortId,
        queues: u16,
        home: impl Fn(QueueId) -> WorkerId,
    ) -> Result<usize, WorkerError> {
        let owner = |queue| self.owner(id, queue).ok_or(WorkerError::NoQueue { port: id, queue });
        let mut due = Vec::new();
        for queue in (0..queues).map(QueueId) {
            let (from, to) = (owner(queue)?, self.handle(home(queue))?);
            if from != to.id() {
                due.push((queue, self.handle(from)?, to));
            }
        }
        if due.is_empty() {
            return Ok(0);
        }
        let _held = self.hold()?;
        let _between = self.0.moves.write().unwrap_or_else(PoisonError::into_inner);
        for (queue, from, to) in &due {
            let pair = match from.ask(Request::Release(id, *queue))? {
                Reply::Queue(Some(pair)) => pair,
                _ => return Err(WorkerError::NoQueue { port: id, queue: *queue }),
            };
            let arrival = Arrival { port: id, queue: *queue, of: queues.into(), pair };
            to.done(id, Request::Adopt(arrival))?;
        }
        Ok(due.len())
    }

    /// Passes a control message to a queue pair on the worker that owns the queue pair, and returns
    /// the answer.
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
        let _not_between = self.0.moves.read().unwrap_or_else(PoisonError::into_inner);
        let owner = self.owner(port, queue).ok_or(WorkerError::NoQueue { port, queue })?;
        self.handle(owner)?.control_queue(port, queue, message)
    }

    /// Replaces the snapshot of all workers while the workers are held.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn swap_snapshot(&self, new: &Arc<Snapshot>) -> Result<(), WorkerError> {
        // The workers do not wait for the memory.
        self.0.handles.iter().for_each(|handle| handle.provide_for(new));
        let held = self.hold()?;
        let swapped = self.0.handles.iter().map(|handle| handle.swap_snapshot(Arc::clone(new)));
        let former: Result<Vec<_>, _> = swapped.collect();
        // If nobody else has the former snapshot, it is freed here, which takes time for each port.
        drop(held);
        former.map(drop)
    }

    /// Reads the counters of all ports between two batches, while no frame is between two workers.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn checkpoint(&self) -> Result<Vec<(PortId, PortReading)>, WorkerError> {
        let _held = self.hold()?;
        let mut all: Vec<(PortId, PortReading)> = Vec::new();
        for handle in &self.0.handles {
            for (id, reading) in handle.checkpoint()? {
                match all.binary_search_by_key(&id, |(id, _)| *id) {
                    Ok(at) => all[at].1.merge(&reading),
                    Err(at) => all.insert(at, (id, reading)),
                }
            }
        }
        Ok(all)
    }

    /// Returns the entries in up to `max` slots of the MAC tables, from slot `from` on. Slot
    /// numbers start at 0. The returned part of the tables contains only the addresses that each
    /// worker learned from its own ports.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn fdb_chunk(&self, from: usize, max: usize) -> Result<FdbChunk, WorkerError> {
        let (worker, slot) = (from / TABLE, from % TABLE);
        let handle = self.handle(WorkerId(u16::try_from(worker).unwrap_or(u16::MAX)))?;
        let mut chunk = handle.fdb_chunk(slot, max)?;
        chunk.entries.retain(|record| !record.remote && (worker == 0 || !record.pinned));
        let after = (worker + 1 < self.0.handles.len()).then_some((worker + 1) * TABLE);
        chunk.next = chunk.next.map(|slot| worker * TABLE + slot).or(after);
        Ok(chunk)
    }

    /// Removes learned addresses of a port, of a domain, of a port in a domain, or all learned
    /// addresses. Returns the number of removed addresses of the worker that removed most.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn fdb_flush(
        &self,
        port: Option<PortId>,
        domain: Option<u16>,
    ) -> Result<usize, WorkerError> {
        // Without the hold, a worker that was flushed first could learn the addresses again from
        // the others.
        let _held = self.hold()?;
        let mut most = 0;
        for handle in &self.0.handles {
            most = most.max(handle.fdb_flush(port, domain)?);
        }
        Ok(most)
    }

    /// Learns addresses that the former process of the switch had learned, in all workers.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn fdb_relearn(&self, stations: Vec<Station>) -> Result<(), WorkerError> {
        let stations = stations.into();
        self.0.handles.iter().try_for_each(|handle| handle.fdb_relearn(&stations))
    }

    /// Starts a capture on all workers. `terms` makes the terms of one worker. Returns false if the
    /// workers have too many captures.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn capture(
        &self,
        id: u64,
        terms: &dyn Fn() -> Box<CaptureTerms>,
    ) -> Result<bool, WorkerError> {
        for handle in &self.0.handles {
            let started = handle.capture(terms());
            if !matches!(started, Ok(true)) {
                self.capture_end(id);
                return started;
            }
        }
        Ok(true)
    }

    /// Takes what a capture has taken on all workers since the last call. `spare` has empty buffers
    /// for the exchange.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker has ended.
    pub fn capture_next(
        &self,
        id: u64,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<(Vec<u8>, Tally)>, WorkerError> {
        let mut taken = Vec::new();
        for handle in &self.0.handles {
            let empty = spare.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES));
            let (buffer, tally) = handle.capture_next(id, empty)?;
            taken.push((buffer, tally.unwrap_or_default()));
        }
        Ok(taken)
    }

    /// Ends a capture on all workers. Returns what it took since the last call.
    pub fn capture_end(&self, id: u64) -> Vec<(Vec<u8>, Tally)> {
        // A worker that has ended has no captures.
        self.0.handles.iter().filter_map(|handle| handle.capture_end(id).ok().flatten()).collect()
    }

    /// Adds a static address to all workers if `add` is true, or removes the address from all
    /// workers.
    ///
    /// # Errors
    /// Returns [`WorkerError::FdbFull`] if a MAC table has no room, or [`WorkerError::Gone`] if a
    /// worker has ended.
    pub fn fdb_static(
        &self,
        domain: u16,
        mac: MacAddr,
        port: PortId,
        add: bool,
    ) -> Result<(), WorkerError> {
        self.0.handles.iter().try_for_each(|handle| handle.fdb_static(domain, mac, port, add))
    }

    /// Stops the threads of all workers and waits for their end. The caller must detach all ports
    /// before the call.
    ///
    /// # Errors
    /// Returns [`WorkerError::Gone`] if a worker's thread had already ended. If one thread had
    /// already ended, the threads of all other workers are still stopped.
    pub fn stop(&self) -> Result<(), WorkerError> {
        let ended: Vec<_> = self.0.handles.iter().map(WorkerHandle::stop).collect();
        ended.into_iter().collect()
    }
}

impl QueueOwners for Workers {
    fn exchange(
        &self,
        port: PortId,
        queue: QueueId,
        message: ControlMessage,
    ) -> Result<ControlMessage, Unreachable> {
        Ok(self.control_queue(port, queue, message)?)
    }

    fn ring_bell(&self, port: PortId, queue: QueueId) {
        if let Some(handle) = self.owner(port, queue).and_then(|id| self.handle(id).ok()) {
            handle.doorbell().ring(bell_of(Unit { port, queue }));
        }
    }
}
