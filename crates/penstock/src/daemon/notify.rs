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
//!
//! The queue of the service manager's socket holds few messages (`net.unix.max_dgram_qlen`). A
//! notification is not worth a wait, so [`Notifier::send`] never waits. A descriptor that is not
//! passed is a lost session, so a [`Passage`] waits for room in the queue. The wait is a blocking
//! `sendmsg`: `poll` reports an unconnected datagram socket as writable even if the queue is full.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, AsRawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::time::Instant;

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

    /// Opens a way on which descriptors go to the service manager. All descriptors together may
    /// wait for `limit`.
    ///
    /// # Errors
    /// Returns an error if the service manager does not listen, or if no descriptor is free.
    pub fn passage(&self, limit: Duration) -> io::Result<Passage> {
        let Some((_, address)) = &self.target else {
            return Err(io::Error::other("no service manager"));
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(address)?;
        Ok(Passage { socket, deadline: Instant::now() + limit })
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

/// Way on which descriptors go to the service manager.
#[derive(Debug)]
pub struct Passage {
    /// Blocking socket that is connected to the service manager.
    socket: UnixDatagram,
    deadline: Instant,
}

impl Passage {
    /// Sends a state together with a descriptor. Waits until the service manager's queue has room,
    /// at most until the deadline of the passage.
    ///
    /// # Errors
    /// Returns an error if the service manager does not listen, or if the deadline is over.
    pub fn pass(&self, state: &str, fd: &impl AsRawFd) -> io::Result<()> {
        let fds = [fd.as_raw_fd()];
        self.send(state, &[ControlMessage::ScmRights(&fds)])
    }

    /// Sends a state, like [`Self::pass`] but without a descriptor.
    ///
    /// # Errors
    /// Returns an error as [`Self::pass`] does.
    pub fn tell(&self, state: &str) -> io::Result<()> {
        self.send(state, &[])
    }

    fn send(&self, state: &str, rights: &[ControlMessage<'_>]) -> io::Result<()> {
        let bytes = [IoSlice::new(state.as_bytes())];
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            // After the deadline, a descriptor still goes if the queue has room.
            let flags = if left.is_zero() {
                MsgFlags::MSG_DONTWAIT
            } else {
                self.socket.set_write_timeout(Some(left))?;
                MsgFlags::empty()
            };
            match sendmsg::<()>(self.socket.as_raw_fd(), &bytes, rights, flags, None) {
                Err(Errno::EAGAIN) if left.is_zero() => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                // The timeout is over, or a signal arrived.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                sent => return sent.map(drop).map_err(io::Error::from),
            }
        }
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

    /// Number of messages that the queue of a datagram socket certainly does not hold.
    fn more_than_a_queue() -> usize {
        let text = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap();
        text.trim().parse::<usize>().unwrap() + 20
    }

    fn manager(name: &str) -> (UnixDatagram, Notifier) {
        let name = format!("penstock-notify-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let notifier = Notifier::new(Some(format!("@{name}").into()), None).unwrap();
        (UnixDatagram::bind_addr(&address).unwrap(), notifier)
    }

    #[test]
    fn a_slow_manager_gets_more_descriptors_than_its_queue_holds() {
        let (manager, notifier) = manager("slow");
        let count = more_than_a_queue();
        let reader = std::thread::spawn(move || {
            let pause = |ms: u8| poll(&mut [], PollTimeout::from(ms)).unwrap();
            // The queue is full before the manager reads its first message.
            pause(100);
            for number in 0..count {
                let mut buffer = [0; 64];
                let length = manager.recv(&mut buffer).unwrap();
                assert_eq!(buffer[..length], *format!("FDSTORE={number}").as_bytes());
                pause(1);
            }
        });
        let (fd, _other) = io::pipe().unwrap();
        let passage = notifier.passage(Duration::from_secs(20)).unwrap();
        for number in 0..count {
            passage.pass(&format!("FDSTORE={number}"), &fd).unwrap();
        }
        reader.join().unwrap();
    }

    #[test]
    fn a_manager_that_does_not_read_is_not_waited_for_after_the_deadline() {
        let (manager, notifier) = manager("deaf");
        let (fd, _other) = io::pipe().unwrap();
        let (limit, begin) = (Duration::from_millis(50), Instant::now());
        let passage = notifier.passage(limit).unwrap();
        let passed = (0..more_than_a_queue()).map(|_| passage.pass("FDSTORE=1", &fd));
        let failed = passed.filter(|passed| passed.is_err()).count();
        assert!(failed > 1 && begin.elapsed() >= limit, "{failed} failed");
        assert!(begin.elapsed() < Duration::from_secs(10), "the deadline is for all together");
        // A manager that reads again gets the next descriptor.
        manager.recv(&mut [0; 64]).unwrap();
        passage.pass("FDSTORE=1", &fd).unwrap();
    }
}
