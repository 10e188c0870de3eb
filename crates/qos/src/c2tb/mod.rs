//! C2TB, the cycle token buckets: how many cycles of its core a worker may spend on each port.
//!
//! # Problem
//!
//! A rate in bits or frames does not say how much of the worker's core a port uses. Ports compete
//! for the core, so tokens are cycles.
//!
//! # Source
//!
//! C2QoS §IV-A, Algorithm 1, Fig. 7.
//!
//! | Paper | Here | Unit |
//! |---|---|---|
//! | `tokens` | [`BucketSet::tokens`] | cycles, signed |
//! | `bucket_depth` | [`Terms::depth`] | cycles |
//! | `C_alloc` | [`Terms::entitlement`] | cycles/s |
//! | `C_idle` | the unsold part of the capacity | cycles/s |
//! | `sum_unused_cc` | the pool | cycles |
//! | `invl` | the argument `elapsed` | cycles of the core |
//!
//! # Approach
//!
//! A port with more than 0 tokens may run a batch. The batch's cost is charged afterwards and may
//! leave a debt. A refill generates the cycles that the core could spend since the last refill.
//! Each bucket gets its entitlement of these cycles. The remaining cycles, and the tokens that do
//! not fit into a full bucket, go to a pool. The pool is shared by weight among [`Mode::MinMax`]
//! buckets with room. If one of these buckets fills up, its part is shared again among the others.
//! Cycles are discarded only if all of these buckets are full.
//!
//! A bucket is not idle if its port has waiting frames but does not get its turn. Its earnings,
//! including its part of the pool, are kept above the depth as *arrears* until no frame waits.
//! Without arrears, a port of a high class could live forever on the overflow of the ports that it
//! delays.
//!
//! Arrears need no bound: refills generate no more than the core can spend. The sum of all tokens
//! therefore does not grow while a port has both frames and tokens. The code caps arrears
//! nevertheless.
//!
//! # Time that no port with tokens wants
//!
//! Tokens in a bucket that fills up are not spent. A core with one busy port would idle until all
//! other buckets are full. Therefore a min-max port without tokens may run if no port with tokens
//! has frames. The cost is [lent](BucketSet::lend): no port is charged. Other ports lose nothing,
//! because their tokens are a claim on later time, and the present time passes in any case.
//!
//! Nothing is lent if the `capacity` is below the core's rate. Cycles are then scarcer than time,
//! and a port that runs without tokens would take them from the others.
//!
//! # Ports without a purchase
//!
//! No gate stops a port in [`Mode::Free`]. It could still wait forever behind ports of an earlier
//! class that live on spare cycles. Such a port has a bucket with a [floor](free_floor) and takes
//! part in the pool. The ports of earlier classes thus run out of tokens in time for this port to
//! get its part. Cycles that this port spends beyond its tokens are not generated for the others.
//!
//! # Example
//!
//! A test covers Fig. 7: a core of 2.2 G cycles/s, entitlements of 0.2, 0.2, 0.4 and 0.4 G, and
//! weights of 1, 1, 2 and 2. All ports are backlogged. The ports get 0.3667 and 0.7333 G. The paper
//! prints 0.36 and 0.72, which corresponds to a capacity of 2.16 G.
//!
//! # Departures
//!
//! The pool is divided as a whole. Algorithm 1 shrinks the pool inside its loop and overwrites the
//! rest. With the weights of Fig. 7, 31 % of the pool are therefore lost. Unsold capacity goes
//! through the pool. If all ports are backlogged, this equals a fixed `C_idle` for each port.
//! Arrears, lent time and floors are additions.
//!
//! # Cost
//!
//! A charge, a gate check and a refill take O(1) for any number of buckets; `refill` explains how.
//! Fractions of a cycle are carried over.

mod bucket;
mod ledger;
mod refill;

pub use ledger::Ledger;

use bucket::{Bucket, Clocks};
use penstock_units::{Cycles, CyclesPerSecond, TscRate, Weight};

/// Fractional bits of a rate in cycles per cycle.
const FRACTION: u32 = 56;
const FRACTION_MASK: u64 = (1 << FRACTION) - 1;
/// Fractional bits of the pool's clock.
const POOL_FRACTION: u32 = 20;

/// What a port's bucket may get beyond its entitlement, and whether it may run without tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The bucket gets nothing beyond its entitlement.
    Strict,
    /// The bucket also gets a weighted part of the cycles that others leave (MIN-MAX).
    #[default]
    MinMax,
    /// As [`Self::MinMax`], but the port may also run without tokens. The bucket only prevents
    /// starvation.
    Free,
}

