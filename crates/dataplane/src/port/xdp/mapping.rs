//! Mappings of this process: the memory of the frames, and the rings that are shared with the
//! kernel.
#![allow(unsafe_code, reason = "mmap and munmap")]

use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Size of the huge pages of this architecture.
const HUGE_PAGE: usize = 2 << 20;

/// A mapping that lives as long as this value.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process and not to a thread. Nothing is read or written through
// this type, and its users state who else has access. WHY: the pointer makes the type !Send and
// !Sync.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`. WHY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory that is populated at once, in huge pages if some are free. The memory is
    /// populated here because the worker must not wait for a page (datapath rule 9).
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let huge = len.next_multiple_of(HUGE_PAGE);
        Self::map(huge, kind | libc::MAP_HUGETLB, -1, 0).or_else(|_| Self::map(len, kind, -1, 0))
    }

    /// Maps a ring of an AF_XDP socket; `offset` selects the ring.
    pub(super) fn of_socket(
        socket: BorrowedFd<'_>,
        offset: libc::off_t,
        len: usize,
    ) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), offset)
    }

    fn map(len: usize, kind: i32, fd: i32, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: no address is requested, so no existing mapping is replaced.
        // WHY: nix's form needs a non-zero length type and has no other advantage.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, access, kind, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Frames of guests must not be in a core file. A kernel that does not know the advice
        // includes them. SAFETY: the range was just mapped. WHY: no safe form exists.
        let _ = unsafe { libc::madvise(at, len, libc::MADV_DONTDUMP) };
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { at, len })
    }

    /// First byte of the mapping.
    pub(super) fn at(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped the range with this length. No pointer into it is left, because
        // pointers live only in values that hold the mapping. WHY: no safe form exists.
        unsafe { libc::munmap(self.at().cast(), self.len) };
    }
}
