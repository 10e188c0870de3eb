//! Gives the ports of a worker the resources that they purchased: latency classes, cycle buckets,
//! and the floor of ports without purchased cycles.
//!
//! # Cost
//! A new snapshot costs a worker time for each port that the snapshot changes, if the control plane
//! compared the snapshot with the worker's present snapshot ([`Snapshot::following`]). The worker
//! handles all ports only in the following cases.
//!
//! - The snapshot was not compared with the worker's present snapshot.
//! - The worker could not take an output queue, because another worker had the queue.
//! - The floor changed, because an entitlement changed, or because a port joined, left, or began or
//!   ceased to be metered. The floor is a term of each bucket without purchased cycles. If all
//!   ports purchased cycles, the worker visits only the changed ports ([`super::ranks`]).
//! - A port moved some of its queue pairs to another worker.
//!
//! If decisions about frames may have changed, the worker also removes all cached decisions and
//! reads its whole MAC table.

use std::sync::Arc;

use penstock_units::{Cycles, Nanos, PortId, Priority};

use super::ranks::Rank;
use super::{Ledger, Worker};
use crate::snapshot::{Changes, Snapshot};
use crate::tsc::CycleCounter;

/// Work of a worker for a new snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapWork {
    /// Number of ports that the worker visited.
    pub ports: usize,
    /// Whether the worker visited all its ports, because the floor of ports without purchased
    /// cycles changed.
    pub ranks: bool,
    /// Whether the worker removed its cached decisions and read its whole MAC table.
    pub decisions: bool,
}

impl<C: CycleCounter> Worker<C> {
    /// Replaces the worker's snapshot. Returns the worker's previous snapshot.
    pub fn swap_snapshot(&mut self, new: Arc<Snapshot>) -> Arc<Snapshot> {
        let old = core::mem::replace(&mut self.ctx.snapshot, Arc::clone(&new));
        self.ctx.egress.set_mirrors(new.has_mirrors());
        self.input.set_pairs(new.pair_table());
        self.swapped = match new.changes_since(&old).filter(|_| !self.outputs.lacks_queue()) {
            Some(changes) => self.adopt_changes(&old, &new, changes),
            None => self.adopt_all(&old, &new),
        };
        old
    }

    /// Returns the work that the last new snapshot caused.
    #[must_use]
    pub const fn swapped(&self) -> SwapWork {
        self.swapped
    }

    /// Adopts the changes of a snapshot that was compared with the worker's previous snapshot.
    fn adopt_changes(&mut self, old: &Snapshot, new: &Snapshot, changes: &Changes) -> SwapWork {
        if changes.decisions {
            self.input.on_snapshot(new);
        } else {
            self.input.on_like_snapshot(old.generation, new);
        }
        let all = self.ctx.ports.len();
        for port in changes.ports.iter().copied().filter(|port| port.index() < all) {
            self.outputs.place_queue(&mut self.ctx, &mut self.roster, port);
            if self.ctx.ports[port.index()].owned != 0 {
                self.input.place_gate(&self.ctx, &mut self.roster, port);
                self.set_terms(port, 0);
                if self.ctx.account.buckets().may_run(port) {
                    self.roster.schedule.release_port(port);
                }
            }
            self.rank_port(port);
        }
        let is_due = changes.ranks || self.ctx.account.buckets().floor_is_stale();
        let ranks = is_due && self.rank();
        SwapWork { ports: changes.ports.len(), ranks, decisions: changes.decisions }
    }