/// How a bucket is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Cycles per second generated for the bucket, independent of other ports.
    pub entitlement: CyclesPerSecond,
    /// Weight of the bucket in the pool.
    pub weight: Weight,
    /// Whether the bucket takes part in the pool, and whether its port may run without tokens.
    pub mode: Mode,
    /// Maximum number of tokens that the bucket keeps while no frame waits.
    pub depth: Cycles,
}

/// First term of the default depth, as microseconds of the entitlement. If a port is served in
/// bursts, such as TCP within a round trip, it gets its rate over this time.
const DEPTH_OF_ENTITLEMENT_US: u64 = 1_000;
/// Second term of the default depth, as microseconds of the whole core. It equals what a refill
/// interval generates, or one batch at the cost for which the paper chose its interval.
const DEPTH_OF_CORE_US: u64 = 50;

/// The default depth: 1 ms of the entitlement plus 50 µs of the core.
///
/// The first term bridges bursts. With the second term, a port without entitlement can take all
/// cycles that an interval generates, and at least one batch of any kind. A bucket may go into
/// debt, so no larger depth is necessary. Each microsecond of depth may delay lower classes by a
/// microsecond.
#[must_use]
pub fn default_depth(entitlement: CyclesPerSecond, core: TscRate) -> Cycles {
    let of = |rate: u64, us: u64| u128::from(rate) * u128::from(us) / 1_000_000;
    let depth = of(entitlement.0, DEPTH_OF_ENTITLEMENT_US) + of(core.hz(), DEPTH_OF_CORE_US);
    Cycles(u64::try_from(depth).unwrap_or(u64::MAX).min(DEPTH_MAX))
}

/// Largest depth, chosen so that a sum of 65,536 depths does not overflow.
const DEPTH_MAX: u64 = 1 << 46;

/// Upper bound of the floor that all ports without a purchase share, in thousandths of a worker's
/// capacity. The floor comes out of unsold capacity. While ports without a purchase use the floor,
/// its cycles are generated for no other port.
const FREE_PERMILLE: u64 = 20;
const FREE_PERMILLE_MIN: u64 = 1;

/// Floor of each of `free` ports without a purchase on a worker that has sold `sold` of its
/// `capacity`.
///
/// A port without any turn is worse off than one with slow turns. Even if all capacity is sold,
/// these ports share a thousandth of it, which admission treats as a rounding error.
#[must_use]
pub fn free_floor(
    capacity: CyclesPerSecond,
    sold: CyclesPerSecond,
    free: usize,
) -> CyclesPerSecond {
    let part = |permille: u64| capacity.0 / 1_000 * permille;
    let left = capacity.0.saturating_sub(sold.0);
    let all = left.clamp(part(FREE_PERMILLE_MIN), part(FREE_PERMILLE));
    CyclesPerSecond(all / (free.max(1) as u64))
}

/// The buckets of one worker, indexed by dense slot.
#[derive(Clone, Debug)]
pub struct BucketSet {
    buckets: Box<[Bucket]>,
    /// Slots of the buckets that are not full or have arrears. The next fields are the next bucket
    /// to visit and the sums of the rates and weights of these buckets.
    earning: Vec<u32>,
    cursor: usize,
    earning_rates: u128,
    earning_weights: u64,
    clocks: Clocks,
    core: TscRate,
    /// Cycles per cycle that may be spent, in 2^-56. The next field is the fraction that is carried
    /// over.
    capacity: u64,
    capacity_fraction: u64,
    /// Sum of the rates of all buckets.
    rates: u128,
    /// Sum of the depths of all buckets.
    depths: i64,
    /// Cycles to be shared. Negative while the entitlements exceed the cycles that could be spent.
    pool: i64,
    /// Fraction of a cycle, in 2^-56, that buckets earned but that is not yet subtracted from the
    /// pool.
    carry: i64,
    /// Cycles that non-paying ports spent since the last refill, plus the debt of earlier refills.
    spent_elsewhere: u64,
    ledger: Ledger,
}

impl BucketSet {
    /// An empty set with room for `slots` buckets, on a core of which `capacity` may be spent.
    #[must_use]
    pub fn new(slots: usize, core: TscRate, capacity: CyclesPerSecond) -> Self {
        Self {
            buckets: vec![Bucket::NONE; slots].into_boxed_slice(),
            earning: Vec::with_capacity(slots),
            cursor: 0,
            earning_rates: 0,
            earning_weights: 0,
            clocks: Clocks::default(),
            core,
            capacity: per_cycle(capacity.0.min(core.hz()), core),
            capacity_fraction: 0,
            rates: 0,
            depths: 0,
            pool: 0,
            carry: 0,
            spent_elsewhere: 0,
            ledger: Ledger::default(),
        }
    }

