//! `penstock explain`: why a port has its rate.
//!
//! # Problem
//! A VM's owner says "it is slow". The rate may be the purchased rate, or the core, the neighbours,
//! the link or the receiver may limit it. The VM may also have no more to send. Each cause has a
//! different remedy.
//!
//! # Source
//! C2QoS §II (resources for which VMs compete), §IV, §VII.
//!
//! # Approach
//! The answer comes from the growth of counters over some seconds. The answer is the first row of
//! this table whose evidence exists:
//!
//! | limit | evidence |
//! |---|---|
//! | attachment | the port cannot pass frames |
//! | own rate | frames dropped as `policed` |
//! | link | frames dropped as `link-limit`, or by the full ring of a watched uplink |
//! | link | frames dropped by a full queue of a port with `egress = "wfq"` |
//! | destination | frames dropped by a receiver's ring or queue |
//! | link | frames not taken, because too many wait for a shared output (`held_back`) |
//! | own entitlement | frames waited without cycles, and no other port took the entitlement |
//! | own entitlement | the port is in debt and had no batch |
//! | neighbours | frames waited, others used the core, and the port got less than its entitlement |
//! | core | frames waited, and the core was full |
//! | nothing | none of these: the port sends less |
//!
//! Frames count as waiting if half of the port's batches were full. Counts below
//! [`NOTICEABLE_PERMILLE`] are no evidence.
//!
//! # Cost
//! The workers do nothing more. The daemon reads existing counters once per second into a ring of
//! [`history::SECONDS`] readings.
//!
//! # Departures
//! The switch does not count the waiting frames in a guest's ring, because the ring belongs to the
//! guest. A full batch is the evidence instead.

pub(crate) mod history;
#[cfg(test)]
mod tests;
mod words;

use penstock_dataplane::counters::{PortReading, WorkerReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::schedule::IngressPolicy;

use crate::api::{Consumer, Explanation, Limit, LinkStatus, PortStatus, QueueStatus, bits_of};

/// Smallest fraction that is not noise, in thousandths.
pub(crate) const NOTICEABLE_PERMILLE: u64 = 5;
/// A bucket limits its port if the port is without cycles for at least this many thousandths of the
/// time.
const THROTTLED_PERMILLE: u64 = 50;
/// Frames count as waiting if at least this many thousandths of the batches are full.
const FULL_PERMILLE: u64 = 500;
/// A core is full if its load is at least this many thousandths.
const CORE_FULL_PERMILLE: u64 = 950;
/// A port has a core to itself if it causes at least this many thousandths of the core's load.
const ALONE_PERMILLE: u64 = 900;
/// A port did not get its entitlement if it got less than this many thousandths of the entitlement.
const ENTITLED_PERMILLE: u64 = 970;
/// A link is full if its load is at least this many thousandths.
const LINK_FULL_PERMILLE: u64 = 950;
/// Drops above the sender's own rates.
const OWN: [DropReason; 2] = [DropReason::Policed, DropReason::SendLimit];
/// Drops at the receiver, because it has no room or its limits are exceeded.
const FULL: [DropReason; 5] = [
    DropReason::RingFull,
    DropReason::HandoverFull,
    DropReason::QueueFull,
    DropReason::ReceiveLimit,
    DropReason::TenantLimit,
];
/// Limit on listed consumers.
const CONSUMERS_MAX: usize = 5;

/// Growth of a port's counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortGrowth {
    pub(crate) name: String,
    pub(crate) reading: PortReading,
    /// Cycles by worker.
    pub(crate) cycles: Vec<u64>,
    /// Policy, entitlement and class. For a port without metering the entitlement is its floor.
    pub(crate) policy: IngressPolicy,
    pub(crate) entitled: u64,
    pub(crate) weight: u16,
    pub(crate) priority: u8,
    /// Code point of the tenant.
    pub(crate) dscp: Option<u8>,
    /// The `wfq` queues. Of their counters only `drops` is a growth.
    pub(crate) queues: Vec<QueueStatus>,
    /// Debt of the bucket at the end of the time.
    pub(crate) debt: u64,
    /// The part of its contract's profile that the port exceeds.
    pub(crate) breach: Option<String>,
}

/// Growth of a worker's counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerGrowth {
    pub(crate) reading: WorkerReading,
    pub(crate) stalled: bool,
}

/// Growth of all counters over a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growth {
    pub(crate) nanos: u64,
    pub(crate) tsc_hz: u64,
    /// Capacity of a worker in cycles per second.
    pub(crate) capacity: u64,
    pub(crate) ports: Vec<PortGrowth>,
    pub(crate) workers: Vec<WorkerGrowth>,
    pub(crate) links: Vec<LinkStatus>,
}

