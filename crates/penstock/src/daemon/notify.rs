//! Sends the notifications `READY=1`, `WATCHDOG=1` and `STOPPING=1` to the service manager.
//!
//! # Source
//!
//! sd_notify(3): the daemon sends one datagram of `KEY=VALUE` lines to the socket that the variable
//! `NOTIFY_SOCKET` names. The variable contains a path, or `@` and an abstract name.
//!
//! # Approach
//!
//! If `NOTIFY_SOCKET` is not set, the daemon sends no notifications. If the service manager does
//! not listen, the daemon logs the first failure and continues to run.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, AsRawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

/// Milliseconds between two attempts to send to a service manager whose queue is full.
const SEND_PAUSE_MS: u8 = 10;
const SEND_TRIES: u32 = 50;
/// Longest wait in milliseconds for the service manager to read all messages.
const BARRIER_MS: u16 = 1_000;

/// Sender of notifications to the service manager. If no service manager started the process, the
/// sender does nothing.
#[derive(Debug)]
pub struct Notifier {
    target: Option<(UnixDatagram, SocketAddr)>,
    /// Interval within which the manager expects a notification; `None` if the service manager has
    /// no watchdog for the daemon.
    pub watchdog: Option<Duration>,
    failed: AtomicBool,
}

impl Notifier {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    #[must_use]
    pub fn from_environment() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET");
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| for_us && *usec > 0);
        match Self::new(socket, watchdog.map(Duration::from_micros)) {
            Ok(notifier) => notifier,
            Err(error) => {
                let what = "NOTIFY_SOCKET: cannot be used; the service manager is not notified";
                tracing::warn!(%error, "{what}");
                Self { target: None, watchdog: None, failed: AtomicBool::new(true) }
            }
        }
    }

    /// Creates a notifier that sends to `socket`, a path or an abstract name.
    ///
    /// # Errors
    /// Returns an error if the name is too long, or the kernel refuses a datagram socket.
    pub fn new(socket: Option<OsString>, watchdog: Option<Duration>) -> io::Result<Self> {
        let target = match socket.filter(|socket| !socket.is_empty()) {
            None => None,
            Some(socket) => {
                let address = match socket.as_bytes() {
                    [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
                    _ => SocketAddr::from_pathname(&socket)?,
                };
                let sender = UnixDatagram::unbound()?;
                sender.set_nonblocking(true)?;
                Some((sender, address))
            }
        };
        Ok(Self { target, watchdog, failed: AtomicBool::new(false) })
    }

    /// Whether a service manager started the process.
    #[must_use]
    pub const fn has_manager(&self) -> bool {
        self.target.is_some()
    }

    /// Sends a state together with a descriptor.
    ///
    /// # Errors
    /// Returns an error if the service manager does not listen.
    pub fn pass(&self, state: &str, fd: &impl AsRawFd) -> io::Result<()> {
        let Some((sender, address)) = &self.target else {
            return Err(io::Error::other("no service manager"));
        };
        let to = match address.as_abstract_name() {
            Some(name) => UnixAddr::new_abstract(name)?,
            None => UnixAddr::new(address.as_pathname().unwrap_or(Path::new("")))?,
        };
        let fds = [fd.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let bytes = [IoSlice::new(state.as_bytes())];
        // The queue of the manager's socket may be full for a moment.
        for _ in 0..SEND_TRIES {
            let sent = sendmsg(sender.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), Some(&to));
            match sent {
                Err(Errno::EAGAIN) => {
                    let mut fds = [PollFd::new(sender.as_fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut fds, PollTimeout::from(SEND_PAUSE_MS));
                }
                sent => return sent.map(drop).map_err(io::Error::from),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Waits until the service manager has read all messages, at most a second
    /// (sd_notify_barrier(3)).
    pub fn wait_until_read(&self) {
        let Ok((ours, theirs)) = io::pipe() else { return };
        if self.pass("BARRIER=1", &theirs).is_ok() {
            drop(theirs);
            let mut fds = [PollFd::new(ours.as_fd(), PollFlags::empty())];
            let _ = poll(&mut fds, PollTimeout::from(BARRIER_MS));
        }
    }

    /// Sends a state, such as `READY=1`.
    pub fn send(&self, state: &str) {
        let Some((sender, address)) = &self.target else { return };
        if let Err(error) = sender.send_to_addr(state.as_bytes(), address)
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, state, "cannot notify the service manager");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_datagram() {
        let name = format!("penstock-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let notifier = Notifier::new(Some(format!("@{name}").into()), None).unwrap();
        notifier.send("READY=1\nSTATUS=up");
        let mut buffer = [0; 64];
        let length = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1\nSTATUS=up");
    }

    #[test]
    fn without_a_manager_nothing_is_sent() {
        for name in [None, Some("".into())] {
            let notifier = Notifier::new(name, None).unwrap();
            notifier.send("READY=1");
            assert!(notifier.target.is_none() && !notifier.failed.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn a_manager_that_does_not_listen_is_told_again_and_is_no_error() {
        let name = format!("penstock-notify-late-{}", std::process::id());
        let notifier = Notifier::new(Some(format!("@{name}").into()), None).unwrap();
        notifier.send("READY=1");
        assert!(notifier.failed.load(Ordering::Relaxed), "it is logged once");
        let manager =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        notifier.send("WATCHDOG=1");
        let mut buffer = [0; 64];
        let length = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"WATCHDOG=1");
    }
}
