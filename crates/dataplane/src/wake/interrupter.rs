//! The interrupter ends system calls that block the worker.
//!
//! # Problem
//!
//! A worker makes few system calls, and none of these calls should block. A worker's write to a
//! driver's call descriptor ([`crate::port`]) may block. A hostile process that shares its call
//! descriptor can make the worker's write block.
//!
//! # Approach
//!
//! A timer sends a signal to the worker's thread every 10 ms. A blocked call ends with `EINTR` and
//! is not restarted. The signal handler checks whether the thread slept ([`super::stall`]). The
//! signal is `SIGURG`, because processes ignore this signal by default.
//!
//! # Cost
//!
//! The interrupter costs one hundred signals per second, about 0.02 % of a core. The timer's
//! signals do not affect a read that the kernel finishes without blocking.
#![allow(unsafe_code, reason = "sigaction has no safe Rust wrapper")]

use core::time::Duration;

use nix::Result;
use nix::sys::signal::{
    SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction,
};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;

/// Period of the timer that interrupts blocked system calls, in milliseconds. A system call can
/// block the worker for at most this time.
pub(crate) const PERIOD_MS: u64 = 10;
const PERIOD: Duration = Duration::from_millis(PERIOD_MS);
/// The signal that the interrupter's timer sends.
pub(crate) const SIGNAL: Signal = Signal::SIGURG;

/// Sends signals to the thread that created the interrupter, until the interrupter is dropped.
#[derive(Debug)]
pub(crate) struct Interrupter(#[expect(dead_code, reason = "holds the kernel's timer")] Timer);

impl Interrupter {
    /// Starts the timer that signals the calling thread.
    ///
    /// # Errors
    /// Returns an error if the kernel has no free timer.
    pub(crate) fn arm() -> Result<Self> {
        install()?;
        let thread_id = gettid().as_raw();
        let notify = SigevNotify::SigevThreadId { signal: SIGNAL, thread_id, si_value: 0 };
        let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify))?;
        let first = Duration::from_nanos(super::stall::arm().0);
        let signals = Expiration::IntervalDelayed(first.into(), PERIOD.into());
        timer.set(signals, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        Ok(Self(timer))
    }
}

/// Installs the signal handler, so that the signal ends a blocked call.
///
/// # Errors
/// Returns an error if the kernel refuses to install the handler. No known kernel refuses to
/// install a handler for this signal.
pub(super) fn install() -> Result<()> {
    extern "C" fn on_signal(_: libc::c_int) {
        super::stall::signal();
    }
    let handler = SigHandler::Handler(on_signal);
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only makes two calls that are allowed in a handler and sets cells of its
    // own thread. Neither needs memory or a lock. WHY: there is no safe form.
    unsafe { sigaction(SIGNAL, &action) }.map(|_| ())
}
