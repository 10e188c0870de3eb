//! First stages of a burst on a split ring. The first stages of a burst copy heads, read
//! descriptors, and translate and prefetch buffers.
#![allow(unsafe_code, reason = "reads guest rings by raw pointer; each block names its invariant")]

use core::sync::atomic::{AtomicU16, Ordering};

use super::{BATCH_FRAMES, SplitRing};
use crate::mem::prefetch;
use crate::port::guest_memory::Window;
use crate::port::ring::pieces::Piece;

/// Number of frames by which the switch translates and prefetches buffers ahead. A core can have at
/// most some twenty cache misses in flight. If the switch prefetches a whole burst at once, the
/// core stalls until most lines have arrived. If the switch prefetched 32 buffers ahead instead of
/// 12, each frame cost 20 cycles more.
pub(super) const AHEAD: usize = 12;

/// Descriptor chains of a burst. A burst is valid only in the current turn of the worker.
pub(super) struct Burst {
    pub(super) heads: [u16; BATCH_FRAMES],
    /// Buffers of the burst's chains that consist of one descriptor. A chain that is not plain has
    /// the entry [`Piece::NONE`].
    pub(super) plain: [Piece; BATCH_FRAMES],
    ready: usize,
}

impl Burst {
    pub(super) const NONE: Self =
        Self { heads: [0; BATCH_FRAMES], plain: [Piece::NONE; BATCH_FRAMES], ready: 0 };
}

impl SplitRing {
    /// Begins a burst: copies the heads of the next `n` chains and prefetches the descriptors of
    /// these chains. The driver must have made all `n` chains available.
    #[inline(always)]
    pub(super) fn read_heads(&mut self, n: usize) {
        self.burst.ready = 0;
        let (heads_at, descriptors, mask) = (self.heads_at, self.descriptors, self.mask);
        let first = self.next_available;
        for (k, place) in (0..).zip(&mut self.burst.heads[..n]) {
            let at = usize::from(first.wrapping_add(k) & mask);
            // SAFETY: as in `word`. WHY: as in `word`.
            let head = unsafe { AtomicU16::from_ptr(heads_at.add(at)) }.load(Ordering::Relaxed);
            *place = head;
            prefetch(descriptors.wrapping_add(usize::from(head & mask)).cast());
        }
    }

    /// Prepares the first `n` chains of the burst. If a chain has one descriptor with exactly the
    /// flags `flags`, the function translates the chain's buffer and passes the buffer to `found`.
    #[inline(always)]
    pub(super) fn make_ready(
        &mut self,
        n: usize,
        flags: u16,
        window: &mut Window,
        found: impl Fn(*mut u8, u32),
    ) {
        while self.burst.ready < n.min(BATCH_FRAMES) {
            let k = self.burst.ready % BATCH_FRAMES;
            let head = self.burst.heads[k];
            // SAFETY: the index is below the ring's size, so the entry lies in the checked table.
            // WHY: volatile, so that the descriptor is read exactly once.
            let d = unsafe { self.descriptors.add(usize::from(head & self.mask)).read_volatile() };
            self.burst.plain[k] = if d.flags == flags
                && head < self.size
                && let Some(at) = self.memory.translate_in(window, d.guest, d.len, &mut self.hint)
            {
                found(at, d.len);
                Piece { at, len: d.len }
            } else {
                Piece::NONE
            };
            self.burst.ready += 1;
        }
    }
}
