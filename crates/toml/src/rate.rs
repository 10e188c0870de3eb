//! Rates in the form that people write, such as `200M`, `2.5G` or `600k`.

use core::fmt;
use core::str::FromStr;

use penstock_units as units;

use crate::text_value;

/// A rate of cycles, bits or frames as people write it: `200M`, `2.5G`, `600k`.
macro_rules! rate {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub units::$name);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = units::ParseRateError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        text_value!($name, $text, "a rate such as \"2.5G\"", {
            "type": ["string", "integer"],
            "pattern": "^[0-9]+(\\.[0-9]+)?[kKMGT]?$"
        });
    };
}

rate! {
    /// Cycles of the time-stamp counter per second.
    CyclesPerSecond, "CyclesPerSecond"
}
rate! {
    /// Bits per second of frames, FCS included.
    BitsPerSecond, "BitsPerSecond"
}
rate! {
    /// Frames per second.
    PacketsPerSecond, "PacketsPerSecond"
}
