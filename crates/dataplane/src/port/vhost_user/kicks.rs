//! Receives the driver's kicks between two messages of its session.
//!
//! The driver sends kicks only while a queue pair is at rest ([`crate::worker::Doorbell`]). The
//! port's own thread receives at most one kick per millisecond. A driver that kicks without end
//! thus costs the host about a thousandth of a core, and costs other ports nothing.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use penstock_units::QueueId;

use super::session::Session;

/// Milliseconds after a kick during which no other kick is read. A queue pair that was just woken
/// is polled for a longer time.
const DEAF_MS: u8 = 1;

/// Rings the bells of kicked queue pairs until the connection has a message or has ended, or the
/// session's alarm is signalled.
pub(super) fn serve_until_message(connection: &UnixStream, session: &Session) {
    let kicks: Vec<(QueueId, &File)> = session.kicks().collect();
    let mut fds = vec![
        PollFd::new(connection.as_fd(), PollFlags::POLLIN),
        PollFd::new(session.alarm().as_fd(), PollFlags::POLLIN),
    ];
    fds.extend(kicks.iter().map(|(_, kick)| PollFd::new(kick.as_fd(), PollFlags::POLLIN)));
    let mut deaf = false;
    loop {
        let heard = if deaf { &mut fds[..2] } else { &mut fds[..] };
        let timeout = if deaf { PollTimeout::from(DEAF_MS) } else { PollTimeout::NONE };
        match poll(heard, timeout) {
            Err(Errno::EINTR) => continue,
            // The read that follows returns the error.
            Err(_) => return,
            Ok(_) if fds[..2].iter().any(happened) => return,
            Ok(_) if deaf => deaf = false,
            Ok(_) => {
                for ((queue, kick), fd) in kicks.iter().zip(&fds[2..]) {
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
