//! Simulated ports that the worker must notify of delivered frames, which costs cycles.
//!
//! A driver that does not poll is woken by an event descriptor, and an AF_XDP socket sends when it
//! is called. The worker makes a system call for each notification, after the batches that
//! delivered frames to the port.

use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::{Pending, PortQueue, TxOutcome};
use penstock_units::Cycles;

use crate::cost::{Overheads, SimCounter};

/// The way in which a port learns of frames that the switch delivered to the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notice {
    /// The port polls its rings.
    #[default]
    Poll,
    /// The port waits for an interrupt. The worker notifies (kicks) the port once for each round of
    /// batches.
    Kick,
    /// The port is an AF_XDP socket. The worker makes a send call once for each round of batches.
    SendCall,
}

impl Notice {
    /// Returns the queue pair `queue`, with notifications that take cycles of the core that has
    /// `counter`.
    pub(crate) fn pair(
        self,
        queue: impl PortQueue + 'static,
        counter: SimCounter,
        overheads: Overheads,
    ) -> Box<dyn PortQueue> {
        let cost = match self {
            Self::Poll => return Box::new(queue),
            Self::Kick => overheads.kick,
            Self::SendCall => overheads.send_call,
        };
        Box::new(Notified { queue, counter, cost, delivered: false })
    }
}

/// A queue pair whose notifications take `cost` cycles of its worker's core.
#[derive(Debug)]
struct Notified<Q> {
    queue: Q,
    counter: SimCounter,
    cost: Cycles,
    /// Whether frames were delivered to the port since the last notification.
    delivered: bool,
}

impl<Q: PortQueue> PortQueue for Notified<Q> {
    fn pending(&mut self, now: Cycles) -> Pending {
        self.queue.pending(now)
    }

    fn rx_burst(&mut self, batch: &mut Batch) {
        self.queue.rx_burst(batch);
    }

    fn backlog(&mut self) -> Option<usize> {
        self.queue.backlog()
    }

    fn rx_done(&mut self) {
        self.queue.rx_done();
    }

    fn tx_ready(&self) -> bool {
        self.queue.tx_ready()
    }

    fn caps(&self) -> OffloadCaps {
        self.queue.caps()
    }

    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        let outcome = self.queue.tx_burst(batch, frames);
        self.delivered |= outcome.frames > 0;
        outcome
    }

    fn tx_room(&mut self) -> usize {
        self.queue.tx_room()
    }

    fn publish(&mut self) {
        self.queue.publish();
    }

    fn rest(&mut self) -> bool {
        self.queue.rest()
    }

    fn wake(&mut self) {
        self.queue.wake();
    }

    fn notify(&mut self) -> u32 {
        if !core::mem::take(&mut self.delivered) {
            return 0;
        }
        self.counter.advance(self.cost);
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Costs;
    use penstock_dataplane::port::memory_queue::{MemoryFrame, memory_queue};
    use penstock_units::Rng;

    #[test]
    fn a_port_tells_its_backlog_however_it_is_notified() {
        for notice in [Notice::Poll, Notice::Kick, Notice::SendCall] {
            let (queue, driver) = memory_queue(8, OffloadCaps::ALL);
            let counter = SimCounter::new(Costs::EXAMPLE, Rng::new(1));
            let mut pair = notice.pair(queue, counter, Overheads::ASSUMED);
            assert!((0..3).all(|_| driver.send(MemoryFrame::plain(vec![0; 60]))));
            assert_eq!(pair.backlog(), Some(3), "{notice:?}");
        }
    }
}
