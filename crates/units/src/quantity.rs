//! Quantities are amounts of cycles, time, bytes and packets. Addition of quantities saturates at
//! `u64::MAX`.

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The quantity zero, which is also the default.
            pub const ZERO: Self = Self(0);

            /// Subtracts `other` from the quantity. The result is zero if `other` is larger than
            /// the quantity.
            #[inline]
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl core::ops::Add for $name {
            type Output = Self;
            #[inline]
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl core::ops::AddAssign for $name {
            #[inline]
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
    };
}

quantity!(
    /// Number of cycles of the time-stamp counter. Only a calibrated [`crate::TscRate`] converts
    /// cycles to time.
    Cycles
);
quantity!(
    /// Time in nanoseconds. The time is a duration, or a point in time since an origin that the
    /// caller chooses.
    Nanos
);
quantity!(
    /// Number of bytes of frames, without FCS, preamble and inter-frame gap.
    Bytes
);
quantity!(
    /// Number of frames. Each segment of a TSO request counts as one frame.
    Packets
);

impl Nanos {
    /// Converts whole microseconds to nanoseconds. The conversion saturates at `u64::MAX`
    /// nanoseconds.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }
    /// Converts whole milliseconds to nanoseconds. The conversion saturates at `u64::MAX`
    /// nanoseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }
    /// Converts whole seconds to nanoseconds. The conversion saturates at `u64::MAX` nanoseconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }
}
