//! All workers of a switch from outside.
//!
//! **Rule.** A queue pair has one owner, which the [`Directory`] knows. What concerns all workers
//! at once (a new snapshot, a port that leaves or moves, an exact reading) is done while they are
//! *held*: each goes on delivering what others handed over but takes nothing from its ports, until
//! nothing is on its way any more. So no frame is lost, overtaken, or judged by one snapshot and
//! delivered by another; frames wait in their senders' rings meanwhile, for as long as a few
//! messages to the workers take. A worker that is alone is never held.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use penstock_units::{MacAddr, PortId, QueueId, WorkerId};

use super::membership::Arrival;
use super::thread::spawn_one;
use super::{
    Directory, FdbChunk, Mesh, Positions, QUEUES_MAX, Reply, Request, WorkerConfig, WorkerError,
    WorkerHandle, bell_of,
};
use crate::classify::Snapshot;
use crate::counters::{PortCounterSets, PortReading};
use crate::port::{ControlMessage, PortQueue};
use crate::schedule::Unit;

/// Places of one worker's part in a listing of all MAC tables; more than a table has slots.
const TABLE: usize = 1 << 20;

/// See the module's text; clones speak of the same workers.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    handles: Vec<WorkerHandle>,
    directory: Arc<Directory>,
    rings: Vec<Arc<Positions>>,
    /// Held while workers are.
    changes: Mutex<()>,
    /// Written while a queue pair is between two owners.
    moves: RwLock<()>,
}

impl From<WorkerHandle> for Workers {
    /// One that is alone.
    fn from(handle: WorkerHandle) -> Self {
        let directory = Arc::clone(handle.directory());
        Self::new(vec![handle], directory, Vec::new())
    }
}

/// Workers that take nothing from their ports as long as this lives.
struct Held<'a> {
    workers: &'a Shared,
    _changes: MutexGuard<'a, ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.workers.handles.len() > 1 {
            for handle in &self.workers.handles {
                // A worker that has ended need not go on.
                let _ = handle.ask(Request::Hold(false));
            }
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
        Self(Arc::new(Shared { handles, directory, rings, changes, moves }))
    }

    /// Starts one worker for each of `cores`, otherwise as `config` says.
    ///
    /// # Errors
    /// [`WorkerError::Start`]; those already started are ended.
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

    /// Each of them, by number.
    #[must_use]
    pub fn handles(&self) -> &[WorkerHandle] {
        &self.0.handles
    }

    fn handle(&self, id: WorkerId) -> Result<&WorkerHandle, WorkerError> {
        self.0.handles.get(id.index()).ok_or(WorkerError::Gone(id))
    }

    /// Who owns a queue pair.
    #[must_use]
    pub fn owner(&self, port: PortId, queue: QueueId) -> Option<WorkerId> {
        self.0.directory.owner(port, queue)
    }

    /// Waits until no worker takes frames from its ports and none is between two workers.
    fn hold(&self) -> Result<Held<'_>, WorkerError> {
        let changes = self.0.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let held = Held { workers: &self.0, _changes: changes };
        if self.0.handles.len() > 1 {
            for handle in &self.0.handles {
                handle.ask(Request::Hold(true))?;
            }
            while !self.is_drained() {
                std::thread::yield_now();
            }
        }
        Ok(held)
    }

    /// Whether all rings are empty. All ends are read before all beginnings: positions only grow
    /// and none is ahead of its ring's beginning, so where they are equal nothing was given or
    /// taken between the two readings.
    fn is_drained(&self) -> bool {
        let taken: Vec<usize> = self.0.rings.iter().map(|ring| ring.taken()).collect();
        self.0.rings.iter().zip(taken).all(|(ring, taken)| ring.given() == taken)
    }

    /// Lets a port take part; `home` says which worker gets which of its queue pairs.
    ///
    /// # Errors
    /// [`WorkerError::Slot`], [`WorkerError::Gone`]; the port is then with no worker.
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

    /// Takes a port out; frames already delivered stay delivered.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
    pub fn detach_port(&self, id: PortId) -> Result<Vec<Box<dyn PortQueue>>, WorkerError> {
        let _held = self.hold()?;
        let mut all = Vec::new();
        for handle in &self.0.handles {
            all.extend(handle.detach_port(id)?);
        }
        Ok(all)
    }

    /// Gives a port's queue pairs to the workers that `home` says, while frames flow. Returns how
    /// many moved. Frames wait in the rings of all ports meanwhile; none is lost or overtaken.
    ///
    /// # Errors
    /// [`WorkerError::Gone`]; [`WorkerError::NoQueue`] if the port is not attached.
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

    /// Hands a message to a queue pair, wherever it is, and returns its answer.
    ///
    /// # Errors
    /// [`WorkerError::NoQueue`], [`WorkerError::Gone`]; the message is dropped.
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

    /// Rings the bell of a queue pair.
    pub fn ring(&self, port: PortId, queue: QueueId) {
        if let Some(handle) = self.owner(port, queue).and_then(|id| self.handle(id).ok()) {
            handle.doorbell().ring(bell_of(Unit { port, queue }));
        }
    }

    /// Puts a snapshot in place everywhere, between the same two batches.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
    pub fn swap_snapshot(&self, new: &Arc<Snapshot>) -> Result<(), WorkerError> {
        let _held = self.hold()?;
        self.0.handles.iter().try_for_each(|h| h.swap_snapshot(Arc::clone(new)).map(drop))
    }

    /// All ports' counters, read between two batches, with no frame between two workers.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
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

    /// A part of the MAC tables: up to `max` slots from place `from` on, of which 0 is the first.
    /// Each worker's table has what its own ports said; what it only heard of is left out.
    ///
    /// # Errors
    /// [`WorkerError::Gone`].
    pub fn fdb_chunk(&self, from: usize, max: usize) -> Result<FdbChunk, WorkerError> {
        let (worker, slot) = (from / TABLE, from % TABLE);
        let handle = self.handle(WorkerId(u16::try_from(worker).unwrap_or(u16::MAX)))?;
        let mut chunk = handle.fdb_chunk(slot, max)?;
        chunk.entries.retain(|record| !record.remote && (worker == 0 || !record.pinned));
        let after = (worker + 1 < self.0.handles.len()).then_some((worker + 1) * TABLE);
        chunk.next = chunk.next.map(|slot| worker * TABLE + slot).or(after);
        Ok(chunk)
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
        // Held: else one that was forgotten first would learn them again from the others.
        let _held = self.hold()?;
        let mut most = 0;
        for handle in &self.0.handles {
            most = most.max(handle.fdb_flush(port, domain)?);
        }
        Ok(most)
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
        self.0.handles.iter().try_for_each(|handle| handle.fdb_static(domain, mac, port, add))
    }

    /// Ends all threads and waits for them. Ports must have been detached.
    ///
    /// # Errors
    /// [`WorkerError::Gone`] if one had ended before; the others are ended.
    pub fn stop(&self) -> Result<(), WorkerError> {
        let ended: Vec<_> = self.0.handles.iter().map(WorkerHandle::stop).collect();
        ended.into_iter().collect()
    }
}
