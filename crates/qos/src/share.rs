//! Shares one port's entitlement among the workers that serve it.
//!
//! # Problem
//!
//! A port's queue pairs may be on several workers, but its entitlement is one number. A single
//! bucket would need a lock or a cache line that all these workers write.
//!
//! # Source
//!
//! The module follows no paper. C2QoS gives each core its own buckets (§V) and does not discuss
//! ports on two cores.
//!
//! # Approach
//!
//! Each worker with queue pairs of the port has a bucket of its own and generates an equal part of
//! the entitlement. One of these workers is the port's *home*. It periodically reads the levels
//! that the others published and computes the transfers between the buckets. A bucket above half
//! its depth gives the excess. A bucket below half its depth is filled to three quarters. Each
//! worker then books its own part. All transfers sum to zero, so the port gets exactly its
//! entitlement even if a worker learns of a transfer late.
//!
//! All quantities are in cycles. In a test with depths of 100 and levels of 100 and -20, the first
//! bucket gives 50.
//!
//! # Cost
//!
//! A settlement takes O(workers) per port. Each number has a single writer.

/// A port's bucket on one worker. All fields are in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Tokens in the bucket, including transfers that the worker has not booked yet.
    pub level: i64,
    /// Depth of the bucket.
    pub depth: i64,
    /// The most that the bucket may give now.
    pub cap: i64,
    /// Output of [`settle`]: tokens that the bucket receives. Negative if it gives tokens.
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

/// The level to publish: the level expected at the next settlement if spending continues at its
/// rate since the last settlement. Without this forecast, a bucket that just received tokens and
/// spends them would seem to have plenty.
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
    // Rounding remainders go from the first giver to the first receiver.
    if let Some(owner) = owners.iter_mut().find(|owner| owner.moved < 0) {
        owner.moved -= to_give;
        to_give = 0;
    }
    if let Some(owner) = owners.iter_mut().find(|owner| owner.moved > 0) {
        owner.moved += to_take;
        to_take = 0;
    }
    // If the transfers are too small to give each bucket a part, nothing moves.
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
