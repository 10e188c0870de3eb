//! This module reads and writes the leaf values of a configuration.
//!
//! # Approach
//!
//! A leaf value in a configuration file is text. A leaf value that is usually written as a number
//! may also be a TOML number. A leaf value is checked when it is read, so the program never has an
//! invalid value. The error text of an invalid leaf value consists of the problem, `; ` and the
//! remedy.

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};

/// Returns true if a value equals its type's default. A written file omits default values.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads a leaf value that parses from text. A whole number is read as the text of its digits.
pub fn read<'de, D, T>(deserializer: D, expecting: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    struct Text<T>(&'static str, PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
    }

    deserializer.deserialize_any(Text(expecting, PhantomData))
}

/// Implements serde's traits and the JSON schema for a type with `FromStr` and `Display`.
///
/// Call the macro as `text_value!(Type, "Type", "expected form of the text", { schema });`. The
/// form is a constant text.
#[macro_export]
macro_rules! text_value {
    ($type:ty, $name:literal, $expecting:expr, $schema:tt) => {
        impl<'de> $crate::serde::Deserialize<'de> for $type {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                $crate::text::read(d, $expecting)
            }
        }

        impl $crate::serde::Serialize for $type {
            fn serialize<S: $crate::serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl $crate::schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut $crate::schemars::SchemaGenerator) -> $crate::schemars::Schema {
                $crate::schemars::json_schema!($schema)
            }
        }
    };
}
