//! Runs the vCPU scheduler as a service on a host. The service finds VMs, assigns VMs to
//! processors, keeps the watchdog running, and reports.
//!
//! Each part of the service may fail without harm to the other parts. If a VM ends, the service
//! waits until the VM starts again. If a scheduling thread stalls, the watchdog restores the vCPU
//! threads of that scheduling thread. If the watchdog is dead, the scheduler lends no real-time
//! policy until a new watchdog runs. At its start, the service restores the threads and cgroups
//! that a previous scheduler left changed.

mod as_found;
mod chime;
mod complaint;
mod gauge;
mod held;
mod reserving;
mod roster;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::Pid;
use penstock_vcpu::bells::SOCKET_PREFIX;
use thiserror::Error;

use crate::boost::seat::Seat;
use crate::boost::{Boost, Note, Order, Parts, Report};
use crate::config::Config;
use crate::lease::{Identity, LeaseTable, MAX_ENTRIES};
use crate::restore::{self, Before, LEASES, Swept};
use crate::run_dir::RunDir;
use crate::state::{STATE, State};
use crate::threads;
use crate::watchdog::Watchdog;
use chime::Chime;
use complaint::Complaint;
use gauge::Gauge;
use roster::Roster;

/// Interval in milliseconds at which the service searches for VMs, reads reports and checks the
/// watchdog.
const LOOK_MS: u16 = 500;
/// Time limit for a scheduling thread to execute an order. A scheduling thread polls at least every
/// 40 ms.
const OBEYED_WITHIN: Duration = Duration::from_millis(500);
/// Maximum number of reports in the channel from the scheduling threads. Each scheduling thread
/// sends one report per second.
const REPORTS: usize = 256;

/// Reason why the scheduler did not start, or why it ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The configuration file has mistakes.
    #[error("{0}")]
    Config(String),
    /// The scheduler cannot use the run directory.
    #[error("{dir}: {source}; set [vcpu] `run_dir` to another directory, on a tmpfs")]
    Directory { dir: String, source: io::Error },
    /// The scheduler's files in the run directory do not exist any more, or belong to another
    /// scheduler.
    #[error(
        "{dir}: another program removed or replaced files of this scheduler; all vCPUs have their \
         former settings; keep other programs out of the directory, and start the scheduler again"
    )]
    Replaced { dir: String },
    /// The scheduler could not start the watchdog.
    #[error("{0}")]
    Watchdog(io::Error),
    /// A scheduling thread ended with an error.
    #[error("CPU {cpu} cannot be scheduled: {source}")]
    Boost { cpu: u32, source: io::Error },
    /// A system call for signals failed.
    #[error("signals cannot be handled: {0}")]
    Signals(#[from] nix::Error),
}

struct Loop {
    cpu: u32,
    orders: Sender<Order>,
    thread: JoinHandle<io::Result<()>>,
}

struct Service<'a> {
    config: Config,
    reload: &'a dyn Fn() -> Result<Config, String>,
    loads: u64,
    refused: Option<String>,
    dir: RunDir,
    table: Arc<LeaseTable>,
    roster: Roster,
    chime: Chime,
    gauge: Gauge,
    loops: Vec<Loop>,
    /// Processor to which each vCPU thread is assigned.
    seated: HashMap<Identity, u32>,
    reports: Receiver<Report>,
    lending: Arc<AtomicBool>,
    watchdog: Option<Watchdog>,
    command: &'a dyn Fn(&Path) -> Command,
}

