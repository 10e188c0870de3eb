//! C2TB (cycle token buckets) limits the cycles of its core that a worker may spend on each port.
//!
//! # Problem
//!
//! Ports compete for the core of their worker. A rate in bits or frames does not limit the time
//! that a port takes on the core. The tokens of a port's bucket are therefore cycles, not bytes.
//!
//! # Source
//!
//! The method is from C2QoS §IV-A, Algorithm 1 and Fig. 7.
//!
//! The quantities in C2QoS correspond to the following quantities of Penstock:
//!
//! - The paper's `tokens` are [`BucketSet::tokens`], a number of cycles that may be negative.
//! - The paper's `bucket_depth` is [`Terms::depth`], in cycles.
//! - The paper's `C_alloc` is [`Terms::entitlement`], in cycles per second.
//! - The paper's `C_idle` is the unsold part of the capacity, in cycles per second.
//! - The paper's `sum_unused_cc` is the number of cycles in the pool.
//! - The paper's `invl` is the argument `elapsed` of a refill, in cycles of the core.
//!
//! # Approach
//!
//! A port with more than 0 tokens may run a batch. The cost of a batch is charged after the batch,
//! so the tokens may become negative. A refill generates the cycles that the core could spend since
//! the previous refill. Each bucket gets its entitlement from the cycles that the refill generates.
//! Cycles that no bucket's entitlement needs, and tokens above a bucket's depth, go to a pool.
//! [`Mode::MinMax`] buckets that are not full share the pool by weight. If a min-max bucket fills
//! up, the other buckets share the tokens for which it has no room. Cycles in the pool are
//! discarded only if all [`Mode::MinMax`] buckets are full.
//!
//! Ports have priority classes ([`crate::hbs`]). If a port has waiting frames but gets no turn, its
//! bucket may exceed its depth. Tokens above a bucket's depth are called *arrears*. A bucket keeps
//! its arrears until no frame waits at its port. If a waiting port's bucket had no arrears, its
//! tokens above the depth would go to the pool. A port of an earlier priority class could take
//! tokens from the pool, run again, and delay the waiting port forever.
//!
//! Refills generate no more cycles than the core can spend. While any port has both frames and
//! tokens, the sum of all tokens in the buckets and the pool does not grow. As a safeguard, each
//! bucket's arrears also have an upper limit.
//!
//! # Lent cycles
//!
//! If only one port is busy and has no tokens, the core would be idle until the buckets of all
//! other ports are full. In the mode [`Mode::MinMax`], a port without tokens may therefore run if
//! no port with tokens has frames. If a min-max port runs without tokens, its batch is
//! [lent](BucketSet::lend): no port is charged for the batch. The lent batch takes nothing from
//! other ports: these ports keep their tokens, and the core would be idle otherwise.
//!
//! If the `capacity` for ports is below the core's rate, no cycles are lent, because ports may not
//! spend all of the core. With a `capacity` below the core's rate, a port that runs without tokens
//! would take cycles from other ports.
//!
//! # Ports without a purchase
//!
//! In the mode [`Mode::Free`], a port may run without tokens. Ports of earlier priority classes
//! that use spare cycles could still delay a port without a purchase forever. The bucket of a port
//! without a purchase therefore gets a guaranteed minimum, the [floor](free_floor), and a part of
//! the pool. The cycles of a floor do not go to ports of earlier priority classes. Ports of earlier
//! priority classes therefore run out of tokens, and the port without a purchase runs. If a port
//! without a purchase spends cycles beyond its tokens, refills generate fewer cycles for other
//! ports.
//!
//! # Example
//!
//! A test reproduces Fig. 7 of C2QoS with a core of 2.2 G cycles/s and four backlogged ports:
//!
//! - In Fig. 7, ports 1 and 2 are entitled to 0.2 G cycles/s each and have weight 1. With Penstock,
//!   ports 1 and 2 get 0.3667 G cycles/s each; the paper prints 0.36 G cycles/s.
//! - In Fig. 7, ports 3 and 4 are entitled to 0.4 G cycles/s each and have weight 2. With Penstock,
//!   ports 3 and 4 get 0.7333 G cycles/s each; the paper prints 0.72 G cycles/s.
//!
//! The results that the paper prints correspond to a core of 2.16 G cycles/s.
//!
//! # Departures
//!
//! - In Penstock, a refill gives all cycles of the pool to the buckets. The paper's Algorithm 1
//!   reduces the pool inside its loop, and so loses 31 % of the pool with the weights of Fig. 7.
//! - Unsold capacity goes to the pool, and not as a fixed `C_idle` to each port. If all ports are
//!   backlogged, the pool and the paper's fixed `C_idle` give the same result.
//! - C2QoS has no arrears, no lent cycles and no floors.
//!
//! The printed algorithm can be chosen for comparisons ([`Spare::Printed`]).
//!
//! # Cost
//!
//! A charge, a check of a port's tokens, and a refill take O(1) for any number of buckets (see
//! `refill`). A refill carries fractions of a cycle over to the next refill.

