//! The helper process, which performs privileged operations for the Penstock daemon.
//!
//! # Problem
//! A TAP or a packet socket of another network namespace must be made inside that namespace. A
//! process needs `CAP_SYS_ADMIN` to enter a namespace, and `CAP_CHOWN` to give a socket to another
//! user. A port needs `CAP_SYS_ADMIN` and `CAP_CHOWN` for two calls only, but a switch process with
//! these capabilities would always have them.
//!
//! # Approach
//! The process `penstock host helper` has `CAP_SYS_ADMIN` and `CAP_CHOWN`. The helper only enters
//! namespaces and changes the owner of sockets. If the daemon's own capabilities do not suffice,
//! the daemon sends a request to the helper.
//!
//! # Protocol
//! A connection (`SOCK_SEQPACKET`) carries one request and one answer. The request and the answer
//! are one message each. The helper answers with an error number (0 for success) and the requested
//! descriptor.
//!
//! # Refused requests
//! The helper answers a forbidden request with the error `EINVAL`.
//!
//! - The helper refuses a request for a kind of file descriptor other than the variants of `Kind`.
//! - The helper refuses a request for a namespace with a name that is not a plain file name in
//!   `/run/netns`.
//! - The helper refuses a request to make root the owner of a socket.
//! - The helper refuses a request to change the owner of another user's file, or of a file that is
//!   not a socket in a file system.
//! - The helper refuses a request with descriptors that the request does not need, and closes these
//!   descriptors.
//!
//! If the helper has no free file descriptors, the helper waits and accepts the connection later.
#![allow(unsafe_code, reason = "descriptors that came with a message or from a service manager")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FcntlArg, fcntl};
use nix::poll::{PollTimeout, poll};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::statfs::fstatfs;
use nix::sys::time::TimeVal;
use nix::unistd::{Gid, Uid, fchownat};

use super::vnet_socket::in_netns;
use super::{PortError, passing};

/// Path of the Unix socket on which the helper listens.
pub const HELPER_SOCKET: &str = "/run/penstock-helper/socket";

/// Longest request to the helper in bytes. A request is one byte for the kind, followed by a name
/// of at most 255 bytes or by two numbers.
const MESSAGE_MAX: usize = 256;
/// Longest time in seconds that the daemon waits for the helper's message, and the helper for the
/// daemon's message.
const PATIENCE: i64 = 2;
/// First byte of a request that changes a socket's owner.
const GIVE: u8 = 4;
/// File system type (magic number) of sockets without a path.
const SOCKFS: i64 = 0x534f_434b;
/// Pause in milliseconds before the helper accepts connections again, if no file descriptor was
/// free.
const PAUSE_MS: u16 = 100;
/// User or group id that means "unchanged" in a request. The system call `fchownat` also uses
/// `u32::MAX` for an unchanged user or group id.
const STAYS: u32 = u32::MAX;

/// Kind of a descriptor that belongs to the network namespace in which the descriptor was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `/dev/net/tun`.
    Tun = 1,
    /// A socket for `ioctl` requests about network interfaces.
    Inet = 2,
    /// A packet socket that receives no frames until it is bound.
    Packet = 3,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Tun, Self::Inet, Self::Packet].into_iter().find(|&kind| kind as u8 == byte)
    }

    fn make(self) -> io::Result<OwnedFd> {
        let (family, kind) = match self {
            Self::Tun => return open_tun(),
            Self::Inet => (libc::AF_INET, libc::SOCK_DGRAM),
            Self::Packet => (libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK),
        };
        // SAFETY: the call takes no pointers, and nothing else owns the new descriptor.
        // WHY: nix cannot open an AF_PACKET socket of SOCK_RAW with protocol 0, which receives no
        // frames until it is bound.
        unsafe {
            match libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) {
                ..0 => Err(io::Error::last_os_error()),
                fd => Ok(OwnedFd::from_raw_fd(fd)),
            }
        }
    }

    /// Name of the operation and the remedy, for error messages.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Tun => ("open /dev/net/tun", "load the tun module, and run as root"),
            Self::Inet => ("open a socket", "see the kernel's log"),
            Self::Packet => ("open a packet socket", "run as root or with CAP_NET_RAW"),
        }
    }
}

