//! Time slots for the deadlines of a processor, so that none is missed.
//!
//! # Problem
//! Each of several vCPUs must run for a slice S within D of when it last ran. If they run in the
//! order of their deadlines, each as late as possible, several become due together. For example, D
//! = 0.5, 1.5 and 1.5 ms with S = 0.5 ms fit a processor exactly. Even so, the two longer ones can
//! become due in the slot in which the first is due again.
//!
//! # Source
//! This is pinwheel scheduling: task i runs at least once in any a_i consecutive slots, with a_i =
//! D_i / S + 1. R. Holte et al. (1989) introduced pinwheel scheduling. M. Chan, F. Chin,
//! \"Schedulers for larger classes of pinwheel instances\", Algorithmica 9 (1993), show that a set
//! which needs at most 0.7 of the slots can be placed. This module uses their method with one base.
//!
//! # Approach
//! For a base x, every a_i is lowered to a period x * 2^k. Periods of that form can get disjoint
//! residues if their parts of all slots add up to at most 1. Several bases may fit. The module uses
//! the base that takes the fewest slots. Of several such bases, it uses the largest. A vCPU's own
//! slots are the slots of its residue.
//!
//! # Example
//! Windows 2, 4 and 5 get periods 2, 4, 4 and residues 0, 1, 3. A test covers this.
//!
//! # Departures
//! The paper on VM jitter has deadlines, but it does not test whether they fit.
//!
//! # Cost
//! A changed set costs O(shortest window x tasks).

/// Slots that one task owns. Their numbers are `phase` modulo `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residue {
    /// Distance between two slots, at least 1.
    pub period: u64,
    /// Number of the first slot, below the period.
    pub phase: u64,
}

impl Residue {
    /// Whether the task owns `slot`.
    #[must_use]
    pub const fn owns(&self, slot: u64) -> bool {
        slot % self.period == self.phase
    }

    /// The first slot that the task owns, from `slot` on.
    #[must_use]
    pub const fn next(&self, slot: u64) -> u64 {
        slot + (self.phase + self.period - slot % self.period) % self.period
    }
}

/// How often `window` can be halved without falling below `base`.
fn halvings(window: u64, base: u64) -> u32 {
    (window / base).checked_ilog2().unwrap_or(0)
}

/// Part of all slots that the tasks take with a base, in units of 1 / (`base << deepest`). `None`
/// if they do not fit.
fn taken(windows: &[u64], base: u64, deepest: u32) -> Option<u64> {
    let each = windows.iter().map(|w| 1_u64 << (deepest - halvings(*w, base)));
    let sum = each.fold(0, u64::saturating_add);
    (sum <= base << deepest).then_some(sum)
}

/// Own slots for tasks that must run once in every `windows[i]` slots (1 to 2^20 each), in the
/// order of `windows`. `None` if the tasks do not fit together.
#[must_use]
pub fn layout(windows: &[u64]) -> Option<Vec<Residue>> {
    let (Some(&least), Some(&most)) = (windows.iter().min(), windows.iter().max()) else {
        return Some(Vec::new());
    };
    if least == 0 || most > 1 << 20 {
        return None;
    }
    let mut best: Option<(u64, u64, u32)> = None;
    for base in (1..=least).rev() {
        let deepest = halvings(most, base);
        let Some(sum) = taken(windows, base, deepest) else { continue };
        // Compares sum / (base << deepest) with the smallest value so far.
        let smaller = best.is_none_or(|(sum_b, base_b, deepest_b)| {
            u128::from(sum) * u128::from(base_b << deepest_b)
                < u128::from(sum_b) * u128::from(base << deepest)
        });
        if smaller {
            best = Some((sum, base, deepest));
        }
    }
    best.map(|(_, base, _)| place(windows, base))
}

/// Residues for periods that fit. The shortest period is served first. Each takes the smallest free
/// part.
fn place(windows: &[u64], base: u64) -> Vec<Residue> {
    let period = |window: u64| base << halvings(window, base);
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_key(|at| period(windows[*at]));
    let mut free: Vec<Residue> =
        (0..base).rev().map(|phase| Residue { period: base, phase }).collect();
    let mut placed = vec![Residue { period: 1, phase: 0 }; windows.len()];
    for at in order {
        // Parts are taken from the end, where the smallest are. A part is always free, because
        // periods only grow and the parts taken are at most the whole.
        let Some(mut part) = free.pop() else { break };
        while part.period < period(windows[at]) {
            let half = Residue { period: part.period * 2, phase: part.phase + part.period };
            free.push(half);
            part = Residue { period: part.period * 2, phase: part.phase };
        }
        placed[at] = part;
    }
    placed
}

