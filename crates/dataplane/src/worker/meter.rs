//! The cycle buckets in the worker's loop: the gate before a batch, the charge after it, and the
//! refill in between.
//!
//! **Rule** (C2QoS §IV-A). A refill is due every interval; the worker looks at a number it holds
//! anyway (its last counter reading) after each batch. When all that have frames are out of tokens
//! it does not wait for the interval's end: an eighth of it is enough. What is generated is what
//! the core could have spent: the time since the last refill, less what the kernel took away, what
//! control requests took, and what ports without a bucket spent. **Cost.** Without any metered
//! port: one load and comparison a look, and one comparison a batch.

use penstock_qos::c2tb::{BucketSet, Ledger, Mode, Terms, default_depth};
use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, TscRate};

use crate::schedule::{IngressPolicy, PortQos};

/// Part of the interval after which a refill may come early.
const EARLY: u64 = 8;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Meter {
    buckets: BucketSet,
    core: TscRate,
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
            interval: core.to_cycles(interval).0.max(EARLY),
            due: u64::MAX,
            refilled_at: 0,
            lost: 0,
            metered: 0,
            throttled: false,
            passed: false,
        }
    }

    /// A port's queue pairs are here, under these terms; `tokens` come with them.
    pub(super) fn set(&mut self, port: PortId, qos: &PortQos, tokens: i64, now: Cycles) {
        if !qos.ingress.is_metered() {
            self.leave(port);
            return;
        }
        let terms = self.terms(qos);
        if self.buckets.is_metered(port.index()) && tokens == 0 {
            self.buckets.change(port.index(), &terms);
            return;
        }
        if self.metered == 0 {
            (self.refilled_at, self.lost) = (now.0, 0);
            self.due = now.0.saturating_add(self.interval);
        }
        self.metered += usize::from(!self.buckets.is_metered(port.index()));
        self.buckets.join(port.index(), &terms, tokens);
    }

    fn terms(&self, qos: &PortQos) -> Terms {
        Terms {
            entitlement: qos.entitlement,
            weight: qos.weight,
            mode: match qos.ingress {
                IngressPolicy::CyclesStrict => Mode::Strict,
                _ => Mode::MinMax,
            },
            depth: qos.depth.unwrap_or_else(|| default_depth(qos.entitlement, self.core)),
        }
    }

    /// A port has no queue pair here any more; its tokens, to go with them.
    pub(super) fn leave(&mut self, port: PortId) -> i64 {
        if !self.buckets.is_metered(port.index()) {
            return 0;
        }
        self.metered -= 1;
        if self.metered == 0 {
            self.due = u64::MAX;
        }
        self.buckets.leave(port.index())
    }

    /// The gate: whether a port may run a batch.
    #[inline]
    pub(super) fn may_run(&self, port: PortId) -> bool {
        self.buckets.may_run(port.index())
    }

    /// A port had its turn and no tokens.
    #[inline]
    pub(super) fn note_throttled(&mut self) {
        self.throttled = true;
    }

    /// A decision came to its end.
    #[inline]
    pub(super) fn note_passed(&mut self) {
        self.passed = true;
    }

    /// Whether frames were seen waiting at a port without running a batch.
    #[inline]
    pub(super) fn note_waiting(&mut self, port: PortId, waiting: bool) {
        self.buckets.note_waiting(port.index(), waiting);
    }

    /// Takes a batch's cost; false: the port has no tokens left.
    #[inline]
    pub(super) fn charge(&mut self, port: PortId, cost: Cycles, more: bool) -> bool {
        self.buckets.charge(port.index(), cost, more)
    }

    /// Cycles in which no batch could run.
    #[inline]
    pub(super) fn lose(&mut self, cycles: Cycles) {
        self.lost += cycles.0;
    }

    #[inline]
    pub(super) fn is_due(&self, now: Cycles) -> bool {
        now.0 >= self.due
    }

    /// Whether ports wait for tokens and enough time has passed to give them some; `held`: the
    /// scheduler has put some aside.
    #[inline]
    pub(super) fn is_due_early(&self, now: Cycles, held: bool) -> bool {
        (held || self.throttled) && now.0 >= self.early()
    }

    fn early(&self) -> u64 {
        self.refilled_at.saturating_add(self.interval / EARLY)
    }

    /// When a worker that found nothing could find something without anything happening outside.
    pub(super) fn next_due(&self, held: bool) -> Option<Cycles> {
        (self.metered > 0 && (held || self.throttled)).then(|| Cycles(self.early()))
    }

    /// Refills; returns whether a decision had come to its end since the last time.
    pub(super) fn refill(&mut self, now: Cycles) -> bool {
        let elapsed = now.0.saturating_sub(self.refilled_at).saturating_sub(self.lost);
        (self.refilled_at, self.lost) = (now.0, 0);
        self.due = now.0.saturating_add(self.interval);
        self.throttled = false;
        self.buckets.refill(Cycles(elapsed));
        core::mem::take(&mut self.passed)
    }

    pub(super) fn tokens(&self, port: PortId) -> i64 {
        self.buckets.tokens(port.index())
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.buckets.ledger()
    }
}
