//! A worker executes requests from the control plane between two batches.

use std::sync::Arc;

use penstock_units::{Cycles, MacAddr, Nanos, PortId, QueueId};

use super::{Arrival, Worker, WorkerError};
use crate::capture::{CaptureTerms, Tally};
use crate::classify::{FdbRecord, Station};
use crate::counters::{PortCounters, PortReading};
use crate::port::{ControlMessage, PortQueue};
use crate::snapshot::Snapshot;
use crate::tsc::CycleCounter;
use crate::unit::Unit;

/// A request from the control plane to a worker. The reply returns all memory that the worker no
/// longer needs, so that the worker's thread frees no memory.
pub enum Request {
    /// Attaches a port with all its queue pairs to the worker.
    Attach(PortId, Vec<Box<dyn PortQueue>>, Arc<PortCounters>),
    /// Detaches a port from the worker.
    Detach(PortId),
    /// Replaces the worker's snapshot.
    Swap(Arc<Snapshot>),
    /// Passes a message to one queue pair.
    Control(PortId, QueueId, ControlMessage),
    /// Copies the counters of all ports between two batches. The vector must have capacity for one
    /// reading of each port, so that the worker allocates no memory.
    Checkpoint(Vec<(PortId, PortReading)>),
    /// Copies part of the worker's MAC table into the vector of the request. The request's
    /// arguments are the first slot and the maximum number of slots.
    FdbChunk(usize, usize, Vec<FdbRecord>),
    /// Removes learned addresses of a port, of a domain, of a port in a domain, or all learned
    /// addresses.
    FdbFlush(Option<PortId>, Option<u16>),
    /// Adds a static address if the flag is true, or removes the address.
    FdbStatic(u16, MacAddr, PortId, bool),
    /// Learns addresses of the former process.
    FdbRelearn(Arc<[Station]>),
    /// Registers a port without queue pairs. The vector must have capacity for all queue pairs of
    /// the port, so that the worker allocates no memory.
    Join(PortId, Vec<Box<dyn PortQueue>>, Arc<PortCounters>),
    /// Moves a queue pair of a registered port to the worker.
    Adopt(Arrival),
    /// Removes a queue pair from this worker and returns it, so that another worker can adopt the
    /// queue pair.
    Release(PortId, QueueId),
    /// After `Hold(true)`, the worker takes no frames from its ports until `Hold(false)`.
    Hold(bool),
    /// Adds a capture with its buffer.
    Capture(Box<CaptureTerms>, Vec<u8>),
    /// Exchanges the buffer of a capture for an empty buffer.
    CaptureNext(u64, Vec<u8>),
    /// Ends a capture.
    CaptureEnd(u64),
    /// Sends the frames that wait in the held worker, for at most about this time.
    SendWaiting(Nanos),
    /// Ends the worker's thread.
    Stop,
}

/// A worker's answer to a [`Request`].
pub enum Reply {
    Done,
    /// The queue pairs of a detached port, or the queue pairs that the worker could not attach.
    Queues(Vec<Box<dyn PortQueue>>),
    /// The queue pair that the worker released, or that the worker could not adopt.
    Queue(Option<Box<dyn PortQueue>>),
    /// The snapshot that the worker used before the new snapshot.
    Snapshot(Arc<Snapshot>),
    /// The control message that the queue pair returns as its answer.
    Control(ControlMessage),
    /// The queue pair of the request does not exist, so the reply returns the control message
    /// unchanged.
    NoQueue(ControlMessage),
    Checkpoint(Vec<(PortId, PortReading)>),
    /// Entries of the MAC table, and the slot number at which the next request should continue.
    FdbChunk(Vec<FdbRecord>, Option<usize>),
    /// Number of learned addresses that the worker removed from its MAC table.
    Flushed(usize),
    /// The buffer of a capture with its numbers, or the caller's buffer if the worker has no such
    /// capture.
    Captured(Vec<u8>, Option<Tally>),
    /// A capture that the worker has ended or refused. `None` if the worker had no such capture.
    CaptureEnded(Option<(Box<CaptureTerms>, Vec<u8>, Tally)>),
    /// Reason for which the worker refused the request.
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
            Self::FdbRelearn(_) => "FdbRelearn",
            Self::Join(..) => "Join",
            Self::Adopt(_) => "Adopt",
            Self::Release(..) => "Release",
            Self::Hold(_) => "Hold",
            Self::Capture(..) => "Capture",
            Self::CaptureNext(..) => "CaptureNext",
            Self::CaptureEnd(_) => "CaptureEnd",
            Self::SendWaiting(_) => "SendWaiting",
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
            Self::Captured(..) => "Captured",
            Self::CaptureEnded(_) => "CaptureEnded",
            Self::Refused(_) => "Refused",
        })
    }
}

