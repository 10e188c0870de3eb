//! Results of a network simulation: flows, samples and guarantees.

use penstock_units::Nanos;

use super::spec::TenantNo;

/// A completed flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    pub tenant: TenantNo,
    /// Whether the flow passed a watched link.
    pub far: bool,
    pub bytes: u64,
    /// Time at which the client requested the flow.
    pub asked: Nanos,
    /// Time at which the flow's last bit arrived.
    pub done: Nanos,
}

impl FlowRecord {
    /// Returns the flow's completion time in seconds, from request to last bit.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "simulated time is far below 2^53 ns")]
        let nanos = self.done.saturating_sub(self.asked).0 as f64;
        nanos / 1e9
    }
}

/// Traffic on the watched links since the previous sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Time at the end of the sample.
    pub at: Nanos,
    /// Bits of each tenant on each watched link. The index in the list is the tenant's number,
    /// multiplied by the number of watched links, plus the link's number among the watched links.
    pub bits: Vec<f64>,
    /// Bits that the tenants' flows would have transferred if only the hose guarantees limited the
    /// flows. The list `entitled` is indexed by tenant and watched link, like the list `bits`.
    pub entitled: Vec<f64>,
}

/// All results of a network simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Completed flows, in the order of their completion.
    pub flows: Vec<FlowRecord>,
    /// Samples of the traffic on the watched links, in order of time.
    pub samples: Vec<Sample>,
    /// Times at which the controller's changes came into force, each with the least share of a
    /// guarantee that any port left to a tenant from then on, in the worst case (`kept`). Empty if
    /// rate allocation sets the limits of the shared queue.
    pub kept: Vec<(Nanos, f64)>,
}
