//! Common parts of TAP and AF_PACKET ports. TAP and AF_PACKET ports move each frame by a system
//! call, with a virtio-net header before the frame.
#![allow(unsafe_code, reason = "vectored system calls on guest memory need raw pointers")]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use penstock_units::Cycles;

use super::{AttachState, AttachStatus, PortError, TxOutcome, helper};
use crate::batch::{Batch, CHAIN_MAX, Frame};
use crate::finish::SEGMENTS_PER_FRAME_MAX;
use crate::offload::{OffloadCaps, VNET_HDR_LEN};

/// Limits the number of system calls with which a port polls for frames. Each empty poll lengthens
/// the pause before the next poll.
#[derive(Debug, Default)]
pub(super) struct PollSpacing {
    due: u64,
    gap: u64,
}

/// Shortest pause in cycles between two polls, about 1 us. `GAP_MAX` is the longest pause, about 8
/// us. An idle port makes at most one polling system call in 8 us.
const GAP_MIN: u64 = 2_000;
const GAP_MAX: u64 = 16_000;

impl PollSpacing {
    #[inline]
    pub(super) fn is_due(&self, now: Cycles) -> bool {
        now.0 >= self.due
    }

    /// Records whether the poll at time `now` found a frame.
    #[inline]
    pub(super) fn polled(&mut self, now: Cycles, found: bool) {
        self.gap = if found { 0 } else { (self.gap * 2).clamp(GAP_MIN, GAP_MAX) };
        self.due = now.0.saturating_add(self.gap);
    }
}

/// Maximum number of reads without a usable frame in one burst.
pub(super) const ERRORS_MAX: u32 = 32;

/// Maximum number of pieces of a frame: virtio-net header, head, and a chain with every buffer
/// split at a border of memory regions.
const PIECES: usize = 2 + 2 * CHAIN_MAX;

/// A frame as pieces for a vectored system call: the virtio-net header, the head, and the other
/// bytes.
pub(super) struct FramePieces {
    header: [u8; VNET_HDR_LEN],
    pieces: [libc::iovec; PIECES],
    count: usize,
}

impl FramePieces {
    pub(super) fn new() -> Self {
        let none = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        Self { header: [0; VNET_HDR_LEN], pieces: [none; PIECES], count: 0 }
    }

    /// Returns frame `i` as a list of pieces. The first piece is the frame's virtio-net header of
    /// `header_len` bytes.
    fn of(&mut self, batch: &Batch, i: usize, header_len: usize) -> &mut [libc::iovec] {
        self.header = batch.frame(i).offload.to_wire(0);
        let head = batch.head(i);
        self.pieces[0] = piece(self.header.as_ptr(), header_len);
        self.pieces[1] = piece(head.as_ptr(), head.len());
        self.count = 2;
        for s in batch.segments(i) {
            self.pieces[self.count] = piece(s.data, s.len as usize);
            self.count += 1;
        }
        &mut self.pieces[..self.count]
    }

    /// Writes the frames of `batch` with the indices `frames` to `fd`, each behind a virtio-net
    /// header of `header_len` bytes.
    pub(super) fn write(
        &mut self,
        batch: &Batch,
        frames: &[u8],
        fd: BorrowedFd<'_>,
        header_len: usize,
    ) -> TxOutcome {
        let mut out = TxOutcome::default();
        for i in frames.iter().copied().map(usize::from) {
            if too_many_segments(batch.frame(i)) {
                out.too_big += 1;
                continue;
            }
            let sent = write_vectored(fd, self.of(batch, i, header_len));
            count_result(&mut out, batch, i, sent);
        }
        out
    }
}

pub(super) fn piece(at: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}

/// Writes `pieces` to `fd` with `writev`. The kernel checks every address, so a page that a guest
/// removed causes `EFAULT` instead of a signal.
fn write_vectored(fd: BorrowedFd<'_>, pieces: &[libc::iovec]) -> Result<usize, i32> {
    let count = libc::c_int::try_from(pieces.len()).map_err(|_| libc::EINVAL)?;
    // SAFETY: `pieces` is a valid array, and the kernel only reads the memory that it names.
    // WHY: the safe form needs slices, which must not exist over guest memory.
    let n = unsafe { libc::writev(fd.as_raw_fd(), pieces.as_ptr(), count) };
    usize::try_from(n).map_err(|_| last_error())
}

