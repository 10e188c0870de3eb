//! What waits for an output: `queue`, `shape`, and a port's and tenant's shares.

use penstock_toml::BitsPerSecond;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes of a queue.
pub(super) const BYTES: core::ops::RangeInclusive<u64> = 2_048..=8 << 20;
/// Microseconds that a frame waits.
pub(super) const WAIT_US: core::ops::RangeInclusive<u64> = 100..=10_000_000;
/// Frames of a queue.
pub(super) const FRAMES: core::ops::RangeInclusive<u32> = 32..=65_536;
/// Milliseconds between two portions of tokens.
pub(super) const PERIOD_MS: core::ops::RangeInclusive<u64> = 1..=1_000;

/// What becomes of frames for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Excess {
    /// They stay in their VM's ring, which is not polled meanwhile.
    #[default]
    Hold,
    /// They are dropped.
    Drop,
}

/// `queue = { bytes = 262144, wait_us = 10000, frames = 4096, excess = "hold" }`: how much may wait
/// for a port. With `egress = "fair-share"` of each VM, with `"wfq"` in each queue, else of all
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { bytes = 262144 }")]
pub struct Queue {
    /// Bytes that wait, 2048 to 8388608. Default 262144.
    #[schemars(range(min = 2_048, max = 8_388_608))]
    pub bytes: u64,
    /// Microseconds that a frame waits, 100 to 10000000: held, no more is taken while the oldest
    /// has waited so long; dropped, the oldest is. Default 10000; 1000000 where what goes there is
    /// shaped, and with `wfq`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 10_000_000))]
    pub wait_us: Option<u64>,
    /// Frames that wait, of all VMs together, 32 to 65536: some tens for each VM. With `wfq` no
    /// queue has more of them than are free. Default 4096.
    #[schemars(range(min = 32, max = 65_536))]
    pub frames: u32,
    /// What becomes of frames for which there is no room; `fair-share` alone can hold them. Default
    /// `hold` there, `drop` elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<Excess>,
}

impl Default for Queue {
    fn default() -> Self {
        Self { bytes: 256 * 1024, wait_us: None, frames: 4_096, excess: None }
    }
}

/// How a shaped rate is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Shaper {
    /// Frame after frame, within a window of spacings.
    #[default]
    Smooth,
    /// Tokens come in portions: the baseline.
    TokenBucket,
}

/// `shape = { send = "4M", receive = "20M" }`: rates that a VM is delayed to and not policed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { send = \"4M\" }")]
pub struct Shape {
    /// Bits per second that it sends, FCS included, 256k to 10G. Default: not shaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send: Option<BitsPerSecond>,
    /// Bits per second that it receives, FCS included, 256k to 10G. Default: not shaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<BitsPerSecond>,
    /// How. Default `smooth`.
    #[serde(skip_serializing_if = "penstock_toml::text::is_default")]
    pub shaper: Shaper,
    /// token-bucket: milliseconds between two portions of tokens, 1 to 1000. Default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub period_ms: Option<u64>,
}
