//! Implements a split virtqueue, seen from the driver.
//!
//! # Source
//! Virtio 1.2 §2.7 defines split virtqueues, §2.7.7 and §2.7.10 notification suppression, and
//! §2.7.8 in-order use.
//!
//! # Quantities
//! `avail_idx` and `last_used` are free-running 16-bit counters. `size` is the number of
//! descriptors of a ring.
//!
//! # Approach
//! The driver keeps the free descriptors in a queue. The driver takes descriptors from the front of
//! the queue and returns them to the end. If the device returns chains in order, the driver
//! therefore uses the descriptors in ring order, as the feature IN_ORDER requires. The driver keeps
//! a private copy of each descriptor and available entry, and writes only values that differ from
//! the private copy. In the steady state, only `avail.idx` and the buffers change. The caches of
//! the driver's and the switch's core can keep all other lines of the ring.
//!
//! # Example
//! With event index 9, a kick is due if the available index moves from 8 to 10, but not from 10 to
//! 12 (`need_event_follows_the_specification`).
//!
//! # Cost
//! Each publication of chains costs one memory fence.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::memory::Window;

/// Largest ring size of this driver, in descriptors.
pub const MAX_RING_SIZE: u16 = 1024;

const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;
const NO_NOTIFY: u16 = 1;

/// A descriptor of a split ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Length of the buffer in bytes.
    pub len: u32,
    /// Virtio flags of the descriptor: 1 means next, 2 means that the device writes, and 4 means
    /// indirect.
    pub flags: u16,
    /// The field `next` is valid only if bit 0 of `flags` (`VIRTQ_DESC_F_NEXT`) is set. `next` is
    /// valid only if `flags` contains 1 (next).
    pub next: u16,
}

impl Descriptor {
    /// Size of a descriptor in guest memory, in bytes.
    pub const LEN: usize = 16;
    /// Flag bit: the field `next` is valid.
    pub const NEXT: u16 = FLAG_NEXT;
    /// Flag bit: the device writes the buffer.
    pub const WRITE: u16 = FLAG_WRITE;
    /// Flag bit: the buffer is a table of descriptors.
    pub const INDIRECT: u16 = FLAG_INDIRECT;

    /// Encodes the descriptor as bytes for a split ring in guest memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.addr.to_le_bytes());
        b[8..12].copy_from_slice(&self.len.to_le_bytes());
        b[12..14].copy_from_slice(&self.flags.to_le_bytes());
        b[14..].copy_from_slice(&self.next.to_le_bytes());
        b
    }

    /// Encodes the descriptor as bytes for a packed ring or its indirect tables. In the packed
    /// format, the field `next` contains the buffer ID and stands before the flags.
    #[must_use]
    pub fn to_packed_bytes(&self) -> [u8; Self::LEN] {
        let mut b = self.to_bytes();
        b[12..14].copy_from_slice(&self.next.to_le_bytes());
        b[14..].copy_from_slice(&self.flags.to_le_bytes());
        b
    }

    /// Encodes the descriptor as two 64-bit words.
    fn words(&self) -> (u64, u64) {
        let second = u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48;
        (self.addr, second)
    }
}

/// Returns the sizes in bytes of the descriptor table, the available ring and the used ring for
/// `size` descriptors.
pub(crate) fn ring_bytes(size: u16) -> [usize; 3] {
    let n = usize::from(size);
    [n * Descriptor::LEN, 6 + 2 * n, 6 + 8 * n]
}

/// Whether an index that moves from `old` to `new` passes the event index `event` (virtio 1.2
/// §2.7.10).
pub(crate) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A used chain, which the device has returned to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    pub head: u16,
    pub len: u32,
}

/// The driver's private copy of a descriptor, with the state of the chain that the descriptor
/// begins.
#[derive(Debug, Clone, Copy)]
struct Shadow {
    desc: Descriptor,
    written: bool,
    /// If the descriptor is a head: the number of descriptors in its chain, or 0 if the chain is
    /// free.
    chain: u16,
    /// If the descriptor is the head of a chain, the value of `avail_idx` when the driver made this
    /// chain available.
    stamp: u16,
}

/// The driver's end of a split ring.
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
    /// Number of used entries that name no known chain.
    pub bad_used: u64,
    /// Number of used entries in which the device returned a chain before an earlier chain.
    pub disorder: u64,
}

impl SplitRing {
    /// Creates a split ring in three zeroed windows. Interrupts are initially suppressed.
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

    /// Sets which negotiated features the ring uses.
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

