//! Amounts of cycles, time, bytes and packets. Addition saturates at `u64::MAX`.

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The quantity 0.
            pub const ZERO: Self = Self(0);

            /// The difference; zero if `other` is larger.
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
    /// Cycles of the time-stamp counter. Only a calibrated [`crate::TscRate`] converts them to
    /// time.
    Cycles
);
quantity!(
    /// A duration, or a point in time counted from an origin that its user defines, in nanoseconds.
    Nanos
);
quantity!(
    /// Bytes of frames, without FCS, preamble and inter-frame gap.
    Bytes
);
quantity!(
    /// Number of frames. Each segment of a TSO request counts as one frame.
    Packets
);

impl Nanos {
    /// Converts whole microseconds. Saturates.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }
    /// Converts whole milliseconds. Saturates.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }
    /// Converts whole seconds. Saturates.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }
}
