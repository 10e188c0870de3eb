//! A stretch of a file that the other side of a port shares with us and is not guest memory: the
//! dirty log, the inflight region.
//!
//! **Rule** (datapath rules 8, 11). Offset and length are the frontend's and are checked against
//! the file before they are used (CVE-2020-10722 took them as they came); a file that is shortened
//! afterwards is guarded like guest memory. Words are atomics: the other side writes them too.
#![allow(unsafe_code, reason = "mmap, and atomics in the mapping")]

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;

use super::guest_memory::{is_memory_file, page_size};
use super::sigbus::Guard;

const PAGE: u64 = 4096;

/// A shared file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedFileError {
    /// Empty, wrapping, or not at a page.
    #[error("{what}: {len} bytes at offset {offset:#x} are none, wrap or begin inside a page")]
    Shape {
        /// What the file is for.
        what: &'static str,
        /// Where in the file.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// More than is ever needed.
    #[error("{what}: {len} bytes; at most {limit} are taken")]
    TooLong {
        /// What the file is for.
        what: &'static str,
        /// Bytes asked for.
        len: u64,
        /// The most.
        limit: u64,
    },
    /// The file ends before the stretch does: touching it would be a SIGBUS.
    #[error("{what}: needs {needs} bytes of a file of {has}")]
    Short {
        /// What the file is for.
        what: &'static str,
        /// Offset plus length.
        needs: u64,
        /// The file's size.
        has: u64,
    },
    /// Touching it could wait for whoever serves its file system.
    #[error("{0}: not a memfd, tmpfs or hugetlbfs file")]
    Foreign(&'static str),
    /// No place in the list of mappings that are guarded against a shortened file.
    #[error("{0}: too many mappings are guarded already")]
    Unguarded(&'static str),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Map {
        /// What the file is for.
        what: &'static str,
        /// The kernel's answer.
        source: nix::Error,
    },
}

/// A mapped stretch of a shared file.
#[derive(Debug)]
pub(super) struct SharedFile {
    at: NonNull<u8>,
    len: usize,
    guard: Option<Guard>,
}

// SAFETY: the mapping belongs to no thread and is only accessed through atomics.
// WHY: control threads map, workers write.
unsafe impl Send for SharedFile {}
// SAFETY: as above.
unsafe impl Sync for SharedFile {}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // Off the list first: the address may be somebody else's once it is unmapped.
        self.guard = None;
        // SAFETY: the mapping is ours alone, and words borrowed from it borrow `self`.
        // WHY: munmap has no safe form.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}

impl SharedFile {
    /// Maps `len` bytes of `file` from `offset` on; `what` names it in errors.
    pub(super) fn map(
        what: &'static str,
        file: &File,
        offset: u64,
        len: u64,
        limit: u64,
    ) -> Result<Self, SharedFileError> {
        let shape = SharedFileError::Shape { what, offset, len };
        let Some(needs) = offset.checked_add(len) else { return Err(shape) };
        if !offset.is_multiple_of(PAGE) {
            return Err(shape);
        }
        if len > limit {
            return Err(SharedFileError::TooLong { what, len, limit });
        }
        let refused = |source| SharedFileError::Map { what, source };
        if !is_memory_file(file) {
            return Err(SharedFileError::Foreign(what));
        }
        let stat = fstat(file).map_err(refused)?;
        let has = u64::try_from(stat.st_size).unwrap_or(0);
        if has < needs {
            return Err(SharedFileError::Short { what, needs, has });
        }
        // A huge page's file can only be mapped in whole pages.
        let page = page_size(file).map_err(refused)?;
        let bytes = usize::try_from(len.next_multiple_of(page)).ok().and_then(NonZeroUsize::new);
        let (Some(bytes), Ok(from)) = (bytes, libc::off_t::try_from(offset)) else {
            return Err(shape);
        };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping of a file; nothing else of ours lies at the address the
        // kernel picks. WHY: mmap has no safe form.
        let mapping =
            unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file.as_fd(), from) }
                .map_err(refused)?;
        let mut shared = Self { at: mapping.cast(), len: bytes.get(), guard: None };
        let page = usize::try_from(page).unwrap_or(4096);
        shared.guard = Guard::new(mapping.as_ptr(), bytes.get(), page);
        if shared.guard.is_none() {
            return Err(SharedFileError::Unguarded(what));
        }
        Ok(shared)
    }

    /// Has `alarm` rung when the file turns out to be shorter than the stretch.
    pub(super) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        if let Some(guard) = &self.guard {
            guard.set_alarm(alarm);
        }
    }

    #[inline]
    fn word<T>(&self, offset: usize) -> Option<*mut T> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.len || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: the whole word lies in the mapping, which begins at a page, so it is aligned.
        // WHY: the file's words have no safe counterpart.
        Some(unsafe { self.at.as_ptr().add(offset).cast() })
    }

    /// The byte at `offset`; `None` outside of the mapping.
    #[inline]
    pub(super) fn u8_at(&self, offset: usize) -> Option<&AtomicU8> {
        // SAFETY: a checked word of a mapping that lives as long as `self`. WHY: shared memory.
        self.word(offset).map(|at| unsafe { AtomicU8::from_ptr(at) })
    }

    /// The 16-bit word at `offset`.
    #[inline]
    pub(super) fn u16_at(&self, offset: usize) -> Option<&AtomicU16> {
        // SAFETY: as in `u8_at`. WHY: as there.
        self.word(offset).map(|at| unsafe { AtomicU16::from_ptr(at) })
    }

    /// The 64-bit word at `offset`.
    #[inline]
    pub(super) fn u64_at(&self, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: as in `u8_at`. WHY: as there.
        self.word(offset).map(|at| unsafe { AtomicU64::from_ptr(at) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn file(len: u64) -> File {
        let file = File::from(memfd_create(c"shared", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    }

    fn map(file: &File, offset: u64, len: u64) -> Result<SharedFile, SharedFileError> {
        SharedFile::map("log", file, offset, len, 1 << 20)
    }

    #[test]
    fn a_stretch_must_lie_in_its_file() {
        let two_pages = file(8192);
        assert!(map(&two_pages, 4096, 4096).is_ok());
        for (offset, len) in [(4096, 4097), (8192, 1), (0, 8193), (u64::MAX - 4095, 4096)] {
            assert!(map(&two_pages, offset, len).is_err(), "{offset:#x} + {len}");
        }
        let error = map(&two_pages, 100, 100).unwrap_err();
        assert_eq!(
            error.to_string(),
            "log: 100 bytes at offset 0x64 are none, wrap or begin inside a page"
        );
        assert!(matches!(map(&two_pages, 0, 0), Err(SharedFileError::Shape { .. })));
        assert!(matches!(map(&file(4 << 20), 0, 2 << 20), Err(SharedFileError::TooLong { .. })));
    }

    #[test]
    fn a_file_that_is_no_memory_is_refused() {
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        assert!(matches!(map(&zero, 0, 4096), Err(SharedFileError::Foreign("log"))));
    }

    #[test]
    fn words_outside_of_the_mapping_or_misaligned_are_none() {
        let shared = map(&file(4096), 0, 4096).unwrap();
        assert!(shared.u8_at(4095).is_some() && shared.u8_at(4096).is_none());
        assert!(shared.u16_at(4094).is_some() && shared.u16_at(4095).is_none());
        assert!(shared.u64_at(4088).is_some() && shared.u64_at(4089).is_none());
        assert!(shared.u64_at(usize::MAX).is_none());
    }

    #[test]
    fn a_file_shortened_later_reads_as_zeroes() {
        use core::sync::atomic::Ordering::Relaxed;
        let short = file(4096);
        let shared = map(&short, 0, 4096).unwrap();
        shared.u8_at(7).unwrap().store(9, Relaxed);
        short.set_len(0).unwrap();
        assert_eq!(shared.u8_at(7).unwrap().load(Relaxed), 0);
    }
}
