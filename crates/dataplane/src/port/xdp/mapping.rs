//! Mappings of ours: the memory of the frames, and the rings that the kernel shares with us.
#![allow(unsafe_code, reason = "mmap and munmap")]

use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The huge page of this architecture.
const HUGE_PAGE: usize = 2 << 20;

/// A mapping that lives as long as this value.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process and not to a thread. Nothing is read or written through
// this type; who does so states who else may. WHY: the pointer makes the type !Send and !Sync.
unsafe impl Send for Mapping {}
// SAFETY: as above. WHY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory that is there from the start, in huge pages if there are free ones: the
    /// worker must not wait for a page (datapath rule 9).
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let huge = len.next_multiple_of(HUGE_PAGE);
        Self::map(huge, kind | libc::MAP_HUGETLB, -1, 0).or_else(|_| Self::map(len, kind, -1, 0))
    }

    /// A ring of an AF_XDP socket: `offset` says which.
    pub(super) fn of_socket(
        socket: BorrowedFd<'_>,
        offset: libc::off_t,
        len: usize,
    ) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), offset)
    }

    fn map(len: usize, kind: i32, fd: i32, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: no address is asked for, so nothing that is mapped already is replaced.
        // WHY: nix's form wants a non-zero length type and has no advantage else.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, access, kind, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Guests' frames belong in no core file. Nothing is lost if the kernel does not know how.
        // SAFETY: just mapped. WHY: there is no safe form.
        let _ = unsafe { libc::madvise(at, len, libc::MADV_DONTDUMP) };
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { at, len })
    }

    /// Its first byte.
    pub(super) fn at(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Its bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nobody has it any more: pointers into it
        // live in values that hold the mapping. WHY: there is no safe form.
        unsafe { libc::munmap(self.at().cast(), self.len) };
    }
}