fn permille(part: u64, of: u64) -> u64 {
    let share = u128::from(part) * 1_000 / u128::from(of.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

impl Growth {
    /// An amount as a rate per second.
    pub(crate) fn per_second(&self, amount: u64) -> u64 {
        let rate = u128::from(amount) * 1_000_000_000 / u128::from(self.nanos.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Cycles of one core in the time.
    fn core_cycles(&self) -> u64 {
        let cycles = u128::from(self.nanos) * u128::from(self.tsc_hz) / 1_000_000_000;
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }

    /// Load of a worker in thousandths of its capacity. If the worker has no configured capacity,
    /// the load is in thousandths of the time, and a full core was never idle.
    fn busy_permille(&self, worker: usize) -> u64 {
        let Some(growth) = self.workers.get(worker) else { return 0 };
        let WorkerReading { cycles_charged, cycles_idle, cycles_host, .. } = growth.reading;
        let had = cycles_charged + cycles_idle + cycles_host;
        let of_core = permille(cycles_charged + cycles_host, had);
        match self.capacity {
            0 => of_core,
            capacity => of_core.max(permille(self.per_second(cycles_charged), capacity)),
        }
    }

    fn stolen_permille(&self, worker: usize) -> u64 {
        let stolen = self.workers.get(worker).map_or(0, |growth| growth.reading.cycles_stolen);
        permille(stolen, self.core_cycles())
    }

    /// Ports by their use of a worker's core, largest first.
    fn consumers(&self, worker: usize) -> Vec<Consumer> {
        let cycles = |port: &PortGrowth| port.cycles.get(worker).copied().unwrap_or(0);
        let total: u64 = self.ports.iter().map(cycles).sum();
        let mut all: Vec<&PortGrowth> = self.ports.iter().filter(|p| cycles(p) > 0).collect();
        all.sort_by_key(|port| core::cmp::Reverse(cycles(port)));
        let consumer = |port: &PortGrowth| Consumer {
            port: port.name.clone(),
            used: self.per_second(cycles(port)),
            entitled: port.entitled,
            share_permille: permille(cycles(port), total),
            priority: port.priority.into(),
            pps: self.per_second(port.reading.rx_frames),
            bps: self.per_second(bits_of(port.reading.rx_bytes, port.reading.rx_frames)),
        };
        all.into_iter().take(CONSUMERS_MAX).map(consumer).collect()
    }
}

/// The port of a question, and the data for its answer.
pub(crate) struct Question<'a> {
    pub(crate) growth: &'a Growth,
    pub(crate) port: &'a PortGrowth,
    pub(crate) status: &'a PortStatus,
    /// The worker that spent most cycles on the port. If no worker spent any, the worker that owns
    /// the port's queue pairs.
    pub(crate) worker: usize,
}

/// Answers for a port; `None` if the port does not exist.
pub(crate) fn explain(growth: &Growth, status: &PortStatus) -> Option<Explanation> {
    let port = growth.ports.iter().find(|port| port.name == status.name)?;
    let busiest = (0..port.cycles.len()).max_by_key(|worker| port.cycles[*worker]);
    let worker = match busiest {
        Some(worker) if port.cycles[worker] > 0 => worker,
        _ => status.workers.first().map_or(0, |worker| *worker as usize),
    };
    let question = Question { growth, port, status, worker };
    let limit = question.limit();
    let used: u64 = port.cycles.iter().sum();
    let mut answer = Explanation {
        port: port.name.clone(),
        window_ms: growth.nanos / 1_000_000,
        sends_pps: growth.per_second(port.reading.rx_frames),
        sends_bps: growth.per_second(bits_of(port.reading.rx_bytes, port.reading.rx_frames)),
        dropped_permille: permille(port.reading.dropped(), port.reading.rx_frames),
        policy: port.policy.name().to_owned(),
        entitled: port.entitled,
        used: growth.per_second(used),
        weight: port.weight.into(),
        priority: port.priority.into(),
        throttled_permille: question.throttled(),
        full_permille: permille(port.reading.rx_full, port.reading.rx_batches),
        worker: u32::try_from(worker).unwrap_or(u32::MAX),
        busy_permille: growth.busy_permille(worker),
        stolen_permille: growth.stolen_permille(worker),
        consumers: growth.consumers(worker),
        ..Explanation::default()
    };
    question.word(&mut answer, &limit);
    answer.limit = limit.name().to_owned();
    answer.limit_port = limit.port().to_owned();
    Some(answer)
}

impl Question<'_> {
    /// Whether the port had no batch because of a debt.
    fn in_debt(&self) -> bool {
        let had_none = self.port.reading.rx_batches == 0;
        self.port.policy.is_metered() && had_none && self.port.debt > 0
    }

    /// Part of the time in which frames waited and the bucket was empty.
    fn throttled(&self) -> u64 {
        // The worker adds this time at the next batch.
        if self.in_debt() {
            return 1_000;
        }
        // If several workers serve the port, the time is the sum of their times.
        permille(self.port.reading.throttled, self.growth.core_cycles()).min(1_000)
    }

    fn drops(&self, reasons: &[DropReason]) -> u64 {
        let dropped = reasons.iter().map(|reason| self.port.reading.drops[*reason as usize]).sum();
        permille(dropped, self.port.reading.rx_frames)
    }

    fn limit(&self) -> Limit {
        let noticeable = |permille: u64| permille >= NOTICEABLE_PERMILLE;
        let stalled = self.growth.workers.get(self.worker).is_some_and(|worker| worker.stalled);
        if stalled || self.status.state != "up" {
            return Limit::Attachment;
        }
        if noticeable(self.drops(&OWN)) {
            return Limit::OwnRate;
        }
        if noticeable(self.drops(&[DropReason::LinkLimit])) {
            return Limit::Link(self.link().map_or_else(String::new, |link| link.port.clone()));
        }
        if noticeable(self.drops(&FULL)) {
            return self.receiver();
        }
        if self.port.reading.held_back > 0 {
            return Limit::Link(String::new());
        }
        if self.throttled() >= THROTTLED_PERMILLE {
            if self.in_debt() || self.got_its_own() {
                return Limit::Entitlement;
            }
            // If the port got less than its entitlement, other ports on the core are the cause. If
            // no other port used the core, the bucket alone holds the port back.
            return match self.on_core() {
                Limit::Nothing => Limit::Entitlement,
                limit => limit,
            };
        }
        let reading = &self.port.reading;
        // The port ran no batch, so no batch was full, but frames waited without a turn.
        let no_turn = reading.rx_batches == 0 && reading.kept_waiting > 0;
        if no_turn || permille(reading.rx_full, reading.rx_batches) >= FULL_PERMILLE {
            return self.on_core();
        }
        Limit::Nothing
    }

    fn got_its_own(&self) -> bool {
        let used = self.growth.per_second(self.port.cycles.iter().sum());
        permille(used, self.port.entitled) >= ENTITLED_PERMILLE
    }

    /// The link that is the bottleneck, otherwise the link with the highest load.
    fn link(&self) -> Option<&LinkStatus> {
        self.growth.links.iter().max_by_key(|link| (link.limited, link.load_permille))
    }

    /// The receiver with the most drops.
    fn receiver(&self) -> Limit {
        let full = |port: &PortGrowth| -> u64 {
            FULL.iter().map(|reason| port.reading.tx_drops[*reason as usize]).sum()
        };
        let most = self.growth.ports.iter().filter(|p| full(p) > 0).max_by_key(|port| full(port));
        let Some(port) = most else { return Limit::Destination(String::new()) };
        if self.full_queue(&port.name).is_some() {
            return Limit::Link(port.name.clone());
        }
        let mut links = self.growth.links.iter();
        match links.find(|link| link.port == port.name) {
            Some(link) if link.sent_permille >= LINK_FULL_PERMILLE => {
                Limit::Link(port.name.clone())
            }
            _ => Limit::Destination(port.name.clone()),
        }
    }

    /// The queue of `port` that dropped frames, and the sum of the weights of all queues. The queue
    /// is the queue of the tenant's code point, otherwise the queue with the most drops.
    fn full_queue(&self, port: &str) -> Option<(&QueueStatus, u64)> {
        let port = self.growth.ports.iter().find(|other| other.name == port)?;
        let own = self.port.dscp;
        let is_own =
            |queue: &&QueueStatus| own.is_some_and(|dscp| queue.dscps.contains(&dscp.into()));
        let own = port.queues.iter().find(is_own);
        let queue = own.or_else(|| port.queues.iter().max_by_key(|queue| queue.drops))?;
        let weights = port.queues.iter().map(|queue| u64::from(queue.weight)).sum();
        (queue.drops > 0).then_some((queue, weights))
    }

    /// The limit if frames wait and no bucket of the port holds them back: the core, or other ports
    /// on it.
    fn on_core(&self) -> Limit {
        let full = self.growth.busy_permille(self.worker) >= CORE_FULL_PERMILLE;
        let stolen = self.growth.stolen_permille(self.worker) >= THROTTLED_PERMILLE;
        let consumers = self.growth.consumers(self.worker);
        let own = consumers.iter().find(|consumer| consumer.port == self.port.name);
        let share = own.map_or(0, |own| own.share_permille);
        if !full {
            return if stolen { Limit::Core } else { Limit::Nothing };
        }
        if share >= ALONE_PERMILLE {
            return Limit::Core;
        }
        if self.port.policy.is_metered() && self.port.entitled > 0 && self.got_its_own() {
            return Limit::Core;
        }
        Limit::Neighbours
    }
}