pub(super) fn last_error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Whether segmentation of the frame would create more segments than the switch allows for one
/// frame. If the interface cannot segment, the kernel segments the frame inside the worker's system
/// call.
fn too_many_segments(frame: &Frame) -> bool {
    let o = frame.offload;
    let payload = (frame.len as usize).saturating_sub(usize::from(o.hdr_len));
    o.is_gso() && payload > usize::from(o.gso_size) * SEGMENTS_PER_FRAME_MAX
}

/// Counts frame `i` in `out` according to the kernel's answer `sent`.
fn count_result(out: &mut TxOutcome, batch: &Batch, i: usize, sent: Result<usize, i32>) {
    match sent {
        Ok(_) => {
            let frame = batch.frame(i);
            out.frames += 1;
            out.bytes += u64::from(frame.len);
            out.tso += u32::from(frame.offload.is_gso());
        }
        Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => out.ring_full += 1,
        Err(libc::EMSGSIZE) => out.too_big += 1,
        Err(libc::EIO | libc::ENETDOWN | libc::ENODEV | libc::ENXIO | libc::EBADFD) => {
            out.down += 1;
        }
        Err(_) => out.error += 1,
    }
}

/// Returns the path of a network namespace's file.
fn netns_path(netns: &Path) -> PathBuf {
    if netns.components().count() == 1 {
        PathBuf::from("/run/netns").join(netns)
    } else {
        netns.to_owned()
    }
}

/// Device and inode of a file, which are those of the namespace if the file is a namespace's.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Runs `work` inside a network namespace. A new thread executes `work`, so that the caller's
/// namespace is unchanged.
pub(super) fn in_netns<T: Send>(
    netns: Option<&Path>,
    object: &str,
    work: impl FnOnce() -> Result<T, PortError> + Send,
) -> Result<T, PortError> {
    let Some(netns) = netns else { return work() };
    let path = netns_path(netns);
    let remedy = "create the namespace with `ip netns add`, or correct `netns`";
    let file = std::fs::File::open(&path)
        .map_err(|e| PortError::system(path.display().to_string(), "open namespace", remedy, e))?;
    std::thread::scope(|scope| {
        let inside = move || {
            setns(&file, CloneFlags::CLONE_NEWNET).map_err(|e| {
                let remedy = "run as root or with CAP_SYS_ADMIN, or start penstock-helper.socket";
                PortError::system(path.display().to_string(), "enter namespace", remedy, e)
            })?;
            work()
        };
        match scope.spawn(inside).join() {
            Ok(result) => result,
            Err(_) => {
                let e = std::io::Error::other("the thread panicked");
                Err(PortError::system(object, "enter namespace", "", e))
            }
        }
    })
}

/// A network interface, and a socket in the interface's namespace for requests about the interface.
#[derive(Debug)]
pub(super) struct Interface {
    name: String,
    socket: OwnedFd,
    /// File of the interface's namespace, and its device and inode.
    netns: Option<(PathBuf, (u64, u64))>,
}

