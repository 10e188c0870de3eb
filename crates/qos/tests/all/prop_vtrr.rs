//! Compares VTRR with its published rules, which the test computes in exact fractions. The test
//! checks that turns follow the published order, and that each client gets its share in every
//! cycle.

use penstock_qos::discipline::Discipline;
use penstock_qos::vtrr::{CLIENTS_MAX, Vtrr};
use penstock_units::Weight;
use proptest::prelude::*;

/// The published rules of VTRR for a fixed set of clients. By the published rules of VTRR, the VFT
/// of a client that has had n turns is (n + 1)/S. By the published rules of VTRR, the queue's
/// virtual time QVT is the number of all turns divided by the sum of the shares.
struct Published {
    shares: Vec<u128>,
    turns: Vec<u128>,
    at: usize,
}

impl Published {
    /// Returns the clients in the order of their turns in one cycle. The argument `shares` lists
    /// the shares of the clients, largest first.
    fn schedule(shares: &[u64]) -> Vec<usize> {
        let shares: Vec<u128> = shares.iter().map(|share| u128::from(*share)).collect();
        let all: u128 = shares.iter().sum();
        let mut this = Self { turns: vec![0; shares.len()], shares, at: 0 };
        let mut schedule = Vec::new();
        for done in 0..all {
            if done > 0 {
                this.at = this.next(done, all);
            }
            this.turns[this.at] += 1;
            schedule.push(this.at);
        }
        assert_eq!(this.turns, this.shares, "a cycle gives each its share");
        schedule
    }

    fn next(&self, done: u128, all: u128) -> usize {
        let (this, next) = (self.at, self.at + 1);
        if next == self.shares.len() {
            return 0;
        }
        let left = |c: usize| self.shares[c] - self.turns[c];
        // VFT - QVT(t + Q) < 1/S, multiplied by S × sum(S).
        let behind = self.turns[next] * all < (done + 1) * self.shares[next];
        if left(next) > left(this) || behind { next } else { 0 }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn play(weights: &[u64], turns: usize) -> Vec<usize> {
    let mut vtrr = Vtrr::new(weights.len());
    for (slot, weight) in weights.iter().enumerate() {
        vtrr.join(slot, Weight::new(*weight).unwrap());
        vtrr.backlogged(slot, 64);
    }
    let mut turn = || {
        let slot = vtrr.pick().unwrap();
        vtrr.charge(slot, vtrr.turn(), 64);
        slot
    };
    (0..turns).map(|_| turn()).collect()
}

fn check(mut weights: Vec<u64>) -> Result<(), TestCaseError> {
    weights.sort_by_key(|weight| std::cmp::Reverse(*weight));
    let common = weights.iter().copied().fold(0, gcd);
    let shares: Vec<u64> = weights.iter().map(|weight| weight / common).collect();
    let cycle = Published::schedule(&shares);
    let played = play(&weights, 3 * cycle.len());
    for (n, part) in played.chunks(cycle.len()).enumerate() {
        prop_assert_eq!(part, &cycle[..], "cycle {} of {:?}", n, weights);
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_schedule_is_the_published_one(
        weights in prop::collection::vec(1_u64..=40, 2..=CLIENTS_MAX),
    ) {
        check(weights)?;
    }

    /// Tests that the rounding of virtual times does not change the order of turns, even with the
    /// largest weights.
    #[test]
    fn the_schedule_holds_for_the_largest_weights(
        weights in prop::collection::vec(prop_oneof![1_u64..=3, 9_900..=10_000_u64], 2..=8),
    ) {
        check(weights)?;
    }

    /// Tests that clients get turns in proportion to their shares, to within a cycle, while other
    /// clients join and leave.
    #[test]
    fn a_client_that_stays_gets_its_share_over_a_long_time(
        (weights, events) in (2..=12_usize).prop_flat_map(|n| (
            prop::collection::vec(1_u64..=9, n),
            prop::collection::vec((0..n, 1..200_usize), 1..60),
        )),
    ) {
        let mut vtrr = Vtrr::new(weights.len());
        for (slot, weight) in weights.iter().enumerate() {
            vtrr.join(slot, Weight::new(*weight).unwrap());
            vtrr.backlogged(slot, 64);
        }
        // Clients 0 and 1 stay for the whole test.
        let mut there = vec![true; weights.len()];
        let mut had = [0_u64; 2];
        for (slot, turns) in events {
            if slot > 1 {
                there[slot] = !there[slot];
                if there[slot] { vtrr.backlogged(slot, 64) } else { vtrr.drained(slot) }
            }
            for _ in 0..turns {
                let turn = vtrr.pick().unwrap();
                prop_assert!(there[turn]);
                vtrr.charge(turn, vtrr.turn(), 64);
                if turn < 2 {
                    had[turn] += 1;
                }
            }
        }
        let (a, b) = (had[0] * weights[1], had[1] * weights[0]);
        // Within a cycle, each client may differ from its share by the amount that the order
        // permits. A join may end a cycle early.
        let slack = 2 * weights[0] * weights[1] * 2 + weights[0].max(weights[1]);
        prop_assert!(a.abs_diff(b) <= slack, "{had:?} of {:?}", &weights[..2]);
    }
}
