//! Computes the weight that a vCPU needs in the kernel's fair class, so that it gets its share of
//! the processor in the long run.
//!
//! # Problem
//! The scheduler lends a real-time policy to vCPUs for short times ([`crate::boost`]). The kernel's
//! fair class does not count the time with a real-time policy. For example, six threads that always
//! compute shared a processor, and one of the six threads had a deadline of 3 ms. The thread with
//! the deadline got 30.6 % of the processor instead of 16.7 %.
//!
//! # Source
//! The processor share of 30.6 % for the thread with a deadline is a measured value. The method of
//! credits comes from [`penstock_vcpu::credit_book`].
//!
//! # Approach
//! A vCPU's credits are the time by which the vCPU is behind its share. The credits are negative if
//! the vCPU is ahead of its share. Every epoch (30 ms), the vCPU's weight becomes base * (1 +
//! credit / (share * [`HORIZON`])). A vCPU's weight is at least 1/500 of its base weight and at
//! most four times its base weight.
//!
//! If weights are adjusted by credits, the vCPUs' shares of the processor have no lasting error.
//! While a vCPU gets less than its share, its credits grow, and its weight grows with the credits.
//! The vCPU's credits stop changing only when the vCPU gets its whole share. The minimum and
//! maximum of a vCPU's weight cause no lasting error of the vCPU's share, because the vCPU's
//! credits continue to grow.
//!
//! # Departures
//! In Xen, a vCPU in class OVER waits for all vCPUs in class UNDER. With weights near zero, vCPUs
//! in class OVER would also wait, but for whole epochs of 30 ms.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_units::Nanos;

use crate::cgroup::Cgroup;

/// Time in which a vCPU with an adjusted weight recovers the processor time that it missed. In an
/// epoch of 30 ms, the vCPU recovers about a third of the missed processor time.
pub const HORIZON: Nanos = Nanos::from_millis(100);

/// The kernel's default weight in this module's unit, which is a millionth of the default weight.
const ONE: i128 = 1_000_000;

/// The kernel's weights for nice values from -20 to 19 (`sched_prio_to_weight`). The weight for
/// nice 0 is 1,024.
const OF_NICE: [u64; 40] = [
    88_761, 71_755, 56_483, 46_273, 36_291, 29_154, 23_254, 18_705, 14_949, 11_916, 9_548, 7_620,
    6_100, 4_904, 3_906, 3_121, 2_501, 1_991, 1_586, 1_277, 1_024, 820, 655, 526, 423, 335, 272,
    215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
];

/// Weight of a vCPU in millionths of the kernel's default weight. The vCPU's base weight is
/// `base_ppm` millionths of the default, and the vCPU's share of the processor is `share_ppm`
/// millionths. The vCPU is `credit` nanoseconds behind its share, or ahead of its share if `credit`
/// is negative.
#[must_use]
pub fn parts(base_ppm: u64, share_ppm: u64, credit: i64) -> u64 {
    let horizon = i128::from(HORIZON.0) * i128::from(share_ppm.max(1)) / ONE;
    let factor = ONE + ONE * i128::from(credit) / horizon.max(1);
    let factor = factor.clamp(ONE / 500, 4 * ONE);
    u64::try_from(i128::from(base_ppm) * factor / ONE).unwrap_or(u64::MAX)
}

/// The nice value with the weight that is nearest to `parts` millionths of the kernel's default
/// weight.
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

/// The weight of a cgroup that contains only one VM. The cgroup's weight is the sum of the weights
/// of the vCPUs that have work. The kernel divides the weight among processors by the cgroup's load
/// on each processor.
#[derive(Debug)]
pub struct GroupWeight {
    group: Cgroup,
    /// Weight of each vCPU in millionths of the kernel's default weight, and whether the vCPU has
    /// work.
    parts: Mutex<Vec<(u64, bool)>>,
}

impl GroupWeight {
    /// Creates the weights of a VM's `vcpus` vCPUs, which determine the weight of the VM's cgroup
    /// `group`.
    #[must_use]
    pub fn new(group: Cgroup, vcpus: usize) -> Self {
        Self { group, parts: Mutex::new(vec![(0, false); vcpus]) }
    }

    /// Records the weight of vCPU number `at`, and sets the weight of the cgroup. `works` means
    /// that the vCPU has work. If no vCPU has work, the cgroup's weight is the sum of all vCPUs'
    /// weights. Returns the number of vCPUs.
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
        // This writes the sum under the lock, so that an older sum cannot overwrite a newer sum.
        self.group.set_weight(self.group.scaled(sum))?;
        Ok(all.len())
    }
}

/// Method of setting a vCPU's weight.
#[derive(Clone, Debug)]
pub enum Weigher {
    /// Sets the nice value of the vCPU's thread, because the vCPU shares its cgroup with other
    /// threads.
    Nice,
    /// Sets the weight of the VM's cgroup, to which all vCPUs of the VM contribute.
    Group {
        /// The weight of the VM's cgroup. All vCPUs of the VM contribute to the weight of its
        /// cgroup.
        all: Arc<GroupWeight>,
        /// Number of the vCPU among the VM's vCPUs.
        at: usize,
        /// The cgroup inside the VM's cgroup that contains only the vCPU's thread. The larger the
        /// weight of this cgroup, the larger the part of the VM's weight that counts on the vCPU's
        /// processor. Without an inner cgroup, the nice value of the vCPU's thread determines the
        /// vCPU's part of the VM's weight.
        leaf: Option<Cgroup>,
    },
}

impl Weigher {
    /// Sets the weights of cgroups for a vCPU. `works` means that the vCPU has work. Returns the
    /// nice value that the vCPU's thread should have.
    ///
    /// # Errors
    /// Returns an error if the cgroup was removed, or if the permission is missing.
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
        // gets almost no weight.
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

    /// Tests that a VM's cgroup gets the sum of the weights of the vCPUs that have work.
    #[test]
    fn a_vm_with_several_vcpus_has_the_weight_of_all_that_have_work() {
        let dir = penstock_testing::temp_dir();
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
        // Without a leaf for the vCPU, the thread's nice value counts.
        std::fs::remove_dir_all(leaf.path()).unwrap();
        assert_eq!(second.apply(500_000, true).unwrap(), Some(nice(500_000)));
        let alone = Arc::new(GroupWeight::new(group.clone(), 1));
        let alone = Weigher::Group { all: alone, at: 0, leaf: None };
        assert_eq!((alone.apply(300_000, false).unwrap(), group.weight().unwrap()), (None, 30));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(alone.apply(300_000, true).is_err());
    }

    /// Tests six threads that always compute and run by their weights. One of the six threads also
    /// gets temporary real-time policies. Because of the credits, each of the six threads must get
    /// its share of the processor.
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
