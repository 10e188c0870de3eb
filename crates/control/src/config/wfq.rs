//! `egress = "wfq"`: the queues of a port, their weights, and whose frames they hold.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use penstock_qos::wfq::QUEUES_MAX;
use penstock_toml::BitsPerSecond;
use penstock_toml::text_value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::share::Weight;

/// Queues of a port.
#[expect(clippy::cast_possible_truncation, reason = "64")]
pub(super) const QUEUES: core::ops::RangeInclusive<u32> = 2..=QUEUES_MAX as u32;
/// Code points.
pub(super) const DSCPS: core::ops::RangeInclusive<u32> = 0..=63;

/// A code point (DSCP, RFC 2474) as the key of a table, 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodePoint(u8);

impl CodePoint {
    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for CodePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for CodePoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse::<u8>().ok().filter(|number| DSCPS.contains(&(*number).into()));
        number.map(Self).ok_or_else(|| format!("{text} is not a DSCP; write a number from 0 to 63"))
    }
}

text_value!(CodePoint, "CodePoint", "a DSCP from 0 to 63", {
    "type": "string",
    "pattern": "^([0-9]|[1-5][0-9]|6[0-3])$"
});

/// `wfq = { queues = 8, weights = [1, 10, 20], map = { 8 = 1, 16 = 2 } }`: the queues of a port
/// with `egress = "wfq"`. Everything may be set while frames flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { weights = [1, 10] }")]
pub struct Wfq {
    /// Queues, 2 to 64; queue 0 is shared. Default 8.
    #[schemars(range(min = 2, max = 64))]
    pub queues: u8,
    /// The queues' weights from queue 0 on, 1 to 10000 each. Default, also of those left out: 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<Weight>,
    /// Queue by code point. Code points left out, and what is not IP, are queue 0's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub map: BTreeMap<CodePoint, u8>,
    /// Tenants of queue 0 that are held: bits per second, FCS included, 8k to 400G, that the VMs of
    /// each send through this port together, by tenant. Their frames wait for their time, some
    /// 200 ms at most, in a lane of their own; there are 64 lanes and queues together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ceilings: BTreeMap<String, BitsPerSecond>,
}

impl Default for Wfq {
    fn default() -> Self {
        let (map, ceilings) = (BTreeMap::new(), BTreeMap::new());
        Self { queues: 8, weights: Vec::new(), map, ceilings }
    }
}
