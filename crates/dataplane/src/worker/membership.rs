//! Attaches ports and queue pairs to a worker, detaches ports and queue pairs, and moves queue
//! pairs between workers.

use std::sync::Arc;

use penstock_units::{Cycles, PortId, QueueId};

use super::Worker;
use super::absent::Absent;
use super::bill::Bill;
use crate::counters::PortCounters;
use crate::port::PortQueue;
use crate::tsc::CycleCounter;
use crate::unit::QUEUES_MAX;
use crate::unit::Unit;

/// Maximum number of batches that a port sends at once from its cutter when a queue pair leaves.
/// The cutter holds at most two large segments, which are this many frames at an MSS of 128 bytes.
const HELD_BATCHES: usize = 1_024;

/// A queue pair that the control plane moves to a worker.
pub struct Arrival {
    pub port: PortId,
    /// Number of the queue pair within the port.
    pub queue: QueueId,
    /// Number of queue pairs that the port has on all workers together.
    pub of: usize,
    pub pair: Box<dyn PortQueue>,
}

impl core::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "queue pair {} of port {}", self.queue, self.port)
    }
}

impl<C: CycleCounter> Worker<C> {
    /// Attaches `port` with all its queue pairs to this worker.
    ///
    /// # Errors
    /// If the port number is out of range or taken, returns the queue pairs as the error. The error
    /// also contains the queue pairs if their number is not 1 to 8.
    pub fn attach(
        &mut self,
        port: PortId,
        queues: Vec<Box<dyn PortQueue>>,
        counters: Arc<PortCounters>,
    ) -> Result<(), Vec<Box<dyn PortQueue>>> {
        let free = self.ctx.port_counters.get(port.index()).is_some_and(Option::is_none);
        if !free || !(1..=QUEUES_MAX).contains(&queues.len()) {
            return Err(queues);
        }
        let count = u16::try_from(queues.len()).unwrap_or(0);
        self.ctx.ports[port.index()].queues = queues;
        self.ctx.port_counters[port.index()] = Some(counters);
        (0..count).for_each(|queue| self.own(port, QueueId(queue)));
        Ok(())
    }

    /// Registers a port of which the queue pairs are on other workers, or arrive at this worker
    /// later. `room` must have capacity for all queue pairs that the port may get later, so that
    /// the worker need not allocate memory.
    ///
    /// # Errors
    /// If the port number is out of range or taken, or if the capacity of the vector `room` is too
    /// small, returns `room` as the error.
    pub fn join(
        &mut self,
        port: PortId,
        room: Vec<Box<dyn PortQueue>>,
        counters: Arc<PortCounters>,
    ) -> Result<(), Vec<Box<dyn PortQueue>>> {
        let free = self.ctx.port_counters.get(port.index()).is_some_and(Option::is_none);
        if !free || !room.is_empty() || room.capacity() < QUEUES_MAX {
            return Err(room);
        }
        counters.number.set(port.0.into());
        self.ctx.ports[port.index()].queues = room;
        self.ctx.port_counters[port.index()] = Some(counters);
        Ok(())
    }

    /// Takes over one queue pair of a registered port.
    ///
    /// # Errors
    /// If the port has no place for the queue pair, or if the place is taken, returns the queue
    /// pair as the error.
    pub fn adopt(&mut self, arrival: Arrival) -> Result<(), Box<dyn PortQueue>> {
        let Arrival { port, queue, of, pair } = arrival;
        let known = self.ctx.port_counters.get(port.index()).is_some_and(Option::is_some);
        if !known || queue.index() >= of || of > QUEUES_MAX || self.ctx.owns(port, queue) {
            return Err(pair);
        }
        let queues = &mut self.ctx.ports[port.index()].queues;
        if queues.len().max(of) > queues.capacity() {
            return Err(pair);
        }
        while queues.len() < of {
            queues.push(Box::new(Absent));
        }
        queues[queue.index()] = pair;
        self.own(port, queue);
        Ok(())
    }

