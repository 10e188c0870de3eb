//! A frame's buffers in guest memory as lists of pieces, and the ways through them.
#![allow(unsafe_code, reason = "raw copies; each function states what its caller keeps")]

use crate::mem::copy;

/// A piece of a buffer in guest memory.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) at: *mut u8,
    pub(super) len: u32,
}

impl Piece {
    pub(super) const NONE: Self = Self { at: core::ptr::null_mut(), len: 0 };
}

/// Reads through a list of pieces.
pub(super) struct Gather<'a> {
    pieces: &'a [Piece],
    at: usize,
    offset: usize,
}

impl<'a> Gather<'a> {
    pub(super) const fn new(pieces: &'a [Piece]) -> Self {
        Self { pieces, at: 0, offset: 0 }
    }

    /// # Safety
    /// The pieces hold `len` more bytes; `to` is writable for `len`.
    pub(super) unsafe fn read(&mut self, mut to: *mut u8, mut len: usize) {
        while len > 0 {
            let piece = self.pieces[self.at];
            let here = (piece.len as usize - self.offset).min(len);
            // SAFETY: `here` stays inside the piece and inside `to`. WHY: raw guest memory.
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

    /// Hands out what was not read; returns how many pieces that were.
    pub(super) fn rest(self, mut add: impl FnMut(usize, *const u8, usize)) -> usize {
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

/// Writes through a list of pieces.
pub(super) struct Scatter<'a> {
    pieces: &'a [Piece],
    at: usize,
    offset: usize,
}

impl<'a> Scatter<'a> {
    pub(super) const fn new(pieces: &'a [Piece]) -> Self {
        Self { pieces, at: 0, offset: 0 }
    }

    /// # Safety
    /// The pieces have room for `len` more bytes; `from` is readable for `len`.
    pub(super) unsafe fn write(&mut self, mut from: *const u8, mut len: usize) {
        while len > 0 {
            let piece = self.pieces[self.at];
            let here = (piece.len as usize - self.offset).min(len);
            // SAFETY: `here` stays inside the piece and inside `from`. WHY: raw guest memory.
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
