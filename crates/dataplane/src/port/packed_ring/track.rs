//! Records the position of a packed ring in an inflight region, and continues a ring where a
//! previous switch stopped.
//!
//! # Problem
//! The switch writes a used descriptor with one store, but a burst consists of many stores. The
//! store of the burst's first descriptor comes last and makes the burst visible to the driver. If
//! the switch is killed before the last store, it has overwritten some descriptors without the
//! driver's knowledge.
//!
//! # Approach
//! A burst either became visible as a whole or never became visible ([`crate::port::inflight`]).
//! The driver continues to run while the switch is dead. If a burst's first descriptor is no longer
//! available in its round of the ring, the driver could see the burst.

use core::sync::atomic::Ordering;

use super::PackedRing;
use super::position::{F_AVAIL, F_USED, Position};
use crate::port::inflight::PackedInflight;

impl PackedRing {
    /// Records the ring's position in `inflight` from now on. The caller must call
    /// this function before a worker gets the ring.
    ///
    /// At the ring's first start after the front end passed the inflight region, the argument
    /// `stood` is the result of [`PackedInflight::positions`]. When the ring starts again later,
    /// the argument `stood` is `None`. If the argument `stood` is `Some`, the ring continues at one
    /// of the two recorded positions, and ignores the base that the front end gave. The caller
    /// reads the positions only once, because the front end may change the positions at any time.
    pub fn track(&mut self, inflight: PackedInflight, stood: Option<(u16, u16)>) {
        if let Some((old, used)) = stood {
            let was_shown = Position::from_base(old, self.size).is_some_and(|first| {
                let flags = (self.half(first.index, 1).load(Ordering::Acquire) >> 48) as u16;
                flags & (F_AVAIL | F_USED) != first.ready
            });
            let stands = if was_shown { used } else { old };
            if let Some(stands) = Position::from_base(stands, self.size) {
                self.next = stands;
                self.used = stands;
                self.put_back(&inflight);
            }
        }
        inflight.end(self.used.to_base());
        self.inflight = Some(inflight);
        // From here on the region records the position, and the ring itself does not.
        self.mark = 0;
        self.suppress_kicks();
    }

    /// Restores overwritten descriptors after the ring's position. The overwritten descriptors
    /// belong to a burst that the driver never saw.
    fn put_back(&self, inflight: &PackedInflight) {
        let mut at = self.used;
        for _ in 0..self.size {
            let half = self.half(at.index, 1);
            let flags = |half: u64| (half >> 48) as u16 & (F_AVAIL | F_USED);
            let saved = inflight.saved(at.index);
            if flags(half.load(Ordering::Acquire)) == at.used_flags() && flags(saved) == at.ready {
                half.store(saved, Ordering::Release);
            }
            at.advance(1, self.size);
        }
    }

    /// Saves the descriptor at the used position in the inflight region. The caller must save the
    /// descriptor before the switch overwrites it.
    #[cold]
    pub(super) fn save_overwritten(&self) {
        if let Some(inflight) = &self.inflight {
            let half = self.half(self.used.index, 1).load(Ordering::Relaxed);
            inflight.save(self.used.index, half);
        }
    }

    /// Makes a burst visible to the driver. The ring's position is recorded in the inflight region
    /// before and after the store that makes the burst visible.
    #[cold]
    pub(super) fn publish_tracked(&self, index: u16, word: u64) {
        let Some(inflight) = &self.inflight else { return };
        let wrap = if (word >> 48) as u16 & F_AVAIL == 0 { 0 } else { 1 << 15 };
        let used = self.used.to_base();
        inflight.begin(index | wrap, used);
        self.half(index, 1).store(word, Ordering::Release);
        inflight.end(used);
    }
}
