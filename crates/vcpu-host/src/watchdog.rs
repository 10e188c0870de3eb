//! The process that takes back what a dead or stalled scheduler lent.
//!
//! **Problem.** A guest that computes and has `SCHED_FIFO` leaves its processor to nobody; without
//! help a host whose scheduler was killed at the wrong moment stays that way. **Rule.** A process
//! of its own, above all that is lent and above the scheduler, waits on the scheduler's pidfd and
//! looks every [`LOOK`] whether each scheduling thread has polled in the last [`STALL`]. If it is
//! dead, every thread and cgroup is put back as it was found; if it stalls, every thread is, and it
//! may lend again when it moves on. Either way no thread keeps a real-time policy for 10 ms.
//!
//! **Why a process.** A thread dies with the scheduler. **Why real-time.** In the fair class it
//! came to run after 951 ms, beside one guest with a lease; here after 0.13 ms.

use std::io;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::signal::SigSet;
use penstock_units::Nanos;

use crate::clock;
use crate::lease::LeaseTable;
use crate::policy::{self, Policy};
use crate::process::Watched;
use crate::restore::{self, BEFORE, Before, LEASES};

/// Priority of the watchdog: above scheduling threads, which are above what they lend.
pub const PRIORITY: u8 = 95;
/// Between two looks at the heartbeats.
pub const LOOK: Duration = Duration::from_millis(2);
/// A scheduling thread that has not polled for so long is stalled: twelve polls.
pub const STALL: Nanos = Nanos::from_millis(6);
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
    println!("watching {}", owner.pid);
    let mut stalled = false;
    while !scheduler.dead_within(LOOK)? {
        let now = clock::now();
        let beats = table.beats()?;
        let late = |beat: &Nanos| *beat > Nanos(0) && *beat + STALL < now;
        match beats.iter().position(late) {
            Some(at) => {
                // Again at each look: it may have lent once more before it stood still.
                let taken = restore::take_back(&table, false)?;
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
    let taken = restore::take_back(&table, false)?;
    Before::load(dir).put_back();
    let _ = std::fs::remove_file(dir.join(LEASES));
    let _ = std::fs::remove_file(dir.join(BEFORE));
    tell(Sight::Dead { taken });
    Ok(())
}

/// A watchdog of ours.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    // Closing it would end the watchdog at its next line.
    _says: ChildStdout,
}

impl Watchdog {
    /// Starts `command`, which is to call [`watch`], and waits until it watches.
    ///
    /// # Errors
    /// It cannot be started, or does not watch: what it said is on standard error.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let Some(says) = child.stdout.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let mut line = [0; 64];
        let said = if readable(&says) { nix::unistd::read(&says, &mut line)? } else { 0 };
        if said > 0 {
            return Ok(Self { child, _says: says });
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

    /// Whether it still watches. If it does not, nothing may be lent.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

fn readable(says: &ChildStdout) -> bool {
    use std::os::fd::AsFd as _;
    let mut fds = [PollFd::new(says.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(READY_WITHIN).unwrap_or(PollTimeout::MAX);
    loop {
        match poll(&mut fds, limit) {
            Err(nix::errno::Errno::EINTR) => {}
            other => return matches!(other, Ok(n) if n > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_that_does_not_watch_is_none() {
        let mut exits = Command::new("true");
        exits.arg("x");
        let error = Watchdog::start(exits).unwrap_err().to_string();
        assert!(error.contains("CAP_SYS_NICE"), "{error}");
        assert!(watch(Path::new("/nonexistent"), |_| ()).is_err());
    }
}