    /// Gives up one queue pair, which moves to another worker. Returns `None` if this worker does
    /// not own the queue pair.
    pub fn release(&mut self, port: PortId, queue: QueueId) -> Option<Box<dyn PortQueue>> {
        if !self.ctx.owns(port, queue) {
            return None;
        }
        let unit = Unit { port, queue };
        self.send_held(unit);
        // The driver is notified of all work done here.
        self.ctx.notify();
        self.roster.wake(&mut self.ctx, unit);
        self.roster.schedule.leave(unit);
        self.ctx.account.buckets_mut().note_waiting(unit, false);
        let slot = &mut self.ctx.ports[port.index()];
        slot.owned &= !(1 << queue.index());
        if slot.owned == 0 {
            self.outputs.leave(&mut self.ctx, &mut self.roster, port);
            self.input.forget(&self.ctx, port);
            self.roster.forget(port);
        }
        let slot = &mut self.ctx.ports[port.index()];
        let pair = core::mem::replace(&mut slot.queues[queue.index()], Box::new(Absent));
        if slot.owned == 0 {
            slot.queues.clear();
            let tokens = self.forget_bucket(port);
            self.ctx.peers.directory().leave_tokens(port, tokens);
            self.rank_port(port);
            self.rank();
        }
        Some(pair)
    }

    /// Sends all frames that the port's cutter holds, without a pause between them, so that no
    /// later frame of a queue pair that moves to another worker overtakes them.
    pub(super) fn send_held(&mut self, unit: Unit) {
        for _ in 0..HELD_BATCHES {
            if !self.input.holds(unit.port) {
                break;
            }
            let taken = self.input.run(&mut self.ctx, unit, Cycles::ZERO, false);
            let Some(taken) = taken else { break };
            self.settle(&Bill::Queue(taken));
        }
    }

    /// Detaches `port` from this worker. Returns the port's queue pairs that are on this worker.
    pub fn detach(&mut self, port: PortId) -> Vec<Box<dyn PortQueue>> {
        self.ctx.notify();
        if self.ctx.ports.get(port.index()).is_some() {
            self.outputs.forget(&mut self.ctx, &mut self.roster, port);
            self.input.forget(&self.ctx, port);
            self.roster.forget(port);
        }
        self.roster.remove(&self.ctx, port);
        if self.ctx.port_counters.get(port.index()).is_some() {
            self.forget_bucket(port);
            let _gone = self.ctx.peers.directory().take_tokens(port);
        }
        self.input.classifier_mut().forget_port(port.0);
        let Some(slot) = self.ctx.ports.get_mut(port.index()) else { return Vec::new() };
        for queue in (0..QUEUES_MAX).filter(|queue| slot.owned & 1 << queue != 0) {
            let queue = QueueId(u16::try_from(queue).unwrap_or(0));
            let directory = self.ctx.peers.directory();
            directory.set_ready(port, queue, false);
            directory.set_owner(port, queue, None);
        }
        slot.owned = 0;
        let queues = core::mem::take(&mut slot.queues);
        // The attaching thread also has a reference to the counters, so no memory is freed here.
        self.ctx.port_counters[port.index()] = None;
        self.rank_port(port);
        self.rank();
        queues
    }

    fn own(&mut self, port: PortId, queue: QueueId) {
        if self.ctx.ports[port.index()].owned == 0 {
            self.roster.forget(port);
        }
        self.ctx.ports[port.index()].owned |= 1 << queue.index();
        self.outputs.place_queue(&mut self.ctx, &mut self.roster, port);
        self.input.place_gate(&self.ctx, &mut self.roster, port);
        let (class, now) = (self.ctx.class(port), self.ctx.last());
        self.roster.join(Unit { port, queue }, class, now);
        let tokens = self.ctx.peers.directory().take_tokens(port);
        self.schedule_port(port, tokens);
        self.rank_port(port);
        self.rank();
        let peers = &self.ctx.peers;
        peers.directory().set_owner(port, queue, Some(peers.id()));
        self.tell_ready(port, queue);
    }

    /// Reports to other workers whether a queue pair of this worker can deliver frames.
    pub(super) fn tell_ready(&self, port: PortId, queue: QueueId) {
        let slot = self.ctx.ports.get(port.index());
        let ready = slot.and_then(|slot| slot.queues.get(queue.index()));
        let ready = ready.is_some_and(|pair| pair.tx_ready());
        self.ctx.peers.directory().set_ready(port, queue, ready);
    }
}
