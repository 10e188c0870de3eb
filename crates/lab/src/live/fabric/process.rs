//! A program of a live fabric that an experiment kills and starts again.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::Signal;

use crate::penstock::penstock;
use penstock_guest::bed::Guard;
use penstock_guest::bed::process::Daemon;

/// Maximum time until a killed process has ended.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Locks a mutex, also after a thread has panicked.
pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A `penstock` process, with all that is needed to start it again.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    /// Directory of the log files. Each start has its own log file.
    logs: PathBuf,
    arguments: Vec<String>,
    guard: Guard,
    starts: u32,
    /// The running process. `None` after a kill.
    daemon: Option<Daemon>,
}

impl Process {
    /// Starts `penstock` with `arguments`.
    pub fn start(
        name: &str,
        logs: &Path,
        arguments: Vec<String>,
        guard: &Guard,
    ) -> anyhow::Result<Self> {
        let (name, logs) = (name.to_owned(), logs.to_owned());
        let guard = guard.clone();
        let mut process = Self { name, logs, arguments, guard, starts: 0, daemon: None };
        process.start_again()?;
        Ok(process)
    }

    /// Starts the process again after a kill. Does nothing if the process runs.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        if self.daemon.is_some() {
            return Ok(());
        }
        self.starts += 1;
        let log = self.logs.join(format!("{}-{}.log", self.name, self.starts));
        let mut command = penstock()?;
        command.args(&self.arguments);
        self.daemon = Some(Daemon::start(&mut command, log, &self.guard)?);
        Ok(())
    }

    /// Kills the process with SIGKILL, and waits until it has ended. Does nothing if the process
    /// does not run.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        let name = &self.name;
        daemon.signal(Signal::SIGKILL).with_context(|| format!("killing {name}"))?;
        daemon.await_end(END_LIMIT).map(drop)
    }

    /// Returns an error if the process has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let name = &self.name;
        self.daemon.as_mut().map_or(Ok(()), |daemon| {
            let checked = daemon.check();
            checked.with_context(|| name.clone())
        })
    }

    /// Waits until a file of the process exists, such as its socket.
    pub fn await_file(&mut self, file: &Path, limit: Duration) -> anyhow::Result<()> {
        let daemon = self.daemon.as_mut();
        daemon.with_context(|| format!("{} does not run", self.name))?.await_file(file, limit)
    }
}
