//! Lists of the pieces of guest memory that a frame's buffers consist of. The module reads and
//! writes bytes through a list of pieces.
#![allow(unsafe_code, reason = "copies use raw pointers; each function states its conditions")]

use super::BadChain;
use crate::mem::copy;
use crate::port::guest_memory::GuestMemory;

/// A contiguous piece of a buffer in guest memory.
#[derive(Clone, Copy)]
pub(in crate::port) struct Piece {
    pub(in crate::port) at: *mut u8,
    pub(in crate::port) len: u32,
}

impl Piece {
    pub(in crate::port) const NONE: Self = Self { at: core::ptr::null_mut(), len: 0 };
}

/// Appends the buffer of `len` bytes at guest address `guest` to the first `count` entries of
/// `pieces`. If the buffer crosses borders of memory regions, `add_pieces` splits the buffer.
/// Returns the new length of the list of pieces.
pub(in crate::port) fn add_pieces(
    memory: &GuestMemory,
    mut guest: u64,
    len: u32,
    pieces: &mut [Piece],
    mut count: usize,
) -> Result<usize, BadChain> {
    if guest.checked_add(u64::from(len)).is_none() {
        return Err(BadChain);
    }
    let mut left = len;
    while left > 0 {
        let (at, here) = memory.translate_part(guest, left).ok_or(BadChain)?;
        *pieces.get_mut(count).ok_or(BadChain)? = Piece { at, len: here };
        count += 1;
        guest += u64::from(here);
        left -= here;
    }
    Ok(count)
}

/// Host address and number of entries of an indirect descriptor table (datapath rule 7).
pub(in crate::port) fn indirect_table(
    memory: &GuestMemory,
    guest: u64,
    len: u32,
    hint: &mut usize,
) -> Result<(*const u8, u16), BadChain> {
    let entries = len / 16;
    if !len.is_multiple_of(16) || !(1..=256).contains(&entries) {
        return Err(BadChain);
    }
    let at = memory.translate(guest, len, hint).ok_or(BadChain)?;
    // The host address must be checked for alignment, because a region may begin anywhere in its
    // file.
    if !(at as usize).is_multiple_of(align_of::<u64>()) {
        return Err(BadChain);
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most 256")]
    let size = entries as u16;
    Ok((at.cast_const(), size))
}

/// Reads bytes from a list of pieces of guest memory, one piece after the other.
pub(in crate::port) struct Gather<'a> {
    pieces: &'a [Piece],
    at: usize,
    offset: usize,
}

impl<'a> Gather<'a> {
    pub(in crate::port) const fn new(pieces: &'a [Piece]) -> Self {
        Self { pieces, at: 0, offset: 0 }
    }

    /// # Safety
    /// The pieces must have `len` more bytes that were not read, and `to` must be writable for
    /// `len` bytes.
    pub(in crate::port) unsafe fn read(&mut self, mut to: *mut u8, mut len: usize) {
        while len > 0 {
            let piece = self.pieces[self.at];
            let here = (piece.len as usize - self.offset).min(len);
            // SAFETY: `here` stays inside the piece and inside `to`. WHY: guest memory is accessed
            // raw.
            unsafe {
                copy(to, piece.at.add(self.offset), here);
                to = to.add(here);
            }
            len -= here;
            self.offset += here;
            if self.offset == piece.len as usize {
                self.at += 1;
                self.offset = 0;
            }
        }
    }

    /// Passes the unread pieces of the list to `add`, and returns the number of these pieces.
    pub(in crate::port) fn rest(self, mut add: impl FnMut(usize, *const u8, usize)) -> usize {
        let mut n = 0;
        let mut offset = self.offset;
        for piece in &self.pieces[self.at..] {
            add(n, piece.at.wrapping_add(offset), piece.len as usize - offset);
            n += 1;
            offset = 0;
        }
        n
    }
}

/// Writes bytes into a list of pieces of guest memory, one piece after the other.
pub(in crate::port) struct Scatter<'a> {
    pieces: &'a [Piece],
    at: usize,
    offset: usize,
}

impl<'a> Scatter<'a> {
    pub(in crate::port) const fn new(pieces: &'a [Piece]) -> Self {
        Self { pieces, at: 0, offset: 0 }
    }

    /// # Safety
    /// The guest memory in `pieces` must have room for `len` more bytes, and `from` must have `len`
    /// readable bytes.
    pub(in crate::port) unsafe fn write(&mut self, mut from: *const u8, mut len: usize) {
        while len > 0 {
            let piece = self.pieces[self.at];
            let here = (piece.len as usize - self.offset).min(len);
            // SAFETY: `here` stays inside the piece and inside `from`. WHY: guest memory is
            // accessed raw.
            unsafe {
                copy(piece.at.add(self.offset), from, here);
                from = from.add(here);
            }
            len -= here;
            self.offset += here;
            if self.offset == piece.len as usize {
                self.at += 1;
                self.offset = 0;
            }
        }
    }
}