impl Interface {
    /// Opens the socket for requests in namespace `netns`. If `netns` is `None`, the socket is
    /// opened in the namespace of the calling thread.
    pub(super) fn new(name: &str, netns: Option<&Path>) -> Result<Self, PortError> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            let limit = libc::IFNAMSIZ as u64 - 1;
            let problem = "bytes in the interface's name";
            return Err(PortError::Limit { object: name.to_owned(), problem, limit });
        }
        let socket = helper::descriptor(netns, name, helper::Kind::Inet)?;
        let netns = netns.map(netns_path).and_then(|path| {
            let of_path = identity(&path)?;
            Some((path, of_path))
        });
        Ok(Self { name: name.to_owned(), socket, netns })
    }

    /// Whether the namespace's file now leads to another namespace, because a namespace of the same
    /// name was made again. The open socket keeps the former namespace alive.
    pub(super) fn has_new_netns(&self) -> bool {
        let Some((path, before)) = &self.netns else { return false };
        identity(path).is_some_and(|now| now != *before)
    }

    pub(super) fn request(&self) -> libc::ifreq {
        // SAFETY: all-zero is a valid `ifreq`. WHY: it holds a union, and libc has no constructor.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request
    }

    fn ioctl(&self, call: libc::Ioctl, request: &mut libc::ifreq) -> std::io::Result<()> {
        // SAFETY: all calls made here take an `ifreq`. WHY: ioctl has no safe form.
        let done = unsafe { libc::ioctl(self.socket.as_raw_fd(), call, request) };
        if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn index(&self) -> std::io::Result<i32> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: SIOCGIFINDEX fills this field. WHY: the field is in a union.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex })
    }

    fn flags(&self) -> std::io::Result<libc::c_short> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS fills this field. WHY: the field is in a union.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    pub(super) fn is_up(&self) -> bool {
        let up = libc::c_short::try_from(libc::IFF_UP).unwrap_or(1);
        self.flags().is_ok_and(|flags| flags & up != 0)
    }

    /// Status of a port with `queues` queues, whose interface exists.
    pub(super) fn status(&self, offloads: OffloadCaps, queues: u16) -> AttachStatus {
        let up = self.is_up();
        AttachStatus {
            state: if up { AttachState::Up } else { AttachState::Down },
            error: None,
            features: super::offload_names(offloads),
            ring_sizes: Vec::new(),
            queues_up: if up { queues } else { 0 },
        }
    }

    /// Status of a port whose interface or namespace was deleted.
    pub(super) fn gone(&self) -> AttachStatus {
        let error =
            format!("{}: the interface or its namespace is gone; create it again", self.name);
        AttachStatus {
            state: AttachState::Error,
            error: Some(error),
            features: Vec::new(),
            ring_sizes: Vec::new(),
            queues_up: 0,
        }
    }

    /// Whether the network interface is up and has a link.
    pub(super) fn is_running(&self) -> bool {
        let both = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(0x41);
        self.flags().is_ok_and(|flags| flags & both == both)
    }

    pub(super) fn mtu(&self) -> std::io::Result<u32> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: SIOCGIFMTU fills this field. WHY: the field is in a union.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(u32::try_from(mtu).unwrap_or(0))
    }

    /// Executes an ethtool command that consists of 32-bit words. The first word of an ethtool
    /// command is the command's number, and the other words are values that the command sets or
    /// returns.
    pub(super) fn ethtool(&self, words: &mut [u32]) -> std::io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        self.ioctl(libc::SIOCETHTOOL, &mut request)
    }

    pub(super) fn set_up(&self) -> std::io::Result<()> {
        let up = libc::c_short::try_from(libc::IFF_UP).unwrap_or(1);
        let mut request = self.request();
        request.ifr_ifru.ifru_flags = self.flags()? | up;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    pub(super) fn set_mtu(&self, mtu: u32) -> std::io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = i32::try_from(mtu).unwrap_or(i32::MAX);
        self.ioctl(libc::SIOCSIFMTU, &mut request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{F_NEEDS_CSUM, GSO_TCPV4, Offload};

    #[test]
    fn frames_of_thousands_of_segments_are_refused() {
        let refused = |gso_type, gso_size| {
            let mut batch = Batch::new();
            let offload =
                Offload { flags: F_NEEDS_CSUM, gso_type, gso_size, hdr_len: 54, ..Offload::NONE };
            batch.push(&[0; 54 + 128 * 100], offload).unwrap();
            too_many_segments(batch.frame(0))
        };
        assert!(refused(GSO_TCPV4, 1) && refused(GSO_TCPV4, 99));
        assert!(!refused(GSO_TCPV4, 100) && !refused(0, 0));
    }
}
