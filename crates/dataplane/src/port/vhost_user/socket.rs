//! The Unix socket of a vhost-user port. From the socket's creation on, only permitted users can
//! connect to the socket. No operation on the socket waits for another process.
//!
//! # Problem
//! The socket may lie in a directory of another user. Another user who owns the socket's directory
//! can replace the directory's entries by links between any two calls of the daemon.
//!
//! # Approach
//! The daemon uses the socket's path only once, to bind, and `bind` does not follow a link. Before
//! any process can connect, the daemon changes owner, group and mode of the inode that the socket
//! itself names. At the end, the daemon removes the directory entry relative to an open directory,
//! and only if the entry is still the same inode. If another user has replaced the socket's
//! directory entry, the new entry stays.

#![allow(unsafe_code, reason = "SIOCUNIXFILE: the inode of a bound socket")]

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::AtFlags;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use super::VhostUserConfig;
use crate::port::{PortError, helper};

/// Number of the `ioctl` that opens, with `O_PATH`, the inode to which a socket is bound.
const SIOCUNIXFILE: libc::Ioctl = 0x89e0;

/// A listening Unix socket, and the socket's entry in a directory.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's directory entry.
    identity: (u64, u64),
}

impl Listener {
    /// Removes the directory entry if the entry still belongs to the socket.
    pub(super) fn remove(&self) {
        let _ = remove_if(&self.path, |_, found| found == self.identity);
    }
}

/// Binds the listening socket of the port. If an old socket at the path has no listener any more,
/// the function replaces the old socket.
pub(super) fn bind(config: &VhostUserConfig) -> Result<Listener, PortError> {
    let path = &config.path;
    let failed = |call, remedy, e| PortError::system(path.display().to_string(), call, remedy, e);
    if is_socket(path) && is_listened_on(path) {
        let e = io::Error::from(io::ErrorKind::AddrInUse);
        return Err(failed(
            "listen",
            "another process listens on this socket; choose another path",
            e,
        ));
    }
    let _ = remove_if(path, |kind, _| kind == SFlag::S_IFSOCK);
    let unusable = |e: io::Error| {
        let remedy = match e.kind() {
            io::ErrorKind::AddrInUse => "remove the file at this path, or choose another path",
            _ => "make the directory, or choose a writable path",
        };
        failed("listen", remedy, e)
    };
    let socket = bound(path, config.socket_mode).map_err(unusable)?;
    let inode = inode_of(&socket, path).map_err(unusable)?;
    let of_inode = inode.metadata().map_err(unusable)?;
    let listener = Listener {
        socket: UnixListener::from(socket),
        path: path.clone(),
        identity: (of_inode.dev(), of_inode.ino()),
    };
    match make_usable(&listener.socket, &inode, config) {
        Ok(()) => Ok(listener),
        Err((call, remedy, e)) => {
            listener.remove();
            Err(failed(call, remedy, e))
        }
    }
}

/// Sets owner, group and mode of the socket, and lets other processes connect afterwards.
fn make_usable(
    socket: &UnixListener,
    inode: &File,
    config: &VhostUserConfig,
) -> Result<(), (&'static str, &'static str, io::Error)> {
    // Restores the permissions that the umask removed, while the socket still belongs to the
    // daemon.
    set_mode(inode, config.socket_mode)
        .map_err(|e| ("set the socket's permissions", "check `socket_mode`", e))?;
    if config.socket_owner.is_some() || config.socket_group.is_some() {
        let remedy = "run the daemon with CAP_CHOWN, start penstock-helper.socket, or leave \
                      `socket_owner` and `socket_group` out";
        let (owner, group) = (config.socket_owner, config.socket_group);
        helper::give(inode, owner, group).map_err(|e| ("change the socket's owner", remedy, e))?;
    }
    let listens = Backlog::new(128).and_then(|backlog| socket::listen(socket, backlog));
    listens
        .map_err(io::Error::from)
        .and_then(|()| socket.set_nonblocking(true))
        .map_err(|e| ("listen", "", e))
}

/// Makes a bound socket that never has more permissions than `mode`. On `bind`, Linux copies the
/// mode of the descriptor's inode to the new directory entry, so no process can connect before the
/// permissions are set.
fn bound(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&socket, Mode::from_bits_truncate(mode))?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket)
}

/// Returns the inode that a bound socket created, even if the path leads to another file by now.
///
/// The kernel returns the socket's inode to processes with `CAP_NET_ADMIN`. A process without
/// `CAP_NET_ADMIN` opens the socket's path without following a link. The opened file must be a
/// socket that the process's user owns.
fn inode_of(socket: &OwnedFd, path: &Path) -> io::Result<File> {
    // SAFETY: SIOCUNIXFILE takes no argument and returns a new descriptor. WHY: no safe form
    // exists.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE, 0) };
    if fd >= 0 {
        // SAFETY: the kernel has just made the descriptor, and nothing else owns it.
        // WHY: no safe form turns a number into an owned descriptor.
        return Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    let inode = open_path(path, libc::O_NOFOLLOW)?;
    let found = inode.metadata()?;
    if found.file_type().is_socket() && found.uid() == geteuid().as_raw() {
        return Ok(inode);
    }
    let why = "another file replaced the socket; use a directory of the daemon's own user";
    Err(io::Error::other(why))
}

/// Sets the mode of a file through the descriptor's entry in `/proc/self/fd`, because `fchmod`
/// refuses descriptors of `O_PATH`.
fn set_mode(inode: &File, mode: u32) -> io::Result<()> {
    let itself = format!("/proc/self/fd/{}", inode.as_raw_fd());
    std::fs::set_permissions(itself, Permissions::from_mode(mode))
}

/// Makes a descriptor that names a file without opening the file itself (`O_PATH`).
fn open_path(path: &Path, flags: libc::c_int) -> io::Result<File> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC | flags).open(path)
}