/// Schedules the VMs of the configuration that `load` returns, until SIGTERM or SIGINT. On SIGHUP
/// the function calls `load` again. `watchdog` returns a command that runs
/// [`crate::watchdog::watch`] on a directory.
///
/// # Errors
/// Returns an error if the configuration is wrong, or if the right to real-time policies is
/// missing. Returns an error if the run directory or the watchdog cannot be used.
pub fn run(
    load: &dyn Fn() -> Result<Config, String>,
    watchdog: &dyn Fn(&Path) -> Command,
) -> Result<(), ServiceError> {
    let config = load().map_err(ServiceError::Config)?;
    let named =
        |source| ServiceError::Directory { dir: config.run_dir.display().to_string(), source };
    let dir = RunDir::take(&config.run_dir).map_err(named)?;
    let table = prepare(&dir).map_err(named)?;
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    ends.add(Signal::SIGHUP);
    // This blocks the signals before any thread starts, so that all threads inherit the mask.
    ends.thread_block()?;
    let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    step_aside(&config.cpus);
    open_many();
    let (send, reports) = sync_channel(REPORTS);
    let lending = Arc::new(AtomicBool::new(true));
    let guard = Watchdog::start(watchdog(dir.path()), &dir).map_err(ServiceError::Watchdog)?;
    tracing::info!(watchdog = guard.pid(), cpus = ?config.cpus, "scheduling vCPUs");
    let mut loops = Vec::new();
    for (at, cpu) in config.cpus.iter().copied().enumerate() {
        let (orders, told) = channel();
        let events =
            events(dir.path(), at).map_err(|source| ServiceError::Boost { cpu, source })?;
        let boost = Boost::new(Parts {
            at,
            cpu,
            table: Arc::clone(&table),
            lending: Arc::clone(&lending),
            orders: told,
            reports: send.clone(),
            events,
        });
        let thread = std::thread::Builder::new().name(format!("boost/{cpu}"));
        let thread = thread.spawn(move || boost.run());
        let thread = thread.map_err(|source| ServiceError::Boost { cpu, source })?;
        loops.push(Loop { cpu, orders, thread });
    }
    let mut service = Service {
        dir,
        reload: load,
        loads: 1,
        refused: None,
        roster: Roster::new(&config, Arc::clone(&table)),
        config,
        table,
        chime: Chime::default(),
        gauge: Gauge::default(),
        loops,
        seated: HashMap::new(),
        reports,
        lending,
        watchdog: Some(guard),
        command: watchdog,
    };
    let ended = service.serve(&signals);
    let stopped = service.stop();
    ended.and(stopped)
}

/// Moves the calling thread off the scheduled processors, if the thread may use other processors.
/// The watchdog, which the calling thread starts later, inherits the processors of the thread. On a
/// scheduled processor, the calling thread and the watchdog would wait for guests, and a waiting
/// thread cannot exit.
fn step_aside(cpus: &[u32]) {
    let mine = as_found::processors(0).unwrap_or_default();
    let others: Vec<u32> = mine.into_iter().filter(|cpu| !cpus.contains(cpu)).collect();
    if others.is_empty() {
        tracing::warn!("[vcpu] `cpus` has all CPUs; leave one CPU out for other programs");
    } else if let Err(error) = restore::confine(0, &others) {
        tracing::warn!(%error, "the scheduler's own thread cannot leave the CPUs of its VMs");
    }
}

/// Raises the process's limit on open files, because two descriptors per vCPU may exceed the usual
/// limit of 1,024.
fn open_many() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, soft, "the limit of open files cannot be raised");
    }
}

/// Makes the scheduler with the run directory `dir` read its configuration again.
///
/// # Errors
/// Returns an error if no scheduler runs with the directory, or if the permission is missing.
pub fn hang_up(dir: &Path) -> io::Result<()> {
    let owner = LeaseTable::open(&dir.join(LEASES))?.owner()?;
    if !restore::is_alive(owner) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let pid = i32::try_from(owner.pid).map_err(io::Error::other)?;
    Ok(kill(Pid::from_raw(pid), Signal::SIGHUP)?)
}

/// Restores the threads and cgroups that the previous scheduler left changed, and creates a new
/// table of thread policies.
fn prepare(taken: &RunDir) -> io::Result<Arc<LeaseTable>> {
    let dir = taken.path();
    if statfs(dir)?.filesystem_type() != TMPFS_MAGIC {
        tracing::warn!(
            run_dir = %dir.display(),
            "the run directory is not on a tmpfs: writes to the disk delay slices"
        );
    }
    if let Swept::After { taken } = restore::sweep_in(taken)? {
        tracing::warn!(
            taken,
            "the last scheduler died; the threads' former settings were restored"
        );
    }
    let pid = std::process::id();
    let started = threads::started_at(pid, pid).unwrap_or(0);
    let owner = Identity { pid, tid: pid, started };
    // The list of original states must not stay from a previous table.
    Before::default().save(dir)?;
    Ok(Arc::new(LeaseTable::create(&dir.join(LEASES), owner)?))
}

fn events(dir: &Path, at: usize) -> io::Result<UnixDatagram> {
    let path = dir.join(format!("{SOCKET_PREFIX}{at}"));
    // Removes the socket that a dead scheduler left.
    let _ = std::fs::remove_file(&path);
    UnixDatagram::bind(path)
}

