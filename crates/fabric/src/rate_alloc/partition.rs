//! Guarantee partitioning: a VM's hose guarantee divided among the pairs that it is part of.
//!
//! **Problem.** A hose says what a VM may send to, or receive from, all others together; limits
//! stand on pairs. **Source.** ElasticSwitch, guarantee partitioning. **Rule.** Either side of a
//! pair divides its VM's guarantee by itself, the sender what it may send and the receiver what it
//! may receive; the pair is guaranteed the smaller part ([`pair`]). Two ways to divide:
//!
//! - [`equal`]: the same for every pair that is active;
//! - [`fill`]: by water-filling. No pair gets more than it wants (the least of its estimated demand
//!   and of what the other side reported) before all have that; what is left then is spread
//!   equally, so that a pair which begins to want more finds it.
//!
//! **Example** (a test). 100 Mbit/s and three pairs that want 10, 60 and anything: 10, 45 and 45.
//!
//! **Bounds** (properties). The parts never sum to more than the guarantee; a pair has at least the
//! smaller of an equal part and what it wants. **Departures** from the source: see
//! [`super`]. **Cost.** One sort of the VM's active pairs a period.

use penstock_units::BitsPerSecond;

/// An equal part of `hose` for each of `pairs` active pairs, rounded down; all of it for none.
#[must_use]
pub fn equal(hose: BitsPerSecond, pairs: usize) -> BitsPerSecond {
    BitsPerSecond(hose.0 / u64::try_from(pairs.max(1)).unwrap_or(u64::MAX))
}

/// Divides `hose` among pairs that want `wants`, into `parts`, in their order.
///
/// Parts are rounded down: of `hose` up to one bit/s for each pair may stay undivided.
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

/// What a pair is guaranteed: the smaller of what its two sides keep for it.
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
    fn who_wants_less_than_an_equal_part_leaves_the_rest_to_the_others() {
        let mut wants = mbps(&[10, 60]);
        wants.push(UNLIMITED);
        assert_eq!(filled(100, &wants), mbps(&[10, 45, 45]));
        assert_eq!(filled(90, &[UNLIMITED; 3]), mbps(&[30, 30, 30]));
    }

    #[test]
    fn what_nobody_wants_is_spread_and_no_pair_is_no_part() {
        assert_eq!(filled(100, &mbps(&[10, 20])), mbps(&[45, 55]));
        assert_eq!(filled(100, &[]), []);
        assert_eq!(equal(BitsPerSecond(7), 0), BitsPerSecond(7));
        assert_eq!(equal(BitsPerSecond(7), 2), BitsPerSecond(3));
        assert_eq!(pair(BitsPerSecond(4), BitsPerSecond(3)), BitsPerSecond(3));
    }
}
