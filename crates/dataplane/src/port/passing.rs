//! Descriptors that processes pass to each other: in messages of unix sockets (unix(7),
//! `SCM_RIGHTS`), and from the service manager at the start of a process (sd_listen_fds(3)).
#![allow(unsafe_code, reason = "received descriptors are numbers")]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{self, ControlMessage, MsgFlags};

/// Maximum number of descriptors in one message (the kernel's `SCM_MAX_FD`). A receiver has room
/// for `PASSED_MAX` descriptors, so that it receives and closes every unwanted descriptor.
pub(super) const PASSED_MAX: usize = 253;
/// Length in words of the control data of a message: a header of two words, and the descriptors.
const CONTROL_WORDS: usize = 2 + (PASSED_MAX * size_of::<libc::c_int>()).div_ceil(8);
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
/// Returns an error if no message arrives, or if no descriptor is free. If only some descriptors of
/// the message find a free number, they are closed.
pub fn receive(from: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_with(from, bytes, 0)
}

/// Like [`receive`], but leaves the message and its descriptors in the socket, and does not wait
/// for a message. The returned descriptors are copies.
///
/// # Errors
/// Returns an error as [`receive`] does.
pub(super) fn peek(from: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_with(from, bytes, libc::MSG_PEEK | libc::MSG_DONTWAIT)
}

/// Discards the message that waits in a socket, with its descriptors.
pub(super) fn discard(from: &OwnedFd) {
    // The kernel closes the descriptors, because the call has no room for them.
    let _ = socket::recv(from.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT);
}

fn receive_with(
    from: &OwnedFd,
    bytes: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    // Words, because the kernel's headers need the alignment of a word.
    let mut control = [0_u64; CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a valid `msghdr` without any buffer.
    // WHY: `msghdr` has private padding on some systems, so a literal cannot list its fields.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to buffers that are writable for their lengths during the call.
    // WHY: nix returns no descriptors if only some of them found a free number (`MSG_CTRUNC`). They
    // would stay open for ever.
    let len = unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let passed = descriptors(&message);
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        drop(passed);
        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    }
    Ok((len, passed))
}

/// Takes the descriptors out of a message that `recvmsg` has just received.
fn descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut passed = Vec::new();
    // SAFETY: the kernel has set the length of the control data, which `message` points to.
    // WHY: no safe form walks through the control data of a truncated message.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the header is null, or lies in the control data and is aligned. WHY: as above.
    while let Some(found) = unsafe { header.as_ref() } {
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the data follows the header in the control data. WHY: as above.
            let data = unsafe { libc::CMSG_DATA(header) };
            let before = data.addr() - header.addr();
            let count = found.cmsg_len.saturating_sub(before) / size_of::<libc::c_int>();
            let numbers = data.cast::<libc::c_int>();
            passed.extend((0..count).map(|at| {
                // SAFETY: the kernel wrote `count` numbers. It has just made these descriptors for
                // this process, and nothing else owns them.
                // WHY: no safe form turns a number into an owned descriptor.
                unsafe { OwnedFd::from_raw_fd(numbers.add(at).read_unaligned()) }
            }));
        }
        // SAFETY: `header` is a header of this message. WHY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    passed
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

    fn pair() -> (OwnedFd, OwnedFd) {
        let (kind, flags) = (socket::SockType::SeqPacket, socket::SockFlag::SOCK_CLOEXEC);
        socket::socketpair(socket::AddressFamily::Unix, kind, None, flags).unwrap()
    }

    #[test]
    fn a_message_stays_after_a_look_and_its_descriptors_are_copies() {
        let (from, to) = pair();
        let (ours, mut peer) = UnixStream::pair().unwrap();
        send(&from, b"text", &[ours.as_fd()]).unwrap();
        drop(ours);
        for take in [peek, peek, receive] {
            let mut text = [0; 8];
            let (len, passed) = take(&to, &mut text).unwrap();
            assert_eq!((&text[..len], passed.len()), (&b"text"[..], 1));
            UnixStream::from(passed.into_iter().next().unwrap()).write_all(b"x").unwrap();
            peer.read_exact(&mut [0]).unwrap();
        }
        let gone = peek(&to, &mut [0; 8]).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "no descriptor is left");
    }

    #[test]
    fn a_discarded_message_closes_its_descriptors() {
        let (from, to) = pair();
        let (ours, mut peer) = UnixStream::pair().unwrap();
        send(&from, b"text", &[ours.as_fd()]).unwrap();
        drop(ours);
        discard(&to);
        assert!(peek(&to, &mut [0; 8]).is_err());
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        discard(&to);
    }

    /// Environment variable of the child process in which few descriptors are free.
    const CHILD: &str = "PENSTOCK_PASSING_TEST";

    /// Runs in a process of its own, because the limit of descriptors is the whole process's.
    #[test]
    fn descriptors_that_found_a_free_number_are_closed_if_others_found_none() {
        let name = "port::passing::tests::\
                    descriptors_that_found_a_free_number_are_closed_if_others_found_none";
        if std::env::var_os(CHILD).is_none() {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let output = command.args(["--exact", name, "--nocapture"]).env(CHILD, "").output();
            let output = output.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        let (from, to) = pair();
        let (ours, mut peer) = UnixStream::pair().unwrap();
        send(&from, b"text", &[ours.as_fd(); 8]).unwrap();
        drop(ours);
        let free = OwnedFd::from(UnixStream::pair().unwrap().0);
        // Of the eight descriptors, only some find a number below the limit.
        let limit = u64::try_from(free.as_raw_fd()).unwrap() + 3;
        drop(free);
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, limit, most).unwrap();
        assert!(receive(&to, &mut [0; 8]).is_err());
        peer.set_nonblocking(true).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "no descriptor is left");
    }

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
