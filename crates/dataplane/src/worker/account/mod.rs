//! A worker's account determines which port pays for each cycle.
//!
//! # Problem
//!
//! A purchased share of a core is worth its price only if each VM pays for all work that the VM
//! causes. A VM causes work in its own batches and also outside its own batches. Examples of work
//! outside batches are sending the VM's frames from an output queue, delivering the VM's frames
//! from another worker, and kicks. If one part of the loop does not charge its cycles, the port
//! with the next batch pays for these cycles.
//!
//! # Source
//!
//! In C2QoS §IV-A, a worker checks a VM's tokens before each batch, and charges the VM after each
//! batch.
//!
//! # Approach
//!
//! After each piece of work (a batch, a delivery, a kick or a refill), the worker settles one bill.
//! [`Account::settle`] is the only function that charges cycles to ports. A bill contains all
//! cycles since the worker settled the previous bill. Each cycle of a worker is part of exactly one
//! bill. The following four counters therefore add up to the worker's time.
//!
//! | Counter | Cycles |
//! |---|---|
//! | `cycles_charged` | cycles for frames, which are the sum of all ports' `cycles` |
//! | `cycles_host` | cycles for work that no port caused: control requests, refills, ageing |
//! | `cycles_idle` | cycles of turns without work |
//! | `cycles_stolen` | cycles in which the worker's thread did not run |
//!
//! If frames come from a port that was removed from the worker, the host pays for the frames.
//!
//! # Cost
//!
//! The worker reads the cycle counter once for each bill. Each batch and each kick causes one bill.

mod bound;
mod meter;
mod pace;
mod stolen;

use std::sync::Arc;

use penstock_units::{Cycles, PortId, Priority};

use crate::counters::{PortCounters, WorkerCounters};
use crate::peers::Peers;
use crate::unit::OUTPUT;
use crate::unit::Unit;
use crate::worker::config::WorkerConfig;
use bound::BatchBound;
use pace::Pace;
use stolen::StolenTime;

pub(super) use meter::Meter;
pub use meter::terms as bucket_terms;
pub use stolen::RunQueueWait;

/// A batch that is charged to the port of the unit that ran the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnBatch {
    pub unit: Unit,
    /// Class of the unit's port.
    pub class: Priority,
    pub frames: usize,
    /// Whether the unit still has waiting frames after the batch.
    pub more: bool,
    /// Whether the batch ran although its port had no tokens, because no port with tokens had
    /// frames.
    pub lent: bool,
}

/// Determines who pays for the cycles of a bill.
#[derive(Debug)]
pub(super) enum Payer<P> {
    /// The port of the unit that ran the batch pays for the cycles of the bill.
    Unit(OwnBatch),
    /// Several ports share the bill's cycles, in proportion to the number of frames of each port.
    /// `frames` is the sum of the ports' frames. The caller computes the sum, because the iterator
    /// `parts` can be read only once.
    Ports { parts: P, frames: u64 },
    /// The work is the host's own, for example a refill or a control request, so no port pays.
    Host,
    /// No port pays for the cycles of the bill, because the worker found no work in the turn.
    Nobody,
}

/// Value for the type parameter of [`Payer`] if the payer is not a list of ports.
pub(super) type NoParts = core::iter::Empty<(PortId, u64)>;

/// The port counters that the account increases, and the other workers that may have to charge a
/// port.
#[derive(Clone, Copy)]
pub(super) struct Books<'a> {
    /// Port counters, indexed by port number. A port's entry is `None` if the port is not on this
    /// worker.
    pub counters: &'a [Option<Arc<PortCounters>>],
    /// The other workers. One of them may have the cycle bucket of a port that must pay for work on
    /// this worker.
    pub peers: &'a Peers,
}

/// Result of [`Account::settle`]: the charged cycles, and whether the payer has tokens left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// Number of cycles that were charged to the payer. Stolen cycles are not part of the number.
    pub cost: Cycles,
    /// Whether the port of the unit that ran the batch still has tokens.
    pub left: bool,
    /// Whether the worker's thread had its core during all cycles of the bill.
    pub whole: bool,
}

