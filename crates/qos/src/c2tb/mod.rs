//! C2TB, the cycle token buckets: how many cycles of its core a worker may spend on each port.
//!
//! **Problem.** A port's rate in bits or frames says nothing about what it takes from its
//! neighbours: what they compete for is the worker's core. So tokens are cycles.
//!
//! **Source.** C2QoS §IV-A, Algorithm 1, Fig. 7.
//!
//! **Quantities.**
//!
//! | paper | here | unit |
//! |---|---|---|
//! | `tokens` | [`BucketSet::tokens`] | cycles, signed |
//! | `bucket_depth` | [`Terms::depth`] | cycles |
//! | `C_alloc` | [`Terms::entitlement`] | cycles/s |
//! | `C_idle` | what of the capacity is not sold | cycles/s |
//! | `sum_unused_cc` | the pool | cycles |
//! | `invl` | `elapsed`, an argument | cycles of the core |
//!
//! **Rule.** Whoever has more than no tokens may run a batch; its cost is taken afterwards and may
//! leave a debt. A refill generates what the core could spend since the last one. Of this every
//! bucket gets its entitlement. The rest, and what does not fit into a full bucket, is a pool that
//! is shared by weight among the [`Mode::MinMax`] buckets with room; what one of them cannot hold
//! is shared again among the others. Only when all of them are full is anything discarded. A bucket
//! whose port has frames waiting but does not get its turn is not idle: its part, of the pool too,
//! is not given to those who hold it up, it is kept for it above the depth, as arrears, until
//! nothing waits. (Without that, who comes first in the order of classes would live on the overflow
//! of those it keeps waiting, for ever.) Arrears need no bound of their own: what is generated is
//! no more than what the core can spend, so all tokens together do not grow while anybody has work
//! and tokens. A cap stands all the same.
//!
//! **Time that nobody wants.** While a bucket fills up, its tokens are not spent, and a core with
//! one port at work would stand still until all others are full. So a min-max port without tokens
//! may run when nobody with tokens has frames; its cost is [lent](BucketSet::lend), which is to say
//! charged to nobody: what the others fill up with is a claim on later time, and this time passes
//! either way. With a `capacity` below the core's it need not pass, so nothing is lent there: what
//! is short is cycles and not time, and whoever ran without tokens would run at the others'
//! expense.
//!
//! **Who bought nothing** ([`Mode::Free`]) is not held by any gate, and would all the same wait for
//! ever behind ports of an earlier class that live on what is left over. It has a bucket with a
//! [floor](free_floor) and takes part in the pool; so those before it run out of tokens when its
//! part is due. What it spends beyond its tokens is not generated for the others.
//!
//! **Example** (Fig. 7, a test): 2.2 G cycles/s, entitlements 0.2, 0.2, 0.4, 0.4 G, weights
//! 1, 1, 2, 2, all backlogged: 0.3667 and 0.7333 G. The paper prints 0.36 and 0.72, which is what
//! a capacity of 2.16 G gives.
//!
//! **Departures.** The pool is split as a whole; Algorithm 1 shrinks it inside its loop and
//! overwrites the rest, which loses 31 % with Fig. 7's weights. Capacity that is not sold goes
//! through the pool, which comes to the same as a fixed `C_idle` each when all are backlogged.
//! Arrears, lent time and floors are ours.
//!
//! **Cost.** A charge, a gate, a refill: O(1), whatever the number of buckets (the text of
//! `refill`). Fractions of a cycle are carried.

mod bucket;
mod ledger;
mod refill;

pub use ledger::Ledger;

use bucket::{Bucket, Clocks};
use penstock_units::{Cycles, CyclesPerSecond, TscRate, Weight};

/// Fractional bits of a rate in cycles per cycle.
const FRACTION: u32 = 56;
const FRACTION_MASK: u64 = (1 << FRACTION) - 1;
/// And of a part of the pool.
const POOL_FRACTION: u32 = 20;

/// What a port's bucket may get beyond its entitlement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Strict,
    /// By weight, what others leave (MIN-MAX).
    #[default]
    MinMax,
    /// By weight too, and it may run without tokens: it is only to be kept from starving.
    Free,
}

