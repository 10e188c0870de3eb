//! Reads the machine's clocks. Guests, generators and experiments read clocks only through this
//! module.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use penstock_units::{Nanos, utc_date};

/// Reads the machine's monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a program that drives real ports needs the real clock"
)]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Converts `d` to nanoseconds, at most `u64::MAX` (584 years).
#[must_use]
pub fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits until `fd` is readable or hung up, and then returns true. Returns false if `limit` passes
/// first. If `fd` is `None`, this function pauses for `limit`. Callers use the pause, for example,
/// between two attempts to reach a peer's socket. The limit is rounded down to whole milliseconds,
/// so a limit below one millisecond is no pause; see [`pause`].
pub fn wait_readable(fd: Option<BorrowedFd<'_>>, limit: Duration) -> bool {
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    match fd {
        Some(fd) => {
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            matches!(poll(&mut fds, timeout), Ok(n) if n > 0)
        }
        None => {
            // A signal may shorten the pause. That does no harm, because every caller has its own
            // deadline.
            let _ = poll(&mut [], timeout);
            false
        }
    }
}

/// Gives up the core for `limit`, which may be below a millisecond. A signal may shorten the pause.
pub fn pause(limit: Duration) {
    let limit = TimeSpec::from_duration(limit);
    let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::empty(), &limit);
}

/// Current time in nanoseconds since 1970, as in the kernel's frame time stamps.
#[must_use]
pub fn since_1970() -> Nanos {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME);
    let now = now.map_or(Duration::ZERO, Duration::from);
    Nanos(nanos(now))
}

/// Current date and time in UTC, to the second, for example `2026-11-21T14:00:00Z`.
#[must_use]
pub fn utc() -> String {
    date_text(since_1970().0 / 1_000_000_000)
}

/// Converts seconds since 1970 to a date and a time.
fn date_text(seconds: u64) -> String {
    let (year, month, day) = utc_date(seconds);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_may_be_shorter_than_a_millisecond_and_is_not_skipped() {
        let (began, limit) = (now(), Duration::from_micros(400));
        pause(limit);
        assert!(began.elapsed() >= limit);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date_text(0), "1970-01-01T00:00:00Z");
        assert_eq!(date_text(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(date_text(1_795_269_600), "2026-11-21T14:00:00Z");
    }
}
