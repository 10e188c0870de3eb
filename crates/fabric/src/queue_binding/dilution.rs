//! Computes how much of its guarantee each queue of a port keeps if the weights or the traffic do
//! not fit the reservations.
//!
//! # Problem
//!
//! While queues change hands, a tenant's frames may be in its own queue and in queue 0 at the same
//! time, because its hosts do not change their marks at the same moment. Both queues then need
//! weight for the tenant's guarantee, so the weights count the tenant twice. If the tenant sent
//! without limit in both queues, every other tenant of the port would be diluted: it would get less
//! than its guarantee. Ten tenants with guarantees of 94 Mbit/s on a link of 1,000 Mbit/s get only
//! 1,000 / 11 = 90.9 Mbit/s each while one of them is counted twice, or 0.967 of the guarantee.
//!
//! # Approach
//!
//! Weights that count a tenant twice do not dilute anybody. Traffic without a limit in such weights
//! does. If hosts limit a tenant to its guarantee g, the tenant's traffic in both queues together
//! is at most g, however large the weights are. [`dilution`] computes the least part of a guarantee
//! that any queue keeps, if the tenants of the port behave as badly as they can:
//!
//! - An unlimited tenant always has frames in each of its queues.
//! - A limited tenant divides its guarantee between its queues as it likes.
//!
//! # Model
//!
//! A port is fluid and serves its queues by weighted max-min fairness. There is a water level L,
//! the bandwidth per unit of weight. A queue with load a and weight w gets min(a, L × w), and a
//! queue that always has frames gets L × w. The level L is the one at which the port's rate C is
//! used completely. For given limits, the level is lowest if the limited tenants divide their
//! traffic so that as much of it as possible is served. The greatest served amount is a maximum
//! flow: each limited tenant first fills its own queue, and the rest goes to queue 0. The port
//! needs
//!
//! ```text
//! L × (weights of unlimited queues) + min(own + L × w0, shared + split) = C
//! ```
//!
//! where `own` is the sum of min(g, L × w) over the queues of limited tenants with a split,
//! `shared` the load that is only in queue 0, and `split` the sum of the split tenants' guarantees.
//! The module solves the equation for both sides of the minimum and takes the higher level.
//!
//! A limited queue keeps least if all its tenants' traffic is in this queue. This holds if the
//! limited traffic of the port fits into the rate C. If it does not fit, the result is a lower
//! bound.
//!
//! # Cost
//!
//! The computation takes O(queues²) time for each limited queue, usually O(queues).

use super::QUEUES_MAX;

/// A whole guarantee, in millionths.
pub const WHOLE_PPM: u32 = 1_000_000;

/// Traffic of one tenant at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Guarantee of the tenant at the port, in bit/s.
    pub guarantee: u64,
    /// Queue of the tenant's frames, below [`QUEUES_MAX`]. 0 is the shared queue.
    pub queue: u8,
    /// True if some of the tenant's frames may be in queue 0 instead.
    pub also_shared: bool,
    /// True if hosts limit the tenant to its guarantee. An unlimited tenant always has frames in
    /// its queues.
    pub limited: bool,
}

/// Returns the least part of its guarantee that a tenant of `loads` keeps at a port of rate `rate`
/// (bit/s) with the queue weights `weights`, in millionths. A weight is at least 1, and a queue
/// beyond the end of `weights` has weight 1. The part is [`WHOLE_PPM`] if every tenant keeps its
/// guarantee, or has no guarantee.
#[must_use]
pub fn dilution(loads: &[Load], weights: &[u32], rate: u64) -> u32 {
    let highest = loads.iter().map(|load| usize::from(load.queue)).max().unwrap_or(0);
    let mut port = PortLoad::new(weights.len().max(highest + 1));
    loads.iter().for_each(|load| port.add(load, WHOLE_PPM));
    port.least(weights, rate, 0)
}

/// Traffic that may be in one queue of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct QueueLoad {
    /// Guarantees of limited tenants with frames only in this queue, in bit/s.
    only: u128,
    /// Guarantees of limited tenants with frames in this queue or in queue 0, in bit/s.
    split: u128,
    /// Guarantees of unlimited tenants, in bit/s.
    open: u128,
    /// True if an unlimited tenant is in the queue, so that the queue always has frames.
    backlogged: bool,
    /// Part of its guarantee that the tenants of this queue keep at best, in millionths.
    target: u32,
}

/// Traffic that may be in the queues of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortLoad(Vec<QueueLoad>);

/// Bandwidth per unit of weight: the fraction `rate` / `weight`. A `weight` of 0 is a level without
/// limit, at which all queues are served completely.
#[derive(Clone, Copy, Debug)]
struct Level {
    rate: u128,
    weight: u128,
}

impl Level {
    fn higher(self, other: Self) -> Self {
        if self.rate * other.weight < other.rate * self.weight { other } else { self }
    }

