//! Notifications of drivers, and who pays for them.
//!
//! **Problem.** A driver that does not poll is woken by an event file descriptor, and an AF_XDP
//! socket sends by a system call. Either may cost more than a batch, and happens when the batches
//! are over. **Rule** (C2QoS §III: a VM pays for what it causes). The cost of a notification is
//! charged to the ports whose frames were delivered to that queue pair, by their number of frames.
//! A notification that tells a driver that its own frames were taken is charged to that driver's
//! port. **Cost.** One more read of the counter a round of notifications, and one for each
//! notification that was sent.

use core::sync::atomic::{Ordering, fence};

use penstock_units::{Cycles, PortId};

use super::{Worker, pay};
use crate::schedule::Unit;
use crate::tsc::CycleCounter;

/// A cost in parts by frames, which add up to the cost: what rounding left to nobody would be
/// generated for a bucket that nobody empties.
pub(super) struct Parts {
    cost: u64,
    frames: u64,
}

impl Parts {
    /// What `frames` frames cost together.
    pub(super) fn new(cost: Cycles, frames: u64) -> Self {
        Self { cost: cost.0, frames }
    }

    /// The part of the next `frames` of them.
    pub(super) fn next(&mut self, frames: u64) -> Cycles {
        let part = self.cost.saturating_mul(frames) / self.frames.max(1);
        let part = if frames >= self.frames { self.cost } else { part };
        (self.cost, self.frames) = (self.cost - part, self.frames.saturating_sub(frames));
        Cycles(part)
    }
}

impl<C: CycleCounter> Worker<C> {
    /// One full fence for all rings touched, then one look at each driver's wish for interrupts
    /// (datapath rule 14).
    #[inline(never)]
    pub(super) fn kick(&mut self) {
        fence(Ordering::SeqCst);
        let mut from = self.counter.now();
        let mut place = 0;
        while let Some(unit) = self.touched.unit(place) {
            self.kick_unit(unit, place, &mut from);
            place += 1;
        }
        self.touched.clear();
    }

    fn kick_unit(&mut self, unit: Unit, place: usize, from: &mut Cycles) {
        let (port, pair) = (unit.port.index(), unit.queue.index());
        let slot = &mut self.ports[port];
        slot.marked[pair] = 0;
        let Some(queue) = slot.queues.get_mut(pair) else { return };
        let taken = queue.notify_taken();
        if taken > 0 {
            let cost = self.settle_kick(from);
            self.pay_kick(unit.port, cost);
        }
        let Some(queue) = self.ports[port].queues.get_mut(pair) else { return };
        let given = queue.notify();
        let rung = self.ring_bell(unit.port);
        if given + rung > 0 {
            let cost = self.settle_kick(from);
            let total: u64 = self.touched.payers(place).map(|payer| u64::from(payer.frames)).sum();
            let Self { touched, port_counters, meter, egress, .. } = self;
            let mut parts = Parts::new(cost, total);
            for payer in touched.payers(place) {
                let part = parts.next(payer.frames.into());
                // Of a port that left meanwhile there is nobody to charge.
                if let Some(counters) = port_counters[payer.port.index()].as_deref() {
                    pay(meter, &egress.peers, payer.port, part, counters);
                }
            }
        }
        if let Some(counters) = &self.port_counters[port]
            && taken + given > 0
        {
            counters.tx_kicks.add(u64::from(taken + given));
        }
    }

    /// Rings the bell of a VM that got frames; how many signals that took.
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

    /// What passed since `from`, which is now from here on, is a notification's and not the next
    /// batch's: the cycles to be charged for it.
    fn settle_kick(&mut self, from: &mut Cycles) -> Cycles {
        let now = self.counter.now();
        let passed = now.saturating_sub(core::mem::replace(from, now));
        let cost = self.stolen.settle_idle(passed, &self.counters);
        self.counters.cycles_busy.add(cost.0);
        self.meter.lose(passed.saturating_sub(cost));
        self.pace.spend(cost, now);
        self.last = Cycles(self.last.0 + passed.0);
        cost
    }

    fn pay_kick(&mut self, port: PortId, cost: Cycles) {
        if let Some(counters) = self.port_counters[port.index()].as_deref() {
            pay(&mut self.meter, &self.egress.peers, port, cost, counters);
        }
    }
}
