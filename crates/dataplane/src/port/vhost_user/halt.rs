//! Stops a port that made its worker sleep.
//!
//! # Problem
//! The process behind a port can make the worker sleep, by its call descriptor or by removing pages
//! under a page fault. Every other port then waits too (datapath rule 20).
//!
//! # Approach
//! The worker takes both rings of the queue pair out of use at once and signals the session's
//! alarm. It also shuts the connection down, because a session that waits for the rest of a
//! message, or for room to answer, does not see the alarm. The session ends with the reason and
//! takes the rings from all other workers.
//!
//! The port is admitted again after a pause. The first pause is a minute, and each further pause is
//! twice as long, at most an hour. After an hour without a further stop the pauses begin at a
//! minute again. A peer thus costs other ports at most one such sleep per minute, however many
//! rings it has.
//!
//! # Cost
//! A well-behaved peer causes no cost.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use nix::sys::eventfd::EventFd;
use penstock_units::Nanos;

use crate::worker::SleepCause;

const FIRST: Nanos = Nanos::from_secs(60);
/// The longest pause, and the time after which the pauses begin at [`FIRST`] again.
const LONGEST: Nanos = Nanos::from_secs(3_600);

/// Reason for which a port was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Halted {
    pub(super) cause: SleepCause,
    /// Time for which the worker slept.
    pub(super) slept: Nanos,
}

/// State that worker and session share about a stop.
#[derive(Debug)]
pub(super) struct Halt {
    /// Signalled when the port is stopped, and when a driver shortened a mapped file.
    pub(super) alarm: Arc<EventFd>,
    /// Duration of the sleep in nanoseconds. The lowest bit is set if the call descriptor was the
    /// cause. 0 means that the port is not stopped.
    why: AtomicU64,
    /// The session's connection.
    connection: Mutex<Option<UnixStream>>,
}

impl Halt {
    pub(super) const fn new(alarm: Arc<EventFd>) -> Self {
        Self { alarm, why: AtomicU64::new(0), connection: Mutex::new(None) }
    }

    /// Records a stop. Called by the worker. Neither the alarm, which only this process holds, nor
    /// a lock can block this call.
    pub(super) fn stop(&self, halted: Halted) {
        let by_call = u64::from(halted.cause == SleepCause::Call);
        self.why.store((halted.slept.0 << 1 | by_call).max(2), Ordering::Release);
        let _ = self.alarm.write(1);
        self.hang_up_at_once();
    }

    /// Ends a call in which the session waits for its peer. Called by the worker.
    pub(super) fn hang_up_at_once(&self) {
        // This step follows the alarm, because a session that holds the lock checks the alarm after
        // releasing the lock.
        fence(Ordering::SeqCst);
        let connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        shut_down(connection.as_ref());
    }

    /// Like [`Self::hang_up_at_once`], but called by the control side.
    pub(super) fn hang_up(&self) {
        shut_down(self.connection().as_ref());
    }

    /// Sets the session's connection. Called by the session.
    pub(super) fn set_connection(&self, connection: Option<UnixStream>) {
        let before = std::mem::replace(&mut *self.connection(), connection);
        fence(Ordering::SeqCst);
        drop(before);
    }

    fn connection(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reason of the last stop, if the port was stopped since the last call.
    pub(super) fn take(&self) -> Option<Halted> {
        let why = self.why.swap(0, Ordering::AcqRel);
        let cause = if why & 1 == 0 { SleepCause::Memory } else { SleepCause::Call };
        (why != 0).then_some(Halted { cause, slept: Nanos(why >> 1) })
    }
}

fn shut_down(connection: Option<&UnixStream>) {
    if let Some(connection) = connection {
        let _ = connection.shutdown(Shutdown::Both);
    }
}

/// Durations for which a port is kept out.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    last: Nanos,
    /// Time at which the last pause ended.
    over: Nanos,
}

impl Pauses {
    /// Duration for which a port that is stopped at time `now` is kept out.
    pub(super) fn next(&mut self, now: Nanos) -> Nanos {
        let behaved = now.saturating_sub(self.over) >= LONGEST;
        let pause = if self.last == Nanos::ZERO || behaved { FIRST } else { self.last + self.last };
        self.last = pause.min(LONGEST);
        self.over = now + self.last;
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EfdFlags;

    #[test]
    fn a_port_stays_out_for_longer_each_time_until_it_behaves() {
        let mut pauses = Pauses::default();
        let mut now = Nanos::from_secs(5_000);
        let mut seconds = Vec::new();
        for _ in 0..8 {
            let pause = pauses.next(now);
            seconds.push(pause.0 / 1_000_000_000);
            now = now + pause + Nanos::from_secs(1);
        }
        assert_eq!(seconds, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(pauses.next(now + LONGEST), FIRST);
    }

    #[test]
    fn the_reason_is_heard_once_with_the_alarm() {
        let alarm = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let halt = Halt::new(Arc::new(alarm));
        assert_eq!(halt.take(), None);
        for cause in [SleepCause::Memory, SleepCause::Call] {
            let halted = Halted { cause, slept: Nanos::from_millis(919) };
            halt.stop(halted);
            assert!(halt.alarm.read().is_ok());
            assert_eq!((halt.take(), halt.take()), (Some(halted), None));
        }
    }
}
