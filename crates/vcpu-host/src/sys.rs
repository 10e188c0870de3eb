//! Wrappers for the system calls `sched_setattr(2)`, `sched_getattr(2)` and `pidfd_open(2)`,
//! because the crate `nix` has no wrappers for these calls. All other modules of the crate contain
//! only safe code.
#![allow(unsafe_code, reason = "nix 0.31 has no wrapper for the scheduling and pidfd calls")]

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

use libc::{c_long, c_uint, pid_t, sched_attr};

/// Size in bytes of the first version of `sched_attr`, which every kernel with `sched_setattr(2)`
/// supports.
const SIZE: u32 = 48;

/// Scheduling attributes in which only the size is set, which means `SCHED_OTHER`, nice 0 and the
/// kernel's own slice.
pub(crate) const fn blank() -> sched_attr {
    sched_attr {
        size: SIZE,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

fn result(returned: c_long) -> io::Result<c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

fn pid(id: u32) -> io::Result<pid_t> {
    pid_t::try_from(id).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Reads the scheduling attributes of thread `tid`; 0 is the calling thread.
pub(crate) fn getattr(tid: u32) -> io::Result<sched_attr> {
    let (tid, mut attr, flags) = (pid(tid)?, blank(), 0 as c_uint);
    // SAFETY: the kernel writes at most SIZE bytes into `attr`, which has that size and outlives
    // the call.
    result(unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SIZE, flags) })?;
    Ok(attr)
}

/// Sets the scheduling attributes of thread `tid`; 0 is the calling thread.
pub(crate) fn setattr(tid: u32, attr: &sched_attr) -> io::Result<()> {
    let (tid, flags) = (pid(tid)?, 0 as c_uint);
    // SAFETY: the kernel reads `attr.size` bytes of `attr`, which `blank` set to SIZE, the size of
    // the structure. `attr` outlives the call. Scheduling touches no memory of this process.
    result(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const *attr, flags) })?;
    Ok(())
}

/// Opens a descriptor that becomes readable when the process `id` is dead.
pub(crate) fn pidfd_open(id: u32) -> io::Result<OwnedFd> {
    let (id, flags) = (pid(id)?, 0 as c_uint);
    // SAFETY: the call takes no pointers.
    let fd = result(unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the call succeeded, so `fd` is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
