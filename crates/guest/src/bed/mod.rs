//! Prepares the environment of a measurement: a directory, CPU cores and hugepages. At the end, the
//! guard process removes the directory and the added hugepages.
//!
//! | Module | Content |
//! |---|---|
//! | [`distance`] | how far two cores are apart |
//! | [`guard`] | a process that removes all objects of a measurement at its end |
//! | [`outside`] | interfaces outside a switch, in a network namespace of their own |
//! | [`process`] | daemons that the guard ends, and commands with output |
//! | [`relay`] | relays between processes, which can be cut |

pub mod distance;
pub mod guard;
pub mod outside;
pub mod process;
pub mod relay;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::{Map, Value};

pub use guard::{Guard, Ward};
use guard::{HUGEPAGES, weigh_session};
use process::ask;

/// Nice value of all measured processes and of their autogroup (`sched(7)`).
const NICE: i32 = -20;

/// Kernel file that triggers compaction of memory when it is written.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
const HUGEPAGE_TRIES: u32 = 4;

/// Options that all measurements have.
#[derive(Debug, Clone, clap::Args)]
pub struct BedArgs {
    /// CPU of the switch's worker. Default: the last CPU that this process may use
    #[arg(long, value_name = "CPU")]
    pub worker_core: Option<u32>,
    /// CPU of the traffic generator. Default: the first CPU that this process may use
    #[arg(long, value_name = "CPU")]
    pub generator_core: Option<u32>,
    /// Longest sleep of an idle Penstock worker, in microseconds; 0: it always polls, as OVS does
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub idle_backoff_us: u32,
    /// Keep the scheduling priority of the measured processes. Default: raise the priority if the
    /// kernel allows
    #[arg(long)]
    pub no_nice: bool,
}

#[derive(Debug)]
pub struct Bed {
    guard: Guard,
    dir: PathBuf,
    worker_core: u32,
    generator_core: u32,
    idle_backoff_us: u32,
    weighed: bool,
    tsc_hz: f64,
}

impl Bed {
    /// Creates the directory of the measurement, and selects the cores of the worker and the
    /// generator.
    pub fn new(args: &BedArgs, guard: Guard) -> anyhow::Result<Self> {
        let allowed = allowed_cores()?;
        let (Some(first), Some(last)) = (allowed.first(), allowed.last()) else {
            bail!("this process is not allowed on any CPU; change its affinity");
        };
        let worker_core = args.worker_core.unwrap_or(*last);
        let generator_core = args.generator_core.unwrap_or(*first);
        for core in [worker_core, generator_core] {
            ensure!(
                allowed.contains(&core),
                "core {core} is not allowed; name one of {allowed:?}, or change the affinity of \
                 this process"
            );
        }
        if worker_core == generator_core {
            eprintln!(
                "switch and generator share core {worker_core}: the figures show how the kernel \
                 divides the core, not the switch's speed"
            );
        }
        let dir = std::env::temp_dir().join(format!("penstock-bench-{}", std::process::id()));
        guard.take(&Ward::Directory(dir.clone()))?;
        std::fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        let weighed = !args.no_nice && weigh(&guard)?;
        let tsc_hz = tsc_hz();
        let idle_backoff_us = args.idle_backoff_us;
        Ok(Self { guard, dir, worker_core, generator_core, idle_backoff_us, weighed, tsc_hz })
    }

    /// Returns the handle of the guard process, through which further objects can be registered for
    /// removal.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Directory of the measurement. The guard process removes the directory at the end of the
    /// measurement.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    #[must_use]
    pub fn worker_core(&self) -> u32 {
        self.worker_core
    }

    #[must_use]
    pub fn generator_core(&self) -> u32 {
        self.generator_core
    }

    /// Returns cores for `count` workers. The first core is [`Bed::worker_core`]. The generator's
    /// core is used only for the last worker, and only if no other allowed core is free.
    ///
    /// # Errors
    /// Returns an error if this process may use fewer than `count` cores.
    pub fn worker_cores(&self, count: usize) -> anyhow::Result<Vec<u32>> {
        order_cores(&allowed_cores()?, self.worker_core, self.generator_core, count)
    }

    /// Longest sleep of an idle worker, in microseconds.
    #[must_use]
    pub fn idle_backoff_us(&self) -> u32 {
        self.idle_backoff_us
    }

    /// Whether the measured processes have a raised priority.
    #[must_use]
    pub fn raises_priority(&self) -> bool {
        self.weighed
    }

    /// Frequency of the time-stamp counter in cycles per second.
    #[must_use]
    pub fn tsc_hz(&self) -> f64 {
        self.tsc_hz
    }

