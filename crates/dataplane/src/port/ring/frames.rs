//! Frames out of and into a driver's buffers, whatever ring they came by.
//!
//! **Rule** (datapath rules 3-6, 13). A head is copied once into a private slot, headers are read
//! once, and a header that stands there already is not written again.
#![allow(unsafe_code, reason = "raw copies; each function states what its caller keeps")]

use super::pieces::{Gather, Piece, Scatter};
use super::{BODY_PREFETCH_AHEAD, BadChain, wide};
use crate::batch::{Batch, FRAME_MAX, FRAME_MIN, HEAD_COPY, Segment};
use crate::mem::{copy, copy_head, prefetch, prefetch_write};
use crate::offload::{Offload, VNET_HDR_LEN};
use crate::port::TxOutcome;
use crate::worker::stall;

/// How many frames ahead the line of a header is asked for, where lines are written whole: on such
/// CPUs a store to a line on its way holds up the next (measured: 209 to 131 cycles at 64 bytes).
const HEAD_PREFETCH_AHEAD: usize = 8;

/// A frame in one piece: header (`header` bytes) and frame together.
///
/// # Safety
/// `piece` is readable guest memory that stays mapped until the batch is cleared.
#[inline(always)]
pub(in crate::port) unsafe fn take_plain(
    batch: &mut Batch,
    piece: Piece,
    header: usize,
) -> Result<(), BadChain> {
    let len = (piece.len as usize).wrapping_sub(header);
    if !(FRAME_MIN..=FRAME_MAX).contains(&len) {
        return Err(BadChain);
    }
    let head = len.min(HEAD_COPY);
    // SAFETY: the piece is `header + len` readable bytes; the slot has HEAD_COPY.
    // WHY: no slice over guest memory may exist.
    let offload = unsafe {
        let offload = read_header(piece.at);
        copy_head(batch.next_slot(), piece.at.add(header), head);
        offload
    };
    let rest = len - head;
    if rest > 0 {
        batch.add_segment(0, piece.at.wrapping_add(header + head), rest);
    }
    batch.commit(len, head, usize::from(rest > 0), offload);
    Ok(())
}

/// A frame in any number of pieces, header first.
///
/// # Safety
/// As [`take_plain`], for every piece.
pub(in crate::port) unsafe fn take_pieces(
    batch: &mut Batch,
    pieces: &[Piece],
    header_len: usize,
) -> Result<(), BadChain> {
    let total: usize = pieces.iter().map(|p| p.len as usize).sum();
    let len = total.wrapping_sub(header_len);
    // CVE-2022-2132: a chain that holds no more than the header.
    if total <= header_len || !(FRAME_MIN..=FRAME_MAX).contains(&len) {
        return Err(BadChain);
    }
    let mut source = Gather::new(pieces);
    let mut header = [0; VNET_HDR_LEN];
    let head = len.min(HEAD_COPY);
    // SAFETY: `total` bytes are readable through the pieces, and header + head <= total; the
    // array has 12 bytes and the slot HEAD_COPY. WHY: no slice over guest memory may exist.
    unsafe {
        source.read(header.as_mut_ptr(), header_len);
        source.read(batch.next_slot(), head);
    }
    let segments = source.rest(|i, at, len| batch.add_segment(i, at, len));
    batch.commit(len, head, segments, Offload::from_guest(&header));
    Ok(())
}

/// The named frames with their headers (`header` bytes), each into the piece of its number.
///
/// # Safety
/// There is a piece for each frame, with room for the header and the frame; the batch's segments
/// are valid.
#[inline(always)]
pub(in crate::port) unsafe fn write_all(
    batch: &Batch,
    frames: &[u8],
    pieces: &[Piece],
    header: usize,
) {
    if header == VNET_HDR_LEN && wide::pays() {
        // SAFETY: the caller's promise; the CPU can.
        return unsafe { write_all_lines(batch, frames, pieces) };
    }
    for (k, (&i, piece)) in frames.iter().zip(pieces).enumerate() {
        prefetch_ahead(batch, frames, pieces, k, header);
        // SAFETY: the caller's promise.
        unsafe { write_plain(batch, usize::from(i), piece.at, header) };
    }
}

