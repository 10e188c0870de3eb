//! Before a batch, the meter checks that the port has cycles in its bucket. After the batch, the
//! meter charges the bucket. The meter also refills all buckets.
//!
//! # Source
//!
//! The C2QoS paper describes token buckets of CPU cycles (cycle buckets) in §IV-A.
//!
//! # Approach
//!
//! A refill is due once per interval. After each batch, the worker compares its last reading of the
//! cycle counter with the time at which the next refill is due. If no port with frames has tokens,
//! the worker refills early, as soon as a refill would give tokens to one of the ports. Two refills
//! are always at least half of the refill interval apart.
//!
//! A refill generates as many cycles as passed since the last refill, minus the cycles in which
//! another thread or the kernel had the core. The host's work and ports without a bucket spend
//! unsold cycles first. While the core is not oversold, a port gets all its purchased cycles. If
//! one port on a worker with class scheduling purchased cycles, ports without purchased cycles also
//! get buckets ([`Mode::Free`]).
//!
//! # Cost
//!
//! If no port of the worker is metered, the check of a port's tokens costs one load and one
//! comparison. If ports are metered, the accounting of a batch costs a few loads and comparisons
//! and one addition.

use penstock_qos::c2tb::{BucketSet, Ledger, Mode, Terms, default_depth, free_floor};
use penstock_qos::share::{Owner, forecast, settle};
use penstock_units::{Cycles, CyclesPerSecond, PortId, TscRate, WorkerId};

use crate::counters::PortCounters;
use crate::peers::Notes;
use crate::peers::WORKERS_MAX;
use crate::snapshot::{IngressPolicy, PortQos};
use crate::unit::Unit;
use crate::worker::config::WorkerConfig;

/// Extra depth of a port's bucket if several workers have queue pairs of the port, in milliseconds
/// of the port's entitlement on this worker. The extra depth keeps the port's tokens until this
/// worker learns that another worker needs the tokens.
const SHARED_DEPTH_MS: u64 = 4;
/// Divisor of the refill interval: the shortest time between a refill and an early refill is the
/// interval divided by this number. With a divisor of 8 instead of 2, the refills for one strict
/// port on an otherwise idle core took 2 % of the core.
const EARLY: u64 = 2;
/// Maximum number of ports for which the worker computes the time of their next tokens.
const ASKED: usize = 16;

/// The cycle buckets of a worker.
#[derive(Debug)]
pub(in crate::worker) struct Meter {
    buckets: BucketSet,
    core: TscRate,
    capacity: CyclesPerSecond,
    /// Cycles per second reserved for each port without purchased cycles. The value is `None` if
    /// ports without purchased cycles have no bucket.
    floor: Option<CyclesPerSecond>,
    interval: u64,
    /// Reading of the cycle counter at which the next refill of the buckets is due. The value is
    /// `u64::MAX` if the worker has no cycle bucket.
    due: u64,
    refilled_at: u64,
    /// Number of cycles since the last refill in which the worker could not run a batch.
    lost: u64,
    metered: usize,
    /// Whether, since the last refill, the scheduler picked a port that had no tokens.
    throttled: bool,
    /// Whether, since the last refill, a scheduling decision ended without any port that had both
    /// tokens and frames.
    passed: bool,
    /// Reading of the cycle counter from which an early refill would give tokens to a port that has
    /// none. The value is 0 if the time of the next tokens is not known.
    frees_at: u64,
    /// Numbers of the ports that have a cycle bucket on this worker, in no particular order.
    ports: Vec<PortId>,
    /// Index in `ports` of the port with the most recently published counters.
    next: usize,
    /// Number of cycles generated since the start, which is the clock of entitlements.
    clock: u64,
    books: Box<[Books]>,
    /// Whether a port's number of workers changed after the floor was computed.
    floor_is_stale: bool,
}

