//! One entitlement on several workers.
//!
//! **Problem.** A port's queue pairs may be on several workers, and what it bought is one number.
//! A bucket that all of them charge would be a cache line that all of them write, or a lock.
//!
//! **Source.** None; C2QoS gives each core its own buckets (§V) and says nothing of ports on two.
//!
//! **Quantities.** [`Owner::level`], tokens of the port on one worker; `depth` of its bucket there;
//! `cap`, the most it may give; all in cycles.
//!
//! **Rule.** Each worker that has queue pairs of the port generates the same part of the
//! entitlement, into a bucket of its own. Now and then one of them, the port's *home*, looks at
//! what the others wrote down about theirs, and says who gives how much to whom: a bucket above
//! half its depth gives what it has above that, one below it is given up to three quarters. Each
//! then books it itself. What is moved sums to nothing, so however late anybody hears of it, the
//! port gets what it bought and no more.
//!
//! **Example** (a test). Depths of 100; levels 100 and -20: the first gives 50.
//!
//! **Cost.** O(workers) for a port each time; each number has one writer.

/// A port's bucket on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its tokens, with what it has been told and not booked yet.
    pub level: i64,
    /// Its depth.
    pub depth: i64,
    /// The most it may give now.
    pub cap: i64,
    /// What it is to be given (or, negative, to give): the answer.
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

/// The level to tell others: what it will be when it is looked at again, if as much is spent until
/// then as since the last time. A bucket that was just given something and spends it would
/// otherwise seem to have plenty.
#[must_use]
pub const fn forecast(level: i64, spent: i64) -> i64 {
    if spent > 0 { level.saturating_sub(spent) } else { level }
}

/// Says who gives how much to whom, in [`Owner::moved`].
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
    // What rounding left: from the first that can to the first that wants, whoever they are.
    if let Some(owner) = owners.iter_mut().find(|owner| owner.moved < 0) {
        owner.moved -= to_give;
        to_give = 0;
    }
    if let Some(owner) = owners.iter_mut().find(|owner| owner.moved > 0) {
        owner.moved += to_take;
        to_take = 0;
    }
    // With too little to move for either, nothing moves.
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
    fn who_has_plenty_gives_to_who_has_none() {
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
