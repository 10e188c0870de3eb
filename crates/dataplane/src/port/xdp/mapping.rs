//! Memory mappings of an AF_XDP port: the memory of the port's frames, and the rings that the port
//! shares with the kernel.
#![allow(unsafe_code, reason = "mmap and munmap")]

use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Size of a huge page in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// A memory mapping. Dropping a `Mapping` unmaps the memory.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process and not to a thread. This type reads and writes no
// memory itself, and its users state who else has access. WHY: the pointer makes the type !Send and
// !Sync.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`. WHY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of zeroed memory and populates all pages at once, with huge pages if some
    /// are free. All pages are populated in advance, because the worker must not wait for a page
    /// fault (datapath rule 9).
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let huge = len.next_multiple_of(HUGE_PAGE);
        Self::map(huge, kind | libc::MAP_HUGETLB, -1, 0).or_else(|_| Self::map(len, kind, -1, 0))
    }

    /// Maps a ring of an AF_XDP socket. The `mmap` offset `offset` selects one of the AF_XDP
    /// socket's four rings.
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
        // Frames of guests must not be in a core file. A kernel without this advice includes the
        // frames. SAFETY: the range was just mapped. WHY: no safe form exists.
        let _ = unsafe { libc::madvise(at, len, libc::MADV_DONTDUMP) };
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { at, len })
    }

    /// Address of the first byte of the mapping.
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
        // SAFETY: `map` mapped the range with this length. No pointer into the range remains,
        // because every value with such a pointer also keeps the mapping. WHY: no safe form exists.
        unsafe { libc::munmap(self.at().cast(), self.len) };
    }
}
