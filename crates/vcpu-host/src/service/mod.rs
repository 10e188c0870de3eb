//! The scheduler as a service: finds VMs, seats them, keeps the watchdog, tells how it goes.
//!
//! **Rule.** It is ready for the death of any part. A VM that is gone is waited for; a scheduling
//! thread that stands still is the watchdog's business; without a watchdog nothing is lent until
//! there is one again. What a scheduler before it left behind is put right first.

mod chime;
mod gauge;
mod held;
mod reserving;
mod roster;

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use penstock_vcpu::bells::SOCKET_PREFIX;
use thiserror::Error;

use crate::boost::{Boost, Note, Order, Parts, Report};
use crate::config::Config;
use crate::lease::{Identity, LeaseTable, MAX_ENTRIES};
use crate::restore::{self, Before, LEASES, Swept};
use crate::state::{STATE, State};
use crate::threads;
use crate::watchdog::Watchdog;
use chime::Chime;
use gauge::Gauge;
use roster::Roster;

/// Between two looks at VMs, reports and the watchdog, in milliseconds.
const LOOK_MS: u16 = 500;
/// Reports that wait to be read; each scheduling thread sends one a second.
const REPORTS: usize = 256;

/// The scheduler did not start, or ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// Its directory.
    #[error("{dir}: {source}; set [vcpu] `run_dir` to a directory on a tmpfs")]
    Directory {
        /// The directory.
        dir: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The watchdog.
    #[error("{0}")]
    Watchdog(io::Error),
    /// A scheduling thread.
    #[error("processor {cpu} is not scheduled: {source}")]
    Boost {
        /// The processor.
        cpu: u32,
        /// Why.
        source: io::Error,
    },
    /// The system.
    #[error("signals cannot be waited for: {0}")]
    Signals(#[from] nix::Error),
}

struct Loop {
    cpu: u32,
    orders: Sender<Order>,
    thread: JoinHandle<io::Result<()>>,
}

struct Service<'a> {
    config: &'a Config,
    roster: Roster,
    chime: Chime,
    gauge: Gauge,
    loops: Vec<Loop>,
    reports: Receiver<Report>,
    lending: Arc<AtomicBool>,
    watchdog: Option<Watchdog>,
    command: &'a dyn Fn() -> Command,
}

/// Schedules the VMs of `config` until SIGTERM or SIGINT. `watchdog` makes a command that runs
/// [`crate::watchdog::watch`] on the directory.
///
/// # Errors
/// It cannot start: the directory, the watchdog, or the right to real-time policies is missing.
pub fn run(config: &Config, watchdog: &dyn Fn() -> Command) -> Result<(), ServiceError> {
    let dir = &config.run_dir;
    let (table, owner) = prepare(dir)
        .map_err(|source| ServiceError::Directory { dir: dir.display().to_string(), source })?;
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    // Before any thread is made, so that all have them blocked.
    ends.thread_block()?;
    let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    step_aside(&config.cpus);
    let (send, reports) = sync_channel(REPORTS);
    let lending = Arc::new(AtomicBool::new(true));
    let guard = Watchdog::start(watchdog()).map_err(ServiceError::Watchdog)?;
    tracing::info!(watchdog = guard.pid(), cpus = ?config.cpus, "scheduling vCPUs");
    let mut loops = Vec::new();
    for (at, cpu) in config.cpus.iter().copied().enumerate() {
        let (orders, told) = channel();
        let events = events(dir, at).map_err(|source| ServiceError::Boost { cpu, source })?;
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
    let roster = Roster::new(config, owner, table);
    let gauge = Gauge::default();
    let watchdog = (Some(guard), watchdog);
    let (watchdog, command) = watchdog;
    let chime = Chime::default();
    let mut service =
        Service { config, roster, chime, gauge, loops, reports, lending, watchdog, command };
    let ended = service.serve(&signals);
    let stopped = service.stop();
    ended.and(stopped)
}

/// This thread, and the watchdog that it starts, leave the scheduled processors if they may use
/// others: beside guests they would wait, and where this thread waits it cannot die.
fn step_aside(cpus: &[u32]) {
    let mine = roster::processors(0).unwrap_or_default();
    let others: Vec<u32> = mine.into_iter().filter(|cpu| !cpus.contains(cpu)).collect();
    if others.is_empty() {
        tracing::warn!("all processors are scheduled; leave one out of [vcpu] `cpus` for the rest");
    } else if let Err(error) = restore::confine(0, &others) {
        tracing::warn!(%error, "the service stays on the processors of its VMs");
    }
}

/// Puts right what is left of the last one, and makes a new table.
fn prepare(dir: &Path) -> io::Result<(Arc<LeaseTable>, Identity)> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if statfs(dir)?.filesystem_type() != TMPFS_MAGIC {
        tracing::warn!(run_dir = %dir.display(), "not on a tmpfs: writes to a disk delay slices");
    }
    if let Swept::After { taken } = restore::sweep(dir)? {
        tracing::warn!(taken, "the last scheduler died; what it had changed is put back");
    }
    let pid = std::process::id();
    let started = threads::started_at(pid, pid).unwrap_or(0);
    let owner = Identity { pid, tid: pid, started };
    let table = LeaseTable::create(&dir.join(LEASES), owner)?;
    Before::default().save(dir)?;
    Ok((Arc::new(table), owner))
}