/// A worker's accounting records for one port's token bucket. The bucket itself contains the
/// tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    /// Reading of the cycle counter when the port ran out of tokens while its frames waited. The
    /// counter reading is 0 if the port has tokens, or if none of the port's frames wait.
    empty_since: u64,
    /// Value of the field `clock` when the worker last increased the port's counter of entitled
    /// cycles.
    entitled_at: u64,
    /// Total of the tokens that the port's home worker granted to this worker, and that this worker
    /// has added to its bucket.
    booked: i64,
    /// Total of the cycles that other workers spent for the port, and that this worker, as the
    /// port's home, has already charged.
    spent: u64,
    /// Value of `clock` at which this worker, as the port's home, last moved tokens between
    /// workers.
    settled_at: u64,
    /// Bucket level in tokens that this worker last reported to the other workers.
    noted: i64,
    /// Value of the field `clock` when this worker last reported the level of the port's bucket to
    /// the other workers.
    noted_at: u64,
    /// Number of workers with queue pairs of the port.
    parts: u64,
    /// Bit mask with one bit for each unit of the port (queue pair or output queue). A bit is set
    /// if frames waited at the unit. A port keeps its tokens as long as frames wait at one of its
    /// units, even if its other units are empty.
    waiting: u16,
}

impl Books {
    /// Records whether frames wait at a unit. Returns true if the record of whether frames wait at
    /// the unit changed.
    #[inline]
    fn mark_waiting(&mut self, unit: Unit, waiting: bool) -> bool {
        let (bit, before) = (1 << unit.queue.0, self.waiting);
        self.waiting = if waiting { before | bit } else { before & !bit };
        self.waiting != before
    }
}

/// Returns the parameters of a port's token bucket on one worker. `parts` is the number of workers
/// that have queue pairs of the port. `floor` is the worker's entitlement for a port without
/// purchased cycles.
#[must_use]
pub fn terms(qos: &PortQos, parts: u64, core: TscRate, floor: Option<CyclesPerSecond>) -> Terms {
    let parts = parts.max(1);
    // A floor already belongs to a single worker.
    let entitlement = match floor.filter(|_| !qos.ingress.is_metered()) {
        Some(floor) => floor,
        None => CyclesPerSecond(qos.entitlement.0 / parts),
    };
    let by_default = || {
        let shared = if parts > 1 { entitlement.0 / 1_000 * SHARED_DEPTH_MS } else { 0 };
        default_depth(entitlement, core) + Cycles(shared)
    };
    Terms {
        entitlement,
        weight: qos.weight,
        mode: match qos.ingress {
            IngressPolicy::CyclesStrict => Mode::Strict,
            IngressPolicy::CyclesMinmax => Mode::MinMax,
            IngressPolicy::None | IngressPolicy::Bps | IngressPolicy::Pps => Mode::Free,
        },
        depth: qos.depth.unwrap_or_else(by_default),
    }
}

impl Meter {
    pub(super) fn new(config: &WorkerConfig) -> Self {
        let (slots, core) = (config.max_ports, config.tsc);
        let capacity = config.capacity.unwrap_or(CyclesPerSecond(core.hz()));
        Self {
            buckets: BucketSet::new(slots, core, capacity).with_spare(config.spare),
            core,
            capacity,
            floor: None,
            interval: core.to_cycles(config.refill).0.max(EARLY),
            due: u64::MAX,
            refilled_at: 0,
            lost: 0,
            metered: 0,
            throttled: false,
            passed: false,
            frees_at: 0,
            ports: Vec::with_capacity(slots),
            next: 0,
            clock: 0,
            books: vec![Books::default(); slots].into_boxed_slice(),
            floor_is_stale: false,
        }
    }

    /// Sets the token bucket parameters of a port that has queue pairs on this worker. `tokens` is
    /// the bucket level that the port brings from its previous worker.
    pub fn set(&mut self, port: PortId, qos: &PortQos, tokens: i64, now: Cycles) {
        self.frees_at = 0;
        if !self.meters(qos) {
            self.leave(port);
            return;
        }
        let parts = self.books[port.index()].parts.max(1);
        let terms = terms(qos, parts, self.core, self.floor);
        if self.buckets.is_metered(port.index()) && tokens == 0 {
            self.buckets.change(port.index(), &terms);
            return;
        }
        if self.metered == 0 {
            (self.refilled_at, self.lost) = (now.0, 0);
            self.due = now.0.saturating_add(self.interval);
        }
        if !self.buckets.is_metered(port.index()) {
            self.metered += 1;
            self.ports.push(port);
            let (entitled_at, settled_at, noted_at) = (self.clock, self.clock, self.clock);
            self.books[port.index()] =
                Books { entitled_at, settled_at, noted_at, parts, ..Books::default() };
        }
        self.buckets.join(port.index(), &terms, tokens);
    }

    /// Whether a port with the QoS parameters `qos` gets a cycle bucket on this worker.
    pub fn meters(&self, qos: &PortQos) -> bool {
        qos.ingress.is_metered() || self.floor.is_some()
    }

