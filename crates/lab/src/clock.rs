//! The lab's one clock read: experiments and generators run on the machine's monotonic clock.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Reads the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the lab is an outermost layer: it drives real ports"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds of `d`, saturating at `u64::MAX` (584 years).
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits until `fd` is readable (or hung up) or `limit` has passed; true when there is something.
/// With no descriptor it only waits: the pause between two attempts to reach a peer's socket.
pub(crate) fn wait_readable(fd: Option<BorrowedFd<'_>>, limit: Duration) -> bool {
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    match fd {
        Some(fd) => {
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            matches!(poll(&mut fds, timeout), Ok(n) if n > 0)
        }
        None => {
            // An interrupted pause is a shorter pause; every caller has its own deadline.
            let _ = poll(&mut [], timeout);
            false
        }
    }
}
