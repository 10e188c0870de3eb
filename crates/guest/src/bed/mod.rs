//! The environment of a measurement: its directory, cores and pages. The guard removes it at the
//! end.
//!
//! | Module | Content |
//! |---|---|
//! | [`guard`] | removes everything, whatever ends a measurement |
//! | [`process`] | daemons under the guard, and commands with an answer |

pub mod guard;
pub mod process;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::{Map, Value};

pub use guard::{Guard, Ward};
use guard::{HUGEPAGES, weigh_session};
use process::ask;

/// Nice value of all measured processes, and weight of their session.
const NICE: i32 = -20;

/// File by which the kernel compacts free memory.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// Number of attempts to get hugepages.
const HUGEPAGE_TRIES: u32 = 4;

/// Settings that all measurements have.
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
    /// Keep the scheduling priority of the measured processes. Default: raise it if allowed
    #[arg(long)]
    pub no_nice: bool,
}

/// The environment of one measurement.
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
    /// Makes the directory and selects the cores.
    pub fn new(args: &BedArgs, guard: Guard) -> anyhow::Result<Self> {
        let allowed = allowed_cores()?;
        let (Some(first), Some(last)) = (allowed.first(), allowed.last()) else {
            bail!("no CPU is allowed to this process");
        };
        let worker_core = args.worker_core.unwrap_or(*last);
        let generator_core = args.generator_core.unwrap_or(*first);
        for core in [worker_core, generator_core] {
            ensure!(
                allowed.contains(&core),
                "core {core} is not allowed to this process, those are {allowed:?}; name another \
                 or change its affinity"
            );
        }
        if worker_core == generator_core {
            eprintln!(
                "switch and generator share core {worker_core}: the numbers say how the kernel \
                 divides it, not how fast the switch is"
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

    /// The guard that removes the environment.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The directory, which is removed at the end.
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

    /// Ensures that `pages` pages of 2 MiB are free. Added pages are removed at the end.
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
            // Memory is fragmented: compact it and request the pages again. Without the permission
            // the present number counts.
            let _ = std::fs::write(COMPACT, "1");
        }
        ensure!(
            free >= pages,
            "{pages} free 2 MiB hugepages are needed and {free} could be had; free memory, or \
             reserve them at boot"
        );
        Ok(())
    }

    /// The machine and the settings, for the report.
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
        map
    }

    /// Runs `work` in a thread that is pinned to the generator's core.
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

/// The cores that this process may use.
fn allowed_cores() -> anyhow::Result<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("reading the affinity")?;
    let cores = (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false));
    Ok(cores.filter_map(|core| u32::try_from(core).ok()).collect())
}

fn pin(core: u32) -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(usize::try_from(core)?)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus))
        .with_context(|| format!("pinning to core {core}"))
}

/// Raises the priority of this thread, its children and the session, as far as permitted.
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
