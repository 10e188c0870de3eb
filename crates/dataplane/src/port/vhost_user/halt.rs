//! Stops a port that made its worker sleep.
//!
//! # Problem
//! A port's peer can make the worker sleep: the peer can fill its call descriptor, or remove pages
//! during a page fault. While the worker sleeps, every other port of the worker also waits
//! (datapath rule 20).
//!
//! # Approach
//! The worker immediately takes both rings of the queue pair out of use and signals the session's
//! alarm. The worker that stops a port also shuts the session's connection down. A session that
//! waits for the end of a message, or for room to answer, does not see the alarm. The session ends
//! with the reason of the stop, and takes the port's rings from all other workers.
//!
//! The switch admits a stopped port again after a pause. After its first stop, a port pauses for a
//! minute. Each further pause is twice as long as the previous pause, up to an hour. After an hour
//! without a stop, the port's next pause is a minute again. A peer can therefore make the worker
//! sleep at most once per minute, regardless of the number of its rings.
//!
//! # Cost
//! The protection against peers that make the worker sleep costs nothing unless a port is stopped.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use nix::sys::eventfd::EventFd;
use penstock_units::Nanos;

use crate::wake::Cause as SleepCause;

const FIRST: Nanos = Nanos::from_secs(60);
/// The longest pause of a stopped port. If a port runs for this time without a stop, the port's
/// next pause is [`FIRST`] again.
const LONGEST: Nanos = Nanos::from_secs(3_600);

/// Reason why the worker stopped a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Halted {
    pub(super) cause: SleepCause,
    /// Time for which the worker slept because of the port.
    pub(super) slept: Nanos,
}

/// State that says whether and why a port is stopped. The worker and the vhost-user session share
/// the `Halt` state.
#[derive(Debug)]
pub(super) struct Halt {
    /// Eventfd that is signalled when the worker stops the port, or when the switch finds that a
    /// driver shortened a mapped file.
    pub(super) alarm: Arc<EventFd>,
    /// Duration of the worker's sleep in nanoseconds, shifted left by one bit. The lowest bit is
    /// set if the call descriptor was the cause of the sleep. If the value is 0, the port is not
    /// stopped.
    why: AtomicU64,
    /// The session's connection. `None` if the session has no connection.
    connection: Mutex<Option<UnixStream>>,
}

impl Halt {
    pub(super) const fn new(alarm: Arc<EventFd>) -> Self {
        Self { alarm, why: AtomicU64::new(0), connection: Mutex::new(None) }
    }

    /// Records that the worker stopped the port. The worker may call `stop`, because `stop` never
    /// blocks: it waits for no lock, and only this process can write to the alarm.
    pub(super) fn stop(&self, halted: Halted) {
        let by_call = u64::from(halted.cause == SleepCause::Call);
        self.why.store((halted.slept.0 << 1 | by_call).max(2), Ordering::Release);
        let _ = self.alarm.write(1);
        self.hang_up_at_once();
    }

    /// Shuts the session's connection down, which ends any call in which the session waits for its
    /// peer. The worker may call `hang_up_at_once`, because it waits for no lock.
    pub(super) fn hang_up_at_once(&self) {
        // The lock is tried only after the alarm is set, because a session that has the lock checks
        // the alarm after it releases the lock.
        fence(Ordering::SeqCst);
        let connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        shut_down(connection.as_ref());
    }

    /// Shuts the session's connection down, like [`Self::hang_up_at_once`]. Only control threads
    /// may call `hang_up`, because it may wait for the connection's lock.
    pub(super) fn hang_up(&self) {
        shut_down(self.connection().as_ref());
    }

    /// Sets the session's connection; `None` if the session has no connection. Only the session's
    /// thread calls `set_connection`.
    pub(super) fn set_connection(&self, connection: Option<UnixStream>) {
        let before = std::mem::replace(&mut *self.connection(), connection);
        fence(Ordering::SeqCst);
        drop(before);
    }

    fn connection(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reason of the port's last stop. `None` if the port was not stopped since the last call.
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

/// Computes the pauses in which a stopped port is not admitted.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    last: Nanos,
    /// Time at which the port's last pause ends.
    over: Nanos,
}

impl Pauses {
    /// Returns the pause of a port that is stopped at time `now`.
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
