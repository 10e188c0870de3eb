//! The transmit queue: slots of guest memory, filled in place.
//!
//! A slot is a header followed by a frame. [`TxQueue::take`] lends a free slot, and the caller
//! fills the slot through [`TxQueue::slot_mut`]. A `push` gives the slot to the ring, and
//! [`TxQueue::reclaim`] takes it back when the device has used it. No call blocks and no frame is
//! dropped: if the ring is full, `take` returns `None`.

use std::collections::VecDeque;

use nix::sys::eventfd::EventFd;

use super::device::SlotOrder;
use super::error::DriverError;
use super::header::{VNET_HDR_LEN, VnetHdr};
use super::memory::Window;
use super::ring::Descriptor;
use super::virtqueue::Virtqueue;

/// Maximum number of descriptors of one frame.
const MAX_PARTS: usize = 16;

/// A transmit buffer that the caller may fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(pub(crate) u16);

impl Slot {
    /// The slot's number, from 0. The number identifies prepared contents.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The running number of a pushed frame, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u64);

/// Counters of a transmit queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxCounters {
    /// Pushed frames.
    pub frames: u64,
    /// Bytes of the pushed frames, without header.
    pub bytes: u64,
    /// Frames that the device has used.
    pub completed: u64,
    /// Kicks written.
    pub kicks: u64,
    /// Used entries that named no known frame.
    pub bad_used: u64,
    /// Used entries that do not follow the order in which the frames were made available, because a
    /// frame was lost or duplicated. With IN_ORDER they are not counted, because the heads of
    /// entries are not read.
    pub disorder: u64,
}

/// The driver's transmit queue.
#[derive(Debug)]
pub struct TxQueue {
    pub(crate) ring: Virtqueue,
    slots: Window,
    tables: Window,
    slot_bytes: usize,
    order: SlotOrder,
    free: VecDeque<u16>,
    slot_of: Vec<u16>,
    id_of: Vec<u64>,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    counters: TxCounters,
}

/// Bytes of the indirect tables of `slots` slots.
pub(crate) fn table_bytes(slots: usize) -> usize {
    slots * MAX_PARTS * Descriptor::LEN
}

impl TxQueue {
    pub(crate) fn new(
        ring: Virtqueue,
        slots: Window,
        tables: Window,
        slot_count: u16,
        order: SlotOrder,
        events: (EventFd, EventFd),
    ) -> Self {
        let slot_bytes = slots.len() / usize::from(slot_count);
        let size = usize::from(ring.size());
        Self {
            ring,
            slots,
            tables,
            slot_bytes,
            order,
            free: (0..slot_count).collect(),
            slot_of: vec![0; size],
            id_of: vec![0; size],
            kick: events.0,
            call: events.1,
            counters: TxCounters::default(),
        }
    }

