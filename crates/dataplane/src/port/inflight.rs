//! The inflight region: what a front end keeps for a back end that dies, so that the next one
//! knows which chains were taken and not returned.
//!
//! **Source.** The vhost-user specification, "Inflight I/O tracking": a header and one entry per
//! descriptor for each queue, in a file that the back end makes, the front end keeps, and both see.
//!
//! **What must be recorded, and when.** A chain is in flight from the moment its head is read from
//! the available ring until the used index covers it. Our rings return chains strictly in the
//! order in which they were made available, and a batch is returned before the next one is taken.
//! Hence at every instant the chains in flight are exactly the available entries from the used
//! index on, and the used index, one 16-bit store, is the only moment at which any of them changes
//! hands. Killed before it, nothing of the batch was returned and all of it is taken again; killed
//! after it, all was returned and nothing is taken again. No chain needs its `inflight` mark for
//! that, so none is set: what the specification lets a successor conclude from a region without
//! marks (start at the used index, resubmit nothing) is the truth. All that is recorded is
//! `used_idx`, after the ring's own index; between the two stores it lags by one batch, which the
//! specification provides for: the successor clears the marks of the last batch: there are none.
//! The order between a frame's two rings is the worker's: a frame is visible at its destination
//! before its chain goes back, so a kill may deliver a frame twice and never loses one it returned.
//!
//! **Recovery.** A region may come from another program, which returned chains out of order and
//! died: then marks are set. Their heads are resubmitted first, in the order of their counters, and
//! the ring continues behind them. While that lasts the whole procedure of the specification is
//! followed, store by store ([`SplitInflight::begin`], [`SplitInflight::end`]).
//!
//! **Trust.** The file is the front end's and may hold anything: every head is checked, marks that
//! cannot be true of the ring are dropped. **Cost.** A ring without a region asks once a burst
//! whether it has anything to record; one with a region does one more store.
//!
//! **Packed rings** have no index in the guest's memory, and a used descriptor overwrites what the
//! driver had said of its buffer. So two positions are kept in one word, where the ring stood
//! before the burst and where it will stand, written before and after the one store that shows the
//! driver the burst: whether that store was made, the first descriptor tells. Those of the burst
//! that were overwritten before it are kept as they were, and put back if it was never made
//! ([`PackedInflight`]).

use core::sync::atomic::{Ordering, fence};
use std::fs::File;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::peer_memory::shared_file::SharedFile;
use super::peer_memory::{MemoryAccount, SharedFileError};

/// The specification's version of a queue's layout.
const VERSION: u16 = 1;
/// Each queue's part begins at a multiple of this.
const ALIGN: usize = 64;
/// The largest region taken or made, bytes: 32 queues of 32,768 packed descriptors are 32 MiB.
const REGION_MAX: u64 = 64 << 20;

// A queue's header; offsets in bytes, the same for split and packed rings up to `DESC_NUM`.
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
/// In the padding: the positions are ours and not those of a region that was just made.
const PACKED_KNOWN: u64 = 1 << 56;
/// The wrap counter in a position as vhost-user writes it.
const WRAP: u16 = 1 << 15;

/// Which rings a region is for: their parts of it differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingLayout {
    /// Split rings.
    Split,
    /// Packed rings.
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

/// A region cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InflightError {
    /// The file does not hold it.
    #[error(transparent)]
    File(#[from] SharedFileError),
    /// Fewer bytes than the queues need.
    #[error("inflight region: {queues} queues of {size} need {needs} bytes, not {has}")]
    Small {
        /// Queues.
        queues: u16,
        /// Descriptors of each.
        size: u16,
        /// Bytes needed.
        needs: u64,
        /// Bytes announced.
        has: u64,
    },
    /// Laid out as no specification that we know.
    #[error("inflight region: queue {queue} has layout version {version}; only 1 is known")]
    Version {
        /// The queue.
        queue: u16,
        /// What it says.
        version: u16,
    },
    /// The file could not be made.
    #[error("inflight region: {0}")]
    Make(nix::Error),
}

/// One region, mapped: all queues of a session.
#[derive(Debug)]
pub struct InflightRegion {
    file: SharedFile,
    layout: RingLayout,
    queues: u16,
    size: u16,
}