fn open_tun() -> io::Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open("/dev/net/tun").map(OwnedFd::from)
}

/// Makes a descriptor in the network namespace `netns`, which is a name under `/run/netns` or a
/// path. If `netns` is `None`, the descriptor is made in the namespace of this process. If this
/// process lacks the permission, the helper makes the descriptor.
pub(super) fn descriptor(
    netns: Option<&Path>,
    object: &str,
    kind: Kind,
) -> Result<OwnedFd, PortError> {
    let (call, remedy) = kind.words();
    let make = || kind.make().map_err(|e| PortError::system(object, call, remedy, e));
    let refused = match in_netns(netns, object, make) {
        Err(error) if error.is_refusal() => error,
        made => return made,
    };
    let Some(name) = netns.and_then(Path::to_str).filter(|name| is_plain(name)) else {
        return Err(refused);
    };
    match request(Path::new(HELPER_SOCKET), kind as u8, name.as_bytes(), None) {
        Ok(Some(descriptor)) => Ok(descriptor),
        Ok(None) => Err(refused),
        // No helper listens, so the kernel's refusal is the better error.
        Err(e) if is_absent(&e) => Err(refused),
        Err(e) => Err(PortError::system(object, "ask the helper", "see its log", e)),
    }
}

/// Changes the owner of a socket's inode. If this process lacks the permission, the helper changes
/// the owner.
pub(super) fn give(inode: &File, owner: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let change = change_owner(inode, owner.unwrap_or(STAYS), group.unwrap_or(STAYS));
    let Err(refused) = change else { return Ok(()) };
    if refused.raw_os_error() != Some(libc::EPERM) {
        return Err(refused);
    }
    let numbers = [owner.unwrap_or(STAYS).to_le_bytes(), group.unwrap_or(STAYS).to_le_bytes()];
    match request(Path::new(HELPER_SOCKET), GIVE, numbers.as_flattened(), Some(inode.as_fd())) {
        Ok(_) => Ok(()),
        Err(e) if is_absent(&e) => Err(refused),
        Err(e) => Err(e),
    }
}

/// Whether `error` means that no helper listens, or that this process may not connect to the
/// helper.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    matches!(error.kind(), ConnectionRefused | NotFound | PermissionDenied)
}

fn change_owner(inode: &File, owner: u32, group: u32) -> io::Result<()> {
    let number = |number| (number != STAYS).then_some(number);
    let (owner, group) = (number(owner).map(Uid::from_raw), number(group).map(Gid::from_raw));
    Ok(fchownat(inode, "", owner, group, AtFlags::AT_EMPTY_PATH)?)
}