    /// Whether the port of `slot` has a bucket.
    #[inline]
    #[must_use]
    pub fn is_metered(&self, slot: usize) -> bool {
        self.buckets.get(slot).is_some_and(Bucket::is_metered)
    }

    /// Gives `slot` a bucket with `tokens`. A new port starts with 0. A port that moved from
    /// another worker brings its tokens. If the slot already has a bucket, it gets the tokens in
    /// addition and the new terms.
    pub fn join(&mut self, slot: usize, terms: &Terms, tokens: i64) {
        if slot >= self.buckets.len() {
            return;
        }
        if self.is_metered(slot) {
            self.change(slot, terms);
        } else {
            self.buckets[slot] = Bucket { tokens: 0, ..Bucket::NONE };
            self.set_terms(slot, terms);
            self.enlist(slot);
        }
        self.buckets[slot].tokens += tokens;
        self.ledger.stored += tokens;
        self.ledger.brought += tokens;
    }

    /// Changes the terms of a bucket and keeps its tokens. Tokens above a smaller depth go to the
    /// pool when the bucket is next brought up to date.
    pub fn change(&mut self, slot: usize, terms: &Terms) {
        if !self.is_metered(slot) {
            return;
        }
        self.touch(slot);
        self.delist(slot);
        self.set_terms(slot, terms);
        self.enlist(slot);
    }

    fn set_terms(&mut self, slot: usize, terms: &Terms) {
        let bucket = &mut self.buckets[slot];
        let depth = i64::try_from(terms.depth.0.clamp(1, DEPTH_MAX)).unwrap_or(i64::MAX);
        self.depths += depth - bucket.depth;
        let rate = per_cycle(terms.entitlement.0, self.core);
        self.rates = self.rates - u128::from(bucket.rate) + u128::from(rate);
        let weight = if terms.mode == Mode::Strict { 0 } else { terms.weight.get().into() };
        (bucket.rate, bucket.depth, bucket.mode, bucket.weight) = (rate, depth, terms.mode, weight);
    }

    /// Removes a bucket and returns its tokens, which move with the port.
    pub fn leave(&mut self, slot: usize) -> i64 {
        if !self.is_metered(slot) {
            return 0;
        }
        self.touch(slot);
        self.delist(slot);
        let bucket = core::mem::replace(&mut self.buckets[slot], Bucket::NONE);
        self.keep_fraction(bucket.fraction);
        self.depths -= bucket.depth;
        self.rates -= u128::from(bucket.rate);
        self.ledger.stored -= bucket.tokens;
        self.ledger.brought -= bucket.tokens;
        bucket.tokens
    }

    /// Whether the port of `slot` may run a batch. True if it has no bucket.
    #[inline]
    #[must_use]
    pub fn may_run(&self, slot: usize) -> bool {
        self.buckets.get(slot).is_some_and(|bucket| {
            // This check avoids computing the earnings in the common case.
            bucket.tokens > 0
                || bucket.mode == Mode::Free
                || bucket.level(self.clocks, self.depths) > 0
        })
    }

    /// Whether a port without tokens may run while no port with tokens has frames.
    #[inline]
    #[must_use]
    pub fn may_borrow(&self, slot: usize) -> bool {
        self.capacity >= 1 << FRACTION
            && self.buckets.get(slot).is_some_and(|bucket| bucket.mode != Mode::Strict)
    }

    /// Tokens of `slot`. 0 if it has no bucket.
    #[must_use]
    pub fn tokens(&self, slot: usize) -> i64 {
        let bucket = self.buckets.get(slot).filter(|bucket| bucket.is_metered());
        bucket.map_or(0, |bucket| bucket.level(self.clocks, self.depths))
    }

    /// Charges `slot` for a batch. `more` says that frames are still waiting at its port. Returns
    /// whether the port may run another batch.
    #[inline]
    pub fn charge(&mut self, slot: usize, cost: Cycles, more: bool) -> bool {
        let Some(bucket) = self.buckets.get(slot) else { return true };
        if !bucket.is_metered() {
            self.spend(cost);
            return true;
        }
        self.touch(slot);
        let bucket = &mut self.buckets[slot];
        bucket.waiting = more;
        let cost = cost.0.min(1 << 60).cast_signed();
        let paid = if bucket.mode == Mode::Free { cost.min(bucket.tokens.max(0)) } else { cost };
        bucket.tokens = bucket.tokens.saturating_sub(paid);
        let left = bucket.tokens > 0 || bucket.mode == Mode::Free;
        self.ledger.stored -= paid;
        self.ledger.charged += paid.cast_unsigned();
        let arrears = !more && bucket.tokens > bucket.depth;
        if arrears {
            self.settle(slot);
        }
        if paid < cost {
            self.spend(Cycles((cost - paid).cast_unsigned()));
        }
        left
    }

