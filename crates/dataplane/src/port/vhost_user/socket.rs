//! The port's unix socket: private from birth, and never waited for.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::{Mode, fchmod};

use super::VhostUserConfig;
use crate::port::PortError;

/// Binds the listening socket, replacing one that nobody listens on any more.
pub(super) fn bind(config: &VhostUserConfig) -> Result<UnixListener, PortError> {
    let path = &config.path;
    let failed = |call, remedy, e| PortError::system(path.display().to_string(), call, remedy, e);
    if is_socket(path) {
        if is_listened_on(path) {
            let e = std::io::Error::from(std::io::ErrorKind::AddrInUse);
            return Err(failed("listen", "another process listens there; choose another path", e));
        }
        let _ = std::fs::remove_file(path);
    }
    let listener = listen(path, config.socket_mode)
        .map_err(|e| failed("listen", "make the directory, or choose a path we may write", e))?;
    // What the umask took away is given back.
    let mode = std::fs::Permissions::from_mode(config.socket_mode);
    std::fs::set_permissions(path, mode)
        .map_err(|e| failed("set the socket's permissions", "check `socket_mode`", e))?;
    listener.set_nonblocking(true).map_err(|e| failed("listen", "", e))?;
    Ok(listener)
}

/// A socket that never has more permissions than `mode`: Linux takes those of the descriptor, so
/// that there is no moment between its birth and a change in which somebody else may connect.
fn listen(path: &Path, mode: u32) -> std::io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&socket, Mode::from_bits_truncate(mode))?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    socket::listen(&socket, Backlog::new(128)?)?;
    Ok(UnixListener::from(socket))
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
}

fn is_listened_on(path: &Path) -> bool {
    match connect(path) {
        Ok(_) => true,
        Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Connects at once or not at all: a peer that listens but does not accept would hold the caller
/// for ever, and with it whoever waits for the session's end.
///
/// # Errors
/// `WouldBlock`: the peer's queue of connections is full.
pub(super) fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::super::SocketMode;
    use super::*;
    use crate::offload::OffloadCaps;

    fn config(name: &str) -> VhostUserConfig {
        let file = format!("penstock-socket-{name}-{}", std::process::id());
        VhostUserConfig {
            name: name.to_owned(),
            path: std::env::temp_dir().join(file),
            mode: SocketMode::Server,
            queue_pairs: 1,
            offloads: OffloadCaps::ALL,
            socket_mode: 0o600,
        }
    }

    /// A listener whose queue is full, and what fills it.
    fn full(path: &Path) -> (std::os::fd::OwnedFd, Vec<UnixStream>) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        socket::bind(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        socket::listen(&socket, Backlog::new(0).unwrap()).unwrap();
        let waiting = core::iter::from_fn(|| connect(path).ok()).take(8).collect();
        (socket, waiting)
    }

    #[test]
    fn a_peer_that_does_not_accept_holds_nobody() {
        let config = config("full");
        let (_listener, waiting) = full(&config.path);
        assert!((1..8).contains(&waiting.len()));
        let refused = connect(&config.path).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
        assert!(bind(&config).is_err(), "took the socket of a live process away");
        std::fs::remove_file(&config.path).unwrap();
    }

    #[test]
    fn a_socket_is_never_open_to_more_than_it_will_be() {
        let mut config = config("mode");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let listener = listen(&config.path, 0o600).unwrap();
        assert_eq!(mode(&config.path) & !0o600, 0);
        drop(listener);
        config.socket_mode = 0o666;
        let _listener = bind(&config).unwrap();
        assert_eq!(mode(&config.path), 0o666, "the umask has no say");
        std::fs::remove_file(&config.path).unwrap();
    }
}