/// Sends a request to the helper with the socket `path`, and waits for the answer.
fn request(
    path: &Path,
    kind: u8,
    text: &[u8],
    passed: Option<BorrowedFd<'_>>,
) -> io::Result<Option<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let asking = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    be_patient(&asking)?;
    socket::connect(asking.as_raw_fd(), &UnixAddr::new(path)?)?;
    send(&asking, &[&[kind], text].concat(), passed)?;
    let mut answer = [0; MESSAGE_MAX];
    let (len, descriptor) = receive(&asking, &mut answer)?;
    let number = answer[..len].try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    match i32::from_le_bytes(number) {
        0 => Ok(descriptor),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn be_patient(socket: &OwnedFd) -> nix::Result<()> {
    let limit = TimeVal::new(PATIENCE, 0);
    socket::setsockopt(socket, sockopt::ReceiveTimeout, &limit)?;
    socket::setsockopt(socket, sockopt::SendTimeout, &limit)
}

/// Sends a message with at most one descriptor.
fn send(to: &OwnedFd, bytes: &[u8], passed: Option<BorrowedFd<'_>>) -> io::Result<()> {
    passing::send(to, bytes, passed.as_slice())
}

/// Receives a message. A message with more than one descriptor is an error.
fn receive(from: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let (len, mut passed) = passing::receive(from, bytes)?;
    let first = passed.pop();
    match passed.is_empty() {
        true => Ok((len, first)),
        false => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Serves requests to the helper on the listening socket that the service manager passes
/// (`LISTEN_FDS`). `serve_activated` returns only if an error occurs.
///
/// # Errors
/// Returns an error if the service manager passed no listening socket, or if the socket failed.
pub fn serve_activated() -> io::Result<()> {
    let passed = passing::from_service_manager();
    let [(_, listener)] = passed.as_slice() else {
        let why = "the helper needs exactly one socket from the service manager; run \
                   `systemctl start penstock-helper.socket`";
        return Err(io::Error::new(io::ErrorKind::NotConnected, why));
    };
    serve(listener)
}

/// The helper serves requests one after the other. A request takes the helper some microseconds,
/// and at most [`PATIENCE`].
fn serve(listener: &OwnedFd) -> io::Result<()> {
    loop {
        let fd = match socket::accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            Ok(fd) => fd,
            Err(Errno::EINTR | Errno::ECONNABORTED) => continue,
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                // No descriptor is free. The connection stays in the listen queue until the next
                // attempt.
                let _ = poll(&mut [], PollTimeout::from(PAUSE_MS));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the kernel has just made the descriptor, and nothing else owns it.
        // WHY: nix returns a number.
        let asking = unsafe { OwnedFd::from_raw_fd(fd) };
        let done = answer(&asking);
        let number = done.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EINVAL));
        let made = done.as_ref().ok().and_then(Option::as_ref);
        // Sending fails only if the client is gone, which needs no answer.
        let _ = send(&asking, &number.to_le_bytes(), made.map(AsFd::as_fd));
        if let Err(error) = done {
            tracing::warn!(%error, "a request was refused");
        }
    }
}

fn answer(asking: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    be_patient(asking)?;
    let user = socket::getsockopt(asking, sockopt::PeerCredentials)?.uid();
    let mut message = [0; MESSAGE_MAX];
    let (len, passed) = receive(asking, &mut message)?;
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let (&kind, text) = message[..len].split_first().ok_or_else(invalid)?;
    if kind == GIVE {
        let inode = File::from(passed.ok_or_else(invalid)?);
        give_away(&inode, text, user)?;
        return Ok(None);
    }
    let kind = Kind::from_byte(kind).filter(|_| passed.is_none()).ok_or_else(invalid)?;
    let name = core::str::from_utf8(text).ok().filter(|name| is_plain(name)).ok_or_else(invalid)?;
    let (call, remedy) = kind.words();
    let make = || kind.make().map_err(|e| PortError::system(name, call, remedy, e));
    match in_netns(Some(Path::new(name)), name, make) {
        Ok(made) => Ok(Some(made)),
        Err(PortError::System { source, .. }) => Err(source),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Whether `name` is a plain file name. A plain name cannot lead out of the directory of network
/// namespaces.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0']) && ![".", ".."].contains(&name)
}

fn give_away(inode: &File, text: &[u8], user: u32) -> io::Result<()> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let (numbers, &[]) = text.as_chunks::<4>() else { return Err(invalid()) };
    let &[owner, group] = numbers else { return Err(invalid()) };
    let (owner, group) = (u32::from_le_bytes(owner), u32::from_le_bytes(group));
    // The daemon passes a descriptor that names the socket's inode without opening the inode
    // (`O_PATH`). An open socket's own inode lies in sockfs and has no path.
    let names = fcntl(inode, FcntlArg::F_GETFL)? & libc::O_PATH != 0;
    let in_files = fstatfs(inode)?.filesystem_type().0 != SOCKFS;
    let found = inode.metadata()?;
    let is_right = names && in_files && found.file_type().is_socket() && found.uid() == user;
    if !is_right || owner == 0 || group == 0 {
        return Err(invalid());
    }
    change_owner(inode, owner, group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::geteuid;
    use std::path::PathBuf;
    use std::process::Command;

    /// Starts a helper in a thread of the test. The helper's thread ends when the test process
    /// ends.
    fn helper(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener =
            socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        socket::bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        socket::listen(&listener, socket::Backlog::new(8).unwrap()).unwrap();
        std::thread::spawn(move || serve(&listener));
        path
    }

    fn errno<T: core::fmt::Debug>(answer: io::Result<T>) -> Option<i32> {
        answer.unwrap_err().raw_os_error()
    }

    #[test]
    fn what_is_not_in_its_rules_is_refused() {
        let path = helper("rules");
        for name in ["", ".", "..", "a/b", "/proc/1/ns/net", "../../proc/1/ns/net", "a\0b", "\u{0}"]
        {
            assert_eq!(
                errno(request(&path, 2, name.as_bytes(), None)),
                Some(libc::EINVAL),
                "{name}"
            );
        }
        for kind in [0, 5, 255] {
            assert_eq!(errno(request(&path, kind, b"blue", None)), Some(libc::EINVAL), "{kind}");
        }
        assert_eq!(errno(request(&path, 1, b"no-such-namespace", None)), Some(libc::ENOENT));
        let file = File::open("/dev/null").unwrap();
        for text in [&[1_u8; 8][..], &[1; 7], &[]] {
            let answer = request(&path, GIVE, text, Some(file.as_fd()));
            assert_eq!(errno(answer), Some(libc::EINVAL), "no socket, or no two numbers");
        }
        assert_eq!(errno(request(&path, GIVE, &[1; 8], None)), Some(libc::EINVAL));
        std::fs::remove_file(&path).unwrap();
    }

    /// Device and inode of every open descriptor of this process.
    fn open_files() -> Vec<(u64, u64)> {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let inode = |entry: io::Result<std::fs::DirEntry>| {
            std::fs::metadata(entry.unwrap().path()).ok().map(|found| (found.dev(), found.ino()))
        };
        all.filter_map(inode).collect()
    }

    #[test]
    fn descriptors_that_nobody_asked_for_are_refused_and_closed() {
        let path = helper("passed");
        let file = std::env::temp_dir().join(format!("penstock-file-{}", std::process::id()));
        let passed = File::create(&file).unwrap();
        let found = passed.metadata().unwrap();
        let inode = (found.dev(), found.ino());
        let flags = SockFlag::SOCK_CLOEXEC;
        let ask = |kind: u8, count: usize| {
            let asking =
                socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
            be_patient(&asking).unwrap();
            socket::connect(asking.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
            let text = [&[kind], &[1_u8; 8][..]].concat();
            passing::send(&asking, &text, &vec![passed.as_fd(); count]).unwrap();
            let mut answer = [0; MESSAGE_MAX];
            let (len, got) = receive(&asking, &mut answer).unwrap();
            assert!(got.is_none());
            i32::from_le_bytes(answer[..len].try_into().unwrap())
        };
        for (kind, count) in
            [(GIVE, 2), (GIVE, 3), (GIVE, passing::PASSED_MAX), (Kind::Inet as u8, 1)]
        {
            assert_eq!(ask(kind, count), libc::EINVAL, "{kind} {count}");
        }
        let left = open_files().into_iter().filter(|&open| open == inode).count();
        assert_eq!(left, 1, "the test's own");
        std::fs::remove_file(&file).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_socket_that_is_open_does_not_change_hands() {
        let path = helper("open");
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let opened = OwnedFd::from(ours.try_clone().unwrap());
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut options = File::options();
        let named = options.read(true).custom_flags(libc::O_PATH);
        let named = named.open(format!("/proc/self/fd/{}", ours.as_raw_fd()));
        let stays = [STAYS.to_le_bytes(); 2];
        for inode in [Some(opened), named.ok().map(OwnedFd::from)].into_iter().flatten() {
            let answer = request(&path, GIVE, stays.as_flattened(), Some(inode.as_fd()));
            assert_eq!(errno(answer), Some(libc::EINVAL));
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn without_descriptors_it_waits_and_goes_on() {
        const CHILD: &str = "PENSTOCK_HELPER_TEST";
        let name = "without_descriptors_it_waits_and_goes_on";
        if std::env::var(CHILD).is_err() {
            let full = format!("port::helper::tests::{name}");
            let mut command = Command::new(std::env::current_exe().unwrap());
            let done = command.args(["--exact", &full]).env(CHILD, "1").output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            return;
        }
        let path = std::env::temp_dir().join(format!("penstock-full-{}", std::process::id()));
        let kind = || {
            let flags = SockFlag::SOCK_CLOEXEC;
            socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap()
        };
        let (listener, asking) = (kind(), kind());
        let at = UnixAddr::new(&path).unwrap();
        socket::bind(listener.as_raw_fd(), &at).unwrap();
        socket::listen(&listener, socket::Backlog::new(8).unwrap()).unwrap();
        socket::connect(asking.as_raw_fd(), &at).unwrap();
        send(&asking, &[0], None).unwrap();
        let nofile = nix::sys::resource::Resource::RLIMIT_NOFILE;
        nix::sys::resource::setrlimit(nofile, 64, 64).unwrap();
        let all: Vec<_> = core::iter::from_fn(|| listener.try_clone().ok()).collect();
        let serves = std::thread::spawn(move || serve(&listener));
        for _ in 0..300 {
            let _ = poll(&mut [], PollTimeout::from(1_u8));
            assert!(!serves.is_finished(), "the helper has ended");
        }
        drop(all);
        be_patient(&asking).unwrap();
        let mut answer = [0; MESSAGE_MAX];
        let (len, _) = receive(&asking, &mut answer).unwrap();
        assert_eq!(answer[..len], libc::EINVAL.to_le_bytes());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_sockets_of_the_asking_user_change_hands_and_not_to_root() {
        let path = helper("give");
        use std::os::unix::fs::OpenOptionsExt as _;
        let inode = File::options().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        let ask = |owner: u32, group: u32| {
            let numbers = [owner.to_le_bytes(), group.to_le_bytes()];
            request(&path, GIVE, numbers.as_flattened(), Some(inode.as_fd()))
        };
        assert_eq!(errno(ask(0, STAYS)), Some(libc::EINVAL));
        assert_eq!(errno(ask(STAYS, 0)), Some(libc::EINVAL));
        ask(STAYS, STAYS).unwrap();
        if geteuid().is_root() {
            ask(12_345, 12_346).unwrap();
            let found = inode.metadata().unwrap();
            assert_eq!((found.uid(), found.gid()), (12_345, 12_346));
            assert_eq!(errno(ask(12_347, STAYS)), Some(libc::EINVAL), "it is no longer ours");
        } else {
            penstock_testing::skip("giving a file to another user needs root");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_descriptor_belongs_to_the_namespace_it_was_asked_for() {
        let name = format!("penstock-helper-{}", std::process::id());
        let ip = |verb: &str| Command::new("ip").args(["netns", verb, &name]).status();
        if !geteuid().is_root() || !ip("add").is_ok_and(|status| status.success()) {
            penstock_testing::skip("needs root and `ip netns`");
            return;
        }
        let path = helper("netns");
        /// Number of the ioctl that opens the network namespace of a socket.
        const SIOCGSKNS: libc::Ioctl = 0x894c;
        let there = std::fs::metadata(Path::new("/run/netns").join(&name)).unwrap();
        for kind in [Kind::Inet, Kind::Packet, Kind::Tun] {
            let got = request(&path, kind as u8, name.as_bytes(), None).unwrap().unwrap();
            if kind == Kind::Tun {
                // A TUN descriptor has no namespace until it has an interface. The lane `units` of
                // `scripts/checks.sh` tests that case.
                continue;
            }
            // SAFETY: the call takes no argument and returns a new descriptor. WHY: no safe form
            // exists.
            let space = unsafe { libc::ioctl(got.as_raw_fd(), SIOCGSKNS, 0) };
            assert!(space >= 0, "{kind:?}: {}", io::Error::last_os_error());
            // SAFETY: as in `receive`. WHY: as in `receive`.
            let space = File::from(unsafe { OwnedFd::from_raw_fd(space) });
            assert_eq!(space.metadata().unwrap().ino(), there.ino(), "{kind:?}");
        }
        assert!(ip("del").unwrap().success());
        std::fs::remove_file(&path).unwrap();
    }
}
