//! A stretch of a peer's file, mapped. See the table of [`super`].
#![allow(unsafe_code, reason = "mmap, madvise and munmap")]

use core::ffi::c_void;
use core::ptr::NonNull;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use super::limits::{Charge, MemoryAccount};
use super::sigbus::Guard;

/// Bytes of a page, if it is not a huge one.
pub(super) const PAGE: u64 = 4096;

/// A stretch of a file cannot be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// Empty, or its end is no number.
    #[error("{len} bytes at offset {offset:#x} are empty or exceed the address space")]
    Shape {
        /// Where in the file.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The file ends before the stretch does: touching it would be a SIGBUS.
    #[error("needs {needs} bytes, and the file has {has}")]
    Short {
        /// Offset plus length.
        needs: u64,
        /// The file's size.
        has: u64,
    },
    /// Touching it could wait for whoever serves its file system.
    #[error(
        "not in a memfd, tmpfs or hugetlbfs file; use `memory-backend-memfd`, or a file in \
         /dev/shm or on hugetlbfs"
    )]
    Foreign,
    /// More than may be mapped.
    #[error(
        "{bytes} bytes more than the {mapped} that {of} has mapped, limit {limit}; raise `{key}` \
         in [host]"
    )]
    Limit {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes mapped before.
        mapped: u64,
        /// The most.
        limit: u64,
        /// Whose limit it is.
        of: &'static str,
        /// The key that sets it.
        key: &'static str,
    },
    /// No place in the list of mappings that are guarded against a shortened file.
    #[error("too many mappings are guarded already; attach fewer ports to this daemon")]
    Unguarded,
    /// The kernel refused.
    #[error("{call}: {source}")]
    Kernel {
        /// What was being done.
        call: &'static str,
        /// The kernel's answer.
        source: nix::Error,
    },
}

/// A mapped stretch, for as long as this value lives.
#[derive(Debug)]
pub(in crate::port) struct Mapping {
    /// The first byte of the stretch.
    at: NonNull<u8>,
    /// The pages that hold it.
    pages: NonNull<c_void>,
    pages_len: usize,
    guard: Option<Guard>,
    /// Given back by itself after the pages are unmapped.
    _charge: Charge,
}

// SAFETY: the fields are never changed after the mapping was made, and what they point to is shared
// memory that is only accessed through raw copies and atomics. WHY: mappings are made by one thread
// and used by another.
unsafe impl Send for Mapping {}
// SAFETY: as above. WHY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Off the list first: the address may be somebody else's once it is unmapped.
        self.guard = None;
        // SAFETY: the mapping is ours alone, and whoever held a pointer into it held this value.
        // WHY: munmap has no safe form.
        let _ = unsafe { munmap(self.pages, self.pages_len) };
    }
}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on, and counts their pages in `account`.
    pub(in crate::port) fn new(
        account: &MemoryAccount,
        file: &File,
        offset: u64,
        len: u64,
    ) -> Result<Self, MappingError> {
        let shape = || MappingError::Shape { offset, len };
        let needs = offset.checked_add(len).filter(|_| len > 0).ok_or_else(shape)?;
        // First of all: any other call could wait for a file system that the peer serves.
        if !is_memory_file(file) {
            return Err(MappingError::Foreign);
        }
        let has = size_of_file(file)?;
        if has < needs {
            return Err(MappingError::Short { needs, has });
        }
        let page = page_size(file)?;
        let from = offset - offset % page;
        let bytes = (needs - from).checked_next_multiple_of(page).ok_or_else(shape)?;
        let charge = account.charge(bytes)?;
        let number = |n: u64| usize::try_from(n).map_err(|_| shape());
        let pages_len = number(bytes)?;
        let length = NonZeroUsize::new(pages_len).ok_or_else(shape)?;
        let first = libc::off_t::try_from(from).map_err(|_| shape())?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping of a file; nothing else of ours lies at the address the
        // kernel picks. WHY: mmap has no safe form.
        let pages =
            unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file.as_fd(), first) }
                .map_err(kernel("mmap"))?;
        let inside = number(offset - from)?;
        // SAFETY: `inside` is less than the mapping's length. WHY: pointer arithmetic.
        let at = unsafe { pages.cast::<u8>().add(inside) };
        let mut mapping = Self { at, pages, pages_len, guard: None, _charge: charge };
        // SAFETY: the range was just mapped. WHY: madvise has no safe form.
        unsafe { madvise(pages, pages_len, MmapAdvise::MADV_DONTDUMP) }
            .map_err(kernel("madvise(MADV_DONTDUMP)"))?;
        let guard = Guard::new(pages.as_ptr(), pages_len, number(page)?);
        mapping.guard = Some(guard.ok_or(MappingError::Unguarded)?);
        if page > PAGE {
            // SAFETY: as above. An old kernel says EINVAL: then faults come later. WHY: as above.
            let _ = unsafe { madvise(pages, pages_len, MmapAdvise::MADV_POPULATE_WRITE) };
        }
        Ok(mapping)
    }

    /// The stretch's first byte.
    pub(in crate::port) const fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Has `alarm` rung when the file turns out to be shorter than the stretch.
    pub(in crate::port) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        if let Some(guard) = &self.guard {
            guard.set_alarm(alarm);
        }
    }
}

fn kernel(call: &'static str) -> impl Fn(nix::Error) -> MappingError {
    move |source| MappingError::Kernel { call, source }
}

/// Whether a file's pages are memory: a page fault in it waits for no disk, no network and no
/// process. Seals exist for just these files, sealed or not (`fcntl_getseals(2)`: `EINVAL` for all
/// others), and asking for them asks no file system.
pub(in crate::port) fn is_memory_file(file: &File) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS).is_ok()
}

fn size_of_file(file: &File) -> Result<u64, MappingError> {
    let stat = fstat(file).map_err(kernel("fstat"))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Bytes of a page of a file's: whole ones are mapped and replaced. Only hugetlbfs has others than
/// ours; `st_blksize` of a tmpfs may be 2 MiB where its pages are small.
fn page_size(file: &File) -> Result<u64, MappingError> {
    let fs = fstatfs(file).map_err(kernel("fstatfs"))?;
    let huge = (fs.filesystem_type() == HUGETLBFS_MAGIC).then(|| fs.block_size());
    Ok(huge.and_then(|size| u64::try_from(size).ok()).unwrap_or(PAGE).max(PAGE))
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
