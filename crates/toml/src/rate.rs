//! Configuration files contain rates in the form that people write, such as `200M`, `2.5G` or
//! `600k`.

use core::fmt;
use core::str::FromStr;

use penstock_units as units;

use crate::text_value;

/// Defines a type for a rate in configuration files, which parses from text such as `200M`.
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
    /// Rate in cycles of the time-stamp counter per second.
    CyclesPerSecond, "CyclesPerSecond"
}
rate! {
    /// Rate in bits per second of frames, including the FCS.
    BitsPerSecond, "BitsPerSecond"
}
rate! {
    /// Rate in frames per second.
    PacketsPerSecond, "PacketsPerSecond"
}
