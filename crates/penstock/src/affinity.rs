//! Keeps threads other than the workers off the workers' cores.
//!
//! # Approach
//!
//! The daemon limits the CPUs of its main thread and of its control threads, which already exist
//! when the host chooses the workers' cores. These threads may use only `control_cores` if these
//! cores are configured. Without `control_cores`, they may use all allowed CPUs except the workers'
//! CPUs. Later threads inherit these CPUs, and each worker pins itself to its core. A host with a
//! single CPU keeps all its threads on that CPU. `penstock capture` does the same with its own
//! thread.

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// CPUs that this thread may use.
///
/// # Errors
/// Returns an error if the kernel does not report the thread's CPUs.
pub fn allowed() -> Result<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("CPU affinity cannot be read")?;
    let is_set =
        |cpu: &u32| set.is_set(usize::try_from(*cpu).unwrap_or(usize::MAX)).unwrap_or(false);
    Ok((0..u32::try_from(CpuSet::count()).unwrap_or(u32::MAX)).filter(is_set).collect())
}

/// Returns the CPUs on which all threads except the workers may run.
#[must_use]
pub fn control_cpus(allowed: &[u32], workers: &[u32], configured: &[u32]) -> Vec<u32> {
    if !configured.is_empty() {
        return configured.to_vec();
    }
    let rest: Vec<u32> = allowed.iter().copied().filter(|cpu| !workers.contains(cpu)).collect();
    if rest.is_empty() { allowed.to_vec() } else { rest }
}

/// The calling thread.
pub const THIS_THREAD: Pid = Pid::from_raw(0);

/// Moves threads of this process to the CPUs `cpus`. Threads that a moved thread creates later
/// inherit its CPUs.
///
/// # Errors
/// Returns an error if a CPU does not exist, or if the process may not use the CPU.
pub fn confine(threads: &[Pid], cpus: &[u32]) -> Result<()> {
    ensure!(!cpus.is_empty(), "control cores: the list is empty; name at least one CPU");
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(usize::try_from(*cpu)?).with_context(|| format!("control core {cpu}"))?;
    }
    threads.iter().try_for_each(|thread| sched_setaffinity(*thread, &set)).with_context(|| {
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
        confine(&[THIS_THREAD], &allowed().unwrap()).unwrap();
        assert!(confine(&[THIS_THREAD], &[]).is_err());
    }

    #[test]
    fn a_thread_that_exists_already_is_confined_too() {
        let (told, id) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            told.send(nix::unistd::gettid()).unwrap();
            let _ = wait.recv();
            allowed().unwrap()
        });
        let first = allowed().unwrap()[..1].to_vec();
        confine(&[id.recv().unwrap()], &first).unwrap();
        drop(done);
        assert_eq!(thread.join().unwrap(), first);
    }
}
