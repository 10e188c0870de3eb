//! Implements the transmit queue. Callers write frames directly into slots of guest memory.
//!
//! A slot contains a header and a frame. [`TxQueue::take`] returns a free slot, and the caller
//! fills the slot through [`TxQueue::slot_mut`]. The `push` functions add the slot to the ring.
//! When the device has used a transmit slot, [`TxQueue::reclaim`] frees the slot. If the queue has
//! no free slot or descriptor, [`TxQueue::take`] returns `None`, so no call blocks and no frame is
//! dropped.

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
    /// Returns the slot's number, from 0. The function [`TxQueue::prepare`] takes the number of a
    /// slot.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Sequence number of a pushed frame, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxCounters {
    /// Number of frames that were pushed.
    pub frames: u64,
    /// Number of bytes of the pushed frames, without headers.
    pub bytes: u64,
    /// Number of pushed frames that the device has used.
    pub completed: u64,
    /// Number of kicks that the driver sent to the device.
    pub kicks: u64,
    /// Number of used entries with an id that matches no outstanding frame.
    pub bad_used: u64,
    /// Number of used entries that the device returned in a different order than the driver made
    /// the frames available. With IN_ORDER, entries out of order are not counted, because the
    /// driver does not read the heads of used entries.
    pub disorder: u64,
}

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

/// Returns the size in bytes of the indirect tables for `slots` slots.
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

    /// Number of slots that can be taken and pushed now, if each frame needs one descriptor.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.free.len().min(self.ring.free_descriptors())
    }

    /// Number of slots of the queue, free or not.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.slots.len() / self.slot_bytes
    }

    /// Number of frames that were pushed and have not been reclaimed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        usize::from(self.ring.outstanding())
    }

    /// Takes a free transmit slot. Returns `None` if the queue has no free slot or descriptor.
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

    /// Prefetches, for writing, the cache lines of the slot that will be taken after `ahead` other
    /// slots.
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

    /// Puts a slot back that was taken but not pushed.
    pub fn give_back(&mut self, slot: Slot) {
        match self.order {
            SlotOrder::Fifo => self.free.push_front(slot.0),
            SlotOrder::Lifo => self.free.push_back(slot.0),
        }
    }

    /// Returns the slot's bytes, which are a 12-byte header and a frame.
    pub fn slot_mut(&mut self, slot: Slot) -> &mut [u8] {
        self.slots.bytes_mut(slot.index() * self.slot_bytes, self.slot_bytes)
    }

    /// Returns the bytes of slot number `index`, so that a caller can prepare the contents before
    /// the first frame.
    pub fn prepare(&mut self, index: usize) -> &mut [u8] {
        self.slots.bytes_mut(index * self.slot_bytes, self.slot_bytes)
    }

    /// Writes `hdr` in front of the frame of `frame_len` bytes, and adds the slot to the ring as
    /// one descriptor.
    ///
    /// # Errors
    /// Returns an error if the frame does not fit into the slot, or if the ring is full. After an
    /// error, the transmit slot remains allocated to the caller.
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

    /// Adds the slot to the ring like [`push`](Self::push), but expects that the virtio header is
    /// already in the slot.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`push`](Self::push).
    #[inline]
    pub fn push_prepared(&mut self, slot: Slot, frame_len: usize) -> Result<FrameId, DriverError> {
        let total = self.check(frame_len)?;
        let addr = self.slots.guest(slot.index() * self.slot_bytes);
        self.add(slot, &[(addr, total)], 0, frame_len)
    }

    /// Adds the slot to the ring as a chain. The slot's chain has one descriptor for the header,
    /// and `parts` (1 to 15) descriptors of about equal length for the frame.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`push`](Self::push).
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

    /// Adds the slot to the ring through an indirect table. The indirect table has one descriptor
    /// for the header, and `parts` (1 to 15) descriptors for the frame.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`push`](Self::push).
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

    /// Makes all pushed frames visible to the device. If the device wants a kick, this function
    /// kicks the device and returns true.
    pub fn publish(&mut self) -> bool {
        let kick = self.ring.publish();
        if kick {
            self.kick_now();
        }
        kick
    }

    /// Makes all pushed frames visible to the device without a kick, like a driver that violates
    /// the specification.
    pub fn publish_silently(&mut self) {
        let _ = self.ring.publish();
    }

    /// Kicks the device, even if the device wants no kick.
    pub fn kick_now(&mut self) {
        // The write fails only if the counter is at its maximum. Then a kick is already pending.
        let _ = self.kick.write(1);
        self.counters.kicks += 1;
    }

    /// Frees the slots of the frames that the device has used, and passes the ids of these frames
    /// to `done`. Returns the number of freed slots.
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

    /// Requests an interrupt when the device uses a frame. Returns false if the device has already
    /// used a frame.
    pub fn arm(&mut self) -> bool {
        self.ring.arm()
    }

    /// Requests an interrupt when the device has used about three quarters of the outstanding
    /// frames. A driver with a full ring thus gets one interrupt for many frames, as with Linux.
    /// Returns false if the caller must reclaim frames first.
    pub fn arm_delayed(&mut self) -> bool {
        self.ring.arm_delayed()
    }

    /// Tells the device that the driver wants no more interrupts. A pending interrupt stays
    /// readable until [`clear_call`].
    ///
    /// [`clear_call`]: Self::clear_call
    pub fn disarm(&mut self) {
        self.ring.suppress();
    }

    /// Clears a pending interrupt. A level-triggered wait for the next interrupt returns at once if
    /// the pending interrupt is not cleared.
    pub fn clear_call(&self) {
        // The read fails if no interrupt is pending, which is the desired state.
        let _ = self.call.read();
    }

    /// Returns the file descriptor that becomes readable when the device interrupts.
    #[must_use]
    pub fn call_fd(&self) -> &EventFd {
        &self.call
    }

    #[must_use]
    pub fn counters(&self) -> TxCounters {
        let (bad_used, disorder) = (self.ring.bad_used(), self.ring.disorder());
        TxCounters { bad_used, disorder, ..self.counters }
    }
}
