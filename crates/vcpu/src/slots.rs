//! Time slots for the deadlines of a processor, so that no deadline is missed.
//!
//! # Problem
//! Each vCPU with a deadline must run for a slice S at most D after its previous run. If each vCPU
//! runs as late as possible, several vCPUs may become due at the same time. For example, three
//! vCPUs with S = 0.5 ms have deadlines D of 0.5, 1.5 and 1.5 ms. The three vCPUs with deadlines of
//! 0.5, 1.5 and 1.5 ms need exactly one processor, but all three can become due in the same slot.
//!
//! # Source
//! The method is pinwheel scheduling: task i runs at least once in any a_i consecutive slots, with
//! a_i = D_i / S + 1. Holte et al. (1989) introduced pinwheel scheduling. Chan and Chin show that
//! tasks always fit if the tasks together need at most 0.7 of the slots ("Schedulers for larger
//! classes of pinwheel instances", Algorithmica 9, 1993). Penstock uses the variant of Chan's and
//! Chin's method in which all periods are derived from one number, the base.
//!
//! # Approach
//! For a base x, the window a_i of each task i is rounded down to a period x * 2^k. Tasks with
//! periods x * 2^k can own disjoint slots if the sum of 1 / period is at most 1. If the sum of 1 /
//! period is at most 1 for several bases, the function [`layout`] uses the base with the smallest
//! sum. If the smallest sum of 1 / period occurs for several bases, [`layout`] uses the largest of
//! these bases. A task owns all slots with numbers that are equal modulo the task's period.
//!
//! # Example
//! For example, three tasks must each run once in any 2, 4 and 5 consecutive slots. The three tasks
//! with windows of 2, 4 and 5 slots get the periods 2, 4 and 4 and the first slots 0, 1 and 3.
//!
//! # Departures
//! The paper on VM jitter does not check whether deadlines fit together.
//!
//! # Cost
//! A layout of slots costs O(shortest window x tasks). The layout is computed when the set of tasks
//! changes.

/// The slots that one task owns. The number of an owned slot modulo `period` is `phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residue {
    /// Distance between two successive slots that the task owns, at least 1.
    pub period: u64,
    /// Number of the first slot that the task owns, below the period.
    pub phase: u64,
}

impl Residue {
    /// Whether the task owns the slot number `slot`.
    #[must_use]
    pub const fn owns(&self, slot: u64) -> bool {
        slot % self.period == self.phase
    }

    /// Returns the number of the task's first slot that is not before `slot`.
    #[must_use]
    pub const fn next(&self, slot: u64) -> u64 {
        slot + (self.phase + self.period - slot % self.period) % self.period
    }
}

/// Number of times that `window` can be halved without falling below `base`.
fn halvings(window: u64, base: u64) -> u32 {
    (window / base).checked_ilog2().unwrap_or(0)
}

/// Fraction of all slots that the tasks need if the base is `base`, in units of 1 /
/// (`base << deepest`). Returns `None` if the tasks do not fit with the base `base`.
fn taken(windows: &[u64], base: u64, deepest: u32) -> Option<u64> {
    let each = windows.iter().map(|w| 1_u64 << (deepest - halvings(*w, base)));
    let sum = each.fold(0, u64::saturating_add);
    (sum <= base << deepest).then_some(sum)
}

/// Assigns slots to tasks. Task i must run once in any `windows[i]` consecutive slots (1 to 2^20).
/// Returns `None` if the tasks do not fit together.
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
        // Compares sum / (base << deepest) with the smallest such quotient so far.
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

/// Assigns slots to tasks that fit if each task's period is `base` * 2^k slots. The task with the
/// shortest period gets its slots first. To assign slots to a task, the function halves the
/// smallest set of free slots until the set has the task's period.
fn place(windows: &[u64], base: u64) -> Vec<Residue> {
    let period = |window: u64| base << halvings(window, base);
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_key(|at| period(windows[*at]));
    let mut free: Vec<Residue> =
        (0..base).rev().map(|phase| Residue { period: base, phase }).collect();
    let mut placed = vec![Residue { period: 1, phase: 0 }; windows.len()];
    for at in order {
        // The smallest parts are at the end. A part is always free, because periods only grow and
        // the sum of all parts is at most 1.
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

/// Computes, for each task, a lower bound on the number of slots between two runs. A task always
/// takes the latest free slot of its window. A slot is free if no other task owns the slot or has
/// booked it. A task runs early if other tasks own consecutive slots at the end of the task's
/// window. Each other task may also have booked one additional slot in the task's window. The
/// computed number of slots between two runs is never below the task's own period.
#[must_use]
pub fn shortest_gaps(windows: &[u64], residues: &[Residue]) -> Vec<u64> {
    let cycle = residues.iter().map(|residue| residue.period).max().unwrap_or(1);
    let others = u64::try_from(residues.len()).unwrap_or(u64::MAX).saturating_sub(1);
    let one = |(at, window): (usize, &u64)| {
        let taken =
            |slot: u64| residues.iter().enumerate().any(|(other, r)| other != at && r.owns(slot));
        let (mut run, mut longest) = (0, 0);
        // Two cycles are searched, to find consecutive slots that cross the end of a cycle.
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

    /// Whether every slot of the longest period has at most one owner.
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
        // The two tasks have the period 7. The other task owns one slot and may have booked one
        // more slot.
        assert_eq!(gaps(&[7, 11]), [7, 9]);
        // The two tasks have the periods 3 and 6.
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
