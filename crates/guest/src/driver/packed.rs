//! Implements a packed virtqueue, seen from the driver.
//!
//! # Source
//! Virtio 1.2 §2.8 defines packed virtqueues, §2.8.9 in-order use, and §2.8.14 event suppression.
//!
//! # Quantities
//! The driver counts chains with three 16-bit numbers, which wrap around. `avail_idx` counts
//! available chains, `used_seen` counts used chains that the driver has seen, and `last_used`
//! counts popped chains. Positions in the ring count descriptors.
//!
//! # Approach
//! [`PackedRing::add`] writes all descriptors except the head of the first chain since the last
//! publication. [`PackedRing::publish`] writes the head of the first added chain, which makes all
//! added chains available. The device reads descriptors in ring order, so it sees the other
//! descriptors only after the head of the first chain. The driver reads each used descriptor once,
//! into a private list. If IN_ORDER is negotiated, one used descriptor may return several chains:
//! its own chain and all earlier chains. If a used descriptor skips a chain, the driver assumes
//! that the device filled all buffers of the skipped chain. If a used descriptor names an unknown
//! chain, the driver stops reading the ring, because it cannot know the position of the next used
//! descriptor.
//!
//! # Example
//! For example, after 10 descriptors in a ring of 8 descriptors, the position is index 2, and the
//! wrap counter has changed from 1 to 0.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::memory::Window;
use super::ring::{Descriptor, MAX_RING_SIZE, Used};

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const WRAP: u16 = 1 << 15;
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;

/// A position in the ring with its wrap counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RingPosition {
    index: u16,
    wrap: bool,
}

impl RingPosition {
    fn advance(&mut self, by: u16, size: u16) {
        self.index += by;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }

    fn word(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }

    fn available(self) -> u16 {
        if self.wrap { AVAIL } else { USED }
    }

    fn used(self) -> u16 {
        if self.wrap { AVAIL | USED } else { 0 }
    }

    /// Returns the ring position as a number from 0 to twice the ring size minus 1. Positions with
    /// wrap counters repeat after two rounds.
    fn of_two_rounds(self, size: u16) -> u16 {
        self.index + if self.wrap { 0 } else { size }
    }
}

/// The driver's record of a chain of descriptors.
#[derive(Debug, Clone, Default)]
struct Chain {
    parts: Vec<(u64, u32)>,
    flags: u16,
    bytes: u32,
    /// Value of `avail_idx` at the time when the chain was made available.
    stamp: u16,
    /// Whether the device has returned the chain. The value is false again when the driver reuses
    /// the chain.
    used: bool,
}

/// The driver's end of a packed ring.
#[derive(Debug)]
pub(crate) struct PackedRing {
    size: u16,
    mask: u16,
    ring: Window,
    driver_event: Window,
    device_event: Window,
    chains: Vec<Chain>,
    free_ids: VecDeque<u16>,
    free: u16,
    /// IDs of the available chains, in the order in which the driver made the chains available. The
    /// entry for a chain is at the number of earlier available chains, modulo the ring size.
    order: Vec<u16>,
    ready: Vec<Used>,
    avail: RingPosition,
    used: RingPosition,
    avail_idx: u16,
    used_seen: u16,
    last_used: u16,
    /// Position in the ring of the first unpublished descriptor, and the descriptor's second 64-bit
    /// word.
    first: Option<(RingPosition, u64)>,
    event_idx: bool,
    in_order: bool,
    suppressed: bool,
    broken: bool,
    /// Number of used descriptors that name no known chain.
    pub bad_used: u64,
    /// Number of used descriptors that name a chain out of order.
    pub disorder: u64,
}

