//! An AF_XDP socket on one queue of an interface, with the socket's memory and four rings.
//!
//! Each queue of an AF_XDP port has its own memory, so that workers share nothing (datapath rule
//! 1). The kernel gets the buffers of the receive share before the socket is bound.
#![allow(unsafe_code, reason = "AF_XDP socket options and addresses need raw pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::super::PortError;
use super::mapping::Mapping;
use super::ring::{Consumer, Layout, Producer};
use super::umem::Umem;
use super::{patience, refused};

/// Number of receive buffers of a queue. The receive buffers have room for 1.4 ms of 1,500-byte
/// frames at 25 Gbit/s, or for 138 us of the shortest frames at 10 Gbit/s. The fill ring and the rx
/// ring each have one entry for every receive buffer.
pub(super) const RECEIVE: u32 = 2048;
/// Number of send buffers of a queue, in which frames may wait. The send buffers have room for 4 ms
/// of frames of 1,500 bytes at 10 Gbit/s.
pub(super) const SEND: u32 = 4096;
/// Number of entries of the tx ring. The tx ring limits the number of frames that the port gives to
/// the kernel at once.
pub(super) const TX_RING: u32 = 2048;
/// Number of entries of the completion ring. The completion ring has room for all buffers that can
/// be with the kernel to send.
const COMPLETION_RING: u32 = SEND;
/// Limit in bytes on the frames that are in transit in the kernel, if the kernel copies frames.
const SEND_BUFFER: libc::c_int = 16 << 20;

const _: () = assert!(RECEIVE.is_power_of_two() && TX_RING.is_power_of_two());
const _: () = assert!(COMPLETION_RING.is_power_of_two() && COMPLETION_RING >= TX_RING);

/// The four rings.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) rx: Consumer<libc::xdp_desc>,
    pub(super) tx: Producer<libc::xdp_desc>,
}

impl Rings {
    /// Puts all buffers of the receive share into the fill ring, so that the kernel may receive
    /// frames into these buffers.
    pub(super) fn fill_up(&mut self, umem: &Umem) {
        for buffer in 0..self.fill.size() {
            self.fill.push(umem.address(buffer, 0));
        }
        self.fill.publish();
    }
}

/// A bound socket.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) socket: OwnedFd,
    pub(super) umem: Umem,
    pub(super) rings: Rings,
    /// Whether the NIC writes frames directly into the port's memory.
    pub(super) zero_copy: bool,
}

/// Parameters for opening an AF_XDP socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) name: &'a str,
    pub(super) interface: u32,
    pub(super) queue: u32,
    /// Whether the kernel may use zero-copy.
    pub(super) zero_copy: bool,
    /// Binary logarithm of a buffer's size in bytes.
    pub(super) shift: u32,
}

/// Opens and binds an AF_XDP socket, in the network namespace of the calling thread.
pub(super) fn open(place: Place<'_>) -> Result<Opened, PortError> {
    let name = place.name;
    let rights = "run as root, or with CAP_NET_RAW";
    let memory = "raise RLIMIT_MEMLOCK, or run with CAP_IPC_LOCK";
    let socket = new_socket().map_err(|e| refused(name, "open an AF_XDP socket", rights, e))?;
    let umem = Umem::new(place.shift, RECEIVE + SEND)
        .map_err(|e| refused(name, "map memory for frames", memory, e))?;
    let registration = umem.registration();
    set(&socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
        .map_err(|e| refused(name, "register memory for frames", memory, e))?;
    let sizes = [
        (libc::XDP_UMEM_FILL_RING, RECEIVE),
        (libc::XDP_UMEM_COMPLETION_RING, COMPLETION_RING),
        (libc::XDP_RX_RING, RECEIVE),
        (libc::XDP_TX_RING, TX_RING),
    ];
    for (ring, size) in sizes {
        set(&socket, libc::SOL_XDP, ring, &size)
            .map_err(|e| refused(name, "make the rings", memory, e))?;
    }
    // For an unprivileged process, the kernel limits the size to its own maximum. Fewer frames are
    // then in transit.
    if set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER).is_err() {
        let _ = set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER);
    }
    let mut rings = map_rings(&socket).map_err(|e| refused(name, "map the rings", memory, e))?;
    rings.fill_up(&umem);
    bind(&socket, place).map_err(|e| {
        let remedy = match e.raw_os_error() {
            Some(libc::EBUSY) => {
                "another AF_XDP socket uses this queue: end the process that owns the socket"
            }
            _ => "check that the interface has this queue, or use type = \"packet\"",
        };
        refused(name, "bind the AF_XDP socket to a queue of the interface", remedy, e)
    })?;
    let zero_copy = is_zero_copy(&socket);
    Ok(Opened { socket, umem, rings, zero_copy })
}

fn new_socket() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers, and nothing else owns the new descriptor. WHY: nix knows
    // no AF_XDP.
    unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

fn length<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let at = core::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads the `size_of::<T>()` bytes of `value`, and every caller passes the
    // option's own type. WHY: nix knows none of these options.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, length::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a socket option of type `T`. The type `T` has only integers, so that all-zero bytes are a
