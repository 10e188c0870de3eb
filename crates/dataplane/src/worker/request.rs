//! Requests to a worker, executed between two batches.

use std::sync::Arc;

use penstock_units::{Cycles, MacAddr, PortId, QueueId};

use super::{Arrival, Worker, WorkerError};
use crate::classify::{FdbRecord, Snapshot};
use crate::counters::{PortCounters, PortReading};
use crate::port::{ControlMessage, PortQueue};
use crate::schedule::Unit;
use crate::tsc::CycleCounter;

/// What control may ask of a worker. Whatever the worker lets go of travels back in the reply, so
/// that nothing is freed in the loop.
pub enum Request {
    /// Attach a port's queue pairs.
    Attach(PortId, Vec<Box<dyn PortQueue>>, Arc<PortCounters>),
    /// Detach a port.
    Detach(PortId),
    /// Put a new snapshot in place.
    Swap(Arc<Snapshot>),
    /// Hand a message to one queue pair.
    Control(PortId, QueueId, ControlMessage),
    /// Copy all counters between two batches; the vector has room for all ports.
    Checkpoint(Vec<(PortId, PortReading)>),
    /// Copy a slice of the MAC table into the vector: from which slot, at most so many slots.
    FdbChunk(usize, usize, Vec<FdbRecord>),
    /// Forget addresses of a port, a domain, both or all.
    FdbFlush(Option<PortId>, Option<u16>),
    /// Add (or remove) a static address.
    FdbStatic(u16, MacAddr, PortId, bool),
    /// Know a port whose queue pairs are elsewhere; the vector has room for them.
    Join(PortId, Vec<Box<dyn PortQueue>>, Arc<PortCounters>),
    /// Own a queue pair of a port that joined.
    Adopt(Arrival),
    /// Let a queue pair go.
    Release(PortId, QueueId),
    /// Take nothing from the ports until told otherwise.
    Hold(bool),
    /// End the thread.
    Stop,
}

/// A worker's answer.
pub enum Reply {
    /// Done.
    Done,
    /// The queue pairs of a detached port, or those that could not be attached.
    Queues(Vec<Box<dyn PortQueue>>),
    /// A queue pair let go, or one that could not be adopted.
    Queue(Option<Box<dyn PortQueue>>),
    /// The snapshot that was in place before.
    Snapshot(Arc<Snapshot>),
    /// The queue's answer.
    Control(ControlMessage),
    /// There is no such queue: the message back.
    NoQueue(ControlMessage),
    /// All counters.
    Checkpoint(Vec<(PortId, PortReading)>),
    /// A slice of the MAC table and where the next one starts.
    FdbChunk(Vec<FdbRecord>, Option<usize>),
    /// How many addresses were forgotten.
    Flushed(usize),
    /// Not possible, and why.
    Refused(WorkerError),
}

impl core::fmt::Debug for Request {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Attach(..) => "Attach",
            Self::Detach(_) => "Detach",
            Self::Swap(_) => "Swap",
            Self::Control(..) => "Control",
            Self::Checkpoint(_) => "Checkpoint",
            Self::FdbChunk(..) => "FdbChunk",
            Self::FdbFlush(..) => "FdbFlush",
            Self::FdbStatic(..) => "FdbStatic",
            Self::Join(..) => "Join",
            Self::Adopt(_) => "Adopt",
            Self::Release(..) => "Release",
            Self::Hold(_) => "Hold",
            Self::Stop => "Stop",
        })
    }
}

impl core::fmt::Debug for Reply {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Done => "Done",
            Self::Queues(_) => "Queues",
            Self::Queue(_) => "Queue",
            Self::Snapshot(_) => "Snapshot",
            Self::Control(_) => "Control",
            Self::NoQueue(_) => "NoQueue",
            Self::Checkpoint(_) => "Checkpoint",
            Self::FdbChunk(..) => "FdbChunk",
            Self::Flushed(_) => "Flushed",
            Self::Refused(_) => "Refused",
        })
    }
}

impl<C: CycleCounter> Worker<C> {
    /// Executes a request. [`Request::Stop`] is the thread's business and answered with `Done`.
    pub fn serve(&mut self, request: Request) -> Reply {
        let reply = self.execute(request);
        self.account.counters().requests.add(1);
        self.charge_host();
        reply
    }

    fn execute(&mut self, request: Request) -> Reply {
        match request {
            Request::Attach(port, queues, counters) => match self.attach(port, queues, counters) {
                Ok(()) => Reply::Done,
                Err(queues) => Reply::Queues(queues),
            },
            Request::Detach(port) => Reply::Queues(self.detach(port)),
            Request::Swap(new) => Reply::Snapshot(self.swap_snapshot(new)),
            Request::Control(port, queue, message) => {
                let owned = self.owns(port, queue);
                let slot = self.ports.get_mut(port.index()).filter(|_| owned);
                match slot.and_then(|slot| slot.queues.get_mut(queue.index())) {
                    Some(waiting) => {
                        let answer = waiting.control(message);
                        // Whatever it was, it may have brought frames that nobody kicks for.
                        self.wake(Unit { port, queue });
                        self.tell_ready(port, queue);
                        Reply::Control(answer)
                    }
                    None => Reply::NoQueue(message),
                }
            }
            Request::Checkpoint(mut readings) => {
                for (id, counters) in (0_u16..).zip(&self.port_counters) {
                    if let Some(counters) = counters
                        && readings.len() < readings.capacity()
                    {
                        readings.push((PortId(id), counters.read()));
                    }
                }
                Reply::Checkpoint(readings)
            }
            Request::FdbChunk(from, max, mut records) => {
                let next = self.classifier.fdb_chunk(from, max, &mut records);
                Reply::FdbChunk(records, next)
            }
            Request::FdbFlush(port, domain) => {
                Reply::Flushed(self.classifier.fdb_flush(port.map(|p| p.0), domain))
            }
            Request::FdbStatic(domain, mac, port, add) => {
                if self.classifier.fdb_static(domain, mac, port.0, add, &self.snapshot) {
                    Reply::Done
                } else {
                    Reply::Refused(WorkerError::FdbFull { domain })
                }
            }
            Request::Join(port, room, counters) => match self.join(port, room, counters) {
                Ok(()) => Reply::Done,
                Err(room) => Reply::Queues(room),
            },
            Request::Adopt(arrival) => match self.adopt(arrival) {
                Ok(()) => Reply::Done,
                Err(pair) => Reply::Queue(Some(pair)),
            },
            Request::Release(port, queue) => Reply::Queue(self.release(port, queue)),
            // The thread's business too.
            Request::Hold(_) | Request::Stop => Reply::Done,
        }
    }

    /// The counter's value at the end of the last turn.
    #[must_use]
    pub const fn now(&self) -> Cycles {
        self.account.last()
    }
}
