//! The four rings of an AF_XDP socket. The producer of a ring writes entries, and the consumer
//! takes the entries.
//!
//! # Source
//! The source is the kernel's `if_xdp.h` and the kernel's documentation of AF_XDP.
//!
//! # Approach
//! An AF_XDP ring is an array of entries and two indices. The number of entries is a power of two,
//! and the indices wrap at 2^32. Kernel and port each write only one of a ring's two indices. The
//! port writes entries of the *fill* and *tx* rings ([`Producer`]) and takes entries of the
//! *completion* and *rx* rings ([`Consumer`]). The producer stores entries before the index that
//! publishes the entries (release). The consumer reads the index (acquire) before the entries that
//! the index publishes. The port reads the kernel's index only if the last known value does not
//! suffice. The port refuses an index of the kernel that exceeds the length of the ring.
#![allow(unsafe_code, reason = "the rings are in memory that the kernel shares")]

use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::sync::Arc;

use super::mapping::Mapping;

/// The flag `XDP_RING_NEED_WAKEUP` means that the kernel does not look at the ring until a system
/// call wakes it.
const NEED_WAKEUP: u32 = 1;

/// Offsets in bytes of a ring's parts in the ring's memory mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) producer: u64,
    pub(super) consumer: u64,
    pub(super) flags: u64,
    pub(super) entries: u64,
}

impl From<libc::xdp_ring_offset> for Layout {
    fn from(o: libc::xdp_ring_offset) -> Self {
        Self { producer: o.producer, consumer: o.consumer, flags: o.flags, entries: o.desc }
    }
}

impl Layout {
    /// Length in bytes of the mapping of a ring with `size` entries of `entry` bytes. Returns
    /// `None` if the length of the mapping overflows.
    pub(super) fn bytes(self, size: u32, entry: usize) -> Option<usize> {
        let entries = (size as usize).checked_mul(entry)?;
        usize::try_from(self.entries).ok()?.checked_add(entries)
    }
}

/// The memory of an AF_XDP ring that the port and the kernel share.
#[derive(Debug)]
struct Shared<T> {
    memory: Arc<Mapping>,
    layout: Layout,
    size: u32,
    entry: core::marker::PhantomData<fn(T) -> T>,
}

impl<T: Copy> Shared<T> {
    /// Makes the part of an AF_XDP ring that the port and the kernel share. Returns an error unless
    /// all parts of the ring lie in the mapping and are aligned for their types.
    fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> io::Result<Self> {
        let len = memory.len();
        let index = |at: u64| {
            let at = usize::try_from(at).ok()?;
            (at.is_multiple_of(4) && at.checked_add(4)? <= len).then_some(())
        };
        let entries_fit = layout.bytes(size, size_of::<T>()).is_some_and(|bytes| bytes <= len)
            && layout.entries.is_multiple_of(align_of::<T>() as u64);
        let all = [layout.producer, layout.consumer, layout.flags]
            .into_iter()
            .all(|at| index(at).is_some());
        if !all || !entries_fit || !size.is_power_of_two() {
            return Err(io::Error::other("the kernel returned an impossible layout of a ring"));
        }
        Ok(Self { memory, layout, size, entry: core::marker::PhantomData })
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU32 {
        #[expect(clippy::cast_possible_truncation, reason = "`new` has checked the offset")]
        let at = self.memory.at().wrapping_add(at as usize);
        // SAFETY: `new` has checked that four aligned bytes lie there. The mapping lives as long as
        // `self`, and the other side also accesses them as one word. WHY: the memory is shared.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.word(self.layout.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.word(self.layout.consumer)
    }

    /// Address of the ring's entry at `index`, modulo the size of the ring.
    #[inline]
    fn entry(&self, index: u32) -> *mut T {
        #[expect(clippy::cast_possible_truncation, reason = "`new` has checked the offset")]
        let first = self.memory.at().wrapping_add(self.layout.entries as usize).cast::<T>();
        first.wrapping_add((index & (self.size - 1)) as usize)
    }
}

/// The end of an AF_XDP ring that writes entries (the producer).
#[derive(Debug)]
pub(super) struct Producer<T> {
    shared: Shared<T>,
    /// Index of the next entry that the producer writes. The index `next` may be ahead of the index
    /// that the producer has published to the consumer.
    next: u32,
    /// Last value of the consumer's index that the producer read.
    taken: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> io::Result<Self> {
        Ok(Self { shared: Shared::new(memory, layout, size)?, next: 0, taken: 0 })
    }

