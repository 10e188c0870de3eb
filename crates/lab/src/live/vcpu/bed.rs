//! Processes of micro-guests on one core, and of the Penstock vCPU scheduler for the core.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use penstock_dataplane::tsc;
use penstock_units::{Nanos, TscRate};
use penstock_vcpu_host::policy::{self, Policy};
use penstock_vcpu_host::schedstat::Schedstat;
use penstock_vcpu_host::state::State;
use penstock_vcpu_host::threads::{self, VcpuThread};

use crate::evidence::Context;
use crate::microguest::{self, Board, RUNNING};
use crate::penstock::penstock;
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::{THIS_PROGRAM, Ward};
use penstock_guest::bed::process::{Daemon, await_some};

/// Maximum time until a guest or the scheduler has started.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Path of a tmpfs that every Linux has. The scheduler's run directory is in this tmpfs, because
/// the scheduler writes to the directory at each poll.
const SHARED_MEMORY: &str = "/dev/shm";
/// If a run does not stop a guest, the guest ends by itself this many seconds after the
/// measurement.
const SPARE_SECS: f64 = 30.0;

/// The core on which the VMs run. The methods of `Stage` start guests and schedulers.
#[derive(Debug)]
pub(super) struct Stage {
    pub bed: Bed,
    pub hz: TscRate,
    run_dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    pub mode: Mode,
    /// The VM's deadline in milliseconds. The deadline is ignored if the scheduling mode has no
    /// deadline.
    pub deadline_ms: u32,
    /// The VM's weight in the scheduler, which is the key `vcpu_weight`.
    pub weight: u16,
}

/// Scheduling mode of a VM in an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The VM has no deadline. The scheduler gives VMs without a deadline shares of the core by
    /// weight alone.
    None,
    /// After the VM has lost the core, it runs again within its deadline.
    Periodic,
    /// The VM runs within its deadline after an event of which the scheduler is notified.
    Event,
}

impl Mode {
    /// Returns the name of the scheduling mode in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Periodic => "periodic",
            Self::Event => "event",
        }
    }
}

impl Terms {
    /// Scheduling terms of a busy VM without a deadline, with weight 1.
    pub const HOG: Self = Self { mode: Mode::None, deadline_ms: 0, weight: 1 };

    /// Returns the scheduling terms of a VM with weight 1 and a deadline in milliseconds.
    pub const fn real_time(mode: Mode, deadline_ms: u32) -> Self {
        Self { mode, deadline_ms, weight: 1 }
    }

    /// Returns the `[[vm]]` table for the micro-guest `name`, for a scheduler's configuration file.
    pub fn table(&self, name: &str) -> String {
        let mode = match self.mode {
            Mode::None => String::new(),
            Mode::Periodic => "vcpu_mode = \"periodic\"\n".to_owned(),
            Mode::Event => "vcpu_mode = \"aperiodic\"\n".to_owned(),
        };
        let deadline = match self.mode {
            Mode::None => String::new(),
            _ => format!("deadline = \"{} ms\"\n", self.deadline_ms),
        };
        format!(
            "[[vm]]\nname = \"{name}\"\nprocess = \"*microguest --name {name} *\"\n\
             vcpu_weight = {}\n{mode}{deadline}",
            self.weight
        )
    }
}

impl Stage {
    /// Prepares an experiment that runs the VMs on the core in `--worker-core`, and measures from
    /// the generator's core.
    pub fn new(context: &Context<'_>) -> anyhow::Result<Self> {
        microguest::is_available()?;
        let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
        ensure!(
            bed.worker_core() != bed.generator_core(),
            "vCPUs need a core of their own: name another with --generator-core"
        );
        let run_dir = format!("{SHARED_MEMORY}/penstock-lab-{}", std::process::id());
        bed.guard().take(&Ward::Directory(run_dir.clone().into()))?;
        Ok(Self { bed, hz: tsc::calibrate(), run_dir: run_dir.into() })
    }

    /// Returns the run directory of the scheduler, through which events are reported.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Returns the name of guest number `nth`, which no other run uses.
    pub fn named(nth: usize) -> String {
        format!("lab{}-vm{nth}", std::process::id())
    }

    /// Starts guests 0 to `count - 1`. Each guest runs for at least `secs` seconds.
    pub fn guests(&self, count: usize, secs: f64) -> anyhow::Result<Vec<Guest>> {
        (0..count).map(|nth| self.guest(nth, secs)).collect()
    }

    /// Starts guest number `nth`, for at least `secs` seconds.
    pub fn guest(&self, nth: usize, secs: f64) -> anyhow::Result<Guest> {
        let core = self.bed.worker_core();
        self.bed.on_generator_core(|| Guest::start(&self.bed, Self::named(nth), core, secs))
    }

    /// Starts a scheduler. `terms` holds the scheduling terms of guests 0, 1 and so on. The guests
    /// may start after the scheduler.
    pub fn schedule(&self, terms: &[Terms]) -> anyhow::Result<Scheduler> {
        let tables = terms.iter().enumerate().map(|(nth, terms)| terms.table(&Self::named(nth)));
        self.schedule_tables(&tables.collect::<String>())
    }

    /// Starts a scheduler with the `[[vm]]` tables in `tables`.
    pub fn schedule_tables(&self, tables: &str) -> anyhow::Result<Scheduler> {
        self.bed.on_generator_core(|| Scheduler::start(self, tables))
    }

