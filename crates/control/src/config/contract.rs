//! The key `contract` of a port: the rates that a VM purchased, and the traffic that it declares.

use core::fmt;
use core::str::FromStr;

use penstock_qos::cost_model::{self, Rate, SizeMix, SizeMixError};
use penstock_toml::text::is_default;
use penstock_toml::{BitsPerSecond, PacketsPerSecond, text_value};
use penstock_units as units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The rate of a contract, in bits or in frames per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContractRate {
    /// Rate in bits per second with FCS, written as `4G` or `4Gbps`.
    Bits(units::BitsPerSecond),
    /// Rate in frames per second, written as `600kpps`.
    Packets(units::PacketsPerSecond),
}

impl ContractRate {
    fn is_zero(self) -> bool {
        match self {
            Self::Bits(rate) => rate.0 == 0,
            Self::Packets(rate) => rate.0 == 0,
        }
    }
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

/// Layout of the rings of a VM's driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ring {
    /// Separate descriptor table, available ring and used ring, the layout of most drivers.
    #[default]
    Split,
    /// One ring of descriptors (virtio 1.1), for example with `packed=on` of a QEMU device.
    Packed,
}

impl From<Ring> for cost_model::RingKind {
    fn from(ring: Ring) -> Self {
        match ring {
            Ring::Split => Self::Split,
            Ring::Packed => Self::Packed,
        }
    }
}

/// A contract sells exactly a rate if its limit is at most this many times the guaranteed rate.
const CAPPED: f64 = 1.01;

/// Purchased rates, and the traffic for which they hold, such as `{ rate = "4G", size = 1024,
/// flows = "single" }` (C2QoS §III-D). The switch guarantees `rate`, or `min_rate` and `min_pps`
/// together, and never exceeds `max_rate` and `max_pps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a contract table such as { rate = \"2G\", size = 1024 }")]
pub struct Contract {
    /// Guaranteed rate in bits per second, or in frames per second with the suffix `pps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<ContractRate>,
    /// Guaranteed rate in bits per second with FCS, instead of `rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<BitsPerSecond>,
    /// Guaranteed rate in frames per second, instead of `rate` or beside `min_rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_pps: Option<PacketsPerSecond>,
    /// Limit in bits per second with FCS, 8k to 400G. Frames above the limit wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<BitsPerSecond>,
    /// Limit in frames per second, 1 to 1G. Frames above the limit wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_pps: Option<PacketsPerSecond>,
    /// Frame size in bytes with FCS, 64 to 9018, or a mix of sizes. Default `imix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Sizes>,
    /// Number of flows in the contract's traffic, `single` or `multiple`. Default `single`.
    #[serde(default)]
    pub flows: Flows,
    /// Layout of the driver's rings, `split` or `packed`. Default `split`.
    #[serde(default)]
    pub ring: Ring,
    /// Whether the VM sends large segments (TSO) and frames without checksums, as Linux does. The
    /// switch cuts and completes them for ports without these offloads. Default `false`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub segments: bool,
    /// Part of the frames that leave through an uplink, in per cent, 0 to 100. By default, all
    /// frames take the most expensive way that the port's network permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub uplink: Option<u8>,
    /// NUMA node of the VM's memory. If the node is not the node of the worker's CPU, a frame costs
    /// more, by the factor `numa_remote` of the cost model. By default, the memory counts as local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u16>,
}

impl Contract {
    /// Returns the guaranteed rate. Of `min_rate` and `min_pps`, this is the rate with more frames
    /// of the declared sizes, so the other rate is guaranteed with it.
    #[must_use]
    pub fn guaranteed(&self) -> ContractRate {
        let bits = self.min_rate.map(|rate| ContractRate::Bits(rate.0));
        let frames = self.min_pps.map(|rate| ContractRate::Packets(rate.0));
        let all = self.rate.into_iter().chain(bits).chain(frames);
        let most = |a: &ContractRate, b: &ContractRate| self.frames(*a).total_cmp(&self.frames(*b));
        all.max_by(most).unwrap_or(ContractRate::Packets(units::PacketsPerSecond(0)))
    }

