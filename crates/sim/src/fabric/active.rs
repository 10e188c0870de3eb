//! State of the pairs of VMs that have flows.
//!
//! # Problem
//!
//! Every event of a simulation changes the rates and the transferred bits of all pairs of VMs that
//! have flows. Most pairs of VMs have no flows.
//!
//! # Approach
//!
//! The state that every event changes is apart from all other state of a pair. The states of all
//! pairs with flows are consecutive in memory. A pair that becomes idle loses this state, except
//! for its counters of bits.

use super::rates::{Rates, StreamId};

/// State of a pair of VMs that has flows.
#[derive(Clone, Debug)]
pub(super) struct ActivePair {
    /// Number of the pair among all pairs.
    pub pair: u32,
    pub stream: StreamId,
    /// Stream of lower priority between the pair's VMs, which exists only for Trinity.
    pub low: Option<StreamId>,
    pub entitled: Option<StreamId>,
    /// Whether rate allocation limits the pair, which needs `refused`.
    pub is_limited: bool,
    /// Number of flows, above 0 when rates are computed.
    pub flows: f64,
    /// Value of `served` at which the next flow is complete.
    pub next: f64,
    /// Number of bits that each flow of the pair of VMs has received since the pair became active.
    pub served: f64,
    pub per_flow: f64,
    pub rate: f64,
    pub refused: f64,
    /// Number of bits that the pair of VMs has sent so far.
    pub bits: f64,
    pub entitled_rate: f64,
    /// Number of bits to which the pair was entitled since the last sample.
    pub entitled_bits: f64,
}

impl ActivePair {
    /// Creates the state of the pair number `pair`, which has no flows yet. `bits` and
    /// `entitled_bits` continue the pair's counters.
    pub const fn new(pair: u32, stream: StreamId, [bits, entitled_bits]: [f64; 2]) -> Self {
        Self {
            pair,
            stream,
            low: None,
            entitled: None,
            is_limited: false,
            flows: 0.0,
            next: f64::INFINITY,
            served: 0.0,
            per_flow: 0.0,
            rate: 0.0,
            refused: 0.0,
            bits,
            entitled_rate: 0.0,
            entitled_bits,
        }
    }

    /// Reads the pair's rate, and also the refused fraction of its demand if the pair is limited.
    /// Returns the time in seconds until the next flow will be complete.
    pub fn set_rate(&mut self, rates: &Rates) -> f64 {
        self.rate = rates.rate(self.stream);
        self.rate += self.low.map_or(0.0, |low| rates.rate(low));
        if self.is_limited {
            self.refused = rates.refused(self.low.unwrap_or(self.stream));
        }
        self.per_flow = self.rate / self.flows;
        if self.per_flow > 0.0 { (self.next - self.served) / self.per_flow } else { f64::INFINITY }
    }

    /// Adds the bits that flows transfer in `seconds` at the current rates. Returns whether a flow
    /// is complete.
    pub fn pass(&mut self, seconds: f64) -> bool {
        self.served += self.per_flow * seconds;
        self.bits += self.rate * seconds;
        self.entitled_bits += self.entitled_rate * seconds;
        self.next - self.served <= self.slack()
    }

    /// Returns the number of bits that may be missing in a complete flow: the bits of one
    /// nanosecond, which is the resolution of time.
    pub fn slack(&self) -> f64 {
        self.per_flow * 1e-9
    }
}
