//! What a simulation leaves: flows, samples, and who had a queue when.

use penstock_units::Nanos;

use super::spec::TenantNo;

/// A flow that has come whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Whose.
    pub tenant: TenantNo,
    /// Whether it passed a watched link.
    pub far: bool,
    /// Its size.
    pub bytes: u64,
    /// When its client asked for it.
    pub asked: Nanos,
    /// When its last bit came.
    pub done: Nanos,
}

impl FlowRecord {
    /// Its completion time, seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "simulated time is far below 2^53 ns")]
        let nanos = self.done.saturating_sub(self.asked).0 as f64;
        nanos / 1e9
    }
}

/// What passed the watched links since the sample before.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When the sample ended.
    pub at: Nanos,
    /// Bits, `[tenant * watched links + link]`.
    pub bits: Vec<f64>,
    /// The bits that tenants were entitled to there: what their flows would have had if the hose
    /// guarantees were all that limits them.
    pub entitled: Vec<f64>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// In the order in which they were whole.
    pub flows: Vec<FlowRecord>,
    /// In the order of time.
    pub samples: Vec<Sample>,
    /// From when on who had a queue of its own.
    pub bindings: Vec<(Nanos, Vec<bool>)>,
}
