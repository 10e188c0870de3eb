//! The account of a worker: who pays for each cycle.
//!
//! # Problem
//!
//! A bought share of a core is worth something only if each VM pays for what it causes. Batches are
//! only a part of that. Frames leave queues, come from other workers and need kicks, and each of
//! these takes cycles at another place of the loop. A place that forgets to charge makes the next
//! sender pay.
//!
//! # Source
//!
//! C2QoS §IV-A: a gate before each batch, and a charge after it.
//!
//! # Approach
//!
//! Each piece of work ends with one bill. [`Account::settle`] is the only function that charges. A
//! bill covers all cycles since the bill before. So each cycle is in exactly one bill, and these
//! four counters add up to the time of the worker:
//!
//! | Counter | Cycles |
//! |---|---|
//! | `cycles_charged` | of frames; the sum of all ports' `cycles` |
//! | `cycles_host` | that no port caused: requests of control, refills of the buckets, aging |
//! | `cycles_idle` | of turns that found nothing |
//! | `cycles_stolen` | during which the thread did not run |
//!
//! Frames of a port that has left have no payer. Their part goes to the host.
//!
//! # Cost
//!
//! One reading of the counter for each bill. A batch has one; so has each kick.

mod bound;
mod meter;
mod pace;
mod stolen;

use std::sync::Arc;

use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, Priority, TscRate};

use super::Peers;
use crate::counters::{PortCounters, WorkerCounters};
use crate::queue::OUTPUT;
use crate::schedule::Unit;
use bound::BatchBound;
use pace::Pace;
use stolen::StolenTime;

pub(super) use meter::Meter;
pub use meter::terms as bucket_terms;
pub use stolen::RunQueueWait;

/// A batch that a unit ran under its port's own budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnBatch {
    pub unit: Unit,
    /// The port's class.
    pub class: Priority,
    pub frames: usize,
    /// More frames wait at the unit.
    pub more: bool,
    /// The port had no tokens and ran on time that no port with tokens wanted.
    pub lent: bool,
}

/// Who pays for a piece of work.
#[derive(Debug)]
pub(super) enum Payer<P> {
    /// The port of a unit.
    Unit(OwnBatch),
    /// Several ports, in parts by their numbers of frames. The total is given because the parts are
    /// passed only once.
    Ports { parts: P, frames: u64 },
    /// No port caused the work.
    Host,
    /// The turn found nothing.
    Nobody,
}

/// [`Payer`]s that need no list of ports.
pub(super) type NoParts = core::iter::Empty<(PortId, u64)>;

/// What ports of the switch have that an account writes to.
#[derive(Clone, Copy)]
pub(super) struct Books<'a> {
    /// Counters by port. `None`: the port is not here.
    pub counters: &'a [Option<Arc<PortCounters>>],
    /// The other workers, which may hold the port's bucket.
    pub peers: &'a Peers,
}

/// What became of a bill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// Cycles that were charged.
    pub cost: Cycles,
    /// The unit's port has tokens left.
    pub left: bool,
    /// No cycle of the bill was stolen.
    pub whole: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Account {
    /// The counter's reading at the end of the last bill.
    last: Cycles,
    meter: Meter,
    pace: Pace,
    bound: BatchBound,
    stolen: StolenTime,
    counters: Arc<WorkerCounters>,
}

impl Account {
    /// The account of a worker with up to `ports` ports. `capacity` are the cycles per second that
    /// it may spend, `refill` is the time between two refills of its buckets.
    pub fn new(
        ports: usize,
        core: TscRate,
        capacity: Option<CyclesPerSecond>,
        refill: Nanos,
        now: Cycles,
        wait: Option<RunQueueWait>,
    ) -> Self {
        Self {
            last: now,
            meter: Meter::new(ports, core, capacity, refill),
            pace: Pace::new(core, capacity),
            bound: BatchBound::new(ports, core),
            stolen: StolenTime::new(core, wait),
            counters: Arc::new(WorkerCounters::default()),
        }
    }

    /// The counter's reading at the end of the last bill.
    #[inline]
    pub const fn last(&self) -> Cycles {
        self.last
    }

    pub const fn counters(&self) -> &Arc<WorkerCounters> {
        &self.counters
    }

    /// The cycle buckets.
    #[inline]
    pub const fn buckets(&self) -> &Meter {
        &self.meter
    }

    #[inline]
    pub const fn buckets_mut(&mut self) -> &mut Meter {
        &mut self.meter
    }

    /// Whether the worker has spent its share of the core and no batch may run yet.
    #[inline]
    pub fn rests(&self) -> bool {
        self.pace.rests(self.last)
    }

    /// The reading at which the worker may run batches again, if it rests.
    pub fn rests_until(&self) -> Option<Cycles> {
        self.pace.next_due(self.last)
    }

