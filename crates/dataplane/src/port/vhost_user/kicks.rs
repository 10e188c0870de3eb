//! Receives the driver's kicks between two messages of the vhost-user session.
//!
//! The driver sends kicks only while a queue pair is at rest ([`crate::wake::Doorbell`]). The
//! port's own thread receives at most one kick per millisecond. A driver that kicks without end
//! uses about a thousandth of a core, and does not affect other ports.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use penstock_units::QueueId;

use super::session::Session;

/// Pause in milliseconds after a kick before the port's thread reads another kick. After a kick,
/// the worker polls the queue pair for longer than `DEAF_MS`.
const DEAF_MS: u8 = 1;

/// Wakes kicked queue pairs until the connection has a message or has ended, or until the session's
/// alarm or the port's `wake` is signalled.
pub(super) fn serve_until_message(connection: &UnixStream, session: &Session, wake: &EventFd) {
    let kicks: Vec<(QueueId, &File)> = session.kicks().collect();
    let mut fds = vec![
        PollFd::new(connection.as_fd(), PollFlags::POLLIN),
        PollFd::new(session.alarm().as_fd(), PollFlags::POLLIN),
        PollFd::new(wake.as_fd(), PollFlags::POLLIN),
    ];
    let others = fds.len();
    fds.extend(kicks.iter().map(|(_, kick)| PollFd::new(kick.as_fd(), PollFlags::POLLIN)));
    let mut deaf = false;
    loop {
        let heard = if deaf { &mut fds[..others] } else { &mut fds[..] };
        let timeout = if deaf { PollTimeout::from(DEAF_MS) } else { PollTimeout::NONE };
        match poll(heard, timeout) {
            Err(Errno::EINTR) => continue,
            // The next read of the connection returns the error.
            Err(_) => return,
            Ok(_) if fds[..others].iter().any(happened) => return,
            Ok(_) if deaf => deaf = false,
            Ok(_) => {
                for ((queue, kick), fd) in kicks.iter().zip(&fds[others..]) {
                    if happened(fd) {
                        // The value does not matter, because any event on the descriptor means that
                        // the driver wants service.
                        let _ = (&mut &**kick).read(&mut [0; 8]);
                        session.ring_bell(*queue);
                    }
                }
                deaf = true;
            }
        }
    }
}

fn happened(fd: &PollFd<'_>) -> bool {
    fd.revents().is_none_or(|events| !events.is_empty())
}
