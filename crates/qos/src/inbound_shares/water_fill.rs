//! Divides tokens by weight among takers with limited room (weighted max-min fairness).

/// A taker of tokens. The room and the part are in the same unit as the divided amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taker {
    pub weight: u64,
    /// Most tokens that the taker can take.
    pub room: u64,
    /// Number of tokens that the taker gets, which [`water_fill`] computes.
    pub part: u64,
}

/// Divides `amount` by weight, and stores the results in [`Taker::part`]. A taker gets no more than
/// its room, and what it leaves goes to the other takers by weight. Returns the tokens that no
/// taker got: what exceeds the room of all takers, or else the remainder of the divisions, which is
/// below one token per taker.
///
/// Each round fills a taker or is the last one, so the division takes at most one round more than
/// there are takers.
pub(super) fn water_fill(amount: u64, takers: &mut [Taker]) -> u64 {
    let mut left = amount;
    takers.iter_mut().for_each(|taker| taker.part = 0);
    loop {
        let open = takers.iter().filter(|taker| taker.part < taker.room);
        let weights: u64 = open.map(|taker| taker.weight).sum();
        if left == 0 || weights == 0 {
            return left;
        }
        let (round, mut filled) = (left, false);
        for taker in takers.iter_mut().filter(|taker| taker.part < taker.room) {
            let due = u128::from(round) * u128::from(taker.weight) / u128::from(weights);
            let room = taker.room - taker.part;
            let due = u64::try_from(due).unwrap_or(u64::MAX);
            filled |= due >= room;
            let more = due.min(room);
            taker.part += more;
            left -= more;
        }
        if !filled {
            return left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(amount: u64, takers: &[(u64, u64)]) -> (Vec<u64>, u64) {
        let taker = |(weight, room): &(u64, u64)| Taker { weight: *weight, room: *room, part: 9 };
        let mut takers: Vec<Taker> = takers.iter().map(taker).collect();
        let left = water_fill(amount, &mut takers);
        (takers.iter().map(|taker| taker.part).collect(), left)
    }

    #[test]
    fn what_a_full_taker_leaves_goes_to_the_others_by_weight() {
        let all = u64::MAX;
        assert_eq!(parts(900, &[(5, all), (3, all), (1, all)]), (vec![500, 300, 100], 0));
        assert_eq!(parts(900, &[(5, 0), (3, all), (1, all)]), (vec![0, 675, 225], 0));
        // The first taker leaves 300, of which the second can take only 50 more.
        assert_eq!(parts(900, &[(5, 200), (3, 350), (1, all)]), (vec![200, 350, 350], 0));
        assert_eq!(parts(900, &[(5, 200), (3, 350), (1, 50)]), (vec![200, 350, 50], 300));
        assert_eq!(parts(10, &[(1, all), (1, all), (1, all)]), (vec![3, 3, 3], 1));
        assert_eq!(parts(10, &[]), (vec![], 10));
        assert_eq!(parts(all, &[(1, all)]), (vec![all], 0));
    }
}
