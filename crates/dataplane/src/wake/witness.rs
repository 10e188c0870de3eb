//! The witness tells a stop of the whole process from a sleep of one thread.
//!
//! A process that is stopped by SIGSTOP, the cgroup freezer or a debugger sleeps in all threads. A
//! worker that continues after such a stop cannot know from its own thread whether it was stopped,
//! or whether a peer's memory blocked it ([`super::stall`]): the kernel counts both as the same
//! kind of wait. The witness is a thread that uses no peer's memory. It records the time every
//! [`PERIOD_MS`] ms. If the witness recorded no time during the worker's sleep, the whole process
//! was stopped, and no port is to blame.
//!
//! The witness costs one hundred wake-ups per second on a core of the control threads. It starts
//! with the first port of a VM, and runs until the process ends.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::io;
use std::sync::{Mutex, PoisonError};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use penstock_units::Nanos;

use super::interrupter::PERIOD_MS;
use super::stall::{GAP, now};
use crate::confine::{Role, confine};

/// The times that the witness of this process recorded.
pub(super) static WITNESS: Witness = Witness::new();

/// Times that the witness recorded, in nanoseconds of the monotonic clock. Readers may be signal
/// handlers.
#[derive(Debug)]
pub(super) struct Witness {
    /// The last recorded time, or 0 if the witness does not run.
    last: AtomicU64,
    /// Start and end of the last silence: a time in which the witness should have recorded and did
    /// not.
    from: AtomicU64,
    to: AtomicU64,
}

impl Witness {
    pub(super) const fn new() -> Self {
        Self { last: AtomicU64::new(0), from: AtomicU64::new(0), to: AtomicU64::new(0) }
    }

    /// Records that the process runs at time `now`.
    pub(super) fn record(&self, now: u64) {
        let last = self.last.load(Ordering::Relaxed);
        if last != 0 && now.saturating_sub(last) > GAP {
            self.from.store(last, Ordering::Relaxed);
            self.to.store(now, Ordering::Relaxed);
        }
        // Whoever reads the new time also reads the silence before it.
        self.last.store(now, Ordering::Release);
    }

    /// Returns the nanoseconds between `from` and `to` in which the witness was silent. The time
    /// `to` is the present: a silence may not have ended yet. Returns 0 if the witness does not
    /// run.
    pub(super) fn silent(&self, from: u64, to: u64) -> u64 {
        let last = self.last.load(Ordering::Acquire);
        if last == 0 {
            return 0;
        }
        let within = |start: u64, end: u64| end.min(to).saturating_sub(start.max(from));
        let open = if to.saturating_sub(last) > GAP { within(last, to) } else { 0 };
        let (start, end) = (self.from.load(Ordering::Relaxed), self.to.load(Ordering::Relaxed));
        // If the witness records at this moment, the silence that ends now is already in `open`.
        let closed = if end <= last { within(start, end) } else { 0 };
        open + closed
    }
}

/// Starts the witness of this process, if it does not run yet. The calling thread must not be
/// pinned to a worker's core, because the witness inherits the thread's cores.
///
/// # Errors
/// Returns an error if the kernel refuses another thread.
pub(super) fn start() -> io::Result<()> {
    static RUNS: Mutex<bool> = Mutex::new(false);
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if !*runs {
        std::thread::Builder::new().name("penstock-alive".to_owned()).spawn(witness)?;
        *runs = true;
    }
    Ok(())
}

fn witness() {
    if let Err(error) = confine(Role::Witness) {
        tracing::error!(
            %error,
            "a stop of this process may be blamed on a VM: the thread that notices such stops \
             cannot give up its privileges"
        );
        return;
    }
    let period = TimeSpec::from_duration(Duration::from_nanos(Nanos::from_millis(PERIOD_MS).0));
    loop {
        WITNESS.record(now());
        let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::empty(), &period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_silence_is_known_before_and_after_it_ends() {
        let witness = Witness::new();
        assert_eq!(witness.silent(0, 1_000 * MS), 0, "no witness runs");
        witness.record(100 * MS);
        witness.record(110 * MS);
        assert_eq!(witness.silent(100 * MS, 124 * MS), 0, "the next record is not due for long");
        assert_eq!(witness.silent(100 * MS, 310 * MS), 200 * MS);
        assert_eq!(witness.silent(250 * MS, 310 * MS), 60 * MS, "only the time in question");
        witness.record(311 * MS);
        assert_eq!(witness.silent(105 * MS, 312 * MS), 201 * MS);
        witness.record(321 * MS);
        assert_eq!(witness.silent(311 * MS, 325 * MS), 0, "a silence of earlier");
        // The second silence is not over yet.
        assert_eq!(witness.silent(300 * MS, 400 * MS), 11 * MS + 79 * MS);
    }
}