    /// Number of entries of the ring.
    pub(super) fn size(&self) -> u32 {
        self.shared.size
    }

    /// Number of free entries according to the consumer's last known index. 0 if the consumer's
    /// index is impossible.
    #[inline]
    fn free(&self) -> u32 {
        self.shared.size.saturating_sub(self.next.wrapping_sub(self.taken))
    }

    /// Writes an entry into the AF_XDP ring if the ring has room. [`Self::publish`] makes the entry
    /// visible. Returns false if the ring is full.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.free() == 0 {
            self.taken = self.shared.consumer().load(Ordering::Acquire);
            if self.free() == 0 {
                return false;
            }
        }
        // SAFETY: the entry lies in the mapping. The other side has taken the entry's old content,
        // and does not read the entry before it is published. WHY: the memory is shared.
        unsafe { self.shared.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes all written entries of the ring visible to the consumer.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.shared.producer().store(self.next, Ordering::Release);
    }

    /// Sets the published index to any value, even an impossible value, for tests and stepped
    /// queues.
    pub(super) fn show(&self, index: u32) {
        self.shared.producer().store(index, Ordering::Release);
    }

    /// Number of published entries that the consumer has not taken yet.
    #[inline]
    pub(super) fn backlog(&mut self) -> u32 {
        self.taken = self.shared.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.taken).min(self.shared.size)
    }

    /// Whether the kernel reads the ring only after a system call has woken the kernel.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.shared.word(self.shared.layout.flags).load(Ordering::Relaxed);
        flags & NEED_WAKEUP != 0
    }
}

/// The end of an AF_XDP ring that takes entries (the consumer).
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Shared<T>,
    next: u32,
    /// Number of published entries that the consumer has seen but not taken yet.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> io::Result<Self> {
        Ok(Self { shared: Shared::new(memory, layout, size)?, next: 0, seen: 0 })
    }

    /// Number of entries that the consumer can take now. 0 if the producer's index is impossible.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        if self.seen == 0 {
            let shown = self.shared.producer().load(Ordering::Acquire).wrapping_sub(self.next);
            self.seen = if shown <= self.shared.size { shown } else { 0 };
        }
        self.seen
    }

    /// Number of entries that wait now. Unlike [`Self::waiting`], the number contains entries that
    /// came since the consumer last read the producer's index.
    pub(super) fn unread(&self) -> u32 {
        let shown = self.shared.producer().load(Ordering::Acquire).wrapping_sub(self.next);
        if shown <= self.shared.size { shown } else { 0 }
    }

    /// Takes the next entry of the ring. [`Self::release`] returns the entry's slot to the
    /// producer.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.waiting() == 0 {
            return None;
        }
        // SAFETY: the entry lies in the mapping, any bits are a value of the types used here
        // (integers), and the other side has published it. The read is volatile, so that the entry
        // is read exactly once. WHY: the memory is shared.
        let entry = unsafe { self.shared.entry(self.next).read_volatile() };
        self.next = self.next.wrapping_add(1);
        self.seen -= 1;
        Some(entry)
    }

    /// Sets the published index to any value, even an impossible value, for tests and stepped
    /// queues.
    pub(super) fn show(&self, index: u32) {
        self.shared.consumer().store(index, Ordering::Release);
    }

    /// Returns the slots of all taken entries to the producer.
    #[inline]
    pub(super) fn release(&mut self) {
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}

/// Layout of a ring in the process's own memory, in the order of the kernel's layout: two indices
/// one cache line apart, flags, entries.
const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

/// Makes the producer's and the consumer's end of one ring. The caller acts as the kernel on one
/// side of the ring.
pub(super) fn pair<T: Copy>(size: u32) -> io::Result<(Producer<T>, Consumer<T>)> {
    let bytes = LAYOUT.bytes(size, size_of::<T>()).unwrap_or(usize::MAX);
    let memory = Arc::new(Mapping::anonymous(bytes)?);
    let producer = Producer::new(Arc::clone(&memory), LAYOUT, size)?;
    Ok((producer, Consumer::new(memory, LAYOUT, size)?))
}

#[cfg(test)]
#[path = "ring_tests.rs"]
pub(super) mod tests;
