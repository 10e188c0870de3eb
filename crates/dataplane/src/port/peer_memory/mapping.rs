//! A mapped range of a peer's file. The documentation of [`super`] lists the properties of mappings
//! in a table.
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

/// Size in bytes of an ordinary page.
pub(super) const PAGE: u64 = 4096;

/// Reason why the switch refuses to map a range of a peer's file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The range in the file is empty, or its end exceeds 64 bits.
    #[error("{len} bytes at offset {offset:#x} are empty or exceed the address space")]
    Shape {
        /// Offset in bytes of the range in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The file ends before the end of the range, so that an access could raise SIGBUS.
    #[error("the range ends at byte {needs}, but the file has {has} bytes")]
    Short {
        /// Offset plus length of the range, in bytes.
        needs: u64,
        /// Actual size in bytes of the file that the peer passed.
        has: u64,
    },
    /// The file is on a file system that a process may serve, so an access to the file could wait
    /// for the process.
    #[error(
        "not in a memfd, tmpfs or hugetlbfs file; for a guest's memory, use \
         `memory-backend-memfd`, or a file in /dev/shm or on hugetlbfs"
    )]
    Foreign,
    /// The mapping would exceed a limit on mapped memory.
    #[error(
        "mapping {bytes} bytes more than the {mapped} bytes of {of} would exceed the limit \
         {limit}; raise `{key}` in [host]"
    )]
    Limit {
        /// Requested bytes.
        bytes: u64,
        /// Bytes of peers' memory that were mapped before the refused request.
        mapped: u64,
        /// Limit on mapped memory in bytes.
        limit: u64,
        /// Names the owner of the limit: one port, or all ports together.
        of: &'static str,
        /// Configuration key of the exceeded memory limit.
        key: &'static str,
    },
    /// The list of guarded mappings is full. The switch guards each mapping against a shortened
    /// file.
    #[error("too many mappings are guarded already; attach fewer ports to this daemon")]
    Unguarded,
    /// The kernel refused a system call for the mapping.
    #[error("{call}: {source}")]
    Kernel {
        /// Name of the system call that failed.
        call: &'static str,
        source: nix::Error,
    },
}

/// A mapped range of a peer's file. Dropping a `Mapping` unmaps the range of the file.
#[derive(Debug)]
pub(in crate::port) struct Mapping {
    /// Address of the first byte of the mapped range.
    at: NonNull<u8>,
    /// Address of the first page that the mapped range occupies.
    pages: NonNull<c_void>,
    pages_len: usize,
    guard: Option<Guard>,
    /// The charge is dropped as the last field, so that the bytes count as mapped until the pages
    /// are unmapped.
    _charge: Charge,
}

// SAFETY: the fields never change after the mapping was made, and they point to shared memory that
// is accessed only by raw copies and atomics. WHY: one thread makes a mapping and another uses it.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`. WHY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The guard is removed first, because another mapping may get the address as soon as the
        // address is free.
        self.guard = None;
        // SAFETY: this value owns the mapping, and every holder of a pointer into it held this
        // value.
        // WHY: munmap has no safe form.
        let _ = unsafe { munmap(self.pages, self.pages_len) };
    }
}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on, and counts the bytes of their pages in
    /// `account`.
    pub(in crate::port) fn new(
        account: &MemoryAccount,
        file: &File,
        offset: u64,
        len: u64,
    ) -> Result<Self, MappingError> {
        let shape = || MappingError::Shape { offset, len };
        let needs = offset.checked_add(len).filter(|_| len > 0).ok_or_else(shape)?;
        // The file's type is checked first, because any other call could wait for a file system
        // that the peer serves.
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
        // SAFETY: a new shared mapping of a file, at an address that the kernel chooses and nothing
        // else of this process uses. WHY: mmap has no safe form.
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
            // SAFETY: as above. An old kernel returns EINVAL; page faults then come later. WHY: as
            // above.
            let _ = unsafe { madvise(pages, pages_len, MmapAdvise::MADV_POPULATE_WRITE) };
        }
        Ok(mapping)
    }

    /// Address of the first byte of the mapped range.
    pub(in crate::port) const fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Sets the eventfd that the switch signals if the file turns out to be shorter than the mapped
    /// range.
    pub(in crate::port) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        if let Some(guard) = &self.guard {
            guard.set_alarm(alarm);
        }
    }
}

fn kernel(call: &'static str) -> impl Fn(nix::Error) -> MappingError {
    move |source| MappingError::Kernel { call, source }
}

/// Whether the pages of a file are memory, so that a page fault waits for no disk, network or
/// process. Only files with pages in memory support seals. If a file's pages are not in memory,
/// `F_GET_SEALS` fails with `EINVAL`. The `F_GET_SEALS` call does not involve the file system.
pub(in crate::port) fn is_memory_file(file: &File) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS).is_ok()
}

fn size_of_file(file: &File) -> Result<u64, MappingError> {
    let stat = fstat(file).map_err(kernel("fstat"))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Size in bytes of a page of the file. The switch maps and replaces files of a peer in whole
/// pages. Only hugetlbfs has pages of more than 4,096 bytes. `st_blksize` of a tmpfs may be 2 MiB
/// although the pages of the tmpfs are small.
fn page_size(file: &File) -> Result<u64, MappingError> {
    let fs = fstatfs(file).map_err(kernel("fstatfs"))?;
    let huge = (fs.filesystem_type() == HUGETLBFS_MAGIC).then(|| fs.block_size());
    Ok(huge.and_then(|size| u64::try_from(size).ok()).unwrap_or(PAGE).max(PAGE))
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
