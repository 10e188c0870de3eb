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
//! the receiver's part ([`pair`]). A VM can divide its guarantee in two ways:
//!
//! - [`equal`] gives an equal part to each active pair.
//! - [`fill`] divides a VM's guarantee among the VM's active pairs by water-filling. A pair's
//!   demand is the minimum of its estimated demand and the demand that the other VM of the pair
//!   reports. No pair gets more than its demand before all demands are met. If all demands are met,
//!   the remaining guarantee is divided equally among the pairs. Because each pair gets an equal
//!   part of the remaining guarantee, a pair with growing demand gets bandwidth at once.
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

use penstock_units::BitsPerSecond;

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
    parts.clear();
    if wants.len() <= 1 {
        // A single pair gets its demand and all of the remaining guarantee.
        parts.resize(wants.len(), hose);
        return;
    }
    parts.resize(wants.len(), BitsPerSecond(0));
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|pair| (wants[*pair], *pair));
    let mut left = hose.0;
    let mut waiting = order.len();
    for pair in order {
        let part = wants[pair].min(equal(BitsPerSecond(left), waiting));
        parts[pair] = part;
        left -= part.0;
        waiting -= 1;
    }
    let spare = equal(BitsPerSecond(left), parts.len());
    for part in parts {
        *part = BitsPerSecond(part.0.saturating_add(spare.0));
    }
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
