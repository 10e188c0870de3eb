//! Guarantee partitioning: a VM's hose guarantee divided among its pairs.
//!
//! # Problem
//!
//! A hose limits the sum that a VM may send to all others, and the sum that it may receive. Rate
//! limits apply to pairs.
//!
//! # Source
//!
//! The source is ElasticSwitch's guarantee partitioning. For departures see [`super`].
//!
//! # Approach
//!
//! Each side of a pair divides its VM's guarantee on its own. The sender divides its sending rate,
//! and the receiver its receiving rate. The pair's guarantee is the smaller of both parts
//! ([`pair`]). There are two ways to divide:
//!
//! - [`equal`] gives the same part to each active pair.
//! - [`fill`] divides by water-filling. No pair gets more than it wants before all pairs have what
//!   they want. A pair wants the minimum of its estimated demand and the other side's report. The
//!   rest is divided equally, so that a pair with growing demand finds bandwidth.
//!
//! # Example
//!
//! In a test, three pairs share 100 Mbit/s and want 10, 60 and unlimited. They get 10, 45 and 45.
//!
//! # Bounds
//!
//! Two properties are tested. The parts never exceed the guarantee in sum. A pair gets at least the
//! smaller of an equal part and what it wants.
//!
//! # Cost
//!
//! Each period takes one sort of the VM's active pairs.

use penstock_units::BitsPerSecond;

/// An equal part of `hose` for each of `pairs` pairs, rounded down. The whole `hose` if there are
/// no pairs.
#[must_use]
pub fn equal(hose: BitsPerSecond, pairs: usize) -> BitsPerSecond {
    BitsPerSecond(hose.0 / u64::try_from(pairs.max(1)).unwrap_or(u64::MAX))
}

/// Divides `hose` among pairs that want `wants`. `parts` gets the results in the same order.
///
/// Parts are rounded down, so up to one bit/s per pair may remain undivided.
pub fn fill(hose: BitsPerSecond, wants: &[BitsPerSecond], parts: &mut Vec<BitsPerSecond>) {
    parts.clear();
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

/// Guarantee of a pair: the smaller of the parts that its two sides assign.
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
        assert_eq!(equal(BitsPerSecond(7), 0), BitsPerSecond(7));
        assert_eq!(equal(BitsPerSecond(7), 2), BitsPerSecond(3));
        assert_eq!(pair(BitsPerSecond(4), BitsPerSecond(3)), BitsPerSecond(3));
    }
}
