//! The compared systems, which decide how fast flows may be.

use penstock_fabric::rate_alloc::{Parts, RateSettings};
use penstock_units::{BitsPerSecond, Nanos};

use super::spec::{HostNo, TenantNo};

/// How a network's rates are shared among tenants.
#[derive(Debug)]
pub enum System {
    /// TCP runs without limits, and all flows on a link are equal.
    PlainTcp,
    /// Each VM is limited to its guarantee in each direction.
    StaticReservation,
    /// Pairs of VMs are limited. Guarantees are divided among pairs, and rates above the guarantees
    /// are allocated. All pairs share one queue.
    ElasticSwitch(PairLimits),
    /// As [`Self::ElasticSwitch`], with two strict priorities: guaranteed traffic goes first.
    Trinity(PairLimits),
    /// Some tenants have their own queues, weighted by their reservations.
    QShare(QueueControl),
}

/// Parameters of the limits on pairs of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLimits {
    /// Parameters for changes of rates.
    pub rates: RateSettings,
    /// Time between two divisions of a VM's guarantee.
    pub partition: Nanos,
    /// Assumed additional demand of a pair, in parts per million of the rate that it sent.
    pub slack: Parts,
    /// Time for which a pair without flows keeps its limit.
    pub forget: Nanos,
}

/// Parameters of QShare's control loop.
#[derive(Debug)]
pub struct QueueControl {
    /// Interval over which usage is measured. Queues are bound at the end of each interval.
    pub interval: Nanos,
    /// Time from the end of an interval until its decision takes effect.
    pub delay: Nanos,
    pub binder: Box<dyn Binder>,
    /// Limits for tenants in the shared queue; `None` limits their VMs to their guarantees.
    pub shared: Option<PairLimits>,
}

/// Usage of a tenant on one host in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostUsage {
    pub host: HostNo,
    /// Rate that the tenant's VMs on the host sent to other hosts.
    pub sent: BitsPerSecond,
    /// Rate that these VMs received from other hosts.
    pub received: BitsPerSecond,
}

/// Decides which tenants have a queue of their own.
pub trait Binder: std::fmt::Debug + Send {
    /// Decides at the end of an interval. `usage[tenant]` has the measurements of the tenant on
    /// each host. Returns for each tenant whether it has its own queue from now on. The queue
    /// exists on all links with a reservation of the tenant.
    fn bind(&mut self, usage: &[Vec<HostUsage>]) -> Vec<bool>;
}

/// Always gives a queue to the same tenants.
#[derive(Clone, Debug)]
pub struct Always(pub Vec<TenantNo>);

impl Binder for Always {
    fn bind(&mut self, usage: &[Vec<HostUsage>]) -> Vec<bool> {
        (0..usage.len()).map(|tenant| self.0.contains(&tenant)).collect()
    }
}
