//! The key `queue` of a port: limits on the frames that wait for the port.

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

/// Treatment of frames for which a port's queue has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Excess {
    /// If the port's queue has no room, frames stay in the sending VM's ring. While the queue has
    /// no room, the worker does not poll the sending VM's ring.
    #[default]
    Hold,
    /// If the port's queue has no room, the switch drops the frame.
    Drop,
}

/// Limits on the frames that wait for a port, such as `{ bytes = 262144, wait_us = 10000, frames =
/// 4096, excess = "hold" }`. With `egress = "fair-share"` the limits apply to each VM, with `"wfq"`
/// to each queue, otherwise to all waiting frames together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table of queue limits such as { bytes = 262144 }"
)]
pub struct Queue {
    /// Limit on the bytes of waiting frames, 2048 to 8388608. Default 262144, or 8388608 for each
    /// VM with `fair-share`, for each tenant with a ceiling of `wfq`, for a port with `fq-codel` or
    /// `flows`, and for a port with a limit `receive` without a burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2_048, max = 8_388_608))]
    pub bytes: Option<u64>,
    /// Longest wait of a frame in microseconds, 100 to 10000000. When the oldest frame has waited
    /// longer than `wait_us`, the switch drops the oldest frame (`excess = "drop"`). With
    /// `excess = "hold"`, the wait has no limit. The default wait is 10000 µs. The default is
    /// 1000000 µs for a port with `wfq`, `fq-codel`, `flows` or `shape.receive`, and 200000 µs for
    /// a port with a limit `receive` without a burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 10_000_000))]
    pub wait_us: Option<u64>,
    /// Limit on the waiting frames of all VMs together, 32 to 65536. The limit should allow some
    /// tens of waiting frames for each VM. With `wfq`, a queue can use all places for frames that
    /// are free. Default 4096.
    #[schemars(range(min = 32, max = 65_536))]
    pub frames: u32,
    /// Treatment of frames for which the queue has no room. `hold` needs `fair-share` without
    /// `flows`, and is the default there. For other ports, the default treatment is `drop`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<Excess>,
    /// Gives each flow its own queue with early signals, as `fq-codel` does for a whole port. The
    /// flows are those of a VM with `fair-share`, and those of a queue with `wfq`. If frames exceed
    /// a limit of the VM or queue, its largest flow loses its first frame. Default false: the
    /// frames of a VM or queue leave in the order of arrival.
    #[serde(skip_serializing_if = "penstock_toml::text::is_default")]
    pub flows: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self { bytes: None, wait_us: None, frames: 4_096, excess: None, flows: false }
    }
}

impl Queue {
    pub(super) fn check<T>(&self, object: &Object<'_, T>, egress: Egress, report: &mut Report<'_>) {
        if let Some(bytes) = self.bytes {
            outside(object, "queue.bytes", bytes, &BYTES, report);
        }
        outside(object, "queue.frames", self.frames, &FRAMES, report);
        if let Some(wait) = self.wait_us {
            outside(object, "queue.wait_us", wait, &WAIT_US, report);
        }
        self.check_flows(object, egress, report);
        if self.excess == Some(Excess::Hold) && egress != Egress::FairShare {
            let problem = "only a `fair-share` output can leave frames in the senders' rings";
            let remedy = "set excess = \"drop\", or egress = \"fair-share\" on a shared port";
            report.at(object, "queue.excess", problem, remedy);
        }
    }

    fn check_flows<T>(&self, object: &Object<'_, T>, egress: Egress, report: &mut Report<'_>) {
        if !self.flows {
            return;
        }
        if !matches!(egress, Egress::FairShare | Egress::Wfq) {
            let problem = "`flows` is only for outputs with `fair-share` or `wfq`";
            let remedy = "remove `flows`; egress = \"fq-codel\" alone gives each flow of the port \
                          its own queue";
            report.at(object, "queue.flows", problem, remedy);
        } else if self.excess == Some(Excess::Hold) && egress == Egress::FairShare {
            let problem = "with `flows`, no frame stays in a sender's ring, because frames in a \
                           ring have a single order";
            report.at(object, "queue.excess", problem, "remove `excess` or `flows`");
        }
    }
}

/// Rate for which frames to a port wait, besides `link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paced {
    No,
    /// A shaper (`shape.receive`).
    Shaped(ShapeTerms),
    /// A limit without a burst (`receive`).
    Limited,
}

/// Bytes of waiting frames, unless the frames wait for a limit.
const BYTES_DEFAULT: u64 = 256 * 1_024;
/// Bytes of frames that may wait by default for a limit, for a shared link or in flow queues. The
/// default is above the window that Linux gives a TCP stream by default (`tcp_rmem`, 6 MiB), so a
/// stream that begins fast loses no segments. Early signals keep the queue shorter while it is
/// limited by TCP.
const LIMITED_BYTES: u64 = 8 << 20;
/// Longest wait of a frame for a limit (`receive`) by default. At 10 Mbit/s, three large segments
/// of 64 KiB take 160 ms.
const LIMITED_WAIT_US: u64 = 200_000;

/// Returns the limits of the queue towards a port. Frames wait in a queue if the port configures a
/// queue, if the port is shared, or if frames to the port are shaped or limited. Returns `None` if
/// frames never wait in a queue for the port. The limits do not depend on a rate, so that a queue
/// keeps its frames if a rate changes.
pub(super) fn terms(
    queue: Option<Queue>,
    egress: Egress,
    paced: Paced,
    link: Option<BitsPerSecond>,
) -> Option<QueueTerms> {
    let order = match egress {
        Egress::FairShare => Order::FairShare,
        Egress::Wfq => Order::Wfq,
        Egress::FqCodel => Order::FqCodel,
        Egress::Fifo if queue.is_none() && paced == Paced::No => return None,
        Egress::Fifo => Order::Fifo,
    };
    let is_limited = paced == Paced::Limited && order == Order::Fifo;
    let queue = queue.unwrap_or_default();
    let flows = queue.flows && order.is_shared();
    let limited = is_limited || flows || matches!(order, Order::FairShare | Order::FqCodel);
    let bytes = if limited { LIMITED_BYTES } else { BYTES_DEFAULT };
    let wait_us = queue.wait_us.unwrap_or(match paced {
        _ if flows || matches!(order, Order::Wfq | Order::FqCodel) => 1_000_000,
        Paced::Shaped(_) => 1_000_000,
        Paced::Limited if is_limited => LIMITED_WAIT_US,
        Paced::Limited | Paced::No => 10_000,
    });
    let excess = match (order, queue.excess) {
        (Order::FairShare, None | Some(Excess::Hold)) if !flows => QosExcess::Hold,
        _ => QosExcess::Drop,
    };
    let held_bytes = queue.bytes.unwrap_or(LIMITED_BYTES);
    let bytes = queue.bytes.unwrap_or(bytes);
    let bound = Bound { bytes, wait: Nanos::from_micros(wait_us), excess };
    let link = link.map(|link| Pacing::Link(link.0));
    let pacing = match paced {
        Paced::Shaped(terms) => Pacing::Shaped(terms),
        Paced::No | Paced::Limited => link.unwrap_or_default(),
    };
    Some(QueueTerms { order, pacing, bound, held_bytes, frames: queue.frames, flows })
}
