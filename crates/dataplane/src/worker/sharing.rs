//! Other threads use a worker's ring ends, clock and counters through this module. The worker stops
//! a port if the process behind the port blocked the worker's thread.

use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use super::Worker;
use super::cutter::Spares;
use crate::counters::WorkerCounters;
use crate::peers::{Directory, Peers};
use crate::port::PortQueue;
use crate::tsc::CycleCounter;
use crate::wake::Doorbell;
use crate::wake::stall::{culprit, is_due};

impl<C: CycleCounter> Worker<C> {
    /// Connects the worker to other workers. Connects the worker to the switch's other workers:
    /// `peers` contains the worker's ends of the rings between workers.
    #[must_use]
    pub fn with_peers(mut self, peers: Peers) -> Self {
        self.input = self.input.for_worker(peers.id(), !peers.is_empty());
        self.ctx.peers = peers;
        self
    }

    /// Returns the worker's coarse clock in seconds, for readers of the MAC table.
    #[must_use]
    pub fn coarse_clock(&self) -> Arc<AtomicU32> {
        self.ctx.coarse_clock()
    }

    /// Returns the worker's own counters, for readers in other threads.
    #[must_use]
    pub fn counters(&self) -> Arc<WorkerCounters> {
        Arc::clone(self.ctx.counters())
    }

    /// Returns the directory of queue pairs' owners, which all workers share.
    pub(super) fn directory(&self) -> Arc<Directory> {
        Arc::clone(self.ctx.peers.directory())
    }

    /// Returns the worker's cutters that no port uses.
    pub(super) fn spares(&self) -> Arc<Spares> {
        self.input.spares()
    }

    /// Returns the doorbell that wakes queue pairs at rest, for the threads that receive kicks.
    #[must_use]
    pub fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(self.roster.resting().doorbell())
    }

    /// Publishes learned MAC addresses and handed-over frames to other workers, and reads which of
    /// their outputs hold back a port.
    #[inline]
    pub(super) fn tell_peers(&mut self) {
        if !self.ctx.peers.is_empty() {
            self.tell_all();
        }
    }

    #[inline(never)]
    fn tell_all(&mut self) {
        while let Some(news) = self.input.classifier_mut().fdb_mut().take_news() {
            self.ctx.peers.tell(news);
        }
        self.outputs.hear_others(&self.ctx, &mut self.roster);
        self.ctx.peers.show();
    }

    #[inline]
    pub(super) fn stop_sleeper_if_due(&mut self) {
        if is_due() {
            self.stop_sleeper();
        }
    }

    /// Stops the port of which the memory made the worker's thread sleep. The port's queue pairs on
    /// this worker stop at once, and the port's control side stops the queue pairs on other
    /// workers. If the thread was copying between two ports' memories, either port may have caused
    /// the sleep, so the worker stops neither port. If two ports may have caused the sleep, the
    /// worker from then on copies the source port's frames into memory of the switch first. With
    /// this separate copy, only one port's memory is in use at a time, so the worker can identify
    /// the port that causes a sleep.
    #[cold]
    #[inline(never)]
    fn stop_sleeper(&mut self) {
        let Some(found) = culprit() else { return };
        if let Some(port) = found.or
            && self.input.set_apart(port)
        {
            return;
        }
        let Some(slot) = self.ctx.ports.get_mut(found.port.index()) else { return };
        let stop = |queue: &mut Box<dyn PortQueue>| queue.stop(found.cause, found.slept);
        let stopped = slot.queues.iter_mut().map(stop).filter(|stopped| *stopped).count();
        if stopped > 0
            && let Some(counters) = self.ctx.of(found.port)
        {
            counters.stopped.add(1);
        }
    }
}
