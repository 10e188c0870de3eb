//! What waits for an output: `queue`, `shape`, and a port's and tenant's shares.

use penstock_dataplane::queue::{Order, Pacing, QueueTerms, ShapeTerms, ShaperKind};
use penstock_qos::fair_share::{Bound, Excess as QosExcess};
use penstock_qos::shaper::PERIOD_OF_XEN;
use penstock_units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::Port;
use super::release::Egress;
use super::share::BitsPerSecond;

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
    #[serde(skip_serializing_if = "super::model::is_default")]
    pub shaper: Shaper,
    /// token-bucket: milliseconds between two portions of tokens, 1 to 1000. Default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub period_ms: Option<u64>,
}

impl Shape {
    fn terms(&self, rate: BitsPerSecond) -> ShapeTerms {
        let period = self.period_ms.map_or(PERIOD_OF_XEN, Nanos::from_millis);
        let kind = match self.shaper {
            Shaper::Smooth => ShaperKind::Smooth,
            Shaper::TokenBucket => ShaperKind::TokenBucket(period),
        };
        ShapeTerms { rate: rate.0, kind }
    }
}

impl Port {
    /// How what it sends is shaped.
    pub(crate) fn shaped(&self) -> Option<ShapeTerms> {
        let shape = self.shape.as_ref()?;
        Some(shape.terms(shape.send?))
    }

    /// The queue of what goes to it: where frames are shared, where they are shaped, and where one
    /// is asked for.
    pub(crate) fn queued(&self) -> Option<QueueTerms> {
        let shaped = self.shape.and_then(|shape| Some(shape.terms(shape.receive?)));
        let order = match self.egress {
            Egress::FairShare => Order::FairShare,
            Egress::Wfq => Order::Wfq,
            Egress::Fifo if self.queue.is_none() && shaped.is_none() => return None,
            Egress::Fifo => Order::Fifo,
        };
        let queue = self.queue.unwrap_or_default();
        let is_long = shaped.is_some() || order == Order::Wfq;
        let wait_us = queue.wait_us.unwrap_or(if is_long { 1_000_000 } else { 10_000 });
        let excess = match (order, queue.excess) {
            (Order::FairShare, None | Some(Excess::Hold)) => QosExcess::Hold,
            _ => QosExcess::Drop,
        };
        let bound = Bound { bytes: queue.bytes, wait: Nanos::from_micros(wait_us), excess };
        let link = self.link.map(|link| Pacing::Link(link.0));
        let pacing = shaped.map(Pacing::Shaped).or(link).unwrap_or_default();
        Some(QueueTerms { order, pacing, bound, frames: queue.frames })
    }

    /// Whether all its queue pairs have to be with one worker: a queue and a shaper are one.
    pub(crate) fn is_one_workers(&self) -> bool {
        self.queued().is_some() || self.shaped().is_some()
    }
}