    /// Maximum number of frames in the port's next batch.
    #[inline]
    pub fn batch_limit(&self, port: PortId, class: Priority) -> usize {
        self.bound.frames(port, class)
    }

    /// Sets the first class among the ports here. [`Priority::LAST`]: the schedule ignores classes.
    pub fn set_first(&mut self, first: Priority) {
        self.bound.set_first(first);
    }

    /// Charges all cycles from the last bill until `now`. `price` is what the cost model expects a
    /// batch to cost, if it has a model.
    #[inline]
    pub fn settle<P: Iterator<Item = (PortId, u64)>>(
        &mut self,
        now: Cycles,
        payer: Payer<P>,
        price: impl FnOnce() -> Option<Cycles>,
        books: Books<'_>,
    ) -> Settled {
        let passed = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        let stolen = if self.stolen.is_suspicious(passed) {
            self.take_stolen(passed, &payer, price(), books)
        } else {
            Cycles::ZERO
        };
        let cost = passed.saturating_sub(stolen);
        let mut left = true;
        match payer {
            Payer::Unit(batch) => left = self.charge_unit(&batch, cost, now, books),
            Payer::Ports { parts, frames } => self.charge_ports(cost, parts, frames, now, books),
            Payer::Host => self.charge_host(cost),
            Payer::Nobody => self.counters.cycles_idle.add(cost.0),
        }
        Settled { cost, left, whole: stolen == Cycles::ZERO }
    }

    /// The part of `passed` during which the thread did not run.
    #[cold]
    fn take_stolen<P>(
        &mut self,
        passed: Cycles,
        payer: &Payer<P>,
        price: Option<Cycles>,
        books: Books<'_>,
    ) -> Cycles {
        let stolen = match payer {
            Payer::Host => self.stolen.of_host(passed),
            _ => self.stolen.of(passed, price),
        };
        if stolen == Cycles::ZERO {
            return stolen;
        }
        self.counters.cycles_stolen.add(stolen.0);
        self.meter.lose(stolen);
        if matches!(payer, Payer::Unit(_) | Payer::Ports { .. }) {
            self.counters.stolen_batches.add(1);
        }
        if let Payer::Unit(batch) = payer
            && let Some(counters) = books.counters[batch.unit.port.index()].as_deref()
        {
            counters.stolen.add(stolen.0);
        }
        stolen
    }

    #[inline]
    fn charge_unit(
        &mut self,
        batch: &OwnBatch,
        cost: Cycles,
        now: Cycles,
        books: Books<'_>,
    ) -> bool {
        let &OwnBatch { unit, class, frames, more, lent } = batch;
        let Some(counters) = books.counters[unit.port.index()].as_deref() else {
            self.charge_host(cost);
            return true;
        };
        self.stolen.note_usual(cost);
        self.counters.cycles_charged.add(cost.0);
        counters.cycles.add(cost.0);
        self.pace.spend(cost, now);
        if unit.queue != OUTPUT {
            self.bound.note(unit.port, class, frames, cost);
        }
        let left = self.meter.charge_batch(unit, cost, more, now, counters);
        if lent {
            self.meter.lend(unit.port, cost);
            self.counters.lent_batches.add(1);
        }
        left
    }

    fn charge_ports(
        &mut self,
        cost: Cycles,
        parts: impl Iterator<Item = (PortId, u64)>,
        frames: u64,
        now: Cycles,
        books: Books<'_>,
    ) {
        self.pace.spend(cost, now);
        let mut rest = Parts { cost: cost.0, frames };
        for (port, frames) in parts {
            let part = rest.next(frames);
            let Some(counters) = books.counters.get(port.index()).and_then(Option::as_deref) else {
                self.charge_host(part);
                continue;
            };
            self.counters.cycles_charged.add(part.0);
            counters.cycles.add(part.0);
            self.meter.pay(port, part);
            if !self.meter.is_metered(port) {
                books.peers.directory().notes.spend(port, books.peers.id(), part.0);
            }
        }
        // There was no port at all.
        self.charge_host(Cycles(rest.cost));
    }

    #[inline]
    fn charge_host(&mut self, cost: Cycles) {
        self.counters.cycles_host.add(cost.0);
        self.meter.lose(cost);
    }
}

/// A cost in parts by frames. The parts add up to the cost: a rest that rounding left to nobody
/// would be generated for a bucket that nobody empties.
struct Parts {
    cost: u64,
    frames: u64,
}

impl Parts {
    /// The part of the next `frames` frames.
    fn next(&mut self, frames: u64) -> Cycles {
        let part = self.cost.saturating_mul(frames) / self.frames.max(1);
        let part = if frames >= self.frames { self.cost } else { part };
        (self.cost, self.frames) = (self.cost - part, self.frames.saturating_sub(frames));
        Cycles(part)
    }
}

#[cfg(test)]
mod tests;
