//! Copies to and from memory that another process may change at any moment.
//!
//! The switch has no Rust reference to guest memory. The copy functions take raw pointers, read
//! each byte once and write each byte once.
#![allow(unsafe_code, reason = "copies use raw pointers; each function states its conditions")]

use core::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128};
use core::ptr;

/// Prefetches the cache line at address `at` for reading. The address may be any value, also an
/// unmapped one.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    // SAFETY: a prefetch never faults and changes nothing but the cache.
    // WHY: no safe form exists. The prefetch hides one line transfer per frame (datapath rule 2).
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

/// Prefetches the cache line at address `at` for writing. The line arrives in exclusive state, even
/// if another core has read the line. The address may be any value, also an unmapped one. On a CPU
/// without the prefetch instruction, `prefetch_write` does nothing.
#[inline(always)]
pub(crate) fn prefetch_write(at: *const u8) {
    // Miri cannot interpret assembly, and a prefetch has no effect on results.
    if cfg!(miri) {
        return;
    }
    // SAFETY: as in `prefetch`. WHY: the intrinsic compiles to a read prefetch on the baseline
    // target.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Copies `len` bytes, at most 128, with a few vector moves. The first and the last vector move may
/// copy some of the same bytes.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, and the two ranges must not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_head(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(len <= 128);
    // SAFETY: every move lies within the first or the last bytes of the two ranges.
    // WHY: a call of memcpy with a variable length costs more than the moves.
    unsafe {
        if len >= 64 {
            let at = len - 64;
            let (a, b, c, d) = load64(from);
            let (e, f, g, h) = load64(from.add(at));
            store64(to, (a, b, c, d));
            store64(to.add(at), (e, f, g, h));
        } else if len >= 32 {
            let at = len - 32;
            let (a, b) = (load(from), load(from.add(16)));
            let (c, d) = (load(from.add(at)), load(from.add(at + 16)));
            store(to, a);
            store(to.add(16), b);
            store(to.add(at), c);
            store(to.add(at + 16), d);
        } else if len >= 16 {
            let (a, b) = (load(from), load(from.add(len - 16)));
            store(to, a);
            store(to.add(len - 16), b);
        } else {
            for i in 0..len {
                to.add(i).write_volatile(from.add(i).read_volatile());
            }
        }
    }
}

/// Copies `len` bytes from `from` to `to`, for any `len`.
///
/// # Safety
/// The caller must meet the conditions of [`copy_head`].
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller guarantees what the called functions require.
    unsafe {
        match len {
            ..=128 => copy_head(to, from, len),
            129..=LINES_MAX => copy_lines(to, from, len),
            _ => ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Longest copy in bytes for [`copy_lines`]. libc's `memcpy` is faster than [`copy_lines`] for
/// longer copies.
const LINES_MAX: usize = 2048;

/// Copies bytes so that each store writes one whole cache line of the destination. With whole
/// lines, the core can take over a line from another core without waiting for the line's old
/// content. No store of the copy crosses the border of a cache line. For frames of 512 bytes,
/// stores of whole lines saved 300 of 1,000 cycles if the other core was distant, and 80 of 300
/// cycles if the other core was near.
///
/// # Safety
/// The caller must meet the conditions of [`copy_head`], and `len` must be at least 64.
#[inline(always)]
unsafe fn copy_lines(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(len >= 64);
    // SAFETY: every move lies within the two ranges. It moves the first or the last 64 bytes, or
    // bytes that begin at a line of the destination and end before `len`.
    // WHY: `memcpy` does not align its moves to lines.
    unsafe {
        store64(to, load64(from));
        let mut at = 64 - (to.addr() & 63);
        while at + 128 <= len {
            store64(to.add(at), load64(from.add(at)));
            store64(to.add(at + 64), load64(from.add(at + 64)));
            at += 128;
        }
        if at + 64 <= len {
            store64(to.add(at), load64(from.add(at)));
            at += 64;
        }
        if at < len {
            store64(to.add(len - 64), load64(from.add(len - 64)));
        }
    }
}

type Line = (__m128i, __m128i, __m128i, __m128i);

/// # Safety
/// `from` must have 16 readable bytes.
#[inline(always)]
unsafe fn load(from: *const u8) -> __m128i {
    // SAFETY: the caller guarantees readable bytes. The load needs no alignment.
    unsafe { _mm_loadu_si128(from.cast()) }
}

/// # Safety
/// `to` must have 16 writable bytes.
#[inline(always)]
unsafe fn store(to: *mut u8, value: __m128i) {
    // SAFETY: the caller guarantees writable bytes. The store needs no alignment.
    unsafe { _mm_storeu_si128(to.cast(), value) }
}

/// # Safety
/// `from` must have 64 readable bytes.
#[inline(always)]
unsafe fn load64(from: *const u8) -> Line {
    // SAFETY: the caller guarantees 64 readable bytes.
    unsafe { (load(from), load(from.add(16)), load(from.add(32)), load(from.add(48))) }
}

/// # Safety
/// `to` must have 64 writable bytes.
#[inline(always)]
unsafe fn store64(to: *mut u8, line: Line) {
    // SAFETY: the caller guarantees 64 writable bytes.
    unsafe {
        store(to, line.0);
        store(to.add(16), line.1);
        store(to.add(32), line.2);
        store(to.add(48), line.3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_exactly() {
        let from: Vec<u8> = (0..300_u16).map(|i| (i % 251) as u8 + 1).collect();
        for len in 0..=300 {
            let mut to = vec![0; 302];
            // SAFETY: both vectors are longer than `len`.
            unsafe { copy(to.as_mut_ptr(), from.as_ptr(), len) };
            assert_eq!(to[..len], from[..len]);
            assert!(to[len..].iter().all(|&b| b == 0), "wrote past {len}");
        }
    }
}
