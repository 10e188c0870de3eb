//! A packed ring that records its position for its successor, and takes up where another stood.
//!
//! **Problem.** A used descriptor is one store, but a burst is many, of which the first shows the
//! driver all: a kill in between leaves some overwritten that the driver does not know of.
//!
//! **Rule.** A burst was either shown or it never was, see [`crate::port::inflight`]. The driver
//! goes on while we are dead: a first descriptor no longer available in its round was shown.

use core::sync::atomic::Ordering;

use super::PackedRing;
use super::position::{F_AVAIL, F_USED, Position};
use crate::port::inflight::PackedInflight;

impl PackedRing {
    /// Records the ring's position in `inflight` from now on. With `stood`, which is what
    /// [`PackedInflight::positions`] said, the ring is taken up where it stood, whatever its base
    /// was said to be: for its first start since the region was handed over. The caller reads the
    /// positions, once for all that depends on them, as the front end may change them at any time.
    /// For rings that are not in the worker yet.
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
        // The region says where the ring stands; the ring itself does not from here on.
        self.mark = 0;
        self.suppress_kicks();
    }

    /// Undoes used descriptors beyond the ring's position: the burst they belong to was never
    /// shown to the driver.
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

    /// Before the descriptor at the used position is overwritten.
    #[cold]
    pub(super) fn save_overwritten(&self) {
        if let Some(inflight) = &self.inflight {
            let half = self.half(self.used.index, 1).load(Ordering::Relaxed);
            inflight.save(self.used.index, half);
        }
    }

    /// The store that shows a burst, between those that say what it does to the position.
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
