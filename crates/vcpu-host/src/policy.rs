//! Reads and sets the scheduling policy of a thread, with errors that name the remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

use penstock_units::Nanos;
use thiserror::Error;

use crate::cgroup::Cgroup;
use crate::sys;

/// A scheduling policy of Linux with its parameters (`sched(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Fair {
        /// Nice value, from -20 (most processor time) to 19 (least).
        nice: i8,
        /// Custom slice of the fair class, 0.1 to 100 ms (Linux 6.12); 0 means the kernel's default
        /// slice.
        slice: Nanos,
    },
    /// The policy `SCHED_FIFO`. A thread with `SCHED_FIFO` runs before every thread of the fair
    /// class until it blocks.
    Fifo {
        /// Real-time priority, 1 to 99. The thread with the highest priority runs first.
        priority: u8,
    },
    /// The policy `SCHED_DEADLINE`, with a period equal to the deadline.
    Deadline {
        runtime: Nanos,
        period: Nanos,
        /// Whether the thread may use time that other deadline threads do not use
        /// (`SCHED_FLAG_RECLAIM`).
        reclaim: bool,
    },
    /// Another policy, which the scheduler leaves unchanged: batch, idle, round robin, ext.
    Other {
        /// The kernel's number for the scheduling policy.
        number: u32,
        /// Nice value, if the policy has one.
        nice: i8,
        /// Priority, if the policy has one.
        priority: u8,
    },
}

impl Policy {
    /// The policy of a new thread: fair class, nice 0, the kernel's default slice.
    pub const DEFAULT: Self = Self::Fair { nice: 0, slice: Nanos(0) };

    /// Whether a thread with this policy runs before every thread of the fair class.
    #[must_use]
    pub const fn is_real_time(self) -> bool {
        match self {
            Self::Fifo { .. } | Self::Deadline { .. } => true,
            Self::Fair { .. } => false,
            Self::Other { priority, .. } => priority > 0,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fair { nice, .. } => write!(f, "SCHED_OTHER nice {nice}"),
            Self::Fifo { priority } => write!(f, "SCHED_FIFO {priority}"),
            Self::Deadline { runtime, period, .. } => {
                write!(f, "SCHED_DEADLINE {} us in {} us", runtime.0 / 1_000, period.0 / 1_000)
            }
            Self::Other { number, .. } => write!(f, "policy {number}"),
        }
    }
}

/// Reason why a thread's policy could not be read or set.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PolicyError {
    #[error("thread {tid} has exited")]
    Gone { tid: u32 },
    /// The thread's cgroup has no real-time budget (`CONFIG_RT_GROUP_SCHED`).
    #[error(
        "thread {tid} cannot get policy {policy}: its cgroup {} has cpu.rt_runtime_us = 0; write a \
         budget into that file, in the parent cgroup first",
        group.display()
    )]
    NoBudget {
        tid: u32,
        policy: Policy,
        /// The thread's cgroup in the v1 `cpu` hierarchy.
        group: PathBuf,
    },
    #[error(
        "thread {tid} cannot get policy {policy}: not permitted; run as root or with \
         CAP_SYS_NICE{}",
        if matches!(policy, Policy::Deadline { .. }) {
            ", and permit the thread all processors of the thread's root domain: remove affinity \
             and vcpupin, or make a root domain for the thread (cgroup v2: `root` in \
             cpuset.cpus.partition; v1: 1 in cpuset.cpu_exclusive and 0 in the parent's \
             cpuset.sched_load_balance)"
        } else {
            ""
        }
    )]
    Forbidden { tid: u32, policy: Policy },
    /// The kernel's admission control for `SCHED_DEADLINE` refused the policy.
    #[error(
        "thread {tid} cannot get policy {policy}: the kernel limits the run times of all deadline \
         threads to 95 % of a processor less the fair server; shorten the run time of a thread"
    )]
    Busy { tid: u32, policy: Policy },
    /// The kernel does not support the run time or the period for `SCHED_DEADLINE`.
    #[error(
        "thread {tid} cannot get policy {policy}: the kernel does not support its run time or its \
         period; write a run time from 1.024 us up to the period, and a period from \
         sched_deadline_period_min_us to sched_deadline_period_max_us (in /proc/sys/kernel)"
    )]
    Range { tid: u32, policy: Policy },
    /// The kernel refused the policy for another reason.
    #[error("thread {tid} cannot use policy {policy}: {source}; use a kernel with this policy")]
    Refused { tid: u32, policy: Policy, source: io::Error },
    /// The kernel did not return the thread's policy.
    #[error("policy of thread {tid} cannot be read: {source}; run as root or as its owner")]
    Unread { tid: u32, source: io::Error },
}

fn small(value: u32) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

fn plain(nice: i32) -> i8 {
    i8::try_from(nice).unwrap_or(0)
}

fn number(policy: i32) -> u32 {
    policy.unsigned_abs()
}

/// Returns the policy of thread `tid`; 0 is the calling thread.
///
/// # Errors
/// Returns [`PolicyError::Gone`] if the thread has exited, otherwise [`PolicyError::Unread`].
pub fn get(tid: u32) -> Result<Policy, PolicyError> {
    let attr = sys::getattr(tid).map_err(|source| match source.raw_os_error() {
        Some(libc::ESRCH) => PolicyError::Gone { tid },
        _ => PolicyError::Unread { tid, source },
    })?;
    let (nice, priority) = (plain(attr.sched_nice), small(attr.sched_priority));
    Ok(match attr.sched_policy {
        0 => Policy::Fair { nice, slice: Nanos(attr.sched_runtime) },
        n if n == number(libc::SCHED_FIFO) => Policy::Fifo { priority },
        n if n == number(libc::SCHED_DEADLINE) => Policy::Deadline {
            runtime: Nanos(attr.sched_runtime),
            period: Nanos(attr.sched_period),
            reclaim: attr.sched_flags & reclaim_flag() != 0,
        },
        number => Policy::Other { number, nice, priority },
    })
}

