//! The cycle buckets in the worker's loop: the gate before a batch, the charge after it, and the
//! refill in between.
//!
//! **Rule** (C2QoS §IV-A). A refill is due every interval; the worker looks at a number it holds
//! anyway (its last counter reading) after each batch. When all that have frames are out of tokens
//! it does not wait for the interval's end: an eighth of it is enough. What is generated is what
//! the core could have spent: the time since the last refill, less what the kernel took away, what
//! control requests took, and what ports without a bucket spent. Where ports are scheduled by
//! class, those that bought nothing have a bucket too as soon as one did ([`Mode::Free`]).
//! **Cost.** Without any metered port: one load and comparison a look, and a few of them and an
//! addition a batch.

use penstock_qos::c2tb::{BucketSet, Ledger, Mode, Terms, default_depth, free_floor};
use penstock_qos::share::{Owner, forecast, settle};
use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, TscRate, WorkerId};

use crate::counters::PortCounters;
use crate::schedule::{IngressPolicy, PortQos, Unit};
use crate::worker::WORKERS_MAX;
use crate::worker::split::Notes;

/// Milliseconds of its entitlement there that a bucket of a port on several workers holds beside
/// the default: what one of them generates until it is heard that another needs it.
const SHARED_DEPTH_MS: u64 = 4;
/// Part of the interval after which a refill may come early.
const EARLY: u64 = 8;

/// See the module's text.
#[derive(Debug)]
pub(in crate::worker) struct Meter {
    buckets: BucketSet,
    core: TscRate,
    capacity: CyclesPerSecond,
    /// What each port that bought nothing is sure of; `None`: it has no bucket.
    floor: Option<CyclesPerSecond>,
    interval: u64,
    /// The count at which a refill is due; never, without a bucket.
    due: u64,
    refilled_at: u64,
    /// Cycles since then in which no batch could run.
    lost: u64,
    metered: usize,
    /// Somebody with its turn had no tokens since the last refill.
    throttled: bool,
    /// A decision found nobody with tokens and frames since the last refill.
    passed: bool,
    /// Ports with a bucket, in no order, and whose books are next.
    ports: Vec<PortId>,
    next: usize,
    /// Cycles generated for so far: the clock of entitlements.
    clock: u64,
    books: Box<[Books]>,
}

/// What is kept about a port's bucket beside its tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    /// The count at which it ran out of tokens while frames waited; 0: it did not.
    empty_since: u64,
    /// The clock when its entitlement was last added up.
    entitled_at: u64,
    /// Of what it was told by its home.
    booked: i64,
    /// Of what others spent for it.
    spent: u64,
    /// The clock when its home last settled.
    settled_at: u64,
    /// Its level and the clock when last noted.
    noted: i64,
    noted_at: u64,
    /// On how many workers it has queue pairs.
    parts: u64,
    /// Its units at which frames were seen waiting, a bit each. What one of them finds empty takes
    /// nothing from the port while another has frames.
    waiting: u16,
}

impl Books {
    /// Notes whether frames wait at a unit. True: that is news.
    #[inline]
    fn mark_waiting(&mut self, unit: Unit, waiting: bool) -> bool {
        let (bit, before) = (1 << unit.queue.0, self.waiting);
        self.waiting = if waiting { before | bit } else { before & !bit };
        self.waiting != before
    }
}

