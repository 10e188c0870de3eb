//! The worker notifies drivers in rounds, and charges each notification to the ports that caused
//! the notification.
//!
//! # Problem
//!
//! The worker wakes a driver that does not poll through an event file descriptor, and sends on an
//! AF_XDP socket by a system call. A wake-up or a send call may cost more than a batch, so the
//! worker makes these calls after its batches.
//!
//! # Source
//!
//! In the C2QoS paper (§III), a VM pays for all cycles that the VM causes.
//!
//! # Approach
//!
//! - The senders of the frames delivered to a queue pair pay for the queue pair's notification, in
//!   proportion to their numbers of frames.
//! - A driver's own port pays for the notification that the worker took the driver's frames.
//! - If a driver requested no notification, the check of this driver still costs cycles. All
//!   senders of the notification round share these cycles.
//!
//! # Cost
//!
//! Each sent notification costs one reading of the cycle counter. If a notification round checks
//! more than [`FREE_LOOKS`] drivers, the worker reads the cycle counter once more in this round.
//!
//! The bill for the first notification of a round also contains the few cycles since the end of the
//! last batch. The port that sent the last batch of the round also pays a part of the round's cost.

use core::sync::atomic::{Ordering, fence};

use penstock_units::PortId;

use super::account::{Books, Payer};
use super::context::Context;
use crate::tsc::CycleCounter;
use crate::unit::Unit;

/// Maximum number of batches in a notification round. The round ends earlier if the schedule has
/// examined all units.
pub(super) const NOTIFY_EVERY: u32 = 8;
/// Maximum number of drivers that the worker checks in a notification round without reading the
/// cycle counter. If the worker did not measure the check of a driver, the cost of the check is
/// part of the next bill.
const FREE_LOOKS: usize = 4;

impl<C: CycleCounter> Context<C> {
    /// Notifies the drivers of all rings used since the last round. If the worker used no ring
    /// since the last round, the function does nothing.
    #[inline]
    pub(super) fn notify(&mut self) {
        if !self.touched.is_empty() {
            self.end_round();
        }
    }

    /// Ends the notification round, and notifies the drivers of all rings that the round used.
    #[inline]
    pub(super) fn end_round(&mut self) {
        self.until_notify = NOTIFY_EVERY;
        if !self.touched.is_empty() {
            self.kick();
        }
    }

    /// Makes one full fence for all used rings, and then checks whether each driver requests
    /// interrupts (datapath rule 14).
    #[inline(never)]
    fn kick(&mut self) {
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
            self.counters().taken_notifications.add(taken.into());
            let cost = self.charge_port(unit.port, 1).cost;
            self.account.note_call(cost, core::iter::once((unit.port, 1)), 1);
        }
        let Some(queue) = self.ports[port].queues.get_mut(pair) else { return };
        let given = queue.notify();
        let rung = self.ring_bell(unit.port);
        if given + rung > 0 {
            let payers = || self.touched.payers(place).map(|p| (p.port, u64::from(p.frames)));
            let frames = payers().map(|(_, frames)| frames).sum();
            let payer = Payer::Ports { parts: payers(), frames };
            let books = Books { counters: &self.port_counters, peers: &self.peers };
            let settled = self.account.settle(self.counter.now(), payer, || None, books);
            self.account.note_call(settled.cost, payers(), frames);
        }
        if let Some(counters) = &self.port_counters[port]
            && taken + given > 0
        {
            counters.tx_kicks.add(u64::from(taken + given));
        }
    }

    /// Divides the cost of checking drivers that requested no notification among all senders of the
    /// notification round.
    fn charge_round(&mut self) {
        let all = || self.touched.all_payers().map(|p| (p.port, u64::from(p.frames)));
        let payer = Payer::Ports { parts: all(), frames: all().map(|(_, frames)| frames).sum() };
        let books = Books { counters: &self.port_counters, peers: &self.peers };
        self.account.settle(self.counter.now(), payer, || None, books);
    }

    /// Notifies the vCPU scheduler of a VM that got frames. Returns the number of sent signals.
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
