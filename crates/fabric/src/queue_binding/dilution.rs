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

/// A whole guarantee, in millionths.
pub const WHOLE_PPM: u32 = 1_000_000;

/// Traffic of one tenant at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Guarantee of the tenant at the port, in bit/s.
    pub guarantee: u64,
    /// Queue of the tenant's frames. 0 is the shared queue.
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
    port.least(weights, rate)
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

/// Returns the level at which a rate serves queues with the sum of weights `open` that always have
/// frames, and the limited queues, each with its weight and load.
fn level(rate: u128, open: u128, mut limited: Vec<(u128, u128)>) -> Level {
    let mut left = rate;
    let mut weight = open + limited.iter().map(|(weight, _)| weight).sum::<u128>();
    loop {
        let (count, now) = (limited.len(), Level { rate: left, weight });
        // A queue with a load below its part is served completely, so the level rises.
        limited.retain(|(own, load)| {
            let served = load * now.weight <= now.rate * own;
            if served {
                left -= load;
                weight -= own;
            }
            !served
        });
        if limited.len() == count {
            let all = Level { rate: 1, weight: 0 };
            return if weight == 0 { all } else { Level { rate: left, weight } };
        }
    }
}

impl PortLoad {
    /// Creates a port without traffic.
    pub(super) fn new(queues: usize) -> Self {
        Self(vec![QueueLoad::default(); queues.max(1)])
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
        let from_others = if at == 0 { self.0.iter().map(|queue| queue.split).sum() } else { 0 };
        only + open + split + from_others
    }

    /// Returns the least part that a queue keeps of its target, in millionths.
    pub(super) fn least(&self, weights: &[u32], rate: u64) -> u32 {
        let kept = self.kept(weights, rate);
        let part = |(at, kept): (usize, u32)| {
            let target = self.0[at].target.clamp(1, WHOLE_PPM);
            let part = u64::from(kept) * u64::from(WHOLE_PPM) / u64::from(target);
            u32::try_from(part).unwrap_or(WHOLE_PPM).min(WHOLE_PPM)
        };
        kept.into_iter().enumerate().map(part).min().unwrap_or(WHOLE_PPM)
    }

    /// Returns the least part of the guarantees in each queue that the queue keeps, in millionths.
    pub(super) fn kept(&self, weights: &[u32], rate: u64) -> Vec<u32> {
        let weight = |at: usize| u128::from(weights.get(at).copied().unwrap_or(1).max(1));
        let weights: Vec<u128> = (0..self.0.len()).map(weight).collect();
        let rate = u128::from(rate);
        let lowest = self.lowest(&weights, rate, None);
        let kept = |at: usize| {
            let most = self.most_in(at);
            if most == 0 {
                return WHOLE_PPM;
            }
            let victim = (!self.0[at].backlogged).then_some(at);
            let level = victim.map_or(lowest, |at| self.lowest(&weights, rate, Some(at)));
            level.part_ppm(weights[at], most)
        };
        (0..self.0.len()).map(kept).collect()
    }

    /// Returns the lowest water level that the tenants can cause. If `victim` is a limited queue,
    /// the traffic of all its tenants is in this queue, and more than the queue gets.
    fn lowest(&self, weights: &[u128], rate: u128, victim: Option<usize>) -> Level {
        let own = 1..self.0.len();
        let full = |at: &usize| self.0[*at].backlogged || victim == Some(*at);
        let open: u128 = own.clone().filter(full).map(|at| weights[at]).sum();
        let limited = |load: fn(&QueueLoad) -> u128| -> Vec<(u128, u128)> {
            let limited = own.clone().filter(|at| !full(at));
            limited.map(|at| (weights[at], load(&self.0[at]))).collect()
        };
        let all: fn(&QueueLoad) -> u128 = |queue| queue.only + queue.split;
        let only: fn(&QueueLoad) -> u128 = |queue| queue.only;
        let fixed: u128 = own.clone().filter(|at| !full(at)).map(|at| self.0[at].only).sum();
        if victim == Some(0) {
            // All split traffic is in queue 0, unless the traffic does not fit anyway.
            let fits = self.most_in(0) + fixed <= rate;
            return level(rate, open + weights[0], limited(if fits { only } else { all }));
        }
        let through_0 = level(rate, open + weights[0], limited(all));
        let split = own.clone().filter(|at| !full(at)).map(|at| self.0[at].split);
        let shared = self.0[0].only + split.sum::<u128>();
        match rate.checked_sub(shared).filter(|_| !self.0[0].backlogged) {
            Some(rest) => through_0.higher(level(rest, open, limited(only))),
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
