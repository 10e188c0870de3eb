//! A simple reference model of virtio rings (Virtio 1.2 §2.7 and §2.8), which reads chains byte by
//! byte from a copy of a guest's memory.
//!
//! **Rule.** The model follows the specification and datapath rules 7 and 8. It shares no code with
//! the switch's rings, and has no cache and no fast path.

use penstock_dataplane::batch::{CHAIN_MAX, FRAME_MAX, FRAME_MIN};

/// `VIRTQ_DESC_F_NEXT`.
const NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`.
pub(crate) const WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`.
const INDIRECT: u16 = 4;

/// `VIRTQ_DESC_F_AVAIL`.
pub(crate) const AVAIL: u16 = 1 << 7;
/// `VIRTQ_DESC_F_USED`.
pub(crate) const USED: u16 = 1 << 15;

/// State of a packed ring at one position, as a device reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packed {
    /// No descriptor is available at the position.
    Nothing,
    /// A chain without a recognisable end.
    Endless,
    /// A chain of `span` descriptors; the field `chain` is `None` if the chain is invalid.
    Chain { id: u16, span: u16, chain: Option<Chain> },
}

/// A memory region: the guest addresses `guest..guest + len` are at offset `file` of the memory
/// file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) guest: u64,
    pub(crate) len: u64,
    pub(crate) file: u64,
}

/// A range of bytes in the memory file: offset and length.
pub(crate) type Range = (usize, usize);

/// A copy of a guest's memory that contains a ring's descriptor table.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) regions: &'a [Region],
    /// File offset of the descriptor table, and the table's number of entries.
    pub(crate) table: (usize, u16),
}

/// A valid descriptor chain: its buffers, and its indirect table if it has one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) buffers: Vec<Range>,
    pub(crate) table: Option<Range>,
}

impl Chain {
    pub(crate) fn len(&self) -> usize {
        self.buffers.iter().map(|b| b.1).sum()
    }
}