/// valid value.
///
/// # Safety
/// Any pattern of bits must be a valid value of `T`.
unsafe fn get<T>(socket: &OwnedFd, option: i32) -> io::Result<T> {
    // SAFETY: the caller guarantees that any bits are a value of `T`. The kernel writes at most
    // `length` bytes. WHY: as in `set`.
    unsafe {
        let mut value: T = core::mem::zeroed();
        let mut length = length::<T>();
        let at = (&raw mut value).cast();
        let fd = socket.as_raw_fd();
        match libc::getsockopt(fd, libc::SOL_XDP, option, at, &raw mut length) {
            done if done < 0 => Err(io::Error::last_os_error()),
            _ => Ok(value),
        }
    }
}

fn map_rings(socket: &OwnedFd) -> io::Result<Rings> {
    // SAFETY: the structure has only integers. WHY: as in `get`.
    let offsets: libc::xdp_mmap_offsets = unsafe { get(socket, libc::XDP_MMAP_OFFSETS) }?;
    let map = |layout: Layout, size, entry, page: u64| {
        let len = layout.bytes(size, entry).filter(|&len| len < 1 << 30);
        let len = len.ok_or_else(|| {
            io::Error::other("the kernel returned an impossible layout of the rings")
        })?;
        let page = libc::off_t::try_from(page).map_err(io::Error::other)?;
        Mapping::of_socket(socket.as_fd(), page, len).map(Arc::new)
    };
    let (fill, completion) = (Layout::from(offsets.fr), Layout::from(offsets.cr));
    let (rx, tx) = (Layout::from(offsets.rx), Layout::from(offsets.tx));
    let descriptor = size_of::<libc::xdp_desc>();
    let at = [
        map(fill, RECEIVE, 8, libc::XDP_UMEM_PGOFF_FILL_RING)?,
        map(completion, COMPLETION_RING, 8, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?,
        map(rx, RECEIVE, descriptor, libc::XDP_PGOFF_RX_RING.unsigned_abs())?,
        map(tx, TX_RING, descriptor, libc::XDP_PGOFF_TX_RING.unsigned_abs())?,
    ];
    let [at_fill, at_completion, at_rx, at_tx] = at;
    Ok(Rings {
        fill: Producer::new(at_fill, fill, RECEIVE)?,
        completion: Consumer::new(at_completion, completion, COMPLETION_RING)?,
        rx: Consumer::new(at_rx, rx, RECEIVE)?,
        tx: Producer::new(at_tx, tx, TX_RING)?,
    })
}

/// Binds the socket to its queue. The kernel uses zero-copy if `place` allows zero-copy and the
/// driver supports it. If the queue is busy, `bind` tries again, because the kernel frees an ended
/// owner's queue only a moment later.
fn bind(socket: &OwnedFd, place: Place<'_>) -> io::Result<()> {
    let copy = if place.zero_copy { 0 } else { libc::XDP_COPY };
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).unwrap_or(44),
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | copy,
        sxdp_ifindex: place.interface,
        sxdp_queue_id: place.queue,
        sxdp_shared_umem_fd: 0,
    };
    patience(|| {
        let (fd, at) = (socket.as_raw_fd(), (&raw const address).cast());
        // SAFETY: the kernel reads the structure, whose length is passed. WHY: nix lacks it.
        let done = unsafe { libc::bind(fd, at, length::<libc::sockaddr_xdp>()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    })
}

fn is_zero_copy(socket: &OwnedFd) -> bool {
    // SAFETY: the structure is one integer. WHY: as in `get`.
    let options: io::Result<libc::xdp_options> = unsafe { get(socket, libc::XDP_OPTIONS) };
    options.is_ok_and(|options| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Number of frames since the opening of the socket that were longer than a buffer. If the kernel
/// copies, the kernel's counter `rx_dropped` also includes frames for which no buffer was free. The
/// kernel counts frames without a free buffer in a separate counter, which is subtracted from
/// `rx_dropped`. With zero-copy, a driver reports neither too long frames nor frames without a
/// buffer.
pub(super) fn frames_too_long(socket: &OwnedFd) -> u64 {
    // SAFETY: the structure has only integers; an older kernel fills less of it. WHY: as in `get`.
    let statistics: io::Result<libc::xdp_statistics> = unsafe { get(socket, libc::XDP_STATISTICS) };
    statistics.map_or(0, |s| s.rx_dropped.saturating_sub(s.rx_fill_ring_empty_descs))
}

/// Makes the kernel read the tx ring if `send` is true, otherwise the fill ring.
pub(super) fn wake(socket: &OwnedFd, send: bool) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    let nothing = core::ptr::null_mut();
    let (flags, none) = (libc::MSG_DONTWAIT, core::ptr::null_mut());
    // SAFETY: no bytes are passed in either direction. WHY: the calls only wake the kernel, and
    // nix's forms require buffers and addresses.
    let done = unsafe {
        if send {
            libc::sendto(fd, nothing, 0, flags, core::ptr::null(), 0)
        } else {
            libc::recvfrom(fd, nothing, 0, flags, none, core::ptr::null_mut())
        }
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
