//! The watchdog, a process that restores vCPU threads if their scheduler is dead or stalled. The
//! scheduler gives a temporary real-time policy to a vCPU's thread.
//!
//! # Problem
//! While a busy guest has the policy `SCHED_FIFO`, no thread of the fair class runs on the guest's
//! processor. If the scheduler is killed while a guest has `SCHED_FIFO`, the guest keeps
//! `SCHED_FIFO`.
//!
//! # Approach
//! The watchdog is a separate process, with a priority above the scheduler and all temporary
//! real-time policies. The watchdog waits on the scheduler's pidfd. At every interval [`LOOK`], the
//! watchdog checks whether a scheduling thread is late for its next poll by [`STALL`]. While a vCPU
//! has a temporary real-time policy, its scheduling thread polls in every slot. If the scheduler is
//! dead, the watchdog restores every thread and cgroup. If a scheduling thread stalls, the watchdog
//! restores every thread with a temporary real-time policy of that scheduling thread. After the
//! stall, the scheduling thread may lend real-time policies again. After a death or a stall of the
//! scheduler, the restored threads lose their real-time policies within 10 ms. If the scheduler
//! only stalls, reservations stay, because the kernel limits their run time.
//!
//! # Killed but not yet dead
//! The scheduler's pidfd becomes readable when the scheduler's last thread has exited. The first
//! thread of a killed scheduler may have to wait behind a guest with a temporary real-time policy
//! before it can exit. The watchdog also checks whether the scheduler was killed if a scheduling
//! thread is late by [`DOUBT`]. A thread with a pending SIGKILL runs no more code.
//!
//! # Why a real-time process
//! A watchdog thread in the scheduler would die with the scheduler. A watchdog in the fair class,
//! on the processor of a guest with a temporary real-time policy, ran only after 951 ms. A watchdog
//! with a real-time policy ran after 0.13 ms.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::signal::SigSet;
use penstock_units::Nanos;

use crate::clock;
use crate::lease::LeaseTable;
use crate::policy::{self, Policy};
use crate::process::{self, Watched};
use crate::restore::{self, LEASES, Reach};
use crate::run_dir::RunDir;

/// Real-time priority of the watchdog, above the priorities of the scheduling threads and of their
/// temporary real-time policies.
pub const PRIORITY: u8 = 95;
/// Interval between two checks of the scheduling threads' heartbeats.
pub const LOOK: Duration = Duration::from_millis(2);
/// Delay of a scheduling thread's poll (twelve slices of 0.5 ms) from which the thread counts as
/// stalled.
pub const STALL: Nanos = Nanos::from_millis(6);
/// Delay of a scheduling thread's poll (two slices of 0.5 ms) from which the watchdog checks
/// whether the scheduler was killed.
pub const DOUBT: Nanos = Nanos::from_millis(1);
/// Beginning of the line that the watchdog prints as soon as it watches the scheduler. In the
/// watchdog's line, the process id of the scheduler follows the text [`WATCHING`].
const WATCHING: &str = "watching process";
/// Time limit from the start of a watchdog process until it watches the scheduler.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// Event that the watchdog reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A scheduling thread is late by [`STALL`], and the watchdog has ended its temporary real-time
    /// policies.
    Stalled {
        /// Number of the stalled scheduling thread.
        at: usize,
        /// Number of vCPU threads that lost a real-time policy.
        taken: usize,
    },
    /// All scheduling threads poll in time again.
    Moves,
    /// The scheduler is dead.
    Dead {
        /// Number of vCPU threads that lost a real-time policy.
        taken: usize,
    },
}

