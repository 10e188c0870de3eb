//! Admission control: checks whether the host has the cycles and the bandwidth that its VMs
//! purchase.
//!
//! # Problem
//!
//! A host can keep its guarantees only if their sum does not exceed the host's resources. If a
//! request is refused, the operator needs to know the excess and a request that would fit.
//!
//! # Source
//!
//! C2QoS §IV: "the sum of all VMs' purchased bandwidth should not be more than the NIC bandwidth;
//! and the sum of CPU resources … should not exceed the IO-dedicated CPU cores".
//!
//! # Quantities
//!
//! - The paper's entitlement `C_alloc` is [`Claim::cycles`], in cycles per second.
//! - The argument `capacity` has the cycles per second of each worker. Each worker counts as one
//!   I/O core of the paper.
//! - The argument `link` is the NIC bandwidth, in bits per second.
//! - A resource is *oversold* if the claims on it exceed its capacity.
//!
//! # Approach
//!
//! 1. The sum of the bandwidth that all ports purchased must not exceed the link's bandwidth.
//! 2. No set of workers may be oversold in cycles. A port can use cycles only on the workers that
//!    serve its queue pairs. A set of workers is oversold if the claims that can use no worker
//!    outside of the set exceed its capacity. If no set of workers is oversold, all claims fit
//!    (Hall's theorem). With a single worker, the check of all sets of workers equals the rule of
//!    C2QoS.
//!
//! A refusal names the smallest oversold sets of workers, and the smallest remedies for each set.
//!
//! # Example
//!
//! Two workers have a capacity of 1.0 G cycles/s each, 2.0 G in total. In an example, ports a (0.7
//! G cycles/s) and b (0.5 G) are on worker 0, and port c (0.3 G) is on both workers. The sum of the
//! three claims, 1.5 G, is below 2.0 G, but worker 0 alone is oversold by 0.2 G. To relieve worker
//! 0, the first remedy in the refusal is to move port b (0.5 G cycles/s) to worker 1. The second
//! remedy in the refusal is to reduce port a from 0.7 G to 0.5 G cycles/s.
//!
//! # Departures
//!
//! The paper compares only the sum of all claims with the sum over all cores, not the sets of
//! workers.
//!
//! # Cost
//!
//! An admission check takes O(2^workers × distinct sets of workers in claims) for at most 16
//! workers. An admission check takes milliseconds, so only the control plane calls `admit`.

use penstock_units::{BitsPerSecond, CyclesPerSecond};

/// Maximum number of workers that admission supports.
pub const WORKERS_MAX: usize = 16;
/// Maximum number of oversold sets of workers in a report.
const EXCESSES_MAX: usize = 16;

/// A set of workers as a bit mask, with one bit per worker number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerSet(u16);

impl WorkerSet {
    /// The set that contains no workers.
    pub const NONE: Self = Self(0);

    /// Returns the set that contains only the worker with this number, 0 to 15. If the worker's
    /// number is above 15, the returned set is empty.
    #[must_use]
    pub const fn one(worker: usize) -> Self {
        if worker < WORKERS_MAX { Self(1 << worker) } else { Self::NONE }
    }

    /// Returns the set of workers 0 to `count` - 1.
    #[must_use]
    pub const fn first(count: usize) -> Self {
        if count >= WORKERS_MAX { Self(u16::MAX) } else { Self((1 << count) - 1) }
    }

    /// Returns the set of all workers that are in `self` or in `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the set contains every worker of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Number of workers in the set.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set contains no workers.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the numbers of the set's workers in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..WORKERS_MAX).filter(move |worker| self.contains(Self::one(*worker)))
    }
}

impl FromIterator<usize> for WorkerSet {
    fn from_iter<I: IntoIterator<Item = usize>>(workers: I) -> Self {
        workers.into_iter().fold(Self::NONE, |all, worker| all.with(Self::one(worker)))
    }
}

/// Capacity of the workers and the claims on this capacity, in cycles per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    capacity: Vec<u64>,
    /// Pairs of a set of workers, and the sum of the claims that may use exactly the workers of the
    /// set, in cycles per second.
    claimed: Vec<(WorkerSet, u64)>,
}

impl Ledger {
    /// Returns a ledger without claims, for workers of these capacities. The ledger ignores all
    /// workers after the first 16.
    #[must_use]
    pub fn new(capacity: &[CyclesPerSecond]) -> Self {
        let capacity = capacity.iter().take(WORKERS_MAX).map(|cycles| cycles.0).collect();
        Self { capacity, claimed: Vec::new() }
    }

