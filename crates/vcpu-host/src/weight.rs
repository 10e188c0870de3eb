//! The weight in the fair class with which a vCPU gets its share in the long run.
//!
//! # Problem
//! The kernel's fair class does not count time that a vCPU was lent. With D = 3 ms, one of six hogs
//! (threads that always compute) had 30.6 % of a processor instead of 16.7 %.
//!
//! # Source
//! The problem was measured. The credits come from [`penstock_vcpu::credit_book`].
//!
//! # Approach
//! A vCPU's credits say how much time it is ahead of its share (negative) or behind it. Every epoch
//! its weight becomes base * (1 + credit / (share * [`HORIZON`])), at least 1/500 and at most four
//! times the base. Credits are the sum over time of the missing share. When credits stop changing,
//! no share is missing any more. Shares thus have no lasting error, although the weight is only
//! proportional to the credits. A bound on the weight causes no error either, because credits
//! continue to count.
//!
//! # Departures
//! In Xen a vCPU in state OVER waits for all vCPUs in state UNDER. Weights near zero would have the
//! same effect, but every vCPU would wait for epochs of 30 ms.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_units::Nanos;

use crate::cgroup::Cgroup;

/// Time in which a missing share would be made up. An epoch makes up a third of the missing share.
pub const HORIZON: Nanos = Nanos::from_millis(100);

/// Weight one, in the millionths of this module.
const ONE: i128 = 1_000_000;

/// The kernel's weights for nice -20 to 19 (`sched_prio_to_weight`), 1,024 for nice 0.
const OF_NICE: [u64; 40] = [
    88_761, 71_755, 56_483, 46_273, 36_291, 29_154, 23_254, 18_705, 14_949, 11_916, 9_548, 7_620,
    6_100, 4_904, 3_906, 3_121, 2_501, 1_991, 1_586, 1_277, 1_024, 820, 655, 526, 423, 335, 272,
    215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
];

/// Weight of a vCPU in millionths of the kernel's default. Its base weight is `base_ppm` of the
/// default, and its share of the processor is `share_ppm`. The vCPU is `credit` nanoseconds behind
/// its share, or ahead if `credit` is negative.
#[must_use]
pub fn parts(base_ppm: u64, share_ppm: u64, credit: i64) -> u64 {
    let horizon = i128::from(HORIZON.0) * i128::from(share_ppm.max(1)) / ONE;
    let factor = ONE + ONE * i128::from(credit) / horizon.max(1);
    let factor = factor.clamp(ONE / 500, 4 * ONE);
    u64::try_from(i128::from(base_ppm) * factor / ONE).unwrap_or(u64::MAX)
}

/// The nice value with the nearest weight.
#[must_use]
pub fn nice(parts: u64) -> i8 {
    let want = u128::from(parts) * 1_024;
    // The geometric mean separates two neighbours, because each weight is 1.25 times the next.
    let heavier = |pair: &[u64]| {
        u128::from(pair[0]) * u128::from(pair[1]) * 1_000_000_000_000 >= want.saturating_mul(want)
    };
    let steps = OF_NICE.windows(2).take_while(|pair| heavier(pair)).count();
    i8::try_from(steps).map_or(19, |steps| steps - 20)
}

/// The weight of a cgroup that contains only one VM: the sum of the weights of its vCPUs that have
/// work. The kernel divides the weight among the processors by the load of the group on each.
#[derive(Debug)]
pub struct GroupWeight {
    group: Cgroup,
    /// Weight of each vCPU in millionths, and whether it has work.
    parts: Mutex<Vec<(u64, bool)>>,
}

impl GroupWeight {
    /// The weight of a VM with `vcpus` vCPUs.
    #[must_use]
    pub fn new(group: Cgroup, vcpus: usize) -> Self {
        Self { group, parts: Mutex::new(vec![(0, false); vcpus]) }
    }

    /// Sets one vCPU's part. If no vCPU has work, the sum includes all vCPUs.
    fn set(&self, at: usize, parts: u64, works: bool) -> io::Result<usize> {
        let mut all = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mine) = all.get_mut(at) {
            *mine = (parts, works);
        }
        let sum = |idle: bool| {
            let counted = all.iter().filter(|(_, works)| idle || *works);
            counted.fold(0, |sum: u64, (parts, _)| sum.saturating_add(*parts))
        };
        let sum = Some(sum(false)).filter(|sum| *sum > 0).unwrap_or_else(|| sum(true));
        // The sum is written under the lock, so that an older sum cannot overwrite a newer one.
        self.group.set_weight(self.group.scaled(sum))?;
        Ok(all.len())
    }
}

/// How a vCPU's weight is set.
#[derive(Clone, Debug)]
pub enum Weigher {
    /// The weight is set by the nice value, because the vCPU shares a cgroup with others.
    Nice,
    /// The weight is set by the weight of the VM's cgroup.
    Group {
        /// The cgroup; all vCPUs of the VM contribute to its weight.
        all: Arc<GroupWeight>,
        /// Number of this vCPU among the VM's vCPUs.
        at: usize,
        /// The cgroup inside of the VM's cgroup that contains only this vCPU. Its weight, or
        /// without it the nice value, determines how much of the VM's weight counts on this vCPU's
        /// processor.
        leaf: Option<Cgroup>,
    },
}

