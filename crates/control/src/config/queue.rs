//! `queue`: the frames that may wait for a port.

use penstock_dataplane::queue::{Order, Pacing, QueueTerms, ShapeTerms};
use penstock_qos::fair_share::{Bound, Excess as QosExcess};
use penstock_toml::{BitsPerSecond, Object, Report};
use penstock_units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::Egress;
use super::values::outside;

/// Bytes of a queue.
const BYTES: core::ops::RangeInclusive<u64> = 2_048..=8 << 20;
/// Microseconds that a frame waits.
const WAIT_US: core::ops::RangeInclusive<u64> = 100..=10_000_000;
/// Frames of a queue.
const FRAMES: core::ops::RangeInclusive<u32> = 32..=65_536;

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

/// The queue towards a port, `None` if frames never wait for it: it exists if the port says so,
/// if it is shared or if what goes to it is shaped.
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