/// Watches the scheduler that created the table in `dir` until the scheduler is dead. The function
/// prints a line to standard output as soon as it watches the scheduler. The watchdog process runs
/// only the function `watch`.
///
/// # Errors
/// Returns an error if the table does not exist, if its scheduler is dead, or if the process may
/// not have a real-time policy.
pub fn watch(dir: &Path, mut tell: impl FnMut(Sight)) -> io::Result<()> {
    let table = LeaseTable::open(&dir.join(LEASES))?;
    let owner = table.owner()?;
    let scheduler = Watched::open(owner.pid)?;
    if !restore::is_alive(owner) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // A signal that ends the scheduler must not end its watchdog, and Ctrl-C sends the same signal
    // to both processes.
    SigSet::all().thread_block()?;
    // If the kernel had to read a page from disk, the watchdog would act too late. If locking
    // fails, the watchdog still runs.
    let _ = mlockall(MlockAllFlags::MCL_CURRENT);
    policy::set(0, Policy::Fifo { priority: PRIORITY }).map_err(io::Error::other)?;
    println!("{WATCHING} {}", owner.pid);
    let (mut stalled, mut taken) = (false, 0);
    while !scheduler.dead_within(LOOK)? {
        let now = clock::now();
        let beats = table.beats()?;
        let by = |late: Nanos| move |beat: &Nanos| *beat > Nanos(0) && *beat + late < now;
        if beats.iter().any(by(DOUBT)) && process::is_killed(owner.pid) {
            taken += restore::take_back(&table, Reach::All)?;
            continue;
        }
        match beats.iter().position(by(STALL)) {
            Some(at) => {
                // Each check ends the temporary policies, because the thread may have lent once
                // more before it stalled.
                let taken = take_of_stalled(&table, &beats, by(STALL))?;
                if !stalled || taken > 0 {
                    tell(Sight::Stalled { at, taken });
                }
                stalled = true;
            }
            None if stalled => {
                stalled = false;
                tell(Sight::Moves);
            }
            None => {}
        }
    }
    taken += restore::take_back(&table, Reach::All)?;
    restore::put_back_in(dir, &table);
    tell(Sight::Dead { taken });
    Ok(())
}

/// Ends the temporary real-time policies of stalled scheduling threads. The function does not end
/// temporary real-time policies of scheduling threads that are not stalled.
fn take_of_stalled(
    table: &LeaseTable,
    beats: &[Nanos],
    stands_still: impl Fn(&Nanos) -> bool,
) -> io::Result<usize> {
    let still: Vec<usize> = (0..beats.len()).filter(|at| stands_still(&beats[*at])).collect();
    // If a stalled thread continues, it notices in its next poll that its temporary policies were
    // ended. The second note covers policies that the thread lent in that poll.
    still.iter().try_for_each(|at| table.note_taking(*at))?;
    let loops = still.iter().fold(0, |loops, at| loops | 1 << at);
    let taken = restore::take_back(table, Reach::LentBy(loops));
    still.iter().try_for_each(|at| table.note_taking(*at))?;
    taken
}

#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    watched: Watched,
    // Standard output of the watchdog, which must stay open, because otherwise the watchdog would
    // end when it prints its next line.
    _says: ChildStdout,
}

impl Watchdog {
    /// Starts `command`, which must call [`watch`], and waits until the new process watches the
    /// scheduler. The run directory stays locked until the watchdog has ended.
    ///
    /// # Errors
    /// Returns an error if the watchdog cannot be started or does not watch. The watchdog's own
    /// message is on standard error.
    pub fn start(mut command: Command, dir: &RunDir) -> io::Result<Self> {
        let mut child = command.stdin(dir.lock()?).stdout(Stdio::piped()).spawn()?;
        let watched = Watched::open(child.id());
        let Some(says) = child.stdout.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
        if let Ok(watched) = watched
            && hears(&says)
        {
            return Ok(Self { child, watched, _says: says });
        }
        let _ = child.kill();
        let _ = child.wait();
        Err(io::Error::other(
            "the watchdog did not start, so no vCPU gets a real-time slice; run as root \
             or with CAP_SYS_NICE, or see the watchdog's own message",
        ))
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Descriptor that becomes readable as soon as the watchdog is dead.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    /// Whether the watchdog still runs. Without a watchdog, the scheduler may not lend real-time
    /// policies.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// Waits for the watchdog's first line and ignores other output. Returns whether the watchdog
/// printed the line within [`READY_WITHIN`].
fn hears(says: &ChildStdout) -> bool {
    let begin = clock::now();
    let (mut said, mut part) = (Vec::new(), [0; 256]);
    loop {
        let limit = READY_WITHIN.saturating_sub(since(begin));
        let mut fds = [PollFd::new(says.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)) {
            Err(Errno::EINTR) => continue,
            Ok(ready) if ready > 0 => {}
            _ => return false,
        }
        match nix::unistd::read(says, &mut part) {
            Ok(length) if length > 0 => said.extend_from_slice(&part[..length]),
            _ => return false,
        }
        if said.windows(WATCHING.len()).any(|words| words == WATCHING.as_bytes()) {
            return true;
        }
    }
}

fn since(begin: Nanos) -> Duration {
    Duration::from_nanos(clock::now().saturating_sub(begin).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_that_does_not_watch_is_none() {
        let mut exits = Command::new("echo");
        exits.arg("something else");
        let dir = penstock_testing::temp_dir();
        let taken = RunDir::take(&dir.join("run")).unwrap();
        let error = Watchdog::start(exits, &taken).unwrap_err().to_string();
        assert!(error.contains("CAP_SYS_NICE"), "{error}");
        assert!(watch(Path::new("/nonexistent"), |_| ()).is_err());
    }
}
