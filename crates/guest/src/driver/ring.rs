//! A split virtqueue seen from the driver.
//!
//! # Source
//! Virtio 1.2 §2.7, §2.7.7 and §2.7.10 (notification suppression), §2.7.8 (in order).
//!
//! # Quantities
//! `avail_idx` and `last_used` are free-running 16-bit counters; `size` is in descriptors.
//!
//! # Approach
//! Descriptors are taken from and returned to the end of a queue. With in-order completion,
//! descriptors are thus used in ring order, as IN_ORDER requires. The driver keeps a private copy
//! of each descriptor and available entry, and does not write an equal value again. In the steady
//! state only `avail.idx` and the buffers change, and the other lines stay shared.
//!
//! # Example
//! With threshold 9, a kick is due if the index moves from 8 to 10, but not if it moves from 10 to
//! 12 (`need_event_follows_the_specification`).
//!
//! # Cost
//! Each publication costs one fence.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::memory::Window;

/// The largest ring that this driver makes.
pub const MAX_RING_SIZE: u16 = 1024;

const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;
const NO_NOTIFY: u16 = 1;

/// One split-ring descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Bytes of the buffer.
    pub len: u32,
    /// Virtio flags: 1 next, 2 device writes, 4 indirect.
    pub flags: u16,
    /// Index of the next descriptor, valid with flag 1.
    pub next: u16,
}

impl Descriptor {
    /// Bytes of a descriptor in guest memory.
    pub const LEN: usize = 16;
    /// Flag: `next` is valid.
    pub const NEXT: u16 = FLAG_NEXT;
    /// Flag: the device writes the buffer.
    pub const WRITE: u16 = FLAG_WRITE;
    /// Flag: the buffer is a table of descriptors.
    pub const INDIRECT: u16 = FLAG_INDIRECT;

    /// The descriptor in the form of guest memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.addr.to_le_bytes());
        b[8..12].copy_from_slice(&self.len.to_le_bytes());
        b[12..14].copy_from_slice(&self.flags.to_le_bytes());
        b[14..].copy_from_slice(&self.next.to_le_bytes());
        b
    }

    /// The descriptor in the form of a packed ring or its tables, where `next` is an id in front of
    /// the flags.
    #[must_use]
    pub fn to_packed_bytes(&self) -> [u8; Self::LEN] {
        let mut b = self.to_bytes();
        b[12..14].copy_from_slice(&self.next.to_le_bytes());
        b[14..].copy_from_slice(&self.flags.to_le_bytes());
        b
    }

    /// The two words of a descriptor.
    fn words(&self) -> (u64, u64) {
        let second = u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48;
        (self.addr, second)
    }
}

/// Bytes of descriptor table, available ring and used ring for `size` descriptors.
pub(crate) fn ring_bytes(size: u16) -> [usize; 3] {
    let n = usize::from(size);
    [n * Descriptor::LEN, 6 + 2 * n, 6 + 8 * n]
}

/// Whether moving an index from `old` to `new` passes the threshold `event` (§2.7.10).
pub(crate) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A chain that the device has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    pub head: u16,
    pub len: u32,
}

/// The driver's record of one descriptor.
#[derive(Debug, Clone, Copy)]
struct Shadow {
    desc: Descriptor,
    written: bool,
    /// For heads: number of descriptors in the chain; 0 while the driver owns it.
    chain: u16,
    /// For heads: `avail_idx` when the chain was made available.
    stamp: u16,
}

/// The driver's end of one split ring.
#[derive(Debug)]
pub(crate) struct SplitRing {
    size: u16,
    mask: u16,
    desc: Window,
    avail: Window,
    used: Window,
    shadow: Vec<Shadow>,
    shadow_avail: Vec<Option<u16>>,
    free: VecDeque<u16>,
    avail_idx: u16,
    published: u16,
    last_used: u16,
    used_seen: u16,
    event_idx: bool,
    in_order: bool,
    suppressed: bool,
    used_event: u16,
    /// Used entries that name no known chain.
    pub bad_used: u64,
    /// Used entries that name another chain than the chain made available at their position.
    pub disorder: u64,
}

impl SplitRing {
    /// A ring over three zeroed windows. Interrupts are initially suppressed.
    pub fn new(size: u16, desc: Window, avail: Window, used: Window) -> Self {
        assert!(size.is_power_of_two() && (2..=MAX_RING_SIZE).contains(&size));
        let blank = Shadow { desc: Descriptor::default(), written: false, chain: 0, stamp: 0 };
        let mut ring = Self {
            size,
            mask: size - 1,
            desc,
            avail,
            used,
            shadow: vec![blank; usize::from(size)],
            shadow_avail: vec![None; usize::from(size)],
            free: (0..size).collect(),
            avail_idx: 0,
            published: 0,
            last_used: 0,
            used_seen: 0,
            event_idx: false,
            in_order: false,
            suppressed: true,
            used_event: 0,
            bad_used: 0,
            disorder: 0,
        };
        ring.suppress();
        ring
    }