    /// Computes and sets the floor: the entitlement of each port without purchased cycles. `free`
    /// is the number of the worker's ports without purchased cycles, and `sold` is the sum of the
    /// entitlements of the worker's ports with purchased cycles. `sold` is `None` if none of the
    /// worker's ports purchased cycles, or if the schedule ignores classes. Returns true if the
    /// floor changed.
    pub fn set_floor(&mut self, sold: Option<CyclesPerSecond>, free: usize) -> bool {
        self.floor_is_stale = false;
        let floor = sold.map(|sold| free_floor(self.capacity, sold, free));
        core::mem::replace(&mut self.floor, floor) != floor
    }

    /// Removes the cycle bucket of a port, because no queue pair of the port is on this worker any
    /// more. Returns the bucket's tokens.
    pub fn leave(&mut self, port: PortId) -> i64 {
        if !self.buckets.is_metered(port.index()) {
            return 0;
        }
        self.metered -= 1;
        self.ports.retain(|other| *other != port);
        if self.metered == 0 {
            self.due = u64::MAX;
        }
        self.buckets.leave(port.index())
    }

    /// Whether a port has cycles in its bucket, so that it may run a batch. In C2QoS, the check
    /// before a batch is called the gate.
    #[inline]
    pub fn may_run(&self, port: PortId) -> bool {
        self.buckets.may_run(port.index())
    }

    /// Records that the scheduler picked a port that had no tokens.
    #[inline]
    pub fn note_throttled(&mut self) {
        self.throttled = true;
    }

    /// Records that a scheduling decision ended without any port that had both tokens and frames.
    #[inline]
    pub fn note_passed(&mut self) {
        self.passed = true;
    }

    /// Records whether a unit (a queue pair or an output queue) has waiting frames, for a unit that
    /// ran no batch.
    #[inline]
    pub fn note_waiting(&mut self, unit: Unit, waiting: bool) {
        if self.metered == 0 {
            return;
        }
        let Some(books) = self.books.get_mut(unit.port.index()) else { return };
        if books.mark_waiting(unit, waiting) {
            self.buckets.note_waiting(unit.port.index(), books.waiting != 0);
            if books.waiting == 0 {
                books.empty_since = 0;
            }
        }
    }

    /// Records that frames wait at a port. If the port has no tokens, the frames wait for cycles
    /// since the last refill.
    #[inline]
    pub fn note_wants(&mut self, port: PortId) {
        let without = self.metered > 0 && !self.buckets.may_run(port.index());
        if let Some(books) = self.books.get_mut(port.index()).filter(|_| without)
            && books.empty_since == 0
        {
            books.empty_since = self.refilled_at;
        }
    }

    /// Whether a port without tokens may use time that no port with tokens needs.
    #[inline]
    pub fn may_borrow(&self, port: PortId) -> bool {
        self.buckets.may_borrow(port.index())
    }

    /// Whether some port may have waiting frames but no tokens. `held` is true if the scheduler
    /// excludes at least one unit because the unit's port has no tokens.
    #[inline]
    pub const fn holds_back(&self, held: bool) -> bool {
        held || self.throttled
    }

    /// Gives the tokens of a port's last batch back to the port, because the batch ran in time that
    /// no other port needed.
    pub(super) fn lend(&mut self, port: PortId, cost: Cycles) {
        self.frees_at = 0;
        self.buckets.lend(port.index(), cost);
    }

    /// Returns the number of workers with queue pairs of a port, according to this worker's
    /// records. The number of workers is at least 1.
    pub fn parts(&self, port: PortId) -> u64 {
        self.books[port.index()].parts.max(1)
    }

    /// Charges a port for work outside its own batches, for example if its frames left an output
    /// queue or needed a kick. If a port is charged for work outside its own batches, the record of
    /// whether the port has waiting frames does not change.
    #[inline]
    pub(super) fn pay(&mut self, port: PortId, cost: Cycles) {
        let more = self.books.get(port.index()).is_some_and(|books| books.waiting != 0);
        if !self.buckets.charge(port.index(), cost, more) {
            self.frees_at = 0;
        }
    }