    /// Refunds the charge for the last batch of `slot`, because no port with tokens had frames when
    /// the batch ran.
    pub fn lend(&mut self, slot: usize, cost: Cycles) {
        if !self.is_metered(slot) {
            return;
        }
        self.touch(slot);
        let cost = cost.0.min(1 << 60);
        self.buckets[slot].tokens += cost.cast_signed();
        self.ledger.stored += cost.cast_signed();
        self.ledger.charged -= cost;
        self.ledger.lent += cost;
    }

    /// Charges `slot` for cycles that another worker spent. This core did not spend these cycles,
    /// so they go to the pool.
    pub fn charge_elsewhere(&mut self, slot: usize, cost: Cycles) {
        if !self.is_metered(slot) || cost == Cycles::ZERO {
            return;
        }
        self.touch(slot);
        let cost = cost.0.min(1 << 60).cast_signed();
        self.buckets[slot].tokens -= cost;
        self.pool += cost;
    }

    /// Books tokens that moved between this bucket and the same port's bucket on another worker.
    /// `tokens` is negative if tokens left this bucket. This core must provide the cycles for
    /// tokens that arrive, and need not provide them for tokens that leave.
    pub fn transfer(&mut self, slot: usize, tokens: i64) {
        if tokens < 0 {
            self.charge_elsewhere(slot, Cycles(tokens.unsigned_abs()));
        } else if tokens > 0 && self.is_metered(slot) {
            self.touch(slot);
            self.buckets[slot].tokens += tokens;
            self.ledger.stored += tokens;
            self.ledger.brought += tokens;
            self.spend(Cycles(tokens.unsigned_abs()));
        }
    }

    /// The entitlement of `slot` over `elapsed` cycles of the core, rounded down, regardless of the
    /// bucket's depth.
    #[must_use]
    pub fn entitled(&self, slot: usize, elapsed: Cycles) -> Cycles {
        let rate = self.buckets.get(slot).map_or(0, |bucket| bucket.rate);
        let wide = (u128::from(rate) * u128::from(elapsed.0)) >> FRACTION;
        Cycles(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// The mode of `slot`; [`Mode::Strict`] without a bucket.
    #[must_use]
    pub fn mode(&self, slot: usize) -> Mode {
        self.buckets.get(slot).map_or(Mode::Strict, |bucket| bucket.mode)
    }

    /// The depth of `slot` in cycles; 0 without a bucket.
    #[must_use]
    pub fn depth(&self, slot: usize) -> i64 {
        self.buckets.get(slot).map_or(0, |bucket| bucket.depth)
    }

    /// Records cycles that this core spent on a port with its bucket on another worker.
    #[inline]
    pub fn spend(&mut self, cost: Cycles) {
        self.spent_elsewhere = self.spent_elsewhere.saturating_add(cost.0);
    }

    /// Records whether frames wait at the port of `slot` when no batch ran.
    #[inline]
    pub fn note_waiting(&mut self, slot: usize, waiting: bool) {
        let Some(bucket) = self.buckets.get(slot) else { return };
        if bucket.waiting != waiting && bucket.is_metered() {
            // The old limit applies up to now, the new one from now on.
            self.touch(slot);
            self.buckets[slot].waiting = waiting;
            if !waiting {
                // Arrears end at once: the bucket drops to its depth.
                self.settle(slot);
            }
        }
    }

    /// Number of buckets that earn, i.e. are not known to be full.
    #[must_use]
    pub fn earning(&self) -> usize {
        self.earning.len()
    }

    /// Sum of all entitlements in cycles per second, rounded.
    #[must_use]
    pub fn sold(&self) -> CyclesPerSecond {
        let hz = (self.rates >> 8) * u128::from(self.core.hz());
        CyclesPerSecond(u64::try_from((hz + (1 << 47)) >> 48).unwrap_or(u64::MAX))
    }

    /// Account of all cycles since the start.
    #[must_use]
    pub const fn ledger(&self) -> Ledger {
        self.ledger
    }
}

/// Converts cycles per second to cycles per cycle of `core` in 2^-56, at most 255.
fn per_cycle(rate: u64, core: TscRate) -> u64 {
    let wide = (u128::from(rate) << FRACTION) / u128::from(core.hz());
    u64::try_from(wide).unwrap_or(u64::MAX).min(255 << FRACTION)
}

#[cfg(test)]
mod tests;