/// Removes the directory entry `path` if `is_right` accepts the entry's kind, device and inode. The
/// check of the entry and its removal use the same open directory, so that a link cannot redirect
/// the removal.
fn remove_if(path: &Path, is_right: impl Fn(SFlag, (u64, u64)) -> bool) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = open_path(parent.unwrap_or(Path::new(".")), libc::O_DIRECTORY)?;
    let found = fstatat(&parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let kind = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
    if is_right(kind, (found.st_dev, found.st_ino)) {
        unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir)?;
    }
    Ok(())
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
}

fn is_listened_on(path: &Path) -> bool {
    match connect(path) {
        Ok(_) => true,
        // A socket of another type, such as /dev/log, belongs to another program.
        Err(e) => {
            e.kind() == io::ErrorKind::WouldBlock || e.raw_os_error() == Some(libc::EPROTOTYPE)
        }
    }
}

/// Connects to the socket `path` at once or fails. A blocking call would hang forever if the peer
/// listens but never accepts a connection. A blocking call would also delay all threads that wait
/// for the session's end.
///
/// # Errors
/// Returns `WouldBlock` if the peer's queue of connections is full.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use penstock_testing::{TempDir, temp_dir};

    use super::*;

    fn config(name: &str) -> VhostUserConfig {
        let file = format!("penstock-socket-{name}-{}", std::process::id());
        VhostUserConfig::new(name, std::env::temp_dir().join(file))
    }

    /// Makes a listener with a full queue of connections, and the connections that fill the queue.
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
    fn a_living_socket_of_another_type_stays() {
        let config = config("datagram");
        let log = std::os::unix::net::UnixDatagram::bind(&config.path).unwrap();
        let error = bind(&config).unwrap_err().to_string();
        assert!(error.contains("another process listens on this socket"), "{error}");
        assert!(is_socket(&config.path));
        drop(log);
        bind(&config).unwrap().remove();
    }

    #[test]
    fn a_socket_is_never_open_to_more_than_it_will_be() {
        let mut config = config("mode");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let socket = bound(&config.path, 0o600).unwrap();
        assert_eq!(mode(&config.path) & !0o600, 0);
        drop(socket);
        config.socket_mode = 0o666;
        let _listener = bind(&config).unwrap();
        assert_eq!(mode(&config.path), 0o666, "the umask has no say");
        std::fs::remove_file(&config.path).unwrap();
    }

    /// Test setup in which another user replaces the socket by a symbolic link to a file of root.
    struct Trap {
        directory: TempDir,
        config: VhostUserConfig,
        precious: PathBuf,
    }

    impl Trap {
        fn new(name: &str) -> Self {
            let directory = temp_dir();
            let precious = directory.join("precious");
            std::fs::write(&precious, "precious").unwrap();
            std::fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
            let path = directory.join("vm1.sock");
            let (socket_mode, socket_owner) = (0o666, geteuid().is_root().then_some(12_345));
            let config = VhostUserConfig { path, socket_mode, socket_owner, ..config(name) };
            Self { directory, config, precious }
        }

        /// The directory's owner replaces the socket by a link to the target file.
        fn spring(&self) {
            std::fs::rename(&self.config.path, self.directory.join("away.sock")).unwrap();
            std::os::unix::fs::symlink(&self.precious, &self.config.path).unwrap();
        }
    }

    #[test]
    fn a_link_put_in_the_sockets_place_gets_nothing() {
        let trap = Trap::new("link");
        let before = std::fs::metadata(&trap.precious).unwrap();
        let socket = bound(&trap.config.path, 0o600).unwrap();
        trap.spring();
        if let Ok(inode) = inode_of(&socket, &trap.config.path) {
            make_usable(&UnixListener::from(socket), &inode, &trap.config).unwrap();
            let socket = std::fs::metadata(trap.directory.join("away.sock")).unwrap();
            assert_eq!(socket.mode() & 0o777, 0o666, "the socket itself was meant");
            assert_eq!(socket.uid(), trap.config.socket_owner.unwrap_or(socket.uid()));
        }
        let after = std::fs::metadata(&trap.precious).unwrap();
        assert_eq!((after.mode(), after.uid()), (before.mode(), before.uid()));
    }

    #[test]
    fn what_was_put_in_the_sockets_place_stays_at_the_end() {
        let trap = Trap::new("end");
        let config = VhostUserConfig { socket_owner: None, ..trap.config.clone() };
        let listener = bind(&config).unwrap();
        std::fs::rename(&trap.precious, &config.path).unwrap();
        listener.remove();
        assert_eq!(std::fs::read_to_string(&config.path).unwrap(), "precious");
        let error = bind(&config).unwrap_err().to_string();
        assert!(error.contains("remove the file at this path"), "{error}");
        assert_eq!(std::fs::read_to_string(&config.path).unwrap(), "precious");
        std::fs::remove_file(&config.path).unwrap();
        bind(&config).unwrap().remove();
        assert!(!config.path.exists(), "our own is removed");
    }
}