    /// Charges a port for a batch that ended now. `more` is true if the unit that ran the batch
    /// still has waiting frames. If the port had no tokens before the batch, the counter
    /// `throttled` grows by the time without tokens, up to the last refill. Returns true if the
    /// port still has tokens after the charge.
    #[inline]
    pub(super) fn charge_batch(
        &mut self,
        unit: Unit,
        cost: Cycles,
        more: bool,
        now: Cycles,
        counters: &PortCounters,
    ) -> bool {
        let Some(books) = self.books.get_mut(unit.port.index()) else { return true };
        books.mark_waiting(unit, more);
        let left = self.buckets.charge(unit.port.index(), cost, books.waiting != 0);
        if !left {
            self.frees_at = 0;
        }
        if self.metered > 0 {
            if books.empty_since != 0 {
                // The port got tokens at the last refill. Since then it only waited for its turn.
                counters.throttled.add(self.refilled_at.saturating_sub(books.empty_since));
            }
            books.empty_since = if !left && more { now.0 } else { 0 };
        }
        left
    }

    /// Returns the next port that has a cycle bucket, in rotation.
    pub fn next_port(&mut self) -> Option<PortId> {
        self.next = if self.next + 1 < self.ports.len() { self.next + 1 } else { 0 };
        self.ports.get(self.next).copied()
    }

    /// Updates a port's counters from its bucket.
    pub fn publish(&mut self, port: PortId, counters: &PortCounters) {
        let books = &mut self.books[port.index()];
        let passed = self.clock - core::mem::replace(&mut books.entitled_at, self.clock);
        let entitled = self.buckets.entitled(port.index(), Cycles(passed));
        counters.cycles_entitled.add(entitled.0);
        let tokens = self.buckets.tokens(port.index());
        counters.tokens.set(tokens.max(0).unsigned_abs());
        counters.debt.set(tokens.min(0).unsigned_abs());
    }

    /// Adds tokens that the port's home worker granted since the last call to the bucket, and
    /// reports the bucket's level to the other workers.
    pub fn book(&mut self, port: PortId, me: WorkerId, notes: &Notes) {
        if !self.buckets.is_metered(port.index()) {
            return;
        }
        let told = notes.told(port, me);
        let books = &mut self.books[port.index()];
        let due = told - core::mem::replace(&mut books.booked, told);
        let passed = self.clock - core::mem::replace(&mut books.noted_at, self.clock);
        let generated = self.buckets.entitled(port.index(), Cycles(passed)).0;
        let before = self.buckets.tokens(port.index());
        let spent = books.noted.saturating_add_unsigned(generated).saturating_sub(before);
        self.buckets.transfer(port.index(), due);
        self.frees_at = 0;
        books.noted = before.saturating_add(due);
        let depth = self.buckets.depth(port.index());
        notes.note(port, me, forecast(books.noted, spent), told, depth);
    }

    /// Starts new accounting records for a port that gets a token bucket on this worker. The
    /// records begin at the present totals, so tokens that the port's home worker granted before
    /// the call do not count.
    pub fn begin_books(&mut self, port: PortId, me: WorkerId, notes: &Notes) {
        let books = &mut self.books[port.index()];
        (books.booked, books.spent) = (notes.told(port, me), notes.spent(port));
        notes.note(port, me, self.buckets.tokens(port.index()), books.booked, 0);
    }

    /// Records how many workers have queue pairs of a port. Returns true if the number of workers
    /// changed.
    pub fn set_parts(&mut self, port: PortId, parts: u64) -> bool {
        let books = &mut self.books[port.index()];
        let changed = core::mem::replace(&mut books.parts, parts) != parts;
        self.floor_is_stale |= changed;
        changed
    }

    /// Returns the floor, and the terms of a port's bucket.
    #[cfg(test)]
    pub fn state(&self, port: PortId) -> String {
        let (set, at) = (&self.buckets, port.index());
        let entitled = set.entitled(at, Cycles(1 << 30));
        let terms = (set.mode(at), set.weight_of(at), set.depth(at), entitled);
        format!("{:?}", (self.floor, set.sold(), set.is_metered(at), terms))
    }

    /// Whether the floor may differ if it were computed now with the same entitlements.
    pub const fn floor_is_stale(&self) -> bool {
        self.floor_is_stale
    }