mod bucket;
mod ledger;
mod printed;
mod refill;

pub use ledger::Ledger;
pub use printed::Spare;

use bucket::{Bucket, Clocks};
use penstock_units::{Cycles, CyclesPerSecond, TscRate, Weight};

/// Number of fractional bits of a rate in cycles per core cycle.
const FRACTION: u32 = 56;
const FRACTION_MASK: u64 = (1 << FRACTION) - 1;
/// Number of fractional bits of the pool's clock in [`bucket::Clocks`].
const POOL_FRACTION: u32 = 20;

/// Mode of a bucket: which cycles it gets beyond its entitlement, and whether its port may run
/// without tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The bucket gets only its entitlement and no part of the pool.
    Strict,
    /// The bucket also gets a weighted part of the pool (MIN-MAX).
    #[default]
    MinMax,
    /// The bucket also gets a weighted part of the pool, and its port may always run, even without
    /// tokens. A bucket in the mode `Free` does not limit its port, but only protects the port from
    /// starvation.
    Free,
}

/// Parameters of a port's bucket, which decide how fast it fills and how many tokens it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Cycles per second that refills generate for this bucket, whatever other ports do.
    pub entitlement: CyclesPerSecond,
    /// Weight by which the pool is divided among the buckets.
    pub weight: Weight,
    /// Mode of the bucket: whether it gets a part of the pool, and whether its port may run without
    /// tokens.
    pub mode: Mode,
    /// Maximum number of tokens in the bucket while no frame waits at the port.
    pub depth: Cycles,
}

/// First term of a bucket's default depth: the cycles that the entitlement yields in this number of
/// microseconds. A port that sends in bursts of at most 1 ms, as TCP does within a round trip, gets
/// its rate.
const DEPTH_OF_ENTITLEMENT_US: u64 = 1_000;
/// Second term of the default depth: the cycles of the whole core in this number of microseconds.
/// The second term of the depth, 50 µs, is one refill interval of the paper. The authors of C2QoS
/// chose an interval of 50 µs by the cost of a batch.
const DEPTH_OF_CORE_US: u64 = 50;

/// Returns the default depth of a bucket: 1 ms of the entitlement plus 50 µs of the core's cycles.
///
/// The first term of the depth, 1 ms of the entitlement, lets a port send in bursts. With the
/// second term, a port without an entitlement can use all cycles of a refill interval, and run at
/// least one batch. A larger depth is not necessary, because a bucket may go into debt. Each
/// microsecond of a bucket's depth may delay ports of later priority classes by a microsecond.
#[must_use]
pub fn default_depth(entitlement: CyclesPerSecond, core: TscRate) -> Cycles {
    let of = |rate: u64, us: u64| u128::from(rate) * u128::from(us) / 1_000_000;
    let depth = of(entitlement.0, DEPTH_OF_ENTITLEMENT_US) + of(core.hz(), DEPTH_OF_CORE_US);
    Cycles(u64::try_from(depth).unwrap_or(u64::MAX).min(DEPTH_MAX))
}

/// Maximum depth of a bucket in cycles, so that a sum of 65,536 depths does not overflow.
const DEPTH_MAX: u64 = 1 << 46;