/// The terms of a port's bucket on one of the `parts` workers that have queue pairs of it; `floor`
/// is what a port gets there that bought nothing.
#[must_use]
pub fn terms(qos: &PortQos, parts: u64, core: TscRate, floor: Option<CyclesPerSecond>) -> Terms {
    let parts = parts.max(1);
    // A floor is one worker's anyway.
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
    pub(super) fn new(
        slots: usize,
        core: TscRate,
        capacity: Option<CyclesPerSecond>,
        interval: Nanos,
    ) -> Self {
        let capacity = capacity.unwrap_or(CyclesPerSecond(core.hz()));
        Self {
            buckets: BucketSet::new(slots, core, capacity),
            core,
            capacity,
            floor: None,
            interval: core.to_cycles(interval).0.max(EARLY),
            due: u64::MAX,
            refilled_at: 0,
            lost: 0,
            metered: 0,
            throttled: false,
            passed: false,
            ports: Vec::with_capacity(slots),
            next: 0,
            clock: 0,
            books: vec![Books::default(); slots].into_boxed_slice(),
        }
    }

    /// A port's queue pairs are here, under these terms; `tokens` come with them.
    pub fn set(&mut self, port: PortId, qos: &PortQos, tokens: i64, now: Cycles) {
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

    /// Whether a port under these terms has a bucket here.
    pub fn meters(&self, qos: &PortQos) -> bool {
        qos.ingress.is_metered() || self.floor.is_some()
    }

    /// Told what those here bought (`None`: nobody did, or nobody can be kept from its turn) and
    /// how many bought nothing. True: those have buckets now and had none, or other ones, or none.
    pub fn set_floor(&mut self, sold: Option<CyclesPerSecond>, free: usize) -> bool {
        let floor = sold.map(|sold| free_floor(self.capacity, sold, free));
        core::mem::replace(&mut self.floor, floor) != floor
    }

    /// A port has no queue pair here any more; its tokens, to go with them.
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

    /// The gate: whether a port may run a batch.
    #[inline]
    pub fn may_run(&self, port: PortId) -> bool {
        self.buckets.may_run(port.index())
    }

    /// A port had its turn and no tokens.
    #[inline]
    pub fn note_throttled(&mut self) {
        self.throttled = true;
    }

    /// A decision came to its end.
    #[inline]
    pub fn note_passed(&mut self) {
        self.passed = true;
    }

    /// Whether frames were seen waiting at a unit without running a batch.
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

    /// Whether a port without tokens may run on time that nobody with tokens wants.
    #[inline]
    pub fn may_borrow(&self, port: PortId) -> bool {
        self.buckets.may_borrow(port.index())
    }

    /// Whether ports wait for tokens; `held`: the scheduler has put some aside.
    #[inline]
    pub const fn holds_back(&self, held: bool) -> bool {
        held || self.throttled
    }

    /// Gives back what a port's last batch was charged: it ran on time that nobody wanted.
    pub(super) fn lend(&mut self, port: PortId, cost: Cycles) {
        self.buckets.lend(port.index(), cost);
    }

    /// On how many workers a port has queue pairs, as far as is known here.
    pub fn parts(&self, port: PortId) -> u64 {
        self.books[port.index()].parts.max(1)
    }

    /// Takes what was spent for a port beside its own batches: its frames left an output, came from
    /// another worker, or needed a kick. That says nothing about what waits at its units.
    #[inline]
    pub(super) fn pay(&mut self, port: PortId, cost: Cycles) {
        let more = self.books.get(port.index()).is_some_and(|books| books.waiting != 0);
        self.buckets.charge(port.index(), cost, more);
    }

    /// Takes the cost of a batch that ended now, after which `more` frames wait at its unit. Counts
    /// the time for which the port was out of tokens before the batch while frames waited. Returns
    /// whether the port has tokens left.
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
        if self.metered > 0 {
            if books.empty_since != 0 {
                // It got its tokens at the last refill; what it waited for since was its turn.
                counters.throttled.add(self.refilled_at.saturating_sub(books.empty_since));
            }
            books.empty_since = if !left && more { now.0 } else { 0 };
        }
        left
    }

    /// The port whose books are to be brought up to date.
    pub fn next_port(&mut self) -> Option<PortId> {
        self.next = if self.next + 1 < self.ports.len() { self.next + 1 } else { 0 };
        self.ports.get(self.next).copied()
    }

    /// Brings a port's counters up to date.
    pub fn publish(&mut self, port: PortId, counters: &PortCounters) {
        let books = &mut self.books[port.index()];
        let passed = self.clock - core::mem::replace(&mut books.entitled_at, self.clock);
        let entitled = self.buckets.entitled(port.index(), Cycles(passed));
        counters.cycles_entitled.add(entitled.0);
        let tokens = self.buckets.tokens(port.index());
        counters.tokens.set(tokens.max(0).unsigned_abs());
        counters.debt.set(tokens.min(0).unsigned_abs());
    }

    /// Books what the port's home told this worker, and tells it the level.
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
        books.noted = before.saturating_add(due);
        let depth = self.buckets.depth(port.index());
        notes.note(port, me, forecast(books.noted, spent), told, depth);
    }

    /// Ignores what a port's home told this worker before it had a bucket for it.
    pub fn begin_books(&mut self, port: PortId, me: WorkerId, notes: &Notes) {
        let books = &mut self.books[port.index()];
        (books.booked, books.spent) = (notes.told(port, me), notes.spent(port));
        notes.note(port, me, self.buckets.tokens(port.index()), books.booked, 0);
    }

    /// On how many workers a port has queue pairs; true: that is news.
    pub fn set_parts(&mut self, port: PortId, parts: u64) -> bool {
        let books = &mut self.books[port.index()];
        core::mem::replace(&mut books.parts, parts) != parts
    }

    /// By the home of a port with queue pairs on `owners`, a bit each: takes what others spent for
    /// it, and has tokens moved from where they are not needed.
    pub fn settle(&mut self, port: PortId, owners: u32, notes: &Notes) {
        let books = &mut self.books[port.index()];
        let spent = notes.spent(port);
        let due = spent.wrapping_sub(core::mem::replace(&mut books.spent, spent));
        self.buckets.charge_elsewhere(port.index(), Cycles(due));
        let passed = self.clock - core::mem::replace(&mut books.settled_at, self.clock);
        if owners.count_ones() < 2 {
            return;
        }
        // What others left and the weights gave one worker's bucket stays there.
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

    /// Whether a port has a bucket here.
    pub fn is_metered(&self, port: PortId) -> bool {
        self.buckets.is_metered(port.index())
    }

    /// Cycles in which no batch could run.
    #[inline]
    pub(super) fn lose(&mut self, cycles: Cycles) {
        self.lost += cycles.0;
    }

    #[inline]
    pub fn is_due(&self, now: Cycles) -> bool {
        now.0 >= self.due
    }

    /// Whether ports wait for tokens and enough time has passed to give them some; `held`: the
    /// scheduler has put some aside.
    #[inline]
    pub fn is_due_early(&self, now: Cycles, held: bool) -> bool {
        self.holds_back(held) && now.0 >= self.early()
    }

    fn early(&self) -> u64 {
        self.refilled_at.saturating_add(self.interval / EARLY)
    }

    /// When a worker that found nothing could find something without anything happening outside.
    pub fn next_due(&self, held: bool) -> Option<Cycles> {
        (self.metered > 0 && self.holds_back(held)).then(|| Cycles(self.early()))
    }

    /// Refills; returns whether a decision had come to its end since the last time.
    pub fn refill(&mut self, now: Cycles) -> bool {
        let elapsed = now.0.saturating_sub(self.refilled_at).saturating_sub(self.lost);
        (self.refilled_at, self.lost) = (now.0, 0);
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
