//! Wraps split and packed rings in one type, for transmit and receive queues.

use super::memory::Window;
use super::packed::PackedRing;
use super::ring::{SplitRing, Used};

/// A split or packed virtqueue. The methods of `Virtqueue` forward to the methods of the same names
/// in [`SplitRing`] or [`PackedRing`].
#[derive(Debug)]
pub(crate) enum Virtqueue {
    Split(SplitRing),
    Packed(PackedRing),
}

/// Forwards a method call to the split or packed ring of a [`Virtqueue`].
macro_rules! either {
    ($queue:expr, $ring:ident => $call:expr) => {
        match $queue {
            Virtqueue::Split($ring) => $call,
            Virtqueue::Packed($ring) => $call,
        }
    };
}

impl Virtqueue {
    /// Creates a ring in three memory windows that contain only zeros. Each memory window must be
    /// large enough for its part of a split ring and of a packed ring.
    pub fn new(packed: bool, size: u16, parts: [Window; 3]) -> Self {
        let [first, second, third] = parts;
        if packed {
            Self::Packed(PackedRing::new(size, first, second, third))
        } else {
            Self::Split(SplitRing::new(size, first, second, third))
        }
    }

    pub fn is_packed(&self) -> bool {
        matches!(self, Self::Packed(_))
    }

    pub fn set_features(&mut self, event_idx: bool, in_order: bool) {
        either!(self, ring => ring.set_features(event_idx, in_order));
    }

    #[inline]
    pub fn size(&self) -> u16 {
        either!(self, ring => ring.size())
    }

    #[inline]
    pub fn free_descriptors(&self) -> usize {
        either!(self, ring => ring.free_descriptors())
    }

    #[inline]
    pub fn outstanding(&self) -> u16 {
        either!(self, ring => ring.outstanding())
    }

    pub fn addresses(&self) -> [u64; 3] {
        either!(self, ring => ring.addresses())
    }

    pub fn desc_window(&mut self) -> &mut Window {
        either!(self, ring => ring.desc_window())
    }

    pub fn avail_window(&mut self) -> &mut Window {
        either!(self, ring => ring.avail_window())
    }

    pub fn used_window(&mut self) -> &mut Window {
        either!(self, ring => ring.used_window())
    }

    #[inline]
    pub fn add(&mut self, parts: &[(u64, u32)], flags: u16) -> Option<u16> {
        either!(self, ring => ring.add(parts, flags))
    }

    #[inline]
    pub fn repost(&mut self, head: u16) {
        either!(self, ring => ring.repost(head));
    }

    #[inline]
    pub fn publish(&mut self) -> bool {
        either!(self, ring => ring.publish())
    }

    #[inline]
    pub fn used_waiting(&mut self) -> u16 {
        either!(self, ring => ring.used_waiting())
    }

    #[inline]
    pub fn peek_used(&self, ahead: u16) -> Used {
        either!(self, ring => ring.peek_used(ahead))
    }

    #[inline]
    pub fn pop_entry(&mut self) -> Option<Used> {
        either!(self, ring => ring.pop_entry())
    }

    #[inline]
    pub fn pop_head(&mut self) -> Option<u16> {
        either!(self, ring => ring.pop_head())
    }

    #[inline]
    pub fn free(&mut self, head: u16) {
        either!(self, ring => ring.free(head));
    }

    pub fn suppress(&mut self) {
        either!(self, ring => ring.suppress());
    }

    pub fn arm(&mut self) -> bool {
        either!(self, ring => ring.arm())
    }

    pub fn arm_delayed(&mut self) -> bool {
        either!(self, ring => ring.arm_delayed())
    }

    pub fn restart(&mut self) -> (u16, u16) {
        either!(self, ring => ring.restart())
    }

    pub fn resume(&mut self) -> u16 {
        either!(self, ring => ring.resume())
    }

    pub fn disorder(&self) -> u64 {
        either!(self, ring => ring.disorder)
    }

    pub fn bad_used(&self) -> u64 {
        either!(self, ring => ring.bad_used)
    }
}