/// For each task, the minimum number of slots between two runs if the task always takes the latest
/// possible slot. A task chooses among its own slots and the slots that no other task owns or has
/// taken. Consecutive slots owned by others can bring the task forward. Each of these other tasks
/// may also have taken one more slot, which brings the task forward further. The task is brought
/// forward at most to its own period.
#[must_use]
pub fn shortest_gaps(windows: &[u64], residues: &[Residue]) -> Vec<u64> {
    let cycle = residues.iter().map(|residue| residue.period).max().unwrap_or(1);
    let others = u64::try_from(residues.len()).unwrap_or(u64::MAX).saturating_sub(1);
    let one = |(at, window): (usize, &u64)| {
        let taken =
            |slot: u64| residues.iter().enumerate().any(|(other, r)| other != at && r.owns(slot));
        let (mut run, mut longest) = (0, 0);
        // The loop goes twice around, to find a run of slots that crosses the end.
        for slot in 0..2 * cycle {
            run = if taken(slot) { run + 1 } else { 0 };
            longest = longest.max(run);
        }
        let least = window.saturating_sub(longest.min(cycle) + others);
        least.max(residues[at].period)
    };
    windows.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether no slot has two owners, checked over the longest period.
    fn disjoint(residues: &[Residue]) -> bool {
        let all = residues.iter().map(|r| r.period).max().unwrap_or(1);
        (0..all).all(|slot| residues.iter().filter(|r| r.owns(slot)).count() <= 1)
    }

    #[test]
    fn the_modules_example() {
        let residues = layout(&[2, 4, 5]).unwrap();
        let found: Vec<_> = residues.iter().map(|r| (r.period, r.phase)).collect();
        assert_eq!(found, [(2, 0), (4, 1), (4, 3)]);
        assert_eq!(layout(&[2, 4, 4, 100]), None);
        assert_eq!(layout(&[]), Some(Vec::new()));
        assert_eq!(layout(&[0]), None);
    }

    #[test]
    fn one_task_owns_exactly_its_windows() {
        assert_eq!(layout(&[7]), Some(vec![Residue { period: 7, phase: 0 }]));
        let residue = Residue { period: 7, phase: 3 };
        assert_eq!([3, 4, 10].map(|slot| residue.next(slot)), [3, 10, 10]);
    }

    #[test]
    fn gaps_shrink_by_what_others_may_take() {
        let gaps = |windows: &[u64]| shortest_gaps(windows, &layout(windows).unwrap());
        assert_eq!(gaps(&[7]), [7]);
        assert_eq!(gaps(&[7, 7]), [7, 7]);
        // Both own periods are 7. One slot is owned by the other task, and one may be taken by it.
        assert_eq!(gaps(&[7, 11]), [7, 9]);
        // The own periods are 3 and 6.
        assert_eq!(gaps(&[3, 7]), [3, 6]);
    }

    #[test]
    fn every_small_set_that_takes_at_most_seven_tenths_has_a_place() {
        // Collects all multisets of up to five windows of 2 to 12 slots.
        fn sets(prefix: &mut Vec<u64>, seen: &mut u32, refused: &mut Vec<Vec<u64>>) {
            let density: f64 =
                prefix.iter().map(|w| 1.0 / f64::from(u32::try_from(*w).unwrap())).sum();
            if density > 0.7 {
                return;
            }
            *seen += 1;
            match layout(prefix) {
                Some(residues) => {
                    assert!(disjoint(&residues), "{prefix:?}: {residues:?}");
                    assert!(residues.iter().zip(&*prefix).all(|(r, w)| r.period <= *w));
                }
                None => refused.push(prefix.clone()),
            }
            if prefix.len() < 5 {
                for window in prefix.last().copied().unwrap_or(2)..=12 {
                    prefix.push(window);
                    sets(prefix, seen, refused);
                    prefix.pop();
                }
            }
        }
        let (mut seen, mut refused) = (0, Vec::new());
        sets(&mut Vec::new(), &mut seen, &mut refused);
        assert!(seen > 1_000, "{seen}");
        assert!(refused.is_empty(), "{} of {seen}: {:?}", refused.len(), &refused[..1]);
    }
}
