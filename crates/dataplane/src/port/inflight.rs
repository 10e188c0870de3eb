//! The inflight region, a file that a vhost-user front end keeps in case the back end dies. From
//! the inflight region, the next back end learns which chains the last back end took and did not
//! return.
//!
//! # Source
//! The vhost-user specification, "Inflight I/O tracking", defines a header and one entry per
//! descriptor for each queue. The back end makes the file, and the front end keeps the file. The
//! back end and the front end each map the file of the inflight region.
//!
//! # What is recorded, and when
//! A chain is in flight from the moment its head is read from the available ring until the used
//! index covers the chain. The switch's rings return chains strictly in the order in which the
//! driver made the chains available. The rings return a batch of chains before they take the next
//! batch. The chains in flight are always exactly the entries of the available ring from the used
//! index on. The switch writes the used index with one 16-bit store, and this store returns all
//! chains of the batch to the driver. If the switch is killed before the store, no chain of the
//! batch was returned, and the next switch takes all chains of the batch again. If the switch is
//! killed after the store, all chains of the batch were returned, and the next switch takes none of
//! them.
//!
//! Because chains return in order, no chain needs its `inflight` mark, and the switch sets no
//! marks. By the specification, a back end that finds no `inflight` marks starts at the used index
//! and resubmits nothing. Resubmitting nothing is correct for chains that return in order. In the
//! inflight region, the switch records only `used_idx`, after the switch has stored the ring's own
//! used index. Between the stores of the ring's used index and of `used_idx`, `used_idx` is one
//! batch behind. If `used_idx` is one batch behind the ring's used index, the specification lets
//! the next back end clear the last batch's `inflight` marks. If Penstock wrote the inflight
//! region, the next back end finds no `inflight` marks to clear.
//!
//! For each frame, the worker writes the receiver's ring before the sender's ring. Therefore the
//! receiver sees a frame before the worker returns the frame's chain to the sender. If the switch
//! is killed, a frame may be delivered twice, but no frame is lost after the worker returned the
//! frame's chain.
//!
//! # Recovery
//! If an inflight region has `inflight` marks, another program wrote the region, returned chains
//! out of order and died. The switch resubmits the marked heads first, in the order of their
//! counters, and then continues with the available ring. For resubmitted heads, the switch makes
//! every store that the vhost-user specification prescribes ([`SplitInflight::begin`],
//! [`SplitInflight::end`]).
//!
//! # Trust
//! The inflight file belongs to the front end and may contain any values. The switch checks every
//! head in the file and drops marks that are impossible for the ring.
//!
//! # Cost
//! For a ring without an inflight region, the only cost is one check per burst. A ring with an
//! inflight region needs one more store per burst.
//!
//! # Packed rings
//! A packed ring has no index in the guest's memory, and a used descriptor overwrites the driver's
//! description of its buffer. For a packed ring, one word of the inflight region therefore contains
//! two positions: the ring's position before the burst and the position after the burst. The switch
//! writes the word with both positions before and after the single store that makes the burst
//! visible to the driver. After a kill, the first descriptor of the burst shows whether the burst
//! became visible. Before the switch overwrites the other descriptors of the burst, the switch
//! saves these descriptors. If the burst never became visible, the next switch restores the saved
//! descriptors ([`PackedInflight`]).

use core::sync::atomic::{Ordering, fence};
use std::fs::File;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::peer_memory::shared_file::SharedFile;
use super::peer_memory::{MemoryAccount, SharedFileError};

/// Version of a queue's layout in the vhost-user specification of the inflight region.
const VERSION: u16 = 1;
/// Alignment in bytes of each queue's part of the inflight region.
const ALIGN: usize = 64;
/// Largest accepted inflight region in bytes. The region for 32 queues of 32,768 packed descriptors
/// has 32 MiB.
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
/// Offset in bytes of the word with `used_idx`, `old_used_idx`, the two wrap counters and two bytes
/// of padding.
const PACKED_STATE: usize = 16;
const PACKED_ENTRY: usize = 32;
/// Offset in bytes, within a packed queue's entry, of the saved copy of a descriptor's id, flags
/// and length.
const PACKED_ENTRY_SAVED: usize = 16;
/// Bit in the padding of a packed queue's state in the inflight region. The bit `PACKED_KNOWN` is
/// set if a Penstock switch wrote the ring positions in the inflight region, and clear in a new
/// region.
const PACKED_KNOWN: u64 = 1 << 56;
/// Bit of the wrap counter in a ring position, in vhost-user's encoding.
const WRAP: u16 = 1 << 15;