/// Maximum sum of the floors of all ports without a purchase, in thousandths of a worker's
/// capacity. A floor is the guaranteed minimum of a port without a purchase, and comes from the
/// worker's unsold capacity. While ports without a purchase use their floors, refills generate
/// fewer cycles for all other ports of the worker.
const FREE_PERMILLE: u64 = 20;
const FREE_PERMILLE_MIN: u64 = 1;

/// Returns the guaranteed minimum (floor), in cycles per second, of each of `free` ports without a
/// purchase on a worker. The argument `sold` is the number of purchased cycles per second out of
/// the worker's `capacity`.
///
/// Even if all capacity is sold, the ports without a purchase share a thousandth of it, so that no
/// port starves. Admission control lets ports purchase all of the capacity, including the
/// thousandth that ports without a purchase share.
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

/// The cycle buckets of one worker, indexed by slot from 0.
#[derive(Clone, Debug)]
pub struct BucketSet {
    buckets: Box<[Bucket]>,
    /// Slots of the earning buckets, which are the buckets below their limit. The field `cursor` is
    /// the index in the list `earning` at which the next refill begins to visit buckets. The fields
    /// `earning_rates` and `earning_weights` are sums over all buckets in the list `earning`.
    earning: Vec<u32>,
    cursor: usize,
    earning_rates: u128,
    earning_weights: u64,
    clocks: Clocks,
    core: TscRate,
    /// Fraction of the core's cycles that all ports together may spend, in units of 2^-56. The
    /// field `capacity_fraction` carries the part below one whole cycle over to the next refill.
    capacity: u64,
    capacity_fraction: u64,
    /// Sum of the rates of all buckets, in units of 2^-56 cycles per core cycle.
    rates: u128,
    /// Sum of the depths of all buckets of the worker, in cycles: the maximum of a bucket's
    /// arrears. 0 if buckets have no arrears ([`Spare::Printed`]).
    depths: i64,
    /// Number of cycles in the pool, from which buckets below their limit are filled. If the
    /// buckets' entitlements exceed the cycles that the core could spend, the pool is negative.
    pool: i64,
    /// Fraction of a cycle, in units of 2^-56, that buckets have earned but that no refill has
    /// subtracted from the pool yet.
    carry: i64,
    /// Cycles that the core spent since the last refill without a charge to a bucket. The number
    /// includes spent cycles that earlier refills could not subtract.
    spent_elsewhere: u64,
    /// Cycles that the core spent on the host's own work since the last refill.
    host: u64,
    spare: Spare,
    /// Whether a port without tokens may run if no port with tokens has frames.
    lends: bool,
    ledger: Ledger,
}

impl BucketSet {
    /// Returns a set of buckets with slots 0 to `slots` - 1, in which no slot has a bucket. The
    /// argument `capacity` is the part of the core's cycles that ports may spend.
    #[must_use]
    pub fn new(slots: usize, core: TscRate, capacity: CyclesPerSecond) -> Self {
        let capacity = per_cycle(capacity.0.min(core.hz()), core);
        Self {
            buckets: vec![Bucket::NONE; slots].into_boxed_slice(),
            earning: Vec::with_capacity(slots),
            cursor: 0,
            earning_rates: 0,
            earning_weights: 0,
            clocks: Clocks::default(),
            core,
            capacity,
            capacity_fraction: 0,
            rates: 0,
            depths: 0,
            pool: 0,
            carry: 0,
            spent_elsewhere: 0,
            host: 0,
            spare: Spare::Pool,
            lends: capacity >= 1 << FRACTION,
            ledger: Ledger::default(),
        }
    }

    /// Whether the port of `slot` has a bucket.
    #[inline]
    #[must_use]
    pub fn is_metered(&self, slot: usize) -> bool {
        self.buckets.get(slot).is_some_and(Bucket::is_metered)
    }

    /// Gives the slot `slot` a bucket with `tokens`: 0 for a new port, or the tokens that the port
    /// had on another worker. If the slot already has a bucket, `tokens` are added, and `terms`
    /// replace the bucket's terms.
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

