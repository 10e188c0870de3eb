//! What the worker does about cycles beside running batches: refills, its ports' books, and terms
//! that change.

use penstock_qos::hbs::RELEASE_MOST;
use penstock_qos::latency_bound::GLANCES;
use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, Priority};

use super::{Ledger, Worker};
use crate::port::Pending;
use crate::queue::OUTPUT;
use crate::schedule::{Discipline, PortQos, Schedule};
use crate::tsc::CycleCounter;

/// Ports whose counters are brought up to date with each refill; and among several workers, where
/// 28 ports are gone round in 350 us.
const BOOKS: u32 = 2;
const BOOKS_SHARED: u32 = 4;
/// Of those without tokens, how many are asked for frames before an idle turn ends.
const BORROWERS: usize = 64;

impl<C: CycleCounter> Worker<C> {
    /// Generates cycles for those who bought some, and lets those go on that waited for them.
    #[inline(never)]
    pub(super) fn refill(&mut self) {
        self.refill_now();
        self.charge_host();
    }

    fn refill_now(&mut self) {
        let now = self.account.last();
        let passed = self.account.buckets_mut().refill(now);
        let buckets = self.account.buckets();
        self.schedule.release(RELEASE_MOST, &|port| buckets.may_run(port));
        self.account.counters().refills.add(1);
        let ledger = self.account.buckets().ledger();
        self.account.counters().cycles_generated.set(ledger.generated);
        self.account.counters().cycles_discarded.set(ledger.discarded);
        self.account.counters().cycles_lent.set(ledger.lent);
        self.keep_books();
        // Others may fill the core for long: whoever has no turn meanwhile, though it has tokens,
        // must not be taken for idle.
        for _ in 0..if passed { 0 } else { GLANCES } {
            let Some(unit) = self.schedule.glance() else { break };
            if unit.queue == OUTPUT {
                // It takes part only while something waits.
                self.account.buckets_mut().note_waiting(unit, true);
                continue;
            }
            let queue = &mut self.ports[unit.port.index()].queues[unit.queue.index()];
            // Who can only be polled may well have frames: its part is kept for it until it was.
            let pending = queue.pending(self.account.last());
            self.account.buckets_mut().note_waiting(unit, pending != Pending::No);
            if pending == Pending::Yes
                && let Some(counters) = self.port_counters[unit.port.index()].as_deref()
            {
                counters.kept_waiting.add(1);
            }
        }
    }

    /// Nobody with tokens has frames: one that has frames and may have more than it bought gets a
    /// batch that is charged to nobody, as the core would stand still. `None`: there is none.
    #[inline(never)]
    pub(super) fn lend_batch(&mut self) -> Option<usize> {
        // Where none is put aside, any may be without tokens.
        let held = match self.schedule.held() {
            0 => self.schedule.len(),
            held => held,
        };
        for _ in 0..held.min(BORROWERS) {
            let unit = self.schedule.next_held()?;
            if unit.queue == OUTPUT {
                if let Some(frames) = self.lend_output(unit.port) {
                    return Some(frames);
                }
                continue;
            }
            let queue = &mut self.ports[unit.port.index()].queues[unit.queue.index()];
            if !self.account.buckets().may_borrow(unit.port)
                || queue.pending(self.account.last()) == Pending::No
            {
                continue;
            }
            let waited = self.delays.of(unit, self.account.last());
            let frames = self.run_batch(unit, true);
            if frames > 0 {
                self.after_batch(unit, waited);
                self.resting.note_busy(unit, self.account.last());
                self.finish_turn(false);
                return Some(frames);
            }
        }
        None
    }

    /// The same for what waits for a port.
    fn lend_output(&mut self, port: PortId) -> Option<usize> {
        if !self.account.buckets().may_borrow(port) {
            return None;
        }
        let frames = self.run_output(port, true)?;
        self.finish_turn(false);
        Some(frames)
    }

    /// Whether those that bought nothing have buckets, and which, follows from what all here have.
    pub(super) fn rank_free(&mut self) {
        let by_class = matches!(self.schedule, Discipline::Hbs(_));
        let (mut sold, mut free) = (None, 0);
        for port in self.here() {
            let qos = self.qos(port);
            if qos.ingress.is_metered() {
                let part = qos.entitlement.0 / self.account.buckets().parts(port);
                sold = Some(sold.unwrap_or(0_u64).saturating_add(part));
            } else {
                free += 1;
            }
        }
        if !self
            .account
            .buckets_mut()
            .set_floor(sold.filter(|_| by_class).map(CyclesPerSecond), free)
        {
            return;
        }
        for port in (0..self.ports.len()).filter_map(|at| u16::try_from(at).ok().map(PortId)) {
            if self.ports[port.index()].owned != 0 && !self.qos(port).ingress.is_metered() {
                self.schedule_port(port, 0);
            }
        }
    }

