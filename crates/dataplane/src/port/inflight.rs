//! The inflight region: a record that a front end keeps in case the back end dies. The region shows
//! the next back end which chains were taken and not returned.
//!
//! # Source
//! The vhost-user specification, "Inflight I/O tracking": a header and one entry per descriptor for
//! each queue. The back end makes the file, the front end keeps it, and both map it.
//!
//! # What is recorded, and when
//! A chain is in flight from the moment its head is read from the available ring until the used
//! index covers it. The switch's rings return chains strictly in the order in which they were made
//! available, and return a batch before they take the next one. At every instant, the chains in
//! flight are thus exactly the available entries from the used index on. The used index is one
//! 16-bit store, and it is the only moment at which chains change owner. If the switch is killed
//! before this store, no chain of the batch was returned, and the next switch takes all of them
//! again. If it is killed after the store, all chains were returned, and the next switch takes none
//! of them.
//!
//! For this reason no chain needs its `inflight` mark, and the switch sets no marks. By the
//! specification, a successor that finds no marks starts at the used index and resubmits nothing,
//! which is correct. Only `used_idx` is recorded, after the ring's own index. Between the two
//! stores `used_idx` lags by one batch. The specification provides for this: the successor clears
//! the marks of the last batch. As there are no marks, it clears nothing.
//!
//! The worker writes the two rings of a frame in a fixed order. A frame is visible at its
//! destination before its chain is returned. If the switch is killed, a frame may thus be delivered
//! twice, but no frame is lost after its chain was returned.
//!
//! # Recovery
//! A region may come from another program that returned chains out of order and died. In that case
//! marks are set. The marked heads are resubmitted first, in the order of their counters, and the
//! ring continues behind them. Meanwhile the whole procedure of the specification is followed,
//! store by store ([`SplitInflight::begin`], [`SplitInflight::end`]).
//!
//! # Trust
//! The file belongs to the front end and may hold anything. Every head is checked, and marks that
//! are impossible for the ring are dropped.
//!
//! # Cost
//! A ring without a region checks once per burst whether it has anything to record. A ring with a
//! region does one more store.
//!
//! # Packed rings
//! A packed ring has no index in the guest's memory, and a used descriptor overwrites the driver's
//! description of its buffer. For this reason one word keeps two positions: those of the ring
//! before and after the burst. The word is written before and after the single store that makes the
//! burst visible to the driver. The first descriptor of the burst then tells whether that store was
//! made. Descriptors of the burst that are overwritten before that store are saved first. They are
//! restored if the store was never made ([`PackedInflight`]).

use core::sync::atomic::{Ordering, fence};
use std::fs::File;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::peer_memory::shared_file::SharedFile;
use super::peer_memory::{MemoryAccount, SharedFileError};

/// Version of a queue's layout in the specification.
const VERSION: u16 = 1;
/// Alignment in bytes of each queue's part.
const ALIGN: usize = 64;
/// Largest accepted region in bytes: 32 queues of 32,768 packed descriptors are 32 MiB.
const REGION_MAX: u64 = 64 << 20;

// Offsets in bytes of the fields of a queue's header. Split and packed rings share them up to
// `DESC_NUM`.
const AT_VERSION: usize = 8;
const AT_DESC_NUM: usize = 10;
const SPLIT_LAST_BATCH: usize = 12;
const SPLIT_USED: usize = 14;
const SPLIT_HEADER: usize = 16;
// An entry of a split ring's queue.
const SPLIT_ENTRY: usize = 16;
const ENTRY_NEXT: usize = 6;
const ENTRY_COUNTER: usize = 8;
const PACKED_HEADER: usize = 32;
/// `used_idx`, `old_used_idx`, their wrap counters and two bytes of padding, as one word.
const PACKED_STATE: usize = 16;
const PACKED_ENTRY: usize = 32;
/// Id, flags and length of a descriptor as the driver wrote it.
const PACKED_ENTRY_SAVED: usize = 16;
/// A bit in the padding that says that this switch wrote the positions. A new region does not have
/// it.
const PACKED_KNOWN: u64 = 1 << 56;
/// The wrap counter in a position as vhost-user encodes it.
const WRAP: u16 = 1 << 15;