    /// Changes the entitlement, weight, mode and depth of the bucket of `slot`, and keeps its
    /// tokens. If the new depth is smaller, tokens above the depth go to the pool at the bucket's
    /// next update.
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
        let weight = self.weight(terms);
        let bucket = &mut self.buckets[slot];
        let depth = i64::try_from(terms.depth.0.clamp(1, DEPTH_MAX)).unwrap_or(i64::MAX);
        if self.spare == Spare::Pool {
            self.depths += depth - bucket.depth;
        }
        let rate = per_cycle(terms.entitlement.0, self.core);
        self.rates = self.rates - u128::from(bucket.rate) + u128::from(rate);
        (bucket.rate, bucket.depth, bucket.mode, bucket.weight) = (rate, depth, terms.mode, weight);
    }

    /// Removes the bucket of `slot` and returns its tokens, which move with the port to another
    /// worker.
    pub fn leave(&mut self, slot: usize) -> i64 {
        if !self.is_metered(slot) {
            return 0;
        }
        self.touch(slot);
        self.delist(slot);
        let bucket = core::mem::replace(&mut self.buckets[slot], Bucket::NONE);
        self.keep_fraction(bucket.fraction);
        if self.spare == Spare::Pool {
            self.depths -= bucket.depth;
        }
        self.rates -= u128::from(bucket.rate);
        self.ledger.stored -= bucket.tokens;
        self.ledger.brought -= bucket.tokens;
        bucket.tokens
    }

    /// Whether the port of `slot` may run a batch. A port without a bucket may always run a batch.
    #[inline]
    #[must_use]
    pub fn may_run(&self, slot: usize) -> bool {
        self.buckets.get(slot).is_some_and(|bucket| {
            // The common case needs no computation of earnings.
            bucket.tokens > 0
                || bucket.mode == Mode::Free
                || bucket.level(self.clocks, self.depths) > 0
        })
    }

    /// Returns whether the port of `slot` may run without tokens if no port with tokens has frames.
    #[inline]
    #[must_use]
    pub fn may_borrow(&self, slot: usize) -> bool {
        self.lends && self.buckets.get(slot).is_some_and(|bucket| bucket.mode != Mode::Strict)
    }

    /// Returns the tokens of the bucket of `slot`, in cycles. 0 if the slot has no bucket.
    #[must_use]
    pub fn tokens(&self, slot: usize) -> i64 {
        let bucket = self.buckets.get(slot).filter(|bucket| bucket.is_metered());
        bucket.map_or(0, |bucket| bucket.level(self.clocks, self.depths))
    }

    /// Charges the bucket of `slot` for a batch that cost `cost` cycles. The argument `more` is
    /// true if frames still wait at the port after its batch. Returns whether the port may run
    /// another batch.
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

    /// Lends the port of `slot` its last batch: refunds the charge, because no port with tokens had
    /// frames when the batch ran.
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

    /// Charges the bucket of `slot` for cycles that another worker spent on the port. The charged
    /// cycles go to this worker's pool, because another worker's core spent them.
    pub fn charge_elsewhere(&mut self, slot: usize, cost: Cycles) {
        if !self.is_metered(slot) || cost == Cycles::ZERO {
            return;
        }
        self.touch(slot);
        let cost = cost.0.min(1 << 60).cast_signed();
        self.buckets[slot].tokens -= cost;
        self.pool += cost;
    }

    /// Moves tokens between the two buckets that a port has on two workers. If `tokens` is
    /// positive, the worker's bucket receives tokens; if `tokens` is negative, the bucket gives
    /// tokens. Tokens that leave the worker's bucket go to the worker's pool. If tokens arrive at
    /// the worker's bucket, refills of this worker generate fewer cycles.
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

    /// Returns the cycles that the entitlement of `slot` yields in `elapsed` cycles of the core,
    /// rounded down. The returned number of cycles may exceed the depth of the bucket.
    #[must_use]
    pub fn entitled(&self, slot: usize, elapsed: Cycles) -> Cycles {
        let rate = self.buckets.get(slot).map_or(0, |bucket| bucket.rate);
        let wide = (u128::from(rate) * u128::from(elapsed.0)) >> FRACTION;
        Cycles(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// Returns the number of core cycles, from the last refill on, until a refill gives tokens to
    /// the bucket of `slot`. Returns `None` if the bucket already has tokens, if its port may run
    /// without tokens, if no refill gives tokens to the bucket, or if refills are regular
    /// ([`Spare::Printed`]). The result for a [`Mode::MinMax`] bucket is 0, because the tokens that
    /// the bucket will get from the pool are unknown.
    #[must_use]
    pub fn wait(&self, slot: usize) -> Option<Cycles> {
        let bucket = self.buckets.get(slot).filter(|bucket| bucket.is_metered())?;
        let level = bucket.level(self.clocks, self.depths);
        match bucket.mode {
            _ if self.spare == Spare::Printed => None,
            Mode::Free => None,
            _ if level > 0 => None,
            Mode::MinMax => Some(Cycles::ZERO),
            Mode::Strict => {
                let missing = u128::from(level.unsigned_abs()) + 1;
                let wait = (missing << FRACTION).checked_div(bucket.rate.into())?;
                Some(Cycles(u64::try_from(wait).unwrap_or(u64::MAX).saturating_add(1)))
            }
        }
    }

    /// Returns the mode of the bucket of `slot`; [`Mode::Strict`] if the slot has no bucket.
    #[must_use]
    pub fn mode(&self, slot: usize) -> Mode {
        self.buckets.get(slot).map_or(Mode::Strict, |bucket| bucket.mode)
    }

    /// Returns the weight of the bucket of `slot` in the division of the pool; 0 if the slot has no
    /// bucket.
    #[must_use]
    pub fn weight_of(&self, slot: usize) -> u32 {
        self.buckets.get(slot).map_or(0, |bucket| bucket.weight)
    }

    /// Returns the depth of the bucket of `slot` in cycles; 0 if the slot has no bucket.
    #[must_use]
    pub fn depth(&self, slot: usize) -> i64 {
        self.buckets.get(slot).map_or(0, |bucket| bucket.depth)
    }

    /// Records cycles that this core spent on a port that has its bucket on another worker.
    #[inline]
    pub fn spend(&mut self, cost: Cycles) {
        self.spent_elsewhere = self.spent_elsewhere.saturating_add(cost.0);
    }

    /// Records cycles that the core spent on work for the host and not for a port. The host's own
    /// work first uses the part of the core beyond the `capacity`, then unsold capacity. If the
    /// host's work needs more cycles than the ports have left unsold, the ports' entitlements
    /// shrink.
    #[inline]
    pub fn spend_on_host(&mut self, cost: Cycles) {
        self.host = self.host.saturating_add(cost.0);
    }

    /// Records whether frames wait at the port of `slot`. A worker calls `note_waiting` if it
    /// checked the port but did not run a batch.
    #[inline]
    pub fn note_waiting(&mut self, slot: usize, waiting: bool) {
        let Some(bucket) = self.buckets.get(slot) else { return };
        if bucket.waiting != waiting && bucket.is_metered() {
            // The old limit applies up to now, the new one from now on.
            self.touch(slot);
            self.buckets[slot].waiting = waiting;
            if !waiting {
                // Arrears are not kept: the bucket drops to its depth.
                self.settle(slot);
            }
        }
    }

    /// Returns the number of buckets that currently earn tokens. The number may include buckets
    /// that became full after the last refill.
    #[must_use]
    pub fn earning(&self) -> usize {
        self.earning.len()
    }

    /// Returns the sum of all entitlements in cycles per second, rounded.
    #[must_use]
    pub fn sold(&self) -> CyclesPerSecond {
        let hz = (self.rates >> 8) * u128::from(self.core.hz());
        CyclesPerSecond(u64::try_from((hz + (1 << 47)) >> 48).unwrap_or(u64::MAX))
    }

    /// Returns the account of all cycles since the worker's start.
    #[must_use]
    pub const fn ledger(&self) -> Ledger {
        self.ledger
    }
}

/// Converts cycles per second to cycles per cycle of `core`, in units of 2^-56. The result is at
/// most 255 cycles per cycle of `core`.
fn per_cycle(rate: u64, core: TscRate) -> u64 {
    let wide = (u128::from(rate) << FRACTION) / u128::from(core.hz());
    u64::try_from(wide).unwrap_or(u64::MAX).min(255 << FRACTION)
}

#[cfg(test)]
mod tests;