/// Kind of the rings that an inflight region describes. Split and packed rings have different
/// layouts in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingLayout {
    Split,
    Packed,
}

impl RingLayout {
    /// Bytes of the part of the inflight region for one queue of `size` descriptors.
    const fn stride(self, size: u16) -> usize {
        let n = size as usize;
        match self {
            Self::Split => (SPLIT_HEADER + SPLIT_ENTRY * n).next_multiple_of(ALIGN),
            Self::Packed => (PACKED_HEADER + PACKED_ENTRY * n).next_multiple_of(ALIGN),
        }
    }
}

/// Reason why the switch refuses an inflight region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InflightError {
    /// The switch cannot map the file of the inflight region.
    #[error(transparent)]
    File(#[from] SharedFileError),
    /// The inflight region has fewer bytes than its queues need.
    #[error("inflight region: {queues} queues of {size} need {needs} bytes, not {has}")]
    Small {
        /// Number of queues that the inflight region covers.
        queues: u16,
        /// Number of descriptors in each queue of the inflight region.
        size: u16,
        /// Number of bytes that the queues need in the inflight region.
        needs: u64,
        /// Length in bytes of the inflight region that the front end announced.
        has: u64,
    },
    /// The inflight region's layout has an unknown version.
    #[error("inflight region: queue {queue} has layout version {version}; only 1 is known")]
    Version {
        queue: u16,
        /// Layout version that the queue's header in the inflight region contains.
        version: u16,
    },
    /// The switch could not make the file of the inflight region.
    #[error("inflight region: {0}")]
    Make(nix::Error),
}

/// One mapped inflight region, with the records of all queues of a vhost-user session.
#[derive(Debug)]
pub struct InflightRegion {
    file: SharedFile,
    layout: RingLayout,
    queues: u16,
    size: u16,
}

impl InflightRegion {
    /// Makes an empty inflight region for a front end to keep. Returns the region's file and length
    /// in bytes.
    ///
    /// # Errors
    /// Returns an [`InflightError`] if the region is too long, or if the kernel has no memory for
    /// the region.
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

    /// Maps an inflight region that a front end passes, and counts the region's bytes in `account`.
    /// The region is the `len` bytes of `file` from `offset` on. The last argument of `map`
    /// contains the number of queues and the number of descriptors per queue.
    ///
    /// # Errors
    /// Returns an [`InflightError`] if the region is refused.
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

    /// Sets the eventfd that the switch signals if the inflight region's file turns out to be
    /// shorter than the region.
    pub(super) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        self.file.set_alarm(alarm);
    }

    /// Writes a header into a queue's part of the inflight region if that part has no header yet.
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

    /// Returns the part of the inflight region for queue `index`, a split ring of `size`
    /// descriptors. Returns `None` if the region has no queue `index`, has fewer than `size`
    /// descriptors per queue, or is for packed rings.
    #[must_use]
    pub fn split(self: &Arc<Self>, index: u16, size: u16) -> Option<SplitInflight> {
        let fits = self.layout == RingLayout::Split && index < self.queues && size <= self.size;
        let at = usize::from(index) * self.layout.stride(self.size);
        fits.then(|| SplitInflight { region: Arc::clone(self), at, size })
    }

    /// Returns the part of the inflight region for queue `index`, a packed ring of `size`
    /// descriptors. Returns `None` if the region has no queue `index`, has fewer than `size`
    /// descriptors per queue, or is for split rings.
    #[must_use]
    pub fn packed(self: &Arc<Self>, index: u16, size: u16) -> Option<PackedInflight> {
        let fits = self.layout == RingLayout::Packed && index < self.queues && size <= self.size;
        let at = usize::from(index) * self.layout.stride(self.size);
        fits.then(|| PackedInflight { region: Arc::clone(self), at, size })
    }

    /// Writes the positions `used` and `old` of the packed queue at offset `at` with one store.
    fn store_state(&self, at: usize, used: u16, old: u16, known: u64) {
        let index = |position: u16| u64::from(position & !WRAP);
        let wrap = |position: u16| u64::from(position >> 15);
        let state = index(used) | index(old) << 16 | wrap(used) << 32 | wrap(old) << 40 | known;
        if let Some(word) = self.file.u64_at(at + PACKED_STATE) {
            word.store(state, Ordering::Relaxed);
        }
    }

    // `map` has checked the length for all offsets. A word outside of the mapping would read as
    // zero, and would not be written.
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

