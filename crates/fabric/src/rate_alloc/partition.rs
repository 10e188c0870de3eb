//! Divides a VM's hose guarantee among the pairs to which the VM belongs (guarantee partitioning).
//!
//! # Problem
//!
//! A hose guarantees a VM one rate to all other VMs together, and one rate from all other VMs
//! together. Hypervisors, however, limit the rate of each pair of VMs.
//!
//! # Source
//!
//! The division of a guarantee among pairs follows ElasticSwitch's guarantee partitioning.
//! [`super`] lists the departures from ElasticSwitch.
//!
//! # Approach
//!
//! The sender of a pair divides its guaranteed sending rate among its pairs, and the receiver
//! divides its guaranteed receiving rate. The pair's guarantee is the smaller of the sender's and
//! the receiver's part ([`pair`]). A VM can divide its guarantee in three ways:
//!
//! - [`equal`] gives an equal part to each active pair.
//! - [`fill`] divides a VM's guarantee among the VM's active pairs by water-filling. A pair's
//!   demand is the minimum of its estimated demand and the demand that the other VM of the pair
//!   reports. No pair gets more than its demand before all demands are met. If all demands are met,
//!   the remaining guarantee is divided equally among the pairs. Because each pair gets an equal
//!   part of the remaining guarantee, a pair with growing demand gets bandwidth at once.
//! - [`fill_by_weight`] does the same with parts in proportion to weights instead of equal parts.
//!
//! # Example
//!
//! In a test, three pairs with demands of 10, 60 and unlimited Mbit/s share 100 Mbit/s. Guarantee
//! partitioning gives 10, 45 and 45 Mbit/s to the three pairs.
//!
//! # Bounds
//!
//! The sum of the parts of all pairs never exceeds the VM's guarantee. A pair gets at least the
//! smaller of its demand and an equal part of the guarantee.
//!
//! # Cost
//!
//! In each period, the hypervisor sorts the VM's active pairs once.

use std::cmp::Ordering;

use penstock_units::BitsPerSecond;

use super::scaled;

/// Returns the part of each pair if the rate `hose` is divided equally among `pairs` pairs, rounded
/// down. Returns all of `hose` if the VM has no pairs.
#[must_use]
pub fn equal(hose: BitsPerSecond, pairs: usize) -> BitsPerSecond {
    BitsPerSecond(hose.0 / u64::try_from(pairs.max(1)).unwrap_or(u64::MAX))
}

/// Divides the rate `hose` by water-filling among pairs with the demands `wants`. Stores the part
/// of each pair in `parts`, in the order of `wants`.
///
/// The pairs' parts are rounded down, so up to one bit/s per pair may remain undivided.
pub fn fill(hose: BitsPerSecond, wants: &[BitsPerSecond], parts: &mut Vec<BitsPerSecond>) {
    let wants: Vec<_> = wants.iter().map(|want| (*want, 1)).collect();
    fill_by_weight(hose, &wants, parts);
}

/// Divides the rate `hose` like [`fill`], but in proportion to the pairs' weights. `wants` has the
/// demand and the weight of each pair. Weights should be above 0.
pub fn fill_by_weight(
    hose: BitsPerSecond,
    wants: &[(BitsPerSecond, u32)],
    parts: &mut Vec<BitsPerSecond>,
) {
    parts.clear();
    if wants.len() <= 1 {
        // A single pair gets its demand and all of the remaining guarantee.
        parts.resize(wants.len(), hose);
        return;
    }
    parts.resize(wants.len(), BitsPerSecond(0));
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|a, b| by_ratio(wants[*a], wants[*b]).then(a.cmp(b)));
    let total = weights(wants);
    let (mut left, mut waiting) = (hose, total);
    for pair in order {
        let (want, weight) = wants[pair];
        let part = want.min(weighted(left, weight, waiting));
        parts[pair] = part;
        left = BitsPerSecond(left.0 - part.0);
        waiting -= u64::from(weight);
    }
    for (part, (_, weight)) in parts.iter_mut().zip(wants) {
        let spare = weighted(left, *weight, total);
        *part = BitsPerSecond(part.0.saturating_add(spare.0));
    }
}