    /// Slots that can be taken and pushed in one descriptor right now.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.free.len().min(self.ring.free_descriptors())
    }

    /// Number of all slots.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.slots.len() / self.slot_bytes
    }

    /// Bytes of a slot, header included.
    #[must_use]
    pub fn slot_len(&self) -> usize {
        self.slot_bytes
    }

    /// Frames pushed and not reclaimed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        usize::from(self.ring.outstanding())
    }

    /// Takes a free slot, if there is one.
    pub fn take(&mut self) -> Option<Slot> {
        if self.ring.free_descriptors() == 0 {
            return None;
        }
        match self.order {
            SlotOrder::Fifo => self.free.pop_front(),
            SlotOrder::Lifo => self.free.pop_back(),
        }
        .map(Slot)
    }

    /// Prefetches for writing the lines of the slot that will be taken after `ahead` others.
    #[inline]
    pub fn prefetch(&self, ahead: usize, frame_len: usize) {
        let slot = match self.order {
            SlotOrder::Fifo => self.free.get(ahead),
            SlotOrder::Lifo => {
                self.free.len().checked_sub(ahead + 1).and_then(|i| self.free.get(i))
            }
        };
        let Some(slot) = slot else { return };
        let at = usize::from(*slot) * self.slot_bytes;
        for line in (0..(VNET_HDR_LEN + frame_len).min(self.slot_bytes)).step_by(64) {
            self.slots.prefetch_write(at + line);
        }
    }

    /// Returns an unused slot.
    pub fn give_back(&mut self, slot: Slot) {
        match self.order {
            SlotOrder::Fifo => self.free.push_front(slot.0),
            SlotOrder::Lifo => self.free.push_back(slot.0),
        }
    }

    /// The slot's bytes: 12 bytes of header, then the frame.
    pub fn slot_mut(&mut self, slot: Slot) -> &mut [u8] {
        self.slots.bytes_mut(slot.index() * self.slot_bytes, self.slot_bytes)
    }

    /// The bytes of any slot by number, to prepare contents before the first frame.
    pub fn prepare(&mut self, index: usize) -> &mut [u8] {
        self.slots.bytes_mut(index * self.slot_bytes, self.slot_bytes)
    }

    /// Adds the slot to the ring as one descriptor, with `hdr` in front of `frame_len` bytes.
    ///
    /// # Errors
    /// The frame does not fit the slot, or the ring is full. The slot stays taken.
    pub fn push(
        &mut self,
        slot: Slot,
        hdr: &VnetHdr,
        frame_len: usize,
    ) -> Result<FrameId, DriverError> {
        self.check(frame_len)?;
        self.slot_mut(slot)[..VNET_HDR_LEN].copy_from_slice(&hdr.to_bytes());
        self.push_prepared(slot, frame_len)
    }

    /// Like [`push`](Self::push), with the header already in the slot.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    #[inline]
    pub fn push_prepared(&mut self, slot: Slot, frame_len: usize) -> Result<FrameId, DriverError> {
        let total = self.check(frame_len)?;
        let addr = self.slots.guest(slot.index() * self.slot_bytes);
        self.add(slot, &[(addr, total)], 0, frame_len)
    }

    /// Adds the slot as a chain: the header in its own descriptor, the frame in `parts` (1..=15)
    /// more of about equal length.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn push_chain(
        &mut self,
        slot: Slot,
        hdr: &VnetHdr,
        frame_len: usize,
        parts: usize,
    ) -> Result<FrameId, DriverError> {
        let (chain, used) = self.split(slot, hdr, frame_len, parts)?;
        self.add(slot, &chain[..used], 0, frame_len)
    }

    /// Adds the slot through an indirect table of header and `parts` (1..=15) descriptors.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn push_indirect(
        &mut self,
        slot: Slot,
        hdr: &VnetHdr,
        frame_len: usize,
        parts: usize,
    ) -> Result<FrameId, DriverError> {
        let (chain, used) = self.split(slot, hdr, frame_len, parts)?;
        let table = slot.index() * MAX_PARTS * Descriptor::LEN;
        for (i, (addr, len)) in chain[..used].iter().enumerate() {
            let last = i + 1 == used;
            let desc = Descriptor {
                addr: *addr,
                len: *len,
                flags: if last { 0 } else { Descriptor::NEXT },
                next: if last { 0 } else { u16::try_from(i + 1).unwrap_or(0) },
            };
            let packed = self.ring.is_packed();
            self.tables
                .bytes_mut(table + i * Descriptor::LEN, Descriptor::LEN)
                .copy_from_slice(&if packed { desc.to_packed_bytes() } else { desc.to_bytes() });
        }
        let len = u32::try_from(used * Descriptor::LEN).unwrap_or(0);
        let addr = self.tables.guest(table);
        self.add(slot, &[(addr, len)], Descriptor::INDIRECT, frame_len)
    }

    fn split(
        &mut self,
        slot: Slot,
        hdr: &VnetHdr,
        frame_len: usize,
        parts: usize,
    ) -> Result<([(u64, u32); MAX_PARTS], usize), DriverError> {
        self.check(frame_len)?;
        if parts == 0 || parts >= MAX_PARTS || parts > frame_len {
            let high = MAX_PARTS - 1;
            return Err(DriverError::Range {
                what: "parts of a frame",
                value: parts,
                low: 1,
                high,
            });
        }
        self.slot_mut(slot)[..VNET_HDR_LEN].copy_from_slice(&hdr.to_bytes());
        let base = self.slots.guest(slot.index() * self.slot_bytes);
        let mut chain = [(0, 0); MAX_PARTS];
        chain[0] = (base, 12);
        let mut offset = 0;
        for i in 0..parts {
            let end = frame_len * (i + 1) / parts;
            let len = u32::try_from(end - offset).unwrap_or(0);
            chain[i + 1] = (base + (VNET_HDR_LEN + offset) as u64, len);
            offset = end;
        }
        Ok((chain, parts + 1))
    }

    #[inline]
    fn check(&self, frame_len: usize) -> Result<u32, DriverError> {
        let frame = frame_len + VNET_HDR_LEN;
        match u32::try_from(frame) {
            Ok(total) if frame <= self.slot_bytes => Ok(total),
            _ => Err(DriverError::FrameTooLong { frame, slot: self.slot_bytes }),
        }
    }

    #[inline]
    fn add(
        &mut self,
        slot: Slot,
        parts: &[(u64, u32)],
        flags: u16,
        frame_len: usize,
    ) -> Result<FrameId, DriverError> {
        let Some(head) = self.ring.add(parts, flags) else {
            let free = self.ring.free_descriptors();
            return Err(DriverError::RingFull { free, needed: parts.len() });
        };
        let id = self.counters.frames;
        self.slot_of[usize::from(head)] = slot.0;
        self.id_of[usize::from(head)] = id;
        self.counters.frames += 1;
        self.counters.bytes += frame_len as u64;
        Ok(FrameId(id))
    }

    /// Makes all pushed frames visible to the device. Kicks the device if it requests a kick.
    /// Returns whether the device was kicked.
    pub fn publish(&mut self) -> bool {
        let kick = self.ring.publish();
        if kick {
            self.kick_now();
        }
        kick
    }

    /// Makes all pushed frames visible without a kick, like a driver that violates the
    /// specification.
    pub fn publish_silently(&mut self) {
        let _ = self.ring.publish();
    }

    /// Kicks the device even if it requests no kick.
    pub fn kick_now(&mut self) {
        // The write fails only if the counter is at its maximum. In that case a kick is already
        // pending.
        let _ = self.kick.write(1);
        self.counters.kicks += 1;
    }

    /// Takes back the slots of used frames and reports their ids. Returns their number.
    #[inline]
    pub fn reclaim(&mut self, mut done: impl FnMut(FrameId)) -> usize {
        let mut count = 0;
        while let Some(head) = self.ring.pop_head() {
            let at = usize::from(head);
            self.ring.free(head);
            self.free.push_back(self.slot_of[at]);
            done(FrameId(self.id_of[at]));
            count += 1;
        }
        self.counters.completed += count as u64;
        count
    }

    /// Requests an interrupt at the next used frame. Returns false if a frame is already used.
    pub fn arm(&mut self) -> bool {
        self.ring.arm()
    }

    /// Ends the request for interrupts. A pending interrupt stays readable until [`clear_call`].
    ///
    /// [`clear_call`]: Self::clear_call
    pub fn disarm(&mut self) {
        self.ring.suppress();
    }

    /// Clears a pending interrupt. Needed for level-triggered waiting.
    pub fn clear_call(&self) {
        // The read fails if no interrupt is pending, which is the desired state.
        let _ = self.call.read();
    }

    /// The descriptor that becomes readable when the device interrupts.
    #[must_use]
    pub fn call_fd(&self) -> &EventFd {
        &self.call
    }

    /// The present counters.
    #[must_use]
    pub fn counters(&self) -> TxCounters {
        let (bad_used, disorder) = (self.ring.bad_used(), self.ring.disorder());
        TxCounters { bad_used, disorder, ..self.counters }
    }
}