impl Weigher {
    /// Sets the weights of cgroups for a vCPU, which has work or not. Returns the nice value that
    /// its thread should have.
    ///
    /// # Errors
    /// The cgroup was removed, or the permission is missing.
    pub fn apply(&self, parts: u64, works: bool) -> io::Result<Option<i8>> {
        let Self::Group { all, at, leaf } = self else { return Ok(Some(nice(parts))) };
        let vcpus = all.set(*at, parts, works)?;
        let by_leaf = |leaf: &Cgroup| leaf.set_weight(leaf.scaled(parts)).is_ok();
        let alone = vcpus < 2 || leaf.as_ref().is_some_and(by_leaf);
        Ok((!alone).then(|| nice(parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_credits_a_vcpu_has_its_base_weight() {
        assert_eq!(parts(1_000_000, 166_667, 0), 1_000_000);
        // A vCPU that is a sixth of 100 ms behind gets twice the weight. A vCPU that is far ahead
        // gets almost none.
        let twice = parts(1_000_000, 166_667, 16_666_700);
        assert!((1_990_000..=2_010_000).contains(&twice), "{twice}");
        assert_eq!(parts(1_000_000, 166_667, -300_000_000), 2_000);
        assert_eq!(parts(1_000_000, 166_667, 300_000_000), 4_000_000);
        assert_eq!(parts(1_000_000, 0, i64::MIN), 2_000);
    }

    #[test]
    fn the_nearest_nice_value_is_taken() {
        assert_eq!(nice(1_000_000), 0);
        for (steps, weight) in OF_NICE.iter().enumerate() {
            let parts = weight * 1_000_000 / 1_024;
            assert_eq!(nice(parts), i8::try_from(steps).unwrap() - 20, "weight {weight}");
        }
        assert_eq!((nice(0), nice(u64::MAX)), (19, -20));
        assert_eq!((nice(1_150_000), nice(1_100_000)), (-1, 0));
    }

    fn cgroup(dir: &std::path::Path) -> Cgroup {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("cpu.weight"), "100\n").unwrap();
        Cgroup::at(dir).unwrap()
    }

    /// Credits of the second vCPU count like those of the first, and a vCPU without work has no
    /// part.
    #[test]
    fn a_vm_with_several_vcpus_has_the_weight_of_all_that_have_work() {
        let dir = std::env::temp_dir().join(format!("penstock-weight-{}", std::process::id()));
        let (group, leaf) = (cgroup(&dir), cgroup(&dir.join("vcpu1")));
        let all = Arc::new(GroupWeight::new(group.clone(), 2));
        let of = |at, leaf| Weigher::Group { all: Arc::clone(&all), at, leaf };
        let (first, second) = (of(0, None), of(1, Some(leaf.clone())));
        let said = |weigher: &Weigher, parts, works| {
            let nice = weigher.apply(parts, works).unwrap();
            (nice, group.weight().unwrap(), leaf.weight().unwrap())
        };
        assert_eq!(said(&first, 1_000_000, true), (Some(0), 100, 100));
        assert_eq!(said(&second, 1_000_000, true), (None, 200, 100));
        // If a vCPU is far ahead of its share, the VM has less weight on this vCPU's processor
        // only.
        assert_eq!(said(&second, 2_000, true), (None, 100, 1));
        assert_eq!(said(&second, 4_000_000, true), (None, 500, 400));
        assert_eq!(said(&first, 2_000, true).1, 400);
        assert_eq!(said(&first, 1_500_000, false).1, 400, "it has nothing to do");
        assert_eq!(said(&second, 500_000, false).1, 200, "nor has the other one");
        // Without a leaf of its own, the thread's nice value counts.
        std::fs::remove_dir_all(leaf.path()).unwrap();
        assert_eq!(second.apply(500_000, true).unwrap(), Some(nice(500_000)));
        let alone = Arc::new(GroupWeight::new(group.clone(), 1));
        let alone = Weigher::Group { all: alone, at: 0, leaf: None };
        assert_eq!((alone.apply(300_000, false).unwrap(), group.weight().unwrap()), (None, 30));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(alone.apply(300_000, true).is_err());
    }

    /// Hogs run by their weights, and one hog also gets loans. With credits all hogs reach their
    /// share; without credits they do not.
    #[test]
    fn shares_have_no_lasting_error_although_one_is_lent_time() {
        const EPOCH: i64 = 30_000_000;
        let lent = EPOCH / 7;
        let (mut credit, mut ran) = ([0_i64; 6], [0_i64; 6]);
        for epoch in 0..2_000 {
            let weight = |credit: &i64| {
                let steps = nice(parts(1_000_000, 166_667, *credit)) + 20;
                i64::try_from(OF_NICE[usize::try_from(steps).unwrap()]).unwrap()
            };
            let weights: Vec<i64> = credit.iter().map(weight).collect();
            let sum: i64 = weights.iter().sum();
            for vm in 0..6 {
                let time = (EPOCH - lent) * weights[vm] / sum + if vm == 0 { lent } else { 0 };
                credit[vm] += EPOCH / 6 - time;
                if epoch >= 100 {
                    ran[vm] += time;
                }
            }
        }
        let all: i64 = ran.iter().sum();
        for time in ran {
            let share = time * 1_000_000 / all;
            assert!((165_000..=168_400).contains(&share), "{share}");
        }
    }
}