/// Kind of the rings that a region describes. Each kind has its own layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingLayout {
    Split,
    Packed,
}

impl RingLayout {
    /// Bytes of one queue's part.
    const fn stride(self, size: u16) -> usize {
        let n = size as usize;
        match self {
            Self::Split => (SPLIT_HEADER + SPLIT_ENTRY * n).next_multiple_of(ALIGN),
            Self::Packed => (PACKED_HEADER + PACKED_ENTRY * n).next_multiple_of(ALIGN),
        }
    }
}

/// Reason for which a region is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InflightError {
    /// The file cannot be mapped.
    #[error(transparent)]
    File(#[from] SharedFileError),
    /// The region has fewer bytes than its queues need.
    #[error("inflight region: {queues} queues of {size} need {needs} bytes, not {has}")]
    Small {
        /// Number of queues.
        queues: u16,
        /// Number of descriptors in each queue.
        size: u16,
        /// Number of bytes that the queues need.
        needs: u64,
        /// Number of bytes that the front end announced.
        has: u64,
    },
    /// The layout has an unknown version.
    #[error("inflight region: queue {queue} has layout version {version}; only 1 is known")]
    Version {
        queue: u16,
        /// Version in the queue's header.
        version: u16,
    },
    /// The file could not be made.
    #[error("inflight region: {0}")]
    Make(nix::Error),
}

/// One mapped region, which holds all queues of a session.
#[derive(Debug)]
pub struct InflightRegion {
    file: SharedFile,
    layout: RingLayout,
    queues: u16,
    size: u16,
}

impl InflightRegion {
    /// Makes an empty region for a front end to keep. Returns its file and its length in bytes.
    ///
    /// # Errors
    /// [`InflightError`] if the region is too long, or the kernel has no memory for it.
    pub fn make(
        account: &MemoryAccount,
        layout: RingLayout,
        queues: u16,
        size: u16,
    ) -> Result<(File, u64), InflightError> {
        let len = needs(layout, queues, size);
        if len > REGION_MAX {
            let limit = REGION_MAX;
            return Err(SharedFileError::TooLong { what: "inflight region", len, limit }.into());
        }
        let file = memfd_create(c"penstock-inflight", MFdFlags::MFD_CLOEXEC)
            .map(File::from)
            .map_err(InflightError::Make)?;
        let refused = |e: std::io::Error| {
            InflightError::Make(nix::Error::from_raw(e.raw_os_error().unwrap_or(0)))
        };
        file.set_len(len).map_err(refused)?;
        // Mapping the file writes the headers.
        Self::map(account, layout, &file, 0, len, (queues, size))?;
        Ok((file, len))
    }

    /// Maps a region that a front end passes, and counts it in `account`. The region is the `len`
    /// bytes of `file` from `offset` on. The last argument is the number of queues and the number
    /// of descriptors per queue.
    ///
    /// # Errors
    /// [`InflightError`].
    pub fn map(
        account: &MemoryAccount,
        layout: RingLayout,
        file: &File,
        offset: u64,
        len: u64,
        (queues, size): (u16, u16),
    ) -> Result<Self, InflightError> {
        let needs = needs(layout, queues, size);
        if len < needs {
            return Err(InflightError::Small { queues, size, needs, has: len });
        }
        let file = SharedFile::map(account, "inflight region", file, offset, len, REGION_MAX)?;
        let region = Self { file, layout, queues, size };
        for queue in 0..queues {
            region.adopt(queue)?;
        }
        Ok(region)
    }