impl Service<'_> {
    fn serve(&mut self, signals: &SignalFd) -> Result<(), ServiceError> {
        loop {
            let seated = self.seat();
            self.give_bells(seated);
            while let Ok(report) = self.reports.try_recv() {
                self.take(report);
            }
            self.guard();
            if !self.has_its_files() {
                return Err(ServiceError::Replaced { dir: self.dir.path().display().to_string() });
            }
            if let Some(at) = self.loops.iter().position(|each| each.thread.is_finished()) {
                let Loop { cpu, thread, .. } = self.loops.swap_remove(at);
                let died = || Err(io::Error::other("its thread died"));
                let source = thread.join().unwrap_or_else(|_| died()).err();
                let source = source.unwrap_or_else(|| io::Error::other("its thread ended"));
                return Err(ServiceError::Boost { cpu, source });
            }
            if let Err(error) = self.state().save(&self.config.run_dir) {
                tracing::warn!(%error, "the state file cannot be written");
            }
            let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            // Without the watchdog, the scheduler may not lend policies, so the watchdog's death
            // wakes this loop at once.
            let guard = self.watchdog.as_ref().map(Watchdog::as_fd);
            fds.extend(guard.map(|guard| PollFd::new(guard, PollFlags::POLLIN)));
            let _ = poll(&mut fds, PollTimeout::from(LOOK_MS));
            match signals.read_signal()? {
                Some(it) if Ok(libc::SIGHUP) == i32::try_from(it.ssi_signo) => self.read_anew(),
                Some(_) => return Ok(()),
                None => {}
            }
        }
    }

    /// Reads the scheduler's configuration file again. If the new configuration has a mistake, the
    /// service keeps the old configuration.
    fn read_anew(&mut self) {
        self.loads += 1;
        let fixed = |config: &Config| {
            if config.cpus != self.config.cpus || config.run_dir != self.config.run_dir {
                let why = "[vcpu] `cpus` and `run_dir` change when the scheduler restarts";
                return Err(why.to_owned());
            }
            Ok(())
        };
        match (self.reload)().and_then(|config| fixed(&config).map(|()| config)) {
            Ok(config) => {
                self.roster.take_over(&self.config, &config);
                self.config = config;
                self.refused = None;
                tracing::info!(vms = self.config.vms.len(), "configuration reloaded");
            }
            Err(why) => {
                tracing::error!("reload refused, the former configuration stays in force: {why}");
                self.refused = Some(why);
            }
        }
    }

    /// Whether the run directory still has the files that the watchdog or the next scheduler needs
    /// to restore threads and cgroups.
    fn has_its_files(&self) -> bool {
        let socket = |at| self.dir.path().join(format!("{SOCKET_PREFIX}{at}"));
        self.table.is_at(&self.dir.path().join(LEASES))
            && (0..self.config.cpus.len()).all(|at| socket(at).exists())
    }

    /// Orders the scheduling threads to schedule the current vCPUs, if the vCPUs have changed.
    fn seat(&mut self) -> bool {
        if !self.roster.look(&self.config) {
            return false;
        }
        let Some(seats) = self.roster.seats(&self.config) else { return false };
        let roster = &self.roster;
        self.gauge.begin_anew(|thread| roster.has(thread));
        self.roster.begin_anew();
        let moves = |cpu: u32, seat: &Seat| {
            self.seated.get(&seat.thread).is_some_and(|before| *before != cpu)
        };
        let of = |cpu: u32| seats.get(&cpu).map_or(&[][..], Vec::as_slice);
        if self.loops.iter().any(|each| of(each.cpu).iter().any(|seat| moves(each.cpu, seat))) {
            // A vCPU's new scheduling thread may not lend to the vCPU before the old scheduling
            // thread has released it.
            let stay = |cpu| of(cpu).iter().filter(|seat| !moves(cpu, seat)).cloned().collect();
            if !self.order(&stay) {
                self.roster.look_again();
                return false;
            }
        }
        // Other code detects a scheduling thread that has ended or stalls.
        self.order(&|cpu| of(cpu).to_vec());
        let on = |(cpu, seats): (&u32, &Vec<Seat>)| {
            seats.iter().map(|seat| (seat.thread, *cpu)).collect::<Vec<_>>()
        };
        self.seated = seats.iter().flat_map(on).collect();
        for each in &self.loops {
            tracing::info!(cpu = each.cpu, vcpus = of(each.cpu).len(), "vCPUs assigned to a CPU");
        }
        true
    }

    /// Sends each scheduling thread its list of vCPUs. Returns whether all scheduling threads
    /// executed the order in time.
    fn order(&self, seats: &dyn Fn(u32) -> Vec<Seat>) -> bool {
        let (send, done) = sync_channel(self.loops.len());
        let send_to =
            |each: &Loop| each.orders.send(Order::Seats(seats(each.cpu), send.clone())).is_ok();
        let told = self.loops.iter().filter(|each| send_to(each)).count();
        drop(send);
        (0..told).all(|_| done.recv_timeout(OBEYED_WITHIN).is_ok())
    }

    /// Sends the file and the numbers of the VMs' frame-arrival counters (bells) to the scheduling
    /// threads, if the counters or a thread's vCPUs have changed.
    fn give_bells(&mut self, seated: bool) {
        if !self.chime.look(&self.config) && !seated {
            return;
        }
        for each in &self.loops {
            if let Some(order) = self.chime.get() {
                // `serve` detects a thread that has ended.
                let _ = each.orders.send(order);
            }
        }
    }

    fn take(&mut self, report: Report) {
        for note in &report.notes {
            match note {
                Note::Gone(thread) => {
                    tracing::info!(tid = thread.tid, vm = self.roster.name(thread), "vCPU gone");
                    self.roster.forget(thread);
                }
                Note::Refused(thread, why) => {
                    self.roster.complain(*thread, Complaint::Told(why.clone()));
                }
                Note::NoBudget(thread) => self.roster.complain(*thread, Complaint::NoBudget),
                Note::Accepted(thread) => {
                    tracing::info!(
                        vm = self.roster.name(thread),
                        "the kernel accepts real-time slices for the VM again"
                    );
                    self.roster.content(*thread);
                }
                Note::NoRoom(thread) => {
                    let why =
                        "no free slots for the vCPU's deadline; give the VM a longer deadline";
                    self.roster.complain(*thread, Complaint::Told(why.to_owned()));
                }
                Note::StoodStill(time) => {
                    let ms = time.0 / 1_000_000;
                    tracing::warn!(cpu = report.cpu, ms, "scheduling stalled and continues");
                }
            }
        }
        self.gauge.add(report);
    }

    /// Restarts a dead watchdog. Without a watchdog the scheduler lends no real-time policy.
    fn guard(&mut self) {
        if self.watchdog.as_mut().is_some_and(Watchdog::is_alive) {
            return;
        }
        self.lending.store(false, Ordering::Relaxed);
        self.watchdog = match Watchdog::start((self.command)(self.dir.path()), &self.dir) {
            Ok(watchdog) => {
                tracing::warn!(
                    watchdog = watchdog.pid(),
                    "the watchdog died; a new one was started"
                );
                self.lending.store(true, Ordering::Relaxed);
                Some(watchdog)
            }
            Err(error) => {
                tracing::error!(%error, "no watchdog runs: vCPUs get no real-time slices");
                None
            }
        };
    }

    fn state(&self) -> State {
        State {
            pid: std::process::id(),
            watchdog: self.watchdog.as_ref().map_or(0, Watchdog::pid),
            loads: self.loads,
            refused: self.refused.clone(),
            cpus: self.config.cpus.iter().map(|cpu| self.gauge.cpu(*cpu)).collect(),
            vms: self.roster.states(&self.config, &self.gauge),
        }
    }

    /// Ends the scheduling threads and restores the original state of all threads and cgroups.
    fn stop(&mut self) -> Result<(), ServiceError> {
        let mut ended = Ok(());
        for Loop { cpu, orders, thread } in self.loops.drain(..) {
            let _ = orders.send(Order::Stop);
            if let Ok(Err(source)) = thread.join() {
                ended = Err(ServiceError::Boost { cpu, source });
            }
        }
        // This releases reservations before it restores processors, because a deadline thread
        // cannot lose processors.
        self.roster.release();
        self.roster.found.put_back();
        if self.has_its_files() {
            let dir = self.dir.path();
            for at in 0..self.config.cpus.len() {
                let _ = std::fs::remove_file(dir.join(format!("{SOCKET_PREFIX}{at}")));
            }
            // The watchdog removes the table when this process is gone.
            let _ = std::fs::remove_file(dir.join(STATE));
        }
        tracing::info!("the former settings of all vCPUs are restored");
        ended
    }
}

/// Number of entries for vCPUs in the table of thread policies.
const SLOTS: usize = MAX_ENTRIES;