    /// Ports with queue pairs here.
    pub(super) fn here(&self) -> impl Iterator<Item = PortId> {
        let here = (0_u16..).zip(&self.ports).filter(|(_, slot)| slot.owned != 0);
        here.map(|(port, _)| PortId(port))
    }

    /// Brings the books of some ports up to date, others each time.
    fn keep_books(&mut self) {
        let alone = self.egress.peers.is_empty();
        for _ in 0..if alone { BOOKS } else { BOOKS_SHARED } {
            let Some(port) = self.account.buckets_mut().next_port() else { return };
            if let Some(counters) = &self.port_counters[port.index()] {
                self.account.buckets_mut().publish(port, counters);
            }
            if !alone {
                self.share(port);
            }
        }
    }

    /// Gives and takes what the port's other workers have to spare or need.
    fn share(&mut self, port: PortId) {
        let qos = self.qos(port);
        let peers = &self.egress.peers;
        let (directory, me) = (peers.directory(), peers.id());
        let owners = directory.owners(port);
        if self.account.buckets_mut().set_parts(port, u64::from(owners.count_ones()).max(1)) {
            let now = self.account.last();
            self.account.buckets_mut().set(port, &qos, 0, now);
        }
        self.account.buckets_mut().book(port, me, &directory.notes);
        if owners.trailing_zeros() == u32::from(me.0) {
            self.account.buckets_mut().settle(port, owners, &directory.notes);
        }
    }

    /// A port's bucket goes away; its tokens are left for the worker that gets its queue pairs.
    pub(super) fn forget_bucket(&mut self, port: PortId) -> i64 {
        let peers = &self.egress.peers;
        if !peers.is_empty() {
            self.account.buckets_mut().book(port, peers.id(), &peers.directory().notes);
        }
        if let Some(counters) = self.port_counters[port.index()].as_deref()
            && self.account.buckets().is_metered(port)
        {
            self.account.buckets_mut().publish(port, counters);
            counters.tokens.set(0);
            counters.debt.set(0);
        }
        self.account.buckets_mut().leave(port)
    }

    /// What a port bought, by the snapshot.
    pub(super) fn qos(&self, port: PortId) -> PortQos {
        let policy = self.snapshot.ports.get(port.index()).and_then(Option::as_deref);
        policy.map_or_else(PortQos::default, |policy| policy.qos)
    }

    /// Its class.
    pub(super) fn class(&self, port: PortId) -> Priority {
        self.qos(port).priority
    }

    /// A port that has queue pairs here is scheduled by what the snapshot says from now on, with
    /// `tokens` that it brings along.
    pub(super) fn schedule_port(&mut self, port: PortId, tokens: i64) {
        let qos = self.qos(port);
        self.schedule.set_class(port, qos.priority);
        let before = self.account.buckets().is_metered(port);
        if before && !self.account.buckets().meters(&qos) {
            self.forget_bucket(port);
        }
        let now = self.account.last();
        self.account.buckets_mut().set(port, &qos, tokens, now);
        if !before && self.account.buckets().is_metered(port) && !self.egress.peers.is_empty() {
            let peers = &self.egress.peers;
            self.account.buckets_mut().begin_books(port, peers.id(), &peers.directory().notes);
        }
        // Who is held may have become free to run.
        let buckets = self.account.buckets();
        self.schedule.release(usize::MAX, &|port| buckets.may_run(port));
    }

    /// The count at which a worker that found nothing would find something although nothing
    /// happened outside: a simulation must not skip beyond it.
    #[must_use]
    pub fn next_due(&self) -> Option<Cycles> {
        let refill = self.account.buckets().next_due(self.schedule.held() > 0);
        // Before the rest is over no refill makes a difference.
        if let Some(rest) = self.account.rests_until() {
            return Some(rest);
        }
        let event = self.outputs.next_event().map(|at| self.clock.cycles(at));
        match (event, refill) {
            (Some(event), Some(refill)) => Some(event.min(refill)),
            (event, refill) => event.or(refill),
        }
    }

    /// How long a worker that found nothing may sleep, at most `most`.
    #[must_use]
    pub(super) fn may_sleep(&self, most: Nanos) -> Nanos {
        let wait = |at: Nanos| at.saturating_sub(self.nanos());
        self.outputs.next_event().map_or(most, |at| wait(at).min(most))
    }

    /// Where all cycles went that were generated for the buckets here.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.account.buckets().ledger()
    }

    /// A port's tokens here.
    #[must_use]
    pub fn tokens(&self, port: PortId) -> i64 {
        self.account.buckets().tokens(port)
    }
}