    /// Sets the event that is signalled if the region's file turns out to be shorter than the
    /// region.
    pub(super) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        self.file.set_alarm(alarm);
    }

    /// Writes a header into a queue's part that has none.
    fn adopt(&self, queue: u16) -> Result<(), InflightError> {
        let at = usize::from(queue) * self.layout.stride(self.size);
        match self.load(at + AT_VERSION) {
            VERSION => {}
            0 => {
                self.store(at + AT_DESC_NUM, self.size);
                if self.layout == RingLayout::Packed {
                    self.store_state(at, WRAP, WRAP, 0);
                }
                self.store(at + AT_VERSION, VERSION);
            }
            version => return Err(InflightError::Version { queue, version }),
        }
        Ok(())
    }

    /// The part of queue `index` for a split ring of `size` descriptors. `None` if the region has
    /// no such queue, is smaller than the ring, or is for packed rings.
    #[must_use]
    pub fn split(self: &Arc<Self>, index: u16, size: u16) -> Option<SplitInflight> {
        let fits = self.layout == RingLayout::Split && index < self.queues && size <= self.size;
        let at = usize::from(index) * self.layout.stride(self.size);
        fits.then(|| SplitInflight { region: Arc::clone(self), at, size })
    }

    /// Like [`Self::split`], for a packed ring.
    #[must_use]
    pub fn packed(self: &Arc<Self>, index: u16, size: u16) -> Option<PackedInflight> {
        let fits = self.layout == RingLayout::Packed && index < self.queues && size <= self.size;
        let at = usize::from(index) * self.layout.stride(self.size);
        fits.then(|| PackedInflight { region: Arc::clone(self), at, size })
    }

    /// Writes both positions of the packed queue at `at` in one store.
    fn store_state(&self, at: usize, used: u16, old: u16, known: u64) {
        let index = |position: u16| u64::from(position & !WRAP);
        let wrap = |position: u16| u64::from(position >> 15);
        let state = index(used) | index(old) << 16 | wrap(used) << 32 | wrap(old) << 40 | known;
        if let Some(word) = self.file.u64_at(at + PACKED_STATE) {
            word.store(state, Ordering::Relaxed);
        }
    }

    // `map` has checked the length for all offsets. If a word is missing all the same, it reads as
    // zero and is not written.
    fn load(&self, at: usize) -> u16 {
        self.file.u16_at(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn store(&self, at: usize, value: u16) {
        if let Some(word) = self.file.u16_at(at) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

fn needs(layout: RingLayout, queues: u16, size: u16) -> u64 {
    (usize::from(queues) * layout.stride(size)) as u64
}

/// One split ring's part of a region.
#[derive(Debug)]
pub struct SplitInflight {
    region: Arc<InflightRegion>,
    at: usize,
    size: u16,
}

impl SplitInflight {
    /// Recovers the state that the last back end left in a ring whose used index is `used` and
    /// whose available index is `available`. Returns the heads in flight in the order in which they
    /// were taken. The available ring continues `heads.len()` entries behind `used`.
    pub fn recover(&self, used: u16, available: u16) -> Vec<u16> {
        let region = &*self.region;
        let batch = used.wrapping_sub(region.load(self.at + SPLIT_USED));
        // The last batch was published, but its marks were not yet cleared.
        if batch <= self.size {
            let mut head = region.load(self.at + SPLIT_LAST_BATCH);
            for _ in 0..batch {
                self.unmark(head);
                head = self.next(head);
            }
        }
        let mut heads: Vec<u16> = (0..self.size).filter(|&head| self.is_marked(head)).collect();
        // If more chains are in flight than the driver has outstanding, the marks belong to an
        // earlier use of the ring, as after a reset of the guest.
        let believable = batch <= self.size
            && heads.len() <= usize::from(available.wrapping_sub(used))
            && available.wrapping_sub(used) <= self.size;
        if !believable {
            heads.drain(..).for_each(|head| self.unmark(head));
        }
        region.store(self.at + SPLIT_USED, used);
        // Each counter is read once, because the front end may rewrite it at any moment.
        heads.sort_by_cached_key(|&head| self.counter(head));
        heads
    }

    /// Records the used index after it was stored in the ring. No chain below it is in flight.
    #[inline]
    pub fn note(&self, used: u16) {
        // x86 keeps the order of stores, and the fence makes the compiler keep it. This store must
        // follow the store of the ring's index.
        core::sync::atomic::compiler_fence(Ordering::Release);
        self.region.store(self.at + SPLIT_USED, used);
    }

    /// Records the marked `heads` as the last batch, before the used index covers them.
    pub fn begin(&self, heads: impl Iterator<Item = u16>) {
        let mut last = self.region.load(self.at + SPLIT_LAST_BATCH);
        for head in heads.filter(|&head| head < self.size) {
            self.region.store(self.entry(head) + ENTRY_NEXT, last);
            self.region.store(self.at + SPLIT_LAST_BATCH, head);
            last = head;
        }
        fence(Ordering::Release);
    }

    /// Clears the marks of `heads`, after the used index covered them.
    pub fn end(&self, heads: impl Iterator<Item = u16>, used: u16) {
        fence(Ordering::Release);
        heads.for_each(|head| self.unmark(head));
        self.note(used);
    }

    const fn entry(&self, head: u16) -> usize {
        self.at + SPLIT_HEADER + SPLIT_ENTRY * head as usize
    }

    fn next(&self, head: u16) -> u16 {
        if head < self.size { self.region.load(self.entry(head) + ENTRY_NEXT) } else { head }
    }

    fn is_marked(&self, head: u16) -> bool {
        let mark = self.region.file.u8_at(self.entry(head));
        mark.is_some_and(|mark| mark.load(Ordering::Relaxed) == 1)
    }

    fn unmark(&self, head: u16) {
        if head < self.size
            && let Some(mark) = self.region.file.u8_at(self.entry(head))
        {
            mark.store(0, Ordering::Relaxed);
        }
    }

    fn counter(&self, head: u16) -> u64 {
        let counter = self.region.file.u64_at(self.entry(head) + ENTRY_COUNTER);
        counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// One packed ring's part of a region. Positions have the encoding of vhost-user: the index, and
/// the wrap counter in bit 15.
#[derive(Debug)]
pub struct PackedInflight {
    region: Arc<InflightRegion>,
    at: usize,
    size: u16,
}

impl PackedInflight {
    /// Positions of the ring before and after its last burst; `None` if no ring has recorded here.
    #[must_use]
    pub fn positions(&self) -> Option<(u16, u16)> {
        let word = self.region.file.u64_at(self.at + PACKED_STATE)?;
        let state = word.load(Ordering::Relaxed);
        let [a, b, c, d, used_wrap, old_wrap, ..] = state.to_le_bytes();
        let position = |index: [u8; 2], wrap| {
            u16::from_le_bytes(index) & !WRAP | if wrap == 1 { WRAP } else { 0 }
        };
        let (used, old) = (position([a, b], used_wrap), position([c, d], old_wrap));
        let known = state & PACKED_KNOWN != 0 || (used, old) != (WRAP, WRAP);
        let fits = (used & !WRAP) < self.size && (old & !WRAP) < self.size;
        (known && fits).then_some((old, used))
    }

    /// Records that the burst moves the ring from `old` to `used`. Must be called before the burst
    /// becomes visible.
    pub fn begin(&self, old: u16, used: u16) {
        self.region.store_state(self.at, used, old, PACKED_KNOWN);
    }

    /// Records that the burst is visible to the driver.
    pub fn end(&self, used: u16) {
        // x86 keeps the order of stores, and the fence makes the compiler keep it. This store must
        // follow the store in the ring.
        core::sync::atomic::compiler_fence(Ordering::Release);
        self.region.store_state(self.at, used, used, PACKED_KNOWN);
    }

    /// Saves the second half of the descriptor at `index`, before it is overwritten.
    pub fn save(&self, index: u16, half: u64) {
        if let Some(word) = self.saved_at(index) {
            // The ring has length, id and flags in this order; the region has id, flags and length.
            word.store(half.rotate_left(32), Ordering::Relaxed);
        }
    }

    /// The half that [`Self::save`] stored, in the order of the ring.
    #[must_use]
    pub fn saved(&self, index: u16) -> u64 {
        self.saved_at(index).map_or(0, |word| word.load(Ordering::Relaxed).rotate_left(32))
    }

    fn saved_at(&self, index: u16) -> Option<&core::sync::atomic::AtomicU64> {
        let entry = self.at + PACKED_HEADER + PACKED_ENTRY * usize::from(index);
        self.region.file.u64_at(entry + PACKED_ENTRY_SAVED).filter(|_| index < self.size)
    }
}

#[cfg(test)]
#[path = "inflight_tests.rs"]
mod tests;