impl<C: CycleCounter> Worker<C> {
    /// Executes a request. The worker's thread handles [`Request::Hold`] and [`Request::Stop`]
    /// itself and answers them with [`Reply::Done`].
    pub fn serve(&mut self, request: Request) -> Reply {
        let reply = self.execute(request);
        self.ctx.counters().requests.add(1);
        self.ctx.charge_host();
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
            Request::Control(port, queue, message) => self.control(port, queue, message),
            Request::Checkpoint(mut readings) => {
                for (id, counters) in (0_u16..).zip(&self.ctx.port_counters) {
                    if let Some(counters) = counters
                        && readings.len() < readings.capacity()
                    {
                        readings.push((PortId(id), counters.read()));
                    }
                }
                Reply::Checkpoint(readings)
            }
            Request::FdbChunk(from, max, mut records) => {
                let next = self.input.classifier().fdb_chunk(from, max, &mut records);
                Reply::FdbChunk(records, next)
            }
            Request::FdbFlush(port, domain) => {
                Reply::Flushed(self.input.classifier_mut().fdb_flush(port.map(|p| p.0), domain))
            }
            Request::FdbStatic(domain, mac, port, add) => {
                if self.input.classifier_mut().fdb_static(
                    domain,
                    mac,
                    port.0,
                    add,
                    &self.ctx.snapshot,
                ) {
                    Reply::Done
                } else {
                    Reply::Refused(WorkerError::FdbFull { domain })
                }
            }
            Request::FdbRelearn(stations) => {
                let now_s = self.ctx.second();
                self.input.classifier_mut().relearn(&stations, now_s, &self.ctx.snapshot);
                Reply::Done
            }
            Request::Capture(..) | Request::CaptureNext(..) | Request::CaptureEnd(_) => {
                self.serve_capture(request)
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
            Request::SendWaiting(limit) => {
                self.send_waiting(limit);
                Reply::Done
            }
            // The thread handles these.
            Request::Hold(_) | Request::Stop => Reply::Done,
        }
    }

    fn control(&mut self, port: PortId, queue: QueueId, message: ControlMessage) -> Reply {
        let owned = self.ctx.owns(port, queue);
        let slot = self.ctx.ports.get_mut(port.index()).filter(|_| owned);
        let Some(waiting) = slot.and_then(|slot| slot.queues.get_mut(queue.index())) else {
            return Reply::NoQueue(message);
        };
        let answer = waiting.control(message);
        // Any message may have brought frames without a kick.
        self.roster.wake(&mut self.ctx, Unit { port, queue });
        self.tell_ready(port, queue);
        Reply::Control(answer)
    }

    fn serve_capture(&mut self, request: Request) -> Reply {
        let captures = &mut self.ctx.egress.captures;
        let counters = &self.ctx.port_counters;
        let reply = match request {
            Request::Capture(terms, buffer) => match captures.add(terms, buffer, counters) {
                Some((terms, buffer)) => {
                    Reply::CaptureEnded(Some((terms, buffer, Tally::default())))
                }
                None => Reply::Done,
            },
            Request::CaptureNext(id, empty) => match captures.exchange(id, empty, counters) {
                Ok((buffer, tally)) => Reply::Captured(buffer, Some(tally)),
                Err(empty) => Reply::Captured(empty, None),
            },
            Request::CaptureEnd(id) => Reply::CaptureEnded(captures.remove(id)),
            _ => Reply::Done,
        };
        let at = self.ctx.last();
        self.ctx.egress.captures.resume(at, &self.ctx.port_counters);
        self.note_captured();
        reply
    }

    fn note_captured(&mut self) {
        self.ctx.egress.note_watched();
        for port in (0..self.ctx.ports.len()).filter_map(|port| u16::try_from(port).ok()) {
            let captured = self.ctx.egress.captures.takes_received_from(port);
            self.input.set_captured(PortId(port), captured);
        }
    }

    /// Returns the reading of the cycle counter at the end of the last bill.
    #[must_use]
    pub const fn now(&self) -> Cycles {
        self.ctx.account.last()
    }
}