/// The same by whole lines; one call a burst, as code for other CPUs cannot be part of the caller.
///
/// # Safety
/// As [`write_all`] with headers of [`VNET_HDR_LEN`]; and [`wide::pays`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn write_all_lines(batch: &Batch, frames: &[u8], pieces: &[Piece]) {
    for piece in pieces.iter().take(HEAD_PREFETCH_AHEAD) {
        prefetch_write(piece.at);
    }
    for (k, (&i, piece)) in frames.iter().zip(pieces).enumerate() {
        if let Some(ahead) = pieces.get(k + HEAD_PREFETCH_AHEAD) {
            prefetch_write(ahead.at);
        }
        prefetch_ahead(batch, frames, pieces, k, VNET_HDR_LEN);
        // SAFETY: the caller's promise.
        unsafe { wide::write_lines(batch, usize::from(i), piece.at) };
    }
}

/// Has the pages of a segment present before it is copied: a fault there is its sender's and not
/// the receiver's, over whose memory the copy would sleep.
///
/// # Safety
/// The segment is valid.
#[inline(always)]
pub(super) unsafe fn fault_in(segment: &Segment) {
    const PAGE: usize = 4096;
    let len = segment.len as usize;
    if len == 0 {
        return;
    }
    stall::read_from(|| {
        // SAFETY: bytes of the segment. Their values are not used.
        // WHY: no slice over guest memory may exist.
        unsafe {
            segment.data.read_volatile();
            segment.data.add(len - 1).read_volatile();
            let mut at = PAGE;
            while at < len {
                segment.data.add(at).read_volatile();
                at += PAGE;
            }
        }
    });
}

#[inline(always)]
fn prefetch_ahead(batch: &Batch, frames: &[u8], pieces: &[Piece], k: usize, header: usize) {
    if let Some(&ahead) = frames.get(k + BODY_PREFETCH_AHEAD)
        && batch.at(usize::from(ahead)).has_segments()
    {
        let to = pieces.get(k + BODY_PREFETCH_AHEAD);
        prefetch_body(batch, usize::from(ahead), to.copied(), header);
    }
}

/// Header, head and rest of frame `i`, one behind the other at `at`.
///
/// # Safety
/// `at` has room for `header` bytes and the frame; the batch's segments are valid.
#[inline(always)]
pub(super) unsafe fn write_plain(batch: &Batch, i: usize, at: *mut u8, header: usize) {
    let frame = batch.at(i);
    let head = frame.head_len();
    // SAFETY: the caller's promise. The sources are a slot of ours and segments valid for this
    // turn. WHY: raw copies are the only lawful way into guest memory.
    unsafe {
        write_header(at, frame.offload, 1, header);
        let mut to = at.add(header);
        // Not `copy_head`: with a tag put in the head is four bytes longer than it was taken.
        copy(to, batch.head_at(i), head);
        if frame.has_segments() {
            to = to.add(head);
            for s in batch.segments(i) {
                fault_in(s);
                copy(to, s.data, s.len as usize);
                to = to.add(s.len as usize);
            }
        }
    }
}

/// Writes frame `i` over pieces of `buffers` buffers.
///
/// # Safety
/// The pieces together have room for `header` bytes and the frame; else as [`write_plain`].
pub(in crate::port) unsafe fn write_pieces(
    batch: &Batch,
    i: usize,
    pieces: &[Piece],
    buffers: u16,
    header: usize,
) {
    let bytes = batch.frame(i).offload.to_wire(buffers);
    let mut to = Scatter::new(pieces);
    // SAFETY: the caller's promise; sources as in `write_plain`. WHY: as there.
    unsafe {
        to.write(bytes.as_ptr(), header);
        let head = batch.head(i);
        to.write(head.as_ptr(), head.len());
        for s in batch.segments(i) {
            fault_in(s);
            to.write(s.data, s.len as usize);
        }
    }
}

