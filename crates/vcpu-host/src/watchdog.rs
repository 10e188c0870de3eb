//! The watchdog: a process that takes back the loans of a dead or stalled scheduler.
//!
//! # Problem
//! A computing guest with `SCHED_FIFO` leaves its processor to no other thread. A host whose
//! scheduler was killed at the wrong moment would stay in that state.
//!
//! # Approach
//! The watchdog is a separate process, with a priority above the scheduler and all loans. It waits
//! on the scheduler's pidfd, and checks every [`LOOK`] whether a scheduling thread is late for its
//! next poll by [`STALL`]. While a vCPU has a loan from this thread, the thread's next poll is due
//! at the next slot. If the scheduler is dead, every thread and cgroup is restored. If a scheduling
//! thread stalls, every thread to which it lends is restored. The scheduling thread may lend again
//! when it continues. In both cases every thread loses its real-time policy within 10 ms. The
//! exception is a reservation. If the scheduler only stalls, reservations stay, because the kernel
//! bounds them.
//!
//! # Killed but not yet dead
//! The pidfd becomes readable when the last thread of a process is gone. The process's first thread
//! may have to wait behind the guest that has the loan. If a scheduling thread is late by
//! [`DOUBT`], the watchdog therefore checks whether the process was killed: a thread with SIGKILL
//! pending runs no more code.
//!
//! # Why a real-time process
//! A thread of the scheduler would die with it. In the fair class, beside one guest with a lease,
//! the watchdog ran only after 951 ms. As a real-time process it ran after 0.13 ms.

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

/// Priority of the watchdog. It is above that of the scheduling threads, which is above that of
/// their loans.
pub const PRIORITY: u8 = 95;
/// Time between two looks at the heartbeats.
pub const LOOK: Duration = Duration::from_millis(2);
/// Delay of a poll at which a scheduling thread counts as stalled: twelve slices.
pub const STALL: Nanos = Nanos::from_millis(6);
/// Delay of a poll at which a scheduling thread may be dead: two slices. The watchdog then checks
/// whether the scheduler was killed.
pub const DOUBT: Nanos = Nanos::from_millis(1);
/// Line that the watchdog prints when it watches; the process id follows.
const WATCHING: &str = "watching process";
/// Time limit for a started watchdog until it watches.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// Event that a watchdog logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A scheduling thread has not polled in time.
    Stalled {
        /// Number of the scheduling thread.
        at: usize,
        /// Number of threads from which a real-time policy was taken.
        taken: usize,
    },
    /// All scheduling threads poll again.
    Moves,
    /// The scheduler is dead.
    Dead {
        /// Number of threads from which a real-time policy was taken.
        taken: usize,
    },
}

/// Watches the scheduler that made the table in `dir` until it is dead, and prints a line when it
/// starts to watch. This is the main function of the watchdog process.
///
/// # Errors
/// The table does not exist, its scheduler is dead, or the process may not have a real-time policy.
pub fn watch(dir: &Path, mut tell: impl FnMut(Sight)) -> io::Result<()> {
    let table = LeaseTable::open(&dir.join(LEASES))?;
    let owner = table.owner()?;
    let scheduler = Watched::open(owner.pid)?;
    if !restore::is_alive(owner) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // The signal that ends the scheduler must not end its watchdog; the same Ctrl-C reaches both.
    SigSet::all().thread_block()?;
    // If a page had to be read from disk, the watchdog would act too late. If pages cannot be
    // locked, the watchdog still runs.
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
                // The loans are taken back at each check, because the thread may have lent once
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

/// Takes back the loans of stalled scheduling threads. The other threads continue.
fn take_of_stalled(
    table: &LeaseTable,
    beats: &[Nanos],
    stands_still: impl Fn(&Nanos) -> bool,
) -> io::Result<usize> {
    let still: Vec<usize> = (0..beats.len()).filter(|at| stands_still(&beats[*at])).collect();
    // If a stalled thread wakes up meanwhile, it notices in its next poll that its earlier loans
    // were taken. The second note covers loans that it made in that poll.
    still.iter().try_for_each(|at| table.note_taking(*at))?;
    let loops = still.iter().fold(0, |loops, at| loops | 1 << at);
    let taken = restore::take_back(table, Reach::LentBy(loops));
    still.iter().try_for_each(|at| table.note_taking(*at))?;
    taken
}

/// A running watchdog process.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    watched: Watched,
    // Standard output of the watchdog. It stays open, because the watchdog would end at its next
    // line otherwise.
    _says: ChildStdout,
}

impl Watchdog {
    /// Starts `command`, which must call [`watch`], and waits until it watches. The directory stays
    /// taken until the watchdog has ended.
    ///
    /// # Errors
    /// The watchdog cannot be started or does not watch. The watchdog's message is on standard
    /// error.
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
            "the watchdog does not watch, so nothing is lent; its own message says why (run as \
             root or with CAP_SYS_NICE)",
        ))
    }

    /// Process id of the watchdog.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Descriptor that is readable as soon as the watchdog is dead.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    /// Whether the watchdog still watches. If not, nothing may be lent.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// Whether the watchdog prints in time that it watches. Other output is ignored.
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
        let dir = std::env::temp_dir().join(format!("penstock-watchdog-{}", std::process::id()));
        let taken = RunDir::take(&dir).unwrap();
        let error = Watchdog::start(exits, &taken).unwrap_err().to_string();
        assert!(error.contains("CAP_SYS_NICE"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(watch(Path::new("/nonexistent"), |_| ()).is_err());
    }
}
