//! The dirty log, in which the switch marks the guest pages that the switch wrote. A hypervisor
//! that migrates the guest reads the dirty log.
//!
//! # Problem
//! While a VM migrates, the hypervisor copies the VM's pages as they change. The hypervisor cannot
//! see which pages the device (the switch) writes.
//!
//! # Source
//! The vhost-user specification, "Migration", defines one bit for each 4 KiB page of guest
//! addresses, lowest bit first. The back end sets a bit of the log with an atomic OR. The front end
//! reads and clears bits of the log with an atomic exchange.
//!
//! # Approach
//! The switch marks a page *after* it has written the page. The front end clears a page's bit
//! before it copies the page. If the switch marks a page late, the front end only copies the page a
//! second time. If the switch marked a page before writing the page, the copy could miss the
//! switch's write. A locked instruction sets the bit even if the bit seems to be set, because the
//! processor could execute a plain read before earlier writes. The switch does not mark a page
//! beyond the log's end (CVE-2020-10722).
//!
//! # Cost
//! For a ring without a dirty log, the only cost is one check per burst (`SplitRing::publish`).

use core::sync::atomic::Ordering;
use std::fs::File;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;

use super::peer_memory::shared_file::SharedFile;
use super::peer_memory::{MemoryAccount, SharedFileError};

/// Bytes of guest memory that one bit of the dirty log represents, independent of the host's page
/// size.
pub const LOG_PAGE: u64 = 4096;
/// Longest accepted dirty log in bytes. A dirty log of this maximum length covers 8 TiB of guest
/// addresses.
pub const LOG_BYTES_MAX: u64 = 256 << 20;

/// A dirty log, which the switch shares with the vhost-user front end.
#[derive(Debug)]
pub struct DirtyLog {
    bits: SharedFile,
    len: u64,
}

impl DirtyLog {
    /// Maps `len` bytes of `file` from `offset` on, and counts these bytes in `account`.
    ///
    /// # Errors
    /// Returns `SharedFileError` if the range is not in the file, or is longer than
    /// [`LOG_BYTES_MAX`].
    pub fn map(
        account: &MemoryAccount,
        file: &File,
        offset: u64,
        len: u64,
    ) -> Result<Self, SharedFileError> {
        let bits = SharedFile::map(account, "dirty log", file, offset, len, LOG_BYTES_MAX)?;
        Ok(Self { bits, len })
    }

    /// Sets the eventfd that the switch signals if the dirty log's file turns out to be shorter
    /// than the log.
    pub(super) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        self.bits.set_alarm(alarm);
    }

    /// Whether the dirty log has a bit for every page below guest address `end`.
    #[must_use]
    pub const fn covers(&self, end: u64) -> bool {
        end.div_ceil(LOG_PAGE).div_ceil(8) <= self.len
    }

    /// Marks the pages of `len` bytes at guest address `guest` as written. The caller must write
    /// the pages before it calls `mark`.
    pub fn mark(&self, guest: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|more| guest.checked_add(more)) else {
            return;
        };
        for page in guest / LOG_PAGE..=last / LOG_PAGE {
            // The mapping ends at a page border, but the log may end inside the last page.
            if page / 8 >= self.len {
                return;
            }
            let byte = usize::try_from(page / 8).ok().and_then(|at| self.bits.u8_at(at));
            let Some(byte) = byte else { return };
            byte.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

/// Dirty log for one ring of a port.
#[derive(Clone, Debug)]
pub struct RingLog {
    pub log: Arc<DirtyLog>,
    /// Guest address of the used ring for the dirty log (`log_guest_addr`). `None` if the front end
    /// did not request marks for writes to the ring itself (`VHOST_VRING_F_LOG`).
    pub used: Option<u64>,
}

impl RingLog {
    /// Marks `len` bytes of the used ring, from byte `offset` on, as written.
    pub fn mark_used(&self, offset: u64, len: u64) {
        if let Some(at) = self.used.and_then(|used| used.checked_add(offset)) {
            self.log.mark(at, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::unix::fs::FileExt;

    fn log(len: u64) -> (File, DirtyLog) {
        let file = File::from(memfd_create(c"log", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(8192).unwrap();
        let log = DirtyLog::map(&MemoryAccount::default(), &file, 4096, len).unwrap();
        (file, log)
    }

    fn marked(file: &File) -> Vec<u64> {
        let mut bytes = [0; 8192];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..4096].iter().all(|&b| b == 0), "marked before the log's offset");
        let bit = |n: &u64| bytes[4096 + usize::try_from(n / 8).unwrap()] & 1 << (n % 8) != 0;
        (0..8 * 4096).filter(bit).collect()
    }

    #[test]
    fn every_page_that_a_write_touches_is_marked_and_no_other() {
        let (file, log) = log(64);
        log.mark(0, 1);
        log.mark(3 * LOG_PAGE - 1, 2);
        log.mark(8 * LOG_PAGE, 2 * LOG_PAGE);
        log.mark(20 * LOG_PAGE, 0);
        assert_eq!(marked(&file), [0, 2, 3, 8, 9]);
    }

    #[test]
    fn what_lies_beyond_the_log_is_not_marked() {
        let (file, log) = log(2);
        log.mark(15 * LOG_PAGE, LOG_PAGE + 1);
        log.mark(16 * LOG_PAGE, 1);
        log.mark(u64::MAX, 1);
        log.mark(u64::MAX, 2);
        log.mark(0, u64::MAX);
        assert_eq!(marked(&file), (0..16).collect::<Vec<_>>());
        assert!(log.covers(16 * LOG_PAGE) && !log.covers(16 * LOG_PAGE + 1));
        assert!(!log.covers(u64::MAX));
    }

    #[test]
    fn a_used_ring_is_marked_where_the_front_end_says() {
        let (file, log) = log(64);
        let log = Arc::new(log);
        RingLog { log: Arc::clone(&log), used: None }.mark_used(0, 8);
        assert_eq!(marked(&file), [0_u64; 0]);
        let ring = RingLog { log, used: Some(5 * LOG_PAGE) };
        ring.mark_used(LOG_PAGE - 4, 8);
        RingLog { used: Some(u64::MAX), ..ring }.mark_used(4, 8);
        assert_eq!(marked(&file), [5, 6]);
    }
}
