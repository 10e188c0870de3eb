//! Raw access to one ring, for the writes of a hostile guest.
//!
//! Raw access does not update the driver's own view of the ring. After raw writes only raw access
//! is meaningful for that ring, until the device is created again.

use std::sync::atomic::Ordering;

use nix::sys::eventfd::EventFd;

use super::memory::{GuestMemory, Window};
use super::ring::Descriptor;
use super::virtqueue::Virtqueue;

/// Access to one ring without any checks.
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

    /// Number of descriptors.
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

    /// Publishes any available index.
    pub fn write_avail_idx(&mut self, index: u16) {
        self.ring.avail_window().u16_at(2).store(index, Ordering::Release);
    }

    /// The available index in memory.
    pub fn avail_idx(&mut self) -> u16 {
        self.ring.avail_window().u16_at(2).load(Ordering::Acquire)
    }

    /// Writes the flags of the available ring.
    pub fn write_avail_flags(&mut self, flags: u16) {
        self.ring.avail_window().u16_at(0).store(flags, Ordering::Relaxed);
    }

    /// Writes the driver's notification threshold.
    pub fn write_used_event(&mut self, index: u16) {
        let at = 4 + 2 * usize::from(self.size());
        self.ring.avail_window().u16_at(at).store(index, Ordering::Relaxed);
    }

    /// The used index in memory.
    pub fn used_idx(&mut self) -> u16 {
        self.ring.used_window().u16_at(2).load(Ordering::Acquire)
    }

    /// Entry `index` (modulo the size) of the used ring: (head, length).
    pub fn used(&mut self, index: u16) -> (u32, u32) {
        let at = 4 + 8 * usize::from(index % self.size());
        let used = self.ring.used_window();
        (used.u32_at(at).load(Ordering::Relaxed), used.u32_at(at + 4).load(Ordering::Relaxed))
    }

    /// Overwrites the used index, which only the device may do.
    pub fn write_used_idx(&mut self, index: u16) {
        self.ring.used_window().u16_at(2).store(index, Ordering::Release);
    }

    /// Writes a table of descriptors at a guest address. Returns false outside of guest memory.
    #[must_use]
    pub fn write_table(&mut self, guest: u64, table: &[Descriptor]) -> bool {
        let bytes: Vec<u8> = table.iter().flat_map(Descriptor::to_bytes).collect();
        self.memory.write(guest, &bytes)
    }

    /// Writes bytes at a guest address. Returns false outside of guest memory.
    #[must_use]
    pub fn write_memory(&mut self, guest: u64, bytes: &[u8]) -> bool {
        self.memory.write(guest, bytes)
    }

    /// The used ring, or a packed ring's device event area.
    pub fn used_window(&mut self) -> &mut Window {
        self.ring.used_window()
    }

    /// The descriptor table, or the packed ring.
    pub fn desc_window(&mut self) -> &mut Window {
        self.ring.desc_window()
    }

    /// Kicks the device.
    pub fn kick(&self) {
        // The write fails only if the counter is at its maximum. In that case a kick is already
        // pending.
        let _ = self.kick.write(1);
    }
}