    /// Ensures that `pages` hugepages of 2 MiB are free. The guard process removes added hugepages
    /// at the end of the measurement.
    pub fn need_hugepages(&self, pages: u64) -> anyhow::Result<()> {
        let missing = pages.saturating_sub(free_hugepages()?);
        if missing == 0 {
            return Ok(());
        }
        let total: u64 = std::fs::read_to_string(HUGEPAGES)
            .context("reading the number of hugepages")?
            .trim()
            .parse()
            .context("reading the number of hugepages")?;
        self.guard.take(&Ward::Hugepages(missing))?;
        let mut free = 0;
        for _ in 0..HUGEPAGE_TRIES {
            std::fs::write(HUGEPAGES, (total + missing).to_string())
                .context("asking for hugepages")?;
            free = free_hugepages()?;
            if free >= pages {
                break;
            }
            // Memory is fragmented. Compact it, and request the pages again. Without permission to
            // compact, the next attempt may fail as well.
            let _ = std::fs::write(COMPACT, "1");
        }
        ensure!(
            free >= pages,
            "{pages} free 2 MiB hugepages are needed, but only {free} are free; free memory, or \
             reserve them at boot"
        );
        Ok(())
    }

    /// Describes the machine and the settings of the measurement, for the report.
    #[must_use]
    pub fn describe(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = file("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        map.insert("cpu".into(), cpu.trim_start_matches([' ', '\t', ':']).into());
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        map.insert("cpus".into(), cpus.into());
        map.insert("kernel".into(), file("/proc/sys/kernel/osrelease").trim().into());
        map.insert("worker_core".into(), self.worker_core.into());
        map.insert("generator_core".into(), self.generator_core.into());
        map.insert("raised_priority".into(), self.weighed.into());
        map.insert("tsc_hz".into(), self.tsc_hz.into());
        // A hypervisor moves the cores, so the distance tells runs apart.
        let distance = self.core_distance_ns().ok().flatten();
        map.insert("core_distance_ns".into(), distance.map(f64::round).into());
        map
    }

    /// Returns how far the worker's core and the generator's core are apart, in nanoseconds
    /// ([`distance::round_trip_ns`]). Programs on these cores must be stopped.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be pinned.
    pub fn core_distance_ns(&self) -> anyhow::Result<Option<f64>> {
        distance::round_trip_ns(self.generator_core, self.worker_core)
    }

    /// Runs `work` in a new thread that is pinned to the CPU core of the traffic generator.
    pub fn on_generator_core<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let core = self.generator_core;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                pin(core)?;
                work()
            });
            thread.join().unwrap_or_else(|_| bail!("the generator's thread panicked"))
        })
    }
}

/// Returns the first `count` cores of a list. The list begins with the core `worker`, continues
/// with the other allowed cores in descending order, and ends with the core `generator`.
fn order_cores(
    allowed: &[u32],
    worker: u32,
    generator: u32,
    count: usize,
) -> anyhow::Result<Vec<u32>> {
    let others = allowed.iter().rev().copied().filter(|core| ![worker, generator].contains(core));
    let mut cores: Vec<u32> = std::iter::once(worker).chain(others).collect();
    if generator != worker {
        cores.push(generator);
    }
    ensure!(
        count <= cores.len(),
        "{count} workers: each worker has a core of its own, and this process may use {} \
         ({allowed:?}); ask for fewer workers or change the affinity",
        cores.len()
    );
    cores.truncate(count);
    Ok(cores)
}

fn allowed_cores() -> anyhow::Result<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("reading the affinity")?;
    let cores = (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false));
    Ok(cores.filter_map(|core| u32::try_from(core).ok()).collect())
}

/// Makes this thread run only on `core`.
///
/// # Errors
///
/// Returns an error if the machine has no such core or does not allow it.
pub fn pin(core: u32) -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(usize::try_from(core)?)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus))
        .with_context(|| format!("pinning to core {core}"))
}

/// Raises the scheduling priority of this thread and of the autogroup. Child processes inherit the
/// priority of the thread. Returns false if the kernel refused to change the priority of the thread
/// or of the autogroup.
fn weigh(guard: &Guard) -> anyhow::Result<bool> {
    let me = nix::unistd::gettid().to_string();
    let niced = ask(Command::new("renice").args(["-n", &NICE.to_string(), "-p", &me])).is_ok();
    Ok(niced && weigh_session(guard, NICE)?)
}

fn free_hugepages() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|n| n.trim().parse().ok()).context("the kernel has no hugepages")
}

#[expect(clippy::cast_precision_loss, reason = "a frequency")]
fn tsc_hz() -> f64 {
    penstock_dataplane::tsc::calibrate().hz() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_take_the_generators_core_last() {
        assert_eq!(order_cores(&[0, 1, 2, 3], 3, 0, 3).unwrap(), [3, 2, 1]);
        assert_eq!(order_cores(&[0, 1, 2, 3], 3, 0, 4).unwrap(), [3, 2, 1, 0]);
        assert_eq!(order_cores(&[0, 1], 1, 0, 2).unwrap(), [1, 0]);
        let error = order_cores(&[0, 1], 1, 0, 3).unwrap_err().to_string();
        assert!(error.contains("this process may use 2 ([0, 1])"), "{error}");
        // Worker and generator may share the only core.
        assert_eq!(order_cores(&[5], 5, 5, 1).unwrap(), [5]);
        assert!(order_cores(&[5], 5, 5, 2).is_err());
    }
}