    /// Returns the contract in the form that the cost model uses.
    #[must_use]
    pub fn terms(&self) -> cost_model::Contract {
        self.of(self.guaranteed())
    }

    /// Returns whether a limit keeps the port at the guaranteed rate, or hardly above it.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        let bits = self.max_rate.map(|rate| ContractRate::Bits(rate.0));
        let frames = self.max_pps.map(|rate| ContractRate::Packets(rate.0));
        let sold = self.frames(self.guaranteed()) * CAPPED;
        bits.into_iter().chain(frames).any(|most| self.frames(most) <= sold)
    }

    /// Returns the frames per second of the declared sizes that have a rate.
    fn frames(&self, rate: ContractRate) -> f64 {
        self.of(rate).frames_per_second()
    }

    fn of(&self, rate: ContractRate) -> cost_model::Contract {
        cost_model::Contract {
            rate: match rate {
                ContractRate::Bits(rate) => Rate::Bits(rate),
                ContractRate::Packets(rate) => Rate::Packets(rate),
            },
            sizes: self.size.as_ref().map_or_else(SizeMix::imix, |size| size.0.clone()),
            flows: match self.flows {
                Flows::Single => cost_model::Flows::Single,
                Flows::Multiple => cost_model::Flows::Multiple,
            },
        }
    }

    /// Returns the first mistake in the rates, as a problem and its remedy.
    pub(super) fn mistake(&self) -> Option<(String, String)> {
        let odd = |problem: String, remedy: &str| Some((problem, remedy.to_owned()));
        let Self { rate, min_rate, min_pps, max_rate, max_pps, .. } = self;
        if rate.is_some() && (min_rate.is_some() || min_pps.is_some()) {
            let problem = "`rate` excludes `min_rate` and `min_pps`, which guarantee rates too";
            return odd(problem.to_owned(), "keep `rate`, or keep `min_rate` and `min_pps`");
        }
        if let Some(percent) = self.uplink.filter(|percent| *percent > 100) {
            return odd(format!("`uplink` {percent} is out of range"), "write 0 to 100 (per cent)");
        }
        let min = [
            ("rate", *rate),
            ("min_rate", min_rate.map(|rate| ContractRate::Bits(rate.0))),
            ("min_pps", min_pps.map(|rate| ContractRate::Packets(rate.0))),
        ];
        let given = || min.iter().filter_map(|(key, rate)| Some((*key, (*rate)?)));
        if given().next().is_none() {
            let remedy = "add `rate`, `min_rate` or `min_pps`; for a limit alone, use `police`";
            return odd("the contract guarantees no rate".to_owned(), remedy);
        }
        if given().any(|(_, rate)| rate.is_zero()) {
            let remedy = "write a rate such as \"4G\" or \"600kpps\", or remove `contract`";
            return odd("a contract of rate 0 sells nothing".to_owned(), remedy);
        }
        let max = [
            ("max_rate", max_rate.map(|rate| ContractRate::Bits(rate.0))),
            ("max_pps", max_pps.map(|rate| ContractRate::Packets(rate.0))),
        ];
        let limits = max.into_iter().filter_map(|(key, rate)| Some((key, rate?)));
        for (limit, most) in limits {
            for (key, least) in given() {
                if self.frames(least) > self.frames(most) * (1.0 + 1e-9) {
                    let mean = self.terms().sizes.mean();
                    let problem = format!(
                        "`{limit}` {most} is below `{key}` {least} with frames of {mean:.0} bytes"
                    );
                    return odd(problem, "raise the limit, or guarantee less");
                }
            }
        }
        None
    }
}

