//! Creates and locks the unix socket of the daemon's API. Only the daemon's user may connect, and
//! only one daemon at a time serves the socket.
//!
//! # Approach
//!
//! The daemon locks a file beside the socket. The kernel releases the lock when the daemon ends. If
//! the lock is free, the next daemon knows that the socket of a dead daemon is stale, and replaces
//! the socket. If another process has the lock, the daemon refuses to start. The daemon also
//! refuses to start in two other situations:
//! - A process answers on the socket although the lock is free, because the lock file was deleted.
//! - The socket's path names an existing file that is not a socket.
//!
//! The socket has mode 0600 from its creation, so no other user can connect at any moment.
//! `unix_bind` of the Linux kernel takes the mode from the descriptor, although unix(7) does not
//! specify this. The daemon therefore need not change the umask, which is common to all threads of
//! the process.
//!
//! The socket's directory may belong to another user. If the lock file is a link or belongs to
//! another user, the daemon neither uses the lock file nor writes to it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;

/// The daemon's lock on its socket. If the guard is dropped, the daemon removes the socket and
/// releases the lock.
#[derive(Debug)]
pub struct SocketGuard {
    path: PathBuf,
    /// Device and inode of the socket. The daemon removes only the socket that it created.
    identity: (u64, u64),
    _lock: Flock<File>,
}

/// Locks the socket's path. Errors name the path by its configuration key `key`.
///
/// # Errors
/// Returns an error if another process has the socket, the path is not a socket, or the directory
/// cannot be written.
pub fn take(path: &Path, key: &str) -> Result<(UnixListener, SocketGuard)> {
    let at = path.display();
    make_parent(path).with_context(|| format!("socket {at}"))?;
    let lock = lock(path, key)?;
    remove_stale(path, key)?;
    let listener = bind(path).with_context(|| format!("socket {at}: cannot listen"))?;
    listener.set_nonblocking(true).with_context(|| format!("socket {at}"))?;
    let metadata = fs::symlink_metadata(path).with_context(|| format!("socket {at}"))?;
    let identity = (metadata.dev(), metadata.ino());
    Ok((listener, SocketGuard { path: path.to_owned(), identity, _lock: lock }))
}

/// Creates a listening socket that is private from its creation.
fn bind(path: &Path) -> nix::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    socket::listen(&socket, Backlog::new(128)?)?;
    Ok(UnixListener::from(socket))
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "socket cannot be removed");
        }
    }
}

fn make_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
        return Ok(());
    };
    if parent.is_dir() {
        return Ok(());
    }
    let mut builder = DirBuilder::new();
    let created = builder.recursive(true).mode(0o755).create(parent);
    created
        // The mask of a service often clears more bits, so this sets the directory's mode
        // explicitly.
        .and_then(|()| {
            let mut options = OpenOptions::new();
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            let directory = options.read(true).custom_flags(flags.bits()).open(parent)?;
            directory.set_permissions(Permissions::from_mode(0o755))
        })
        .with_context(|| format!("directory {} cannot be created", parent.display()))
}

fn lock(path: &Path, key: &str) -> Result<Flock<File>> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let at = name.display();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // If the file is a pipe, opening must not wait for its other end.
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(&name)
        .with_context(|| {
            format!(
                "lock file {at}: cannot be opened; remove it, run as its owner, or configure \
                     another {key}"
            )
        })?;
    let metadata = file.metadata().with_context(|| format!("lock file {at}"))?;
    ensure!(
        metadata.is_file() && metadata.uid() == geteuid().as_raw() && metadata.nlink() == 1,
        "lock file {at}: it belongs to another user, or is a link to another file; remove it or \
         configure another {key}"
    );
    // This reads the holder's name before it takes the lock, for the error.
    let mut holder = String::new();
    let _ = (&mut file).take(32).read_to_string(&mut holder);
    let mut locked = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => locked,
        Err((_, Errno::EWOULDBLOCK)) => bail!(
            "socket {}: another process (pid {}) listens on it; stop that process or configure \
             another {key}",
            path.display(),
            holder.trim()
        ),
        Err((_, error)) => return Err(error).with_context(|| format!("lock file {at}")),
    };
    let written = locked.set_len(0).and_then(|()| {
        use std::io::Seek as _;
        locked.rewind()?;
        writeln!(locked, "{}", std::process::id())
    });
    written.with_context(|| format!("lock file {at}"))?;
    Ok(locked)
}

