//! Keys for a port's purchased cycles (`contract`, `cycles`, `cycle_weight`, `priority`), and
//! `[model]`, the cost model that converts contracts to cycles.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use penstock_qos::cost_model::{SizeMix, SizeMixError};
use penstock_toml::text_value;
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

/// The rate of a contract, in bits or in frames per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContractRate {
    /// Rate in bits per second with FCS, written as `4G` or `4Gbps`.
    Bits(units::BitsPerSecond),
    /// Rate in frames per second, written as `600kpps`.
    Packets(units::PacketsPerSecond),
}

impl fmt::Display for ContractRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits(rate) => rate.fmt(f),
            Self::Packets(rate) => write!(f, "{rate}pps"),
        }
    }
}

impl FromStr for ContractRate {
    type Err = units::ParseRateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(rate) = text.strip_suffix("pps") {
            return rate.parse().map(Self::Packets);
        }
        text.strip_suffix("bps").unwrap_or(text).parse().map(Self::Bits)
    }
}

text_value!(ContractRate, "ContractRate", "a rate such as \"4G\" or \"600kpps\"", {
    "type": ["string", "integer"],
    "pattern": "^[0-9]+(\\.[0-9]+)?[kKMGT]?(bps|pps)?$"
});

/// Sizes of frames in bytes with FCS, with weights if there are several, as in `1024` or
/// `64:7+1518:1`, or the name `imix`. The mix `imix` has 7 frames of 64 bytes, 4 of 594 and 1 of
/// 1518 (RFC 6985).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sizes(pub SizeMix);

impl Sizes {
    /// Mean frame size in whole bytes, FCS included.
    #[must_use]
    pub fn mean(&self) -> u64 {
        let entries = self.0.entries().iter();
        let (bytes, frames) = entries.fold((0_u64, 0_u64), |(bytes, frames), (size, weight)| {
            (bytes + u64::from(*size) * u64::from(*weight), frames + u64::from(*weight))
        });
        (bytes + frames / 2) / frames.max(1)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Sizes {
    type Err = SizeMixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

text_value!(Sizes, "Sizes", "a size such as 1024, \"imix\" or \"64:7+1518:1\"", {
    "type": ["string", "integer"],
    "pattern": "^(imix|[0-9]+(:[0-9]+)?(\\+[0-9]+(:[0-9]+)?)*)$",
    "minimum": 64,
    "maximum": 9018
});

/// Number of flows in a contract's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Flows {
    /// The VM's frames have few flows, which all fit into the exact-match cache.
    #[default]
    Single,
    /// The VM's frames have many flows, so most frames miss the exact-match cache.
    Multiple,
}

/// A purchased rate, and the traffic for which the rate holds, such as `{ rate = "4G", size = 1024,
/// flows = "single" }` (C2QoS §III-D).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a contract table such as { rate = \"2G\", size = 1024 }")]
pub struct Contract {
    /// Purchased rate in bits per second, or in frames per second with the suffix `pps`.
    pub rate: ContractRate,
    /// Frame size in bytes with FCS, 64 to 9018, or a mix of sizes. Default `imix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Sizes>,
    /// Number of flows in the contract's traffic, `single` or `multiple`. Default `single`.
    #[serde(default)]
    pub flows: Flows,
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
}

impl Default for ModelSection {
    fn default() -> Self {
        Self { file: None, learn: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contracts_rate_says_what_it_counts() {
        for (text, want) in [
            ("4G", ContractRate::Bits(units::BitsPerSecond(4_000_000_000))),
            ("4Gbps", ContractRate::Bits(units::BitsPerSecond(4_000_000_000))),
            ("600kpps", ContractRate::Packets(units::PacketsPerSecond(600_000))),
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
            assert_eq!(want.to_string().parse(), Ok(want), "{text}");
        }
        assert!("4 Gpps".parse::<ContractRate>().is_err());
    }

    #[test]
    fn a_contracts_size_is_a_number_or_a_mix() {
        let size = |text: &str| {
            let contract: Contract = toml_edit::de::from_str(&format!("rate = \"1G\"\n{text}"))?;
            Ok::<_, toml_edit::de::Error>(contract.size.map(|size| size.to_string()))
        };
        assert_eq!(size("").unwrap(), None);
        assert_eq!(size("size = 1024").unwrap().as_deref(), Some("1024"));
        assert_eq!(size("size = \"64:7+1518:1\"").unwrap().as_deref(), Some("64:7+1518:1"));
        let error = size("size = 63").unwrap_err();
        assert!(error.message().contains("size 63 is out of range; write 64 to 9018"), "{error}");
    }
}
