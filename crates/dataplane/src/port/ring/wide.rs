//! Writes frames into a driver's buffers with one store per cache line (AVX-512).
//!
//! # Problem
//! The cache of the receiver's core still has the lines of the receiver's buffers. While a line is
//! in transit from the receiver's core, a store to the line waits in the worker core's store queue.
//! The store queue drains in order and has room for some 64 stores. With moves of 16 bytes, a frame
//! of 64 bytes takes six stores and a frame of 1,518 bytes takes 97 stores.
//!
//! # Approach
//! The switch combines header and frame in registers, and writes them with one store per line of
//! the destination. With one store per cache line, the core can request many more lines at once.
//! The core never reads the previous content of the driver's buffer.
//!
//! # Cost
//! On a CPU without benefit from wide stores, [`pays`] returns false, and the caller uses ordinary
//! stores without extra cost.
#![allow(unsafe_code, reason = "copies use raw pointers; each function states its conditions")]

use core::arch::x86_64::{
    __cpuid, __m512i, __mmask64, _mm_cvtsi64_si128, _mm_insert_epi32, _mm512_loadu_si512,
    _mm512_mask_loadu_epi8, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_storeu_si512,
    _mm512_zextsi128_si512,
};

use std::sync::LazyLock;

use super::frames::{fault_in, write_plain};
use crate::batch::Batch;
use crate::offload::VNET_HDR_LEN;

const LINE: usize = 64;
/// Maximum length in bytes of frame and header for writes with one store per line. For longer
/// frames, `memcpy` is faster than one store per line.
const LONGEST: usize = 2048;

/// Whether this CPU benefits from stores of whole lines. Intel CPUs with AVX-512 benefit from
/// stores of whole lines. AMD's family 25 also has AVX-512, but executes a 64-byte store in two
/// halves and gains nothing (docs/internals/measurements.md).
#[inline(always)]
pub(super) fn pays() -> bool {
    static PAYS: LazyLock<bool> = LazyLock::new(|| usable() && is_intel());
    *PAYS
}

/// Whether this CPU has the AVX-512 instructions that stores of whole lines need.
fn usable() -> bool {
    // Miri does not know these instructions.
    !cfg!(miri)
        && std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512bw")
}

fn is_intel() -> bool {
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"GenuineIntel"
}

/// Mask that selects the lowest `n` of 64 bytes. If `n` is 64 or more, the mask selects all bytes.
#[inline(always)]
const fn lowest(n: usize) -> __mmask64 {
    if n >= LINE { !0 } else { (1 << n) - 1 }
}

/// A frame with its first bytes in a private slot and its other bytes in one piece of guest memory.
struct Source {
    slot: *const u8,
    head: usize,
    rest: *const u8,
}

impl Source {
    /// Returns the `n` bytes (at most 64) of the frame from offset `p` on, followed by zeros.
    ///
    /// # Safety
    /// The frame must be at least `p + n` bytes long.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn line(&self, p: usize, n: usize) -> __m512i {
        let here = self.head.saturating_sub(p);
        // SAFETY: each part is read only where the bytes belong to the frame, because a masked move
        // does not touch other bytes. WHY: no slice over guest memory may exist, and each guest
        // byte is read once.
        unsafe {
            if here >= n {
                return _mm512_maskz_loadu_epi8(lowest(n), self.slot.add(p).cast());
            }
            let behind = self.rest.wrapping_add(p).wrapping_sub(self.head);
            if here == 0 {
                if n >= LINE {
                    return _mm512_loadu_si512(behind.cast());
                }
                return _mm512_maskz_loadu_epi8(lowest(n), behind.cast());
            }
            let first = _mm512_maskz_loadu_epi8(lowest(here), self.slot.add(p).cast());
            _mm512_mask_loadu_epi8(first, lowest(n) & !lowest(here), behind.cast())
        }
    }
}

