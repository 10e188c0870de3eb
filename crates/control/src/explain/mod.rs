//! `penstock explain`: finds the limit on the rate of a port.
//!
//! # Problem
//! A VM sends less than its owner expects. The purchased rate, the core, the neighbours, the link
//! or the receiver may limit the VM's rate. Another possible cause of a low rate is that the VM has
//! no more frames to send. Each cause of a low rate has a different remedy.
//!
//! # Source
//! The limits follow C2QoS §II (resources for which VMs compete), §IV and §VII.
//!
//! # Approach
//! `penstock explain` compares the counters of a port and its worker at two times, some seconds
//! apart. `penstock explain` names the first limit of the following list whose condition holds:
//!
//! 1. The attachment limits the port if the port is not in state `up` or its worker is stalled.
//! 2. The port's own rate limits the port if `police` or the tenant's `send` dropped frames. The
//!    port's own rate is also the limit if the port sends at the rate `shape.send` and the shaper
//!    delayed most of its frames. The port's own rate is also the limit if frames had to wait for
//!    `police` or `send` after most of the port's batches.
//! 3. A link limits the port if frames had to wait for the port's part of the full link after most
//!    of the port's batches. A link also limits the port if frames were dropped by an uplink's full
//!    ring, or by a full queue of a `wfq` or `fair-share` port.
//! 4. The destination limits the port if a receiver's ring or queue dropped frames, or if most of
//!    the port's frames waited while a receiver's limit `receive` held frames back.
//! 5. A link limits the port if frames stay in the port's ring because too many of its frames wait
//!    at a shared output (`held_back`).
//! 6. The port's own entitlement limits the port if frames waited for cycles and other ports were
//!    not the cause. The port's entitlement is also the limit if the port had no batch because its
//!    cycle bucket is in debt.
//! 7. The neighbours, which are other ports, limit the port if its frames waited and the other
//!    ports kept the port below its entitlement.
//! 8. The core limits the port if the port's frames waited and the core was full, or if other
//!    programs took the core and little of its time was left.
//! 9. A link limits the port if the port's frames wait at an output that signalled congestion
//!    (`tx_marked`, `tx_trimmed`), or if most of these frames waited for `LONG_WAIT`.
//! 10. If no other limit of the list applies, the port sends less than its limits allow.
//!
//! Frames count as waiting if half of the port's batches were full. Dropped frames show no limit if
//! they are less than `NOTICEABLE_PERMILLE` thousandths of the port's frames.
//!
//! # Cost
//! `penstock explain` causes no work for the workers. The daemon reads existing counters once per
//! second into a ring of `history::SECONDS` readings.
//!
//! # Departures
//! The switch does not count the waiting frames in a guest's ring, because the ring belongs to the
//! guest. Full batches of a port are the sign that frames wait in the port's ring.

mod bought;
pub(crate) mod history;
#[cfg(test)]
mod tests;
mod words;