    /// Adds a claim of `cycles` per second that any of `workers` may serve. Workers that do not
    /// exist add no capacity for the claim.
    pub fn claim(&mut self, workers: WorkerSet, cycles: u64) {
        match self.claimed.iter_mut().find(|(set, _)| *set == workers) {
            Some((_, sum)) => *sum = sum.saturating_add(cycles),
            None => self.claimed.push((workers, cycles)),
        }
    }

    fn all(&self) -> u16 {
        WorkerSet::first(self.capacity.len()).0
    }

    fn capacity_of(&self, set: WorkerSet) -> u64 {
        let of = |worker: usize| self.capacity.get(worker).copied().unwrap_or(0);
        set.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Returns the sum of the claims that can use no worker outside of `set`, in cycles per second.
    fn bound_to(&self, set: WorkerSet) -> u64 {
        let within = self.claimed.iter().filter(|(workers, _)| set.contains(*workers));
        within.map(|(_, cycles)| *cycles).fold(0, u64::saturating_add)
    }

    /// Returns the largest claim on `workers`, in cycles per second, that oversells no set of
    /// workers. Returns 0 if a set is oversold already.
    #[must_use]
    pub fn room(&self, workers: WorkerSet) -> CyclesPerSecond {
        let supersets = (0..=self.all()).map(WorkerSet).filter(|set| set.contains(workers));
        let of = |set| self.capacity_of(set).saturating_sub(self.bound_to(set));
        CyclesPerSecond(supersets.map(of).min().unwrap_or(0))
    }

    /// Whether no set of workers is oversold.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.excesses().is_empty()
    }

    /// Returns the smallest oversold sets of workers, and the excess of each set in cycles per
    /// second. In the list of oversold sets, sets with the fewest workers come first.
    fn excesses(&self) -> Vec<(WorkerSet, u64)> {
        let mut sets: Vec<WorkerSet> = (1..=self.all()).map(WorkerSet).collect();
        sets.sort_by_key(|set| set.len());
        let mut found: Vec<(WorkerSet, u64)> = Vec::new();
        for set in sets {
            let (bound, capacity) = (self.bound_to(set), self.capacity_of(set));
            let smaller = found.iter().any(|(smaller, _)| set.contains(*smaller));
            if bound > capacity && !smaller && found.len() < EXCESSES_MAX {
                found.push((set, bound - capacity));
            }
        }
        found
    }
}

/// The guarantee that one port requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Cycles per second that the port requests.
    pub cycles: CyclesPerSecond,
    /// Purchased rate of the port in bits per second. 0 if the port purchased no rate.
    pub bandwidth: BitsPerSecond,
    /// The workers that serve the port's queue pairs.
    pub workers: WorkerSet,
}

/// A change that would make all claims fit: move a port, reduce one claim, or reduce all claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Move all queue pairs of the port that makes this claim to another worker.
    Move {
        /// Index of the claim in the argument of [`admit`].
        claim: usize,
        /// Number of the worker to which the port moves, and which has enough unclaimed cycles for
        /// the port.
        worker: usize,
    },
    /// Reduce one claim to a part of the cycles or bandwidth that it requests.
    Reduce {
        /// Index of the claim in the argument of [`admit`].
        claim: usize,
        /// Factor by which the claim is multiplied, in ten thousandths, rounded down.
        left_e4: u32,
    },
    /// Reduce all claims on the oversold workers or link by the same factor.
    ReduceAll {
        /// Factor by which each claim is multiplied, in ten thousandths, rounded down.
        left_e4: u32,
    },
}

/// Report about an oversold resource, which is the link or a set of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess<T> {
    /// Sum of the claims on the workers or the link, in cycles or bits per second.
    pub sold: T,
    /// Capacity of the resource, in cycles or bits per second.
    pub there: T,
    /// The oversold workers. Oversold set of workers; empty if the resource is the link.
    pub workers: WorkerSet,
    /// Changes that would make the claims fit, the smallest first. The list of remedies is empty if
    /// no change makes the claims fit.
    pub remedies: Vec<Remedy>,
}

/// Result of [`admit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Report about the link if it is oversold. `None` if the purchased bandwidth fits the link.
    pub link: Option<Excess<BitsPerSecond>>,
    /// Reports about the sets of workers whose cycles are oversold.
    pub cycles: Vec<Excess<CyclesPerSecond>>,
    /// Cycles per second that can still be claimed on each worker alone, in the order of the
    /// workers.
    pub room: Vec<CyclesPerSecond>,
}

