//! Notifications of drivers, and who pays for them.
//!
//! # Problem
//!
//! A driver that does not poll is woken through an event file descriptor, and an AF_XDP socket
//! sends by a system call. Either may cost more than a batch, and happens after the batches.
//!
//! # Source
//!
//! C2QoS §III: a VM pays for what it causes.
//!
//! # Approach
//!
//! - The ports whose frames were delivered to a queue pair pay for its notification, in parts by
//!   their numbers of frames.
//! - A driver's own port pays for the notification that its frames were taken.
//! - The looks at drivers that want no notification are divided among all senders of the round.
//!
//! # Cost
//!
//! One reading of the counter for each notification that was sent, and one for a round with more
//! than [`FREE_LOOKS`] looks.
//!
//! The first bill of a round also has the cycles since the last batch. They are few, and a sender
//! of the round had that batch.

use core::sync::atomic::{Ordering, fence};

use penstock_units::PortId;

use super::Worker;
use super::account::{Books, Payer};
use crate::schedule::Unit;
use crate::tsc::CycleCounter;

/// Looks of a round whose cost is not worth a reading of the counter. The next bill has them.
const FREE_LOOKS: usize = 4;

impl<C: CycleCounter> Worker<C> {
    /// One full fence for all rings touched, then one look at each driver's wish for interrupts
    /// (datapath rule 14).
    #[inline(never)]
    pub(super) fn kick(&mut self) {
        fence(Ordering::SeqCst);
        let mut place = 0;
        while let Some(unit) = self.touched.unit(place) {
            self.kick_unit(unit, place);
            place += 1;
        }
        if place > FREE_LOOKS {
            self.charge_round();
        }
        self.touched.clear();
    }

    fn kick_unit(&mut self, unit: Unit, place: usize) {
        let (port, pair) = (unit.port.index(), unit.queue.index());
        let slot = &mut self.ports[port];
        slot.marked[pair] = 0;
        let Some(queue) = slot.queues.get_mut(pair) else { return };
        let taken = queue.notify_taken();
        if taken > 0 {
            self.charge(unit.port, 1);
        }
        let Some(queue) = self.ports[port].queues.get_mut(pair) else { return };
        let given = queue.notify();
        let rung = self.ring_bell(unit.port);
        if given + rung > 0 {
            let frames = self.touched.payers(place).map(|payer| u64::from(payer.frames)).sum();
            let parts = self.touched.payers(place);
            let parts = parts.map(|payer| (payer.port, u64::from(payer.frames)));
            let books = Books { counters: &self.port_counters, peers: &self.egress.peers };
            let payer = Payer::Ports { parts, frames };
            self.account.settle(self.counter.now(), payer, || None, books);
        }
        if let Some(counters) = &self.port_counters[port]
            && taken + given > 0
        {
            counters.tx_kicks.add(u64::from(taken + given));
        }
    }

    /// Charges all senders of the round for the looks at drivers that wanted no notification.
    fn charge_round(&mut self) {
        let all = || self.touched.all_payers().map(|p| (p.port, u64::from(p.frames)));
        let payer = Payer::Ports { parts: all(), frames: all().map(|(_, frames)| frames).sum() };
        let books = Books { counters: &self.port_counters, peers: &self.egress.peers };
        self.account.settle(self.counter.now(), payer, || None, books);
    }

    /// Rings the bell of a VM that got frames. Returns the number of signals that this took.
    fn ring_bell(&mut self, port: PortId) -> u32 {
        let policy = self.snapshot.ports.get(port.index()).and_then(Option::as_deref);
        let Some(bell) = policy.and_then(|policy| policy.bell.as_ref()) else { return 0 };
        let Some(counters) = &self.port_counters[port.index()] else { return 0 };
        // A port is here too for what was taken from it, which is no event.
        let sent = counters.tx_frames.get();
        if core::mem::replace(&mut self.ports[port.index()].rung, sent) == sent {
            return 0;
        }
        let rung = bell.ring();
        counters.vcpu_wakes.add(u64::from(rung));
        rung
    }
}
