//! Which ports and queue pairs a worker has: they come, go, and move to other workers.

use std::sync::Arc;

use penstock_units::{PortId, QueueId};

use super::absent::Absent;
use super::{QUEUES_MAX, Worker};
use crate::counters::PortCounters;
use crate::port::PortQueue;
use crate::schedule::{Schedule, Unit};
use crate::tsc::CycleCounter;

/// A queue pair on its way to a worker.
pub struct Arrival {
    /// The port.
    pub port: PortId,
    /// Which of its queue pairs.
    pub queue: QueueId,
    /// How many it has, on all workers together.
    pub of: usize,
    /// The queue pair.
    pub pair: Box<dyn PortQueue>,
}

impl core::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "queue pair {} of port {}", self.queue, self.port)
    }
}

impl<C: CycleCounter> Worker<C> {
    /// Lets `port` take part with its queue pairs, all of them here.
    ///
    /// # Errors
    /// The queues back, if the slot does not exist or is taken, or there are none or too many.
    pub fn attach(
        &mut self,
        port: PortId,
        queues: Vec<Box<dyn PortQueue>>,
        counters: Arc<PortCounters>,
    ) -> Result<(), Vec<Box<dyn PortQueue>>> {
        let free = self.port_counters.get(port.index()).is_some_and(Option::is_none);
        if !free || !(1..=QUEUES_MAX).contains(&queues.len()) {
            return Err(queues);
        }
        let count = u16::try_from(queues.len()).unwrap_or(0);
        self.ports[port.index()].queues = queues;
        self.port_counters[port.index()] = Some(counters);
        (0..count).for_each(|queue| self.own(port, QueueId(queue)));
        Ok(())
    }

    /// Knows `port`, whose queue pairs are with other workers or are still to come; `room` has
    /// capacity for them, so that nothing is allocated here.
    ///
    /// # Errors
    /// The room back, if the slot does not exist or is taken.
    pub fn join(
        &mut self,
        port: PortId,
        room: Vec<Box<dyn PortQueue>>,
        counters: Arc<PortCounters>,
    ) -> Result<(), Vec<Box<dyn PortQueue>>> {
        let free = self.port_counters.get(port.index()).is_some_and(Option::is_none);
        if !free || !room.is_empty() || room.capacity() < QUEUES_MAX {
            return Err(room);
        }
        self.ports[port.index()].queues = room;
        self.port_counters[port.index()] = Some(counters);
        Ok(())
    }

    /// Takes over one queue pair of a port that it knows.
    ///
    /// # Errors
    /// The queue pair back, if there is no such place or it is taken.
    pub fn adopt(&mut self, arrival: Arrival) -> Result<(), Box<dyn PortQueue>> {
        let Arrival { port, queue, of, pair } = arrival;
        let known = self.port_counters.get(port.index()).is_some_and(Option::is_some);
        if !known || queue.index() >= of || of > QUEUES_MAX || self.owns(port, queue) {
            return Err(pair);
        }
        let queues = &mut self.ports[port.index()].queues;
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

    /// Lets one queue pair go, to another worker.
    pub fn release(&mut self, port: PortId, queue: QueueId) -> Option<Box<dyn PortQueue>> {
        if !self.owns(port, queue) {
            return None;
        }
        // Its driver hears of all that was done here.
        self.notify();
        let unit = Unit { port, queue };
        self.wake(unit);
        self.schedule.leave(unit);
        self.account.buckets_mut().note_waiting(unit, false);
        let slot = &mut self.ports[port.index()];
        slot.owned &= !(1 << queue.index());
        if slot.owned == 0 {
            self.leave_outputs(port);
        }
        let slot = &mut self.ports[port.index()];
        let pair = core::mem::replace(&mut slot.queues[queue.index()], Box::new(Absent));
        if slot.owned == 0 {
            slot.queues.clear();
            let tokens = self.forget_bucket(port);
            self.egress.peers.directory().leave_tokens(port, tokens);
            self.rank();
        }
        Some(pair)
    }

    /// Takes `port` out; its queue pairs that are here go back to the caller.
    pub fn detach(&mut self, port: PortId) -> Vec<Box<dyn PortQueue>> {
        self.notify();
        if self.ports.get(port.index()).is_some() {
            self.forget_outputs(port);
        }
        self.schedule.remove(port);
        if self.port_counters.get(port.index()).is_some() {
            self.forget_bucket(port);
            let _gone = self.egress.peers.directory().take_tokens(port);
        }
        self.resting.remove_port(port);
        self.account.counters().resting.set(self.resting.len() as u64);
        self.classifier.forget_port(port.0);
        let Some(slot) = self.ports.get_mut(port.index()) else { return Vec::new() };
        for queue in (0..QUEUES_MAX).filter(|queue| slot.owned & 1 << queue != 0) {
            let queue = QueueId(u16::try_from(queue).unwrap_or(0));
            let directory = self.egress.peers.directory();
            directory.set_ready(port, queue, false);
            directory.set_owner(port, queue, None);
        }
        slot.owned = 0;
        let queues = core::mem::take(&mut slot.queues);
        // Whoever attached the port holds its counters too: nothing is freed here.
        self.port_counters[port.index()] = None;
        self.rank();
        queues
    }

    /// Whether a queue pair is here.
    pub(super) fn owns(&self, port: PortId, queue: QueueId) -> bool {
        let owned = self.ports.get(port.index()).map_or(0, |slot| slot.owned);
        queue.index() < QUEUES_MAX && owned & 1 << queue.index() != 0
    }

    fn own(&mut self, port: PortId, queue: QueueId) {
        let unit = Unit { port, queue };
        if self.ports[port.index()].owned == 0 {
            self.aside.forget(port);
        }
        self.ports[port.index()].owned |= 1 << queue.index();
        self.place_queue(port);
        self.place_gate(port);
        self.resting.note_busy(unit, self.account.last());
        self.delays.begin(unit, self.account.last());
        if !self.aside.is_aside(port) {
            let class = self.class(port);
            self.schedule.add(unit, class);
        }
        let tokens = self.egress.peers.directory().take_tokens(port);
        self.schedule_port(port, tokens);
        self.rank();
        let peers = &self.egress.peers;
        peers.directory().set_owner(port, queue, Some(peers.id()));
        self.tell_ready(port, queue);
    }

    /// Other workers hear whether a queue pair of ours can deliver.
    pub(super) fn tell_ready(&self, port: PortId, queue: QueueId) {
        let slot = self.ports.get(port.index());
        let ready = slot.and_then(|slot| slot.queues.get(queue.index()));
        let ready = ready.is_some_and(|pair| pair.tx_ready());
        self.egress.peers.directory().set_ready(port, queue, ready);
    }
}
