//! Keys for a port's share of the cycles (`cycle_weight`, `priority`), and `[model]`, the cost
//! model that converts contracts to cycles.

use std::path::PathBuf;

use penstock_units as units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defines a type for whole numbers in the range from `$low` to `$high`.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $text:literal, $low:literal, $high:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub units::$name);

        impl Default for $name {
            fn default() -> Self {
                Self(units::$name::default())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let value = u64::deserialize(d)?;
                units::$name::new(value).map(Self).map_err(serde::de::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_u64(self.0.get().into())
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $text.into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "integer", "minimum": $low, "maximum": $high })
            }
        }
    };
}

number! {
    /// A relative weight for shares of a resource, 1 to 10000.
    Weight, "Weight", 1, 10_000
}
number! {
    /// A latency class, 1 (served first) to 8.
    Priority, "Priority", 1, 8
}

/// `[model]`: the cost model of a frame on this host. The cost model converts contracts to cycles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// File of the cost model, which `penstock calibrate` wrote; default: none, a port with a
    /// contract needs `cycles`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Whether the cost model learns while frames flow. Default `true`.
    pub learn: bool,
    /// Whether contracts may use a cost model that was measured on another host, or under another
    /// kernel. Default `false`.
    pub any_host: bool,
}

impl Default for ModelSection {
    fn default() -> Self {
        Self { file: None, learn: true, any_host: false }
    }
}
