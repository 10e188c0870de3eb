//! The event descriptor by which the switch interrupts a driver.
//!
//! # Problem
//! The driver's process shares the event counter. It can clear `O_NONBLOCK` and fill the counter
//! between a check and the write. The write then blocks, and the worker with it. No flag of a
//! single call prevents this: eventfds refuse `RWF_NOWAIT`.
//!
//! # Approach
//! The worker's thread receives a signal every few milliseconds ([`crate::worker::Interrupter`]),
//! so that such a write fails with `EINTR`. A write that does not block never fails in this way.
//! After such a failure the switch does not write to the descriptor again, and the worker stops the
//! port ([`crate::worker::stall`]).
//!
//! # Cost
//! An honest driver causes no cost.

use std::fs::File;
use std::io::{ErrorKind, Write};

use crate::worker::stall;

/// The event descriptor of one ring, and whether a write to it blocked.
#[derive(Debug)]
pub(crate) struct Call {
    file: Option<File>,
    blocked: bool,
}

impl Call {
    /// `None` means that the driver polls.
    pub(crate) const fn new(file: Option<File>) -> Self {
        Self { file, blocked: false }
    }

    /// Replaces the descriptor and returns the previous one. If a write to any descriptor of this
    /// ring blocked, the new descriptor is not used either.
    pub(crate) const fn replace(&mut self, file: Option<File>) -> Option<File> {
        core::mem::replace(&mut self.file, file)
    }

    /// Interrupts the driver. Returns the number of interrupts, 0 or 1.
    #[cold]
    pub(crate) fn interrupt(&mut self) -> u32 {
        let Some(file) = self.file.as_mut().filter(|_| !self.blocked) else { return 0 };
        match file.write(&1_u64.to_ne_bytes()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                self.blocked = true;
                stall::note_call();
                0
            }
            // An eventfd that would block already has an interrupt pending.
            _ => 1,
        }
    }

    /// Whether a write was interrupted because it blocked.
    #[cfg(test)]
    const fn is_blocked(&self) -> bool {
        self.blocked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Interrupter;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::os::fd::OwnedFd;

    #[test]
    fn a_counter_that_is_full_and_blocks_is_given_up() {
        // A hostile process cleared O_NONBLOCK and filled the counter.
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
        event.write(u64::MAX - 1).unwrap();
        let mut call = Call::new(Some(File::from(OwnedFd::from(event))));
        let other = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let ended = std::thread::spawn(move || {
            let _bound = Interrupter::arm().unwrap();
            let first = call.interrupt();
            // A second descriptor that the driver has filled is not used either.
            let _ = call.replace(Some(File::from(OwnedFd::from(other))));
            (first, call.is_blocked(), call.interrupt())
        });
        assert_eq!(ended.join().unwrap(), (0, true, 0));
    }

    #[test]
    fn a_counter_that_is_full_and_does_not_block_is_an_interrupt_pending() {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        event.write(u64::MAX - 1).unwrap();
        let mut call = Call::new(Some(File::from(OwnedFd::from(event))));
        assert_eq!((call.interrupt(), call.is_blocked()), (1, false));
        assert_eq!(Call::new(None).interrupt(), 0);
    }
}