/// Asks for the lines of a header at `at` and the head behind it, to be read, of a buffer of `len`
/// bytes.
#[inline(always)]
pub(in crate::port) fn prefetch_source(at: *mut u8, len: u32) {
    prefetch(at);
    prefetch(at.wrapping_add(64));
    if len > 128 {
        prefetch(at.wrapping_add(128));
    }
}

/// Asks for the bytes of frame `i` behind its head, and for the lines they will be written to.
#[inline(always)]
fn prefetch_body(batch: &Batch, i: usize, to: Option<Piece>, header: usize) {
    let Some(s) = batch.segments(i).first() else { return };
    let to = to.map_or(core::ptr::null_mut(), |piece| piece.at.wrapping_add(header + HEAD_COPY));
    let len = s.len.min(1536) as usize;
    let mut line = 0;
    // Two lines a round: half of what is executed here would be the loop.
    while line + 64 < len {
        prefetch(s.data.wrapping_add(line));
        prefetch_write(to.wrapping_add(line));
        prefetch(s.data.wrapping_add(line + 64));
        prefetch_write(to.wrapping_add(line + 64));
        line += 128;
    }
    if line < len {
        prefetch(s.data.wrapping_add(line));
        prefetch_write(to.wrapping_add(line));
    }
}

/// Enters a delivered frame.
#[inline(always)]
pub(in crate::port) fn count_sent(out: &mut TxOutcome, len: u32, offload: Offload) {
    out.frames += 1;
    out.bytes += u64::from(len);
    out.tso += u32::from(offload.is_gso());
}

/// Reads a virtio-net header once.
///
/// # Safety
/// Ten readable bytes.
#[inline(always)]
pub(in crate::port) unsafe fn read_header(at: *const u8) -> Offload {
    // SAFETY: the caller's promise: eight bytes and two. WHY: each is read exactly once.
    let (first, last) =
        unsafe { (at.cast::<u64>().read_unaligned(), at.add(8).cast::<u16>().read_unaligned()) };
    Offload::from_guest_words(first, last)
}

/// Writes a virtio-net header unless it is there already: drivers reuse buffers, and a line that
/// is not dirtied need not travel back (datapath rule 13: 8-20 cycles).
///
/// # Safety
/// `len` (10 or 12) writable bytes.
#[inline(always)]
pub(in crate::port) unsafe fn write_header(
    at: *mut u8,
    offload: Offload,
    buffers: u16,
    len: usize,
) {
    // SAFETY: the first eight of its ten bytes, in the wire's order (`repr(C)`, little-endian
    // hosts only). WHY: put together from its fields it takes nine instructions.
    let first = unsafe { (&raw const offload).cast::<u64>().read_unaligned() };
    let last = offload.last_word(buffers);
    // SAFETY: the caller's promise. WHY: unaligned vector-free access to guest memory.
    unsafe {
        if at.cast::<u64>().read_unaligned() != first {
            at.cast::<u64>().write_unaligned(first);
        }
        let tail = at.add(8);
        if len == VNET_HDR_LEN {
            if tail.cast::<u32>().read_unaligned() != last {
                tail.cast::<u32>().write_unaligned(last);
            }
        } else {
            copy_head(tail, last.to_ne_bytes().as_ptr(), 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Offload;

    #[test]
    fn a_frame_of_any_length_is_written_whole_with_a_tag_put_in() {
        for len in [60, 123, 124, 127, 128, 129, 300, 1514] {
            let frame: Vec<u8> = (0..251_u8).cycle().take(len).collect();
            let mut batch = Batch::new();
            batch.push(&frame, Offload::NONE).unwrap();
            batch.frame_mut(0).tci = 100;
            batch.set_tagged(0, true);
            let mut want = frame[..12].to_vec();
            want.extend([0x81, 0, 0, 100]);
            want.extend(&frame[12..]);
            let mut out = vec![0xee; 12 + want.len()];
            // SAFETY: `out` has room for the header and the frame, which lies in the batch.
            unsafe { write_plain(&batch, 0, out.as_mut_ptr(), 12) };
            assert!(out[12..] == want, "{len} bytes");
        }
    }
}
