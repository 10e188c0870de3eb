//! Results of a simulation: flows, samples and queue bindings.

use penstock_units::Nanos;

use super::spec::TenantNo;

/// A completed flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    pub tenant: TenantNo,
    /// Whether it passed a watched link.
    pub far: bool,
    pub bytes: u64,
    /// When its client requested it.
    pub asked: Nanos,
    /// When its last bit arrived.
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
    /// When the sample ended.
    pub at: Nanos,
    /// Bits, indexed by `tenant * watched links + link`.
    pub bits: Vec<f64>,
    /// Bits that tenants were entitled to, with the same index: what their flows would have had if
    /// only the hose guarantees limited them.
    pub entitled: Vec<f64>,
}

/// All results of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// In order of completion.
    pub flows: Vec<FlowRecord>,
    /// In order of time.
    pub samples: Vec<Sample>,
    /// Times of changes, and which tenants had a queue of their own from then on.
    pub bindings: Vec<(Nanos, Vec<bool>)>,
}