impl Admission {
    /// Whether all claims fit, which means that neither the link nor a set of workers is oversold.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.link.is_none() && self.cycles.is_empty()
    }
}

/// Admits or refuses the claims: checks whether their sums fit on the link and on the workers'
/// capacities. Without a `link`, bandwidth is not checked.
#[must_use]
pub fn admit(
    capacity: &[CyclesPerSecond],
    link: Option<BitsPerSecond>,
    claims: &[Claim],
) -> Admission {
    let mut ledger = Ledger::new(capacity);
    for claim in claims {
        ledger.claim(claim.workers, claim.cycles.0);
    }
    let excesses = ledger.excesses();
    let cycles = excesses.iter().map(|(set, excess)| Excess {
        sold: CyclesPerSecond(ledger.bound_to(*set)),
        there: CyclesPerSecond(ledger.capacity_of(*set)),
        workers: *set,
        remedies: cycle_remedies(capacity, claims, *set, *excess),
    });
    let sold = claims.iter().map(|claim| claim.bandwidth.0).fold(0, u64::saturating_add);
    let link = link.filter(|link| sold > link.0).map(|link| {
        let all = claims.iter().enumerate().map(|(at, claim)| (at, claim.bandwidth.0));
        Excess {
            sold: BitsPerSecond(sold),
            there: link,
            workers: WorkerSet::NONE,
            remedies: reductions(all, sold - link.0).collect(),
        }
    });
    let workers = (0..ledger.capacity.len()).map(WorkerSet::one);
    Admission { link, cycles: cycles.collect(), room: workers.map(|w| ledger.room(w)).collect() }
}

fn cycle_remedies(
    capacity: &[CyclesPerSecond],
    claims: &[Claim],
    set: WorkerSet,
    excess: u64,
) -> Vec<Remedy> {
    let bound = |claim: &Claim| set.contains(claim.workers);
    let concerned = claims.iter().enumerate().filter(|(_, claim)| bound(claim));
    let mut movable: Vec<(usize, u64)> =
        concerned.clone().map(|(at, claim)| (at, claim.cycles.0)).collect();
    movable.retain(|(_, cycles)| *cycles >= excess);
    movable.sort_by_key(|(_, cycles)| *cycles);
    let moved = movable.iter().find_map(|(at, cycles)| {
        let mut without = Ledger::new(capacity);
        let others = claims.iter().enumerate().filter(|(other, _)| other != at);
        others.for_each(|(_, claim)| without.claim(claim.workers, claim.cycles.0));
        let elsewhere = |worker: &usize| !set.contains(WorkerSet::one(*worker));
        let mut workers = (0..without.capacity.len()).filter(elsewhere);
        let worker = workers.find(|worker| without.room(WorkerSet::one(*worker)).0 >= *cycles)?;
        Some(Remedy::Move { claim: *at, worker })
    });
    let sizes = concerned.map(|(at, claim)| (at, claim.cycles.0));
    moved.into_iter().chain(reductions(sizes, excess)).collect()
}

