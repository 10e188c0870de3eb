//! Ends a system call of the worker that waits, where it must not.
//!
//! **Problem.** A worker makes few system calls and none that may wait, but one of them writes to a
//! descriptor that a hostile process shares and can make wait ([`crate::port`]'s call descriptors).
//! **Rule.** A timer signals the thread every 10 ms. A call that waits is not restarted and ends
//! with `EINTR`; the handler looks whether the thread slept ([`super::stall`]). The signal is
//! `SIGURG`, which nobody minds: its default is to be ignored. **Cost.** A hundred signals a
//! second, some 0.02 % of a core. Reads that a kernel finishes without waiting are not touched.
#![allow(unsafe_code, reason = "sigaction has no safe form")]

use core::time::Duration;

use nix::Result;
use nix::sys::signal::{
    SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction,
};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;

/// The longest a call may wait.
pub(super) const PERIOD_MS: u64 = 10;
const PERIOD: Duration = Duration::from_millis(PERIOD_MS);
/// The signal.
pub(crate) const SIGNAL: Signal = Signal::SIGURG;

/// Signals the thread that made it until it is dropped.
#[derive(Debug)]
pub(crate) struct Interrupter(#[expect(dead_code, reason = "holds the kernel's timer")] Timer);

impl Interrupter {
    /// For the calling thread.
    ///
    /// # Errors
    /// The kernel has no timer left.
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

/// A handler, so that a call which waits ends. It looks whether the thread slept meanwhile.
///
/// # Errors
/// The kernel refuses, which it has no reason to.
pub(crate) fn install() -> Result<()> {
    extern "C" fn on_signal(_: libc::c_int) {
        super::stall::signal();
    }
    let handler = SigHandler::Handler(on_signal);
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler makes two system calls that it may and sets cells of its own thread,
    // which need no memory and no lock. WHY: there is no safe form.
    unsafe { sigaction(SIGNAL, &action) }.map(|_| ())
}
