//! A packed ring that records its position for its successor, and continues where a predecessor
//! stopped.
//!
//! # Problem
//! A used descriptor is one store, but a burst consists of many stores, and the store of its first
//! descriptor makes all of them visible. If the switch is killed in between, some descriptors are
//! overwritten without the driver's knowledge.
//!
//! # Approach
//! A burst either became visible or never did ([`crate::port::inflight`]). The driver continues
//! while the switch is dead. If the burst's first descriptor is no longer available in its round,
//! the burst was visible.

use core::sync::atomic::Ordering;

use super::PackedRing;
use super::position::{F_AVAIL, F_USED, Position};
use crate::port::inflight::PackedInflight;

impl PackedRing {
    /// Records the ring's position in `inflight` from now on. `stood` is the result of
    /// [`PackedInflight::positions`] and is `Some` only at the ring's first start since the region
    /// was passed. In that case the ring continues at that position, whatever base the front end
    /// gave. The caller reads the positions once for all uses, because the front end may change
    /// them at any time. Only for rings that no worker has yet.
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

    /// Restores overwritten descriptors beyond the ring's position. Their burst was never made
    /// visible to the driver.
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

    /// Saves the descriptor at the used position before it is overwritten.
    #[cold]
    pub(super) fn save_overwritten(&self) {
        if let Some(inflight) = &self.inflight {
            let half = self.half(self.used.index, 1).load(Ordering::Relaxed);
            inflight.save(self.used.index, half);
        }
    }

    /// Makes a burst visible, between the two stores that record its effect on the position.
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