/// Proposes two remedies: to reduce the largest claim, if this suffices, and to reduce all claims
/// by the same factor.
fn reductions(
    claims: impl Iterator<Item = (usize, u64)>,
    excess: u64,
) -> impl Iterator<Item = Remedy> {
    let claims: Vec<(usize, u64)> = claims.collect();
    let left = |of: u64| {
        let left = u128::from(of.saturating_sub(excess)) * 10_000 / u128::from(of.max(1));
        u32::try_from(left).unwrap_or(10_000)
    };
    let largest = claims.iter().max_by_key(|(_, size)| *size).copied();
    let one = largest.filter(|(_, size)| *size > excess);
    let sum = claims.iter().map(|(_, size)| *size).fold(0, u64::saturating_add);
    let all = (claims.len() > 1 && sum > excess).then(|| left(sum));
    let one = one.map(|(claim, size)| Remedy::Reduce { claim, left_e4: left(size) });
    one.into_iter().chain(all.map(|left_e4| Remedy::ReduceAll { left_e4 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1_000_000_000;

    fn claim(cycles: u64, workers: &[usize]) -> Claim {
        Claim {
            cycles: CyclesPerSecond(cycles),
            bandwidth: BitsPerSecond(0),
            workers: workers.iter().copied().collect(),
        }
    }

    fn cores(cycles: &[u64]) -> Vec<CyclesPerSecond> {
        cycles.iter().map(|c| CyclesPerSecond(*c)).collect()
    }

    #[test]
    fn one_worker_is_the_papers_sum() {
        let claims = [claim(6 * G / 10, &[0]), claim(4 * G / 10, &[0])];
        assert!(admit(&cores(&[G]), None, &claims).fits());
        let answer = admit(&cores(&[G - 1]), None, &claims);
        let [excess] = answer.cycles.as_slice() else { panic!("{answer:?}") };
        assert_eq!((excess.sold.0, excess.there.0), (G, G - 1));
        assert_eq!(
            excess.remedies,
            [Remedy::Reduce { claim: 0, left_e4: 9_999 }, Remedy::ReduceAll { left_e4: 9_999 }]
        );
        assert_eq!(answer.room, [CyclesPerSecond(0)]);
    }

    #[test]
    fn a_ports_place_is_respected_though_the_sum_would_fit() {
        // This is the example of the module's documentation.
        let claims = [claim(7 * G / 10, &[0]), claim(5 * G / 10, &[0]), claim(3 * G / 10, &[0, 1])];
        let answer = admit(&cores(&[G, G]), None, &claims);
        let [excess] = answer.cycles.as_slice() else { panic!("{answer:?}") };
        assert_eq!((excess.workers, excess.sold.0 - excess.there.0), (WorkerSet::one(0), G / 5));
        assert_eq!(excess.remedies[0], Remedy::Move { claim: 1, worker: 1 });
        assert_eq!(excess.remedies[1], Remedy::Reduce { claim: 0, left_e4: 7_142 });
        let mut moved = claims;
        moved[1].workers = WorkerSet::one(1);
        assert!(admit(&cores(&[G, G]), None, &moved).fits());
    }

    #[test]
    fn sets_of_workers_are_asked_together() {
        // Neither worker is oversold alone, but both together are.
        let claims = [claim(G, &[0, 1]), claim(G / 2, &[0]), claim(6 * G / 10, &[1])];
        let answer = admit(&cores(&[G, G, G]), None, &claims);
        let [excess] = answer.cycles.as_slice() else { panic!("{answer:?}") };
        assert_eq!((excess.workers.len(), excess.sold.0 - excess.there.0), (2, G / 10));
        assert_eq!(excess.remedies[0], Remedy::Move { claim: 1, worker: 2 });
        assert_eq!(
            answer.room[2],
            CyclesPerSecond(9 * G / 10),
            "what is too much has to go somewhere"
        );
    }

    #[test]
    fn room_is_what_may_still_be_claimed() {
        let mut ledger = Ledger::new(&cores(&[G, G]));
        ledger.claim(WorkerSet::one(0), 3 * G / 10);
        ledger.claim(WorkerSet::first(2), G);
        assert_eq!(ledger.room(WorkerSet::one(0)).0, 7 * G / 10);
        assert_eq!(ledger.room(WorkerSet::one(1)).0, 7 * G / 10);
        assert_eq!(ledger.room(WorkerSet::first(2)).0, 7 * G / 10);
        ledger.claim(WorkerSet::one(1), 7 * G / 10);
        assert_eq!(ledger.room(WorkerSet::one(0)).0, 0);
    }

    #[test]
    fn bandwidth_beyond_the_link_is_refused_and_an_unknown_link_is_not_asked() {
        let claims = [4, 4, 3].map(|gigabits| Claim {
            bandwidth: BitsPerSecond(gigabits * G),
            ..claim(G / 100, &[0])
        });
        let answer = admit(&cores(&[G]), Some(BitsPerSecond(10 * G)), &claims);
        let link = answer.link.clone().unwrap();
        assert_eq!((link.sold.0, link.there.0), (11 * G, 10 * G));
        assert_eq!(link.remedies[1], Remedy::ReduceAll { left_e4: 9_090 });
        assert!(!answer.fits() && answer.cycles.is_empty());
        assert!(admit(&cores(&[G]), None, &claims).fits());
    }

    #[test]
    fn nothing_is_sold_where_no_worker_is() {
        let answer = admit(&[], None, &[claim(0, &[])]);
        assert!(answer.fits() && answer.room.is_empty());
        assert_eq!(WorkerSet::one(16), WorkerSet::NONE);
        assert_eq!(WorkerSet::first(16).len(), 16);
        assert_eq!([3, 1].into_iter().collect::<WorkerSet>().iter().collect::<Vec<_>>(), [1, 3]);
    }
}