impl PackedRing {
    /// Creates a packed ring in three zeroed windows. Interrupts are initially suppressed.
    pub fn new(size: u16, ring: Window, driver_event: Window, device_event: Window) -> Self {
        assert!(size.is_power_of_two() && (2..=MAX_RING_SIZE).contains(&size));
        let n = usize::from(size);
        let fresh = RingPosition { index: 0, wrap: true };
        let ring = Self {
            size,
            mask: size - 1,
            ring,
            driver_event,
            device_event,
            chains: (0..n)
                .map(|_| Chain { parts: Vec::with_capacity(16), ..Chain::default() })
                .collect(),
            free_ids: (0..size).collect(),
            free: size,
            order: vec![0; n],
            ready: vec![Used { head: 0, len: 0 }; n],
            avail: fresh,
            used: fresh,
            avail_idx: 0,
            used_seen: 0,
            last_used: 0,
            first: None,
            event_idx: false,
            in_order: false,
            suppressed: true,
            broken: false,
            bad_used: 0,
            disorder: 0,
        };
        ring.wish(fresh, DISABLE);
        ring
    }

    /// Sets which negotiated features the ring uses.
    pub fn set_features(&mut self, event_idx: bool, in_order: bool) {
        self.event_idx = event_idx;
        self.in_order = in_order;
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    pub fn free_descriptors(&self) -> usize {
        usize::from(self.free)
    }

    /// Number of chains that the driver has made available to the device and has not yet popped.
    pub fn outstanding(&self) -> u16 {
        self.avail_idx.wrapping_sub(self.last_used)
    }

    /// Host addresses of the ring, the driver's event area and the device's event area.
    pub fn addresses(&self) -> [u64; 3] {
        [self.ring.host(), self.driver_event.host(), self.device_event.host()]
    }

    pub fn desc_window(&mut self) -> &mut Window {
        &mut self.ring
    }

    pub fn avail_window(&mut self) -> &mut Window {
        &mut self.driver_event
    }

    pub fn used_window(&mut self) -> &mut Window {
        &mut self.device_event
    }

    /// Adds a chain of `parts` (address, bytes), and returns the chain's id. The device sees the
    /// chain after [`publish`](Self::publish). Returns `None` if the ring has too few free
    /// descriptors.
    pub fn add(&mut self, parts: &[(u64, u32)], flags: u16) -> Option<u16> {
        if parts.is_empty() || parts.len() > usize::from(self.free) {
            return None;
        }
        let id = self.free_ids.pop_front()?;
        let chain = &mut self.chains[usize::from(id)];
        chain.parts.clear();
        chain.parts.extend_from_slice(parts);
        chain.flags = flags;
        chain.bytes = parts.iter().map(|part| part.1).sum();
        self.free -= u16::try_from(parts.len()).ok()?;
        self.make_available(id);
        Some(id)
    }

    /// Makes a popped chain available again, with the same descriptors. The caller must not have
    /// freed the chain.
    pub fn repost(&mut self, id: u16) {
        self.make_available(id);
    }

    fn make_available(&mut self, id: u16) {
        let chain = &mut self.chains[usize::from(id)];
        chain.used = false;
        chain.stamp = self.avail_idx;
        let last = chain.parts.len() - 1;
        for (i, (addr, len)) in chain.parts.iter().enumerate() {
            let next = if i == last { 0 } else { Descriptor::NEXT };
            let flags = chain.flags | next | self.avail.available();
            let word = u64::from(*len) | u64::from(id) << 32 | u64::from(flags) << 48;
            let at = usize::from(self.avail.index) * Descriptor::LEN;
            self.ring.u64_at(at).store(*addr, Ordering::Relaxed);
            match self.first {
                None => self.first = Some((self.avail, word)),
                Some(_) => self.ring.u64_at(at + 8).store(word, Ordering::Relaxed),
            }
            self.avail.advance(1, self.size);
        }
        self.order[usize::from(self.avail_idx & self.mask)] = id;
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    /// Returns true if the device requests a kick. Returns true if the device wants a kick.
    pub fn publish(&mut self) -> bool {
        let Some((from, word)) = self.first.take() else { return false };
        let at = usize::from(from.index) * Descriptor::LEN;
        self.ring.u64_at(at + 8).store(word, Ordering::Release);
        // Virtio §2.8.21.3: available chains must be visible before the driver reads whether the
        // device requests a kick.
        fence(Ordering::SeqCst);
        let wish = self.device_event.u32_at(0).load(Ordering::Relaxed);
        let [a, b, c, d] = wish.to_le_bytes();
        let (event, flags) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]) & 3);
        match flags {
            DISABLE => false,
            DESC if self.event_idx => {
                let event = RingPosition { index: event & !WRAP, wrap: event & WRAP != 0 };
                self.published_since(event, from)
            }
            _ => true,
        }
    }

    /// Whether the device's event position `event` is one of the descriptors from `from` up to the
    /// last added descriptor.
    fn published_since(&self, event: RingPosition, from: RingPosition) -> bool {
        (1..=self.added_since(from)).contains(&self.added_since(event))
    }

    /// Returns the number of descriptors from `place` up to the last added descriptor.
    fn added_since(&self, place: RingPosition) -> u16 {
        let rounds = 2 * self.size;
        let number = |place: RingPosition| place.of_two_rounds(self.size) % rounds;
        (number(self.avail) + rounds - number(place)) % rounds
    }

    /// Reads the ring. Returns the number of returned chains that the driver has not yet popped.
    pub fn used_waiting(&mut self) -> u16 {
        while self.used_seen != self.avail_idx && !self.broken {
            let at = usize::from(self.used.index) * Descriptor::LEN + 8;
            let word = self.ring.u64_at(at).load(Ordering::Acquire).to_le_bytes();
            let flags = u16::from_le_bytes([word[6], word[7]]);
            if flags & (AVAIL | USED) != self.used.used() {
                break;
            }
            let head = u16::from_le_bytes([word[4], word[5]]);
            let len = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            self.see(Used { head, len });
        }
        self.used_seen.wrapping_sub(self.last_used)
    }

    /// Adds a used descriptor to the driver's private list.
    fn see(&mut self, used: Used) {
        let known = self.chains.get(usize::from(used.head));
        if !known.is_some_and(|chain| !chain.parts.is_empty() && !chain.used) {
            self.bad_used += 1;
            self.broken = true;
            return;
        }
        // With in-order use, the device has also used all chains before this one, without writing
        // their used descriptors.
        while self.in_order && self.used_seen != self.avail_idx {
            let id = self.order[usize::from(self.used_seen & self.mask)];
            if id == used.head {
                break;
            }
            let len = self.chains[usize::from(id)].bytes;
            self.push_ready(Used { head: id, len });
        }
        if self.used_seen != self.avail_idx {
            let expected = self.order[usize::from(self.used_seen & self.mask)];
            self.disorder += u64::from(expected != used.head);
            self.push_ready(used);
        }
    }

    fn push_ready(&mut self, used: Used) {
        let chain = &mut self.chains[usize::from(used.head)];
        chain.used = true;
        let span = u16::try_from(chain.parts.len()).unwrap_or(self.size);
        self.used.advance(span, self.size);
        self.ready[usize::from(self.used_seen & self.mask)] = used;
        self.used_seen = self.used_seen.wrapping_add(1);
    }

    /// Returns the used chain that is `ahead` positions after the next chain to pop. If `ahead` is
    /// 0, returns the next used chain to pop. The caller must first learn from `used_waiting` that
    /// the device has returned enough chains.
    pub fn peek_used(&self, ahead: u16) -> Used {
        self.ready[usize::from(self.last_used.wrapping_add(ahead) & self.mask)]
    }

    /// Pops the next used chain that `used_waiting` has seen. Returns `None` if the driver knows of
    /// no further used chain.
    pub fn pop_entry(&mut self) -> Option<Used> {
        if self.last_used == self.used_seen {
            return None;
        }
        let used = self.peek_used(0);
        self.last_used = self.last_used.wrapping_add(1);
        Some(used)
    }

    /// Pops the next used chain, and returns the buffer ID of the chain. If the driver has popped
    /// all used chains that it knows, it reads the ring for further used chains.
    pub fn pop_head(&mut self) -> Option<u16> {
        if self.last_used == self.used_seen && self.used_waiting() == 0 {
            return None;
        }
        self.pop_entry().map(|used| used.head)
    }

    /// Frees the descriptors and the id of a popped chain.
    pub fn free(&mut self, id: u16) {
        let chain = &mut self.chains[usize::from(id)];
        self.free += u16::try_from(chain.parts.len()).unwrap_or(0);
        chain.parts.clear();
        self.free_ids.push_back(id);
    }

    fn wish(&self, event: RingPosition, flags: u16) {
        let wish = u32::from(event.word()) | u32::from(flags) << 16;
        self.driver_event.u32_at(0).store(wish, Ordering::Relaxed);
    }

    /// Tells the device that the driver wants no interrupts.
    pub fn suppress(&mut self) {
        self.suppressed = true;
        self.wish(self.used, DISABLE);
    }

    /// Requests an interrupt at the next chain that the device returns. Returns false if the device
    /// has already returned a chain. If the function returns false, the caller must poll the ring
    /// again, because the device may have returned the chain without an interrupt.
    pub fn arm(&mut self) -> bool {
        self.arm_at(self.used)
    }

    /// Requests an interrupt when the device has returned more than three quarters of the
    /// descriptors that it has, like Linux's `virtqueue_enable_cb_delayed`. Without EVENT_IDX, the
    /// device interrupts at the next chain. Returns false if the device has already returned a
    /// chain.
    pub fn arm_delayed(&mut self) -> bool {
        let mut event = self.used;
        event.advance(self.added_since(self.used) * 3 / 4, self.size);
        self.arm_at(event)
    }

    /// Requests an interrupt when the device returns the descriptor at `event`. Returns false if
    /// the device has already returned a chain.
    fn arm_at(&mut self, event: RingPosition) -> bool {
        self.suppressed = false;
        self.wish(event, if self.event_idx { DESC } else { ENABLE });
        fence(Ordering::SeqCst);
        self.used_waiting() == 0
    }

    /// Prepares the ring for a new device after a reconnection. Before the call, the caller must
    /// pop all used chains. All chains that the old device has not returned become available again,
    /// in their old order. The first chain that becomes available again begins at the ring base,
    /// which is the position of the old device's next used descriptor. Returns the ring base (with
    /// the wrap counter in bit 15) and the number of chains that became available again.
    pub fn restart(&mut self) -> (u16, u16) {
        let base = self.used.word();
        let with_device = |id: &u16| {
            let chain = &self.chains[usize::from(*id)];
            !chain.parts.is_empty() && !chain.used
        };
        let mut ids: Vec<u16> = (0..self.size).filter(with_device).collect();
        let age = |id: &u16| self.avail_idx.wrapping_sub(self.chains[usize::from(*id)].stamp);
        ids.sort_by_key(|id| std::cmp::Reverse(age(id)));
        let old = self.avail;
        self.avail = self.used;
        self.avail_idx = self.last_used;
        self.used_seen = self.last_used;
        self.first = None;
        self.broken = false;
        for id in &ids {
            self.make_available(*id);
        }
        // The descriptors from here to the ring's old position must not look available.
        let mut stale = self.avail;
        while stale != old {
            let at = usize::from(stale.index) * Descriptor::LEN + 8;
            let flags = RingPosition { wrap: !stale.wrap, ..stale }.used();
            self.ring.u64_at(at).store(u64::from(flags) << 48, Ordering::Relaxed);
            stale.advance(1, self.size);
        }
        if let Some((place, word)) = self.first.take() {
            let at = usize::from(place.index) * Descriptor::LEN + 8;
            self.ring.u64_at(at).store(word, Ordering::Release);
        }
        // The old device may have died while it suppressed kicks. Clear its request.
        self.device_event.u32_at(0).store(0, Ordering::Relaxed);
        if self.suppressed {
            self.suppress();
        }
        (base, self.avail_idx.wrapping_sub(self.last_used))
    }

    /// Returns the position (ring base) from which a new device must continue if the driver leaves
    /// the ring unchanged. The ring base is the ring position after the last used descriptor that
    /// the driver can see.
    pub fn resume(&mut self) -> u16 {
        self.used_waiting();
        self.used.word()
    }
}

#[cfg(test)]
#[path = "packed_tests.rs"]
mod tests;
