//! Descriptors that processes pass to each other: in messages of unix sockets (unix(7),
//! `SCM_RIGHTS`), and from the service manager at the start of a process (sd_listen_fds(3)).
#![allow(unsafe_code, reason = "received descriptors are numbers")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{self, ControlMessage, ControlMessageOwned, MsgFlags};

/// Maximum number of descriptors in one message (the kernel's `SCM_MAX_FD`). A receiver has room
/// for `PASSED_MAX` descriptors, so that it receives and closes every unwanted descriptor.
pub(super) const PASSED_MAX: usize = 253;
/// Number of the first descriptor that a service manager passes.
const FIRST: i32 = 3;

/// Sends `bytes` and the descriptors `passed` as one message.
pub(super) fn send(to: &OwnedFd, bytes: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let fds: Vec<_> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[] } else { &rights[..] };
    let (flags, bytes) = (MsgFlags::MSG_NOSIGNAL, [IoSlice::new(bytes)]);
    socket::sendmsg::<()>(to.as_raw_fd(), &bytes, rights, flags, None)?;
    Ok(())
}

/// Receives one message into `bytes`. Returns the message's length in bytes, and all descriptors of
/// the message.
///
/// # Errors
/// Returns an error if no message arrives, or if no descriptor is free.
pub fn receive(from: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([libc::c_int; PASSED_MAX]);
    let mut bytes = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let got = socket::recvmsg::<()>(from.as_raw_fd(), &mut bytes, Some(&mut space), flags)?;
    let mut passed = Vec::new();
    for message in got.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = message {
            // SAFETY: the kernel has just made the descriptors for this process, and nothing else
            // owns them.
            // WHY: no safe form turns a number into an owned descriptor.
            passed.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((got.bytes, passed))
}

/// Takes the descriptors that the service manager passed to this process, with their names. The
/// names come from `FileDescriptorName=` or `FDNAME=`. Returns no descriptors at any further call,
/// or if no service manager passed descriptors.
pub fn from_service_manager() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let of_us = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let count = std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse::<i32>().ok());
    let Some(count) = count.filter(|_| of_us && !TAKEN.swap(true, Ordering::Relaxed)) else {
        return Vec::new();
    };
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(core::iter::repeat(String::new()));
    let passed = (FIRST..FIRST.saturating_add(count)).zip(names);
    let owned = passed.filter_map(|(number, name)| {
        // SAFETY: the borrow ends with this call, and a number that is not open is an error.
        // WHY: no safe form asks whether a number is an open descriptor.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        // No program that this process starts gets the descriptor.
        fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
        // SAFETY: `LISTEN_PID` says that the descriptor was passed to this process. This function
        // takes each descriptor once, and nothing else owns it.
        // WHY: no safe form turns a number into an owned descriptor.
        Some((name, unsafe { OwnedFd::from_raw_fd(number) }))
    });
    owned.collect()
}

/// Replaces the open file of descriptor `at` by the file of `with`. `at` keeps its number.
pub(super) fn replace(at: &impl AsRawFd, with: impl AsFd) -> io::Result<()> {
    let (from, to) = (with.as_fd().as_raw_fd(), at.as_raw_fd());
    // SAFETY: both numbers are open descriptors during the call. The owner of `at` goes on to own
    // its number. WHY: nix's form takes an `OwnedFd`, and the `vhost` crate owns the descriptor.
    match unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_replaced_descriptor_leads_to_the_other_file() {
        let (mut ours, _peer) = UnixStream::pair().unwrap();
        let (other, mut other_peer) = UnixStream::pair().unwrap();
        replace(&ours, &other).unwrap();
        drop(other);
        ours.write_all(b"here").unwrap();
        let mut heard = [0; 4];
        other_peer.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"here");
    }
}
