//! Who decides how fast a flow may be: the systems that are compared.

use penstock_fabric::rate_alloc::{Parts, RateSettings};
use penstock_units::{BitsPerSecond, Nanos};

use super::spec::{HostNo, TenantNo};

/// How a network's rates are shared among tenants.
#[derive(Debug)]
pub enum System {
    /// Nothing but TCP: every flow on a link is equal to every other.
    PlainTcp,
    /// Every VM is held to its guarantee, in each direction.
    StaticReservation,
    /// Limits on pairs of VMs, guarantees divided among them and rates allocated above; one queue.
    ElasticSwitch(PairLimits),
    /// The same with two strict priorities: what is guaranteed goes first.
    Trinity(PairLimits),
    /// Queues of their own for some tenants, weights by what is reserved.
    QShare(QueueControl),
}

/// How pairs of VMs are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLimits {
    /// How rates move.
    pub rates: RateSettings,
    /// A VM's guarantee is divided anew so often.
    pub partition: Nanos,
    /// How much more than it sent a pair is thought to want, parts of a million.
    pub slack: Parts,
    /// A pair without flows keeps its limit for so long.
    pub forget: Nanos,
}

/// QShare's loop.
#[derive(Debug)]
pub struct QueueControl {
    /// Usage is measured over so long, and queues are bound anew at the end.
    pub interval: Nanos,
    /// From the end of an interval to the moment at which its decision is in force.
    pub delay: Nanos,
    /// Who decides.
    pub binder: Box<dyn Binder>,
    /// Rates for tenants in the shared queue; `None`: their VMs are held to their guarantees.
    pub shared: Option<PairLimits>,
}

/// What a host measured of a tenant in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostUsage {
    /// The host.
    pub host: HostNo,
    /// What the tenant's VMs there sent to other hosts.
    pub sent: BitsPerSecond,
    /// What they received from them.
    pub received: BitsPerSecond,
}

/// Decides which tenants have a queue of their own.
pub trait Binder: std::fmt::Debug + Send {
    /// An interval is over. `usage[tenant]` is what its hosts measured; returns who has a queue of
    /// its own, on all links on which it has something reserved, from now on.
    fn bind(&mut self, usage: &[Vec<HostUsage>]) -> Vec<bool>;
}

/// The same tenants always.
#[derive(Clone, Debug)]
pub struct Always(pub Vec<TenantNo>);

impl Binder for Always {
    fn bind(&mut self, usage: &[Vec<HostUsage>]) -> Vec<bool> {
        (0..usage.len()).map(|tenant| self.0.contains(&tenant)).collect()
    }
}
