//! `receive`: what a VM, and a tenant, may have of what comes for it; `send`: what a tenant may
//! send over the network.

use penstock_toml::{BitsPerSecond, PacketsPerSecond};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a tenant's VM may have above its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// What its siblings leave.
    #[default]
    Borrow,
    /// Nothing.
    Strict,
}

/// `receive = { rate = "200M", burst = 5000000, pps = "50k", frames = 10000 }`: what may come for a
/// VM or, in `[[tenant]]`, for all VMs of a tenant together; more is dropped before it is copied.
/// A tenant's `send` is the same without `sharing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { rate = \"200M\" }")]
pub struct Receive {
    /// Bits per second, FCS included, 8k to 400G. Default: as many as come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitsPerSecond>,
    /// Bytes at once, 1514 to 536870912. Default: 200 ms of `rate`, at least 280048.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_514, max = 536_870_912))]
    pub burst: Option<u32>,
    /// Frames per second, 1 to 1G. Default: as many as come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pps: Option<PacketsPerSecond>,
    /// Frames at once, 1 to 536870912. Default: 200 ms of `pps`, at least 256.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 536_870_912))]
    pub frames: Option<u32>,
    /// Tenant: whether a VM above its part has what the tenant's other VMs leave. Default `borrow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}
