//! The compared systems, which limit the rates of flows.

use penstock_fabric::rate_alloc::{Parts, RateSettings};
use penstock_units::{BitsPerSecond, Nanos};

use super::spec::{HostNo, TenantNo};

/// Method by which a simulated network divides its capacity among tenants.
#[derive(Debug)]
pub enum System {
    /// All flows use TCP without rate limits, so all flows on a link have equal shares.
    PlainTcp,
    /// Each VM is limited to its guarantee in each direction.
    StaticReservation,
    /// ElasticSwitch limits pairs of VMs. VMs divide their guarantees among their pairs, and pairs
    /// increase their rates above the guarantees. All pairs of VMs share one queue.
    ElasticSwitch(PairLimits),
    /// Trinity has the same limits as [`Self::ElasticSwitch`], but two strict priorities:
    /// guaranteed traffic has the higher priority.
    Trinity(PairLimits),
    /// QShare gives some tenants dedicated queues, which are weighted by the tenants' reservations.
    QShare(QueueControl),
}

/// Parameters of the limits on pairs of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLimits {
    /// Parameters for changes of the pairs' rates.
    pub rates: RateSettings,
    /// Time between two divisions of a VM's guarantee.
    pub partition: Nanos,
    /// Additional demand that a VM assumes for a pair, in parts per million of the rate that the
    /// pair sent.
    pub slack: Parts,
    /// Time for which a pair without flows keeps its limit.
    pub forget: Nanos,
}

/// Parameters of QShare's control loop.
#[derive(Debug)]
pub struct QueueControl {
    /// Interval over which the usage of tenants is measured. The controller assigns queues to
    /// tenants at the end of each interval.
    pub interval: Nanos,
    /// Time from the end of an interval until the decision about queues takes effect.
    pub delay: Nanos,
    pub binder: Box<dyn Binder>,
    /// Limits on pairs of VMs of tenants in the shared queue. If `shared` is `None`, each VM in the
    /// shared queue is limited to its guarantee.
    pub shared: Option<PairLimits>,
}

/// Usage of a tenant on one host in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostUsage {
    pub host: HostNo,
    /// Rate at which the tenant's VMs on the host sent to other hosts.
    pub sent: BitsPerSecond,
    /// Rate at which the tenant's VMs on the host received from other hosts.
    pub received: BitsPerSecond,
}

/// Algorithm that decides which tenants have a dedicated queue.
pub trait Binder: std::fmt::Debug + Send {
    /// Decides which tenants have dedicated queues, at the end of an interval. `usage[tenant]` has
    /// the measurements of the tenant on each host. Returns for each tenant whether it has a
    /// dedicated queue from now on. A tenant has a dedicated queue on all links on which it has a
    /// reservation.
    fn bind(&mut self, usage: &[Vec<HostUsage>]) -> Vec<bool>;
}

/// Queue assignment that gives dedicated queues always to the same listed tenants.
#[derive(Clone, Debug)]
pub struct Always(pub Vec<TenantNo>);

impl Binder for Always {
    fn bind(&mut self, usage: &[Vec<HostUsage>]) -> Vec<bool> {
        (0..usage.len()).map(|tenant| self.0.contains(&tenant)).collect()
    }
}
