//! Divides the entitlement of a port among the workers that serve the port.
//!
//! # Problem
//!
//! A port's queue pairs may be on several workers, but the port has one entitlement. If all workers
//! of a port shared a bucket, they would need a lock or would all write to one cache line.
//!
//! # Source
//!
//! The method by which this module shares a port's entitlement among workers has no source in the
//! literature. In C2QoS, each core has its own buckets (§V), and no port is on two cores.
//!
//! # Approach
//!
//! Each worker with queue pairs of the port has a bucket for the port, which gets an equal part of
//! the port's entitlement. Each worker of the port publishes the level of its bucket. One worker of
//! the port, the port's *home*, periodically computes transfers between the port's buckets from
//! their levels:
//!
//! - A bucket that is more than half full gives the tokens above half its depth to other buckets.
//! - A bucket below half its depth receives tokens until it has at most three quarters of its
//!   depth.
//!
//! Each worker then adds the computed transfer, which may be negative, to its own bucket of the
//! port. The transfers of a port sum to zero, so the port gets exactly its entitlement even if a
//! transfer is applied late.
//!
//! All quantities in this module are in cycles. In a test, two buckets with depth 100 have levels
//! of 100 and -20, and the first gives 50 cycles to the second.
//!
//! # Cost
//!
//! For a port on several workers, the computation of transfers takes O(workers). Each number that
//! workers share has a single writer.

/// Cycle bucket of a port on one worker. All fields of the bucket are in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Number of tokens in the bucket, including transfers that the worker has not applied yet.
    pub level: i64,
    /// Maximum number of tokens that the bucket holds.
    pub depth: i64,
    /// Maximum number of tokens that the bucket may give to other workers now.
    pub cap: i64,
    /// Number of tokens that the bucket receives, which [`settle`] computes. If the number is
    /// negative, the bucket gives tokens to other workers.
    pub moved: i64,
}

impl Owner {
    const fn gives(&self) -> i64 {
        let above = self.level - self.depth / 2;
        let gives = if above < self.cap { above } else { self.cap };
        if gives > 0 { gives } else { 0 }
    }

    const fn takes(&self) -> i64 {
        let takes = self.depth / 2 + self.depth / 4 - self.level;
        if self.level < self.depth / 2 { takes } else { 0 }
    }
}

/// Returns the bucket level that is expected at the next settlement. The worker publishes this
/// level. The forecast of a bucket's level assumes that the bucket spends as many tokens as since
/// the last settlement. Without the forecast, a bucket that just received tokens but spends them
/// fast would seem to need no transfer.
#[must_use]
pub const fn forecast(level: i64, spent: i64) -> i64 {
    if spent > 0 { level.saturating_sub(spent) } else { level }
}

/// Computes the transfers between the workers of one port and stores them in [`Owner::moved`].
pub fn settle(owners: &mut [Owner]) {
    let offered: i64 = owners.iter().map(Owner::gives).sum();
    let wanted: i64 = owners.iter().map(Owner::takes).sum();
    let moved = offered.min(wanted);
    let (mut to_give, mut to_take) = (moved, moved);
    let part = |of: i64, whole: i64| {
        let part = i128::from(moved) * i128::from(of) / i128::from(whole.max(1));
        i64::try_from(part).unwrap_or(0)
    };
    for owner in owners.iter_mut() {
        let (gives, takes) = (part(owner.gives(), offered), part(owner.takes(), wanted));
        owner.moved = takes - gives;
        to_give -= gives;
        to_take -= takes;
    }
    // Rounding leaves two remainders. The first bucket that gives tokens gives one, and the first
    // that receives tokens gets the other.
    if let Some(owner) = owners.iter_mut().find(|owner| owner.moved < 0) {
        owner.moved -= to_give;
        to_give = 0;
    }
    if let Some(owner) = owners.iter_mut().find(|owner| owner.moved > 0) {
        owner.moved += to_take;
        to_take = 0;
    }
    // If the amounts are too small to be divided, no tokens move.
    if to_give != 0 || to_take != 0 || owners.iter().map(|owner| owner.moved).sum::<i64>() != 0 {
        owners.iter_mut().for_each(|owner| owner.moved = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(level: i64) -> Owner {
        Owner { level, depth: 100, cap: i64::MAX, moved: 7 }
    }

    #[test]
    fn a_bucket_with_plenty_gives_to_one_without() {
        let moved = |mut owners: Vec<Owner>| -> Vec<i64> {
            settle(&mut owners);
            owners.iter().map(|owner| owner.moved).collect()
        };
        assert_eq!(moved(vec![owner(100), owner(-20)]), [-50, 50]);
        assert_eq!(moved(vec![owner(100), owner(60), owner(-10)]), [-50, -10, 60]);
        assert_eq!(moved(vec![owner(100), owner(60)]), [0, 0], "neither is in need");
        assert_eq!(moved(vec![owner(-5), owner(-20)]), [0, 0]);
        assert_eq!(moved(vec![Owner { cap: 9, ..owner(100) }, owner(0)]), [-9, 9]);
        assert_eq!(moved(Vec::new()), [0; 0]);
    }
}