/// The account of one worker, which assigns each cycle to a payer.
#[derive(Debug)]
pub(super) struct Account {
    /// Reading of the cycle counter at which the worker settled its last bill.
    last: Cycles,
    meter: Meter,
    pace: Pace,
    bound: BatchBound,
    stolen: StolenTime,
    counters: Arc<WorkerCounters>,
}

impl Account {
    /// Creates the account of a worker.
    pub fn new(config: &WorkerConfig, now: Cycles, wait: Option<RunQueueWait>) -> Self {
        let core = config.tsc;
        Self {
            last: now,
            meter: Meter::new(config),
            pace: Pace::new(core, config.capacity),
            bound: BatchBound::new(config.max_ports, core),
            stolen: StolenTime::new(core, wait),
            counters: Arc::new(WorkerCounters::default()),
        }
    }

    /// Returns the reading of the cycle counter at the end of the last bill.
    #[inline]
    pub const fn last(&self) -> Cycles {
        self.last
    }

    pub const fn counters(&self) -> &Arc<WorkerCounters> {
        &self.counters
    }

    /// Returns the worker's cycle buckets.
    #[inline]
    pub const fn buckets(&self) -> &Meter {
        &self.meter
    }

    #[inline]
    pub const fn buckets_mut(&mut self) -> &mut Meter {
        &mut self.meter
    }

    /// Whether the worker has used all of its share of the core, so that no batch may run yet.
    #[inline]
    pub fn rests(&self) -> bool {
        self.pace.rests(self.last)
    }

    /// Returns the counter reading at which the worker may run batches again. Returns `None` if the
    /// worker need not wait and may run a batch now.
    pub fn rests_until(&self) -> Option<Cycles> {
        self.pace.next_due(self.last)
    }

    /// Returns the maximum number of frames in the port's next batch.
    #[inline]
    pub fn batch_limit(&self, port: PortId, class: Priority) -> usize {
        self.bound.frames(port, class)
    }

    #[cfg(test)]
    pub const fn first(&self) -> Priority {
        self.bound.first
    }

    /// Sets the highest class of the worker's ports. [`Priority::LAST`] means that the schedule
    /// ignores classes.
    pub fn set_first(&mut self, first: Priority) {
        self.bound.set_first(first);
    }

    /// Records that `frames` frames of the ports in `parts` caused a call of the kernel, which cost
    /// `cost`.
    pub fn note_call(
        &mut self,
        cost: Cycles,
        parts: impl Iterator<Item = (PortId, u64)>,
        frames: u64,
    ) {
        self.counters.cycles_notified.add(cost.0);
        let mut rest = Parts { cost: cost.0, frames };
        for (port, frames) in parts {
            self.bound.note_call(port, rest.next(frames));
        }
    }

    /// Settles a bill: charges all cycles since the previous bill until `now` to the payer. `price`
    /// computes the expected cost of the batch, or returns `None` if the worker has no cost model.
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

    /// Charges the host for `cost` of the cycles since the last bill, at most those until `now`.
    /// The rest of these cycles belongs to the next bill.
    pub fn exempt(&mut self, cost: Cycles, now: Cycles) {
        let cost = cost.min(now.saturating_sub(self.last));
        self.last += cost;
        self.charge_host(cost);
    }

    /// Determines how many of the `passed` cycles another thread or the kernel used instead of the
    /// worker's thread, and counts these cycles as stolen.
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
            Payer::Ports { .. } => self.stolen.of_calls(passed),
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
        self.meter.spend_on_host(cost);
    }
}

/// Divides a cost among several payers in proportion to their numbers of frames. The parts of a
/// divided cost add up exactly to the cost. If rounding lost cycles, the worker would spend these
/// cycles without charging them to any port.
struct Parts {
    cost: u64,
    frames: u64,
}

impl Parts {
    /// Returns the part of the cost for the next payer, which has `frames` frames.
    fn next(&mut self, frames: u64) -> Cycles {
        let part = self.cost.saturating_mul(frames) / self.frames.max(1);
        let part = if frames >= self.frames { self.cost } else { part };
        (self.cost, self.frames) = (self.cost - part, self.frames.saturating_sub(frames));
        Cycles(part)
    }
}

#[cfg(test)]
mod tests;
