//! The four rings of an AF_XDP socket: one side writes entries, the other takes them.
//!
//! # Source
//! The kernel's `if_xdp.h` and its documentation of AF_XDP.
//!
//! # Approach
//! A ring is an array of entries, whose number is a power of two, and two indices that run over all
//! of `u32`. One side writes each index. The port writes entries of the *fill* and *tx* rings
//! ([`Producer`]) and takes entries of the *completion* and *rx* rings ([`Consumer`]). Entries are
//! stored before the index that publishes them (release), and read after that index (acquire). The
//! other side's index is read only if its last known value does not suffice, and trusted only
//! within the length of the ring.
#![allow(unsafe_code, reason = "indices and entries in memory shared with the kernel")]

use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::sync::Arc;

use super::mapping::Mapping;

/// `XDP_RING_NEED_WAKEUP`: the other side sleeps until a system call wakes it.
const NEED_WAKEUP: u32 = 1;

/// Offsets in bytes of a ring's parts in its mapping.
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
    /// Bytes of the mapping for `size` entries of `entry` bytes; `None` if the number overflows.
    pub(super) fn bytes(self, size: u32, entry: usize) -> Option<usize> {
        let entries = (size as usize).checked_mul(entry)?;
        usize::try_from(self.entries).ok()?.checked_add(entries)
    }
}

/// The parts of a ring that both sides access.
#[derive(Debug)]
struct Shared<T> {
    memory: Arc<Mapping>,
    layout: Layout,
    size: u32,
    entry: core::marker::PhantomData<fn(T) -> T>,
}

impl<T: Copy> Shared<T> {
    /// Checks that all parts lie in the mapping and are aligned for their type.
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
            return Err(io::Error::other("the kernel's layout of a ring makes no sense"));
        }
        Ok(Self { memory, layout, size, entry: core::marker::PhantomData })
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU32 {
        #[expect(clippy::cast_possible_truncation, reason = "`new` has compared it with a length")]
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

    /// Address of the entry at an index.
    #[inline]
    fn entry(&self, index: u32) -> *mut T {
        #[expect(clippy::cast_possible_truncation, reason = "`new` has compared it with a length")]
        let first = self.memory.at().wrapping_add(self.layout.entries as usize).cast::<T>();
        first.wrapping_add((index & (self.size - 1)) as usize)
    }
}

/// The side of a ring that writes entries.
#[derive(Debug)]
pub(super) struct Producer<T> {
    shared: Shared<T>,
    /// The next entry to write. It may be ahead of the published index.
    next: u32,
    /// The other side's index when it was last read.
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

    /// Number of free entries according to the last known index; 0 if that index is impossible.
    #[inline]
    fn free(&self) -> u32 {
        self.shared.size.saturating_sub(self.next.wrapping_sub(self.taken))
    }

    /// Writes an entry, which [`Self::publish`] makes visible. Returns false if the ring is full.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.free() == 0 {
            self.taken = self.shared.consumer().load(Ordering::Acquire);
            if self.free() == 0 {
                return false;
            }
        }
        // SAFETY: the entry lies in the mapping. The other side has taken its old content and does
        // not read it before it is published. WHY: the memory is shared.
        unsafe { self.shared.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes all written entries visible.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.shared.producer().store(self.next, Ordering::Release);
    }

    /// Publishes any `index`, also a false one.
    pub(super) fn show(&self, index: u32) {
        self.shared.producer().store(index, Ordering::Release);
    }

    /// Number of entries that the other side has not taken yet.
    #[inline]
    pub(super) fn backlog(&mut self) -> u32 {
        self.taken = self.shared.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.taken).min(self.shared.size)
    }

    /// Whether the other side reads the ring only after a system call.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.shared.word(self.shared.layout.flags).load(Ordering::Relaxed);
        flags & NEED_WAKEUP != 0
    }
}

/// The side of a ring that takes entries.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Shared<T>,
    next: u32,
    /// Entries that were seen but not taken yet.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> io::Result<Self> {
        Ok(Self { shared: Shared::new(memory, layout, size)?, next: 0, seen: 0 })
    }

    /// Number of entries that can be taken; 0 if the other side's index is impossible.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        if self.seen == 0 {
            let shown = self.shared.producer().load(Ordering::Acquire).wrapping_sub(self.next);
            self.seen = if shown <= self.shared.size { shown } else { 0 };
        }
        self.seen
    }

    /// Takes an entry. Its slot returns to the other side with [`Self::release`].
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

    /// Publishes any `index`, also a false one.
    pub(super) fn show(&self, index: u32) {
        self.shared.consumer().store(index, Ordering::Release);
    }

    /// Returns the slots of the taken entries.
    #[inline]
    pub(super) fn release(&mut self) {
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}

/// The kernel's layout of a ring: two indices a line apart, flags, then the entries.
const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

/// A ring with both of its sides, one of which plays the kernel.
pub(super) fn pair<T: Copy>(size: u32) -> io::Result<(Producer<T>, Consumer<T>)> {
    let bytes = LAYOUT.bytes(size, size_of::<T>()).unwrap_or(usize::MAX);
    let memory = Arc::new(Mapping::anonymous(bytes)?);
    let producer = Producer::new(Arc::clone(&memory), LAYOUT, size)?;
    Ok((producer, Consumer::new(memory, LAYOUT, size)?))
}

#[cfg(test)]
#[path = "ring_tests.rs"]
pub(super) mod tests;
