//! Reads the machine's clocks. Guests, generators and experiments read clocks only through this
//! module.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use penstock_units::Nanos;

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
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME);
    date_text(now.map_or(0, |now| now.tv_sec()))
}

/// Converts seconds since 1970 to a date (<https://howardhinnant.github.io/date_algorithms.html>).
fn date_text(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
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