/// Writes the virtio-net header, the head and the other bytes of frame `i`, in this order, to
/// address `at`. The result is the same as the result of [`write_plain`] with a header of
/// [`VNET_HDR_LEN`] bytes.
///
/// # Safety
/// The caller must meet the conditions of [`write_plain`], and the CPU must have AVX-512 (F and
/// BW).
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn write_lines(batch: &Batch, i: usize, at: *mut u8) {
    let frame = batch.at(i);
    let total = VNET_HDR_LEN + frame.len as usize;
    // Offset of the buffer's first line that contains no byte of the header.
    let mut o = LINE - (at.addr() & (LINE - 1));
    let segments = batch.segments(i);
    if segments.len() > 1 || o < VNET_HDR_LEN || !(LINE..=LONGEST).contains(&total) {
        // SAFETY: the caller guarantees room and segments.
        return unsafe { write_plain(batch, i, at, VNET_HDR_LEN) };
    }
    let rest = segments.first().map_or(core::ptr::null(), |s| {
        // SAFETY: the caller guarantees valid segments.
        unsafe { fault_in(s) };
        s.data
    });
    let source = Source { slot: batch.head_at(i), head: frame.head_len(), rest };
    // SAFETY: only the frame's own `total - VNET_HDR_LEN` bytes are read. The bytes of the first
    // line come from the slot, which contains the first 128 bytes of the frame. Writes lie within
    // the `total` bytes for which the buffer has room. The offload's first eight bytes are the
    // header's (`repr(C)`, little-endian hosts only). WHY: raw moves are the only permitted way
    // into guest memory, and safe code cannot issue one store per line.
    unsafe {
        let header = {
            let first = (&raw const frame.offload).cast::<i64>().read_unaligned();
            let last = frame.offload.last_word(1).cast_signed();
            _mm512_zextsi128_si512(_mm_insert_epi32::<2>(_mm_cvtsi64_si128(first), last))
        };
        let behind = !lowest(VNET_HDR_LEN);
        let first = source.slot.wrapping_sub(VNET_HDR_LEN);
        let line = _mm512_mask_loadu_epi8(header, behind, first.cast());
        _mm512_storeu_si512(at.cast(), line);
        while o + LINE <= total {
            let line = source.line(o - VNET_HDR_LEN, LINE);
            _mm512_storeu_si512(at.add(o).cast(), line);
            o += LINE;
        }
        if o < total {
            let n = total - o;
            let line = source.line(o - VNET_HDR_LEN, n);
            _mm512_mask_storeu_epi8(at.add(o).cast(), lowest(n), line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Offload;

    /// Writes a header and a frame of `len` bytes, beginning `skip` bytes into a cache line.
    /// Returns the written bytes with the bytes before and after them.
    fn written(len: usize, skip: usize, tagged: bool, wide: bool) -> Vec<u8> {
        let frame: Vec<u8> = (1..252_u8).cycle().take(len).collect();
        let mut batch = Batch::new();
        let offload = Offload { flags: 1, csum_start: 34, csum_offset: 16, ..Offload::NONE };
        batch.push(&frame, offload).unwrap();
        batch.frame_mut(0).tci = 100;
        batch.set_tagged(0, tagged);
        let mut out = vec![0xee_u8; len + 256];
        let at = out.as_ptr().addr().next_multiple_of(LINE) - out.as_ptr().addr() + skip;
        // SAFETY: `out` has room for the bytes in front, the header and the frame, which lies in
        // the batch; `wide` is true only if the CPU has the instructions.
        unsafe {
            let to = out.as_mut_ptr().add(at);
            if wide { write_lines(&batch, 0, to) } else { write_plain(&batch, 0, to, VNET_HDR_LEN) }
        }
        out.split_off(at - skip)
    }

    #[test]
    fn every_length_at_every_place_in_a_line_is_written_as_by_ordinary_moves() {
        if !usable() {
            penstock_testing::skip("this CPU has no AVX-512");
            return;
        }
        for len in (14..400).chain(1000..1010).chain(1500..1530).chain(2030..2060) {
            for skip in 0..LINE {
                for tagged in [false, true] {
                    let narrow = written(len, skip, tagged, false);
                    let wide = written(len, skip, tagged, true);
                    let same = narrow.len().min(wide.len()).min(len + 160);
                    assert!(narrow[..same] == wide[..same], "{len} bytes at {skip}, {tagged}");
                }
            }
        }
    }
}