/// Sets the policy of thread `tid`; 0 is the calling thread.
///
/// # Errors
/// Returns the reason why the kernel refuses the policy.
pub fn set(tid: u32, policy: Policy) -> Result<(), PolicyError> {
    let mut attr = sys::blank();
    match policy {
        Policy::Fair { nice, slice } => {
            attr.sched_nice = i32::from(nice);
            attr.sched_runtime = slice.0;
        }
        Policy::Fifo { priority } => {
            attr.sched_policy = number(libc::SCHED_FIFO);
            attr.sched_priority = u32::from(priority);
        }
        Policy::Deadline { runtime, period, reclaim } => {
            attr.sched_policy = number(libc::SCHED_DEADLINE);
            // Children of a deadline thread would need their own bandwidth, and KVM creates such
            // children.
            attr.sched_flags = u64::from(number(libc::SCHED_FLAG_RESET_ON_FORK));
            if reclaim {
                attr.sched_flags |= reclaim_flag();
            }
            attr.sched_runtime = runtime.0;
            (attr.sched_deadline, attr.sched_period) = (period.0, period.0);
        }
        Policy::Other { number, nice, priority } => {
            attr.sched_policy = number;
            attr.sched_nice = i32::from(nice);
            attr.sched_priority = u32::from(priority);
        }
    }
    sys::setattr(tid, &attr).map_err(|source| explain(tid, policy, source))
}

fn reclaim_flag() -> u64 {
    u64::from(number(libc::SCHED_FLAG_RECLAIM))
}

fn explain(tid: u32, policy: Policy, source: io::Error) -> PolicyError {
    match source.raw_os_error() {
        Some(libc::ESRCH) => PolicyError::Gone { tid },
        Some(libc::EBUSY) => PolicyError::Busy { tid, policy },
        Some(libc::EINVAL) if matches!(policy, Policy::Deadline { .. }) => {
            PolicyError::Range { tid, policy }
        }
        // Group budgets apply to FIFO and round robin. A deadline thread needs no group budget.
        Some(libc::EPERM) if matches!(policy, Policy::Deadline { .. }) => {
            PolicyError::Forbidden { tid, policy }
        }
        Some(libc::EPERM) => match Cgroup::of_thread(tid) {
            Ok(group) if policy.is_real_time() && group.rt_runtime_us() == Some(0) => {
                PolicyError::NoBudget { tid, policy, group: group.path().to_owned() }
            }
            _ => PolicyError::Forbidden { tid, policy },
        },
        _ => PolicyError::Refused { tid, policy, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `check` in a new thread, so that the thread's policy affects no other test.
    fn apart(check: impl FnOnce() + Send + 'static) {
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn what_is_set_is_read_back() {
        apart(|| {
            assert_eq!(get(0).unwrap(), get(0).unwrap());
            let lower = Policy::Fair { nice: 7, slice: Nanos(0) };
            set(0, lower).unwrap();
            assert!(matches!(get(0).unwrap(), Policy::Fair { nice: 7, .. }));
            let batch = Policy::Other { number: number(libc::SCHED_BATCH), nice: 7, priority: 0 };
            set(0, batch).unwrap();
            assert_eq!(get(0).unwrap(), batch);
            assert!(!batch.is_real_time());
        });
    }

    #[test]
    fn errors_name_the_thread_and_the_remedy() {
        let gone = set(u32::MAX, Policy::DEFAULT).unwrap_err();
        assert!(matches!(gone, PolicyError::Gone { .. }), "{gone}");
        assert!(get(u32::MAX).unwrap_err().to_string().ends_with("has exited"));
        let invalid = set(0, Policy::Fifo { priority: 100 }).unwrap_err().to_string();
        assert!(invalid.starts_with("thread 0 cannot use policy SCHED_FIFO 100: "), "{invalid}");
        let said = |errno, policy| explain(0, policy, io::Error::from_raw_os_error(errno));
        let deadline = Policy::Deadline {
            runtime: Nanos::from_micros(500),
            period: Nanos::from_millis(3),
            reclaim: true,
        };
        let busy = said(libc::EBUSY, deadline).to_string();
        assert!(busy.contains("SCHED_DEADLINE 500 us in 3000 us"), "{busy}");
        assert!(busy.contains("shorten the run time"), "{busy}");
        let pinned = said(libc::EPERM, deadline).to_string();
        assert!(pinned.contains("root domain"), "{pinned}");
        let denied = said(libc::EPERM, Policy::Fifo { priority: 1 }).to_string();
        assert!(denied.contains("CAP_SYS_NICE") && !denied.contains("domain"), "{denied}");
    }

    #[test]
    fn a_real_time_policy_is_lent_and_taken_back_where_it_is_permitted() {
        apart(|| match set(0, Policy::Fifo { priority: 1 }) {
            Ok(()) => {
                assert_eq!(get(0).unwrap(), Policy::Fifo { priority: 1 });
                set(0, Policy::DEFAULT).unwrap();
                assert!(!get(0).unwrap().is_real_time());
            }
            Err(error) => {
                let permitted =
                    !matches!(error, PolicyError::Forbidden { .. } | PolicyError::NoBudget { .. });
                assert!(!permitted, "{error}");
            }
        });
    }
}
