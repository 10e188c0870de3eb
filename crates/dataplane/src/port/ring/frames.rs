//! Copies frames from and to a driver's buffers, for split and packed rings.
//!
//! The numbered datapath rules 3 to 6 and 13 (`docs/internals/datapath-rules.md`) apply to the
//! copies of frames. The switch copies a frame's head once into a private slot, and reads each
//! virtio-net header once. The switch does not rewrite a header that is already in the buffer.
#![allow(unsafe_code, reason = "copies use raw pointers; each function states its conditions")]

use super::pieces::{Gather, Piece, Scatter};
use super::{BODY_PREFETCH_AHEAD, BadChain, wide};
use crate::batch::{Batch, FRAME_MAX, FRAME_MIN, HEAD_COPY, Segment};
use crate::mem::{copy, copy_head, prefetch, prefetch_write};
use crate::offload::{Offload, VNET_HDR_LEN};
use crate::port::TxOutcome;
use crate::wake::stall;

/// Number of frames by which the switch prefetches a frame's header lines ahead of the copy, on
/// CPUs for which [`wide::pays`] is true. If a CPU benefits from wide stores, a store to a line in
/// transit delays the next store. The prefetch of headers reduced the cost of a 64-byte frame from
/// 209 to 131 cycles.
const HEAD_PREFETCH_AHEAD: usize = 8;

/// Takes a frame whose virtio-net header (`header` bytes) and bytes lie in one piece of guest
/// memory.
///
/// # Safety
/// `piece` must be readable guest memory that stays mapped until the batch is cleared.
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

/// Takes a frame that lies in any number of pieces of guest memory. The first piece begins with the
/// virtio-net header.
///
/// # Safety
/// Every piece must be readable guest memory that stays mapped until the batch is cleared.
pub(in crate::port) unsafe fn take_pieces(
    batch: &mut Batch,
    pieces: &[Piece],
    header_len: usize,
) -> Result<(), BadChain> {
    let total: usize = pieces.iter().map(|p| p.len as usize).sum();
    let len = total.wrapping_sub(header_len);
    // CVE-2022-2132: a hostile driver may make a chain that contains only the header.
    if total <= header_len || !(FRAME_MIN..=FRAME_MAX).contains(&len) {
        return Err(BadChain);
    }
    let mut source = Gather::new(pieces);
    let mut header = [0; VNET_HDR_LEN];
    let head = len.min(HEAD_COPY);
    // SAFETY: `total` bytes are readable through the pieces, and header + head <= total; the array
    // has 12 bytes and the slot HEAD_COPY. WHY: no slice over guest memory may exist.
    unsafe {
        source.read(header.as_mut_ptr(), header_len);
        source.read(batch.next_slot(), head);
    }
    let segments = source.rest(|i, at, len| batch.add_segment(i, at, len));
    batch.commit(len, head, segments, Offload::from_guest(&header));
    Ok(())
}

/// Writes the batch's frames with the indices `frames`, each after a virtio-net header of `header`
/// bytes. Frame number k of the list `frames` goes into piece number k.
///
/// # Safety
/// There must be a piece for each frame, with room for the header and the frame. The batch's
/// segments must be valid.
#[inline(always)]
pub(in crate::port) unsafe fn write_all(
    batch: &Batch,
    frames: &[u8],
    pieces: &[Piece],
    header: usize,
) {
    if header == VNET_HDR_LEN && wide::pays() {
        // SAFETY: the caller guarantees the pieces, and `pays` says that the CPU has the
        // instructions.
        return unsafe { write_all_lines(batch, frames, pieces) };
    }
    for (k, (&i, piece)) in frames.iter().zip(pieces).enumerate() {
        prefetch_ahead(batch, frames, pieces, k, header);
        // SAFETY: the caller guarantees the room and the segments.
        unsafe { write_plain(batch, usize::from(i), piece.at, header) };
    }
}

/// Like [`write_all`], with stores of whole cache lines. The caller calls `write_all_lines` once
/// per burst, because code with target features cannot be inlined.
///
/// # Safety
/// The caller must meet the conditions of [`write_all`] for headers of [`VNET_HDR_LEN`] bytes, and
/// [`wide::pays`] must be true.
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
        // SAFETY: the caller guarantees the room, the segments and the CPU.
        unsafe { wide::write_lines(batch, usize::from(i), piece.at) };
    }
}