    /// Number of chains that the driver has made available and not yet popped.
    pub fn outstanding(&self) -> u16 {
        self.avail_idx.wrapping_sub(self.last_used)
    }

    /// Host addresses of the descriptor table, the available ring and the used ring.
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

    /// Adds a chain of buffers and returns the number of the chain's head. Each element of `parts`
    /// is a guest address and a length in bytes. The device sees the chain after
    /// [`publish`](Self::publish). Returns `None` if the ring has too few free descriptors.
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

    /// Makes a chain that was popped but not freed available again.
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

    /// Makes all added chains visible to the device. Returns true if the device wants a kick.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (new, old) = (self.avail_idx, self.published);
        if new == old {
            return false;
        }
        self.avail.u16_at(2).store(new, Ordering::Release);
        self.published = new;
        // Virtio §2.7.13.4.1: the index must be visible before the driver reads whether the device
        // suppresses kicks.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.used.u16_at(4 + 8 * usize::from(self.size)).load(Ordering::Relaxed);
            need_event(event, new, old)
        } else {
            self.used.u16_at(0).load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    /// Reads the used index, which the device writes. Returns the number of chains that the device
    /// has returned and the driver has not yet popped.
    #[inline]
    pub fn used_waiting(&mut self) -> u16 {
        self.keep_suppressed();
        self.used_seen = self.used.u16_at(2).load(Ordering::Acquire);
        self.used_seen.wrapping_sub(self.last_used)
    }

    /// Returns the used entry that is `ahead` positions after the next entry to pop. If `ahead` is
    /// 0, returns the next used entry to pop. The caller must first learn from `used_waiting` that
    /// the device has written enough used entries.
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

    /// Pops the next used chain. Used entries that name no known chain are skipped. The descriptors
    /// of the popped chain stay allocated until the caller calls [`free`](Self::free).
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

    /// Pops exactly one used entry that `used_waiting` has seen. Returns `None` if the used entry
    /// contains the number of a chain that the driver has not offered.
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

    /// Pops the next used chain, and returns the chain's head. If IN_ORDER is negotiated, the
    /// function computes the head from the order of the chains and does not read the used entry.
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

    /// Tells the device that the driver wants no interrupts.
    pub fn suppress(&mut self) {
        self.suppressed = true;
        self.avail.u16_at(0).store(NO_NOTIFY, Ordering::Relaxed);
        self.write_used_event(self.last_used.wrapping_sub(1));
    }

    /// With EVENT_IDX, the device interrupts when the used index passes the driver's event index.
    /// To suppress interrupts, the driver sets an event index that the device's used index has
    /// already passed. Moves the driver's event index forward, so that the used index cannot wrap
    /// around and reach the event index.
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

    /// Requests an interrupt at the next chain that the device returns. Returns false if the device
    /// has already returned a chain. If the result is false, the caller must poll again instead of
    /// sleeping.
    pub fn arm(&mut self) -> bool {
        self.arm_after(0)
    }

    /// Requests an interrupt when the device has returned more than three quarters of the
    /// outstanding chains, like Linux's `virtqueue_enable_cb_delayed`. Without EVENT_IDX, the
    /// device interrupts at the next chain. Returns false if the device has already returned as
    /// many chains.
    pub fn arm_delayed(&mut self) -> bool {
        self.arm_after(self.outstanding() * 3 / 4)
    }

    /// Requests an interrupt when the device has returned more than `chains` chains. Returns false
    /// if the device has already returned as many chains.
    fn arm_after(&mut self, chains: u16) -> bool {
        self.suppressed = false;
        self.avail.u16_at(0).store(0, Ordering::Relaxed);
        self.write_used_event(self.last_used.wrapping_add(chains));
        fence(Ordering::SeqCst);
        self.used_waiting() <= chains
    }

    /// Prepares the ring for a new device after a reconnection. Call this function only after all
    /// used chains were popped. All chains that the old device has not returned become available
    /// again, in their old order. Returns the ring base (the index at which the new device starts)
    /// and the number of chains that became available again.
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
        // The old device may have died while it suppressed kicks. Clear its request.
        self.used.u16_at(0).store(0, Ordering::Relaxed);
        let event = 4 + 8 * usize::from(self.size);
        self.used.u16_at(event).store(base, Ordering::Relaxed);
        if self.suppressed {
            self.suppress();
        }
        (base, self.avail_idx.wrapping_sub(base))
    }

    /// Returns the ring base for a device that continues the unchanged ring, which is the used
    /// index in memory. A hypervisor also reads the used index from memory, and need not involve
    /// the guest's driver.
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