fn events(dir: &Path, at: usize) -> io::Result<UnixDatagram> {
    let path = dir.join(format!("{SOCKET_PREFIX}{at}"));
    // A socket that a dead scheduler left would be in the way.
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
            if let Some(at) = self.loops.iter().position(|each| each.thread.is_finished()) {
                let Loop { cpu, thread, .. } = self.loops.swap_remove(at);
                let died = || Err(io::Error::other("its thread died"));
                let source = thread.join().unwrap_or_else(|_| died()).err();
                let source = source.unwrap_or_else(|| io::Error::other("its thread ended"));
                return Err(ServiceError::Boost { cpu, source });
            }
            if let Err(error) = self.state().save(&self.config.run_dir) {
                tracing::warn!(%error, "what is known of vCPUs cannot be written");
            }
            let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::from(LOOK_MS));
            if signals.read_signal()?.is_some() {
                return Ok(());
            }
        }
    }

    /// Tells the scheduling threads who is there, if that changed.
    fn seat(&mut self) -> bool {
        if !self.roster.look(self.config) {
            return false;
        }
        let mut seats = self.roster.seats(self.config);
        let roster = &self.roster;
        self.gauge.begin_anew(|thread| roster.has(thread));
        self.roster.begin_anew();
        for each in &self.loops {
            let mine = seats.remove(&each.cpu).unwrap_or_default();
            tracing::info!(cpu = each.cpu, vcpus = mine.len(), "vCPUs seated");
            // One that has ended is found out in the next line of `serve`.
            let _ = each.orders.send(Order::Seats(mine));
        }
        true
    }

    /// Tells them what bells there are, if that changed, or they have new seats.
    fn give_bells(&mut self, seated: bool) {
        if !self.chime.look(self.config) && !seated {
            return;
        }
        for each in &self.loops {
            if let Some(order) = self.chime.get() {
                // One that has ended is found out in `serve`.
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
                    tracing::warn!(vm = self.roster.name(thread), "{why}");
                    self.roster.complain(thread, why);
                }
                Note::NoRoom(thread) => {
                    let why = "no slots are left for its deadline; give it a longer one";
                    tracing::warn!(vm = self.roster.name(thread), "{why}");
                    self.roster.complain(thread, why);
                }
                Note::StoodStill(time) => {
                    let ms = time.0 / 1_000_000;
                    tracing::warn!(cpu = report.cpu, ms, "scheduling stood still and goes on");
                }
            }
        }
        self.gauge.add(report);
    }

    /// Without a watchdog nothing is lent.
    fn guard(&mut self) {
        if self.watchdog.as_mut().is_some_and(Watchdog::is_alive) {
            return;
        }
        self.lending.store(false, Ordering::Relaxed);
        self.watchdog = match Watchdog::start((self.command)()) {
            Ok(watchdog) => {
                tracing::warn!(watchdog = watchdog.pid(), "the watchdog died; here is another");
                self.lending.store(true, Ordering::Relaxed);
                Some(watchdog)
            }
            Err(error) => {
                tracing::error!(%error, "no watchdog: nothing is lent until there is one");
                None
            }
        };
    }

    fn state(&self) -> State {
        State {
            pid: std::process::id(),
            watchdog: self.watchdog.as_ref().map_or(0, Watchdog::pid),
            cpus: self.config.cpus.iter().map(|cpu| self.gauge.cpu(*cpu)).collect(),
            vms: self.roster.states(self.config, &self.gauge),
        }
    }

    /// Gives everything back.
    fn stop(&mut self) -> Result<(), ServiceError> {
        let mut ended = Ok(());
        for Loop { cpu, orders, thread } in self.loops.drain(..) {
            let _ = orders.send(Order::Stop);
            if let Ok(Err(source)) = thread.join() {
                ended = Err(ServiceError::Boost { cpu, source });
            }
        }
        for at in 0..self.config.cpus.len() {
            let _ = std::fs::remove_file(self.config.run_dir.join(format!("{SOCKET_PREFIX}{at}")));
        }
        // Before the processors: who has a deadline keeps all of them.
        self.roster.release();
        Before::load(&self.config.run_dir).put_back();
        // The watchdog removes the table when this process is gone.
        let _ = std::fs::remove_file(self.config.run_dir.join(STATE));
        tracing::info!("all vCPUs given back");
        ended
    }
}

/// Entries there are for vCPUs.
const SLOTS: usize = MAX_ENTRIES;