impl Memory<'_> {
    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    /// Returns the file offset of the byte at a guest address.
    fn byte(&self, guest: u64) -> Option<usize> {
        let inside = |r: &&Region| guest >= r.guest && guest - r.guest < r.len;
        let region = self.regions.iter().find(inside)?;
        usize::try_from(region.file + (guest - region.guest)).ok()
    }

    /// Splits a range of guest addresses at region borders, so that each piece is contiguous in the
    /// memory file.
    fn pieces(&self, guest: u64, len: u32) -> Option<Vec<Range>> {
        guest.checked_add(len.into())?;
        let mut pieces: Vec<Range> = Vec::new();
        let (mut at, end) = (guest, guest + u64::from(len));
        while at < end {
            let region = self.regions.iter().find(|r| at >= r.guest && at - r.guest < r.len)?;
            let here = (region.guest + region.len).min(end) - at;
            pieces.push((self.byte(at)?, usize::try_from(here).ok()?));
            at += here;
        }
        Some(pieces)
    }

    /// Reads the chain at `head`. Returns `None` if the chain is invalid, or if a buffer's write
    /// flag differs from `wanted`.
    pub(crate) fn chain(&self, head: u16, wanted: u16) -> Option<Chain> {
        let mut chain = Chain::default();
        let (mut table, mut next) = (self.table, head);
        for _ in 0..CHAIN_MAX {
            if next >= table.1 {
                return None;
            }
            let at = table.0 + 16 * usize::from(next);
            let (guest, len) = (self.u64(at), self.u32(at + 8));
            let flags = self.u16(at + 12);
            if flags & INDIRECT != 0 {
                let entries = u16::try_from(len / 16).ok().filter(|n| (1..=256).contains(n))?;
                let pieces = self.pieces(guest, len)?;
                let aligned = pieces.first().is_some_and(|p| p.0.is_multiple_of(8));
                let whole = pieces.len() == 1 && len.is_multiple_of(16) && aligned;
                if chain.table.is_some() || flags & NEXT != 0 || !whole {
                    return None;
                }
                chain.table = pieces.first().copied();
                (table, next) = ((pieces.first()?.0, entries), 0);
                continue;
            }
            if flags & WRITE != wanted {
                return None;
            }
            chain.buffers.extend(self.pieces(guest, len)?);
            if chain.buffers.len() > 2 * CHAIN_MAX {
                return None;
            }
            if flags & NEXT == 0 {
                return Some(chain);
            }
            next = self.u16(at + 14);
        }
        None
    }

    /// Reads the chain that begins at `index` of a packed ring. Available descriptors have the
    /// flags `ready`, and buffers must have the write flag `wanted`.
    pub(crate) fn packed_chain(&self, index: u16, ready: u16, wanted: u16) -> Packed {
        let mut chain = Some(Chain::default());
        let (mut at, mut ready) = (index, ready);
        for span in 1..=self.table.1 {
            let place = self.table.0 + 16 * usize::from(at);
            let (id, flags) = (self.u16(place + 12), self.u16(place + 14));
            if flags & (AVAIL | USED) != ready {
                return if span == 1 { Packed::Nothing } else { Packed::Endless };
            }
            let alone = span == 1 && flags & NEXT == 0;
            chain = chain.and_then(|chain| self.packed_part(place, alone, wanted, chain));
            if flags & NEXT == 0 {
                let chain = chain.filter(|_| id < self.table.1);
                return Packed::Chain { id, span, chain };
            }
            at += 1;
            if at == self.table.1 {
                (at, ready) = (0, ready ^ (AVAIL | USED));
            }
        }
        Packed::Endless
    }

    /// Adds the buffers of the descriptor at `place` to `chain`. Returns `None` if the descriptor
    /// is invalid.
    fn packed_part(
        &self,
        place: usize,
        alone: bool,
        wanted: u16,
        mut chain: Chain,
    ) -> Option<Chain> {
        let (guest, len) = (self.u64(place), self.u32(place + 8));
        let flags = self.u16(place + 14);
        if flags & INDIRECT == 0 {
            if flags & WRITE != wanted {
                return None;
            }
            chain.buffers.extend(self.pieces(guest, len)?);
            return Some(chain).filter(|chain| chain.buffers.len() <= 2 * CHAIN_MAX);
        }
        let entries = usize::try_from(len / 16).ok().filter(|n| (1..CHAIN_MAX).contains(n))?;
        let pieces = self.pieces(guest, len)?;
        let aligned = pieces.first().is_some_and(|p| p.0.is_multiple_of(8));
        if !alone || pieces.len() != 1 || !len.is_multiple_of(16) || !aligned {
            return None;
        }
        let table = *pieces.first()?;
        for at in (table.0..).step_by(16).take(entries) {
            let flags = self.u16(at + 14);
            if flags & INDIRECT != 0 || flags & WRITE != wanted {
                return None;
            }
            chain.buffers.extend(self.pieces(self.u64(at), self.u32(at + 8))?);
            if chain.buffers.len() > 2 * CHAIN_MAX {
                return None;
            }
        }
        chain.table = Some(table);
        Some(chain)
    }

    /// Returns the bytes in the buffers of a chain.
    pub(crate) fn gather(&self, chain: &Chain) -> Vec<u8> {
        chain.buffers.iter().flat_map(|&(at, len)| &self.bytes[at..at + len]).copied().collect()
    }

    /// Reads the virtio header and frame of the chain at `head` of a transmit ring. Returns `None`
    /// if the chain is invalid.
    pub(crate) fn frame(&self, head: u16, header: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        self.frame_in(&self.chain(head, 0)?, header)
    }

    /// Reads the virtio header and frame in a chain. Returns `None` if the chain is too short or
    /// too long for a frame.
    pub(crate) fn frame_in(&self, chain: &Chain, header: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let len = chain.len().checked_sub(header)?;
        if !(FRAME_MIN..=FRAME_MAX).contains(&len) {
            return None;
        }
        let mut bytes = self.gather(chain);
        let frame = bytes.split_off(header);
        Some((bytes, frame))
    }
}

/// Returns true if any two of the ranges share a byte.
pub(crate) fn overlap(ranges: &mut [Range]) -> bool {
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0 && pair[1].1 > 0)
}
