//! A burst's first steps: heads copied, descriptors read, buffers translated and asked for.
#![allow(unsafe_code, reason = "rings in guest memory; invariants stated per block")]

use core::sync::atomic::{AtomicU16, Ordering};

use super::{BATCH_FRAMES, SplitRing};
use crate::mem::prefetch;
use crate::port::guest_memory::Window;
use crate::port::ring::pieces::Piece;

/// How many frames ahead of the one at hand buffers are translated and asked for. A core has some
/// twenty misses under way at most; asking for a whole burst's lines at once stops it until most
/// have come, with nothing done meanwhile (measured: 20 cycles a frame more with 32).
pub(super) const AHEAD: usize = 12;

/// The chains of a burst; of the present turn only.
pub(super) struct Burst {
    pub(super) heads: [u16; BATCH_FRAMES],
    /// Those that are one descriptor; else [`Piece::NONE`].
    pub(super) plain: [Piece; BATCH_FRAMES],
    /// How many of `plain` are set.
    ready: usize,
}

impl Burst {
    pub(super) const NONE: Self =
        Self { heads: [0; BATCH_FRAMES], plain: [Piece::NONE; BATCH_FRAMES], ready: 0 };
}

impl SplitRing {
    /// Begins a burst: copies the heads of the next `n` chains, of which the driver has made at
    /// least so many available, and asks for their descriptors.
    #[inline(always)]
    pub(super) fn read_heads(&mut self, n: usize) {
        self.burst.ready = 0;
        let (heads_at, descriptors, mask) = (self.heads_at, self.descriptors, self.mask);
        let first = self.next_available;
        for (k, place) in (0..).zip(&mut self.burst.heads[..n]) {
            let at = usize::from(first.wrapping_add(k) & mask);
            // SAFETY: as in `word`. WHY: as there.
            let head = unsafe { AtomicU16::from_ptr(heads_at.add(at)) }.load(Ordering::Relaxed);
            *place = head;
            prefetch(descriptors.wrapping_add(usize::from(head & mask)).cast());
        }
    }

    /// Makes the first `n` of the chains whose heads were read ready: those that are one descriptor
    /// with these `flags` are translated and `found` is told.
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
            // WHY: volatile: it is read exactly once.
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