pub use bought::Bought;
use penstock_dataplane::counters::{PortReading, REFUSED, WorkerReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::snapshot::IngressPolicy;
use penstock_qos::delay_scale::part_of;
use penstock_qos::learner::MachineState;
use penstock_units::Nanos;

use crate::api::{Consumer, Explanation, Limit, LinkStatus, PortStatus, QueueStatus, bits_of};
use crate::config::Egress;

/// Smallest part of a port's frames, in thousandths, whose drops show that a limit applies.
pub(crate) const NOTICEABLE_PERMILLE: u64 = 5;
/// A cycle bucket limits its port if the bucket is empty for at least this many thousandths of the
/// time.
const THROTTLED_PERMILLE: u64 = 50;
/// Frames of a port count as waiting if at least this many thousandths of the port's batches are
/// full.
const FULL_PERMILLE: u64 = 500;
/// A core is full if its load is at least this many thousandths of its capacity.
const CORE_FULL_PERMILLE: u64 = 950;
/// If other programs took a core, the core limits its ports from this load on, in thousandths of
/// the core's time with the time that was taken.
const TAKEN_PERMILLE: u64 = 800;
/// A port has a core to itself if it causes at least this many thousandths of the core's load.
const ALONE_PERMILLE: u64 = 900;
/// If a port used at least this many thousandths of its entitlement, the port got its entitlement.
const ENTITLED_PERMILLE: u64 = 970;
/// A link is full if its load is at least this many thousandths of its capacity.
const LINK_FULL_PERMILLE: u64 = 950;
/// Wait of a frame at an output which shows that the output is full. The wait is twice CoDel's
/// target (RFC 8289 §4.2).
const LONG_WAIT: Nanos = Nanos::from_millis(10);
/// Reasons of drops that occur because the sender exceeds its own rate limits.
const OWN: [DropReason; 3] = [DropReason::Policed, DropReason::SendLimit, DropReason::PairLimit];
/// Limit on the ports that an answer lists as users of the core.
const CONSUMERS_MAX: usize = 5;

/// The key of a tenant's limit on sent frames.
const SEND: &str = "send";

/// Growth of a port's counters between two readings.
#[derive(Clone, Debug, Default)]
pub struct PortGrowth {
    pub name: String,
    /// Number of the port in the data path.
    pub number: u16,
    pub reading: PortReading,
    /// Cycles that each worker charged to the port.
    pub cycles: Vec<u64>,
    pub policy: IngressPolicy,
    /// Cycles per second to which the port is entitled. A port without metering is entitled to its
    /// guaranteed minimum ([`crate::plan::PortPlan::floor`]).
    pub entitled: u64,
    pub weight: u16,
    pub priority: u8,
    /// Code point of the port's tenant; `None` if the tenant has no code point.
    pub dscp: Option<u8>,
    /// The `wfq` queues of the port. In each queue, the counter `drops` has the growth between the
    /// two readings. The other counters of a queue have the values of the second reading.
    pub queues: Vec<QueueStatus>,
    /// Debt of the port's cycle bucket at the later reading of the counters, in cycles.
    pub debt: u64,
    /// The port's contract; `None` if the port has none.
    pub bought: Option<Bought>,
    /// The rate `shape.send` in bits per second; `None` if the port's frames are not shaped.
    pub shaped_bps: Option<u64>,
    /// Depth in bytes of the port's `police`, if the limit drops frames and the depth is too small
    /// for large segments.
    pub shallow: Option<u32>,
    /// The port's tightest limits in bits and in frames per second: the key, and the rate.
    pub limits: [(&'static str, u64); 2],
    /// Order of the frames that leave through the port.
    pub egress: Egress,
}

/// Growth of a worker's counters between two readings.
#[derive(Clone, Debug, Default)]
pub struct WorkerGrowth {
    pub reading: WorkerReading,
    pub stalled: bool,
}

/// Growth of all counters between two readings.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    pub nanos: u64,
    pub tsc_hz: u64,
    /// Capacity of a worker in cycles per second.
    pub capacity: u64,
    pub ports: Vec<PortGrowth>,
    pub workers: Vec<WorkerGrowth>,
    pub links: Vec<LinkStatus>,
    /// Whether a controller sets the queues of the host.
    pub in_fabric: bool,
    /// How the machine differs from its calibration; `None` if it does not.
    pub machine: Option<MachineState>,
}

fn permille(part: u64, of: u64) -> u64 {
    let share = u128::from(part) * 1_000 / u128::from(of.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Like [`permille`], which rounds down and suits a threshold, but rounds to the nearest.
fn nearest_permille(part: u64, of: u64) -> u64 {
    let of = u128::from(of.max(1));
    let share = (u128::from(part) * 1_000 + of / 2) / of;
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Whether at least half of the waits counted in `parts` took `time` or longer.
fn most_took(parts: &[u64], time: Nanos) -> bool {
    let (short, long) = parts.split_at(part_of(time));
    let (short, long): (u64, u64) = (short.iter().sum(), long.iter().sum());
    permille(long, short + long) >= FULL_PERMILLE
}

impl Growth {
    /// Converts the growth of a counter (`amount`) to a rate per second.
    pub(crate) fn per_second(&self, amount: u64) -> u64 {
        let rate = u128::from(amount) * 1_000_000_000 / u128::from(self.nanos.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Number of cycles of one core between the two readings.
    fn core_cycles(&self) -> u64 {
        let cycles = u128::from(self.nanos) * u128::from(self.tsc_hz) / 1_000_000_000;
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }

    /// Load of a worker in thousandths of its capacity. If no capacity is configured, the load is
    /// the part of the core's time in which the worker is not idle.
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

    /// Returns the ports that spent cycles of a worker's core, in descending order of the spent
    /// cycles.
    fn consumers(&self, worker: usize) -> Vec<Consumer> {
        let cycles = |port: &PortGrowth| port.cycles.get(worker).copied().unwrap_or(0);
        let total: u64 = self.ports.iter().map(cycles).sum();
        let mut all: Vec<&PortGrowth> = self.ports.iter().filter(|p| cycles(p) > 0).collect();
        all.sort_by_key(|port| core::cmp::Reverse(cycles(port)));
        let consumer = |port: &PortGrowth| Consumer {
            port: port.name.clone(),
            used: self.per_second(cycles(port)),
            entitled: port.entitled,
            share_permille: nearest_permille(cycles(port), total),
            priority: port.priority.into(),
            pps: self.per_second(port.reading.rx_frames),
            bps: self.per_second(bits_of(port.reading.rx_bytes, port.reading.rx_frames)),
        };
        all.into_iter().take(CONSUMERS_MAX).map(consumer).collect()
    }
}

/// The port that `penstock explain` examines, and the counters that explain the port's rate.
pub(crate) struct Question<'a> {
    pub(crate) growth: &'a Growth,
    pub(crate) port: &'a PortGrowth,
    pub(crate) status: &'a PortStatus,
    /// The worker that spent the most cycles on the port since the first reading. If no worker
    /// spent cycles on the port, this field has the worker that owns the port's queue pairs.
    pub(crate) worker: usize,
}

/// Explains the rate of a port; `None` if the port does not exist.
pub fn explain(growth: &Growth, status: &PortStatus) -> Option<Explanation> {
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
        sends_bps: question.sends_bps(),
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
    question.in_what_was_bought(&mut answer, &limit);
    answer.limit = limit.name().to_owned();
    answer.limit_port = limit.port().to_owned();
    Some(answer)
}

impl Question<'_> {
    /// Whether the port's cycle bucket is in debt, so that the worker took no batch from the port.
    fn in_debt(&self) -> bool {
        let had_none = self.port.reading.rx_batches == 0;
        self.port.policy.is_metered() && had_none && self.port.debt > 0
    }

    /// Time in which the port's frames waited while its cycle bucket was empty, in thousandths of
    /// the time between the two readings.
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
        if noticeable(self.drops(&OWN)) || self.at_shaped_rate() || self.at_policed_rate() {
            return Limit::OwnRate;
        }
        if self.waits_often(self.port.reading.link_waits) {
            return Limit::Link(self.link().map_or_else(String::new, |link| link.port.clone()));
        }
        if noticeable(self.drops(&REFUSED)) {
            return self.receiver();
        }
        if self.port.reading.held_back > 0 {
            return Limit::Link(String::new());
        }
        if let Some(receiver) = self.waited_for() {
            return Limit::Destination(receiver.name.clone());
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
        if self.core_was_taken() {
            return Limit::Core;
        }
        self.crowded().map_or(Limit::Nothing, |output| Limit::Link(output.name.clone()))
    }

    /// Returns the output at which the port's frames probably wait: of the outputs that signalled
    /// congestion, the output with the most waiting frames. If the port's own frames
    /// waited longer than CoDel allows ([`LONG_WAIT`]), its sender may also have ignored the
    /// signals.
    fn crowded(&self) -> Option<&PortGrowth> {
        let signals = |port: &PortGrowth| port.reading.tx_marked + port.reading.tx_trimmed;
        let long = most_took(&self.port.reading.waited, LONG_WAIT);
        let outputs = self.growth.ports.iter().filter(|port| long || signals(port) > 0);
        let most = outputs.max_by_key(|port| port.reading.tx_queued)?;
        (self.port.reading.queued > 0 && most.reading.tx_queued > 0).then_some(most)
    }

    /// Whether other programs took the core so long that the worker needed nearly all of the rest.
    /// Rings overflow while the worker is away, although the batches after that are not full.
    fn core_was_taken(&self) -> bool {
        // A port whose batches were never full had no backlog when the worker came back.
        let waited = self.port.reading.rx_full > 0;
        let stolen = self.growth.stolen_permille(self.worker);
        let Some(growth) = self.growth.workers.get(self.worker) else { return false };
        let WorkerReading { cycles_charged, cycles_host, .. } = growth.reading;
        let used = permille(cycles_charged + cycles_host, self.growth.core_cycles());
        waited && stolen >= THROTTLED_PERMILLE && used + stolen >= TAKEN_PERMILLE
    }

    /// True if the port sends at the rate of its shaper and the shaper delayed most of the port's
    /// frames.
    fn at_shaped_rate(&self) -> bool {
        let Some(rate) = self.port.shaped_bps else { return false };
        permille(self.sends_bps(), rate) >= ENTITLED_PERMILLE && self.delayed() >= FULL_PERMILLE
    }

    /// True if, after most batches of the port, the next frames had to wait because of the limit
    /// `police`, or because of the limit `send` of its tenant.
    fn at_policed_rate(&self) -> bool {
        let PortReading { police_waits, police_pps_waits, send_waits, .. } = self.port.reading;
        // After each large segment, the port waits although its mean rate is below the limit.
        let at = |sends: u64, rate: u64| permille(sends, rate) >= ENTITLED_PERMILLE;
        let [(_, bits), (_, frames)] = self.port.limits;
        let sends = self.growth.per_second(self.port.reading.on_wire()[0]);
        self.waits_often(police_waits) && at(self.sends_bps(), bits)
            || self.waits_often(police_pps_waits) && at(sends, frames)
            || self.waits_often(send_waits)
    }

    /// Whether a limit made the port wait after most of its batches.
    fn waits_often(&self, waits: u64) -> bool {
        waits > 0 && permille(waits, self.port.reading.rx_batches) >= FULL_PERMILLE
    }

    /// Returns the limit for which the port's frames waited most often, and the number of waits.
    fn waits(&self) -> (&'static str, u64) {
        let PortReading { police_waits, police_pps_waits, send_waits, .. } = self.port.reading;
        let [(bits, _), (frames, _)] = self.port.limits;
        let waits = [(bits, police_waits), (frames, police_pps_waits), (SEND, send_waits)];
        waits.into_iter().max_by_key(|(_, times)| *times).unwrap_or_default()
    }

    /// Returns the receiver whose limit `receive` most often made frames wait, if most of the
    /// examined port's frames waited for a millisecond or longer. No counter says at which of
    /// several such receivers the frames waited.
    fn waited_for(&self) -> Option<&PortGrowth> {
        let waited = |parts: &[u64]| most_took(parts, Nanos::from_millis(1));
        let held =
            |port: &&PortGrowth| port.reading.receive_waits > 0 && waited(&port.reading.tx_waited);
        let held = self.others().filter(held);
        held.max_by_key(|port| port.reading.receive_waits)
            .filter(|_| waited(&self.port.reading.waited))
    }

    /// Returns all ports except the examined port, which receives none of its own frames.
    fn others(&self) -> impl Iterator<Item = &PortGrowth> {
        self.growth.ports.iter().filter(|port| port.name != self.port.name)
    }

    fn sends_bps(&self) -> u64 {
        // A large segment counts as its frames on a wire, as for the limits.
        let [frames, bytes] = self.port.reading.on_wire();
        self.growth.per_second(bits_of(bytes, frames))
    }

    /// Number of frames that the shaper delayed by a microsecond or more, in thousandths of the
    /// port's frames.
    fn delayed(&self) -> u64 {
        let [at_once, later @ ..] = &self.port.reading.shaped;
        let later: u64 = later.iter().sum();
        permille(later, at_once + later)
    }

    fn got_its_own(&self) -> bool {
        let used = self.growth.per_second(self.port.cycles.iter().sum());
        permille(used, self.port.entitled) >= ENTITLED_PERMILLE
    }

    /// Returns the watched link that is the bottleneck. If no link is the bottleneck, returns the
    /// link with the highest load.
    fn link(&self) -> Option<&LinkStatus> {
        self.growth.links.iter().max_by_key(|link| (link.limited, link.load_permille))
    }

    /// Returns the receiver that dropped the port's frames. If several did, returns the receiver
    /// that dropped the most frames of all ports for the same reasons.
    fn receiver(&self) -> Limit {
        let full = |port: &PortGrowth| -> u64 {
            let reasons = REFUSED.iter().map(|reason| *reason as usize);
            let own = reasons.filter(|reason| self.port.reading.drops[*reason] > 0);
            own.map(|reason| port.reading.tx_drops[reason]).sum()
        };
        let refused = || self.others().filter(|port| full(port) > 0);
        // Other ports may lose more frames at another receiver.
        let (_, own) = self.port.reading.refused();
        let own = own.and_then(|number| refused().find(|port| port.number == number));
        let most = own.or_else(|| refused().max_by_key(|port| full(port)));
        let Some(port) = most else { return Limit::Destination(String::new()) };
        if self.full_queue(&port.name).is_some() || port.egress == Egress::FairShare {
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

    /// Returns the queue of `port` that dropped frames, and the sum of the weights of all queues.
    /// The function examines the queue that serves the tenant's code point. If no queue serves the
    /// tenant's code point, the function examines the queue with the most drops.
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

    /// Returns the limit of a port whose frames wait although its cycle bucket is not empty. The
    /// returned limit is the core or other ports on the core.
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
