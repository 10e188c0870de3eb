//! Why a port has the rate it has: `penstock explain`.
//!
//! **Problem.** A VM's owner says "it is slow". Its rate may be what it bought, what a neighbour
//! leaves, what the core, the link or the receiver can take, or simply all it sends; each asks for
//! something else. **Source.** C2QoS §II (what VMs compete for), §IV, §VII. **Rule.** From what
//! the counters grew by over some seconds, the first of these that holds:
//!
//! | limit | evidence |
//! |---|---|
//! | attachment | the port cannot pass frames |
//! | own rate | frames dropped as `policed` |
//! | link | frames dropped as `link-limit`, or by the full ring of a watched uplink |
//! | link | frames dropped by a full queue of a port with `egress = "wfq"` |
//! | destination | frames dropped by a receiver's ring or queue |
//! | link | frames not taken, as too much waits for a shared output (`held_back`) |
//! | own entitlement | frames waited while it had no cycles, and nobody took what it is owed |
//! | own entitlement | it is in debt and had no batch |
//! | neighbours | frames waited, others had the core, and it got less than it is entitled to |
//! | core | frames waited, and the core had no more |
//! | nothing | none of these: it sends less |
//!
//! Frames are taken to wait when half of its batches were full. Shares below
//! [`NOTICEABLE_PERMILLE`] are no evidence.
//! **Departure.** Waiting frames are not counted in guests' rings, which belong to the guest: a
//! full batch stands for them.
//! **Cost.** Nothing in the worker: counters that are there anyway, read once a second into a ring
//! of [`history::SECONDS`] readings.

pub(crate) mod history;
#[cfg(test)]
mod tests;
mod words;

use penstock_dataplane::counters::{PortReading, WorkerReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::schedule::IngressPolicy;

use crate::api::{Consumer, Explanation, Limit, LinkStatus, PortStatus, QueueStatus, bits_of};

/// Parts of less than so many thousandths are noise.
pub(crate) const NOTICEABLE_PERMILLE: u64 = 5;
/// A port is held back by its bucket if that was so for this part of the time.
const THROTTLED_PERMILLE: u64 = 50;
/// Frames wait if this part of the batches is full.
const FULL_PERMILLE: u64 = 500;
/// A core is full from here on.
const CORE_FULL_PERMILLE: u64 = 950;
/// Somebody has a core to itself from here on.
const ALONE_PERMILLE: u64 = 900;
/// Who got less than this part of its entitlement did not get it.
const ENTITLED_PERMILLE: u64 = 970;
/// A link sends all it can from here on.
const LINK_FULL_PERMILLE: u64 = 950;
/// What is above the sender's own rates.
const OWN: [DropReason; 2] = [DropReason::Policed, DropReason::SendLimit];
/// What the receiver's side had no room for, and what it may not have.
const FULL: [DropReason; 5] = [
    DropReason::RingFull,
    DropReason::HandoverFull,
    DropReason::QueueFull,
    DropReason::ReceiveLimit,
    DropReason::TenantLimit,
];
/// Consumers that are listed.
const CONSUMERS_MAX: usize = 5;

/// What one port's counters grew by.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortGrowth {
    pub(crate) name: String,
    pub(crate) reading: PortReading,
    /// Cycles by worker.
    pub(crate) cycles: Vec<u64>,
    /// What it bought, and its class; of a port that is not metered, what it is sure of.
    pub(crate) policy: IngressPolicy,
    pub(crate) entitled: u64,
    pub(crate) weight: u16,
    pub(crate) priority: u8,
    /// Its tenant's code point.
    pub(crate) dscp: Option<u8>,
    /// Its queues by class; of their counters only `drops` are what they grew by.
    pub(crate) queues: Vec<QueueStatus>,
    /// The debt of its bucket at the end.
    pub(crate) debt: u64,
    /// What of its contract's profile it does not keep to.
    pub(crate) breach: Option<String>,
}

/// What one worker's counters grew by.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerGrowth {
    pub(crate) reading: WorkerReading,
    pub(crate) stalled: bool,
}

/// All that happened over a while.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growth {
    pub(crate) nanos: u64,
    pub(crate) tsc_hz: u64,
    /// Cycles per second that a worker may spend on frames.
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

    /// What of a worker was spent, in thousandths of what it may spend or of what it had: a busy
    /// core without a cap is one that was never idle.
    fn busy_permille(&self, worker: usize) -> u64 {
        let Some(growth) = self.workers.get(worker) else { return 0 };
        let WorkerReading { cycles_busy, cycles_idle, cycles_control, .. } = growth.reading;
        let had = cycles_busy + cycles_idle + cycles_control;
        let of_core = permille(cycles_busy + cycles_control, had);
        match self.capacity {
            0 => of_core,
            capacity => of_core.max(permille(self.per_second(cycles_busy), capacity)),
        }
    }

    fn stolen_permille(&self, worker: usize) -> u64 {
        let stolen = self.workers.get(worker).map_or(0, |growth| growth.reading.cycles_stolen);
        permille(stolen, self.core_cycles())
    }

    /// Who had a worker's core, most first.
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

/// What is asked about, and all that is known.
pub(crate) struct Question<'a> {
    pub(crate) growth: &'a Growth,
    pub(crate) port: &'a PortGrowth,
    pub(crate) status: &'a PortStatus,
    /// The worker that spent most on it, else the one that has its queue pairs.
    pub(crate) worker: usize,
}

/// Finds the port and answers; `None`: there is no such port.
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
    /// Whether the port is in a debt that let it have no batch.
    fn in_debt(&self) -> bool {
        let had_none = self.port.reading.rx_batches == 0;
        self.port.policy.is_metered() && had_none && self.port.debt > 0
    }

    /// Part of the time in which frames waited and the bucket was empty.
    fn throttled(&self) -> u64 {
        // The worker counts this time when the next batch ends it.
        if self.in_debt() {
            return 1_000;
        }
        // Of several workers, each has its own time.
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
            // A bucket that did not get what it is owed is short because of others on the core. If
            // nobody else had the core, the bucket alone is what holds the port.
            return match self.on_core() {
                Limit::Nothing => Limit::Entitlement,
                limit => limit,
            };
        }
        let reading = &self.port.reading;
        // Without one batch none was full: frames were seen that had no turn.
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

    /// The link that is the bottleneck, else the fullest.
    fn link(&self) -> Option<&LinkStatus> {
        self.growth.links.iter().max_by_key(|link| (link.limited, link.load_permille))
    }

    /// Whose ring was full: the port that most frames were dropped at.
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

    /// The queue of `port` for which the frames were too many, and the weights of all: the one that
    /// the tenant's code point says, else the one that dropped most.
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

    /// Frames wait and no bucket of its own holds them back: the core, or who else is on it.
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