impl fmt::Display for Contract {
    /// Writes the rates as in `1G, at most 4G and 600kpps`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |rates: [Option<ContractRate>; 3]| {
            let texts: Vec<_> = rates.iter().flatten().map(ContractRate::to_string).collect();
            texts.join(" and ")
        };
        let bits = |rate: Option<BitsPerSecond>| rate.map(|rate| ContractRate::Bits(rate.0));
        let frames =
            |rate: Option<PacketsPerSecond>| rate.map(|rate| ContractRate::Packets(rate.0));
        f.write_str(&join([self.rate, bits(self.min_rate), frames(self.min_pps)]))?;
        let most = join([bits(self.max_rate), frames(self.max_pps), None]);
        if most.is_empty() { Ok(()) } else { write!(f, ", at most {most}") }
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

    #[test]
    fn a_limit_at_the_guaranteed_rate_caps() {
        for (text, capped) in [
            ("rate = \"1G\"", false),
            ("rate = \"1G\"\nmax_rate = \"1G\"", true),
            ("rate = \"1G\"\nmax_rate = \"1005M\"", true),
            ("rate = \"1G\"\nmax_rate = \"1020M\"", false),
            ("min_pps = \"5k\"\nmax_pps = \"5k\"", true),
            ("min_rate = \"1G\"\nmax_pps = \"1954k\"\nsize = 64", true),
        ] {
            assert_eq!(contract(text).is_capped(), capped, "{text}");
        }
    }

    fn contract(text: &str) -> Contract {
        toml_edit::de::from_str(text).unwrap()
    }

    #[test]
    fn both_minima_are_guaranteed_by_the_one_with_more_frames() {
        let bits = ContractRate::Bits(units::BitsPerSecond(1_000_000_000));
        let frames = |n| ContractRate::Packets(units::PacketsPerSecond(n));
        for (pps, want) in [("100k", bits), ("200k", frames(200_000))] {
            // 1 Gbit/s is 122,070 frames of 1,024 bytes.
            let text = format!("min_rate = \"1G\"\nmin_pps = \"{pps}\"\nsize = 1024");
            assert_eq!(contract(&text).guaranteed(), want, "{pps}");
        }
        assert_eq!(contract("min_pps = \"5k\"").guaranteed(), frames(5_000));
        let text = "min_rate = \"1G\"\nmin_pps = \"5k\"\nmax_rate = \"4G\"\nmax_pps = \"600k\"";
        assert_eq!(contract(text).to_string(), "1G and 5kpps, at most 4G and 600kpps");
        assert_eq!(contract("rate = \"600kpps\"").to_string(), "600kpps");
    }

    #[test]
    fn mistakes_in_rates_are_told_with_a_remedy() {
        for (text, problem) in [
            ("rate = \"1G\"\nmin_pps = \"5k\"", "`rate` excludes `min_rate` and `min_pps`"),
            ("max_rate = \"1G\"", "the contract guarantees no rate"),
            ("min_rate = 0", "a contract of rate 0 sells nothing"),
            ("rate = \"1G\"\nuplink = 101", "`uplink` 101 is out of range"),
            ("rate = \"2G\"\nmax_rate = \"1G\"", "`max_rate` 1G is below `rate` 2G"),
            ("min_pps = \"2k\"\nmax_pps = \"1k\"", "`max_pps` 1kpps is below `min_pps` 2kpps"),
            (
                "min_rate = \"1G\"\nmax_pps = \"1M\"\nsize = 64",
                "`max_pps` 1Mpps is below `min_rate` 1G with frames of 64 bytes",
            ),
        ] {
            let (found, _) = contract(text).mistake().unwrap();
            assert!(found.starts_with(problem), "{text}: {found}");
        }
        let fits = "min_rate = \"1G\"\nmax_rate = \"1G\"\nmax_pps = \"1M\"\nsize = 1024";
        assert_eq!(contract(fits).mistake(), None);
    }
}