fn remove_stale(path: &Path, key: &str) -> Result<()> {
    let at = path.display();
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("socket {at}")),
    };
    ensure!(
        metadata.file_type().is_socket(),
        "socket {at}: the path is a file, not a socket; remove it or configure another {key}"
    );
    if is_alive(path) {
        bail!(
            "socket {at}: another process listens on it; stop that process or configure another \
             {key}"
        );
    }
    fs::remove_file(path).with_context(|| format!("socket {at}: stale, cannot be removed"))
}

/// Whether a process has the socket open. A socket of another type, such as /dev/log, belongs to
/// another program.
fn is_alive(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => error.raw_os_error().map(Errno::from_raw) == Some(Errno::EPROTOTYPE),
    }
}

#[cfg(test)]
mod tests {
    use penstock_testing::temp_dir;

    use super::*;

    const KEY: &str = "[controller] socket";

    #[test]
    fn the_socket_is_private_from_birth_and_gone_at_the_end() {
        let scratch = temp_dir();
        let path = scratch.join("run/host.sock");
        let (listener, guard) = take(&path, KEY).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(scratch.join("run")).unwrap().permissions().mode() & 0o777, 0o755);
        drop((listener, guard));
        assert!(!path.exists());
    }

    #[test]
    fn a_second_daemon_is_refused_and_the_first_keeps_its_socket() {
        let scratch = temp_dir();
        let path = scratch.join("host.sock");
        let first = take(&path, KEY).unwrap();
        let error = take(&path, KEY).unwrap_err().to_string();
        let pid = std::process::id();
        assert!(error.contains(&format!("another process (pid {pid}) listens on it")), "{error}");
        assert!(error.ends_with("configure another [controller] socket"), "{error}");
        assert!(path.exists());
        drop(first);
        take(&path, KEY).unwrap();
    }

    #[test]
    fn a_dead_daemons_socket_is_replaced() {
        let scratch = temp_dir();
        let path = scratch.join("host.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        take(&path, KEY).unwrap();
    }

    #[test]
    fn what_is_no_socket_or_still_answers_is_left_alone() {
        let scratch = temp_dir();
        let file = scratch.join("file");
        fs::write(&file, "precious").unwrap();
        assert!(take(&file, KEY).unwrap_err().to_string().contains("a file, not a socket"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        let path = scratch.join("live.sock");
        let _live = UnixListener::bind(&path).unwrap();
        assert!(take(&path, KEY).unwrap_err().to_string().contains("another process listens"));
        let path = scratch.join("log.sock");
        let _log = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        assert!(take(&path, KEY).unwrap_err().to_string().contains("another process listens"));
        assert!(path.exists());
    }

    #[test]
    fn a_lock_file_that_leads_elsewhere_is_not_written_to() {
        let scratch = temp_dir();
        let (path, precious) = (scratch.join("host.sock"), scratch.join("precious"));
        let lock = scratch.join("host.sock.lock");
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &lock).unwrap();
        let error = take(&path, KEY).unwrap_err().to_string();
        assert!(error.ends_with("or configure another [controller] socket"), "a link: {error}");
        fs::remove_file(&lock).unwrap();
        fs::hard_link(&precious, &lock).unwrap();
        assert!(take(&path, KEY).unwrap_err().to_string().contains("is a link to another file"));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        fs::remove_file(&lock).unwrap();
        take(&path, KEY).unwrap();
    }
}