/// The part of an inflight region for one split ring.
#[derive(Debug)]
pub struct SplitInflight {
    region: Arc<InflightRegion>,
    at: usize,
    size: u16,
}

impl SplitInflight {
    /// Recovers the state that the last back end left in a ring with used index `used` and
    /// available index `available`. Returns the heads of chains in flight, in the order in which
    /// the last back end took the chains. After `recover`, the ring continues at available entry
    /// `used` plus the number of returned heads.
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
        // If more chains are marked than the driver has outstanding, the marks belong to an earlier
        // use of the ring. A reset of the guest causes such marks.
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

    /// Records the used index in the inflight region, after the ring has stored the used index.
    /// Chains before the used index were returned, so the next switch does not resubmit them.
    #[inline]
    pub fn note(&self, used: u16) {
        // x86 keeps the order of stores, and the fence makes the compiler keep it. This store must
        // follow the store of the ring's index.
        core::sync::atomic::compiler_fence(Ordering::Release);
        self.region.store(self.at + SPLIT_USED, used);
    }

    /// Records the chains `heads`, which are marked as in flight, as the last batch in the inflight
    /// region. The caller must call this function before the used index covers `heads`.
    pub fn begin(&self, heads: impl Iterator<Item = u16>) {
        let mut last = self.region.load(self.at + SPLIT_LAST_BATCH);
        for head in heads.filter(|&head| head < self.size) {
            self.region.store(self.entry(head) + ENTRY_NEXT, last);
            self.region.store(self.at + SPLIT_LAST_BATCH, head);
            last = head;
        }
        fence(Ordering::Release);
    }

    /// Clears the `inflight` marks of the chains `heads`. The caller must call `end` after the used
    /// index covers `heads`.
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

/// The part of an inflight region for one packed ring. Ring positions have the encoding of
/// vhost-user: the index in bits 0 to 14, and the wrap counter in bit 15.
#[derive(Debug)]
pub struct PackedInflight {
    region: Arc<InflightRegion>,
    at: usize,
    size: u16,
}

impl PackedInflight {
    /// Positions of the packed ring before and after its last burst. `None` if no ring has recorded
    /// valid positions in the inflight region.
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

    /// Records that the burst moves the ring from position `old` to position `used`. The caller
    /// must call `begin` before the driver can see the burst.
    pub fn begin(&self, old: u16, used: u16) {
        self.region.store_state(self.at, used, old, PACKED_KNOWN);
    }

    /// Records that the burst up to position `used` is visible to the driver.
    pub fn end(&self, used: u16) {
        // x86 keeps the order of stores, and the fence makes the compiler keep it. This store must
        // follow the store in the ring.
        core::sync::atomic::compiler_fence(Ordering::Release);
        self.region.store_state(self.at, used, used, PACKED_KNOWN);
    }

    /// Saves the half of the descriptor at `index` that contains length, id and flags. The caller
    /// must call `save` before the switch overwrites the descriptor.
    pub fn save(&self, index: u16, half: u64) {
        if let Some(word) = self.saved_at(index) {
            // The ring has length, id and flags in this order; the region has id, flags and length.
            word.store(half.rotate_left(32), Ordering::Relaxed);
        }
    }

    /// Returns the descriptor half that [`Self::save`] stored for `index`, as a word of a packed
    /// ring.
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
