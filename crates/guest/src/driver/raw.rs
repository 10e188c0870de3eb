//! Provides raw access to a ring, for a hostile guest.
//!
//! Raw access does not update the driver's own view of the ring. After raw writes to a ring, use
//! only raw access for the ring until the device is created again.

use std::sync::atomic::Ordering;

use nix::sys::eventfd::EventFd;

use super::memory::{GuestMemory, Window};
use super::ring::Descriptor;
use super::virtqueue::Virtqueue;

/// Access to a ring without plausibility checks.
#[derive(Debug)]
pub struct RawQueue<'a> {
    ring: &'a mut Virtqueue,
    kick: &'a EventFd,
    memory: &'a GuestMemory,
}

impl<'a> RawQueue<'a> {
    pub(crate) fn new(ring: &'a mut Virtqueue, kick: &'a EventFd, memory: &'a GuestMemory) -> Self {
        Self { ring, kick, memory }
    }

    /// Number of descriptors of the ring.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.ring.size()
    }

    /// Writes entry `index` (modulo the size) of the descriptor table.
    pub fn write_desc(&mut self, index: u16, desc: Descriptor) {
        let at = usize::from(index % self.size()) * Descriptor::LEN;
        self.ring.desc_window().bytes_mut(at, Descriptor::LEN).copy_from_slice(&desc.to_bytes());
    }

    /// Writes entry `index` (modulo the size) of the available ring.
    pub fn write_avail(&mut self, index: u16, head: u16) {
        let at = 4 + 2 * usize::from(index % self.size());
        self.ring.avail_window().u16_at(at).store(head, Ordering::Relaxed);
    }

    /// Publishes an arbitrary available index.
    pub fn write_avail_idx(&mut self, index: u16) {
        self.ring.avail_window().u16_at(2).store(index, Ordering::Release);
    }

    /// Reads the available index from guest memory.
    pub fn avail_idx(&mut self) -> u16 {
        self.ring.avail_window().u16_at(2).load(Ordering::Acquire)
    }

    /// Writes the driver's event index (`used_event`): the device interrupts when its used index
    /// passes this index.
    pub fn write_used_event(&mut self, index: u16) {
        let at = 4 + 2 * usize::from(self.size());
        self.ring.avail_window().u16_at(at).store(index, Ordering::Relaxed);
    }

    /// Reads the used index from guest memory.
    pub fn used_idx(&mut self) -> u16 {
        self.ring.used_window().u16_at(2).load(Ordering::Acquire)
    }

    /// Reads entry `index` (modulo the size) of the used ring. A used entry consists of the head of
    /// a chain and the number of bytes that the device wrote.
    pub fn used(&mut self, index: u16) -> (u32, u32) {
        let at = 4 + 8 * usize::from(index % self.size());
        let used = self.ring.used_window();
        (used.u32_at(at).load(Ordering::Relaxed), used.u32_at(at + 4).load(Ordering::Relaxed))
    }

    /// Overwrites the used index, although only the device may write it.
    pub fn write_used_idx(&mut self, index: u16) {
        self.ring.used_window().u16_at(2).store(index, Ordering::Release);
    }

    /// Writes a table of descriptors at a guest address. Returns false if a part of the table would
    /// be outside of guest memory.
    #[must_use]
    pub fn write_table(&mut self, guest: u64, table: &[Descriptor]) -> bool {
        let bytes: Vec<u8> = table.iter().flat_map(Descriptor::to_bytes).collect();
        self.memory.write(guest, &bytes)
    }

    /// Writes bytes at a guest address. Returns false if a part of the bytes would be outside of
    /// guest memory.
    #[must_use]
    pub fn write_memory(&mut self, guest: u64, bytes: &[u8]) -> bool {
        self.memory.write(guest, bytes)
    }

    /// Window with the used ring, or with the device event area of a packed ring.
    pub fn used_window(&mut self) -> &mut Window {
        self.ring.used_window()
    }

    /// Window with the descriptor table, or with the packed ring.
    pub fn desc_window(&mut self) -> &mut Window {
        self.ring.desc_window()
    }

    /// Kicks the device, even if the device wants no kick.
    pub fn kick(&self) {
        // The write fails only if the counter is at its maximum. Then a kick is already pending.
        let _ = self.kick.write(1);
    }
}