    /// Adopts the negotiated features.
    pub fn set_features(&mut self, event_idx: bool, in_order: bool) {
        self.event_idx = event_idx;
        self.in_order = in_order;
        if self.suppressed {
            self.suppress();
        }
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    pub fn free_descriptors(&self) -> usize {
        self.free.len()
    }

    /// Number of chains that were made available and not seen to be used.
    pub fn outstanding(&self) -> u16 {
        self.avail_idx.wrapping_sub(self.last_used)
    }

    /// Host addresses of descriptor table, available ring and used ring.
    pub fn addresses(&self) -> [u64; 3] {
        [self.desc.host(), self.avail.host(), self.used.host()]
    }

    pub fn desc_window(&mut self) -> &mut Window {
        &mut self.desc
    }

    pub fn avail_window(&mut self) -> &mut Window {
        &mut self.avail
    }

    pub fn used_window(&mut self) -> &mut Window {
        &mut self.used
    }

    #[inline]
    fn write_desc(&mut self, index: u16, desc: Descriptor) {
        let shadow = &mut self.shadow[usize::from(index)];
        if shadow.written && shadow.desc == desc {
            return;
        }
        shadow.desc = desc;
        shadow.written = true;
        let at = usize::from(index) * Descriptor::LEN;
        let (first, second) = desc.words();
        self.desc.u64_at(at).store(first, Ordering::Relaxed);
        self.desc.u64_at(at + 8).store(second, Ordering::Relaxed);
    }

    /// Makes a chain of `parts` (address, bytes) available; `None` if there are too few
    /// descriptors. Nothing is visible to the device before [`publish`](Self::publish).
    #[inline]
    pub fn add(&mut self, parts: &[(u64, u32)], flags: u16) -> Option<u16> {
        if parts.is_empty() || parts.len() > self.free.len() {
            return None;
        }
        let head = self.free.pop_front()?;
        let mut index = head;
        for (i, (addr, len)) in parts.iter().enumerate() {
            let last = i + 1 == parts.len();
            let next = if last { 0 } else { self.free.pop_front()? };
            let flags = if last { flags } else { flags | FLAG_NEXT };
            self.write_desc(index, Descriptor { addr: *addr, len: *len, flags, next });
            index = next;
        }
        self.shadow[usize::from(head)].chain = u16::try_from(parts.len()).ok()?;
        self.make_available(head);
        Some(head)
    }

    /// Makes a chain available again that was returned but not freed.
    #[inline]
    pub fn repost(&mut self, head: u16) {
        self.make_available(head);
    }

    #[inline]
    fn make_available(&mut self, head: u16) {
        let at = usize::from(self.avail_idx & self.mask);
        self.shadow[usize::from(head)].stamp = self.avail_idx;
        if self.shadow_avail[at] != Some(head) {
            self.shadow_avail[at] = Some(head);
            self.avail.u16_at(4 + 2 * at).store(head, Ordering::Relaxed);
        }
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    /// Makes all added chains visible to the device. Returns true if the device requests a kick.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (new, old) = (self.avail_idx, self.published);
        if new == old {
            return false;
        }
        self.avail.u16_at(2).store(new, Ordering::Release);
        self.published = new;
        // Virtio §2.7.13.4.1: the index must be visible before the suppression word is read.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.used.u16_at(4 + 8 * usize::from(self.size)).load(Ordering::Relaxed);
            need_event(event, new, old)
        } else {
            self.used.u16_at(0).load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    /// Number of chains that the device has returned and that were not popped. Reads the device's
    /// index again.
    #[inline]
    pub fn used_waiting(&mut self) -> u16 {
        self.keep_suppressed();
        self.used_seen = self.used.u16_at(2).load(Ordering::Acquire);
        self.used_seen.wrapping_sub(self.last_used)
    }

    /// The entry `ahead` positions behind the next one to pop. `used_waiting` must have seen it.
    #[inline]
    pub fn peek_used(&self, ahead: u16) -> Used {
        let position = self.last_used.wrapping_add(ahead);
        let at = usize::from(position & self.mask);
        let entry = 4 + 8 * at;
        let len = self.used.u32_at(entry + 4).load(Ordering::Relaxed);
        let head = match self.shadow_avail[at] {
            // With in-order use, entry k of the used ring belongs to entry k of the available ring.
            Some(head) if self.in_order => head,
            _ => u16::try_from(self.used.u32_at(entry).load(Ordering::Relaxed)).unwrap_or(u16::MAX),
        };
        Used { head, len }
    }

    /// Pops the next returned chain, skipping entries that name no known chain. The chain stays
    /// allocated until [`free`](Self::free).
    pub fn pop_used(&mut self) -> Option<Used> {
        loop {
            if self.last_used == self.used_seen && self.used_waiting() == 0 {
                return None;
            }
            if let Some(used) = self.pop_entry() {
                return Some(used);
            }
        }
    }

    /// Pops exactly one entry that `used_waiting` has seen; `None` if it names no known chain.
    #[inline]
    pub fn pop_entry(&mut self) -> Option<Used> {
        let used = self.peek_used(0);
        let expected = self.shadow_avail[usize::from(self.last_used & self.mask)];
        self.disorder += u64::from(expected != Some(used.head));
        self.last_used = self.last_used.wrapping_add(1);
        if self.plausible(used.head) {
            return Some(used);
        }
        self.bad_used += 1;
        None
    }

    /// Pops the next chain of an in-order ring without reading the used entry.
    #[inline]
    pub fn pop_head(&mut self) -> Option<u16> {
        if !self.in_order {
            return self.pop_used().map(|used| used.head);
        }
        if self.last_used == self.used_seen && self.used_waiting() == 0 {
            return None;
        }
        let head = self.shadow_avail[usize::from(self.last_used & self.mask)]?;
        self.last_used = self.last_used.wrapping_add(1);
        Some(head)
    }

    #[inline]
    fn plausible(&self, head: u16) -> bool {
        self.shadow.get(usize::from(head)).is_some_and(|s| s.chain != 0)
    }

    /// Frees the descriptors of a popped chain.
    #[inline]
    pub fn free(&mut self, head: u16) {
        let mut index = head;
        for _ in 0..std::mem::take(&mut self.shadow[usize::from(head)].chain) {
            self.free.push_back(index);
            index = self.shadow[usize::from(index)].desc.next;
        }
    }

    /// Asks the device not to interrupt.
    pub fn suppress(&mut self) {
        self.suppressed = true;
        self.avail.u16_at(0).store(NO_NOTIFY, Ordering::Relaxed);
        self.write_used_event(self.last_used.wrapping_sub(1));
    }

    /// With thresholds, interrupts are suppressed by a threshold that never fires. The threshold
    /// must be moved before the index wraps around to it.
    fn keep_suppressed(&mut self) {
        if self.suppressed && self.last_used.wrapping_sub(self.used_event) > 0x3fff {
            self.write_used_event(self.last_used.wrapping_sub(1));
        }
    }

    fn write_used_event(&mut self, value: u16) {
        self.used_event = value;
        if self.event_idx {
            let at = 4 + 2 * usize::from(self.size);
            self.avail.u16_at(at).store(value, Ordering::Relaxed);
        }
    }

    /// Asks the device to interrupt at the next chain that it returns. Returns false if a chain has
    /// been returned meanwhile. In that case poll again instead of sleeping.
    pub fn arm(&mut self) -> bool {
        self.suppressed = false;
        self.avail.u16_at(0).store(0, Ordering::Relaxed);
        self.write_used_event(self.last_used);
        fence(Ordering::SeqCst);
        self.used_waiting() == 0
    }

    /// Prepares the ring for a new device. All chains that the old device has not returned are made
    /// available again, in their old order. Returns the ring base (the device's first index) and
    /// the number of resubmitted chains. Used chains must have been popped before.
    pub fn restart(&mut self) -> (u16, u16) {
        let base = self.last_used;
        let mut heads: Vec<u16> =
            (0..self.size).filter(|h| self.shadow[usize::from(*h)].chain != 0).collect();
        heads.sort_by_key(|h| {
            std::cmp::Reverse(self.avail_idx.wrapping_sub(self.shadow[usize::from(*h)].stamp))
        });
        self.avail_idx = base;
        for head in &heads {
            self.make_available(*head);
        }
        self.avail.u16_at(2).store(self.avail_idx, Ordering::Release);
        self.published = self.avail_idx;
        // If the old device died while it suppressed kicks, this request must be cleared.
        self.used.u16_at(0).store(0, Ordering::Relaxed);
        let event = 4 + 8 * usize::from(self.size);
        self.used.u16_at(event).store(base, Ordering::Relaxed);
        if self.suppressed {
            self.suppress();
        }
        (base, self.avail_idx.wrapping_sub(base))
    }

    /// The ring base for a device that continues the ring unchanged without the driver's knowledge,
    /// as a hypervisor reads it from the used ring.
    pub fn resume(&self) -> u16 {
        self.used.u16_at(2).load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub fn used_event(&self) -> u16 {
        self.used_event
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
