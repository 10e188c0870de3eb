//! The four rings of an AF_XDP socket: one side writes entries, the other takes them.
//!
//! **Source.** The kernel's `if_xdp.h` and its documentation of AF_XDP. A ring is an array of a
//! power of two of entries and two indices that run over all of `u32`; each index is written by
//! one side. We write entries of the *fill* and *tx* rings ([`Producer`]) and take those of the
//! *completion* and *rx* rings ([`Consumer`]). **Rule.** Entries are stored before the index that
//! shows them (release), and read after it (acquire). The other side's index is looked at only
//! when what was seen of it last does not suffice, and believed only as far as the ring is long.
#![allow(unsafe_code, reason = "indices and entries in memory shared with the kernel")]

use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::sync::Arc;

use super::mapping::Mapping;

/// `XDP_RING_NEED_WAKEUP`: the other side sleeps until a system call wakes it.
const NEED_WAKEUP: u32 = 1;

/// Where a ring's parts lie in its mapping, in bytes.
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
    /// Bytes of the mapping for `size` entries of `entry` bytes; `None`: no such mapping.
    pub(super) fn bytes(self, size: u32, entry: usize) -> Option<usize> {
        let entries = (size as usize).checked_mul(entry)?;
        usize::try_from(self.entries).ok()?.checked_add(entries)
    }
}

/// A ring as both sides see it.
#[derive(Debug)]
struct Shared<T> {
    memory: Arc<Mapping>,
    layout: Layout,
    size: u32,
    entry: core::marker::PhantomData<fn(T) -> T>,
}

impl<T: Copy> Shared<T> {
    /// Checks that all parts lie in the mapping and where their type may lie.
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
        // SAFETY: `new` has checked that four aligned bytes lie there; the mapping lives as long
        // as `self`; the other side, too, accesses them as one word. WHY: shared memory.
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

    /// Where the entry of an index lies.
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
    /// The next entry to write, perhaps not shown yet.
    next: u32,
    /// How far the other side had come when it was looked at last.
    taken: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> io::Result<Self> {
        Ok(Self { shared: Shared::new(memory, layout, size)?, next: 0, taken: 0 })
    }

    /// Entries of the ring.
    pub(super) fn size(&self) -> u32 {
        self.shared.size
    }

    /// Free entries by what was seen of the other side; none if that makes no sense.
    #[inline]
    fn free(&self) -> u32 {
        self.shared.size.saturating_sub(self.next.wrapping_sub(self.taken))
    }

    /// Writes an entry that [`Self::publish`] shows; false: the ring is full.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.free() == 0 {
            self.taken = self.shared.consumer().load(Ordering::Acquire);
            if self.free() == 0 {
                return false;
            }
        }
        // SAFETY: the entry lies in the mapping; the other side has taken what was in it and does
        // not look at it before it is shown. WHY: shared memory.
        unsafe { self.shared.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows all that was written.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.shared.producer().store(self.next, Ordering::Release);
    }

    /// Shows `index` for how far it has come, whatever is true.
    pub(super) fn show(&self, index: u32) {
        self.shared.producer().store(index, Ordering::Release);
    }

    /// Entries that the other side has not taken yet.
    #[inline]
    pub(super) fn backlog(&mut self) -> u32 {
        self.taken = self.shared.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.taken).min(self.shared.size)
    }

    /// Whether the other side looks only after a system call.
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
    /// The next entry to take.
    next: u32,
    /// Entries that were seen and not taken yet.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> io::Result<Self> {
        Ok(Self { shared: Shared::new(memory, layout, size)?, next: 0, seen: 0 })
    }

    /// Entries that can be taken; none if what the other side says makes no sense.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        if self.seen == 0 {
            let shown = self.shared.producer().load(Ordering::Acquire).wrapping_sub(self.next);
            self.seen = if shown <= self.shared.size { shown } else { 0 };
        }
        self.seen
    }

    /// Takes an entry; its place is the other side's again after [`Self::release`].
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.waiting() == 0 {
            return None;
        }
        // SAFETY: the entry lies in the mapping, any bits are a value of the types used here
        // (integers), and the other side has shown it. Volatile: it is read once, whatever the
        // other side does. WHY: shared memory.
        let entry = unsafe { self.shared.entry(self.next).read_volatile() };
        self.next = self.next.wrapping_add(1);
        self.seen -= 1;
        Some(entry)
    }

    /// Shows `index` for how far it has come, whatever is true.
    pub(super) fn show(&self, index: u32) {
        self.shared.consumer().store(index, Ordering::Release);
    }

    /// Gives the places of the entries taken back.
    #[inline]
    pub(super) fn release(&mut self) {
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}

/// Offsets as the kernel lays a ring out: two indices a line apart, flags, then the entries.
const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

/// A ring whose both sides are ours: without a kernel, one of them plays it.
pub(super) fn pair<T: Copy>(size: u32) -> io::Result<(Producer<T>, Consumer<T>)> {
    let bytes = LAYOUT.bytes(size, size_of::<T>()).unwrap_or(usize::MAX);
    let memory = Arc::new(Mapping::anonymous(bytes)?);
    let producer = Producer::new(Arc::clone(&memory), LAYOUT, size)?;
    Ok((producer, Consumer::new(memory, LAYOUT, size)?))
}

#[cfg(test)]
#[path = "ring_tests.rs"]
pub(super) mod tests;