    /// Returns the part of a load `most` that a queue of weight `weight` gets at this level, in
    /// millionths.
    fn part_ppm(self, weight: u128, most: u128) -> u32 {
        let part = self.rate * weight * u128::from(WHOLE_PPM);
        let part = part.checked_div(self.weight * most);
        part.and_then(|part| u32::try_from(part).ok()).unwrap_or(WHOLE_PPM).min(WHOLE_PPM)
    }
}

/// Set of queues: bit q is 1 if the set contains queue q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queues(u64);

impl Queues {
    fn of(queues: impl Iterator<Item = usize>) -> Self {
        Self(queues.fold(0, |all, at| all | (1 << at)))
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let at = rest.trailing_zeros();
            rest &= rest.checked_sub(1)?;
            usize::try_from(at).ok()
        })
    }

    fn without(self, at: usize) -> Self {
        Self(self.0 & !(1 << at))
    }
}

/// Returns the level at which a rate serves queues with the sum of weights `open` that always have
/// frames, and the queues of `limited` with the loads that `load` returns.
fn level(
    rate: u128,
    open: u128,
    weights: &[u128],
    mut limited: Queues,
    load: impl Fn(usize) -> u128,
) -> Level {
    let mut left = rate;
    let mut weight = open + limited.iter().map(|at| weights[at]).sum::<u128>();
    loop {
        let (before, now) = (limited, Level { rate: left, weight });
        // A queue with a load below its part is served completely, so the level rises.
        for at in before.iter() {
            if load(at) * now.weight <= now.rate * weights[at] {
                left -= load(at);
                weight -= weights[at];
                limited = limited.without(at);
            }
        }
        if limited == before {
            let all = Level { rate: 1, weight: 0 };
            return if weight == 0 { all } else { Level { rate: left, weight } };
        }
    }
}

impl PortLoad {
    /// Creates a port without traffic.
    pub(super) fn new(queues: usize) -> Self {
        Self(vec![QueueLoad::default(); queues.clamp(1, usize::from(QUEUES_MAX))])
    }

    /// Adds the traffic of a tenant, which keeps the part `target` of its guarantee at best, in
    /// millionths.
    pub(super) fn add(&mut self, load: &Load, target: u32) {
        let own = usize::from(load.queue);
        let both = load.also_shared && own != 0;
        let guarantee = u128::from(load.guarantee);
        for at in [Some(own), both.then_some(0)].into_iter().flatten() {
            let Some(queue) = self.0.get_mut(at) else { continue };
            queue.target = queue.target.max(target);
            match (load.limited, both) {
                (false, _) => (queue.open, queue.backlogged) = (queue.open + guarantee, true),
                (true, false) => queue.only += guarantee,
                // The sum of splits in queue 0 follows from the other queues.
                (true, true) if at != 0 => queue.split += guarantee,
                (true, true) => {}
            }
        }
    }

    /// Returns the largest traffic within the guarantees that may be in each queue, in bit/s.
    pub(super) fn most(&self) -> Vec<u64> {
        let most = (0..self.0.len()).map(|at| self.most_in(at));
        most.map(|most| u64::try_from(most).unwrap_or(u64::MAX)).collect()
    }

    fn most_in(&self, at: usize) -> u128 {
        let QueueLoad { only, split, open, .. } = self.0[at];
        let splits = self.0.iter().map(|queue| queue.split);
        let from_others: u128 = if at == 0 { splits.sum() } else { 0 };
        only + open + split + from_others
    }

    /// Returns the least part that a queue keeps of its target, in millionths. If a part is not
    /// above `floor`, the result may be this part.
    pub(super) fn least(&self, weights: &[u32], rate: u64, floor: u32) -> u32 {
        let weights = self.weights(weights);
        let lowest = self.lowest(&weights, rate.into(), None);
        let mut least = WHOLE_PPM;
        for (at, queue) in self.0.iter().enumerate() {
            let kept = self.kept_by(at, &weights, rate.into(), lowest);
            let part = u64::from(kept) * u64::from(WHOLE_PPM);
            let part = part / u64::from(queue.target.clamp(1, WHOLE_PPM));
            least = least.min(u32::try_from(part).unwrap_or(WHOLE_PPM));
            if least <= floor {
                break;
            }
        }
        least
    }

    /// Returns the least part of the guarantees in each queue that the queue keeps, in millionths.
    pub(super) fn kept(&self, weights: &[u32], rate: u64) -> Vec<u32> {
        let weights = self.weights(weights);
        let lowest = self.lowest(&weights, rate.into(), None);
        let kept = |at: usize| self.kept_by(at, &weights, rate.into(), lowest);
        (0..self.0.len()).map(kept).collect()
    }

    fn weights(&self, weights: &[u32]) -> Vec<u128> {
        let weight = |at: usize| u128::from(weights.get(at).copied().unwrap_or(1).max(1));
        (0..self.0.len()).map(weight).collect()
    }

    /// Returns the least part of its guarantees that a queue keeps. The level `lowest` is the
    /// lowest one without a victim.
    fn kept_by(&self, at: usize, weights: &[u128], rate: u128, lowest: Level) -> u32 {
        let most = self.most_in(at);
        if most == 0 {
            return WHOLE_PPM;
        }
        let level =
            if self.0[at].backlogged { lowest } else { self.lowest(weights, rate, Some(at)) };
        level.part_ppm(weights[at], most)
    }