    /// Adopts a snapshot of which the changes are not known.
    fn adopt_all(&mut self, old: &Snapshot, new: &Snapshot) -> SwapWork {
        self.input.on_snapshot(new);
        self.outputs.begin_placing();
        for port in all_ports(self.ctx.ports.len()) {
            self.outputs.place_queue(&mut self.ctx, &mut self.roster, port);
            let unchanged = match (old.port(port.0), new.port(port.0)) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (old, new) => old.is_none() && new.is_none(),
            };
            if !unchanged && self.ctx.ports[port.index()].owned != 0 {
                self.input.place_gate(&self.ctx, &mut self.roster, port);
                self.set_terms(port, 0);
            }
            self.rank_port(port);
        }
        self.release_held();
        self.rank();
        SwapWork { ports: self.ctx.ports.len(), ranks: true, decisions: true }
    }

    /// Notes the class and the purchase of a port, after one of them changed or after the port
    /// joined or left this worker. The caller must call [`Self::rank`] afterwards.
    pub(super) fn rank_port(&mut self, port: PortId) {
        let is_here = self.ctx.ports[port.index()].owned != 0;
        let qos = self.ctx.qos(port);
        let parts = self.ctx.account.buckets().parts(port);
        let sold = qos.ingress.is_metered().then(|| qos.entitlement.0 / parts);
        self.ranks.set(port, is_here.then_some(Rank { class: qos.priority, sold }));
    }

    /// Updates the highest class among the worker's ports, and the cycles per second of ports
    /// without purchased cycles (floor). Returns true if the worker visited all its ports.
    pub(super) fn rank(&mut self) -> bool {
        let all = self.ctx.ports.len();
        let is_stale = self.ctx.account.buckets().floor_is_stale();
        if is_stale {
            // The number of a port's workers divides the port's purchase.
            all_ports(all).for_each(|port| self.rank_port(port));
        }
        let by_class = self.roster.schedule.orders_by_class();
        let first = self.ranks.first().filter(|_| by_class).unwrap_or(Priority::LAST);
        self.ctx.account.set_first(first);
        let (sold, free) = (self.ranks.sold().filter(|_| by_class), self.ranks.free());
        let changed = self.ctx.account.buckets_mut().set_floor(sold, free);
        if !changed || free == 0 {
            return is_stale;
        }
        for port in all_ports(all) {
            if self.ctx.ports[port.index()].owned != 0 && !self.ctx.qos(port).ingress.is_metered() {
                self.set_terms(port, 0);
            }
        }
        self.release_held();
        true
    }

    /// Schedules a port with queue pairs on this worker according to the snapshot. `tokens` is the
    /// bucket level that the port brings from its previous worker.
    pub(super) fn schedule_port(&mut self, port: PortId, tokens: i64) {
        self.set_terms(port, tokens);
        self.release_held();
    }

    /// Sets the class and the bucket of a port according to the snapshot. The caller must call
    /// [`Self::release_held`] afterwards, once for all ports, because it looks at all held units.
    fn set_terms(&mut self, port: PortId, tokens: i64) {
        let qos = self.ctx.qos(port);
        self.roster.schedule.set_class(port, qos.priority);
        let before = self.ctx.account.buckets().is_metered(port);
        if before && !self.ctx.account.buckets().meters(&qos) {
            self.forget_bucket(port);
        }
        let now = self.ctx.account.last();
        self.ctx.account.buckets_mut().set(port, &qos, tokens, now);
        if !before && self.ctx.account.buckets().is_metered(port) && !self.ctx.peers.is_empty() {
            let peers = &self.ctx.peers;
            self.ctx.account.buckets_mut().begin_books(port, peers.id(), &peers.directory().notes);
        }
    }

    /// Returns held units to the schedule that may run now, because a bucket changed.
    fn release_held(&mut self) {
        let buckets = self.ctx.account.buckets();
        self.roster.schedule.release(usize::MAX, &|port| buckets.may_run(port));
    }

    /// Removes a port's token bucket from this worker. Returns the bucket's tokens, which go to the
    /// worker that gets the port's queue pairs.
    pub(super) fn forget_bucket(&mut self, port: PortId) -> i64 {
        let peers = &self.ctx.peers;
        if !peers.is_empty() {
            self.ctx.account.buckets_mut().book(port, peers.id(), &peers.directory().notes);
        }
        if let Some(counters) = self.ctx.port_counters[port.index()].as_deref()
            && self.ctx.account.buckets().is_metered(port)
        {
            self.ctx.account.buckets_mut().publish(port, counters);
            counters.tokens.set(0);
            counters.debt.set(0);
        }
        self.ctx.account.buckets_mut().leave(port)
    }

    /// Returns the reading of the cycle counter up to which an idle worker has nothing to do,
    /// unless a frame or a request arrives. A simulation must not advance the cycle counter beyond
    /// this reading before the worker's next turn. Returns `None` if only a frame or a request can
    /// give the worker work.
    #[must_use]
    pub fn next_due(&self) -> Option<Cycles> {
        let refill = self.ctx.account.buckets().next_due(self.roster.schedule.held() > 0);
        // Until the worker's rest ends, a refill has no effect.
        if let Some(rest) = self.ctx.account.rests_until() {
            return Some(rest);
        }
        let event = self.roster.next_event().map(|at| self.ctx.clock.cycles(at));
        match (event, refill) {
            (Some(event), Some(refill)) => Some(event.min(refill)),
            (event, refill) => event.or(refill),
        }
    }

    /// Returns the time for which an idle worker may sleep without delaying due work. The time is
    /// at most `most`.
    #[must_use]
    pub(super) fn may_sleep(&self, most: Nanos) -> Nanos {
        let wait = |at: Nanos| at.saturating_sub(self.ctx.nanos());
        self.roster.next_event().map_or(most, |at| wait(at).min(most))
    }

    /// Returns the totals of the cycles generated for the worker's buckets.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.ctx.account.buckets().ledger()
    }

    /// Returns the tokens of a port's bucket on this worker. A negative number of tokens means that
    /// the port spent more cycles than it had (a debt).
    #[must_use]
    pub fn tokens(&self, port: PortId) -> i64 {
        self.ctx.account.buckets().tokens(port)
    }
}

/// Returns the numbers of the first `count` ports.
fn all_ports(count: usize) -> impl Iterator<Item = PortId> {
    (0..count).filter_map(|at| u16::try_from(at).ok().map(PortId))
}

#[cfg(test)]
mod tests;
