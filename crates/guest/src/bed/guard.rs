//! Implements the guard, a process that removes everything that a measurement created.
//!
//! # Problem
//! A measurement starts daemons, reserves hugepages, and creates directories and network
//! namespaces. The measurement must leave none of its objects behind, even after a signal, an error
//! or `kill -9`.
//!
//! # Approach
//! A measurement starts a second process (the guard process), which cleans up after the
//! measurement. Each object that the guard process must remove, for example a directory or a
//! process, is called a *ward*. The measurement reports each object to the guard process over a
//! pipe, directly before or after it creates the object. When the pipe closes, for whatever reason,
//! the guard process removes all reported objects in reverse order. The guard process also removes
//! the objects after a successful run, so every run tests the removal. The guard process identifies
//! a process by its id *and* its start time, so it does not kill another process that reuses the
//! id.

use std::fmt;
use std::io::{BufRead, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::clock;

/// Path of the running program. `/proc/self/exe` refers to the running program even if the
/// program's file was replaced.
pub const THIS_PROGRAM: &str = "/proc/self/exe";
/// Name of the subcommand with which a measurement starts its own program a second time, as the
/// guard process. The subcommand `guard` calls [`watch`].
pub const VERB: &str = "guard";
/// Kernel setting with the number of 2 MiB hugepages.
pub(super) const HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";
/// File with the nice value of this process's autogroup. An autogroup contains all processes of a
/// session (`sched(7)`).
const AUTOGROUP: &str = "/proc/self/autogroup";
/// Time that a process has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Time between two checks of whether a process has ended.
const LOOK: Duration = Duration::from_millis(10);

/// An object (for example a process, a directory or a namespace) that the guard process removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ward {
    Process {
        /// Process id of the process that the guard process ends.
        pid: i32,
        /// Start time of the process in clock ticks since boot.
        start: u64,
    },
    /// A directory, which the guard process removes with its content.
    Directory(PathBuf),
    /// Name of a network namespace of `ip netns`.
    Netns(String),
    /// Number of 2 MiB hugepages that the measurement added.
    Hugepages(u64),
    /// Nice value to which the guard process restores the autogroup: the nice value before the
    /// measurement.
    Autogroup(i32),
}

impl fmt::Display for Ward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, start } => write!(f, "process {pid} {start}"),
            Self::Directory(path) => write!(f, "directory {}", path.display()),
            Self::Netns(name) => write!(f, "netns {name}"),
            Self::Hugepages(pages) => write!(f, "hugepages {pages}"),
            Self::Autogroup(nice) => write!(f, "autogroup {nice}"),
        }
    }
}

impl FromStr for Ward {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let (kind, rest) = line.split_once(' ').context("a word is missing")?;
        Ok(match kind {
            "process" => {
                let (pid, start) = rest.split_once(' ').context("the start is missing")?;
                Self::Process { pid: pid.parse()?, start: start.parse()? }
            }
            "directory" => Self::Directory(rest.into()),
            "netns" => Self::Netns(rest.to_owned()),
            "hugepages" => Self::Hugepages(rest.parse()?),
            "autogroup" => Self::Autogroup(rest.parse()?),
            other => bail!("unknown kind of object to remove: `{other}`"),
        })
    }
}