/// What a bucket is filled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Generated for it whatever others do.
    pub entitlement: CyclesPerSecond,
    /// Its part of the pool.
    pub weight: Weight,
    /// Whether it has a part of the pool.
    pub mode: Mode,
    /// Most tokens it keeps while nothing waits.
    pub depth: Cycles,
}

/// Depth by default, as a time of the entitlement: a port that is served in bursts, such as TCP's
/// within a round trip, gets its rate over this time.
const DEPTH_OF_ENTITLEMENT_US: u64 = 1_000;
/// And as a time of the whole core, for whatever was bought: a refill interval's generation, or
/// one batch at the cost at which the paper chose its interval.
const DEPTH_OF_CORE_US: u64 = 50;

/// The depth when none is configured: 1 ms of the entitlement and 50 us of the core. The first
/// bridges bursts. The second lets a port without entitlement take all that an interval generates
/// and holds one or more batches of any kind; since a bucket may go into debt, no more is needed.
/// Every microsecond of depth is one that lower classes may have to wait.
#[must_use]
pub fn default_depth(entitlement: CyclesPerSecond, core: TscRate) -> Cycles {
    let of = |rate: u64, us: u64| u128::from(rate) * u128::from(us) / 1_000_000;
    let depth = of(entitlement.0, DEPTH_OF_ENTITLEMENT_US) + of(core.hz(), DEPTH_OF_CORE_US);
    Cycles(u64::try_from(depth).unwrap_or(u64::MAX).min(DEPTH_MAX))
}

/// Largest depth: sums of 65,536 of them do not overflow.
const DEPTH_MAX: u64 = 1 << 46;

/// Of a worker's capacity, what those who bought nothing have for sure together: in thousandths,
/// of what is not sold; and what they have though all is sold. Either way it is generated for
/// nobody else while they use it.
const FREE_PERMILLE: u64 = 20;
const FREE_PERMILLE_MIN: u64 = 1;

/// What each of `free` ports is sure of that bought nothing, on a worker of which `sold` of
/// `capacity` is sold. One without a turn is worse off than one with a slow one, so there is a
/// little though all is sold: a thousandth, which admission leaves to rounding.
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

/// See the module's text: the buckets of one worker, by dense slot.
#[derive(Clone, Debug)]
pub struct BucketSet {
    buckets: Box<[Bucket]>,
    /// Slots of those that are not full or have arrears; which of them is looked at next; sums of
    /// their rates and weights.
    earning: Vec<u32>,
    cursor: usize,
    earning_rates: u128,
    earning_weights: u64,
    clocks: Clocks,
    core: TscRate,
    /// Cycles per cycle that may be spent, in 2^-56, and what is carried of it.
    capacity: u64,
    capacity_fraction: u64,
    /// Sum of all rates.
    rates: u128,
    /// All buckets' depths.
    depths: i64,
    /// To be shared; below zero when more was guaranteed for a moment than could be spent.
    pool: i64,
    /// Earned from the pool in parts of a cycle, in 2^-56, and not yet taken off it.
    carry: i64,
    /// What ports spent that did not pay, since the last refill, and beyond what there was.
    spent_elsewhere: u64,
    ledger: Ledger,
}

impl BucketSet {
    /// Room for `slots` buckets, none there yet, on a core of which `capacity` may be spent.
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

    /// Gives `slot` a bucket with `tokens`: none for a port that is new, what it had for one that
    /// comes from another worker. One that is there gets them on top and the new terms.
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

    /// New terms for a bucket; its tokens stay. What a smaller depth cannot hold goes to the pool
    /// when the bucket is next looked at.
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

    /// Takes the bucket away; its tokens go with the port.
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

    /// Whether the port of `slot` may run a batch; always, if it has no bucket.
    #[inline]
    #[must_use]
    pub fn may_run(&self, slot: usize) -> bool {
        self.buckets.get(slot).is_some_and(|bucket| {
            // Most often this is known without working out what it earned meanwhile.
            bucket.tokens > 0
                || bucket.mode == Mode::Free
                || bucket.level(self.clocks, self.depths) > 0
        })
    }

