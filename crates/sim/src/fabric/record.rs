//! Results of a simulation: flows, samples and queue bindings.

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
    /// Completion time in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "simulated time is far below 2^53 ns")]
        let nanos = self.done.saturating_sub(self.asked).0 as f64;
        nanos / 1e9
    }
}

/// Traffic over the watched links since the previous sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Time at which the sample ended.
    pub at: Nanos,
    /// Bits, indexed by `tenant * watched links + link`.
    pub bits: Vec<f64>,
    /// Bits to which tenants were entitled, with the same index. The tenants' flows would have
    /// received these bits if only the hose guarantees limited the flows.
    pub entitled: Vec<f64>,
}

/// All results of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Completed flows in order of completion.
    pub flows: Vec<FlowRecord>,
    /// Samples in order of time.
    pub samples: Vec<Sample>,
    /// Times of changes, and for each tenant whether it had its own queue from that time on.
    pub bindings: Vec<(Nanos, Vec<bool>)>,
}