/// Kills all processes in a network namespace of the measurement. Servers may leave processes
/// behind that are no longer children of the measurement.
pub fn end_inside(netns: &str) {
    let Ok(told) = Command::new("ip").args(["netns", "pids", netns]).output() else { return };
    for pid in String::from_utf8_lossy(&told.stdout).lines().filter_map(|pid| pid.parse().ok()) {
        // If the process has ended meanwhile, the signal fails, which does no harm.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

impl Ward {
    /// Makes an object for the guard process from a running process, which the guard process ends.
    ///
    /// # Errors
    /// Returns an error if no process has the id `pid`.
    pub fn process(pid: u32) -> anyhow::Result<Self> {
        let pid = i32::try_from(pid)?;
        let start = start_of(pid).with_context(|| format!("process {pid} has already ended"))?;
        Ok(Self::Process { pid, start })
    }

    fn take_down(&self) -> anyhow::Result<()> {
        match self {
            Self::Process { pid, start } => end_process(*pid, *start),
            Self::Directory(path) => match std::fs::remove_dir_all(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
                _ => Ok(()),
            },
            Self::Netns(name) => {
                if Path::new("/run/netns").join(name).exists() {
                    end_inside(name);
                    let status = Command::new("ip").args(["netns", "del", name]).status()?;
                    anyhow::ensure!(status.success(), "ip netns del: {status}");
                }
                Ok(())
            }
            Self::Hugepages(pages) => {
                let now: u64 = std::fs::read_to_string(HUGEPAGES)?.trim().parse()?;
                Ok(std::fs::write(HUGEPAGES, now.saturating_sub(*pages).to_string())?)
            }
            Self::Autogroup(nice) => Ok(std::fs::write(AUTOGROUP, nice.to_string())?),
        }
    }
}

/// Returns the start time of a process in clock ticks since boot; `None` if the process does not
/// exist or is a zombie.
fn start_of(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next() == Some("Z") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn end_process(pid: i32, start: u64) -> anyhow::Result<()> {
    let runs = || start_of(pid) == Some(start);
    let gone = |limit: Duration| {
        let since = clock::now();
        while runs() {
            if since.elapsed() >= limit {
                return false;
            }
            clock::wait_readable(None, LOOK);
        }
        true
    };
    if !runs() {
        return Ok(());
    }
    let id = Pid::from_raw(pid);
    // The process may end between the check and the signal, which does no harm.
    let _ = kill(id, Signal::SIGTERM);
    // A stopped process handles SIGTERM only after it continues.
    let _ = kill(id, Signal::SIGCONT);
    if gone(GRACE) {
        return Ok(());
    }
    let _ = kill(id, Signal::SIGKILL);
    anyhow::ensure!(gone(GRACE), "process {pid} did not end after SIGKILL");
    Ok(())
}

/// Runs the guard process. The function reads the objects to remove from a pipe until the pipe
/// ends, and then removes the objects.
///
/// # Errors
/// If an object cannot be removed, returns an error after all other objects were removed. The guard
/// process still removes all other objects.
pub fn watch(wards: impl BufRead) -> anyhow::Result<()> {
    let mut known = Vec::new();
    // A read error counts as the end of the pipe.
    for line in wards.lines().map_while(Result::ok) {
        match line.parse::<Ward>() {
            Ok(ward) => known.push(ward),
            Err(error) => eprintln!("guard: `{line}`: {error:#}"),
        }
    }
    let mut failed = 0;
    for ward in known.iter().rev() {
        if let Err(error) = ward.take_down() {
            eprintln!("the guard process cannot remove {ward}: {error:#}");
            failed += 1;
        }
    }
    anyhow::ensure!(failed == 0, "{failed} objects could not be removed");
    Ok(())
}

/// Handle of the guard process: the measuring process's end of the pipe to the guard process.
#[derive(Debug, Clone)]
pub struct Guard(Arc<Mutex<Option<Child>>>);

impl Guard {
    /// Starts the guard process, which is a second process of this program with the subcommand
    /// [`VERB`].
    ///
    /// # Errors
    /// Returns an error if the guard's process cannot be started.
    pub fn start() -> anyhow::Result<Self> {
        let child = Command::new(THIS_PROGRAM)
            .arg(VERB)
            // In its own process group, the guard survives Ctrl-C at the terminal and can clean up.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting the guard")?;
        Ok(Self(Arc::new(Mutex::new(Some(child)))))
    }

    /// Makes the guard process remove `ward` when the measurement ends.
    ///
    /// # Errors
    /// Returns an error if the guard process has ended. After an error the caller must stop the
    /// measurement, because no process would remove `ward`.
    pub fn take(&self, ward: &Ward) -> anyhow::Result<()> {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pipe = child.as_mut().and_then(|c| c.stdin.as_mut()).context("the guard is gone")?;
        writeln!(pipe, "{ward}").context("notifying the guard")
    }

    /// Makes the guard process remove all objects of the measurement, and waits until it has
    /// finished. A second call of `finish` has no effect.
    pub fn finish(&self) {
        let child = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut child) = child else { return };
        drop(child.stdin.take());
        // The guard itself reports what it could not remove.
        let _ = child.wait();
    }
}

/// Sets the nice value of this process's autogroup, which also contains all measured processes. The
/// guard process restores the old nice value. Returns false without any change if the kernel does
/// not support autogroups or does not permit the new nice value.
pub(super) fn weigh_session(guard: &Guard, nice: i32) -> anyhow::Result<bool> {
    // The format is "/autogroup-123 nice 0".
    let Ok(text) = std::fs::read_to_string(AUTOGROUP) else { return Ok(false) };
    let Some(before) = text.split_whitespace().last().and_then(|n| n.parse::<i32>().ok()) else {
        return Ok(false);
    };
    guard.take(&Ward::Autogroup(before))?;
    Ok(std::fs::write(AUTOGROUP, nice.to_string()).is_ok())
}

/// Starts a guard process and runs `work`. When this function returns, the guard process has
/// removed all objects that `work` created. If a signal ended `work`, the exit status is 128 plus
/// the signal's number.
///
/// # Errors
/// The outer result is an error if the guard process cannot be started. The inner result is the
/// result of `work`.
pub fn guarded(
    name: &'static str,
    work: impl FnOnce(&Guard) -> anyhow::Result<ExitCode> + Send + 'static,
) -> anyhow::Result<anyhow::Result<ExitCode>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("runtime cannot start")?;
    let guard = Guard::start()?;
    let own = guard.clone();
    let outcome = runtime.block_on(until_end(name, move || work(&own)));
    guard.finish();
    outcome
}

/// Runs `work` in a thread. Returns the result of `work`, or 128 plus the signal's number if a
/// signal arrives first.
async fn until_end(
    name: &'static str,
    work: impl FnOnce() -> anyhow::Result<ExitCode> + Send + 'static,
) -> anyhow::Result<anyhow::Result<ExitCode>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be handled")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be handled")?;
    let (done, ended) = oneshot::channel();
    // The work needs its own thread, because it polls. If a signal comes first, the thread ends
    // with the process.
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || done.send(work()))
        .context("starting a thread")?;
    tokio::select! {
        outcome = ended => Ok(outcome.context("its thread panicked")?),
        _ = interrupt.recv() => Ok(Ok(ExitCode::from(130))),
        _ = terminate.recv() => Ok(Ok(ExitCode::from(143))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wards_survive_the_pipe() {
        for ward in [
            Ward::Process { pid: 7, start: 123 },
            Ward::Directory("/tmp/a b".into()),
            Ward::Netns("x1".into()),
            Ward::Hugepages(400),
            Ward::Autogroup(-5),
        ] {
            assert_eq!(ward.to_string().parse::<Ward>().unwrap(), ward);
        }
        assert!("process 7".parse::<Ward>().is_err());
        assert!("volcano 7".parse::<Ward>().is_err());
    }

    #[test]
    fn a_stopped_process_and_a_directory_go_and_a_strangers_process_stays() {
        let dir = std::env::temp_dir().join(format!("penstock-guard-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("below")).unwrap();
        let mut mine = Command::new("sleep").arg("600").spawn().unwrap();
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let stop = Pid::from_raw(i32::try_from(mine.id()).unwrap());
        kill(stop, Signal::SIGSTOP).unwrap();
        let ward = Ward::process(mine.id()).unwrap();
        // A ward with the same id but another start time names a different process.
        let stranger = Ward::Process { pid: i32::try_from(other.id()).unwrap(), start: 1 };
        let told = format!("directory {}\n{stranger}\n{ward}\n", dir.display());
        watch(told.as_bytes()).unwrap();
        assert!(!dir.exists());
        assert!(other.try_wait().unwrap().is_none(), "the stranger runs on");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!mine.wait().unwrap().success());
    }
}