    /// Converts TSC cycles to milliseconds.
    pub fn ms(&self, cycles: u64) -> f64 {
        to_ms(self.hz.to_nanos(penstock_units::Cycles(cycles)))
    }
}

pub(super) fn to_ms(time: Nanos) -> f64 {
    Duration::from_nanos(time.0).as_secs_f64() * 1e3
}

/// A micro-guest in its own process.
#[derive(Debug)]
pub(super) struct Guest {
    pub name: String,
    pub board: Arc<Board>,
    thread: VcpuThread,
    // The process ends when its standard input ends.
    child: Child,
}

impl Guest {
    fn start(bed: &Bed, name: String, core: u32, secs: f64) -> anyhow::Result<Self> {
        let board = Arc::new(Board::new()?);
        let mut command = Command::new(THIS_PROGRAM);
        command.args(["microguest", "--name", &name, "--memory"]).arg(board.path());
        command.args(["--core", &core.to_string()]);
        command.args(["--secs", &format!("{:.0}", secs + SPARE_SECS)]);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting a micro-guest")?;
        let said = child.stdout.take();
        let id = child.id();
        let mut guest = Self {
            name,
            board,
            thread: VcpuThread { vcpu: 0, pid: id, tid: id, started: 0 },
            child,
        };
        if let Ok(ward) = Ward::process(id) {
            bed.guard().take(&ward)?;
        }
        let mut line = String::new();
        let read = said.map(|said| BufReader::new(said).read_line(&mut line));
        read.context("the micro-guest's output")?.context("reading the micro-guest's output")?;
        ensure!(
            line.trim() == RUNNING,
            "micro-guest {} did not start; its error is above",
            guest.name
        );
        guest.thread = await_some("its virtual processor", START_LIMIT, || {
            Ok(threads::of_process(id).ok().and_then(|found| found.first().copied()))
        })?;
        Ok(guest)
    }

    /// Returns the CPU time of the guest's virtual processor since its start.
    pub fn ran(&self) -> anyhow::Result<Duration> {
        let stat = Schedstat::read(&self.thread.task());
        Ok(stat.with_context(|| format!("{}: reading its CPU time", self.name))?.ran)
    }

    /// Sets the nice value of the guest's virtual processor in Linux's fair class.
    pub fn set_nice(&self, nice: i8) -> anyhow::Result<()> {
        let policy = Policy::Fair { nice, slice: Nanos(0) };
        Ok(policy::set(self.thread.tid, policy)?)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The process may wait for the busy core before it ends.
        let ended = await_some("end of a micro-guest", Duration::from_secs(5), || {
            Ok(self.child.try_wait()?)
        });
        if ended.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A running Penstock vCPU scheduler.
#[derive(Debug)]
pub(super) struct Scheduler {
    daemon: Daemon,
    run_dir: PathBuf,
    thread: PathBuf,
}

impl Scheduler {
    fn start(stage: &Stage, tables: &str) -> anyhow::Result<Self> {
        let core = stage.bed.worker_core();
        let run_dir = stage.run_dir.clone();
        let text =
            format!("[vcpu]\ncpus = [{core}]\nrun_dir = \"{}\"\n{tables}", run_dir.display());
        let file = stage.bed.dir().join("vcpu.toml");
        std::fs::write(&file, text).context("writing the scheduler's configuration")?;
        let mut command = penstock()?;
        command.args(["vcpu", "run", "--config"]).arg(&file);
        let log = stage.bed.dir().join("vcpu.log");
        let mut daemon = Daemon::start(&mut command, log, stage.bed.guard())?;
        let pid = daemon.id();
        let thread = await_some("the scheduling thread", START_LIMIT, || {
            daemon.check()?;
            let found = threads::named(pid, "boost/*").ok();
            Ok(found.and_then(|found| found.first().map(VcpuThread::task)))
        });
        let thread = thread.with_context(|| daemon.last_words())?;
        Ok(Self { daemon, run_dir, thread })
    }

    /// Waits until the scheduler controls at least `count` VMs.
    pub fn await_seated(&mut self, count: usize) -> anyhow::Result<()> {
        let run_dir = self.run_dir.clone();
        await_some("VMs that are scheduled", START_LIMIT, || {
            self.daemon.check()?;
            let Ok(state) = State::load(&run_dir) else { return Ok(None) };
            if let Some(problem) = state.vms.iter().find_map(|vm| {
                let problem = vm.problem.as_ref()?;
                (!vm.vcpus.is_empty()).then(|| format!("{}: {problem}", vm.name))
            }) {
                anyhow::bail!(problem);
            }
            // A VM counts after its first recorded wait for the core.
            let seated = state.vms.iter().filter(|vm| vm.vcpus.iter().any(|v| v.waits > 0));
            Ok((seated.count() >= count).then_some(()))
        })
        .with_context(|| self.daemon.last_words())
    }

    /// Returns the CPU time of the scheduling thread since its start.
    pub fn own(&self) -> anyhow::Result<Duration> {
        Ok(Schedstat::read(&self.thread).context("reading the scheduler's own time")?.ran)
    }

    /// Returns the state that the scheduler reports.
    pub fn state(&self) -> anyhow::Result<State> {
        State::load(&self.run_dir).context("reading the scheduler's state")
    }
}
