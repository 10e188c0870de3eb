//! Opens TAP devices whose frames have virtio headers.
//!
//! The sources are `Documentation/networking/tuntap.rst` and `include/uapi/linux/if_tun.h` of
//! Linux.
#![allow(unsafe_code, reason = "ioctls for TAP settings have no safe Rust wrapper")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::sched::{CloneFlags, setns};

use crate::driver::{Features, VNET_HDR_LEN};

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
const TUNSETVNETLE: libc::c_ulong = 0x4004_54dc;
const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const TUN_F_CSUM: libc::c_ulong = 1;
const TUN_F_TSO4: libc::c_ulong = 2;
const TUN_F_TSO6: libc::c_ulong = 4;
/// `TUN_F_USO4` and `TUN_F_USO6`, which Linux 6.2 and later know.
const TUN_F_USO: libc::c_ulong = 0x60;

/// The part of `struct ifreq` that TUNSETIFF reads.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Opens `queues` queues of the TAP `name` in a network namespace. `netns` is the namespace's file,
/// or `None` for the namespace of the process. The function enters the namespace in a new thread,
/// so that the caller's thread stays in its own namespace.
pub(crate) fn open(netns: Option<PathBuf>, name: &str, queues: u16) -> io::Result<Vec<OwnedFd>> {
    let name = name.to_owned();
    let opening = move || {
        if let Some(netns) = netns {
            setns(File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
        }
        (0..queues).map(|_| open_queue(&name, queues > 1)).collect()
    };
    std::thread::spawn(opening)
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that opens the TAP panicked")))
}

fn open_queue(name: &str, multi_queue: bool) -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let mut request = IfReq { name: [0; 16], flags: 0, rest: [0; 22] };
    if name.len() >= request.name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "interface name too long"));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    request.flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if multi_queue {
        request.flags |= IFF_MULTI_QUEUE;
    }
    let fd = OwnedFd::from(file);
    let header = libc::c_int::try_from(VNET_HDR_LEN).unwrap_or(12);
    let little_endian: libc::c_int = 1;
    // SAFETY: each request gets a pointer to a live value of the type that the kernel expects. The
    // kernel reads (and for TUNSETIFF writes) only this value.
    // WHY: no safe interface to these settings exists.
    unsafe {
        check(libc::ioctl(fd.as_raw_fd(), TUNSETIFF, &raw mut request))?;
        check(libc::ioctl(fd.as_raw_fd(), TUNSETVNETHDRSZ, &raw const header))?;
        check(libc::ioctl(fd.as_raw_fd(), TUNSETVNETLE, &raw const little_endian))?;
    }
    set_offloads(&fd, Features::NONE)?;
    Ok(fd)
}

/// Allows the namespace's network stack to leave checksums and segmentation to the switch,
/// according to `features`.
pub(crate) fn set_offloads(tap: &OwnedFd, features: Features) -> io::Result<()> {
    let mut flags = 0;
    if features.contains(Features::CSUM) {
        flags |= TUN_F_CSUM;
        if features.contains(Features::HOST_TSO4) {
            flags |= TUN_F_TSO4;
        }
        if features.contains(Features::HOST_TSO6) {
            flags |= TUN_F_TSO6;
        }
        if features.contains(Features::HOST_USO) {
            flags |= TUN_F_USO;
        }
    }
    set_flags(tap, flags)
}

/// Whether the kernel knows large segments of UDP at a TAP that was just opened.
pub(crate) fn knows_uso(tap: &OwnedFd) -> bool {
    let known = set_flags(tap, TUN_F_CSUM | TUN_F_USO).is_ok();
    // The attachment sets the offloads again.
    known && set_flags(tap, 0).is_ok()
}

fn set_flags(tap: &OwnedFd, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    // WHY: no safe interface to this setting exists.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETOFFLOAD, flags) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