    /// Whether a port without tokens may run on time that nobody with tokens wants.
    #[inline]
    #[must_use]
    pub fn may_borrow(&self, slot: usize) -> bool {
        self.capacity >= 1 << FRACTION
            && self.buckets.get(slot).is_some_and(|bucket| bucket.mode != Mode::Strict)
    }

    /// Tokens of `slot`; 0 without a bucket.
    #[must_use]
    pub fn tokens(&self, slot: usize) -> i64 {
        let bucket = self.buckets.get(slot).filter(|bucket| bucket.is_metered());
        bucket.map_or(0, |bucket| bucket.level(self.clocks, self.depths))
    }

    /// Takes what a batch of `slot` cost. `more`: frames are still waiting there. Returns whether
    /// the port may run another one.
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

    /// Gives back what the last batch of `slot` was charged, as it ran on time that nobody wanted.
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

    /// Takes what another worker spent for `slot`: this core did not, so it is for others here.
    pub fn charge_elsewhere(&mut self, slot: usize, cost: Cycles) {
        if !self.is_metered(slot) || cost == Cycles::ZERO {
            return;
        }
        self.touch(slot);
        let cost = cost.0.min(1 << 60).cast_signed();
        self.buckets[slot].tokens -= cost;
        self.pool += cost;
    }

    /// Books tokens that came from the bucket which another worker has for the same port, or went
    /// there: this core has to provide the one and need not provide the other.
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

    /// What the entitlement of `slot` comes to in `elapsed` cycles of the core, whatever the bucket
    /// could hold of it; without the fraction of a cycle.
    #[must_use]
    pub fn entitled(&self, slot: usize, elapsed: Cycles) -> Cycles {
        let rate = self.buckets.get(slot).map_or(0, |bucket| bucket.rate);
        let wide = (u128::from(rate) * u128::from(elapsed.0)) >> FRACTION;
        Cycles(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// The mode of `slot`.
    #[must_use]
    pub fn mode(&self, slot: usize) -> Mode {
        self.buckets.get(slot).map_or(Mode::Strict, |bucket| bucket.mode)
    }

    /// The depth of `slot`.
    #[must_use]
    pub fn depth(&self, slot: usize) -> i64 {
        self.buckets.get(slot).map_or(0, |bucket| bucket.depth)
    }

    /// What was spent on this core for a port whose bucket another worker keeps.
    #[inline]
    pub fn spend(&mut self, cost: Cycles) {
        self.spent_elsewhere = self.spent_elsewhere.saturating_add(cost.0);
    }

    /// Notes whether frames wait at the port of `slot`, seen without running a batch.
    #[inline]
    pub fn note_waiting(&mut self, slot: usize, waiting: bool) {
        let Some(bucket) = self.buckets.get(slot) else { return };
        if bucket.waiting != waiting && bucket.is_metered() {
            // By the old limit up to now, by the new one from here on.
            self.touch(slot);
            self.buckets[slot].waiting = waiting;
            if !waiting {
                // Arrears end at once: with the next frame it has no more than its depth.
                self.settle(slot);
            }
        }
    }

    /// Buckets that are not known to be full.
    #[must_use]
    pub fn earning(&self) -> usize {
        self.earning.len()
    }

    /// Cycles per second that all buckets are entitled to, rounded.
    #[must_use]
    pub fn sold(&self) -> CyclesPerSecond {
        let hz = (self.rates >> 8) * u128::from(self.core.hz());
        CyclesPerSecond(u64::try_from((hz + (1 << 47)) >> 48).unwrap_or(u64::MAX))
    }

    /// Where all cycles went.
    #[must_use]
    pub const fn ledger(&self) -> Ledger {
        self.ledger
    }
}

/// Cycles per second as cycles per cycle of `core`, in 2^-56, at most 255.
fn per_cycle(rate: u64, core: TscRate) -> u64 {
    let wide = (u128::from(rate) << FRACTION) / u128::from(core.hz());
    u64::try_from(wide).unwrap_or(u64::MAX).min(255 << FRACTION)
}

#[cfg(test)]
mod tests;
