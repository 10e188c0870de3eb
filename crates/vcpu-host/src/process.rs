//! Waits for the death of another process without polling.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::sys;

/// A process that this process watches (`pidfd_open(2)`). Unlike a process id, the pidfd always
/// refers to the same process.
#[derive(Debug)]
pub struct Watched {
    fd: OwnedFd,
}

impl AsFd for Watched {
    /// Descriptor that becomes readable when the watched process is dead.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Watched {
    ///
    /// # Errors
    /// Returns an error if no file descriptor is free, or if no process has the id `pid` (`ESRCH`).
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { fd: sys::pidfd_open(pid)? })
    }

    /// Waits until the watched process is dead or `limit` has passed. Returns whether the process
    /// is dead.
    ///
    /// # Errors
    /// Returns an error if `ppoll(2)` fails. A signal ends the wait without an error.
    pub fn dead_within(&self, limit: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, Some(TimeSpec::from_duration(limit)), None) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Whether SIGKILL is pending for the first thread of process `pid`. A pending SIGKILL means that
/// the process was killed, or that another thread ended the process. A first thread with a pending
/// SIGKILL has not run since the signal.
#[must_use]
pub fn is_killed(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status"));
    status.is_ok_and(|text| has_sigkill(&text))
}

/// Whether SIGKILL is set in `SigPnd` or `ShdPnd` of a `/proc/PID/status` text. `SigPnd` and
/// `ShdPnd` are hexadecimal masks with signal 1 as the lowest bit.
fn has_sigkill(status: &str) -> bool {
    let pending = |line: &str| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    let kill = 1_u64 << (libc::SIGKILL - 1);
    status.lines().filter_map(pending).any(|mask| mask & kill != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_pending_sigkill_is_read_from_either_mask() {
        let status = |own: &str, all: &str| format!("Pid:\t7\nSigPnd:\t{own}\nShdPnd:\t{all}\n");
        assert!(has_sigkill(&status("0000000000000100", "0000000000000000")));
        assert!(has_sigkill(&status("0000000000000000", "0000000000004100")));
        assert!(!has_sigkill(&status("0000000000004000", "0000000000000001")));
        assert!(!is_killed(std::process::id()) && !is_killed(u32::MAX));
    }

    #[test]
    fn a_process_lives_until_it_is_killed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let watched = Watched::open(child.id()).unwrap();
        assert!(!watched.dead_within(Duration::ZERO).unwrap());
        child.kill().unwrap();
        assert!(watched.dead_within(Duration::from_secs(10)).unwrap());
        let id = child.id();
        child.wait().unwrap();
        assert_eq!(Watched::open(id).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
