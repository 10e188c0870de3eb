//! The compared systems, which decide how fast flows may be.

use penstock_fabric::rate_alloc::{Parts, RateSettings};
use penstock_units::{BitsPerSecond, Nanos};

use super::spec::{HostNo, TenantNo};

/// How a network's rates are shared among tenants.
#[derive(Debug)]
pub enum System {
    /// TCP alone: all flows on a link are equal.
    PlainTcp,
    /// Each VM is limited to its guarantee in each direction.
    StaticReservation,
    /// Limits on pairs of VMs. Guarantees are divided among pairs, and rates above them are
    /// allocated. All share one queue.
    ElasticSwitch(PairLimits),
    /// As [`Self::ElasticSwitch`], with two strict priorities: guaranteed traffic goes first.
    Trinity(PairLimits),
    /// Some tenants have queues of their own, weighted by their reservations.
    QShare(QueueControl),
}

/// Parameters of the limits on pairs of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLimits {
    /// How rates change.
    pub rates: RateSettings,
    /// Time between two divisions of a VM's guarantee.
    pub partition: Nanos,
    /// Assumed demand of a pair beyond what it sent, in parts per million.
    pub slack: Parts,
    /// Time for which a pair without flows keeps its limit.
    pub forget: Nanos,
}

/// Parameters of QShare's control loop.
#[derive(Debug)]
pub struct QueueControl {
    /// Interval over which usage is measured. Queues are bound at its end.
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
    /// Rate that they received from other hosts.
    pub received: BitsPerSecond,
}

/// Decides which tenants have a queue of their own.
pub trait Binder: std::fmt::Debug + Send {
    /// Decides at the end of an interval. `usage[tenant]` has the measurements of its hosts.
    /// Returns for each tenant whether it has its own queue from now on, on all links with a
    /// reservation of it.
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
