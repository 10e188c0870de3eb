//! How much weight the fair class gives a vCPU, so that in the end it has its share.
//!
//! **Problem.** Time that a vCPU was lent does not count against it in the kernel's fair class:
//! with D = 3 ms one of six hogs had 30.6 % of a processor, not 16.7. **Source.** Measured; the
//! accounts are those of [`penstock_vcpu::credit_book`].
//!
//! **Rule.** Its credits say by how much time a vCPU is ahead of its share (below 0) or behind.
//! Every epoch its weight becomes base * (1 + credit / (share * [`HORIZON`])), at least 1/500 and
//! at most four times the base. Credits are the sum over time of what is missing, so where they
//! come to rest nothing is missing any more: shares have no lasting error, although the weight
//! follows in proportion only. Bounds that are reached are no error either, credits go on counting.
//!
//! **Departure.** Xen lets who is OVER wait for all that are UNDER. Done by weights of next to
//! nothing that would be exact too, but everybody would wait for epochs of 30 ms.

use std::io;

use penstock_units::Nanos;

use crate::cgroup::Cgroup;

/// In how long what is missing would be made up for: a third of it in an epoch.
pub const HORIZON: Nanos = Nanos::from_millis(100);

/// Weight one, in the millionths this module counts in.
const ONE: i128 = 1_000_000;

/// The kernel's weights for nice -20 to 19 (`sched_prio_to_weight`), 1,024 for nice 0.
const OF_NICE: [u64; 40] = [
    88_761, 71_755, 56_483, 46_273, 36_291, 29_154, 23_254, 18_705, 14_949, 11_916, 9_548, 7_620,
    6_100, 4_904, 3_906, 3_121, 2_501, 1_991, 1_586, 1_277, 1_024, 820, 655, 526, 423, 335, 272,
    215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
];

/// Millionths of the kernel's default weight for a vCPU whose weight is `base_ppm` of the default,
/// whose share of the processor is `share_ppm`, and which is `credit` nanoseconds behind (or, below
/// 0, ahead).
#[must_use]
pub fn parts(base_ppm: u64, share_ppm: u64, credit: i64) -> u64 {
    let horizon = i128::from(HORIZON.0) * i128::from(share_ppm.max(1)) / ONE;
    let factor = ONE + ONE * i128::from(credit) / horizon.max(1);
    let factor = factor.clamp(ONE / 500, 4 * ONE);
    u64::try_from(i128::from(base_ppm) * factor / ONE).unwrap_or(u64::MAX)
}

/// The nice value whose weight is nearest.
#[must_use]
pub fn nice(parts: u64) -> i8 {
    let want = u128::from(parts) * 1_024;
    // Between two neighbours the geometric mean decides, as each is 1.25 of the next.
    let heavier = |pair: &[u64]| {
        u128::from(pair[0]) * u128::from(pair[1]) * 1_000_000_000_000 >= want.saturating_mul(want)
    };
    let steps = OF_NICE.windows(2).take_while(|pair| heavier(pair)).count();
    i8::try_from(steps).map_or(19, |steps| steps - 20)
}

/// By what a vCPU's weight is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weigher {
    /// By its nice value: it shares a cgroup with others.
    Nice,
    /// By the weight of its cgroup, in which only this VM is, with so many vCPUs.
    Group {
        /// The cgroup.
        group: Cgroup,
        /// vCPUs in it.
        vcpus: u64,
    },
    /// Not by this vCPU: another one of its VM sets the weight of the cgroup both are in.
    Left,
}

impl Weigher {
    /// Sets the weight of a cgroup; the nice value that the thread is to have.
    ///
    /// # Errors
    /// The cgroup vanished, or there is no right to.
    pub fn apply(&self, parts: u64) -> io::Result<Option<i8>> {
        match self {
            Self::Nice => Ok(Some(nice(parts))),
            Self::Group { group, vcpus } => {
                group.set_weight(group.scaled(parts.saturating_mul(*vcpus)))?;
                Ok(None)
            }
            Self::Left => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_ahead_or_behind_has_its_own_weight() {
        assert_eq!(parts(1_000_000, 166_667, 0), 1_000_000);
        // A sixth of 100 ms behind: twice as much; far ahead: next to nothing.
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

    /// Hogs whose run time follows the weights, one of which is lent time besides: all come to
    /// their share, which without credits they do not.
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