/// Makes the pages of a segment present before the segment is copied. The switch attributes a page
/// fault in `fault_in` to the sender. The switch would attribute a page fault during the copy to
/// the receiver.
///
/// # Safety
/// The segment's memory must be mapped and readable.
#[inline(always)]
pub(super) unsafe fn fault_in(segment: &Segment) {
    const PAGE: usize = 4096;
    let len = segment.len as usize;
    if len == 0 {
        return;
    }
    stall::read_from(|| {
        // SAFETY: the loop reads bytes of the segment and does not use their values. WHY: no slice
        // over guest memory may exist.
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

/// Writes the virtio-net header, the head and the other bytes of frame `i`, in this order, to
/// address `at`.
///
/// # Safety
/// The buffer at `at` must have room for `header` bytes and the frame, and the batch's segments
/// must be valid.
#[inline(always)]
pub(super) unsafe fn write_plain(batch: &Batch, i: usize, at: *mut u8, header: usize) {
    let frame = batch.at(i);
    let head = frame.head_len();
    // SAFETY: the caller guarantees room. The sources are a private slot and segments valid for
    // this turn. WHY: raw copies are the only permitted way into guest memory.
    unsafe {
        write_header(at, frame.offload, 1, header);
        let mut to = at.add(header);
        // `copy_head` does not suffice, because an inserted tag makes a head four bytes longer than
        // it was at reception.
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

/// Writes frame `i` into pieces of guest memory that belong to `buffers` buffers of the driver.
///
/// # Safety
/// The pieces together must have room for `header` bytes and the frame, and the batch's segments
/// must be valid.
pub(in crate::port) unsafe fn write_pieces(
    batch: &Batch,
    i: usize,
    pieces: &[Piece],
    buffers: u16,
    header: usize,
) {
    let bytes = batch.frame(i).offload.to_wire(buffers);
    let mut to = Scatter::new(pieces);
    // SAFETY: the caller guarantees room; the sources are as in `write_plain`. WHY: as in
    // `write_plain`.
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

/// Prefetches for reading the lines of the virtio-net header at `at` and of the frame's head after
/// the header. The buffer at `at` has `len` bytes.
#[inline(always)]
pub(in crate::port) fn prefetch_source(at: *mut u8, len: u32) {
    prefetch(at);
    prefetch(at.wrapping_add(64));
    if len > 128 {
        prefetch(at.wrapping_add(128));
    }
}

/// Prefetches the bytes of frame `i` after the frame's head, and the lines of `to` into which the
/// switch will write these bytes.
#[inline(always)]
fn prefetch_body(batch: &Batch, i: usize, to: Option<Piece>, header: usize) {
    let Some(s) = batch.segments(i).first() else { return };
    let to = to.map_or(core::ptr::null_mut(), |piece| piece.at.wrapping_add(header + HEAD_COPY));
    let len = s.len.min(1536) as usize;
    let mut line = 0;
    // Two lines per iteration, because with one the loop itself would be half of the instructions.
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

/// Counts a delivered frame of `len` bytes in `out`.
#[inline(always)]
pub(in crate::port) fn count_sent(out: &mut TxOutcome, len: u32, offload: Offload) {
    out.frames += 1;
    out.bytes += u64::from(len);
    out.tso += u32::from(offload.is_gso());
}

/// Reads a virtio-net header from guest memory, each byte once.
///
/// # Safety
/// `at` must have ten readable bytes.
#[inline(always)]
pub(in crate::port) unsafe fn read_header(at: *const u8) -> Offload {
    // SAFETY: the caller guarantees eight bytes and two more. WHY: each byte is read exactly once.
    let (first, last) =
        unsafe { (at.cast::<u64>().read_unaligned(), at.add(8).cast::<u16>().read_unaligned()) };
    Offload::from_guest_words(first, last)
}

/// Writes a virtio-net header unless the buffer already contains the same header. Drivers reuse
/// buffers, and an unchanged line need not travel back to the driver's core. Skipping the write of
/// an unchanged header saves 8 to 20 cycles (datapath rule 13).
///
/// # Safety
/// The address `at` must have `len` writable bytes, and `len` must be 10 or 12.
#[inline(always)]
pub(in crate::port) unsafe fn write_header(
    at: *mut u8,
    offload: Offload,
    buffers: u16,
    len: usize,
) {
    // SAFETY: reads the first eight of ten bytes, which are in wire order (`repr(C)`, little-endian
    // hosts only). WHY: building the word from its fields takes nine instructions.
    let first = unsafe { (&raw const offload).cast::<u64>().read_unaligned() };
    let last = offload.last_word(buffers);
    // SAFETY: the caller guarantees the bytes. WHY: unaligned access to guest memory without
    // vectors.
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
