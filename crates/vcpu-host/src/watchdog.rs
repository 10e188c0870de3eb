//! The process that takes back what a dead or stalled scheduler lent.
//!
//! **Problem.** A guest that computes and has `SCHED_FIFO` leaves its processor to nobody; without
//! help a host whose scheduler was killed at the wrong moment stays that way. **Rule.** A process
//! of its own, above all that is lent and above the scheduler, waits on the scheduler's pidfd and
//! looks every [`LOOK`] whether a scheduling thread is late for its next poll by [`STALL`]. While
//! something is lent that is the next slot. If it is
//! dead, every thread and cgroup is put back as it was found; of a scheduling thread that stalls,
//! every thread that it lent to is, and it may lend again when it moves on. Either way no thread
//! keeps a real-time policy for 10 ms, but for what is reserved while a scheduler only stalls: that
//! the kernel bounds.
//!
//! **Killed and not yet dead.** The pidfd tells of a process when the last of its threads is gone,
//! and its first may wait behind the very guest that was lent to. So when a scheduling thread is
//! late by [`DOUBT`] it is asked whether the process was killed: a thread with SIGKILL pending
//! does nothing any more.
//!
//! **Why a process.** A thread dies with the scheduler. **Why real-time.** In the fair class it
//! came to run after 951 ms, beside one guest with a lease; here after 0.13 ms.

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

/// Priority of the watchdog: above scheduling threads, which are above what they lend.
pub const PRIORITY: u8 = 95;
/// Between two looks at the heartbeats.
pub const LOOK: Duration = Duration::from_millis(2);
/// A scheduling thread that is late for its poll by so much is stalled: twelve slices.
pub const STALL: Nanos = Nanos::from_millis(6);
/// One that is late by so much may be dead: two slices. Then it is asked whether it was killed.
pub const DOUBT: Nanos = Nanos::from_millis(1);
/// What it says when it watches, and whom.
const WATCHING: &str = "watching process";
/// How long one that is started may take until it watches.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// What a watchdog tells its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A scheduling thread has not polled in time; so many threads were made fair again.
    Stalled {
        /// Its number.
        at: usize,
        /// Of how many threads a real-time policy was taken.
        taken: usize,
    },
    /// All poll again.
    Moves,
    /// The scheduler is dead; so many threads were made fair again.
    Dead {
        /// Of how many threads a real-time policy was taken.
        taken: usize,
    },
}

/// Watches the scheduler that made the table in `dir` until it is dead; says on standard output
/// when it watches. The whole life of the process it runs in.
///
/// # Errors
/// There is no table or its maker is dead, or the process may not have a real-time policy.
pub fn watch(dir: &Path, mut tell: impl FnMut(Sight)) -> io::Result<()> {
    let table = LeaseTable::open(&dir.join(LEASES))?;
    let owner = table.owner()?;
    let scheduler = Watched::open(owner.pid)?;
    if !restore::is_alive(owner) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // What ends the scheduler must not end who cleans up after it: the same Ctrl-C reaches both.
    SigSet::all().thread_block()?;
    // A page that has to come back from disk would come too late; without the right to lock, or
    // the room, it is still better than none.
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
                // Again at each look: it may have lent once more before it stood still.
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

/// Takes back what scheduling threads lent that stand still; the others go on.
fn take_of_stalled(
    table: &LeaseTable,
    beats: &[Nanos],
    stands_still: impl Fn(&Nanos) -> bool,
) -> io::Result<usize> {
    let still: Vec<usize> = (0..beats.len()).filter(|at| stands_still(&beats[*at])).collect();
    // One that wakes up meanwhile finds out in its next poll: what it lent before that poll, and,
    // said once more, what it lent in it.
    still.iter().try_for_each(|at| table.note_taking(*at))?;
    let loops = still.iter().fold(0, |loops, at| loops | 1 << at);
    let taken = restore::take_back(table, Reach::LentBy(loops));
    still.iter().try_for_each(|at| table.note_taking(*at))?;
    taken
}

/// A watchdog of ours.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    watched: Watched,
    // Closing it would end the watchdog at its next line.
    _says: ChildStdout,
}

impl Watchdog {
    /// Starts `command`, which is to call [`watch`], and waits until it watches. The directory is
    /// not free before it has ended.
    ///
    /// # Errors
    /// It cannot be started, or does not watch: what it said is on standard error.
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

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Readable as soon as it is dead.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    /// Whether it still watches. If it does not, nothing may be lent.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// Whether it says in time that it watches; what else is on its output is of no interest.
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
