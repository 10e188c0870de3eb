//! Keeps the daemon's own threads off the workers' cores.
//!
//! # Approach
//!
//! The daemon limits the process's CPUs before it creates any thread. The process may use
//! `control_cores` if they are configured. Otherwise it may use all allowed CPUs except the
//! workers'. Threads inherit this set, and each worker then pins itself to its core. A host with a
//! single CPU keeps all its threads on that CPU.

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// CPUs that this thread may use.
///
/// # Errors
/// The kernel refuses the call.
pub fn allowed() -> Result<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("CPU affinity cannot be read")?;
    let is_set =
        |cpu: &u32| set.is_set(usize::try_from(*cpu).unwrap_or(usize::MAX)).unwrap_or(false);
    Ok((0..u32::try_from(CpuSet::count()).unwrap_or(u32::MAX)).filter(is_set).collect())
}

/// CPUs for all threads except the workers.
#[must_use]
pub fn control_cpus(allowed: &[u32], workers: &[u32], configured: &[u32]) -> Vec<u32> {
    if !configured.is_empty() {
        return configured.to_vec();
    }
    let rest: Vec<u32> = allowed.iter().copied().filter(|cpu| !workers.contains(cpu)).collect();
    if rest.is_empty() { allowed.to_vec() } else { rest }
}

/// Moves this thread to these CPUs. All threads that it creates later inherit them.
///
/// # Errors
/// A CPU does not exist, or the process may not use it.
pub fn confine(cpus: &[u32]) -> Result<()> {
    ensure!(!cpus.is_empty(), "control cores: the list is empty; name at least one CPU");
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(usize::try_from(*cpu)?).with_context(|| format!("control core {cpu}"))?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| {
        format!("control cores {cpus:?}: refused by the kernel; name CPUs that the daemon may use")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_keeps_off_the_workers_cores() {
        assert_eq!(control_cpus(&[0, 1, 2, 3], &[3], &[]), [0, 1, 2]);
        assert_eq!(control_cpus(&[0, 1, 2, 3], &[3], &[1]), [1]);
        assert_eq!(control_cpus(&[5], &[5], &[]), [5]);
    }

    #[test]
    fn the_allowed_cpus_can_be_confined_to() {
        confine(&allowed().unwrap()).unwrap();
        assert!(confine(&[]).is_err());
    }
}
