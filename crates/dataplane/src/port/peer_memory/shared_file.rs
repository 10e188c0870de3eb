//! A range of a file that a port's peer shares: the dirty log or the inflight region. The module
//! [`super::super::guest_memory`] maps the memory of guests.
//!
//! The numbered datapath rules 8 and 11 (`docs/internals/datapath-rules.md`) apply to shared files.
//! The front end gives offset and length of the range, and the switch checks both numbers against
//! the file before use ([`Mapping`]). CVE-2020-10722 was possible because the offset and length of
//! a shared file's range were not checked. The words of the range are atomics, because the peer
//! also writes these words.
#![allow(unsafe_code, reason = "atomics in the mapping")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};
use std::fs::File;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;

use super::limits::MemoryAccount;
use super::mapping::{Mapping, MappingError, PAGE};

/// Reason why the switch refuses a file that the front end shares.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedFileError {
    /// The offset in the file is not a multiple of the page size, so that words would not be
    /// aligned.
    #[error("{what}: offset {offset:#x} is inside a page; use a multiple of {PAGE}")]
    Offset {
        /// Purpose of the shared file, for the error message.
        what: &'static str,
        /// Offset in bytes of the range in the file.
        offset: u64,
    },
    /// The range is longer than the limit for the purpose of the file.
    #[error("{what}: {len} bytes; the limit is {limit}")]
    TooLong {
        /// Purpose of the shared file, for the error message.
        what: &'static str,
        /// Requested bytes.
        len: u64,
        /// Limit in bytes for the purpose of the file.
        limit: u64,
    },
    /// The switch cannot map the shared file.
    #[error("{what}: {source}")]
    Map {
        /// Purpose of the shared file, for the error message.
        what: &'static str,
        source: MappingError,
    },
}

/// A mapped range of a file that the front end shares.
#[derive(Debug)]
pub(in crate::port) struct SharedFile {
    at: NonNull<u8>,
    len: usize,
    /// Keeps `at` mapped.
    mapping: Mapping,
}

// SAFETY: the mapping belongs to no thread and is accessed only by atomics.
// WHY: control threads map it and workers write to it.
unsafe impl Send for SharedFile {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedFile {}

impl SharedFile {
    /// Maps `len` bytes of `file` from `offset` on, and counts the bytes in `account`. `what` is
    /// the purpose of the file for error messages.
    pub(in crate::port) fn map(
        account: &MemoryAccount,
        what: &'static str,
        file: &File,
        offset: u64,
        len: u64,
        limit: u64,
    ) -> Result<Self, SharedFileError> {
        if !offset.is_multiple_of(PAGE) {
            return Err(SharedFileError::Offset { what, offset });
        }
        let Some(bytes) = usize::try_from(len).ok().filter(|_| len <= limit) else {
            return Err(SharedFileError::TooLong { what, len, limit });
        };
        let mapping = Mapping::new(account, file, offset, len)
            .map_err(|source| SharedFileError::Map { what, source })?;
        Ok(Self { at: mapping.at(), len: bytes, mapping })
    }

    /// Sets the eventfd that the switch signals if the shared file turns out to be shorter than the
    /// mapped range.
    pub(in crate::port) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        self.mapping.set_alarm(alarm);
    }

    #[inline]
    fn word<T>(&self, offset: usize) -> Option<*mut T> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.len || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: the whole word lies in the range. The range begins at a page, so the word is
        // aligned.
        // WHY: the words of a shared file have no safe form.
        Some(unsafe { self.at.as_ptr().add(offset).cast() })
    }

    /// The byte at `offset` in the mapped range. `None` if `offset` is outside of the range.
    #[inline]
    pub(in crate::port) fn u8_at(&self, offset: usize) -> Option<&AtomicU8> {
        // SAFETY: the word was checked, and its mapping lives as long as `self`. WHY: the memory is
        // shared.
        self.word(offset).map(|at| unsafe { AtomicU8::from_ptr(at) })
    }

    /// The 16-bit word at `offset` in the mapped range. `None` if the word is outside of the range
    /// or misaligned.
    #[inline]
    pub(in crate::port) fn u16_at(&self, offset: usize) -> Option<&AtomicU16> {
        // SAFETY: as in `u8_at`. WHY: as in `u8_at`.
        self.word(offset).map(|at| unsafe { AtomicU16::from_ptr(at) })
    }

    /// The 64-bit word at `offset` in the mapped range. `None` if the word is outside of the range
    /// or misaligned.
    #[inline]
    pub(in crate::port) fn u64_at(&self, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: as in `u8_at`. WHY: as in `u8_at`.
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
        SharedFile::map(&MemoryAccount::default(), "log", file, offset, len, 1 << 20)
    }

    #[test]
    fn a_stretch_must_lie_in_its_file() {
        let two_pages = file(8192);
        assert!(map(&two_pages, 4096, 4096).is_ok());
        for (offset, len) in [(4096, 4097), (8192, 1), (0, 8193), (u64::MAX - 4095, 4096)] {
            assert!(map(&two_pages, offset, len).is_err(), "{offset:#x} + {len}");
        }
        let error = map(&two_pages, 100, 100).unwrap_err();
        assert_eq!(error.to_string(), "log: offset 0x64 is inside a page; use a multiple of 4096");
        let none = map(&two_pages, 0, 0).unwrap_err().to_string();
        assert_eq!(none, "log: 0 bytes at offset 0x0 are empty or exceed the address space");
        assert!(matches!(map(&file(4 << 20), 0, 2 << 20), Err(SharedFileError::TooLong { .. })));
    }

    #[test]
    fn a_file_that_is_no_memory_is_refused() {
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        let error = map(&zero, 0, 4096).unwrap_err().to_string();
        assert!(error.starts_with("log: not in a memfd"), "{error}");
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
