//! `queue`: the frames that may wait for a port.

use penstock_dataplane::queue::{Order, Pacing, QueueTerms, ShapeTerms};
use penstock_qos::fair_share::{Bound, Excess as QosExcess};
use penstock_toml::{BitsPerSecond, Object, Report};
use penstock_units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::Egress;
use super::values::outside;

/// Range of `bytes`.
const BYTES: core::ops::RangeInclusive<u64> = 2_048..=8 << 20;
/// Range of `wait_us`.
const WAIT_US: core::ops::RangeInclusive<u64> = 100..=10_000_000;
/// Range of `frames`.
const FRAMES: core::ops::RangeInclusive<u32> = 32..=65_536;

/// What happens to frames without room in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Excess {
    /// They stay in their VM's ring, which is not polled until there is room.
    #[default]
    Hold,
    /// They are dropped.
    Drop,
}

/// `queue = { bytes = 262144, wait_us = 10000, frames = 4096, excess = "hold" }`: limits on the
/// frames that wait for a port. They apply to each VM with `egress = "fair-share"`, to each queue
/// with `"wfq"`, otherwise to all frames together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { bytes = 262144 }")]
pub struct Queue {
    /// Waiting bytes, 2048 to 8388608. Default 262144.
    #[schemars(range(min = 2_048, max = 8_388_608))]
    pub bytes: u64,
    /// Longest wait in microseconds, 100 to 10000000. When the oldest frame has waited longer,
    /// `hold` takes no further frame, and `drop` drops that frame. Default 10000; with `wfq` or
    /// `shape.receive` 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 10_000_000))]
    pub wait_us: Option<u64>,
    /// Waiting frames of all VMs together, 32 to 65536. Plan some tens for each VM. With `wfq` a
    /// queue holds no more frames than are free. Default 4096.
    #[schemars(range(min = 32, max = 65_536))]
    pub frames: u32,
    /// What happens to frames without room. Only `fair-share` can hold them. Default `hold` with
    /// `fair-share`, otherwise `drop`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<Excess>,
}

impl Default for Queue {
    fn default() -> Self {
        Self { bytes: 256 * 1024, wait_us: None, frames: 4_096, excess: None }
    }
}

impl Queue {
    pub(super) fn check<T>(&self, object: &Object<'_, T>, egress: Egress, report: &mut Report<'_>) {
        outside(object, "queue.bytes", self.bytes, &BYTES, report);
        outside(object, "queue.frames", self.frames, &FRAMES, report);
        if let Some(wait) = self.wait_us {
            outside(object, "queue.wait_us", wait, &WAIT_US, report);
        }
        if self.excess == Some(Excess::Hold) && egress != Egress::FairShare {
            let problem = "only a `fair-share` output can leave frames in the senders' rings";
            let remedy = "set excess = \"drop\", or egress = \"fair-share\" on a shared port";
            report.at(object, "queue.excess", problem, remedy);
        }
    }
}

/// The queue towards a port. A queue exists if the port configures one, if the port is shared, or
/// if frames to the port are shaped. `None` if frames never wait for the port.
pub(super) fn terms(
    queue: Option<Queue>,
    egress: Egress,
    shaped: Option<ShapeTerms>,
    link: Option<BitsPerSecond>,
) -> Option<QueueTerms> {
    let order = match egress {
        Egress::FairShare => Order::FairShare,
        Egress::Wfq => Order::Wfq,
        Egress::Fifo if queue.is_none() && shaped.is_none() => return None,
        Egress::Fifo => Order::Fifo,
    };
    let queue = queue.unwrap_or_default();
    let is_long = shaped.is_some() || order == Order::Wfq;
    let wait_us = queue.wait_us.unwrap_or(if is_long { 1_000_000 } else { 10_000 });
    let excess = match (order, queue.excess) {
        (Order::FairShare, None | Some(Excess::Hold)) => QosExcess::Hold,
        _ => QosExcess::Drop,
    };
    let bound = Bound { bytes: queue.bytes, wait: Nanos::from_micros(wait_us), excess };
    let link = link.map(|link| Pacing::Link(link.0));
    let pacing = shaped.map(Pacing::Shaped).or(link).unwrap_or_default();
    Some(QueueTerms { order, pacing, bound, frames: queue.frames })
}
