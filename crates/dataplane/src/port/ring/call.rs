//! The event descriptor by which the switch interrupts a driver.
//!
//! # Problem
//! The driver's process shares the counter of the eventfd. The driver's process can clear
//! `O_NONBLOCK` and fill the counter between a check and the switch's write, so that the write
//! blocks the worker. No flag of a single write prevents the wait, because eventfds refuse
//! `RWF_NOWAIT`.
//!
//! # Approach
//! The worker's thread receives a signal every few milliseconds ([`crate::wake::Interrupter`]), so
//! that a blocked write fails with `EINTR`. A write that does not block never fails with `EINTR`.
//! After an `EINTR`, the switch does not write to the descriptor again, and the worker stops the
//! port ([`crate::wake::stall`]).
//!
//! # Cost
//! The protection against blocking eventfds costs nothing unless a write blocks.

use std::fs::File;
use std::io::{ErrorKind, Write};

use crate::wake::stall;

/// The event descriptor of one ring, and whether a write to the descriptor blocked.
#[derive(Debug)]
pub(crate) struct Call {
    file: Option<File>,
    blocked: bool,
}

impl Call {
    /// `file` is the ring's event descriptor. `None` means that the driver polls and needs no
    /// interrupts.
    pub(crate) const fn new(file: Option<File>) -> Self {
        Self { file, blocked: false }
    }

    /// Replaces the event descriptor and returns the previous event descriptor. If a write to an
    /// earlier descriptor of this ring blocked, the switch does not use the new descriptor either.
    pub(crate) const fn replace(&mut self, file: Option<File>) -> Option<File> {
        core::mem::replace(&mut self.file, file)
    }

    /// Interrupts the ring's driver. Returns the number of interrupts, 0 or 1.
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

    /// Whether a signal interrupted a write to the event descriptor because the write blocked.
    #[cfg(test)]
    const fn is_blocked(&self) -> bool {
        self.blocked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::Interrupter;
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
            // The driver has also filled a second descriptor. This descriptor is not used either.
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