/// Returns the sum of the weights of pairs.
pub(super) fn weights(wants: &[(BitsPerSecond, u32)]) -> u64 {
    wants.iter().map(|(_, weight)| u64::from(*weight)).sum()
}

/// Returns the part of the rate `hose` for a pair with the weight `weight`, if the weights of all
/// pairs are `total` together. Rounds down.
pub(super) fn weighted(hose: BitsPerSecond, weight: u32, total: u64) -> BitsPerSecond {
    BitsPerSecond(scaled(hose.0, weight.into(), total))
}

/// Compares the ratios of two rates to their weights.
pub(super) fn by_ratio(a: (BitsPerSecond, u32), b: (BitsPerSecond, u32)) -> Ordering {
    let product = |rate: BitsPerSecond, weight: u32| u128::from(rate.0) * u128::from(weight);
    product(a.0, b.1).cmp(&product(b.0, a.1))
}

/// Returns the guarantee of a pair: the smaller of the parts that the sender and the receiver
/// assign to the pair.
#[must_use]
pub fn pair(sender: BitsPerSecond, receiver: BitsPerSecond) -> BitsPerSecond {
    sender.min(receiver)
}

#[cfg(test)]
mod tests {
    use super::super::UNLIMITED;
    use super::*;

    fn mbps(values: &[u64]) -> Vec<BitsPerSecond> {
        values.iter().map(|v| BitsPerSecond(v * 1_000_000)).collect()
    }

    fn filled(hose: u64, wants: &[BitsPerSecond]) -> Vec<BitsPerSecond> {
        let mut parts = Vec::new();
        fill(BitsPerSecond(hose * 1_000_000), wants, &mut parts);
        parts
    }

    #[test]
    fn a_pair_that_wants_less_leaves_the_rest_to_the_others() {
        let mut wants = mbps(&[10, 60]);
        wants.push(UNLIMITED);
        assert_eq!(filled(100, &wants), mbps(&[10, 45, 45]));
        assert_eq!(filled(90, &[UNLIMITED; 3]), mbps(&[30, 30, 30]));
    }

    #[test]
    fn pairs_get_parts_by_weight_and_what_others_leave() {
        let of = |hose: u64, wants: &[(u64, u32)]| {
            let wants: Vec<_> = wants.iter().map(|(w, n)| (mbps(&[*w])[0], *n)).collect();
            let mut parts = Vec::new();
            fill_by_weight(BitsPerSecond(hose * 1_000_000), &wants, &mut parts);
            parts
        };
        assert_eq!(of(100, &[(1_000, 1), (1_000, 3)]), mbps(&[25, 75]));
        assert_eq!(of(100, &[(1_000, 1), (40, 3), (1_000, 2)]), mbps(&[20, 40, 40]));
        assert_eq!(of(100, &[(10, 1), (30, 3)]), mbps(&[25, 75]), "the rest by weight, too");
        assert_eq!(of(100, &[(10, 5)]), mbps(&[100]));
    }

    #[test]
    fn unwanted_bandwidth_is_spread_and_no_pairs_get_nothing() {
        assert_eq!(filled(100, &mbps(&[10, 20])), mbps(&[45, 55]));
        assert_eq!(filled(100, &[]), []);
        assert_eq!(filled(100, &mbps(&[10])), mbps(&[100]));
        assert_eq!(filled(100, &[UNLIMITED]), mbps(&[100]));
        assert_eq!(equal(BitsPerSecond(7), 0), BitsPerSecond(7));
        assert_eq!(equal(BitsPerSecond(7), 2), BitsPerSecond(3));
        assert_eq!(pair(BitsPerSecond(4), BitsPerSecond(3)), BitsPerSecond(3));
    }
}