impl InflightRegion {
    /// Makes an empty region for a front end to keep; returns its file and length in bytes.
    ///
    /// # Errors
    /// [`InflightError`]: too long, or the kernel has no memory for it.
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
        // Mapping it writes the headers.
        Self::map(account, layout, &file, 0, len, (queues, size))?;
        Ok((file, len))
    }

    /// Maps a region that a front end hands over, counted in `account`: so many queues of so many
    /// descriptors in `len` bytes of `file` from `offset` on.
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

    /// Has `alarm` rung when the region's file turns out to be shorter than the region.
    pub(super) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        self.file.set_alarm(alarm);
    }

    /// Puts a header on a queue's part that has none yet.
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

    /// The part of queue `index` for a split ring of `size` descriptors; `None` if the region has
    /// no such queue, is smaller than the ring, or is for packed rings.
    #[must_use]
    pub fn split(self: &Arc<Self>, index: u16, size: u16) -> Option<SplitInflight> {
        let fits = self.layout == RingLayout::Split && index < self.queues && size <= self.size;
        let at = usize::from(index) * self.layout.stride(self.size);
        fits.then(|| SplitInflight { region: Arc::clone(self), at, size })
    }

    /// As [`Self::split`], for a packed ring.
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

    // Offsets are computed from what `map` checked the length for: a word that is missing all the
    // same is read as zero and not written.
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
    /// Settles what the last back end left behind, of a ring whose used index is `used` and whose
    /// available index is `available`. Returns the heads in flight, in the order of their taking;
    /// the available ring continues `heads.len()` entries behind `used`.
    pub fn recover(&self, used: u16, available: u16) -> Vec<u16> {
        let region = &*self.region;
        let batch = used.wrapping_sub(region.load(self.at + SPLIT_USED));
        // The last batch was published and its marks were not cleared any more.
        if batch <= self.size {
            let mut head = region.load(self.at + SPLIT_LAST_BATCH);
            for _ in 0..batch {
                self.unmark(head);
                head = self.next(head);
            }
        }
        let mut heads: Vec<u16> = (0..self.size).filter(|&head| self.is_marked(head)).collect();
        // More in flight than the driver has outstanding: the marks are those of another ring's
        // life, as after a reset of the guest.
        let believable = batch <= self.size
            && heads.len() <= usize::from(available.wrapping_sub(used))
            && available.wrapping_sub(used) <= self.size;
        if !believable {
            heads.drain(..).for_each(|head| self.unmark(head));
        }
        region.store(self.at + SPLIT_USED, used);
        // The front end may rewrite a counter at any moment: each is read once.
        heads.sort_by_cached_key(|&head| self.counter(head));
        heads
    }

    /// The ring's used index was stored: nothing of ours is in flight below it.
    #[inline]
    pub fn note(&self, used: u16) {
        // x86 stores in order, and the compiler must: this one comes behind the ring's index.
        core::sync::atomic::compiler_fence(Ordering::Release);
        self.region.store(self.at + SPLIT_USED, used);
    }

    /// Before the used index covers them: lists the marked `heads` as the last batch.
    pub fn begin(&self, heads: impl Iterator<Item = u16>) {
        let mut last = self.region.load(self.at + SPLIT_LAST_BATCH);
        for head in heads.filter(|&head| head < self.size) {
            self.region.store(self.entry(head) + ENTRY_NEXT, last);
            self.region.store(self.at + SPLIT_LAST_BATCH, head);
            last = head;
        }
        fence(Ordering::Release);
    }

    /// After the used index covered them: takes the marks of `heads` away.
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

/// One packed ring's part of a region. Positions are as vhost-user writes them: the index, and the
/// wrap counter in bit 15.
#[derive(Debug)]
pub struct PackedInflight {
    region: Arc<InflightRegion>,
    at: usize,
    size: u16,
}

impl PackedInflight {
    /// Where the ring stood before and after its last burst, `None` if no ring has recorded here.
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

    /// Before the driver is shown a burst: it takes the ring from `old` to `used`.
    pub fn begin(&self, old: u16, used: u16) {
        self.region.store_state(self.at, used, old, PACKED_KNOWN);
    }

    /// The driver was shown it.
    pub fn end(&self, used: u16) {
        // x86 stores in order, and the compiler must: this one comes behind the ring's.
        core::sync::atomic::compiler_fence(Ordering::Release);
        self.region.store_state(self.at, used, used, PACKED_KNOWN);
    }

    /// Keeps the second half of the descriptor at `index`, which is about to be overwritten.
    pub fn save(&self, index: u16, half: u64) {
        if let Some(word) = self.saved_at(index) {
            // Length, id and flags in the ring; id, flags and length here.
            word.store(half.rotate_left(32), Ordering::Relaxed);
        }
    }

    /// What [`Self::save`] kept.
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