    /// Exchanges cycles of a port between the workers that have queue pairs of the port. Only the
    /// port's home worker calls this function. Charges cycles that other workers spent, and moves
    /// tokens away from workers that do not need the tokens. `owners` is a bit mask with one bit
    /// for each worker that has queue pairs of the port.
    pub fn settle(&mut self, port: PortId, owners: u32, notes: &Notes) {
        let books = &mut self.books[port.index()];
        let spent = notes.spent(port);
        let due = spent.wrapping_sub(core::mem::replace(&mut books.spent, spent));
        self.buckets.charge_elsewhere(port.index(), Cycles(due));
        let passed = self.clock - core::mem::replace(&mut books.settled_at, self.clock);
        if owners.count_ones() < 2 {
            return;
        }
        // Tokens beyond the entitlement, from the weighted pool, stay with their worker.
        let generated = self.buckets.entitled(port.index(), Cycles(passed)).0;
        let cap = match self.buckets.mode(port.index()) {
            Mode::Strict => i64::MAX,
            Mode::MinMax | Mode::Free => i64::try_from(generated).unwrap_or(i64::MAX),
        };
        let mut all = [Owner::default(); WORKERS_MAX];
        let workers = || (0_u16..).map(WorkerId).take(notes.workers().min(WORKERS_MAX));
        let owns = |worker: WorkerId| owners & 1 << worker.0 != 0;
        let mut count = 0;
        for worker in workers().filter(|&worker| owns(worker)) {
            let (level, depth) = notes.level(port, worker);
            all[count] = Owner { level, depth, cap, moved: 0 };
            count += 1;
        }
        settle(&mut all[..count]);
        for (worker, owner) in workers().filter(|&worker| owns(worker)).zip(&all) {
            if owner.moved != 0 {
                notes.tell(port, worker, owner.moved);
            }
        }
    }

    /// Whether the worker has a bucket.
    pub const fn has_any(&self) -> bool {
        self.metered > 0
    }

    /// Whether a port has a bucket on this worker.
    pub fn is_metered(&self, port: PortId) -> bool {
        self.buckets.is_metered(port.index())
    }

    /// Counts cycles in which the worker could not run a batch, so that the next refill does not
    /// generate these cycles.
    #[inline]
    pub(super) fn lose(&mut self, cycles: Cycles) {
        self.lost += cycles.0;
    }

    /// Adds cycles of the host's own work, which no port caused.
    #[inline]
    pub(super) fn spend_on_host(&mut self, cycles: Cycles) {
        self.buckets.spend_on_host(cycles);
    }

    #[inline]
    pub fn is_due(&self, now: Cycles) -> bool {
        now.0 >= self.due
    }

    /// Whether a refill before the end of the refill interval would now give tokens to a port with
    /// waiting frames. `held` is true if the scheduler excludes at least one unit because the
    /// unit's port has no tokens.
    #[inline]
    pub fn is_due_early(&mut self, now: Cycles, held: bool) -> bool {
        if !self.holds_back(held) || now.0 < self.early() {
            return false;
        }
        if self.frees_at == 0 {
            self.frees_at = self.soonest();
        }
        now.0 >= self.frees_at
    }

    fn early(&self) -> u64 {
        self.refilled_at.saturating_add(self.interval / EARLY)
    }

    /// Computes `frees_at`. If more than [`ASKED`] ports have a bucket, the computation would cost
    /// as much as a refill. The function then returns the time of the last refill.
    fn soonest(&self) -> u64 {
        if self.ports.len() > ASKED {
            return self.refilled_at.max(1);
        }
        let waits = self.ports.iter().filter_map(|port| self.buckets.wait(port.index()));
        waits.min().map_or(self.due, |wait| self.refilled_at.saturating_add(wait.0)).max(1)
    }

    /// Returns the reading of the cycle counter at which an early or regular refill may give an
    /// idle worker work again.
    pub fn next_due(&self, held: bool) -> Option<Cycles> {
        let early = || self.early().max(self.soonest()).min(self.due);
        (self.metered > 0 && self.holds_back(held)).then(|| Cycles(early()))
    }

    /// Refills the buckets. Returns whether a scheduling decision since the last refill found no
    /// port with both tokens and frames.
    pub fn refill(&mut self, now: Cycles) -> bool {
        let elapsed = now.0.saturating_sub(self.refilled_at).saturating_sub(self.lost);
        (self.refilled_at, self.lost, self.frees_at) = (now.0, 0, 0);
        self.due = now.0.saturating_add(self.interval);
        self.throttled = false;
        self.clock += elapsed;
        self.buckets.refill(Cycles(elapsed));
        core::mem::take(&mut self.passed)
    }

    pub fn tokens(&self, port: PortId) -> i64 {
        self.buckets.tokens(port.index())
    }

    pub fn ledger(&self) -> Ledger {
        self.buckets.ledger()
    }
}
