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

/// Defines methods that call the methods of the same names of the split or packed ring.
macro_rules! forward {
    ($($(#[$about:meta])*
    fn $name:ident(&mut $own:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {$(
        $(#[$about])*
        #[inline]
        pub fn $name(&mut $own $(, $arg: $kind)*) $(-> $result)? {
            either!($own, ring => ring.$name($($arg),*))
        }
    )*};
    ($(fn $name:ident(&$own:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {$(
        #[inline]
        pub fn $name(&$own $(, $arg: $kind)*) $(-> $result)? {
            either!($own, ring => ring.$name($($arg),*))
        }
    )*};
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

    forward! {
        fn size(&self) -> u16;
        fn free_descriptors(&self) -> usize;
        fn outstanding(&self) -> u16;
        fn addresses(&self) -> [u64; 3];
        fn peek_used(&self, ahead: u16) -> Used;
    }

    forward! {
        fn set_features(&mut self, event_idx: bool, in_order: bool);
        fn desc_window(&mut self) -> &mut Window;
        fn avail_window(&mut self) -> &mut Window;
        fn used_window(&mut self) -> &mut Window;
        fn add(&mut self, parts: &[(u64, u32)], flags: u16) -> Option<u16>;
        fn repost(&mut self, head: u16);
        fn publish(&mut self) -> bool;
        fn used_waiting(&mut self) -> u16;
        fn pop_entry(&mut self) -> Option<Used>;
        fn pop_head(&mut self) -> Option<u16>;
        fn free(&mut self, head: u16);
        fn suppress(&mut self);
        fn arm(&mut self) -> bool;
        fn arm_delayed(&mut self) -> bool;
        fn restart(&mut self) -> (u16, u16);
        fn resume(&mut self) -> u16;
    }

    pub fn disorder(&self) -> u64 {
        either!(self, ring => ring.disorder)
    }

    pub fn bad_used(&self) -> u64 {
        either!(self, ring => ring.bad_used)
    }
}