    /// Returns the lowest water level that the tenants can cause. If `victim` is a limited queue,
    /// the traffic of all its tenants is in this queue, and more than the queue gets.
    fn lowest(&self, weights: &[u128], rate: u128, victim: Option<usize>) -> Level {
        let full = |at: &usize| self.0[*at].backlogged || victim == Some(*at);
        let own = 1..self.0.len();
        let open: u128 = own.clone().filter(full).map(|at| weights[at]).sum();
        let limited = Queues::of(own.filter(|at| !full(at)));
        let only = |at: usize| self.0[at].only;
        let all = |at: usize| self.0[at].only + self.0[at].split;
        let fixed: u128 = limited.iter().map(only).sum();
        // If all split traffic of a queue 0 with too little weight is in queue 0, others get least.
        // The traffic must fit, though.
        if victim == Some(0) && self.most_in(0) + fixed <= rate {
            return level(rate, open + weights[0], weights, limited, only);
        }
        let through_0 = level(rate, open + weights[0], weights, limited, all);
        let shared = self.0[0].only + limited.iter().map(|at| self.0[at].split).sum::<u128>();
        let backlogged = self.0[0].backlogged || victim == Some(0);
        match rate.checked_sub(shared).filter(|_| !backlogged) {
            Some(rest) => through_0.higher(level(rest, open, weights, limited, only)),
            None => through_0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(guarantee: u64, queue: u8) -> Load {
        Load { guarantee, queue, also_shared: false, limited: false }
    }

    /// Nine tenants with a guarantee of 94 Mbit/s of a link of 1,000 Mbit/s, and a tenant that
    /// moves.
    fn ten(mover: Load) -> Vec<Load> {
        (2..=10).map(|queue| load(94, queue)).chain([mover]).collect()
    }

    #[test]
    fn a_tenant_without_limit_in_two_queues_dilutes_the_others() {
        // The weights of plans before limits: the mover counts in its own queue and in queue 0.
        let mover = Load { also_shared: true, ..load(94, 1) };
        assert_eq!(dilution(&ten(mover), &[1; 11], 1_000), 967_117);
        let limited = Load { limited: true, ..mover };
        assert_eq!(dilution(&ten(limited), &[1; 11], 1_000), WHOLE_PPM);
    }

    #[test]
    fn any_number_of_limited_tenants_may_move_at_once() {
        for movers in 1..=9_u8 {
            let moves = |queue| {
                let moves = queue <= movers;
                Load { also_shared: moves, limited: moves, ..load(100, queue) }
            };
            let loads: Vec<Load> = (1..=10).map(moves).collect();
            let mut weights = vec![1; 11];
            weights[0] = u32::from(movers);
            assert_eq!(dilution(&loads, &weights, 1_000), WHOLE_PPM, "{movers} tenants");
            weights[0] = 1;
            let too_little = dilution(&loads, &weights, 1_000);
            assert_eq!(too_little < WHOLE_PPM, movers > 1, "{movers} tenants: {too_little}");
        }
    }

    #[test]
    fn if_all_tenants_are_limited_and_fit_no_weights_dilute_anybody() {
        let loads = [
            Load { limited: true, ..load(600, 0) },
            Load { limited: true, also_shared: true, ..load(390, 1) },
            Load { limited: true, ..load(10, 2) },
        ];
        assert_eq!(dilution(&loads, &[1, 100, 1], 1_000), WHOLE_PPM);
        assert!(dilution(&loads, &[1, 100, 1], 999) < WHOLE_PPM);
        let backlogged = loads.map(|load| Load { limited: false, ..load });
        assert_eq!(dilution(&backlogged, &[1, 1, 1], 1_000), 336_700, "1,000 / 3 of 990");
    }

    #[test]
    fn a_split_tenant_harms_queue_0_most_if_it_is_there_completely() {
        // Queue 0 has half of the weight that it needs. The unlimited tenants have twice theirs.
        let loads = [
            Load { limited: true, ..load(100, 0) },
            Load { limited: true, also_shared: true, ..load(100, 1) },
            load(6, 2),
        ];
        let weights = [100, 50, 6];
        // 206 × 100 / 106 of 200 in queue 0, and 106 × 50 / 56 of 100 in queue 1.
        assert_eq!(dilution(&loads, &weights, 206), 946_428);
        assert_eq!(dilution(&loads, &[100, 100, 6], 206), 971_698);
    }

    #[test]
    fn nobody_is_whole_without_traffic_and_a_port_without_room_keeps_nothing() {
        assert_eq!(dilution(&[], &[1, 1], 10), WHOLE_PPM);
        assert_eq!(dilution(&[load(0, 1)], &[1, 1], 10), WHOLE_PPM);
        assert_eq!(dilution(&[load(7, 1)], &[1, 1], 0), 0);
    }
}
