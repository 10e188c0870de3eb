//! The memory for an AF_XDP socket's frames. The module `umem` also converts the kernel's addresses
//! of frames to pointers.
//!
//! The memory for frames is one mapping of equal chunks. A chunk's size in bytes is a power of two,
//! and a chunk is aligned to its size. Aligned chunks are the kernel's default mode, in which the
//! upper bits of an address identify the chunk. [`super::pool`] tracks whether the port or the
//! kernel may access a chunk.
#![allow(unsafe_code, reason = "access to a frame's bytes in the shared memory needs raw pointers")]

use std::io;

use super::mapping::Mapping;

/// Bytes that the kernel leaves free in front of a received frame (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM: u32 = 256;

/// The memory mapping for frames, and its division into chunks.
#[derive(Debug)]
pub(super) struct Umem {
    memory: Mapping,
    /// Binary logarithm of a chunk's size in bytes.
    shift: u32,
    chunks: u32,
}

impl Umem {
    /// Maps memory for frames, divided into `chunks` chunks of 2^`shift` bytes each.
    pub(super) fn new(shift: u32, chunks: u32) -> io::Result<Self> {
        let memory = Mapping::anonymous((chunks as usize) << shift)?;
        Ok(Self { memory, shift, chunks })
    }

    /// Size in bytes of a chunk of the memory for frames.
    pub(super) fn chunk(&self) -> u32 {
        1 << self.shift
    }

    pub(super) fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Description of the memory for frames, for the socket option `XDP_UMEM_REG`.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.memory.at() as u64,
            len: u64::from(self.chunks) << self.shift,
            chunk_size: self.chunk(),
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// The kernel's address of byte `start` of chunk number `chunk`.
    pub(super) fn address(&self, chunk: u32, start: u32) -> u64 {
        (u64::from(chunk) << self.shift) + u64::from(start)
    }

    /// The chunk number of a kernel address, and the offset in this chunk. Returns `None` if the
    /// address is outside the memory for frames.
    pub(super) fn locate(&self, address: u64) -> Option<(u32, u32)> {
        let chunk = u32::try_from(address >> self.shift).ok().filter(|&c| c < self.chunks)?;
        #[expect(clippy::cast_possible_truncation, reason = "the mask is smaller than a chunk")]
        let start = (address & u64::from(self.chunk() - 1)) as u32;
        Some((chunk, start))
    }

    /// Pointer to byte `start` of chunk number `chunk`.
    pub(super) fn at(&self, chunk: u32, start: u32) -> *mut u8 {
        debug_assert!(chunk < self.chunks && start < self.chunk());
        let byte = ((chunk as usize) << self.shift) + start as usize;
        self.memory.at().wrapping_add(byte)
    }

    /// The `len` bytes of a chunk from byte `start` on. Returns `None` if the bytes exceed the
    /// chunk.
    ///
    /// # Safety
    /// The chunk must belong to the port: the kernel never had the chunk, or has returned the
    /// chunk.
    pub(super) unsafe fn bytes(&mut self, chunk: u32, start: u32, len: u32) -> Option<&mut [u8]> {
        let end = start.checked_add(len).filter(|&end| end <= self.chunk());
        if chunk >= self.chunks || end.is_none() {
            return None;
        }
        // SAFETY: the range lies in a chunk of the mapping, which lives as long as `self`. The
        // caller guarantees that nothing else writes it, and `self` is borrowed for as long as the
        // slice.
        // WHY: a frame is copied into it in one go.
        Some(unsafe { core::slice::from_raw_parts_mut(self.at(chunk, start), len as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_their_chunk_and_nothing_outside() {
        let mut umem = Umem::new(11, 4).unwrap();
        assert_eq!(umem.address(3, 256), 3 * 2048 + 256);
        assert_eq!(umem.locate(3 * 2048 + 256), Some((3, 256)));
        assert_eq!(umem.locate(4 * 2048 - 1), Some((3, 2047)));
        assert_eq!(umem.locate(4 * 2048), None);
        assert_eq!(umem.locate(u64::MAX), None);
        // SAFETY: no kernel knows of this memory. WHY: the method is unsafe.
        unsafe {
            assert!(umem.bytes(3, 0, 2048).is_some_and(|b| b.iter().all(|&b| b == 0)));
            assert!(umem.bytes(3, 1, 2048).is_none() && umem.bytes(4, 0, 1).is_none());
            assert!(umem.bytes(0, u32::MAX, 2).is_none());
        }
    }
}
